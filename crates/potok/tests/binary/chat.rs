//! The shipped `chat`: messages of one chat are collected and posted as one, whatever is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::process::{Home, Running, pipelines, potok};
use crate::receiver::Receiver;
use crate::walk::{DONE, Guide, Walk};
use crate::{samples, wait};

/// The shipped file with another `close`.
fn file(home: &Home, close: &str) -> PathBuf {
    let shipped = fs::read_to_string(pipelines().join("chat.yaml")).unwrap();
    let from = shipped.find("close:").unwrap();
    let to = shipped[from..].find("\n\n").unwrap();
    let usual = &shipped[from..from + to];
    assert!(usual.contains("max_age") && usual.ends_with("max_bytes: 8MiB"), "{usual}");
    let quick = "retry: { attempts: 3, first: 5ms, max: 50ms }\ngate: { probe_every: 50ms }\n";
    let file = home.path().join("chat.yaml");
    fs::write(&file, shipped.replace(usual, close) + quick).unwrap();
    file
}

fn start(home: &Home, receiver: &Receiver, close: &str, plant: Option<&str>) -> Running {
    let mut settings = vec![("POTOK_WEBHOOK_CHAT_BATCHES", receiver.url.as_str())];
    settings.extend(plant.map(|bug| ("POTOK_PLANT", bug)));
    home.start_file(&file(home, close), &settings).unwrap()
}

fn message(chat: u64, number: u64) -> String {
    let message = json!({
        "channel": "telegram", "external_chat_id": format!("tg:{chat}"), "message_id": number,
        "text": format!("text {number}"), "timestamp": "2025-01-01T00:00:00Z",
    });
    format!("{message}\n")
}

fn send(running: &Running, messages: impl IntoIterator<Item = String>) {
    let lines: String = messages.into_iter().collect();
    running.run(["send", "queue:incoming"], lines.as_bytes()).good();
}

fn ids(batch: &Value) -> Vec<u64> {
    batch["message_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn every_message_is_in_one_batch_though_the_process_is_killed() {
    let (home, receiver) = (Home::new(), Receiver::saying(503));
    let close = "close: { quiet: 300ms, max_age: 60s, max_count: 7 }";
    let mut sent = 0;
    for life in 0..5 {
        let running = start(&home, &receiver, close, None);
        let before = receiver.posts().len();
        send(&running, (sent..sent + 40).map(|number| message(number % 4, number)));
        sent += 40;
        // Some are killed while chats are open, some while they are being delivered.
        if life % 2 == 1 {
            wait::until("a batch is posted", || (receiver.posts().len() > before).then_some(()));
        }
        running.kill();
    }
    receiver.say(204);
    let running = start(&home, &receiver, close, None);
    wait::until("all are delivered", || {
        let taken: usize = receiver.taken().values().map(|batch| ids(batch).len()).sum();
        (taken as u64 >= sent).then_some(())
    });
    wait::until("nothing is left", || {
        let status = running.status();
        (status["lag"] == 0 && status["in_flight"] == 0).then_some(())
    });
    let mut bodies: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (key, body, _) in receiver.posts() {
        bodies.entry(key).or_default().insert(body);
    }
    let differ: Vec<_> = bodies.values().filter(|bodies| bodies.len() > 1).collect();
    assert!(differ.is_empty(), "a repeat is the same byte for byte: {differ:?}");
    let batches = receiver.taken();
    let mut all: Vec<u64> = batches.values().flat_map(ids).collect();
    all.sort_unstable();
    assert_eq!(all, (0..sent).collect::<Vec<_>>(), "each message is in exactly one batch");
    for batch in batches.values() {
        let ids = ids(batch);
        assert!(ids.is_sorted() && ids.len() <= 7, "{batch}");
        assert!(ids.iter().all(|id| id % 4 == ids[0] % 4), "of one chat only: {batch}");
        assert_eq!(batch["batch_key"], format!("telegram:tg:{}", ids[0] % 4));
        let texts: Vec<_> = ids.iter().map(|id| format!("text {id}")).collect();
        assert_eq!(batch["text"], texts.join("\n\n"));
        assert_eq!(batch["meta"]["batch_size"], ids.len());
    }
    // The batches of a chat were taken in order.
    for chat in 0..4 {
        let of_chat = receiver.posts().into_iter().filter(|(.., status)| *status == 204);
        let of_chat = of_chat.map(|(_, body, _)| ids(&serde_json::from_str(&body).unwrap())[0]);
        let firsts: Vec<u64> = of_chat.filter(|first| first % 4 == chat).collect();
        assert!(firsts.is_sorted(), "{firsts:?}");
    }
}

/// Posts one batch, kills the process, and answers with the bodies of both lives.
fn repeated(plant: Option<&str>) -> BTreeSet<String> {
    let (home, receiver) = (Home::new(), Receiver::saying(503));
    let close = "close: { quiet: 60s, max_age: 300s, max_count: 2 }";
    let running = start(&home, &receiver, close, plant);
    send(&running, [message(1, 1), message(1, 2)]);
    wait::until("it is posted", || (!receiver.posts().is_empty()).then_some(()));
    running.kill();
    receiver.say(204);
    let _running = start(&home, &receiver, close, plant);
    wait::until("it is taken", || (!receiver.taken().is_empty()).then_some(()));
    let keys: BTreeSet<String> = receiver.posts().into_iter().map(|(key, ..)| key).collect();
    assert_eq!(keys.len(), 1, "the same batch has the same id");
    receiver.posts().into_iter().map(|(_, body, _)| body).collect()
}

#[test]
fn a_repeat_is_the_same_and_one_that_looks_at_the_clock_is_caught() {
    let bodies = repeated(None);
    assert_eq!(bodies.len(), 1, "{bodies:?}");
    assert!(bodies.iter().all(|body| body.contains("\"batch_reason\":\"max_count\"")));
    assert!(repeated(Some("ReasonFromClock")).len() > 1, "the naive version differs");
}

/// Updates as messengers send them go in over HTTP and come out grouped.
#[test]
fn updates_of_messengers_come_out_grouped() {
    let (home, receiver) = (Home::new(), Receiver::saying(204));
    let chat = file(&home, "close: { quiet: 3s, max_age: 60s, max_count: 100 }");
    let running = samples::start(&home, chat, &receiver);
    samples::come_out_grouped(&running, &receiver);
}

/// Who writes is told by the last message, or by the first that tells it where the last does not.
#[test]
fn a_group_has_the_name_and_phone_that_some_message_has() {
    let (home, receiver) = (Home::new(), Receiver::saying(204));
    let running =
        start(&home, &receiver, "close: { quiet: 10m, max_age: 20m, max_count: 3 }", None);
    let of = |chat: u64, more: [Value; 3]| {
        let with = |(number, more): (u64, Value)| {
            let mut message: Value = serde_json::from_str(&message(chat, number)).unwrap();
            message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            format!("{message}\n")
        };
        (0..).zip(more).map(with).collect::<Vec<_>>()
    };
    let none = json!({ "name": "", "phone": null });
    send(&running, of(1, [none.clone(), json!({ "name": "Ada", "phone": "7" }), json!({})]));
    send(
        &running,
        of(2, [json!({ "name": "Ada" }), json!({ "phone": "7" }), json!({ "name": "Ben" })]),
    );
    send(&running, of(3, [json!({}), json!({}), none]));
    wait::until("all are posted", || (receiver.taken().len() == 3).then_some(()));
    let mut people: Vec<_> = receiver
        .taken()
        .into_values()
        .map(|batch| (batch["batch_key"].clone(), batch["name"].clone(), batch["phone"].clone()))
        .collect();
    people.sort_by_key(|(key, ..)| key.to_string());
    let expected = [
        json!(["telegram:tg:1", "Ada", "7"]),
        json!(["telegram:tg:2", "Ben", "7"]),
        json!(["telegram:tg:3", "", null]),
    ];
    assert_eq!(people.into_iter().map(|person| json!(person)).collect::<Vec<_>>(), expected);
}

#[test]
fn a_chat_that_never_goes_quiet_leaves_at_its_maximum_age() {
    let (home, receiver) = (Home::new(), Receiver::saying(204));
    let running =
        start(&home, &receiver, "close: { quiet: 10m, max_age: 1s, max_count: 100 }", None);
    send(&running, [message(1, 1)]);
    wait::until("it leaves", || (!receiver.taken().is_empty()).then_some(()));
    let reasons = receiver.taken().into_values().map(|batch| batch["meta"]["batch_reason"].clone());
    assert!(reasons.into_iter().all(|reason| reason == "max_wait_reached"));
}

#[test]
fn a_refused_batch_is_a_dead_letter_per_message_and_replays_under_other_ids() {
    assert!(!refused_and_replayed(None), "another body has another id");
    assert!(refused_and_replayed(Some("MergedNamedByMember")), "the naive version");
}

/// True where a replayed message has the id that its refused batch had.
fn refused_and_replayed(plant: Option<&str>) -> bool {
    let (home, receiver) = (Home::new(), Receiver::saying(422));
    let close = "close: { quiet: 10m, max_age: 20m, max_count: 2 }";
    let running = start(&home, &receiver, close, plant);
    send(&running, [message(1, 1), message(1, 2)]);
    wait::until("both are set aside", || (running.status()["dead_lettered"] == 2).then_some(()));
    let listed = running.run(["dead-letters", "list", "chat", "--json"], b"").good();
    assert_eq!(listed.lines().len(), 2, "{}", listed.text());
    receiver.say(204);
    running.run(["dead-letters", "replay", "chat"], b"").good();
    wait::until("both are delivered", || (receiver.taken().len() == 2).then_some(()));
    let refused = receiver.posts()[0].0.clone();
    let taken = receiver.taken();
    let has_its_id = taken.contains_key(&refused);
    let mut replayed: Vec<u64> = taken.values().flat_map(ids).collect();
    replayed.sort_unstable();
    assert_eq!(replayed, [1, 2]);
    assert!(taken.values().all(|batch| batch["meta"]["batch_reason"] == "replayed"));
    assert!(taken.values().all(|batch| batch["batch_key"] == "telegram:tg:1"));

    // A chat that is closed by hand says so.
    send(&running, [message(7, 3)]);
    let listed = || running.run(["groups", "list", "chat"], b"").good().text().to_owned();
    wait::until("it is open", || listed().contains("telegram:tg:7").then_some(()));
    running.run(["groups", "close", "chat", "telegram:tg:7"], b"").good();
    wait::until("it leaves", || (receiver.taken().len() == 3).then_some(()));
    let last = receiver.taken().into_values().find(|batch| ids(batch) == [3]).unwrap();
    assert_eq!(last["meta"]["batch_reason"], "closed_by_hand");
    has_its_id
}

#[test]
fn a_list_on_kafka_is_refused_with_what_to_do() {
    let home = Home::new();
    fs::copy(pipelines().join("chat.yaml"), home.path().join("chat.yaml")).unwrap();
    home.run(["check", "chat.yaml"]).good();
    home.settings("log: kafka://127.0.0.1:9\n");
    let refused = home.run(["check", "chat.yaml"]).exits(2);
    assert!(refused.stderr.contains("P1201"), "{}", refused.stderr);
    assert!(refused.stderr.contains("topic:"), "{}", refused.stderr);
}

/// `potok dev` writes messages itself: chats go quiet, and their batches appear in the topic.
#[test]
fn dev_makes_chats_that_leave_when_they_are_quiet() {
    let home = Home::new();
    let mut command = potok(["dev", "--only", "chat", "--rate", "50"]);
    command.current_dir(home.path()).env("CHAT_QUIET", "500ms").args(["--admin", "127.0.0.1:0"]);
    command.arg("--data-dir").arg(home.data());
    let running = Running::spawn(command, home.path().join("dev.log"));
    let running = running.listening(&home.data()).unwrap();
    wait::until("batches are delivered", || {
        (running.status()["delivered"].as_u64().unwrap() >= 20).then_some(())
    });
    let read = running.run(["read", "chat-batches", "--count", "5"], b"").good().lines();
    for line in &read {
        let batch: Value = serde_json::from_str(line["value"].as_str().unwrap()).unwrap();
        assert!(batch["batch_key"].as_str().unwrap().contains(':'), "{batch}");
        assert_eq!(batch["meta"]["batch_reason"], "silence_reached");
    }
    assert_eq!(read.len(), 5);
}

const INSTEAD: [(&str, &str); 2] =
    [("cargo build --release", DONE), ("alias potok=target/release/potok", DONE)];

#[test]
fn every_command_of_the_guide_to_chat_runs_on_the_embedded_log() {
    let guide = Guide::read("chat.md");
    let mut walk = Walk::through(&guide, 1..=4, &INSTEAD);
    // Nothing closes by itself while the commands are looked at.
    walk.know("export CHAT_QUIET=1h CHAT_MAX_AGE=2h");
    for _ in 0..3 {
        walk.to("echo");
    }
    walk.until("potok groups list chat", "telegram:tg_1");
    walk.to("potok groups close chat telegram:tg_1");
    let status = walk.running().drained();
    assert_eq!((&status["delivered"], &status["dead_lettered"]), (&2.into(), &1.into()));
    let batch = walk.to("potok read chat-batches");
    assert!(batch.contains(r"hello\\n\\nis anybody there?"), "{batch}");
    let letters = walk.to("potok dead-letters list chat");
    assert!(letters.contains("no_key"), "{letters}");
    walk.finish();
}
