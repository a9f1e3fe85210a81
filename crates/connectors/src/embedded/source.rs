//! A consumer group of the embedded log: its records, and the journal of what became of them.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use potok_core::trouble::{Bug, crash_point, planted};
use potok_core::{
    Assignment, Fault, Journal, NotWritten, OfferMode, OfferOutcome, Output, Partition,
    PartitionEnd, Position, Source, SourceBatch, SourceEvent, Transaction, Turn,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::draft::{Draft, OutputSlots, Urgency};
use super::fault;
use super::format::{Entry, fresh_nonce};
use super::log::spread;
use super::scan::{Scan, ScanCursor};
use super::shared::{GroupLock, GroupOpening, OpenLog, Tail, WriteRefusal};

/// A scan that reads on a thread where blocking is allowed, without losing anything when the
/// waiting is cancelled.
pub struct Filler {
    shared: Arc<OpenLog>,
    scan: Option<Scan>,
    filling: Option<JoinHandle<(Scan, io::Result<Vec<SourceBatch>>)>>,
    ready: VecDeque<SourceBatch>,
    tail: watch::Receiver<Tail>,
}

impl Filler {
    /// Reads `lanes`.
    pub fn new(shared: &Arc<OpenLog>, lanes: Vec<ScanCursor>) -> Self {
        Filler {
            shared: shared.clone(),
            tail: shared.tail.subscribe(),
            scan: Some(Scan::new(shared.clone(), lanes)),
            filling: None,
            ready: VecDeque::new(),
        }
    }

    /// The next batch; at the end `None`, or with `follow` waits for more.
    pub async fn next(&mut self, follow: bool) -> Result<Option<SourceBatch>, Fault> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(Some(batch));
            }
            if self.filling.is_none() {
                // Seen before the scan looks, so that what comes in between wakes us below.
                self.tail.mark_unchanged();
                let Some(mut scan) = self.scan.take() else { return Err(fault::closed()) };
                self.filling = Some(tokio::task::spawn_blocking(move || {
                    crash_point("reader");
                    let batches = scan.fill();
                    (scan, batches)
                }));
            }
            let Some(filling) = &mut self.filling else { continue };
            let filled = filling.await;
            self.filling = None;
            let (scan, batches) = filled.map_err(fault::cut_short)?;
            self.scan = Some(scan);
            self.ready.extend(batches.map_err(|error| fault::read_failed(&error))?);
            if self.ready.is_empty() {
                if !follow {
                    return Ok(None);
                }
                if self.shared.is_closed() {
                    return Err(fault::closed());
                }
                self.tail.changed().await.map_err(|_| fault::closed())?;
            }
        }
    }
}

/// Hands out the records of a group.
pub struct EmbeddedSource {
    shared: Arc<OpenLog>,
    assigned: Option<Vec<Assignment>>,
    partitions: Vec<Partition>,
    filler: Filler,
    paused: bool,
    /// The groups are free again when the source is dropped.
    _sessions: Vec<GroupLock>,
}

/// Notes what became of them.
pub struct EmbeddedJournal {
    shared: Arc<OpenLog>,
    /// Each with its session.
    groups: Vec<(Arc<str>, u64)>,
    /// By nonce: of which group, and which partition.
    assignments: HashMap<u64, (usize, Partition)>,
}

/// A transaction as a frame.
struct TransactionDraft {
    draft: Draft,
    places: OutputSlots,
    /// The groups of which it says what has ended, by number.
    ended_in: Vec<usize>,
}

/// Source and journal of groups that were just opened. One source reads for all of them, so that
/// records come in the order of the log whatever group they are read in.
pub fn start(
    shared: &Arc<OpenLog>,
    opened: Vec<GroupOpening>,
) -> Result<(EmbeddedSource, EmbeddedJournal), Fault> {
    let (mut assigned, mut sessions) = (Vec::new(), Vec::new());
    let mut assignments: HashMap<u64, (usize, Partition)> = HashMap::new();
    for (group, GroupOpening { session, partitions }) in opened.into_iter().enumerate() {
        for (topic, index, mut ended) in partitions {
            let start = ended.first_gap(0);
            ended.forget_below(start);
            let (partition, nonce) = (Partition { topic, index }, fresh_nonce());
            if assignments.values().any(|(_, known)| *known == partition) {
                return Err(fault::read_twice(&partition.topic, &session.group));
            }
            assignments.insert(nonce, (group, partition.clone()));
            assigned.push(Assignment { partition, nonce, start, ended });
        }
        sessions.push(session);
    }
    let lanes = assigned
        .iter()
        .map(|assignment| ScanCursor {
            partition: assignment.partition.clone(),
            assignment: assignment.nonce,
            next: assignment.start,
        })
        .collect();
    let journal = EmbeddedJournal {
        shared: shared.clone(),
        groups: sessions.iter().map(|session| (session.group.clone(), session.nonce)).collect(),
        assignments,
    };
    let source = EmbeddedSource {
        shared: shared.clone(),
        _sessions: sessions,
        partitions: assigned.iter().map(|assignment| assignment.partition.clone()).collect(),
        assigned: Some(assigned),
        filler: Filler::new(shared, lanes),
        paused: false,
    };
    Ok((source, journal))
}

#[async_trait]
impl Source for EmbeddedSource {
    async fn next(&mut self) -> Result<SourceEvent, Fault> {
        if let Some(assigned) = self.assigned.take() {
            return Ok(SourceEvent::Assigned(assigned));
        }
        if self.paused {
            return std::future::pending().await;
        }
        match self.filler.next(true).await? {
            Some(batch) => Ok(SourceEvent::Batch(batch)),
            None => Err(fault::closed()),
        }
    }

    fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    fn ends(&self) -> Vec<PartitionEnd> {
        let state = self.shared.state();
        let end = |partition: &Partition| PartitionEnd {
            end: state.catalog.head(&partition.topic, partition.index).end,
            partition: partition.clone(),
        };
        self.partitions.iter().map(end).collect()
    }
}

#[async_trait]
impl Journal for EmbeddedJournal {
    async fn transact(&self, transaction: &Transaction) -> Result<Vec<Position>, NotWritten> {
        let laid_out = self.lay_out(transaction, &[])?;
        self.write(transaction, laid_out).await
    }

    async fn transact_in_turn(
        &self,
        transaction: &Transaction,
        turn: Turn<'_>,
    ) -> Result<Vec<Position>, NotWritten> {
        let laid_out = self.lay_out(transaction, &[]);
        turn.await;
        self.write(transaction, laid_out?).await
    }

    /// Refused are names that no topic has, and what is too large; the others are one frame.
    async fn offer(&self, outputs: &[Output], mode: OfferMode) -> Vec<OfferOutcome> {
        let fits = |output: &Output| match output.is_too_large() {
            true => Err(fault::too_large(output.bytes())),
            false => self.shared.route(&output.topic).map(drop),
        };
        let mut outcomes: Vec<Option<OfferOutcome>> = Vec::with_capacity(outputs.len());
        let mut refused: Vec<&Arc<str>> = Vec::new();
        for output in outputs {
            outcomes.push(match fits(output) {
                _ if mode == OfferMode::Run && refused.contains(&&output.topic) => {
                    Some(OfferOutcome::Unsent(Fault::retry("one before it was refused")))
                }
                Ok(()) => None,
                Err(fault) => {
                    refused.push(&output.topic);
                    Some(OfferOutcome::Refused(fault))
                }
            });
        }
        let open = outputs.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_none());
        let open: Vec<Output> = open.map(|(output, _)| output.clone()).collect();
        let mut written = self.write_offers(&open, mode).await.into_iter();
        let outcome = |known: Option<OfferOutcome>| known.or_else(|| written.next());
        let unknown = || OfferOutcome::Unsent(Fault::retry("the log said nothing about a record"));
        let outcomes = outcomes.into_iter().map(outcome);
        outcomes.map(|outcome| outcome.unwrap_or_else(unknown)).collect()
    }
}

impl EmbeddedJournal {
    /// Writes them as one frame. Where that is refused as a whole, each is told its own. Nothing that
    /// is in the log ends by them, so they may not spend the reserve.
    async fn write_offers(&self, outputs: &[Output], mode: OfferMode) -> Vec<OfferOutcome> {
        let all = |outcome: OfferOutcome| outputs.iter().map(|_| outcome.clone()).collect();
        let transaction =
            |outputs: &[Output]| Transaction { outputs: outputs.to_vec(), ended: Vec::new() };
        let fault: Fault = match self.write_plain(&transaction(outputs)).await {
            Ok(_) => return all(OfferOutcome::Written),
            Err(not_written) => not_written.into(),
        };
        let outcome = OfferOutcome::not_written(fault);
        if mode == OfferMode::Run || !matches!(outcome, OfferOutcome::Refused(_)) {
            return all(outcome);
        }
        let mut outcomes = Vec::with_capacity(outputs.len());
        for output in outputs {
            let one = self.write_plain(&transaction(std::slice::from_ref(output))).await;
            outcomes.push(match one {
                Ok(_) => OfferOutcome::Written,
                Err(not_written) => OfferOutcome::not_written(not_written.into()),
            });
        }
        outcomes
    }

    async fn write_plain(&self, transaction: &Transaction) -> Result<Vec<Position>, NotWritten> {
        let mut laid_out = self.lay_out(transaction, &[])?;
        if let Some(laid_out) = &mut laid_out {
            laid_out.draft.urgency = Urgency::Plain;
        }
        self.write(transaction, laid_out).await
    }

    /// The frame of a transaction, without the endings of groups that were opened anew; none where
    /// there is nothing to write.
    fn lay_out(
        &self,
        transaction: &Transaction,
        stale: &[Arc<str>],
    ) -> Result<Option<TransactionDraft>, Fault> {
        let Transaction { outputs, ended } = transaction;
        let (mut entries, mut ended_in) = (Vec::new(), Vec::new());
        for ended in ended {
            let known = self.assignments.get(&ended.assignment);
            let Some((number, _)) = known.filter(|(_, of)| *of == ended.partition) else {
                continue;
            };
            let Some((group, _)) = self.groups.get(*number) else { continue };
            if stale.contains(group) {
                continue;
            }
            entries.push(Entry::Ended {
                group,
                topic: &ended.partition.topic,
                partition: ended.partition.index,
                ranges: ended.ranges.clone(),
            });
            if !ended_in.contains(number) {
                ended_in.push(*number);
            }
        }
        if outputs.is_empty() && entries.is_empty() {
            return Ok(None);
        }
        let route = |topic: &Arc<str>| self.shared.route(topic);
        let (mut draft, places) = Draft::new(outputs, route, &entries)?;
        if entries.is_empty() && planted(Bug::SealsRefused) {
            draft.urgency = Urgency::Plain;
        }
        Ok(Some(TransactionDraft { draft, places, ended_in }))
    }

    async fn write(
        &self,
        transaction: &Transaction,
        mut laid_out: Option<TransactionDraft>,
    ) -> Result<Vec<Position>, NotWritten> {
        let mut stale = Vec::new();
        while let Some(TransactionDraft { draft, places, ended_in }) = laid_out {
            let fence = ended_in.iter().filter_map(|group| self.groups.get(*group).cloned());
            match self.shared.submit(draft, fence.collect()).await {
                // Opened anew: what this journal says of those groups counts for nothing any more.
                Err(WriteRefusal::Stale(groups)) => stale.extend(groups),
                written => {
                    let written = written.map_err(spread)?;
                    let outputs = &transaction.outputs;
                    return Ok(places.positions(outputs, written.log, &written.firsts));
                }
            }
            laid_out = self.lay_out(transaction, &stale)?;
        }
        Ok(Vec::new())
    }
}
