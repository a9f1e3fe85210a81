//! Forgetting the records of an assignment that leaves.

use std::collections::HashSet;

use super::{Feed, HeldRecord, Index, Parked, SealedGroup, bytes_of};

/// What [`Index::forget`] has forgotten.
pub(crate) struct ForgottenRecords {
    /// Records and notes of each assignment.
    pub assignments: Vec<(u64, u64, u64)>,
    /// A part of a sealed group has left and a part is still here. Where seals lie in the
    /// partition of their members, or one process has all partitions, this does not happen.
    pub torn: bool,
}

/// Counts what is forgotten of assignments that have left.
struct Forgetting<'a> {
    feeds: &'a [Feed],
    assignments: Vec<(u64, u64, u64)>,
    /// Of the records.
    bytes: u64,
    records: u64,
}

impl Forgetting<'_> {
    /// True when the record was read under one of them.
    fn record(&mut self, entry: &HeldRecord) -> bool {
        let has_left = self.of(entry).map(|(_, records, _)| *records += 1).is_some();
        self.bytes += if has_left { u64::from(entry.bytes) } else { 0 };
        self.records += u64::from(has_left);
        has_left
    }

    /// The same for a note.
    fn note(&mut self, entry: &HeldRecord) -> bool {
        self.of(entry).map(|(_, _, notes)| *notes += 1).is_some()
    }

    /// The same for a group of which little is left; its members are all of one partition where
    /// partitions leave one by one.
    fn parked(&mut self, sealed: &SealedGroup, parked: &Parked) -> bool {
        let Some(feed) = parked.feeds().first().copied() else { return false };
        let nonce = self.feeds.get(feed as usize).map(|feed| feed.assignment);
        let of = self.assignments.iter_mut().find(|(left, ..)| Some(*left) == nonce);
        let Some((_, records, _)) = of else { return false };
        *records += sealed.records();
        self.bytes += sealed.bytes();
        self.records += sealed.records();
        true
    }

    /// The same for a replay, which is in no group.
    fn replay(&mut self, feed: u32) -> bool {
        self.of_feed(feed).map(|(_, records, _)| *records += 1).is_some()
    }

    fn of(&mut self, entry: &HeldRecord) -> Option<&mut (u64, u64, u64)> {
        self.of_feed(entry.feed)
    }

    fn of_feed(&mut self, feed: u32) -> Option<&mut (u64, u64, u64)> {
        let nonce = self.feeds.get(feed as usize)?.assignment;
        self.assignments.iter_mut().find(|(left, ..)| *left == nonce)
    }
}

impl Index {
    /// Forgets what was read under assignments that have left.
    pub fn forget(&mut self, assignments: &[u64]) -> ForgottenRecords {
        self.take_waiting();
        let mut left = Forgetting {
            feeds: &self.feeds,
            assignments: assignments.iter().map(|nonce| (*nonce, 0, 0)).collect(),
            bytes: 0,
            records: 0,
        };
        let shares = &mut self.shares;
        self.open.retain(|name, group| {
            group.entries.retain(|entry| !left.record(entry));
            group.bytes = bytes_of(&group.entries);
            if group.entries.is_empty()
                && let Some(share) = shares.get_mut(&name.share)
            {
                share.due.remove(&(group.due, name.clone()));
            }
            !group.entries.is_empty()
        });
        self.frozen.retain(|frozen| {
            frozen.entries.retain(|entry| !left.record(entry));
            !frozen.entries.is_empty()
        });
        let mut torn = false;
        self.sealing.retain(|frozen| {
            let members = frozen.entries.len();
            frozen.entries.retain(|entry| !left.record(entry));
            torn |= !frozen.entries.is_empty() && frozen.entries.len() < members;
            !frozen.entries.is_empty()
        });
        self.sealed.retain(|sealed| {
            let members = sealed.entries.len();
            sealed.entries.retain(|entry| !left.record(entry));
            let seal_stays = !left.note(&sealed.seal);
            torn |= sealed.parked().is_some_and(|parked| left.parked(sealed, parked) == seal_stays);
            let gone = members - sealed.entries.len();
            torn |= if seal_stays { gone > 0 } else { gone < members };
            seal_stays
        });
        self.replays.forget(|feed| left.replay(feed));
        self.bytes = self.bytes.saturating_sub(left.bytes);
        self.records = self.records.saturating_sub(left.records);
        // Nothing names these any more, except what is being sent: the next feeds take their numbers.
        let sent =
            self.sending.iter().flat_map(|sealed| sealed.entries.iter().chain([&sealed.seal]));
        let sent: HashSet<u32> = sent.map(|entry| entry.feed).collect();
        let has_left = |feed: &Feed| assignments.contains(&feed.assignment);
        let free = (0..).zip(&self.feeds).filter(|(_, feed)| has_left(feed)).map(|(at, _)| at);
        let free = free.filter(|at| !sent.contains(at));
        let free: Vec<u32> = free.filter(|at| !self.free_feeds.contains(at)).collect();
        self.free_feeds.extend(free);
        ForgottenRecords { assignments: left.assignments, torn }
    }
}
