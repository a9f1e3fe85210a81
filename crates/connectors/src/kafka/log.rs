//! The log as a whole: appending, opening groups, and what tools ask.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use potok_core::{
    Clock, ConsumerGroup, ConsumerGroupPartition, ConsumerGroupSpec, Damage, Fault, Journal, Log,
    OpenGroups, Output, Partition, PipelineInfo, Position, RangeSet, ReadFrom, Reader, Source,
    Store, TopicInfo,
};
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::sync::watch;

use super::assignment::ClusterFacts;
use super::events::Queue;
use super::exact::{self, ExactJournal};
use super::fault::Subject;
use super::handover::Handover;
use super::metadata::{self, CommitMetadata, Room};
use super::native::{self, CommittedOffset, Edge};
use super::poller::{Poller, PollerParts};
use super::producer::Producer;
use super::progress::GroupProgress;
use super::settings::{Health, KafkaConfig, Listener, Role};
use super::source::{GroupMembership, KafkaGroup, KafkaJournal, KafkaSource};
use super::store::KafkaBodies;
use super::topics::{TopicKind, Topics, partitions_of};
use super::turns::Turns;
use super::unanswered::Unanswered;
use super::writer::RecordWriter;
use super::{blocking, fault, lock, nonce, reader, registry};

/// How long a group that is being closed is waited for, and closing as a whole.
const CLOSE_MAX: Duration = Duration::from_secs(30);

/// Kafka as the log of a process.
pub struct KafkaLog {
    config: KafkaConfig,
    clock: Arc<dyn Clock>,
    health: Health,
    topics: Arc<Topics>,
    writer: Arc<RecordWriter>,
    groups: Arc<Mutex<HashMap<String, KafkaGroup>>>,
    damage: Arc<Mutex<Vec<Damage>>>,
    /// Warnings already given.
    warned: Mutex<HashSet<String>>,
    /// Tells the transactions of this process from those of others.
    own: u64,
    unanswered: Arc<Unanswered>,
}

impl KafkaLog {
    /// Sets the clients up. The cluster need not be there: it is waited for where it is needed.
    pub fn new(config: KafkaConfig, clock: Arc<dyn Clock>) -> Result<Arc<KafkaLog>, Fault> {
        config.check()?;
        let health = Health::default();
        let topics = Arc::new(Topics::new(&config, &health).map_err(fault::at_start)?);
        topics.register_as(registry::TOPIC, TopicKind::Registry);
        let producer = Producer::new(&config, Role::Producer, &health).map_err(fault::at_start)?;
        let writer = Arc::new(RecordWriter::new(producer, topics.clone()));
        Ok(Arc::new(KafkaLog {
            config,
            clock,
            health,
            topics,
            writer,
            groups: Arc::default(),
            damage: Arc::default(),
            warned: Mutex::default(),
            own: nonce(),
            unanswered: Arc::default(),
        }))
    }

    /// Waits, bounded, until every group that was let go has committed and left. Blocks; called
    /// when the process ends.
    pub fn close(&self) {
        let groups: Vec<KafkaGroup> = lock(&self.groups).values().cloned().collect();
        let deadline = tokio::time::Instant::now() + CLOSE_MAX;
        for group in groups {
            while group.handover.is_closing()
                && !*group.closed.borrow()
                && tokio::time::Instant::now() < deadline
            {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Opens the group for this process, once the one that had it has let go: a transaction of its
    /// journal may be under way long after its source is gone.
    async fn reserve(&self, group: &str) -> Result<(), Fault> {
        let known = lock(&self.groups).get(group).cloned();
        let Some(mut known) = known else { return Ok(()) };
        if known.handover.is_read() {
            return Err(fault::group_open(group));
        }
        let closed = known.closed.wait_for(|closed| *closed);
        match tokio::time::timeout(CLOSE_MAX, closed).await {
            Ok(_) => Ok(()),
            Err(_) => Err(fault::group_closing(group)),
        }
    }

    /// A fresh group's start is committed before anything is read: where "the end" was must not
    /// move when the process dies before the first record ended.
    async fn begin(&self, spec: &ConsumerGroupSpec, hash: u64) -> Result<(), Fault> {
        let (group, topics, from_end) = (spec.group.clone(), spec.topics.clone(), spec.from_end);
        let begin = move |client: &_, wait| {
            let committed = || native::committed(client, &group, wait);
            let known = ClusterFacts::ask(client, &topics, wait, |_| committed())?;
            if !known.committed.is_empty() {
                return Ok(());
            }
            let edges = if from_end { &known.latest } else { &known.earliest };
            // A partition left out now would later begin at its earliest record.
            let topics = known.topics.iter().map(|(topic, facts)| (topic, facts.partitions));
            if partitions_of(topics).iter().any(|partition| !edges.contains_key(partition)) {
                return Err(Code::LeaderNotAvailable);
            }
            let mut list = TopicPartitionList::new();
            for (partition, &start) in edges {
                let log = known.topics.get(&partition.topic).map_or(0, |facts| facts.id);
                let text = metadata::encode(log, hash, start, &RangeSet::new(), Room::Bare);
                let mut place = list.add_partition(&partition.topic, partition.index as i32);
                let offset = rdkafka::Offset::Offset(i64::try_from(start).unwrap_or(i64::MAX));
                place.set_offset(offset).map_err(|_| Code::InvalidArgument)?;
                place.set_metadata(text);
            }
            // Somebody may have begun it meanwhile: then theirs counts, and once somebody reads,
            // the broker refuses ours.
            if list.count() == 0 || !committed()?.is_empty() {
                return Ok(());
            }
            match native::commit_idle(client, &group, &list, wait) {
                Err(code) if code != Code::OperationTimedOut && !committed()?.is_empty() => Ok(()),
                committed => committed,
            }
        };
        let about = Subject { group: &spec.group, topics: &spec.topics };
        self.topics.ask_coordinator(about, "begin the group", begin).await
    }

    /// Looks at how a pipeline's own topics are set up. Warns once of what may be meant; what would lose records is a fault, until somebody has changed it.
    async fn check_own_topics(
        &self,
        info: &PipelineInfo,
        sources: &[Arc<str>],
    ) -> Result<(), Fault> {
        for warning in self.own_topics(info, sources).await? {
            if lock(&self.warned).insert(warning.clone()) {
                tracing::warn!("{warning}");
            }
        }
        Ok(())
    }

    /// The same for those who ask: returns the warnings.
    pub async fn own_topics(
        &self,
        info: &PipelineInfo,
        sources: &[Arc<str>],
    ) -> Result<Vec<String>, Fault> {
        self.topics.check_own(info, sources).await
    }

    /// The pipeline of every group of the registry; empty where there is no registry.
    async fn registered(&self) -> Result<BTreeMap<String, PipelineInfo>, Fault> {
        let topic: Arc<str> = Arc::from(registry::TOPIC);
        let mut groups = BTreeMap::new();
        if !self.topics.look_up(std::slice::from_ref(&topic)).await?.contains_key(&topic) {
            return Ok(groups);
        }
        let mut reader = self.read(&topic, ReadFrom::Start).await?;
        while let Some(batch) = reader.next(false).await? {
            batch.records.iter().for_each(|record| registry::apply(&mut groups, record));
        }
        Ok(groups)
    }

    async fn register(&self, spec: &ConsumerGroupSpec) -> Result<(), Fault> {
        let topic = [Arc::from(registry::TOPIC)];
        match self.topics.ensure(&topic).await {
            Err(fault) if !self.topics.may_create() && fault.code == "P0605" => {
                tracing::warn!(
                    topic = registry::TOPIC,
                    "there is no such topic; `potok consumer-groups list` will not know this group"
                );
                return Ok(());
            }
            other => other?,
        }
        self.append(&[registry::entry(&spec.group, Some(&spec.info))]).await.map(drop)
    }

    /// Joins a group and starts reading it.
    fn start_polling(&self, spec: &ConsumerGroupSpec, hash: u64) -> Result<PolledGroup, Fault> {
        let consumer = self.config.consumer(&spec.group, &self.health)?;
        let topics: Vec<&str> = spec.topics.iter().map(|topic| &**topic).collect();
        let consumer = Arc::new(consumer);
        let member = Arc::downgrade(&consumer);
        consumer.subscribe(&topics).map_err(|error| fault::of("join the group", &error))?;
        let queue =
            Queue::new(consumer).ok_or_else(|| fault::poller_died("the consumer has no queue"))?;
        let handover = Arc::new(Handover::default());
        let progress = if spec.exact { GroupProgress::exact() } else { GroupProgress::default() };
        let progress = Arc::new(Mutex::new(progress));
        let (closing, closed) = watch::channel(false);
        let group = KafkaGroup { handover: handover.clone(), progress: progress.clone(), closed };
        let poller = Poller::new(PollerParts {
            queue,
            servers: self.config.servers(),
            group: spec.group.clone(),
            topics: spec.topics.clone(),
            group_hash: hash,
            handover: handover.clone(),
            progress: progress.clone(),
            health: self.health.clone(),
            clock: self.clock.clone(),
            damage: self.damage.clone(),
            passing: {
                let passing = spec.info.internal.iter().chain([&spec.info.replay]);
                passing.filter(|topic| topics.contains(&topic.as_str())).cloned().collect()
            },
        });
        let guard = PollerGuard {
            handover: handover.clone(),
            closing,
            groups: self.groups.clone(),
            name: spec.group.clone(),
        };
        let thread = std::thread::Builder::new().name(format!("kafka-{}", spec.group));
        let mut groups = lock(&self.groups);
        if let Some(known) = groups.get(&spec.group).filter(|known| !known.handover.is_closing()) {
            return Err(match known.handover.is_read() {
                true => fault::group_open(&spec.group),
                false => fault::group_closing(&spec.group),
            });
        }
        let span = tracing::Span::current();
        let run = move || {
            let _guard = guard;
            span.in_scope(|| poller.run());
        };
        thread.spawn(run).map_err(fault::poller_died)?;
        groups.insert(spec.group.clone(), group);
        drop(groups);
        Ok(PolledGroup { session: Arc::new(GroupMembership(handover)), progress, member })
    }

    /// The journal of groups that are read together.
    fn journal(&self, specs: &[ConsumerGroupSpec], polled: Vec<PolledGroup>) -> Arc<dyn Journal> {
        if let ([spec], [PolledGroup { session, progress, member }]) = (specs, polled.as_slice())
            && spec.exact
        {
            let inner = exact::Inner {
                session: Mutex::new(Some(session.clone())),
                group: spec.group.clone(),
                group_hash: group_hash(&spec.group),
                config: self.config.clone(),
                health: self.health.clone(),
                topics: self.topics.clone(),
                progress: progress.clone(),
                member: member.clone(),
                producer: Mutex::default(),
                batch_bytes: AtomicUsize::new(0),
                transactional_id: exact::transactional_id(&spec.group, self.own),
                unanswered: self.unanswered.clone(),
                span: tracing::Span::current(),
            };
            return Arc::new(ExactJournal { inner: Arc::new(inner) });
        }
        let (writer, turns) = (self.writer.clone(), Turns::default());
        let groups = polled.into_iter().map(|polled| (polled.session, polled.progress)).collect();
        Arc::new(KafkaJournal { groups, writer, turns })
    }

    /// Makes everything there that a group needs before it is read.
    async fn set_up(&self, spec: &ConsumerGroupSpec) -> Result<(), Fault> {
        if spec.exact {
            self.unanswered.may_open(&spec.group)?;
        }
        self.reserve(&spec.group).await?;
        self.topics.register(&spec.info);
        let info = &spec.info;
        let own = [&info.dead_letters, &info.resolved, &info.replay];
        let mut topics: Vec<Arc<str>> = spec.topics.clone();
        topics.extend(own.into_iter().map(|topic| Arc::from(topic.as_str())));
        // The replay topic is among those that are read.
        topics.sort();
        topics.dedup();
        // They may have been deleted since somebody looked.
        topics.iter().for_each(|topic| self.topics.forget(topic));
        self.topics.ensure(&topics).await?;
        self.check_own_topics(&spec.info, &spec.topics).await?;
        self.register(spec).await?;
        self.begin(spec, group_hash(&spec.group)).await
    }

    /// The progress of a group that this process reads.
    fn own(&self, group: &str) -> Option<KafkaGroup> {
        lock(&self.groups).get(group).filter(|group| !*group.closed.borrow()).cloned()
    }

    /// Position and what ended above it, per partition.
    async fn progress(&self, group: &str) -> Result<BTreeMap<Partition, (u64, RangeSet)>, Fault> {
        let name = group.to_owned();
        let ask = move |client: &_, wait| native::committed(client, &name, wait);
        let what = "say what a group has committed";
        let committed = self.topics.ask_coordinator(Subject::group(group), what, ask).await?;
        let read =
            |(partition, CommittedOffset { offset, metadata }): (Partition, CommittedOffset)| {
                // The pipeline does not matter here: the group is asked for by its name.
                let ended = match metadata::decode(&metadata, group_hash(group), offset) {
                    CommitMetadata::Ours { ended, .. } => ended,
                    CommitMetadata::Foreign => RangeSet::new(),
                };
                (partition, (offset, ended))
            };
        let mut found: BTreeMap<_, _> = committed.into_iter().map(read).collect();
        if let Some(own) = self.own(group) {
            for held in lock(&own.progress).iter() {
                found.insert(held.partition.clone(), (held.position, held.ended.clone()));
            }
        }
        Ok(found)
    }

    async fn edges(
        &self,
        partitions: Vec<Partition>,
        edge: Edge,
    ) -> Result<HashMap<Partition, u64>, Fault> {
        self.topics
            .ask(Subject::default(), "say where topics end", move |client, wait| {
                native::edges(client, &partitions, edge, wait)
            })
            .await
    }
}

impl Drop for KafkaLog {
    fn drop(&mut self) {
        self.close();
    }
}

/// A group that is being read.
struct PolledGroup {
    session: Arc<GroupMembership>,
    progress: Arc<Mutex<GroupProgress>>,
    member: Weak<BaseConsumer<Listener>>,
}

/// Tells everybody that a polling thread is gone, however it went.
struct PollerGuard {
    handover: Arc<Handover>,
    closing: watch::Sender<bool>,
    groups: Arc<Mutex<HashMap<String, KafkaGroup>>>,
    name: String,
}

impl Drop for PollerGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.handover.fail(fault::poller_died("the polling thread panicked"));
        }
        let mut groups = lock(&self.groups);
        if groups.get(&self.name).is_some_and(|g| Arc::ptr_eq(&g.handover, &self.handover)) {
            groups.remove(&self.name);
        }
        drop(groups);
        self.closing.send_replace(true);
    }
}

/// Names a group in its commits.
fn group_hash(group: &str) -> u64 {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(group.as_bytes());
    digest.first_chunk::<8>().map_or(0, |head| u64::from_le_bytes(*head))
}

#[async_trait]
impl Log for KafkaLog {
    fn is_shared(&self) -> bool {
        true
    }

    fn reuses_offsets(&self) -> bool {
        true
    }

    async fn topic_id(&self, topic: &str) -> Result<Option<u64>, Fault> {
        let topic: Arc<str> = Arc::from(topic);
        let found = self.topics.look_up(std::slice::from_ref(&topic)).await?;
        Ok(found.get(&topic).map(|facts| facts.id))
    }

    /// Kafka deletes from the beginning only: what lies behind the first record that stays, stays.
    async fn release(
        &self,
        topic: &str,
        log: u64,
        partition: u32,
        offsets: &RangeSet,
    ) -> Result<RangeSet, Fault> {
        if self.topic_id(topic).await? != Some(log) {
            return Ok(RangeSet::new());
        }
        let partition = Partition { topic: topic.into(), index: partition };
        let earliest = self.edges(vec![partition.clone()], Edge::Earliest).await?;
        let Some(&earliest) = earliest.get(&partition) else { return Ok(RangeSet::new()) };
        let to = offsets.first_gap(earliest);
        if to > earliest {
            self.topics.delete_below(&partition, to).await?;
        }
        let mut gone = offsets.clone();
        gone.forget_from(to);
        Ok(gone)
    }

    fn bodies(&self) -> Arc<dyn Store> {
        let (config, health) = (self.config.clone(), self.health.clone());
        Arc::new(KafkaBodies::new(config, health, self.topics.clone()))
    }

    /// Each record is durable by itself: after a fault some may have been written and others not.
    async fn append(&self, outputs: &[Output]) -> Result<Vec<Position>, Fault> {
        if outputs.is_empty() {
            return Ok(Vec::new());
        }
        self.writer.append(outputs).await
    }

    async fn open(&self, specs: Vec<ConsumerGroupSpec>) -> Result<OpenGroups, Fault> {
        for spec in &specs {
            self.set_up(spec).await?;
        }
        let (mut sources, mut polled) = (Vec::<Box<dyn Source>>::new(), Vec::new());
        for spec in &specs {
            let group = self.start_polling(spec, group_hash(&spec.group))?;
            sources.push(Box::new(KafkaSource { session: group.session.clone(), paused: false }));
            polled.push(group);
        }
        Ok(OpenGroups { sources, journal: self.journal(&specs, polled) })
    }

    async fn read(&self, topic: &str, from: ReadFrom) -> Result<Box<dyn Reader>, Fault> {
        let topic: Arc<str> = Arc::from(topic);
        let found = self.topics.look_up(std::slice::from_ref(&topic)).await?;
        let facts = *found.get(&topic).ok_or_else(|| fault::no_topic(&topic))?;
        let partitions = partitions_of([(&topic, facts.partitions)]);
        let starts = move |client: &_, wait| {
            let edges = |edge| native::every_edge(client, &partitions, edge, wait);
            let (earliest, latest) = (edges(Edge::Earliest)?, edges(Edge::Stable)?);
            let start = |(partition, latest): (Partition, u64)| {
                let earliest = earliest.get(&partition).copied().unwrap_or(latest).min(latest);
                let start = from.offset(partition.index, latest).clamp(earliest, latest);
                (partition, start)
            };
            Ok(latest.into_iter().map(start).collect())
        };
        let (about, what) = ([topic.clone()], "say where the topic begins and ends");
        let starts = self.topics.ask(Subject::topics(&about), what, starts).await?;
        let (config, health) = (self.config.clone(), self.health.clone());
        let opened = blocking(move || reader::open(&config, &health, facts.id, starts));
        Ok(Box::new(opened.await.map_err(fault::poller_died)??))
    }

    async fn topics(&self) -> Result<Vec<TopicInfo>, Fault> {
        let topics = self.topics.all().await?;
        let partitions = partitions_of(topics.iter().map(|(topic, count)| (topic, *count)));
        let ends = self.edges(partitions, Edge::High).await?;
        let mut infos: Vec<TopicInfo> = topics
            .iter()
            .map(|(topic, &count)| TopicInfo {
                topic: topic.to_string(),
                ends: partitions_of([(topic, count)])
                    .iter()
                    .map(|partition| ends.get(partition).copied().unwrap_or_default())
                    .collect(),
            })
            .collect();
        infos.sort_by(|a, b| a.topic.cmp(&b.topic));
        Ok(infos)
    }

    async fn consumer_groups(&self) -> Result<Vec<ConsumerGroup>, Fault> {
        let registered = self.registered().await?;
        let read = self.topics.ask(Subject::default(), "list groups", native::read_groups).await?;
        let mut infos = Vec::new();
        for (group, info) in registered {
            let progress = self.progress(&group).await?;
            let ends = self.edges(progress.keys().cloned().collect(), Edge::High).await?;
            let partitions =
                progress.iter().map(|(partition, (position, ended))| ConsumerGroupPartition {
                    topic: partition.topic.to_string(),
                    partition: partition.index,
                    committed: *position,
                    acknowledged_ahead: ended.count_from(*position),
                    end: ends.get(partition).copied().unwrap_or(*position).max(*position),
                });
            let partitions = partitions.collect();
            let open = read.contains(&group) || self.own(&group).is_some();
            infos.push(ConsumerGroup { group, info, partitions, open });
        }
        Ok(infos)
    }

    async fn delete_consumer_group(&self, group: &str) -> Result<(), Fault> {
        if self.own(group).is_some() {
            return Err(fault::group_open(group));
        }
        if !self.registered().await?.contains_key(group) {
            return Err(fault::no_group(group));
        }
        self.topics.delete_group(group).await?;
        self.append(&[registry::entry(group, None)]).await.map(drop)
    }

    /// Records that were gone before a group of this process had finished them.
    fn damage(&self) -> Vec<Damage> {
        lock(&self.damage).clone()
    }

    fn trouble(&self) -> Option<String> {
        self.health.trouble().or_else(|| self.writer.stuck())
    }

    fn needs_somebody(&self) -> bool {
        self.writer.needs_somebody()
    }

    async fn ended(&self, group: &str, topic: &str, partition: u32) -> Result<RangeSet, Fault> {
        let partition = Partition { topic: topic.into(), index: partition };
        let mut progress = self.progress(group).await?;
        Ok(progress.remove(&partition).map_or_else(RangeSet::new, |(_, ended)| ended))
    }
}
