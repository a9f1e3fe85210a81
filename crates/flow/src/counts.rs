//! Counting: each number where it happens, and none from the others, so that a wrong one shows.
//!
//! Records in flight are counted by whoever has them: an [`InFlight`] stands for so many, goes with
//! them from the intake to the ledger, and either ends there or is dropped. Dropping it hands its
//! records back, whatever it was that ended them: a partition that left, a drain, a task that died.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use potok_core::trouble::{Bug, planted};

use crate::status::Status;

/// How one record ended, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Delivered,
    Filtered,
    Duplicate,
    DeadLettered,
    /// Given back unfinished: another owner, or the next start, takes it again.
    HandedBack,
    /// The same, because it failed: its feed hands it out again later.
    PutOff,
    /// A seal whose members have all ended, or another note of our own: not counted.
    Sealed,
    /// The same, given back unfinished.
    NoteHandedBack,
}

impl Ending {
    /// It has not ended: somebody takes it again.
    pub fn is_handed_back(self) -> bool {
        matches!(self, Ending::HandedBack | Ending::PutOff | Ending::NoteHandedBack)
    }

    /// It is about a record that has ended, not about a note of our own.
    pub fn is_counted(self) -> bool {
        !self.is_handed_back() && self != Ending::Sealed
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct OutcomeCounts {
    received: u64,
    delivered: u64,
    filtered: u64,
    duplicates: u64,
    dead_lettered: u64,
    in_flight: u64,
    returned: u64,
}

/// The records of one pipeline since the process started. Changed once for each batch, all that
/// changes together under one lock, so that every look at it adds up.
#[derive(Debug, Default)]
pub(crate) struct Counts(Mutex<OutcomeCounts>);

impl Counts {
    /// Records are taken from the source.
    pub fn received(self: &Arc<Self>, records: u64) -> InFlight {
        let mut numbers = self.lock();
        numbers.received += records;
        numbers.in_flight += records;
        InFlight { counts: self.clone(), records }
    }

    /// Fills the counted part of a status.
    pub fn fill(&self, status: &mut Status) {
        let numbers = *self.lock();
        status.received = numbers.received;
        status.delivered = numbers.delivered;
        status.filtered = numbers.filtered;
        status.duplicates = numbers.duplicates;
        status.dead_lettered = numbers.dead_lettered;
        status.in_flight = numbers.in_flight;
        status.returned = numbers.returned;
    }

    fn lock(&self) -> MutexGuard<'_, OutcomeCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// So many records in flight. Dropped, they are handed back.
#[derive(Debug)]
#[must_use = "dropping it hands its records back"]
pub(crate) struct InFlight {
    counts: Arc<Counts>,
    records: u64,
}

impl InFlight {
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Takes others along.
    pub fn join(&mut self, mut others: InFlight) {
        self.records += std::mem::take(&mut others.records);
    }

    /// So many of them apart, or all where there are fewer.
    pub fn part(&mut self, records: u64) -> InFlight {
        let records = records.min(self.records);
        self.records -= records;
        InFlight { counts: self.counts.clone(), records }
    }

    /// Counts how they ended.
    pub fn end(mut self, endings: &[(u32, Ending)]) {
        let count = |wanted: Ending| endings.iter().filter(|(_, is)| *is == wanted).count() as u64;
        let (mut delivered, filtered) = (count(Ending::Delivered), count(Ending::Filtered));
        let (mut duplicates, mut dead_lettered) =
            (count(Ending::Duplicate), count(Ending::DeadLettered));
        if planted(Bug::EndingsCountedTwice) {
            delivered *= 2;
        }
        if planted(Bug::LettersCountedDelivered) {
            delivered += std::mem::take(&mut dead_lettered);
        }
        if planted(Bug::RepeatsCountedDelivered) {
            delivered += std::mem::take(&mut duplicates);
        }
        let mut numbers = self.counts.lock();
        numbers.delivered += delivered;
        numbers.filtered += filtered;
        numbers.duplicates += duplicates;
        numbers.dead_lettered += dead_lettered;
        numbers.in_flight -= self.records;
        drop(numbers);
        self.records = 0;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.records > 0 {
            let mut numbers = self.counts.lock();
            numbers.in_flight -= self.records;
            if !planted(Bug::HandBacksForgotten) {
                numbers.received -= self.records;
                numbers.returned += if planted(Bug::ReturnsUncounted) { 0 } else { self.records };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::State;

    fn shown(counts: &Counts) -> [u64; 6] {
        let mut status = Status::unknown("p", State::Running);
        counts.fill(&mut status);
        let Status { received, delivered, filtered, duplicates, dead_lettered, in_flight, .. } =
            status;
        [received, delivered, filtered, duplicates, dead_lettered, in_flight]
    }

    #[test]
    fn what_is_taken_ends_or_is_handed_back() {
        let counts = Arc::new(Counts::default());
        let mut all = counts.received(4);
        all.join(counts.received(3));
        assert_eq!(shown(&counts), [7, 0, 0, 0, 0, 7]);
        let endings = [Ending::Delivered, Ending::Delivered, Ending::Duplicate, Ending::Filtered];
        let endings: Vec<_> = (0..).zip(endings).collect();
        all.part(4).end(&endings);
        assert_eq!(shown(&counts), [7, 2, 1, 1, 0, 3]);
        drop(all.part(2));
        assert_eq!(shown(&counts), [5, 2, 1, 1, 0, 1]);
        drop(all);
        assert_eq!(shown(&counts), [4, 2, 1, 1, 0, 0]);
    }

    #[test]
    fn an_ending_too_many_shows() {
        let counts = Arc::new(Counts::default());
        let mut one = counts.received(1);
        for _ in 0..2 {
            one.part(1).end(&[(0, Ending::DeadLettered)]);
        }
        assert_eq!(shown(&counts), [1, 0, 0, 0, 2, 0], "it does not add up");
    }
}
