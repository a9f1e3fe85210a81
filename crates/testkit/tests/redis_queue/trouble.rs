//! Lost answers, lists that are none, servers that restart.

use std::time::Duration;

use potok_connectors::redis::QueueOptions;
use potok_core::{CloseReason, Feed};
use potok_testkit::services::{Mode, Proxy};

use crate::rig::{
    Copy, LIST, Other, assert_own_chats, by_chat, message, options, patient, server, until,
};

/// Answers are dropped again and again, so that calls are made twice: each message is in the chat that
/// its body names, once and in order.
#[test]
pub fn lost_answers_put_no_message_into_a_foreign_chat() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let proxy = Proxy::start(([127, 0, 0, 1], redis.port()).into());
    let url = format!("redis://{}", proxy.address());
    let options = QueueOptions { max_count: Some(25), ..options() };
    let copy = Copy::start(&url, options, true);
    let (chats, count) = (30, 6_000);
    for n in 0..count {
        other.push([message(&(n % chats).to_string(), n)]);
        if n % 600 == 0 {
            proxy.set(Mode::DropReplies);
        } else if n % 600 == 200 {
            proxy.close_all();
            proxy.set(Mode::Pass);
        }
    }
    proxy.set(Mode::Pass);
    until("nothing is left", || other.left().is_empty().then_some(()));
    let groups = copy.groups();
    assert_own_chats(&groups);
    for (chat, numbers) in by_chat(&groups) {
        let first = numbers[0];
        let expected: Vec<u64> = (0..count / chats).map(|n| first + chats * n).collect();
        assert_eq!(numbers, expected, "{chat}");
    }
}

/// One list vanished, others are strings: the others leave.
#[test]
pub fn one_bad_chat_stops_no_other() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let options = QueueOptions { quiet: Duration::from_secs(2), ..options() };
    let _: String = other.ask(&["SET", "queue:batch:t:5", "no list"]);
    let copy = Copy::start(&redis.url(), options, true);
    other.push((0..1_000).map(|n| message(&n.to_string(), n)));
    until("all are sorted", || (other.ask::<i64>(&["LLEN", LIST]) == 0).then_some(()));
    let _: i64 = other.ask(&["DEL", "queue:batch:t:7"]);
    let _: String = other.ask(&["SET", "queue:batch:t:9", "no list"]);
    let sending = format!("potok:list:{LIST}:sending:t:11");
    let _: String = other.ask(&["SET", &sending, "no list"]);
    // The message of chat 5 belongs to no chat; those of 7 and 9 were taken by somebody else, and that of 11
    // waits until somebody has put its key right.
    let groups = copy.messages(997);
    assert_eq!(groups.iter().filter(|group| group.key.is_some()).count(), 996);
    let bad: Vec<u64> = groups
        .iter()
        .filter(|group| group.key.is_none())
        .flat_map(|group| group.numbers())
        .collect();
    assert_eq!(bad, [5]);
    let _: i64 = other.ask(&["DEL", &sending]);
    let _: i64 = other.ask(&["ZADD", &format!("potok:list:{LIST}:due"), "XX", "1", "t:11"]);
    assert_eq!(copy.messages(998).last().unwrap().numbers(), [11]);
}

/// A key of potok's own holds something else: that is said before anything is moved, again and again, and
/// nothing is filed twice.
#[test]
fn a_wrong_key_of_our_own_doubles_nothing() {
    for name in ["bad", "claims", "chats", "due"] {
        let redis = server(&[]);
        let mut other = Other::new(&redis);
        let own = format!("potok:list:{LIST}:{name}");
        let _: String = other.ask(&["SET", &own, "something else"]);
        let options = QueueOptions { max_count: Some(3), ..options() };
        let entries = (0..3).map(|n| message("a", n)).chain(["{oops".to_owned()]);
        other.push(entries.chain([message("b", 3)]));
        for _ in 0..2 {
            let copy = Copy::start(&redis.url(), options.clone(), true);
            let fault = until("it says so", || copy.stalled());
            assert_eq!(fault.code, "P0908", "{name}");
            assert!(format!("{fault:?}").contains(&own), "the key is named: {fault:?}");
            copy.kill();
        }
        assert_eq!(other.ask::<i64>(&["LLEN", LIST]), 5, "{name}");
        let _: i64 = other.ask(&["DEL", &own]);
        let copy = Copy::start(&redis.url(), options, true);
        let groups = copy.messages(5);
        let (chats, bad): (Vec<_>, Vec<_>) = groups.iter().partition(|group| group.key.is_some());
        assert_eq!(chats.iter().map(|group| group.values.len()).sum::<usize>(), 4, "{name}");
        assert_eq!(bad.iter().map(|group| group.values.len()).sum::<usize>(), 1, "{name}");
        until("nothing is left", || other.left().is_empty().then_some(()));
        assert_eq!(copy.groups().len(), groups.len(), "{name}");
    }
}

/// The server dies and comes back with its append-only file.
#[test]
fn a_server_that_restarts_goes_on_where_it_was() {
    let redis = server(&[("appendfsync", "always")]);
    let mut other = Other::new(&redis);
    let copy = Copy::start(&redis.url(), QueueOptions { max_count: Some(10), ..options() }, true);
    other.push((0..2_000).map(|n| message(&(n % 20).to_string(), n)));
    copy.messages(100);
    redis.kill();
    redis.restart();
    let mut other = Other::new(&redis);
    until("nothing is left", || other.left().is_empty().then_some(()));
    for (chat, numbers) in by_chat(&copy.groups()) {
        let first = numbers[0];
        assert_eq!(numbers, (0..100).map(|n| first + 20 * n).collect::<Vec<_>>(), "{chat}");
    }
}

/// A name says which members: a replica that lacks the claim and gets one message more makes another
/// group of them, and nobody takes it for the first.
#[test]
pub fn other_members_have_another_name() {
    let redis = server(&[("repl-diskless-sync-delay", "0")]);
    let mut other = Other::new(&redis);
    let copy = Copy::start(&redis.url(), patient(), false);
    other.push([message("a", 1), message("a", 2)]);
    until("they are sorted", || {
        (other.ask::<i64>(&["LLEN", "queue:batch:t:a"]) == 2).then_some(())
    });
    let chats = format!("potok:list:{LIST}:chats");
    let state: String = other.ask(&["HGET", &chats, "t:a"]);
    // A replica has all of that, and is cut off before the claim.
    let replica = server(&[]);
    let mut stale = Other::new(&replica);
    let _: String = stale.ask(&["REPLICAOF", "127.0.0.1", &redis.port().to_string()]);
    until("the replica has the messages", || {
        let size: Result<i64, _> = stale.try_ask(&["LLEN", "queue:batch:t:a"]);
        (size == Ok(2)).then_some(())
    });
    let _: String = stale.ask(&["REPLICAOF", "NO", "ONE"]);
    let groups = copy.feed.groups().unwrap();
    assert!(copy.on(groups.close(b"t:a", CloseReason::ClosedByHand)).unwrap());
    let claimed = copy.messages(2);
    copy.kill();
    // It is promoted: the opening is the same, the claim is not there, and a message joins.
    assert_eq!(stale.ask::<Option<String>>(&["HGET", &chats, "t:a"]), Some(state));
    stale.push([message("a", 4)]);
    let copy = Copy::start(&replica.url(), options(), true);
    until("it joins", || (stale.ask::<i64>(&["LLEN", LIST]) == 0).then_some(()));
    let _: i64 = stale.ask(&["ZADD", &format!("potok:list:{LIST}:due"), "XX", "1", "t:a"]);
    let again = copy.messages(3);
    assert_eq!(again[0].numbers(), [1, 2, 4]);
    assert_ne!(again[0].generation, claimed[0].generation);
}

/// A clock that was set back: looks that lie far ahead are pulled in.
#[test]
pub fn looks_that_lie_far_ahead_are_pulled_in() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let options = QueueOptions {
        quiet: Duration::from_secs(1),
        max_age: Duration::from_secs(2),
        ..options()
    };
    let copy = Copy::start(&redis.url(), options, true);
    other.push([message("a", 1)]);
    let due = format!("potok:list:{LIST}:due");
    until("it is sorted", || other.ask::<Option<String>>(&["ZSCORE", &due, "t:a"]));
    let now: (u64, u64) = other.ask(&["TIME"]);
    let far = ((now.0 + 4 * 3_600) * 1_000_000).to_string();
    let _: i64 = other.ask(&["ZADD", &due, "XX", &far, "t:a"]);
    copy.messages(1);
}
