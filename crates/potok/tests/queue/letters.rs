//! Groups that are refused or given up, pipelines that are renamed, updates of messengers: what people find.

use std::collections::BTreeSet;
use std::fs;

use potok_services::Redis;
use serde_json::Value;

use crate::posted::{LIST, file, home, ids, left, message, nothing_is_left, push, start};
use crate::process::Running;
use crate::receiver::Receiver;
use crate::{samples, wait};

const PAIRS: &str = "close: { quiet: 10m, max_age: 20m, max_count: 2 }";

fn letters(running: &Running, pipeline: &str) -> Vec<Value> {
    running.run(["dead-letters", "list", pipeline, "--json"], b"").good().lines()
}

/// A merged group is refused; its owner dies between the dead letters and the acknowledgement; whoever
/// takes over finds the same. Each message is listed once, and is taken when it is replayed.
#[test]
fn a_refused_group_is_listed_once_though_its_owner_dies_before_the_acknowledgement() {
    let (redis, receiver) = (Redis::start(), Receiver::saying(422));
    let home = home(&redis);
    let environment = [
        ("POTOK_WEBHOOK_CHAT_BATCHES", receiver.url.as_str()),
        ("POTOK_CRASH_AT", "queue.ack.before:1"),
    ];
    let mut doomed = home.start_file_unready(&file(&home, PAIRS), &environment);
    push(&redis, LIST, &[message(0, 0), message(0, 1)]);
    wait::until("it died", || (!doomed.is_alive()).then_some(()));
    let running = start(&home, &receiver, PAIRS);
    nothing_is_left(&redis);
    let listed = letters(&running, "chat");
    assert_eq!(listed.len(), 2, "{listed:?}");
    let bodies = listed.iter().map(|letter| letter["value"].as_str().unwrap().to_owned());
    let bodies: BTreeSet<String> = bodies.collect();
    assert_eq!(bodies, [message(0, 0), message(0, 1)].into(), "each with its own bytes");
    let refused: Vec<_> = receiver.posts().into_iter().map(|(key, ..)| key).collect();
    assert!(refused.len() >= 2 && refused.iter().all(|key| *key == refused[0]), "{refused:?}");
    receiver.say(204);
    running.run(["dead-letters", "replay", "chat"], b"").good();
    wait::until("both are taken", || (receiver.taken().len() == 2).then_some(()));
    let taken = receiver.taken();
    assert!(!taken.contains_key(&refused[0]), "another body has another id");
    let mut numbers: Vec<u64> = taken.values().flat_map(ids).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1]);
}

/// The same where another copy takes over, with a data folder of its own: both list the group under the same
/// origins, and whichever is replayed, what is posted has the same ids.
#[test]
fn a_refused_group_that_two_copies_list_has_the_same_ids() {
    let (redis, receiver) = (Redis::start(), Receiver::saying(422));
    let homes = [home(&redis), home(&redis)];
    let environment = [
        ("POTOK_WEBHOOK_CHAT_BATCHES", receiver.url.as_str()),
        ("POTOK_CRASH_AT", "queue.ack.before:1"),
    ];
    let mut doomed = homes[0].start_file_unready(&file(&homes[0], PAIRS), &environment);
    push(&redis, LIST, &[message(0, 0), message(0, 1)]);
    wait::until("it died", || (!doomed.is_alive()).then_some(()));
    let second = start(&homes[1], &receiver, PAIRS);
    nothing_is_left(&redis);
    let first = start(&homes[0], &receiver, PAIRS);
    let listed = [letters(&first, "chat"), letters(&second, "chat")];
    let facts = |letters: &[Value]| -> BTreeSet<String> {
        let fact = |letter: &Value| {
            format!("{} {} {}", letter["origin"], letter["reason"], letter["value"])
        };
        letters.iter().map(fact).collect()
    };
    assert_eq!((facts(&listed[0]).len(), facts(&listed[0])), (2, facts(&listed[1])));
    receiver.say(204);
    second.run(["dead-letters", "replay", "chat"], b"").good();
    wait::until("both are taken", || (receiver.taken().len() == 2).then_some(()));
    let by_second = receiver.taken();
    // Whoever replays them from the other copy as well makes the same posts under the same ids.
    first.run(["dead-letters", "replay", "chat"], b"").good();
    wait::until("none is open", || letters(&first, "chat").is_empty().then_some(()));
    assert!(receiver.taken().keys().eq(by_second.keys()), "{:?}", receiver.posts());
    let mut numbers: Vec<u64> = by_second.values().flat_map(ids).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1]);
    assert!(by_second.values().all(|batch| batch["batch_key"] == "telegram:tg:0"));
    assert!(letters(&second, "chat").is_empty());
}

/// A pipeline gets another name: it is told what to do, and has all chats when that is done.
#[test]
fn a_renamed_pipeline_goes_on_where_the_other_stopped() {
    let (redis, receiver) = (Redis::start(), Receiver::saying(204));
    let home = home(&redis);
    let patient = "close: { quiet: 1h, max_age: 2h, max_count: 100 }";
    let running = start(&home, &receiver, patient);
    push(&redis, LIST, &[message(0, 0), message(1, 1)]);
    wait::until("they wait", || {
        (redis.command(&["HLEN", "potok:list:queue:incoming:chats"]) == "2").then_some(())
    });
    assert!(running.stop().success());
    let file = file(&home, patient);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("name: chat\n"));
    fs::write(&file, text.replace("name: chat\n", "name: talk\n")).unwrap();
    let webhook = ("POTOK_WEBHOOK_CHAT_BATCHES", receiver.url.as_str());
    let running = home.start_file_unready(&file, &[webhook]);
    wait::until("it is blocked", || running.journal().contains("P1205").then_some(()));
    assert_eq!(redis.command(&["DEL", "potok:list:pipeline"]), "1");
    running.run(["resume", "talk"], b"").good();
    for chat in ["telegram:tg:0", "telegram:tg:1"] {
        wait::until("it can be closed", || {
            (running.run(["groups", "close", "talk", chat], b"").code == Some(0)).then_some(())
        });
    }
    nothing_is_left(&redis);
    let mut numbers: Vec<u64> = receiver.taken().values().flat_map(ids).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1]);
}

/// Updates as messengers send them go in over HTTP and come out grouped.
#[test]
fn updates_of_messengers_come_out_grouped() {
    let (redis, receiver) = (Redis::start(), Receiver::saying(204));
    let home = home(&redis);
    let chat = file(&home, "close: { quiet: 3s, max_age: 60s, max_count: 100 }");
    let running = samples::start(&home, chat, &receiver);
    samples::come_out_grouped(&running, &receiver);
    wait::until("nothing but ids of what was pushed is left", || {
        left(&redis).iter().all(|key| key.starts_with("potok:id:")).then_some(())
    });
}
