//! A consumer group: its records, and the journal of what became of them.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use potok_core::{
    Fault, Journal, NotWritten, OfferMode, OfferOutcome, Output, PartitionEnd, Position, Source,
    SourceEvent, Transaction,
};
use tokio::sync::watch;

use super::handover::Handover;
use super::lock;
use super::progress::GroupProgress;
use super::turns::Turns;
use super::writer::RecordWriter;

/// Enough to write while receipts are on their way.
const OVERLAP: usize = 4;

/// An open group, as the log sees it.
#[derive(Clone)]
pub struct KafkaGroup {
    pub handover: Arc<Handover>,
    pub progress: Arc<Mutex<GroupProgress>>,
    /// True once the polling thread is gone.
    pub closed: watch::Receiver<bool>,
}

/// Held by source and journal. The group is left when both are gone: what is in flight when the
/// source goes may still be noted.
pub struct GroupMembership(pub Arc<Handover>);

impl Drop for GroupMembership {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Hands out the records of a group.
pub struct KafkaSource {
    pub session: Arc<GroupMembership>,
    pub paused: bool,
}

#[async_trait]
impl Source for KafkaSource {
    async fn next(&mut self) -> Result<SourceEvent, Fault> {
        self.session.0.next(self.paused).await
    }

    fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    fn ends(&self) -> Vec<PartitionEnd> {
        let ends = self.session.0.ends().into_iter();
        ends.map(|(partition, end)| PartitionEnd { partition, end }).collect()
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        self.session.0.source_gone();
    }
}

/// Writes outputs, and after their receipts notes what has ended with them.
pub struct KafkaJournal {
    /// The groups whose progress it notes. Each knows its own assignments and leaves out the
    /// others'.
    pub groups: Vec<(Arc<GroupMembership>, Arc<Mutex<GroupProgress>>)>,
    pub writer: Arc<RecordWriter>,
    pub turns: Turns,
}

#[async_trait]
impl Journal for KafkaJournal {
    /// Returns when the outputs are durable. Progress is durable a moment later: a few times a
    /// second, when a partition leaves, and when the group is closed.
    async fn transact(&self, transaction: &Transaction) -> Result<Vec<Position>, NotWritten> {
        let positions = self.writer.transact(&self.turns, &transaction.outputs).await?;
        for (_, progress) in &self.groups {
            let mut progress = lock(progress);
            transaction.ended.iter().for_each(|ended| progress.note(ended));
        }
        Ok(positions)
    }

    async fn offer(&self, outputs: &[Output], mode: OfferMode) -> Vec<OfferOutcome> {
        self.writer.offer(outputs, mode).await
    }

    fn output_bytes_max(&self, topic: &str) -> Option<usize> {
        self.writer.topics.takes(topic)
    }

    fn overlap(&self) -> usize {
        OVERLAP
    }
}
