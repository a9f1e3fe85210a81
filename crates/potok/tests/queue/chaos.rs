//! Two copies on one Redis: they die at every crash point, freeze beyond their lease, and Redis
//! restarts.

use potok_core::trouble::QUEUE_CRASH_POINTS;
use potok_services::{Redis, RedisOptions};
use serde_json::Value;

use crate::posted::{
    LIST, assert_posted, assert_posted_to, file, home, ids, left, message, nothing_is_left, push,
    start,
};
use crate::receiver::Receiver;
use crate::{short_or_soak, wait};

const CLOSE: &str = "close: { quiet: 300ms, max_age: 60s, max_count: 7 }";

fn server() -> Redis {
    let settings = vec![("appendfsync".to_owned(), "always".to_owned())];
    Redis::start_with(&RedisOptions { settings, ..RedisOptions::default() })
}

/// Two copies, one of which dies at every crash point in turn, then freezes beyond its lease; Redis
/// restarts with its file. In the long version 100,000 messages of 5,000 chats.
#[test]
fn every_message_is_in_one_batch_whoever_dies_and_freezes() {
    let (redis, receiver) = (server(), Receiver::saying(204));
    let homes = [home(&redis), home(&redis)];
    let steady = start(&homes[0], &receiver, CLOSE);
    let (chats, total) = (short_or_soak(20, 5_000), short_or_soak(1_500, 100_000));
    let burst = total / 15;
    // Each writes some messages in a row, of which several are one group.
    let chat_of = |n: u64| n / 5 % chats;
    let mut sent = 0;
    let mut send = |count: u64| {
        let entries: Vec<_> = (sent..sent + count).map(|n| message(chat_of(n), n)).collect();
        push(&redis, LIST, &entries);
        sent += count;
        sent
    };
    let webhook = ("POTOK_WEBHOOK_CHAT_BATCHES", receiver.url.as_str());
    for point in QUEUE_CRASH_POINTS {
        let crash = format!("{point}:2");
        let environment = [webhook, ("POTOK_CRASH_AT", crash.as_str())];
        let mut doomed = homes[1].start_file_unready(&file(&homes[1], CLOSE), &environment);
        send(burst);
        // The other copy may be faster: more comes until this one has its turn.
        wait::until(&format!("it died at {point}"), || {
            if !doomed.is_alive() {
                return Some(());
            }
            send(1);
            None
        });
        let said = doomed.journal();
        assert!(said.contains(&format!("crash point {point}: dying as asked")), "{said}");
    }
    // Frozen beyond its lease, with claims in its hands; the other goes on with them.
    let frozen = start(&homes[1], &receiver, CLOSE);
    let before = receiver.posts().len();
    send(burst);
    wait::until("something is posted", || (receiver.posts().len() > before).then_some(()));
    frozen.signal("STOP");
    send(burst);
    nothing_is_left(&redis);
    frozen.signal("CONT");
    send(burst);
    // The server dies and comes back with its file.
    redis.kill();
    redis.restart();
    while send(burst) < total {}
    nothing_is_left(&redis);
    let all = sent;
    assert_posted_to(&receiver, all, chat_of);
    let batches = receiver.taken().len();
    let repeats = receiver.posts().len() - batches;
    eprintln!("{all} messages of {chats} chats in {batches} batches, {repeats} posted again");
    drop((steady, frozen));
}

/// A copy dies between its look at the list and the script that files what it saw. True where all of it comes
/// out of the next one.
fn files_what_was_seen(plant: Option<&str>) -> bool {
    let (redis, receiver) = (Redis::start(), Receiver::saying(204));
    let home = home(&redis);
    push(&redis, LIST, &(0..20).map(|n| message(n % 4, n)).collect::<Vec<_>>());
    let mut environment = vec![
        ("POTOK_WEBHOOK_CHAT_BATCHES", receiver.url.as_str()),
        ("POTOK_CRASH_AT", "queue.sort.before:1"),
    ];
    environment.extend(plant.map(|bug| ("POTOK_PLANT", bug)));
    if let Ok(mut doomed) = home.start_file(&file(&home, CLOSE), &environment) {
        wait::until("it died", || (!doomed.is_alive()).then_some(()));
    }
    let _running = start(&home, &receiver, CLOSE);
    push(&redis, LIST, &[message(4, 20)]);
    wait::until("what came last is posted", || {
        receiver.taken().values().flat_map(ids).any(|id| id == 20).then_some(())
    });
    nothing_is_left(&redis);
    let mut all: Vec<u64> = receiver.taken().values().flat_map(ids).collect();
    all.sort_unstable();
    all == (0..=20).collect::<Vec<_>>()
}

#[test]
fn what_was_seen_and_not_filed_comes_out_of_the_next_copy() {
    assert!(files_what_was_seen(None));
    assert!(!files_what_was_seen(Some("PopsPlainly")), "the naive version");
}

/// A chat into which somebody writes all the time leaves at its age, while others push into it.
#[test]
fn a_chat_that_never_goes_quiet_leaves_while_the_old_processor_pushes() {
    let (redis, receiver) = (server(), Receiver::saying(204));
    let home = home(&redis);
    let _running = start(&home, &receiver, "close: { quiet: 2s, max_age: 3s, max_count: 100000 }");
    let mut number = 0;
    wait::until("two batches have left", || {
        push(&redis, LIST, &[message(0, number)]);
        push(&redis, "queue:batch:telegram:tg:0", &[message(0, number + 1)]);
        number += 2;
        (receiver.taken().len() >= 2).then_some(())
    });
    let posts = receiver.posts();
    let first: Value = serde_json::from_str(&posts[0].1).unwrap();
    assert_eq!(first["meta"]["batch_reason"], "max_wait_reached");
    nothing_is_left(&redis);
    let mut all: Vec<u64> = receiver.taken().values().flat_map(ids).collect();
    all.sort_unstable();
    assert_eq!(all, (0..number).collect::<Vec<_>>(), "each in exactly one");
}

/// One message of a chat kills whoever works on it. Copies come and go, each with a data folder of its
/// own: only that message is set aside, the others of its chat go on together.
fn killed_by_a_message(plant: &[(&str, &str)]) -> bool {
    let (redis, receiver) = (server(), Receiver::saying(204));
    let poison = message(0, 2).replace("text 2", "deadly");
    push(&redis, LIST, &[message(0, 0), message(0, 1), poison, message(0, 3), message(1, 4)]);
    let mut environment =
        vec![("POTOK_WEBHOOK_CHAT_BATCHES", receiver.url.as_str()), ("POTOK_DIE_OF", "deadly")];
    environment.extend(plant);
    for _ in 0..12 {
        let home = home(&redis);
        let mut running = home.start_file_unready(&file(&home, CLOSE), &environment);
        let is_done = wait::until("it dies or is done", || {
            if !running.is_alive() {
                return Some(false);
            }
            left(&redis).is_empty().then_some(true)
        });
        if is_done {
            let letters =
                running.run(["dead-letters", "list", "chat", "--json"], b"").good().lines();
            assert_eq!(letters.len(), 1, "{letters:?}");
            assert_eq!(letters[0]["reason"], "crashes");
            let mut batches: Vec<_> = receiver.taken().values().map(ids).collect();
            batches.sort();
            assert_eq!(batches, [vec![0, 1, 3], vec![4]]);
            return true;
        }
    }
    false
}

#[test]
fn only_the_message_that_kills_processes_is_set_aside() {
    assert!(killed_by_a_message(&[]), "it went round the copies");
    assert!(!killed_by_a_message(&[("POTOK_PLANT", "TriedTogether")]), "the naive version");
}

/// Everything in Redis is gone: it is said and counted, and new messages flow.
#[test]
fn an_emptied_redis_is_reported() {
    let (redis, receiver) = (server(), Receiver::saying(204));
    let home = home(&redis);
    let running = start(&home, &receiver, CLOSE);
    push(&redis, LIST, &[message(0, 0)]);
    wait::until("it is posted", || (receiver.taken().len() == 1).then_some(()));
    redis.command(&["FLUSHALL"]);
    wait::until("it is counted", || {
        let (_, metrics) = running.get("/metrics")?;
        let line = metrics.lines().find(|line| line.contains("name=\"emptied\""))?.to_owned();
        line.ends_with(" 1").then_some(())
    });
    let journal = running.journal();
    let line = journal.lines().find(|line| line.contains("Redis was emptied"));
    assert!(line.is_some_and(|line| line.contains("pipeline=chat")), "{journal}");
    push(&redis, LIST, &[message(0, 1)]);
    wait::until("what comes is posted", || (receiver.taken().len() == 2).then_some(()));
}

#[test]
fn a_webhook_that_fails_holds_its_chat_in_order() {
    let (redis, receiver) = (server(), Receiver::saying(503));
    let home = home(&redis);
    let running = start(&home, &receiver, CLOSE);
    let entries: Vec<_> = (0..60).map(|n| message(n % 3, n)).collect();
    push(&redis, LIST, &entries);
    wait::until("it is tried", || (!receiver.posts().is_empty()).then_some(()));
    // Killed while nothing gets through: another copy has all of it.
    running.kill();
    let _running = start(&home, &receiver, CLOSE);
    receiver.say(204);
    nothing_is_left(&redis);
    assert_posted(&receiver, 3, 60);
}

/// The old processor pushes joined entries into `queue:batch:` while we hold the lock of the chat.
#[test]
fn the_old_processor_may_go_on_pushing() {
    let (redis, receiver) = (server(), Receiver::saying(204));
    let home = home(&redis);
    let _running = start(&home, &receiver, "close: { quiet: 2s, max_age: 60s, max_count: 100 }");
    push(&redis, LIST, &[message(0, 0)]);
    wait::until("the chat is open", || {
        (redis.command(&["EXISTS", "lock:batch:telegram:tg:0"]) == "1").then_some(())
    });
    let joined = format!("{}|||SEPARATOR|||{}|||SEPARATOR|||null", message(0, 1), message(0, 2));
    push(&redis, "queue:batch:telegram:tg:0", &[joined]);
    nothing_is_left(&redis);
    assert_posted(&receiver, 1, 3);
    assert_eq!(receiver.taken().len(), 1, "all of them are one batch");
}

/// A Redis that is away is what everything waits for: the log, `status`, `/ready` and the metrics say
/// so, and it is over when Redis is back.
#[test]
fn a_redis_that_is_away_is_said_to_all_who_ask() {
    let (redis, receiver) = (server(), Receiver::saying(204));
    let home = home(&redis);
    let running = start(&home, &receiver, CLOSE);
    let says = || {
        let waits = running.status()["waits"].to_string().contains("\"for\":\"feed\"");
        let (_, ready) = running.get("/ready").unwrap();
        let (_, metrics) = running.get("/metrics").unwrap();
        let metric = "potok_pipeline_waiting{pipeline=\"chat\",for=\"feed\"} 1";
        let ready = ready.contains("\"pipeline\":\"chat\"") && ready.contains("\"for\":\"feed\"");
        waits && ready && metrics.lines().any(|line| line == metric)
    };
    redis.kill();
    wait::until("all say that it is away", || says().then_some(()));
    assert_eq!(running.get("/live").unwrap().0, 200);
    redis.restart();
    wait::until("that is over", || (running.status()["state"] == "running").then_some(()));
    assert!(!says());
    push(&redis, LIST, &[message(0, 0)]);
    wait::until("what comes is posted", || (receiver.taken().len() == 1).then_some(()));
    let journal = running.journal();
    let line = journal.lines().find(|line| line.contains("work waits"));
    assert!(line.is_some_and(|line| line.contains("pipeline=chat")), "{journal}");
}
