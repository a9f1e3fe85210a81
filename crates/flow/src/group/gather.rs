//! Where several processes share the log: brings the records of one group into one partition.
//!
//! ```text
//!   source topics ──► gather ──► potok-<pipeline>, keyed by the group ──► lanes, by partition
//!                       └─ one transaction: copies and positions
//! ```
//!
//! Every record is copied, also one that will be set aside: what becomes of it is decided, counted
//! and noted once, by the lane that reads the copy. The copies and the source's positions are one
//! transaction, so each record is in the internal topic exactly once, whoever dies. After any
//! trouble the source is opened anew and goes on behind the last transaction.
//!
//! Only what the internal topic will never take ends here: a dead letter goes in its place, in the
//! same transaction, and the others go on.
//!
//! It does not run far ahead of the lanes of its process: seals lie behind what was copied before
//! them, and until they are read everything is held.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use potok_core::trouble::{Bug, crash_point, planted};
use potok_core::{
    ConsumerGroupSpec, EndedOffsets, Fault, Journal, Move, NotWritten, OpenGroup, Output,
    Partition, Reason, Record, Source, SourceBatch, SourceEvent, Transaction,
};
use potok_expr::json::Parser;
use potok_expr::{Scope, Template};
use tokio::time::Instant;

use super::gathered;
use super::{ShardPlan, shard_in};
use crate::counts::Ending;
use crate::crash_notes::{self, CrashNotes, Range};
use crate::ledger::SLOW;
use crate::outgoing::{DeadLetterWriter, Sender, pieces};
use crate::pipeline::Shared;
use crate::signal::Signal;
use crate::status::Counters;
use crate::waits::{Waits, WaitsFor};
use crate::work::Stop;

/// One transaction copies no more than this and what one more batch adds.
const BYTES_MAX: usize = 8 << 20;
/// The longest wait after trouble.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Bytes of copies that may be unread when more are made, or less where the pipeline has less room;
/// and how long to wait for that.
const UNREAD_MAX: usize = 8 << 20;
const UNREAD_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long a transaction that is under way may take when the run ends. What becomes of it then is
/// the log's business: its copies and positions count together or not at all.
const STOP_MAX: Duration = Duration::from_secs(2);
/// How long a source that was opened after trouble is quiet before the trouble counts as over.
const QUIET: Duration = Duration::from_secs(2);

/// How much is copied at once, and how long to wait after trouble.
struct Pace {
    /// In a row.
    failures: u32,
    /// Bytes of one transaction. The broker lets it be open for some seconds: one that is too slow
    /// for so much must get less, or it would never get anything done.
    room: usize,
    /// Bytes of a record, as it was last.
    record: u64,
    /// Bytes of copies that may be unread.
    unread_max: u64,
    /// Since when there are more.
    far_since: Option<Instant>,
}

impl Pace {
    fn new(unread_max: usize) -> Self {
        let unread_max = unread_max.min(UNREAD_MAX) as u64;
        Pace { failures: 0, room: BYTES_MAX, record: 0, unread_max, far_since: None }
    }

    /// Takes note of how large records are.
    fn copies(&mut self, records: usize, bytes: usize) {
        self.record = (bytes / records.max(1)) as u64;
    }

    /// True where lanes have fallen behind so far.
    fn is_far_ahead(&self, unread: u64) -> bool {
        unread.saturating_mul(self.record) > self.unread_max
    }

    /// Until when to wait for lanes that have fallen behind so far; `None` where not, or not again.
    fn waits_until(&mut self, unread: u64) -> Option<Instant> {
        if !self.is_far_ahead(unread) {
            self.far_since = None;
            return None;
        }
        let until = *self.far_since.get_or_insert_with(Instant::now) + UNREAD_WAIT_MAX;
        (until > Instant::now()).then_some(until)
    }

    fn worked(&mut self) {
        self.failures = 0;
        self.room = (self.room + self.room / 8 + 1).min(BYTES_MAX);
    }

    /// Says how long to wait.
    fn failed(&mut self) -> Duration {
        self.failures += 1;
        self.room /= 2;
        let wait = Duration::from_millis(50).saturating_mul(1 << self.failures.min(10));
        wait.min(WAIT_MAX)
    }
}

/// A transaction to write, and what each output of it is.
#[derive(Default)]
struct Copies {
    transaction: Transaction,
    of: Vec<Part>,
}

#[derive(Clone, Copy)]
enum Part {
    /// The copy of that record of that batch.
    Copy { batch: usize, record: usize },
    /// A dead letter in place of a copy, or a piece of one.
    Rejection,
}

/// Copies records into the internal topic until it is asked to stop.
pub(crate) struct Gather {
    /// Which of those of its pipeline.
    pub number: usize,
    pub spec: ConsumerGroupSpec,
    pub by: Option<Template>,
    /// Instead of `by`: a copy goes into the partition of its shard.
    pub shard: Option<ShardPlan>,
    pub internal: Arc<str>,
    pub notes: Arc<CrashNotes>,
    pub paused: Arc<Signal<bool>>,
    pub stopping: Arc<Signal<bool>>,
    pub waits: Arc<Waits>,
    pub letters: Arc<DeadLetterWriter>,
    pub counters: Arc<Counters>,
    /// The bytes of the internal topic that this process has not read, and their bound.
    pub unread: Arc<Signal<u64>>,
    pub unread_max: usize,
}

impl Gather {
    /// Runs beside the lanes. What it cannot do now it tries again, unless somebody has to act.
    pub async fn run(self, log: Arc<dyn potok_core::Log>) -> Result<(), Stop> {
        let mut pace = Pace::new(self.unread_max);
        loop {
            let opened = tokio::select! {
                biased;
                () = self.stopping.wait_for(|stopping| stopping) => return Ok(()),
                opened = log.open_group(self.spec.clone()) => opened,
            };
            let copied = match opened {
                Ok(OpenGroup { source, journal }) => self.copy(source, journal, &mut pace).await,
                Err(fault) => Err(fault),
            };
            // The source is gone, and its wait with it.
            self.waits.end(WaitsFor::Source, self.source());
            let fault = match copied {
                Ok(()) => return Ok(()),
                Err(fault) if fault.next == Move::Fix => return Err(Stop::Fix(fault)),
                Err(fault) => fault,
            };
            let wait = pace.failed();
            self.waits.begin_with(WaitsFor::Gathering, self.number, &fault);
            tokio::select! {
                biased;
                () = self.stopping.wait_for(|stopping| stopping) => return Ok(()),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn copy(
        &self,
        mut source: Box<dyn Source>,
        journal: Arc<dyn Journal>,
        pace: &mut Pace,
    ) -> Result<(), Fault> {
        let mut parser = Parser::new();
        let mut live: HashMap<u64, Partition> = HashMap::new();
        let mut quiet_at = Some(Instant::now() + QUIET);
        loop {
            let paused = self.paused.get();
            let wait = pace.waits_until(self.unread.get());
            source.set_paused(paused || wait.is_some());
            let is_near = |unread| !pace.is_far_ahead(unread);
            let said = tokio::select! {
                biased;
                () = self.stopping.wait_for(|stopping| stopping) => return Ok(()),
                () = self.unread.wait_for(is_near), if wait.is_some() => continue,
                () = super::sleep_until(wait), if wait.is_some() => continue,
                () = self.paused.wait_for(|now| now != paused) => continue,
                () = super::sleep_until(quiet_at), if quiet_at.is_some() => {
                    // Nothing is left to copy that could not be copied before.
                    self.waits.end(WaitsFor::Gathering, self.number);
                    quiet_at = None;
                    continue;
                }
                said = source.next() => said?,
            };
            let mut batches = Vec::new();
            let mut bytes = self.hear(said, &mut live, &mut batches);
            // Batches that are there already go along.
            while bytes < pace.room && !batches.is_empty() {
                let Some(said) = source.next().now_or_never() else { break };
                bytes += self.hear(said?, &mut live, &mut batches);
            }
            if batches.is_empty() {
                continue;
            }
            let copies = self.copies(&batches, &live, &mut parser);
            pace.copies(copies.of.len(), bytes);
            crash_point("gather.before");
            // Until this returns nothing is asked of the source: what leaves meanwhile waits.
            let set_aside = tokio::select! {
                biased;
                set_aside = self.write(&*journal, &batches, copies) => set_aside?,
                () = self.stopped_for(STOP_MAX) => return Ok(()),
                never = self.tell_of_slow_transaction() => match never {},
            };
            crash_point("gather.after");
            self.count(&set_aside);
            self.waits.end(WaitsFor::Gathering, self.number);
            quiet_at = None;
            pace.worked();
            pace.far_since = None;
        }
    }

    /// Which part of the pipeline waits where its source cannot be read: an intake is another.
    fn source(&self) -> usize {
        2 * self.number + 1
    }

    async fn tell_of_slow_transaction(&self) -> Infallible {
        tokio::time::sleep(SLOW).await;
        let what = format!("the log has been working at a transaction for {} s", SLOW.as_secs());
        self.waits.begin_with(WaitsFor::Gathering, self.number, &Fault::wait(what));
        std::future::pending().await
    }

    /// Waits until the run has been ending for so long.
    async fn stopped_for(&self, long: Duration) {
        self.stopping.wait_for(|stopping| stopping).await;
        tokio::time::sleep(long).await;
    }

    /// Writes copies and positions; says why records were set aside instead of copied.
    async fn write(
        &self,
        journal: &dyn Journal,
        batches: &[SourceBatch],
        copies: Copies,
    ) -> Result<Vec<Reason>, Fault> {
        let Copies { mut transaction, mut of } = copies;
        if planted(Bug::GatheredApart) {
            // The naive version: copies first, positions when they are written.
            let outputs = std::mem::take(&mut transaction.outputs);
            let copies = Transaction { outputs, ended: Vec::new() };
            journal.transact(&copies).await.map_err(Fault::from)?;
        }
        let mut set_aside = Vec::new();
        loop {
            let mut refused: HashMap<usize, Fault> = match journal.transact(&transaction).await {
                Ok(_) => return Ok(set_aside),
                Err(NotWritten::Refused(refused)) if !refused.is_empty() => {
                    refused.into_iter().collect()
                }
                Err(not_written) => return Err(not_written.into()),
            };
            let outputs = std::mem::take(&mut transaction.outputs);
            for (at, (output, part)) in outputs.into_iter().zip(std::mem::take(&mut of)).enumerate()
            {
                let instead = match (refused.remove(&at), part) {
                    (None, part) => vec![(output, part)],
                    // The naive version: what cannot be copied is left out.
                    (Some(_), Part::Copy { .. }) if planted(Bug::RefusedCopyLeftOut) => Vec::new(),
                    (Some(fault), Part::Copy { batch, record }) => {
                        set_aside.push(fault.reason);
                        self.letter(batches, batch, record, &fault)
                    }
                    (Some(fault), Part::Rejection) => {
                        let pieces = pieces(&output).ok_or(Fault { next: Move::Fix, ..fault })?;
                        pieces.into_iter().map(|piece| (piece, Part::Rejection)).collect()
                    }
                };
                for (output, part) in instead {
                    transaction.outputs.push(output);
                    of.push(part);
                }
            }
        }
    }

    /// The dead letter of a record that the internal topic will never take.
    fn letter(
        &self,
        batches: &[SourceBatch],
        batch: usize,
        record: usize,
        fault: &Fault,
    ) -> Vec<(Output, Part)> {
        let found = batches.get(batch).and_then(|batch| Some((batch, batch.records.get(record)?)));
        let letter = |(batch, record): (&SourceBatch, &Record)| {
            let sender = Sender {
                origin: batch.position(record),
                key: record.key.clone(),
                headers: &record.headers,
                attempts: 1,
                replay_of: None,
                shard: None,
                record: Some(record),
            };
            (self.letters.letter(&sender, None, fault), Part::Rejection)
        };
        found.map(letter).into_iter().collect()
    }

    /// Nobody reads a copy of these, so they are counted here.
    fn count(&self, set_aside: &[Reason]) {
        let endings: Vec<_> =
            (0..).zip(set_aside).map(|(at, _)| (at, Ending::DeadLettered)).collect();
        self.counters.counts.received(set_aside.len() as u64).end(&endings);
        set_aside.iter().for_each(|reason| self.counters.dead_letter(*reason));
    }

    fn copies(
        &self,
        batches: &[SourceBatch],
        live: &HashMap<u64, Partition>,
        parser: &mut Parser,
    ) -> Copies {
        let mut copies = Copies::default();
        let slot = crash_notes::gather_slot(self.number);
        for (at, batch) in batches.iter().enumerate() {
            let Some(partition) = live.get(&batch.assignment) else { continue };
            let note = Range::of_batch(batch, batch.first, batch.next.max(batch.first + 1));
            self.notes.enter(slot, note);
            for (index, record) in batch.records.iter().enumerate() {
                copies.transaction.outputs.push(self.copy_of(batch, record, parser));
                copies.of.push(Part::Copy { batch: at, record: index });
            }
            self.notes.leave(slot);
            copies.transaction.ended.push(EndedOffsets {
                partition: partition.clone(),
                assignment: batch.assignment,
                ranges: vec![batch.first..batch.next],
            });
        }
        copies
    }

    fn copy_of(&self, batch: &SourceBatch, record: &Record, parser: &mut Parser) -> Output {
        if let Some(shard) = &self.shard {
            let node = record.value.as_deref().and_then(|value| parser.parse(value).ok());
            // One without a shard goes by its own key: it is about to become a dead letter.
            let group = shard.key(node).ok();
            let partition = group.as_deref().and_then(shard_in);
            return Output { partition, ..gathered::copy(&self.internal, group, batch, record) };
        }
        let group = match &self.by {
            None => Some(Bytes::new()),
            Some(by) => {
                let value = record.value.as_deref().filter(|_| by.needs_value());
                let scope = Scope {
                    value: value.and_then(|value| parser.parse(value).ok()),
                    key: record.key.as_deref(),
                    headers: &record.headers,
                    topic: &batch.partition.topic,
                    id: None,
                    receiver: None,
                };
                by.eval_shared(&scope, record.key.as_ref())
            }
        };
        gathered::copy(&self.internal, group, batch, record)
    }
}

impl Gather {
    /// Takes in what the source says; returns the bytes that came.
    fn hear(
        &self,
        said: SourceEvent,
        live: &mut HashMap<u64, Partition>,
        batches: &mut Vec<SourceBatch>,
    ) -> usize {
        match said {
            SourceEvent::Assigned(assignments) => {
                live.extend(assignments.into_iter().map(|at| (at.nonce, at.partition)));
            }
            SourceEvent::Revoked(nonces)
            | SourceEvent::Lost(nonces)
            | SourceEvent::Finished(nonces) => {
                live.retain(|nonce, _| !nonces.contains(nonce));
                // Nothing of these is written yet: the next owner copies them.
                batches.retain(|batch| !nonces.contains(&batch.assignment));
            }
            SourceEvent::Stalled(Some(fault)) => {
                self.waits.begin_with(WaitsFor::Source, self.source(), &fault);
            }
            SourceEvent::Stalled(None) => self.waits.end(WaitsFor::Source, self.source()),
            SourceEvent::Batch(batch) => {
                let bytes = batch.records.iter().map(Record::bytes).sum();
                batches.push(batch);
                return bytes;
            }
        }
        0
    }

    /// Of a run of a pipeline, one for each consumer group, where its log wants any.
    pub fn of(
        shared: &Shared,
        stopping: &Arc<Signal<bool>>,
        unread: &Arc<Signal<u64>>,
        letters: &Arc<DeadLetterWriter>,
    ) -> Vec<Gather> {
        let plan = &shared.plan;
        let hold = plan.hold.as_ref().filter(|_| plan.is_gathered(&*shared.log));
        let Some(hold) = hold else { return Vec::new() };
        let gather = |(number, spec): (usize, ConsumerGroupSpec)| Gather {
            number,
            spec: ConsumerGroupSpec { exact: true, ..spec },
            by: hold.by.clone(),
            shard: hold.shard.clone(),
            internal: hold.internal.clone(),
            notes: shared.notes.clone(),
            paused: shared.paused.clone(),
            stopping: stopping.clone(),
            waits: shared.waits.clone(),
            letters: letters.clone(),
            counters: shared.counters.clone(),
            unread: unread.clone(),
            unread_max: plan.in_flight_bytes,
        };
        plan.specs(&shared.info).into_iter().enumerate().map(gather).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_becomes_less_and_grows_again() {
        let mut pace = Pace::new(UNREAD_MAX);
        let waits: Vec<Duration> = (0..40).map(|_| pace.failed()).collect();
        assert!(waits.is_sorted() && waits.last() == Some(&WAIT_MAX));
        assert_eq!(pace.room, 0, "one batch at a time");
        pace.worked();
        assert_eq!((pace.failures, pace.room), (0, 1));
        (0..200).for_each(|_| pace.worked());
        assert_eq!(pace.room, BYTES_MAX);
    }

    #[test]
    fn who_is_far_ahead_is_told_by_bytes() {
        let mut pace = Pace::new(usize::MAX);
        assert!(!pace.is_far_ahead(u64::MAX), "nothing was copied yet");
        pace.copies(1_000, 1 << 20);
        assert!(!pace.is_far_ahead(8_000) && pace.is_far_ahead(9_000));
        pace.copies(0, 0);
        assert!(!pace.is_far_ahead(u64::MAX));
        let mut pace = Pace::new(1_000);
        pace.copies(1, 100);
        assert!(!pace.is_far_ahead(10) && pace.is_far_ahead(11), "there is less room");
    }
}
