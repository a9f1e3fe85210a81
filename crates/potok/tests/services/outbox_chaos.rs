//! Everything at once for the outbox: eight writers, some of whose transactions stay open or are rolled
//! back, three relays that are killed and frozen, a broker that restarts, answers that vanish.
//!
//! The checker knows only what the writers did and what the topics have, as kcat reads them. Each trouble
//! lasts until it is seen to bite; between two of them there is a calm, in which nothing comes twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use potok_core::Clock as _;
use potok_services::{Kafka, KafkaOptions, Mode};
use potok_traffic::Random;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

use crate::database::Database;
use crate::outbox::{PublishedRow, insert, pipeline, until_tables, uuid};
use crate::process::{Home, Running};
use crate::{short_or_soak, wait};

const WRITERS: u64 = 8;
/// Rows from here on are written when the trouble is over.
const CALM: u64 = 1_000_000_000;
const TOPICS: [&str; 2] = ["events", "infos"];
/// The last two of them go to both topics.
const KEYS: u64 = 12;

#[test]
fn every_row_of_postgresql_is_published_whatever_happens() {
    chaos(&Database::postgres(), 171);
}

#[test]
fn every_row_of_mariadb_is_published_whatever_happens() {
    chaos(&Database::mariadb(), 172);
}

/// A row that a writer wrote, and when.
#[derive(Clone, Debug)]
struct WrittenRow {
    number: u64,
    key: String,
    inserting: Instant,
    /// `None` where it was rolled back.
    committed: Option<Instant>,
}

/// A session of an application, on a thread of its own.
struct Application {
    runtime: tokio::runtime::Runtime,
    session: Session,
}

enum Session {
    Postgres(Box<sqlx::PgConnection>),
    Mariadb(Box<sqlx::MySqlConnection>),
}

impl Application {
    fn new(url: &str) -> Application {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let session = runtime.block_on(async {
            match url.starts_with("postgres") {
                true => {
                    Session::Postgres(Box::new(sqlx::PgConnection::connect(url).await.unwrap()))
                }
                false => {
                    Session::Mariadb(Box::new(sqlx::MySqlConnection::connect(url).await.unwrap()))
                }
            }
        });
        Application { runtime, session }
    }

    fn run(&mut self, sql: &str) {
        let text = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        let done = self.runtime.block_on(async {
            match &mut self.session {
                Session::Postgres(session) => session.execute(text).await.map(drop),
                Session::Mariadb(session) => session.execute(text).await.map(drop),
            }
        });
        done.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }
}

#[allow(clippy::disallowed_methods, reason = "when a row was written, for the checker")]
fn now() -> Instant {
    Instant::now()
}

/// By the clock that the broker has as well.
fn milliseconds() -> u64 {
    u64::try_from(potok_core::SystemClock.now().0).unwrap()
}

/// Everything that topics have, by a program that knows nothing of potok.
fn read_by_kcat(kafka: &Kafka) -> Vec<PublishedRow> {
    let mut all = Vec::new();
    for topic in TOPICS {
        let mut kcat = Command::new("kcat");
        kcat.args(["-C", "-e", "-q", "-b", &kafka.direct_servers(), "-t", topic]);
        let ran = kcat.args(["-f", "%p %o %T %k %s %h\\n"]).output();
        let ran = ran.expect("kcat is installed: run `cargo xtask services install`");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let text = String::from_utf8(ran.stdout).unwrap();
        all.extend(text.lines().map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [partition, offset, time, key, value, headers] = words[..] else {
                panic!("{line}")
            };
            let header = |name: &str| {
                let mut of =
                    headers.split(',').filter_map(|h| h.strip_prefix(name)?.strip_prefix('='));
                let value = of.next().unwrap_or_else(|| panic!("{name}: {line}"));
                assert!(of.next().is_none(), "{name} comes twice: {line}");
                value
            };
            let value: serde_json::Value = serde_json::from_str(value).unwrap();
            let number = value["n"].as_u64().unwrap();
            assert_eq!([header("id"), header("potok-id")], [uuid(number), uuid(number)], "{line}");
            assert!(["Info", "Event"].contains(&header("event_type")), "{line}");
            assert!(header("added_at").starts_with("20"), "{line}");
            PublishedRow {
                topic: topic.to_owned(),
                place: (partition.parse().unwrap(), offset.parse().unwrap()),
                time: time.parse().unwrap(),
                key: key.to_owned(),
                number,
            }
        }));
    }
    all
}

/// Topics by event type; a mixed key has both.
fn event_type(key: u64, number: u64) -> &'static str {
    let is_info = if key >= KEYS - 2 { number.is_multiple_of(2) } else { key.is_multiple_of(2) };
    if is_info { "Info" } else { "Event" }
}

struct Writers<'a> {
    url: String,
    next: &'a AtomicU64,
    rows: &'a Mutex<Vec<WrittenRow>>,
    enough: &'a AtomicBool,
}

impl Writers<'_> {
    fn write(&self, seed: u64) {
        let mut application = Application::new(&self.url);
        let mut random = Random::new(seed);
        while !self.enough.load(Ordering::Relaxed) {
            application.run("BEGIN");
            let mut rows: Vec<WrittenRow> = Vec::new();
            for _ in 0..=random.below(3) {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                let key = random.below(KEYS);
                let name = format!("k{key}");
                let inserting = now();
                application.run(&insert(number, &name, event_type(key, number)));
                rows.push(WrittenRow { number, key: name, inserting, committed: None });
            }
            if random.below(20) == 0 {
                let longest = short_or_soak(4, 75);
                wait::random_moment(&mut random, Duration::from_secs(longest));
            }
            let is_kept = random.below(8) != 0;
            application.run(if is_kept { "COMMIT" } else { "ROLLBACK" });
            let committed = is_kept.then(now);
            self.rows
                .lock()
                .unwrap()
                .extend(rows.into_iter().map(|row| WrittenRow { committed, ..row }));
            wait::random_moment(&mut random, Duration::from_millis(300));
        }
    }

    /// Holds one transaction open for long, whatever happens meanwhile; others write rows of its key.
    fn hold(&self) {
        let mut application = Application::new(&self.url);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        application.run("BEGIN");
        let inserting = now();
        application.run(&insert(number, "k0", event_type(0, number)));
        wait::pass(LONGEST);
        application.run("COMMIT");
        let row = WrittenRow { number, key: "k0".to_owned(), inserting, committed: Some(now()) };
        self.rows.lock().unwrap().push(row);
    }
}

/// How long a transaction stays open.
const LONGEST: Duration = Duration::from_secs(75);
/// Rows that are published between two troubles.
const CALM_ROWS: u64 = 150;

/// When troubles were made, and what they are called.
struct Troubles(Vec<(&'static str, u64, u64)>);

impl Troubles {
    /// Makes trouble, and after it nothing for a while.
    fn make<'a>(
        &mut self,
        what: &'static str,
        relays: &mut Relays<'a>,
        trouble: impl FnOnce(&mut Relays<'a>),
    ) {
        let from = milliseconds();
        trouble(relays);
        self.0.push((what, from, milliseconds()));
        let enough = relays.count("processed") + CALM_ROWS;
        wait::until("work goes on", || (relays.count("processed") >= enough).then_some(()));
    }

    /// A row comes twice only where nobody knew whether it had been published: the trouble lies between
    /// the one and the other, or around one of them.
    fn explain(&self, records: &[PublishedRow]) {
        let mut times: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for record in records {
            times.entry(record.number).or_default().push(record.time);
        }
        let mut repeats: BTreeMap<&str, u32> = BTreeMap::new();
        for (number, mut times) in times {
            times.sort_unstable();
            for pair in times.windows(2) {
                let (first, again) = (pair[0], pair[1]);
                let lies_between = |trouble: &&(&str, u64, u64)| {
                    let (_, from, to) = trouble;
                    first <= *to && again >= *from
                };
                let trouble = self.0.iter().find(lies_between);
                let (what, ..) = trouble.unwrap_or_else(|| {
                    panic!("{number} came at {first} and at {again}: {:?}", self.0)
                });
                *repeats.entry(what).or_default() += 1;
            }
        }
        println!("repeats by trouble: {repeats:?}");
    }
}

/// Three relays of one table.
struct Relays<'a> {
    database: &'a Database,
    homes: Vec<Home>,
    running: Vec<Running>,
}

impl<'a> Relays<'a> {
    fn start(kafka: &Kafka, database: &'a Database) -> Relays<'a> {
        let mut relays = Relays { database, homes: Vec::new(), running: Vec::new() };
        for _ in 0..3 {
            let home = Home::new();
            home.settings(&format!("log: {{ kafka: '{}' }}\n", kafka.servers()));
            let file = pipeline(&home, 1_000, "Event: events, Info: infos", "  lease: 2s\n");
            // The key that fails does so for as long as the test lasts.
            let text = fs::read_to_string(&file).unwrap().replace("max: 300ms", "max: 10s");
            fs::write(&file, text).unwrap();
            relays.running.push(relays.start_in(&home));
            relays.homes.push(home);
        }
        relays
    }

    fn start_in(&self, home: &Home) -> Running {
        let url = self.database.url();
        let file = home.path().join("outbox.yaml");
        home.start_file_unready(&file, &[("POTOK_DB_MESSENGER", &url)])
    }

    fn count(&self, which: &str) -> u64 {
        let sql = format!("SELECT count(*) FROM outbox WHERE {which}");
        self.database.query(&sql)[0][0].parse().unwrap()
    }

    /// Which of them has the table.
    fn owner(&self) -> usize {
        wait::until("somebody has the table", || {
            let rows = self.database.query("SELECT owner FROM potok_leases");
            let owner = rows.first()?.first()?;
            let is_owner = |one: &Running| owner.contains(&format!("(process {})", one.pid()));
            self.running.iter().position(is_owner)
        })
    }

    /// When each row was marked.
    fn marks(&self) -> BTreeMap<String, String> {
        let rows = self.database.query("SELECT id, processed_at FROM outbox WHERE processed");
        rows.into_iter().map(|row| (row[0].clone(), row[1].clone())).collect()
    }

    fn token(&self) -> String {
        self.database.query("SELECT token FROM potok_leases")[0][0].clone()
    }

    /// Rows wait that are not of the key that fails.
    fn waiting(&self) -> u64 {
        let bad = [uuid(1), uuid(2)].join("', '");
        self.count(&format!("NOT processed AND id NOT IN ('{bad}')"))
    }

    fn until_at_work(&self) {
        wait::until("rows wait", || (self.waiting() > 0).then_some(()));
    }

    /// Rows wait, and none is marked for a while.
    fn until_nothing_moves(&self, what: &str) {
        wait::until(&format!("{what} bites"), || {
            let before = self.count("processed");
            wait::pass(Duration::from_millis(1_500));
            (self.waiting() > 0 && self.count("processed") == before).then_some(())
        });
    }

    fn until_moving(&self, what: &str) {
        let before = self.count("processed");
        wait::until(&format!("work goes on after {what}"), || {
            (self.count("processed") > before).then_some(())
        });
    }

    fn kill(&mut self) {
        self.until_at_work();
        let (owner, token) = (self.owner(), self.token());
        let home = &self.homes[owner];
        let started = {
            self.running[owner].signal("KILL");
            wait::until("another takes over", || (self.token() != token).then_some(()));
            self.start_in(home)
        };
        self.running[owner] = started;
        self.until_moving("a kill");
    }

    fn freeze(&mut self) {
        self.until_at_work();
        let (owner, token) = (self.owner(), self.token());
        self.running[owner].signal("STOP");
        wait::until("another takes over from a frozen one", || {
            (self.token() != token).then_some(())
        });
        assert_ne!(self.owner(), owner, "it is frozen");
        self.until_moving("a freeze");
        let marks = self.marks();
        self.running[owner].signal("CONT");
        self.until_moving("a thaw");
        let after = self.marks();
        let changed: Vec<_> = marks.iter().filter(|(id, at)| after.get(*id) != Some(*at)).collect();
        assert!(changed.is_empty(), "whoever wakes up changes nothing: {changed:?}");
    }
}

/// An open transaction and a key that fails hold up no other key.
fn hold_up_nobody(relays: &Relays<'_>, database: &Database) {
    let mut held = Application::new(&database.direct_url());
    held.run("BEGIN");
    held.run(&insert(3, "held", "Event"));
    database.query(&insert(1, "bad", "Unmapped"));
    database.query(&insert(2, "bad", "Event"));
    let is_marked =
        |number: u64| relays.count(&format!("processed AND id = '{}'", uuid(number))) == 1;
    let failed = format!("retry_count > 0 AND id = '{}'", uuid(1));
    wait::until("it fails", || (relays.count(&failed) == 1).then_some(()));
    database.query(&insert(4, "probe", "Event"));
    wait::until("another key is published", || is_marked(4).then_some(()));
    held.run("COMMIT");
    wait::until("what was held is published", || is_marked(3).then_some(()));
    assert!(!is_marked(2), "it waits for the one before it");
}

fn chaos(database: &Database, seed: u64) {
    let kafka = Kafka::start_with(&KafkaOptions { proxied: true, ..KafkaOptions::default() });
    for topic in TOPICS {
        kafka.create_topic(topic, 3, &[("message.timestamp.type", "LogAppendTime")]);
    }
    let mut relays = Relays::start(&kafka, database);
    until_tables(database);
    hold_up_nobody(&relays, database);
    let (next, enough, rows) = (AtomicU64::new(10), AtomicBool::new(false), Mutex::default());
    let writers = Writers { url: database.direct_url(), next: &next, rows: &rows, enough: &enough };
    let mut troubles = Troubles(Vec::new());
    std::thread::scope(|scope| {
        let writers = &writers;
        for writer in 0..WRITERS {
            scope.spawn(move || writers.write(seed * 100 + writer));
        }
        // Also when a trouble fails, or the writers would never end.
        let _enough = EnoughOnDrop(&enough);
        let held = scope.spawn(move || writers.hold());
        for _ in 0..short_or_soak(1, 12) {
            troubles.make("a kill", &mut relays, Relays::kill);
            troubles.make("answers of the broker that vanish", &mut relays, |relays| {
                kafka.proxy(0).set(Mode::DropReplies);
                relays.until_nothing_moves("answers of the broker that vanish");
                kafka.proxy(0).set(Mode::Pass);
                relays.until_moving("answers that vanished");
            });
            troubles.make("a freeze", &mut relays, Relays::freeze);
            troubles.make("a broker that is gone", &mut relays, |relays| {
                kafka.kill();
                relays.until_nothing_moves("a broker that is gone");
                kafka.restart();
                relays.until_moving("a restart of the broker");
            });
            troubles.make("answers of the database that vanish", &mut relays, |relays| {
                let token = relays.token();
                database.pass(Mode::DropReplies);
                relays.until_nothing_moves("answers of the database that vanish");
                database.pass(Mode::Pass);
                relays.until_moving("answers of the database that vanished");
                assert_ne!(relays.token(), token, "the lease ran out meanwhile");
            });
        }
        held.join().expect("the long transaction");
    });
    let all_are_marked = |relays: &Relays<'_>| {
        wait::until_seen("every row is marked", || match relays.waiting() {
            0 => Ok(()),
            left => Err(left),
        });
    };
    all_are_marked(&relays);
    // Nothing is unknown of these: nobody dies, freezes or loses an answer.
    for number in CALM..CALM + 50 {
        database.query(&insert(number, &format!("calm{}", number % 3), "Event"));
    }
    all_are_marked(&relays);
    // None failed but the one that has no topic, and none was given up.
    let failed = format!("retry_count > 0 AND id <> '{}'", uuid(1));
    assert_eq!(relays.count(&failed), 0, "an outage is no failure of a row");
    assert_eq!(database.query("SELECT count(*) FROM outbox_dead")[0][0], "0");
    let written = rows.into_inner().unwrap();
    let records = read_by_kcat(&kafka);
    troubles.explain(&records);
    let (calm, others): (Vec<_>, Vec<_>) = records.into_iter().partition(|row| row.number >= CALM);
    let mut calm: Vec<u64> = calm.iter().map(|row| row.number).collect();
    calm.sort_unstable();
    assert_eq!(calm, (CALM..CALM + 50).collect::<Vec<_>>(), "once, without trouble");
    check(&written, &others);
    let early = others.iter().filter(|row| [3, 4].contains(&row.number)).count();
    assert_eq!(early, 2, "once, before the trouble began");
    let rolled_back = written.iter().filter(|row| row.committed.is_none()).count();
    assert!(rolled_back > 0 && written.len() > 100, "{rolled_back} of {}", written.len());
}

/// Every committed row was published and no other, and a row was first published behind every row of its
/// key that was committed before it was inserted.
fn check(written: &[WrittenRow], records: &[PublishedRow]) {
    let mut first: BTreeMap<u64, &PublishedRow> = BTreeMap::new();
    for record in records {
        let known = first.entry(record.number).or_insert(record);
        if record.time < known.time || (record.time == known.time && record.place < known.place) {
            *known = record;
        }
    }
    let committed: BTreeSet<u64> =
        written.iter().filter(|row| row.committed.is_some()).map(|row| row.number).collect();
    // The key that fails, its follower, and what was written before the writers began.
    let seen: BTreeSet<u64> = first.keys().copied().filter(|number| *number >= 10).collect();
    let lost: Vec<&u64> = committed.difference(&seen).collect();
    let foreign: Vec<&u64> = seen.difference(&committed).collect();
    assert!(lost.is_empty(), "never published: {lost:?}");
    assert!(foreign.is_empty(), "rolled back and published: {foreign:?}");
    assert!(!first.contains_key(&1) && !first.contains_key(&2), "they fail");
    let repeats = records.len() - first.len();
    println!("{} rows, {repeats} repeats", committed.len());
    let mut keys: BTreeMap<&str, Vec<&WrittenRow>> = BTreeMap::new();
    for row in written.iter().filter(|row| row.committed.is_some()) {
        keys.entry(&row.key).or_default().push(row);
    }
    for (key, rows) in keys {
        let records: Vec<&PublishedRow> = rows.iter().map(|row| first[&row.number]).collect();
        let is_mixed = records.iter().any(|record| record.topic != records[0].topic);
        // Within a partition by place; between topics by the broker's time.
        let rank = |record: &PublishedRow| if is_mixed { record.time } else { record.place.1 };
        let mut by_commit: Vec<(Instant, u64, u64)> = rows
            .iter()
            .map(|row| (row.committed.unwrap(), rank(first[&row.number]), row.number))
            .collect();
        by_commit.sort_unstable();
        let mut by_insert = rows.clone();
        by_insert.sort_by_key(|row| row.inserting);
        let mut before = by_commit.into_iter().peekable();
        let mut latest = (0, 0);
        for row in by_insert {
            while let Some((_, rank, number)) = before.next_if(|(at, ..)| *at < row.inserting) {
                latest = latest.max((rank, number));
            }
            let own = rank(first[&row.number]);
            assert!(latest.0 <= own, "{key}: {} went before {}", row.number, latest.1);
        }
    }
}

struct EnoughOnDrop<'a>(&'a AtomicBool);

impl Drop for EnoughOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
