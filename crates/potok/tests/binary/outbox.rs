//! The shipped `outbox` on SQLite and the embedded log: every committed row is published, in the
//! order of its key, whatever is killed or frozen.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use rusqlite::Connection;
use serde_json::Value;

use crate::process::{Home, Running, pipelines};
use crate::wait;

const SENT: &str = "send-message-notification-topic-v1";
const INFO: &str = "system-notifications-topic-v1";

fn uuid(number: u32) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

/// The application's database, once potok has made its tables.
fn application(home: &Home) -> Connection {
    wait::until("the tables are there", || {
        let connection = Connection::open(home.data().join("db/messenger.sqlite")).ok()?;
        connection.busy_timeout(wait::PATIENCE).ok()?;
        let tables = "SELECT 1 FROM outbox, outbox_dead, potok_leases LIMIT 1";
        let are_there = connection.prepare(tables).is_ok();
        are_there.then_some(connection)
    })
}

fn add(application: &Connection, number: u32, conversation: &str, event_type: &str) {
    let payload = format!(
        "{{\"event_type\":\"x\",\"payload\":{{\"conversation_id\":\"{conversation}\", \"n\":{number}}}}}"
    );
    let sql = "INSERT INTO outbox (id, event_type, payload) VALUES (?1, ?2, ?3)";
    application.execute(sql, (uuid(number), event_type, payload)).unwrap();
}

/// What a topic has: the number, the key and the id of each, in order.
fn published(running: &Running, topic: &str) -> Vec<(u64, String, String)> {
    let ran = running.run(["read", topic, "--json"], b"");
    let lines = if ran.code == Some(0) { ran.lines() } else { Vec::new() };
    let record = |line: &Value| {
        let value = line["value"].as_str().unwrap_or_else(|| panic!("{line}"));
        let value: Value = serde_json::from_str(value).unwrap();
        let headers = &line["headers"];
        let id = header(headers, "potok-id");
        assert_eq!(header(headers, "id"), id, "{line}");
        let number = value["payload"]["n"].as_u64().unwrap();
        (number, line["key"].as_str().unwrap().to_owned(), id)
    };
    lines.iter().map(record).collect()
}

fn header(headers: &Value, name: &str) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match headers {
        Value::Object(map) => text(&map[name]),
        Value::Array(all) => {
            let of: Vec<&Value> =
                all.iter().filter(|h| h[0] == name || h["name"] == name).collect();
            assert_eq!(of.len(), 1, "{headers}");
            text(if of[0].is_array() { &of[0][1] } else { &of[0]["value"] })
        }
        other => panic!("{other}"),
    }
}

fn waiting(application: &Connection) -> u32 {
    let sql = "SELECT count(*) FROM outbox WHERE NOT processed";
    application.query_row(sql, [], |row| row.get(0)).unwrap()
}

fn until_published(application: &Connection) {
    wait::until_seen("every row is marked", || match waiting(application) {
        0 => Ok(()),
        left => Err(left),
    });
}

/// First occurrences of each key are in order, all are there, repeats have the same id.
fn check(records: &[(u64, String, String)], numbers: impl Iterator<Item = u32>) {
    let mut last: BTreeMap<&str, u64> = BTreeMap::new();
    let mut seen: BTreeSet<u64> = BTreeSet::new();
    for (number, key, id) in records {
        assert_eq!(*id, uuid(*number as u32));
        if seen.insert(*number) {
            let before = last.insert(key, *number);
            assert!(before.is_none_or(|before| before < *number), "{key}: {before:?}, {number}");
        }
    }
    assert_eq!(seen, numbers.map(u64::from).collect::<BTreeSet<_>>());
}

fn shipped() -> PathBuf {
    pipelines().join("outbox.yaml")
}

/// The shipped file with other settings.
fn file(home: &Home, change: impl FnOnce(String) -> String) -> PathBuf {
    let path = home.path().join("outbox.yaml");
    fs::write(&path, change(fs::read_to_string(shipped()).unwrap())).unwrap();
    path
}

#[test]
fn rows_are_published_and_marked_whatever_is_killed() {
    let home = Home::new();
    let mut running = home.start_file(&shipped(), &[]).unwrap();
    let application = application(&home);
    let mut number = 0;
    // Between the publishing and the mark, before the one and after the other.
    for point in ["", "sink.commit.before", "sink.commit.after", "fsync.before", "fsync.after"] {
        for _ in 0..40 {
            number += 1;
            add(&application, number, &format!("c{}", number % 7), "MessageSent");
        }
        if point.is_empty() {
            until_published(&application);
            continue;
        }
        running.kill();
        match home.start_file(&shipped(), &[("POTOK_CRASH_AT", point)]) {
            Ok(mut doomed) => wait::until("it dies", || (!doomed.is_alive()).then_some(())),
            Err(_died_early) => {}
        }
        running = home.start_file(&shipped(), &[]).unwrap();
        until_published(&application);
    }
    check(&published(&running, SENT), 1..=number);
    let records = running.run(["read", SENT, "--json"], b"").good().lines();
    let is_first = |line: &&Value| header(&line["headers"], "id") == uuid(1);
    let record = records.iter().find(is_first).unwrap();
    let payload: String = application
        .query_row("SELECT payload FROM outbox WHERE id = ?1", [uuid(1)], |row| row.get(0))
        .unwrap();
    assert_eq!(record["value"], payload.as_str(), "byte for byte");
}

#[test]
fn a_type_that_is_not_mapped_keeps_only_its_key_back() {
    let home = Home::new();
    let short = |text: String| {
        text.replace("attempts: 10", "attempts: 3")
            .replace("first: 1s, max: 10m", "first: 10ms, max: 20ms")
    };
    let first = file(&home, short);
    let running = home.start_file(&first, &[]).unwrap();
    let application = application(&home);
    add(&application, 1, "a", "MessageSent");
    add(&application, 2, "b", "Unknown");
    add(&application, 3, "b", "MessageSent");
    add(&application, 4, "c", "ChannelInfoUpdated");
    until_published(&application);
    check(&published(&running, SENT), [1, 3].into_iter());
    check(&published(&running, INFO), [4].into_iter());
    let outbox = |running: &[&str]| {
        let mut command = crate::process::potok(["outbox"]);
        command.args(running).arg("--data-dir").arg(home.data()).current_dir(home.path());
        crate::process::run(command, b"").good()
    };
    let dead = outbox(&["dead-letters", "list", "outbox.yaml", "--json"]).lines();
    assert_eq!(dead.len(), 1);
    assert_eq!((&dead[0]["id"], &dead[0]["attempts"]), (&uuid(2).into(), &3.into()));
    assert!(dead[0]["error"].as_str().unwrap().contains("no topic is mapped to `Unknown`"));
    // Mended, and replayed: in its order.
    drop(running);
    file(&home, |text| short(text).replace("MessageSent:", "Unknown: mended, MessageSent:"));
    let running = home.start_file(&first, &[]).unwrap();
    add(&application, 5, "b", "Unknown");
    until_published(&application);
    outbox(&["dead-letters", "replay", "outbox.yaml", "--all"]);
    until_published(&application);
    assert_eq!(published(&running, "mended").len(), 2);
    let status = &outbox(&["status", "outbox.yaml", "--json"]).lines()[0];
    assert_eq!((&status["waiting"], &status["dead"]), (&0.into(), &0.into()));
    assert_eq!(status["owner"]["pipeline"], "outbox");
    let text = outbox(&["status", "outbox.yaml"]);
    assert!(text.text().contains("relayed by outbox on"), "{}", text.text());
}

#[test]
fn another_process_takes_over_from_a_frozen_one() {
    let home = Home::new();
    let other = Home::new();
    let quick = |text: String| text.replace("db: messenger", "db: messenger\n  lease: 2s");
    let running = home.start_file(&file(&home, quick), &[]).unwrap();
    let application = application(&home);
    add(&application, 1, "a", "MessageSent");
    until_published(&application);
    let database = format!("sqlite:{}", home.data().join("db/messenger.sqlite").display());
    let settings = [("POTOK_DB_MESSENGER", database.as_str())];
    // It stands by, and is ready all the same.
    let standby = other.start_file(&file(&other, quick), &settings).unwrap();
    add(&application, 2, "a", "MessageSent");
    until_published(&application);
    check(&published(&running, SENT), 1..=2);
    assert!(published(&standby, SENT).is_empty());
    running.signal("STOP");
    add(&application, 3, "a", "MessageSent");
    until_published(&application);
    check(&published(&standby, SENT), [3].into_iter());
    let marked = || -> Vec<String> {
        let mut statement =
            application.prepare("SELECT processed_at FROM outbox ORDER BY seq").unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let before = marked();
    running.signal("CONT");
    add(&application, 4, "a", "MessageSent");
    until_published(&application);
    assert_eq!(marked()[..3], before, "whoever wakes up changes nothing");
    check(&published(&standby, SENT), [3, 4].into_iter());
    check(&published(&running, SENT), 1..=2);
}

#[test]
fn files_that_cannot_keep_the_promise_are_refused() {
    let home = Home::new();
    let refused = |change: &dyn Fn(String) -> String, code: &str| {
        let path = file(&home, change);
        let ran = home.run(["check", path.to_str().unwrap(), "--json"]).exits(2);
        assert!(ran.text().contains(code), "{} {}", ran.text(), ran.stderr);
    };
    refused(&|text| text.replace("deliver:", "deliver:\n  - topic: second"), "P1304");
    refused(&|text| format!("{text}group: {{ by: .a, close: {{ every: 10s }} }}\n"), "P1304");
    refused(&|text| format!("{text}order_by: .a\n"), "P0153");
    let topic = "name: a\nsource: { topic: a }\ndeliver: [ { topic: b } ]\n";
    refused(&|_| format!("{topic}dead_letter: {{ table: x }}\n"), "P1305");
    refused(&|text| text.replace("{ table: outbox_dead }", "{ table: a, topic: b }"), "P014");
}
