//! Looks for a record that the destination takes, and says so where none is found.

use std::collections::HashSet;

use potok_core::{Fault, Move};

use super::Destination;
use super::decide::UndecidedRecord;
use super::messages::address;
use super::settle::{MessageRun, Settlement};
use super::suspect::Suspect;
use crate::lane::{Cycle, Lane};
use crate::work::Stop;

/// How many records are tried at once in search of one that the destination takes. The next search
/// tries others.
const TRIED_MAX: usize = 8;

/// How such a search ended.
pub(super) enum Witness {
    /// One was taken (or refused for its own sake): the destination works.
    Found,
    /// None of those tried.
    None(Option<Fault>),
}

/// Where a message waits: which run, and where in it.
struct MessageIndex {
    run: usize,
    at: usize,
}

impl Lane {
    /// Tries single messages until the destination takes one. Only the first waiting message of a
    /// key may be tried, so order holds; `skip` is a key that just failed. With `since`, a call of
    /// another lane that started later is as good, and is waited for.
    pub(super) async fn find_witness(
        &mut self,
        settling: &mut Settlement,
        cycle: &mut Cycle,
        destination: &Destination,
        skip: Option<u64>,
        since: Option<u64>,
    ) -> Result<Witness, Stop> {
        let gate = &destination.gate;
        let mut tried: HashSet<u64> = skip.into_iter().collect();
        let mut last = None;
        for _ in 0..TRIED_MAX {
            settling.give_up_lost(cycle);
            if !settling.has_untried(&tried) {
                self.refill(settling, cycle).await?;
            }
            let Some((place, mut run)) = settling.take_next(&tried) else {
                break;
            };
            tried.extend(run.items.first().map(|(_, key)| *key));
            let call = gate.call_starts();
            let Some(fault) = settling.call(destination, cycle, &mut run, call).await else {
                return Ok(Witness::Found);
            };
            match fault.next {
                Move::Fix if !destination.apart => return Err(Stop::Fix(fault)),
                Move::SetAside => {
                    settling.set_aside_or_split(cycle, run, fault);
                    return Ok(Witness::Found);
                }
                // A shard that needs somebody is away; the others are not.
                Move::Wait | Move::Fix => {
                    settling.put_back(place, run);
                    return Ok(Witness::None(Some(fault)));
                }
                Move::Retry => {
                    settling.suspect(destination, &run, &fault, self.clock.now());
                    settling.put_back(place, run);
                    last = Some(fault);
                }
            }
        }
        if let Some(since) = since {
            let soon = gate.witness_soon(since, self.plan.probe_every);
            let found = tokio::select! {
                biased;
                () = self.stopping.wait_for(|stopping| stopping) => return Err(Stop::Asked),
                found = soon => found,
            };
            if found {
                return Ok(Witness::Found);
            }
        }
        Ok(Witness::None(last))
    }

    /// Another got through: calls, right after that, those again that failed alone before it. The
    /// same success speaks against all of them.
    pub(super) async fn hear_others(
        &mut self,
        settling: &mut Settlement,
        cycle: &mut Cycle,
        destination: &Destination,
        skip: u64,
    ) -> Result<(), Stop> {
        let gate = &destination.gate;
        let mut tried = HashSet::from([skip]);
        for _ in 0..TRIED_MAX {
            settling.give_up_lost(cycle);
            let passed = |suspect: &Suspect| gate.witness_since(suspect.failed_at);
            let Some((place, mut run)) = settling.take_suspect(&tried, passed) else {
                break;
            };
            let Some((item, key)) = run.items.first().copied() else { break };
            tried.insert(key);
            let call = gate.call_starts();
            let Some(fault) = settling.call(destination, cycle, &mut run, call).await else {
                continue;
            };
            match fault.next {
                Move::Fix if !destination.apart => {
                    settling.put_back(place, run);
                    return Err(Stop::Fix(fault));
                }
                Move::SetAside => settling.set_aside_or_split(cycle, run, fault),
                Move::Wait | Move::Fix => {
                    settling.put_back(place, run);
                    break;
                }
                Move::Retry => {
                    settling.suspect(destination, &run, &fault, self.clock.now());
                    let Some(suspect) = settling.suspects.get_mut(&item) else { continue };
                    suspect.passed += 1;
                    if suspect.is_to_blame(gate.fares(), self.plan.retry.attempts) {
                        settling.set_aside_or_split(cycle, run, fault);
                    } else {
                        settling.put_back(place, run);
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes a chunk that queued up behind the cycle into it: its records may be the witness.
    async fn refill(&mut self, settling: &mut Settlement, cycle: &mut Cycle) -> Result<(), Stop> {
        let Some(chunk) = self.more() else {
            return Ok(());
        };
        self.shut_failed(&mut cycle.items);
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
        let addressed = address(deliver, is_last, &mut cycle.items, from);
        if !addressed.is_empty() {
            // The bottom of the stack: behind everything that waits.
            let run = MessageRun::new(addressed, plan.retry.attempts, plan.orders_by_message());
            settling.stack.insert(0, run);
        }
        Ok(())
    }

    /// Nothing gets through: the gate closes, and somebody may decide about the record at the head.
    pub(super) fn undecided(
        &mut self,
        settling: &mut Settlement,
        cycle: &Cycle,
        destination: &Destination,
        fault: &Fault,
    ) {
        let now = self.clock.now();
        destination.gate.close(fault, now);
        let head = settling.stack.iter().rev().find_map(|run| run.items.first());
        let suspect = head.and_then(|(item, _)| Some((*item, settling.suspects.get(item)?)));
        let known = suspect.and_then(|(at, suspect)| Some((at, suspect, cycle.items.get(at)?)));
        let Some((at, suspect, item)) = known.filter(|_| fault.next == Move::Retry) else {
            return self.decided(settling);
        };
        let key = item.key.as_ref().map(|key| String::from_utf8_lossy(key).into_owned());
        let record = UndecidedRecord {
            position: item.origin.to_string(),
            key,
            deliver: destination.label.clone(),
            refused: suspect.refused,
            since: suspect.since.to_string(),
            error: suspect.fault.to_string(),
        };
        self.decisions.begin(self.slot, record);
        settling.undecided = Some(at);
    }

    /// Nobody has to decide any more.
    pub(super) fn decided(&self, settling: &mut Settlement) {
        if settling.undecided.take().is_some() {
            self.decisions.end(self.slot);
        }
    }

    /// Somebody has decided: the record at the head is set aside.
    pub(super) fn set_aside_by_hand(&self, settling: &mut Settlement, cycle: &mut Cycle) {
        let wanted = settling.undecided;
        self.decided(settling);
        for run in settling.stack.iter_mut().rev() {
            let at = run.items.iter().position(|(item, _)| Some(*item) == wanted);
            let Some(run) = at.map(|at| run.remove(at)) else { continue };
            let suspect = wanted.and_then(|item| settling.suspects.get(&item));
            let Some(fault) = suspect.map(|suspect| suspect.fault.clone()) else { return };
            let what = format!("set aside by hand: {}", fault.what);
            return settling.set_aside_or_split(cycle, run, Fault { what, ..fault });
        }
    }
}

impl Settlement {
    /// The first waiting messages of all keys but these, with their items, in the order in which
    /// they would be called.
    fn firsts<'a>(
        &'a self,
        tried: &'a HashSet<u64>,
    ) -> impl Iterator<Item = (MessageIndex, usize)> + 'a {
        let mut seen = HashSet::new();
        let runs = self.stack.iter().enumerate().rev();
        runs.flat_map(|(run, of)| (0..).zip(&of.items).map(move |(at, item)| (run, at, item)))
            .filter(move |(_, _, (_, key))| !tried.contains(key) && seen.insert(*key))
            .map(|(run, at, (item, _))| (MessageIndex { run, at }, *item))
    }

    /// True where a message waits that has not failed alone.
    fn has_untried(&self, tried: &HashSet<u64>) -> bool {
        self.firsts(tried).any(|(_, item)| !self.suspects.contains_key(&item))
    }

    /// Takes out the next message to try: one that has not failed alone, else the one whose failure is
    /// the longest ago.
    fn take_next(&mut self, tried: &HashSet<u64>) -> Option<(MessageIndex, MessageRun)> {
        let failed_at = |item: usize| self.suspects.get(&item).map(|suspect| suspect.failed_at);
        let (place, _) = self.firsts(tried).min_by_key(|(_, item)| failed_at(*item))?;
        let single = self.stack.get_mut(place.run)?.remove(place.at);
        Some((place, single))
    }

    /// Takes out the first message of a key that failed alone and fits.
    fn take_suspect(
        &mut self,
        tried: &HashSet<u64>,
        fits: impl Fn(&Suspect) -> bool,
    ) -> Option<(MessageIndex, MessageRun)> {
        let is_wanted = |item: &usize| self.suspects.get(item).is_some_and(&fits);
        let (place, _) = self.firsts(tried).find(|(_, item)| is_wanted(item))?;
        let single = self.stack.get_mut(place.run)?.remove(place.at);
        Some((place, single))
    }

    /// Puts it back where it was.
    fn put_back(&mut self, place: MessageIndex, single: MessageRun) {
        // Nothing else is taken out or put in between.
        match self.stack.get_mut(place.run) {
            Some(run) => run.insert(place.at, single),
            None => self.stack.push(single),
        }
    }
}
