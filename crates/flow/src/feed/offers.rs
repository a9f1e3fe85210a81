//! Deliveries of records that go back to their feed where they fail: what the log refuses is a failure
//! of that record.
//!
//! A refusal comes after the call, so what lies behind it in its key must not be in the same call:
//! within a key, records go together only to one topic that has taken one as large since its last
//! refusal; any other goes alone, and waits for those before it. Calls go one at a time.
//!
//! What is wrong with a topic (missing, forbidden) may be wrong with all of them: it counts as an
//! attempt of the record only where another topic took something meanwhile. Else it is an outage, and
//! the record is put off without one. The same holds where the log says nothing about a record while
//! it answers otherwise: no other key waits for a part of the log that is away.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use potok_core::trouble::{Bug, planted};
use potok_core::{Attempts, Fault, Move, OfferMode, OfferOutcome, Output, Position, Reason};
use tokio::time::Instant;

use super::{Failure, ShutKeys};
use crate::ledger::JournalWriter;
use crate::outgoing::Purpose;
use crate::pending::{Outputs, PendingEndings};
use crate::source::hash_of;
use crate::waits::WaitsFor;
use crate::work::Stop;

/// Calls for the records of one transaction. A key that needs more gives its other records back, so
/// that other keys do not wait for it.
const CALLS_MAX: usize = 64;
/// Failed records that are remembered.
const TRIALS_MAX: usize = 100_000;

/// What is known of topics, and of records that they refused.
#[derive(Default)]
pub(crate) struct OfferBook(Mutex<BookEntries>);

#[derive(Default)]
struct BookEntries {
    /// The largest record that each topic has taken since its last refusal.
    proven: HashMap<Arc<str>, usize>,
    /// When each topic took a record last.
    taken: HashMap<Arc<str>, Instant>,
    trials: HashMap<Position, Trials>,
    shut: ShutKeys,
}

/// How a record fared.
#[derive(Clone, Copy)]
struct Trials {
    last: Instant,
    /// Those that did not count.
    outages: u32,
}

/// A delivery to offer.
struct OfferRow {
    output: Output,
    /// Its pending endings, and which of them.
    pending: usize,
    index: u32,
    key: u64,
    origin: Position,
    assignment: u64,
    attempts: Attempts,
    /// How often it failed before.
    failures: u32,
    read_at: Instant,
}

/// Rows of one key, in order.
type KeyRows = VecDeque<OfferRow>;

impl OfferBook {
    fn entries(&self) -> MutexGuard<'_, BookEntries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first rows of a key that may go in one call, and how.
    fn first(&self, rows: &mut KeyRows) -> (OfferMode, Vec<OfferRow>) {
        let book = self.entries();
        let is_proven = |row: &OfferRow| {
            let largest = book.proven.get(&row.output.topic);
            row.failures == 0
                && !book.trials.contains_key(&row.origin)
                && largest.is_some_and(|largest| row.output.bytes() <= *largest)
        };
        let topic = rows.front().map(|row| row.output.topic.clone());
        let is_next = |row: &&OfferRow| Some(&row.output.topic) == topic.as_ref() && is_proven(row);
        let together = match planted(Bug::SentTogether) {
            true => rows.len(),
            false => rows.iter().take_while(is_next).count(),
        };
        match together {
            0 => (OfferMode::Single, rows.pop_front().into_iter().collect()),
            many => (OfferMode::Run, rows.drain(..many).collect()),
        }
    }

    fn took(&self, row: &OfferRow) {
        let mut book = self.entries();
        let (topic, bytes) = (&row.output.topic, row.output.bytes());
        let largest = book.proven.entry(topic.clone()).or_default();
        *largest = bytes.max(*largest);
        book.taken.insert(topic.clone(), Instant::now());
        book.trials.remove(&row.origin);
    }

    fn distrust(&self, topic: &str) {
        self.entries().proven.remove(topic);
    }

    /// What a refusal means for the record, or that nothing was said about it.
    fn judge(&self, row: &OfferRow, fault: &Fault, is_silent: bool) -> Failure {
        let mut book = self.entries();
        let known = book.trials.get(&row.origin).copied();
        let since = known.map_or(row.read_at, |trials| trials.last);
        // A record that is refused for itself is told apart by any other.
        let of_record = fault.next == Move::SetAside;
        let is_witness = |(topic, at): (&Arc<str>, &Instant)| {
            (of_record || *topic != row.output.topic) && *at >= since
        };
        let counts = fault.reason == Reason::TooLarge
            || (!is_silent && book.taken.iter().any(is_witness))
            || planted(Bug::OutageIsPoison);
        let outages = known.map_or(0, |trials| trials.outages) + u32::from(!counts);
        if book.trials.len() >= TRIALS_MAX {
            book.trials.clear();
        }
        book.trials.insert(row.origin.clone(), Trials { last: Instant::now(), outages });
        let reason = match fault.reason {
            Reason::TooLarge => Reason::TooLarge,
            _ => Reason::Refused,
        };
        let fault = Fault { reason, ..fault.clone() };
        let failure = match counts {
            true => {
                let attempt = row.failures.saturating_add(1);
                Failure::new(row.index, attempt, row.attempts, &row.origin, &fault)
            }
            false => {
                let tries = (row.failures, outages);
                Failure::outage(row.index, tries, row.attempts, &row.origin, &fault)
            }
        };
        if failure.again.is_none() {
            book.trials.remove(&row.origin);
        }
        failure
    }
}

impl JournalWriter {
    /// Takes out the deliveries whose records go back to their feed where they fail.
    fn offer_rows(&self, pending: &[PendingEndings], outputs: &mut Outputs) -> Vec<OfferRow> {
        let of_row = |of: &(usize, u32, Purpose)| match of {
            (at, _, Purpose::Delivery(_)) => {
                pending.get(*at).is_some_and(PendingEndings::goes_back)
            }
            _ => false,
        };
        if !outputs.of.iter().any(of_row) {
            return Vec::new();
        }
        let mut rows = Vec::new();
        let Outputs { outputs: all, of } = std::mem::take(outputs);
        for (output, of) in all.into_iter().zip(of) {
            let output = match of_row(&of) {
                true => OfferRow::of(pending, of, output),
                false => Err(output),
            };
            match output {
                Ok(row) => rows.push(row),
                Err(output) => {
                    outputs.outputs.push(output);
                    outputs.of.push(of);
                }
            }
        }
        rows
    }

    /// True where something must be offered before the rest is written, one transaction at a time.
    pub(crate) fn has_offers(&self, pending: &[PendingEndings]) -> bool {
        pending.iter().any(PendingEndings::goes_back)
    }

    /// Offers deliveries to the log; what it refuses goes back to its feed, and so does what lies
    /// behind.
    pub(crate) async fn offer(
        &self,
        pending: &mut [PendingEndings],
        outputs: &mut Outputs,
    ) -> Result<(), Stop> {
        let mut keys: Vec<KeyRows> = Vec::new();
        let mut places: HashMap<u64, usize> = HashMap::new();
        for row in self.offer_rows(pending, outputs) {
            let place = *places.entry(row.key).or_insert(keys.len());
            if place == keys.len() {
                keys.push(KeyRows::new());
            }
            if let Some(rows) = keys.get_mut(place) {
                rows.push_back(row);
            }
        }
        for rows in &mut keys {
            self.admit(pending, rows);
        }
        let (mut calls, mut failed) = (0, 0);
        while keys.iter().any(|rows| !rows.is_empty()) {
            keys.iter_mut().for_each(|rows| self.forget_lost(pending, rows));
            if calls >= CALLS_MAX {
                keys.iter_mut().for_each(|rows| self.give_back(pending, rows, None));
                break;
            }
            calls += 1;
            let fault = self.offer_first(pending, &mut keys).await;
            match fault {
                None if failed > 0 => {
                    self.waits.end(WaitsFor::Log, 0);
                    failed = 0;
                }
                None => {}
                Some(fault) => {
                    failed += 1;
                    calls -= 1;
                    self.waits.begin_with(WaitsFor::Log, 0, &fault);
                    let wait = self.retry.wait(failed, u64::from(failed) * 311);
                    tokio::time::sleep(wait.min(Duration::from_secs(10))).await;
                }
            }
        }
        if failed > 0 {
            self.waits.end(WaitsFor::Log, 0);
        }
        self.keep_back_failed(pending);
        Ok(())
    }

    /// Leaves out what lies behind a record that was refused before.
    fn admit(&self, pending: &mut [PendingEndings], rows: &mut KeyRows) {
        let mut book = self.offers.entries();
        // A record may have several deliveries.
        let mut last: Option<(usize, u32, bool)> = None;
        rows.retain(|row| {
            if let Some((at, index, is_admitted)) = last
                && (at, index) == (row.pending, row.index)
            {
                return is_admitted;
            }
            let origin = (row.origin.clone(), row.failures);
            let is_admitted = book.shut.admits(row.key, row.assignment, origin);
            if !is_admitted && let Some(of) = pending.get_mut(row.pending) {
                of.return_to_feed(row.index, None);
            }
            last = Some((row.pending, row.index, is_admitted));
            is_admitted
        });
    }

    /// The assignment of some of these may be gone: then they are another's.
    fn forget_lost(&self, pending: &mut [PendingEndings], rows: &mut KeyRows) {
        rows.retain(|row| {
            let is_lost = self.feeds.iter().any(|feed| feed.live.is_lost(row.assignment));
            if is_lost && let Some(of) = pending.get_mut(row.pending) {
                of.return_to_feed(row.index, None);
            }
            !is_lost
        });
    }

    /// Offers the first rows of each key. A fault says that the log is away, and nothing was written.
    async fn offer_first(
        &self,
        pending: &mut [PendingEndings],
        keys: &mut [KeyRows],
    ) -> Option<Fault> {
        let (mut runs, mut singles) = (Vec::new(), Vec::new());
        for (place, rows) in keys.iter_mut().enumerate().filter(|(_, rows)| !rows.is_empty()) {
            let (mode, first) = self.offers.first(rows);
            let list = if mode == OfferMode::Run { &mut runs } else { &mut singles };
            list.extend(first.into_iter().map(|row| (place, row)));
        }
        // Those that were not written go back to the front of their keys, the last one first.
        let (mut unsent, mut refused) = (Vec::new(), Vec::new());
        let mut silent: HashSet<usize> = HashSet::new();
        let mut progress = false;
        let mut away = None;
        for (mode, rows) in [(OfferMode::Run, runs), (OfferMode::Single, singles)] {
            for ((place, row), outcome) in self.offer_all(rows, mode).await {
                match outcome {
                    OfferOutcome::Written => {
                        self.offers.took(&row);
                        progress = true;
                    }
                    OfferOutcome::Refused(fault) => {
                        self.offers.distrust(&row.output.topic);
                        progress = true;
                        match mode {
                            OfferMode::Run if !planted(Bug::SentTogether) => {
                                unsent.push((place, row));
                            }
                            _ => refused.push((place, row, fault, false)),
                        }
                    }
                    // Those of its key behind it wait for it.
                    OfferOutcome::Silent(fault) => {
                        progress = true;
                        match silent.insert(place) {
                            true => refused.push((place, row, fault, true)),
                            false => unsent.push((place, row)),
                        }
                    }
                    OfferOutcome::Unsent(fault) => {
                        away.get_or_insert(fault);
                        unsent.push((place, row));
                    }
                }
            }
        }
        for (place, row) in unsent.into_iter().rev() {
            if let Some(rows) = keys.get_mut(place) {
                rows.push_front(row);
            }
        }
        // Now it is known what others took meanwhile.
        for (place, row, fault, is_silent) in refused {
            let failure = self.offers.judge(&row, &fault, is_silent);
            let head = OfferRow { failures: failure.attempt, ..row };
            if let Some(of) = pending.get_mut(head.pending) {
                of.return_to_feed(head.index, Some(failure));
            }
            if let Some(rows) = keys.get_mut(place) {
                self.give_back(pending, rows, Some(&head));
            }
        }
        away.filter(|_| !progress)
    }

    async fn offer_all(
        &self,
        rows: Vec<(usize, OfferRow)>,
        mode: OfferMode,
    ) -> Vec<((usize, OfferRow), OfferOutcome)> {
        if rows.is_empty() {
            return Vec::new();
        }
        let outputs: Vec<Output> = rows.iter().map(|(_, row)| row.output.clone()).collect();
        let outcomes = self.journal.offer(&outputs, mode).await;
        // One of which nothing is said was not written.
        let unknown = || OfferOutcome::Unsent(Fault::retry("the log said nothing about a record"));
        rows.into_iter().zip(outcomes.into_iter().chain(std::iter::repeat_with(unknown))).collect()
    }

    /// Gives these back and shuts their key: behind this head, with how often that has failed by now, or
    /// behind the first of them.
    fn give_back(
        &self,
        pending: &mut [PendingEndings],
        rows: &mut KeyRows,
        head: Option<&OfferRow>,
    ) {
        if let Some(first) = head.or(rows.front()) {
            let behind = rows.iter().map(|row| &row.origin);
            let behind = behind.filter(|origin| **origin != first.origin);
            let (key, assignment) = (first.key, first.assignment);
            let head = (&first.origin, first.failures);
            self.offers.entries().shut.shut_behind(key, assignment, head, behind);
        }
        // What became of the head is known, though another delivery of it may be left.
        let is_head = |row: &OfferRow| head.is_some_and(|head| head.origin == row.origin);
        for row in rows.drain(..).filter(|row| !is_head(row)) {
            if let Some(of) = pending.get_mut(row.pending) {
                of.return_to_feed(row.index, None);
            }
        }
    }

    /// Records that failed before they got here wait as well for the head of their key.
    fn keep_back_failed(&self, pending: &mut [PendingEndings]) {
        for of in pending.iter_mut().filter(|of| of.goes_back()) {
            let failures = of.feed.iter().flat_map(|feed| feed.failures());
            let failed: Vec<u32> = failures.map(|failure| failure.index).collect();
            for index in failed {
                let Some((key, origin, failures)) = of.row(index) else { continue };
                let mut book = self.offers.entries();
                if !book.shut.is_head(key, &origin)
                    && !book.shut.admits(key, of.taken.batch.assignment, (origin, failures))
                {
                    of.return_to_feed(index, None);
                }
            }
        }
    }
}

impl OfferRow {
    fn of(
        pending: &[PendingEndings],
        (at, index, _): (usize, u32, Purpose),
        output: Output,
    ) -> Result<OfferRow, Output> {
        let Some(of) = pending.get(at) else { return Err(output) };
        let (Some((key, origin, failures)), Some(attempts)) = (of.row(index), of.taken.puts_off)
        else {
            return Err(output);
        };
        let (assignment, read_at) = (of.taken.batch.assignment, of.taken.read_at);
        let pending = at;
        Ok(OfferRow {
            output,
            pending,
            index,
            key,
            origin,
            assignment,
            attempts,
            failures,
            read_at,
        })
    }
}

impl PendingEndings {
    /// Records of these go back to their feed where they fail.
    fn goes_back(&self) -> bool {
        self.feed.is_some() && self.taken.puts_off.is_some()
    }

    /// Key, name and failures of a record.
    fn row(&self, index: u32) -> Option<(u64, Position, u32)> {
        let batch = &self.taken.batch;
        let (origin, failures) = batch.origin(index as usize)?;
        let key = batch.records.get(index as usize)?.key.as_deref();
        let key = key.map_or_else(|| hash_of(origin.to_string().as_bytes()), hash_of);
        Some((key, origin, failures))
    }
}
