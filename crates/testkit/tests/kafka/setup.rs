//! Logs, groups and records for these tests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use potok_connectors::kafka::{CreateTopics, KafkaConfig, KafkaLog};
use potok_core::{
    Assignment, ConsumerGroupSpec, EndedOffsets, Headers, Journal, Log, OpenGroup, Output,
    Partition, PipelineInfo, Record, Source, SourceEvent, SystemClock, Transaction,
};
use potok_testkit::services;

/// Longest wait for something that must happen. Only a hang reaches it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A name that no other test uses.
pub fn unique(name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// How to reach the shared broker.
pub fn config(properties: &[(&str, &str)]) -> KafkaConfig {
    KafkaConfig {
        servers: services::kafka().servers(),
        properties: properties.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect(),
        create_topics: Some(CreateTopics { partitions: 4, replication: Some(1) }),
        client_id: "potok-test".to_owned(),
    }
}

/// A log on the shared broker; each is like a process of its own.
pub async fn log() -> Arc<KafkaLog> {
    log_with(&[]).await
}

/// The same with properties.
pub async fn log_with(properties: &'static [(&'static str, &'static str)]) -> Arc<KafkaLog> {
    // RUST_LOG=debug shows what happened in a test that failed.
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let told = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
    drop(told);
    let config = tokio::task::spawn_blocking(|| config(properties)).await.unwrap();
    KafkaLog::new(config, Arc::new(SystemClock)).unwrap()
}

/// Creates a topic with so many partitions.
pub async fn topic(name: &str, partitions: u32) -> String {
    topic_with(name, partitions, &[]).await
}

/// The same with settings.
pub async fn topic_with(
    name: &str,
    partitions: u32,
    settings: &'static [(&'static str, &'static str)],
) -> String {
    let topic = unique(name);
    let created = topic.clone();
    blocking(move || services::kafka().create_topic(&created, partitions, settings)).await;
    topic
}

/// Runs what blocks.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// A group of its own.
pub fn spec(group: &str, topic: &str, from_end: bool) -> ConsumerGroupSpec {
    ConsumerGroupSpec {
        group: group.to_owned(),
        topics: vec![topic.into()],
        from_end,
        exact: false,
        info: PipelineInfo {
            pipeline: group.to_owned(),
            dead_letters: format!("{group}-dead"),
            resolved: format!("{group}-dead-resolved"),
            replay: format!("{group}-replay"),
            replays_max: 5,
            internal: None,
        },
    }
}

/// Records with these values for one partition.
pub fn records<V: ToString>(
    topic: &str,
    partition: u32,
    values: impl IntoIterator<Item = V>,
) -> Vec<Output> {
    let output = |value: V| Output {
        topic: topic.into(),
        partition: Some(partition),
        key: Some(Bytes::from_static(b"k")),
        headers: Headers::none(),
        value: Some(value.to_string().into()),
    };
    values.into_iter().map(output).collect()
}

/// The text of a record.
pub fn text(record: &Record) -> String {
    String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()).into_owned()
}

/// A member of a group that ends everything it reads.
pub struct Member {
    pub source: Box<dyn Source>,
    pub journal: Arc<dyn Journal>,
    pub assigned: BTreeMap<u64, Assignment>,
    /// What came: partition, offset, value.
    pub seen: Vec<(Partition, u64, String)>,
    /// The log of each of them.
    pub logs: Vec<u64>,
    /// Whether what comes is ended at once.
    pub ends: bool,
    pub revoked: usize,
    pub lost: usize,
    /// Why nothing can be read.
    pub stalled: Option<String>,
}

impl Member {
    pub async fn open(log: &Arc<KafkaLog>, spec: ConsumerGroupSpec) -> Member {
        let OpenGroup { source, journal } = log.open_group(spec).await.unwrap();
        Member {
            source,
            journal,
            assigned: BTreeMap::new(),
            seen: Vec::new(),
            logs: Vec::new(),
            ends: true,
            revoked: 0,
            lost: 0,
            stalled: None,
        }
    }

    /// Takes in the next thing.
    pub async fn step(&mut self) {
        match self.source.next().await.unwrap() {
            SourceEvent::Assigned(assignments) => {
                self.assigned.extend(assignments.into_iter().map(|a| (a.nonce, a)));
            }
            SourceEvent::Revoked(nonces) | SourceEvent::Finished(nonces) => {
                self.revoked += 1;
                nonces.iter().for_each(|nonce| drop(self.assigned.remove(nonce)));
            }
            SourceEvent::Lost(nonces) => {
                self.lost += 1;
                nonces.iter().for_each(|nonce| drop(self.assigned.remove(nonce)));
            }
            SourceEvent::Stalled(stall) => self.stalled = stall.map(|fault| fault.to_string()),
            SourceEvent::Batch(batch) => {
                let assignment = self.assigned.get(&batch.assignment).expect("ours");
                for record in &batch.records {
                    if !assignment.ended.contains(record.offset) {
                        let partition = batch.partition.clone();
                        self.seen.push((partition, record.offset, text(record)));
                        self.logs.push(batch.log);
                    }
                }
                if self.ends {
                    self.end(&batch.partition, batch.assignment, batch.first..batch.next).await;
                }
            }
        }
    }

    pub async fn end(&mut self, partition: &Partition, nonce: u64, range: std::ops::Range<u64>) {
        let ended =
            EndedOffsets { partition: partition.clone(), assignment: nonce, ranges: vec![range] };
        let transaction = Transaction { outputs: Vec::new(), ended: vec![ended] };
        self.journal.transact(&transaction).await.unwrap();
    }

    /// Goes on until the condition holds.
    pub async fn until(&mut self, what: &str, done: impl Fn(&Member) -> bool) {
        let going = async {
            while !done(self) {
                self.step().await;
            }
        };
        if tokio::time::timeout(PATIENCE, going).await.is_err() {
            panic!("{what}: not within {PATIENCE:?}");
        }
    }

    /// Goes on for a while.
    pub async fn for_a_while(&mut self, long: Duration) {
        let going = async {
            loop {
                self.step().await;
            }
        };
        let _: Result<(), _> = tokio::time::timeout(long, going).await;
    }

    pub fn values(&self) -> Vec<String> {
        self.seen.iter().map(|(_, _, value)| value.clone()).collect()
    }
}

/// What the group has committed: position per partition, as its log says.
pub async fn positions(log: &Arc<KafkaLog>, group: &str) -> BTreeMap<u32, u64> {
    let groups = log.consumer_groups().await.unwrap();
    let group = groups.into_iter().find(|found| found.group == group).expect("registered");
    group
        .partitions
        .into_iter()
        .filter(|partition| !partition.topic.ends_with("-replay"))
        .map(|partition| (partition.partition, partition.committed))
        .collect()
}

/// Waits until something holds.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
        panic!("{what}: not within {PATIENCE:?}");
    }
}
