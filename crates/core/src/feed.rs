//! Records that do not come from the log: a queue in Redis, an outbox table, a folder of files.
//!
//! Outputs always go to the log. Progress goes back to where the record came from: a consumer
//! group writes both in one transaction, a feed is told once the outputs are durable.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    CloseReason, EndedOffsets, Fault, FeedLetters, Log, OutboxControl, Output, Partition,
    PipelineInfo, Reason, Source, Timestamp,
};

/// A place that hands out records and remembers which of them have ended.
#[async_trait]
pub trait Feed: Send + Sync {
    /// Its optional abilities; the least is to hand out records and to remember their end.
    fn abilities(&self) -> FeedAbilities {
        FeedAbilities::default()
    }

    /// Starts handing out records. Where several processes open one feed, no record is handed out
    /// to two of them at a time. `log` is for feeds that keep their progress in a topic.
    async fn open(&self, info: &PipelineInfo, log: Arc<dyn Log>) -> Result<OpenFeed, Fault>;

    /// Waits until what was opened has let go of what other processes wait for, such as a lease. Called
    /// by a process that stops, when its source and its progress have been dropped; may be given up.
    async fn closed(&self) {}

    /// The number of records that wait there now, for `status`. Does not disturb the work.
    async fn backlog(&self) -> Result<Backlog, Fault>;

    /// Whether it is there and fit for use, for whoever asks before anything runs; what somebody
    /// should know about it. Changes nothing.
    async fn check(&self) -> Result<Vec<String>, Fault> {
        Ok(Vec::new())
    }

    /// Events besides records and their end, counted since it was built, each under a
    /// name: for `status` and metrics.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// The groups that wait there, for people to see and to close, where it closes groups itself.
    fn groups(&self) -> Option<Arc<dyn FeedGroups>> {
        None
    }

    /// The records that it set aside, where it keeps them itself.
    fn letters(&self) -> Option<&dyn FeedLetters> {
        None
    }

    /// The table that it relays, where it is one.
    fn outbox(&self) -> Option<&dyn OutboxControl> {
        None
    }
}

/// The groups that wait in a feed.
#[async_trait]
pub trait FeedGroups: Send + Sync {
    /// Up to so many of them, those that close first in front, behind the first `skip`; and how many
    /// there are.
    async fn list(&self, skip: u64, most: usize) -> Result<(u64, Vec<FeedGroup>), Fault>;

    /// The groups of one key.
    async fn of_key(&self, key: &[u8]) -> Result<Vec<FeedGroup>, Fault>;

    /// Closes the open group of a key now for that reason; false where there is none. Only what is in
    /// it by then leaves.
    async fn close(&self, key: &[u8], reason: CloseReason) -> Result<bool, Fault>;
}

/// A group that waits in a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedGroup {
    /// The group's key as the feed has it: bytes of any kind.
    pub key: Bytes,
    /// Tells it from other groups of that key.
    pub generation: String,
    /// A process has it and delivers it.
    pub is_delivering: bool,
    /// Its records, as far as known.
    pub records: u64,
    /// When its first record came.
    pub opened: Option<Timestamp>,
    /// When it closes; `None` where another program decides.
    pub due: Option<Timestamp>,
    /// Why it closed, once it has.
    pub reason: Option<CloseReason>,
    /// The lane or process that works on it.
    pub owner: String,
    /// How often it changed hands.
    pub attempts: u64,
}

/// The optional abilities of a feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedAbilities {
    /// A record that failed is put off and comes again later ([`PostponedRecord`]); after so many attempts the
    /// feed keeps it itself ([`SetAside`]). Without it such a record becomes a dead letter of the
    /// pipeline.
    pub puts_off: Option<Attempts>,
    /// Batches are groups that the feed has closed itself ([`crate::WholeGroup`]).
    pub comes_whole: bool,
}

/// How often a record of a feed is tried, and how long it waits in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts {
    /// A record that failed so often is set aside.
    pub limit: u32,
    /// The wait after the first failure; doubled after each further one, and varied a little.
    pub first: Duration,
    /// The longest wait.
    pub max: Duration,
}

/// The records that wait in a feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Records that have not ended.
    pub records: u64,
    /// When the oldest of them came.
    pub oldest: Option<Timestamp>,
    /// Groups they are in, where the feed groups them.
    pub groups: Option<u64>,
}

/// An opened feed.
pub struct OpenFeed {
    /// Its records. An assignment is whatever the feed hands out together: a lease of a table, a
    /// claimed group, a file.
    pub source: Box<dyn Source>,
    /// Where their end is noted.
    pub progress: Arc<dyn Progress>,
}

/// Remembers, durably, what the records of a feed became.
#[async_trait]
pub trait Progress: Send + Sync {
    /// Records for the log that are written in the same transaction as the outputs. For feeds
    /// that have no transactional home of their own.
    fn in_log(&self, _commit: &FeedCommit) -> Vec<Output> {
        Vec::new()
    }

    /// Called when the outputs are durable, one call at a time and in order. Repeating a call changes
    /// nothing; what belongs to a foreign or earlier assignment is ignored. One call is one attempt:
    /// after a fault it is repeated until it succeeds, `Fix` stops the pipeline.
    async fn commit(&self, commit: &FeedCommit) -> Result<(), Fault>;
}

/// The outcomes of a feed's records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedCommit {
    /// These have ended.
    pub ended: Vec<EndedOffsets>,
    /// These have not: each comes again at its time, and nothing of its key before it. Only where
    /// the feed [puts off](FeedAbilities::puts_off).
    pub put_off: Vec<PostponedRecord>,
    /// These have ended as dead letters, which the feed keeps where it wants. Only where it puts off.
    pub set_aside: Vec<SetAside>,
    /// These have not: they come again as soon as possible, in order.
    pub given_back: Vec<EndedOffsets>,
}

impl FeedCommit {
    /// True when there is nothing to note.
    pub fn is_empty(&self) -> bool {
        let FeedCommit { ended, put_off, set_aside, given_back } = self;
        ended.is_empty() && put_off.is_empty() && set_aside.is_empty() && given_back.is_empty()
    }
}

/// A record that failed and is tried again later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostponedRecord {
    /// The partition it was handed out in.
    pub partition: Partition,
    /// The assignment it was handed out under.
    pub assignment: u64,
    /// Where it lies in its partition, from 0.
    pub offset: u64,
    /// How often it has failed, this time included where it counts: a topic that takes nothing while
    /// no other does either may be an outage.
    pub attempt: u32,
    /// How long it is kept back from now on, by the clock of the feed.
    pub wait: Duration,
    /// The error, for people.
    pub error: String,
}

/// A record that failed for the last time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAside {
    /// The partition it was handed out in.
    pub partition: Partition,
    /// The assignment it was handed out under.
    pub assignment: u64,
    /// Where it lies in its partition, from 0.
    pub offset: u64,
    /// How often it has failed, this time included.
    pub attempt: u32,
    /// Why, for counting and filtering.
    pub reason: Reason,
    /// The error, for people.
    pub error: String,
}
