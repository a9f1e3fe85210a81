//! Records that a seal names under another key than `by` gives them now.
//!
//! A change of `by` while sealed groups wait parts their members from them: on a log of this
//! process's own, records find their lane by their group's key. A lane that has read everything
//! and misses members of a seal notes them here, and the run is made again; then those records
//! belong where their seal says. Until all lanes have looked nothing closes: what one misses
//! another may hold. Members that are gone with their topic are missed too; each is noted once, so
//! that the second run goes on without them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use potok_core::{Position, Record, SourceBatch};

use super::GroupTables;

/// The notes at the beginning of a run: the key of the seal, by position.
pub(crate) type SealKeys = Arc<HashMap<Position, Bytes>>;

/// Outlives the runs of a pipeline, not the process: the next one finds out by itself.
#[derive(Default)]
pub(crate) struct MisroutedMembers(Mutex<SealKeys>);

impl MisroutedMembers {
    /// For a run that begins.
    pub fn known(&self) -> SealKeys {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes members that were missed; true where any was not known.
    fn note(&self, missed: Vec<(Position, Bytes)>) -> bool {
        if missed.is_empty() {
            return false;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = Arc::make_mut(&mut known);
        let mut any = false;
        for (position, key) in missed {
            // The first seal that names a record has it.
            if let Entry::Vacant(vacant) = known.entry(position) {
                vacant.insert(key);
                any = true;
            }
        }
        any
    }
}

/// How the lanes of one run look for members of seals.
pub(crate) struct RegroupScan {
    strays: Arc<MisroutedMembers>,
    boards: Arc<GroupTables>,
    /// Lanes that have not read everything, or have not looked since.
    lanes_left: AtomicUsize,
}

impl RegroupScan {
    pub fn new(strays: Arc<MisroutedMembers>, boards: Arc<GroupTables>, lanes: usize) -> Arc<Self> {
        Arc::new(RegroupScan { strays, boards, lanes_left: AtomicUsize::new(lanes) })
    }

    /// True when all lanes have looked.
    pub fn is_over(&self) -> bool {
        self.lanes_left.load(Ordering::Acquire) == 0
    }

    /// A lane has read everything and misses these; false where the run has to be made again.
    pub fn looked(&self, missed: Vec<(Position, Bytes)>) -> bool {
        if self.strays.note(missed) {
            return false;
        }
        if self.lanes_left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.boards.all().iter().for_each(|board| board.nudge.notify_one());
        }
        true
    }

    /// There is more to read for a lane that had read everything.
    pub fn looks_again(&self) {
        self.lanes_left.fetch_add(1, Ordering::AcqRel);
    }
}

/// The key under which a seal names this record, where that was noted.
pub(crate) fn key_of<'a>(
    known: &'a SealKeys,
    batch: &SourceBatch,
    record: &Record,
) -> Option<&'a Bytes> {
    if known.is_empty() { None } else { known.get(&batch.position(record)) }
}
