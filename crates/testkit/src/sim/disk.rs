//! What the simulated log holds: topics, and the progress of groups. It survives crashes.

use std::collections::BTreeMap;
use std::sync::Arc;

use potok_core::{
    ConsumerGroup, ConsumerGroupPartition, Fault, Output, Partition, PipelineInfo, Position,
    RangeSet, Reason, Record, Timestamp, TopicInfo,
};

/// One partition: records with the incarnation they were written under.
#[derive(Debug, Default)]
pub struct SimPartition {
    /// Offsets ascend, with gaps.
    pub records: Vec<(u64, Record)>,
    /// The offset the next record will get.
    pub next: u64,
}

/// Progress of a group in one partition.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Every record below has ended.
    pub position: u64,
    /// What has ended above.
    pub ended: RangeSet,
}

/// A registered group.
#[derive(Debug)]
pub struct Group {
    /// Whose it is.
    pub info: PipelineInfo,
    pub progress: BTreeMap<Partition, Progress>,
}

/// The whole log.
#[derive(Debug)]
pub struct Disk {
    incarnation: u64,
    partitions: u32,
    turn: u32,
    topics: BTreeMap<Arc<str>, Vec<SimPartition>>,
    groups: BTreeMap<String, Group>,
    /// Topics that were made anew have an incarnation of their own.
    anew: BTreeMap<Arc<str>, u64>,
    /// What was deleted with its topic.
    gone: BTreeMap<Position, Record>,
    /// Every record in the order in which they came.
    places: BTreeMap<Position, u64>,
}

impl Disk {
    /// An empty log.
    pub fn new(incarnation: u64, partitions: u32) -> Self {
        let (topics, groups) = (BTreeMap::new(), BTreeMap::new());
        let (anew, gone) = (BTreeMap::new(), BTreeMap::new());
        let places = BTreeMap::new();
        Disk { incarnation, partitions, turn: 0, topics, groups, anew, gone, places }
    }

    /// The incarnation under which records of a topic are written now.
    pub fn incarnation(&self, topic: &str) -> u64 {
        self.anew.get(topic).copied().unwrap_or(self.incarnation)
    }

    /// Deletes a topic and makes it anew: its offsets begin again, and groups know nothing of it.
    pub fn make_anew(&mut self, topic: &Arc<str>, incarnation: u64) {
        let records: Vec<_> = self.records(topic).map(|(at, r)| (at, r.clone())).collect();
        self.gone.extend(records);
        for shelf in self.topics.get_mut(topic).into_iter().flatten() {
            *shelf = SimPartition::default();
        }
        for group in self.groups.values_mut() {
            group.progress.retain(|partition, _| partition.topic != *topic);
        }
        self.anew.insert(topic.clone(), incarnation);
    }

    /// What was deleted with its topic.
    pub fn gone(&self) -> &BTreeMap<Position, Record> {
        &self.gone
    }

    /// A cut: what is written from now on lies under another incarnation, above every offset
    /// given out so far.
    pub fn start_incarnation(&mut self, incarnation: u64, gap: u64) {
        self.incarnation = incarnation;
        self.anew.clear();
        for shelf in self.topics.values_mut().flatten() {
            shelf.next += gap;
        }
    }

    /// Writes all of them or none.
    pub fn append(&mut self, outputs: &[Output], time: Timestamp) -> Result<Vec<Position>, Fault> {
        if let Some(large) = outputs.iter().find(|output| output.is_too_large()) {
            let what = format!("a record of {} bytes is over the limit", large.bytes());
            return Err(Fault::set_aside(Reason::TooLarge, what));
        }
        if let Some(wrong) = outputs.iter().find(|o| o.partition >= Some(self.partitions)) {
            return Err(Fault::fix(format!("there is no partition {:?}", wrong.partition)));
        }
        Ok(outputs.iter().map(|output| self.append_one(output, time)).collect())
    }

    fn append_one(&mut self, output: &Output, time: Timestamp) -> Position {
        let partition = match (output.partition, &output.key) {
            (Some(partition), _) => partition,
            (None, Some(key)) => home(key, self.partitions),
            (None, None) => {
                self.turn = self.turn.wrapping_add(1);
                self.turn % self.partitions
            }
        };
        let (log, partitions) = (self.incarnation(&output.topic), self.partitions);
        let shelves = self
            .topics
            .entry(output.topic.clone())
            .or_insert_with(|| (0..partitions).map(|_| SimPartition::default()).collect());
        let mut offset = 0;
        if let Some(shelf) = shelves.get_mut(partition as usize) {
            offset = shelf.next;
            shelf.next += 1;
            let Output { key, headers, value, .. } = output.clone();
            shelf.records.push((log, Record { offset, time, key, headers, value }));
        }
        let position = Position { log, topic: output.topic.clone(), partition, offset };
        self.places.insert(position.clone(), self.places.len() as u64);
        position
    }

    /// The place of a record among all that ever came.
    pub fn place(&self, at: &Position) -> Option<u64> {
        self.places.get(at).copied()
    }

    /// The partitions of a topic, if it exists.
    pub fn topic(&self, topic: &str) -> Option<&[SimPartition]> {
        self.topics.get(topic).map(Vec::as_slice)
    }

    /// One partition.
    pub fn shelf(&self, partition: &Partition) -> Option<&SimPartition> {
        self.topic(&partition.topic)?.get(partition.index as usize)
    }

    /// Every record of a topic, in order within its partition.
    pub fn records(&self, topic: &str) -> impl Iterator<Item = (Position, &Record)> {
        let name = self.topics.get_key_value(topic).map(|(name, _)| name.clone());
        let shelves = self.topic(topic).unwrap_or_default();
        shelves.iter().zip(0..).flat_map(move |(shelf, partition)| {
            let name = name.clone();
            shelf.records.iter().filter_map(move |(log, record)| {
                let topic = name.clone()?;
                Some((Position { log: *log, topic, partition, offset: record.offset }, record))
            })
        })
    }

    /// The record at a position.
    pub fn record(&self, at: &Position) -> Option<&Record> {
        let shelf = self.topic(&at.topic)?.get(at.partition as usize)?;
        let index = shelf.records.binary_search_by_key(&at.offset, |(_, r)| r.offset).ok()?;
        shelf.records.get(index).filter(|(log, _)| *log == at.log).map(|(_, record)| record)
    }

    /// Registers a group; its start in topics that exist is decided now, once.
    pub fn register(&mut self, group: &str, info: PipelineInfo, topics: &[Arc<str>], at_end: bool) {
        let known = self.groups.contains_key(group);
        let entry = self.groups.entry(group.to_owned());
        let progress = &mut entry
            .or_insert_with(|| Group { info: info.clone(), progress: BTreeMap::new() })
            .progress;
        if known || !at_end {
            return;
        }
        for topic in topics {
            for (shelf, index) in self.topics.get(topic).into_iter().flatten().zip(0..) {
                let partition = Partition { topic: topic.clone(), index };
                let start = Progress { position: shelf.next, ended: RangeSet::new() };
                progress.insert(partition, start);
            }
        }
    }

    /// Forgets a group.
    pub fn forget(&mut self, group: &str) -> bool {
        self.groups.remove(group).is_some()
    }

    /// Where a group stands in a partition.
    pub fn progress(&self, group: &str, partition: &Partition) -> Option<Progress> {
        let progress = &self.groups.get(group)?.progress;
        Some(progress.get(partition).cloned().unwrap_or_default())
    }

    /// Notes endings; returns the offsets of records that had not ended before.
    pub fn note_ended(
        &mut self,
        group: &str,
        partition: &Partition,
        ranges: &[std::ops::Range<u64>],
    ) -> Vec<u64> {
        let before = self.progress(group, partition).unwrap_or_default();
        let mut after = before.clone();
        for range in ranges {
            after.ended.insert(range.clone());
        }
        after.position = after.ended.first_gap(before.position);
        after.ended.forget_below(after.position);
        let ended = |progress: &Progress, offset: u64| {
            offset < progress.position || progress.ended.contains(offset)
        };
        let shelf = self.shelf(partition).map_or(&[][..], |shelf| &shelf.records);
        let newly = shelf.iter().map(|(_, record)| record.offset);
        let newly = newly.filter(|&o| ended(&after, o) && !ended(&before, o)).collect();
        if let Some(group) = self.groups.get_mut(group) {
            group.progress.insert(partition.clone(), after);
        }
        newly
    }

    /// Forgets what has ended above the position.
    pub fn forget_above(&mut self, group: &str, partition: &Partition) {
        let group = self.groups.get_mut(group);
        if let Some(progress) = group.and_then(|group| group.progress.get_mut(partition)) {
            progress.ended = RangeSet::new();
        }
    }

    /// Partitions of these topics.
    pub fn partitions_of(&self, topics: &[Arc<str>]) -> Vec<Partition> {
        let of = |topic: &Arc<str>| {
            let count = self.topic(topic).map_or(0, <[SimPartition]>::len) as u32;
            let topic = topic.clone();
            (0..count).map(move |index| Partition { topic: topic.clone(), index })
        };
        topics.iter().flat_map(of).collect()
    }

    /// All topics, for tools.
    pub fn topic_infos(&self) -> Vec<TopicInfo> {
        let info = |(topic, shelves): (&Arc<str>, &Vec<SimPartition>)| TopicInfo {
            topic: topic.to_string(),
            ends: shelves.iter().map(|shelf| shelf.next).collect(),
        };
        self.topics.iter().map(info).collect()
    }

    /// All groups, for tools.
    pub fn group_infos(&self, is_open: impl Fn(&str) -> bool) -> Vec<ConsumerGroup> {
        let partition = |(partition, progress): (&Partition, &Progress)| ConsumerGroupPartition {
            topic: partition.topic.to_string(),
            partition: partition.index,
            committed: progress.position,
            acknowledged_ahead: progress.ended.count_from(progress.position),
            end: self.shelf(partition).map_or(progress.position, |shelf| shelf.next),
        };
        let info = |(name, group): (&String, &Group)| ConsumerGroup {
            group: name.clone(),
            info: group.info.clone(),
            partitions: group.progress.iter().map(partition).collect(),
            open: is_open(name),
        };
        self.groups.iter().map(info).collect()
    }
}

/// The partition of a key.
fn home(key: &[u8], partitions: u32) -> u32 {
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    ((hash >> 20) % u64::from(partitions.max(1))) as u32
}
