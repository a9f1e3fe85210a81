//! Tables of databases, as far as pages see them: an outbox that answers or does not, and files that
//! are tracked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use potok_core::{
    Backlog, FailingRow, Fault, Feed, FeedLetter, FeedLetters, FilesAsk, Headers, LetterCount, Log,
    NewFile, OpenFeed, OutboxControl, OutboxCounts, OutboxStatus, PipelineInfo, Reason, Record,
    ShardTotals, StageLoad, StageTotals, Timestamp, TrackStep, TrackedFile, TrackedStage, Tracker,
};

/// An outbox with one dead row and one key that fails.
#[derive(Default)]
pub struct OutboxDouble {
    /// The database takes connections and says nothing.
    pub hangs: AtomicBool,
    /// What is wrong with its rows.
    pub error: String,
}

impl OutboxDouble {
    async fn answers(&self) {
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending().await
        }
    }

    fn letter(&self) -> FeedLetter {
        FeedLetter {
            id: "17".to_owned(),
            record: Record {
                offset: 0,
                time: Timestamp(1),
                key: Some("k1".into()),
                headers: Headers::none(),
                value: Some("{}".into()),
            },
            origin: "events/0/17@0000000000000001".parse().unwrap(),
            reason: Reason::Invalid,
            error: self.error.clone(),
            attempts: 5,
            time: Timestamp(1_000),
        }
    }
}

#[async_trait]
impl Feed for OutboxDouble {
    async fn open(&self, _: &PipelineInfo, _: Arc<dyn Log>) -> Result<OpenFeed, Fault> {
        Err(Fault::fix("nobody relays it"))
    }

    async fn backlog(&self) -> Result<Backlog, Fault> {
        Ok(Backlog::default())
    }

    fn letters(&self) -> Option<&dyn FeedLetters> {
        Some(self)
    }

    fn outbox(&self) -> Option<&dyn OutboxControl> {
        Some(self)
    }
}

#[async_trait]
impl FeedLetters for OutboxDouble {
    fn place(&self) -> &str {
        "public.outbox_dead"
    }

    async fn count(&self) -> Result<LetterCount, Fault> {
        self.answers().await;
        Ok(LetterCount { letters: 1, newest: Some(Timestamp(1_000)) })
    }

    async fn list(
        &self,
        after: Option<(Timestamp, &str)>,
        _: usize,
    ) -> Result<Vec<FeedLetter>, Fault> {
        self.answers().await;
        Ok(if after.is_none() { vec![self.letter()] } else { Vec::new() })
    }

    async fn find(&self, ids: &[String]) -> Result<Vec<FeedLetter>, Fault> {
        self.answers().await;
        Ok(ids.iter().filter(|id| *id == "17").map(|_| self.letter()).collect())
    }

    async fn replay(&self, ids: &[String]) -> Result<Vec<String>, Fault> {
        Ok(ids.to_vec())
    }

    async fn discard(&self, ids: &[String]) -> Result<Vec<String>, Fault> {
        Ok(ids.to_vec())
    }

    async fn under_way(&self, _: &[String]) -> Result<Vec<String>, Fault> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl OutboxControl for OutboxDouble {
    async fn status(&self) -> Result<OutboxStatus, Fault> {
        self.answers().await;
        let failing = FailingRow {
            id: "18".to_owned(),
            key: self.error.clone(),
            attempt: 3,
            next_seconds: 12.0,
            error: self.error.clone(),
            behind: 2,
        };
        Ok(OutboxStatus {
            table: "public.outbox".to_owned(),
            waiting: 1_234,
            oldest_seconds: Some(75.0),
            rate: Some(12.5),
            dead: 1,
            failing_keys: 1,
            failing: vec![failing],
            owner: None,
        })
    }

    async fn retry(&self, _: Option<&[String]>) -> Result<Vec<String>, Fault> {
        Ok(vec!["18".to_owned()])
    }

    async fn skip(&self, ids: &[String]) -> Result<Vec<String>, Fault> {
        Ok(ids.to_vec())
    }

    fn counts(&self) -> OutboxCounts {
        OutboxCounts::default()
    }
}

/// A tracking table with so many names, two shards each; the newest has failed.
pub struct TrackerDouble {
    pub stages: Vec<Arc<str>>,
    pub names: u32,
    pub error: String,
}

impl TrackerDouble {
    pub fn new(names: u32, error: &str) -> Self {
        let stages = ["ingest", "worker", "sender"].map(Arc::from).to_vec();
        TrackerDouble { stages, names, error: error.to_owned() }
    }

    fn row(&self, number: u32, shard: i64) -> TrackedFile {
        let is_newest = number + 1 == self.names;
        let state = |at: usize| if is_newest && at == 2 { "failed" } else { "done" };
        let stage = |(at, stage): (usize, &Arc<str>)| TrackedStage {
            stage: stage.clone(),
            state: state(at).to_owned(),
            started_at: Some("2025-01-01 00:00:00".to_owned()),
            done_at: Some("2025-01-01 00:00:07".to_owned()),
        };
        TrackedFile {
            filename: format!("202501010{number:05}"),
            shard,
            stages: self.stages.iter().enumerate().map(stage).collect(),
            updated_at: "2025-01-01 00:00:07".to_owned(),
            pipeline: Some("shop".to_owned()),
            seal: None,
            owner: Some("host:1".to_owned()),
            finished_at: None,
            records: Some(1_000),
            counts: None,
            attempts: 2,
            error: is_newest.then(|| self.error.clone()),
            hash: None,
            minutes: 3,
        }
    }
}

#[async_trait]
impl Tracker for TrackerDouble {
    fn stages(&self) -> &[Arc<str>] {
        &self.stages
    }

    async fn prepare(&self) -> Result<(), Fault> {
        Ok(())
    }

    async fn check(&self) -> Result<(), Fault> {
        Ok(())
    }

    async fn name(&self, file: &NewFile) -> Result<Arc<str>, Fault> {
        Ok(file.slice.as_str().into())
    }

    async fn advance(&self, _: &TrackStep) -> Result<(), Fault> {
        Ok(())
    }

    async fn unclaimed(&self) -> Result<Vec<(Arc<str>, u32)>, Fault> {
        Ok(Vec::new())
    }

    async fn sweep(&self, _: &[(Arc<str>, u32)]) -> Result<(), Fault> {
        Ok(())
    }

    async fn list(&self, ask: &FilesAsk) -> Result<Vec<TrackedFile>, Fault> {
        let all = (0..self.names).rev().flat_map(|name| [self.row(name, 0), self.row(name, 1)]);
        Ok(match ask {
            FilesAsk::Newest { names, before, .. } => {
                let older = all.filter(|row| before.as_ref().is_none_or(|at| row.filename < *at));
                older.take(*names as usize * 2).collect()
            }
            FilesAsk::Named(name) => all.filter(|row| row.filename == *name).collect(),
            FilesAsk::Stuck(limit) => all.take(1).take(*limit as usize).collect(),
            FilesAsk::Queue { .. } => Vec::new(),
        })
    }

    async fn totals(&self) -> Result<Vec<ShardTotals>, Fault> {
        let total = u64::from(self.names);
        let of = |shard| ShardTotals { shard, total, completed: total, processing: 0, failed: 1 };
        Ok(vec![of(0), of(1)])
    }

    async fn stage_totals(&self) -> Result<Vec<StageTotals>, Fault> {
        Ok(Vec::new())
    }

    async fn load(&self) -> Result<Vec<StageLoad>, Fault> {
        Ok(Vec::new())
    }

    async fn retry(&self, _: &str, _: Option<u32>) -> Result<u64, Fault> {
        Ok(1)
    }

    async fn expire(&self) -> Result<u64, Fault> {
        Ok(0)
    }

    fn foreign_moves(&self) -> u64 {
        0
    }
}
