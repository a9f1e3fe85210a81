//! Where in a segment the records of a partition lie: sparsely, about every 64 KiB.
//!
//! Built while a segment is written, put into its footer, and built again by reading the segment
//! where the footer is missing or does not fit. Nothing depends on a point being there: a reader
//! starts at the last point before what it wants and skips.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::format::{Entry, RecordsEntry};

/// A partition gets a point after so many bytes of its own…
const OWN_BYTES: u64 = 64 << 10;
/// …or after so many bytes of the file, whatever lies in between.
const FILE_BYTES: u64 = 1 << 20;

/// The records of one partition in one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Lowest offset.
    pub first: u64,
    /// Highest offset.
    pub last: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    points: Vec<(u64, u64)>,
    since_point: u64,
}

/// The index of one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    extents: BTreeMap<Arc<str>, BTreeMap<u32, Extent>>,
    times: Option<(i64, i64)>,
}

impl Index {
    /// Takes in records of the frame that starts at `at`. Frames come in order.
    pub fn note(&mut self, at: u64, time: i64, records: &RecordsEntry<'_>) {
        self.times = Some(match self.times {
            Some((first, last)) => (first.min(time), last.max(time)),
            None => (time, time),
        });
        if !self.extents.contains_key(records.topic) {
            self.extents.insert(records.topic.into(), BTreeMap::new());
        }
        let Some(partitions) = self.extents.get_mut(records.topic) else { return };
        let extent = partitions
            .entry(records.partition)
            .or_insert_with(|| Extent { first: records.first, ..Extent::default() });
        let far = extent.points.last().is_none_or(|(_, point)| {
            extent.since_point >= OWN_BYTES || at.saturating_sub(*point) >= FILE_BYTES
        });
        if far {
            extent.points.push((records.first, at));
            extent.since_point = 0;
        }
        extent.last = (records.first + u64::from(records.count)).saturating_sub(1);
        extent.bytes += u64::from(records.bytes);
        extent.since_point += u64::from(records.bytes);
    }

    /// Every partition with records here.
    pub fn extents(&self) -> impl Iterator<Item = (&Arc<str>, u32, &Extent)> {
        self.extents.iter().flat_map(|(topic, partitions)| {
            partitions.iter().map(move |(partition, extent)| (topic, *partition, extent))
        })
    }

    /// The extent of one partition, if it has records here.
    pub fn extent(&self, topic: &str, partition: u32) -> Option<&Extent> {
        self.extents.get(topic)?.get(&partition)
    }

    /// Where to start reading to find the partition's records from `offset` on; `None` when none
    /// of them lies here.
    pub fn seek(&self, topic: &str, partition: u32, offset: u64) -> Option<u64> {
        let extent = self.extent(topic, partition)?;
        if extent.last < offset {
            return None;
        }
        let behind = extent.points.partition_point(|(point, _)| *point <= offset);
        extent.points.get(behind.saturating_sub(1)).map(|(_, at)| *at)
    }

    /// When the newest record here arrived.
    pub fn newest(&self) -> Option<i64> {
        self.times.map(|(_, last)| last)
    }

    /// The content of the footer.
    pub fn entries(&self) -> Vec<Entry<'_>> {
        let span = self.times.map(|(first, last)| Entry::Span { first, last });
        let extents = self.extents().map(|(topic, partition, extent)| Entry::Index {
            topic,
            partition,
            first: extent.first,
            last: extent.last,
            bytes: extent.bytes,
            points: extent.points.clone(),
        });
        span.into_iter().chain(extents).collect()
    }

    /// Reads back what [`Index::entries`] made.
    pub fn from_entries(entries: &[Entry<'_>]) -> Index {
        let mut index = Index::default();
        for entry in entries {
            match entry {
                Entry::Span { first, last } => index.times = Some((*first, *last)),
                Entry::Index { topic, partition, first, last, bytes, points } => {
                    let extent = Extent {
                        first: *first,
                        last: *last,
                        bytes: *bytes,
                        points: points.clone(),
                        // Nothing is added to an index read back.
                        since_point: 0,
                    };
                    index.extents.entry((*topic).into()).or_default().insert(*partition, extent);
                }
                _ => {}
            }
        }
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(partition: u32, first: u64, count: u32, bytes: u32) -> RecordsEntry<'static> {
        RecordsEntry { topic: "t", partitions: 2, partition, first, count, bytes, crc: 0 }
    }

    #[test]
    fn seek_never_starts_behind_what_is_wanted() {
        let mut index = Index::default();
        let mut frames = Vec::new();
        let mut at = 64;
        for first in 0..500 {
            index.note(at, 7, &records(0, first * 10, 10, 5_000));
            frames.push((at, first * 10));
            at += 6_000;
        }
        for offset in 0..5_000 {
            let start = index.seek("t", 0, offset).unwrap_or(u64::MAX);
            let holder = frames.iter().rfind(|(_, first)| *first <= offset).map_or(0, |f| f.0);
            assert!(
                start <= holder && holder - start <= 2 * OWN_BYTES,
                "{offset}: {start} {holder}"
            );
        }
        assert_eq!(index.seek("t", 0, 5_000), None);
        assert_eq!(index.seek("t", 1, 0), None);
        let back = Index::from_entries(&index.entries());
        assert_eq!(back.seek("t", 0, 4_000), index.seek("t", 0, 4_000));
        assert_eq!(back.newest(), Some(7));
    }
}
