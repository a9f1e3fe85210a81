//! The table refuses, somebody has it locked, the network loses answers: one row never holds up another
//! key, and nothing is counted twice.

use std::time::Duration;

use potok_core::{FeedCommit, RECORD_BYTES_MAX};

use crate::place::{OutboxDatabase, Relay, System, Writer, uuid};

on_all! {
    a_failure_that_cannot_be_noted_holds_up_its_key_alone,
    dead_letters_that_cannot_be_written_hold_up_their_key_alone,
    a_row_that_cannot_be_counted_starves_nobody,
    a_table_that_refuses_every_mark_is_told_of,
    rows_that_can_be_marked_again_wait_for_no_other,
    a_column_that_was_added_since_goes_along,
}

const LONG: Duration = Duration::from_secs(50);

async fn commit(relay: &Relay, commit: FeedCommit) {
    let noting = relay.progress.commit(&commit);
    let noted = tokio::time::timeout(Duration::from_secs(30), noting).await;
    noted.expect("it holds up everybody").unwrap();
}

/// Whoever counts an attempt of a row of the type `stuck` gets an error.
fn no_counts(system: System) -> &'static str {
    match system {
        System::Sqlite => {
            "CREATE TRIGGER no_counts BEFORE UPDATE OF retry_count ON outbox WHEN \
             NEW.event_type = 'stuck' BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        }
        _ => {
            "ALTER TABLE outbox ADD CONSTRAINT no_counts CHECK \
             (event_type <> 'stuck' OR retry_count = 0)"
        }
    }
}

/// Whoever counts the attempt gets an error: a constraint, or a trigger.
async fn a_failure_that_cannot_be_noted_holds_up_its_key_alone(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    writer.run(no_counts(system)).await;
    for (id, key, event_type) in
        [("1", "k", "stuck"), ("2", "k", "A"), ("3", "l", "A"), ("4", "m", "A")]
    {
        writer.add(id, key, event_type).await;
    }
    relay.rows(4).await;
    let put_off = vec![relay.failed("1", Duration::ZERO), relay.failed("4", LONG)];
    let (ended, given_back) = (relay.ended(&["3"]), relay.ended(&["2"]));
    commit(&relay, FeedCommit { ended, put_off, given_back, ..FeedCommit::default() }).await;
    relay.out.clear();
    assert_eq!(place.marked(), ["3"]);
    assert_eq!((place.retry_count("1"), place.retry_count("4")), ("0".into(), "1".into()));
    assert_eq!(relay.rows(1).await[0], "1", "2 waits for it");
    relay.end(&["1"]).await;
    if !relay.seen.ends_with(&["2".to_owned()]) {
        assert_eq!(relay.rows(1).await, ["2"]);
    }
    relay.end_all().await;
    assert_eq!(place.marked(), ["1", "2", "3"]);
}

/// `ParkedApart`: where the second half of the move fails, the first has not happened.
pub async fn dead_letters_that_cannot_be_written_hold_up_their_key_alone(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay(", \"backoff\": {\"first\": \"10ms\", \"max\": \"1s\"}").await;
    let mut writer = place.writer().await;
    writer.add("1", "k", "A").await;
    relay.rows(1).await;
    writer.run("ALTER TABLE outbox_dead RENAME TO elsewhere").await;
    writer.add("2", "k", "A").await;
    writer.add("3", "l", "A").await;
    relay.set_aside("1").await;
    let there = place.query(&format!("SELECT count(*) FROM outbox WHERE id = '{}'", uuid("1")));
    assert_eq!(there, ["1"], "it is nowhere");
    let mut rows = relay.rows(2).await;
    rows.sort();
    assert_eq!(rows, ["1", "3"], "2 waits for it");
    relay.end(&["3"]).await;
    writer.run("ALTER TABLE elsewhere RENAME TO outbox_dead").await;
    relay.set_aside("1").await;
    assert_eq!(place.query("SELECT reason FROM outbox_dead"), ["no_key"]);
    assert_eq!(relay.rows(1).await, ["2"]);
    relay.end(&["2"]).await;
    assert_eq!(place.marked(), ["2", "3"]);
}

/// It waits uncounted, and those behind it are named, however many they are.
async fn a_row_that_cannot_be_counted_starves_nobody(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    writer.run(no_counts(system)).await;
    writer.add("1", "k", "stuck").await;
    relay.rows(1).await;
    writer.add_many("k", 10, 3_000).await;
    writer.add("9000", "l", "A").await;
    relay.put_off("1", LONG).await;
    assert_eq!(relay.rows(1).await, ["9000"]);
    relay.end(&["9000"]).await;
    for _ in 0..5 {
        assert!(relay.settle().await.is_empty(), "1 has not waited long enough");
    }
    assert_eq!(place.retry_count("1"), "0");
    relay.outbox.retry(None).await.unwrap();
    assert_eq!(relay.rows(1).await, ["1"]);
    relay.end(&["1"]).await;
    assert_eq!(relay.rows(1).await[0], "11");
}

/// Rows that are refused one after the other are not tried to the last one, and nothing is lost.
async fn a_table_that_refuses_every_mark_is_told_of(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    let (refuse, mend) = match system {
        System::Sqlite => (
            "CREATE TRIGGER never BEFORE UPDATE OF processed ON outbox BEGIN \
             SELECT RAISE(ABORT, 'never'); END",
            "DROP TRIGGER never",
        ),
        _ => (
            "ALTER TABLE outbox ADD CONSTRAINT never CHECK (processed_at IS NULL)",
            "ALTER TABLE outbox DROP CONSTRAINT never",
        ),
    };
    writer.run(refuse).await;
    writer.add_each("k", 1, 100).await;
    relay.rows(100).await;
    let all: Vec<String> = relay.out.keys().cloned().collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let ended = FeedCommit { ended: relay.ended(&all), ..FeedCommit::default() };
    let fault = relay.progress.commit(&ended).await.expect_err("nothing is marked");
    assert_eq!(fault.code, "P1308", "{fault}");
    writer.run(mend).await;
    commit(&relay, ended).await;
    let marked = place.marked().len();
    // How many, a note's share of the lease decides.
    assert!(marked > 0, "none was tried again at once");
    relay.out.clear();
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    while place.marked().len() < 100 {
        assert!(tokio::time::Instant::now() < until, "{:?}", place.marked());
        assert!(relay.settle().await.is_empty(), "all were published");
    }
}

/// More rows than are tried at a time cannot be marked; some of them are mended, others are not.
async fn rows_that_can_be_marked_again_wait_for_no_other(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    let refuse = match system {
        System::Sqlite => {
            "CREATE TRIGGER never BEFORE UPDATE OF processed ON outbox WHEN \
             NEW.event_type = 'stuck' BEGIN SELECT RAISE(ABORT, 'never'); END"
        }
        _ => {
            "ALTER TABLE outbox ADD CONSTRAINT never CHECK \
             (event_type <> 'stuck' OR processed_at IS NULL)"
        }
    };
    writer.run(refuse).await;
    writer.add_each("k", 0, 45).await;
    // Every third will be mended.
    writer.run("UPDATE outbox SET event_type = 'stuck'").await;
    writer.run("UPDATE outbox SET retry_count = 7 WHERE seq % 3 = 0").await;
    relay.rows(45).await;
    let all: Vec<String> = relay.out.keys().cloned().collect();
    // As many at a time as are not too many in a row.
    for some in all.chunks(15) {
        let some: Vec<&str> = some.iter().map(String::as_str).collect();
        relay.end(&some).await;
    }
    assert!(place.marked().is_empty());
    writer.run("UPDATE outbox SET event_type = 'A' WHERE retry_count = 7").await;
    let thirds: Vec<String> = (1..=45).filter(|n| n % 3 == 0).map(|n: u32| n.to_string()).collect();
    let until = tokio::time::Instant::now() + Duration::from_secs(90);
    while place.marked() != thirds {
        assert!(tokio::time::Instant::now() < until, "only {:?}", place.marked());
        assert!(relay.settle().await.is_empty(), "all were published");
    }
}

/// A dead letter has every column. Where it cannot have one, the row stays, and holds up its key alone.
async fn a_column_that_was_added_since_goes_along(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    for (id, key) in [("1", "k"), ("2", "k"), ("3", "l")] {
        writer.add(id, key, "A").await;
    }
    relay.rows(3).await;
    writer.run("ALTER TABLE outbox ADD COLUMN tenant VARCHAR(9)").await;
    writer.run("UPDATE outbox SET tenant = 'acme'").await;
    relay.give_back(&["2"]).await;
    relay.set_aside("1").await;
    relay.end(&["3"]).await;
    assert!(relay.settle().await.is_empty(), "2 waits for 1");
    assert_eq!(place.query("SELECT count(*) FROM outbox_dead"), ["0"]);
    let status = relay.outbox.status().await.unwrap();
    assert_eq!(status.failing.len(), 1, "{status:?}");
    writer.run("ALTER TABLE outbox_dead ADD COLUMN tenant VARCHAR(9)").await;
    relay.outbox.retry(None).await.unwrap();
    assert_eq!(relay.rows(1).await, ["1"]);
    relay.set_aside("1").await;
    assert_eq!(place.query("SELECT tenant FROM outbox_dead"), ["acme"]);
    relay.outbox.replay(&[uuid("1")]).await.unwrap();
    assert_eq!(place.query("SELECT count(*) FROM outbox WHERE tenant = 'acme'"), ["3"]);
}

mod large {
    use super::*;

    fn grow(system: System, id: &str) -> String {
        let n = RECORD_BYTES_MAX + 1;
        let large = match system {
            System::Sqlite => format!("hex(zeroblob({}))", n / 2 + 1),
            _ => format!("('\"' || repeat('x', {n}) || '\"')::json"),
        };
        format!("UPDATE outbox SET payload = {large} WHERE id = '{}'", uuid(id))
    }

    /// It is never published as a message without a body, whether it is new or failed before.
    async fn what_no_log_takes_becomes_a_dead_letter(system: System) {
        let place = OutboxDatabase::new(system);
        let mut relay = place.relay("").await;
        let mut writer = place.writer().await;
        writer.add("1", "k", "A").await;
        relay.rows(1).await;
        relay.put_off("1", LONG).await;
        writer.run("BEGIN").await;
        writer.add("2", "k", "A").await;
        writer.add("3", "l", "A").await;
        writer.run(&grow(system, "3")).await;
        writer.run("COMMIT").await;
        writer.run(&grow(system, "1")).await;
        relay.outbox.retry(None).await.unwrap();
        assert_eq!(relay.rows(1).await, ["2"], "its key goes on");
        relay.end(&["2"]).await;
        let until = tokio::time::Instant::now() + Duration::from_secs(30);
        while place.query("SELECT reason FROM outbox_dead") != ["too_large", "too_large"] {
            assert!(tokio::time::Instant::now() < until);
            assert!(relay.settle().await.is_empty());
        }
        assert_eq!(place.marked(), ["2"]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn postgres() {
        what_no_log_takes_becomes_a_dead_letter(System::Postgres).await;
    }

    mod sqlite {
        use super::*;

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn sqlite() {
            what_no_log_takes_becomes_a_dead_letter(System::Sqlite).await;
        }
    }
}

pub mod network {
    use potok_testkit::services::Mode;

    use super::*;

    on_servers! {
        a_lost_answer_counts_one_attempt,
        a_lost_answer_to_a_mark_costs_nothing,
        a_lost_answer_to_a_dead_letter_opens_its_key,
        a_note_that_waits_does_not_delay_the_lease,
        a_locked_old_row_keeps_no_other,
    }

    /// So that the session for notes is open before answers vanish.
    async fn note_something(relay: &mut Relay, writer: &mut Writer) {
        writer.add("9", "other", "A").await;
        relay.rows(1).await;
        relay.end(&["9"]).await;
    }

    /// Says what became of a row while answers vanish, until it is seen in the table.
    async fn without_an_answer(
        place: &OutboxDatabase,
        relay: &Relay,
        noted: FeedCommit,
        is_there: impl Fn() -> bool,
    ) {
        place.pass(Mode::DropReplies);
        let (progress, same) = (relay.progress.clone(), noted.clone());
        let noting = tokio::spawn(async move { progress.commit(&same).await });
        let until = tokio::time::Instant::now() + Duration::from_secs(30);
        while !is_there() {
            assert!(tokio::time::Instant::now() < until, "it was not noted");
            tokio::task::yield_now().await;
        }
        place.pass(Mode::Cut);
        noting.await.unwrap().expect_err("nobody has told it");
        place.pass(Mode::Pass);
        commit(relay, noted).await;
    }

    pub async fn a_lost_answer_counts_one_attempt(system: System) {
        let place = OutboxDatabase::behind_proxy(system);
        let mut relay = place.relay(", \"lease\": \"1m\"").await;
        let mut writer = place.writer().await;
        note_something(&mut relay, &mut writer).await;
        writer.add("1", "k", "A").await;
        relay.rows(1).await;
        let put_off = vec![relay.failed("1", LONG)];
        let noted = FeedCommit { put_off, ..FeedCommit::default() };
        without_an_answer(&place, &relay, noted, || place.retry_count("1") == "1").await;
        assert_eq!(place.retry_count("1"), "1", "it failed once");
    }

    async fn a_lost_answer_to_a_mark_costs_nothing(system: System) {
        let place = OutboxDatabase::behind_proxy(system);
        let mut relay = place.relay(", \"lease\": \"1m\"").await;
        let mut writer = place.writer().await;
        note_something(&mut relay, &mut writer).await;
        writer.add("1", "k", "A").await;
        relay.rows(1).await;
        let noted = FeedCommit { ended: relay.ended(&["1"]), ..FeedCommit::default() };
        without_an_answer(&place, &relay, noted, || place.marked() == ["9", "1"]).await;
        relay.out.clear();
        writer.add("2", "k", "A").await;
        // The lease is the same, and the row does not come again.
        assert_eq!(relay.rows(1).await, ["2"]);
    }

    async fn a_lost_answer_to_a_dead_letter_opens_its_key(system: System) {
        let place = OutboxDatabase::behind_proxy(system);
        let mut relay = place.relay(", \"lease\": \"1m\"").await;
        let mut writer = place.writer().await;
        note_something(&mut relay, &mut writer).await;
        writer.add("1", "k", "A").await;
        relay.rows(1).await;
        let set_aside = vec![relay.given_up("1")];
        let noted = FeedCommit { set_aside, ..FeedCommit::default() };
        let is_there = || place.query("SELECT count(*) FROM outbox_dead") == ["1"];
        without_an_answer(&place, &relay, noted, is_there).await;
        relay.out.clear();
        writer.add("2", "k", "A").await;
        assert_eq!(relay.rows(1).await, ["2"]);
        assert_eq!(place.query("SELECT retry_count FROM outbox_dead"), ["1"]);
    }

    /// The lease is renewed on a session of its own, whatever notes and reads wait for.
    async fn a_note_that_waits_does_not_delay_the_lease(system: System) {
        let place = OutboxDatabase::new(system);
        let mut relay = place.relay(", \"lease\": \"4s\"").await;
        let (mut writer, mut person) = (place.writer().await, place.writer().await);
        writer.add("1", "k", "A").await;
        relay.rows(1).await;
        let lock = match system {
            System::Postgres => "BEGIN; LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE",
            _ => "LOCK TABLES outbox WRITE",
        };
        person.run(lock).await;
        let (progress, ended) = (relay.progress.clone(), relay.ended(&["1"]));
        let noting = tokio::spawn(async move {
            let noted = FeedCommit { ended, ..FeedCommit::default() };
            while progress.commit(&noted).await.is_err() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        let lease = || place.query("SELECT token, until FROM potok_leases").join(" ");
        let (mut last, mut renewals) = (lease(), 0);
        let token = last.split(',').next().unwrap().to_owned();
        let until = tokio::time::Instant::now() + Duration::from_secs(60);
        while renewals < 5 {
            assert!(tokio::time::Instant::now() < until, "the lease is not renewed");
            let now = lease();
            assert!(now.starts_with(&token), "the lease was lost: {now}");
            renewals += u32::from(now != last);
            last = now;
            tokio::task::yield_now().await;
        }
        person.run(if system == System::Postgres { "COMMIT" } else { "UNLOCK TABLES" }).await;
        noting.await.unwrap();
        assert_eq!(place.marked(), ["1"]);
    }

    /// Retention leaves out what somebody has locked.
    async fn a_locked_old_row_keeps_no_other(system: System) {
        let place = OutboxDatabase::new(system);
        let (mut writer, mut person) = (place.writer().await, place.writer().await);
        drop(place.relay("").await);
        for id in ["1", "2", "3"] {
            writer.add(id, "k", "A").await;
        }
        let old = "UPDATE outbox SET processed = TRUE, processed_at = '2020-01-01 00:00:00'";
        writer.run(old).await;
        person.run("BEGIN").await;
        let lock = format!("SELECT id FROM outbox WHERE id = '{}' FOR UPDATE", uuid("1"));
        person.run(&lock).await;
        let mut relay = place.relay(", \"keep_processed\": \"1d\"").await;
        let until = tokio::time::Instant::now() + Duration::from_secs(30);
        while place.marked() != ["1"] {
            assert!(tokio::time::Instant::now() < until, "{:?}", place.marked());
            assert!(relay.settle().await.is_empty());
        }
        person.run("COMMIT").await;
    }
}
