//! Where a partition that comes to us starts.
//!
//! At what the group has committed for it. Where nothing is committed, the partition was found
//! after the group began: it starts at the earliest record, and waits until the partitions that
//! were there before have passed the ends they have now, so that the records of one key, which may
//! lie on both sides, keep their order.
//!
//! A commit made under another topic id belongs to a topic that was deleted: it counts for nothing.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use potok_core::{Partition, RangeSet};
use rdkafka::ClientContext;
use rdkafka::client::Client;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::metadata::{CommitMetadata, decode};
use super::native::{self, CommittedOffset, Edge, Facts};

/// A partition and where it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    pub partition: Partition,
    /// The topic's id.
    pub log: u64,
    pub start: u64,
    /// Behind the last record now.
    pub end: u64,
    pub ended: RangeSet,
    /// Nothing of this is committed yet.
    pub fresh: bool,
    /// Partitions that must first have passed these offsets.
    pub behind: Vec<(Partition, u64)>,
    /// Records that the group had not finished and that are gone.
    pub lost: Option<std::ops::Range<u64>>,
}

/// The cluster's answers about some topics and a group.
pub struct ClusterFacts {
    pub topics: HashMap<Arc<str>, Facts>,
    pub committed: HashMap<Partition, CommittedOffset>,
    pub earliest: HashMap<Partition, u64>,
    pub latest: HashMap<Partition, u64>,
}

impl ClusterFacts {
    /// Asks, and has `committed` ask what the group has committed for some partitions. Topics that do
    /// not exist are left out.
    pub fn ask<C: ClientContext>(
        client: &Client<C>,
        topics: &[Arc<str>],
        wait: Duration,
        committed: impl FnOnce(&[Partition]) -> Result<HashMap<Partition, CommittedOffset>, Code>,
    ) -> Result<ClusterFacts, Code> {
        let topics = native::describe_topics(client, topics, wait)?;
        let partitions: Vec<Partition> = topics
            .iter()
            .flat_map(|(topic, facts)| {
                (0..facts.partitions).map(|index| Partition { topic: topic.clone(), index })
            })
            .collect();
        Ok(ClusterFacts {
            committed: committed(&partitions)?,
            earliest: native::edges(client, &partitions, Edge::Earliest, wait)?,
            latest: native::edges(client, &partitions, Edge::Stable, wait)?,
            topics,
        })
    }

    /// Where the partition starts; `None` while its ends are not known.
    pub fn start(&self, partition: &Partition, group: u64) -> Option<Start> {
        let log = self.topics.get(&partition.topic)?.id;
        let (earliest, latest) = (*self.earliest.get(partition)?, *self.latest.get(partition)?);
        let mut start = Start {
            partition: partition.clone(),
            log,
            start: earliest,
            end: latest,
            ended: RangeSet::new(),
            fresh: true,
            behind: Vec::new(),
            lost: None,
        };
        let Some(commit) = self.committed.get(partition) else {
            start.behind = self.behind(partition);
            return Some(start);
        };
        let found = decode(&commit.metadata, group, commit.offset);
        let same_log = match found {
            CommitMetadata::Ours { log: then, ended } => {
                start.ended = ended;
                then == log
            }
            // Somebody set the group's offsets by hand: they are meant.
            CommitMetadata::Foreign => commit.offset <= latest,
        };
        if !same_log {
            start.ended = RangeSet::new();
            return Some(start);
        }
        start.fresh = false;
        if commit.offset < earliest {
            start.lost = Some(commit.offset..earliest);
            start.ended.forget_below(earliest);
            start.start = start.ended.first_gap(earliest);
            start.fresh = true;
        } else if commit.offset > latest {
            // The end of the partition was cut off; what comes now gets these offsets again.
            start.lost = Some(latest..commit.offset);
            (start.start, start.ended, start.fresh) = (latest, RangeSet::new(), true);
        } else {
            start.start = commit.offset;
            // Above an end that was cut off, other records come.
            start.ended.forget_from(latest);
        }
        Some(start)
    }

    /// The other partitions of the topic that the group has begun and not read to their ends.
    fn behind(&self, partition: &Partition) -> Vec<(Partition, u64)> {
        let others = self
            .committed
            .iter()
            .filter(|(other, _)| other.topic == partition.topic && other.index != partition.index);
        let ends = others.filter_map(|(other, commit)| {
            let end = *self.latest.get(other)?;
            (commit.offset < end).then(|| (other.clone(), end))
        });
        let sorted: BTreeSet<(Partition, u64)> = ends.collect();
        sorted.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::kafka::metadata::{Room, encode};

    const GROUP: u64 = 77;

    fn partition(index: u32) -> Partition {
        Partition { topic: "t".into(), index }
    }

    /// Three partitions with records 10..100, the group having committed some of them.
    fn known(commits: &[(u32, u64, Vec<u8>)]) -> ClusterFacts {
        let all = || (0..3).map(partition);
        let commit = |(index, offset, metadata): &(u32, u64, Vec<u8>)| {
            (partition(*index), CommittedOffset { offset: *offset, metadata: metadata.clone() })
        };
        ClusterFacts {
            topics: [("t".into(), Facts { id: 5, partitions: 3 })].into(),
            committed: commits.iter().map(commit).collect(),
            earliest: all().map(|p| (p, 10)).collect(),
            latest: all().map(|p| (p, 100)).collect(),
        }
    }

    fn ours(log: u64, position: u64, ended: RangeSet) -> Vec<u8> {
        encode(log, GROUP, position, &ended, Room::Full).into_bytes()
    }

    #[test]
    fn goes_on_where_it_was_with_what_had_ended() {
        let ended = RangeSet::from_iter([50..60]);
        let known = known(&[(0, 40, ours(5, 40, ended.clone()))]);
        let start = known.start(&partition(0), GROUP).unwrap();
        assert_eq!((start.start, start.ended, start.fresh), (40, ended, false));
        assert_eq!((start.behind, start.lost), (Vec::new(), None));
    }

    #[test]
    fn a_topic_created_anew_is_read_from_its_start() {
        let known = known(&[(0, 40, ours(4, 40, RangeSet::from_iter([50..60])))]);
        let start = known.start(&partition(0), GROUP).unwrap();
        assert_eq!((start.start, start.ended.is_empty(), start.fresh), (10, true, true));
        assert!(start.lost.is_none() && start.behind.is_empty());
    }

    #[test]
    fn metadata_of_others_is_read_past() {
        for metadata in [b"".to_vec(), b"\xff\xfe".to_vec(), b"potok1:????".to_vec()] {
            let start = known(&[(0, 40, metadata)]).start(&partition(0), GROUP).unwrap();
            assert_eq!((start.start, start.ended.is_empty()), (40, true));
        }
        let beyond = known(&[(0, 400, Vec::new())]).start(&partition(0), GROUP).unwrap();
        assert_eq!(beyond.start, 10, "an offset that never was says nothing");
    }

    #[test]
    fn a_partition_found_later_waits_for_the_older_ones() {
        let known = known(&[(0, 40, Vec::new()), (1, 100, Vec::new())]);
        let start = known.start(&partition(2), GROUP).unwrap();
        assert_eq!((start.start, start.fresh), (10, true));
        assert_eq!(start.behind, [(partition(0), 100)], "partition 1 is at its end already");
    }

    #[test]
    fn what_retention_took_is_told() {
        let known = known(&[(0, 4, ours(5, 4, RangeSet::from_iter([8..20])))]);
        let start = known.start(&partition(0), GROUP).unwrap();
        assert_eq!((start.start, start.lost), (20, Some(4..10)));
    }

    #[test]
    fn what_is_acknowledged_behind_an_end_that_was_cut_off_counts_for_nothing() {
        let ended = RangeSet::from_iter([50..60, 90..120]);
        let known = known(&[(0, 40, ours(5, 40, ended))]);
        let start = known.start(&partition(0), GROUP).unwrap();
        assert_eq!((start.start, start.ended), (40, RangeSet::from_iter([50..60, 90..100])));
    }

    #[test]
    fn an_end_that_was_cut_off_is_told() {
        let known = known(&[(0, 140, ours(5, 140, RangeSet::new()))]);
        let start = known.start(&partition(0), GROUP).unwrap();
        assert_eq!((start.start, start.lost), (100, Some(100..140)));
    }
}
