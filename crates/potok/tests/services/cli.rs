//! Commands on a Kafka log: bytes stay bytes, dead letters are listed and replayed.

use potok_services::Kafka;
use serde_json::Value;

use crate::check::bytes;
use crate::database::Database;
use crate::replica::{Replica, Sender, Settings};
use crate::wait;

#[test]
fn records_go_to_kafka_and_come_back_byte_for_byte() {
    let (kafka, database) = (Kafka::start(), Database::postgres());
    let settings = Settings::new(&kafka, &database);
    let sender = Sender::good_only(&settings, 91);
    let strange: &[u8] = b"\xff\x00 not text \xf0\x9f\xa6\x80";
    let args = ["send", "bytes", "--framing", "whole", "--header", "a=1", "--header", "a=2"];
    let sent = sender.command(&args, strange).good();
    let note = "topic `bytes` is new, and nobody reads it";
    assert!(sent.stderr.contains(note), "{}", sent.stderr);
    assert!(!sent.stderr.contains("data folder"), "the log is elsewhere: {}", sent.stderr);
    let read = sender.command(&["read", "bytes", "--count", "1", "--json"], b"").good();
    let line = &read.lines()[0];
    assert_eq!(bytes(line, "value").as_deref(), Some(strange), "{line}");
    assert_eq!(line["headers"], serde_json::json!([["a", "1"], ["a", "2"]]), "{line}");
    assert_eq!((&line["topic"], &line["offset"]), (&"bytes".into(), &0.into()), "{line}");
}

#[test]
fn dead_letters_on_kafka_are_listed_shown_replayed_and_dropped() {
    let (kafka, database) = (Kafka::start(), Database::postgres());
    let settings = Settings::new(&kafka, &database);
    let sender = Sender::good_only(&settings, 92);
    let replica = Replica::start(&settings);
    let bad = b"nonsense\n{\"order_uid\": 5}\n";
    sender.command(&["send", "orders"], bad).good();
    let list = |args: &[&str]| -> Vec<Value> {
        let all = [&["dead-letters", "list", "orders", "--json"], args].concat();
        replica.running().run(all, b"").good().lines()
    };
    let letters = wait::until("both are dead letters", || {
        let letters = list(&[]);
        (letters.len() == 2).then_some(letters)
    });
    let reasons: Vec<_> = letters.iter().map(|letter| letter["reason"].as_str().unwrap()).collect();
    assert!(reasons.contains(&"undecodable") && reasons.contains(&"invalid"), "{reasons:?}");

    // A replay fails again: still listed, as a new entry.
    let replay = ["dead-letters", "replay", "orders", "--reason", "undecodable"];
    replica.running().run(replay, b"").good();
    let again = wait::until("the replay has failed again", || {
        let letters = list(&["--reason", "undecodable"]);
        let open: Vec<_> = letters.into_iter().filter(|letter| letter["attempts"] == 2).collect();
        (open.len() == 1).then_some(open)
    });
    assert_eq!(bytes(&again[0], "value").as_deref(), Some(&b"nonsense"[..]));
    replica.running().run(["dead-letters", "drop", "orders"], b"").good();
    wait::until("none is left", || list(&[]).is_empty().then_some(()));

    // Without a process at work the same list comes from Kafka itself.
    let mut replica = replica;
    replica.kill();
    let direct = sender.command(&["dead-letters", "list", "orders", "--json"], b"").good();
    assert!(direct.lines().is_empty(), "{}", direct.text());
}
