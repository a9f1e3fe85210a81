//! Calls a sink until every message of a lane's cycle has ended there.
//!
//! Messages wait in runs on a stack; the run on top is called first, and a split puts the right
//! half back before the left one, so the order of a key is never turned round. A run leaves the
//! stack only when all of it has ended.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use potok_core::trouble::{Bug, crash_point, planted};
use potok_core::{Batch, Fault, Message, Move, Outcome, Reason, Receipt};

use super::Destination;
use super::gate::Pass;
use super::messages::{Addressed, address};
use crate::lane::{Cycle, Item, Lane, Letter};
use crate::work::Stop;

/// A call that takes longer counts as unanswered: its outcome is unknown.
const CALL_MAX: Duration = Duration::from_secs(60);
/// How many other records are tried in search of one that the destination takes.
const WITNESSES_MAX: usize = 8;
/// How often a record may fail on both sides of a success while the gate closed in between: each
/// time may be another outage, but not for ever.
const STRIKES_MAX: u32 = 3;

/// Messages that are called together.
struct Run {
    batch: Batch,
    /// Item and lane key of each message.
    items: Vec<(usize, u64)>,
    /// Which attempt is next, from 1; only failures of the kind Retry count.
    attempt: u32,
    /// Attempts in a row before the table decides; a half of a split gets one.
    attempts_max: u32,
    /// Calls in a row that found the destination away.
    waits: u32,
    /// The last failure that counts: how many calls had started when it came.
    failed_at: Option<u64>,
    /// Before it, and after the failure before it, a call of others had succeeded.
    works_before: bool,
    /// That was so for one of its failures.
    worked_once: bool,
    /// The last failure before the gate closed.
    failed_before_closing: Option<u64>,
    /// How often its attempts were used up again though others had succeeded after that, or
    /// though nobody else failed.
    strikes: u32,
    /// How often the gate had closed when these were counted.
    closings: u64,
    /// It is a single message, and what is held against it, it did alone.
    alone: bool,
}

impl Run {
    fn new(addressed: Vec<Addressed>, attempts_max: u32) -> Self {
        let mut run = Run {
            batch: Batch::default(),
            items: Vec::with_capacity(addressed.len()),
            attempt: 1,
            attempts_max,
            waits: 0,
            failed_at: None,
            works_before: false,
            worked_once: false,
            failed_before_closing: None,
            strikes: 0,
            closings: 0,
            alone: false,
        };
        for Addressed { item, lane_key, message } in addressed {
            run.items.push((item, lane_key));
            run.batch.messages.push(message);
        }
        run
    }

    fn len(&self) -> usize {
        self.items.len()
    }

    /// Cuts the run behind `count` messages and returns the rest.
    fn split_off(&mut self, count: usize) -> Run {
        Run {
            batch: Batch { messages: self.batch.messages.split_off(count) },
            items: self.items.split_off(count),
            attempt: self.attempt,
            attempts_max: self.attempts_max,
            waits: self.waits,
            failed_at: self.failed_at,
            works_before: false,
            worked_once: false,
            failed_before_closing: None,
            strikes: 0,
            alone: false,
            closings: self.closings,
        }
    }

    /// Starts counting anew: failures from before the gate closed last prove nothing.
    fn forget_before_closing(&mut self, closings: u64) {
        if self.closings != closings {
            self.closings = closings;
            self.attempt = 1;
            self.failed_before_closing = self.failed_at.take().or(self.failed_before_closing);
        }
    }

    /// Starts counting anew for a message that has become single: only what it fails at alone
    /// counts against it.
    fn forget_company(&mut self, attempts_max: u32) {
        if self.len() == 1 && !self.alone {
            self.alone = true;
            self.attempts_max = attempts_max;
            (self.attempt, self.strikes, self.worked_once) = (1, 0, false);
            (self.failed_at, self.failed_before_closing) = (None, None);
        }
    }

    /// How many messages from the front fit into one call.
    fn fitting(&self, destination: &Destination) -> usize {
        let limits = &destination.limits;
        let records_max = limits.batch_records_max.min(destination.gate.call_records_max()).max(1);
        let mut keys = HashSet::new();
        let mut bytes = 0;
        for (count, (message, (_, key))) in self.batch.messages.iter().zip(&self.items).enumerate()
        {
            bytes += message.bytes();
            let repeated = limits.per_message && !keys.insert(*key);
            if count > 0 && (count == records_max || bytes > limits.batch_bytes_max || repeated) {
                return count;
            }
        }
        self.len()
    }
}

/// How a search for a record that the destination takes ended.
enum Witness {
    /// One was taken (or refused for its own sake): the destination works.
    Found,
    /// None of those tried.
    None(Option<Fault>),
}

impl Lane {
    /// Delivers the items of the cycle from `from` on to entry `index`, until each has ended
    /// there. Items that join the cycle meanwhile are delivered too.
    pub(crate) async fn deliver_items(
        &mut self,
        cycle: &mut Cycle,
        from: usize,
        index: usize,
    ) -> Result<(), Stop> {
        let plan = self.plan.clone();
        let Some(deliver) = plan.delivers.get(index) else {
            return Ok(());
        };
        let is_last = index + 1 == plan.delivers.len();
        let addressed = address(deliver, index, is_last, &mut cycle.items, from);
        if addressed.is_empty() {
            return Ok(());
        }
        let mut settling = Settling {
            destinations: self.destinations.clone(),
            index,
            stack: vec![Run::new(addressed, plan.retry.attempts)],
        };
        while let Some(run) = settling.stack.pop() {
            if run.len() == 0 {
                continue;
            }
            self.settle(&mut settling, cycle, run).await?;
        }
        Ok(())
    }

    /// Calls the sink once with (the front of) a run and acts on the answer.
    async fn settle(
        &mut self,
        settling: &mut Settling,
        cycle: &mut Cycle,
        mut run: Run,
    ) -> Result<(), Stop> {
        let destinations = settling.destinations.clone();
        let Some(destination) = destinations.get(settling.index) else {
            return Ok(());
        };
        if self.pass(destination).await? == Pass::Trial {
            settling.stack.push(run);
            return self.trial(settling, cycle, destination).await;
        }
        let fitting = run.fitting(destination);
        if fitting < run.len() {
            settling.stack.push(run.split_off(fitting));
        }
        run.forget_before_closing(destination.gate.closings());
        run.forget_company(self.plan.retry.attempts);
        let works_before = run.failed_at.is_some_and(|at| destination.gate.witness_since(at));
        let call = destination.gate.call_starts();
        let Some(fault) = settling.call(destination, cycle, &mut run, call).await else {
            return Ok(());
        };
        if matches!(fault.next, Move::Wait | Move::Retry) {
            self.counters.retries.fetch_add(1, Ordering::Relaxed);
        }
        match fault.next {
            Move::Fix => Err(Stop::Fix(fault)),
            Move::SetAside => {
                settling.set_aside_or_split(cycle, run, fault);
                Ok(())
            }
            Move::Wait => self.destination_away(settling, cycle, destination, run, fault).await,
            Move::Retry => {
                run.waits = 0;
                run.works_before = works_before;
                run.worked_once |= works_before;
                run.failed_at = Some(destination.gate.calls());
                if run.attempt >= run.attempts_max {
                    return self.used_up(settling, cycle, destination, run, fault).await;
                }
                let wait = self.plan.retry.wait(run.attempt, self.spread(call));
                run.attempt += 1;
                settling.stack.push(run);
                self.wait(wait).await
            }
        }
    }

    /// Says nothing against the records: what they failed at before does not count any more.
    async fn destination_away(
        &mut self,
        settling: &mut Settling,
        cycle: &mut Cycle,
        destination: &Destination,
        mut run: Run,
        fault: Fault,
    ) -> Result<(), Stop> {
        run.waits += 1;
        (run.attempt, run.strikes, run.worked_once) = (1, 0, false);
        (run.failed_at, run.failed_before_closing) = (None, None);
        if run.waits < self.plan.retry.attempts {
            let wait = self.plan.retry.wait(run.waits, self.spread(u64::from(run.waits)));
            settling.stack.push(run);
            return self.wait(wait).await;
        }
        if planted(Bug::OutageIsPoison) {
            settling.set_aside_or_split(cycle, run, fault);
            return Ok(());
        }
        run.waits = 0;
        settling.stack.push(run);
        destination.gate.close(&fault, self.clock.now());
        Ok(())
    }

    /// Attempts are used up. It is the record's own fault only if its last failure lies between
    /// two successes of others, the first of which started after its failure before that: then
    /// the destination worked before and after. Several messages are split as soon as others
    /// succeed. Where no other call has succeeded, one is tried with messages that wait; if none
    /// goes through, it may well be the destination.
    async fn used_up(
        &mut self,
        settling: &mut Settling,
        cycle: &mut Cycle,
        destination: &Destination,
        mut run: Run,
        fault: Fault,
    ) -> Result<(), Stop> {
        let gate = &destination.gate;
        run.strikes +=
            u32::from(run.failed_before_closing.is_some_and(|at| gate.witness_since(at)));
        if run.strikes >= STRIKES_MAX || planted(Bug::NoWitnessNeeded) {
            settling.set_aside_or_split(cycle, run, fault);
            return Ok(());
        }
        let (works_before, several) = (run.works_before, run.len() > 1);
        let witness = if run.failed_at.is_some_and(|at| gate.witness_since(at)) {
            Witness::Found
        } else {
            // A single record failed just now; the head of several may be the witness itself.
            let skip = run.items.first().map(|(_, key)| *key).filter(|_| !several);
            settling.stack.push(run);
            let witness = self.find_witness(settling, cycle, destination, skip).await?;
            let Some(again) = settling.stack.pop() else {
                return Ok(());
            };
            run = again;
            witness
        };
        match witness {
            // What is left of several when one was the witness has not failed alone yet.
            Witness::Found if run.len() > 1 || (works_before && !several) => {
                settling.set_aside_or_split(cycle, run, fault);
            }
            // Once more, now that the destination is known to work.
            Witness::Found => settling.stack.push(run),
            Witness::None(other) => {
                settling.stack.push(run);
                gate.close(&other.unwrap_or(fault), self.clock.now());
            }
        }
        Ok(())
    }

    /// The gate is half open: try the head alone, then others.
    async fn trial(
        &mut self,
        settling: &mut Settling,
        cycle: &mut Cycle,
        destination: &Destination,
    ) -> Result<(), Stop> {
        match self.find_witness(settling, cycle, destination, None).await? {
            Witness::Found => destination.gate.open(),
            Witness::None(Some(fault)) if settling.is_lone_culprit(destination, &fault) => {
                if let Some(run) = settling.stack.pop() {
                    settling.set_aside_or_split(cycle, run, fault);
                }
                destination.gate.open();
            }
            Witness::None(fault) => {
                let fault = fault.unwrap_or_else(|| Fault::wait("nothing to try it with"));
                destination.gate.close(&fault, self.clock.now());
            }
        }
        Ok(())
    }

    /// A number that differs from lane to lane and call to call, the same in every run.
    fn spread(&self, call: u64) -> u64 {
        call.wrapping_mul(613).wrapping_add(self.slot as u64 * 97)
    }

    /// Tries single messages until the destination takes one. Only the first waiting message of a
    /// key may be tried, so order holds; `skip` is a key that just failed.
    async fn find_witness(
        &mut self,
        settling: &mut Settling,
        cycle: &mut Cycle,
        destination: &Destination,
        skip: Option<u64>,
    ) -> Result<Witness, Stop> {
        let mut tried: HashSet<u64> = skip.into_iter().collect();
        let mut last = None;
        for _ in 0..WITNESSES_MAX {
            let candidate = match settling.take_first_of_key(&tried) {
                Some(candidate) => Some(candidate),
                None => {
                    self.refill(settling, cycle).await?;
                    settling.take_first_of_key(&tried)
                }
            };
            let Some((place, mut run)) = candidate else {
                break;
            };
            tried.extend(run.items.first().map(|(_, key)| *key));
            let call = destination.gate.call_starts();
            match settling.call(destination, cycle, &mut run, call).await {
                None => return Ok(Witness::Found),
                Some(fault) => {
                    let next = fault.next;
                    match next {
                        Move::SetAside => {
                            settling.set_aside_or_split(cycle, run, fault);
                            return Ok(Witness::Found);
                        }
                        Move::Fix => return Err(Stop::Fix(fault)),
                        Move::Wait => settling.put_back(place, run, None),
                        Move::Retry => {
                            let failed = (destination.gate.calls(), destination.gate.closings());
                            settling.put_back(place, run, Some(failed));
                        }
                    }
                    last = Some(fault);
                    if next == Move::Wait {
                        break;
                    }
                }
            }
        }
        Ok(Witness::None(last))
    }

    /// Takes a chunk that queued up behind the cycle into it: its records may be the witness.
    async fn refill(&mut self, settling: &mut Settling, cycle: &mut Cycle) -> Result<(), Stop> {
        let Some(chunk) = self.more() else {
            return Ok(());
        };
        let from = cycle.items.len();
        self.begin(cycle, vec![chunk]).await?;
        // The new records pass the entries before this one first, as all others did.
        for index in 0..settling.index {
            Box::pin(self.deliver_items(cycle, from, index)).await?;
        }
        let plan = self.plan.clone();
        let Some(deliver) = plan.delivers.get(settling.index) else {
            return Ok(());
        };
        let is_last = settling.index + 1 == plan.delivers.len();
        let addressed = address(deliver, settling.index, is_last, &mut cycle.items, from);
        if !addressed.is_empty() {
            // The bottom of the stack: behind everything that waits.
            settling.stack.insert(0, Run::new(addressed, plan.retry.attempts));
        }
        Ok(())
    }

    async fn pass(&mut self, destination: &Destination) -> Result<Pass, Stop> {
        tokio::select! {
            biased;
            () = self.stopping.wait_for(|stopping| stopping) => Err(Stop::Asked),
            pass = destination.gate.pass() => Ok(pass),
        }
    }
}

/// What waits for one deliver entry.
struct Settling {
    destinations: Arc<Vec<Destination>>,
    index: usize,
    /// The last one is next.
    stack: Vec<Run>,
}

/// Where a message was taken from: which run, and where in it.
struct Place {
    run: usize,
    at: usize,
}

impl Settling {
    /// One call. Notes what ended, keeps in the run what did not, and returns the fault that
    /// stands in its way; `None` when the whole run has ended.
    async fn call(
        &self,
        destination: &Destination,
        cycle: &mut Cycle,
        run: &mut Run,
        call: u64,
    ) -> Option<Fault> {
        let sink = destination.sink.as_ref()?;
        let answer = match tokio::time::timeout(CALL_MAX, sink.deliver(&run.batch)).await {
            Ok(answer) => answer,
            Err(_) => Err(Fault::wait(format!("{} gave no answer", destination.label))),
        };
        crash_point("receipt.after");
        let receipt = match answer {
            Ok(receipt) => receipt,
            Err(fault) => {
                if fault.next == Move::Retry {
                    destination.gate.call_failed(run.items.iter().map(|(_, key)| *key));
                }
                return Some(fault);
            }
        };
        let before = run.len();
        let fault = self.note(cycle, run, receipt);
        if run.len() < before || before == 0 {
            destination.gate.call_succeeded(call);
        }
        if fault.as_ref().is_some_and(|fault| fault.next == Move::Retry) {
            destination.gate.call_failed(run.items.iter().map(|(_, key)| *key));
        }
        fault
    }

    /// The record at the head just failed at a half-open gate, others could not be tried. It is
    /// to blame if others succeeded between its failures before, and it alone has failed since,
    /// several times, though the destination answers its probes.
    fn is_lone_culprit(&mut self, destination: &Destination, fault: &Fault) -> bool {
        let Some(run) = self.stack.last_mut() else { return false };
        let key = run.items.first().map(|(_, key)| *key).filter(|_| run.len() == 1);
        let alone = key.is_some_and(|key| destination.gate.fails_alone(key));
        if fault.next != Move::Retry || !run.worked_once || !alone {
            return false;
        }
        run.strikes += 1;
        run.strikes >= STRIKES_MAX
    }

    fn note(&self, cycle: &mut Cycle, run: &mut Run, receipt: Receipt) -> Option<Fault> {
        let messages = std::mem::take(&mut run.batch.messages);
        let items = std::mem::take(&mut run.items);
        let len = items.len();
        let mut worst: Option<Fault> = None;
        for ((message, (item, key)), outcome) in
            messages.into_iter().zip(items).zip(receipt.outcomes(len))
        {
            let Some(of) = cycle.items.get_mut(item) else {
                continue;
            };
            match outcome {
                Outcome::Delivered => of.delivered(),
                Outcome::Suppressed => of.open = of.open.saturating_sub(1),
                Outcome::Failed(_) if planted(Bug::ReceiptIgnored) => of.delivered(),
                Outcome::Failed(fault) if fault.next == Move::SetAside => {
                    of.set_aside_by(self.index, fault);
                }
                Outcome::Failed(fault) => {
                    run.items.push((item, key));
                    run.batch.messages.push(message);
                    // Fix stops everything, Wait concerns everything; Retry only these.
                    let rank = |fault: &Fault| match fault.next {
                        Move::Fix => 2,
                        Move::Wait => 1,
                        Move::Retry | Move::SetAside => 0,
                    };
                    if worst.as_ref().is_none_or(|worst| rank(worst) < rank(&fault)) {
                        worst = Some(fault);
                    }
                }
            }
        }
        worst
    }

    /// A single message is set aside; more are split, to find the one that fails.
    fn set_aside_or_split(&mut self, cycle: &mut Cycle, run: Run, fault: Fault) {
        if run.len() > 1 {
            return self.split(run);
        }
        let Some(item) = run.items.first().and_then(|(item, _)| cycle.items.get_mut(*item)) else {
            return;
        };
        let reason =
            if fault.next == Move::SetAside { fault.reason } else { Reason::RetriesExhausted };
        item.set_aside_by(self.index, Fault { reason, ..fault });
    }

    /// Halves, the left one to be called first. Each gets one attempt; a single message starts
    /// anew with all of them.
    fn split(&mut self, mut run: Run) {
        if run.len() == 0 {
            return;
        }
        let mut right = run.split_off(run.len() / 2);
        for half in [&mut run, &mut right] {
            half.attempt = 1;
            half.attempts_max = 1;
        }
        let mut halves = [right, run];
        if planted(Bug::SplitOrderLost) {
            halves.reverse();
        }
        self.stack.extend(halves.into_iter().filter(|half| half.len() > 0));
    }

    /// Takes out the first waiting message whose key is not in `tried`. Runs are searched in the
    /// order in which they would be called, so it is the first of its key.
    fn take_first_of_key(&mut self, tried: &HashSet<u64>) -> Option<(Place, Run)> {
        for (index, run) in self.stack.iter_mut().enumerate().rev() {
            let Some(at) = run.items.iter().position(|(_, key)| !tried.contains(key)) else {
                continue;
            };
            let item = run.items.remove(at);
            let message: Message = run.batch.messages.remove(at);
            let single = Run {
                batch: Batch { messages: vec![message] },
                items: vec![item],
                attempt: 1,
                attempts_max: 1,
                waits: 0,
                failed_at: None,
                works_before: false,
                worked_once: false,
                failed_before_closing: None,
                strikes: 0,
                alone: false,
                closings: 0,
            };
            return Some((Place { run: index, at }, single));
        }
        None
    }

    /// Puts it back where it was; if it failed, with the gate's count of calls and closings then.
    fn put_back(&mut self, place: Place, single: Run, failed: Option<(u64, u64)>) {
        // Nothing else is taken out or put in between, except at the bottom when refilled, which
        // happens only when every key was tried.
        let Some(run) = self.stack.get_mut(place.run) else {
            self.stack.push(single);
            return;
        };
        if let Some((calls, closings)) = failed {
            run.forget_before_closing(closings);
            run.failed_at = Some(calls);
        }
        let at = place.at.min(run.items.len());
        for (item, message) in single.items.into_iter().zip(single.batch.messages) {
            run.items.insert(at, item);
            run.batch.messages.insert(at, message);
        }
    }
}

impl Item {
    fn delivered(&mut self) {
        self.delivered = true;
        self.open = self.open.saturating_sub(1);
    }

    fn set_aside_by(&mut self, deliver: usize, fault: Fault) {
        self.letters.push(Letter { deliver: Some(deliver as u32), fault });
        self.open = self.open.saturating_sub(1);
    }
}
