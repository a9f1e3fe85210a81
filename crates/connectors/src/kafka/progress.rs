//! How far the group has come in each partition that is ours, and what of it is to be committed.
//!
//! Endings are folded here when the journal notes them; the polling thread commits what changed.
//! Between the two a crash may come: then the last moments are read again.

use std::collections::HashMap;

use potok_core::{Assignment, EndedOffsets, Partition, RangeSet};

use super::metadata::{self, Room};

/// Progress in one assigned partition.
#[derive(Debug)]
pub struct PartitionProgress {
    pub partition: Partition,
    /// The topic's id.
    pub log: u64,
    /// Every record below has ended.
    pub position: u64,
    /// The acknowledged offsets beyond it.
    pub ended: RangeSet,
    changed: bool,
}

/// Progress in all partitions that are ours, by assignment.
#[derive(Debug, Default)]
pub struct GroupProgress {
    held: HashMap<u64, PartitionProgress>,
    room: Room,
    /// Positions are committed elsewhere, together with outputs.
    exact: bool,
}

/// One partition's part of a commit.
#[derive(Debug, PartialEq, Eq)]
pub struct Commit {
    pub partition: Partition,
    /// Every record below has ended.
    pub position: u64,
    /// The acknowledged offsets beyond it, as text.
    pub metadata: String,
}

impl GroupProgress {
    /// Of a group whose positions are committed together with its outputs, and never here: a
    /// commit on its way could undo a later one.
    pub fn exact() -> Self {
        GroupProgress { exact: true, ..GroupProgress::default() }
    }

    /// A partition came to us. `resolved` means its start is not in the group yet.
    pub fn assign(&mut self, assignment: &Assignment, log: u64, resolved: bool) {
        let held = PartitionProgress {
            partition: assignment.partition.clone(),
            log,
            position: assignment.start,
            ended: assignment.ended.clone(),
            changed: resolved,
        };
        self.held.insert(assignment.nonce, held);
    }

    /// A partition is not ours any more.
    pub fn leave(&mut self, nonces: &[u64]) {
        for nonce in nonces {
            self.held.remove(nonce);
        }
    }

    /// Folds in what ended; nothing happens for assignments that are not ours.
    pub fn note(&mut self, ended: &EndedOffsets) {
        let Some(held) = self.held.get_mut(&ended.assignment) else { return };
        if held.partition != ended.partition {
            return;
        }
        for range in &ended.ranges {
            held.ended.insert(range.start.max(held.position)..range.end);
        }
        held.position = held.ended.first_gap(held.position);
        held.ended.forget_below(held.position);
        held.changed = true;
    }

    /// Takes what is to be committed, of all partitions or of some.
    pub fn take_changed(&mut self, group: u64, only: Option<&[u64]>) -> Vec<Commit> {
        if self.exact {
            return Vec::new();
        }
        let room = self.room;
        let wanted = |nonce: &u64| only.is_none_or(|only| only.contains(nonce));
        let changed = self.held.iter_mut().filter(|(nonce, held)| held.changed && wanted(nonce));
        changed
            .map(|(_, held)| {
                held.changed = false;
                Commit {
                    partition: held.partition.clone(),
                    position: held.position,
                    metadata: metadata::encode(held.log, group, held.position, &held.ended, room),
                }
            })
            .collect()
    }

    /// A commit of these partitions failed: it is to be made again.
    pub fn again(&mut self, partition: &Partition) {
        self.held
            .values_mut()
            .filter(|held| held.partition == *partition)
            .for_each(|held| held.changed = true);
    }

    /// The broker does not take that much metadata.
    pub fn shrink(&mut self) {
        self.room = self.room.less();
        self.held.values_mut().for_each(|held| held.changed = true);
    }

    /// The progress under an assignment that is ours.
    pub fn get(&self, assignment: u64) -> Option<&PartitionProgress> {
        self.held.get(&assignment)
    }

    /// The progress of a partition, if it is ours.
    pub fn of(&self, partition: &Partition) -> Option<&PartitionProgress> {
        self.held.values().find(|held| held.partition == *partition)
    }

    /// All of it.
    pub fn iter(&self) -> impl Iterator<Item = &PartitionProgress> {
        self.held.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::metadata::{CommitMetadata, decode};

    fn partition(index: u32) -> Partition {
        Partition { topic: "t".into(), index }
    }

    fn assigned(nonce: u64, start: u64) -> Assignment {
        Assignment { partition: partition(0), nonce, start, ended: RangeSet::new() }
    }

    fn ended(nonce: u64, ranges: &[std::ops::Range<u64>]) -> EndedOffsets {
        EndedOffsets { partition: partition(0), assignment: nonce, ranges: ranges.to_vec() }
    }

    #[test]
    fn the_position_moves_over_what_has_ended_only() {
        let mut progress = GroupProgress::default();
        progress.assign(&assigned(1, 10), 5, false);
        assert!(progress.take_changed(0, None).is_empty(), "nothing changed");
        progress.note(&ended(1, &[12..14]));
        let commits = progress.take_changed(0, None);
        assert_eq!(commits[0].position, 10);
        let expected = CommitMetadata::Ours { log: 5, ended: RangeSet::from_iter([12..14]) };
        assert_eq!(decode(commits[0].metadata.as_bytes(), 0, 10), expected);
        progress.note(&ended(1, &[0..12]));
        let commits = progress.take_changed(0, None);
        assert_eq!(commits[0].position, 14);
        assert!(progress.take_changed(0, None).is_empty());
        progress.again(&partition(0));
        assert_eq!(progress.take_changed(0, Some(&[1])).len(), 1);
    }

    #[test]
    fn old_and_foreign_assignments_count_for_nothing() {
        let mut progress = GroupProgress::default();
        progress.assign(&assigned(1, 0), 5, true);
        assert_eq!(progress.take_changed(0, None).len(), 1, "a resolved start is committed");
        progress.note(&ended(2, &[0..9]));
        progress.note(&EndedOffsets { partition: partition(3), ..ended(1, &[0..9]) });
        progress.leave(&[1]);
        progress.note(&ended(1, &[0..9]));
        assert!(progress.take_changed(0, None).is_empty());
    }

    #[test]
    fn a_broker_that_takes_less_gets_less() {
        let mut progress = GroupProgress::default();
        progress.assign(&assigned(1, 0), 5, false);
        progress.note(&ended(1, &[2..3]));
        progress.shrink();
        let bare = progress.take_changed(0, None);
        let expected = CommitMetadata::Ours { log: 5, ended: RangeSet::new() };
        assert_eq!(decode(bare[0].metadata.as_bytes(), 0, 0), expected);
        progress.shrink();
        assert_eq!(progress.take_changed(0, None)[0].metadata, "");
    }
}
