//! What leaves the index to be sent, and comes back where it could not be.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use potok_core::Position;

use super::{Feed, HeldRecord, Index, PART_BYTES_MAX, SealedGroup, bytes_of};

impl Index {
    /// True where the bodies of the next batch to send need not be read.
    pub fn next_is_in_memory(&self) -> bool {
        let next = self.sealed.front();
        next.is_some_and(|sealed| sealed.entries.iter().all(|entry| entry.body.is_some()))
    }

    /// The next batches to send, of one share, up to so many records.
    pub fn take_sealed(
        &mut self,
        records_max: usize,
        share: impl Fn(&Feed) -> u32,
    ) -> Arc<Vec<SealedGroup>> {
        let (mut records, mut bytes) = (0, 0);
        let mut taken: Vec<SealedGroup> = Vec::new();
        let mut of = None;
        while let Some(next) = self.sealed.front() {
            let its = self.feeds.get(next.seal.feed as usize).map(&share);
            if !taken.is_empty() && its != of {
                break;
            }
            of = its;
            records += next.entries.len();
            bytes += bytes_of(&next.entries);
            let too_much = records > records_max || bytes > PART_BYTES_MAX;
            if too_much && !taken.is_empty() {
                break;
            }
            taken.extend(self.sealed.pop_front());
        }
        self.sending = Arc::new(taken);
        self.sending.clone()
    }

    /// What was taken last could not be sent: it is next again. What has left meanwhile is counted
    /// for each assignment: records, and its seals.
    pub fn not_sent(&mut self, live: impl Fn(u64) -> bool) -> Vec<(u64, u64, u64)> {
        // Nobody else keeps it: it is looked at under the lock.
        let back = Arc::try_unwrap(std::mem::take(&mut self.sending)).unwrap_or_default();
        let mut left = Vec::new();
        for sealed in back.into_iter().rev() {
            let feed = self.feeds.get(sealed.seal.feed as usize);
            match feed.map(|feed| feed.assignment).filter(|assignment| !live(*assignment)) {
                Some(assignment) => {
                    left.push((assignment, sealed.records(), 1));
                    self.let_go(std::slice::from_ref(&sealed));
                }
                None => {
                    let key = sealed.key.clone();
                    self.sealed.push_front(&key, sealed);
                }
            }
        }
        left
    }

    /// What was taken last is held no longer.
    pub fn sent(&mut self) {
        let sent = std::mem::take(&mut self.sending);
        self.let_go(&sent);
    }

    fn let_go(&mut self, sent: &[SealedGroup]) {
        let bytes = sent.iter().map(SealedGroup::bytes).sum();
        self.bytes = self.bytes.saturating_sub(bytes);
        let records = sent.iter().map(SealedGroup::records).sum();
        self.records = self.records.saturating_sub(records);
    }

    /// Members of seals of earlier runs that were not read: they have ended, are gone with their
    /// topic, or have gone elsewhere.
    pub fn missed(&self) -> Vec<(Position, Bytes)> {
        let is_short = |sealed: &&SealedGroup| {
            sealed.due.is_none() && (sealed.entries.len() as u64) < sealed.members.len()
        };
        let mut short: Vec<&SealedGroup> = self.sealed.iter().filter(is_short).collect();
        if short.is_empty() {
            return Vec::new();
        }
        // What an earlier seal has taken is no stray.
        let position = |entry: &HeldRecord| {
            self.feeds.get(entry.feed as usize).map(|feed| feed.position(entry.offset))
        };
        let there: HashSet<Position> =
            self.sealed.iter().flat_map(|s| &s.entries).filter_map(position).collect();
        short.sort_by_key(|sealed| (sealed.seal.feed, sealed.seal.offset));
        let mut missed = Vec::new();
        for sealed in short {
            let positions = sealed.members.positions().filter(|at| !there.contains(at));
            missed.extend(positions.map(|at| (at, sealed.key.clone())));
        }
        missed
    }
}
