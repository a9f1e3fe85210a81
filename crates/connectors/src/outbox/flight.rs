//! What was handed out and has not ended, and which keys must wait.
//!
//! Plain memory under a lock, without a database in it. A row of a key is handed out only
//! - when no row of the key has failed and waits (its *head*; the others are named behind it),
//! - and, after one was given back or a key was opened again, from a read that began later, when nothing
//!   of the key is out: an earlier read did not see what came back.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

/// The id of a row, as text.
pub(super) type RowId = Arc<str>;

/// A row that was handed out.
#[derive(Clone, Debug)]
pub(super) struct RowInFlight {
    pub id: RowId,
    pub key: Bytes,
    /// Its count of attempts when it was read.
    pub seen: u32,
}

#[derive(Debug)]
struct HeadState {
    key: Bytes,
    due: Instant,
    /// It was handed out again.
    is_out: bool,
}

#[derive(Debug, Default)]
struct KeyState {
    out: usize,
    /// Reads that had begun when something of it came back.
    returned: Option<u64>,
}

/// The memory of one tenure.
#[derive(Debug, Default)]
pub(super) struct Flight {
    next: u64,
    reads: u64,
    out: HashMap<u64, RowInFlight>,
    keys: HashMap<Bytes, KeyState>,
    heads: HashMap<RowId, HeadState>,
    /// The heads of each key that has one: the first keeps it shut.
    shut: HashMap<Bytes, Vec<RowId>>,
    /// Published, not yet marked: locked by somebody.
    unmarked: HashSet<RowId>,
    /// Published, and the table refuses to mark them; those that were tried longest ago come first.
    unmarkable: VecDeque<RowId>,
}

/// What a read is compared with.
pub(super) struct ReadMark {
    number: u64,
    /// Ids that must not come.
    pub except: Vec<String>,
}

/// What to do with a row that was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    HandOut,
    /// Its key waits for this head.
    Behind(RowId),
    /// Not from this read.
    Later,
}

impl Flight {
    /// The memory of the next tenure: empty, but offsets go on, so that what is said of a row of this
    /// one never means another of the next.
    pub fn following(&self) -> Flight {
        Flight { next: self.next, ..Flight::default() }
    }

    /// How many are out.
    pub fn len(&self) -> usize {
        self.out.len() + self.unmarked.len()
    }

    /// The offset behind the last that was handed out.
    pub fn end(&self) -> u64 {
        self.next
    }

    /// A head that was there when the tenure began.
    pub fn add_head(&mut self, id: RowId, key: Bytes, due: Instant) {
        self.add(id, HeadState { key, due, is_out: false });
    }

    fn add(&mut self, id: RowId, head: HeadState) {
        let shut = self.shut.entry(head.key.clone()).or_default();
        if !shut.contains(&id) {
            shut.push(id.clone());
        }
        self.heads.insert(id, head);
    }

    /// A read begins.
    pub fn begin_read(&mut self) -> ReadMark {
        self.reads += 1;
        let out = self.out.values().map(|out| &out.id);
        let all = out.chain(&self.unmarked).chain(&self.unmarkable);
        ReadMark { number: self.reads, except: all.map(|id| id.to_string()).collect() }
    }

    /// Verdicts for the keys of one read, in order; call for all rows before handing out any.
    pub fn judge(&self, reading: &ReadMark, key: &Bytes) -> Verdict {
        if let Some(head) = self.first_head(key) {
            return Verdict::Behind(head.clone());
        }
        match self.keys.get(key).and_then(|state| state.returned.map(|at| (at, state.out))) {
            Some((at, out)) if at >= reading.number || out > 0 => Verdict::Later,
            _ => Verdict::HandOut,
        }
    }

    fn first_head(&self, key: &Bytes) -> Option<&RowId> {
        self.shut.get(key)?.first()
    }

    /// Hands a row out; its offset.
    pub fn hand_out(&mut self, out: RowInFlight) -> u64 {
        let offset = self.next;
        self.next += 1;
        let state = self.keys.entry(out.key.clone()).or_default();
        state.out += 1;
        state.returned = None;
        if let Some(head) = self.heads.get_mut(&out.id) {
            head.is_out = true;
        }
        self.out.insert(offset, out);
        offset
    }

    /// The rows at these offsets that are out.
    pub fn outs(&self, offsets: impl Iterator<Item = u64>) -> Vec<(u64, RowInFlight)> {
        offsets.filter_map(|offset| Some((offset, self.out.get(&offset)?.clone()))).collect()
    }

    pub fn is_head(&self, id: &str) -> bool {
        self.heads.contains_key(id)
    }

    /// The row is out no longer.
    fn land(&mut self, offset: u64) -> Option<RowInFlight> {
        let out = self.out.remove(&offset)?;
        if let Some(state) = self.keys.get_mut(&out.key) {
            state.out -= 1;
            if state.out == 0 && state.returned.is_none() {
                self.keys.remove(&out.key);
            }
        }
        Some(out)
    }

    /// It has ended, and that is committed: where it was a head, its key opens.
    pub fn ended(&mut self, offset: u64) {
        if let Some(out) = self.land(offset) {
            self.open(&out.id);
        }
    }

    /// It was published, but is not marked yet: it stays out of reads, and a head stays a head.
    pub fn published(&mut self, offset: u64) {
        if let Some(out) = self.land(offset) {
            self.unmarked.insert(out.id);
        }
    }

    /// It was published, and cannot be marked. Its key goes on.
    pub fn cannot_mark(&mut self, id: &RowId) {
        self.unmarked.remove(id);
        if !self.unmarkable.contains(id) {
            self.unmarkable.push_back(id.clone());
        }
        self.open(id);
    }

    /// Some of those that cannot be marked, to be tried again; others have their turn the next time.
    pub fn try_unmarkable(&mut self, most: usize) -> Vec<RowId> {
        let some: Vec<RowId> = self.unmarkable.iter().take(most).cloned().collect();
        self.unmarkable.rotate_left(some.len());
        some
    }

    pub fn unmarkable_len(&self) -> usize {
        self.unmarkable.len()
    }

    /// The table takes the mark of one that could not be marked.
    pub fn marked_at_last(&mut self, id: &RowId) {
        self.unmarkable.retain(|other| other != id);
    }

    pub fn has_unmarked(&self) -> bool {
        !self.unmarked.is_empty()
    }

    /// How many keys wait behind a row that failed.
    pub fn shut_keys(&self) -> usize {
        self.shut.len()
    }

    pub fn unmarked(&self) -> Vec<RowId> {
        self.unmarked.iter().cloned().collect()
    }

    /// One of the unmarked has been marked, or is gone.
    pub fn marked(&mut self, id: &RowId) {
        if self.unmarked.remove(id) {
            self.open(id);
        }
    }

    /// It failed and waits.
    pub fn put_off(&mut self, offset: u64, wait: Duration) {
        let Some(out) = self.land(offset) else { return };
        self.returned(&out.key);
        let due = Instant::now() + wait;
        self.add(out.id, HeadState { key: out.key, due, is_out: false });
    }

    /// It comes again.
    pub fn given_back(&mut self, offset: u64) {
        let Some(out) = self.land(offset) else { return };
        self.returned(&out.key);
        if let Some(head) = self.heads.get_mut(&out.id) {
            head.is_out = false;
            head.due = Instant::now();
        }
    }

    fn returned(&mut self, key: &Bytes) {
        self.keys.entry(key.clone()).or_default().returned = Some(self.reads);
    }

    /// The row is a head no longer. Where several heads have one key, the next one keeps it shut.
    pub fn open(&mut self, id: &str) {
        let Some(head) = self.heads.remove(id) else { return };
        self.returned(&head.key);
        if let Some(shut) = self.shut.get_mut(&head.key) {
            shut.retain(|other| **other != *id);
            if shut.is_empty() {
                self.shut.remove(&head.key);
            }
        }
    }

    /// Heads that can be handed out now, while no more than so many are out.
    pub fn due(&self, most: usize) -> Vec<String> {
        let out = self.heads.values().filter(|head| head.is_out).count();
        let due = self.heads.iter().filter(|(id, head)| self.can_go(id, head));
        due.map(|(id, _)| id.to_string()).take(most.saturating_sub(out)).collect()
    }

    /// True for a head that is due.
    pub fn is_due(&self, id: &str) -> bool {
        self.heads.get_key_value(id).is_some_and(|(id, head)| self.can_go(id, head))
    }

    /// Due, the first of its key, and nothing of the key is out.
    fn can_go(&self, id: &RowId, head: &HeadState) -> bool {
        let out = self.keys.get(&head.key).map_or(0, |state| state.out);
        !head.is_out
            && head.due <= Instant::now()
            && out == 0
            && self.first_head(&head.key) == Some(id)
            && !self.unmarked.contains(id)
    }

    /// When the next head is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.heads.values().filter(|head| !head.is_out).map(|head| head.due).min()
    }

    /// Every head that is not out.
    pub fn heads(&self) -> Vec<String> {
        let waiting = self.heads.iter().filter(|(_, head)| !head.is_out);
        waiting.map(|(id, _)| id.to_string()).collect()
    }

    pub fn set_due(&mut self, id: &str, due: Instant) {
        if let Some(head) = self.heads.get_mut(id) {
            head.due = due;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_go_on_from_tenure_to_tenure() {
        let mut flight = Flight::default();
        let late = flight.hand_out(out("1", "k"));
        let mut flight = flight.following();
        let own = flight.hand_out(out("2", "k"));
        // What is said late of the first tenure is about none of the second.
        flight.ended(late);
        assert_eq!(flight.outs([own].into_iter()).len(), 1);
        assert_eq!(flight.begin_read().except, ["2"]);
    }

    fn out(id: &str, key: &str) -> RowInFlight {
        RowInFlight { id: id.into(), key: Bytes::from(key.to_owned()), seen: 0 }
    }

    fn key(key: &str) -> Bytes {
        Bytes::from(key.to_owned())
    }

    #[test]
    fn rows_that_cannot_be_marked_take_turns() {
        let mut flight = Flight::default();
        for id in ["1", "2", "3", "1"] {
            flight.cannot_mark(&id.into());
        }
        assert_eq!(flight.unmarkable_len(), 3);
        assert_eq!(flight.try_unmarkable(2).join(" "), "1 2");
        assert_eq!(flight.try_unmarkable(2).join(" "), "3 1");
        flight.marked_at_last(&"3".into());
        assert_eq!(flight.try_unmarkable(9).join(" "), "2 1");
    }

    #[tokio::test]
    async fn what_came_back_is_not_overtaken_by_a_read_that_did_not_see_it() {
        let mut flight = Flight::default();
        let first = flight.hand_out(out("1", "k"));
        let reading = flight.begin_read();
        assert_eq!(reading.except, ["1"]);
        flight.given_back(first);
        assert_eq!(flight.judge(&reading, &key("k")), Verdict::Later);
        assert_eq!(flight.judge(&reading, &key("l")), Verdict::HandOut);
        let reading = flight.begin_read();
        assert_eq!(flight.judge(&reading, &key("k")), Verdict::HandOut);
    }

    #[tokio::test]
    async fn a_key_whose_later_rows_are_out_waits_for_them() {
        let mut flight = Flight::default();
        let (one, two) = (flight.hand_out(out("1", "k")), flight.hand_out(out("2", "k")));
        flight.given_back(one);
        let reading = flight.begin_read();
        assert_eq!(flight.judge(&reading, &key("k")), Verdict::Later);
        flight.given_back(two);
        let reading = flight.begin_read();
        assert_eq!(flight.judge(&reading, &key("k")), Verdict::HandOut);
    }

    #[tokio::test]
    async fn a_failed_row_shuts_its_key_until_its_end_is_committed() {
        let mut flight = Flight::default();
        let one = flight.hand_out(out("1", "k"));
        flight.put_off(one, Duration::ZERO);
        let reading = flight.begin_read();
        assert_eq!(flight.judge(&reading, &key("k")), Verdict::Behind("1".into()));
        assert_eq!(flight.due(9), ["1"]);
        let again = flight.hand_out(out("1", "k"));
        assert!(flight.due(9).is_empty());
        let reading = flight.begin_read();
        assert_eq!(flight.judge(&reading, &key("k")), Verdict::Behind("1".into()));
        flight.ended(again);
        // Those behind it were hidden from that read.
        assert_eq!(flight.judge(&reading, &key("k")), Verdict::Later);
        let reading = flight.begin_read();
        assert_eq!(flight.judge(&reading, &key("k")), Verdict::HandOut);
    }

    #[tokio::test]
    async fn a_head_that_is_locked_after_publishing_keeps_its_key_shut() {
        let mut flight = Flight::default();
        let one = flight.hand_out(out("1", "k"));
        flight.put_off(one, Duration::ZERO);
        let again = flight.hand_out(out("1", "k"));
        flight.published(again);
        assert!(flight.due(9).is_empty());
        let reading = flight.begin_read();
        assert_eq!(reading.except, ["1"]);
        assert_eq!(flight.judge(&reading, &key("k")), Verdict::Behind("1".into()));
        flight.marked(&"1".into());
        let reading = flight.begin_read();
        assert_eq!(flight.judge(&reading, &key("k")), Verdict::HandOut);
    }
}
