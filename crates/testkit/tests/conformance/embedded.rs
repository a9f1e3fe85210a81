//! The embedded log: in a real folder, and on a disk whose power is cut each time it is reopened.

use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use potok_connectors::embedded::{EmbeddedLog, Options};
use potok_core::{Log, Output, Partition, Record, SourceBatch, Store, SystemClock};
use potok_testkit::suites::log::{LogFeatures, LogHarness};
use potok_testkit::suites::store::{StoreFeatures, StoreHarness, strange};
use potok_testkit::suites::{log, source, store};
use potok_testkit::{FaultyDisk, PowerCut};
use tempfile::TempDir;

use super::passed;

fn features() -> LogFeatures {
    LogFeatures { partitions: 4, durable: true, transactional: true }
}

/// Logs in folders of their own, closed in good order before they are opened again.
struct Folders {
    options: Options,
    open: Mutex<Option<(TempDir, Arc<EmbeddedLog>)>>,
}

impl Folders {
    fn new(options: Options) -> Self {
        Folders { options, open: Mutex::default() }
    }

    fn open(&self, dir: TempDir) -> Result<Arc<EmbeddedLog>, String> {
        let log = EmbeddedLog::open(dir.path(), self.options.clone(), Arc::new(SystemClock));
        let log = log.map_err(|fault| fault.to_string())?;
        *self.open.lock().unwrap() = Some((dir, log.clone()));
        Ok(log)
    }

    fn open_again(&self) -> Result<Arc<EmbeddedLog>, String> {
        let (dir, log) = self.open.lock().unwrap().take().unwrap();
        log.close();
        self.open(dir)
    }
}

#[async_trait]
impl LogHarness for Folders {
    fn features(&self) -> LogFeatures {
        features()
    }

    async fn fresh(&self) -> Result<Arc<dyn Log>, String> {
        Ok(self.open(tempfile::tempdir().unwrap())?)
    }

    async fn reopen(&self, _: Arc<dyn Log>) -> Result<Arc<dyn Log>, String> {
        Ok(self.open_again()?)
    }
}

#[tokio::test]
async fn embedded_log() {
    passed(log::run_all(&Folders::new(Options::default())).await);
}

#[tokio::test]
async fn embedded_source() {
    passed(source::run_all(&Folders::new(Options::default())).await);
}

/// So small that everything lies across several of them.
fn small_segments() -> Options {
    Options { segment_bytes: 2_000, ..Options::default() }
}

#[tokio::test]
async fn embedded_log_in_small_segments() {
    passed(log::run_all(&Folders::new(small_segments())).await);
}

#[tokio::test]
async fn embedded_source_in_small_segments() {
    passed(source::run_all(&Folders::new(small_segments())).await);
}

/// Logs on a disk that loses whatever was not synced when they are opened again.
#[derive(Default)]
struct PowerCuts(Mutex<Option<(FaultyDisk, Arc<EmbeddedLog>)>>);

impl PowerCuts {
    fn open(&self, disk: FaultyDisk) -> Result<Arc<dyn Log>, String> {
        let (on, clock) = (Arc::new(disk.clone()), Arc::new(SystemClock));
        let log = EmbeddedLog::open_on(on, Path::new("/log"), small_segments(), clock);
        let log = log.map_err(|fault| fault.to_string())?;
        *self.0.lock().unwrap() = Some((disk, log.clone()));
        Ok(log)
    }
}

#[async_trait]
impl LogHarness for PowerCuts {
    fn features(&self) -> LogFeatures {
        features()
    }

    async fn fresh(&self) -> Result<Arc<dyn Log>, String> {
        self.open(FaultyDisk::new())
    }

    async fn reopen(&self, _: Arc<dyn Log>) -> Result<Arc<dyn Log>, String> {
        let (disk, log) = self.0.lock().unwrap().take().unwrap();
        let after = disk.power_cut(PowerCut::Nothing);
        log.close();
        self.open(after)
    }

    fn stall(&self) -> bool {
        self.0.lock().unwrap().as_ref().unwrap().0.hold_syncs(true);
        true
    }

    fn is_stalled(&self) -> bool {
        self.0.lock().unwrap().as_ref().unwrap().0.held_syncs() > 0
    }
}

#[tokio::test]
async fn embedded_log_across_power_cuts() {
    passed(log::run_all(&PowerCuts::default()).await);
}

#[test]
#[cfg(debug_assertions)]
fn a_log_that_is_read_ahead_of_its_fsync_fails_the_suite() {
    use potok_core::trouble::{Bug, with_bug};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let passed =
        with_bug(Bug::ReaderAheadOfFsync, || runtime.block_on(log::run_all(&PowerCuts::default())));
    let failed = passed.expect_err("the bug was not found");
    assert!(failed.contains("was seen that was not acknowledged"), "{failed}");
}

#[tokio::test]
async fn embedded_source_across_power_cuts() {
    passed(source::run_all(&PowerCuts::default()).await);
}

#[async_trait]
impl StoreHarness for Folders {
    fn features(&self) -> StoreFeatures {
        StoreFeatures { durable: true, of_log: true, shown: false }
    }

    async fn fresh(&self) -> Result<Arc<dyn Store>, String> {
        Ok(Arc::new(self.open(tempfile::tempdir().unwrap())?.store()))
    }

    async fn reopen(&self, store: Arc<dyn Store>) -> Result<Arc<dyn Store>, String> {
        drop(store);
        Ok(Arc::new(self.open_again()?.store()))
    }

    /// The records are in the log: that is where this store reads them.
    async fn batch(&self, index: u32) -> Result<SourceBatch, String> {
        let log = self.open.lock().unwrap().as_ref().unwrap().1.clone();
        let outputs: Vec<Output> = strange("held")
            .into_iter()
            .map(|output| Output { partition: Some(index), ..output })
            .collect();
        let positions = log.append(&outputs).await.map_err(|fault| fault.to_string())?;
        let from = potok_core::ReadFrom::Offset(positions[0].offset);
        let mut reader = log.read("held", from).await.map_err(|fault| fault.to_string())?;
        let mut records: Vec<Record> = Vec::new();
        while let Some(batch) = reader.next(false).await.map_err(|fault| fault.to_string())? {
            if batch.partition.index == index {
                records.extend(batch.records);
            }
        }
        let (first, next) = (positions[0].offset, records.last().unwrap().offset + 1);
        let partition = Partition { topic: "held".into(), index };
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

#[tokio::test]
async fn embedded_store() {
    passed(store::run_all(&Folders::new(Options::default())).await);
    passed(store::run_all(&Folders::new(small_segments())).await);
}
