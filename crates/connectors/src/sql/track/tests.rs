//! A tracker on SQLite, by itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use potok_core::{
    Fault, FileFacts, FilesAsk, NewFile, StageLoad, StageState, StageTotals, TrackStep, Tracker,
};

use super::{LogIdentity, TrackConfig};
use crate::sql::{DatabaseLocation, database};

const STAGES: [&str; 3] = ["ingest", "worker", "sender"];

fn tracker(data_dir: &Path, owner: &str) -> Arc<dyn Tracker> {
    let place = DatabaseLocation { name: "tracking", location: None, data_dir };
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
    let open = database(&place, "track").unwrap().track.unwrap();
    open(&place, config).unwrap()
}

fn file(seal: &str, slice: &str, shard: u32) -> NewFile {
    NewFile { seal: seal.to_owned(), slice: slice.to_owned(), shard, shards: 2 }
}

/// An owner that is no owner any more and the next one, or a call whose answer was lost and its repeat.
/// The naive version looks once whether the seal has a name, and then takes the next one that is free:
/// the second stops at the key of the seals, for a person to look at.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_seal_has_one_name_whoever_asks_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let owners = [tracker(folder.path(), "a"), tracker(folder.path(), "b")];
    for owner in &owners {
        owner.prepare().await.unwrap();
    }
    for number in 0..40 {
        // Seals of one slice, so that its first names are taken by others of ours.
        let of = file(&format!("seal-{number}"), "20250101000000", 0);
        let asked = owners.iter().cycle().take(6).map(|owner| {
            let (owner, of) = (owner.clone(), of.clone());
            tokio::spawn(async move { owner.name(&of).await })
        });
        let asked: Vec<_> = asked.collect();
        let mut names = Vec::new();
        for asked in asked {
            names.push(asked.await.unwrap().unwrap());
        }
        names.dedup();
        assert_eq!(names.len(), 1, "{names:?}");
    }
}

#[tokio::test]
async fn a_stage_has_what_the_one_before_is_done_with() {
    let folder = tempfile::tempdir().unwrap();
    let tracker = tracker(folder.path(), "a");
    tracker.prepare().await.unwrap();
    for slice in ["20250101000010", "20250101000000"] {
        let of = file(slice, slice, 0);
        let name = tracker.name(&of).await.unwrap();
        let facts = FileFacts::default();
        let step = TrackStep { file: name, of, stage: 0, state: StageState::Done, facts };
        tracker.advance(&step).await.unwrap();
    }
    let queue = async |stage, limit, offset| -> Vec<(String, i64)> {
        let rows = tracker.list(&FilesAsk::Queue { stage, limit, offset }).await.unwrap();
        rows.into_iter().map(|row| (row.filename, row.shard)).collect()
    };
    let first = ("20250101000000".to_owned(), 0);
    let second = ("20250101000010".to_owned(), 0);
    assert_eq!(queue(1, 10, 0).await, [first, second.clone()], "the oldest first");
    assert_eq!(queue(1, 1, 1).await, [second]);
    assert_eq!(queue(0, 10, 0).await, []);
    assert_eq!(queue(2, 10, 0).await, []);
    let totals = tracker.stage_totals().await.unwrap();
    let total = |stage: &str, shard| {
        let of = |total: &&StageTotals| &*total.stage == stage && total.shard == shard;
        let total = totals.iter().find(of).unwrap();
        (total.new, total.started, total.done, total.failed)
    };
    assert_eq!((total("ingest", 0), total("ingest", 1)), ((0, 0, 2, 0), (0, 2, 0, 0)));
    assert_eq!((total("worker", 0), total("sender", 1)), ((2, 0, 0, 0), (2, 0, 0, 0)));
}

async fn advance(
    tracker: &Arc<dyn Tracker>,
    of: NewFile,
    stage: usize,
    state: StageState,
) -> Result<(), Fault> {
    let file = tracker.name(&of).await?;
    let facts = FileFacts::default();
    tracker.advance(&TrackStep { file, of, stage, state, facts }).await
}

/// Naive: steps that share a transaction fail together, and a row that the table refuses holds up the
/// files of all shards.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_refused_step_holds_up_no_other_that_is_made_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let tracker = tracker(folder.path(), "a");
    tracker.prepare().await.unwrap();
    let slice = |number: u32| format!("202501010000{number:02}");
    for number in 0..20 {
        for shard in 0..2 {
            let seal = format!("{number}/{shard}");
            tracker.name(&file(&seal, &slice(number), shard)).await.unwrap();
        }
    }
    let table = rusqlite::Connection::open(folder.path().join("db/tracking.sqlite")).unwrap();
    table.busy_timeout(Duration::from_secs(10)).unwrap();
    let refuse = "CREATE TRIGGER refused BEFORE UPDATE ON pipeline_tracking WHEN NEW.shard = 1 BEGIN \
                  SELECT RAISE(ABORT, 'not this one'); END";
    table.execute_batch(refuse).unwrap();
    // They queue up behind this, and are made together.
    table.execute_batch("BEGIN IMMEDIATE").unwrap();
    let steps = (0..20).flat_map(|number| [(number, 0), (number, 1)]);
    let steps = steps.map(|(number, shard)| {
        let (tracker, of) =
            (tracker.clone(), file(&format!("{number}/{shard}"), &slice(number), shard));
        let file = of.slice.as_str().into();
        let facts = FileFacts::default();
        let step = TrackStep { file, of, stage: 1, state: StageState::Started, facts };
        (shard, tokio::spawn(async move { tracker.advance(&step).await }))
    });
    let steps: Vec<_> = steps.collect();
    tokio::task::yield_now().await;
    table.execute_batch("ROLLBACK").unwrap();
    for (shard, step) in steps {
        let made = step.await.unwrap();
        assert_eq!(made.is_ok(), shard == 0, "{made:?}");
        assert!(made.err().is_none_or(|fault| fault.to_string().contains("not this one")));
    }
    let started = "SELECT COUNT(*) FROM pipeline_tracking WHERE worker_status = 'started'";
    let started: i64 = table.query_row(started, [], |row| row.get(0)).unwrap();
    assert_eq!(started, 20);
}

#[tokio::test]
async fn rows_without_records_end_together_and_what_was_taken_stays() {
    let folder = tempfile::tempdir().unwrap();
    let tracker = tracker(folder.path(), "a");
    tracker.prepare().await.unwrap();
    for number in 0..5 {
        let slice = format!("2025010100000{number}");
        tracker.name(&file(&slice, &slice, 0)).await.unwrap();
    }
    let mut empty = tracker.unclaimed().await.unwrap();
    empty.sort();
    assert_eq!(empty.len(), 5);
    // A group has taken one meanwhile.
    tracker.name(&file("late", "20250101000002", 1)).await.unwrap();
    tracker.sweep(&empty).await.unwrap();
    assert!(tracker.unclaimed().await.unwrap().is_empty());
    let totals = tracker.totals().await.unwrap();
    let of: Vec<_> = totals.iter().map(|of| (of.shard, of.total, of.completed)).collect();
    assert_eq!(of, [(0, 5, 0), (1, 5, 4)]);
}

#[tokio::test]
async fn the_load_of_a_stage_is_what_is_not_through() {
    let folder = tempfile::tempdir().unwrap();
    let tracker = tracker(folder.path(), "a");
    tracker.prepare().await.unwrap();
    for (slice, stage, state) in [
        ("20250101000000", 2, StageState::Done),
        ("20250101000010", 1, StageState::Started),
        ("20250101000020", 1, StageState::Failed),
    ] {
        advance(&tracker, file(slice, slice, 0), stage, state).await.unwrap();
    }
    let table = rusqlite::Connection::open(folder.path().join("db/tracking.sqlite")).unwrap();
    let old = "UPDATE pipeline_tracking SET updated_at = datetime('now', '-90 seconds') WHERE filename = \
               '20250101000010'";
    table.execute_batch(old).unwrap();
    let load = tracker.load().await.unwrap();
    let of = |stage: &str, shard, state: &str| {
        let is_it = |load: &&StageLoad| {
            (&*load.stage, load.shard, load.state.as_str()) == (stage, shard, state)
        };
        load.iter().find(is_it).map(|load| (load.files, load.seconds >= 90))
    };
    assert_eq!(of("worker", 0, "started"), Some((1, true)));
    assert_eq!(of("worker", 0, "failed"), Some((1, false)));
    assert_eq!(of("worker", 0, "new"), None);
    assert_eq!(of("sender", 0, "new"), Some((2, true)));
    assert_eq!(of("ingest", 1, "started"), Some((3, true)));
    assert_eq!(of("ingest", 0, "started"), None);
}

#[tokio::test]
async fn files_are_listed_a_part_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let tracker = tracker(folder.path(), "a");
    tracker.prepare().await.unwrap();
    for second in 0..9 {
        let slice = format!("2025010100000{second}");
        let of = file(&slice, &slice, 0);
        let name = tracker.name(&of).await.unwrap();
        // Every other one is done, as far as its own shard is concerned.
        if second % 2 == 0 {
            let (stage, state) = (STAGES.len() - 1, StageState::Done);
            let facts = FileFacts::default();
            tracker.advance(&TrackStep { file: name, of, stage, state, facts }).await.unwrap();
        }
    }
    for (is_unfinished, rows) in [(false, 18), (true, 13)] {
        let (mut found, mut before, mut looks) = (Vec::new(), None, 0);
        loop {
            let ask = FilesAsk::Newest { names: 4, before: before.clone(), is_unfinished };
            let part = tracker.list(&ask).await.unwrap();
            let Some(last) = part.last() else { break };
            assert!(part.len() <= 8, "four names, two shards");
            before = Some(last.filename.clone());
            found.extend(part.into_iter().map(|row| (row.filename, row.shard)));
            looks += 1;
        }
        assert_eq!((found.len(), looks), (rows, 3), "{found:?}");
        assert!(found.is_sorted_by(|one, other| one.0 >= other.0), "the newest first");
    }
    assert_eq!(tracker.list(&FilesAsk::Stuck(5)).await.unwrap().len(), 0);
}
