//! Topics: which there are, under which ids, and how missing ones come to be.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use potok_core::{Fault, Partition, PipelineInfo, RECORD_BYTES_MAX};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::Client;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};

use super::fault::Subject;
use super::native::{self, Edge, Facts};
use super::producer::Producer;
use super::settings::{CreateTopics, Health, KafkaConfig, Listener, Role, answers};
use super::{blocking, fault, lock};

/// Asks for as many copies as the brokers are set to.
const BROKER_DEFAULT: i32 = -1;
/// The longest wait for an answer, and while the cluster is known to be away.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const AWAY_MAX: Duration = Duration::from_secs(1);
/// How long a new topic may take until every broker knows it.
const SETTLE: Duration = Duration::from_millis(50);
const SETTLES_MAX: u32 = 200;

/// The purpose of a topic, which decides how it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicKind {
    /// Records of users: the broker's own defaults.
    Records,
    /// Kept until somebody deals with them, as large as any record.
    DeadLetters,
    /// Notes about dead letters: kept as long as they.
    Resolved,
    /// Dead letters on their way through their pipeline again. A consumer group shares out all
    /// partitions alike, so more than one would leave a copy without other work.
    Replay,
    /// Records on their way through groups, and notes about them, timed by the brokers. Kept until
    /// they have ended: then the pipeline deletes them.
    Internal,
    /// The latest word on each key counts.
    Registry,
}

/// The topics of the cluster, and the client that asks about them.
pub struct Topics {
    /// Changes things.
    pub(super) admin: AdminClient<Listener>,
    /// Asks things.
    asker: Arc<BaseConsumer<Listener>>,
    /// Asks coordinators of groups; none where a question was given up, see
    /// [`Topics::ask_coordinator`].
    group_asker: Mutex<Option<Arc<BaseConsumer<Listener>>>>,
    config: KafkaConfig,
    create: Option<CreateTopics>,
    health: Health,
    known: Mutex<HashMap<Arc<str>, Facts>>,
    pub(super) kinds: Mutex<HashMap<Arc<str>, TopicKind>>,
    /// The bytes of a record that topics of potok's own take, where they said so.
    pub(super) limits: Mutex<HashMap<Arc<str>, usize>>,
}

impl Topics {
    pub fn new(config: &KafkaConfig, health: &Health) -> Result<Topics, Fault> {
        let client = config.client(Role::Admin);
        let admin = client
            .create_with_context(Listener(health.clone()))
            .map_err(|error| fault::set_up(&error))?;
        Ok(Topics {
            admin,
            asker: Arc::new(config.reader(health)?),
            group_asker: Mutex::default(),
            config: config.clone(),
            create: config.create_topics,
            health: health.clone(),
            known: Mutex::default(),
            kinds: Mutex::default(),
            limits: Mutex::default(),
        })
    }

    /// The brokers, as they were named.
    pub fn servers(&self) -> &str {
        &self.config.servers
    }

    /// True when missing topics may be made.
    pub fn may_create(&self) -> bool {
        self.create.is_some()
    }

    /// How long to wait for an answer.
    pub fn patience(&self) -> Duration {
        if self.health.trouble().is_some() { AWAY_MAX } else { ANSWER_MAX }
    }

    /// True when the cluster answers, whatever it answers.
    pub async fn is_there(&self) -> bool {
        let (asker, patience) = (self.asker.clone(), self.patience());
        blocking(move || answers(asker.client(), patience)).await.unwrap_or(false)
    }

    /// Asks something that blocks, on a thread where that is allowed, and notes how it went.
    pub async fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        about: Subject<'_>,
        what: &str,
        question: impl Fn(&Client<Listener>, Duration) -> Result<T, Code> + Send + 'static,
    ) -> Result<T, Fault> {
        let (asker, patience) = (self.asker.clone(), self.patience());
        let ask = move || put(&asker, patience, question);
        let answer = blocking(ask).await.map_err(fault::poller_died)?;
        self.noted(about, what, answer)
    }

    /// The same of the coordinator of a group, by calls that say so. A question that was given up
    /// must not be left with the client: so the client goes as well. While the cluster is known to be away
    /// nothing is asked at all: others find out when it is back.
    ///
    /// It is a consumer that asks, because librdkafka 2.12 also dies when another kind of client asks
    /// for a group's commits at a broker that is not its coordinator any more.
    pub async fn ask_coordinator<T: Send + 'static>(
        self: &Arc<Self>,
        about: Subject<'_>,
        what: &str,
        question: impl Fn(&Client<Listener>, Duration) -> Result<T, Code> + Send + 'static,
    ) -> Result<T, Fault> {
        if let (Some(why), None) = (self.health.trouble(), self.health.refusal()) {
            return Err(fault::sorted(what, Code::AllBrokersDown, why));
        }
        let topics = self.clone();
        let patience = self.patience();
        let ask = move || {
            let asker = match &mut *lock(&topics.group_asker) {
                Some(asker) => asker.clone(),
                none => none.insert(Arc::new(topics.config.reader(&topics.health)?)).clone(),
            };
            let answer = put(&asker, patience, question);
            if matches!(answer, Err(Code::OperationTimedOut)) {
                let mut current = lock(&topics.group_asker);
                let is_current = |current: &mut _| Arc::ptr_eq(current, &asker);
                let given_up = current.take_if(is_current);
                // Letting go of the last handle takes its time.
                drop(current);
                drop(given_up);
            }
            Ok::<_, Fault>(answer)
        };
        let answer = blocking(ask).await.map_err(fault::poller_died)??;
        self.noted(about, what, answer)
    }

    /// Takes note of how a question went.
    fn noted<T>(
        &self,
        about: Subject<'_>,
        what: &str,
        answer: Result<T, Code>,
    ) -> Result<T, Fault> {
        match answer {
            Ok(answer) => {
                self.health.good();
                Ok(answer)
            }
            Err(code) => {
                if fault::is_outage(code) {
                    // Who cannot ask may have forgotten whom (decision 0125).
                    native::add_brokers(self.asker.client(), &self.config.servers());
                }
                self.health.hear(code, &format!("it cannot {what}: {code}"));
                Err(match self.health.refusal() {
                    Some(why) if fault::is_outage(code) => {
                        fault::sorted(what, Code::Authentication, why)
                    }
                    _ => fault::sorted_about(about, what, code, code),
                })
            }
        }
    }

    /// Notes what the topics of a pipeline are for.
    pub fn register(&self, info: &PipelineInfo) {
        let mut kinds = lock(&self.kinds);
        kinds.insert(info.dead_letters.as_str().into(), TopicKind::DeadLetters);
        kinds.insert(info.resolved.as_str().into(), TopicKind::Resolved);
        kinds.insert(info.replay.as_str().into(), TopicKind::Replay);
        kinds
            .extend(info.internal.iter().map(|topic| (topic.as_str().into(), TopicKind::Internal)));
    }

    /// The topic is for that.
    pub fn register_as(&self, topic: &str, kind: TopicKind) {
        lock(&self.kinds).insert(topic.into(), kind);
    }

    /// The known facts about a topic, without asking.
    pub fn known(&self, topic: &str) -> Option<Facts> {
        lock(&self.known).get(topic).copied()
    }

    /// The topic is not what it was.
    pub fn forget(&self, topic: &str) {
        lock(&self.known).remove(topic);
    }

    /// The cluster's facts about those of the topics that exist.
    pub async fn look_up(
        self: &Arc<Self>,
        topics: &[Arc<str>],
    ) -> Result<HashMap<Arc<str>, Facts>, Fault> {
        let wanted = topics.to_vec();
        let describe = move |client: &_, wait| native::describe_topics(client, &wanted, wait);
        let found = match self.ask(Subject::topics(topics), "describe topics", describe).await {
            // One of them is meant: asked alone, each speaks for itself.
            Err(fault) if fault.code == "P0604" && topics.len() > 1 => {
                let mut found = HashMap::new();
                for topic in topics {
                    found.extend(Box::pin(self.look_up(std::slice::from_ref(topic))).await?);
                }
                found
            }
            found => found?,
        };
        let mut known = lock(&self.known);
        known.extend(found.iter().map(|(topic, facts)| (topic.clone(), *facts)));
        Ok(found)
    }

    /// Makes sure that all of them exist: creates them, or says that they are missing.
    pub async fn ensure(self: &Arc<Self>, topics: &[Arc<str>]) -> Result<(), Fault> {
        let unknown: Vec<Arc<str>> = {
            let known = lock(&self.known);
            topics.iter().filter(|topic| !known.contains_key(*topic)).cloned().collect()
        };
        if unknown.is_empty() {
            return Ok(());
        }
        for topic in &unknown {
            check_name(topic)?;
        }
        let mut missing = self.missing(&unknown).await?;
        if missing.is_empty() {
            return Ok(());
        }
        let Some(create) = self.create else {
            let names: Vec<&str> = missing.iter().map(|topic| &**topic).collect();
            return Err(fault::topic_missing(&names));
        };
        self.create(&missing, create).await?;
        let created = missing.clone();
        for _ in 0..SETTLES_MAX {
            missing = self.missing(&missing).await?;
            if missing.is_empty() {
                return self.until_served(&created).await;
            }
            tokio::time::sleep(SETTLE).await;
        }
        let names: Vec<&str> = missing.iter().map(|topic| &**topic).collect();
        Err(fault::topic_missing(&names))
    }

    /// Another producer, whose trouble is nobody else's.
    pub fn producer(&self, role: Role) -> Result<Producer, Fault> {
        Producer::new(&self.config, role, &Health::default())
    }

    /// Makes sure that one of them exists, or says why records for it are refused just now. What one
    /// topic refuses says nothing about the cluster.
    pub async fn find(self: &Arc<Self>, topic: &Arc<str>) -> Result<(), Fault> {
        if self.known(topic).is_some() {
            return Ok(());
        }
        check_name(topic)?;
        let (asker, patience) = (self.asker.clone(), self.patience());
        let wanted = [topic.clone()];
        let ask = move || {
            put(&asker, patience, |client, wait| native::describe_topics(client, &wanted, wait))
        };
        let about = std::slice::from_ref(topic);
        match blocking(ask).await.map_err(fault::poller_died)? {
            Ok(found) => {
                self.health.good();
                if let Some(facts) = found.get(topic) {
                    lock(&self.known).insert(topic.clone(), *facts);
                    return Ok(());
                }
                self.ensure(about).await
            }
            Err(code) if fault::is_outage(code) => {
                self.noted(Subject::topics(about), "describe topics", Err(code))
            }
            Err(code) => {
                let what = format!("write to `{topic}`");
                Err(fault::sorted_about(Subject::topics(about), &what, code, code))
            }
        }
    }

    /// Waits until every partition answers. A broker that becomes the leader between two batches of
    /// a producer refuses the first and takes the second, and then takes the first, offered again,
    /// for a repeat: it would be lost.
    async fn until_served(self: &Arc<Self>, topics: &[Arc<str>]) -> Result<(), Fault> {
        let facts = |topic: &Arc<str>| Some((topic.clone(), self.known(topic)?.partitions));
        let known: Vec<(Arc<str>, u32)> = topics.iter().filter_map(facts).collect();
        let partitions = partitions_of(known.iter().map(|(topic, count)| (topic, *count)));
        let served = move |client: &Client<Listener>, wait| {
            native::every_edge(client, &partitions, Edge::Stable, wait).map(drop)
        };
        self.ask(Subject::topics(topics), "serve new topics", served).await
    }

    async fn missing(self: &Arc<Self>, topics: &[Arc<str>]) -> Result<Vec<Arc<str>>, Fault> {
        let found = self.look_up(topics).await?;
        Ok(topics.iter().filter(|topic| !found.contains_key(*topic)).cloned().collect())
    }

    async fn create(&self, topics: &[Arc<str>], how: CreateTopics) -> Result<(), Fault> {
        let large = (RECORD_BYTES_MAX + (2 << 20)).to_string();
        let kinds = lock(&self.kinds).clone();
        let new: Vec<NewTopic<'_>> = topics
            .iter()
            .map(|topic| {
                let kind = kinds.get(topic).copied().unwrap_or(TopicKind::Records);
                let partitions = match kind {
                    TopicKind::Registry | TopicKind::Replay => 1,
                    _ => how.partitions,
                };
                let topic = NewTopic::new(
                    topic,
                    partitions as i32,
                    TopicReplication::Fixed(
                        how.replication.map_or(BROKER_DEFAULT, |copies| copies as i32),
                    ),
                );
                match kind {
                    TopicKind::Records => topic,
                    TopicKind::DeadLetters | TopicKind::Replay => topic
                        .set("cleanup.policy", "delete")
                        .set("retention.ms", "-1")
                        .set("retention.bytes", "-1")
                        .set("max.message.bytes", &large),
                    TopicKind::Resolved => topic
                        .set("cleanup.policy", "delete")
                        .set("retention.ms", "-1")
                        .set("retention.bytes", "-1"),
                    TopicKind::Internal => topic
                        .set("cleanup.policy", "delete")
                        .set("retention.ms", "-1")
                        .set("retention.bytes", "-1")
                        .set("message.timestamp.type", "LogAppendTime")
                        .set("max.message.bytes", &large),
                    TopicKind::Registry => topic.set("cleanup.policy", "compact"),
                }
            })
            .collect();
        let options = AdminOptions::new()
            .request_timeout(Some(self.patience()))
            .operation_timeout(Some(self.patience()));
        let created = self.admin.create_topics(&new, &options).await;
        for result in created.map_err(|error| fault::of("create topics", &error))? {
            match result {
                Ok(topic) => tracing::info!(topic, "created the topic in Kafka"),
                // Another process was faster.
                Err((_, Code::TopicAlreadyExists)) => {}
                Err((topic, code)) => return Err(fault::not_created(&topic, code)),
            }
        }
        Ok(())
    }

    /// Deletes the records of a partition below an offset.
    pub async fn delete_below(&self, partition: &Partition, offset: u64) -> Result<(), Fault> {
        let failed = |error: &KafkaError| fault::of("delete records that are done", error);
        let mut list = TopicPartitionList::new();
        let to = Offset::Offset(i64::try_from(offset).unwrap_or(i64::MAX));
        list.add_partition_offset(&partition.topic, partition.index as i32, to)
            .map_err(|error| failed(&error))?;
        let options = AdminOptions::new().request_timeout(Some(self.patience()));
        let deleted = self.admin.delete_records(&list, &options).await;
        let deleted = deleted.map_err(|error| failed(&error))?;
        for place in deleted.elements() {
            place.error().map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    /// Every topic that is not the cluster's own, with its number of partitions.
    pub async fn all(self: &Arc<Self>) -> Result<HashMap<Arc<str>, u32>, Fault> {
        let all = |client: &Client<Listener>, wait| {
            let metadata = client
                .fetch_metadata(None, wait)
                .map_err(|error| error.rdkafka_error_code().unwrap_or(Code::Unknown))?;
            let ours = metadata.topics().iter().filter(|topic| !topic.name().starts_with("__"));
            Ok(ours.map(|t| (Arc::from(t.name()), t.partitions().len() as u32)).collect())
        };
        self.ask(Subject::default(), "list topics", all).await
    }

    /// Forgets a consumer group: its commits.
    pub async fn delete_group(self: &Arc<Self>, group: &str) -> Result<(), Fault> {
        let name = group.to_owned();
        let delete = move |client: &_, wait| match native::delete_group(client, &name, wait) {
            Err(Code::NonEmptyGroup) => Ok(false),
            deleted => deleted.map(|()| true),
        };
        match self.ask_coordinator(Subject::group(group), "forget the group", delete).await? {
            true => Ok(()),
            false => Err(fault::group_open(group)),
        }
    }
}

/// Puts a question, again while the brokers have not settled.
fn put<T>(
    asker: &BaseConsumer<Listener>,
    patience: Duration,
    question: impl Fn(&Client<Listener>, Duration) -> Result<T, Code>,
) -> Result<T, Code> {
    // Drains the client's events.
    while asker.poll(Duration::ZERO).is_some() {}
    let asked_at = tokio::time::Instant::now();
    loop {
        match question(asker.client(), patience) {
            // A topic just made, a coordinator just moved: settled in a moment.
            Err(code) if is_settling(code) && asked_at.elapsed() < patience => {
                std::thread::sleep(SETTLE);
            }
            answer => return answer,
        }
    }
}

/// The brokers have not agreed yet on who answers this.
fn is_settling(code: Code) -> bool {
    matches!(
        code,
        Code::CoordinatorLoadInProgress
            | Code::CoordinatorNotAvailable
            | Code::NotCoordinator
            | Code::LeaderNotAvailable
            // The client's own word for the same: it knows of no leader.
            | Code::NoEnt
            | Code::NotLeaderForPartition
            | Code::FencedLeaderEpoch
            | Code::UnknownLeaderEpoch
            | Code::UnstableOffsetCommit
    )
}

/// The partitions of topics.
pub fn partitions_of<'a>(topics: impl IntoIterator<Item = (&'a Arc<str>, u32)>) -> Vec<Partition> {
    let of = |(topic, partitions): (&Arc<str>, u32)| {
        let topic = topic.clone();
        (0..partitions).map(move |index| Partition { topic: topic.clone(), index })
    };
    topics.into_iter().flat_map(of).collect()
}

/// Kafka takes letters, digits, dots, dashes and underscores.
fn check_name(topic: &str) -> Result<(), Fault> {
    let fine = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
    if topic.chars().all(fine) && (1..=249).contains(&topic.len()) && ![".", ".."].contains(&topic)
    {
        return Ok(());
    }
    Err(Fault::fix(format!("the topic name {topic:?} cannot be used in Kafka"))
        .code("P0612")
        .hint("use up to 249 letters, digits, dots, dashes and underscores"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_kafka_takes() {
        for good in ["orders", "a.b-c_D9"] {
            assert!(check_name(good).is_ok());
        }
        for bad in ["", ".", "..", "a b", "a/b", "й", &"x".repeat(250)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
