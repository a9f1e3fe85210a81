//! The suites of `Log` and `Source`.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use potok_connectors::kafka::KafkaLog;
use potok_core::{Log, Output, Partition, ReadFrom, Record, SourceBatch, Store, SystemClock};
use potok_testkit::suites::log::{LogFeatures, LogHarness};
use potok_testkit::suites::store::{StoreFeatures, StoreHarness, strange};
use potok_testkit::suites::{log, source, store};

use crate::setup::{blocking, config, unique};

struct Broker {
    properties: &'static [(&'static str, &'static str)],
    prefix: Mutex<String>,
}

impl Broker {
    fn new(properties: &'static [(&'static str, &'static str)]) -> Self {
        Broker { properties, prefix: Mutex::default() }
    }

    async fn open(&self) -> Result<Arc<dyn Log>, String> {
        let properties = self.properties;
        let config = blocking(move || config(properties)).await;
        let log = KafkaLog::new(config, Arc::new(SystemClock));
        Ok(log.map_err(|fault| fault.to_string())?)
    }
}

#[async_trait]
impl LogHarness for Broker {
    fn features(&self) -> LogFeatures {
        LogFeatures { partitions: 4, durable: true, transactional: false }
    }

    async fn fresh(&self) -> Result<Arc<dyn Log>, String> {
        *self.prefix.lock().unwrap() = unique("suite");
        self.open().await
    }

    async fn reopen(&self, log: Arc<dyn Log>) -> Result<Arc<dyn Log>, String> {
        // Waits until its groups have left.
        blocking(move || drop(log)).await;
        self.open().await
    }

    fn quiet(&self) -> Duration {
        Duration::from_millis(1_500)
    }

    fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix.lock().unwrap())
    }
}

/// Bodies of held records: in memory as far as they fit, else in Kafka itself.
struct Bodies {
    broker: Broker,
    log: Mutex<Option<Arc<dyn Log>>>,
}

impl Bodies {
    fn log(&self) -> Arc<dyn Log> {
        self.log.lock().unwrap().clone().unwrap()
    }
}

#[async_trait]
impl StoreHarness for Bodies {
    fn features(&self) -> StoreFeatures {
        StoreFeatures { durable: true, of_log: true, shown: false }
    }

    async fn fresh(&self) -> Result<Arc<dyn Store>, String> {
        let log = self.broker.fresh().await?;
        *self.log.lock().unwrap() = Some(log.clone());
        Ok(log.bodies())
    }

    async fn reopen(&self, store: Arc<dyn Store>) -> Result<Arc<dyn Store>, String> {
        drop(store);
        Ok(self.log().bodies())
    }

    /// The records are in the log, wherever else they are.
    async fn batch(&self, index: u32) -> Result<SourceBatch, String> {
        let (log, topic) = (self.log(), self.broker.name("held"));
        let outputs = strange(&topic).into_iter();
        let outputs: Vec<Output> =
            outputs.map(|output| Output { partition: Some(index), ..output }).collect();
        let positions = log.append(&outputs).await.map_err(|fault| fault.to_string())?;
        let from = ReadFrom::Offset(positions[0].offset);
        let mut reader = log.read(&topic, from).await.map_err(|fault| fault.to_string())?;
        let mut records: Vec<Record> = Vec::new();
        while let Some(batch) = reader.next(false).await.map_err(|fault| fault.to_string())? {
            if batch.partition.index == index {
                records.extend(batch.records);
            }
        }
        let (first, next) = (positions[0].offset, records.last().unwrap().offset + 1);
        let partition = Partition { topic: topic.as_str().into(), index };
        let (log, assignment) = (positions[0].log, 1);
        Ok(SourceBatch {
            partition,
            log,
            assignment,
            first,
            next,
            records,
            order: None,
            feed: None,
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_bodies() {
    let bodies = Bodies { broker: Broker::new(&[]), log: Mutex::default() };
    passed(store::run_all(&bodies).await);
}

fn passed(result: Result<usize, String>) {
    match result {
        Ok(0) => panic!("the suite is empty"),
        Ok(_) => {}
        Err(why) => panic!("{why}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_log() {
    passed(log::run_all(&Broker::new(&[])).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_source() {
    passed(source::run_all(&Broker::new(&[])).await);
}
