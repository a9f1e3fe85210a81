//! The connectors in memory.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::{Log, Sink, Store, SystemClock};
use potok_testkit::memory::{MemoryLog, MemorySink, MemoryStore};
use potok_testkit::suites::log::{LogFeatures, LogHarness};
use potok_testkit::suites::sink::{SinkFeatures, SinkHarness};
use potok_testkit::suites::store::{Look, StoreFeatures, StoreHarness};
use potok_testkit::suites::{log, sink, source, store};

use super::passed;

struct MemoryLogs;

#[async_trait]
impl LogHarness for MemoryLogs {
    fn features(&self) -> LogFeatures {
        LogFeatures { partitions: 4, durable: false, transactional: true }
    }

    async fn fresh(&self) -> Result<Arc<dyn Log>, String> {
        Ok(Arc::new(MemoryLog::new(Arc::new(SystemClock))))
    }

    async fn reopen(&self, log: Arc<dyn Log>) -> Result<Arc<dyn Log>, String> {
        Ok(log)
    }

    fn acknowledges_at_once(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn memory_log() {
    passed(log::run_all(&MemoryLogs).await);
}

#[tokio::test(start_paused = true)]
async fn memory_source() {
    passed(source::run_all(&MemoryLogs).await);
}

#[derive(Default)]
struct MemorySinks(Mutex<Option<MemorySink>>);

#[async_trait]
impl SinkHarness for MemorySinks {
    fn features(&self) -> SinkFeatures {
        SinkFeatures { deduplicates: true, once: false, ordered: true }
    }

    async fn fresh(&self) -> Result<Arc<dyn Sink>, String> {
        let sink = MemorySink::new();
        *self.0.lock().unwrap() = Some(sink.clone());
        Ok(Arc::new(sink))
    }

    async fn reopen(&self, sink: Arc<dyn Sink>) -> Result<Arc<dyn Sink>, String> {
        Ok(sink)
    }

    fn value(&self, id: &str, text: &str) -> Bytes {
        format!("{id}\0{text}").into()
    }

    fn refused(&self, _: &str) -> Option<Bytes> {
        None
    }

    async fn found(&self) -> Result<Vec<(String, String)>, String> {
        let sink = self.0.lock().unwrap().clone().unwrap();
        let pair = |value: &Bytes| {
            let text = std::str::from_utf8(value).ok()?;
            text.split_once('\0').map(|(id, text)| (id.to_owned(), text.to_owned()))
        };
        let found = sink.delivered().iter().map(|message| pair(&message.value)).collect();
        Option::ok_or(found, "a value changed".to_owned())
    }
}

#[tokio::test(start_paused = true)]
async fn memory_sink() {
    passed(sink::run_all(&MemorySinks::default()).await);
}

#[derive(Default)]
struct MemoryStores(Mutex<MemoryStore>);

#[async_trait]
impl StoreHarness for MemoryStores {
    fn features(&self) -> StoreFeatures {
        StoreFeatures { durable: false, of_log: false, shown: true }
    }

    async fn fresh(&self) -> Result<Arc<dyn Store>, String> {
        let store = MemoryStore::new();
        *self.0.lock().unwrap() = store.clone();
        Ok(Arc::new(store))
    }

    async fn reopen(&self, store: Arc<dyn Store>) -> Result<Arc<dyn Store>, String> {
        Ok(store)
    }

    async fn look(&self, group: &Bytes) -> Result<Option<Look>, String> {
        let found = self.0.lock().unwrap().look("p", 0, group);
        Ok(found.map(|group| Look {
            closed: group.closed,
            records: group
                .records
                .into_iter()
                .map(|(kind, id, record)| {
                    let kind = kind.as_deref().unwrap_or("record").to_owned();
                    (kind, id, record.value.unwrap_or_default())
                })
                .collect(),
        }))
    }
}

#[tokio::test(start_paused = true)]
async fn memory_store() {
    passed(store::run_all(&MemoryStores::default()).await);
}
