//! What all tests of the embedded log need.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use potok_connectors::embedded::{EmbeddedLog, Options};
use potok_core::{
    Clock, ConsumerGroupSpec, Fault, Headers, Log, OpenGroup, Output, Owner, Partition,
    PipelineInfo, Position, ReadFrom, Record, SourceBatch, SourceEvent, StoreAddress, Timestamp,
};
use potok_testkit::FaultyDisk;

/// The data folder on a faulty disk.
pub fn dir() -> &'static Path {
    Path::new("/data")
}

/// A clock that goes where it is told.
pub struct TestClock(AtomicI64);

impl TestClock {
    pub fn new() -> Arc<Self> {
        Arc::new(TestClock(AtomicI64::new(1_700_000_000_000)))
    }

    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_millis() as i64, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

/// A small log: two partitions, segments of some frames, a small reserve.
pub fn small() -> Options {
    Options {
        segment_bytes: 1_500,
        partitions: 2,
        retention_age: None,
        retention_bytes: None,
        reserve_bytes: 4_096,
        ..Options::default()
    }
}

pub fn open(disk: &FaultyDisk) -> Arc<EmbeddedLog> {
    open_with(disk, small()).unwrap()
}

pub fn open_with(disk: &FaultyDisk, options: Options) -> Result<Arc<EmbeddedLog>, Fault> {
    EmbeddedLog::open_on(Arc::new(disk.clone()), dir(), options, TestClock::new())
}

/// Runs a test's future; a test that hangs fails.
pub fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(300), work).await.expect("the test hangs")
    })
}

pub fn output(topic: &str, key: Option<&str>, value: &str) -> Output {
    Output {
        topic: topic.into(),
        partition: None,
        key: key.map(|key| Bytes::copy_from_slice(key.as_bytes())),
        headers: Headers::none(),
        value: Some(Bytes::copy_from_slice(value.as_bytes())),
    }
}

pub async fn append(log: &EmbeddedLog, topic: &str, value: &str) -> Result<Position, Fault> {
    let positions = log.append(&[output(topic, Some(value), value)]).await?;
    Ok(positions.into_iter().next().expect("a position for each output"))
}

/// Everything in a topic, in the order it is handed out.
pub async fn read_all(log: &EmbeddedLog, topic: &str) -> Vec<(Position, Record)> {
    read_from(log, topic, ReadFrom::Start).await
}

pub async fn read_from(log: &EmbeddedLog, topic: &str, from: ReadFrom) -> Vec<(Position, Record)> {
    let Ok(mut reader) = log.read(topic, from).await else { return Vec::new() };
    let mut all = Vec::new();
    while let Some(batch) = reader.next(false).await.unwrap() {
        check_batch(&batch).unwrap();
        all.extend(batch.records.iter().map(|record| (batch.position(record), record.clone())));
    }
    all
}

/// The values of a topic, by position.
pub async fn values(log: &EmbeddedLog, topic: &str) -> BTreeMap<Position, String> {
    let all = read_all(log, topic).await;
    all.into_iter().map(|(position, record)| (position, text(&record))).collect()
}

pub fn text(record: &Record) -> String {
    String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()).into_owned()
}

/// The rules of a batch.
pub fn check_batch(batch: &SourceBatch) -> Result<(), String> {
    let offsets: Vec<u64> = batch.records.iter().map(|record| record.offset).collect();
    let ascending = offsets.windows(2).all(|pair| pair[0] < pair[1]);
    let inside = offsets.iter().all(|offset| (batch.first..batch.next).contains(offset));
    if ascending && inside {
        return Ok(());
    }
    Err(format!("batch {}..{} with offsets {offsets:?}", batch.first, batch.next))
}

pub fn spec(group: &str, topics: &[&str]) -> ConsumerGroupSpec {
    ConsumerGroupSpec {
        group: group.to_owned(),
        topics: topics.iter().map(|topic| Arc::from(*topic)).collect(),
        from_end: false,
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

/// A group and what it was given at opening.
pub struct Member {
    pub open: OpenGroup,
    pub assigned: BTreeMap<Partition, potok_core::Assignment>,
}

impl Member {
    pub async fn open(log: &EmbeddedLog, spec: ConsumerGroupSpec) -> Result<Member, Fault> {
        let mut open = log.open_group(spec).await?;
        let SourceEvent::Assigned(assigned) = open.source.next().await? else {
            panic!("a source begins with its partitions");
        };
        let assigned = assigned.into_iter().map(|a| (a.partition.clone(), a)).collect();
        Ok(Member { open, assigned })
    }

    /// The next batch, however long it takes.
    pub async fn batch(&mut self) -> Result<SourceBatch, Fault> {
        match self.open.source.next().await? {
            SourceEvent::Batch(batch) => {
                check_batch(&batch).unwrap();
                Ok(batch)
            }
            other => panic!("not a batch: {other:?}"),
        }
    }

    /// Reads `count` records, and no more than that.
    pub async fn take(&mut self, count: usize) -> Vec<(Position, Record)> {
        let mut all = Vec::new();
        while all.len() < count {
            let batch = self.batch().await.unwrap();
            let of = |record: &Record| (batch.position(record), record.clone());
            all.extend(batch.records.iter().map(of));
        }
        assert_eq!(all.len(), count);
        all
    }
}

/// One bit of every byte, or every byte: positions spread over a file.
pub fn flip(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut flipped = bytes.to_vec();
    flipped[at] ^= 1 << (at % 8);
    flipped
}

/// Segment files of a log, oldest first.
pub fn segments(disk: &FaultyDisk) -> Vec<std::path::PathBuf> {
    let files = disk.files().into_iter();
    files.filter(|path| path.extension().is_some_and(|extension| extension == "seg")).collect()
}

/// What is missing of `wanted`, if anything, and what is there under other bytes.
pub fn check_present(
    wanted: &BTreeMap<Position, String>,
    present: &BTreeMap<Position, String>,
) -> Result<(), String> {
    for (position, value) in wanted {
        match present.get(position) {
            Some(found) if found == value => {}
            found => return Err(format!("{position} was {value:?} and is {found:?}")),
        }
    }
    Ok(())
}

/// Nothing was made up: everything present was once tried.
pub fn check_known(
    tried: &BTreeSet<String>,
    present: &BTreeMap<Position, String>,
) -> Result<(), String> {
    match present.iter().find(|(_, value)| !tried.contains(*value)) {
        Some((position, value)) => Err(format!("{position} holds {value:?}, which nobody wrote")),
        None => Ok(()),
    }
}

/// An owner of a share of groups.
pub fn owner(nonce: u64) -> Owner {
    Owner { pipeline: "p".into(), share: 0, nonce }
}

/// Records at these positions, held in one group.
pub fn places(positions: &[Position]) -> Vec<StoreAddress> {
    let place = |position: &Position| StoreAddress {
        group: Bytes::from_static(b"g"),
        kind: None,
        id: None,
        position: position.clone(),
        with: position.offset,
    };
    positions.iter().map(place).collect()
}
