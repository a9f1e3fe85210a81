//! Owners that die, freeze, or give up.

use std::collections::BTreeSet;
use std::time::Duration;

use potok_connectors::redis::QueueOptions;

use crate::rig::{Copy, LIST, Other, by_chat, message, options, server, until};

/// A dead owner's claim comes back although its chat gets message after message.
#[test]
pub fn arrivals_do_not_put_off_the_end_of_a_lease() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let first = Copy::start(&redis.url(), options(), false);
    other.push([message("a", 0)]);
    let claimed = first.messages(1);
    first.kill();
    // Longer than any pause between two of them.
    let options = QueueOptions { quiet: Duration::from_secs(5), ..options() };
    let copy = Copy::start(&redis.url(), options, true);
    let mut number = 1;
    let again = until("it is taken over", || {
        other.push([message("a", number)]);
        number += 1;
        copy.groups().first().cloned()
    });
    // The same members under the same name, whatever came meanwhile.
    assert_eq!(again.generation, claimed[0].generation);
    assert_eq!(again.values, claimed[0].values);
    assert_eq!(again.reason, claimed[0].reason);
    let groups = copy.messages(number as usize);
    assert_eq!(by_chat(&groups)["t:a"], (0..number).collect::<Vec<_>>());
    until("nothing is left", || other.left().is_empty().then_some(()));
}

/// A first owner that is frozen past its lease wakes up: nothing changes by its hand, and it says that
/// the claim is lost.
#[test]
pub fn an_acknowledgement_under_an_old_token_changes_nothing() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let first = Copy::start(&redis.url(), options(), false);
    other.push([message("a", 0)]);
    let claimed = first.messages(1);
    // Its lease ends by hand, as if it had been frozen; the second copy takes over.
    let second = Copy::start(&redis.url(), options(), false);
    let due = format!("potok:list:{LIST}:due");
    let again = until("it is taken over", || {
        let _: i64 = other.ask(&["ZADD", &due, "XX", "1", "t:a"]);
        second.groups().first().cloned()
    });
    assert_eq!(again.generation, claimed[0].generation);
    first.commit(&claimed[0]).unwrap();
    let sending = format!("potok:list:{LIST}:sending:t:a");
    assert_eq!(other.ask::<i64>(&["EXISTS", &sending]), 1, "it is the second one's");
    second.commit(&again).unwrap();
    // Again, because the first answer was lost.
    second.commit(&again).unwrap();
    until("nothing is left", || other.left().is_empty().then_some(()));
}

#[test]
fn a_claim_that_others_have_is_lost() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let first = Copy::start(&redis.url(), options(), false);
    other.push([message("a", 0)]);
    let claimed = first.messages(1);
    let claims = format!("potok:list:{LIST}:claims");
    let claim: String = other.ask(&["HGET", &claims, "t:a"]);
    let (_, rest) = claim.split_once(' ').unwrap();
    let _: i64 = other.ask(&["HSET", &claims, "t:a", &format!("somebody {rest}")]);
    until("it is lost", || (first.lost() == [claimed[0].batch.assignment]).then_some(()));
}

/// Redis is away for longer than a lease: nobody may go on with what it has.
#[test]
fn what_cannot_be_renewed_in_time_is_lost() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let first = Copy::start(&redis.url(), options(), false);
    other.push([message("a", 0)]);
    let claimed = first.messages(1);
    redis.freeze();
    until("it is lost", || (first.lost() == [claimed[0].batch.assignment]).then_some(()));
    redis.thaw();
    // It comes again, to this copy or another, under its name.
    let again = until("it comes again", || first.groups().get(1).cloned());
    assert_eq!(again.generation, claimed[0].generation);
}

#[test]
fn what_is_given_back_comes_again_as_it_was() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let options = QueueOptions { lease: Duration::from_secs(600), ..options() };
    let copy = Copy::start(&redis.url(), options, false);
    other.push([message("a", 0)]);
    let claimed = copy.messages(1);
    other.push([message("a", 1)]);
    copy.give_back(&claimed[0]);
    let again = until("it comes again", || copy.groups().get(1).cloned());
    assert_eq!((again.generation, again.numbers()), (claimed[0].generation, vec![0]));
    copy.commit(&again).unwrap();
    let next = until("the next comes", || copy.groups().get(2).cloned());
    assert_eq!(next.numbers(), [1]);
}

/// A message comes between the claim and its acknowledgement, then silence: it has a timer.
#[test]
pub fn what_comes_while_a_chat_is_delivered_is_the_next_group() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let copy = Copy::start(&redis.url(), options(), false);
    other.push([message("a", 0)]);
    let claimed = copy.messages(1);
    other.push([message("a", 1)]);
    until("it is sorted", || (other.ask::<i64>(&["LLEN", "queue:batch:t:a"]) == 1).then_some(()));
    copy.commit(&claimed[0]).unwrap();
    let next = until("the next comes", || copy.groups().get(1).cloned());
    assert_eq!(next.numbers(), [1]);
    assert_ne!(next.generation, claimed[0].generation);
    copy.commit(&next).unwrap();
    until("nothing is left", || other.left().is_empty().then_some(()));
}

/// From the third owner that died on, a claim is tried message by message, and what they died of is
/// known to whoever comes next.
#[test]
fn deaths_are_counted_where_the_next_owner_sees_them() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let options = QueueOptions { lease: Duration::from_millis(500), ..options() };
    other.push([message("a", 0), message("a", 1), message("a", 2)]);
    for life in 0..7 {
        let copy = Copy::start(&redis.url(), options.clone(), false);
        let group = copy.messages(3).remove(0);
        assert_eq!(group.numbers(), [0, 1, 2]);
        let trials = group.batch.trials().cloned();
        assert_eq!(trials.is_some(), life >= 3, "life {life}");
        if let Some(trials) = trials {
            assert_eq!(trials.deaths_at(1), life - 3);
            assert_eq!(trials.deaths_at(0) + trials.deaths_at(2), 0);
            copy.on(trials.notes.trying(Some(0)));
            copy.on(trials.notes.trying(Some(1)));
        }
        copy.kill();
    }
    // Given back by somebody who lives: nobody died of it.
    let copy = Copy::start(&redis.url(), options, false);
    let group = copy.messages(3).remove(0);
    copy.on(group.batch.trials().unwrap().notes.trying(Some(2)));
    copy.give_back(&group);
    let again = until("it comes again", || copy.groups().get(1).cloned());
    let trials = again.batch.trials().unwrap();
    assert_eq!((trials.deaths_at(1), trials.deaths_at(2)), (4, 0));
}

/// Leases are renewed: what takes long is not taken over.
#[test]
fn a_slow_delivery_keeps_its_claim() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let options = QueueOptions { lease: Duration::from_secs(1), ..options() };
    let (first, second) = (
        Copy::start(&redis.url(), options.clone(), false),
        Copy::start(&redis.url(), options, false),
    );
    other.push([message("a", 0)]);
    let due = format!("potok:list:{LIST}:due");
    let mut leases: Vec<u64> = Vec::new();
    until("it is renewed several times", || {
        let lease: Option<String> = other.ask(&["ZSCORE", &due, "t:a"]);
        let lease = lease.map(|lease| lease.parse::<f64>().unwrap() as u64)?;
        if leases.last() != Some(&lease) {
            leases.push(lease);
        }
        (leases.len() > 8).then_some(())
    });
    assert_eq!(first.groups().len() + second.groups().len(), 1);
}

/// Two copies of one queue share it: each message once, in order per chat.
#[test]
pub fn several_copies_share_the_queue() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let options = QueueOptions { max_count: Some(20), ..options() };
    let copies: Vec<Copy> =
        (0..3).map(|_| Copy::start(&redis.url(), options.clone(), true)).collect();
    let (chats, count) = (40, 4_000);
    let mut popped = BTreeSet::new();
    for n in 0..count {
        other.push([message(&(n % chats).to_string(), n)]);
        // The old processor lets go of its lock, which is ours, and takes from the head.
        if n % 100 == 0 {
            let _: i64 = other.ask(&["DEL", "queue:processor:lock"]);
            let head: Option<String> = other.ask(&["LPOP", LIST]);
            popped.extend(head.and_then(|head| {
                serde_json::from_str::<serde_json::Value>(&head).unwrap()["n"].as_u64()
            }));
        }
    }
    until("nothing is left", || other.left().is_empty().then_some(()));
    let mut groups: Vec<_> = copies.iter().flat_map(Copy::groups).collect();
    groups.sort_by_key(|group| group.numbers()[0]);
    for (chat, numbers) in by_chat(&groups) {
        let of_chat = (0..count).filter(|n| format!("t:{}", n % chats) == chat);
        let expected: Vec<u64> = of_chat.filter(|n| !popped.contains(n)).collect();
        assert_eq!(numbers, expected, "{chat}");
    }
}

/// Redis is away for longer than a lease while a message is tried alone: nobody has died of it.
#[test]
pub fn whoever_loses_sight_of_redis_has_not_died() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let options = QueueOptions { lease: Duration::from_millis(500), ..options() };
    other.push([message("a", 0), message("a", 1)]);
    for _ in 0..3 {
        let copy = Copy::start(&redis.url(), options.clone(), false);
        copy.messages(2);
        copy.kill();
    }
    let copy = Copy::start(&redis.url(), options, false);
    let group = copy.messages(2).remove(0);
    copy.on(group.batch.trials().unwrap().notes.trying(Some(1)));
    assert!(group.batch.lease().unwrap().is_held());
    redis.freeze();
    until("it is lost", || (copy.lost() == [group.batch.assignment]).then_some(()));
    assert!(!group.batch.lease().unwrap().is_held(), "no call may begin for it");
    redis.thaw();
    let again = until("it comes again", || copy.groups().get(1).cloned());
    assert_eq!(again.generation, group.generation);
    assert_eq!(again.batch.trials().unwrap().deaths_at(1), 0, "its owner lives");
}

/// What belongs to no chat comes while some of it is delivered: the lease of that stays where it is, and
/// no other copy gets the same.
#[test]
pub fn arrivals_move_no_lease_of_what_belongs_to_no_chat() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let options = QueueOptions { lease: Duration::from_secs(600), ..options() };
    let first = Copy::start(&redis.url(), options.clone(), false);
    other.push(["{oops 0".to_owned()]);
    let claimed = first.messages(1);
    let second = Copy::start(&redis.url(), options, true);
    let due = format!("potok:list:{LIST}:due");
    let lease: String = other.ask(&["ZSCORE", &due, ""]);
    for n in 1..20 {
        other.push([format!("{{oops {n}")]);
        until("it is sorted", || (other.ask::<i64>(&["LLEN", LIST]) == 0).then_some(()));
        assert_eq!(other.ask::<String>(&["ZSCORE", &due, ""]), lease, "its lease has moved");
    }
    assert!(second.groups().is_empty(), "it is the first one's");
    first.commit(&claimed[0]).unwrap();
    let values = until("the others are handed out", || {
        let groups = first.groups().into_iter().chain(second.groups());
        let values: Vec<_> = groups.flat_map(|group| group.values).collect();
        (values.len() >= 20).then_some(values)
    });
    assert_eq!(values.iter().collect::<BTreeSet<_>>().len(), values.len(), "each once");
}

/// What is known of a chat is deleted by hand while it is delivered: its next message seems to be the first
/// of a new chat, and moves no lease.
#[test]
fn what_is_deleted_by_hand_moves_no_lease() {
    for with_lock in [true, false] {
        let redis = server(&[]);
        let mut other = Other::new(&redis);
        let options = QueueOptions { lease: Duration::from_secs(600), ..options() };
        let copy = Copy::start(&redis.url(), options, false);
        other.push([message("a", 0)]);
        let claimed = copy.messages(1);
        let prefix = format!("potok:list:{LIST}:");
        let due = format!("{prefix}due");
        let lease: String = other.ask(&["ZSCORE", &due, "t:a"]);
        let _: i64 = other.ask(&["DEL", &format!("{prefix}chats")]);
        if !with_lock {
            let _: i64 = other.ask(&["DEL", "lock:batch:t:a"]);
        }
        other.push([message("a", 1)]);
        until("it is sorted", || (other.ask::<i64>(&["LLEN", LIST]) == 0).then_some(()));
        assert_eq!(other.ask::<String>(&["ZSCORE", &due, "t:a"]), lease, "its lease has moved");
        copy.commit(&claimed[0]).unwrap();
        if !with_lock {
            let next = until("the next comes", || copy.groups().get(1).cloned());
            assert_eq!(next.numbers(), [1]);
        }
    }
}

/// The index is deleted by hand while a chat is delivered and collects its next messages: whoever looks for
/// lists finds two of it, and leaves its owner the lease.
#[test]
fn what_is_found_again_has_its_lease() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let options = QueueOptions { lease: Duration::from_secs(600), ..options() };
    let first = Copy::start(&redis.url(), options.clone(), false);
    let (chats, due) = (200, format!("potok:list:{LIST}:due"));
    other.push((0..chats).map(|n| message(&n.to_string(), n)));
    first.messages(chats as usize);
    other.push((0..chats).map(|n| message(&n.to_string(), chats + n)));
    until("they are sorted", || (other.ask::<i64>(&["LLEN", LIST]) == 0).then_some(()));
    let _: i64 = other.ask(&["DEL", &due]);
    let second = Copy::start(&redis.url(), options, false);
    until("all are found", || (other.ask::<i64>(&["ZCARD", &due]) == 200).then_some(()));
    let (now, _): (u64, u64) = other.ask(&["TIME"]);
    let soon = ((now + 300) * 1_000_000).to_string();
    assert_eq!(other.ask::<i64>(&["ZCOUNT", &due, "-inf", &soon]), 0, "a lease is over");
    let claims: Vec<String> = other.ask(&["HVALS", &format!("potok:list:{LIST}:claims")]);
    let owner = |claim: &String| claim.split_once('-').unwrap().0.to_owned();
    assert_eq!(claims.iter().map(owner).collect::<BTreeSet<_>>().len(), 1, "they are the first's");
    assert!(second.groups().is_empty());
}

/// A look gives a claim another token while its last records end: what has ended is not handed out again
/// under the new one.
#[test]
fn what_ended_under_a_token_that_was_replaced_is_not_handed_out_again() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let options = QueueOptions { lease: Duration::from_secs(600), ..options() };
    let copy = Copy::start(&redis.url(), options, false);
    other.push([message("a", 0)]);
    let claimed = copy.messages(1);
    // The look was made in Redis, and its answer is not here yet.
    let claims = format!("potok:list:{LIST}:claims");
    let claim: String = other.ask(&["HGET", &claims, "t:a"]);
    let (token, rest) = claim.split_once(' ').unwrap();
    let (opening, _) = token.split_once('-').unwrap();
    let replaced = format!("{opening}-999999 {rest}");
    let _: i64 = other.ask(&["HSET", &claims, "t:a", &replaced]);
    copy.commit(&claimed[0]).unwrap();
    assert_eq!(other.ask::<String>(&["HGET", &claims, "t:a"]), replaced);
    // Whoever looks next may have it.
    let due = format!("potok:list:{LIST}:due");
    let _: i64 = other.ask(&["ZADD", &due, "XX", "1", "t:a"]);
    until("nothing is left", || {
        assert_eq!(copy.groups().len(), 1, "it is handed out again");
        other.left().is_empty().then_some(())
    });
}
