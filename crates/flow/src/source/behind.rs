//! How far the intakes of a pipeline have to read before its groups may close.
//!
//! All intakes of a run share it: a group may have members in topics of several of them, so it
//! closes when everything was read that was there when their partitions came.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use potok_core::trouble::{Bug, planted};

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct CatchUp(Arc<Mutex<CatchUpEnds>>);

struct CatchUpEnds {
    /// Intakes to which nothing was assigned yet.
    unheard: BTreeSet<usize>,
    /// By assignment.
    ends: HashMap<u64, End>,
}

struct End {
    intake: usize,
    /// How far its partition must be read.
    end: u64,
    /// The lane of its groups, if they have one for themselves.
    lane: Option<usize>,
}

impl CatchUpEnds {
    fn is_caught_up(&self, intake: usize, lane: usize) -> bool {
        let alone = planted(Bug::OneIntakeCatchesUp);
        let concerns =
            |end: &End| end.lane.is_none_or(|of| of == lane) && (!alone || end.intake == intake);
        (alone || self.unheard.is_empty()) && !self.ends.values().any(concerns)
    }
}

impl CatchUp {
    pub fn new(intakes: usize) -> Self {
        let state = CatchUpEnds { unheard: (0..intakes).collect(), ends: HashMap::new() };
        CatchUp(Arc::new(Mutex::new(state)))
    }

    /// Something was assigned to an intake.
    pub fn heard(&self, intake: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).unheard.remove(&intake);
    }

    /// A partition has come that must be read up to `end`.
    pub fn insert(&self, intake: usize, assignment: u64, end: u64, lane: Option<usize>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.ends.insert(assignment, End { intake, end, lane });
    }

    /// A partition has left.
    pub fn remove(&self, assignment: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).ends.remove(&assignment);
    }

    /// A partition was read so far; true where that was all that had to be read of it.
    pub fn reached(&self, assignment: u64, next: u64) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_reached = state.ends.get(&assignment).is_some_and(|end| next >= end.end);
        is_reached && state.ends.remove(&assignment).is_some()
    }

    /// Tells each lane how it stands. What several intakes tell comes in the order in which it
    /// became true.
    pub fn tell(&self, intake: usize, lanes: usize, mut tell: impl FnMut(usize, bool)) {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for lane in 0..lanes {
            tell(lane, state.is_caught_up(intake, lane));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(behind: &CatchUp, lanes: usize) -> Vec<bool> {
        let mut told = Vec::new();
        behind.tell(0, lanes, |_, caught_up| told.push(caught_up));
        told
    }

    #[test]
    fn groups_wait_for_every_intake() {
        let behind = CatchUp::new(2);
        behind.heard(0);
        assert_eq!(told(&behind, 1), [false], "the other has not begun");
        behind.heard(1);
        behind.insert(1, 7, 10, None);
        assert_eq!(told(&behind, 1), [false]);
        assert!(!behind.reached(7, 9) && behind.reached(7, 10) && !behind.reached(7, 11));
        assert_eq!(told(&behind, 1), [true]);
    }

    #[test]
    fn a_partition_may_concern_one_lane() {
        let behind = CatchUp::new(1);
        behind.heard(0);
        behind.insert(0, 7, 10, Some(1));
        assert_eq!(told(&behind, 3), [true, false, true]);
        behind.remove(7);
        assert_eq!(told(&behind, 3), [true, true, true]);
    }
}
