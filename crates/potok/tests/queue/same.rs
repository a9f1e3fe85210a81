//! The same arrivals through the embedded log and through Redis give the same batches.

use potok_services::Redis;
use serde_json::Value;

use crate::posted::{LIST, Pusher, home, ids, message, nothing_is_left, push, start};
use crate::process::{Home, Running};
use crate::receiver::Receiver;
use crate::wait;

const BY_BYTES: &str = "close: { quiet: 1s, max_age: 60s, max_count: 20, max_bytes: 2KiB }";
const BY_COUNT: &str = "close: { quiet: 1s, max_age: 60s, max_count: 9 }";

/// Chats with few and with many messages, some of them large.
fn arrivals() -> Vec<String> {
    let arrival = |n: u64| {
        let chat = if n.is_multiple_of(2) { 0 } else { n % 11 };
        let pad = "x".repeat((n % 7) as usize * 60);
        message(chat, n).replace("\"text\":\"", &format!("\"text\":\"{pad}"))
    };
    (0..300).map(arrival).collect()
}

/// Closes before the others: by its channel, and by what its messages say.
#[test]
fn both_ways_let_records_say_how_quiet_it_has_to_be() {
    let close = "close: { quiet: 1h, max_age: 2h, quiet_by: { by: .channel, map: { whatsapp: \
                 300ms }, millis: .debounce_ms } }";
    let (redis, by_redis, embedded) =
        (Redis::start(), Receiver::saying(204), Receiver::saying(204));
    let homes = (home(&redis), Home::new());
    let whatsapp = message(1, 1).replace("telegram", "whatsapp");
    let says = message(2, 2).replace("\"text\"", "\"debounce_ms\":200,\"text\"");
    let arrivals = [message(0, 0), whatsapp, says];
    push(&redis, LIST, &arrivals);
    let (one, other) = (start(&homes.0, &by_redis, close), start(&homes.1, &embedded, close));
    let lines: String = arrivals.iter().map(|line| format!("{line}\n")).collect();
    other.run(["send", "queue:incoming"], lines.as_bytes()).good();
    for (receiver, running) in [(&by_redis, &one), (&embedded, &other)] {
        wait::until("two chats are posted", || (receiver.taken().len() == 2).then_some(()));
        let left = running.run(["groups", "list", "chat"], b"").good();
        assert!(left.text().contains("telegram:tg:0"), "{}", left.text());
    }
    assert_eq!(batches(&by_redis), batches(&embedded));
}

/// Chat, messages, reason and text of each batch.
fn batches(receiver: &Receiver) -> Vec<(String, Vec<u64>, String, String)> {
    let batch = |batch: Value| {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let reason = text(&batch["meta"]["batch_reason"]);
        (text(&batch["batch_key"]), ids(&batch), reason, text(&batch["text"]))
    };
    let mut batches: Vec<_> = receiver.taken().into_values().map(batch).collect();
    batches.sort();
    batches
}

/// The last message of a chat needs less silence than the one before it, which has been sorted by then.
#[test]
fn both_ways_let_a_chat_leave_sooner_when_its_last_message_says_so() {
    let close = "close: { quiet: 1h, max_age: 2h, quiet_by: { millis: .debounce_ms } }";
    let (redis, by_redis, embedded) =
        (Redis::start(), Receiver::saying(204), Receiver::saying(204));
    let homes = (home(&redis), Home::new());
    let (one, other) = (start(&homes.0, &by_redis, close), start(&homes.1, &embedded, close));
    let soon = message(0, 1).replace("\"text\"", "\"debounce_ms\":200,\"text\"");
    for arrival in [message(0, 0), soon] {
        push(&redis, LIST, std::slice::from_ref(&arrival));
        other.run(["send", "queue:incoming"], format!("{arrival}\n").as_bytes()).good();
        wait::until("it is in its chat, or has left with it", || {
            let is_there = |running: &Running, receiver: &Receiver| {
                let listed = running.run(["groups", "list", "chat"], b"").good();
                listed.text().contains("telegram:tg:0") || !receiver.taken().is_empty()
            };
            (is_there(&one, &by_redis) && is_there(&other, &embedded)).then_some(())
        });
    }
    for receiver in [&by_redis, &embedded] {
        wait::until("it is posted", || (receiver.taken().len() == 1).then_some(()));
    }
    let [batch] = &batches(&embedded)[..] else { panic!("{:?}", batches(&embedded)) };
    assert_eq!((&batch.1, batch.2.as_str()), (&vec![0, 1], "silence_reached"));
    assert_eq!(batches(&by_redis), batches(&embedded));
}

/// Ninety messages of a megabyte: no group has more bytes than it may, and each way cuts at the same places.
#[test]
fn both_ways_make_the_same_batches_of_large_messages() {
    let close = "close: { quiet: 1h, max_age: 2h, max_count: 100, max_bytes: 8MiB }";
    let (redis, by_redis, embedded) =
        (Redis::start(), Receiver::saying(204), Receiver::saying(204));
    let homes = (home(&redis), Home::new());
    let pad = "x".repeat(1_000_000);
    // What is so large does not go into the merged message.
    let large = |n: u64| message(0, n).replace("\"text\"", &format!("\"raw\":\"{pad}\",\"text\""));
    let (one, other) = (start(&homes.0, &by_redis, close), start(&homes.1, &embedded, close));
    let mut pushing = Pusher::new(&redis);
    (0..90).for_each(|n| pushing.push(LIST, &large(n)));
    let lines: String = (0..90).map(|n| format!("{}\n", large(n))).collect();
    other.run(["send", "queue:incoming"], lines.as_bytes()).good();
    for (running, receiver) in [(&one, &by_redis), (&other, &embedded)] {
        wait::until("the last two wait", || {
            let groups = running.run(["groups", "list", "chat", "--json"], b"").good().lines();
            let records: Vec<_> =
                groups.iter().map(|group| group["kinds"]["record"]["records"].as_u64()).collect();
            (records == [Some(2)] && receiver.taken().len() == 11).then_some(())
        });
        running.run(["groups", "close", "chat", "--all"], b"").good();
        wait::until("they have left", || (receiver.taken().len() == 12).then_some(()));
    }
    assert_eq!(batches(&by_redis), batches(&embedded));
    let sizes: Vec<usize> = batches(&embedded).iter().map(|(_, ids, ..)| ids.len()).collect();
    assert_eq!(sizes, [vec![8; 11], vec![2]].concat());
    nothing_is_left(&redis);
}

#[test]
fn both_ways_make_the_same_batches_by_bytes() {
    assert_same(BY_BYTES, "max_bytes");
}

#[test]
fn both_ways_make_the_same_batches_by_count() {
    assert_same(BY_COUNT, "max_count");
}

/// The same arrivals give the same batches, some of which closed for that reason.
fn assert_same(close: &str, closed: &str) {
    let (redis, by_redis, embedded) =
        (Redis::start(), Receiver::saying(204), Receiver::saying(204));
    let homes = (home(&redis), Home::new());
    push(&redis, LIST, &arrivals());
    let _one = start(&homes.0, &by_redis, close);
    let other = start(&homes.1, &embedded, close);
    let lines: String = arrivals().iter().map(|line| format!("{line}\n")).collect();
    other.run(["send", "queue:incoming"], lines.as_bytes()).good();
    nothing_is_left(&redis);
    let all = |receiver: &Receiver| {
        batches(receiver).iter().map(|(_, ids, ..)| ids.len()).sum::<usize>() == 300
    };
    wait::until("both have posted all", || (all(&by_redis) && all(&embedded)).then_some(()));
    assert_eq!(batches(&by_redis), batches(&embedded));
    assert!(batches(&embedded).iter().any(|(_, _, reason, _)| reason == closed));
}
