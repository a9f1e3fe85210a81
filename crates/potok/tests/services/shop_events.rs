//! shop-events on real MariaDB shards, with the tracking table of the description: its SQL runs as
//! it is written there, and whatever is killed, frozen or refused, each event is once on its shard
//! and only legal moves happen.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use potok_services::{Kafka, Mariadb, Mode, Proxy};
use potok_traffic::Random;
use potok_traffic::shop::{ShopEvent, ShopGenerator};
use serde_json::Value;

use crate::gathering;
use crate::process::{Home, Running, pipelines};
use crate::{short_or_soak, wait};

/// The SQL of the description, verbatim.
const INSERT: &str = "\
INSERT INTO pipeline_tracking (filename, event_ingest_status, shard) 
VALUES 
    ('20250101000000', 'started', 0),
    ('20250101000000', 'started', 1);";
const UPDATES: [&str; 7] = [
    "\
UPDATE pipeline_tracking 
SET event_ingest_status = 'done' 
WHERE filename = '20250101000000';",
    "\
UPDATE pipeline_tracking 
SET shard_splitter_status = 'started' 
WHERE filename = '20250101000000' AND shard = 0 AND event_ingest_status = 'done';",
    "\
UPDATE pipeline_tracking 
SET shard_splitter_status = 'done' 
WHERE filename = '20250101000000' AND shard = 0;",
    "\
UPDATE pipeline_tracking 
SET shard_worker_status = 'started' 
WHERE filename = '20250101000000' AND shard = 0 AND shard_splitter_status = 'done';",
    "\
UPDATE pipeline_tracking 
SET shard_worker_status = 'done' 
WHERE filename = '20250101000000' AND shard = 0;",
    "\
UPDATE pipeline_tracking 
SET mysql_sender_status = 'started' 
WHERE filename = '20250101000000' AND shard = 0 AND shard_worker_status = 'done';",
    "\
UPDATE pipeline_tracking 
SET mysql_sender_status = 'done' 
WHERE filename = '20250101000000' AND shard = 0;",
];
pub const IN_PROGRESS: &str = "\
SELECT filename, event_ingest_status, shard_splitter_status, 
       shard_worker_status, mysql_sender_status, shard
FROM pipeline_tracking 
WHERE event_ingest_status != 'done' 
   OR shard_splitter_status != 'done' 
   OR shard_worker_status != 'done' 
   OR mysql_sender_status != 'done';";
pub const STUCK: &str = "\
SELECT filename, event_ingest_status, shard_splitter_status, 
       shard_worker_status, mysql_sender_status,
       TIMESTAMPDIFF(MINUTE, updated_at, NOW()) as stuck_minutes
FROM pipeline_tracking 
WHERE (event_ingest_status = 'started' AND TIMESTAMPDIFF(MINUTE, updated_at, NOW()) > 5)
   OR (shard_splitter_status = 'started' AND TIMESTAMPDIFF(MINUTE, updated_at, NOW()) > 3)
   OR (shard_worker_status = 'started' AND TIMESTAMPDIFF(MINUTE, updated_at, NOW()) > 10)
   OR (mysql_sender_status = 'started' AND TIMESTAMPDIFF(MINUTE, updated_at, NOW()) > 5);";
pub const TOTALS: &str = "\
SELECT shard, COUNT(*) as total_tasks,
       SUM(CASE WHEN mysql_sender_status = 'done' THEN 1 ELSE 0 END) as completed,
       SUM(CASE WHEN mysql_sender_status = 'started' THEN 1 ELSE 0 END) as processing,
       SUM(CASE WHEN mysql_sender_status = 'failed' THEN 1 ELSE 0 END) as failed
FROM pipeline_tracking 
GROUP BY shard;";

pub const STAGES: [&str; 4] = ["event_ingest", "shard_splitter", "shard_worker", "mysql_sender"];
/// The rows of the foreign worker are not ours.
const OURS: &str = "filename <> '20250101000000'";
pub const SHORT_SLICES: (&str, &str) = ("SLICE", "1s");

/// Two shards and the tracking table; the second shard is on a server of its own.
struct Shop {
    server: Mariadb,
    second: Mariadb,
    proxy: Proxy,
    shards: [String; 2],
    tracking: String,
}

impl Shop {
    fn start() -> Shop {
        let (server, second) = (Mariadb::start(), Mariadb::start());
        let proxy = Proxy::start(([127, 0, 0, 1], second.port()).into());
        let shards = [server.fresh_database(), second.fresh_database()];
        let tracking = server.fresh_database();
        Shop { server, second, proxy, shards, tracking }
    }

    fn settings(&self) -> Vec<(String, String)> {
        let port = |port: u16| format!(":{port}/");
        let second = self.shards[1].replace(&port(self.second.port()), &port(self.proxy.port()));
        vec![
            ("POTOK_DB_SHOP_0".to_owned(), self.shards[0].clone()),
            ("POTOK_DB_SHOP_1".to_owned(), second),
            ("POTOK_DB_TRACKING".to_owned(), self.tracking.clone()),
        ]
    }

    fn run(&self, home: &Home, more: &[(&str, &str)]) -> Running {
        self.run_file(home, &file(), more)
    }

    fn run_file(&self, home: &Home, file: &Path, more: &[(&str, &str)]) -> Running {
        let settings = self.settings();
        let mut all: Vec<(&str, &str)> =
            settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        all.push(SHORT_SLICES);
        all.extend(more);
        home.start_file_unready(file, &all)
    }

    fn tracking(&self, sql: &str) -> Vec<Vec<String>> {
        self.server.query(&self.tracking, sql)
    }

    /// Waits until the tables are there, then has every move noted.
    fn audit(&self) {
        wait::until("the tables are there", || {
            let tables = self.tracking("SHOW TABLES LIKE '%_tracking'");
            (tables.len() == 2).then_some(())
        });
        audit(&self.server, &self.tracking, &format!("OLD.{OURS}"));
    }

    fn ids(&self, shard: usize) -> BTreeSet<String> {
        let server = [&self.server, &self.second][shard];
        // In one statement: rows come while the test looks.
        let sql = format!(
            "SELECT event_id, shard = {shard} AND MOD(MOD(shop_id, 2) + 2, 2) = {shard} FROM events"
        );
        let found = server.query(&self.shards[shard], &sql);
        assert!(found.iter().all(|row| row[1] == "1"), "an event of another shard");
        found.into_iter().map(|mut row| row.swap_remove(0)).collect()
    }

    fn all_done(&self) {
        wait::until_seen("every file is done", || {
            let sql =
                IN_PROGRESS.replace("WHERE ", &format!("WHERE {OURS} AND (")).replace(';', ");");
            let open = self.tracking(&sql);
            if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) }
        });
    }

    fn assert_once(&self, sent: &[ShopEvent]) {
        for shard in 0..2 {
            let wanted = sent.iter().filter(|event| shard_of(event) == Some(shard as i64));
            let wanted: BTreeSet<String> = wanted.map(|event| event.id.clone()).collect();
            assert!(self.ids(shard) == wanted, "not each once on shard {shard}");
            let sums = format!(
                "SELECT CAST(SUM(`rows`) AS CHAR), SUM(records <> `rows` + duplicates + filtered + \
                 dead) FROM potok_tracking WHERE shard = {shard}"
            );
            assert_eq!(self.tracking(&sums), [[wanted.len().to_string(), "0".to_owned()]]);
        }
    }
}

/// Has every move of the rows that `which` wants noted.
pub fn audit(server: &Mariadb, url: &str, which: &str) {
    let query = |sql: &str| server.query(url, sql);
    query("CREATE TABLE moves (stage VARCHAR(32), was VARCHAR(8), is_now VARCHAR(8))");
    let moves = STAGES
        .map(|stage| format!("SELECT '{stage}' s, OLD.{stage}_status w, NEW.{stage}_status n"));
    query(&format!(
        "CREATE TRIGGER audit AFTER UPDATE ON pipeline_tracking FOR EACH ROW INSERT INTO moves SELECT \
         s, w, n FROM ({}) m WHERE w <> n AND {which}",
        moves.join(" UNION ALL ")
    ));
}

pub fn assert_only_legal_moves(server: &Mariadb, url: &str) {
    let legal = [["new", "started"], ["started", "done"], ["started", "failed"], ["failed", "new"]];
    for moved in server.query(url, "SELECT DISTINCT was, is_now FROM moves") {
        assert!(legal.iter().any(|legal| moved == *legal), "{moved:?}");
    }
}

/// The next six statements of a kind fail with a deadlock and a lock that is not let go. They are counted
/// by a sequence: a table would be locked while a statement waits for a row, and nobody notices when
/// the two wait for each other.
pub fn make_trouble(server: &Mariadb, url: &str, table: &str, event: &str) {
    server.query(url, "CREATE SEQUENCE IF NOT EXISTS trouble NOCACHE");
    let trigger = format!(
        "DELIMITER //\nCREATE TRIGGER trouble_{table} BEFORE {event} ON {table} FOR EACH ROW BEGIN \
         DECLARE m INT; SET m = NEXT VALUE FOR trouble; IF m <= 6 THEN IF m % 2 = 0 THEN SIGNAL \
         SQLSTATE '40001' SET MYSQL_ERRNO = 1213; ELSE SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205; \
         END IF; END IF; END//\nDELIMITER ;"
    );
    server.query(url, &trigger);
}

/// All of them have failed.
pub fn trouble_is_over(server: &Mariadb, url: &str) -> bool {
    let next = server.query(url, "SELECT next_not_cached_value FROM trouble");
    next[0][0].parse::<u64>().unwrap() > 6
}

pub fn file() -> PathBuf {
    pipelines().join("shop-events.yaml")
}

fn shard_of(event: &ShopEvent) -> Option<i64> {
    event.shop.map(|shop| shop.rem_euclid(2))
}

pub fn send(running: &Running, events: &[ShopEvent]) -> bool {
    let lines: Vec<u8> =
        events.iter().flat_map(|event| event.bytes.iter().copied().chain([b'\n'])).collect();
    running.run(["send", "shop-events-in"], &lines).code == Some(0)
}

pub fn take(generator: &mut ShopGenerator, count: usize) -> Vec<ShopEvent> {
    (0..count).map(|_| generator.next_event()).collect()
}

/// What a command lists, as a query of the description does: name, states, and one thing more.
pub fn listed(running: &Running, command: &[&str], last: &str) -> Vec<Vec<String>> {
    let rows = running.run(command, b"").good().lines();
    let row = |row: &Value| {
        let states = row["stages"].as_array().unwrap().iter();
        let states = states.map(|stage| stage["state"].as_str().unwrap().to_owned());
        let name = row["filename"].as_str().unwrap().to_owned();
        [name].into_iter().chain(states).chain([row[last].to_string()]).collect()
    };
    sorted(rows.iter().map(row).collect())
}

pub fn sorted(mut rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
    rows.sort();
    rows
}

pub const LIST_IN_PROGRESS: [&str; 3] = ["files", "--in-progress", "--json"];
pub const LIST_STUCK: [&str; 2] = ["stuck", "--json"];

/// The same from the command line, at a moment when nothing moves.
fn assert_cli_agrees(shop: &Shop, running: &Running) {
    let open = listed(running, &LIST_IN_PROGRESS, "shard");
    assert_eq!(open, sorted(shop.tracking(IN_PROGRESS)));
    assert_eq!(listed(running, &LIST_STUCK, "minutes"), sorted(shop.tracking(STUCK)));
    let (_, body) = running.get("/api/v1/files?limit=1").unwrap();
    let said: Value = serde_json::from_str(&body).unwrap();
    let keys = ["shard", "total", "completed", "processing", "failed"];
    let shards = said["pipelines"][0]["shards"].as_array().unwrap().iter();
    let shards: Vec<Vec<String>> =
        shards.map(|shard| keys.iter().map(|key| shard[*key].to_string()).collect()).collect();
    assert_eq!(shards, shop.tracking(TOTALS));
}

#[test]
fn each_event_is_once_on_its_mariadb_shard_and_every_file_done() {
    let shop = Shop::start();
    let home = Home::new();
    let mut random = Random::new(61);
    let mut generator = ShopGenerator::good_only(62);
    let mut sent = Vec::new();
    let mut running = shop.run(&home, &[]);
    shop.audit();
    // A worker of somebody else, as the description has it.
    shop.tracking(INSERT);
    for update in UPDATES {
        shop.tracking(update);
    }
    running.drained();
    make_trouble(&shop.server, &shop.shards[0], "events", "INSERT");
    make_trouble(&shop.server, &shop.tracking, "pipeline_tracking", "UPDATE");
    let rounds = short_or_soak(5, 60);
    for round in 0..rounds {
        let events = take(&mut generator, short_or_soak(400, 5_000) as usize);
        assert!(send(&running, &events));
        sent.extend(events);
        wait::random_moment(&mut random, std::time::Duration::from_millis(2_000));
        match round % 5 {
            // Killed at whatever it does.
            0 | 3 => {
                running.kill();
                running = shop.run(&home, &[]);
            }
            // One shard freezes; the other goes on.
            1 => {
                shop.second.freeze();
                let events = take(&mut generator, 100);
                assert!(send(&running, &events));
                sent.extend(events);
                let wanted: BTreeSet<String> = sent
                    .iter()
                    .filter(|event| shard_of(event) == Some(0))
                    .map(|event| event.id.clone())
                    .collect();
                wait::until("the other shard goes on", || (shop.ids(0) == wanted).then_some(()));
                shop.second.thaw();
            }
            // The answer to COMMIT is lost.
            2 => {
                shop.proxy.set(Mode::DropReplies);
                wait::random_moment(&mut random, std::time::Duration::from_millis(500));
                shop.proxy.set(Mode::Cut);
                shop.proxy.set(Mode::Pass);
            }
            _ => {}
        }
    }
    running.drained();
    shop.all_done();
    shop.assert_once(&sent);
    assert_only_legal_moves(&shop.server, &shop.tracking);
    assert_cli_agrees(&shop, &running);
    // The foreign worker has not come further with shard 1, for long.
    shop.tracking(
        "UPDATE pipeline_tracking SET shard_splitter_status = 'started', updated_at = NOW() - \
         INTERVAL 4 MINUTE WHERE filename = '20250101000000' AND shard = 1",
    );
    assert_eq!(shop.tracking(STUCK).len(), 1);
    assert_cli_agrees(&shop, &running);
    // Everything once more changes nothing.
    assert!(send(&running, &sent));
    running.drained();
    shop.all_done();
    shop.assert_once(&sent);
}

/// The documented statements at random, on whatever rows there are, and once the table is emptied:
/// potok takes no orders from them and makes no illegal move itself.
#[test]
fn random_hands_on_the_table_move_nothing_of_potoks() {
    let shop = Shop::start();
    let home = Home::new();
    let mut random = Random::new(67);
    let mut generator = ShopGenerator::good_only(68);
    let running = shop.run(&home, &[]);
    wait::until("the tables are there", || {
        (shop.tracking("SHOW TABLES LIKE '%_tracking'").len() == 2).then_some(())
    });
    // Only potok's own moves are noted.
    audit(&shop.server, &shop.tracking, "@foreign IS NULL");
    let mut sent = Vec::new();
    for round in 0..short_or_soak(6, 60) {
        let events = take(&mut generator, 200);
        assert!(send(&running, &events));
        sent.extend(events);
        for _ in 0..8 {
            let names = shop.tracking("SELECT DISTINCT filename FROM pipeline_tracking");
            let Some(name) = names.get(random.below(names.len().max(1) as u64) as usize) else {
                wait::random_moment(&mut random, std::time::Duration::from_millis(300));
                continue;
            };
            let update = UPDATES[random.below(UPDATES.len() as u64) as usize];
            let update = update.replace("20250101000000", &name[0]);
            shop.tracking(&format!("SET @foreign = 1; {update}"));
            wait::random_moment(&mut random, std::time::Duration::from_millis(100));
        }
        if round == 3 {
            shop.tracking("TRUNCATE pipeline_tracking");
        }
    }
    running.drained();
    shop.assert_once(&sent);
    assert_only_legal_moves(&shop.server, &shop.tracking);
    wait::until_seen("every file has ended", || {
        let open = "SELECT filename, shard FROM potok_tracking WHERE finished_at IS NULL";
        let open = shop.tracking(open);
        if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) }
    });
}

/// `updated_at` is the database's time, whatever zone a session has: at the moment before six minutes
/// nothing is stuck, at six it is.
#[test]
fn sessions_of_other_time_zones_see_the_same_minutes() {
    let server = potok_services::mariadb();
    let tracking = server.fresh_database();
    let home = Home::new();
    let settings = [SHORT_SLICES, ("POTOK_DB_TRACKING", tracking.as_str())];
    let running = home.start_file_unready(&file(), &settings);
    wait::until("the tables are there", || {
        (server.query(&tracking, "SHOW TABLES LIKE '%_tracking'").len() == 2).then_some(())
    });
    server.query(&tracking, INSERT);
    for zone in ["+00:00", "+03:00", "-05:00"] {
        for (seconds, wanted) in [(359, None), (360, Some("6")), (3_600, Some("60"))] {
            let asked = format!(
                "SET time_zone = '{zone}'; SET timestamp = (SELECT MAX(UNIX_TIMESTAMP(updated_at)) FROM \
                 pipeline_tracking) + {seconds}; {STUCK}"
            );
            let stuck = server.query(&tracking, &asked);
            let minutes = stuck.first().map(|row| row[5].as_str());
            assert_eq!(minutes, wanted, "{seconds} s later, seen from {zone}");
        }
    }
    running.kill();
}

/// A column that does not follow changes, or is no TIMESTAMP, would lie about what is stuck.
#[test]
fn a_tracking_table_that_would_lie_is_refused() {
    let server = potok_services::mariadb();
    let tracking = server.fresh_database();
    let home = Home::new();
    let statuses = STAGES.map(|stage| format!("{stage}_status VARCHAR(8) NOT NULL DEFAULT 'new'"));
    server.query(
        &tracking,
        &format!(
            "CREATE TABLE pipeline_tracking (filename VARCHAR(64) NOT NULL, shard INT NOT NULL, {}, \
             updated_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, \
             UNIQUE KEY (filename, shard))",
            statuses.join(", ")
        ),
    );
    let settings = [SHORT_SLICES, ("POTOK_DB_TRACKING", tracking.as_str())];
    let running = home.start_file_unready(&file(), &settings);
    wait::until("it says what is wrong", || {
        let status = running.status();
        let why = status["why"].as_str().unwrap_or_default().to_owned();
        let says = why.contains("updated_at") && why.contains("ALTER TABLE");
        (status["state"] == "blocked" && says).then_some(())
    });
    let alter = "ALTER TABLE pipeline_tracking MODIFY updated_at TIMESTAMP NOT NULL DEFAULT \
                 CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP";
    server.query(&tracking, alter);
    running.run(["resume", "shop-events"], b"").good();
    let mut generator = ShopGenerator::good_only(63);
    assert!(send(&running, &take(&mut generator, 50)));
    running.drained();
    let done = "SELECT COUNT(*) FROM pipeline_tracking WHERE mysql_sender_status = 'done'";
    assert_ne!(server.query(&tracking, done), [["0"]]);
}

/// On Kafka a shard is a partition of the internal topic; two copies share the shards and the table.
#[test]
fn two_copies_on_kafka_share_shards_and_table() {
    let kafka = Kafka::start();
    let server = potok_services::mariadb();
    let databases = [(); 3].map(|()| server.fresh_database());
    let settings = [
        SHORT_SLICES,
        ("POTOK_DB_SHOP_0", databases[0].as_str()),
        ("POTOK_DB_SHOP_1", databases[1].as_str()),
        ("POTOK_DB_TRACKING", databases[2].as_str()),
    ];
    let homes = [gathering::home(&kafka, None), gathering::home(&kafka, None)];
    let first = homes[0].start_file(&file(), &settings).unwrap();
    let second = homes[1].start_file(&file(), &settings).unwrap();
    let mut generator = ShopGenerator::good_only(64);
    let mut sent = Vec::new();
    for _ in 0..3 {
        let events = take(&mut generator, 200);
        assert!(send(&first, &events));
        sent.extend(events);
        wait::pass(std::time::Duration::from_millis(700));
    }
    let ids = |shard: usize| -> BTreeSet<String> {
        let found = server.query(&databases[shard], "SELECT event_id FROM events");
        found.into_iter().flatten().collect()
    };
    let wanted = |sent: &[ShopEvent], shard: i64| -> BTreeSet<String> {
        let events = sent.iter().filter(|event| shard_of(event) == Some(shard));
        events.map(|event| event.id.clone()).collect()
    };
    let all_there = |sent: &[ShopEvent]| {
        wait::until_seen("each event is on its shard", || {
            let found = [ids(0), ids(1)];
            let there = [0, 1].map(|shard| found[shard] == wanted(sent, shard as i64));
            if there == [true, true] { Ok(()) } else { Err(format!("{there:?}")) }
        });
    };
    all_there(&sent);
    first.kill();
    let events = take(&mut generator, 200);
    assert!(send(&second, &events));
    sent.extend(events);
    all_there(&sent);
    // Of one shard only: the row of the other ends as well, though nothing is read there.
    let even: Vec<ShopEvent> =
        take(&mut generator, 100).into_iter().filter(|event| shard_of(event) == Some(0)).collect();
    assert!(send(&second, &even));
    sent.extend(even);
    all_there(&sent);
    wait::until_seen("every file is done", || {
        let open = server.query(&databases[2], IN_PROGRESS);
        if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) }
    });
    let sum = "SELECT CAST(SUM(`rows`) AS CHAR) FROM potok_tracking";
    assert_eq!(server.query(&databases[2], sum), [[sent.len().to_string()]]);
}

#[test]
fn fewer_partitions_than_shards_block_the_pipeline() {
    let kafka = Kafka::start();
    kafka.create_topic(
        "potok-shop-events",
        1,
        &[("message.timestamp.type", "LogAppendTime"), ("retention.ms", "-1")],
    );
    let home = gathering::home(&kafka, None);
    let running = home.start_file_unready(&file(), &[SHORT_SLICES]);
    wait::until("it says what to do", || {
        let status = running.status();
        let why = status["why"].as_str().unwrap_or_default().to_owned();
        (status["state"] == "blocked" && why.contains("partitions")).then_some(())
    });
}

/// A shard's table is dropped while events flow. Where potok may create tables it makes it anew; else the
/// shard is blocked until somebody has. The other one goes on.
#[test]
fn a_table_that_is_dropped_stops_its_own_shard() {
    let shop = Shop::start();
    let home = Home::new();
    let mut generator = ShopGenerator::good_only(212);
    let mut sent = Vec::new();
    let mut send_more = |running: &Running, sent: &mut Vec<ShopEvent>| {
        let events = take(&mut generator, 100);
        assert!(send(running, &events));
        sent.extend(events);
    };
    let second = |sql: &str| shop.second.query(&shop.shards[1], sql);
    let wanted = |sent: &[ShopEvent], shard: i64| -> BTreeSet<String> {
        let of_shard = sent.iter().filter(|event| shard_of(event) == Some(shard));
        of_shard.map(|event| event.id.clone()).collect()
    };
    let all_there = |shard: usize, wanted: BTreeSet<String>| {
        wait::until("all events are there", || (shop.ids(shard) == wanted).then_some(()));
    };
    let running = shop.run(&home, &[]);
    shop.audit();
    send_more(&running, &mut sent);
    running.drained();
    let before = sent.len();
    second("CREATE TABLE spare LIKE events");
    second("DROP TABLE events");
    send_more(&running, &mut sent);
    running.drained();
    // What was there is gone with the table, and nobody sends it again.
    all_there(1, wanted(&sent[before..], 1));
    all_there(0, wanted(&sent, 0));
    shop.all_done();
    running.kill();
    let shipped = std::fs::read_to_string(file()).unwrap();
    let may = "once_by: .event_id\n    create_tables: true";
    assert!(shipped.contains(may));
    let schemas = home.path().join("schemas");
    std::fs::create_dir_all(&schemas).unwrap();
    let schema = "schemas/shop-event.json";
    std::fs::copy(pipelines().join(schema), home.path().join(schema)).unwrap();
    let path = home.path().join("shop-events.yaml");
    std::fs::write(&path, shipped.replace(may, "once_by: .event_id")).unwrap();
    let running = shop.run_file(&home, &path, &[]);
    send_more(&running, &mut sent);
    running.drained();
    let before = sent.len();
    second("DROP TABLE events");
    send_more(&running, &mut sent);
    wait::until("its first file has failed", || {
        let failed = "SELECT shard FROM pipeline_tracking WHERE mysql_sender_status = 'failed'";
        let failed = shop.tracking(failed);
        assert!(failed.iter().all(|row| row[0] == "1"), "{failed:?}");
        (!failed.is_empty()).then_some(())
    });
    let status = running.status();
    assert_ne!(status["state"], "blocked", "the pipeline goes on: {status}");
    assert_eq!((&status["gate"]["state"], &status["dead_lettered"]), (&"closed".into(), &0.into()));
    send_more(&running, &mut sent);
    all_there(0, wanted(&sent, 0));
    second("CREATE TABLE events LIKE spare");
    running.drained();
    all_there(1, wanted(&sent[before..], 1));
    shop.all_done();
    assert_only_legal_moves(&shop.server, &shop.tracking);
}

/// Groups of one slice that close one after the other, in both shards: each has a name of its own, and
/// both shards have the same names.
#[test]
fn late_groups_of_both_shards_share_names() {
    let shop = Shop::start();
    let home = Home::new();
    let running = shop.run(&home, &[("SLICE", "1000d")]);
    shop.audit();
    let mut generator = ShopGenerator::good_only(213);
    let mut sent = Vec::new();
    for _ in 0..3 {
        let events = take(&mut generator, 60);
        assert!(send(&running, &events));
        sent.extend(events);
        wait::until("both shards have an open group", || {
            let open = running.run(["groups", "list", "--json"], b"").good().lines();
            let held = open.iter().filter(|group| group["state"] == "open");
            let kinds = held.flat_map(|group| group["kinds"].as_object().unwrap().values());
            (kinds.map(|kind| kind["records"].as_u64().unwrap()).sum::<u64>() == 60).then_some(())
        });
        running.run(["groups", "close", "shop-events", "--all"], b"").good();
        running.drained();
    }
    shop.all_done();
    shop.assert_once(&sent);
    let names = "SELECT filename, COUNT(*), SUM(seal IS NOT NULL) FROM potok_tracking GROUP BY filename \
                 ORDER BY LENGTH(filename), filename";
    let names = shop.tracking(names);
    let slice = names[0][0].clone();
    let wanted = ["", ".1", ".2"].map(|more| [slice.clone() + more, "2".into(), "2".into()]);
    assert_eq!(names, wanted);
    assert_only_legal_moves(&shop.server, &shop.tracking);
}

/// The addresses of two shards have changed places: nothing is written to the wrong one.
#[test]
fn databases_that_have_changed_places_are_noticed() {
    let mut shop = Shop::start();
    // Both on one server, so that only the names differ.
    shop.shards[1] = shop.server.fresh_database();
    let address = |shop: &Shop, shard: usize| shop.shards[shard].clone();
    let (one, other) = (address(&shop, 0), address(&shop, 1));
    let right = [("POTOK_DB_SHOP_0", one.as_str()), ("POTOK_DB_SHOP_1", other.as_str())];
    let swapped = [("POTOK_DB_SHOP_0", other.as_str()), ("POTOK_DB_SHOP_1", one.as_str())];
    let home = Home::new();
    let mut generator = ShopGenerator::good_only(214);
    let mut sent = Vec::new();
    for (addresses, is_right) in [(right, true), (swapped, false), (right, true)] {
        let running = shop.run(&home, &addresses);
        let events = take(&mut generator, 60);
        assert!(send(&running, &events));
        sent.extend(events);
        if is_right {
            running.drained();
        } else {
            wait::until("it is said", || {
                let status = running.status();
                let why = status["gate"]["why"].as_str().unwrap_or_default();
                (why.contains("P1420") && why.contains("this database is shard")).then_some(())
            });
        }
        running.kill();
    }
    for (shard, url) in [one, other].iter().enumerate() {
        let found = shop.server.query(url, "SELECT event_id, shard FROM events");
        assert!(found.iter().all(|row| row[1] == shard.to_string()), "{found:?}");
        let found: BTreeSet<String> = found.into_iter().map(|mut row| row.swap_remove(0)).collect();
        let wanted = sent.iter().filter(|event| shard_of(event) == Some(shard as i64));
        assert!(found == wanted.map(|event| event.id.clone()).collect(), "not each once");
    }
}
