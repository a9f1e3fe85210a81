//! Order per key, and rows that commit late.

use std::time::Duration;

use potok_core::Feed as _;

use crate::place::{OutboxDatabase, Relay, System};
use crate::setup::documented;

/// Both come, in this order, in one read or in two.
async fn first_then(relay: &mut Relay, first: &str, then: &str) {
    let mut rows = relay.rows(1).await;
    assert_eq!(rows[0], first, "{first} was committed before {then} was inserted");
    if rows.len() == 1 {
        rows.extend(relay.rows(1).await);
    }
    assert_eq!(rows, [first, then]);
}

on_servers! {
    an_order_by_time_is_warned_of,
    a_row_that_commits_late_comes_before_later_ones_of_its_key,
    a_read_sees_what_lies_before_rows_that_are_out,
    rolled_back_rows_never_come,
}

/// `NowTies`: without a column that the database counts, it is said that nothing better than the time is
/// there.
async fn an_order_by_time_is_warned_of(system: System) {
    let place = OutboxDatabase::new(system);
    let mut writer = place.writer().await;
    writer.run(documented(system)).await;
    drop(place.relay("").await);
    let says_so = |doubts: &[String]| {
        let of_order = doubts.iter().find(|doubt| doubt.contains("ordered by `added_at` and id"));
        of_order.map(|doubt| doubt.split_once("add a column").unwrap().1.to_owned())
    };
    let doubts = place.outbox("").check().await.unwrap();
    let advice = says_so(&doubts).unwrap_or_else(|| panic!("{doubts:?}"));
    // As it stands there.
    let (_, alter) = advice.split_once(": ").unwrap();
    writer.run(alter).await;
    writer.run("ALTER TABLE outbox_dead ADD COLUMN seq BIGINT").await;
    let doubts = place.outbox("").check().await.unwrap();
    assert!(says_so(&doubts).is_none(), "{doubts:?}");
}

/// `HighWaterMark`: b must not be seen without a, which was committed before b was
/// inserted, though c, with a later number, was read long ago.
pub async fn a_row_that_commits_late_comes_before_later_ones_of_its_key(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let (mut late, mut writer) = (place.writer().await, place.writer().await);
    late.run("BEGIN").await;
    late.add("1", "k", "A").await;
    writer.add("2", "l", "A").await;
    assert_eq!(relay.rows(1).await, ["2"]);
    // It is out, or even marked: neither moves a mark beyond which nothing is seen.
    relay.end(&["2"]).await;
    writer.add("3", "l", "A").await;
    assert_eq!(relay.rows(1).await, ["3"]);
    late.run("COMMIT").await;
    writer.add("4", "k", "A").await;
    first_then(&mut relay, "1", "4").await;
    relay.end_all().await;
    assert_eq!(place.marked(), ["1", "2", "3", "4"]);
}

/// `KeysetPages`: what is out has a later number than a, and the next read still begins before it.
pub async fn a_read_sees_what_lies_before_rows_that_are_out(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let (mut late, mut writer) = (place.writer().await, place.writer().await);
    late.run("BEGIN").await;
    late.add("1", "k", "A").await;
    writer.add("2", "l", "A").await;
    assert_eq!(relay.rows(1).await, ["2"]);
    late.run("COMMIT").await;
    writer.add("3", "k", "A").await;
    first_then(&mut relay, "1", "3").await;
    relay.end_all().await;
    assert_eq!(place.marked(), ["1", "2", "3"]);
}

pub async fn rolled_back_rows_never_come(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let (mut open, mut writer) = (place.writer().await, place.writer().await);
    open.run("BEGIN").await;
    open.add("1", "k", "A").await;
    writer.add("2", "k", "A").await;
    assert_eq!(relay.rows(1).await, ["2"], "1 is not committed");
    open.run("ROLLBACK").await;
    relay.end_all().await;
    assert!(relay.settle().await.is_empty());
    relay.progress.commit(&Default::default()).await.unwrap();
    tokio::time::sleep(Duration::ZERO).await;
}

mod all {
    use super::*;

    on_all! {
        rows_of_one_transaction_keep_their_order,
        what_is_given_back_comes_again_in_order,
        a_cancelled_call_loses_nothing,
    }

    /// `NowTies`: three rows of one key in each transaction, whose times are all the same and whose ids
    /// are in no order.
    async fn rows_of_one_transaction_keep_their_order(system: System) {
        let place = OutboxDatabase::new(system);
        let mut relay = place.relay("").await;
        let mut writer = place.writer().await;
        let mut written = Vec::new();
        for turn in 0..20_u32 {
            writer.run("BEGIN").await;
            for row in 0..3_u32 {
                // As far apart as they come, backwards and forwards.
                let id = (turn * 3 + row + 1) * 7_919 % 100_003;
                writer.add(&id.to_string(), "k", "A").await;
                written.push(id.to_string());
            }
            writer.run("UPDATE outbox SET added_at = '2026-01-01 00:00:00'").await;
            writer.run("COMMIT").await;
        }
        assert!(!written.is_sorted_by_key(|id| id.parse::<u32>().unwrap()));
        assert_eq!(relay.rows(60).await, written);
        relay.end_all().await;
    }

    async fn what_is_given_back_comes_again_in_order(system: System) {
        let place = OutboxDatabase::new(system);
        let mut relay = place.relay("").await;
        let mut writer = place.writer().await;
        for id in ["1", "2", "3"] {
            writer.add(id, "k", "A").await;
        }
        assert_eq!(relay.rows(3).await, ["1", "2", "3"]);
        relay.end(&["1"]).await;
        relay.give_back(&["2"]).await;
        writer.add("4", "l", "A").await;
        assert_eq!(relay.rows(1).await, ["4"], "3 is out, so 2 waits");
        assert!(relay.settle().await.is_empty());
        relay.give_back(&["3"]).await;
        assert_eq!(relay.rows(2).await, ["2", "3"]);
        relay.end_all().await;
        assert_eq!(place.marked().len(), 4);
    }

    async fn a_cancelled_call_loses_nothing(system: System) {
        let place = OutboxDatabase::new(system);
        let mut relay = place.relay("").await;
        let mut writer = place.writer().await;
        for id in 1..=40 {
            writer.add(&id.to_string(), "k", "A").await;
        }
        for micros in (0..40).map(|n| n * 97) {
            let next = relay.source.next();
            let cut = tokio::time::timeout(Duration::from_micros(micros), next).await;
            if let Ok(intake) = cut {
                let potok_core::SourceEvent::Batch(batch) = intake.unwrap() else { panic!("rows") };
                assert_eq!(batch.records.len(), 40);
                return;
            }
        }
        assert_eq!(relay.rows(40).await.len(), 40);
    }
}
