//! Shop events as files: every file, shard and stage accounted for, whatever is killed, away or
//! changed by other hands.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use potok_core::trouble::{FILE_CRASH_POINTS, GROUP_CRASH_POINTS};
use potok_traffic::shop::{ShopEvent, ShopGenerator};
use rusqlite::Connection;
use serde_json::Value;

use crate::disk::Disk;
use crate::posting::post_to;
use crate::process::{Home, Running, pipelines};
use crate::shop::{SHORT_SLICES, database, rows, rows_in, send, start, take, wanted};
use crate::wait;

/// The three queries of the description, as far as SQLite knows their words.
const IN_PROGRESS: &str = "\
SELECT filename, event_ingest_status, shard_splitter_status, 
       shard_worker_status, mysql_sender_status, shard
FROM pipeline_tracking 
WHERE event_ingest_status != 'done' 
   OR shard_splitter_status != 'done' 
   OR shard_worker_status != 'done' 
   OR mysql_sender_status != 'done';";
const TOTALS: &str = "\
SELECT shard, COUNT(*) as total_tasks,
       SUM(CASE WHEN mysql_sender_status = 'done' THEN 1 ELSE 0 END) as completed,
       SUM(CASE WHEN mysql_sender_status = 'started' THEN 1 ELSE 0 END) as processing,
       SUM(CASE WHEN mysql_sender_status = 'failed' THEN 1 ELSE 0 END) as failed
FROM pipeline_tracking 
GROUP BY shard;";

const STAGES: [&str; 4] = ["event_ingest", "shard_splitter", "shard_worker", "mysql_sender"];

pub fn tracking(home: &Home) -> Connection {
    open(&home.data().join("db/tracking.sqlite"))
}

pub fn open(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.busy_timeout(wait::PATIENCE).unwrap();
    connection
}

/// All cells of an answer.
pub fn ask(connection: &Connection, sql: &str) -> Vec<Vec<String>> {
    let mut statement = connection.prepare(sql).unwrap();
    let columns = statement.column_count();
    let cell = |row: &rusqlite::Row<'_>, at: usize| match row.get_ref(at).unwrap() {
        rusqlite::types::ValueRef::Null => "-".to_owned(),
        rusqlite::types::ValueRef::Integer(number) => number.to_string(),
        rusqlite::types::ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
        other => format!("{other:?}"),
    };
    let read = |row: &rusqlite::Row<'_>| Ok((0..columns).map(|at| cell(row, at)).collect());
    statement.query_map([], read).unwrap().map(Result::unwrap).collect()
}

/// Creates the tables as `potok ddl` prints them, with a trigger that notes every move.
pub fn prepare(home: &Home) {
    let file = pipelines().join("shop-events.yaml");
    let ddl = crate::process::run(home_command(home, &file), b"").good();
    fs::create_dir_all(home.data().join("db")).unwrap();
    let tracking = tracking(home);
    let statements =
        ddl.lines().into_iter().map(|line| line["statement"].as_str().unwrap().to_owned());
    for statement in statements.filter(|statement| statement.contains("_tracking")) {
        tracking.execute_batch(&statement).unwrap();
    }
    tracking.execute_batch("CREATE TABLE moves (stage TEXT, was TEXT, is_now TEXT)").unwrap();
    for stage in STAGES {
        let trigger = format!(
            "CREATE TRIGGER audit_{stage} AFTER UPDATE ON pipeline_tracking WHEN OLD.{stage}_status \
             <> NEW.{stage}_status BEGIN INSERT INTO moves VALUES ('{stage}', OLD.{stage}_status, \
             NEW.{stage}_status); END"
        );
        tracking.execute_batch(&trigger).unwrap();
    }
}

fn home_command(home: &Home, file: &Path) -> std::process::Command {
    let mut command = crate::process::potok(["ddl".as_ref(), file.as_os_str()]);
    command.arg("--json").current_dir(home.path());
    command
}

pub fn assert_only_legal_moves(home: &Home) {
    let legal = [("new", "started"), ("started", "done"), ("started", "failed"), ("failed", "new")];
    for moved in ask(&tracking(home), "SELECT DISTINCT stage, was, is_now FROM moves") {
        let pair = (moved[1].as_str(), moved[2].as_str());
        assert!(legal.contains(&pair), "{moved:?}");
    }
}

/// Waits until every row has come through all stages.
pub fn all_done(home: &Home) {
    wait::until_seen("every file is done", || {
        let open = ask(&tracking(home), IN_PROGRESS);
        if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) }
    });
}

/// The lines of a shard's files, by name.
fn files(home: &Home, shard: i64) -> BTreeMap<String, Vec<String>> {
    let folder = home.data().join(format!("files/shop-events/{shard}"));
    let Ok(entries) = fs::read_dir(folder) else { return BTreeMap::new() };
    let mut files = BTreeMap::new();
    for entry in entries {
        let path: PathBuf = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        // A crash leaves what was being written; it goes when it is old.
        if name.starts_with('.') {
            continue;
        }
        let name = name.strip_suffix(".ndjson").unwrap_or_else(|| panic!("{name} is left over"));
        let text = fs::read_to_string(&path).unwrap();
        files.insert(name.to_owned(), text.lines().map(str::to_owned).collect());
    }
    files
}

/// Files, rows and table say the same, and nothing is missing or double.
fn assert_accounted(home: &Home, sent: &[ShopEvent]) {
    let tracking = tracking(home);
    let side = "SELECT filename, shard, records, \"rows\", duplicates, filtered, dead FROM \
                potok_tracking WHERE seal IS NOT NULL";
    let mut counted: BTreeMap<i64, i64> = BTreeMap::new();
    let mut named: BTreeSet<(String, i64)> = BTreeSet::new();
    for row in ask(&tracking, side) {
        let number = |at: usize| row[at].parse::<i64>().unwrap_or_else(|_| panic!("{row:?}"));
        assert_eq!(number(2), number(3) + number(4) + number(5) + number(6), "{row:?}");
        *counted.entry(number(1)).or_default() += number(3);
        let lines = files(home, number(1)).remove(&row[0]).unwrap_or_default();
        assert_eq!(lines.len() as i64, number(2), "{row:?}");
        named.insert((row[0].clone(), number(1)));
    }
    for shard in 0..2 {
        let found = rows(home, shard, 2);
        assert!(found == wanted(sent, shard, 2), "not each once on shard {shard}");
        assert_eq!(counted.get(&shard).copied().unwrap_or(0), found.len() as i64);
        let on_disk = files(home, shard);
        let unknown = on_disk.keys().find(|name| !named.contains(&((*name).clone(), shard)));
        assert_eq!(unknown, None, "a file without a row");
        let lines: Vec<Value> =
            on_disk.values().flatten().map(|line| serde_json::from_str(line).unwrap()).collect();
        let in_files: BTreeSet<&str> =
            lines.iter().map(|event| event["event_id"].as_str().unwrap()).collect();
        assert_eq!(in_files, found.keys().map(String::as_str).collect());
    }
    // Every name has a row for every shard.
    let uneven = "SELECT filename FROM pipeline_tracking GROUP BY filename HAVING COUNT(*) <> 2";
    assert_eq!(ask(&tracking, uneven), Vec::<Vec<String>>::new());
    assert_only_legal_moves(home);
}

/// `potok files` says what the queries of the description say.
fn assert_cli_agrees(home: &Home, running: &Running) {
    let tracking = tracking(home);
    let listed = running.run(["files", "--in-progress", "--json"], b"").good().lines();
    assert_eq!(listed.len(), ask(&tracking, IN_PROGRESS).len());
    let (code, body) = running.get("/api/v1/files?limit=1").unwrap();
    assert_eq!(code, 200, "{body}");
    let said: Value = serde_json::from_str(&body).unwrap();
    let shards = said["pipelines"][0]["shards"].as_array().unwrap();
    let keys = ["shard", "total", "completed", "processing", "failed"];
    let shards: Vec<Vec<String>> = shards
        .iter()
        .map(|shard| keys.iter().map(|key| shard[*key].to_string()).collect())
        .collect();
    assert_eq!(shards, ask(&tracking, TOTALS));
}

/// What programs beside potok ask, when every file is done.
fn assert_contract(running: &Running, name: &str) {
    let get = |path: &str| -> (u16, Value) {
        let (code, body) = running.get(&format!("/api/v1/pipeline/{path}")).unwrap();
        (code, serde_json::from_str(&body).unwrap())
    };
    for stage in STAGES {
        for written in [stage.to_owned(), stage.replace('_', "-")] {
            let (code, queue) = get(&format!("queues/{written}?limit=5&offset=0"));
            assert_eq!((code, &queue["stage"]), (200, &stage.into()), "{queue}");
            assert_eq!((&queue["files"], &queue["limit"]), (&Value::Array(vec![]), &5.into()));
        }
    }
    let (code, file) = get(&format!("files/{name}"));
    assert_eq!((code, file["shards"].as_array().map(Vec::len)), (200, Some(2)), "{file}");
    assert_eq!(file["shards"][0]["stages"][3]["state"], "done");
    let (_, summary) = get("metrics/summary");
    let summary = &summary["pipelines"][0];
    let done: Vec<u64> = summary["stages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|total| total["shard"] == 0)
        .map(|total| total["done"].as_u64().unwrap())
        .collect();
    assert_eq!(done, [summary["shards"][0]["total"].as_u64().unwrap(); 4], "{summary}");
    assert_eq!(get("stuck"), (200, serde_json::json!({ "files": [], "more": false })));
    for nothing in ["queues/nothing", "files/nothing"] {
        let (code, error) = get(nothing);
        assert_eq!((code, &error["error"]["code"]), (404, &"P1409".into()), "{nothing}");
    }
    for step in ["start", "done", "fail", "retry"] {
        let path = format!("/api/v1/pipeline/mysql-sender/{step}");
        let (code, error) = post_to(&running.address, &path, "Accept: */*", "{}");
        assert_eq!((code, &error["error"]["code"]), (409, &"P1410".into()), "{step}");
    }
}

#[test]
fn every_file_shard_and_stage_is_accounted_for() {
    let home = Home::new();
    prepare(&home);
    let running = start(&home, &[SHORT_SLICES]);
    let mut generator = ShopGenerator::good_only(194);
    let mut sent = Vec::new();
    for _ in 0..4 {
        let events = take(&mut generator, 60);
        assert!(send(&running, &events));
        sent.extend(events);
        running.drained();
    }
    // Of one shard only: the other has a row without a file.
    let even = |event: &ShopEvent| event.shop.is_some_and(|shop| shop % 2 == 0);
    let events: Vec<ShopEvent> = take(&mut generator, 40).into_iter().filter(even).collect();
    let before = ask(&tracking(&home), "SELECT COUNT(*) FROM potok_tracking WHERE seal IS NULL");
    assert!(send(&running, &events));
    sent.extend(events);
    running.drained();
    all_done(&home);
    let empty = "SELECT COUNT(*) FROM potok_tracking WHERE seal IS NULL AND records = 0";
    assert_ne!(ask(&tracking(&home), empty), before, "a shard without events is done too");
    assert_accounted(&home, &sent);
    assert_cli_agrees(&home, &running);
    let names = running.run(["files", "--json"], b"").good().lines();
    let name = names[0]["filename"].as_str().unwrap();
    let shown = running.run(["files", "show", name], b"").good();
    assert!(shown.text().contains("mysql_sender") && shown.text().contains("done_at"));
    running.run(["files", "show", "nothing"], b"").exits(2);
    assert_contract(&running, name);
    // Sending everything again makes files and no rows.
    assert!(send(&running, &sent));
    running.drained();
    all_done(&home);
    for shard in 0..2 {
        assert!(rows(&home, shard, 2) == wanted(&sent, shard, 2), "a repeat changes nothing");
    }
    let sums = "SELECT SUM(\"rows\"), SUM(duplicates) FROM potok_tracking";
    let count = sent.len().to_string();
    assert_eq!(ask(&tracking(&home), sums), [[count.clone(), count]]);
    assert_only_legal_moves(&home);
}

/// The same events as an array, and then one to a line: what is between values is no part of them. Naive:
/// the second is another content under the same id, and a dead letter.
#[test]
fn an_event_is_the_same_however_it_is_written_down() {
    let home = Home::new();
    let running = start(&home, &[SHORT_SLICES]);
    let http = crate::posting::listener(&running);
    let mut generator = ShopGenerator::good_only(209);
    let sent = take(&mut generator, 40);
    let bodies = sent.iter().map(|event| std::str::from_utf8(&event.bytes).unwrap());
    let bodies: Vec<&str> = bodies.collect();
    let array = format!(" [\r\n  {} \n] ", bodies.join(" ,\r\n\t "));
    let lines = format!("{}\r\n\n", bodies.join("\r\n\n"));
    for (body, form) in [(&array, "application/json"), (&lines, "application/x-ndjson")] {
        let header = format!("Content-Type: {form}");
        let (status, answer) = post_to(&http, "/events", &header, body);
        assert_eq!((status, &answer["accepted"]), (200, &sent.len().into()), "{answer}");
        running.drained();
        all_done(&home);
    }
    let sums = "SELECT SUM(records), SUM(\"rows\"), SUM(duplicates), SUM(dead) FROM potok_tracking";
    let count = sent.len().to_string();
    let both = (2 * sent.len()).to_string();
    assert_eq!(ask(&tracking(&home), sums), [[both, count.clone(), count, "0".to_owned()]]);
    for shard in 0..2 {
        assert!(rows(&home, shard, 2) == wanted(&sent, shard, 2), "not each once");
    }
}

/// A full disk: events are refused for now, and what is repeated when there is room is there once.
#[test]
fn a_full_disk_takes_no_events_and_says_so() {
    let home = Home::new();
    let disk = Disk::under(&home);
    let file = pipelines().join("shop-events.yaml");
    let running = disk.start_file(&home, &file, &[SHORT_SLICES]).unwrap();
    let http = crate::posting::listener(&running);
    let sent = take(&mut ShopGenerator::good_only(210), 40);
    let status = |event: &ShopEvent| {
        let body = std::str::from_utf8(&event.bytes).unwrap();
        post_to(&http, "/events", "Content-Type: application/json", body).0
    };
    assert_eq!(status(&sent[0]), 200);
    running.drained();
    disk.set_full(true);
    wait::until("there is no room", || (status(&sent[1]) == 503).then_some(()));
    disk.set_full(false);
    for event in &sent {
        wait::until_seen("there is room again", || match status(event) {
            200 => Ok(()),
            other => Err(other),
        });
    }
    running.drained();
    all_done(&home);
    for shard in 0..2 {
        assert!(rows(&home, shard, 2) == wanted(&sent, shard, 2), "not each once");
    }
}

/// The naive versions: `done` before the rows are committed, the end in the log before `done`, a name
/// from a counter, a file that is written in place.
#[test]
fn a_death_after_each_step_leaves_nothing_open_and_counts_right() {
    for point in GROUP_CRASH_POINTS.iter().chain(FILE_CRASH_POINTS) {
        let home = Home::new();
        prepare(&home);
        let mut generator = ShopGenerator::good_only(195);
        let events = take(&mut generator, 80);
        let is_swept = |event: &ShopEvent| event.shop.is_some_and(|shop| shop % 2 == 0);
        let sent: Vec<ShopEvent> =
            events.into_iter().filter(|event| *point != "file.swept" || is_swept(event)).collect();
        let running = start(&home, &[SHORT_SLICES, ("POTOK_CRASH_AT", point)]);
        // It may die before it has answered.
        let is_taken = send(&running, &sent);
        running.ended("it dies where it should");
        let running = start(&home, &[SHORT_SLICES]);
        assert!(is_taken || send(&running, &sent));
        running.drained();
        all_done(&home);
        assert_accounted(&home, &sent);
        let stuck = running.run(["stuck", "--json"], b"").good();
        assert_eq!(stuck.text(), "", "{point}");
    }
}

/// The naive version takes a slice for one file: its first part's `done` hides what is missing.
#[test]
fn a_slice_in_parts_has_a_name_for_each() {
    let home = Home::new();
    prepare(&home);
    let long = ("SLICE", "1000d");
    let running = start(&home, &[long, ("POTOK_CRASH_AT", "file.done:1")]);
    let event = |number: i64| {
        let id = format!("part-{number}");
        let json = format!(
            "{{\"event_id\":\"{id}\",\"event_type\":1,\"shop_id\":4,\"user_id\":1,\"timestamp\":\
             \"2025-01-01 00:00:00.000\",\"payload\":{{}}}}"
        );
        ShopEvent { id, shop: Some(4), bytes: json.into_bytes() }
    };
    let sent: Vec<ShopEvent> = (0..25_001).map(event).collect();
    assert!(send(&running, &sent));
    wait::until("all are in the group", || {
        let groups = running.run(["groups", "show", "shop-events", "0/2"], b"");
        let group: Value = serde_json::from_slice(&groups.stdout).ok()?;
        (group["kinds"]["record"]["records"] == 25_001).then_some(())
    });
    running.run(["groups", "close", "shop-events", "0/2"], b"").good();
    running.ended("it dies after the first part");
    let first = "SELECT COUNT(*) FROM pipeline_tracking WHERE shard = 0 AND mysql_sender_status = \
                 'done'";
    assert_eq!(ask(&tracking(&home), first), [["1"]]);
    let running = start(&home, &[long]);
    running.drained();
    let parts = "SELECT filename, records, \"rows\" FROM potok_tracking WHERE shard = 0 ORDER BY \
                 filename";
    let parts = ask(&tracking(&home), parts);
    let numbers: Vec<&str> = parts.iter().map(|part| part[1].as_str()).collect();
    assert_eq!(numbers, ["10000", "10000", "5001"], "{parts:?}");
    assert!(parts.iter().all(|part| part[1] == part[2]), "{parts:?}");
    let name = &parts[0][0];
    assert_eq!((&parts[1][0], &parts[2][0]), (&format!("{name}.1"), &format!("{name}.2")));
    assert!(rows(&home, 0, 2) == wanted(&sent, 0, 2), "not each once");
    // The slice is not over: the other shard may still get events.
    let other = "SELECT DISTINCT mysql_sender_status FROM pipeline_tracking WHERE shard = 1";
    assert_eq!(ask(&tracking(&home), other), [["new"]]);
    assert_only_legal_moves(&home);
}

/// What waits behind a closed gate is in its file, and says so; what has failed is said of the first.
#[test]
fn a_shard_that_must_be_mended_fails_its_first_file_and_holds_the_others() {
    let home = Home::new();
    prepare(&home);
    let running = start(&home, &[SHORT_SLICES]);
    let mut generator = ShopGenerator::good_only(196);
    let mut sent = take(&mut generator, 100);
    assert!(send(&running, &sent));
    running.drained();
    all_done(&home);
    let broken = open(&database(&home, 1));
    broken.execute_batch("ALTER TABLE events RENAME TO hidden; CREATE TABLE events (x)").unwrap();
    for wait_for in ["'failed'", "'new'"] {
        let events = take(&mut generator, 100);
        assert!(send(&running, &events));
        sent.extend(events);
        wait::until(wait_for, || {
            let sql = format!(
                "SELECT 1 FROM pipeline_tracking WHERE shard = 1 AND event_ingest_status = 'done' \
                 AND shard_splitter_status = 'done' AND mysql_sender_status = {wait_for}"
            );
            (!ask(&tracking(&home), &sql).is_empty()).then_some(())
        });
    }
    wait::until("shard 0 goes on", || (rows(&home, 0, 2) == wanted(&sent, 0, 2)).then_some(()));
    assert_cli_agrees(&home, &running);
    // Behind the first, which has failed, files wait for the worker.
    let (_, queue) = running.get("/api/v1/pipeline/queues/shard-worker").unwrap();
    let queue: Value = serde_json::from_str(&queue).unwrap();
    let waits = &queue["files"][0];
    assert_eq!(
        (&waits["shard"], &waits["stages"][2]["state"]),
        (&1.into(), &"new".into()),
        "{queue}"
    );
    // A database's clock that is six minutes further makes it stuck.
    let tracking_db = tracking(&home);
    tracking_db
        .execute_batch(
            "UPDATE pipeline_tracking SET updated_at = datetime('now', '-6 minutes') WHERE shard = 1",
        )
        .unwrap();
    let listed = running.run(["files", "--in-progress"], b"").good();
    assert!(listed.text().contains("the gate is closed"), "{}", listed.text());
    broken.execute_batch("DROP TABLE events; ALTER TABLE hidden RENAME TO events").unwrap();
    running.drained();
    all_done(&home);
    assert_accounted(&home, &sent);
}

#[test]
fn a_shard_that_is_away_keeps_its_first_file_started() {
    let home = Home::new();
    prepare(&home);
    let running = start(&home, &[SHORT_SLICES]);
    let mut generator = ShopGenerator::good_only(197);
    let mut sent = take(&mut generator, 60);
    assert!(send(&running, &sent));
    running.drained();
    all_done(&home);
    // Somebody else has the write lock.
    let locked = open(&database(&home, 1));
    locked.execute_batch("BEGIN IMMEDIATE").unwrap();
    let events = take(&mut generator, 60);
    assert!(send(&running, &events));
    sent.extend(events);
    wait::until("its first file is with the sender", || {
        let sql = "SELECT 1 FROM pipeline_tracking WHERE shard = 1 AND mysql_sender_status = \
                   'started'";
        (!ask(&tracking(&home), sql).is_empty()).then_some(())
    });
    wait::until("the gate is closed", || {
        (running.status()["gate"]["state"] == "closed").then_some(())
    });
    wait::until("shard 0 goes on", || (rows(&home, 0, 2) == wanted(&sent, 0, 2)).then_some(()));
    let sql = "UPDATE pipeline_tracking SET updated_at = datetime('now', '-6 minutes') WHERE \
               mysql_sender_status = 'started'";
    tracking(&home).execute_batch(sql).unwrap();
    let stuck = running.run(["stuck", "--json"], b"").good().lines();
    assert!(!stuck.is_empty() && stuck.iter().all(|row| row["shard"] == 1), "{stuck:?}");
    assert!(stuck[0]["reason"].as_str().unwrap().contains("gate is closed"), "{stuck:?}");
    let (_, metrics) = running.get("/metrics").unwrap();
    let metric =
        "potok_track_oldest_started_seconds{pipeline=\"shop-events\",stage=\"mysql_sender\"";
    assert!(metrics.contains(metric), "{metrics}");
    let files = "potok_track_files{pipeline=\"shop-events\",stage=\"mysql_sender\",shard=\"1\",state=\"started\"} 1";
    assert!(metrics.lines().any(|line| line == files), "{metrics}");
    let failed = "SELECT 1 FROM pipeline_tracking WHERE mysql_sender_status = 'failed'";
    assert!(ask(&tracking(&home), failed).is_empty(), "nothing has failed");
    locked.execute_batch("ROLLBACK").unwrap();
    running.drained();
    all_done(&home);
    assert_accounted(&home, &sent);
}

#[test]
fn a_tracking_table_that_is_away_holds_steps_and_loses_nothing() {
    let home = Home::new();
    let folder = home.path().join("away");
    fs::write(&folder, b"").unwrap();
    let address = format!("sqlite:{}/tracking.sqlite", folder.display());
    let settings = [SHORT_SLICES, ("POTOK_DB_TRACKING", address.as_str())];
    let file = pipelines().join("shop-events.yaml");
    let running = home.start_file_unready(&file, &settings);
    let mut generator = ShopGenerator::good_only(198);
    let sent = take(&mut generator, 300);
    assert!(send(&running, &sent), "records are taken all the same");
    wait::until("it says what it waits for", || {
        let waits = running.status()["waits"].to_string();
        waits.contains("\"tracking\"").then_some(())
    });
    wait::until("everything is sealed", || {
        let seals = running.run(["read", "potok-shop-events"], b"").good().lines();
        (seals.len() >= 2).then_some(())
    });
    assert!(rows(&home, 0, 2).is_empty() && rows(&home, 1, 2).is_empty(), "steps are held");
    running.kill();
    let running = home.start_file_unready(&file, &settings);
    fs::remove_file(&folder).unwrap();
    fs::create_dir(&folder).unwrap();
    running.drained();
    for shard in 0..2 {
        assert!(rows_in(&database(&home, shard), shard, 2) == wanted(&sent, shard, 2));
    }
    let table = open(&folder.join("tracking.sqlite"));
    wait::until("every file is done", || ask(&table, IN_PROGRESS).is_empty().then_some(()));
    let sum = ask(&table, "SELECT SUM(\"rows\") FROM potok_tracking");
    assert_eq!(sum, [[sent.len().to_string()]]);
}

/// Others may write to the table: potok passes over their names, takes no orders from them, and goes
/// on where they have emptied it.
#[test]
fn other_hands_on_the_table_change_nothing() {
    let home = Home::new();
    prepare(&home);
    let long = ("SLICE", "1000d");
    let running = start(&home, &[long]);
    let mut generator = ShopGenerator::good_only(199);
    let mut sent = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for round in 0..4 {
        let events = take(&mut generator, 50);
        assert!(send(&running, &events));
        sent.extend(events.clone());
        for (shard, group) in [(0, "0/2"), (1, "1/2")] {
            let wanted = wanted(&events, shard, 2).len();
            wait::until("all are in the group", || {
                let groups = running.run(["groups", "show", "shop-events", group], b"");
                let group: Value = serde_json::from_slice(&groups.stdout).ok()?;
                (group["kinds"]["record"]["records"] == wanted).then_some(())
            });
        }
        let slice = running.run(["files"], b"").good();
        let slice =
            slice.text().lines().nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
        let tracking = tracking(&home);
        match round {
            // The documented INSERT, for the name that potok would take.
            0 => {
                let sql = format!(
                    "INSERT INTO pipeline_tracking (filename, event_ingest_status, shard) \nVALUES \n    \
                     ('{slice}', 'started', 0),\n    ('{slice}', 'started', 1);"
                );
                tracking.execute_batch(&sql).unwrap();
            }
            // Everything is gone.
            2 => tracking.execute_batch("DELETE FROM pipeline_tracking WHERE shard = 0").unwrap(),
            // The documented UPDATE checks nothing of its own stage.
            3 => {
                let sql = "UPDATE pipeline_tracking SET shard_worker_status = 'started' WHERE shard = 1 \
                           AND shard_splitter_status = 'done'";
                tracking.execute_batch(sql).unwrap();
            }
            _ => {}
        }
        for group in ["0/2", "1/2"] {
            running.run(["groups", "close", "shop-events", group], b"").good();
        }
        running.drained();
        names.push(slice);
    }
    for shard in 0..2 {
        assert!(rows(&home, shard, 2) == wanted(&sent, shard, 2), "not each once");
    }
    let tracking = tracking(&home);
    let ours = "SELECT DISTINCT filename FROM potok_tracking ORDER BY filename";
    let ours: Vec<String> = ask(&tracking, ours).into_iter().flatten().collect();
    let slice = &names[0];
    assert!(!ours.contains(slice), "somebody else's name");
    assert_eq!(ours.len(), 4, "{ours:?}");
    let foreign =
        format!("SELECT event_ingest_status FROM pipeline_tracking WHERE filename = '{slice}'");
    assert!(ask(&tracking, &foreign).iter().all(|row| row[0] == "started"), "not ours to move");
    let open = "SELECT COUNT(*) FROM potok_tracking WHERE finished_at IS NULL";
    assert_eq!(ask(&tracking, open), [["0"]]);
    let changed = running.run(["files", "--in-progress"], b"").good();
    assert!(changed.text().contains("changed by hand"), "{}", changed.text());
    assert!(changed.text().contains("another program"), "{}", changed.text());
}
