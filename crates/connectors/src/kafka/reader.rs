//! Reads a topic outside any group, by assignment: nothing is joined, nothing committed.

use std::collections::VecDeque;
use std::time::Duration;

use async_trait::async_trait;
use potok_core::{Fault, Partition, Reader, SourceBatch};
use rdkafka::consumer::Consumer;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};
use tokio::task::JoinHandle;

use super::batch::Builder;
use super::events::{Event, Queue};

use super::native::{self, Edge};
use super::settings::{Health, KafkaConfig};
use super::{blocking, fault};

/// How long one look for records takes at most.
const LOOK: Duration = Duration::from_millis(100);
/// Records given back by one look: enough to be worth it, little enough to be shown soon.
const BATCHES_MAX: usize = 16;
const ANSWER_MAX: Duration = Duration::from_secs(10);

struct ReadCursor {
    partition: Partition,
    next: u64,
    collected: Option<Builder>,
}

/// Everything that blocks.
struct Fetcher {
    queue: Queue,
    log: u64,
    lanes: Vec<ReadCursor>,
}

/// A reader of one topic.
pub struct KafkaReader {
    fetcher: Option<Fetcher>,
    fetching: Option<JoinHandle<(Fetcher, Result<FetchedBatches, Fault>)>>,
    ready: VecDeque<SourceBatch>,
    health: Health,
}

struct FetchedBatches {
    batches: Vec<SourceBatch>,
    at_end: bool,
}

/// Opens a topic at the offset of each of its partitions. Blocks.
pub fn open(
    config: &KafkaConfig,
    health: &Health,
    log: u64,
    starts: Vec<(Partition, u64)>,
) -> Result<KafkaReader, Fault> {
    let queue = Queue::new(config.reader(health)?)
        .ok_or_else(|| fault::poller_died("the consumer has no queue"))?;
    let lane = |(partition, next)| ReadCursor { partition, next, collected: None };
    let fetcher = Fetcher { queue, log, lanes: starts.into_iter().map(lane).collect() };
    fetcher.place()?;
    let (fetching, ready) = (None, VecDeque::new());
    Ok(KafkaReader { fetcher: Some(fetcher), fetching, ready, health: health.clone() })
}

impl Fetcher {
    /// Looks for records for a while, or says that the end is reached.
    fn fetch(&mut self, follow: bool) -> Result<FetchedBatches, Fault> {
        if !follow && self.is_at_end()? {
            return Ok(FetchedBatches { batches: Vec::new(), at_end: true });
        }
        let mut batches = Vec::new();
        let mut wait = LOOK;
        while batches.len() < BATCHES_MAX {
            match self.queue.poll(wait) {
                Some(event) => {
                    if self.hear(event, &mut batches)? {
                        // Something came: take what is there, and do not wait for more.
                        wait = Duration::ZERO;
                    }
                }
                None => break,
            }
        }
        for lane in &mut self.lanes {
            batches.extend(hand_over(lane, self.log));
        }
        Ok(FetchedBatches { batches, at_end: false })
    }

    fn hear(&mut self, event: Event, batches: &mut Vec<SourceBatch>) -> Result<bool, Fault> {
        match event {
            Event::Record(record) => {
                let (_, index) = record.place();
                let lane = self.lanes.iter_mut().find(|lane| lane.partition.index == index);
                let Some(lane) = lane else { return Ok(false) };
                let builder = lane.collected.get_or_insert_with(|| Builder::new(lane.next, (0, 0)));
                builder.add(&record);
                lane.next = builder.next();
                if builder.is_full() {
                    batches.extend(hand_over(lane, self.log));
                }
                Ok(true)
            }
            Event::End(partition, offset) => {
                if let Some(lane) = self.lanes.iter_mut().find(|l| l.partition == partition) {
                    // A gap without records is nothing to show.
                    lane.next = lane.next.max(offset);
                    if let Some(builder) = &mut lane.collected {
                        builder.skip_to(offset);
                    }
                }
                Ok(false)
            }
            Event::Trouble { code: Code::AutoOffsetReset | Code::OffsetOutOfRange, at, .. } => {
                at.map_or(Ok(()), |at| self.start_again(&at)).map(|()| false)
            }
            Event::Trouble { code, why, .. } if fault::is_refusal(code) => {
                Err(fault::sorted("read the topic", code, why))
            }
            _ => Ok(false),
        }
    }

    /// Retention overtook the reader: on from the oldest record.
    fn start_again(&mut self, at: &Partition) -> Result<(), Fault> {
        let client = self.queue.consumer().client();
        let earliest = native::edges(client, std::slice::from_ref(at), Edge::Earliest, ANSWER_MAX)
            .map_err(|code| fault::sorted("say where the topic begins", code, code))?;
        let Some(&earliest) = earliest.get(at) else { return Ok(()) };
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.partition == *at) {
            lane.next = earliest;
        }
        // The client does not seek in a partition whose offset it has given up.
        self.place()
    }

    /// Reads every partition from where it is.
    fn place(&self) -> Result<(), Fault> {
        let mut list = TopicPartitionList::new();
        for ReadCursor { partition, next, .. } in &self.lanes {
            let offset = Offset::Offset(i64::try_from(*next).unwrap_or(i64::MAX));
            list.add_partition_offset(&partition.topic, partition.index as i32, offset)
                .map_err(|error| fault::of("place a partition", &error))?;
        }
        self.queue.consumer().assign(&list).map_err(|error| fault::of("read the topic", &error))
    }

    fn is_at_end(&self) -> Result<bool, Fault> {
        let partitions: Vec<Partition> =
            self.lanes.iter().map(|lane| lane.partition.clone()).collect();
        let client = self.queue.consumer().client();
        let latest = native::edges(client, &partitions, Edge::Stable, ANSWER_MAX)
            .map_err(|code| fault::sorted("say where the topic ends", code, code))?;
        Ok(self
            .lanes
            .iter()
            .all(|lane| latest.get(&lane.partition).is_some_and(|&latest| lane.next >= latest)))
    }
}

fn hand_over(lane: &mut ReadCursor, log: u64) -> Option<SourceBatch> {
    let builder = lane.collected.take().filter(|builder| !builder.is_empty())?;
    Some(builder.build(lane.partition.clone(), log, 0))
}

#[async_trait]
impl Reader for KafkaReader {
    async fn next(&mut self, follow: bool) -> Result<Option<SourceBatch>, Fault> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(Some(batch));
            }
            if self.fetching.is_none() {
                let Some(mut fetcher) = self.fetcher.take() else {
                    return Err(fault::poller_died("it was told before"));
                };
                self.fetching = Some(blocking(move || {
                    let fetched = fetcher.fetch(follow);
                    (fetcher, fetched)
                }));
            }
            let Some(fetching) = &mut self.fetching else { continue };
            // Cancelled here, the fetch goes on and the next call takes what it brings.
            let fetched = fetching.await;
            self.fetching = None;
            let (fetcher, fetched) = fetched.map_err(fault::poller_died)?;
            self.fetcher = Some(fetcher);
            let FetchedBatches { batches, at_end } = fetched?;
            self.ready.extend(batches);
            if at_end && !follow {
                self.health.good();
                return Ok(None);
            }
        }
    }
}

impl Drop for KafkaReader {
    fn drop(&mut self) {
        // Closing talks to the cluster, which may take a moment: not on the caller's thread.
        if let Some(fetcher) = self.fetcher.take() {
            let closing = std::thread::Builder::new().name("kafka-close".into());
            // Where no thread can be had it is closed here.
            let _ = closing.spawn(move || drop(fetcher));
        }
    }
}
