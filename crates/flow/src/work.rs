//! What travels between intake, lanes and ledger: batches, never single records.

use std::ops::Range;
use std::sync::Arc;

use potok_core::{Fault, SourceBatch};
use tokio::sync::OwnedSemaphorePermit;

use crate::outgoing::Outgoing;
use crate::status::{Counters, Ending};

/// A source batch on its way. Dropping the last handle gives its bytes back to the intake.
pub(crate) struct Taken {
    pub batch: SourceBatch,
    pub sequence: u64,
    pub counters: Arc<Counters>,
    /// Held for as long as any record of the batch is in flight.
    pub _room: OwnedSemaphorePermit,
}

impl Taken {
    /// The offsets that record `index` stands for: its own and the gap behind it; the first
    /// record also stands for the gap before it.
    pub fn covers(&self, index: usize) -> Range<u64> {
        let offset = |at: usize| self.batch.records.get(at).map(|record| record.offset);
        let start = if index == 0 { self.batch.first } else { offset(index).unwrap_or_default() };
        start..offset(index + 1).unwrap_or(self.batch.next)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.counters.batch_closed(self.sequence);
    }
}

/// The records of a batch that belong to one lane.
pub(crate) struct Chunk {
    pub taken: Arc<Taken>,
    /// Index in the batch and hash of the lane key, in order.
    pub records: Vec<(u32, u64)>,
}

/// What became of records of one batch. Everything in it is noted in one transaction.
pub(crate) struct Completion {
    pub taken: Arc<Taken>,
    /// Indexes in the batch, ascending, each with how it ended.
    pub endings: Vec<(u32, Ending)>,
    /// Deliveries to topics, dead letters and resolutions that end these records.
    pub outputs: Vec<Outgoing>,
    /// The reasons of the dead letters among the outputs.
    pub reasons: Vec<potok_core::Reason>,
}

/// Why a run of a pipeline ends.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It was asked to.
    Asked,
    /// The set-up is wrong; somebody must act.
    Fix(Fault),
    /// A part of it died.
    Died(String),
}
