//! The simulated store of bodies: fenced by nonces, and it may forget everything at any time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::{Fault, Held, Owner, Place, Position, Record, Store};

/// A share: pipeline and number.
type Share = (Arc<str>, u32);

#[derive(Default)]
struct Bodies {
    owners: BTreeMap<Share, u64>,
    bodies: BTreeMap<(Share, Bytes, Position), Record>,
    closed: BTreeSet<(Share, Bytes)>,
}

/// Bodies in memory.
#[derive(Default)]
pub struct SimStore(Mutex<Bodies>);

impl SimStore {
    /// Loses everything, owners included, as a flush or a failover would.
    pub fn flush(&self) {
        *self.lock() = Bodies::default();
    }

    /// Loses bodies but knows its owners, as under memory pressure.
    pub fn evict(&self) {
        self.lock().bodies.clear();
    }

    /// How many bodies it has.
    pub fn len(&self) -> usize {
        self.lock().bodies.len()
    }

    /// The groups that are closed and not yet cleaned.
    pub fn closed(&self) -> Vec<Bytes> {
        self.lock().closed.iter().map(|(_, group)| group.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Bodies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn share_of(owner: &Owner) -> Share {
    (owner.pipeline.clone(), owner.share)
}

impl Bodies {
    fn fence(&self, owner: &Owner) -> Result<Share, Fault> {
        let Owner { pipeline, share, nonce } = owner;
        match self.owners.get(&share_of(owner)) {
            Some(known) if known == nonce => Ok(share_of(owner)),
            Some(_) => Err(Fault::retry(format!("share {share} of {pipeline} has another owner"))),
            None => Err(Fault::retry(format!("share {share} of {pipeline} has no owner"))),
        }
    }

    fn has_group(&self, share: &Share, group: &Bytes) -> bool {
        let mut of_group = self.bodies.keys().filter(|(s, g, _)| s == share && g == group);
        of_group.next().is_some()
    }
}

#[async_trait]
impl Store for SimStore {
    async fn own(&self, owner: &Owner) -> Result<(), Fault> {
        self.lock().owners.insert(share_of(owner), owner.nonce);
        Ok(())
    }

    async fn put(&self, owner: &Owner, held: &[Held]) -> Result<(), Fault> {
        let mut store = self.lock();
        let share = store.fence(owner)?;
        for Held { place, record, .. } in held {
            let at = (share.clone(), place.group.clone(), place.position.clone());
            if store.bodies.insert(at, record.clone()).is_none() {
                store.closed.remove(&(share.clone(), place.group.clone()));
            }
        }
        Ok(())
    }

    async fn close(&self, owner: &Owner, groups: &[Bytes]) -> Result<(), Fault> {
        let mut store = self.lock();
        let share = store.fence(owner)?;
        for group in groups {
            if store.has_group(&share, group) {
                store.closed.insert((share.clone(), group.clone()));
            }
        }
        Ok(())
    }

    async fn load(&self, owner: &Owner, places: &[Place]) -> Result<Vec<Option<Record>>, Fault> {
        let store = self.lock();
        let load = |place: &Place| {
            let at = (share_of(owner), place.group.clone(), place.position.clone());
            store.bodies.get(&at).cloned()
        };
        Ok(places.iter().map(load).collect())
    }

    async fn clean(&self, owner: &Owner, places: &[Place]) -> Result<(), Fault> {
        let mut store = self.lock();
        let share = store.fence(owner)?;
        for Place { group, position, .. } in places {
            store.bodies.remove(&(share.clone(), group.clone(), position.clone()));
            if !store.has_group(&share, group) {
                store.closed.remove(&(share.clone(), group.clone()));
            }
        }
        Ok(())
    }
}
