//! What groups hold is said to be held, while they do and when the process stops.

use std::fs;

use crate::process::{Home, pipelines, potok, run};
use crate::wait;

const HELD: &str = "name: chat\nsource: { topic: in }\ngroup: { by: .id, close: { after_first: 1h } }\ndeliver: [ { topic: out } ]\n";

#[test]
fn status_metrics_and_the_end_of_a_process_say_what_is_held() {
    let home = Home::new();
    let file = home.path().join("chat.yaml");
    fs::write(&file, HELD).unwrap();
    let running = home.start_file(&file, &[]).unwrap();
    running.run(["send", "in"], b"{\"id\":1}\n{\"id\":1}\n{\"id\":2}\n").good();
    let status = wait::until("three are held", || {
        let status = running.status();
        (status["held_records"] == 3).then_some(status)
    });
    assert_eq!(status["open_groups"], 2, "{status}");
    let next = status["next_close_in"].as_u64().unwrap();
    assert!((1..=3_600_000).contains(&next), "{status}");
    assert!(status["next_close"].as_str().unwrap().ends_with('Z'), "{status}");
    let said = running.run(["status"], b"").good();
    let line = "chat: 3 held in 2 groups, next closes in ";
    assert!(said.text().contains(line), "{}", said.text());
    let (_, metrics) = running.get("/metrics").unwrap();
    assert!(metrics.contains("potok_group_held_records{pipeline=\"chat\"} 3"), "{metrics}");
    assert!(metrics.contains("potok_group_next_close_seconds{pipeline=\"chat\"} "), "{metrics}");

    running.run(["groups", "close", "chat", "2"], b"").good();
    wait::until("one group has gone", || {
        let status = running.status();
        (status["held_records"] == 2 && status["delivered"] == 1).then_some(())
    });
    running.signal("TERM");
    assert!(running.ended("potok stops when told to").success());
    let journal = fs::read_to_string(home.path().join("stderr.log")).unwrap();
    assert!(journal.contains("held records go on at the next start"), "{journal}");
    assert!(journal.contains("held_records=2"), "{journal}");

    let running = home.start_file(&file, &[]).unwrap();
    wait::until("they are held again", || (running.status()["held_records"] == 2).then_some(()));
}

/// Piped, the first line says what happened in the seconds before it; at Ctrl-C held records are
/// not lost.
#[test]
fn dev_says_how_fast_it_goes_and_what_it_held() {
    let home = Home::new();
    let mut command = potok(["dev", "--only", "em-processor", "--rate", "100"]);
    command.current_dir(home.path()).args(["--admin", "127.0.0.1:0", "--data-dir"]);
    command.arg(home.data());
    let running = crate::process::Running::spawn(command, home.path().join("dev.log"));
    let said = || fs::read_to_string(home.path().join("dev.log")).unwrap_or_default();
    let line = wait::until("a line of rates", || {
        let said = said();
        said.lines().find(|line| line.contains("per second")).map(str::to_owned)
    });
    assert!(!line.contains("per second 0 received"), "{line}");
    let said_first = said();
    let address =
        said_first.lines().next().and_then(|line| line.strip_prefix("dashboard     http://"));
    let address = address.and_then(|address| address.strip_suffix('/')).expect("where to look");
    let top = run(potok(["top", "--once", "--admin", address]), b"").good();
    assert!(
        top.text().contains("em-processor  running") && top.text().contains("held in"),
        "{}",
        top.text()
    );
    assert!(line.contains(" held in ") && line.contains("next closes in"), "{line}");
    running.signal("INT");
    assert!(running.ended("potok dev stops at Ctrl-C").success());
    let said = said();
    assert!(said.contains("held records go on at the next start"), "{said}");
}

#[test]
fn nothing_held_is_not_spoken_of() {
    let home = Home::new();
    let running = home.start_file(&pipelines().join("orders.yaml"), &[]).unwrap();
    let said = running.run(["status"], b"").good();
    assert!(!said.text().contains("held"), "{}", said.text());
    assert!(running.status()["next_close"].is_null());
    assert!(running.stop().success());
    let journal = fs::read_to_string(home.path().join("stderr.log")).unwrap();
    assert!(!journal.contains("held records"), "{journal}");
    drop(run(potok(["--version"]), b"").good());
}
