//! Rows that fail: their keys wait, others do not.

use std::time::Duration;

use potok_core::FeedCommit;

use crate::place::{OutboxDatabase, Relay, System, Writer, uuid};

on_all! {
    a_failed_row_keeps_its_key_back_and_no_other,
    what_failed_keeps_its_key_back_after_a_restart,
    a_key_with_more_rows_than_one_read_starves_nobody,
    a_repeated_note_counts_once_and_a_reset_stays,
    the_key_opens_when_the_dead_letter_is_committed,
    a_row_skipped_by_hand_opens_its_key,
    a_row_is_tried_at_once_when_asked_for,
    a_clock_that_was_set_back_puts_no_row_off,
    a_processed_row_that_is_reset_is_published_again,
    rows_that_keep_failing_take_turns_with_others,
    rows_behind_a_head_that_has_another_key_now_keep_their_order,
    heads_that_have_one_key_now_go_in_order,
}

const LONG: Duration = Duration::from_secs(50);

pub async fn a_failed_row_keeps_its_key_back_and_no_other(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    for (id, key) in [("1", "k"), ("2", "k"), ("3", "l"), ("4", "k")] {
        writer.add(id, key, "A").await;
    }
    relay.rows(4).await;
    // What the engine says when 1 fails: 1 is put off, those behind it are given back.
    relay.put_off("1", LONG).await;
    relay.give_back(&["2", "4"]).await;
    relay.end(&["3"]).await;
    writer.add("5", "k", "A").await;
    writer.add("6", "l", "A").await;
    assert_eq!(relay.rows(1).await, ["6"]);
    assert!(relay.settle().await.is_empty());
    assert_eq!(place.retry_count("1"), "1");
    let behind = place.query("SELECT count(*) FROM potok_outbox_waiting WHERE behind IS NOT NULL");
    assert_eq!(behind, ["3"]);
    let status = relay.outbox.status().await.unwrap();
    assert_eq!((status.waiting, status.failing.len()), (5, 1));
    let failing = &status.failing[0];
    assert_eq!((&*failing.id, &*failing.key, failing.behind), (&*uuid("1"), "k", 3));
    assert!(failing.next_seconds > 10.0 && failing.error.contains("no topic"));
    assert!(status.owner.is_some_and(|owner| owner.lease_seconds > 0.0));
    // A restart, before the wait is over: 1 before 2 before 4 before 5.
    drop(relay);
    let mut relay = place.relay("").await;
    assert_eq!(relay.rows(1).await, ["6"]);
    assert!(relay.settle().await.is_empty(), "keys are found anew from the rows that wait");
    assert_eq!(relay.outbox.retry(None).await.unwrap(), [uuid("1")]);
    assert_eq!(relay.rows(1).await, ["1"]);
    assert_eq!(relay.attempts["1"], 1);
    assert!(relay.settle().await.is_empty(), "no other of its key before it has ended");
    relay.end(&["1"]).await;
    assert_eq!(relay.rows(3).await, ["2", "4", "5"]);
    relay.end_all().await;
    assert!(place.query("SELECT id FROM potok_outbox_waiting").is_empty());
}

/// 1 is put off, 2 was not yet read; whoever relays next must not hand out 2 first.
pub async fn what_failed_keeps_its_key_back_after_a_restart(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    writer.add("1", "k", "A").await;
    relay.rows(1).await;
    relay.put_off("1", LONG).await;
    drop(relay);
    writer.add("2", "k", "A").await;
    let mut relay = place.relay("").await;
    assert!(relay.settle().await.is_empty(), "2 waits for 1");
    relay.outbox.retry(None).await.unwrap();
    assert_eq!(relay.rows(1).await, ["1"]);
    relay.end(&["1"]).await;
    assert_eq!(relay.rows(1).await, ["2"]);
}

/// `StarvedByBlocked`.
pub async fn a_key_with_more_rows_than_one_read_starves_nobody(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    writer.add("1", "k", "unmapped").await;
    relay.rows(1).await;
    relay.put_off("1", LONG).await;
    // More than one read brings.
    writer.add_many("k", 10, 10_000).await;
    writer.add_many("l", 50_000, 100).await;
    let others = relay.rows(100).await;
    assert_eq!(others.first().map(String::as_str), Some("50001"));
    relay.end_all().await;
    relay.outbox.retry(None).await.unwrap();
    assert_eq!(relay.rows(1).await, ["1"]);
    relay.end(&["1"]).await;
    assert_eq!(relay.rows(1).await.first().map(String::as_str), Some("11"));
    let owners = place.query("SELECT count(*) FROM potok_leases WHERE token <> ''");
    assert_eq!(owners, ["1"]);
}

pub async fn a_repeated_note_counts_once_and_a_reset_stays(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    writer.add("1", "k", "A").await;
    relay.rows(1).await;
    let failed = relay.failed("1", LONG);
    let commit = potok_core::FeedCommit { put_off: vec![failed], ..Default::default() };
    relay.progress.commit(&commit).await.unwrap();
    // The answer was lost: the same again.
    relay.progress.commit(&commit).await.unwrap();
    assert_eq!(place.retry_count("1"), "1", "it failed once");
    relay.out.clear();
    relay.outbox.retry(Some(&[uuid("1")])).await.unwrap();
    relay.rows(1).await;
    assert_eq!(relay.attempts["1"], 1);
    writer.run("UPDATE outbox SET retry_count = 0").await;
    relay.put_off("1", LONG).await;
    assert_eq!(place.retry_count("1"), "0", "a person's reset stays");
}

/// `ReopenedEarly`: nothing of the key between the last failure and the move that is committed.
pub async fn the_key_opens_when_the_dead_letter_is_committed(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    writer.add("1", "k", "A").await;
    relay.rows(1).await;
    relay.put_off("1", Duration::ZERO).await;
    writer.add("2", "k", "A").await;
    assert_eq!(relay.rows(1).await, ["1"]);
    // Decided, not committed: the process is killed.
    assert!(relay.settle().await.is_empty());
    drop(relay);
    let mut relay = place.relay("").await;
    assert_eq!(relay.rows(1).await, ["1"], "2 must not go first");
    relay.set_aside("1").await;
    assert_eq!(relay.rows(1).await, ["2"]);
    relay.end(&["2"]).await;
    let rows = place.query("SELECT retry_count, reason FROM outbox_dead");
    assert_eq!(rows, ["2,no_key"]);
    assert_eq!(place.query("SELECT count(*) FROM outbox"), ["1"]);
    // Two of one key come back in their order, before what still waits of it.
    writer.add("3", "k", "A").await;
    relay.rows(1).await;
    relay.set_aside("3").await;
    let ids = [uuid("3"), uuid("1")];
    assert_eq!(relay.outbox.replay(&ids).await.unwrap().len(), 2);
    assert_eq!(relay.rows(2).await, ["1", "3"]);
    assert_eq!(relay.attempts["1"], 0);
    relay.set_aside("1").await;
    relay.outbox.drop_dead(&ids).await.unwrap();
    assert!(place.query("SELECT reason FROM outbox_dead").is_empty());
}

/// `SkippedByHand`.
pub async fn a_row_skipped_by_hand_opens_its_key(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    writer.add("1", "k", "A").await;
    relay.rows(1).await;
    relay.put_off("1", LONG).await;
    writer.add("2", "k", "A").await;
    assert!(relay.settle().await.is_empty());
    assert_eq!(relay.outbox.skip(&[uuid("1")]).await.unwrap(), [uuid("1")]);
    assert_eq!(relay.rows(1).await, ["2"]);
    relay.put_off("2", LONG).await;
    writer.add("3", "k", "A").await;
    assert!(relay.settle().await.is_empty());
    writer.run(&format!("DELETE FROM outbox WHERE id = '{}'", uuid("2"))).await;
    assert_eq!(relay.rows(1).await, ["3"]);
}

async fn a_row_is_tried_at_once_when_asked_for(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    for (id, key) in [("1", "k"), ("2", "l")] {
        writer.add(id, key, "A").await;
    }
    relay.rows(2).await;
    relay.put_off("1", LONG).await;
    relay.put_off("2", LONG).await;
    assert_eq!(relay.outbox.retry(Some(&[uuid("2")])).await.unwrap(), [uuid("2")]);
    assert_eq!(relay.rows(1).await, ["2"]);
    // Other settings: everything that waits is tried at once.
    drop(relay);
    let mut relay = Relay::open(place.outbox_by("{.key}", "")).await;
    let mut rows = relay.rows(2).await;
    rows.sort();
    assert_eq!(rows, ["1", "2"]);
}

/// `ClockBack`: by the server's clock the row waits for another hour, longer than any row does.
async fn a_clock_that_was_set_back_puts_no_row_off(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    let hour = match system {
        System::Postgres => "clock_timestamp() + interval '1 hour'",
        System::Mariadb => "UTC_TIMESTAMP(6) + INTERVAL 1 HOUR",
        System::Sqlite => "CAST(unixepoch('subsec') * 1000 AS INTEGER) + 3600000",
    };
    for id in ["1", "2"] {
        writer.add(id, "k", "A").await;
        relay.rows(1).await;
        relay.put_off(id, LONG).await;
        writer.run(&format!("UPDATE potok_outbox_waiting SET until = {hour}")).await;
        if id == "2" {
            // Whoever takes over finds it so.
            drop(relay);
            relay = place.relay("").await;
        }
        assert_eq!(relay.rows(1).await, [id], "it waits for an hour");
        relay.end(&[id]).await;
    }
}

/// `RePublished`.
pub async fn a_processed_row_that_is_reset_is_published_again(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    writer.add("1", "k", "A").await;
    relay.rows(1).await;
    relay.end(&["1"]).await;
    writer.run("UPDATE outbox SET processed = FALSE").await;
    assert_eq!(relay.rows(1).await, ["1"]);
    relay.end(&["1"]).await;
    assert_eq!(place.marked(), ["1"]);
}

/// More keys fail than are tried at once, and all of them are due at any time.
async fn rows_that_keep_failing_take_turns_with_others(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    writer.add_each("k", 1, 1_200).await;
    relay.rows(1_200).await;
    for round in 0.. {
        let out: Vec<String> = relay.out.keys().cloned().collect();
        let put_off = out.iter().map(|id| relay.failed(id, Duration::ZERO)).collect();
        relay.commit(FeedCommit { put_off, ..FeedCommit::default() }).await;
        relay.out.clear();
        if round == 0 {
            writer.add("9000", "l", "A").await;
        }
        if relay.rows(1).await.contains(&"9000".to_owned()) {
            break;
        }
        assert!(round < 9, "only what failed is tried");
    }
}

async fn add_with(writer: &mut Writer, id: &str, key: &str, other: &str) {
    let payload = format!("{{\"key\": \"{key}\", \"other\": \"{other}\"}}");
    let insert = format!(
        "INSERT INTO outbox (id, event_type, payload) VALUES ('{}', 'A', '{payload}')",
        uuid(id)
    );
    writer.run(&insert).await;
}

/// 2 waits behind 1; then the pipeline file gives it another key, under which 3 comes behind it.
async fn rows_behind_a_head_that_has_another_key_now_keep_their_order(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    add_with(&mut writer, "1", "k", "x").await;
    relay.rows(1).await;
    relay.put_off("1", LONG).await;
    add_with(&mut writer, "2", "k", "y").await;
    assert!(relay.settle().await.is_empty(), "2 waits for 1");
    drop(relay);
    add_with(&mut writer, "3", "l", "y").await;
    let mut relay = Relay::open(place.outbox_by(".other", "")).await;
    let rows = relay.rows(3).await;
    let place_of = |id: &str| rows.iter().position(|row| row == id);
    assert!(place_of("2") < place_of("3"), "{rows:?}");
    relay.end_all().await;
    assert_eq!(place.marked(), ["1", "2", "3"]);
    assert!(place.query("SELECT id FROM potok_outbox_waiting").is_empty());
}

/// Both failed under keys of their own, and the one that was written first has the larger id.
async fn heads_that_have_one_key_now_go_in_order(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    add_with(&mut writer, "9", "k", "x").await;
    add_with(&mut writer, "5", "l", "x").await;
    relay.rows(2).await;
    relay.put_off("5", LONG).await;
    relay.put_off("9", LONG).await;
    drop(relay);
    let mut relay = Relay::open(place.outbox_by(".other", "")).await;
    assert_eq!(relay.rows(1).await, ["9"]);
    assert!(relay.settle().await.is_empty(), "5 waits for 9");
    relay.end(&["9"]).await;
    assert_eq!(relay.rows(1).await, ["5"]);
    assert_eq!(relay.attempts["5"], 1);
    relay.end(&["5"]).await;
    assert_eq!(place.marked(), ["9", "5"]);
}
