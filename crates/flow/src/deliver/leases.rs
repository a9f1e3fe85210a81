//! Records that a feed has leased: what may not be called any more is left out and goes back.
//!
//! Lanes are told that an assignment is gone, but somebody who was frozen wakes up in the middle of a cycle:
//! so each call asks the lease itself, which goes by the monotonic clock (decision 0100).

use std::time::Duration;

use potok_core::trouble::{Bug, planted};
use potok_core::{Lease, SourceBatch};

use super::settle::{MessageRun, Settlement};
use crate::lane::Cycle;

/// False where another may have the batch by now.
pub(crate) fn may_call(batch: &SourceBatch) -> bool {
    batch.lease().is_none_or(Lease::is_held) || planted(Bug::SendsOverdue)
}

impl Cycle {
    fn batch_of(&self, item: usize) -> Option<&SourceBatch> {
        let chunk = self.chunks.get(self.items.get(item)?.chunk())?;
        Some(&chunk.taken.batch)
    }

    /// False for a record that another may have by now.
    pub(super) fn may_call(&self, item: usize) -> bool {
        self.batch_of(item).is_none_or(may_call)
    }
}

impl MessageRun {
    /// How long it may wait for a destination that is away, where it is leased.
    pub(super) fn lease(&self, cycle: &Cycle) -> Option<Duration> {
        let lease = |(item, _): &(usize, u64)| Some(cycle.batch_of(*item)?.lease()?.lasts());
        self.items.iter().find_map(lease).filter(|_| !planted(Bug::KeptBehindGate))
    }
}

impl Settlement {
    /// Leaves out what another may have by now.
    pub(super) fn give_up_lost(&mut self, cycle: &Cycle) {
        self.give_up(|item| cycle.may_call(item));
    }

    /// Leaves out what is leased: another may reach the destination.
    pub(super) fn give_up_leased(&mut self, cycle: &Cycle) {
        self.give_up(|item| cycle.batch_of(item).is_none_or(|batch| batch.lease().is_none()));
    }

    /// What is left out stays open, and is handed back when the cycle ends.
    fn give_up(&mut self, stays: impl Fn(usize) -> bool) {
        for run in &mut self.stack {
            run.retain(|(item, _)| stays(*item));
        }
        self.suspects.retain(|item, _| stays(*item));
    }
}
