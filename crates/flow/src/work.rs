//! The messages between intake, lanes and ledger: batches, never single records.

use std::ops::Range;
use std::sync::Arc;

use potok_core::{Attempts, Fault, Record, SourceBatch};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinError;

use crate::counts::Ending;
use crate::feed::Failure;
use crate::outgoing::Outgoing;
use crate::status::Counters;

/// A source batch on its way. Dropping the last handle gives its bytes back to the intake.
pub(crate) struct InFlightBatch {
    pub batch: SourceBatch,
    pub sequence: u64,
    pub counters: Arc<Counters>,
    /// Held for as long as any record of the batch is in flight.
    pub _room: Option<OwnedSemaphorePermit>,
    /// The offsets that each record stands for, where that is not the stretch up to the next one.
    pub apart: Option<Vec<Range<u64>>>,
    /// How often its feed has a record tried that fails, where it takes such records back.
    pub puts_off: Option<Attempts>,
}

impl InFlightBatch {
    /// Records that were taken before, held in a group and gathered again.
    pub fn again(batch: SourceBatch, covers: Vec<Range<u64>>, counters: Arc<Counters>) -> Self {
        // No batch has this number: it was opened and closed when it was taken.
        InFlightBatch {
            batch,
            sequence: u64::MAX,
            counters,
            _room: None,
            apart: Some(covers),
            puts_off: None,
        }
    }

    /// The offsets that record `index` stands for: its own and the gap behind it; the first
    /// record also stands for the gap before it.
    pub fn covers(&self, index: usize) -> Range<u64> {
        if let Some(apart) = &self.apart {
            return apart.get(index).cloned().unwrap_or_default();
        }
        let offset = |at: usize| self.batch.records.get(at).map(|record| record.offset);
        let start = if index == 0 { self.batch.first } else { offset(index).unwrap_or_default() };
        start..offset(index + 1).unwrap_or(self.batch.next)
    }
}

impl Drop for InFlightBatch {
    fn drop(&mut self) {
        self.counters.batch_closed(self.sequence);
    }
}

/// The records of a batch that belong to one lane.
pub(crate) struct Chunk {
    pub taken: Arc<InFlightBatch>,
    /// Index in the batch and hash of the lane key, in order.
    pub records: Vec<(u32, u64)>,
}

impl Chunk {
    /// Bytes of its records.
    pub fn bytes(&self) -> usize {
        let records = &self.taken.batch.records;
        let bytes = |(index, _): &(u32, u64)| records.get(*index as usize).map_or(0, Record::bytes);
        self.records.iter().map(bytes).sum()
    }
}

/// A message from the intake to a lane.
pub(crate) enum ToLane {
    Chunk(Chunk),
    /// Whether everything was read that was there when the partitions were assigned. Only where
    /// groups are held.
    CaughtUp(bool),
    /// All is there that came among what was sent before. Only where groups are held, and the log
    /// has one order for all partitions.
    Whole,
    /// These assignments leave or are lost. Only where groups are held.
    Leaving(Vec<u64>),
}

/// The outcomes of records of one batch.
pub(crate) struct Completion {
    pub taken: Arc<InFlightBatch>,
    /// Indexes in the batch, each with how it ended.
    pub endings: Vec<(u32, Ending)>,
    /// The reasons of the dead letters among what is written for them.
    pub reasons: Vec<potok_core::Reason>,
    /// The records among them that failed and go back to their feed.
    pub failures: Vec<Failure>,
}

impl Completion {
    /// Of nothing yet.
    pub fn of(taken: Arc<InFlightBatch>) -> Self {
        Completion { taken, endings: Vec::new(), reasons: Vec::new(), failures: Vec::new() }
    }
}

/// The outcomes of records that were worked on together, of however many batches. Everything in it is
/// noted in one transaction.
pub(crate) struct CompletedWork {
    pub completions: Vec<Completion>,
    /// Deliveries to topics, dead letters and resolutions that end these records, in the order of
    /// the records, each with its completion.
    pub outputs: Vec<(usize, Outgoing)>,
    /// Records that end as another one does, whose deliveries are among the outputs.
    pub followers: Vec<Follower>,
}

/// A record that another one of its group stands for. Each is named by its completion and its index
/// there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Follower {
    pub leader: (usize, u32),
    pub own: (usize, u32),
}

impl From<Completion> for CompletedWork {
    fn from(completion: Completion) -> Self {
        CompletedWork { completions: vec![completion], outputs: Vec::new(), followers: Vec::new() }
    }
}

/// Why a run of a pipeline ends.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It was asked to.
    Asked,
    /// The set-up is wrong; somebody must act.
    Fix(Fault),
    /// The gate of a shard is closed: what is being sent waits in its group. Only within a lane.
    Shut,
    /// The held records must be read again from the log.
    Reread(String),
    /// A part of it died.
    Died(String),
}

impl Stop {
    /// Of a task that is gone.
    pub fn died(error: JoinError) -> Self {
        Stop::Died(match error.try_into_panic() {
            Ok(panic) => {
                let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
                format!("a part of the pipeline panicked: {}", text.unwrap_or_default())
            }
            Err(error) => format!("a part of the pipeline was cut off: {error}"),
        })
    }
}
