//! The outbox under single troubles, each held for as long as it takes: a relay that is frozen inside of
//! a note, a broker that is away while relays die, a part of the broker that takes nothing.

use std::time::Duration;

use potok_services::{Kafka, Mode};

use crate::database::Database;
use crate::outbox::{Witness, ask, insert, number, order, pipeline, published, until_tables, uuid};
use crate::process::{Home, Running};
use crate::wait;

const ALL_MARKED: &str = "SELECT count(*) FROM outbox WHERE NOT processed";
const FAILED: &str = "SELECT count(*) FROM outbox WHERE retry_count > 0";
const DEAD: &str = "SELECT count(*) FROM outbox_dead";

fn until_all_are_marked(database: &Database) {
    wait::until_seen("all are marked", || match number(database, ALL_MARKED) {
        0 => Ok(()),
        left => Err(left),
    });
}

fn home(kafka: &Kafka) -> Home {
    let home = Home::new();
    home.settings(&format!("log: {{ kafka: '{}' }}\n", kafka.servers()));
    home
}

/// `FrozenInNote`: the statement is at the server and its answer never comes; the server ends what it has
/// begun. Another takes over; whoever wakes changes no row, as the table itself tells.
#[test]
fn a_relay_that_freezes_inside_of_a_note_changes_nothing_when_it_wakes() {
    let (kafka, database) = (Kafka::start(), Database::postgres());
    kafka.create_topic("events", 1, &[]);
    let start = |home: &Home, url: String, name: &str| -> Running {
        let file = pipeline(home, 10, "Event: events, Slow: events", "  lease: 9s\n");
        let url = format!("{url}?application_name={name}");
        let running = home.start_file(&file, &[("POTOK_DB_MESSENGER", &url)]);
        running.unwrap_or_else(|end| panic!("it ended at start: {end}"))
    };
    let (one, other) = (home(&kafka), home(&kafka));
    let first = start(&one, database.url(), "first");
    until_tables(&database);
    let token = || database.query("SELECT token FROM potok_leases")[0][0].clone();
    wait::until("the first has the table", || (!token().is_empty()).then_some(()));
    let _second = start(&other, database.direct_url(), "second");
    for sql in [
        "CREATE TABLE audit (number serial, id uuid, who text)",
        "CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF NEW.event_type = 'Slow' THEN PERFORM pg_sleep(2); END IF; \
         INSERT INTO audit (id, who) VALUES (NEW.id, current_setting('application_name')); \
         RETURN NEW; END $$",
        "CREATE TRIGGER audit BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION audit()",
    ] {
        database.query(sql);
    }
    let before = token();
    database.query(&insert(1, "a", "Slow"));
    let notes = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'first' \
                 AND wait_event = 'PgSleep'";
    wait::until("it notes", || (number(&database, notes) == 1).then_some(()));
    first.signal("STOP");
    database.pass(Mode::DropReplies);
    assert_eq!(number(&database, notes), 1, "it is frozen inside of the note");
    wait::until("another takes over", || (token() != before).then_some(()));
    database.query(&insert(2, "a", "Event"));
    until_all_are_marked(&database);
    database.pass(Mode::Pass);
    first.signal("CONT");
    wait::until("it knows that another has the table", || {
        first.journal().contains("lost the lease").then_some(())
    });
    database.query(&insert(3, "a", "Event"));
    until_all_are_marked(&database);
    let changes = database.query("SELECT id, who FROM audit ORDER BY number");
    let changes: Vec<(&str, &str)> = changes.iter().map(|row| (&*row[0], &*row[1])).collect();
    let [one, two, three] = [1, 2, 3].map(uuid);
    assert_eq!(changes, [(&*one, "first"), (&*two, "second"), (&*three, "second")]);
    assert_eq!(number(&database, DEAD), 0);
}

/// Interleaving 25: every row waits, however often whoever relays them dies meanwhile.
#[test]
fn a_broker_that_is_away_costs_no_attempt_whatever_is_killed() {
    let (kafka, database) = (Kafka::start(), Database::mariadb());
    kafka.create_topic("events", 2, &[("message.timestamp.type", "LogAppendTime")]);
    let home = home(&kafka);
    // A second failure would make a dead letter.
    let file = pipeline(&home, 2, "Event: events", "  lease: 2s\n");
    let url = database.url();
    let start = || home.start_file_unready(&file, &[("POTOK_DB_MESSENGER", &url)]);
    let mut running = start();
    until_tables(&database);
    database.query(&insert(1, "a", "Event"));
    until_all_are_marked(&database);
    kafka.kill();
    let mut next: u64 = 2;
    for _ in 0..5 {
        for _ in 0..4 {
            let key = if next.is_multiple_of(2) { "a" } else { "b" };
            database.query(&insert(next, key, "Event"));
            next += 1;
        }
        wait::until("it waits for the broker", || {
            let status = running.status();
            let why = status["why"].as_str().unwrap_or_default();
            (status["state"] == "waiting" && why.contains("Kafka")).then_some(())
        });
        // As long as several attempts would take.
        wait::pass(Duration::from_millis(1_500));
        running.kill();
        running = start();
        assert_eq!((number(&database, FAILED), number(&database, DEAD)), (0, 0));
    }
    kafka.restart();
    until_all_are_marked(&database);
    assert_eq!((number(&database, FAILED), number(&database, DEAD)), (0, 0));
    let reader = Home::new();
    reader.settings(&format!("log: {{ kafka: '{}' }}\n", kafka.direct_servers()));
    let records = published(&reader, &["events"]);
    let is_of_a = |n: &u64| *n == 1 || n.is_multiple_of(2);
    let (of_a, of_b): (Vec<u64>, Vec<u64>) = (1..next).partition(is_of_a);
    assert_eq!((order(&records, "a"), order(&records, "b")), (of_a, of_b));
}

/// Too few nodes have what one topic wants three of them to have: its rows wait, uncounted and named; no
/// other key does.
#[test]
fn a_partition_that_takes_nothing_holds_up_its_keys_alone() {
    let (kafka, database) = (Kafka::cluster(3), Database::postgres());
    let broker_time = ("message.timestamp.type", "LogAppendTime");
    kafka.create_topic("good", 2, &[broker_time]);
    kafka.create_topic("mute", 1, &[broker_time, ("min.insync.replicas", "3")]);
    kafka.stop_node(2);
    let home = home(&kafka);
    // A second failure would make a dead letter.
    let file = pipeline(&home, 2, "Good: good, Mute: mute", "");
    let url = database.url();
    let running = home.start_file(&file, &[("POTOK_DB_MESSENGER", &url)]).unwrap();
    until_tables(&database);
    for (number, key, event_type) in
        [(1, "a", "Mute"), (2, "a", "Good"), (3, "b", "Good"), (4, "c", "Mute"), (5, "a", "Mute")]
    {
        database.query(&insert(number, key, event_type));
    }
    let mut witness = Witness { database: &database, next: 1_000 };
    witness.until("it is said which partition takes nothing", || {
        let status =
            &ask(&home, &database, &["outbox", "status", "outbox.yaml", "--json"]).lines()[0];
        let failing = status["failing"].as_array().unwrap();
        let is_named = |id: u64| {
            failing.iter().any(|row| {
                let error = row["error"].as_str().unwrap_or_default();
                row["id"] == *uuid(id) && error.contains("partition 0 of `mute`")
            })
        };
        is_named(1) && is_named(4)
    });
    let journal = running.journal();
    assert!(journal.contains("Kafka takes no record for partition 0 of `mute`"), "{journal}");
    // Others go on, for as long as that lasts.
    let marked = "SELECT count(*) FROM outbox WHERE processed AND payload->>'key' = 'witness'";
    let before = number(&database, marked);
    witness.until("others are published", || number(&database, marked) > before + 20);
    assert_eq!((number(&database, FAILED), number(&database, DEAD)), (0, 0));
    let metrics = running.get("/metrics").unwrap().1;
    let line = "potok_outbox_failing_keys{pipeline=\"outbox\"} 2\n";
    assert!(metrics.contains(line), "{metrics}");
    let words =
        "--alter --entity-type topics --entity-name mute --add-config min.insync.replicas=1";
    kafka.tool("kafka.admin.ConfigCommand", &words.split(' ').collect::<Vec<_>>());
    until_all_are_marked(&database);
    assert_eq!((number(&database, FAILED), number(&database, DEAD)), (0, 0));
    let reader = Home::new();
    reader.settings(&format!("log: {{ kafka: '{}' }}\n", kafka.direct_servers()));
    let records = published(&reader, &["good", "mute"]);
    for (key, numbers) in [("a", vec![1, 2, 5]), ("b", vec![3]), ("c", vec![4])] {
        assert_eq!(order(&records, key), numbers, "{key}");
    }
}

/// What somebody should know of a table is said before anything runs.
#[test]
fn check_asks_the_table_and_warns() {
    let database = Database::postgres();
    database.query(
        "CREATE TABLE outbox (id uuid PRIMARY KEY, event_type text, payload json, added_at timestamptz \
         DEFAULT now(), processed boolean NOT NULL DEFAULT false, processed_at timestamptz, \
         retry_count int NOT NULL DEFAULT 0)",
    );
    let home = Home::new();
    pipeline(&home, 2, "Good: good", "");
    let said = ask(&home, &database, &["check", "outbox.yaml", "--connect"]).stderr;
    for doubt in ["rows are ordered by `added_at` and id", "no index leads to the rows that wait"] {
        assert!(said.contains(&format!("warning: `outbox`: {doubt}")), "{said}");
    }
    let there = "SELECT count(*) FROM information_schema.tables WHERE table_name LIKE '%potok%'";
    assert_eq!(number(&database, there), 0, "it changes nothing");
}
