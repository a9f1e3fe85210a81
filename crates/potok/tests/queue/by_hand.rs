//! What people do: look at chats, close and drop them, check, read dead letters.

use potok_services::{Redis, RedisOptions};
use serde_json::Value;

use crate::posted::{LIST, assert_posted, file, home, ids, message, nothing_is_left, push, start};
use crate::receiver::Receiver;
use crate::wait;
use crate::walk::{Guide, Walk};

const PATIENT: &str = "close: { quiet: 1h, max_age: 2h, max_count: 100 }";

#[test]
fn chats_are_listed_closed_and_dropped() {
    let (redis, receiver) = (Redis::start(), Receiver::saying(204));
    let home = home(&redis);
    let running = start(&home, &receiver, PATIENT);
    let entries: Vec<_> = (0..30).map(|n| message(n % 3, n)).collect();
    push(&redis, LIST, &entries);
    let listed = || running.run(["groups", "list", "chat", "--json"], b"").good().lines();
    let groups = wait::until("all are listed", || {
        let groups = listed();
        let records = |group: &Value| group["kinds"]["record"]["records"].as_u64();
        (groups.len() == 3 && groups.iter().all(|group| records(group) == Some(10)))
            .then_some(groups)
    });
    assert!(groups.iter().all(|group| group["state"] == "open" && group["due"].is_string()));
    let shown = running.run(["groups", "show", "chat", "telegram:tg:1"], b"").good();
    assert!(shown.text().contains("telegram:tg:1"), "{}", shown.text());
    running.run(["groups", "close", "chat", "telegram:tg:1"], b"").good();
    wait::until("it is posted", || (receiver.taken().len() == 1).then_some(()));
    let batch = receiver.taken().into_values().next().unwrap();
    assert_eq!(batch["meta"]["batch_reason"], "closed_by_hand");
    assert_eq!(ids(&batch), (0..10).map(|n| 3 * n + 1).collect::<Vec<_>>());
    running.run(["groups", "drop", "chat", "telegram:tg:2"], b"").good();
    wait::until("it is dropped", || {
        let letters = running.run(["dead-letters", "list", "chat", "--json"], b"").good().lines();
        (letters.len() == 10).then_some(())
    });
    assert_ne!(running.run(["groups", "close", "chat", "telegram:tg:9"], b"").code, Some(0));
    running.run(["groups", "close", "chat", "telegram:tg:0"], b"").good();
    nothing_is_left(&redis);
    assert_eq!(receiver.taken().len(), 2);
}

/// Going back to the old processor, nothing of ours is left waiting; what another program holds is its own.
#[test]
fn all_chats_are_closed_at_once() {
    let (redis, receiver) = (Redis::start(), Receiver::saying(204));
    let home = home(&redis);
    let running = start(&home, &receiver, PATIENT);
    redis.command(&["SET", "lock:batch:telegram:tg:3", "processing", "EX", "300"]);
    push(&redis, LIST, &(0..40).map(|n| message(n % 4, n)).collect::<Vec<_>>());
    let listed = wait::until("all are listed", || {
        let listed = running.run(["groups", "list", "chat"], b"").good().text().to_owned();
        (listed.matches(" 10 record").count() == 4).then_some(listed)
    });
    assert_eq!(listed.matches(" in ").count(), 3, "counted down where the time is ours: {listed}");
    let close_all = ["groups", "close", "chat", "--all"];
    let refused = running.run(close_all, b"");
    assert!(refused.code == Some(1) && refused.stderr.contains("P1211"), "{}", refused.stderr);
    assert_eq!(refused.text(), "3 groups closed\n");
    wait::until("they are posted", || (receiver.taken().len() == 3).then_some(()));
    redis.command(&["DEL", "lock:batch:telegram:tg:3"]);
    wait::until("the last is closed", || {
        (running.run(close_all, b"").text() == "1 group closed\n").then_some(())
    });
    nothing_is_left(&redis);
    assert_posted(&receiver, 4, 40);
}

#[test]
fn what_belongs_to_no_chat_becomes_a_dead_letter() {
    let (redis, receiver) = (Redis::start(), Receiver::saying(204));
    let home = home(&redis);
    let running = start(&home, &receiver, "close: { quiet: 300ms, max_age: 60s, max_count: 7 }");
    let bad = ["{oops", r#"{"channel":"telegram"}"#, "null", ""].map(str::to_owned);
    push(&redis, LIST, &bad);
    push(&redis, LIST, &[message(0, 0)]);
    nothing_is_left(&redis);
    let letters = running.run(["dead-letters", "list", "chat", "--json"], b"").good().lines();
    let mut reasons: Vec<_> =
        letters.iter().map(|letter| letter["reason"].as_str().unwrap()).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["no_key", "undecodable"]);
    assert_posted(&receiver, 1, 1);
}

#[test]
fn a_list_may_be_the_destination() {
    let redis = Redis::start();
    let home = home(&redis);
    let path = file(&home, "close: { quiet: 200ms, max_age: 60s, max_count: 7 }");
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text
        .replace("deliver: [ { webhook: chat-batches } ]", "deliver: [ { list: \"queue:done\" } ]");
    std::fs::write(&path, text).unwrap();
    let running = home.start_file(&path, &[]).unwrap();
    // Something else has that name: it waits for somebody, and nothing is lost or doubled.
    redis.command(&["SET", "queue:done", "no list"]);
    push(&redis, LIST, &[message(0, 0), message(0, 1)]);
    wait::until("it says so", || {
        running.run(["status", "--json"], b"").text().contains("P0908").then_some(())
    });
    redis.command(&["DEL", "queue:done"]);
    running.run(["resume", "chat"], b"").good();
    wait::until("it is pushed", || (redis.command(&["LLEN", "queue:done"]) == "1").then_some(()));
    let entry: Value =
        serde_json::from_str(&redis.command(&["LINDEX", "queue:done", "0"])).unwrap();
    assert_eq!(ids(&entry), [0, 1]);
}

#[test]
fn check_says_what_will_not_do() {
    let redis = Redis::start();
    let home = home(&redis);
    let shipped = crate::process::pipelines().join("chat.yaml");
    let shipped = shipped.to_str().unwrap();
    let checked = home.run(["check", shipped, "--connect"]).good();
    assert!(checked.stderr.contains("everysec"), "{}", checked.stderr);
    let policy = vec![("maxmemory-policy".to_owned(), "allkeys-lru".to_owned())];
    let evicting = Redis::start_with(&RedisOptions { settings: policy, ..RedisOptions::default() });
    home.settings(&format!("queue: '{}'\n", evicting.url()));
    let refused = home.run(["check", shipped, "--connect"]);
    assert!(refused.stderr.contains("P1204"), "{}", refused.stderr);
    home.settings("queue: 'redis+cluster://localhost'\n");
    assert!(home.run(["check", shipped]).stderr.contains("P1202"));
    home.settings("queue: 'redis://localhost'\n");
    let windowed = file(&home, "close: { after_first: 10s }");
    assert!(home.run(["check", windowed.to_str().unwrap()]).stderr.contains("P1208"));
}

#[test]
fn every_command_of_the_guide_to_chat_runs_on_redis() {
    let redis = Redis::start();
    let client = format!("redis-cli -p {}", redis.port());
    let guide = Guide::read("chat.md").with("redis://127.0.0.1:6379", &redis.url());
    let guide = guide.with("redis-cli ", &format!("{client} "));
    let mut walk = Walk::through(&guide, 5..=6, &[]);
    // Nothing closes by itself while the commands are looked at.
    walk.know("export CHAT_QUIET=1h CHAT_MAX_AGE=2h");
    walk.to(&format!("{client} RPUSH"));
    walk.to(&format!("{client} RPUSH"));
    walk.until("potok groups list chat", "telegram:tg_1");
    walk.until(&format!("{client} LLEN queue:batch:telegram:tg_1"), "2");
    let waiting = walk.to(&format!("{client} LRANGE"));
    assert!(waiting.contains("hello") && waiting.contains("again"), "{waiting}");
    walk.to("potok groups close chat telegram:tg_1");
    nothing_is_left(&redis);
    walk.until("potok read chat-batches --count 1", r"hello\\n\\nagain");
    walk.to("potok status chat");
    // Going back: something waits then.
    walk.run(&format!("{client} RPUSH queue:incoming '{}'", message(7, 7)));
    walk.until("potok groups list chat", "telegram:tg:7");
    assert_eq!(walk.to("potok groups close chat --all"), "1 group closed\n");
    nothing_is_left(&redis);
    walk.to("potok status chat");
    walk.finish();
}
