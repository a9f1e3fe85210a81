//! Conditions: every example that people are shown works, and what a condition fails on is false.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::process::{Home, potok, run};
use crate::wait;

/// The help of a command and of all below it.
fn helps(command: &[String], all: &mut Vec<String>) {
    let mut args = command.to_vec();
    args.push("--help".to_owned());
    let help = run(potok(&args), b"").good().text().to_owned();
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    for line in listed.take_while(|line| !line.is_empty()) {
        let name = line.trim_start().split(' ').next().unwrap_or_default();
        let is_name = line.starts_with("  ") && !line.starts_with("   ");
        if is_name && name != "help" {
            let below: Vec<String> = command.iter().cloned().chain([name.to_owned()]).collect();
            helps(&below, all);
        }
    }
    all.push(help);
}

/// Every text of this project that people read.
fn pages(folder: &Path, all: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            all.push(fs::read_to_string(path).unwrap());
        }
    }
}

/// What stands in single quotes behind each of these words, within a line.
fn quoted(text: &str, behind: &str) -> Vec<String> {
    let one = |rest: &str| {
        let line = rest.split_once("\n\n").map_or(rest, |(paragraph, _)| paragraph);
        let (_, quoted) = line.split_once('\'')?;
        Some(quoted.split_once('\'')?.0.replace('\n', " "))
    };
    text.split(behind).skip(1).filter_map(one).collect()
}

#[test]
fn every_where_that_people_are_shown_is_one() {
    let home = Home::new();
    run(home.command(["send", "orders"]), b"{}\n").good();
    let mut texts = Vec::new();
    helps(&[], &mut texts);
    assert!(texts.len() > 20, "all commands were found");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    pages(&root.join("docs"), &mut texts);
    texts.push(fs::read_to_string(root.join("README.md")).unwrap());
    texts.push(fs::read_to_string(root.join("README.ru.md")).unwrap());
    let list = |predicate: &str| {
        run(home.command(["dead-letters", "list", "--where", predicate, "--json"]), b"")
    };
    // The refusal of one that is none shows one that is.
    let refused = list("nonsense(").exits(2);
    let hint = refused.stderr.split("for example: ").nth(1).expect("an example in the hint");
    let mut examples = vec![hint.lines().next().unwrap_or_default().to_owned()];
    examples.extend(texts.iter().flat_map(|text| quoted(text, "--where")));
    examples.sort();
    examples.dedup();
    assert!(examples.len() > 4, "{examples:?}");
    for example in examples {
        let ran = list(&example);
        assert_eq!(ran.code, Some(0), "{example}: {}", ran.stderr);
        assert_eq!(ran.stderr, "", "{example}");
    }
}

#[test]
fn dead_letters_are_chosen_by_comparing_and_what_cannot_be_compared_is_left() {
    let home = Home::new();
    let file = home.path().join("pay.yaml");
    let yaml = "name: pay\nsource: { topic: pays }\nprocess: [ { stage: no, vrl: 'assert!(false)' } ]\ndeliver: [ { topic: out } ]\n";
    fs::write(&file, yaml).unwrap();
    let running = home.start_file(&file, &[]).unwrap();
    let records = b"{\"amount\":5}\n{\"amount\":50}\n{\"amount\":\"50\"}\n{}\nnot JSON\n";
    running.run(["send", "pays"], records).good();
    wait::until("all are dead letters", || (running.status()["dead_lettered"] == 5).then_some(()));
    let count = |predicate: &str| {
        let args = ["dead-letters", "list", "pay", "--json", "--where", predicate];
        running.run(args, b"").good().lines().len()
    };
    assert_eq!(count(".amount > 10"), 1);
    assert_eq!(count(".amount > 10 || .amount == \"50\""), 2);
    assert_eq!(count("to_int(.amount) > 10"), 2);
    assert_eq!(count("%topic == \"pays\""), 5);
    let journal = running.journal();
    assert!(!journal.contains("reported as used"), "{journal}");
}

#[test]
fn a_group_closes_with_the_record_for_which_its_condition_holds() {
    let home = Home::new();
    let file = home.path().join("sum.yaml");
    let yaml = "name: sum\nsource: { topic: in }\ngroup: { by: .id, close: { when: .amount > 10, max_age: 1h } }\ndeliver: [ { topic: out } ]\n";
    fs::write(&file, yaml).unwrap();
    let running = home.start_file(&file, &[]).unwrap();
    let first = b"{\"id\":\"a\",\"amount\":1}\n{\"id\":\"a\",\"amount\":\"99\"}\n{\"id\":\"b\"}\n";
    running.run(["send", "in", "--key", ".id"], first).good();
    wait::until("they are held", || (running.status()["in_flight"] == 3).then_some(()));
    assert_eq!(running.status()["delivered"], 0);
    running.run(["send", "in", "--key", ".id"], b"{\"id\":\"a\",\"amount\":11}\n").good();
    let status = wait::until("the group is closed by its last record", || {
        let status = running.status();
        (status["delivered"] == 3).then_some(status)
    });
    assert_eq!(status["in_flight"], json!(1), "the other one is open: {status}");
}
