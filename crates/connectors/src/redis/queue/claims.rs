//! The claims of this process: from the look that made them until they are acknowledged, given back
//! or lost.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use potok_core::trouble::{Bug, Plant};
use potok_core::{
    Assignment, EndedOffsets, Fault, FeedFacts, Headers, Lease, LeaseCheck, Partition, RangeSet,
    Record, SourceBatch, SourceEvent, Timestamp, WholeGroup,
};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::calls::{ClaimAnswer, ClaimToken, QueueCalls};
use super::feed::Counters;
use super::hold::ClaimHold;
use super::{split, trials};

/// Claims that wait to be handed out: no more, so that their leases do not run out waiting.
const READY_MAX: usize = 400;
const READY_BYTES_MAX: usize = 8 << 20;

/// How many ended claims are known again when they come back; more than are handed out at a time.
const ENDED_MAX: usize = 1_000;

/// After claims were given back: nothing is claimed for a while, so that others come first.
const REST_MAX: Duration = Duration::from_secs(5);

/// What names a claim: its list, chat, opening and members. The same members have the same name
/// whoever has them; others have another.
fn name_of(list: &str, claim: &ClaimAnswer, plant: Plant) -> u64 {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    add(list.as_bytes());
    add(&claim.key);
    add(&claim.opened.to_be_bytes());
    add(claim.nonce.as_bytes());
    let members = if plant.is(Bug::NameWithoutMembers) { &[][..] } else { &claim.entries };
    members.iter().for_each(|entry| add(entry));
    let hash = hash.finalize();
    let first = hash.first_chunk::<8>().copied().unwrap_or_default();
    u64::from_be_bytes(first)
}

/// A claim that this process has.
struct InFlight {
    hold: Arc<ClaimHold>,
    name: u64,
    /// Its records are numbered up to here.
    next: u64,
    ended: RangeSet,
    /// Its batch, until it is handed out.
    batch: Option<SourceBatch>,
    bytes: usize,
}

#[derive(Default)]
struct ClaimTable {
    claims: HashMap<u64, InFlight>,
    by_name: HashMap<u64, u64>,
    /// Not handed out yet, in order.
    ready: VecDeque<u64>,
    ready_bytes: usize,
    finished: Vec<u64>,
    /// Names of claims that ended here and that Redis may have for somebody else's, the last of them.
    ended: VecDeque<u64>,
    lost: Vec<u64>,
    /// The batch whose assignment was told last.
    batch: Option<SourceBatch>,
    /// What keeps the sorter and the visitor from working.
    troubles: [Option<Fault>; 2],
    trouble_told: bool,
    trouble_changed: bool,
    next_assignment: u64,
    next_token: u64,
    is_paused: bool,
    /// Since when nobody takes what is handed out.
    left: Option<Instant>,
    /// Until when others come first.
    rests_until: Option<Instant>,
}

/// Who is kept from working.
#[derive(Clone, Copy, Debug)]
pub(super) enum QueueWorker {
    Sorter,
    Visitor,
}

/// All claims of one opening of the feed.
pub(super) struct Claims {
    calls: Arc<QueueCalls>,
    plant: Plant,
    list: Arc<str>,
    lease: Duration,
    nonce: String,
    counters: Arc<Counters>,
    state: Mutex<ClaimTable>,
    /// There is something to say.
    said: Notify,
    /// There is something to look at, or room again.
    pub look: Notify,
}

impl Claims {
    pub fn new(
        calls: Arc<QueueCalls>,
        list: &str,
        lease: Duration,
        nonce: u64,
        counters: Arc<Counters>,
    ) -> Self {
        // Assignments of different openings differ too.
        let state = ClaimTable { next_assignment: nonce | 1, ..ClaimTable::default() };
        Claims {
            calls,
            plant: Plant::here(),
            list: list.into(),
            lease,
            nonce: format!("{nonce:016x}"),
            counters,
            state: Mutex::new(state),
            said: Notify::new(),
            look: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, ClaimTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A token that no other look has, of this process or another.
    pub fn token(&self) -> String {
        let mut state = self.state();
        state.next_token += 1;
        format!("{}-{}", self.nonce, state.next_token)
    }

    /// For how many bytes there is room; none while claims wait to be handed out.
    pub fn room(&self) -> usize {
        let state = self.state();
        let rests = state.rests_until.is_some_and(|until| Instant::now() < until);
        match rests || state.is_paused || state.ready.len() >= READY_MAX {
            true => 0,
            false => READY_BYTES_MAX.saturating_sub(state.ready_bytes),
        }
    }

    /// What was given back could not be delivered here: others come first.
    pub fn rest(&self) {
        self.state().rests_until = Some(Instant::now() + REST_MAX.min(self.lease / 4));
    }

    pub fn set_paused(&self, paused: bool) {
        let mut state = self.state();
        if state.is_paused && !paused {
            self.look.notify_one();
            self.said.notify_one();
        }
        state.is_paused = paused;
    }

    /// Takes in what a look claimed under `token`, asked for at `asked`. What has no records, or has ended here,
    /// is to be acknowledged at once: it comes back.
    pub fn add(&self, answers: Vec<ClaimAnswer>, token: &str, asked: Instant) -> Vec<ClaimToken> {
        let mut empty = Vec::new();
        let mut state = self.state();
        for answer in answers {
            let held = ClaimToken { key: answer.key.clone(), token: token.to_owned() };
            let name = name_of(&self.list, &answer, self.plant);
            let known = state.by_name.get(&name).copied();
            if let Some(known) = known.and_then(|known| state.claims.get(&known)) {
                // Our own lease ran out: the same claim goes on under its new token.
                known.hold.go_on(held, asked);
                continue;
            }
            // It ended here, and Redis was not told so under this token.
            if state.ended.contains(&name) {
                empty.push(held);
                continue;
            }
            let assignment = state.next_assignment;
            let hold = Arc::new(ClaimHold::new(held.clone(), asked, self.lease));
            let (batch, skipped) = self.batch(assignment, name, answer, &hold);
            self.counters.add(&self.counters.skipped, skipped);
            if batch.records.is_empty() {
                if !self.plant.is(Bug::EmptyKept) {
                    empty.push(held);
                }
                continue;
            }
            state.next_assignment = assignment.wrapping_add(1);
            let bytes = batch.records.iter().map(Record::bytes).sum();
            let next = batch.next;
            let claim =
                InFlight { hold, name, next, ended: RangeSet::new(), batch: Some(batch), bytes };
            state.by_name.insert(name, assignment);
            state.claims.insert(assignment, claim);
            state.ready.push_back(assignment);
            state.ready_bytes += bytes;
        }
        self.said.notify_one();
        empty
    }

    /// The records of a claim; how many of its messages are none.
    fn batch(
        &self,
        assignment: u64,
        name: u64,
        claim: ClaimAnswer,
        hold: &Arc<ClaimHold>,
    ) -> (SourceBatch, u64) {
        let millis = |micros: u64| Timestamp(i64::try_from(micros / 1_000).unwrap_or(i64::MAX));
        let (opened, closed) = (millis(claim.opened), millis(claim.closed));
        let has_chat = !claim.key.is_empty();
        let (mut records, mut offset, mut skipped) = (Vec::new(), 0, 0);
        for entry in &claim.entries {
            // What belongs to no chat came from the queue, whose entries are never joined.
            let messages = if has_chat { split::messages(entry) } else { vec![entry.clone()] };
            for value in messages {
                if split::is_none(&value) {
                    skipped += 1;
                } else {
                    records.push(Record {
                        offset,
                        time: opened,
                        key: has_chat.then(|| claim.key.clone()),
                        headers: Headers::none(),
                        value: Some(value),
                    });
                }
                offset += 1;
            }
        }
        let trials = trials::of_claim(&self.calls, &claim, hold);
        let whole = has_chat.then(|| WholeGroup {
            key: claim.key.clone(),
            generation: name,
            opened,
            closed,
            reason: claim.reason,
        });
        let lease = Some(Lease(hold.clone()));
        let feed = FeedFacts { origins: None, whole, trials, lease };
        let batch = SourceBatch {
            partition: self.partition(),
            log: name,
            assignment,
            first: 0,
            next: offset,
            records,
            order: None,
            feed: Some(Box::new(feed)),
        };
        (batch, skipped)
    }

    fn partition(&self) -> Partition {
        Partition { topic: self.list.clone(), index: 0 }
    }

    /// What the engine is told next.
    pub async fn next(&self) -> Result<SourceEvent, Fault> {
        loop {
            let said = self.said.notified();
            if let Some(intake) = self.try_next()? {
                return Ok(intake);
            }
            said.await;
        }
    }

    fn try_next(&self) -> Result<Option<SourceEvent>, Fault> {
        let mut state = self.state();
        if state.trouble_changed {
            state.trouble_changed = false;
            let fault = state.troubles.iter().flatten().next().cloned();
            if let Some(fault) = fault.as_ref().filter(|fault| fault.next == potok_core::Move::Fix)
            {
                return Err(fault.clone());
            }
            if fault.is_some() || state.trouble_told {
                state.trouble_told = fault.is_some();
                return Ok(Some(SourceEvent::Stalled(fault)));
            }
        }
        if !state.lost.is_empty() {
            return Ok(Some(SourceEvent::Lost(std::mem::take(&mut state.lost))));
        }
        if !state.finished.is_empty() {
            return Ok(Some(SourceEvent::Finished(std::mem::take(&mut state.finished))));
        }
        if let Some(batch) = state.batch.take() {
            return Ok(Some(SourceEvent::Batch(batch)));
        }
        while !state.is_paused
            && let Some(assignment) = state.ready.pop_front()
        {
            self.look.notify_one();
            let Some(claim) = state.claims.get_mut(&assignment) else { continue };
            let (batch, bytes, is_held) = (claim.batch.take(), claim.bytes, claim.hold.is_held());
            state.ready_bytes = state.ready_bytes.saturating_sub(bytes);
            // Nobody begins what another may have begun meanwhile.
            if !is_held {
                state.forget(assignment);
                continue;
            }
            let Some(batch) = batch else { continue };
            let partition = batch.partition.clone();
            state.batch = Some(batch);
            let assignment =
                Assignment { partition, nonce: assignment, start: 0, ended: RangeSet::new() };
            return Ok(Some(SourceEvent::Assigned(vec![assignment])));
        }
        Ok(None)
    }

    /// Claims of which everything has ended with these, and which they are.
    pub fn ended(&self, ended: &[EndedOffsets]) -> Vec<(u64, ClaimToken)> {
        let mut state = self.state();
        let mut whole = Vec::new();
        for EndedOffsets { assignment, ranges, .. } in ended {
            let Some(claim) = state.claims.get_mut(assignment) else { continue };
            ranges.iter().for_each(|range| claim.ended.insert(range.clone()));
            if claim.ended.first_gap(0) >= claim.next {
                whole.push((*assignment, claim.hold.token()));
            }
        }
        whole
    }

    /// The claims of which something is given back.
    pub fn given_back(&self, back: &[EndedOffsets]) -> Vec<(u64, ClaimToken)> {
        let state = self.state();
        let claims = back.iter().filter_map(|ended| {
            let claim = state.claims.get(&ended.assignment)?;
            Some((ended.assignment, claim.hold.token()))
        });
        let mut claims: Vec<_> = claims.collect();
        claims.sort_by_key(|(assignment, _)| *assignment);
        claims.dedup_by_key(|(assignment, _)| *assignment);
        claims
    }

    /// These ended and were acknowledged under that token, where it was theirs still. Answers the tokens of
    /// those that have another by now.
    pub fn end(
        &self,
        claims: impl IntoIterator<Item = ((u64, ClaimToken), bool)>,
    ) -> Vec<ClaimToken> {
        let (mut state, mut replaced) = (self.state(), Vec::new());
        for ((assignment, held), ours) in claims {
            if !ours && let Some(claim) = state.claims.get(&assignment) {
                let (name, now) = (claim.name, claim.hold.token());
                if now != held {
                    replaced.push(now);
                }
                state.ended.push_back(name);
                if state.ended.len() > ENDED_MAX {
                    state.ended.pop_front();
                }
            }
            if state.forget(assignment) {
                state.finished.push(assignment);
            }
        }
        self.said.notify_one();
        replaced
    }

    /// These are not ours any more.
    pub fn lose(&self, assignments: impl IntoIterator<Item = u64>) {
        let mut state = self.state();
        for assignment in assignments {
            let was_told = state.claims.get(&assignment).is_some_and(|claim| claim.batch.is_none());
            if state.forget(assignment) && was_told {
                state.lost.push(assignment);
            }
        }
        self.said.notify_one();
    }

    /// All claims there are, for renewal.
    pub fn all(&self) -> Vec<(u64, ClaimToken)> {
        let state = self.state();
        let held = |(assignment, claim): (&u64, &InFlight)| (*assignment, claim.hold.token());
        state.claims.iter().map(held).collect()
    }

    /// These were renewed by a call made at `asked`; the others are lost.
    pub fn renewed(&self, asked: Instant, held: &[(u64, ClaimToken)], ours: &[bool]) {
        let mut lost = Vec::new();
        {
            let state = self.state();
            for ((assignment, held), ours) in held.iter().zip(ours) {
                let Some(claim) = state.claims.get(assignment) else { continue };
                // A look in between gave it another token.
                if claim.hold.token() != *held {
                    continue;
                }
                match ours {
                    true => claim.hold.renew(asked),
                    false => lost.push(*assignment),
                }
            }
        }
        self.lose(lost);
    }

    /// Loses what was not renewed in time, by the monotonic clock.
    pub fn lose_overdue(&self) {
        let overdue: Vec<u64> = {
            let state = self.state();
            let overdue = state.claims.iter().filter(|(_, claim)| !claim.hold.is_held());
            overdue.map(|(assignment, _)| *assignment).collect()
        };
        if !overdue.is_empty() {
            self.lose(overdue);
        }
    }

    /// Those that wait to be handed out: they leave.
    pub fn take_ready(&self) -> Vec<ClaimToken> {
        let mut state = self.state();
        let ready: Vec<u64> = state.ready.drain(..).collect();
        state.ready_bytes = 0;
        let mut held = Vec::new();
        for assignment in ready {
            held.extend(state.claims.get(&assignment).map(|claim| claim.hold.token()));
            state.forget(assignment);
        }
        held
    }

    /// Nobody takes what is handed out any more; what is under way may end.
    pub fn leave(&self) {
        self.state().left = Some(Instant::now());
    }

    /// True when that was long ago.
    pub fn is_left_since(&self, time: Duration) -> bool {
        self.state().left.is_some_and(|left| left.elapsed() >= time)
    }

    pub fn is_paused(&self) -> bool {
        self.state().is_paused
    }

    /// What keeps one of the workers from working; `None` when it works.
    pub fn trouble(&self, worker: QueueWorker, fault: Option<Fault>) {
        let mut state = self.state();
        let Some(known) = state.troubles.get_mut(worker as usize) else { return };
        let is_news = match (&*known, &fault) {
            (None, None) => false,
            (Some(known), Some(fault)) => known.what != fault.what,
            _ => true,
        };
        if is_news {
            *known = fault;
            state.trouble_changed = true;
            self.said.notify_one();
        }
    }
}

impl ClaimTable {
    fn forget(&mut self, assignment: u64) -> bool {
        let Some(claim) = self.claims.remove(&assignment) else { return false };
        claim.hold.end();
        if claim.batch.is_some() {
            self.ready_bytes = self.ready_bytes.saturating_sub(claim.bytes);
        }
        if self.by_name.get(&claim.name) == Some(&assignment) {
            self.by_name.remove(&claim.name);
        }
        if self.batch.as_ref().is_some_and(|batch| batch.assignment == assignment) {
            self.batch = None;
        }
        true
    }
}

/// The bytes of a key as people read them.
pub(super) fn readable(key: &Bytes) -> String {
    String::from_utf8_lossy(key).into_owned()
}
