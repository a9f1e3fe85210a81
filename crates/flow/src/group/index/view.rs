//! The groups of a lane, page by page for people: there may be millions.

use std::collections::{BTreeMap, BinaryHeap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use potok_core::Timestamp;

use super::{ClosedGroup, Generation, GroupKey, HeldRecord, Index, SealedGroup, bytes_of};

/// A group as people see it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct GroupView {
    /// The pipeline that holds it.
    pub pipeline: String,
    /// The group's key.
    pub id: String,
    /// Names this generation of the group.
    pub generation: String,
    /// `open`, `sealed` or `delivering`.
    pub state: &'static str,
    /// Records and distinct ids by kind; one kind `record` where the pipeline names none.
    pub kinds: BTreeMap<String, KindView>,
    /// Records whose id another record of the group has too.
    pub duplicates: u64,
    /// Bytes held.
    pub bytes: u64,
    /// When its first record arrived.
    pub opened: String,
    /// When it closes.
    pub due: Option<String>,
    /// Why it closed, once it has.
    pub reason: Option<&'static str>,
    /// The lane that works on it.
    pub owner: String,
    /// How often it was tried to send it, so far.
    pub attempts: u64,
}

/// One kind in a [`GroupView`].
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct KindView {
    pub records: u64,
    /// Distinct ids.
    pub ids: u64,
}

/// Some of the groups that are held.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct GroupPage {
    /// Groups that close first come first.
    pub groups: Vec<GroupView>,
    /// How many are held in all.
    pub total: u64,
    /// Behind which the next page begins; none where this is the last.
    pub next: Option<GroupCursor>,
}

/// Where a group stands in the list of all: by when it closes. Groups that come or go between two
/// pages move no other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(into = "String")]
pub struct GroupCursor {
    due: i64,
    pipeline: String,
    name: GroupKey,
    generation: Generation,
}

impl fmt::Display for GroupCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GroupCursor { due, pipeline, name: GroupKey { key, slice, share }, generation } = self;
        let Generation { name, part, parts } = generation;
        write!(f, "{due}.{slice}.{share}.{name:x}.{part}.{parts}.{pipeline}.")?;
        key.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl From<GroupCursor> for String {
    fn from(place: GroupCursor) -> Self {
        place.to_string()
    }
}

impl FromStr for GroupCursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        fn number<T: FromStr>(part: Option<&str>) -> Result<T, ()> {
            part.and_then(|part| part.parse().ok()).ok_or(())
        }
        let (rest, key) = text.rsplit_once('.').ok_or(())?;
        let (pairs, odd) = key.as_bytes().as_chunks::<2>();
        let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let key: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        let key = key.filter(|_| odd.is_empty()).ok_or(())?.into();
        let mut parts = rest.splitn(7, '.');
        let (due, slice) = (number(parts.next())?, number(parts.next())?);
        let name = GroupKey { key, slice, share: number(parts.next())? };
        let generation = parts.next().and_then(|part| u64::from_str_radix(part, 16).ok());
        let generation = Generation {
            name: generation.ok_or(())?,
            part: number(parts.next())?,
            parts: number(parts.next())?,
        };
        let pipeline = parts.next().ok_or(())?.to_owned();
        Ok(GroupCursor { due, pipeline, name, generation })
    }
}

/// Facts that the index itself does not know.
pub(crate) struct ViewContext<'a> {
    pub pipeline: &'a str,
    pub kinds: &'a [Arc<str>],
    pub owner: &'a str,
    /// How far the wall clock is ahead of the index's.
    pub wall_ahead: i64,
    pub attempts: u64,
}

/// The first of many, in order.
struct Smallest<T> {
    found: BinaryHeap<T>,
    most: usize,
}

impl<T: Ord> Smallest<T> {
    fn add(&mut self, one: T) {
        self.found.push(one);
        if self.found.len() > self.most {
            self.found.pop();
        }
    }
}

impl Smallest<GroupCursor> {
    /// False for what is due then and is behind all that were found, or not behind `after`.
    fn may_have(&self, due: i64, after: Option<&GroupCursor>) -> bool {
        let is_early = || self.found.peek().is_none_or(|last| due <= last.due);
        after.is_none_or(|after| due >= after.due) && (self.found.len() < self.most || is_early())
    }
}

impl Index {
    /// How many groups are held.
    pub fn groups(&self) -> u64 {
        let closed = self.frozen.len() + self.sealing.len() + self.sealed.len();
        (self.open.len() + closed + self.sending.len()) as u64
    }

    /// The places of the first so many groups behind `after`.
    pub fn places(
        &self,
        pipeline: &str,
        after: Option<&GroupCursor>,
        most: usize,
    ) -> Vec<GroupCursor> {
        let mut first = Smallest { found: BinaryHeap::new(), most };
        let is_behind = |place: &GroupCursor| after.is_none_or(|after| place > after);
        // There may be a million of them while their destination is away: only those are named that
        // may be among the first.
        let mut add = |due, place: &dyn Fn() -> GroupCursor| {
            if first.may_have(due, after) {
                Some(place()).filter(is_behind).into_iter().for_each(|place| first.add(place));
            }
        };
        for sealed in self.sending.iter().chain(self.sealed.iter()) {
            add(sealed.due.unwrap_or(i64::MIN), &|| sealed.place(pipeline));
        }
        for closed in self.frozen.iter().chain(self.sealing.iter()) {
            add(closed.due, &|| closed.place(pipeline));
        }
        for share in self.shares.values() {
            let open = share.due.range(from(after, pipeline)..).filter_map(|(due, name)| {
                let generation = Generation { name: self.open.get(name)?.name, part: 0, parts: 1 };
                let (pipeline, name) = (pipeline.to_owned(), name.clone());
                Some(GroupCursor { due: *due, pipeline, name, generation })
            });
            open.filter(is_behind).take(most).for_each(|place| first.add(place));
        }
        first.found.into_sorted_vec()
    }

    /// The group at that place, where it is still there.
    pub fn view_at(&self, place: &GroupCursor, shown: &ViewContext<'_>) -> Option<GroupView> {
        let GroupCursor { name, generation, .. } = place;
        let is_it =
            |sealed: &&SealedGroup| sealed.generation == *generation && sealed.key == name.key;
        if let Some(sealed) = self.sending.iter().find(is_it) {
            return Some(sealed.view("delivering", shown));
        }
        if let Some(sealed) = self.sealed.of(&name.key).find(is_it) {
            return Some(sealed.view("sealed", shown));
        }
        let mut closed = self.frozen.of(&name.key).chain(self.sealing.of(&name.key));
        if let Some(frozen) = closed.find(|frozen| frozen.generation == *generation) {
            return Some(frozen.view(shown));
        }
        self.open.get(name).filter(|group| group.name == generation.name)?;
        self.view_of_open(name, shown)
    }

    /// All groups of one key.
    pub fn views_of(&self, key: &[u8], shown: &ViewContext<'_>) -> Vec<GroupView> {
        let sending = self.sending.iter().filter(|sealed| *sealed.key == *key);
        let mut views: Vec<_> = sending.map(|sealed| sealed.view("delivering", shown)).collect();
        views.extend(self.sealed.of(key).map(|sealed| sealed.view("sealed", shown)));
        let closed = self.frozen.of(key).chain(self.sealing.of(key));
        views.extend(closed.map(|frozen| frozen.view(shown)));
        let open = self.open_of(key).into_iter();
        views.extend(open.filter_map(|name| self.view_of_open(name, shown)));
        views
    }

    fn view_of_open(&self, name: &GroupKey, shown: &ViewContext<'_>) -> Option<GroupView> {
        let group = self.open.get(name)?;
        let due = Some(group.due).filter(|due| *due < i64::MAX);
        Some(shown.view(&name.key, group.name, "open", group.opened, due, &group.entries))
    }
}

/// Where open groups behind a place begin among those of a pipeline.
fn from(after: Option<&GroupCursor>, pipeline: &str) -> (i64, GroupKey) {
    let nothing = GroupKey { key: Bytes::new(), slice: i64::MIN, share: 0 };
    match after {
        None => (i64::MIN, nothing),
        Some(after) if after.pipeline == pipeline => (after.due, after.name.clone()),
        Some(after) => (after.due, nothing),
    }
}

impl SealedGroup {
    fn place(&self, pipeline: &str) -> GroupCursor {
        let name = GroupKey { key: self.key.clone(), slice: 0, share: 0 };
        let (due, pipeline) = (self.due.unwrap_or(i64::MIN), pipeline.to_owned());
        GroupCursor { due, pipeline, name, generation: self.generation }
    }

    fn view(&self, state: &'static str, shown: &ViewContext<'_>) -> GroupView {
        let name = self.generation.name;
        let mut view = shown.view(&self.key, name, state, self.opened, self.due, &self.entries);
        if self.parked().is_some() {
            let records = self.records();
            view.kinds.insert("record".to_owned(), KindView { records, ids: records });
            view.bytes = self.bytes();
        }
        GroupView { reason: Some(self.reason.as_str()), ..view }
    }
}

impl ClosedGroup {
    fn place(&self, pipeline: &str) -> GroupCursor {
        let (due, pipeline) = (self.due, pipeline.to_owned());
        GroupCursor { due, pipeline, name: self.name.clone(), generation: self.generation }
    }

    fn view(&self, shown: &ViewContext<'_>) -> GroupView {
        let (name, due) = (self.generation.name, Some(self.due));
        let view = shown.view(&self.name.key, name, "sealed", self.opened, due, &self.entries);
        GroupView { reason: Some(self.reason.as_str()), ..view }
    }
}

impl ViewContext<'_> {
    fn view(
        &self,
        key: &Bytes,
        name: u64,
        state: &'static str,
        opened: Timestamp,
        due: Option<i64>,
        entries: &[HeldRecord],
    ) -> GroupView {
        let (kinds, duplicates) = counts(self.kinds, entries);
        GroupView {
            pipeline: self.pipeline.to_owned(),
            id: String::from_utf8_lossy(key).into_owned(),
            generation: format!("{name:016x}"),
            state,
            kinds,
            duplicates,
            bytes: bytes_of(entries),
            opened: opened.to_string(),
            due: due.map(|due| Timestamp(due.saturating_add(self.wall_ahead)).to_string()),
            reason: None,
            owner: self.owner.to_owned(),
            attempts: if state == "delivering" { self.attempts } else { 0 },
        }
    }
}

fn counts(names: &[Arc<str>], entries: &[HeldRecord]) -> (BTreeMap<String, KindView>, u64) {
    let mut kinds: BTreeMap<String, KindView> = BTreeMap::new();
    let mut seen = HashSet::new();
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
