//! Bodies of held records where the log is Kafka: what is not in memory when its group is sent is
//! read again from where it lies.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use potok_core::{
    Fault, Headers, Owner, Partition, PutOutcome, Reader, Record, Store, StoreAddress, StoreEntry,
};

use super::settings::{Health, KafkaConfig};
use super::topics::Topics;
use super::{blocking, fault, reader};
use crate::owners::Owners;

pub struct KafkaBodies {
    config: KafkaConfig,
    health: Health,
    topics: Arc<Topics>,
    owners: Owners,
}

impl KafkaBodies {
    pub fn new(config: KafkaConfig, health: Health, topics: Arc<Topics>) -> Self {
        KafkaBodies { config, health, topics, owners: Owners::default() }
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
        let mut reader = blocking(open).await.map_err(fault::poller_died)??;
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
    fn reads_from_log(&self) -> bool {
        true
    }

    async fn own(&self, owner: &Owner) -> Result<(), Fault> {
        self.owners.own(owner);
        Ok(())
    }

    async fn put(&self, owner: &Owner, _: &[StoreEntry]) -> Result<PutOutcome, Fault> {
        self.owners.check(owner)?;
        Ok(PutOutcome::Kept)
    }

    async fn close(&self, owner: &Owner, _: &[Bytes]) -> Result<(), Fault> {
        self.owners.check(owner)
    }

    async fn load(&self, _: &Owner, places: &[StoreAddress]) -> Result<Vec<Option<Record>>, Fault> {
        let mut wanted: BTreeMap<(u64, Partition), Vec<(u64, usize)>> = BTreeMap::new();
        for (number, StoreAddress { position, .. }) in places.iter().enumerate() {
            let partition = Partition { topic: position.topic.clone(), index: position.partition };
            let of = wanted.entry((position.log, partition)).or_default();
            of.push((position.offset, number));
        }
        let mut loaded: Vec<Option<Record>> = places.iter().map(|_| None).collect();
        for ((log, partition), mut asked) in wanted {
            asked.sort_unstable();
            let mut offsets: Vec<u64> = asked.iter().map(|(offset, _)| *offset).collect();
            offsets.dedup();
            let found = self.read(log, &partition, &offsets).await?;
            for (offset, number) in asked {
                if let Some(record) = loaded.get_mut(number) {
                    *record = found.get(&offset).cloned();
                }
            }
        }
        Ok(loaded)
    }

    async fn clean(&self, owner: &Owner, _: &[StoreAddress]) -> Result<(), Fault> {
        self.owners.check(owner)
    }
}
