//! What comes out, and what lies in Redis meanwhile.

use std::time::Duration;

use bytes::Bytes;
use potok_connectors::redis::QueueOptions;
use potok_core::Feed;
use potok_expr::{PeriodBy, Template};

use crate::rig::{
    Copy, LIST, Other, assert_own_chats, by_chat, message, options, patient, server, until,
};

#[test]
fn messages_are_collected_by_chat_and_nothing_stays() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    other.push((0..300).map(|n| message(&format!("c:{}", n % 10), n)));
    let copy = Copy::start(&redis.url(), options(), true);
    let groups = copy.messages(300);
    assert_own_chats(&groups);
    for (chat, numbers) in by_chat(&groups) {
        let first = numbers[0];
        assert_eq!(numbers, (0..30).map(|n| first + 10 * n).collect::<Vec<_>>(), "{chat}");
    }
    assert!(groups.iter().all(|group| group.reason == "silence_reached"), "{groups:?}");
    until("nothing is left", || other.left().is_empty().then_some(()));
    until("all are finished", || (copy.finished() == groups.len()).then_some(()));
    // A message that comes later wakes it: no tick, and another group of the same chat.
    other.push([message("c:1", 1_000)]);
    let later = copy.messages(301);
    assert!(!groups.iter().any(|group| group.generation == later.last().unwrap().generation));
}

#[test]
fn other_programs_find_the_keys_they_know() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let copy = Copy::start(&redis.url(), patient(), true);
    other.push([message("a", 1), message("a", 2)]);
    until("they are sorted", || (other.ask::<i64>(&["LLEN", LIST]) == 0).then_some(()));
    let entries: Vec<String> = other.ask(&["LRANGE", "queue:batch:t:a", "0", "-1"]);
    assert_eq!(entries, [message("a", 1), message("a", 2)]);
    assert_eq!(other.ask::<String>(&["GET", "lock:batch:t:a"]), "processing");
    assert_eq!(other.ask::<String>(&["GET", "queue:processor:lock"]), "processing");
    let (chat, processor): (i64, i64) =
        (other.ask(&["PTTL", "lock:batch:t:a"]), other.ask(&["PTTL", "queue:processor:lock"]));
    assert!(chat > 200_000 && chat <= 300_000, "{chat}");
    assert!(processor > 0 && processor <= 30_000, "{processor}");
    let seen: String = other.ask(&["GET", "last_seen:t:a"]);
    assert!(seen.starts_with("20") && seen.ends_with('Z') && seen.contains('T'), "{seen}");
    let backlog = copy.on(copy.feed.backlog()).unwrap();
    assert_eq!((backlog.records, backlog.groups), (2, Some(1)));
}

#[test]
pub fn many_messages_are_cut_into_several_groups() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    other.push((0..250).map(|n| message("a", n)));
    let copy = Copy::start(&redis.url(), options(), true);
    let groups = copy.messages(250);
    let shape: Vec<_> =
        groups.iter().map(|group| (group.values.len(), group.reason.as_str())).collect();
    assert_eq!(shape, [(100, "max_count"), (100, "max_count"), (50, "silence_reached")]);
    assert_eq!(by_chat(&groups)["t:a"], (0..250).collect::<Vec<_>>());
}

#[test]
pub fn a_group_has_no_more_bytes_than_it_may() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let big = "x".repeat(1 << 20);
    let big = |n: u64| message("a", n).replace("\"n\"", &format!("\"t\":\"{big}\",\"n\""));
    for n in 0..30 {
        other.push([big(n)]);
    }
    let quiet = Duration::from_secs(5);
    let options = QueueOptions { max_bytes: Some(10 << 20), quiet, ..options() };
    let copy = Copy::start(&redis.url(), options, true);
    let groups = copy.messages(30);
    let shape: Vec<_> =
        groups.iter().map(|group| (group.values.len(), group.reason.as_str())).collect();
    // Ten of them and what is around them would be more than ten mebibytes.
    let expected = [(9, "max_bytes"), (9, "max_bytes"), (9, "max_bytes"), (3, "silence_reached")];
    assert_eq!(shape, expected);
    assert_eq!(by_chat(&groups)["t:a"], (0..30).collect::<Vec<_>>());
}

#[test]
pub fn a_chat_that_never_goes_quiet_leaves_at_its_age() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let options = QueueOptions {
        quiet: Duration::from_secs(5),
        max_age: Duration::from_secs(1),
        ..options()
    };
    let copy = Copy::start(&redis.url(), options, true);
    let mut number = 0;
    until("it leaves while messages come", || {
        other.push([message("a", number)]);
        number += 1;
        copy.groups().first().cloned()
    });
    assert_eq!(copy.groups()[0].reason, "max_wait_reached");
}

/// Options under which a message says how quiet it has to be behind it.
fn as_they_say() -> QueueOptions {
    let quiet_by =
        PeriodBy { by: None, map: [].into(), millis: Some(Template::parse(".quiet_ms").unwrap()) };
    let hour = Duration::from_secs(3_600);
    QueueOptions { quiet: hour, max_age: 2 * hour, quiet_by: Some(quiet_by), ..options() }
}

/// The last message of a chat needs less silence than those before it: the chat does not wait for theirs.
#[test]
pub fn a_quiet_time_that_gets_shorter_counts() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let copy = Copy::start(&redis.url(), as_they_say(), true);
    other.push([message("a", 1)]);
    until("it is sorted", || (other.ask::<i64>(&["LLEN", LIST]) == 0).then_some(()));
    other.push([message("a", 2).replace("\"n\"", "\"quiet_ms\":200,\"n\"")]);
    let groups = copy.messages(2);
    assert_eq!((groups[0].numbers(), groups[0].reason.as_str()), (vec![1, 2], "silence_reached"));
    until("nothing is left", || other.left().is_empty().then_some(()));
}

/// One that gets longer counts as well: the look that was due finds that it is too early.
#[test]
fn a_quiet_time_that_gets_longer_counts() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let copy = Copy::start(&redis.url(), as_they_say(), true);
    let short = message("a", 1).replace("\"n\"", "\"quiet_ms\":60000,\"n\"");
    other.push([short, message("a", 2)]);
    until("they are sorted", || (other.ask::<i64>(&["LLEN", LIST]) == 0).then_some(()));
    let due = format!("potok:list:{LIST}:due");
    let _: i64 = other.ask(&["ZADD", &due, "XX", "1", "t:a"]);
    let look = until("it is looked at", || {
        let look: f64 = other.ask(&["ZSCORE", &due, "t:a"]);
        (look > 1.0).then_some(look)
    });
    let (now, _): (u64, u64) = other.ask(&["TIME"]);
    assert!(look / 1_000_000.0 > now as f64 + 600.0, "it waits for an hour's silence");
    assert!(copy.groups().is_empty());
}

#[test]
fn joined_entries_are_parted_and_typed_separators_are_not() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let copy = Copy::start(
        &redis.url(),
        QueueOptions { quiet: Duration::from_secs(2), ..options() },
        true,
    );
    let typed = r#"{"channel":"t","chat":"a","n":0,"text":"|||SEPARATOR|||"}"#.to_owned();
    other.push([typed.clone()]);
    until("it is sorted", || (other.ask::<i64>(&["LLEN", "queue:batch:t:a"]) == 1).then_some(()));
    // What the n8n side pushes while the chat is open.
    let joined = format!("{typed}|||SEPARATOR|||{}|||SEPARATOR|||null", message("a", 2));
    other.push_bytes(b"queue:batch:t:a", joined.as_bytes());
    let joined = format!("{typed}|||SEPARATOR|||null|||SEPARATOR|||{}", message("a", 3));
    other.push_bytes(b"queue:batch:t:a", joined.as_bytes());
    other.push_bytes(b"queue:batch:t:a", vec!["1"; 70_000].join("|||SEPARATOR|||").as_bytes());
    let groups = copy.messages(70_005);
    let [group] = groups.as_slice() else { panic!("{}", groups.len()) };
    let all = [typed.clone(), typed.clone(), message("a", 2), typed, message("a", 3)];
    assert_eq!(group.values[..5], all.map(Bytes::from));
    let offsets: Vec<u64> = group.batch.records.iter().map(|record| record.offset).collect();
    let expected: Vec<u64> = (0..3).chain([4]).chain(6..70_007).collect();
    assert_eq!(offsets, expected, "no two records have one position");
    until("nothing is left", || other.left().is_empty().then_some(()));
}

#[test]
pub fn chats_are_told_apart_whatever_their_ids_hold() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let ids = ["a\0b", "a\0c", "a\nb", "{}", "%s", "a b", "a:b:c", "ü"];
    other.push((0..80).map(|n| message(ids[n as usize % 8], n)));
    let copy = Copy::start(&redis.url(), options(), true);
    let groups = copy.messages(80);
    assert_own_chats(&groups);
    assert_eq!(by_chat(&groups).len(), 8);
    until("nothing is left", || other.left().is_empty().then_some(()));
}

#[test]
fn what_belongs_to_no_chat_is_handed_out_apart_and_what_is_no_message_is_not() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let long = message(&"x".repeat(2_000), 5);
    let entries = ["{oops", "null", "", r#"{"channel":"t"}"#, " ", &long, "1|||SEPARATOR|||2"];
    other.push(entries.map(str::to_owned));
    other.push([message("a", 1)]);
    let copy = Copy::start(&redis.url(), options(), true);
    let groups = copy.messages(5);
    let (chats, bad): (Vec<_>, Vec<_>) = groups.iter().partition(|group| group.key.is_some());
    let bad: Vec<Bytes> = bad.into_iter().flat_map(|group| group.values.clone()).collect();
    let expected = [entries[0], entries[3], entries[5], entries[6]];
    assert_eq!(bad, expected.map(|entry| Bytes::copy_from_slice(entry.as_bytes())));
    assert_eq!(chats.len(), 1);
    until("nothing is left", || other.left().is_empty().then_some(()));
    let counts = copy.feed.counts();
    assert!(counts.contains(&("skipped", 3)) && counts.contains(&("sorted", 8)), "{counts:?}");
}

#[test]
pub fn a_chat_of_nothing_but_null_is_gone() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    other.push_bytes(b"queue:batch:t:a", b"null");
    other.push_bytes(b"queue:batch:t:a", b"");
    let copy = Copy::start(&redis.url(), options(), true);
    until("nothing is left", || other.left().is_empty().then_some(()));
    assert!(copy.groups().is_empty());
}

/// One look at the list takes in a mebibyte at most, and at least one entry.
#[test]
fn a_look_at_the_list_takes_in_so_many_bytes() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let script = [
        include_str!("../../../connectors/src/redis/queue/scripts/common.lua"),
        include_str!("../../../connectors/src/redis/queue/scripts/peek.lua"),
    ];
    let (script, prefix) = (script.concat(), format!("potok:list:{LIST}:"));
    let mut seen = || {
        let words = ["EVAL", &script, "1", LIST, &prefix, "500", "1048576"];
        other.ask::<(String, Vec<Vec<u8>>)>(&words).1
    };
    assert!(seen().is_empty());
    let mut pushing = Other::new(&redis);
    let entry = "x".repeat(100_000);
    for _ in 0..100 {
        pushing.push([entry.clone()]);
    }
    assert_eq!(seen().len(), 10);
    pushing.push_bytes(LIST.as_bytes(), b"the last");
    let _: String = pushing.ask(&["LTRIM", LIST, "-1", "-1"]);
    let large = "x".repeat(3 << 20);
    let _: i64 = pushing.ask(&["LPUSH", LIST, &large]);
    assert_eq!(seen().iter().map(Vec::len).collect::<Vec<_>>(), [large.len()]);
}
