//! Between the polling thread and the engine: what was read and what happened, bounded in bytes.
//!
//! Assignments, revocations and losses go before records, so that the engine hears of them at once
//! and nobody waits for records that are not wanted any more.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use potok_core::{Fault, Partition, Record, SourceBatch, SourceEvent};
use tokio::sync::Notify;

use super::lock;

/// Records that were read and not yet taken: beyond this the polling thread stops fetching.
const BYTES_MAX: usize = 16 << 20;

#[derive(Default)]
pub struct Handover {
    state: Mutex<HandoverState>,
    /// Wakes the engine.
    said: Notify,
    /// Wakes the polling thread.
    heard: Condvar,
}

#[derive(Default)]
struct HandoverState {
    news: VecDeque<SourceEvent>,
    batches: VecDeque<SourceBatch>,
    bytes: usize,
    fault: Option<Fault>,
    leaving: Revocation,
    source_gone: bool,
    closing: bool,
    ends: HashMap<Partition, u64>,
}

/// A revocation on its way through the engine.
#[derive(Default, PartialEq, Eq)]
enum Revocation {
    #[default]
    Nothing,
    /// Not yet heard, or heard and being dealt with.
    Untold,
    Told,
}

impl Handover {
    /// The next event for the engine. When it calls again, it is done with the one before.
    pub async fn next(&self, paused: bool) -> Result<SourceEvent, Fault> {
        loop {
            if let Some(said) = self.try_next(paused) {
                return said;
            }
            // A wake-up that comes before this line is kept.
            self.said.notified().await;
        }
    }

    fn try_next(&self, paused: bool) -> Option<Result<SourceEvent, Fault>> {
        let mut state = lock(&self.state);
        if state.leaving == Revocation::Told {
            state.leaving = Revocation::Nothing;
            self.heard.notify_all();
        }
        if let Some(news) = state.news.pop_front() {
            if matches!(news, SourceEvent::Revoked(_)) && state.leaving == Revocation::Untold {
                state.leaving = Revocation::Told;
            }
            return Some(Ok(news));
        }
        if let Some(fault) = state.fault.take() {
            return Some(Err(fault));
        }
        if paused {
            return None;
        }
        let batch = state.batches.pop_front()?;
        state.bytes = state.bytes.saturating_sub(size(&batch));
        self.heard.notify_all();
        Some(Ok(SourceEvent::Batch(batch)))
    }

    /// Says something that goes before all records.
    pub fn tell(&self, news: SourceEvent) {
        lock(&self.state).news.push_back(news);
        self.said.notify_one();
    }

    /// Says that reading failed.
    pub fn fail(&self, fault: Fault) {
        lock(&self.state).fault = Some(fault);
        self.said.notify_one();
    }

    /// Hands over records.
    pub fn push(&self, batch: SourceBatch) {
        let mut state = lock(&self.state);
        if state.source_gone {
            return;
        }
        let end = state.ends.entry(batch.partition.clone()).or_default();
        *end = batch.next.max(*end);
        state.bytes += size(&batch);
        state.batches.push_back(batch);
        drop(state);
        self.said.notify_one();
    }

    /// Drops records that were not taken yet.
    pub fn forget(&self, nonces: &[u64]) {
        let mut state = lock(&self.state);
        state.batches.retain(|batch| !nonces.contains(&batch.assignment));
        state.bytes = state.batches.iter().map(size).sum();
    }

    /// Says that partitions leave, and waits until the engine has let them go: bounded.
    pub fn leave(&self, nonces: Vec<u64>, max: Duration) {
        let mut state = lock(&self.state);
        if state.source_gone || nonces.is_empty() {
            return;
        }
        state.leaving = Revocation::Untold;
        state.news.push_back(SourceEvent::Revoked(nonces));
        self.said.notify_one();
        let busy = |state: &mut HandoverState| {
            state.leaving != Revocation::Nothing && !state.source_gone && !state.closing
        };
        let waited = self.heard.wait_timeout_while(state, max, busy);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            tracing::warn!("partitions leave before their records in flight have ended");
        }
        state.leaving = Revocation::Nothing;
    }

    /// True when there is too much already; waits a little for that to change.
    pub fn is_full(&self, max: Duration) -> bool {
        let full = |state: &mut HandoverState| {
            state.bytes >= BYTES_MAX && !state.closing && state.news.is_empty()
        };
        let waited = self.heard.wait_timeout_while(lock(&self.state), max, full);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.bytes >= BYTES_MAX || state.source_gone
    }

    /// True when there is room for a good deal more.
    pub fn has_room(&self) -> bool {
        let state = lock(&self.state);
        state.bytes < BYTES_MAX / 2 && !state.source_gone
    }

    /// Waits, unless the group is being closed; true when it is.
    pub fn rest(&self, max: Duration) -> bool {
        let waited = self.heard.wait_timeout_while(lock(&self.state), max, |state| !state.closing);
        waited.unwrap_or_else(PoisonError::into_inner).0.closing
    }

    /// True while somebody takes records.
    pub fn is_read(&self) -> bool {
        let state = lock(&self.state);
        !state.source_gone && !state.closing
    }

    /// True when both source and journal are gone.
    pub fn is_closing(&self) -> bool {
        lock(&self.state).closing
    }

    /// Nobody takes records any more; endings may still be noted.
    pub fn source_gone(&self) {
        let mut state = lock(&self.state);
        state.source_gone = true;
        state.batches.clear();
        state.bytes = 0;
        self.heard.notify_all();
    }

    /// Nothing is noted any more either.
    pub fn close(&self) {
        lock(&self.state).closing = true;
        self.heard.notify_all();
    }

    /// Where partitions end, as far as known.
    pub fn ends(&self) -> Vec<(Partition, u64)> {
        let state = lock(&self.state);
        state.ends.iter().map(|(partition, end)| (partition.clone(), *end)).collect()
    }

    /// A partition ends here, at least.
    pub fn ends_at(&self, partition: &Partition, end: u64) {
        let mut state = lock(&self.state);
        let known = state.ends.entry(partition.clone()).or_default();
        *known = end.max(*known);
    }

    /// A partition is not ours any more.
    pub fn forget_end(&self, partition: &Partition) {
        lock(&self.state).ends.remove(partition);
    }
}

fn size(batch: &SourceBatch) -> usize {
    64 + batch.records.iter().map(Record::bytes).sum::<usize>()
}
