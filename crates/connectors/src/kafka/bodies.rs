//! Bodies of held records where the log is Kafka: in memory, as far as there is room.
//!
//! What does not fit is not kept: its place in the log is known, and it is read from there when its
//! group is sent. So memory is bounded, however much is held, and nothing waits for room. What came
//! first stays, because mostly it is sent first.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use potok_core::{Fault, Headers, Held, Owner, Partition, Place, Position, Reader, Record, Store};

use super::settings::{Health, KafkaConfig};
use super::topics::Topics;
use super::{fault, lock, reader};

/// Bytes of bodies kept in memory by one pipeline.
const BYTES_MAX: usize = 256 << 20;

pub struct KafkaBodies {
    config: KafkaConfig,
    health: Health,
    topics: Arc<Topics>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// By pipeline and number.
    shares: HashMap<(Arc<str>, u32), Share>,
    bytes: usize,
}

#[derive(Default)]
struct Share {
    owner: u64,
    records: HashMap<Position, Record>,
}

impl Kept {
    fn empty(&mut self, owner: &Owner) {
        let gone = self.shares.remove(&(owner.pipeline.clone(), owner.share));
        let bytes = gone.iter().flat_map(|share| share.records.values()).map(Record::bytes);
        self.bytes -= bytes.sum::<usize>();
    }

    fn owned(&mut self, owner: &Owner) -> Result<&mut Share, Fault> {
        let of = self.shares.get_mut(&(owner.pipeline.clone(), owner.share));
        let of = of.filter(|share| share.owner == owner.nonce);
        of.ok_or_else(|| {
            Fault::retry(format!("share {} of {} has another owner", owner.share, owner.pipeline))
        })
    }
}

impl KafkaBodies {
    pub fn new(config: KafkaConfig, health: Health, topics: Arc<Topics>) -> Self {
        KafkaBodies { config, health, topics, kept: Mutex::default() }
    }

    /// Reads records from the log: offsets of one partition and log, ascending.
    async fn read(
        &self,
        log: u64,
        partition: &Partition,
        offsets: &[u64],
    ) -> Result<HashMap<u64, Record>, Fault> {
        let mut found = HashMap::new();
        let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else {
            return Ok(found);
        };
        let topics = self.topics.look_up(std::slice::from_ref(&partition.topic)).await?;
        if topics.get(&partition.topic).is_none_or(|facts| facts.id != log) {
            // The topic was made anew; what lies there now is something else.
            return Ok(found);
        }
        let (config, health) = (self.config.clone(), self.health.clone());
        let starts = vec![(partition.clone(), first)];
        let open = move || reader::open(&config, &health, log, starts);
        let mut reader = tokio::task::spawn_blocking(open).await.map_err(fault::poller_died)??;
        while let Some(batch) = reader.next(false).await? {
            let wanted = |record: &&Record| offsets.binary_search(&record.offset).is_ok();
            let records = batch.records.iter().filter(wanted);
            found.extend(records.map(|record| (record.offset, apart(record))));
            if batch.next > last {
                break;
            }
        }
        Ok(found)
    }
}

/// The record in memory of its own: not in the block it was read with, which may be much larger.
fn apart(record: &Record) -> Record {
    let (key, value) = (record.key.as_deref(), record.value.as_deref());
    let headers = record.headers.encoded();
    let room = key.map_or(0, <[u8]>::len) + value.map_or(0, <[u8]>::len) + headers.len();
    let mut block = BytesMut::with_capacity(room);
    let mut put = |bytes: &[u8]| -> Bytes {
        block.put_slice(bytes);
        block.split().freeze()
    };
    let key = key.map(&mut put);
    let headers = Headers::from_encoded(put(headers));
    let value = value.map(&mut put);
    Record { offset: record.offset, time: record.time, key, headers, value }
}

#[async_trait]
impl Store for KafkaBodies {
    async fn own(&self, owner: &Owner) -> Result<(), Fault> {
        let mut kept = lock(&self.kept);
        kept.empty(owner);
        let share = Share { owner: owner.nonce, ..Share::default() };
        kept.shares.insert((owner.pipeline.clone(), owner.share), share);
        Ok(())
    }

    async fn put(&self, owner: &Owner, held: &[Held]) -> Result<(), Fault> {
        let mut kept = lock(&self.kept);
        let mut bytes = kept.bytes;
        let share = kept.owned(owner)?;
        for Held { place, record, .. } in held {
            if bytes + record.bytes() > BYTES_MAX {
                break;
            }
            if share.records.insert(place.position.clone(), apart(record)).is_none() {
                bytes += record.bytes();
            }
        }
        kept.bytes = bytes;
        Ok(())
    }

    async fn close(&self, owner: &Owner, _: &[Bytes]) -> Result<(), Fault> {
        lock(&self.kept).owned(owner).map(drop)
    }

    async fn load(&self, owner: &Owner, places: &[Place]) -> Result<Vec<Option<Record>>, Fault> {
        let mut loaded: Vec<Option<Record>> = {
            let kept = lock(&self.kept);
            let share = kept.shares.get(&(owner.pipeline.clone(), owner.share));
            let share = share.filter(|share| share.owner == owner.nonce);
            places.iter().map(|place| share?.records.get(&place.position).cloned()).collect()
        };
        let mut missing: BTreeMap<(u64, Partition), Vec<u64>> = BTreeMap::new();
        for (place, _) in places.iter().zip(&loaded).filter(|(_, record)| record.is_none()) {
            let at = &place.position;
            let partition = Partition { topic: at.topic.clone(), index: at.partition };
            missing.entry((at.log, partition)).or_default().push(at.offset);
        }
        for ((log, partition), mut offsets) in missing {
            offsets.sort_unstable();
            offsets.dedup();
            let mut found = self.read(log, &partition, &offsets).await?;
            for (place, record) in places.iter().zip(&mut loaded) {
                let at = &place.position;
                let is_there = at.log == log && at.partition == partition.index;
                if record.is_none() && is_there && at.topic == partition.topic {
                    *record = found.remove(&at.offset);
                }
            }
        }
        Ok(loaded)
    }

    async fn clean(&self, owner: &Owner, places: &[Place]) -> Result<(), Fault> {
        let mut kept = lock(&self.kept);
        let share = kept.owned(owner)?;
        let gone = places.iter().filter_map(|place| share.records.remove(&place.position));
        let gone: usize = gone.map(|record| record.bytes()).sum();
        kept.bytes -= gone;
        Ok(())
    }

    fn release(&self, owner: &Owner) {
        let mut kept = lock(&self.kept);
        if kept.owned(owner).is_ok() {
            kept.empty(owner);
        }
    }
}
