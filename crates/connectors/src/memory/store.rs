//! Bodies of held records, in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use potok_core::{Fault, Partition, Position, Record, SourceBatch, Store};

use super::lock;

/// Keeps bodies until they are cleaned. Clones are the same store.
#[derive(Clone, Default)]
pub struct MemoryStore(Arc<Mutex<HashMap<Partition, Bodies>>>);

/// The bodies of one partition.
#[derive(Default)]
struct Bodies {
    owner: Option<u64>,
    /// By incarnation of the log and offset.
    records: HashMap<(u64, u64), Record>,
}

impl Bodies {
    fn check(&self, partition: &Partition, nonce: u64) -> Result<(), Fault> {
        if self.owner == Some(nonce) {
            return Ok(());
        }
        Err(Fault::retry(format!("the bodies of {partition} belong to another owner")))
    }
}

impl MemoryStore {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }
}

fn partition_of(position: &Position) -> Partition {
    Partition { topic: position.topic.clone(), index: position.partition }
}

#[async_trait]
impl Store for MemoryStore {
    async fn own(&self, partition: &Partition, nonce: u64) -> Result<(), Fault> {
        lock(&self.0).entry(partition.clone()).or_default().owner = Some(nonce);
        Ok(())
    }

    async fn put(&self, batch: &SourceBatch, nonce: u64) -> Result<(), Fault> {
        let mut all = lock(&self.0);
        let bodies = all.entry(batch.partition.clone()).or_default();
        bodies.check(&batch.partition, nonce)?;
        for record in &batch.records {
            bodies.records.insert((batch.log, record.offset), record.clone());
        }
        Ok(())
    }

    async fn load(&self, positions: &[Position]) -> Result<Vec<Option<Record>>, Fault> {
        let all = lock(&self.0);
        let load = |position: &Position| {
            let bodies = all.get(&partition_of(position))?;
            bodies.records.get(&(position.log, position.offset)).cloned()
        };
        Ok(positions.iter().map(load).collect())
    }

    async fn clean(&self, positions: &[Position], nonce: u64) -> Result<(), Fault> {
        let mut all = lock(&self.0);
        // All are checked first: a call that is fenced off writes nothing.
        for position in positions {
            let partition = partition_of(position);
            if let Some(bodies) = all.get(&partition) {
                bodies.check(&partition, nonce)?;
            }
        }
        for position in positions {
            if let Some(bodies) = all.get_mut(&partition_of(position)) {
                bodies.records.remove(&(position.log, position.offset));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bytes::Bytes;
    use potok_core::{Headers, Move, Timestamp};

    use super::*;

    #[tokio::test]
    async fn keeps_for_the_owner_and_refuses_the_one_before() {
        let store = MemoryStore::new();
        let partition = Partition { topic: "t".into(), index: 1 };
        let record = Record {
            offset: 7,
            time: Timestamp(1),
            key: None,
            headers: Headers::none(),
            value: Some(Bytes::from_static(b"body")),
        };
        let batch = SourceBatch {
            partition: partition.clone(),
            log: 9,
            assignment: 1,
            first: 7,
            next: 8,
            records: vec![record.clone()],
        };
        let position = batch.position(&record);
        let elsewhere = Position { log: 8, ..position.clone() };

        assert_eq!(store.put(&batch, 1).await.unwrap_err().next, Move::Retry);
        store.own(&partition, 1).await.unwrap();
        store.put(&batch, 1).await.unwrap();
        store.put(&batch, 1).await.unwrap();
        store.own(&partition, 2).await.unwrap();
        assert_eq!(store.put(&batch, 1).await.unwrap_err().next, Move::Retry);
        assert_eq!(
            store.clean(std::slice::from_ref(&position), 1).await.unwrap_err().next,
            Move::Retry
        );
        let positions = [position, elsewhere];
        assert_eq!(store.load(&positions).await.unwrap(), [Some(record), None]);
        store.clean(&positions, 2).await.unwrap();
        store.clean(&positions, 2).await.unwrap();
        assert_eq!(store.load(&positions).await.unwrap(), [None, None]);
    }
}
