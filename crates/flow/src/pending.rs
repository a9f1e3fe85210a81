//! Endings that wait for their outputs to be written, and those outputs.

use std::sync::Arc;

use potok_core::{Fault, Output, Reason};

use crate::counts::{Ending, InFlight};
use crate::feed::FeedPart;
use crate::outgoing::{DeadLetterWriter, Outgoing, Purpose};
use crate::work::InFlightBatch;

/// Endings that wait for their outputs to be written.
pub(crate) struct PendingEndings {
    pub assignment: u64,
    /// Counted once the outputs are durable.
    pub endings: Vec<(u32, Ending)>,
    pub records: Option<InFlight>,
    pub reasons: Vec<Reason>,
    /// Records that end as one of these does: its index, and theirs with the pending endings they
    /// are in.
    pub followers: Vec<(u32, usize, u32)>,
    /// Keeps the room of the records until then.
    pub taken: Arc<InFlightBatch>,
    /// What their feed is told, where they are of one.
    pub feed: Option<FeedPart>,
}

impl PendingEndings {
    /// A record of these becomes a dead letter, because the log refuses a delivery; `None` where its
    /// feed keeps it.
    pub fn set_aside(
        &mut self,
        letters: &DeadLetterWriter,
        index: u32,
        deliver: u32,
        fault: &Fault,
    ) -> Option<Outgoing> {
        let ending = self.endings.iter_mut().find(|(known, _)| *known == index);
        ending.into_iter().for_each(|(_, ending)| *ending = Ending::DeadLettered);
        self.reasons.push(fault.reason);
        if self.feed.as_mut().is_some_and(|feed| feed.set_aside(&self.taken, index, fault)) {
            return None;
        }
        let output = letters.instead_of(&self.taken, index, deliver, fault);
        Some(Outgoing { index, purpose: Purpose::DeadLetter, output })
    }
}

/// Outputs of a transaction, each with the pending endings it belongs to and what it is for.
#[derive(Default)]
pub(crate) struct Outputs {
    pub outputs: Vec<Output>,
    pub of: Vec<(usize, u32, Purpose)>,
}

impl Outputs {
    pub fn push(&mut self, pending: usize, outgoing: Outgoing) {
        self.outputs.push(outgoing.output);
        self.of.push((pending, outgoing.index, outgoing.purpose));
    }

    pub fn append(&mut self, mut others: Outputs) {
        self.outputs.append(&mut others.outputs);
        self.of.append(&mut others.of);
    }

    /// Pending endings were dropped: says of each that there was which one it is now.
    fn renumber(&mut self, now: &[Option<usize>]) {
        let Outputs { outputs, of } = std::mem::take(self);
        for (output, (pending, index, purpose)) in outputs.into_iter().zip(of) {
            if let Some(Some(pending)) = now.get(pending) {
                self.push(*pending, Outgoing { index, purpose, output });
            }
        }
    }
}

/// Drops pending endings that do not stay, and what was to be written for them.
pub(crate) fn keep(
    pending: &mut Vec<PendingEndings>,
    outputs: &mut Outputs,
    stays: impl Fn(&PendingEndings) -> bool,
) {
    let (mut now, mut kept) = (Vec::with_capacity(pending.len()), 0);
    pending.retain(|pending| {
        let stays = stays(pending);
        now.push(stays.then_some(kept));
        kept += usize::from(stays);
        stays
    });
    if kept == now.len() {
        return;
    }
    outputs.renumber(&now);
    for pending in pending {
        pending.followers.retain_mut(|(_, own, _)| match now.get(*own) {
            Some(Some(number)) => {
                *own = *number;
                true
            }
            _ => false,
        });
    }
}
