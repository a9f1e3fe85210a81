//! What a lane holds: an index in memory, rebuilt from the log after every start.
//!
//! ```text
//!   record ─► open group ─► frozen (a rule closed it) ─► its seal is written ─┐
//!                 │                                                           │ read back
//!                 └────────── a seal in the log names it ◄────────────────────┘
//!                                        ▼
//!                              sealed batch ─► sent ─► ended
//! ```
//!
//! An open group belongs to the lane alone; a record that comes after the closing opens the next
//! generation. Times are kept on a scale of this run that never jumps (see [`Scale`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use potok_core::{Clock, Partition, Position, Timestamp};
use tokio::time::Instant;

use super::seal::{Generation, Members, Seal};
use super::shelf::Shelf;
use crate::plan::ClosePlan;

/// A part of a batch has no more records and bytes than this, so that sending it fits into memory
/// and its seal into one record of any log.
const PART_RECORDS_MAX: usize = 10_000;
const PART_BYTES_MAX: u64 = 16 << 20;

/// Milliseconds of this run: wall time at its start, going on evenly whatever the wall clock does.
pub(crate) struct Scale {
    start: Instant,
    wall: Timestamp,
}

impl Scale {
    pub fn new(clock: &dyn Clock) -> Self {
        Scale { start: Instant::now(), wall: clock.now() }
    }

    pub fn now(&self) -> i64 {
        self.wall.0 + i64::try_from(self.start.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// When a record arrived, judged by its age now.
    pub fn arrival(&self, time: Timestamp, clock: &dyn Clock) -> i64 {
        let age = clock.now().millis_since(time);
        self.now().saturating_sub_unsigned(age)
    }

    /// When the tasks of this process should wake for `at`.
    pub fn instant(&self, at: i64) -> Instant {
        let millis = u64::try_from(at.saturating_sub(self.wall.0)).unwrap_or(0);
        self.start + std::time::Duration::from_millis(millis)
    }
}

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
}

/// A held record, without its body.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Which of [`Index::feeds`].
    pub feed: u32,
    pub offset: u64,
    /// The offsets it stands for: so many before its own, and so many from its own on.
    pub before: u32,
    pub from: u32,
    pub bytes: u32,
    pub time: Timestamp,
    pub kind: Option<u16>,
    pub id: Option<Bytes>,
    /// Its decoder changes the bytes: it must see them again.
    pub rewritten: bool,
}

impl Entry {
    pub fn covers(&self) -> std::ops::Range<u64> {
        self.offset - u64::from(self.before)..self.offset + u64::from(self.from)
    }
}

/// Names an open group: its key, and of a clock slice the start.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GroupKey {
    pub key: Bytes,
    pub slice: i64,
}

/// Records that belong together.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub name: u64,
    /// When the log took its first record.
    pub opened: Timestamp,
    /// The same and the last one, on the scale of this run.
    first: i64,
    last: i64,
    /// When it closes.
    pub due: i64,
    pub bytes: u64,
    pub entries: Vec<Entry>,
}

/// Closed by a rule; no record joins it any more.
#[derive(Clone, Debug)]
struct Frozen {
    name: GroupKey,
    /// Its name is made of its members when it is sealed.
    generation: Generation,
    opened: Timestamp,
    due: i64,
    dropped: bool,
    entries: Vec<Entry>,
}

/// A batch that a seal in the log names.
#[derive(Clone, Debug)]
pub(crate) struct Sealed {
    pub key: Bytes,
    pub generation: Generation,
    pub opened: Timestamp,
    /// When it was to close, where this run knows that.
    pub due: Option<i64>,
    /// Somebody gave it up: its members become dead letters.
    pub dropped: bool,
    /// Members that have not ended, as they arrived.
    pub entries: Vec<Entry>,
    /// The seal itself; it ends with the last member.
    pub seal: Entry,
    members: Members,
}

/// What [`Index::forget`] has forgotten.
#[derive(Default)]
pub(crate) struct Forgotten {
    /// Records of each assignment.
    pub records: Vec<(u64, u64)>,
    /// A part of a sealed batch has left and a part is still here. Where seals lie in the
    /// partition of their members, or one process has all partitions, this does not happen.
    pub torn: bool,
}

/// A record on its way into the index.
pub(crate) struct Arriving {
    pub group: GroupKey,
    pub entry: Entry,
    /// On the scale of this run.
    pub at: i64,
    /// The end of its clock slice, where slices close groups, on the scale of this run.
    pub slice_end: Option<i64>,
    /// This record closes its group.
    pub closes: bool,
}

/// A batch as people see it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct BatchView {
    /// Whose it is.
    pub pipeline: String,
    /// The group's key.
    pub id: String,
    /// Names this generation of the group.
    pub generation: String,
    /// `open`, `closed`, `sealed` or `sending`.
    pub state: &'static str,
    /// Records and distinct ids by kind; one kind `record` where the pipeline names none.
    pub kinds: BTreeMap<String, KindView>,
    /// Records whose id another record of the batch has too.
    pub repeats: u64,
    /// Bytes held.
    pub bytes: u64,
    /// When its first record arrived.
    pub opened: String,
    /// When it closes.
    pub due: Option<String>,
    /// Who works on it.
    pub owner: String,
}

/// One kind in a [`BatchView`].
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct KindView {
    /// Records.
    pub records: u64,
    /// Distinct ids.
    pub ids: u64,
}

#[derive(Default)]
pub(crate) struct Index {
    close: ClosePlan,
    pub feeds: Vec<Feed>,
    open: HashMap<GroupKey, Group>,
    /// When open groups close. May name groups that are gone or close later: looked at again.
    due: BinaryHeap<Reverse<(i64, GroupKey)>>,
    frozen: Shelf<Frozen>,
    /// Their seals are on the way into the log.
    sealing: Shelf<Frozen>,
    /// Their seals were read, in that order.
    sealed: Shelf<Sealed>,
    /// Being sent now, for people to see.
    pub sending: Vec<Sealed>,
    /// Nothing is sealed or sent before the log was read to the end seen at the start.
    pub caught_up: bool,
    /// What somebody asked for, group by group.
    pub wishes: Vec<(Bytes, Wish)>,
}

/// What people may ask of an open group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Close it now.
    Release,
    /// Close it now and set its records aside.
    Drop,
}

impl Index {
    pub fn new(close: ClosePlan) -> Self {
        Index { close, ..Index::default() }
    }

    pub fn feed(&mut self, feed: &Feed) -> u32 {
        let known = self.feeds.iter().rposition(|known| known == feed);
        let at = known.unwrap_or_else(|| {
            self.feeds.push(feed.clone());
            self.feeds.len() - 1
        });
        at as u32
    }

    /// Takes a record in.
    pub fn add(&mut self, arriving: Arriving) {
        let Arriving { group: name, entry, at, slice_end, closes } = arriving;
        if let Some(sealed) = self.sealed_with(&name.key, &entry) {
            sealed.entries.push(entry);
            return;
        }
        // The windows' clock is the log's: a record behind the end opens the next generation,
        // however late its turn came.
        if self.open.get(&name).is_some_and(|group| at >= group.due) {
            self.freeze(&name, false);
        }
        let generation = || self.generation(&name, &entry);
        let named = if self.open.contains_key(&name) { 0 } else { generation() };
        let group = self.open.entry(name.clone()).or_insert_with(|| Group {
            name: named,
            opened: entry.time,
            first: at,
            last: at,
            due: i64::MAX,
            bytes: 0,
            entries: Vec::new(),
        });
        group.opened = group.opened.min(entry.time);
        group.first = group.first.min(at);
        group.last = group.last.max(at);
        group.bytes += u64::from(entry.bytes);
        group.entries.push(entry);
        let due = self.close.due(group.first, group.last).min(slice_end.unwrap_or(i64::MAX));
        let (is_new, sooner) = (group.entries.len() == 1, due < group.due);
        group.due = due;
        if closes || self.close.is_full(group.entries.len(), group.bytes) {
            self.freeze(&name, false);
        } else if is_new || sooner {
            self.due.push(Reverse((due, name)));
        }
    }

    fn generation(&self, name: &GroupKey, first: &Entry) -> u64 {
        let mut hasher = DefaultHasher::new();
        let feed = self.feeds.get(first.feed as usize);
        (name, feed.map(|feed| feed.position(first.offset))).hash(&mut hasher);
        hasher.finish()
    }

    /// The sealed batch that has this record as a member.
    fn sealed_with(&mut self, key: &Bytes, entry: &Entry) -> Option<&mut Sealed> {
        let feed = self.feeds.get(entry.feed as usize)?;
        let members =
            |sealed: &&mut Sealed| sealed.members.contains(feed.log, &feed.partition, entry.offset);
        self.sealed.of_mut(key).find(members)
    }

    /// Closes an open group: no record joins it any more.
    fn freeze(&mut self, name: &GroupKey, dropped: bool) {
        let Some(group) = self.open.remove(name) else { return };
        let parts = parts(group.entries);
        let count = parts.len() as u32;
        for (part, entries) in (0..).zip(parts) {
            let generation = Generation { name: group.name, part, parts: count };
            self.frozen.push(
                &name.key,
                Frozen {
                    name: name.clone(),
                    generation,
                    opened: group.opened,
                    due: group.due,
                    dropped,
                    entries,
                },
            );
        }
    }

    /// Closes what is due.
    pub fn close_due(&mut self, now: i64) {
        for (key, wish) in std::mem::take(&mut self.wishes) {
            let named = |name: &&GroupKey| name.key == key;
            let names: Vec<GroupKey> = self.open.keys().filter(named).cloned().collect();
            names.iter().for_each(|name| self.freeze(name, wish == Wish::Drop));
        }
        while let Some(Reverse((due, _))) = self.due.peek()
            && *due <= now
            && let Some(Reverse((_, name))) = self.due.pop()
        {
            match self.open.get(&name) {
                Some(group) if group.due <= now => self.freeze(&name, false),
                // A later record has put it off.
                Some(group) => self.due.push(Reverse((group.due, name))),
                None => {}
            }
        }
    }

    /// When to look again.
    pub fn next_due(&self) -> Option<i64> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }

    /// The seals of what is closed, to be written.
    pub fn seals(&mut self) -> Vec<(Bytes, Seal)> {
        let mut seals = Vec::new();
        while let Some(mut frozen) = self.frozen.pop_front() {
            if frozen.entries.is_empty() {
                continue;
            }
            let mut members = Members::default();
            let mut hasher = DefaultHasher::new();
            frozen.name.key.hash(&mut hasher);
            for entry in &frozen.entries {
                if let Some(feed) = self.feeds.get(entry.feed as usize) {
                    (feed.log, &feed.partition, entry.offset).hash(&mut hasher);
                    members.insert(feed.log, &feed.partition, entry.offset);
                }
            }
            // The same members have the same name, others another.
            frozen.generation.name = hasher.finish();
            let Frozen { generation, opened, dropped, .. } = frozen;
            let slice = frozen.name.slice;
            let seal = Seal { generation, slice, opened, dropped, members };
            seals.push((frozen.name.key.clone(), seal));
            let key = frozen.name.key.clone();
            self.sealing.push(&key, frozen);
        }
        seals
    }

    /// A seal was read: it takes its members that no earlier one has taken.
    pub fn read_seal(&mut self, key: Bytes, seal: Seal, entry: Entry) {
        let Seal { generation, slice, opened, dropped, members } = seal;
        let ours = self.sealing.remove(&key, |frozen| frozen.generation == generation);
        let (due, entries) = match ours {
            Some(frozen) => (Some(frozen.due), frozen.entries),
            None => (None, self.take(&GroupKey { key: key.clone(), slice }, &members)),
        };
        let seal = entry;
        let of = key.clone();
        let sealed = Sealed { key, generation, opened, due, dropped, entries, seal, members };
        self.sealed.push(&of, sealed);
    }

    /// Takes members out of what no seal has taken yet.
    fn take(&mut self, name: &GroupKey, members: &Members) -> Vec<Entry> {
        let feeds = &self.feeds;
        let is_member = |entry: &mut Entry| {
            let feed = feeds.get(entry.feed as usize);
            feed.is_some_and(|feed| members.contains(feed.log, &feed.partition, entry.offset))
        };
        let mut taken = Vec::new();
        for frozen in self.frozen.of_mut(&name.key).chain(self.sealing.of_mut(&name.key)) {
            taken.extend(frozen.entries.extract_if(.., is_member));
        }
        if let Some(group) = self.open.get_mut(name) {
            taken.extend(group.entries.extract_if(.., is_member));
            group.bytes = group.entries.iter().map(|entry| u64::from(entry.bytes)).sum();
            if group.entries.is_empty() {
                self.open.remove(name);
            }
        }
        taken
    }

    /// The next batches to send, bounded.
    pub fn take_sealed(&mut self) -> Vec<Sealed> {
        let (mut records, mut bytes) = (0, 0);
        let mut taken = Vec::new();
        while let Some(next) = self.sealed.front() {
            records += next.entries.len();
            bytes += next.entries.iter().map(|entry| u64::from(entry.bytes)).sum::<u64>();
            let too_much = records > PART_RECORDS_MAX || bytes > PART_BYTES_MAX;
            if too_much && !taken.is_empty() {
                break;
            }
            taken.extend(self.sealed.pop_front());
        }
        self.sending.clone_from(&taken);
        taken
    }

    pub fn has_open(&self, key: &[u8]) -> bool {
        self.open.keys().any(|name| *name.key == *key)
    }

    pub fn has_sealed(&self) -> bool {
        !self.sealed.is_empty()
    }

    /// Forgets what was read under assignments that have left.
    pub fn forget(&mut self, assignments: &[u64]) -> Forgotten {
        let feeds = &self.feeds;
        let mut forgotten = Forgotten::default();
        forgotten.records.extend(assignments.iter().map(|nonce| (*nonce, 0)));
        let mut stays = |entry: &Entry| {
            let nonce = feeds.get(entry.feed as usize).map(|feed| feed.assignment);
            let left = forgotten.records.iter_mut().find(|(left, _)| Some(*left) == nonce);
            left.map(|(_, records)| *records += 1).is_none()
        };
        self.open.retain(|_, group| {
            group.entries.retain(&mut stays);
            !group.entries.is_empty()
        });
        self.frozen.retain(|frozen| {
            frozen.entries.retain(&mut stays);
            !frozen.entries.is_empty()
        });
        let mut torn = false;
        self.sealing.retain(|frozen| {
            let members = frozen.entries.len();
            frozen.entries.retain(&mut stays);
            torn |= !frozen.entries.is_empty() && frozen.entries.len() < members;
            !frozen.entries.is_empty()
        });
        self.sealed.retain(|sealed| {
            let members = sealed.entries.len();
            sealed.entries.retain(&mut stays);
            let seal_stays = stays(&sealed.seal);
            let left = members - sealed.entries.len();
            torn |= if seal_stays { left > 0 } else { left < members };
            seal_stays
        });
        forgotten.torn = torn;
        forgotten
    }

    /// When the oldest record that is held arrived.
    pub fn oldest(&self) -> Option<Timestamp> {
        let open = self.open.values().map(|group| group.opened);
        let closed = self.frozen.iter().chain(self.sealing.iter()).map(|frozen| frozen.opened);
        let sealed = self.sealed.iter().chain(&self.sending).map(|sealed| sealed.opened);
        open.chain(closed).chain(sealed).min()
    }

    /// How many groups are open, and how many bytes are held in all.
    pub fn size(&self) -> (u64, u64) {
        let of = |entries: &Vec<Entry>| entries.iter().map(|e| u64::from(e.bytes)).sum::<u64>();
        let open: u64 = self.open.values().map(|group| group.bytes).sum();
        let closed: u64 =
            self.frozen.iter().chain(self.sealing.iter()).map(|f| of(&f.entries)).sum();
        let sealed: u64 = self.sealed.iter().chain(&self.sending).map(|s| of(&s.entries)).sum();
        (self.open.len() as u64, open + closed + sealed)
    }

    /// Everything held, for people to see.
    pub fn views(
        &self,
        pipeline: &str,
        kinds: &[Arc<str>],
        owner: &str,
        wall_ahead: i64,
    ) -> Vec<BatchView> {
        let view = |key: &Bytes, name: u64, state, opened: Timestamp, due: Option<i64>, entries| {
            let (kinds, repeats) = counts(kinds, entries);
            BatchView {
                pipeline: pipeline.to_owned(),
                id: String::from_utf8_lossy(key).into_owned(),
                generation: format!("{name:016x}"),
                state,
                kinds,
                repeats,
                bytes: entries.iter().map(|entry| u64::from(entry.bytes)).sum(),
                opened: opened.to_string(),
                due: due.map(|due| Timestamp(due.saturating_add(wall_ahead)).to_string()),
                owner: owner.to_owned(),
            }
        };
        let mut views = Vec::new();
        let sending = self.sending.iter().map(|sealed| ("sending", sealed));
        let waiting = self.sealed.iter().map(|sealed| ("sealed", sealed));
        views.extend(sending.chain(waiting).map(|(state, sealed)| {
            let name = sealed.generation.name;
            view(&sealed.key, name, state, sealed.opened, sealed.due, &sealed.entries)
        }));
        views.extend(self.frozen.iter().chain(self.sealing.iter()).map(|frozen| {
            let (name, due) = (frozen.generation.name, Some(frozen.due));
            view(&frozen.name.key, name, "closed", frozen.opened, due, &frozen.entries)
        }));
        let mut open: Vec<_> = self.open.iter().collect();
        open.sort_by(|a, b| (a.1.due, a.0).cmp(&(b.1.due, b.0)));
        views.extend(open.into_iter().map(|(name, group)| {
            let due = Some(group.due).filter(|due| *due < i64::MAX);
            view(&name.key, group.name, "open", group.opened, due, &group.entries)
        }));
        views
    }
}

/// Records in order of arrival, cut where a part would become too large.
fn parts(entries: Vec<Entry>) -> Vec<Vec<Entry>> {
    let mut parts: Vec<Vec<Entry>> = Vec::new();
    let (mut records, mut bytes) = (0, 0);
    for entry in entries {
        let size = u64::from(entry.bytes);
        let full = records == PART_RECORDS_MAX || (records > 0 && bytes + size > PART_BYTES_MAX);
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

fn counts(names: &[Arc<str>], entries: &[Entry]) -> (BTreeMap<String, KindView>, u64) {
    let mut kinds: BTreeMap<String, KindView> = BTreeMap::new();
    let mut seen = std::collections::HashSet::new();
    let mut repeats = 0;
    for entry in entries {
        let name = entry.kind.and_then(|kind| names.get(usize::from(kind)));
        let kind = kinds.entry(name.map_or("record", |name| name).to_owned()).or_default();
        kind.records += 1;
        let is_new = entry.id.as_ref().is_none_or(|id| seen.insert((entry.kind, id)));
        kind.ids += u64::from(is_new);
        repeats += u64::from(!is_new);
    }
    (kinds, repeats)
}
