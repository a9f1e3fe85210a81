//! Sealed groups that wait long, with little in memory.
//!
//! A group whose destination is away waits with a hundred bytes and more for each record, for hours.
//! Its entries count against the memory for what is held; where there is no room, only the place of
//! its seal stays, which names its members, what those stand for besides themselves, and in which
//! order they came where their places do not tell it. They are read from the seal again when it is
//! their turn, and make the same file and the same message as if they had never left.

use std::sync::Arc;

use bytes::Bytes;

use super::{Feed, HeldRecord, Index, Members, SealedGroup, bytes_of};
use crate::group::arrival;
use crate::group::bodies::Room;

/// What is left of a group.
#[derive(Clone, Debug)]
pub(crate) struct Parked {
    records: u64,
    bytes: u64,
    /// Where its members were read; see [`Index::feeds`].
    feeds: Vec<u32>,
    /// Members that stand for more than their own offset: feed, offset, so many before it and so
    /// many from it on. In order.
    gaps: Vec<(u32, u64, u32, u32)>,
    /// Of each member, sorted by feed and offset: the how-manieth it came. Empty where they came in
    /// that order.
    ranks: Vec<u32>,
}

impl Parked {
    pub fn of(entries: &[HeldRecord]) -> Self {
        let mut feeds: Vec<u32> = entries.iter().map(|entry| entry.feed).collect();
        feeds.sort_unstable();
        feeds.dedup();
        let gaps = entries.iter().filter(|entry| (entry.before, entry.from) != (0, 1));
        let gap = |entry: &HeldRecord| (entry.feed, entry.offset, entry.before, entry.from);
        let mut gaps: Vec<_> = gaps.map(gap).collect();
        gaps.sort_unstable();
        let came = arrival::sort(entries.iter().collect(), |entry: &&HeldRecord| entry.arrival);
        let mut ranked: Vec<_> =
            (0_u32..).zip(came).map(|(rank, entry)| (place(entry), rank)).collect();
        ranked.sort_unstable();
        let mut ranks: Vec<u32> = ranked.into_iter().map(|(_, rank)| rank).collect();
        if ranks.is_sorted() {
            ranks = Vec::new();
        }
        Parked { records: entries.len() as u64, bytes: bytes_of(entries), feeds, gaps, ranks }
    }

    /// The members that its seal names; `None` where they are not those that were there.
    pub fn entries(&self, members: &Members, feeds: &[Feed]) -> Option<Vec<HeldRecord>> {
        let mut entries = Vec::new();
        let each = u32::try_from(self.bytes / self.records.max(1)).unwrap_or(u32::MAX);
        for position in members.positions() {
            let is_it = |at: &&u32| {
                feeds.get(**at as usize).is_some_and(|feed| {
                    feed.log == position.log
                        && feed.partition.index == position.partition
                        && feed.partition.topic == position.topic
                })
            };
            let feed = *self.feeds.iter().find(is_it)?;
            let offset = position.offset;
            let gap = self.gaps.binary_search_by_key(&(feed, offset), |gap| (gap.0, gap.1));
            let gap = gap.ok().and_then(|at| self.gaps.get(at));
            let (before, from) = gap.map_or((0, 1), |(.., before, from)| (*before, *from));
            let entry = HeldRecord::at_place(feed, offset);
            entries.push(HeldRecord { before, from, bytes: each, ..entry });
        }
        entries.sort_unstable_by_key(place);
        let mut ranks = self.ranks.iter().copied();
        for (at, entry) in (0_u32..).zip(&mut entries) {
            entry.arrival.place = ranks.next().unwrap_or(at).into();
        }
        if let Some(first) = entries.first_mut() {
            let rest = self.bytes.saturating_sub(u64::from(each) * self.records);
            first.bytes = first.bytes.saturating_add(u32::try_from(rest).unwrap_or(u32::MAX));
        }
        (entries.len() as u64 == self.records).then_some(entries)
    }

    /// Where its members were read.
    pub fn feeds(&self) -> &[u32] {
        &self.feeds
    }
}

fn place(entry: &HeldRecord) -> (u32, u64) {
    (entry.feed, entry.offset)
}

impl SealedGroup {
    /// Its records that have not ended.
    pub fn records(&self) -> u64 {
        self.parked.as_ref().map_or(self.entries.len() as u64, |parked| parked.records)
    }

    pub fn bytes(&self) -> u64 {
        self.parked.as_ref().map_or_else(|| bytes_of(&self.entries), |parked| parked.bytes)
    }

    /// What is left of it, where that is little.
    pub fn parked(&self) -> Option<&Parked> {
        self.parked.as_deref()
    }

    /// All that its seal names is there, and a seal and the log tell everything about it.
    fn can_be_read_again(&self) -> bool {
        let is_plain =
            |entry: &HeldRecord| entry.id.is_none() && entry.kind.is_none() && entry.in_store;
        self.entries.len() as u64 == self.members.len() && self.entries.iter().all(is_plain)
    }
}

impl Index {
    /// Groups that wait behind the first one, to be written or to be sent, take room for their
    /// entries; where there is none, only what cannot be read again stays. Bodies go where the way is
    /// shut: they would keep those out that are sent before.
    pub fn park(&mut self, room: &Arc<Room>, makes_files: bool, is_shut: bool) {
        let place = |sealed: &SealedGroup| (sealed.seal.feed, sealed.seal.offset);
        let unwritten = if makes_files { self.next_unwritten(|_| true) } else { None };
        let firsts = [self.sealed.front().map(place), unwritten.map(place)];
        self.sealed.retain(|sealed| {
            let is_first = firsts.contains(&Some(place(sealed)));
            if is_first || sealed.charge.is_some() || sealed.entries.is_empty() {
                return true;
            }
            if is_shut {
                sealed.entries.iter_mut().for_each(|entry| entry.body = None);
            }
            sealed.charge =
                room.charge(sealed.entries.len() * size_of::<HeldRecord>()).map(Arc::new);
            if sealed.charge.is_none() && sealed.can_be_read_again() {
                sealed.parked = Some(Box::new(Parked::of(&sealed.entries)));
                (sealed.entries, sealed.members) = (Vec::new(), Members::default());
            }
            true
        });
    }

    /// Its turn has come: its members are there again. One that has left meanwhile, or came anew, is
    /// another.
    pub fn unpark(&mut self, key: &Bytes, seal: &HeldRecord, entries: Vec<HeldRecord>) {
        let place = |seal: &HeldRecord| (seal.feed, seal.offset);
        let mut of_key = self.sealed.of_mut(key);
        let sealed = of_key.find(|sealed| place(&sealed.seal) == place(seal));
        if let Some(sealed) = sealed.filter(|sealed| sealed.records() == entries.len() as u64)
            && sealed.parked.take().is_some()
        {
            sealed.entries = entries;
        }
    }
}
