//! The groups of a lane: an index in memory, rebuilt from the log after every start.
//!
//! ```text
//!   record ─► open group ─► frozen (a rule closed it) ─► its seal is written ─┐
//!                 │                                                           │ read back
//!                 └────────── a seal in the log names it ◄────────────────────┘
//!                                        ▼
//!                              sealed group ─► sent ─► ended
//! ```
//!
//! An open group belongs to the lane alone; a record that comes after the closing opens the next
//! generation. On a log of this process's own times are kept on a scale of this run; on a shared log
//! they are the log's, whatever this process's clock says, and what time the log has now is learned
//! from what is read (`clock.rs`).

mod files;
mod forget;
mod parked;
mod reason;
mod sending;
#[cfg(test)]
mod tests;
mod view;
mod waiting;
mod wishes;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use foldhash::HashMap;
use potok_core::trouble::{Bug, planted};
use potok_core::{CloseReason, Partition, Position, SourceBatch, Timestamp};
use tokio::time::Instant;

use super::arrival::{self, Arrival, Stream};
use super::bodies::{Body, Charge};
use super::clock::Share;
use super::replays::WaitingReplays;
use super::seal::{Generation, Members, Seal, SealRoom};
use super::shelf::KeyedQueue;
use crate::fixed_hash::FixedHash;
use crate::plan::ClosePlan;
pub(super) use files::ToWrite;
pub(super) use parked::Parked;
pub(super) use view::ViewContext;
pub use view::{GroupCursor, GroupPage, GroupView, KindView};
use waiting::WaitingRecord;
pub(crate) use wishes::Command;

/// A part of a batch has no more records and bytes than this, so that sending it fits into memory;
/// fewer where the log takes no such seal.
pub(super) const PART_RECORDS_MAX: usize = 10_000;
const PART_BYTES_MAX: u64 = 16 << 20;

/// Records that wait to be sent: with more, sending comes before taking in. Bodies are in memory
/// then, and not what was taken in later.
const MUCH: usize = 4_000;

/// Parts that are sealed and not sent, and records in them: with more, the next are not sealed yet. A
/// seal takes room in the log before anything of its group can end, and there may be little.
const SEALED_PARTS_MAX: usize = 5_000;
const SEALED_RECORDS_MAX: usize = 40_000;

/// A group of fewer records than this has room for no more: there may be a million of them.
const FEW: usize = 4;

/// Among more open groups than this, the oldest is looked for only now and then.
const OLDEST_AMONG: usize = 10_000;
const OLDEST_EVERY: Duration = Duration::from_secs(1);

/// A partition under one assignment and one incarnation of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Feed {
    pub partition: Partition,
    pub log: u64,
    pub assignment: u64,
}

impl Feed {
    pub fn position(&self, offset: u64) -> Position {
        let Partition { topic, index } = self.partition.clone();
        Position { log: self.log, topic, partition: index, offset }
    }

    /// Adds a place to a hash.
    fn hashed(&self, hash: FixedHash, offset: u64) -> FixedHash {
        let Partition { topic, index } = &self.partition;
        let log = hash.number(self.log).text(topic.as_bytes());
        log.number(u64::from(*index)).number(offset)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct HeldRecord {
    /// Which of [`Index::feeds`].
    pub feed: u32,
    pub offset: u64,
    /// The offsets it stands for: so many before its own, and so many from its own on.
    pub before: u32,
    pub from: u32,
    pub bytes: u32,
    pub time: Timestamp,
    /// When it came, on the clock of its share.
    pub at: i64,
    /// Where it stands among the records of its group.
    pub arrival: Arrival,
    /// It closes its group.
    pub closes: bool,
    /// Its own quiet time in milliseconds; 0 where it has none.
    pub quiet: u32,
    pub kind: Option<u16>,
    pub id: Option<Bytes>,
    /// With which record it was put into the store.
    pub with: u64,
    /// The store has it; else its body is in the log alone.
    pub in_store: bool,
    /// Its body, where that is in memory.
    pub body: Option<Body>,
}

impl HeldRecord {
    /// One of which no more is known than where it lies.
    pub fn at_place(feed: u32, offset: u64) -> Self {
        let time = Timestamp(0);
        HeldRecord {
            feed,
            offset,
            before: 0,
            from: 1,
            bytes: 0,
            time,
            at: 0,
            arrival: Arrival { stream: Stream::Log, place: 0, time },
            closes: false,
            quiet: 0,
            kind: None,
            id: None,
            with: offset,
            in_store: true,
            body: None,
        }
    }

    pub fn covers(&self) -> std::ops::Range<u64> {
        self.offset - u64::from(self.before)..self.offset + u64::from(self.from)
    }
}

/// Names an open group: its key, of a clock slice the start, and its share: where the log is
/// shared, the partition that all its records lie in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GroupKey {
    pub key: Bytes,
    pub slice: i64,
    pub share: u32,
}

/// Records that belong together.
#[derive(Debug)]
pub(crate) struct Group {
    pub name: u64,
    /// When the log took its first record.
    pub opened: Timestamp,
    /// The same and the last one, on the clock of its share.
    first: i64,
    last: i64,
    /// The quiet time of the last one in milliseconds; 0 where it has none of its own.
    quiet: u32,
    /// The end of its clock slice.
    until: i64,
    /// When it closes.
    pub due: i64,
    pub bytes: u64,
    pub entries: Vec<HeldRecord>,
}

/// Closed by a rule; no record joins it any more.
#[derive(Debug)]
struct ClosedGroup {
    name: GroupKey,
    /// Its name is made of its members when it is sealed.
    generation: Generation,
    opened: Timestamp,
    until: i64,
    due: i64,
    reason: CloseReason,
    entries: Vec<HeldRecord>,
}

/// A batch that a seal in the log names.
#[derive(Clone, Debug)]
pub(crate) struct SealedGroup {
    pub key: Bytes,
    pub generation: Generation,
    pub opened: Timestamp,
    /// When it closed and why, as its seal says.
    pub closed: Timestamp,
    pub reason: CloseReason,
    /// The start of its clock slice; 0 where slices do not close groups.
    pub slice: i64,
    /// The name of its file, once that is written and noted.
    pub file: OnceLock<Arc<str>>,
    /// When it was to close, where this run knows that.
    pub due: Option<i64>,
    /// Somebody gave it up: its members become dead letters.
    pub dropped: bool,
    /// Members that have not ended, as they arrived.
    pub entries: Vec<HeldRecord>,
    /// The seal itself; it ends with the last member.
    pub seal: HeldRecord,
    members: Members,
    /// What is left of it in memory while it waits and there is no room.
    parked: Option<Box<Parked>>,
    /// The room that its entries take.
    charge: Option<Arc<Charge>>,
}

/// A record on its way into the index.
pub(crate) struct NewMember {
    pub group: GroupKey,
    pub entry: HeldRecord,
    /// The end of its clock slice, where slices close groups, on the clock of its share.
    pub slice_end: Option<i64>,
}

#[derive(Default)]
pub(crate) struct Index {
    close: ClosePlan,
    /// How large seals may be.
    pub seal_room: Arc<SealRoom>,
    /// What is sealed is sent by a task of its own: it keeps nothing from being sealed.
    sends_apart: bool,
    pub feeds: Vec<Feed>,
    /// Numbers of feeds that have left and that nothing refers to.
    free_feeds: Vec<u32>,
    /// With their places in the log.
    waiting: Vec<(u64, WaitingRecord)>,
    open: HashMap<GroupKey, Group>,
    shares: BTreeMap<u32, Share>,
    frozen: KeyedQueue<ClosedGroup>,
    /// Their seals are on the way into the log.
    sealing: KeyedQueue<ClosedGroup>,
    /// Their seals were read, in that order.
    sealed: KeyedQueue<SealedGroup>,
    /// Being sent now, for people to see.
    sending: Arc<Vec<SealedGroup>>,
    /// Replays that go on alone, each to its shard.
    pub replays: WaitingReplays,
    /// Bytes of everything held, until it was sent.
    bytes: u64,
    /// How many records that is.
    records: u64,
    /// When the oldest was looked for among many, and found.
    oldest: Option<(Instant, Option<Timestamp>)>,
    /// Nothing is sealed or sent before the log was read to the end seen at the start.
    pub caught_up: bool,
    /// How late each group closed, in milliseconds, since the last question.
    pub lateness: Vec<u64>,
    /// Commands of people, each for the group that was open then: its name, and that of its generation.
    wishes: Vec<(GroupKey, u64, Command)>,
}

impl Index {
    pub fn new(close: ClosePlan, sends_apart: bool) -> Self {
        Index { close, sends_apart, ..Index::default() }
    }

    /// Groups of this share are timed by the scale of this run.
    pub fn time_by_run(&mut self, share: u32) {
        self.share(share).time_by_run();
    }

    /// When the records of a batch came, by the log.
    pub fn arrivals(&mut self, share: u32, batch: &SourceBatch, run_now: i64) -> Vec<i64> {
        self.share(share).arrivals(batch, run_now)
    }

    /// A record was read that came at `at`: the log's clock is there, at least.
    pub fn learn_time(&mut self, share: u32, at: i64, run_now: i64) {
        self.share(share).learn_time(at, run_now);
    }

    fn share(&mut self, share: u32) -> &mut Share {
        self.shares.entry(share).or_default()
    }

    pub fn feed(&mut self, feed: &Feed) -> u32 {
        let known = self.feeds.iter().rposition(|known| known == feed);
        if let Some(known) = known.filter(|at| !self.free_feeds.contains(&(*at as u32))) {
            return known as u32;
        }
        match self.free_feeds.pop() {
            Some(free) => {
                let place = self.feeds.get_mut(free as usize);
                place.into_iter().for_each(|place| *place = feed.clone());
                free
            }
            None => {
                self.feeds.push(feed.clone());
                self.feeds.len() as u32 - 1
            }
        }
    }

    /// The stream of a partition: by its name, so that records of one time and place in several have
    /// the same order whenever they are read.
    pub fn stream(&self, partition: &Partition) -> Stream {
        let name = FixedHash::new().text(partition.topic.as_bytes());
        Stream::Partition(name.number(u64::from(partition.index)).finish() as u32)
    }

    /// Takes a record in.
    fn add(&mut self, arriving: NewMember) {
        let NewMember { group: name, entry, slice_end } = arriving;
        self.bytes += u64::from(entry.bytes);
        self.records += 1;
        if let Some(sealed) = self.sealed_with(&name.key, &entry) {
            sealed.entries.push(entry);
            return;
        }
        if planted(Bug::LateJoinsSealed)
            && let Some(frozen) = self.sealing.of_mut(&name.key).next()
        {
            frozen.entries.push(entry);
            return;
        }
        if planted(Bug::LateJoinsSealed)
            && let Some(sealed) = self.sealed.of_mut(&name.key).next()
        {
            sealed.entries.push(entry);
            return;
        }
        self.join(name, entry, slice_end.unwrap_or(i64::MAX));
    }

    /// Puts a record into its open group, and closes that where the record says so.
    fn join(&mut self, mut name: GroupKey, entry: HeldRecord, until: i64) {
        let HeldRecord { at, closes, .. } = entry;
        // The windows' clock is the log's: a record behind the end opens the next generation,
        // however late its turn came.
        if let Some(group) = self.open.get(&name).filter(|group| at >= group.due) {
            self.freeze(&name, group.due_reason(&self.close));
        }
        let bytes = u64::from(entry.bytes);
        if self.open.get(&name).is_some_and(|group| self.close.overflows(group.bytes + bytes)) {
            self.freeze(&name, CloseReason::MaxBytes);
        }
        if !self.open.contains_key(&name) {
            // The record that the key may be a part of does not stay with it.
            name.key = Bytes::copy_from_slice(&name.key);
            let group = Group {
                name: self.generation(&name, &entry),
                opened: entry.time,
                first: at,
                last: at,
                quiet: 0,
                until,
                due: i64::MAX,
                bytes: 0,
                entries: Vec::new(),
            };
            self.open.insert(name.clone(), group);
        }
        let Some(group) = self.open.get_mut(&name) else { return };
        group.opened = group.opened.min(entry.time);
        group.first = group.first.min(at);
        if at >= group.last {
            (group.last, group.quiet) = (at, entry.quiet);
        }
        group.bytes += u64::from(entry.bytes);
        let records = group.entries.len();
        if records < FEW {
            group.entries.reserve_exact(1);
        } else if records == group.entries.capacity() {
            // Twice as many, but no more than it will have.
            let most = self.close.max_count.unwrap_or(usize::MAX);
            group.entries.reserve_exact(records.min(most.saturating_sub(records)).max(1));
        }
        group.entries.push(entry);
        let is_new = group.entries.len() == 1;
        let late = if planted(Bug::ClosesLate) { 10_000 } else { 0 };
        let due = self.close.due(group.first, group.last, group.own_quiet());
        let due = due.saturating_add(late).min(group.until);
        let before = std::mem::replace(&mut group.due, due);
        if is_new || due != before {
            self.put_off(&name, before, due);
        }
        let full = self.open.get(&name).and_then(|g| self.close.full(g.entries.len(), g.bytes));
        if let Some(reason) = full.or(closes.then_some(CloseReason::ConditionMet)) {
            self.freeze(&name, reason);
        }
    }

    /// An open group closes at another time than it would have before.
    fn put_off(&mut self, name: &GroupKey, before: i64, due: i64) {
        // Its key is kept in memory once.
        let name = self.open.get_key_value(name).map_or(name, |(name, _)| name).clone();
        let share = self.shares.entry(name.share).or_default();
        let mut at = (before, name);
        share.due.remove(&at);
        at.0 = due;
        share.due.insert(at);
    }

    /// Takes an open group out.
    fn take_open(&mut self, name: &GroupKey) -> Option<(GroupKey, Group)> {
        let (name, group) = self.open.remove_entry(name)?;
        if let Some(share) = self.shares.get_mut(&name.share) {
            let at = (group.due, name);
            share.due.remove(&at);
            return Some((at.1, group));
        }
        Some((name, group))
    }

    fn generation(&self, name: &GroupKey, first: &HeldRecord) -> u64 {
        let GroupKey { key, slice, share } = name;
        let group = FixedHash::new().text(key).number(slice.cast_unsigned());
        let group = group.number(u64::from(*share));
        let feed = self.feeds.get(first.feed as usize);
        feed.map_or(group, |feed| feed.hashed(group, first.offset)).finish()
    }

    /// The sealed group that has this record as a member.
    fn sealed_with(&mut self, key: &Bytes, entry: &HeldRecord) -> Option<&mut SealedGroup> {
        let feed = self.feeds.get(entry.feed as usize)?;
        let members = |sealed: &&mut SealedGroup| {
            sealed.members.contains(feed.log, &feed.partition, entry.offset)
        };
        self.sealed.of_mut(key).find(members)
    }

    /// Closes an open group: no record joins it any more.
    fn freeze(&mut self, name: &GroupKey, reason: CloseReason) {
        let Some((name, group)) = self.take_open(name) else { return };
        let records_max = self.seal_room.members_max(&name.key).min(PART_RECORDS_MAX);
        let parts = parts(arrival::sort(group.entries, |entry| entry.arrival), records_max);
        let count = parts.len() as u32;
        for (part, entries) in (0..).zip(parts) {
            let generation = Generation { name: group.name, part, parts: count };
            self.frozen.push(
                &name.key,
                ClosedGroup {
                    name: name.clone(),
                    generation,
                    opened: group.opened,
                    until: group.until,
                    due: group.due,
                    reason,
                    entries,
                },
            );
        }
    }

    /// Closes what is due.
    pub fn close_due(&mut self, run_now: i64) {
        self.obey();
        let mut all_due = Vec::new();
        for share in self.shares.values_mut() {
            let Some(now) = share.now(run_now) else { continue };
            let due = share.due.iter().take_while(|(due, _)| *due <= now);
            all_due.extend(due.map(|(due, name)| (name.clone(), now.abs_diff(*due))));
        }
        for (name, late) in all_due {
            self.lateness.push(late);
            let Some(group) = self.open.get(&name) else { continue };
            self.freeze(&name, group.due_reason(&self.close));
        }
    }

    /// Shares that have open groups.
    pub fn shares_with_open(&self) -> impl Iterator<Item = u32> {
        let with_open = self.shares.iter().filter(|(_, share)| !share.due.is_empty());
        with_open.map(|(share, _)| *share)
    }

    /// When to look again, on the scale of this run.
    pub fn next_due(&self) -> Option<i64> {
        self.shares.values().filter_map(Share::next_due).min()
    }

    /// How many parts more may be sealed, and how many records in them.
    fn sealable(&self) -> (usize, usize) {
        let sealed = self.sealed.iter().filter(|_| !self.sends_apart);
        let sealed = sealed.map(|sealed| sealed.entries.len());
        let records = sealed.chain(self.sealing.iter().map(|frozen| frozen.entries.len()));
        let (parts, records) = records.fold((0, 0), |(parts, all), some| (parts + 1, all + some));
        (SEALED_PARTS_MAX.saturating_sub(parts), SEALED_RECORDS_MAX.saturating_sub(records))
    }

    /// True where something is closed and may be sealed now.
    pub fn has_to_seal(&self) -> bool {
        let may_seal = || matches!(self.sealable(), (1.., 1..));
        !self.frozen.is_empty() && may_seal()
    }

    /// The seals of what is closed, to be written, as far as not too many are on their way.
    pub fn seals(&mut self, closed: Timestamp) -> Vec<(GroupKey, Seal)> {
        let mut seals = Vec::new();
        if self.frozen.is_empty() {
            return seals;
        }
        let (mut parts, mut records) = self.sealable();
        while parts.min(records) > 0
            && let Some(mut frozen) = self.frozen.pop_front()
        {
            if frozen.entries.is_empty() {
                continue;
            }
            parts -= 1;
            records = records.saturating_sub(frozen.entries.len());
            let mut members = Members::default();
            let mut name = FixedHash::new().text(&frozen.name.key);
            for entry in &frozen.entries {
                if let Some(feed) = self.feeds.get(entry.feed as usize) {
                    name = feed.hashed(name, entry.offset);
                    members.insert(feed.log, &feed.partition, entry.offset);
                }
            }
            // The same members have the same name, others another.
            frozen.generation.name = name.finish();
            let ClosedGroup { generation, opened, reason, .. } = frozen;
            let (slice, dropped) = (frozen.name.slice, reason == CloseReason::Dropped);
            let seal = Seal { generation, slice, opened, closed, reason, dropped, members };
            seals.push((frozen.name.clone(), seal));
            let key = frozen.name.key.clone();
            self.sealing.push(&key, frozen);
        }
        seals
    }

    /// A seal was read: it takes its members that no earlier one has taken. True where another run
    /// has written it.
    pub fn read_seal(&mut self, key: Bytes, share: u32, seal: Seal, entry: HeldRecord) -> bool {
        let Seal { generation, slice, opened, closed, reason, dropped, members } = seal;
        let ours = self.sealing.remove(&key, |frozen| frozen.generation == generation);
        let foreign = ours.is_none();
        let forgotten = foreign && planted(Bug::SealsForgotten);
        let members = if forgotten { Members::default() } else { members };
        let (due, entries) = match ours {
            Some(frozen) => (Some(frozen.due), frozen.entries),
            None => (None, self.take(&GroupKey { key: key.clone(), slice, share }, &members)),
        };
        let (of, seal) = (key.clone(), entry);
        let sealed = SealedGroup {
            key,
            generation,
            opened,
            closed,
            reason,
            slice,
            file: OnceLock::new(),
            due,
            dropped,
            entries,
            seal,
            members,
            parked: None,
            charge: None,
        };
        self.sealed.push(&of, sealed);
        foreign
    }

    /// Takes members out of what no seal has taken yet. What is left of their group came too late
    /// for the seal: it is the next generation, whose window begins with its own first record. So
    /// it is judged anew, with all that came behind it: that it was closed, or who was in it, may
    /// be due to records that are gone. What is in a seal of our own stays there.
    fn take(&mut self, name: &GroupKey, members: &Members) -> Vec<HeldRecord> {
        let feeds = self.feeds.clone();
        let is_member = |entry: &mut HeldRecord| {
            let feed = feeds.get(entry.feed as usize);
            feed.is_some_and(|feed| members.contains(feed.log, &feed.partition, entry.offset))
        };
        let mut taken = Vec::new();
        for frozen in self.sealing.of_mut(&name.key) {
            taken.extend(frozen.entries.extract_if(.., is_member));
        }
        self.take_from(name, &mut taken, is_member);
        if self.close.every.is_some() && (taken.len() as u64) < members.len() {
            // Slices may have had another length when it was sealed: by today's, its members are in
            // others.
            let others: HashSet<GroupKey> = self
                .open_of(&name.key)
                .into_iter()
                .chain(self.frozen.of(&name.key).map(|frozen| &frozen.name))
                .filter(|other| other.share == name.share && *other != name)
                .cloned()
                .collect();
            for other in others {
                self.take_from(&other, &mut taken, is_member);
            }
        }
        taken
    }

    /// The same out of one group.
    fn take_from(
        &mut self,
        name: &GroupKey,
        taken: &mut Vec<HeldRecord>,
        is_member: impl Fn(&mut HeldRecord) -> bool + Copy,
    ) {
        let (mut left, mut parted) = (Vec::new(), false);
        let mut part = |entries: &mut Vec<HeldRecord>, until: i64| {
            let before = taken.len();
            taken.extend(entries.extract_if(.., |entry| is_member(entry)));
            parted |= taken.len() > before && !entries.is_empty();
            if parted {
                left.extend(entries.drain(..).map(|entry| (entry, until)));
            }
        };
        for frozen in self.frozen.of_mut(&name.key).filter(|frozen| frozen.name == *name) {
            part(&mut frozen.entries, frozen.until);
        }
        if let Some(group) = self.open.get_mut(name) {
            part(&mut group.entries, group.until);
            if group.entries.is_empty() {
                self.take_open(name);
            }
        }
        for (entry, until) in left {
            self.join(name.clone(), entry, until);
        }
    }

    /// When the open group was opened that a record joins which comes at `at`.
    pub fn opened(&self, name: &GroupKey, at: i64) -> Option<Timestamp> {
        self.open.get(name).filter(|group| at < group.due).map(|group| group.opened)
    }

    /// The open groups of a key: in each share, of each clock slice.
    fn open_of(&self, key: &[u8]) -> Vec<&GroupKey> {
        if self.close.every.is_some() {
            return self.open.keys().filter(|name| *name.key == *key).collect();
        }
        let key = Bytes::copy_from_slice(key);
        let named = |share: &u32| GroupKey { key: key.clone(), slice: 0, share: *share };
        let names = self.shares.keys().map(named);
        names.filter_map(|name| self.open.get_key_value(&name)).map(|(name, _)| name).collect()
    }

    /// Everything that waits to be sent, in no order.
    pub fn sealed(&self) -> impl Iterator<Item = &SealedGroup> {
        self.sealed.iter()
    }

    pub fn has_sealed(&self) -> bool {
        !self.sealed.is_empty()
    }

    /// True where so much waits to be sent that nothing more should be taken in before.
    pub fn has_much_sealed(&self) -> bool {
        let mut records = self.sealed.iter().scan(0, |records, sealed| {
            *records += sealed.entries.len();
            Some(*records)
        });
        records.any(|records| records > MUCH)
    }

    /// When the oldest record that is held arrived; among many, as it was a moment ago.
    pub fn oldest(&mut self) -> Option<Timestamp> {
        if let Some((looked, oldest)) = self.oldest
            && looked.elapsed() < OLDEST_EVERY
        {
            return oldest;
        }
        let open = self.open.values().map(|group| group.opened);
        let closed = self.frozen.iter().chain(self.sealing.iter()).map(|frozen| frozen.opened);
        let sealed = self.sealed.iter().chain(self.sending.iter()).map(|sealed| sealed.opened);
        let oldest = open.chain(closed).chain(sealed).min();
        let many = self.open.len() > OLDEST_AMONG;
        self.oldest = many.then(|| (Instant::now(), oldest));
        oldest
    }

    /// How many groups are open, and how many records and bytes are held in all.
    pub fn size(&self) -> (u64, u64, u64) {
        (self.open.len() as u64, self.records, self.bytes)
    }
}

fn bytes_of(entries: &[HeldRecord]) -> u64 {
    entries.iter().map(|entry| u64::from(entry.bytes)).sum()
}

/// Records in order of arrival, cut where a part would become too large.
fn parts(entries: Vec<HeldRecord>, records_max: usize) -> Vec<Vec<HeldRecord>> {
    let mut parts: Vec<Vec<HeldRecord>> = Vec::new();
    let (mut records, mut bytes) = (0, 0);
    for entry in entries {
        let size = u64::from(entry.bytes);
        let full = records == records_max || (records > 0 && bytes + size > PART_BYTES_MAX);
        if full {
            (records, bytes) = (0, 0);
        }
        records += 1;
        bytes += size;
        match parts.last_mut() {
            Some(part) if !full => part.push(entry),
            _ => parts.push(vec![entry]),
        }
    }
    parts
}
