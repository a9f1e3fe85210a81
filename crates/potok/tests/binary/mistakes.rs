//! Mistakes in files: each is found where it is, by `check` as by `run`.

use std::fs;
use std::path::Path;

use rusqlite::Connection;

use crate::process::{Home, ProcessOutput, run};
use crate::wait;

const SCHEMA: &str = r#"{ "type": "object", "properties": { "id": { "type": "string" }, "n": { "type": "integer" } } }"#;

fn write(home: &Home, name: &str, text: &str) {
    fs::write(home.path().join(name), text).unwrap();
}

fn check(home: &Home, args: &[&str]) -> ProcessOutput {
    run(home.command(["check"].iter().chain(args)), b"")
}

#[test]
fn a_mapping_that_cannot_work_is_shown_in_the_file() {
    let home = Home::new();
    write(&home, "s.json", SCHEMA);
    write(
        &home,
        "t.yaml",
        "name: t\nsource: { topic: t }\ndecode: { schema: s.json }\ndeliver:\n  - db: t\n    table: t\n    once_by: .idd\n    create_tables: true\n",
    );
    let said = check(&home, &["t.yaml"]).exits(2).stderr;
    assert!(said.contains("error[P0304]: `once_by` is `.idd`"), "{said}");
    assert!(said.contains("t.yaml:7:14"), "{said}");
    assert!(said.contains("1 error in 1 file; `potok explain P0304` says more"), "{said}");
    let problem = check(&home, &["t.yaml", "--json"]).exits(2).lines().remove(0);
    assert_eq!((&problem["line"], &problem["column"]), (&7.into(), &14.into()), "{problem}");
}

#[test]
fn connections_among_pipelines_are_checked_as_what_they_are() {
    let home = Home::new();
    write(&home, "a.yaml", "name: a\nsource: { topic: a }\ndeliver: [ { topic: b } ]\n");
    home.settings("db: { orders: sqlite }\n");
    let said = check(&home, &["a.yaml", "potok.yaml"]).good();
    assert!(said.text().contains("a.yaml: pipeline `a` is good"), "{}", said.text());
    assert!(said.text().contains("potok.yaml: connections are good"), "{}", said.text());
    assert!(said.text().contains("2 files: no error"), "{}", said.text());
    home.settings("db: { orders: oracle }\nworkers: 4\n");
    let said = check(&home, &["a.yaml", "potok.yaml"]).exits(2).stderr;
    assert!(said.contains("potok.yaml:1:15"), "{said}");
    assert!(said.contains("unknown key `workers`"), "{said}");
    assert!(said.contains("2 errors in 1 file"), "said once: {said}");
    home.settings("");
    check(&home, &["a.yaml", "potok.yaml"]).good();
    // Whoever runs it is told what it is.
    home.settings("log: embedded\n");
    let said = run(home.command(["run", "potok.yaml"]), b"").exits(2).stderr;
    assert!(said.contains("this file has connections, and no pipeline"), "{said}");
}

#[test]
fn a_slip_in_a_field_is_warned_of_and_runs() {
    let home = Home::new();
    write(&home, "s.json", SCHEMA);
    write(
        &home,
        "g.yaml",
        "name: g\nsource: { topic: g }\ndecode: { schema: s.json }\ngroup: { by: .idd, close: { after_first: 1h } }\ndeliver: [ { topic: out } ]\n",
    );
    let checked = check(&home, &["g.yaml"]).good();
    assert!(checked.stderr.contains("warning[P0131]"), "{}", checked.stderr);
    assert!(checked.stderr.contains("g.yaml:4:14"), "{}", checked.stderr);
    assert!(checked.text().contains("1 file: no error, 1 warning"), "{}", checked.text());
    let running = home.start_file(&home.path().join("g.yaml"), &[]).unwrap();
    assert!(running.journal().contains("g.yaml:4:14"), "{}", running.journal());
}

/// What `run` refuses, `check --connect` refuses; what `run` makes, it does not miss.
#[test]
fn connecting_agrees_with_running() {
    let home = Home::new();
    write(&home, "s.json", SCHEMA);
    let yaml = |create: bool| {
        let text = format!(
            "name: t\nsource: {{ topic: t }}\ndecode: {{ schema: s.json }}\ndeliver:\n  - db: t\n    table: t\n    once_by: .id\n    create_tables: {create}\n"
        );
        write(&home, "t.yaml", &text);
    };
    let file = home.data().join("db/t.sqlite");
    let connect = || check(&home, &["t.yaml", "--connect"]);
    let state = || {
        let running = home.start_file(&home.path().join("t.yaml"), &[]);
        running.map(|running| {
            wait::until("it runs or is blocked", || {
                let status = running.status();
                let state = status["state"].as_str().unwrap().to_owned();
                (state == "running" || state == "blocked").then_some(state)
            })
        })
    };
    // Not there, and made by `run`.
    yaml(true);
    connect().good();
    assert!(!file.exists(), "nothing was made by looking");
    assert_eq!(state(), Ok("running".to_owned()));
    assert!(file.exists());
    connect().good();
    // There, and without the columns that potok needs.
    let database = Connection::open(&file).unwrap();
    database
        .execute_batch("DROP TABLE t; CREATE TABLE t (id TEXT PRIMARY KEY, n INTEGER)")
        .unwrap();
    for create in [true, false] {
        yaml(create);
        let said = connect().exits(1).stderr;
        assert!(said.contains("P0301") && said.contains("content_hash"), "{said}");
    }
    // The table is missing, and nobody makes it.
    database.execute_batch("DROP TABLE t").unwrap();
    let said = connect().exits(1).stderr;
    assert!(said.contains("P0301") && said.contains("table `t`"), "{said}");
    yaml(true);
    connect().good();
    assert!(Path::new(&file).exists());
}

/// The error of a record says where in the file its program failed.
#[test]
fn a_program_that_fails_on_a_record_names_its_place_in_the_file() {
    let home = Home::new();
    write(
        &home,
        "v.yaml",
        "name: v\nsource: { topic: v }\nprocess:\n  - stage: clean\n    vrl: |\n      .a = 1\n      .b = to_int!(.c)\ndeliver: [ { topic: out } ]\n",
    );
    let running = home.start_file(Path::new("v.yaml"), &[]).unwrap();
    running.run(["send", "v"], b"{\"c\":\"x\"}\n").good();
    wait::until("it is a dead letter", || (running.status()["dead_lettered"] == 1).then_some(()));
    let letter = running.run(["dead-letters", "list", "v", "--json"], b"").good().lines().remove(0);
    let error = letter["error"].as_str().unwrap();
    assert!(error.contains("`to_int` failed") && error.ends_with("(at v.yaml:7:12)"), "{error}");
}
