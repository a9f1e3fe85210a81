//! Records of a group leave as they came, whatever partitions of the log they lie in.

use std::fs;

use serde_json::Value;

use crate::process::{Home, Running, run};
use crate::wait;

/// Starts a pipeline that groups what is in `in` by its chat, and writes it into `out`.
fn start(home: &Home, close: &str, deliver: &str) -> Running {
    let file = home.path().join("chats.yaml");
    let pipeline = format!(
        "name: chats\nsource: {{ topic: in }}\ngroup: {{ by: .chat, id: .id, on_repeat: replace, \
         close: {{ {close} }} }}\ndeliver: [ {{ topic: out{deliver} }} ]\n"
    );
    fs::write(&file, pipeline).unwrap();
    home.start_file(&file, &[]).unwrap()
}

fn line(number: u64) -> String {
    format!("{{\"chat\":\"c\",\"id\":{number},\"n\":{number}}}\n")
}

/// The values of a topic, as `potok read` prints them, and their partitions.
fn read(running: &Running, topic: &str) -> Vec<(u64, Value)> {
    let lines = running.run(["read", topic], b"");
    let lines = if lines.code == Some(0) { lines.lines() } else { Vec::new() };
    let value =
        |line: &Value| -> Value { serde_json::from_str(line["value"].as_str().unwrap()).unwrap() };
    lines.iter().map(|line| (line["partition"].as_u64().unwrap(), value(line))).collect()
}

fn numbers(records: &[(u64, Value)]) -> Vec<u64> {
    records.iter().map(|(_, value)| value["n"].as_u64().unwrap()).collect()
}

fn held(running: &Running, records: u64) {
    wait::until("all of it is held", || (running.status()["in_flight"] == records).then_some(()));
}

/// Six records without a key, one after another, lie in several partitions of the source.
#[test]
fn records_sent_one_by_one_leave_in_that_order() {
    let home = Home::new();
    let running = start(&home, "max_count: 6, max_age: 1h", ", key: .chat");
    for number in 1..=6 {
        running.run(["send", "in"], line(number).as_bytes()).good();
    }
    running.drained();
    let sent = read(&running, "in");
    assert!(
        sent.iter().any(|(partition, _)| *partition != sent[0].0),
        "in one partition: {sent:?}"
    );
    assert_eq!(numbers(&sent), [1, 2, 3, 4, 5, 6], "and are read as they came");
    let out = read(&running, "out");
    assert_eq!(numbers(&out), [1, 2, 3, 4, 5, 6]);
    assert!(out.iter().all(|(partition, _)| *partition == out[0].0), "{out:?}");
}

/// They come while nobody runs, some of them at once, and the process dies in mid-window. Groups
/// that close by count have the members they would have had.
#[test]
fn records_that_are_read_again_leave_in_the_order_in_which_they_came() {
    let home = Home::new();
    let send = |lines: String, more: &[&str]| {
        run(home.command(["send", "in"].iter().chain(more)), lines.as_bytes()).good();
    };
    for number in 1..=9 {
        send(line(number), &[]);
    }
    send((10..=40).map(line).collect(), &[]);
    send((41..=60).map(line).collect(), &["--key", ".n"]);
    let running = start(&home, "max_count: 7, max_age: 1h", "");
    held(&running, 60 % 7);
    running.kill();
    let running = start(&home, "max_count: 7, max_age: 1h", "");
    held(&running, 60 % 7);
    running.run(["groups", "close", "chats", "c"], b"").good();
    running.drained();
    assert_eq!(numbers(&read(&running, "out")), (1..=60).collect::<Vec<_>>());
}

/// Within one frame of the log, across its partitions.
#[test]
fn the_last_of_several_versions_sent_at_once_stands() {
    let home = Home::new();
    let running = start(&home, "max_count: 40, max_age: 1h", "");
    let versions: String = (1..=40)
        .map(|number| format!("{{\"chat\":\"c\",\"id\":{},\"n\":{number}}}\n", number % 4))
        .collect();
    running.run(["send", "in"], versions.as_bytes()).good();
    running.drained();
    assert_eq!(numbers(&read(&running, "out")), [37, 38, 39, 40]);
}

/// Something comes all the time: silence never closes it, its age does.
#[test]
fn a_chat_that_never_goes_quiet_leaves_at_its_maximum_age() {
    let home = Home::new();
    let running = start(&home, "quiet: 1m, max_age: 2s", "");
    let mut number = 0;
    wait::until("its first batch leaves while more is coming", || {
        number += 1;
        running.run(["send", "in"], line(number).as_bytes()).good();
        let out = numbers(&read(&running, "out"));
        let is_in_order = out.iter().copied().eq(1..=out.len() as u64);
        assert!(is_in_order, "{out:?}");
        (!out.is_empty()).then_some(())
    });
}

/// More than a page, and nothing of it is in the way of a single one.
#[test]
fn a_list_of_many_batches_is_cut_and_says_so() {
    let home = Home::new();
    let running = start(&home, "max_age: 1h", "");
    let lines: String =
        (0..2_500).map(|number| format!("{{\"chat\":\"c{number}\",\"id\":1,\"n\":1}}\n")).collect();
    running.run(["send", "in"], lines.as_bytes()).good();
    held(&running, 2_500);
    let shown = running.run(["groups", "list"], b"").good();
    assert!(shown.text().contains("… and 2400 more; --limit COUNT or --all"), "{}", shown.text());
    let count = |args: &[&str]| {
        let args = ["groups", "list", "chats"].iter().chain(args);
        let shown = running.run(args, b"").good();
        shown.text().lines().filter(|line| line.contains(" open ")).count()
    };
    assert_eq!((count(&[]), count(&["--limit", "1200"]), count(&["--all"])), (100, 1_200, 2_500));
    let all = running.run(["groups", "list", "--json"], b"").good().lines();
    let ids: std::collections::HashSet<&str> =
        all.iter().map(|batch| batch["id"].as_str().unwrap()).collect();
    assert_eq!((all.len(), ids.len()), (2_500, 2_500));
    assert!(all.is_sorted_by_key(|batch| batch["due"].as_str().unwrap().to_owned()));
    let (status, page) = running.get("/api/v1/groups?pipeline=chats&limit=3").unwrap();
    let page: Value = serde_json::from_str(&page).unwrap();
    assert_eq!((status, page["total"].as_u64()), (200, Some(2_500)));
    assert_eq!(page["groups"].as_array().unwrap().len(), 3);
    assert_eq!(running.get("/api/v1/groups?after=nonsense").unwrap().0, 400);
    let one = running.run(["groups", "show", "chats", "c77"], b"").good();
    assert!(one.text().contains("\"c77\""), "{}", one.text());
    running.run(["groups", "drop", "chats", "c77"], b"").good();
    wait::until("it is given up", || (running.status()["dead_lettered"] == 1).then_some(()));
}
