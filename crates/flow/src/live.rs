//! Which assignments are ours now.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use potok_core::{Assignment, Partition, Position};

/// Assignments whose records may still be worked on. The intake keeps it, as soon as it hears of
/// a change; lanes hand back what is not in it.
#[derive(Default)]
pub(crate) struct Assignments {
    live: Mutex<HashMap<u64, Assignment>>,
    /// Of feeds, for as long as the run lasts.
    lost: Mutex<HashSet<u64>>,
}

impl Assignments {
    /// An assignment of a feed is gone: it is told nothing of it any more.
    pub fn lose(&self, assignment: u64) {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).insert(assignment);
    }

    pub fn is_lost(&self, assignment: u64) -> bool {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).contains(&assignment)
    }

    pub fn contains(&self, assignment: u64) -> bool {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&assignment)
    }

    pub fn insert(&self, assignment: &Assignment) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.insert(assignment.nonce, assignment.clone());
    }

    pub fn remove(&self, assignment: u64) {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).remove(&assignment);
    }

    /// True for a record that had ended before its partition came.
    pub fn had_ended(&self, position: &Position) -> bool {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.values().any(|Assignment { partition, start, ended, .. }| {
            (&partition.topic, partition.index) == (&position.topic, position.partition)
                && (position.offset < *start || ended.contains(position.offset))
        })
    }

    pub fn nonce_of(&self, partition: &Partition) -> Option<u64> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.iter().find(|(_, known)| known.partition == *partition).map(|(nonce, _)| *nonce)
    }
}
