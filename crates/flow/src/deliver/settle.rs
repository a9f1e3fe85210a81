//! Calls a sink until every message of a lane's cycle has ended there.
//!
//! Messages wait in runs on a stack; the run on top is called first, and a split puts the right
//! half back before the left one, so the order of a key is never turned round. A run leaves the
//! stack only when all of it has ended.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use potok_core::trouble::{Bug, crash_point, planted};
use potok_core::{Batch, Fault, Message, Move, Outcome, Reason, Receipt, Timestamp};
use tracing::Instrument;

use super::Destination;
use super::gate::Pass;
use super::messages::{AddressedMessage, address};
use super::suspect::Suspect;
use super::witness::Witness;
use crate::lane::{Cycle, Item, Lane, Rejection};
use crate::work::Stop;

/// A call that takes longer counts as unanswered: its outcome is unknown.
const CALL_MAX: Duration = Duration::from_secs(60);

/// Messages that are called together.
pub(super) struct MessageRun {
    batch: Batch,
    /// Item and lane key of each message.
    pub items: Vec<(usize, u64)>,
    /// Which attempt is next, from 1; only failures of the kind Retry count.
    attempt: u32,
    /// Attempts in a row before the table decides; a half of a split gets one.
    attempts_max: u32,
    /// Calls in a row that found the destination away.
    waits: u32,
    /// The last failure that counts: how many calls had started when it came.
    failed_at: Option<u64>,
    /// How often the gate had closed when these were counted.
    closings: u64,
    /// Each message has an order key of its own: its lane works on whole groups.
    grouped: bool,
}

impl MessageRun {
    pub fn new(addressed: Vec<AddressedMessage>, attempts_max: u32, grouped: bool) -> Self {
        let mut run = MessageRun { grouped, ..MessageRun::empty(attempts_max) };
        for AddressedMessage { item, lane_key, message } in addressed {
            run.items.push((item, lane_key));
            run.batch.messages.push(message);
        }
        run
    }

    fn empty(attempts_max: u32) -> Self {
        MessageRun {
            batch: Batch::default(),
            items: Vec::new(),
            attempt: 1,
            attempts_max,
            waits: 0,
            failed_at: None,
            closings: 0,
            grouped: false,
        }
    }

    /// One message that is tried once.
    pub fn single(item: (usize, u64), message: Message) -> Self {
        let batch = Batch { messages: vec![message] };
        MessageRun { batch, items: vec![item], ..MessageRun::empty(1) }
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// The item of a message that is alone.
    fn only(&self) -> Option<usize> {
        self.items.first().map(|(item, _)| *item).filter(|_| self.len() == 1)
    }

    /// Cuts the run behind `count` messages and returns the rest.
    fn split_off(&mut self, count: usize) -> MessageRun {
        MessageRun {
            batch: Batch { messages: self.batch.messages.split_off(count) },
            items: self.items.split_off(count),
            ..*self
        }
    }

    /// Takes one message out.
    pub fn remove(&mut self, at: usize) -> MessageRun {
        MessageRun::single(self.items.remove(at), self.batch.messages.remove(at))
    }

    /// Puts messages in.
    pub fn insert(&mut self, at: usize, other: MessageRun) {
        let at = at.min(self.len());
        self.items.splice(at..at, other.items);
        self.batch.messages.splice(at..at, other.batch.messages);
    }

    /// Takes out messages of these keys, each of them only as it was handed out under an assignment.
    fn leave_out(&mut self, keys: &[(u64, u64)], items: &[Item]) {
        let stays = |(item, key): &(usize, u64)| {
            let assignment = items.get(*item).map_or(0, |item| item.assignment);
            !keys.contains(&(*key, assignment))
        };
        self.retain(stays);
    }

    /// Keeps the messages of these items and keys.
    pub fn retain(&mut self, stays: impl Fn(&(usize, u64)) -> bool) {
        let mut staying = self.items.iter().map(&stays);
        self.batch.messages.retain(|_| staying.next().unwrap_or_default());
        self.items.retain(stays);
    }

    /// Starts counting anew: attempts from before the gate closed last prove nothing.
    fn forget_before_closing(&mut self, closings: u64) {
        if self.closings != closings {
            self.closings = closings;
            self.attempt = 1;
            self.failed_at = None;
        }
    }

    /// Messages with the same one are never in one call where each has an answer of its own: the
    /// second may be taken and the first not. Where lanes work on groups, it is what the message itself
    /// is ordered by, and the group's key only where it has nothing.
    fn order_key(&self, message: &Message, lane_key: u64) -> u64 {
        let own = message.once.as_ref().or(message.key.as_ref()).filter(|_| self.grouped);
        own.map_or(lane_key, |own| crate::source::hash_of(own))
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
            let repeated = limits.per_message && !keys.insert(self.order_key(message, *key));
            if count > 0 && (count == records_max || bytes > limits.batch_bytes_max || repeated) {
                return count;
            }
        }
        self.len()
    }
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
        let addressed = address(deliver, is_last, &mut cycle.items, from);
        if addressed.is_empty() {
            return Ok(());
        }
        let mut settling = Settlement {
            destinations: self.destinations.clone(),
            index,
            number: deliver.number,
            stack: vec![MessageRun::new(addressed, plan.retry.attempts, plan.orders_by_message())],
            suspects: BTreeMap::new(),
            undecided: None,
        };
        while let Some(run) = settling.stack.pop() {
            if run.len() == 0 {
                continue;
            }
            self.settle(&mut settling, cycle, run).await?;
        }
        self.decided(&mut settling);
        Ok(())
    }

    /// Calls the sink once with (the front of) a run and acts on the answer.
    async fn settle(
        &mut self,
        settling: &mut Settlement,
        cycle: &mut Cycle,
        mut run: MessageRun,
    ) -> Result<(), Stop> {
        let destinations = settling.destinations.clone();
        let Some(destination) = destinations.get(settling.index) else {
            return Ok(());
        };
        let gate = &destination.gate;
        match self.pass(settling, run.lease(cycle), destination).await? {
            Some(Pass::Open) => {}
            Some(Pass::Away) => {
                settling.stack.push(run);
                settling.give_up_leased(cycle);
                return Ok(());
            }
            Some(Pass::Trial) => {
                settling.stack.push(run);
                return self.trial(settling, cycle, destination).await;
            }
            None => {
                settling.stack.push(run);
                self.set_aside_by_hand(settling, cycle);
                // The person who decided says that it is not the destination.
                gate.open();
                return Ok(());
            }
        }
        run.retain(|(item, _)| cycle.may_call(*item));
        if run.len() == 0 {
            return Ok(());
        }
        let fitting = run.fitting(destination);
        if fitting < run.len() {
            settling.stack.push(run.split_off(fitting));
        }
        let suspect = run.only().and_then(|item| settling.suspects.get(&item));
        if suspect.is_some_and(|suspect| suspect.is_used_up(self.plan.retry.attempts)) {
            return self.hear(settling, cycle, destination, run).await;
        }
        run.forget_before_closing(gate.closings());
        let call = gate.call_starts();
        let Some(fault) = settling.call(destination, cycle, &mut run, call).await else {
            return Ok(());
        };
        if fault.next != Move::Retry {
            return self.not_its_fault(settling, cycle, destination, run, fault).await;
        }
        self.counters.retries.fetch_add(1, Ordering::Relaxed);
        run.waits = 0;
        run.failed_at = Some(gate.calls());
        settling.suspect(destination, &run, &fault, self.clock.now());
        if run.attempt >= run.attempts_max {
            return self.used_up(settling, cycle, destination, run, fault).await;
        }
        let wait = self.plan.retry.wait(run.attempt, self.spread(call));
        run.attempt += 1;
        settling.stack.push(run);
        self.wait(wait).await
    }

    /// Acts on failures that say at once what is to be done.
    async fn not_its_fault(
        &mut self,
        settling: &mut Settlement,
        cycle: &mut Cycle,
        destination: &Destination,
        run: MessageRun,
        fault: Fault,
    ) -> Result<(), Stop> {
        match fault.next {
            Move::Fix if destination.apart => {
                // Its watcher asks on; what waits there goes on by itself when it is mended.
                settling.stack.push(run);
                destination.gate.close(&fault, self.clock.now());
                Ok(())
            }
            Move::Fix => Err(Stop::Fix(fault)),
            Move::Wait => {
                self.counters.retries.fetch_add(1, Ordering::Relaxed);
                self.destination_away(settling, cycle, destination, run, fault).await
            }
            Move::SetAside | Move::Retry => {
                settling.set_aside_or_split(cycle, run, fault);
                Ok(())
            }
        }
    }

    /// Says nothing against the records: what they failed at before does not count any more.
    async fn destination_away(
        &mut self,
        settling: &mut Settlement,
        cycle: &mut Cycle,
        destination: &Destination,
        mut run: MessageRun,
        fault: Fault,
    ) -> Result<(), Stop> {
        run.waits += 1;
        run.attempt = 1;
        run.failed_at = None;
        settling.clear(&run);
        self.decided(settling);
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

    /// Attempts are used up. Several messages are split as soon as another call succeeds; where
    /// none has, one is made with messages that wait. A single message is heard.
    async fn used_up(
        &mut self,
        settling: &mut Settlement,
        cycle: &mut Cycle,
        destination: &Destination,
        run: MessageRun,
        fault: Fault,
    ) -> Result<(), Stop> {
        if planted(Bug::NoWitnessNeeded) {
            settling.set_aside_or_split(cycle, run, fault);
            return Ok(());
        }
        if run.len() == 1 {
            return self.hear(settling, cycle, destination, run).await;
        }
        let failed_at = run.failed_at.unwrap_or_default();
        // One of them may have failed alone before others got through last.
        let alone = run.items.iter().filter_map(|(item, _)| settling.suspects.get(item));
        let failures = alone.map(|suspect| suspect.failed_at).chain([failed_at]);
        if failures.min().is_some_and(|first| destination.gate.witness_since(first)) {
            settling.split(run, self.plan.retry.attempts);
            return Ok(());
        }
        settling.stack.push(run);
        match self.find_witness(settling, cycle, destination, None, Some(failed_at)).await? {
            Witness::Found => {
                self.decided(settling);
                if let Some(run) = settling.stack.pop() {
                    settling.split(run, self.plan.retry.attempts);
                }
            }
            Witness::None(other) => {
                self.undecided(settling, cycle, destination, &other.unwrap_or(fault));
            }
        }
        Ok(())
    }

    /// A single message has used up its attempts. It is called again whenever another got
    /// through, right after that, until it gets through itself or is to blame; see `suspect.rs`.
    async fn hear(
        &mut self,
        settling: &mut Settlement,
        cycle: &mut Cycle,
        destination: &Destination,
        mut run: MessageRun,
    ) -> Result<(), Stop> {
        let Some((item, key)) = run.items.first().copied() else { return Ok(()) };
        let gate = &destination.gate;
        loop {
            let Some(suspect) = settling.suspects.get(&item) else {
                settling.stack.push(run);
                return Ok(());
            };
            let (failed_at, fault) = (suspect.failed_at, suspect.fault.clone());
            if planted(Bug::WitnessLongAgo) && suspect.passed >= 3 {
                settling.set_aside_or_split(cycle, run, fault);
                return Ok(());
            }
            if !gate.witness_since(failed_at) {
                let skip = Some(key);
                let found = self.find_witness(settling, cycle, destination, skip, Some(failed_at));
                if let Witness::None(other) = found.await? {
                    settling.stack.push(run);
                    self.undecided(settling, cycle, destination, &other.unwrap_or(fault));
                    return Ok(());
                }
            }
            self.decided(settling);
            if !cycle.may_call(item) {
                settling.suspects.remove(&item);
                return Ok(());
            }
            let call = gate.call_starts();
            let Some(fault) = settling.call(destination, cycle, &mut run, call).await else {
                return Ok(());
            };
            if fault.next != Move::Retry {
                return self.not_its_fault(settling, cycle, destination, run, fault).await;
            }
            self.counters.retries.fetch_add(1, Ordering::Relaxed);
            settling.suspect(destination, &run, &fault, self.clock.now());
            let Some(suspect) = settling.suspects.get_mut(&item) else { continue };
            suspect.passed += 1;
            if suspect.is_to_blame(gate.fares(), self.plan.retry.attempts) {
                settling.set_aside_or_split(cycle, run, fault);
                return self.hear_others(settling, cycle, destination, key).await;
            }
            let heard = self.hear_others(settling, cycle, destination, key).await;
            if heard.is_err() {
                settling.stack.push(run);
                return heard;
            }
            if self.stopping.get() {
                settling.stack.push(run);
                return Err(Stop::Asked);
            }
        }
    }

    /// The gate is half open: try single messages.
    async fn trial(
        &mut self,
        settling: &mut Settlement,
        cycle: &mut Cycle,
        destination: &Destination,
    ) -> Result<(), Stop> {
        match self.find_witness(settling, cycle, destination, None, None).await? {
            Witness::Found => {
                self.decided(settling);
                destination.gate.open();
            }
            Witness::None(fault) => {
                let fault = fault.unwrap_or_else(|| Fault::wait("nothing to try it with"));
                if planted(Bug::LoneCulprit) && settling.is_lone_culprit(destination) {
                    if let Some(run) = settling.stack.pop() {
                        settling.set_aside_or_split(cycle, run, fault);
                    }
                    destination.gate.open();
                    return Ok(());
                }
                self.undecided(settling, cycle, destination, &fault);
            }
        }
        Ok(())
    }

    /// A number that differs from lane to lane and call to call, the same in every run.
    fn spread(&self, call: u64) -> u64 {
        call.wrapping_mul(613).wrapping_add(self.slot as u64 * 97)
    }

    /// The answer of [`super::gate::Gate::pass`], or `None` when somebody has decided about the waiting record.
    async fn pass(
        &mut self,
        settling: &Settlement,
        lease: Option<Duration>,
        destination: &Destination,
    ) -> Result<Option<Pass>, Stop> {
        let may_leave = self.gives_way && destination.apart && settling.undecided.is_none();
        if may_leave && destination.gate.is_closed() {
            return Err(Stop::Shut);
        }
        tokio::select! {
            biased;
            () = self.stopping.wait_for(|stopping| stopping) => Err(Stop::Asked),
            () = self.decisions.made(self.slot), if settling.undecided.is_some() => Ok(None),
            pass = destination.gate.pass() => Ok(Some(pass)),
            // A person who may decide about the head finds it where it is.
            () = destination.gate.away_for(lease.unwrap_or_default()),
                if lease.is_some() && settling.undecided.is_none() => Ok(Some(Pass::Away)),
        }
    }
}

/// The messages that wait for one deliver entry.
pub(super) struct Settlement {
    pub destinations: Arc<Vec<Destination>>,
    pub index: usize,
    /// Its place in the pipeline file.
    number: u32,
    /// The last one is next.
    pub stack: Vec<MessageRun>,
    /// Messages that failed alone, by item.
    pub suspects: BTreeMap<usize, Suspect>,
    /// The item that somebody may decide about.
    pub undecided: Option<usize>,
}

impl Settlement {
    /// One call. Notes what ended, keeps in the run what did not, and returns the fault that
    /// stands in its way; `None` when the whole run has ended.
    pub async fn call(
        &mut self,
        destination: &Destination,
        cycle: &mut Cycle,
        run: &mut MessageRun,
        call: u64,
    ) -> Option<Fault> {
        let sink = destination.sink.as_ref()?;
        let delivering = sink.deliver(&run.batch).instrument(destination.span.clone());
        let began = tokio::time::Instant::now();
        let answer = match tokio::time::timeout(CALL_MAX, delivering).await {
            Ok(answer) => answer,
            Err(_) => Err(Fault::wait(format!("{} gave no answer", destination.label))),
        };
        destination.gate.call_ended(began.elapsed(), answer.is_err());
        crash_point("receipt.after");
        let receipt = match answer {
            Ok(receipt) => receipt,
            Err(fault) => return Some(fault),
        };
        let (before, suspects) = (run.len(), self.suspects.len());
        let (fault, delivered) = self.note(cycle, run, receipt);
        destination.gate.took(delivered);
        if run.len() < before || before == 0 {
            let late = run.failed_at.is_some() || self.suspects.len() < suspects;
            destination.gate.call_succeeded(call, late);
        }
        fault
    }

    /// Notes that a run failed, if it is a single message.
    pub fn suspect(
        &mut self,
        destination: &Destination,
        run: &MessageRun,
        fault: &Fault,
        now: Timestamp,
    ) {
        let Some(item) = run.only() else { return };
        let new = || Suspect::new(fault.clone(), now);
        let suspect = self.suspects.entry(item).or_insert_with(new);
        suspect.fault = fault.clone();
        suspect.refused += 1;
        if planted(Bug::WitnessLongAgo) && destination.gate.witness_since(suspect.failed_at) {
            suspect.passed += 1;
        }
        suspect.failed_at = destination.gate.calls();
    }

    /// The naive rule; see `Bug::LoneCulprit`.
    fn is_lone_culprit(&self, destination: &Destination) -> bool {
        let head = self.stack.last().and_then(MessageRun::only);
        let suspect = head.and_then(|item| self.suspects.get(&item));
        let refused = suspect.is_some_and(|suspect| suspect.refused > 6);
        refused && self.suspects.len() == 1 && destination.gate.witness_since(0)
    }

    /// Nothing speaks against these any more.
    fn clear(&mut self, run: &MessageRun) {
        for (item, _) in &run.items {
            self.suspects.remove(item);
        }
    }

    fn note(
        &mut self,
        cycle: &mut Cycle,
        run: &mut MessageRun,
        receipt: Receipt,
    ) -> (Option<Fault>, u64) {
        let messages = std::mem::take(&mut run.batch.messages);
        let items = std::mem::take(&mut run.items);
        let len = items.len();
        let mut worst: Option<Fault> = None;
        let mut delivered = 0;
        let mut shut = Vec::new();
        for ((message, (item, key)), outcome) in
            messages.into_iter().zip(items).zip(receipt.outcomes(len))
        {
            let Some(of) = cycle.items.get_mut(item) else {
                continue;
            };
            match outcome {
                Outcome::Delivered => {
                    delivered += 1;
                    of.delivered();
                }
                Outcome::Duplicate => of.open = of.open.saturating_sub(1),
                Outcome::Again => {
                    of.open = of.open.saturating_sub(1);
                    of.again = true;
                }
                Outcome::Failed(_) if planted(Bug::ReceiptIgnored) => of.delivered(),
                Outcome::Failed(fault) if fault.next == Move::SetAside => {
                    of.set_aside_by(self.number, fault);
                    shut.extend(of.puts_off.map(|_| (key, of.assignment)));
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
                    continue;
                }
            }
            self.suspects.remove(&item);
        }
        if !shut.is_empty() {
            run.leave_out(&shut, &cycle.items);
            self.leave_out(&shut, &cycle.items);
        }
        (worst.filter(|_| run.len() > 0), delivered)
    }

    /// A record that goes back to its feed keeps back the records of its key behind it.
    fn leave_out(&mut self, keys: &[(u64, u64)], items: &[Item]) {
        if !planted(Bug::PutOffAlone) {
            self.stack.iter_mut().for_each(|run| run.leave_out(keys, items));
        }
    }

    /// A single message is set aside; more are split, to find the one that fails.
    pub fn set_aside_or_split(&mut self, cycle: &mut Cycle, run: MessageRun, fault: Fault) {
        if run.len() > 1 {
            let attempts_max = run.attempts_max;
            return self.split(run, attempts_max);
        }
        let Some(item) = run.only().and_then(|item| cycle.items.get_mut(item)) else {
            return;
        };
        self.clear(&run);
        let reason =
            if fault.next == Move::SetAside { fault.reason } else { Reason::RetriesExhausted };
        item.set_aside_by(self.number, Fault { reason, ..fault });
        if item.puts_off.is_some() {
            let shut = (item.lane_key, item.assignment);
            self.leave_out(&[shut], &cycle.items);
        }
    }

    /// Halves, the left one to be called first, or what is before and behind a message that has
    /// failed alone. Each gets one attempt; a single message starts anew with all of them.
    fn split(&mut self, mut run: MessageRun, attempts_max: u32) {
        if run.len() == 0 {
            return;
        }
        let failed = run.items.iter().position(|(item, _)| self.suspects.contains_key(item));
        let (left, middle) = match failed {
            Some(at) => (at, 1),
            None => (run.len() / 2, 0),
        };
        let mut rest = run.split_off(left);
        let behind = rest.split_off(middle);
        let mut parts = [behind, rest, run];
        for part in &mut parts {
            part.attempt = 1;
            part.failed_at = None;
            part.attempts_max = if part.len() == 1 { attempts_max } else { 1 };
        }
        if planted(Bug::SplitOrderLost) {
            parts.reverse();
        }
        self.stack.extend(parts.into_iter().filter(|part| part.len() > 0));
    }
}

impl Item {
    fn delivered(&mut self) {
        self.delivered = true;
        self.open = self.open.saturating_sub(1);
    }

    fn set_aside_by(&mut self, deliver: u32, fault: Fault) {
        self.letters.push(Rejection { deliver: Some(deliver), fault });
        self.open = self.open.saturating_sub(1);
    }
}
