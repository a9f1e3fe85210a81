//! The table that shows how far files have come, on SQLite and MariaDB: what `Tracker` promises.

use std::sync::Arc;

use potok_config::{Env, Flags, Registry, load_connections};
use potok_connectors::sql::{CONNECTIONS, LogIdentity, TrackConfig, tracker};
use potok_core::{
    FileCounts, FileFacts, FilesAsk, NewFile, StageState, TrackStep, TrackedFile, Tracker,
};
use tempfile::TempDir;

use crate::place::System;
use crate::server::Server;

macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $name() {
                super::$name($crate::place::System::Sqlite).await;
            })+
        }
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $name() {
                super::$name($crate::place::System::Mariadb).await;
            })+
        }
    };
}

on_both! {
    a_slice_may_have_thousands_of_names,
    names_of_others_are_passed_over,
    a_step_says_at_least_so_far_whoever_makes_it_again,
    what_is_stuck_for_longest_comes_first,
}

const STAGES: [&str; 3] = ["ingest", "worker", "sender"];
/// What is said of a stage; `new` it becomes by hand only.
const STATES: [StageState; 3] = [StageState::Started, StageState::Done, StageState::Failed];
const SLICE: &str = "20250101000000";

/// A database with the two tables.
struct Tracking {
    system: System,
    url: String,
    folder: TempDir,
}

impl Tracking {
    async fn new(system: System) -> (Tracking, Arc<dyn Tracker>) {
        let folder = tempfile::tempdir().unwrap();
        let url = system.database(&folder);
        let tracking = Tracking { system, url, folder };
        let tracker = tracking.tracker("a");
        tracker.prepare().await.unwrap();
        (tracking, tracker)
    }

    fn tracker(&self, owner: &str) -> Arc<dyn Tracker> {
        let url = self.system.pick("sqlite:", "", "").to_owned() + &self.url;
        tracker_at(url, &self.folder, owner)
    }

    fn run(&self, sql: &str) -> Vec<String> {
        self.system.query(&self.url, sql)
    }
}

fn tracker_at(url: String, folder: &TempDir, owner: &str) -> Arc<dyn Tracker> {
    let mut registry = Registry::new();
    registry.connections(CONNECTIONS);
    let env = Env::of([("POTOK_DB_TRACKING", url)]);
    let flags = Flags { data_dir: Some(folder.path().into()), ..Flags::default() };
    let connections = load_connections(None, &flags, &env, &registry).unwrap();
    let config = TrackConfig {
        label: "track".to_owned(),
        table: "pipeline_tracking".to_owned(),
        stages: STAGES.map(|stage| (stage.into(), Some(5))).to_vec(),
        create_tables: true,
        pipeline: "shop".to_owned(),
        log: LogIdentity::Known("log".to_owned()),
        owner: owner.to_owned(),
        keep: None,
    };
    tracker("tracking", &connections, config).unwrap()
}

fn file(seal: &str, slice: &str, shard: u32) -> NewFile {
    NewFile { seal: seal.to_owned(), slice: slice.to_owned(), shard, shards: 2 }
}

/// Tried one by one, names that are taken cost more time than a step may take, and it begins anew for ever.
async fn a_slice_may_have_thousands_of_names(system: System) {
    let (tracking, tracker) = Tracking::new(system).await;
    const TAKEN: usize = 20_000;
    const FREE: usize = 7;
    let name = |number: usize| match number {
        0 => SLICE.to_owned(),
        number => format!("{SLICE}.{number}"),
    };
    let all: Vec<usize> = (0..TAKEN).collect();
    for some in all.chunks(1_000) {
        let rows: Vec<String> =
            some.iter().map(|number| format!("('{}', 'started', 0)", name(*number))).collect();
        let insert = "INSERT INTO pipeline_tracking (filename, ingest_status, shard) VALUES ";
        tracking.run(&(insert.to_owned() + &rows.join(", ")));
        let row = |number: &usize| {
            // Made for the sake of another shard, and free for this one.
            let seal = if *number == FREE { "NULL".to_owned() } else { format!("'seal-{number}'") };
            format!("('{}', 0, 'shop', 'log', 2, {seal})", name(*number))
        };
        let rows: Vec<String> = some.iter().map(row).collect();
        let insert =
            "INSERT INTO potok_tracking (filename, shard, pipeline, log, shards, seal) VALUES ";
        tracking.run(&(insert.to_owned() + &rows.join(", ")));
    }
    let mut named = Vec::new();
    for seal in ["one", "two", "three", "two"] {
        named.push(tracker.name(&file(seal, SLICE, 0)).await.unwrap().to_string());
    }
    assert_eq!(named, [name(FREE), name(TAKEN), name(TAKEN + 1), name(TAKEN)]);
    assert_eq!(&*tracker.name(&file("other", SLICE, 1)).await.unwrap(), SLICE, "of another shard");
}

async fn names_of_others_are_passed_over(system: System) {
    let (tracking, tracker) = Tracking::new(system).await;
    tracking.run(&format!(
        "INSERT INTO pipeline_tracking (filename, shard) VALUES ('{SLICE}', 0), ('{SLICE}.2', 1)"
    ));
    tracking.run(&format!(
        "INSERT INTO potok_tracking (filename, shard, pipeline, log, shards) VALUES ('{SLICE}.3', 0, \
         'shop', 'other log', 2)"
    ));
    let first = tracker.name(&file("first", SLICE, 0)).await.unwrap();
    assert_eq!(&*first, format!("{SLICE}.1"));
    // The other shard has its row there, made with the first one's.
    assert_eq!(tracker.name(&file("beside", SLICE, 1)).await.unwrap(), first);
    // Somebody removes the row of a file that is open: its name is still its own.
    tracking.run(&format!("DELETE FROM pipeline_tracking WHERE filename = '{first}'"));
    let second = tracker.name(&file("second", SLICE, 0)).await.unwrap();
    assert_eq!(&*second, format!("{SLICE}.4"));
    assert_eq!(tracker.name(&file("first", SLICE, 0)).await.unwrap(), first);
    // A name in which there is something else is no name of the slice.
    tracking.run(&format!(
        "INSERT INTO pipeline_tracking (filename, shard) VALUES ('{SLICE}.05', 0), ('{SLICE}x', 0)"
    ));
    let third = tracker.name(&file("third", SLICE, 0)).await.unwrap();
    assert_eq!(&*third, format!("{SLICE}.5"));
}

/// Has every move of a stage noted.
fn audit(tracking: &Tracking) {
    tracking.run("CREATE TABLE moves (was VARCHAR(8), is_now VARCHAR(8))");
    for stage in STAGES {
        let (was, is_now) = (format!("OLD.{stage}_status"), format!("NEW.{stage}_status"));
        let head = format!("CREATE TRIGGER audit_{stage} AFTER UPDATE ON pipeline_tracking");
        tracking.run(&tracking.system.pick(
            format!(
                "{head} WHEN {was} <> {is_now} BEGIN INSERT INTO moves VALUES ({was}, {is_now}); END"
            ),
            String::new(),
            format!(
                "{head} FOR EACH ROW INSERT INTO moves SELECT {was}, {is_now} FROM (SELECT 1) one WHERE \
                 {was} <> {is_now}"
            ),
        ));
    }
}

fn states(rows: &[TrackedFile], shard: i64) -> Vec<String> {
    let row = rows.iter().find(|row| row.shard == shard).unwrap();
    row.stages.iter().map(|stage| stage.state.clone()).collect()
}

/// The state of a stage of which somebody says that it is at least at `said`.
fn at_least(was: &str, said: StageState) -> &'static str {
    if was == "done" { "done" } else { said.word() }
}

/// A model of one row: every step after every other, by the owner and by one that took over, or is
/// none any more.
async fn a_step_says_at_least_so_far_whoever_makes_it_again(system: System) {
    let (tracking, first) = Tracking::new(system).await;
    let second = tracking.tracker("b");
    second.prepare().await.unwrap();
    audit(&tracking);
    let all: Vec<(usize, StageState)> = (0..STAGES.len())
        .flat_map(|stage| STATES.into_iter().map(move |state| (stage, state)))
        .collect();
    let pairs = all.iter().flat_map(|one| all.iter().map(move |other| [*one, *other]));
    for (number, pair) in pairs.enumerate() {
        let of = file(&format!("seal-{number}"), SLICE, 0);
        let name = first.name(&of).await.unwrap();
        let step = |(stage, state): (usize, StageState), counts: Option<FileCounts>| {
            let error = (state == StageState::Failed).then(|| "why".to_owned());
            let facts = FileFacts { counts, error, ..FileFacts::default() };
            TrackStep { file: name.clone(), of: of.clone(), stage, state, facts }
        };
        let ask = FilesAsk::Named(name.to_string());
        let mut model = ["started", "new", "new"].map(str::to_owned);
        for (owner, (stage, state)) in [&first, &second].into_iter().zip(pair) {
            owner.advance(&step((stage, state), None)).await.unwrap();
            model[..stage].fill("done".to_owned());
            model[stage] = at_least(&model[stage], state).to_owned();
            assert_eq!(states(&owner.list(&ask).await.unwrap(), 0), model, "{pair:?}");
        }
        let last = (STAGES.len() - 1, StageState::Done);
        first.advance(&step(last, Some(FileCounts::default()))).await.unwrap();
        second.advance(&step(pair[0], None)).await.unwrap();
        let rows = second.list(&ask).await.unwrap();
        assert_eq!(states(&rows, 0), ["done"; 3], "nothing leaves `done`: {pair:?}");
        assert_eq!(states(&rows, 1), ["started", "new", "new"], "of the other shard");
    }
    let legal = ["new, started", "started, done", "started, failed", "failed, new"];
    for moved in tracking.run("SELECT DISTINCT was, is_now FROM moves") {
        assert!(legal.contains(&moved.as_str()), "{moved}");
    }
    assert_eq!(first.foreign_moves() + second.foreign_moves(), 0);
}

/// The naive version shows the newest, and leaves out those that have been stuck for longest.
async fn what_is_stuck_for_longest_comes_first(system: System) {
    let (tracking, tracker) = Tracking::new(system).await;
    for (slice, minutes) in [("20250101000000", 10), ("20250101000010", 30), ("20250101000020", 20)]
    {
        tracker.name(&file(slice, slice, 0)).await.unwrap();
        let ago = tracking.system.pick(
            format!("datetime('now', '-{minutes} minutes')"),
            String::new(),
            format!("NOW() - INTERVAL {minutes} MINUTE"),
        );
        tracking.run(&format!(
            "UPDATE pipeline_tracking SET updated_at = {ago} WHERE filename = '{slice}' AND shard = 0"
        ));
    }
    let stuck = tracker.list(&FilesAsk::Stuck(2)).await.unwrap();
    let stuck: Vec<_> = stuck.iter().map(|row| (row.filename.as_str(), row.shard)).collect();
    assert_eq!(stuck, [("20250101000010", 0), ("20250101000020", 0)]);
    assert_eq!(tracker.list(&FilesAsk::Stuck(9)).await.unwrap().len(), 3);
}

/// Berlin in 2026, as the tables of a server have it.
const BERLIN: [&str; 4] = [
    "INSERT INTO mysql.time_zone (Time_zone_id, Use_leap_seconds) VALUES (77, 'N')",
    "INSERT INTO mysql.time_zone_name (Name, Time_zone_id) VALUES ('Test/Berlin', 77)",
    "INSERT INTO mysql.time_zone_transition_type (Time_zone_id, Transition_type_id, `Offset`, Is_DST, \
     Abbreviation) VALUES (77, 0, 3600, 0, 'CET'), (77, 1, 7200, 1, 'CEST')",
    "INSERT INTO mysql.time_zone_transition (Time_zone_id, Transition_time, Transition_type_id) VALUES \
     (77, 1761440400, 0), (77, 1774746000, 1), (77, 1792890000, 0)",
];

/// The switch to summer time of 2026, and back.
const SPRING: i64 = 1_774_746_000;
const AUTUMN: i64 = 1_792_890_000;

/// A server that still gives a second TIMESTAMP a default of zero, in a zone with summer time. What the
/// table has are moments, so sessions in UTC, potok's among them, count minutes right at the switches as
/// well; one that has such a zone itself is an hour off at them, as the guide says.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn minutes_are_right_where_clocks_change() {
    let server = Server::start(System::Mariadb, &[("explicit_defaults_for_timestamp", "0")], false);
    BERLIN.iter().for_each(|sql| drop(server.admin(sql)));
    server.admin("SET GLOBAL time_zone = 'Test/Berlin'");
    let folder = tempfile::tempdir().unwrap();
    let tracker = tracker_at(server.url(), &folder, "a");
    tracker.prepare().await.unwrap();
    let name = tracker.name(&file("seal", SLICE, 0)).await.unwrap();
    let row =
        "SELECT finished_at, ingest_started_at, sender_done_at FROM potok_tracking WHERE shard = 0";
    assert_eq!(server.admin(row), ["NULL, NULL, NULL"]);
    let created = server.admin("SHOW CREATE TABLE pipeline_tracking")[0].to_lowercase();
    assert!(!created.contains("0000-00-00") && created.contains("on update current_timestamp"));
    // The documented way to make a row, and to move it.
    let changed = |at: i64, state: &str| {
        server.admin(&format!(
            "SET timestamp = {at}; UPDATE pipeline_tracking SET worker_status = '{state}' WHERE filename \
             = '{name}' AND shard = 0"
        ));
    };
    let minutes = |zone: &str, at: i64| {
        let ask = format!(
            "SET time_zone = '{zone}'; SET timestamp = {at}; SELECT TIMESTAMPDIFF(MINUTE, updated_at, \
             NOW()) FROM pipeline_tracking WHERE shard = 0"
        );
        server.admin(&ask)[0].parse::<i64>().unwrap()
    };
    for (at, state) in
        [(SPRING - 30, "started"), (AUTUMN - 30, "new"), (SPRING + 86_400, "started")]
    {
        changed(at, state);
        for (seconds, wanted) in [(60, 1), (359, 5), (360, 6), (7_200, 120)] {
            for zone in ["+00:00", "+02:00", "-05:00"] {
                assert_eq!(minutes(zone, at + seconds), wanted, "{zone}, {seconds} s later");
            }
        }
        let off = match at - at % 86_400 {
            day if day == SPRING - SPRING % 86_400 => 60,
            day if day == AUTUMN - AUTUMN % 86_400 => -60,
            _ => 0,
        };
        assert_eq!(minutes("Test/Berlin", at + 360), 6 + off);
    }
    // By potok's own session, whatever zone the server has.
    server.admin(
        "SET timestamp = DEFAULT; UPDATE pipeline_tracking SET ingest_status = 'done', worker_status = \
         'started', updated_at = FROM_UNIXTIME(UNIX_TIMESTAMP() - 361) WHERE shard = 0",
    );
    let stuck = tracker.list(&FilesAsk::Stuck(9)).await.unwrap();
    assert_eq!(stuck.iter().map(|row| row.minutes).collect::<Vec<_>>(), [6]);
    assert!(stuck[0].updated_at.starts_with("20"), "{}", stuck[0].updated_at);
}
