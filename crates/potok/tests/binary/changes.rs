//! Pipelines that are not the shipped one: changed between two lives, and with two destinations.

use std::fs;
use std::path::PathBuf;

use potok_traffic::orders::OrderGenerator;
use rusqlite::Connection;
use serde_json::Value;

use crate::check::{Tables, assert_adds_up};
use crate::load::lines;
use crate::process::{Home, Running, pipelines};
use crate::wait;

/// A copy of the shipped pipeline with `from` replaced by `to`.
fn changed(home: &Home, from: &str, to: &str) -> PathBuf {
    let text = fs::read_to_string(pipelines().join("orders.yaml")).unwrap();
    assert!(text.contains(from), "{from} is in the shipped file");
    let schema = pipelines().join("schemas/order.json");
    let text = text.replacen(from, to, 1).replace("schemas/order.json", schema.to_str().unwrap());
    let file = home.path().join("orders.yaml");
    fs::write(&file, text).unwrap();
    file
}

/// Delivered, then killed before it was noted; the file changes; the record is read again. It has
/// other content now, and it is still the same record.
#[test]
fn what_was_delivered_before_a_change_is_not_delivered_again() {
    let home = Home::new();
    let order = OrderGenerator::good_only(90).good();
    let running = home.start_with(&[("POTOK_CRASH_AT", "sink.commit.after")]).expect("starts");
    // Its answer may be lost with the process.
    let _ = running.send_lines(&lines(std::slice::from_ref(&order)), &[]);
    running.ended("potok dies behind the commit of the database");
    assert_eq!(Tables::read(&home.database()).count(), 1);

    let stage = "process:\n  - stage: mark\n    vrl: .entry = \"CHANGED\"\n\ndeliver:\n";
    let file = changed(&home, "deliver:\n", stage);
    let running = home.start_file(&file, &[]).expect("starts");
    let status = running.drained();
    assert_adds_up(&status);
    assert_eq!((&status["duplicates"], &status["dead_lettered"]), (&1.into(), &0.into()));
    let row = Tables::read(&home.database()).order(&order.uid).expect("a row");
    assert_eq!(row, serde_json::from_slice::<Value>(&order.bytes).unwrap());
}

/// One of two destinations refuses: a replay goes to that one alone.
#[test]
fn a_replay_goes_only_where_the_record_was_refused() {
    let home = Home::new();
    let file = changed(&home, "deliver:\n", "deliver:\n  - topic: copies\n");
    let running = home.start_file(&file, &[]).expect("starts");
    let mut generator = OrderGenerator::good_only(91);
    let first = generator.good();
    let second = generator.version_of(&first.uid);
    assert!(running.send_lines(&lines(&[first.clone(), second]), &["--key", ".order_uid"]));
    running.drained();
    let copies = |running: &Running| running.run(["read", "copies"], b"").good().lines().len();
    assert_eq!(copies(&running), 2, "both went to the topic");

    let database = Connection::open(home.database()).unwrap();
    database.busy_timeout(wait::PATIENCE).unwrap();
    database.pragma_update(None, "foreign_keys", true).unwrap();
    database.execute("DELETE FROM orders WHERE order_uid = ?", [&first.uid]).unwrap();
    running.run(["dead-letters", "replay", "orders"], b"").good();
    wait::until("the refused one is in the database", || {
        (Tables::read(&home.database()).count() == 1).then_some(())
    });
    assert_adds_up(&running.drained());
    assert_eq!(copies(&running), 2, "and not to the topic again");
    let left = running.run(["dead-letters", "list", "orders", "--json"], b"").good().lines();
    assert_eq!(left, Vec::<Value>::new());
}
