//! Records that failed and go back to their feed.
//!
//! Where a feed puts off, a record that would become a dead letter goes back to it, to be tried again
//! later; after so many attempts the feed keeps it. What lies behind it in its key must not overtake
//! it, so the lane shuts the key: whatever comes of it is given back. Three things open it again:
//!
//! - something comes under another assignment: the feed has begun anew, with what it knows;
//! - the failed record itself comes, and its feed knows of the failure: it hands out nothing else of
//!   that key before. One of which it does not know was given back instead, behind another that failed
//!   in the ledger: it waits for those before it;
//! - a record comes again that was given back for that reason. Its feed has learned of the failure
//!   before it learned of this one, and still hands it out: the failed record has ended otherwise, or
//!   another process has dealt with it.
//!
//! Nothing here is durable: after a restart the feed itself knows what failed.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use potok_core::trouble::{Bug, planted};
use potok_core::{Attempts, Fault, Position, Reason};

use crate::counts::Ending;
use crate::lane::{Cycle, Item, Lane};
use crate::outgoing::shortened;
use crate::plan::Retry;
use crate::source::hash_of;
use crate::work::{Chunk, Completion};

/// The longest wait where nobody knows whose fault it is: somebody may mend it at any time.
const OUTAGE_WAIT_MAX: Duration = Duration::from_secs(10);

/// A record of a batch that failed and goes back to its feed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub index: u32,
    /// How often it has failed.
    pub attempt: u32,
    /// How long it is put off; `None` where the feed keeps it for good.
    pub again: Option<Duration>,
    pub reason: Reason,
    pub error: String,
}

impl Failure {
    /// After which it is not tried again.
    pub fn last(index: u32, attempt: u32, fault: &Fault) -> Self {
        Failure { index, attempt, again: None, reason: fault.reason, error: shortened(fault) }
    }

    pub(super) fn new(
        index: u32,
        attempt: u32,
        attempts: Attempts,
        origin: &Position,
        fault: &Fault,
    ) -> Self {
        let wait = wait(attempts, attempt, origin);
        let again = (attempt < attempts.limit).then_some(wait);
        Failure { again, ..Failure::last(index, attempt, fault) }
    }

    /// One that does not count: it may have been an outage.
    pub(super) fn outage(
        index: u32,
        (attempt, outages): (u32, u32),
        attempts: Attempts,
        origin: &Position,
        fault: &Fault,
    ) -> Self {
        let again = Some(wait(attempts, outages, origin).min(OUTAGE_WAIT_MAX));
        Failure { again, ..Failure::last(index, attempt, fault) }
    }
}

fn wait(attempts: Attempts, attempt: u32, origin: &Position) -> Duration {
    let Attempts { limit, first, max } = attempts;
    let spread = hash_of(origin.to_string().as_bytes());
    Retry { attempts: limit, first, max }.wait(attempt, spread)
}

/// Keys that are shut behind a record that failed.
#[derive(Default)]
pub(crate) struct ShutKeys(HashMap<u64, ShutKey>);

struct ShutKey {
    /// Under which the record was handed out that failed.
    assignment: u64,
    head: Position,
    /// How often the head has failed by then.
    attempt: u32,
    /// The records given back because of it.
    behind: HashSet<Position>,
}

impl ShutKeys {
    /// True where a record that was handed out may be worked on. Opens its key where it shows that
    /// the key is free. `failures` says how often it has failed as its feed knows.
    pub(super) fn admits(
        &mut self,
        key: u64,
        assignment: u64,
        (origin, failures): (Position, u32),
    ) -> bool {
        let Some(shut) = self.0.get_mut(&key) else { return true };
        let is_head = shut.head == origin && failures >= shut.attempt;
        let is_open = shut.assignment != assignment || is_head || !shut.behind.insert(origin);
        if is_open {
            self.0.remove(&key);
        }
        is_open
    }

    fn shut(
        &mut self,
        key: u64,
        assignment: u64,
        (head, attempt): (&Position, u32),
    ) -> &mut ShutKey {
        let new = || ShutKey { assignment, head: head.clone(), attempt, behind: HashSet::new() };
        let shut = self.0.entry(key).or_insert_with(new);
        if shut.assignment != assignment {
            *shut = new();
        }
        shut
    }
}

impl ShutKeys {
    /// True where the key is shut behind this record.
    pub(super) fn is_head(&self, key: u64, origin: &Position) -> bool {
        self.0.get(&key).is_some_and(|shut| shut.head == *origin)
    }

    /// Shuts a key behind its head; these were given back because of it.
    pub(super) fn shut_behind<'a>(
        &mut self,
        key: u64,
        assignment: u64,
        head: (&Position, u32),
        behind: impl Iterator<Item = &'a Position>,
    ) {
        self.shut(key, assignment, head).behind.extend(behind.cloned());
    }
}

impl Lane {
    /// Leaves out what is behind a record that failed. It is given back when the ledger knows of that
    /// one: a feed that heard of the give-back first would hand it out again too early.
    pub(crate) fn keep_back(&mut self, chunk: &mut Chunk) -> Option<Completion> {
        if chunk.taken.puts_off.is_none() || self.shut.0.is_empty() {
            return None;
        }
        let mut back = Vec::new();
        let (batch, shut) = (&chunk.taken.batch, &mut self.shut);
        chunk.records.retain(|(index, key)| {
            let origin = batch.origin(*index as usize);
            let is_admitted =
                origin.is_none_or(|origin| shut.admits(*key, batch.assignment, origin));
            if !is_admitted {
                back.push((*index, Ending::HandedBack));
            }
            is_admitted
        });
        let completion = Completion::of(chunk.taken.clone());
        (!back.is_empty()).then_some(Completion { endings: back, ..completion })
    }

    /// Shuts the keys of records that failed, and keeps back what lies behind them in `items`.
    pub(crate) fn shut_failed(&mut self, items: &mut [Item]) {
        if planted(Bug::PutOffAlone) {
            return;
        }
        let mut failed: HashMap<(u64, u64), (Position, u32)> = HashMap::new();
        for item in items.iter_mut().filter(|item| item.puts_off.is_some()) {
            let (key, assignment) = (item.lane_key, item.assignment);
            match failed.get(&(key, assignment)) {
                Some((head, attempt)) => {
                    let shut = self.shut.shut(key, assignment, (head, *attempt));
                    shut.behind.insert(item.origin.clone());
                    item.keep_back();
                }
                None if !item.letters.is_empty() => {
                    let attempt = item.failures.saturating_add(1);
                    self.shut.shut(key, assignment, (&item.origin, attempt));
                    failed.insert((key, assignment), (item.origin.clone(), attempt));
                }
                None => {}
            }
        }
    }

    /// Sends records that failed back to their feed, where it takes them; as failed only where all that
    /// lies before them in their key has ended.
    pub(crate) fn put_off_failed(&mut self, cycle: &mut Cycle) {
        if !cycle.chunks.iter().any(|chunk| chunk.taken.puts_off.is_some()) {
            return;
        }
        for item in &mut cycle.items {
            let chunk = cycle.chunks.get(item.chunk());
            let batch = chunk.map(|chunk| &chunk.taken.batch);
            let record = batch.and_then(|batch| batch.records.get(item.index as usize));
            item.bound_outputs(record.map_or(0, potok_core::Record::bytes));
        }
        self.shut_failed(&mut cycle.items);
        // Keys of which something is given back: what lies behind it has not been tried in its turn.
        let mut waiting: HashSet<(u64, u64)> = HashSet::new();
        for item in &mut cycle.items {
            let Some(attempts) = item.puts_off else { continue };
            let key = (item.lane_key, item.assignment);
            if item.ending() == Ending::HandedBack {
                waiting.insert(key);
            }
            let Some(letter) = item.letters.first() else { continue };
            if item.ending() != Ending::DeadLettered {
                continue;
            }
            if waiting.contains(&key) {
                item.keep_back();
                continue;
            }
            let attempt = item.failures.saturating_add(1);
            let failure = Failure::new(item.index, attempt, attempts, &item.origin, &letter.fault);
            item.letters.clear();
            item.outputs.clear();
            item.failure = Some(failure);
        }
    }
}

impl Item {
    /// It is given back, whatever was done with it.
    pub(crate) fn keep_back(&mut self) {
        self.event = None;
        self.open = self.open.max(1);
        self.letters.clear();
        self.outputs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: u64) -> Position {
        Position { log: 0, topic: "rows".into(), partition: 0, offset: id }
    }

    #[test]
    fn a_key_opens_with_its_head_or_with_what_comes_again() {
        let mut keys = ShutKeys::default();
        assert!(keys.admits(1, 9, (row(1), 0)));
        keys.shut(1, 9, (&row(1), 1));
        assert!(!keys.admits(1, 9, (row(2), 0)) && !keys.admits(1, 9, (row(3), 0)), "behind it");
        assert!(keys.admits(2, 9, (row(4), 0)), "another key");
        assert!(keys.admits(1, 9, (row(1), 1)), "the head");
        assert!(keys.admits(1, 9, (row(2), 0)));
        keys.shut(1, 9, (&row(2), 1));
        assert!(!keys.admits(1, 9, (row(3), 0)), "what was given back before does not count");
        assert!(keys.admits(1, 9, (row(3), 0)), "its feed knows that the head is gone");
        assert!(keys.admits(1, 9, (row(5), 0)));
    }

    /// It lay behind one that failed in the ledger: with it those before it come again.
    #[test]
    fn a_head_whose_failure_its_feed_does_not_know_waits_for_those_before_it() {
        let mut keys = ShutKeys::default();
        keys.shut(1, 9, (&row(3), 1));
        assert!(!keys.admits(1, 9, (row(2), 0)) && !keys.admits(1, 9, (row(3), 0)));
        assert!(keys.admits(1, 9, (row(2), 0)) && keys.admits(1, 9, (row(3), 0)));
    }

    #[test]
    fn another_assignment_begins_anew() {
        let mut keys = ShutKeys::default();
        keys.shut(1, 9, (&row(2), 1));
        assert!(!keys.admits(1, 9, (row(3), 0)));
        // That the head failed was never told to the feed: what lies before it comes again too.
        assert!(keys.admits(1, 10, (row(1), 0)) && keys.admits(1, 10, (row(2), 0)));
    }

    #[test]
    fn waits_double_until_the_last_attempt() {
        let attempts =
            Attempts { limit: 4, first: Duration::from_secs(1), max: Duration::from_secs(3) };
        let fault = Fault::set_aside(Reason::NoKey, "no key");
        let again = |attempt| Failure::new(0, attempt, attempts, &row(7), &fault).again;
        let waits: Vec<_> = (1..=4).map(again).collect();
        let seconds = |from: f64, to: f64, wait: &Option<Duration>| {
            wait.is_some_and(|wait| (from..=to).contains(&wait.as_secs_f64()))
        };
        assert!(seconds(0.5, 1.0, &waits[0]) && seconds(1.0, 2.0, &waits[1]), "{waits:?}");
        assert!(seconds(1.5, 3.0, &waits[2]) && waits[3].is_none(), "{waits:?}");
    }
}
