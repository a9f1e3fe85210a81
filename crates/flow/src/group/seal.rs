//! A seal: which records make up a batch, written into the log before anything of it is sent.
//!
//! Seals lie in the pipeline's internal topic, keyed by the group. Whoever reads a seal, its
//! writer included, acts on it only now, in the order of the log: it takes those of its members
//! that no earlier seal has taken. So every owner, however often the group changes hands, sends
//! the same members under the same name. A seal has ended when all its members have.
//!
//! ```text
//! key    the group's key
//! value  {"version":1,"generation":"0f…","part":0,"parts":1,"slice":0,
//!         "opened":1730000000000,"closed":1730000010000,"reason":"silence_reached","dropped":false,
//!         "members":[{"log":"7c…","topic":"adapter-event","partition":2,"offsets":[[10,12],[15,16]]}]}
//! ```
//! `offsets` are ranges without their ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use foldhash::HashMap;
use potok_core::trouble::{Bug, planted};
use potok_core::{CloseReason, Headers, Output, Partition, Position, RangeSet, Timestamp};
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;

/// Bytes of a seal besides its key and its members, and of a member that lies apart from all others:
/// no fewer than they take.
const SEAL_BYTES: usize = 1_000;
const MEMBER_BYTES: usize = 44;

/// How large seals may be, so that the log takes them: what it says, and what it has refused.
pub(crate) struct SealRoom(AtomicUsize);

impl Default for SealRoom {
    fn default() -> Self {
        SealRoom(AtomicUsize::new(usize::MAX))
    }
}

impl SealRoom {
    /// The log takes no more bytes than this.
    pub fn limit(&self, bytes: usize) {
        self.0.fetch_min(bytes, Ordering::Relaxed);
    }

    /// How many members may be in a seal with that key.
    pub fn members_max(&self, key: &[u8]) -> usize {
        let room = self.0.load(Ordering::Relaxed).saturating_sub(SEAL_BYTES + key.len());
        (room / MEMBER_BYTES).max(1)
    }

    /// The log has refused this seal for its size: the next have no more than half as many members.
    /// False where it cannot have fewer.
    pub fn refused(&self, seal: &Output) -> bool {
        let read = Seal::read(seal.value.as_deref().unwrap_or_default());
        let half = read.map_or(0, |seal| seal.members.len() / 2) as usize;
        let key = seal.key.as_ref().map_or(0, Bytes::len);
        if half > 0 {
            self.limit(SEAL_BYTES + key + half * MEMBER_BYTES);
        }
        half > 0
    }
}

/// The value of a tick: a note that only shows what time the log has. Its owner reads it back.
const TICK: &[u8] = br#"{"version":1,"tick":true}"#;

/// A tick for one partition of the internal topic.
pub(crate) fn tick(topic: &Arc<str>, partition: u32) -> Output {
    Output {
        topic: topic.clone(),
        partition: Some(partition),
        key: None,
        headers: Headers::none(),
        value: Some(Bytes::from_static(TICK)),
    }
}

pub(crate) fn is_tick(value: &[u8]) -> bool {
    value == TICK
}

/// Names one part of one generation of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Generation {
    /// Made from the group's key and its members: the same batch has the same name.
    pub name: u64,
    /// A very large group is sent in parts.
    pub part: u32,
    pub parts: u32,
}

/// The records of a batch, by the partitions they lie in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Members(HashMap<(u64, Partition), RangeSet>);

impl Members {
    pub fn insert(&mut self, log: u64, partition: &Partition, offset: u64) {
        self.0.entry((log, partition.clone())).or_default().insert(offset..offset + 1);
    }

    pub fn contains(&self, log: u64, partition: &Partition, offset: u64) -> bool {
        if planted(Bug::MembersByNumber) {
            let mut alike = self.0.iter().filter(|((_, of), _)| of.index == partition.index);
            return alike.any(|(_, offsets)| offsets.contains(offset));
        }
        self.0.get(&(log, partition.clone())).is_some_and(|offsets| offsets.contains(offset))
    }

    pub fn len(&self) -> u64 {
        self.0.values().map(|offsets| offsets.count_from(0)).sum()
    }

    /// Where they lie.
    pub fn positions(&self) -> impl Iterator<Item = Position> {
        self.0.iter().flat_map(|((log, Partition { topic, index }), offsets)| {
            offsets.iter().flatten().map(|offset| Position {
                log: *log,
                topic: topic.clone(),
                partition: *index,
                offset,
            })
        })
    }
}

/// The content of a seal.
#[derive(Clone, Debug)]
pub(crate) struct Seal {
    pub generation: Generation,
    /// The start of its clock slice; 0 where slices do not close groups.
    pub slice: i64,
    pub opened: Timestamp,
    /// When it closed and why. Both are decided once: whoever reads the seal tells the same.
    pub closed: Timestamp,
    pub reason: CloseReason,
    /// Somebody gave the batch up: its members become dead letters.
    pub dropped: bool,
    pub members: Members,
}

#[derive(Serialize, Deserialize)]
struct SealBody {
    version: u32,
    generation: String,
    part: u32,
    parts: u32,
    #[serde(default)]
    slice: i64,
    opened: i64,
    /// Seals of earlier versions lack these two.
    closed: Option<i64>,
    #[serde(default)]
    reason: CloseReason,
    #[serde(default)]
    dropped: bool,
    members: Vec<WrittenMembers>,
}

#[derive(Serialize, Deserialize)]
struct WrittenMembers {
    log: String,
    topic: String,
    partition: u32,
    offsets: Vec<(u64, u64)>,
}

impl Seal {
    /// As a record of the internal topic.
    pub fn output(&self, topic: &Arc<str>, group: &Bytes) -> Output {
        let members = self.members.0.iter().map(|((log, partition), offsets)| WrittenMembers {
            log: format!("{log:016x}"),
            topic: partition.topic.to_string(),
            partition: partition.index,
            offsets: offsets.iter().map(|range| (range.start, range.end)).collect(),
        });
        let mut members: Vec<_> = members.collect();
        members
            .sort_by(|a, b| (&a.topic, a.partition, &a.log).cmp(&(&b.topic, b.partition, &b.log)));
        let written = SealBody {
            version: VERSION,
            generation: format!("{:016x}", self.generation.name),
            part: self.generation.part,
            parts: self.generation.parts,
            slice: self.slice,
            opened: self.opened.0,
            closed: Some(self.closed.0),
            reason: self.reason,
            dropped: self.dropped,
            members,
        };
        Output {
            topic: topic.clone(),
            partition: None,
            key: Some(group.clone()),
            headers: Headers::none(),
            // Text and numbers only: this cannot fail.
            value: Some(serde_json::to_vec(&written).unwrap_or_default().into()),
        }
    }

    /// Reads one; `None` where this is no seal.
    pub fn read(value: &[u8]) -> Option<Seal> {
        let mut written: SealBody = serde_json::from_slice(value).ok()?;
        if written.version != VERSION {
            return None;
        }
        let mut members = Members::default();
        for part in std::mem::take(&mut written.members) {
            let log = u64::from_str_radix(&part.log, 16).ok()?;
            let partition = Partition { topic: part.topic.into(), index: part.partition };
            let offsets = members.0.entry((log, partition)).or_default();
            part.offsets.into_iter().for_each(|(start, end)| offsets.insert(start..end));
        }
        let name = u64::from_str_radix(&written.generation, 16).ok()?;
        let generation = Generation { name, part: written.part, parts: written.parts };
        let opened = Timestamp(written.opened);
        let closed = written.closed.map_or(opened, Timestamp);
        let SealBody { slice, dropped, reason, .. } = written;
        Some(Seal { generation, slice, opened, closed, reason, dropped, members })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A seal of so many members that lie apart, far behind in a partition.
    fn apart(key: &'static [u8], count: u64) -> Output {
        let mut members = Members::default();
        let partition = Partition { topic: "potok-x".into(), index: 4_000_000_000 };
        for at in 0..count {
            members.insert(u64::MAX, &partition, u64::MAX - 4 * count + 2 * at);
        }
        let generation = Generation { name: u64::MAX, part: u32::MAX, parts: u32::MAX };
        let (opened, closed) = (Timestamp(i64::MAX), Timestamp(i64::MAX));
        let (slice, reason) = (i64::MAX, CloseReason::SilenceReached);
        let seal = Seal { generation, slice, opened, closed, reason, dropped: false, members };
        seal.output(&"potok-x".into(), &Bytes::from_static(key))
    }

    #[test]
    fn seals_have_no_more_members_than_the_log_takes() {
        let room = SealRoom::default();
        assert!(room.members_max(b"key") > 1_000_000, "nobody has said anything");
        for bytes in [100_000, 20_000, 2_000] {
            room.limit(bytes);
            let most = room.members_max(b"key");
            assert!(most > 1 && apart(b"key", most as u64).bytes() <= bytes, "{bytes}: {most}");
        }
        room.limit(10);
        assert_eq!(room.members_max(b"key"), 1, "fewer cannot be");
    }

    #[test]
    fn a_seal_that_was_refused_is_halved_until_it_has_one_member() {
        let room = SealRoom::default();
        for (refused, next) in [(1_001, 500), (500, 250), (3, 1)] {
            assert!(room.refused(&apart(b"key", refused)));
            assert_eq!(room.members_max(b"key"), next);
        }
        assert!(!room.refused(&apart(b"key", 1)));
    }

    #[test]
    fn a_seal_is_read_as_it_was_written() {
        let partition = |index| Partition { topic: "a/b".into(), index };
        let mut members = Members::default();
        for offset in [3, 4, 9] {
            members.insert(u64::MAX, &partition(2), offset);
        }
        members.insert(1, &partition(0), 4);
        let generation = Generation { name: 7, part: 1, parts: 2 };
        let (opened, closed) = (Timestamp(5), Timestamp(9));
        let reason = CloseReason::SilenceReached;
        let seal =
            Seal { generation, slice: 60_000, opened, closed, reason, dropped: true, members };
        let output = seal.output(&"potok-x".into(), &Bytes::from_static(b"\xffk"));
        assert_eq!(output.key.as_deref(), Some(&b"\xffk"[..]));
        let read = Seal::read(&output.value.unwrap()).unwrap();
        assert_eq!((read.generation, read.slice, read.opened), (generation, 60_000, Timestamp(5)));
        assert!(read.dropped);
        assert_eq!((read.closed, read.reason), (closed, reason));
        for offset in 0..12 {
            let held = [3, 4, 9].contains(&offset);
            assert_eq!(read.members.contains(u64::MAX, &partition(2), offset), held);
            assert!(!read.members.contains(1, &partition(2), offset));
        }
        assert!(read.members.contains(1, &partition(0), 4));
        let old = br#"{"version":1,"generation":"7","part":0,"parts":1,"opened":5,"members":[]}"#;
        let old = Seal::read(old).unwrap();
        assert_eq!((old.closed, old.reason), (Timestamp(5), CloseReason::Unknown));
        assert!(Seal::read(b"{}").is_none());
        assert!(Seal::read(b"\xff").is_none());
    }
}
