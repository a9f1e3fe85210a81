//! Locks without an end, locks that run out, clocks and hands: what is waited for, what is said.

use std::time::Duration;

use potok_connectors::redis::{QueueOptions, RedisQueue};
use potok_core::{CloseReason, Feed};
use potok_testkit::services::Redis;

use crate::rig::{Copy, LIST, Other, message, options, patient, server, until};

const CHATS: &str = "potok:list:queue:incoming:chats";
const DUE: &str = "potok:list:queue:incoming:due";

fn count(copy: &Copy, name: &str) -> u64 {
    copy.feed.counts().into_iter().find(|(known, _)| *known == name).unwrap().1
}

fn now_ms(other: &mut Other) -> u64 {
    let (seconds, micros): (u64, u64) = other.ask(&["TIME"]);
    seconds * 1_000 + micros / 1_000
}

/// Changes one word of what is known of a chat.
fn rewrite(other: &mut Other, place: usize, word: &str) {
    let state: String = other.ask(&["HGET", CHATS, "t:a"]);
    let mut words: Vec<&str> = state.split(' ').collect();
    words[place] = word;
    let _: i64 = other.ask(&["HSET", CHATS, "t:a", &words.join(" ")]);
}

fn state(other: &mut Other, place: usize) -> Option<String> {
    let state: Option<String> = other.ask(&["HGET", CHATS, "t:a"]);
    state.and_then(|state| state.split(' ').nth(place).map(str::to_owned))
}

/// Everything is gone: what was under way is lost, that is counted, and new messages flow.
#[test]
pub fn an_emptied_server_is_reported_and_goes_on() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let copy = Copy::start(&redis.url(), options(), false);
    other.push([message("a", 1)]);
    let claimed = copy.messages(1);
    assert_eq!(count(&copy, "emptied"), 0);
    let _: String = other.ask(&["FLUSHALL"]);
    until("it is lost", || (copy.lost() == [claimed[0].batch.assignment]).then_some(()));
    until("it is counted", || (count(&copy, "emptied") == 1).then_some(()));
    until("the pipeline says again that it is here", || {
        let name: Option<String> = other.ask(&["GET", "potok:list:pipeline"]);
        (name.as_deref() == Some("chat queue:incoming")).then_some(())
    });
    other.push([message("a", 2)]);
    assert_eq!(copy.messages(2)[1].numbers(), [2]);
    // The late acknowledgement of what is gone changes nothing.
    copy.commit(&claimed[0]).unwrap();
    copy.commit(&copy.groups()[1]).unwrap();
    until("nothing is left", || other.left().is_empty().then_some(()));
}

/// Everything is gone while nobody runs: whoever starts next in the same folder says so. On another server
/// nothing is missing.
#[test]
fn a_server_that_was_emptied_in_between_is_reported() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let folder = tempfile::tempdir().unwrap();
    let seen = folder.path().join("redis-queue");
    let options = QueueOptions { seen: Some(seen.clone()), ..patient() };
    let is_noted_of = |redis: &Redis, database: &str, list: &str| {
        let epoch = format!("potok:list:{list}:epoch");
        until("it is noted", || {
            let mut other = Other::new(redis);
            let _: String = other.ask(&["SELECT", database]);
            let epoch: Option<String> = other.ask(&["GET", &epoch]);
            let noted = std::fs::read_to_string(&seen).ok()?;
            (noted.contains(&redis.port().to_string()) && noted.contains(&epoch?)).then_some(())
        });
    };
    let is_noted = |redis: &Redis| is_noted_of(redis, "0", LIST);
    let copy = Copy::start(&redis.url(), options.clone(), true);
    is_noted(&redis);
    copy.kill();
    let copy = Copy::start(&redis.url(), options.clone(), false);
    let groups = copy.feed.groups().unwrap();
    other.push([message("a", 1)]);
    until("it is closed", || {
        copy.on(groups.close(b"t:a", CloseReason::ClosedByHand)).unwrap().then_some(())
    });
    copy.messages(1);
    assert_eq!(count(&copy, "emptied"), 0, "it is all there");
    copy.kill();
    let _: String = other.ask(&["FLUSHALL"]);
    let copy = Copy::start(&redis.url(), options.clone(), true);
    until("it is counted", || (count(&copy, "emptied") == 1).then_some(()));
    copy.kill();
    let elsewhere = server(&[]);
    let copy = Copy::start(&elsewhere.url(), options.clone(), true);
    is_noted(&elsewhere);
    assert_eq!(count(&copy, "emptied"), 0);
    copy.kill();
    // Another database of that server, and another list of that database, are other data as well.
    let copy = Copy::start(&format!("{}/1", elsewhere.url()), options.clone(), true);
    is_noted_of(&elsewhere, "1", LIST);
    assert_eq!(count(&copy, "emptied"), 0, "it is another database");
    copy.kill();
    let mut other = Other::new(&elsewhere);
    let _: String = other.ask(&["SELECT", "1"]);
    let _: i64 = other.ask(&["DEL", "potok:list:pipeline"]);
    let options = QueueOptions { list: "queue:next".to_owned(), ..options };
    let copy = Copy::start(&format!("{}/1", elsewhere.url()), options, true);
    is_noted_of(&elsewhere, "1", "queue:next");
    assert_eq!(count(&copy, "emptied"), 0, "it is another list");
}

/// Whoever had the lock of a chat is about to read the list when it runs out: it is given time.
#[test]
pub fn a_lock_that_ran_out_is_waited_for_a_little_longer() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let copy = Copy::start(&redis.url(), options(), true);
    let _: String = other.ask(&["SET", "lock:batch:t:a", "processing", "PX", "1500"]);
    other.push([message("a", 1)]);
    until("it is adopted", || (count(&copy, "adopted") == 1).then_some(()));
    let look: Option<f64> = other.ask(&["ZSCORE", DUE, "t:a"]);
    let wait = look.unwrap_or(0.0) / 1_000.0 - now_ms(&mut other) as f64;
    assert!(wait > 15_000.0, "its owner is about to read it; looked at again in {wait} ms");
    // It gets full meanwhile, which is no reason to be faster.
    other.push((2..=100).map(|n| message("a", n)));
    until("they are sorted", || (other.ask::<i64>(&["LLEN", LIST]) == 0).then_some(()));
    let _: i64 = other.ask(&["ZADD", DUE, "XX", "1", "t:a"]);
    let wait = until("it is looked at", || {
        assert!(copy.groups().is_empty(), "its owner is about to read it");
        let look: f64 = other.ask(&["ZSCORE", DUE, "t:a"]);
        let wait = look / 1_000.0 - now_ms(&mut other) as f64;
        (look > 1.0).then_some(wait)
    });
    assert!(wait > 10_000.0, "its owner is about to read it; looked at again in {wait} ms");
    // That time is over: it leaves as usual.
    rewrite(&mut other, 8, "1");
    let _: i64 = other.ask(&["ZADD", DUE, "XX", "1", "t:a"]);
    assert_eq!(copy.messages(100)[0].numbers(), (1..=100).collect::<Vec<_>>());
}

/// What the old processor pushes refreshes `last_seen`: the chat is quiet from then on.
#[test]
fn a_push_that_refreshes_last_seen_prolongs_the_quiet_time() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let age = Duration::from_secs(2 * 3_600);
    let copy = Copy::start(&redis.url(), QueueOptions { max_age: age, ..patient() }, true);
    other.push([message("a", 1)]);
    until("it is sorted", || state(&mut other, 0));
    let now = now_ms(&mut other);
    // It opened an hour ago, and something came half a minute ago.
    let seen = now - 30_000;
    other.push_bytes(b"queue:batch:t:a", message("a", 2).as_bytes());
    let time = potok_core::Timestamp(i64::try_from(seen).unwrap()).to_string();
    let _: String = other.ask(&["SET", "last_seen:t:a", &time]);
    rewrite(&mut other, 0, &((now - 3_600_000) * 1_000).to_string());
    let _: i64 = other.ask(&["ZADD", DUE, "XX", "1", "t:a"]);
    let look = until("it is looked at", || {
        assert!(copy.groups().is_empty(), "it is not quiet yet");
        let look: f64 = other.ask(&["ZSCORE", DUE, "t:a"]);
        (look > 1.0).then_some(look)
    });
    assert_eq!(look as u64, (seen + 60_000) * 1_000);
    let _: i64 = other.ask(&["DEL", "last_seen:t:a"]);
    let _: i64 = other.ask(&["ZADD", DUE, "XX", "1", "t:a"]);
    let left = copy.messages(2);
    assert_eq!((left[0].numbers(), left[0].reason.as_str()), (vec![1, 2], "silence_reached"));
}

/// Messages have no time to live, whoever sets one.
#[test]
fn nothing_of_a_chat_runs_out() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    other.push_bytes(b"queue:batch:t:a", message("a", 1).as_bytes());
    let _: i64 = other.ask(&["EXPIRE", "queue:batch:t:a", "3600"]);
    other.push([message("a", 2)]);
    let copy = Copy::start(&redis.url(), patient(), false);
    until("it opens", || (other.ask::<i64>(&["TTL", "queue:batch:t:a"]) == -1).then_some(()));
    until("it is sorted", || (other.ask::<i64>(&["LLEN", LIST]) == 0).then_some(()));
    let _: i64 = other.ask(&["EXPIRE", "queue:batch:t:a", "3600"]);
    let _: i64 = other.ask(&["ZADD", DUE, "XX", "1", "t:a"]);
    until("it is looked at", || {
        (other.ask::<i64>(&["TTL", "queue:batch:t:a"]) == -1).then_some(())
    });
    let _: i64 = other.ask(&["EXPIRE", "queue:batch:t:a", "3600"]);
    let groups = copy.feed.groups().unwrap();
    assert!(copy.on(groups.close(b"t:a", CloseReason::ClosedByHand)).unwrap());
    copy.messages(2);
    assert_eq!(other.ask::<i64>(&["TTL", &format!("potok:list:{LIST}:sending:t:a")]), -1);
}

/// The age of what comes while a chat is delivered counts from its arrival, not from the end of that.
#[test]
fn what_comes_during_a_delivery_opens_as_it_comes() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let copy = Copy::start(&redis.url(), patient(), false);
    let groups = copy.feed.groups().unwrap();
    let close = || {
        until("it is closed", || {
            copy.on(groups.close(b"t:a", CloseReason::ClosedByHand)).unwrap().then_some(())
        })
    };
    other.push([message("a", 1)]);
    close();
    let claimed = copy.messages(1).remove(0);
    other.push([message("a", 2)]);
    let opened = until("it opens", || state(&mut other, 0).filter(|opened| opened != "0"));
    let at = now_ms(&mut other);
    until("time passes", || (now_ms(&mut other) > at + 1).then_some(()));
    copy.commit(&claimed).unwrap();
    assert_eq!(state(&mut other, 0), Some(opened.clone()));
    close();
    let next = copy.messages(2).remove(1);
    let whole = next.batch.feed.as_ref().unwrap().whole.clone().unwrap();
    assert_eq!(whole.opened.0, opened.parse::<i64>().unwrap() / 1_000);
}

/// A lock that never runs out is somebody's for five minutes, then nobody's.
#[test]
fn a_lock_of_a_chat_without_an_end_is_overwritten_in_the_end() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let _: String = other.ask(&["SET", "lock:batch:t:a", "processing"]);
    let copy = Copy::start(&redis.url(), options(), true);
    other.push([message("a", 1)]);
    until("its lock is seen", || (state(&mut other, 7)? == "-1").then_some(()));
    let _: i64 = other.ask(&["ZADD", DUE, "XX", "1", "t:a"]);
    until("it is looked at", || {
        let look: Option<f64> = other.ask(&["ZSCORE", DUE, "t:a"]);
        (look? > 1.0).then_some(())
    });
    assert!(copy.groups().is_empty(), "it is theirs");
    let since = (now_ms(&mut other) - 301_000).to_string();
    rewrite(&mut other, 8, &since);
    let _: i64 = other.ask(&["ZADD", DUE, "XX", "1", "t:a"]);
    assert_eq!(copy.messages(1)[0].numbers(), [1]);
    assert_eq!(count(&copy, "adopted"), 1);
    until("nothing is left", || other.left().is_empty().then_some(()));
}

/// The lock of the old processor has no end, because it died in between: overwritten after half a minute.
#[test]
fn a_processor_lock_without_an_end_is_overwritten() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let _: String = other.ask(&["SET", "queue:processor:lock", "processing"]);
    let copy = Copy::start(&redis.url(), options(), true);
    other.push([message("a", 1)]);
    assert_eq!(until("it says so", || copy.stalled()).code, "P1206");
    assert_eq!(copy.messages(1)[0].numbers(), [1]);
    until("it has an end now", || {
        (other.ask::<i64>(&["PTTL", "queue:processor:lock"]) > 0).then_some(())
    });
}

/// The processor lock is potok's, not one copy's: another goes on under what a dead one left.
#[test]
fn the_processor_lock_of_a_dead_copy_stops_no_other() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let first = Copy::start(&redis.url(), patient(), true);
    other.push([message("a", 1)]);
    until("it is sorted", || (other.ask::<i64>(&["LLEN", LIST]) == 0).then_some(()));
    first.kill();
    assert_eq!(other.ask::<i64>(&["EXISTS", "queue:processor:lock"]), 1);
    let second = Copy::start(&redis.url(), patient(), true);
    other.push([message("b", 2)]);
    until("it is sorted", || {
        assert!(second.stalled().is_none(), "it waits for a lock of its own kind");
        (other.ask::<i64>(&["LLEN", "queue:batch:t:b"]) == 1).then_some(())
    });
}

/// A clock that was set back four hours: a chat that opened, and was seen, in the future leaves.
#[test]
fn times_that_lie_in_the_future_are_now() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let hour = Duration::from_secs(3_600);
    let age = Duration::from_secs(2);
    let first = Copy::start(&redis.url(), QueueOptions { quiet: hour, ..options() }, true);
    other.push([message("a", 1)]);
    until("it is sorted", || state(&mut other, 0));
    first.kill();
    let later = now_ms(&mut other) + 4 * 3_600_000;
    rewrite(&mut other, 0, &(later * 1_000).to_string());
    let _: String = other.ask(&["SET", "last_seen:t:a", "2199-01-01T00:00:00.000Z"]);
    let _: i64 = other.ask(&["ZADD", DUE, "XX", &(later * 1_000).to_string(), "t:a"]);
    let copy =
        Copy::start(&redis.url(), QueueOptions { quiet: hour, max_age: age, ..options() }, true);
    let groups = copy.messages(1);
    assert_eq!((groups[0].numbers(), groups[0].reason.as_str()), (vec![1], "max_wait_reached"));
    assert_eq!(copy.groups().len(), 1);
}

/// `close` is for what was there: a message that comes before the chat leaves is in the next group.
#[test]
pub fn a_close_by_hand_takes_what_was_there() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let first = Copy::start(&redis.url(), patient(), true);
    other.push([message("a", 1), message("a", 2)]);
    until("they are sorted", || {
        (other.ask::<i64>(&["LLEN", "queue:batch:t:a"]) == 2).then_some(())
    });
    first.kill();
    // Nobody looks while the wish is made and another message comes.
    let feed = RedisQueue::new(&redis.url(), patient()).unwrap();
    let groups = feed.groups().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    assert!(runtime.block_on(groups.close(b"t:a", CloseReason::ClosedByHand)).unwrap());
    other.push_bytes(b"queue:batch:t:a", message("a", 3).as_bytes());
    let copy = Copy::start(&redis.url(), patient(), true);
    let left = copy.messages(2);
    assert_eq!((left[0].numbers(), left[0].reason.as_str()), (vec![1, 2], "closed_by_hand"));
    until("the next waits", || (other.ask::<i64>(&["LLEN", "queue:batch:t:a"]) == 1).then_some(()));
    // What is being delivered cannot be closed, and what another program holds is not ours to close.
    let _: String = other.ask(&["SET", "lock:batch:t:a", "processing", "EX", "300"]);
    let refused = runtime.block_on(groups.close(b"t:a", CloseReason::Dropped)).unwrap_err();
    assert_eq!(refused.code, "P1211");
    assert!(!runtime.block_on(groups.close(b"t:b", CloseReason::ClosedByHand)).unwrap());
}

/// A call to drop a chat comes late: the chat has left and opened again meanwhile. It is not meant.
#[test]
fn a_late_drop_hits_no_later_group() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let copy = Copy::start(&redis.url(), patient(), true);
    other.push([message("a", 1)]);
    let before = until("it is sorted", || state(&mut other, 1));
    let groups = copy.feed.groups().unwrap();
    assert!(copy.on(groups.close(b"t:a", CloseReason::ClosedByHand)).unwrap());
    copy.messages(1);
    until("nothing is left", || other.left().is_empty().then_some(()));
    other.push([message("a", 2)]);
    let after = until("it is sorted", || state(&mut other, 1));
    assert_ne!(before, after);
    let script = [
        include_str!("../../../connectors/src/redis/queue/scripts/common.lua"),
        include_str!("../../../connectors/src/redis/queue/scripts/wish.lua"),
    ];
    let (script, prefix) = (script.concat(), format!("potok:list:{LIST}:"));
    let mut drop = |opening: &str| -> String {
        other.ask(&["EVAL", &script, "1", LIST, &prefix, "t:a", opening, "dropped"])
    };
    assert_eq!(drop(&before), "gone");
    assert_eq!(drop(&after), "done");
    let left = copy.messages(2);
    assert_eq!((left[1].numbers(), left[1].reason.as_str()), (vec![2], "dropped"));
}

/// A given-up chat comes with its reason, so that its messages become dead letters.
#[test]
fn a_dropped_chat_is_handed_out_as_dropped() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let copy = Copy::start(&redis.url(), patient(), false);
    other.push([message("a", 1)]);
    until("it is sorted", || state(&mut other, 0));
    let groups = copy.feed.groups().unwrap();
    assert!(copy.on(groups.close(b"t:a", CloseReason::Dropped)).unwrap());
    let group = copy.messages(1).remove(0);
    assert_eq!(CloseReason::of(&group.reason), CloseReason::Dropped);
    let refused = copy.on(groups.close(b"t:a", CloseReason::ClosedByHand));
    assert!(matches!(&refused, Ok(false)) || refused.is_err_and(|fault| fault.code == "P1210"));
}
