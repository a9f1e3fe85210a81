//! One owner at a time; whoever was replaced changes nothing.

use std::time::Duration;

use potok_core::{Feed as _, FeedCommit, SourceEvent};

use crate::place::{OutboxDatabase, Relay, System, uuid};

on_all! {
    others_stand_by_and_take_over,
    a_process_that_stops_has_let_go_of_the_lease,
    whoever_lost_the_lease_changes_nothing,
    an_old_token_that_comes_back_changes_nothing,
    what_could_not_be_noted_comes_again,
    a_note_that_outlasts_its_lease_changes_nothing,
}

async fn until_lost(relay: &mut Relay) {
    loop {
        match relay.event().await {
            SourceEvent::Lost(_) => return,
            SourceEvent::Stalled(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn is_silent(relay: &mut Relay, time: Duration) -> bool {
    tokio::time::timeout(time, relay.source.next()).await.is_err()
}

/// `TwoNames`: another key is no other lease.
pub async fn others_stand_by_and_take_over(system: System) {
    let place = OutboxDatabase::new(system);
    let mut first = place.relay(", \"lease\": \"1s\"").await;
    let mut second = Relay::stand_by(place.outbox_by(".id", ", \"lease\": \"1s\"")).await;
    let mut writer = place.writer().await;
    writer.add("1", "k", "A").await;
    assert_eq!(first.rows(1).await, ["1"]);
    assert!(is_silent(&mut second, Duration::from_millis(2500)).await, "there is one owner");
    let owners = place.query("SELECT count(*) FROM potok_leases");
    assert_eq!(owners, ["1"]);
    // It goes in good order, and lets go at once.
    drop(first);
    second.own().await;
    assert_eq!(second.rows(1).await, ["1"]);
    second.end(&["1"]).await;
    assert_eq!(place.marked(), ["1"]);
}

/// Whoever stops waits for it: else its successor would wait for the end of the lease.
pub async fn a_process_that_stops_has_let_go_of_the_lease(system: System) {
    let place = OutboxDatabase::new(system);
    let Relay { outbox, source, progress, .. } = place.relay("").await;
    assert!(outbox.status().await.unwrap().owner.is_some());
    drop((source, progress));
    outbox.closed().await;
    assert!(outbox.status().await.unwrap().owner.is_none());
}

/// `NoteWithoutToken`: it was frozen beyond its lease; the other finishes; it wakes.
pub async fn whoever_lost_the_lease_changes_nothing(system: System) {
    let place = OutboxDatabase::new(system);
    let mut first = place.relay("").await;
    let mut writer = place.writer().await;
    for id in ["1", "2", "3"] {
        writer.add(id, id, "A").await;
    }
    first.rows(3).await;
    // Somebody else has it now; the first does not know yet.
    writer.run("UPDATE potok_leases SET token = 'another'").await;
    let ended = |id: &str| {
        let offset = first.out[id];
        let partition = potok_core::Partition { topic: "outbox".into(), index: 0 };
        let ranges = vec![offset..offset + 1];
        vec![potok_core::EndedOffsets { partition, assignment: first.nonce, ranges }]
    };
    let commit = FeedCommit {
        ended: ended("1"),
        put_off: vec![first.failed("2", Duration::from_secs(9))],
        ..FeedCommit::default()
    };
    first.progress.commit(&commit).await.unwrap();
    first.set_aside("3").await;
    assert!(place.marked().is_empty(), "another has the lease");
    assert_eq!(place.retry_count("2"), "0");
    assert!(place.query("SELECT id FROM potok_outbox_waiting").is_empty());
    assert!(place.query("SELECT reason FROM outbox_dead").is_empty());
    // It notices, and says so.
    loop {
        match first.event().await {
            SourceEvent::Lost(lost) => break assert_eq!(lost, [first.nonce]),
            SourceEvent::Stalled(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// `TokenRollsBack`: a replica that was promoted too early has the previous token, and its time.
pub async fn an_old_token_that_comes_back_changes_nothing(system: System) {
    let place = OutboxDatabase::new(system);
    let mut first = place.relay("").await;
    let mut writer = place.writer().await;
    writer.add("1", "k", "A").await;
    first.rows(1).await;
    let past = match system {
        System::Sqlite => "1000",
        _ => "'2020-01-01 00:00:00'",
    };
    writer.run(&format!("UPDATE potok_leases SET until = {past}")).await;
    let ended = first.ended(&["1"]);
    // Whether it says so or not.
    let _ = first.progress.commit(&FeedCommit { ended, ..FeedCommit::default() }).await;
    first.out.clear();
    assert!(place.marked().is_empty(), "its time was over");
    until_lost(&mut first).await;
    first.own().await;
    assert_eq!(first.rows(1).await, ["1"]);
    first.end(&["1"]).await;
    assert_eq!(place.marked(), ["1"]);
}

/// A note found that the lease is another's, and then it is ours again, as after a failover and back:
/// the row that was not marked must not be out for ever.
async fn what_could_not_be_noted_comes_again(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay(", \"lease\": \"6s\"").await;
    let mut writer = place.writer().await;
    writer.add("1", "k", "A").await;
    relay.rows(1).await;
    let token = place.query("SELECT token FROM potok_leases").join("");
    writer.run("UPDATE potok_leases SET token = 'another'").await;
    relay.end(&["1"]).await;
    writer.run(&format!("UPDATE potok_leases SET token = '{token}'")).await;
    assert!(place.marked().is_empty());
    until_lost(&mut relay).await;
    relay.own().await;
    assert_eq!(relay.rows(1).await, ["1"]);
    relay.end(&["1"]).await;
    assert_eq!(place.marked(), ["1"]);
}

/// Marking rows of the type `slow` takes twelve seconds and more.
fn slow(system: System) -> &'static str {
    match system {
        System::Sqlite => {
            "CREATE TABLE n AS WITH RECURSIVE c(a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM c \
             WHERE a < 4000) SELECT a FROM c; CREATE TRIGGER slow BEFORE UPDATE OF processed ON \
             outbox WHEN NEW.event_type = 'slow' BEGIN SELECT count(*) FROM n a, n b, n c; END"
        }
        System::Postgres => {
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF NEW.event_type = 'slow' THEN PERFORM pg_sleep(12); END IF; RETURN NEW; END $$; \
             CREATE TRIGGER slow BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION slow()"
        }
        System::Mariadb => {
            "CREATE TRIGGER slow BEFORE UPDATE ON outbox FOR EACH ROW \
             SET @slow = IF(NEW.event_type = 'slow', SLEEP(12), 0)"
        }
    }
}

/// It is given up long before, so that the lease can be renewed, and others can have it.
async fn a_note_that_outlasts_its_lease_changes_nothing(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay(", \"lease\": \"6s\"").await;
    let mut writer = place.writer().await;
    writer.run(slow(system)).await;
    writer.add("1", "k", "slow").await;
    writer.add("2", "l", "A").await;
    relay.rows(2).await;
    let noted = FeedCommit { ended: relay.ended(&["1"]), ..FeedCommit::default() };
    let noting = tokio::time::timeout(Duration::from_secs(5), relay.progress.commit(&noted));
    noting.await.expect("it takes as long as it likes").expect_err("it is marked");
    relay.end(&["2"]).await;
    assert_eq!(place.marked(), ["2"], "the lease is its own still");
}

pub mod servers {
    use super::*;

    on_servers! {
        a_locked_row_holds_up_no_other,
        a_row_that_cannot_be_marked_holds_up_no_other,
        a_note_that_waits_keeps_nobody_from_the_lease,
        a_clock_that_was_set_back_keeps_no_dead_owner,
    }

    /// `OneRowLocked`.
    pub async fn a_locked_row_holds_up_no_other(system: System) {
        let place = OutboxDatabase::new(system);
        let mut relay = place.relay("").await;
        let (mut writer, mut person) = (place.writer().await, place.writer().await);
        for (id, key) in [("1", "k"), ("2", "l"), ("3", "k")] {
            writer.add(id, key, "A").await;
        }
        relay.rows(3).await;
        person.run("BEGIN").await;
        person.run(&format!("UPDATE outbox SET event_type = 'B' WHERE id = '{}'", uuid("1"))).await;
        let ended = relay.ended(&["1", "2", "3"]);
        let commit = FeedCommit { ended, ..FeedCommit::default() };
        let noted = relay.progress.commit(&commit).await;
        assert_eq!(place.marked(), ["2", "3"], "only 1 is locked: {noted:?}");
        relay.out.clear();
        assert!(relay.settle().await.is_empty(), "it was published");
        person.run("COMMIT").await;
        let end = tokio::time::Instant::now() + Duration::from_secs(30);
        while place.marked() != ["1", "2", "3"] {
            assert!(tokio::time::Instant::now() < end);
            assert!(relay.settle().await.is_empty());
        }
    }

    /// `CheckRefuses`.
    pub async fn a_row_that_cannot_be_marked_holds_up_no_other(system: System) {
        let place = OutboxDatabase::new(system);
        let mut relay = place.relay("").await;
        let mut writer = place.writer().await;
        writer
            .run("ALTER TABLE outbox ADD CONSTRAINT later CHECK (processed_at >= added_at)")
            .await;
        for (id, key) in [("1", "k"), ("2", "l"), ("3", "k")] {
            writer.add(id, key, "A").await;
        }
        let ahead = format!("UPDATE outbox SET added_at = '2100-01-01' WHERE id = '{}'", uuid("1"));
        writer.run(&ahead).await;
        relay.rows(3).await;
        relay.end(&["1", "2", "3"]).await;
        assert_eq!(place.marked(), ["2", "3"]);
        writer.add("4", "k", "A").await;
        assert_eq!(relay.rows(1).await, ["4"]);
        assert!(relay.settle().await.is_empty());
        // Also where it failed before, and others were named behind it.
        writer.add("5", "m", "A").await;
        relay.rows(1).await;
        relay.put_off("5", Duration::from_secs(50)).await;
        for id in ["6", "7"] {
            writer.add(id, "m", "A").await;
        }
        assert!(relay.settle().await.is_empty());
        writer.run(&ahead.replace(&uuid("1"), &uuid("5"))).await;
        relay.outbox.retry(None).await.unwrap();
        assert_eq!(relay.rows(1).await, ["5"]);
        relay.end(&["5"]).await;
        assert_eq!(relay.rows(2).await, ["6", "7"]);
        // Somebody mends the table: they are marked, and nothing comes twice.
        relay.end(&["4", "6", "7"]).await;
        writer.run("ALTER TABLE outbox DROP CONSTRAINT later").await;
        let until = tokio::time::Instant::now() + Duration::from_secs(60);
        while place.marked().len() < 7 {
            assert!(tokio::time::Instant::now() < until, "{:?}", place.marked());
            assert!(relay.settle().await.is_empty());
        }
    }

    /// `LockFreeToken`, `FrozenInNote`: a note that began under the lease ends under it, and one that
    /// a person holds up does not hold up whoever takes over.
    async fn a_note_that_waits_keeps_nobody_from_the_lease(system: System) {
        let place = OutboxDatabase::new(system);
        let mut relay = place.relay(", \"lease\": \"1s\"").await;
        let (mut writer, mut person) = (place.writer().await, place.writer().await);
        for id in ["1", "2"] {
            writer.add(id, id, "A").await;
        }
        relay.rows(2).await;
        person.run("BEGIN").await;
        person.run(&format!("UPDATE outbox SET event_type = 'B' WHERE id = '{}'", uuid("1"))).await;
        relay.end(&["1", "2"]).await;
        // The lock is still there: the lease can be had all the same.
        writer.run("UPDATE potok_leases SET token = 'another'").await;
        person.run("COMMIT").await;
        let end = tokio::time::Instant::now() + Duration::from_secs(2);
        let _ = tokio::time::timeout_at(end, relay.source.next()).await;
        assert_eq!(place.marked(), ["2"], "1 belongs to another now");
    }

    /// `ClockBack`: by the server's clock the lease of a dead owner lasts for another hour.
    pub async fn a_clock_that_was_set_back_keeps_no_dead_owner(system: System) {
        let place = OutboxDatabase::new(system);
        let relay = place.relay(", \"lease\": \"1s\"").await;
        drop(relay);
        let mut writer = place.writer().await;
        let hour = match system {
            System::Postgres => "clock_timestamp() + interval '1 hour'",
            _ => "UTC_TIMESTAMP(6) + INTERVAL 1 HOUR",
        };
        // Not released: it died.
        let end = tokio::time::Instant::now() + Duration::from_secs(30);
        let is_free = || {
            let now =
                if system == System::Postgres { "clock_timestamp()" } else { "UTC_TIMESTAMP(6)" };
            place.query(&format!("SELECT count(*) FROM potok_leases WHERE until <= {now}")) == ["1"]
        };
        while !is_free() {
            assert!(tokio::time::Instant::now() < end);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        writer.run(&format!("UPDATE potok_leases SET until = {hour}, token = 'dead'")).await;
        let mut relay = place.relay(", \"lease\": \"1s\"").await;
        writer.add("1", "k", "A").await;
        assert_eq!(relay.rows(1).await, ["1"]);
    }
}

/// A process that was frozen while its lease was being renewed: the lease was given up, and then the answer
/// comes, which says that it was renewed in time. What is handed out then is another assignment.
mod frozen {
    mod sqlite {
        use super::super::*;
        use crate::place::Writer;

        /// Until the lease is over by its own clock, and has been renewed by the database's.
        async fn freeze_in_renewal(place: &OutboxDatabase, relay: &mut Relay, writer: &mut Writer) {
            let until = || place.query("SELECT until FROM potok_leases")[0].clone();
            let first: i64 = until().parse().unwrap();
            // The renewal is under way, and waits.
            writer.run("BEGIN IMMEDIATE").await;
            for _ in 0..4 {
                assert!(relay.settle().await.is_empty());
            }
            writer.run("COMMIT").await;
            // Nothing of this process runs but the database's own thread: that is what frozen means here.
            let now = "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)";
            while until() == first.to_string()
                || place.query(now)[0].parse::<i64>().unwrap() < first
            {}
        }

        #[tokio::test]
        async fn a_lease_that_was_given_up_does_not_come_back() {
            let place = OutboxDatabase::new(System::Sqlite);
            let mut relay = place.relay(", \"lease\": \"6s\"").await;
            let mut writer = place.writer().await;
            writer.add("1", "k", "A").await;
            relay.rows(1).await;
            let lost = relay.nonce;
            freeze_in_renewal(&place, &mut relay, &mut writer).await;
            match relay.event().await {
                SourceEvent::Lost(all) => assert_eq!(all, [lost]),
                other => panic!("{other:?}"),
            }
            relay.out.clear();
            relay.own().await;
            assert_ne!(relay.nonce, lost, "the engine listens to it no more");
            assert_eq!(relay.rows(1).await, ["1"]);
            relay.end(&["1"]).await;
            assert_eq!(place.marked(), ["1"]);
        }

        /// It wakes with a row that was published, which it cannot mark; then comes the answer.
        #[tokio::test]
        async fn what_ended_after_a_freeze_is_marked_all_the_same() {
            let place = OutboxDatabase::new(System::Sqlite);
            let mut relay = place.relay(", \"lease\": \"6s\"").await;
            let mut writer = place.writer().await;
            writer.add("1", "k", "A").await;
            relay.rows(1).await;
            freeze_in_renewal(&place, &mut relay, &mut writer).await;
            relay.end(&["1"]).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            until_lost(&mut relay).await;
            relay.own().await;
            assert_eq!(relay.rows(1).await, ["1"]);
            relay.end(&["1"]).await;
            assert_eq!(place.marked(), ["1"]);
        }
    }
}
