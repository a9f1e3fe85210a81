//! Where records come from, and where it is noted that they have ended.

use std::ops::Range;
use std::pin::Pin;

use async_trait::async_trait;

use crate::{Fault, Move, Output, Partition, Position, RangeSet, SourceBatch};

/// A partition handed to this process.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// Topic and number of the partition.
    pub partition: Partition,
    /// Names this assignment. A partition that leaves and comes back has another nonce, and what
    /// still completes from before counts for nothing.
    pub nonce: u64,
    /// Every record below has ended.
    pub start: u64,
    /// Records above `start` that have ended too.
    pub ended: RangeSet,
}

/// One event of a source.
#[derive(Debug)]
pub enum SourceEvent {
    /// These partitions are now ours. Comes before their first batch. A log that serves one process
    /// names all that are there at once, and says so where there are none: what is not named is taken
    /// for another process's, and nobody waits for it before groups close.
    Assigned(Vec<Assignment>),
    /// Records, in order within their partition.
    Batch(SourceBatch),
    /// These partitions (by nonce) leave in good order: what is in flight may still be noted
    /// until the next call of [`Source::next`].
    Revoked(Vec<u64>),
    /// These partitions are gone: nothing of them may be noted any more.
    Lost(Vec<u64>),
    /// All of these assignments has ended and is noted: they are forgotten, and nothing is waited for.
    /// Only feeds say so, whose assignments are many and short.
    Finished(Vec<u64>),
    /// Records may lie there that cannot be read, and why; `None` when that is over.
    Stalled(Option<Fault>),
}

/// Where a partition of the log ends, for lag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionEnd {
    /// Topic and number of the partition.
    pub partition: Partition,
    /// The offset the next record will get, at least.
    pub end: u64,
}

/// Hands out the records of a consumer group.
///
/// One task owns it and calls [`Source::next`] without pause for as long as the pipeline runs,
/// even while paused: a source that talks to a group coordinator keeps its membership that way.
#[async_trait]
pub trait Source: Send {
    /// Waits for the next thing to say.
    ///
    /// Cancelling the call loses nothing: the next call says what this one would have said.
    /// Records come in order within a partition, each once per assignment, from
    /// [`Assignment::start`] on; a record that ended above `start` may come again and is dropped
    /// by the engine. On a fault the engine waits and calls again; `Retry` says that the source is
    /// spent and the group has to be opened anew; `Fix` stops the pipeline.
    async fn next(&mut self) -> Result<SourceEvent, Fault>;

    /// While paused, [`Source::next`] returns no batches, only the rest. Level-triggered: the
    /// state holds until set again, whatever is assigned meanwhile. Called often; cheap.
    fn set_paused(&mut self, paused: bool);

    /// Where the assigned partitions end now, as far as known. Called for `status`.
    fn ends(&self) -> Vec<PartitionEnd>;
}

/// Offsets of one assignment that have ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedOffsets {
    /// The partition the offsets belong to.
    pub partition: Partition,
    /// Under which assignment they were read.
    pub assignment: u64,
    /// The offsets, gaps between records included.
    pub ranges: Vec<Range<u64>>,
}

/// Written together or not at all.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// Records to append: deliveries to topics, dead letters, replays, resolutions.
    pub outputs: Vec<Output>,
    /// The offsets that end with these outputs.
    pub ended: Vec<EndedOffsets>,
}

impl Transaction {
    /// Nothing to write.
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty() && self.ended.is_empty()
    }
}

/// Why a transaction is not, or not wholly, written.
#[derive(Clone, Debug)]
pub enum NotWritten {
    /// Nothing of it, or (where the answer was lost) everything was written: the engine calls
    /// again with the same transaction.
    Fault(Fault),
    /// These outputs, by index, the log will never take (too large for their topic). All others
    /// are written; nothing is noted as ended. The engine calls again with dead letters in place
    /// of the refused and without the others. A log whose transactions are whole never says so;
    /// an exact group of a shared log has then written nothing, stays open, and is called again
    /// with the others too.
    Refused(Vec<(usize, Fault)>),
}

/// The fault, or the first refusal, for callers to whom it is all the same.
impl From<NotWritten> for Fault {
    fn from(not_written: NotWritten) -> Self {
        match not_written {
            NotWritten::Fault(fault) => fault,
            NotWritten::Refused(refused) => {
                let first = refused.into_iter().next();
                first.map_or_else(|| Fault::retry("outputs were refused"), |(_, fault)| fault)
            }
        }
    }
}

impl From<Fault> for NotWritten {
    fn from(fault: Fault) -> Self {
        NotWritten::Fault(fault)
    }
}

/// How outputs are offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferMode {
    /// In order: behind one that is refused, nothing of its topic and key is written.
    Run,
    /// Each for itself: a refusal disturbs no other, of this call or of anybody else.
    Single,
}

/// What became of an output that was offered.
#[derive(Clone, Debug)]
pub enum OfferOutcome {
    /// It is durable.
    Written,
    /// The log answers, and does not take it as things are: its topic is missing, forbidden or not
    /// valid, or (`SetAside`) the record is not one that the topic takes. Of a run it may only have
    /// stood beside one that was refused.
    Refused(Fault),
    /// The log answers, and said nothing about it for a while: where it belongs nobody leads, or too few
    /// have copies. It may be written all the same.
    Silent(Fault),
    /// It is not written, or nobody knows: the log is away, or one before it was refused.
    Unsent(Fault),
}

impl OfferOutcome {
    /// Of an output that was written alone, and was not.
    pub fn not_written(fault: Fault) -> Self {
        match fault.next {
            Move::SetAside | Move::Fix => OfferOutcome::Refused(fault),
            Move::Wait | Move::Retry => OfferOutcome::Unsent(fault),
        }
    }
}

/// Comes when a transaction may be written: those before it are.
pub type Turn<'a> = Pin<&'a mut (dyn Future<Output = ()> + Send)>;

/// Notes, durably, what a consumer group's records became.
///
/// The embedded log writes one frame, so outputs and progress cannot part. Where they can (Kafka
/// without transactions), outputs come first and progress after their receipts.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Writes the transaction; returns the positions of the outputs, in order, once everything
    /// is durable. `EndedOffsets` of a foreign assignment is ignored. The journal of an exact group of a
    /// shared log does not learn the positions and returns none; after its fault (not after a
    /// refusal) the group has to be opened anew.
    ///
    /// One call is one attempt; [`NotWritten`] says what to do next. As many calls at a time per
    /// pipeline as [`Journal::overlap`] says. Cancelling leaves the outcome unknown.
    async fn transact(&self, transaction: &Transaction) -> Result<Vec<Position>, NotWritten>;

    /// The same for a transaction that follows others. What can be done beforehand is done at once;
    /// nothing is written, and nothing is returned, before its turn has come. That may be never: then
    /// the call is cancelled.
    async fn transact_in_turn(
        &self,
        transaction: &Transaction,
        turn: Turn<'_>,
    ) -> Result<Vec<Position>, NotWritten> {
        turn.await;
        self.transact(transaction).await
    }

    /// Offers outputs to a log whose refusals are dealt with one by one; the outcomes, in order.
    ///
    /// Unlike a transaction it does not wait until somebody makes a topic or grants a right, nor for
    /// long where only a part of the log says nothing, and notes nothing. One call is one attempt, and
    /// one call at a time per pipeline. Cancelling leaves the outcome unknown.
    async fn offer(&self, outputs: &[Output], mode: OfferMode) -> Vec<OfferOutcome> {
        let mut outcomes: Vec<OfferOutcome> = Vec::with_capacity(outputs.len());
        let mut refused: Vec<&Output> = Vec::new();
        for output in outputs {
            let is_behind = |before: &&Output| before.topic == output.topic;
            if mode == OfferMode::Run && refused.iter().any(is_behind) {
                outcomes.push(OfferOutcome::Unsent(Fault::retry("one before it was refused")));
                continue;
            }
            let outputs = vec![output.clone()];
            outcomes.push(match self.transact(&Transaction { outputs, ended: Vec::new() }).await {
                Ok(_) => OfferOutcome::Written,
                Err(not_written) => OfferOutcome::not_written(not_written.into()),
            });
            if !matches!(outcomes.last(), Some(OfferOutcome::Written)) {
                refused.push(output);
            }
        }
        outcomes
    }

    /// How many bytes an output for that topic may have, where that is known. An output with more may
    /// be refused.
    fn output_bytes_max(&self, _topic: &str) -> Option<usize> {
        None
    }

    /// How many calls may be under way at a time, besides those that wait for their turn.
    ///
    /// One, where outputs and progress are written together. More says that they are not, and that
    /// waiting for one receipt after the other would be slow: then outputs meet the log in the
    /// order in which the calls were first polled, whatever goes wrong; trouble that passes is
    /// waited out in the call, so that no later one overtakes it; and the engine notes progress in
    /// calls of its own, transaction by transaction, each when its outputs are written.
    fn overlap(&self) -> usize {
        1
    }
}
