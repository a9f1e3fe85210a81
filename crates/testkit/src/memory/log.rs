//! A log of topics in memory.
//!
//! Positions, assignments and progress behave like the embedded log's: offsets grow by one, a
//! group resumes at the first record that has not ended, every opening has nonces of its own, and
//! what still completes under old ones counts for nothing. Nothing is ever deleted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use potok_core::{
    Assignment, Clock, ConsumerGroup, ConsumerGroupPartition, ConsumerGroupSpec, Damage,
    EndedOffsets, Fault, Journal, Log, NotWritten, OpenGroups, Output, Partition, PartitionEnd,
    PipelineInfo, Position, RECORD_BYTES_MAX, RangeSet, ReadFrom, Reader, Reason, Record, Source,
    SourceBatch, SourceEvent, Store, TopicInfo, Transaction,
};
use tokio::sync::watch;

use super::{lock, nonce};

const PARTITIONS: u32 = 4;
/// One batch holds at most this many records, and ends with the record that reaches the bytes.
const BATCH_RECORDS_MAX: usize = 1_024;
const BATCH_BYTES_MAX: usize = 1 << 20;

/// A log in memory. Clones are the same log.
#[derive(Clone)]
pub struct MemoryLog(Arc<SharedLog>);

struct SharedLog {
    /// Names this log: another one never has the same positions.
    incarnation: u64,
    clock: Arc<dyn Clock>,
    partitions: u32,
    topics: Mutex<BTreeMap<Arc<str>, Arc<MemoryTopic>>>,
    /// Topics that take smaller records only, as a topic of Kafka may.
    narrow: Mutex<BTreeMap<String, usize>>,
    groups: Mutex<BTreeMap<String, Arc<MemoryConsumerGroup>>>,
    /// Why readers outside of groups get nothing.
    unreadable: Mutex<Option<Fault>>,
    /// How many records they were handed.
    handed_out: AtomicU64,
    /// Whether transactions wait.
    frozen: watch::Sender<bool>,
    /// Changes with every append, for those who wait at the end.
    appended: watch::Sender<()>,
}

struct MemoryTopic {
    name: Arc<str>,
    state: Mutex<TopicState>,
}

struct TopicState {
    /// The records of each partition; offset = index.
    partitions: Vec<Vec<Record>>,
    /// Where the next record without a key goes.
    spread: usize,
}

struct MemoryConsumerGroup {
    spec: ConsumerGroupSpec,
    state: Mutex<GroupState>,
}

#[derive(Default)]
struct GroupState {
    open: bool,
    progress: BTreeMap<Partition, MemoryProgress>,
}

#[derive(Default)]
struct MemoryProgress {
    /// The assignment whose endings count.
    assignment: u64,
    /// Every record below has ended.
    position: u64,
    /// What has ended above.
    ended: RangeSet,
}

impl GroupState {
    /// Folds in what has ended; of assignments that are not the latest here nothing.
    fn note(&mut self, ended: &EndedOffsets) {
        let progress = self.progress.get_mut(&ended.partition);
        let Some(progress) = progress.filter(|p| p.assignment == ended.assignment) else { return };
        for range in &ended.ranges {
            progress.ended.insert(range.start.max(progress.position)..range.end);
        }
        progress.position = progress.ended.first_gap(progress.position);
        progress.ended.forget_below(progress.position);
    }
}

impl MemoryLog {
    /// Empty, with topics of four partitions.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::with_partitions(clock, PARTITIONS)
    }

    /// Empty, with topics of so many partitions, at least one.
    pub fn with_partitions(clock: Arc<dyn Clock>, partitions: u32) -> Self {
        MemoryLog(Arc::new(SharedLog {
            incarnation: nonce(),
            clock,
            partitions: partitions.max(1),
            topics: Mutex::default(),
            narrow: Mutex::default(),
            groups: Mutex::default(),
            unreadable: Mutex::default(),
            handed_out: AtomicU64::new(0),
            frozen: watch::Sender::new(false),
            appended: watch::Sender::new(()),
        }))
    }

    /// From now on the topic takes records of at most so many bytes.
    pub fn narrow(&self, topic: &str, record_bytes_max: usize) {
        lock(&self.0.narrow).insert(topic.to_owned(), record_bytes_max);
    }

    /// From now on readers outside of consumer groups get this fault, or records again.
    pub fn set_unreadable(&self, fault: Option<Fault>) {
        *lock(&self.0.unreadable) = fault;
    }

    /// From now on transactions get no answer, or go on.
    pub fn set_frozen(&self, frozen: bool) {
        self.0.frozen.send_replace(frozen);
    }

    /// How many records readers outside of consumer groups were handed so far.
    pub fn handed_out(&self) -> u64 {
        self.0.handed_out.load(Ordering::Relaxed)
    }

    /// The outputs that their topics are too narrow for.
    fn refused(&self, outputs: &[Output]) -> Vec<(usize, Fault)> {
        let narrow = lock(&self.0.narrow);
        let mut refused = Vec::new();
        for (at, output) in outputs.iter().enumerate() {
            let max = narrow.get(&*output.topic);
            if max.is_some_and(|max| output.bytes() > *max) {
                let what = format!("{} bytes are too many for `{}`", output.bytes(), output.topic);
                refused.push((at, Fault::set_aside(Reason::TooLarge, what)));
            }
        }
        refused
    }

    /// The topic of that name, created on first use.
    fn topic(&self, name: &Arc<str>) -> Arc<MemoryTopic> {
        let mut topics = lock(&self.0.topics);
        if let Some(topic) = topics.get(name) {
            return topic.clone();
        }
        let partitions = (0..self.0.partitions).map(|_| Vec::new()).collect();
        let state = Mutex::new(TopicState { partitions, spread: 0 });
        let topic = Arc::new(MemoryTopic { name: name.clone(), state });
        topics.insert(name.clone(), topic.clone());
        topic
    }

    fn append_all(&self, outputs: &[Output]) -> Result<Vec<Position>, Fault> {
        // Checked first, so that all of it is written or nothing.
        if let Some(bad) = outputs.iter().find(|o| o.partition >= Some(self.0.partitions)) {
            return Err(Fault::fix(format!(
                "topic `{}` has {} partitions, a record wants partition {}",
                bad.topic,
                self.0.partitions,
                bad.partition.unwrap_or_default()
            )));
        }
        if let Some(large) = outputs.iter().find(|output| output.is_too_large()) {
            let what = format!("a record of {} bytes for `{}`", large.bytes(), large.topic);
            let fault = Fault::set_aside(Reason::TooLarge, what);
            return Err(fault.because(format!("at most {RECORD_BYTES_MAX} bytes are taken")));
        }
        let time = self.0.clock.now();
        let mut positions = Vec::with_capacity(outputs.len());
        // One lock for each run of records of one topic.
        for run in outputs.chunk_by(|a, b| a.topic == b.topic) {
            let Some(first) = run.first() else { continue };
            let topic = self.topic(&first.topic);
            let mut state = lock(&topic.state);
            for output in run {
                let (partition, offset) = state.push(output, time);
                positions.push(Position {
                    log: self.0.incarnation,
                    topic: topic.name.clone(),
                    partition,
                    offset,
                });
            }
        }
        if !outputs.is_empty() {
            self.0.appended.send_replace(());
        }
        Ok(positions)
    }

    fn open_one(&self, spec: ConsumerGroupSpec) -> Result<GroupSource, Fault> {
        let topics: Vec<Arc<MemoryTopic>> =
            spec.topics.iter().map(|name| self.topic(name)).collect();
        let mut groups = lock(&self.0.groups);
        let known = groups.get(&spec.group).cloned();
        let mut state = GroupState { open: true, ..GroupState::default() };
        if let Some(known) = &known {
            let mut before = lock(&known.state);
            if before.open {
                return Err(Fault::fix(format!("group `{}` is already open", spec.group)));
            }
            state.progress = std::mem::take(&mut before.progress);
        }
        let mut cursors = Vec::new();
        let mut assigned = Vec::new();
        for topic in topics {
            for (index, end) in (0..).zip(topic.ends()) {
                let partition = Partition { topic: topic.name.clone(), index };
                let progress = state.progress.entry(partition.clone()).or_insert_with(|| {
                    let position = if spec.from_end { end } else { 0 };
                    MemoryProgress { position, ..MemoryProgress::default() }
                });
                progress.assignment = nonce();
                assigned.push(Assignment {
                    partition: partition.clone(),
                    nonce: progress.assignment,
                    start: progress.position,
                    ended: progress.ended.clone(),
                });
                cursors.push(Cursor {
                    topic: topic.clone(),
                    partition,
                    assignment: progress.assignment,
                    next: progress.position,
                });
            }
        }
        // A new object: journals of earlier openings keep the old one, where nothing counts.
        let group = Arc::new(MemoryConsumerGroup { spec, state: Mutex::new(state) });
        groups.insert(group.spec.group.clone(), group.clone());
        drop(groups);
        let cursors = Cursors::new(self.clone(), cursors);
        Ok(GroupSource { cursors, group, to_say: Some(assigned), paused: false })
    }

    fn find_group(&self, name: &str) -> Result<Arc<MemoryConsumerGroup>, Fault> {
        let groups = lock(&self.0.groups);
        groups.get(name).cloned().ok_or_else(|| Fault::fix(format!("no group `{name}`")))
    }
}

impl TopicState {
    fn push(&mut self, output: &Output, time: potok_core::Timestamp) -> (u32, u64) {
        let count = self.partitions.len().max(1);
        let index = match (output.partition, &output.key) {
            (Some(partition), _) => partition as usize % count,
            (None, Some(key)) => crc32fast::hash(key) as usize % count,
            (None, None) => {
                self.spread = self.spread.wrapping_add(1);
                self.spread % count
            }
        };
        let Some(records) = self.partitions.get_mut(index) else { return (0, 0) };
        let offset = records.len() as u64;
        records.push(Record {
            offset,
            time,
            key: output.key.clone(),
            headers: output.headers.clone(),
            value: output.value.clone(),
        });
        (index as u32, offset)
    }
}

impl MemoryTopic {
    fn ends(&self) -> Vec<u64> {
        lock(&self.state).partitions.iter().map(|records| records.len() as u64).collect()
    }

    /// The next records of a partition, at most one batch of them; empty at the end.
    fn records(&self, partition: u32, from: u64) -> Vec<Record> {
        let state = lock(&self.state);
        let all = state.partitions.get(partition as usize).map_or(&[][..], Vec::as_slice);
        let rest = all.get(usize::try_from(from).unwrap_or(usize::MAX)..).unwrap_or_default();
        let mut bytes = 0;
        let fits = |record: &&Record| {
            let room = bytes < BATCH_BYTES_MAX;
            bytes += record.bytes();
            room
        };
        rest.iter().take(BATCH_RECORDS_MAX).take_while(fits).cloned().collect()
    }
}

/// A place in one partition, moving forward.
struct Cursor {
    topic: Arc<MemoryTopic>,
    partition: Partition,
    assignment: u64,
    next: u64,
}

impl Cursor {
    fn read(&mut self, log: u64) -> Option<SourceBatch> {
        let records = self.topic.records(self.partition.index, self.next);
        let (first, next) = (self.next, records.last()?.offset + 1);
        self.next = next;
        Some(SourceBatch {
            partition: self.partition.clone(),
            log,
            assignment: self.assignment,
            first,
            next,
            records,
            order: None,
            feed: None,
        })
    }
}

/// Reads several partitions in turn.
struct Cursors {
    log: MemoryLog,
    all: Vec<Cursor>,
    turn: usize,
    appended: watch::Receiver<()>,
}

impl Cursors {
    fn new(log: MemoryLog, all: Vec<Cursor>) -> Self {
        let appended = log.0.appended.subscribe();
        Cursors { log, all, turn: 0, appended }
    }

    fn read(&mut self) -> Option<SourceBatch> {
        for _ in 0..self.all.len() {
            self.turn = (self.turn + 1) % self.all.len();
            let batch = self.all.get_mut(self.turn).and_then(|c| c.read(self.log.0.incarnation));
            if batch.is_some() {
                return batch;
            }
        }
        None
    }

    /// Reads, or waits for something to read. Cancelling loses nothing: a batch is returned in
    /// the same step in which the cursor moves.
    async fn read_or_wait(&mut self) -> SourceBatch {
        loop {
            // Marked as seen before looking, so that an append in between wakes the wait below.
            self.appended.borrow_and_update();
            if let Some(batch) = self.read() {
                return batch;
            }
            // The sender lives as long as the log that this holds.
            let _ = self.appended.changed().await;
        }
    }
}

struct GroupSource {
    cursors: Cursors,
    group: Arc<MemoryConsumerGroup>,
    to_say: Option<Vec<Assignment>>,
    paused: bool,
}

#[async_trait]
impl Source for GroupSource {
    async fn next(&mut self) -> Result<SourceEvent, Fault> {
        if let Some(assigned) = self.to_say.take() {
            return Ok(SourceEvent::Assigned(assigned));
        }
        if self.paused {
            // Unpausing needs this source, so whoever waits here is cancelled first.
            std::future::pending::<()>().await;
        }
        Ok(SourceEvent::Batch(self.cursors.read_or_wait().await))
    }

    fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    fn ends(&self) -> Vec<PartitionEnd> {
        let end = |cursor: &Cursor| PartitionEnd {
            partition: cursor.partition.clone(),
            end: end_of(&cursor.topic, cursor.partition.index),
        };
        self.cursors.all.iter().map(end).collect()
    }
}

impl Drop for GroupSource {
    fn drop(&mut self) {
        lock(&self.group.state).open = false;
    }
}

fn end_of(topic: &MemoryTopic, partition: u32) -> u64 {
    topic.ends().get(partition as usize).copied().unwrap_or_default()
}

struct GroupJournal {
    log: MemoryLog,
    groups: Vec<Arc<MemoryConsumerGroup>>,
}

#[async_trait]
impl Journal for GroupJournal {
    async fn transact(&self, transaction: &Transaction) -> Result<Vec<Position>, NotWritten> {
        // The sender is ours: it does not end.
        let _ = self.log.0.frozen.subscribe().wait_for(|frozen| !frozen).await;
        let refused = self.log.refused(&transaction.outputs);
        if !refused.is_empty() {
            let is_refused = |at: usize| refused.iter().any(|(refused, _)| *refused == at);
            let taken = transaction.outputs.iter().enumerate();
            let taken: Vec<Output> = taken
                .filter(|(at, _)| !is_refused(*at))
                .map(|(_, output)| output.clone())
                .collect();
            self.log.append_all(&taken)?;
            return Err(NotWritten::Refused(refused));
        }
        let positions = self.log.append_all(&transaction.outputs)?;
        for group in &self.groups {
            let mut state = lock(&group.state);
            transaction.ended.iter().for_each(|ended| state.note(ended));
        }
        Ok(positions)
    }
}

struct TopicReader(Cursors);

#[async_trait]
impl Reader for TopicReader {
    async fn next(&mut self, follow: bool) -> Result<Option<SourceBatch>, Fault> {
        if follow {
            return Ok(Some(self.0.read_or_wait().await));
        }
        let shared = self.0.log.0.clone();
        if let Some(fault) = lock(&shared.unreadable).clone() {
            return Err(fault);
        }
        let batch = self.0.read();
        let records = batch.as_ref().map_or(0, |batch| batch.records.len());
        shared.handed_out.fetch_add(records as u64, Ordering::Relaxed);
        Ok(batch)
    }
}

#[async_trait]
impl Log for MemoryLog {
    fn bodies(&self) -> Arc<dyn Store> {
        Arc::new(super::MemoryStore::new())
    }

    async fn append(&self, outputs: &[Output]) -> Result<Vec<Position>, Fault> {
        self.append_all(outputs)
    }

    async fn open(&self, specs: Vec<ConsumerGroupSpec>) -> Result<OpenGroups, Fault> {
        let (mut sources, mut groups) = (Vec::<Box<dyn Source>>::new(), Vec::new());
        for spec in specs {
            let source = self.open_one(spec)?;
            groups.push(source.group.clone());
            sources.push(Box::new(source));
        }
        Ok(OpenGroups { sources, journal: Arc::new(GroupJournal { log: self.clone(), groups }) })
    }

    async fn read(&self, topic: &str, from: ReadFrom) -> Result<Box<dyn Reader>, Fault> {
        let found = lock(&self.0.topics).get(topic).cloned();
        let topic = found.ok_or_else(|| Fault::fix(format!("no topic `{topic}`")))?;
        let cursor = |(index, end): (u32, u64)| Cursor {
            topic: topic.clone(),
            partition: Partition { topic: topic.name.clone(), index },
            assignment: 0,
            next: from.offset(index, end),
        };
        let cursors = (0..).zip(topic.ends()).map(cursor).collect();
        Ok(Box::new(TopicReader(Cursors::new(self.clone(), cursors))))
    }

    async fn topics(&self) -> Result<Vec<TopicInfo>, Fault> {
        let topics = lock(&self.0.topics);
        let info = |topic: &Arc<MemoryTopic>| TopicInfo {
            topic: topic.name.to_string(),
            ends: topic.ends(),
        };
        Ok(topics.values().map(info).collect())
    }

    async fn consumer_groups(&self) -> Result<Vec<ConsumerGroup>, Fault> {
        let groups: Vec<Arc<MemoryConsumerGroup>> =
            lock(&self.0.groups).values().cloned().collect();
        let info = |group: &Arc<MemoryConsumerGroup>| {
            let state = lock(&group.state);
            let partition =
                |(partition, progress): (&Partition, &MemoryProgress)| ConsumerGroupPartition {
                    topic: partition.topic.to_string(),
                    partition: partition.index,
                    committed: progress.position,
                    acknowledged_ahead: progress.ended.count_from(progress.position),
                    end: end_of(&self.topic(&partition.topic), partition.index),
                };
            ConsumerGroup {
                group: group.spec.group.clone(),
                info: PipelineInfo::clone(&group.spec.info),
                partitions: state.progress.iter().map(partition).collect(),
                open: state.open,
            }
        };
        Ok(groups.iter().map(info).collect())
    }

    async fn delete_consumer_group(&self, group: &str) -> Result<(), Fault> {
        let found = self.find_group(group)?;
        if lock(&found.state).open {
            return Err(Fault::fix(format!("group `{group}` is open, so it cannot be forgotten")));
        }
        lock(&self.0.groups).remove(group);
        Ok(())
    }

    fn damage(&self) -> Vec<Damage> {
        Vec::new()
    }

    fn trouble(&self) -> Option<String> {
        None
    }

    async fn ended(&self, group: &str, topic: &str, partition: u32) -> Result<RangeSet, Fault> {
        let group = self.find_group(group)?;
        let state = lock(&group.state);
        let partition = Partition { topic: topic.into(), index: partition };
        Ok(state.progress.get(&partition).map_or_else(RangeSet::new, |p| p.ended.clone()))
    }
}
