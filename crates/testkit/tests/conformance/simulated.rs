//! The simulated systems: what the simulator proves is worth no more than they are true to their
//! contracts.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::{Feed, Log, Sink, Store};
use potok_testkit::sim::{
    FeedManner, LogHandle, Manner, SimFeed, SimLog, SimSink, SimStore, Style, World,
};
use potok_testkit::suites::feed::{self, FeedHarness};
use potok_testkit::suites::log::{LogFeatures, LogHarness};
use potok_testkit::suites::sink::{SinkFeatures, SinkHarness};
use potok_testkit::suites::store::{StoreFeatures, StoreHarness};
use potok_testkit::suites::{log, sink, source, store};
use serde_json::{Value, json};

use super::passed;

struct SimulatedLogs {
    world: Mutex<Option<Arc<World>>>,
    overlap: usize,
}

impl SimulatedLogs {
    fn new(overlap: usize) -> Self {
        SimulatedLogs { world: Mutex::default(), overlap }
    }
}

#[async_trait]
impl LogHarness for SimulatedLogs {
    fn features(&self) -> LogFeatures {
        LogFeatures { partitions: 4, durable: true, transactional: self.overlap == 1 }
    }

    async fn fresh(&self) -> Result<Arc<dyn Log>, String> {
        let world = World::calm(7, 4);
        world.with(|w| w.overlap = self.overlap);
        world.begin_life();
        *self.world.lock().unwrap() = Some(world.clone());
        Ok(Arc::new(LogHandle::new(SimLog::open(world))))
    }

    /// Another life in the same world, with a gap in the offsets as after a cut.
    async fn reopen(&self, _: Arc<dyn Log>) -> Result<Arc<dyn Log>, String> {
        let world = self.world.lock().unwrap().clone().unwrap();
        world.end_life();
        world.with(|w| {
            let incarnation = w.chance.next();
            w.disk.start_incarnation(incarnation, 3);
        });
        world.begin_life();
        Ok(Arc::new(LogHandle::new(SimLog::open(world))))
    }
}

#[tokio::test(start_paused = true)]
async fn simulated_log() {
    passed(log::run_all(&SimulatedLogs::new(1)).await);
}

#[tokio::test(start_paused = true)]
async fn simulated_source() {
    passed(source::run_all(&SimulatedLogs::new(1)).await);
}

#[tokio::test(start_paused = true)]
async fn simulated_source_whose_transactions_overlap() {
    passed(source::run_all(&SimulatedLogs::new(4)).await);
}

struct SimulatedSinks {
    manner: Manner,
    world: Mutex<Option<Arc<World>>>,
}

#[async_trait]
impl SinkHarness for SimulatedSinks {
    fn features(&self) -> SinkFeatures {
        let deduplicates = self.manner.deduplicates;
        SinkFeatures { deduplicates, once: deduplicates, ordered: true }
    }

    async fn fresh(&self) -> Result<Arc<dyn Sink>, String> {
        let world = World::calm(7, 4);
        world.begin_life();
        *self.world.lock().unwrap() = Some(world.clone());
        Ok(SimSink::open(world, 0, self.manner))
    }

    async fn reopen(&self, _: Arc<dyn Sink>) -> Result<Arc<dyn Sink>, String> {
        let world = self.world.lock().unwrap().clone().unwrap();
        Ok(SimSink::open(world, 0, self.manner))
    }

    fn value(&self, id: &str, text: &str) -> Bytes {
        json!({"id": id, "k": "k", "text": text}).to_string().into()
    }

    fn refused(&self, id: &str) -> Option<Bytes> {
        Some(json!({"id": id, "do": "refuse"}).to_string().into())
    }

    async fn found(&self) -> Result<Vec<(String, String)>, String> {
        let world = self.world.lock().unwrap().clone().unwrap();
        let rows = world.with(|w| w.tables[0].rows.clone());
        let pair = |value: &[u8]| {
            let value: Value = serde_json::from_slice(value).ok()?;
            Some((value["id"].as_str()?.to_owned(), value["text"].as_str()?.to_owned()))
        };
        let found = rows.iter().map(|row| pair(&row.value)).collect();
        Option::ok_or(found, "a value changed".to_owned())
    }
}

#[tokio::test(start_paused = true)]
async fn simulated_sinks_of_every_manner() {
    for style in [Style::Whole, Style::Prefix, Style::PerMessage] {
        for deduplicates in [true, false] {
            let manner = Manner { style, deduplicates, ..Manner::default() };
            let sinks = SimulatedSinks { manner, world: Mutex::default() };
            passed(sink::run_all(&sinks).await.map_err(|why| format!("{manner:?}: {why}")));
        }
    }
}

#[derive(Default)]
struct SimulatedStores(Mutex<Arc<SimStore>>);

#[async_trait]
impl StoreHarness for SimulatedStores {
    fn features(&self) -> StoreFeatures {
        StoreFeatures { durable: true, of_log: false, shown: false }
    }

    async fn fresh(&self) -> Result<Arc<dyn Store>, String> {
        let store = Arc::new(SimStore::default());
        *self.0.lock().unwrap() = store.clone();
        Ok(store)
    }

    async fn reopen(&self, store: Arc<dyn Store>) -> Result<Arc<dyn Store>, String> {
        Ok(store)
    }

    async fn wipe(&self) -> Result<bool, String> {
        self.0.lock().unwrap().flush();
        Ok(true)
    }
}

#[tokio::test(start_paused = true)]
async fn simulated_store() {
    passed(store::run_all(&SimulatedStores::default()).await);
}

struct Feeds {
    manner: FeedManner,
    last: Mutex<Option<(Arc<World>, SimFeed)>>,
}

impl Feeds {
    fn last(&self) -> (Arc<World>, SimFeed) {
        self.last.lock().unwrap().clone().unwrap()
    }
}

#[async_trait]
impl FeedHarness for Feeds {
    async fn fresh(&self) -> Result<Arc<dyn Feed>, String> {
        let world = World::calm(7, 1);
        world.begin_life();
        let feed = SimFeed::new(world.clone(), self.manner, 7, false);
        *self.last.lock().unwrap() = Some((world, feed.clone()));
        Ok(Arc::new(feed))
    }

    async fn another(&self) -> Result<Arc<dyn Feed>, String> {
        Ok(Arc::new(self.last().1))
    }

    async fn fill(&self, records: &[(&str, &str)]) -> Result<(), String> {
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        self.last().1.fill(records.iter().map(|(key, value)| (bytes(key), bytes(value))));
        Ok(())
    }

    async fn set_aside(&self) -> Result<Vec<String>, String> {
        let feed = self.last().1;
        let rows = feed.lock();
        let aside = rows.rows.values().filter(|row| row.aside);
        Ok(aside.map(|row| String::from_utf8_lossy(&row.value).into_owned()).collect())
    }

    async fn log(&self) -> Result<Arc<dyn Log>, String> {
        Ok(Arc::new(LogHandle::new(SimLog::open(self.last().0))))
    }
}

#[tokio::test(start_paused = true)]
async fn simulated_feed_of_rows() {
    passed(feed::run_all(&Feeds { manner: FeedManner::Rows, last: Mutex::default() }).await);
}

#[tokio::test(start_paused = true)]
async fn simulated_feed_of_chats() {
    passed(feed::run_all(&Feeds { manner: FeedManner::Chats, last: Mutex::default() }).await);
}
