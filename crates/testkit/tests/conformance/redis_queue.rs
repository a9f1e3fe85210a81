//! A list in Redis as a queue and as a destination, on a real server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use potok_connectors::redis::{QueueOptions, RedisListSink, RedisQueue};
use potok_core::{Feed, Log, Record, Sink, SystemClock};
use potok_expr::Template;
use potok_testkit::memory::MemoryLog;
use potok_testkit::services;
use potok_testkit::suites::feed::{self, FeedHarness};
use potok_testkit::suites::sink::{self, SinkFeatures, SinkHarness};
use serde_json::{Value, json};

use super::passed;

/// A database that nobody else of these tests has.
fn url(database: u8) -> String {
    format!("{}/{database}", services::redis().url())
}

fn connect(database: u8) -> redis::Connection {
    redis::Client::open(url(database)).unwrap().get_connection().unwrap()
}

const QUEUE: u8 = 3;
const LIST: u8 = 4;

struct Queues;

impl Queues {
    fn open() -> Result<Arc<dyn Feed>, String> {
        let options = QueueOptions {
            pipeline: "suite".to_owned(),
            list: "queue:incoming".to_owned(),
            by: Template::parse("{.k}").unwrap(),
            quiet: Duration::from_millis(150),
            quiet_by: None,
            max_age: Duration::from_secs(60),
            max_count: Some(100),
            max_bytes: None,
            lease: Duration::from_secs(1),
            waiting_max: 1_000,
            seen: None,
        };
        let queue = RedisQueue::new(&url(QUEUE), options).map_err(|fault| fault.to_string())?;
        Ok(Arc::new(queue))
    }
}

#[async_trait]
impl FeedHarness for Queues {
    async fn fresh(&self) -> Result<Arc<dyn Feed>, String> {
        redis::cmd("FLUSHDB").exec(&mut connect(QUEUE)).unwrap();
        Queues::open()
    }

    async fn another(&self) -> Result<Arc<dyn Feed>, String> {
        Queues::open()
    }

    async fn fill(&self, records: &[(&str, &str)]) -> Result<(), String> {
        let entry = |(key, value): &(&str, &str)| json!({ "k": key, "v": value }).to_string();
        let entries: Vec<String> = records.iter().map(entry).collect();
        let push = redis::cmd("RPUSH").arg("queue:incoming").arg(entries).exec(&mut connect(QUEUE));
        push.map_err(|error| error.to_string())
    }

    fn value_of(&self, record: &Record) -> String {
        let value: Value =
            serde_json::from_slice(record.value.as_deref().unwrap_or_default()).unwrap_or_default();
        value["v"].as_str().unwrap_or_default().to_owned()
    }

    async fn log(&self) -> Result<Arc<dyn Log>, String> {
        Ok(Arc::new(MemoryLog::new(Arc::new(SystemClock))))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_queue() {
    passed(feed::run_all(&Queues).await);
}

struct Lists;

impl Lists {
    fn open() -> Result<Arc<dyn Sink>, String> {
        let sink = RedisListSink::new(&url(LIST), "queue:done", Duration::from_secs(3_600))
            .map_err(|fault| fault.to_string())?;
        Ok(Arc::new(sink))
    }
}

#[async_trait]
impl SinkHarness for Lists {
    fn features(&self) -> SinkFeatures {
        SinkFeatures { deduplicates: true, once: false, ordered: true }
    }

    async fn fresh(&self) -> Result<Arc<dyn Sink>, String> {
        redis::cmd("FLUSHDB").exec(&mut connect(LIST)).unwrap();
        Lists::open()
    }

    async fn reopen(&self, sink: Arc<dyn Sink>) -> Result<Arc<dyn Sink>, String> {
        drop(sink);
        Lists::open()
    }

    fn value(&self, id: &str, text: &str) -> Bytes {
        json!({ "id": id, "text": text }).to_string().into()
    }

    /// It takes any bytes.
    fn refused(&self, _id: &str) -> Option<Bytes> {
        None
    }

    async fn found(&self) -> Result<Vec<(String, String)>, String> {
        let range = redis::cmd("LRANGE").arg("queue:done").arg(0).arg(-1).to_owned();
        let entries: Vec<String> =
            range.query(&mut connect(LIST)).map_err(|error| error.to_string())?;
        let pair = |entry: &String| {
            let value: Value = serde_json::from_str(entry).map_err(|error| error.to_string())?;
            let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
            Ok((text("id"), text("text")))
        };
        entries.iter().map(pair).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_list() {
    passed(sink::run_all(&Lists).await);
}
