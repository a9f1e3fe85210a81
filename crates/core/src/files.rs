//! Closed groups as files, and the table that shows how far each of them has come.
//!
//! Neither is the truth: that is the log. A file can be written again, and what the table says is
//! true because of the order in which it is told: rows are committed, then the table says `done`,
//! then the records end in the log.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde::Serialize;

use crate::Fault;

/// Writes closed groups as files, each whole or not at all.
#[async_trait]
pub trait GroupFiles: Send + Sync {
    /// Writes a file and syncs it. True where it is there with exactly this content, now or from an
    /// earlier attempt; false where the name has other content, which stays as it is. Repeatable:
    /// called again after a fault or a crash.
    async fn write(&self, shard: u32, name: &str, content: Bytes) -> Result<bool, Fault>;

    /// Removes files that are older than they are kept, and what crashes have left over, of the
    /// shards that `mine` wants. Files in `waiting` stay. Called now and then; a fault is logged.
    async fn expire(
        &self,
        mine: &(dyn Fn(u32) -> bool + Sync),
        waiting: &HashSet<(u32, Arc<str>)>,
    ) -> Result<(), Fault>;

    /// Where a file is, for people.
    fn place(&self, shard: u32, name: &str) -> String;
}

/// How far a file is with one stage. Legal moves: new → started → done, started → failed,
/// failed → new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StageState {
    /// Not begun.
    New,
    /// Under way, or waiting for something.
    Started,
    /// Ended well.
    Done,
    /// Somebody has to mend something.
    Failed,
}

impl StageState {
    /// As the table has it.
    pub fn word(self) -> &'static str {
        match self {
            StageState::New => "new",
            StageState::Started => "started",
            StageState::Done => "done",
            StageState::Failed => "failed",
        }
    }
}

/// A sealed group that needs a name.
#[derive(Clone, Debug)]
pub struct NewFile {
    /// The position of its seal: the same for whoever asks again.
    pub seal: String,
    /// The name that its slice has: `YYYYMMDDHHMMSS`.
    pub slice: String,
    /// The shard that the file is for, counted from 0.
    pub shard: u32,
    /// How many shards there are: each gets a row.
    pub shards: u32,
}

/// One step of a tracked file: everything before `stage` is done, and `stage` is at least at `state`.
#[derive(Clone, Debug)]
pub struct TrackStep {
    /// Its name.
    pub file: Arc<str>,
    /// Its group.
    pub of: NewFile,
    /// By its place in [`Tracker::stages`].
    pub stage: usize,
    /// The state of that stage.
    pub state: StageState,
    /// Facts known by now.
    pub facts: FileFacts,
}

/// Facts about a file besides the states of its stages; `None` changes nothing.
#[derive(Clone, Debug, Default)]
pub struct FileFacts {
    /// Records in it.
    pub records: Option<u64>,
    /// SHA-256 of its content.
    pub hash: Option<String>,
    /// The outcomes of its records. With them the file has ended.
    pub counts: Option<FileCounts>,
    /// The failure of a stage, for people.
    pub error: Option<String>,
    /// One more attempt to deliver it begins.
    pub attempt: bool,
}

/// The outcomes of a file's records. A record that an earlier attempt has written counts as a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileCounts {
    /// Rows of this file.
    pub rows: u64,
    /// Records that were there already, from another place.
    pub duplicates: u64,
    /// Records that a stage filtered.
    pub filtered: u64,
    /// Dead letters.
    pub dead: u64,
}

/// A row of the table.
#[derive(Clone, Debug, Serialize)]
pub struct TrackedFile {
    /// Its name.
    pub filename: String,
    /// The shard that the row belongs to, counted from 0.
    pub shard: i64,
    /// The state of each stage, in order.
    pub stages: Vec<TrackedStage>,
    /// When a state last changed, by the database's clock, in UTC.
    pub updated_at: String,
    /// The pipeline that made the row; none where another program did.
    pub pipeline: Option<String>,
    /// The position of its seal; none of a shard without records, and of other programs' rows.
    pub seal: Option<String>,
    /// The process that worked on it last.
    pub owner: Option<String>,
    /// When the last stage was done, in UTC.
    pub finished_at: Option<String>,
    /// Records in the file.
    pub records: Option<u64>,
    /// The outcomes of its records.
    pub counts: Option<FileCounts>,
    /// How often it was tried to deliver it.
    pub attempts: u64,
    /// The last error.
    pub error: Option<String>,
    /// SHA-256 of its content.
    pub hash: Option<String>,
    /// For how many whole minutes its state has been the same, by the database's clock.
    pub minutes: i64,
}

/// One stage of a row.
#[derive(Clone, Debug, Serialize)]
pub struct TrackedStage {
    /// Its name.
    pub stage: Arc<str>,
    /// Its state, as the table has it.
    pub state: String,
    /// When potok began with it, in UTC.
    pub started_at: Option<String>,
    /// When potok was done with it, in UTC.
    pub done_at: Option<String>,
}

/// Which rows somebody wants to see.
#[derive(Clone, Debug)]
pub enum FilesAsk {
    /// The files of the newest so many names.
    Newest {
        /// So many at most.
        names: u32,
        /// Only names that are older than this one: where an earlier answer stopped.
        before: Option<String>,
        /// Only files with a stage that is not done.
        is_unfinished: bool,
    },
    /// The files of one name.
    Named(String),
    /// Files with a stage that has been `started` for longer than it should take; so many at most, those
    /// first that have been as they are for longest.
    Stuck(u32),
    /// Files that a stage may begin with, oldest first: the stage before is done and it is `new`.
    Queue {
        /// By its place in [`Tracker::stages`].
        stage: usize,
        /// So many at most.
        limit: u32,
        /// Behind so many.
        offset: u32,
    },
}

/// How many rows of a shard are where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShardTotals {
    /// The shard these rows belong to, counted from 0.
    pub shard: i64,
    /// Rows in all.
    pub total: u64,
    /// Files whose last stage is done.
    pub completed: u64,
    /// Files whose last stage is started.
    pub processing: u64,
    /// Files whose last stage has failed.
    pub failed: u64,
}

/// How many rows of one shard are where with one stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StageTotals {
    /// The stage as the pipeline file names it.
    pub stage: Arc<str>,
    /// The shard of these rows, counted from 0.
    pub shard: i64,
    /// Rows that the stage has not begun with.
    pub new: u64,
    /// Rows that it works on, or that wait in it.
    pub started: u64,
    /// Rows that it is through with.
    pub done: u64,
    /// Rows for which somebody has to mend something.
    pub failed: u64,
}

/// Files of one shard that are not through all stages: how many of them are where with one stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StageLoad {
    /// The stage as the pipeline file names it.
    pub stage: Arc<str>,
    /// The shard that these rows belong to, counted from 0.
    pub shard: i64,
    /// `new`, `started` or `failed`.
    pub state: String,
    /// How many files.
    pub files: u64,
    /// For how long the oldest of them has been as it is: seconds, by the database's clock.
    pub seconds: u64,
}

/// Shows in a table how far files have come. One call is one attempt and one transaction: after a
/// fault the same call is made again, and finds what is there. It grants nothing: who works on a
/// file is decided by the log.
#[async_trait]
pub trait Tracker: Send + Sync {
    /// The tracked stages, in order.
    fn stages(&self) -> &[Arc<str>];

    /// Creates the tables where asked, and checks that they fit. Repeatable; called before
    /// anything else, by each lane.
    async fn prepare(&self) -> Result<(), Fault>;

    /// Says what [`Tracker::prepare`] would refuse, and makes nothing.
    async fn check(&self) -> Result<(), Fault>;

    /// The name of a sealed group: the one it has, else the first that is free. All shards get a
    /// row, with the first stage `started`.
    async fn name(&self, file: &NewFile) -> Result<Arc<str>, Fault>;

    /// Lifts a row by legal moves. What is beyond it already stays; a row that has ended is not
    /// touched; one that is gone is made again.
    async fn advance(&self, step: &TrackStep) -> Result<(), Fault>;

    /// Rows that no sealed group has: shards without records, so far.
    async fn unclaimed(&self) -> Result<Vec<(Arc<str>, u32)>, Fault>;

    /// Ends such rows, all stages done with no records, except those that a group has taken meanwhile.
    async fn sweep(&self, rows: &[(Arc<str>, u32)]) -> Result<(), Fault>;

    /// Rows for people, newest first where the question says nothing else.
    async fn list(&self, ask: &FilesAsk) -> Result<Vec<TrackedFile>, Fault>;

    /// How many rows of each shard are where.
    async fn totals(&self) -> Result<Vec<ShardTotals>, Fault>;

    /// The same, stage by stage.
    async fn stage_totals(&self) -> Result<Vec<StageTotals>, Fault>;

    /// What files that are not through all stages are at. Costs no more than these files do, where the
    /// database has an index for them.
    async fn load(&self) -> Result<Vec<StageLoad>, Fault>;

    /// Puts what has failed back to `new`, as a person may: of one file, in one shard or in all.
    /// Says how many stages that were. Whoever has the file tries it again.
    async fn retry(&self, file: &str, shard: Option<u32>) -> Result<u64, Fault>;

    /// Removes rows of files that ended longer ago than they are kept, a bounded number; says how
    /// many. Nothing where they are kept for ever. Called now and then.
    async fn expire(&self) -> Result<u64, Fault>;

    /// How often somebody else had moved a row of ours, as far as this process has seen it.
    fn foreign_moves(&self) -> u64;
}
