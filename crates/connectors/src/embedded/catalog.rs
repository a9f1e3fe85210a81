//! Everything the log knows besides the records: topics, groups and their progress, damage.
//!
//! The catalog is the fold of all entries, in the order of the log, and of nothing else: the
//! running log and recovery apply the same bytes through the same function, so they cannot
//! disagree. A checkpoint is the catalog written as entries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use potok_core::{PipelineInfo, RangeSet};

use super::format::{DamageNote, Entry, FrameKind, RecordsEntry};

/// Where one partition stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionHead {
    /// The next record gets this offset. After damage it lies above `end`.
    pub next: u64,
    /// Behind the last record there is.
    pub end: u64,
}

/// A registered group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CatalogGroup {
    /// JSON of its `PipelineInfo`.
    pub info: Vec<u8>,
    /// The topics it reads: retention keeps the records of these that it has not ended.
    pub topics: Vec<Arc<str>>,
    /// Ended offsets, per topic and partition; topics it no longer reads are remembered too.
    pub ended: BTreeMap<Arc<str>, BTreeMap<u32, RangeSet>>,
}

impl CatalogGroup {
    /// Ended offsets of one partition.
    pub fn ended(&self, topic: &str, partition: u32) -> Option<&RangeSet> {
        self.ended.get(topic)?.get(&partition)
    }

    /// The pipeline it belongs to. Where its registration was lost to damage, the group's name
    /// stands in until it is opened again.
    pub fn pipeline(&self, group: &str) -> PipelineInfo {
        serde_json::from_slice(&self.info).unwrap_or_else(|_| PipelineInfo {
            pipeline: group.to_owned(),
            dead_letters: format!("{group}-dead"),
            resolved: format!("{group}-dead-resolved"),
            replay: format!("{group}-replay"),
            replays_max: 5,
            internal: None,
        })
    }
}

/// The fold of all entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    /// The first offset of topics not known yet.
    pub floor: u64,
    /// Topics and their partitions.
    pub topics: BTreeMap<Arc<str>, Vec<PartitionHead>>,
    /// Registered groups.
    pub groups: BTreeMap<Arc<str>, CatalogGroup>,
    /// Topics that never go by age; outlives the group that named them.
    pub kept: BTreeSet<Arc<str>>,
    /// Released offsets: no reader sees them any more, wherever they still lie.
    pub released: BTreeMap<Arc<str>, BTreeMap<u32, RangeSet>>,
    /// Damage, in the order it was noticed.
    pub damage: Vec<DamageNote>,
    /// Segments that exist.
    pub segments: BTreeSet<u64>,
}

impl Catalog {
    /// Applies the entries of one frame. A checkpoint replaces everything.
    pub fn apply(&mut self, kind: FrameKind, entries: &[Entry<'_>]) {
        if kind == FrameKind::Checkpoint {
            *self = Catalog::default();
        }
        entries.iter().for_each(|entry| self.fold(entry));
    }

    fn fold(&mut self, entry: &Entry<'_>) {
        match entry {
            Entry::Records(records) => {
                if let Some(head) = self.head_of(records) {
                    head.next = head.next.max(records.first + u64::from(records.count));
                    head.end = head.end.max(records.first + u64::from(records.count));
                }
            }
            Entry::Ended { group, topic, partition, ranges } => {
                // A group whose registration was lost is known by what it ended.
                let group = self.groups.entry((*group).into()).or_default();
                let partitions = group.ended.entry((*topic).into()).or_default();
                let ended = partitions.entry(*partition).or_default();
                ranges.iter().for_each(|range| ended.insert(range.clone()));
            }
            Entry::Topic { topic, heads } => {
                let known = self.topics.entry((*topic).into()).or_default();
                known.resize(known.len().max(heads.len()), PartitionHead::default());
                for (head, (next, end)) in known.iter_mut().zip(heads) {
                    head.next = head.next.max(*next);
                    head.end = head.end.max(*end);
                }
            }
            Entry::Group { fresh, group, info, topics } => {
                let known = self.groups.entry((*group).into()).or_default();
                if *fresh {
                    known.ended.clear();
                }
                known.info = info.to_vec();
                known.topics = topics.iter().map(|topic| Arc::from(*topic)).collect();
            }
            Entry::Forgotten { group } => {
                self.groups.remove(*group);
            }
            Entry::Damaged(note) => self.note_damage(note.clone()),
            Entry::Dropped { segment } => {
                self.segments.remove(segment);
            }
            Entry::Segment { number } => {
                self.segments.insert(*number);
            }
            Entry::Kept { topic } => {
                self.kept.insert((*topic).into());
            }
            Entry::Released { topic, partition, ranges } => {
                let partitions = self.released.entry((*topic).into()).or_default();
                let released = partitions.entry(*partition).or_default();
                ranges.iter().for_each(|range| released.insert(range.clone()));
            }
            Entry::Floor { offset } => self.floor = self.floor.max(*offset),
            Entry::Index { .. } | Entry::Span { .. } | Entry::Order { .. } => {}
        }
    }

    /// Of a frame whose table is good and whose records are not: the offsets were handed out, so
    /// none may be given again, but nothing else of it counts.
    pub fn skip_offsets(&mut self, entries: &[Entry<'_>]) {
        for entry in entries {
            if let Entry::Records(records) = entry
                && let Some(head) = self.head_of(records)
            {
                head.next = head.next.max(records.first + u64::from(records.count));
            }
        }
    }

    /// Moves every offset, known topic or not, up by `records` that may have been lost.
    pub fn jump(&mut self, records: u64) {
        self.floor += records;
        self.topics.values_mut().flatten().for_each(|head| head.next += records);
    }

    fn head_of(&mut self, records: &RecordsEntry<'_>) -> Option<&mut PartitionHead> {
        if !self.topics.contains_key(records.topic) {
            self.topics.insert(records.topic.into(), Vec::new());
        }
        let start = PartitionHead { next: self.floor, end: self.floor };
        let heads = self.topics.get_mut(records.topic)?;
        heads.resize(heads.len().max(records.partitions as usize), start);
        heads.get_mut(records.partition as usize)
    }

    /// Notes damage; what was known of the same bytes is replaced.
    pub fn note_damage(&mut self, note: DamageNote) {
        let same = |known: &DamageNote| {
            (known.segment, known.from, known.to) == (note.segment, note.from, note.to)
        };
        match self.damage.iter_mut().find(|known| same(known)) {
            Some(known) => *known = note,
            None => self.damage.push(note),
        }
    }

    /// True when these bytes are known to be damaged.
    pub fn knows_damage(&self, segment: u64, from: u64, to: u64) -> bool {
        // A missing segment is noted as an empty range: it is known only as itself.
        self.damage.iter().any(|note| {
            let covers = note.from <= from && to <= note.to && from < to;
            note.segment == segment && (covers || (note.from, note.to) == (from, to))
        })
    }

    /// Where a partition stands; a topic not known yet starts at the floor.
    pub fn head(&self, topic: &str, partition: u32) -> PartitionHead {
        let start = PartitionHead { next: self.floor, end: self.floor };
        match self.topics.get(topic) {
            Some(heads) => heads.get(partition as usize).copied().unwrap_or(start),
            None => start,
        }
    }

    /// Released offsets of a partition of a kept topic.
    pub fn released(&self, topic: &str, partition: u32) -> Option<&RangeSet> {
        self.released.get(topic)?.get(&partition)
    }

    /// Everything, as a checkpoint.
    pub fn checkpoint(&self) -> Vec<Entry<'_>> {
        let mut entries = vec![Entry::Floor { offset: self.floor }];
        entries.extend(self.segments.iter().map(|number| Entry::Segment { number: *number }));
        entries.extend(self.kept.iter().map(|topic| Entry::Kept { topic }));
        for (topic, partitions) in &self.released {
            entries.extend(partitions.iter().map(|(partition, released)| Entry::Released {
                topic,
                partition: *partition,
                ranges: released.iter().collect(),
            }));
        }
        entries.extend(self.topics.iter().map(|(topic, heads)| Entry::Topic {
            topic,
            heads: heads.iter().map(|head| (head.next, head.end)).collect(),
        }));
        for (name, group) in &self.groups {
            entries.push(Entry::Group {
                fresh: true,
                group: name,
                info: &group.info,
                topics: group.topics.iter().map(|topic| &**topic).collect(),
            });
            for (topic, partitions) in &group.ended {
                entries.extend(partitions.iter().map(|(partition, ended)| Entry::Ended {
                    group: name,
                    topic,
                    partition: *partition,
                    ranges: ended.iter().collect(),
                }));
            }
        }
        entries.extend(self.damage.iter().cloned().map(Entry::Damaged));
        entries
    }

    /// What has ended here and not in `base`, group by group: what entries missing from `base`
    /// must have said.
    pub fn ended_beyond<'a>(
        &'a self,
        base: &'a Catalog,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a Arc<str>, u32, RangeSet)> {
        let none = RangeSet::new();
        self.groups.iter().flat_map(move |(name, group)| {
            let none = none.clone();
            let known = base.groups.get(name);
            group.ended.iter().flat_map(move |(topic, partitions)| {
                let none = none.clone();
                partitions.iter().map(move |(partition, ended)| {
                    let known = known.and_then(|group| group.ended(topic, *partition));
                    (name, topic, *partition, without(ended, known.unwrap_or(&none)))
                })
            })
        })
    }

    /// Opens ranges again that had counted as ended.
    pub fn reopen(&mut self, group: &str, topic: &str, partition: u32, ranges: &RangeSet) {
        let partitions = self.groups.get_mut(group).and_then(|group| group.ended.get_mut(topic));
        if let Some(ended) = partitions.and_then(|partitions| partitions.get_mut(&partition)) {
            *ended = without(ended, ranges);
        }
    }
}

/// The offsets of `set` that are not in `minus`.
pub fn without(set: &RangeSet, minus: &RangeSet) -> RangeSet {
    let mut rest = RangeSet::new();
    let mut holes = minus.iter().peekable();
    for range in set.iter() {
        let mut from = range.start;
        while holes.next_if(|hole| hole.end <= from).is_some() {}
        while let Some(hole) = holes.peek().filter(|hole| hole.start < range.end) {
            rest.insert(from..hole.start.max(from));
            from = hole.end.min(range.end);
            // A range that reaches further may cut the next one too.
            if hole.end > range.end {
                break;
            }
            holes.next();
        }
        rest.insert(from..range.end);
    }
    rest
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]
    use super::*;
    use crate::embedded::format;

    fn set(ranges: &[(u64, u64)]) -> RangeSet {
        ranges.iter().map(|(from, to)| *from..*to).collect()
    }

    #[test]
    fn without_takes_exactly_the_ranges_away() {
        assert_eq!(without(&set(&[(0, 10)]), &set(&[(3, 5)])), set(&[(0, 3), (5, 10)]));
        assert_eq!(without(&set(&[(0, 10)]), &set(&[(0, 10)])), set(&[]));
        assert_eq!(without(&set(&[(2, 4), (6, 8)]), &set(&[(3, 7)])), set(&[(2, 3), (7, 8)]));
        assert_eq!(without(&set(&[(2, 4)]), &set(&[(0, 1), (9, 12)])), set(&[(2, 4)]));
        assert_eq!(without(&set(&[(0, 4), (6, 9)]), &set(&[(3, 7)])), set(&[(0, 3), (7, 9)]));
        assert_eq!(
            without(&set(&[(0, 4), (6, 9)]), &set(&[(1, 2), (8, 20)])),
            set(&[(0, 1), (2, 4), (6, 8)])
        );
    }

    #[test]
    fn a_checkpoint_is_the_whole_catalog() {
        let mut catalog = Catalog::default();
        let records = RecordsEntry {
            topic: "orders",
            partitions: 4,
            partition: 1,
            first: 0,
            count: 3,
            bytes: 0,
            crc: 0,
        };
        catalog.apply(
            FrameKind::Transaction,
            &[
                Entry::Floor { offset: 5 },
                Entry::Segment { number: 1 },
                Entry::Records(records),
                Entry::Group { fresh: true, group: "g", info: b"{}", topics: vec!["orders"] },
                Entry::Ended { group: "g", topic: "orders", partition: 1, ranges: vec![0..2] },
                Entry::Kept { topic: "g-dead" },
                Entry::Released { topic: "g-dead", partition: 0, ranges: vec![2..4, 7..8] },
                Entry::Damaged(DamageNote {
                    segment: 1,
                    from: 3,
                    to: 4,
                    noticed: 5,
                    tail: false,
                    settled: true,
                    kept_in: "x".into(),
                }),
            ],
        );
        catalog.jump(7);
        let bytes = format::table(&catalog.checkpoint());
        let mut back = Catalog::default();
        back.floor = 99;
        back.apply(FrameKind::Checkpoint, &format::entries(&bytes).unwrap());
        assert_eq!(back, catalog);
        assert_eq!(back.head("orders", 1), PartitionHead { next: 12, end: 5 });
        assert_eq!(back.head("new", 0).next, 12);
    }

    #[test]
    fn a_lost_entry_leaves_a_hole_and_only_that() {
        let ended = |from: u64, to: u64| Entry::Ended {
            group: "g",
            topic: "t",
            partition: 0,
            ranges: vec![from..to],
        };
        let (mut all, mut hole) = (Catalog::default(), Catalog::default());
        for (from, to) in [(0, 5), (5, 8), (8, 12)] {
            all.apply(FrameKind::Transaction, &[ended(from, to)]);
            if from != 5 {
                hole.apply(FrameKind::Transaction, &[ended(from, to)]);
            }
        }
        let lost: Vec<_> =
            all.ended_beyond(&hole).map(|(g, t, p, set)| (g.clone(), t.clone(), p, set)).collect();
        assert_eq!(lost, [("g".into(), "t".into(), 0, set(&[(5, 8)]))]);
        all.reopen("g", "t", 0, &lost[0].3);
        assert_eq!(all, hole);
    }
}
