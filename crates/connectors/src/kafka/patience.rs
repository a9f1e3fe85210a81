//! How long receipts are waited for where nobody has to wait: a partition without a leader, or with too
//! few copies, gives none for as long as that lasts, and the client keeps its records without a word.
//!
//! A cluster that is away is waited for, because its records come out in order and once when it is
//! back. Only where it answers otherwise is a call given up, and the next one for such a partition
//! sooner.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use potok_core::{Fault, Output};
use tokio::time::Instant;

use super::lock;
use super::producer::Receipt;
use super::topics::Topics;

/// How long a cluster that answers may say nothing about a record.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// The same where the partition has said nothing before.
const SILENCE_AGAIN_MAX: Duration = Duration::from_secs(2);
/// How often the cluster is asked meanwhile whether it answers.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// A partition that was not heard of for so long is as good as any other.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// A partition; none where the client did not know to which one a record belongs.
type NamedPartition = (Arc<str>, Option<u32>);

/// A topic and a key: all records of these are in one partition.
type KeyedTopic = (Arc<str>, Option<Bytes>);

/// Partitions of which nothing is heard, and since when they were asked last.
#[derive(Default)]
pub struct SilentPartitions(Mutex<HashMap<NamedPartition, Instant>>);

impl SilentPartitions {
    /// For a call with these records.
    pub fn patience<'a>(&self, topics: &'a Arc<Topics>, outputs: &[&Output]) -> Patience<'a> {
        let mut silent = lock(&self.0);
        silent.retain(|_, asked| asked.elapsed() < FORGOTTEN);
        let is_silent = |output: &&Output| silent.keys().any(|(topic, _)| *topic == output.topic);
        let most = match outputs.iter().any(is_silent) {
            true => SILENCE_AGAIN_MAX,
            false => SILENCE_MAX,
        };
        Patience { topics, most, given_up: Mutex::default() }
    }

    /// Takes in how a call went.
    pub fn learn(&self, outputs: &[&Output], receipts: &[Option<Receipt>], went: &Patience<'_>) {
        let mut silent = lock(&self.0);
        for (output, receipt) in outputs.iter().zip(receipts) {
            if let Some(Ok((partition, _))) = receipt
                && silent.remove(&(output.topic.clone(), Some(*partition))).is_some()
            {
                tracing::info!(topic = &*output.topic, partition, "Kafka takes records again");
            }
        }
        for ((topic, _), partition) in &*lock(&went.given_up) {
            if silent.insert((topic.clone(), *partition), Instant::now()).is_none() {
                let why = silence(topic, *partition);
                tracing::warn!(topic = &**topic, partition, "{why}");
            }
        }
    }
}

/// The patience of one call.
pub struct Patience<'a> {
    topics: &'a Arc<Topics>,
    most: Duration,
    /// Where records belong that were given up, by topic and key.
    given_up: Mutex<HashMap<KeyedTopic, Option<u32>>>,
}

impl Patience<'_> {
    /// Comes when the cluster has answered all the time, and said nothing about the records that are
    /// left, whose number this is. One that takes its time tells of some now and then.
    pub async fn is_over(&self, left: impl Fn() -> usize + Send) {
        let (mut silent_since, mut before) = (Instant::now(), left());
        loop {
            tokio::time::sleep(ASK_EVERY).await;
            let is_there = self.topics.is_there().await;
            let now = left();
            if !is_there || now != before {
                (silent_since, before) = (Instant::now(), now);
            } else if silent_since.elapsed() >= self.most {
                return;
            }
        }
    }

    /// A record was given up that belongs there.
    pub fn gave_up(&self, output: &Output, partition: Option<u32>) {
        let key = (output.topic.clone(), output.key.clone());
        lock(&self.given_up).insert(key, partition);
    }

    /// Why it was.
    pub fn fault(&self, output: &Output) -> Fault {
        let key = (output.topic.clone(), output.key.clone());
        let partition = lock(&self.given_up).get(&key).copied().flatten();
        let hint = "it has no leader, or fewer replicas in sync than `min.insync.replicas`; it is tried \
                    again and again, and other partitions go on";
        Fault::wait(silence(&output.topic, partition)).code("P0601").hint(hint)
    }
}

fn silence(topic: &str, partition: Option<u32>) -> String {
    match partition {
        Some(partition) => format!("Kafka takes no record for partition {partition} of `{topic}`"),
        None => format!("Kafka takes no record for some partition of `{topic}`"),
    }
}
