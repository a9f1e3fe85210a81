//! What the log suites share: making records, reading topics, reading groups.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use potok_core::{
    Assignment, ConsumerGroupSpec, EndedOffsets, Fault, Headers, HeadersBuilder, Journal, Log,
    Move, Output, Partition, PipelineInfo, Position, ReadFrom, Reader, Record, Source, SourceBatch,
    SourceEvent,
};

use super::log::LogHarness;
use super::{PATIENCE, QUIET, STRANGE_TEXT, ensure, within};

/// A record with a key and a value, the key choosing the partition.
pub fn keyed(topic: &str, key: &str, value: impl Into<Bytes>) -> Output {
    Output {
        topic: topic.into(),
        partition: None,
        key: Some(Bytes::copy_from_slice(key.as_bytes())),
        headers: Headers::none(),
        value: Some(value.into()),
    }
}

/// Records `0..count` of one partition, the number being the value.
pub fn numbered(topic: &str, partition: u32, count: usize) -> Vec<Output> {
    (0..count)
        .map(|n| Output { partition: Some(partition), ..keyed(topic, "k", n.to_string()) })
        .collect()
}

/// Records whose bytes go wrong wherever they are not taken as they are.
pub fn strange(topic: &str) -> Vec<Output> {
    let text = STRANGE_TEXT.as_bytes();
    let big: Bytes = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect::<Vec<u8>>().into();
    let all_bytes: Bytes = (0..=255).collect::<Vec<u8>>().into();
    let headers = [
        Headers::none(),
        HeadersBuilder::new()
            .add("a", Some(b"1"))
            .add("a", None)
            .add("", Some(b""))
            .add("a", Some(&all_bytes))
            .add(STRANGE_TEXT, Some(text))
            .build(),
    ];
    let keys = [
        None,
        Some(Bytes::new()),
        Some(Bytes::from_static(b"\0")),
        Some(Bytes::from_static(text)),
        Some(all_bytes.clone()),
    ];
    let values = [None, Some(Bytes::new()), Some(all_bytes), Some(Bytes::from_static(text))];
    let mut outputs = Vec::new();
    for key in &keys {
        for value in &values {
            let headers = headers[outputs.len() % headers.len()].clone();
            let (key, value) = (key.clone(), value.clone());
            outputs.push(Output { topic: topic.into(), partition: None, key, headers, value });
        }
    }
    let [_, full] = headers;
    outputs.push(Output {
        topic: topic.into(),
        partition: None,
        key: Some(big.clone()),
        headers: full,
        value: Some(big),
    });
    outputs
}

/// Says in words where a record is not what was sent.
pub fn same(sent: &Output, got: &Record) -> Result<(), String> {
    ensure!(sent.key == got.key, "the key changed from {:?} to {:?}", sent.key, got.key);
    ensure!(
        sent.headers.iter().eq(got.headers.iter()),
        "the headers changed from {:?} to {:?}",
        sent.headers.iter().collect::<Vec<_>>(),
        got.headers.iter().collect::<Vec<_>>()
    );
    ensure!(sent.value == got.value, "the value changed from {:?} to {:?}", sent.value, got.value);
    Ok(())
}

/// Appends, and checks that there is one position per record.
pub async fn append(log: &Arc<dyn Log>, outputs: &[Output]) -> Result<Vec<Position>, String> {
    let positions = within("append", log.append(outputs)).await?;
    ensure!(
        positions.len() == outputs.len(),
        "{} records gave {} positions",
        outputs.len(),
        positions.len()
    );
    Ok(positions)
}

/// A record and where it lies.
pub type PlacedRecord = (Position, Record);

/// Takes a batch apart, checking what every batch promises.
pub fn placed(batch: SourceBatch) -> Result<Vec<PlacedRecord>, String> {
    let offsets: Vec<u64> = batch.records.iter().map(|r| r.offset).collect();
    ensure!(offsets.is_sorted_by(|a, b| a < b), "offsets do not ascend: {offsets:?}");
    ensure!(
        offsets.iter().all(|o| (batch.first..batch.next).contains(o)),
        "offsets {offsets:?} lie outside {}..{}",
        batch.first,
        batch.next
    );
    Ok(batch.records.iter().map(|r| (batch.position(r), r.clone())).collect())
}

/// Everything a reader has until its end.
pub async fn drain(reader: &mut dyn Reader) -> Result<Vec<PlacedRecord>, String> {
    let mut all = Vec::new();
    while let Some(batch) = within("read", reader.next(false)).await? {
        all.extend(placed(batch)?);
    }
    Ok(all)
}

/// Everything in a topic, by position.
pub async fn read_all(
    log: &Arc<dyn Log>,
    topic: &str,
    from: ReadFrom,
) -> Result<BTreeMap<Position, Record>, String> {
    let mut reader = within("read", log.read(topic, from)).await?;
    let all = drain(reader.as_mut()).await?;
    let count = all.len();
    let map: BTreeMap<_, _> = all.into_iter().collect();
    ensure!(map.len() == count, "{} positions came twice", count - map.len());
    Ok(map)
}

/// Polls once and drops the future: the shortest possible cancellation.
pub async fn poll_once<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// How a suite describes its groups.
pub fn spec(
    harness: &dyn LogHarness,
    group: &str,
    topics: &[&str],
    from_end: bool,
) -> ConsumerGroupSpec {
    let group = harness.name(group);
    ConsumerGroupSpec {
        topics: topics.iter().map(|&t| t.into()).collect(),
        from_end,
        exact: false,
        info: PipelineInfo {
            pipeline: group.clone(),
            dead_letters: format!("{group}-dead"),
            resolved: format!("{group}-dead-resolved"),
            replay: format!("{group}-replay"),
            replays_max: 5,
            internal: None,
        },
        group,
    }
}

/// An open group and all it said so far.
pub struct GroupReading {
    source: Box<dyn Source>,
    pub journal: Arc<dyn Journal>,
    pub assigned: BTreeMap<Partition, Assignment>,
    pub seen: Vec<PlacedRecord>,
    next: BTreeMap<u64, u64>,
}

impl GroupReading {
    /// Opens the group. One that was just let go may need a moment, so a `Fix` is tried again.
    pub async fn open(log: &Arc<dyn Log>, spec: ConsumerGroupSpec) -> Result<Self, String> {
        let opening = async {
            loop {
                match log.open_group(spec.clone()).await {
                    Err(fault) if fault.next == Move::Fix => {
                        tokio::time::sleep(QUIET / 10).await;
                    }
                    other => return other,
                }
            }
        };
        let open = within("open the group", opening).await?;
        Ok(GroupReading {
            source: open.source,
            journal: open.journal,
            assigned: BTreeMap::new(),
            seen: Vec::new(),
            next: BTreeMap::new(),
        })
    }

    /// Takes in what the source said, checking what it promises.
    pub fn take(&mut self, intake: SourceEvent) -> Result<(), String> {
        match intake {
            SourceEvent::Assigned(assignments) => {
                for assignment in assignments {
                    self.next.insert(assignment.nonce, assignment.start);
                    self.assigned.insert(assignment.partition.clone(), assignment);
                }
            }
            SourceEvent::Batch(batch) => {
                let assignment = self.assigned.get(&batch.partition);
                let Some(assignment) = assignment.filter(|a| a.nonce == batch.assignment) else {
                    return Err(format!("a batch of {} came before it was ours", batch.partition));
                };
                let next = self.next.insert(assignment.nonce, batch.next).unwrap_or_default();
                ensure!(
                    batch.first == next && batch.next >= next,
                    "{} continued at {}..{} instead of {next}",
                    batch.partition,
                    batch.first,
                    batch.next
                );
                self.seen.extend(placed(batch)?);
            }
            SourceEvent::Revoked(_)
            | SourceEvent::Lost(_)
            | SourceEvent::Finished(_)
            | SourceEvent::Stalled(_) => {}
        }
        Ok(())
    }

    /// Takes in the next thing that the source says.
    pub async fn step(&mut self, what: &str) -> Result<(), String> {
        let intake = within(what, self.source.next()).await?;
        self.take(intake)
    }

    /// Reads until this many records were seen.
    pub async fn until(&mut self, records: usize) -> Result<(), String> {
        while self.seen.len() < records {
            self.step(&format!("record {} of {records}", self.seen.len() + 1)).await?;
        }
        Ok(())
    }

    /// Reads until the partition is ours.
    pub async fn until_assigned(&mut self, partition: &Partition) -> Result<Assignment, String> {
        loop {
            if let Some(assignment) = self.assigned.get(partition) {
                return Ok(assignment.clone());
            }
            self.step("an assignment").await?;
        }
    }

    /// Reads on until nothing came for a while.
    pub async fn until_quiet(&mut self, harness: &dyn LogHarness) -> Result<(), String> {
        while let Ok(next) = tokio::time::timeout(harness.quiet(), self.source.next()).await {
            let intake = next.map_err(|fault| format!("next: {fault}"))?;
            self.take(intake)?;
        }
        Ok(())
    }

    /// Polls the source once and cancels the call.
    pub async fn poke(&mut self) -> Result<(), String> {
        match poll_once(self.source.next()).await {
            Some(next) => self.take(next.map_err(|fault| format!("next: {fault}"))?),
            None => Ok(()),
        }
    }

    pub fn set_paused(&mut self, paused: bool) {
        self.source.set_paused(paused);
    }

    pub fn ends(&self) -> Vec<potok_core::PartitionEnd> {
        self.source.ends()
    }

    /// The values seen so far, as text.
    pub fn values(&self) -> Vec<String> {
        let text = |record: &Record| match &record.value {
            Some(value) => String::from_utf8_lossy(value).into_owned(),
            None => "(none)".to_owned(),
        };
        self.seen.iter().map(|(_, record)| text(record)).collect()
    }

    /// Offsets of a partition that ended, under the assignment they were read.
    pub fn ended(
        &self,
        partition: &Partition,
        ranges: impl IntoIterator<Item = Range<u64>>,
    ) -> Result<EndedOffsets, String> {
        let assignment = self.assigned.get(partition).ok_or("the partition is not ours")?;
        Ok(EndedOffsets {
            partition: partition.clone(),
            assignment: assignment.nonce,
            ranges: ranges.into_iter().collect(),
        })
    }
}

/// Calls until it works or [`PATIENCE`] is over: for what may take a moment to be let go.
pub async fn eventually<T, F>(what: &str, mut work: impl FnMut() -> F) -> Result<T, String>
where
    F: Future<Output = Result<T, Fault>>,
{
    let trying = async {
        loop {
            match work().await {
                Ok(value) => return value,
                Err(_) => tokio::time::sleep(QUIET / 10).await,
            }
        }
    };
    let tried = tokio::time::timeout(PATIENCE, trying).await;
    tried.map_err(|_| format!("{what}: still failing after {PATIENCE:?}"))
}
