//! A tracker on SQLite, by itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::sync::Arc;

use potok_core::{FileFacts, FilesAsk, NewFile, StageState, StageTotals, TrackStep, Tracker};

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
