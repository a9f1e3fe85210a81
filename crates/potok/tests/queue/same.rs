//! The same arrivals through the embedded log and through Redis give the same batches.

use potok_services::Redis;
use serde_json::Value;

use crate::posted::{LIST, home, ids, message, nothing_is_left, push, start};
use crate::process::Home;
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
