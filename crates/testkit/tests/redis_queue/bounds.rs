//! Full memory, too many chats, servers that will not do.

use std::time::Duration;

use potok_connectors::redis::{QueueOptions, RedisQueue};
use potok_core::Feed;
use potok_testkit::services::Redis;

use crate::rig::{Copy, LIST, Other, assert_own_chats, by_chat, message, options, server, until};

fn memory(other: &mut Other, name: &str) -> u64 {
    let info: String = other.ask(&["INFO", "memory"]);
    let mut figures = info.lines().filter_map(|line| line.split_once(':'));
    figures.find(|(known, _)| *known == name).unwrap().1.trim().parse().unwrap()
}

fn used(other: &mut Other) -> u64 {
    memory(other, "used_memory")
}

/// The queue that fills the memory is what has to be drained.
#[test]
pub fn a_full_server_is_emptied() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let pad = "x".repeat(2_000);
    let padded = |n: u64| {
        message(&(n % 50).to_string(), n).replace("\"n\"", &format!("\"t\":\"{pad}\",\"n\""))
    };
    other.push((0..5_000).map(padded));
    let before = used(&mut other);
    let limit = (before / 2).to_string();
    let _: String = other.ask(&["CONFIG", "SET", "maxmemory", &limit]);
    let refused: Result<i64, _> = redis::cmd("RPUSH")
        .arg(LIST)
        .arg("1")
        .query(&mut redis::Client::open(redis.url()).unwrap().get_connection().unwrap());
    assert!(refused.is_err(), "it is full");
    let copy = Copy::start(&redis.url(), options(), true);
    let groups = copy.messages(5_000);
    assert_own_chats(&groups);
    assert!(by_chat(&groups).values().all(|numbers| numbers.is_sorted()));
    until("nothing is left", || other.left().is_empty().then_some(()));
    assert!(used(&mut other) < before);
}

/// Chats that wait fill the memory: they leave all the same, without any traffic.
#[test]
pub fn chats_that_fill_the_memory_leave() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let options = QueueOptions { quiet: Duration::from_secs(3), ..options() };
    let copy = Copy::start(&redis.url(), options, true);
    let pad = "x".repeat(2_000);
    let padded =
        |n: u64| message(&n.to_string(), n).replace("\"n\"", &format!("\"t\":\"{pad}\",\"n\""));
    other.push((0..2_000).map(padded));
    until("all are sorted", || (other.ask::<i64>(&["LLEN", LIST]) == 0).then_some(()));
    let before = used(&mut other);
    let _: String = other.ask(&["CONFIG", "SET", "maxmemory", &(before / 2).to_string()]);
    assert_eq!(by_chat(&copy.messages(2_000)).len(), 2_000);
    until("nothing is left", || other.left().is_empty().then_some(()));
    assert!(used(&mut other) < before);
}

/// What belongs to no chat is handed out in pieces that fit into memory.
#[test]
fn what_belongs_to_no_chat_has_no_more_bytes_than_it_may_either() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let bad = "x".repeat(1 << 20);
    for _ in 0..6 {
        other.push([bad.clone()]);
    }
    let options = QueueOptions { max_bytes: Some((2 << 20) + 1_000), ..options() };
    let copy = Copy::start(&redis.url(), options, true);
    let groups = copy.messages(6);
    assert!(groups.iter().all(|group| group.key.is_none() && group.values.len() <= 2));
    until("nothing is left", || other.left().is_empty().then_some(()));
}

/// The rest of a long list is looked at no further than a group may have bytes.
#[test]
fn a_look_reads_no_more_than_a_group_may_have() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let pad = "x".repeat(100_000);
    let padded = message("a", 7).replace("\"n\"", &format!("\"t\":\"{pad}\",\"n\""));
    for _ in 0..640 {
        other.push_bytes(b"queue:batch:t:a", padded.as_bytes());
    }
    let before = memory(&mut other, "used_memory_peak");
    let options = QueueOptions { max_count: Some(10_000), max_bytes: Some(1 << 20), ..options() };
    let copy = Copy::start(&redis.url(), options, true);
    copy.messages(640);
    let more = memory(&mut other, "used_memory_peak").saturating_sub(before);
    assert!(more < 24 << 20, "a look took {more} bytes of memory");
}

#[test]
fn above_the_limit_of_chats_messages_stay_queued() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let options = QueueOptions { waiting_max: 100, ..options() };
    let copy = Copy::start(&redis.url(), options.clone(), false);
    // More than one look takes in, so that the limit is seen in between.
    other.push((0..2_000).map(|n| message(&n.to_string(), n)));
    let fault = until("it says so", || copy.stalled());
    assert_eq!(fault.code, "P1207");
    assert!(other.ask::<i64>(&["LLEN", LIST]) > 0);
    copy.kill();
    let copy = Copy::start(&redis.url(), options, true);
    let groups = copy.messages(2_000);
    assert_eq!(by_chat(&groups).len(), 2_000);
    until("nothing is left", || other.left().is_empty().then_some(()));
}

#[test]
fn servers_that_would_lose_messages_are_refused() {
    let refused = |redis: &Redis| {
        let started = Copy::try_start(&redis.url(), options(), true);
        started.err().expect("it must not start").code
    };
    assert_eq!(refused(&server(&[("maxmemory-policy", "allkeys-lru")])), "P1204");
    let cluster = server(&[("cluster-enabled", "yes")]);
    assert_eq!(refused(&cluster), "P1202");
    let Err(fault) = RedisQueue::new("redis+cluster://localhost", options()) else {
        panic!("a cluster")
    };
    assert_eq!(fault.code, "P1202");
    let warned = |settings: &[(&str, &str)]| {
        let redis = server(settings);
        let copy = Copy::start(&redis.url(), options(), true);
        copy.on(copy.feed.check()).unwrap().join("\n")
    };
    assert!(warned(&[("maxmemory-policy", "volatile-ttl")]).contains("volatile-ttl"));
    assert!(warned(&[("appendonly", "no")]).contains("no append-only file"));
    assert!(warned(&[]).contains("everysec"));
    assert_eq!(warned(&[("appendfsync", "always")]), "");
}

#[test]
pub fn a_database_has_room_for_one_pipeline() {
    let redis = server(&[]);
    let _first = Copy::start(&redis.url(), options(), true);
    let _second = Copy::start(&redis.url(), options(), true);
    let other = QueueOptions { pipeline: "other".to_owned(), ..options() };
    let Err(fault) = Copy::try_start(&redis.url(), other.clone(), true) else { panic!("shared") };
    assert_eq!(fault.code, "P1205");
    assert!(fault.to_string().contains("`chat`"), "{fault}");
    let _elsewhere = Copy::start(&format!("{}/1", redis.url()), other, true);
}

/// A login that may not ask how the server is set up: that nobody knows is said.
#[test]
fn a_server_that_does_not_tell_is_said_to_be_one() {
    let redis = server(&[("appendfsync", "always")]);
    let mut other = Other::new(&redis);
    let warned = |name: &str| {
        let url = redis.url().replace("://", &format!("://{name}:secret@"));
        let copy = Copy::start(&url, options(), true);
        copy.on(copy.feed.check()).unwrap()
    };
    for (name, denied) in [("half", "-config"), ("blind", "-info")] {
        let rights = ["ACL", "SETUSER", name, "on", ">secret", "~*", "&*", "+@all", denied];
        let _: String = other.ask(&rights);
    }
    let _: String = other.ask(&["ACL", "SETUSER", "blind", "-config"]);
    let half = warned("half");
    assert!(matches!(&half[..], [one] if one.contains("cannot be seen")), "{half:?}");
    assert!(half[0].contains("appendfsync"), "{half:?}");
    let blind = warned("blind");
    assert!(matches!(&blind[..], [one] if one.contains("cannot be seen")), "{blind:?}");
    assert!(blind[0].contains("noeviction") && blind[0].contains("appendonly"), "{blind:?}");
}
