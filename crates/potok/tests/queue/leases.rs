//! Claims of copies that are frozen, cut off from their destination, or stopped.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use potok_services::Redis;

use crate::posted::{
    LIST, assert_posted, file, home, ids, left, message, nothing_is_left, push, start,
};
use crate::process::{Home, Running};
use crate::receiver::Receiver;
use crate::wait;

const CLOSE: &str = "close: { quiet: 300ms, max_age: 60s, max_count: 7 }";

/// Chats that wait, of which a webhook has so many messages under way at a time.
const CHATS: u64 = 300;
const UNDER_WAY: u64 = 16;

fn start_with(home: &Home, receiver: &Receiver, plant: Option<&str>) -> Running {
    let mut environment = vec![("POTOK_WEBHOOK_CHAT_BATCHES", receiver.url.as_str())];
    environment.extend(plant.map(|bug| ("POTOK_PLANT", bug)));
    home.start_file(&with_one_worker(home), &environment).unwrap()
}

/// With one lane it is known which call is under way.
fn with_one_worker(home: &Home) -> PathBuf {
    let file = file(home, CLOSE);
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text + "workers: 1\n").unwrap();
    file
}

fn claims(redis: &Redis) -> usize {
    redis.command(&["HLEN", "potok:list:queue:incoming:claims"]).parse().unwrap()
}

/// An owner is frozen in the middle of many deliveries; the other copy makes all of them. True where the
/// first goes on with what it had when it wakes up.
fn sends_late(plant: Option<&str>) -> bool {
    let redis = Redis::start();
    let (first, second) = (Receiver::saying(204), Receiver::saying(204));
    let homes = [home(&redis), home(&redis)];
    let frozen = start_with(&homes[0], &first, plant);
    // While the lane waits for the answer to one chat, all others queue up behind it.
    first.answer_only(Some(0));
    push(&redis, LIST, &[message(CHATS, CHATS)]);
    wait::until("a call is under way", || (first.posts().len() == 1).then_some(()));
    let entries: Vec<_> = (0..CHATS).map(|n| message(n, n)).collect();
    push(&redis, LIST, &entries);
    wait::until("all are claimed", || (claims(&redis) as u64 > CHATS).then_some(()));
    first.answer_only(Some(1));
    wait::until("the next call is under way", || (first.posts().len() == 2).then_some(()));
    frozen.signal("STOP");
    let _steady = start_with(&homes[1], &second, None);
    nothing_is_left(&redis);
    frozen.signal("CONT");
    first.answer_only(None);
    wait::until("it is done with what it had", || {
        (frozen.status()["in_flight"] == 0).then_some(())
    });
    assert!(frozen.stop().success());
    let taken: BTreeSet<_> = second.taken().values().flat_map(ids).collect();
    assert!(taken.len() as u64 >= CHATS - UNDER_WAY, "the other copy went on: {taken:?}");
    first.posts().len() as u64 > 2 * UNDER_WAY
}

#[test]
fn a_frozen_owner_sends_nothing_that_another_has_by_now() {
    assert!(!sends_late(None));
    assert!(sends_late(Some("SendsOverdue")), "the naive version");
}

/// The webhook of one copy is away, that of the other is not. True where the other gets everything.
fn is_left_to_others(plant: Option<&str>) -> bool {
    let redis = Redis::start();
    let (away, there) = (Receiver::saying(503), Receiver::saying(204));
    let homes = [home(&redis), home(&redis)];
    let _first = start_with(&homes[0], &away, plant);
    let entries: Vec<_> = (0..30).map(|n| message(n % 10, n)).collect();
    push(&redis, LIST, &entries);
    wait::until("it is tried", || (!away.posts().is_empty()).then_some(()));
    let _second = start_with(&homes[1], &there, None);
    let due = "potok:list:queue:incoming:due";
    let mut leases = BTreeSet::new();
    let is_left = wait::until("all are delivered, or kept for several leases", || {
        if left(&redis).is_empty() {
            return Some(true);
        }
        leases.insert(redis.command(&["ZRANGE", due, "-1", "-1", "WITHSCORES"]));
        (leases.len() > 40).then_some(false)
    });
    if is_left {
        assert_posted(&there, 10, 30);
    }
    is_left
}

#[test]
fn what_waits_behind_a_closed_gate_is_left_to_others() {
    assert!(is_left_to_others(None));
    assert!(!is_left_to_others(Some("KeptBehindGate")), "the naive version");
}

/// A copy that is told to stop gives back what it has not delivered: nobody waits for its lease.
#[test]
fn a_copy_that_stops_leaves_nothing_to_wait_for() {
    let redis = Redis::start();
    let (first, second) = (Receiver::saying(204), Receiver::saying(204));
    let homes = [home(&redis), home(&redis)];
    for home in &homes {
        home.settings(&format!("queue: {{ redis: '{}', lease: 1h }}\n", redis.url()));
    }
    let leaving = start_with(&homes[0], &first, None);
    first.answer_only(Some(1));
    let entries: Vec<_> = (0..40).map(|n| message(n, n)).collect();
    push(&redis, LIST, &entries);
    wait::until("the second call is under way, and all are claimed", || {
        (first.posts().len() == 2 && claims(&redis) >= 38).then_some(())
    });
    leaving.signal("TERM");
    first.answer_only(None);
    assert!(leaving.ended("it stops").success());
    let _second = start(&homes[1], &second, CLOSE);
    nothing_is_left(&redis);
    let all = [first.taken(), second.taken()];
    let all: BTreeSet<u64> = all.iter().flat_map(|taken| taken.values()).flat_map(ids).collect();
    assert_eq!(all, (0..40).collect());
}
