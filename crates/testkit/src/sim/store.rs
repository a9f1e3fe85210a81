//! The simulated store of bodies: fenced by nonces, and it may forget everything at any time.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use potok_core::{Fault, Partition, Position, Record, SourceBatch, Store};

#[derive(Default)]
struct Bodies {
    owners: BTreeMap<Partition, u64>,
    bodies: BTreeMap<Position, Record>,
}

/// Bodies in memory.
#[derive(Default)]
pub struct SimStore(Mutex<Bodies>);

impl SimStore {
    /// Loses everything, owners included, as a flush or a failover would.
    pub fn flush(&self) {
        *self.lock() = Bodies::default();
    }

    fn lock(&self) -> MutexGuard<'_, Bodies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bodies {
    fn fence(&self, partition: &Partition, nonce: u64) -> Result<(), Fault> {
        match self.owners.get(partition) {
            Some(owner) if *owner == nonce => Ok(()),
            Some(_) => Err(Fault::retry(format!("{partition} has another owner"))),
            None => Err(Fault::retry(format!("{partition} has no owner"))),
        }
    }
}

#[async_trait]
impl Store for SimStore {
    async fn own(&self, partition: &Partition, nonce: u64) -> Result<(), Fault> {
        self.lock().owners.insert(partition.clone(), nonce);
        Ok(())
    }

    async fn put(&self, batch: &SourceBatch, nonce: u64) -> Result<(), Fault> {
        let mut store = self.lock();
        store.fence(&batch.partition, nonce)?;
        for record in &batch.records {
            store.bodies.insert(batch.position(record), record.clone());
        }
        Ok(())
    }

    async fn load(&self, positions: &[Position]) -> Result<Vec<Option<Record>>, Fault> {
        let store = self.lock();
        Ok(positions.iter().map(|position| store.bodies.get(position).cloned()).collect())
    }

    async fn clean(&self, positions: &[Position], nonce: u64) -> Result<(), Fault> {
        let mut store = self.lock();
        for Position { topic, partition, .. } in positions {
            store.fence(&Partition { topic: topic.clone(), index: *partition }, nonce)?;
        }
        for position in positions {
            store.bodies.remove(position);
        }
        Ok(())
    }
}
