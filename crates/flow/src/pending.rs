//! Endings that wait for their outputs to be written, and those outputs.

use std::sync::Arc;

use potok_core::{Fault, Output, Reason};

use crate::counts::{Ending, InFlight};
use crate::dead_letter::Resolution;
use crate::feed::{Failure, FeedPart};
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
    /// The outcomes to tell their feed, where they are of one.
    pub feed: Option<FeedPart>,
}

impl PendingEndings {
    /// A record of these becomes a dead letter, because the log refuses a delivery.
    pub fn set_aside(
        &mut self,
        letters: &DeadLetterWriter,
        index: u32,
        deliver: u32,
        fault: &Fault,
    ) -> Outgoing {
        let ending = self.endings.iter_mut().find(|(known, _)| *known == index);
        ending.into_iter().for_each(|(_, ending)| *ending = Ending::DeadLettered);
        self.reasons.push(fault.reason);
        let output = letters.instead_of(&self.taken, index, deliver, fault);
        Outgoing { index, purpose: Purpose::DeadLetter, output }
    }

    /// A record of these goes back to its feed: it failed, or it lies behind one that did.
    pub fn return_to_feed(&mut self, index: u32, failure: Option<Failure>) {
        let is_kept = failure.as_ref().is_some_and(|failure| failure.again.is_none());
        if is_kept {
            let ending = self.endings.iter_mut().find(|(known, _)| *known == index);
            ending.into_iter().for_each(|(_, ending)| *ending = Ending::DeadLettered);
        } else if let Some(at) = self.endings.iter().position(|(known, _)| *known == index) {
            self.endings.remove(at);
            // It has not ended.
            drop(self.records.as_mut().map(|records| records.part(1)));
        }
        self.feed.iter_mut().for_each(|feed| feed.change(index, failure.clone()));
    }
}

/// Transaction outputs, each with its completion and its purpose.
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

    /// Takes out what says how replays ended.
    pub fn take_resolutions(&mut self) -> Outputs {
        let mut resolutions = Outputs::default();
        if !self.of.iter().any(|(.., purpose)| matches!(purpose, Purpose::Resolution)) {
            return resolutions;
        }
        let Outputs { outputs, of } = std::mem::take(self);
        for (output, (pending, index, purpose)) in outputs.into_iter().zip(of) {
            let to = match purpose {
                Purpose::Resolution => &mut resolutions,
                _ => &mut *self,
            };
            to.push(pending, Outgoing { index, purpose, output });
        }
        resolutions
    }

    /// Says of replays that they failed, where the log has refused what they made.
    pub fn correct(&mut self, pending: &[PendingEndings]) {
        for (output, (at, index, _)) in self.outputs.iter_mut().zip(&self.of) {
            let endings = pending.get(*at).map_or(&[][..], |pending| &pending.endings);
            let ending = endings.iter().find(|(known, _)| known == index);
            if ending.is_some_and(|(_, ending)| *ending == Ending::DeadLettered) {
                Resolution::failed_again(output);
            }
        }
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
