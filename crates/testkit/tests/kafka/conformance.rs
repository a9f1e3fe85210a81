//! The suites of `Log` and `Source`.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use potok_connectors::kafka::KafkaLog;
use potok_core::{Log, SystemClock};
use potok_testkit::suites::log::{LogFeatures, LogHarness};
use potok_testkit::suites::{log, source};

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
