//! Telling a feed what became of its records, once the outputs are durable.
//!
//! Commits of one feed go one at a time, in the order in which the ledger wrote their outputs; while
//! one is on its way, the log takes the next outputs. A fault is waited out, and says so.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use potok_core::trouble::{Bug, crash_point, planted};
use potok_core::{
    EndedOffsets, Fault, FeedCommit, Move, Output, Partition, PostponedRecord, Progress, Reason,
    SetAside,
};
use tokio::sync::oneshot;

use super::Failure;
use crate::counts::Ending;
use crate::live::Assignments;
use crate::pending::PendingEndings;
use crate::plan::Retry;
use crate::waits::{Waits, WaitsFor};
use crate::work::{InFlightBatch, Stop};

/// The outcomes of one completion, for its feed.
pub(crate) struct FeedPart {
    /// Which feed.
    pub number: usize,
    partition: Partition,
    /// As the feed calls the assignment.
    assignment: u64,
    /// Of each record; none says that the batch was a gap.
    endings: Vec<(u32, Ending)>,
    failures: Vec<Failure>,
}

impl FeedPart {
    pub fn new(
        number: usize,
        partition: Partition,
        assignment: u64,
        endings: Vec<(u32, Ending)>,
        failures: Vec<Failure>,
    ) -> Self {
        FeedPart { number, partition, assignment, endings, failures }
    }

    /// Those of its records that failed.
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// A record that would have ended did not: it failed, or it is given back.
    pub fn change(&mut self, index: u32, failure: Option<Failure>) {
        let ending = match &failure {
            Some(Failure { again: Some(_), .. }) => Ending::PutOff,
            Some(_) => Ending::DeadLettered,
            None => Ending::HandedBack,
        };
        for (_, known) in self.endings.iter_mut().filter(|(known, _)| *known == index) {
            *known = ending;
        }
        self.failures.retain(|known| known.index != index);
        self.failures.extend(failure);
    }

    /// How many of its records are put off.
    pub fn put_off(&self) -> u64 {
        self.failures.iter().filter(|failure| failure.again.is_some()).count() as u64
    }

    /// Why records are not tried again.
    pub fn given_up(&self) -> impl Iterator<Item = Reason> {
        self.failures.iter().filter(|failure| failure.again.is_none()).map(|failure| failure.reason)
    }

    fn add_to(&self, taken: &InFlightBatch, commit: &mut FeedCommit) {
        let (mut ended, mut given_back) = (Vec::new(), Vec::new());
        if self.endings.is_empty() {
            ended.push(taken.batch.first..taken.batch.next);
        }
        for (index, ending) in &self.endings {
            let has_failed = |failure: &Failure| failure.index == *index;
            let covers = taken.covers(*index as usize);
            let Some(failure) = self.failures.iter().find(|failure| has_failed(failure)) else {
                if ending.is_handed_back() {
                    given_back.push(covers);
                } else {
                    ended.push(covers);
                }
                continue;
            };
            self.fail(taken, failure, commit);
        }
        if planted(Bug::GivenBackForgotten) {
            given_back.clear();
        }
        let (partition, assignment) = (&self.partition, self.assignment);
        for (ranges, list) in [(ended, &mut commit.ended), (given_back, &mut commit.given_back)] {
            if ranges.is_empty() {
                continue;
            }
            match list.iter_mut().find(|known| known.assignment == assignment) {
                Some(known) => known.ranges.extend(ranges),
                None => {
                    list.push(EndedOffsets { partition: partition.clone(), assignment, ranges })
                }
            }
        }
    }

    fn fail(&self, taken: &InFlightBatch, failure: &Failure, commit: &mut FeedCommit) {
        let (partition, assignment) = (self.partition.clone(), self.assignment);
        let record = taken.batch.records.get(failure.index as usize);
        let offset = record.map_or(taken.batch.first, |record| record.offset);
        let (attempt, error) = (failure.attempt, failure.error.clone());
        match failure.again {
            Some(wait) => {
                commit.put_off.push(PostponedRecord {
                    partition,
                    assignment,
                    offset,
                    attempt,
                    wait,
                    error,
                });
            }
            None => {
                let reason = failure.reason;
                let aside = SetAside { partition, assignment, offset, attempt, reason, error };
                commit.set_aside.push(aside);
            }
        }
    }
}

/// The commit of one feed of a transaction: its turn behind the one before.
pub(crate) struct CommitTurn {
    /// Which feed.
    pub number: usize,
    before: Option<oneshot::Receiver<()>>,
    done: oneshot::Sender<()>,
}

/// The last commit of each feed.
#[derive(Default)]
pub(crate) struct CommitTurns(BTreeMap<usize, oneshot::Receiver<()>>);

impl CommitTurns {
    /// The turns of a transaction; they are taken in the order in which they are asked for here.
    pub fn next(&mut self, pending: &[PendingEndings]) -> Vec<CommitTurn> {
        let parts = pending.iter().filter_map(|pending| pending.feed.as_ref());
        let mut numbers: Vec<usize> = parts.map(|part| part.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let turn = |number: usize| {
            let (done, is_done) = oneshot::channel();
            CommitTurn { number, before: self.0.insert(number, is_done), done }
        };
        numbers.into_iter().map(turn).collect()
    }
}

/// Tells one feed.
pub(crate) struct FeedWriter {
    pub name: Arc<str>,
    pub progress: Arc<OnceLock<Arc<dyn Progress>>>,
    pub live: Arc<Assignments>,
    pub waits: Arc<Waits>,
    /// Its number among the parts of the pipeline that wait.
    pub part: usize,
    pub retry: Retry,
}

impl FeedWriter {
    /// The commit for these now, without records that were lost.
    fn commit_of(&self, number: usize, pending: &[PendingEndings]) -> FeedCommit {
        let mut commit = FeedCommit::default();
        for pending in pending {
            if let Some(part) = pending.feed.as_ref().filter(|part| part.number == number)
                && !self.live.is_lost(pending.assignment)
            {
                part.add_to(&pending.taken, &mut commit);
            }
        }
        for EndedOffsets { ranges, .. } in commit.ended.iter_mut().chain(&mut commit.given_back) {
            joined(ranges);
        }
        commit
    }

    /// The feed's output that goes into the log with the others.
    pub fn in_log(&self, turn: &CommitTurn, pending: &[PendingEndings]) -> Vec<Output> {
        let commit = self.commit_of(turn.number, pending);
        self.progress.get().map(|progress| progress.in_log(&commit)).unwrap_or_default()
    }

    /// Tells the feed in its turn, until it has taken it.
    pub async fn commit(&self, turn: CommitTurn, pending: &[PendingEndings]) -> Result<(), Stop> {
        let CommitTurn { number, before, done } = turn;
        if let Some(before) = before
            && before.await.is_err()
        {
            // The one before failed and ends the run.
            return std::future::pending().await;
        }
        crash_point("feed.commit.before");
        let mut attempt = 0;
        loop {
            let commit = self.commit_of(number, pending);
            // Records were handed out, so the feed is open.
            let Some(progress) = self.progress.get().filter(|_| !commit.is_empty()) else { break };
            let fault = match progress.commit(&commit).await {
                Ok(()) => break,
                Err(fault) if fault.next == Move::Fix => return Err(Stop::Fix(fault)),
                Err(fault) => fault,
            };
            attempt += 1;
            let what = format!("feed {} does not take outcomes: {}", self.name, fault.what);
            self.waits.begin_with(WaitsFor::Feed, self.part, &Fault { what, ..fault });
            tokio::time::sleep(self.retry.wait(attempt, u64::from(attempt) * 311)).await;
        }
        if attempt > 0 {
            self.waits.end(WaitsFor::Feed, self.part);
        }
        crash_point("feed.commit.after");
        // The one behind may not be there yet.
        let _ = done.send(());
        Ok(())
    }
}

/// In order, without overlaps, neighbours joined.
fn joined(ranges: &mut Vec<Range<u64>>) {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let meets = next.start <= last.end;
        if meets {
            last.end = last.end.max(next.end);
        }
        meets
    });
}
