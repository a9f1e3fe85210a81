//! Locks, leases and looks last as long as is promised: what is written is compared with the server's clock.

use std::ops::RangeInclusive;
use std::time::Duration;

use potok_connectors::redis::QueueOptions;
use potok_core::{CloseReason, Feed};

use crate::rig::{Copy, LIST, Other, message, options, patient, server, until};

const CHATS: &str = "potok:list:queue:incoming:chats";
const CLAIMS: &str = "potok:list:queue:incoming:claims";
const DUE: &str = "potok:list:queue:incoming:due";
const LOCK: &str = "lock:batch:t:a";

const SECOND: u64 = 1_000_000;
const FIVE_MINUTES: u64 = 300 * SECOND;

/// Gives our lock of the chat another end, so many seconds from now, and answers it (ms).
const SHORTEN: &str = "
    local now = redis.call('TIME')[1] * 1000
    local lock = string.format('%.0f', now + ARGV[1] * 1000)
    local state = redis.call('HGET', KEYS[1], ARGV[2])
    redis.call('HSET', KEYS[1], ARGV[2], (string.gsub(state, '^(%S+ %S+) %S+', '%1 ' .. lock)))
    redis.call('SET', KEYS[2], 'processing', 'PXAT', lock)
    return tonumber(lock)";

fn now(other: &mut Other) -> u64 {
    let (seconds, micros): (u64, u64) = other.ask(&["TIME"]);
    seconds * SECOND + micros
}

fn shorten(other: &mut Other, seconds: &str) -> u64 {
    other.ask::<u64>(&["EVAL", SHORTEN, "2", CHATS, LOCK, seconds, "t:a"]) * 1_000
}

/// When the lock of the chat runs out.
fn lock_ends(other: &mut Other) -> u64 {
    other.ask::<u64>(&["PEXPIRETIME", LOCK]) * 1_000
}

fn look(other: &mut Other) -> Option<u64> {
    other.ask::<Option<f64>>(&["ZSCORE", DUE, "t:a"]).map(|look| look as u64)
}

/// Does something, and answers when so long after it may be: the server kept its time in between.
fn after<T>(
    other: &mut Other,
    time: u64,
    act: impl FnOnce(&mut Other) -> T,
) -> (T, RangeInclusive<u64>) {
    // Locks end at whole milliseconds.
    let from = now(other) / 1_000 * 1_000;
    let done = act(other);
    (done, from + time..=now(other) + time)
}

fn word(words: &str, place: usize) -> &str {
    words.split(' ').nth(place).unwrap()
}

/// The lock of a chat lasts five minutes, which others rely on, from whenever it is renewed: by what comes in
/// its second half, by the claim, and with the lease.
#[test]
fn the_lock_of_a_chat_is_renewed_in_time_and_never_lasts_longer() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let options = QueueOptions { lease: Duration::from_secs(600), ..patient() };
    let copy = Copy::start(&redis.url(), options, false);
    let push = |other: &mut Other, number: u64| {
        other.push([message("a", number)]);
        let size = i64::try_from(number).unwrap();
        until("it is sorted", || {
            (other.ask::<i64>(&["LLEN", "queue:batch:t:a"]) == size).then_some(())
        });
    };
    let ((), window) = after(&mut other, FIVE_MINUTES, |other| push(other, 1));
    assert!(window.contains(&lock_ends(&mut other)), "it opens with a lock of five minutes");
    let long = shorten(&mut other, "200");
    push(&mut other, 2);
    assert_eq!(lock_ends(&mut other), long, "more than half of it is left");
    shorten(&mut other, "100");
    let ((), window) = after(&mut other, FIVE_MINUTES, |other| push(other, 3));
    assert!(window.contains(&lock_ends(&mut other)), "what comes renews it");
    shorten(&mut other, "100");
    let groups = copy.feed.groups().unwrap();
    let close = |_: &mut Other| {
        assert!(copy.on(groups.close(b"t:a", CloseReason::ClosedByHand)).unwrap());
        copy.messages(3);
    };
    let ((), window) = after(&mut other, FIVE_MINUTES, close);
    let ends = lock_ends(&mut other);
    assert!(window.contains(&ends), "the claim renews it");
    // Whoever has the claim next keeps it with a lease of its own.
    copy.kill();
    let _: i64 = other.ask(&["ZADD", DUE, "XX", "1", "t:a"]);
    let copy = Copy::start(&redis.url(), patient(), false);
    copy.messages(3);
    let short = shorten(&mut other, "100");
    let renewed = |other: &mut Other| {
        until("the lease renews it", || Some(lock_ends(other)).filter(|ends| *ends != short))
    };
    let (ends, window) = after(&mut other, FIVE_MINUTES, renewed);
    assert!(window.contains(&ends), "the lease renews it");
}

/// Whoever claims has the chat for one lease from then on.
#[test]
fn a_lease_begins_with_its_claim() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let options = QueueOptions { lease: Duration::from_secs(600), ..options() };
    let copy = Copy::start(&redis.url(), options, false);
    other.push([message("a", 1)]);
    copy.messages(1);
    let claim: String = other.ask(&["HGET", CLAIMS, "t:a"]);
    let closed: u64 = word(&claim, 3).parse().unwrap();
    assert_eq!(look(&mut other), Some(closed + 600 * SECOND));
}

/// A chat that another program holds is looked at every five seconds, so that it leaves five seconds and its
/// quiet time after that program has let go of it at the latest.
#[test]
fn what_another_program_lets_go_of_leaves_in_time() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let _: String = other.ask(&["SET", LOCK, "processing", "EX", "300"]);
    let _copy = Copy::start(&redis.url(), patient(), true);
    let push = |other: &mut Other| {
        other.push([message("a", 1)]);
        until("it is sorted", || look(other))
    };
    let (first, window) = after(&mut other, 5 * SECOND, push);
    assert!(window.contains(&first), "{first} in {window:?}");
    let again = |other: &mut Other| {
        let _: i64 = other.ask(&["ZADD", DUE, "XX", "1", "t:a"]);
        until("it is looked at", || look(other).filter(|look| *look > 1))
    };
    let (second, window) = after(&mut other, 5 * SECOND, again);
    assert!(window.contains(&second), "{second} in {window:?}");
    let _: i64 = other.ask(&["DEL", LOCK]);
    again(&mut other);
    let state: String = other.ask(&["HGET", CHATS, "t:a"]);
    let opened: u64 = word(&state, 0).parse().unwrap();
    assert_eq!(look(&mut other), Some(opened + 60 * SECOND), "its quiet time begins");
    assert_eq!(other.ask::<i64>(&["LLEN", LIST]), 0);
}
