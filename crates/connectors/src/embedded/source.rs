//! A consumer group of the embedded log: its records, and the journal of what became of them.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use potok_core::trouble::{Bug, crash_point, planted};
use potok_core::{
    Assignment, Fault, Intake, Journal, NotWritten, Output, Partition, PartitionEnd, Position,
    Source, SourceBatch, Transaction, Turn,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::draft::{Draft, Places, Urgency};
use super::format::{Entry, fresh_nonce};
use super::scan::{Lane, Scan};
use super::shared::{Opened, Refused, Session, Shared, Tail};
use super::{faults, spread};

/// A scan that reads on a thread where blocking is allowed, without losing anything when the
/// waiting is cancelled.
pub struct Filler {
    shared: Arc<Shared>,
    scan: Option<Scan>,
    filling: Option<JoinHandle<(Scan, io::Result<Vec<SourceBatch>>)>>,
    ready: VecDeque<SourceBatch>,
    tail: watch::Receiver<Tail>,
}

impl Filler {
    /// Reads `lanes`.
    pub fn new(shared: &Arc<Shared>, lanes: Vec<Lane>) -> Self {
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
                let Some(mut scan) = self.scan.take() else { return Err(faults::closed()) };
                self.filling = Some(tokio::task::spawn_blocking(move || {
                    crash_point("reader");
                    let batches = scan.fill();
                    (scan, batches)
                }));
            }
            let Some(filling) = &mut self.filling else { continue };
            let filled = filling.await;
            self.filling = None;
            let (scan, batches) = filled.map_err(faults::cut_short)?;
            self.scan = Some(scan);
            self.ready.extend(batches.map_err(|error| faults::read_failed(&error))?);
            if self.ready.is_empty() {
                if !follow {
                    return Ok(None);
                }
                if self.shared.is_closed() {
                    return Err(faults::closed());
                }
                self.tail.changed().await.map_err(|_| faults::closed())?;
            }
        }
    }
}

/// Hands out the records of a group.
pub struct EmbeddedSource {
    shared: Arc<Shared>,
    assigned: Option<Vec<Assignment>>,
    partitions: Vec<Partition>,
    filler: Filler,
    paused: bool,
    /// The group is free again when the source is dropped.
    _session: Session,
}

/// Notes what became of them.
pub struct EmbeddedJournal {
    shared: Arc<Shared>,
    group: Arc<str>,
    session: u64,
    assignments: HashMap<Partition, u64>,
}

/// A transaction as a frame.
struct LaidOut {
    draft: Draft,
    places: Places,
    /// It says what has ended.
    says_ended: bool,
}

/// Source and journal of a group that was just opened.
pub fn start(
    shared: &Arc<Shared>,
    group: Arc<str>,
    opened: Opened,
) -> (EmbeddedSource, EmbeddedJournal) {
    let assignment = |(topic, index, mut ended): (Arc<str>, u32, potok_core::RangeSet)| {
        let start = ended.first_gap(0);
        ended.forget_below(start);
        Assignment { partition: Partition { topic, index }, nonce: fresh_nonce(), start, ended }
    };
    let assigned: Vec<Assignment> = opened.partitions.into_iter().map(assignment).collect();
    let lanes = assigned
        .iter()
        .map(|assignment| Lane {
            partition: assignment.partition.clone(),
            assignment: assignment.nonce,
            next: assignment.start,
        })
        .collect();
    let journal = EmbeddedJournal {
        shared: shared.clone(),
        group,
        session: opened.session.nonce,
        assignments: assigned.iter().map(|a| (a.partition.clone(), a.nonce)).collect(),
    };
    let source = EmbeddedSource {
        shared: shared.clone(),
        _session: opened.session,
        partitions: assigned.iter().map(|assignment| assignment.partition.clone()).collect(),
        assigned: Some(assigned),
        filler: Filler::new(shared, lanes),
        paused: false,
    };
    (source, journal)
}

#[async_trait]
impl Source for EmbeddedSource {
    async fn next(&mut self) -> Result<Intake, Fault> {
        if let Some(assigned) = self.assigned.take() {
            return Ok(Intake::Assigned(assigned));
        }
        if self.paused {
            return std::future::pending().await;
        }
        match self.filler.next(true).await? {
            Some(batch) => Ok(Intake::Batch(batch)),
            None => Err(faults::closed()),
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
        let laid_out = self.lay_out(transaction)?;
        self.write(transaction, laid_out).await
    }

    async fn transact_in_turn(
        &self,
        transaction: &Transaction,
        turn: Turn<'_>,
    ) -> Result<Vec<Position>, NotWritten> {
        let laid_out = self.lay_out(transaction);
        turn.await;
        self.write(transaction, laid_out?).await
    }
}

impl EmbeddedJournal {
    /// The frame of a transaction; none where there is nothing to write.
    fn lay_out(&self, transaction: &Transaction) -> Result<Option<LaidOut>, Fault> {
        let ended = transaction.ended.iter();
        let ours =
            ended.filter(|ended| self.assignments.get(&ended.partition) == Some(&ended.assignment));
        let ended: Vec<Entry<'_>> = ours
            .map(|ended| Entry::Ended {
                group: &self.group,
                topic: &ended.partition.topic,
                partition: ended.partition.index,
                ranges: ended.ranges.clone(),
            })
            .collect();
        self.frame(&transaction.outputs, &ended)
    }

    fn frame(&self, outputs: &[Output], ended: &[Entry<'_>]) -> Result<Option<LaidOut>, Fault> {
        if outputs.is_empty() && ended.is_empty() {
            return Ok(None);
        }
        let route = |topic: &Arc<str>| self.shared.route(topic);
        let (mut draft, places) = Draft::new(outputs, route, ended)?;
        if ended.is_empty() && planted(Bug::SealsRefused) {
            draft.urgency = Urgency::Plain;
        }
        Ok(Some(LaidOut { draft, places, says_ended: !ended.is_empty() }))
    }

    async fn write(
        &self,
        transaction: &Transaction,
        laid_out: Option<LaidOut>,
    ) -> Result<Vec<Position>, NotWritten> {
        let Some(LaidOut { draft, mut places, says_ended }) = laid_out else {
            return Ok(Vec::new());
        };
        let fence = says_ended.then(|| (self.group.clone(), self.session));
        let mut written = self.shared.submit(draft, fence).await;
        if let Err(Refused::Stale) = written {
            // The group was opened anew: this journal's endings count for nothing any more.
            let Some(alone) = self.frame(&transaction.outputs, &[])? else {
                return Ok(Vec::new());
            };
            places = alone.places;
            written = self.shared.submit(alone.draft, None).await;
        }
        let written = written.map_err(spread)?;
        Ok(places.positions(&transaction.outputs, written.log, &written.firsts))
    }
}
