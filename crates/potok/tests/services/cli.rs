//! Commands on a Kafka log: bytes stay bytes, dead letters are listed and replayed.

use potok_services::Kafka;
use serde_json::Value;

use crate::check::bytes;
use crate::database::Database;
use crate::process::{Home, Running};
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

/// Starts a pipeline that sets everything aside that is not JSON.
fn start_words(kafka: &Kafka, home: &Home, name: &str, dead_letter: &str) -> Running {
    start_reading(kafka, home, name, &format!("{name}-in"), dead_letter)
}

/// The same for whatever lies in a topic.
fn start_reading(
    kafka: &Kafka,
    home: &Home,
    name: &str,
    topic: &str,
    dead_letter: &str,
) -> Running {
    let file = home.path().join(format!("{name}.yaml"));
    let yaml = format!(
        "name: {name}\nsource: {{ topic: {topic} }}\ndeliver:\n  - topic: {name}-out\n\
         dead_letter: {{ {dead_letter} }}\n"
    );
    std::fs::write(&file, yaml).unwrap();
    let log = format!("kafka://{}", kafka.servers());
    home.start_file(&file, &[("POTOK_LOG", &log)]).expect("starts")
}

fn open_letters(running: &Running, pipeline: &str, count: usize) -> Vec<Value> {
    wait::until_seen(&format!("{count} open dead letters of {pipeline}"), || {
        let args = ["dead-letters", "list", pipeline, "--json"];
        let letters = running.run(args, b"").good().lines();
        if letters.len() == count { Ok(letters) } else { Err(format!("{letters:?}")) }
    })
}

fn until_counted(running: &Running, pipeline: &str, open: u64) {
    wait::until_seen(&format!("{pipeline} counts {open} of its own"), || {
        let lines = running.run(["status", pipeline, "--json"], b"").good().lines();
        if lines[0]["dead_letters_open"] == open { Ok(()) } else { Err(format!("{lines:?}")) }
    });
}

/// What dead letters hold, sorted.
fn bodies(letters: &[Value]) -> Vec<String> {
    let body = |letter| String::from_utf8(bytes(letter, "value").unwrap()).unwrap();
    let mut bodies: Vec<String> = letters.iter().map(body).collect();
    bodies.sort();
    bodies
}

#[test]
fn notes_about_a_deleted_topic_do_not_hide_the_dead_letters_of_a_new_one() {
    let kafka = Kafka::start();
    let home = Home::new();
    let running = start_words(&kafka, &home, "words", "keep_resolved: 7d");
    running.run(["send", "words-in"], b"bad 1\nbad 2\nbad 3\n").good();
    let before = open_letters(&running, "words", 3);
    running.run(["dead-letters", "drop", "words"], b"").good();
    open_letters(&running, "words", 0);
    assert!(running.stop().success());
    kafka.delete_topic("words-dead");

    let running = start_words(&kafka, &home, "words", "keep_resolved: 7d");
    running.run(["send", "words-in"], b"bad 4\nbad 5\nbad 6\n").good();
    let after = open_letters(&running, "words", 3);
    until_counted(&running, "words", 3);
    // An id of the old topic names nothing in the new one; a short one names what is there.
    let old = before[0]["id"].as_str().unwrap();
    assert!(old.contains('@'), "{old}");
    running.run(["dead-letters", "show", old], b"").exits(1);
    let short = after[0]["id"].as_str().unwrap().split('@').next().unwrap();
    running.run(["dead-letters", "show", short], b"").good();
    running.run(["dead-letters", "drop", short], b"").good();
    open_letters(&running, "words", 2);
}

#[test]
fn pipelines_that_share_a_dead_letter_topic_replay_and_drop_only_their_own() {
    let kafka = Kafka::start();
    let (home_a, home_b) = (Home::new(), Home::new());
    let shared = "topic: all-dead";
    let a = start_words(&kafka, &home_a, "a", shared);
    let b = start_words(&kafka, &home_b, "b", shared);
    a.run(["send", "a-in"], b"bad a\n").good();
    b.run(["send", "b-in"], b"bad b\n").good();
    open_letters(&a, "a", 1);
    let of_b = open_letters(&a, "b", 1).remove(0);
    until_counted(&a, "a", 1);
    until_counted(&b, "b", 1);
    let replayed = a.run(["dead-letters", "replay", "a", "--wait", "60s"], b"").good();
    assert!(replayed.text().contains("1 dead again"), "{}", replayed.text());
    let again = open_letters(&a, "a", 1);
    assert_eq!(again[0]["attempts"], 2);
    assert_eq!(bytes(&again[0], "value").as_deref(), Some(&b"bad a"[..]));
    assert_eq!(open_letters(&b, "b", 1)[0]["id"], of_b["id"], "b's is untouched");

    // Without a name all of them go, each into its own pipeline.
    let id = of_b["id"].as_str().unwrap();
    a.run(["dead-letters", "replay", id, "--wait", "60s"], b"").good();
    let again = open_letters(&b, "b", 1);
    assert_eq!((&again[0]["attempts"], &again[0]["pipeline"]), (&2.into(), &"b".into()));
    assert_eq!(bytes(&again[0], "value").as_deref(), Some(&b"bad b"[..]));
    a.run(["dead-letters", "drop", "a"], b"").good();
    open_letters(&a, "a", 0);
    open_letters(&b, "b", 1);
}

#[test]
fn pipelines_that_read_one_topic_and_share_their_dead_letters_have_each_their_own() {
    let kafka = Kafka::start();
    let (home_a, home_b) = (Home::new(), Home::new());
    let shared = "topic: all-dead";
    let a = start_reading(&kafka, &home_a, "a", "in", shared);
    let b = start_reading(&kafka, &home_b, "b", "in", shared);
    a.run(["send", "in"], b"bad\n").good();
    // The same record, set aside by each.
    let of_a = open_letters(&a, "a", 1).remove(0);
    let of_b = open_letters(&b, "b", 1).remove(0);
    assert_eq!(of_a["origin"], of_b["origin"]);
    assert_ne!(of_a["id"], of_b["id"]);
    until_counted(&a, "a", 1);
    until_counted(&b, "b", 1);
    // Whatever becomes of one, the other waits for somebody.
    let replayed = a.run(["dead-letters", "replay", "a", "--wait", "60s"], b"").good();
    assert!(replayed.text().contains("1 dead again"), "{}", replayed.text());
    assert_eq!(open_letters(&a, "a", 1)[0]["attempts"], 2);
    assert_eq!(open_letters(&b, "b", 1)[0]["id"], of_b["id"]);
    a.run(["dead-letters", "drop", "a"], b"").good();
    until_counted(&a, "a", 0);
    // A process that reads all of it anew sees the same.
    b.kill();
    let b = start_reading(&kafka, &home_b, "b", "in", shared);
    until_counted(&b, "b", 1);
    let left = open_letters(&b, "b", 1);
    assert_eq!((&left[0]["id"], bodies(&left)), (&of_b["id"], vec!["bad".to_owned()]));
    b.run(["dead-letters", "replay", "b", "--wait", "60s"], b"").good();
    assert_eq!(open_letters(&b, "b", 1)[0]["attempts"], 2);
}

/// Waits until the first record of the topic that Kafka still has is that one.
fn until_removed(kafka: &Kafka, topic: &str, first: i64) {
    let what = format!("what lies below {first} of {topic} is removed");
    wait::until_seen(&what, || {
        // One key, so all of them lie in one partition; the others are empty.
        let starts = kafka.start_offsets(topic);
        if starts.iter().max() == Some(&first) { Ok(()) } else { Err(format!("{starts:?}")) }
    });
}

fn drop_letter(running: &Running, letter: &Value) {
    running.run(["dead-letters", "drop", letter["id"].as_str().unwrap()], b"").good();
}

#[test]
fn what_is_removed_from_kafka_ends_before_the_first_open_dead_letter() {
    let kafka = Kafka::start();
    let home = Home::new();
    let running = start_words(&kafka, &home, "words", "");
    running
        .run(["send", "words-in", "--key", "topic"], b"bad 0\nbad 1\nbad 2\nbad 3\nbad 4\n")
        .good();
    let mut letters = open_letters(&running, "words", 5);
    letters.sort_by_key(|letter| letter["value"].to_string());
    // One in the middle frees nothing before the first is dropped, too.
    drop_letter(&running, &letters[2]);
    drop_letter(&running, &letters[0]);
    until_removed(&kafka, "words-dead", 1);
    assert_eq!(bodies(&open_letters(&running, "words", 3)), ["bad 1", "bad 3", "bad 4"]);
    drop_letter(&running, &letters[1]);
    until_removed(&kafka, "words-dead", 3);
    // What is left is read anew as it was.
    assert!(running.stop().success());
    let running = start_words(&kafka, &home, "words", "");
    until_counted(&running, "words", 2);
    let left = open_letters(&running, "words", 2);
    assert_eq!(bodies(&left), ["bad 3", "bad 4"]);
    running.run(["dead-letters", "drop", "words"], b"").good();
    until_removed(&kafka, "words-dead", 5);
    open_letters(&running, "words", 0);
}

#[test]
fn what_one_pipeline_dropped_is_removed_up_to_what_another_has_open() {
    let kafka = Kafka::start();
    let (home_a, home_b) = (Home::new(), Home::new());
    let shared = "topic: all-dead";
    let a = start_reading(&kafka, &home_a, "a", "in", shared);
    let send = |lines| a.run(["send", "in", "--key", "topic"], lines).good();
    send(b"bad 0\n");
    open_letters(&a, "a", 1);
    let b = start_reading(&kafka, &home_b, "b", "in", shared);
    open_letters(&b, "b", 1);
    send(b"bad 1\n");
    open_letters(&a, "a", 2);
    open_letters(&b, "b", 2);
    a.run(["dead-letters", "drop", "a"], b"").good();
    // The first is a's, the second b's.
    until_removed(&kafka, "all-dead", 1);
    assert_eq!(bodies(&open_letters(&b, "b", 2)), ["bad 0", "bad 1"]);
    until_counted(&b, "b", 2);
    b.run(["dead-letters", "drop", "b"], b"").good();
    until_removed(&kafka, "all-dead", 4);
    open_letters(&a, "a", 0);
    open_letters(&b, "b", 0);
}
