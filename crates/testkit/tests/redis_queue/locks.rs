//! The old processor beside us: its locks, its pushes, its deletes.

use std::time::Duration;

use potok_connectors::redis::QueueOptions;

use crate::rig::{Copy, LIST, Other, by_chat, message, options, patient, server, until};

/// n8n sets the lock of a chat over ours, as it does between a GET and a SET: its lock is never
/// deleted by us, and what lies there is n8n's until it lets go.
#[test]
pub fn a_lock_that_was_overwritten_is_left_alone() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let copy = Copy::start(
        &redis.url(),
        QueueOptions { quiet: Duration::from_secs(1), ..options() },
        true,
    );
    other.push([message("a", 1)]);
    until("it is sorted", || (other.ask::<i64>(&["EXISTS", "lock:batch:t:a"]) == 1).then_some(()));
    let _: String = other.ask(&["SET", "lock:batch:t:a", "processing", "EX", "300"]);
    let due = format!("potok:list:{LIST}:chats");
    until("it is seen", || {
        let state: Option<String> = other.ask(&["HGET", &due, "t:a"]);
        state.filter(|state| state.split(' ').nth(7) != Some("0"))
    });
    assert_eq!(other.ask::<i64>(&["EXISTS", "lock:batch:t:a"]), 1);
    assert!(copy.groups().is_empty());
    // More messages join it, for whoever has the lock.
    other.push([message("a", 2)]);
    until("it is sorted", || (other.ask::<i64>(&["LLEN", "queue:batch:t:a"]) == 2).then_some(()));
    // The debouncer is done: reads, deletes the list and the lock.
    let _: i64 = other.ask(&["DEL", "queue:batch:t:a", "lock:batch:t:a"]);
    until("the chat is forgotten", || {
        (other.ask::<i64>(&["HEXISTS", &due, "t:a"]) == 0).then_some(())
    });
    assert!(copy.groups().is_empty());
}

/// The lock goes, and a message was pushed behind it: it has a timer.
#[test]
fn a_chat_that_was_left_behind_is_adopted() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let _: String = other.ask(&["SET", "lock:batch:t:a", "processing", "EX", "300"]);
    let copy = Copy::start(&redis.url(), options(), true);
    other.push([message("a", 1)]);
    until("it is sorted", || (other.ask::<i64>(&["LLEN", "queue:batch:t:a"]) == 1).then_some(()));
    assert!(copy.groups().is_empty());
    let _: i64 = other.ask(&["DEL", "lock:batch:t:a"]);
    assert_eq!(copy.messages(1)[0].numbers(), [1]);
    until("nothing is left", || other.left().is_empty().then_some(()));
}

/// Pushed straight into a list that nobody knows: found by the scan.
#[test]
fn a_list_without_a_timer_is_found_at_the_start() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    other.push_bytes(b"queue:batch:t:a", message("a", 1).as_bytes());
    let copy = Copy::start(&redis.url(), options(), true);
    assert_eq!(copy.messages(1)[0].numbers(), [1]);
}

/// Index and states deleted by hand: lists are the truth.
#[test]
pub fn what_lost_its_index_leaves_all_the_same() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let first = Copy::start(&redis.url(), patient(), false);
    other.push((0..200).map(|n| message(&(n % 100).to_string(), n)));
    // Some are claimed, some wait.
    other.push((200..300).map(|n| message("full", n)));
    first.messages(100);
    until("all are sorted", || (other.ask::<i64>(&["LLEN", LIST]) == 0).then_some(()));
    first.kill();
    let prefix = format!("potok:list:{LIST}:");
    let _: i64 = other.ask(&[
        "DEL",
        &format!("{prefix}due"),
        &format!("{prefix}chats"),
        &format!("{prefix}claims"),
    ]);
    // Without the states nobody knows whose the locks are; they run out after five minutes.
    for key in other.keys().into_iter().filter(|key| key.starts_with("lock:batch:")) {
        let _: i64 = other.ask(&["DEL", &key]);
    }
    let copy = Copy::start(&redis.url(), options(), true);
    let chats = by_chat(&copy.messages(300));
    assert_eq!(chats.len(), 101);
    assert_eq!(chats["t:full"], (200..300).collect::<Vec<_>>());
    until("nothing is left", || other.left().is_empty().then_some(()));
}

/// The lock of a chat runs out while it is delivered, and the old processor takes it: what is claimed lies
/// where nobody else reads it.
#[test]
pub fn what_is_claimed_is_for_nobody_else() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let copy = Copy::start(&redis.url(), options(), false);
    other.push([message("a", 1), message("a", 2)]);
    let claimed = copy.messages(2);
    let _: i64 = other.ask(&["DEL", "lock:batch:t:a"]);
    let _: String = other.ask(&["SET", "lock:batch:t:a", "processing", "EX", "300"]);
    let read: Vec<String> = other.ask(&["LRANGE", "queue:batch:t:a", "0", "-1"]);
    assert!(read.is_empty(), "what is being delivered lies there for somebody else: {read:?}");
    copy.commit(&claimed[0]).unwrap();
    assert_eq!(other.ask::<i64>(&["EXISTS", "lock:batch:t:a"]), 1, "it is theirs");
}

/// While another program holds the processor lock it sorts, not we; afterwards we do.
#[test]
pub fn a_foreign_processor_lock_stops_the_sorting() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let _: String = other.ask(&["SET", "queue:processor:lock", "processing", "EX", "30"]);
    let copy = Copy::start(&redis.url(), options(), true);
    other.push([message("a", 1)]);
    let fault = until("it says so", || copy.stalled());
    assert_eq!(fault.code, "P1206");
    assert_eq!(other.ask::<i64>(&["LLEN", LIST]), 1);
    let _: i64 = other.ask(&["DEL", "queue:processor:lock"]);
    copy.messages(1);
    until("it waits no more", || copy.stalled().is_none().then_some(()));
}

/// Pushes into `queue:batch:` while we hold the lock, some of them joined, some behind the claim.
#[test]
pub fn pushes_of_the_old_processor_are_delivered_too() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let copy = Copy::start(&redis.url(), QueueOptions { max_count: Some(7), ..options() }, true);
    let mut number = 0;
    let mut next = || {
        number += 1;
        number - 1
    };
    for _ in 0..100 {
        other.push([message("a", next())]);
        let joined = format!("{}|||SEPARATOR|||{}", message("a", next()), message("a", next()));
        other.push_bytes(b"queue:batch:t:a", joined.as_bytes());
    }
    let groups = copy.messages(300);
    let mut all = by_chat(&groups)["t:a"].clone();
    all.sort_unstable();
    assert_eq!(all, (0..300).collect::<Vec<_>>());
    until("nothing is left", || other.left().is_empty().then_some(()));
}
