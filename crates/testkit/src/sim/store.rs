//! The simulated store of bodies: fenced by nonces, and it may be full, forget everything at any time,
//! or go back to what it was some time ago.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::trouble::{Bug, planted};
use potok_core::{Fault, Owner, Position, PutOutcome, Record, Store, StoreAddress, StoreEntry};

use super::promises;
use super::trouble::Trouble;
use super::world::World;

/// A share: pipeline and number.
type Share = (Arc<str>, u32);

#[derive(Clone, Default)]
struct Bodies {
    owners: BTreeMap<Share, u64>,
    bodies: BTreeMap<(Share, Bytes, Position), Record>,
    closed: BTreeSet<(Share, Bytes)>,
}

/// What the store has of one share.
#[derive(PartialEq, Eq)]
pub(super) struct Contents {
    /// Whose it is, as far as the store knows.
    pub owner: Option<u64>,
    /// Bodies, by group and position.
    pub bodies: BTreeSet<(Bytes, Position)>,
    /// Groups that are closed.
    pub closed: BTreeSet<Bytes>,
}

/// Bodies in memory.
#[derive(Default)]
pub struct SimStore {
    now: Mutex<Bodies>,
    /// What a replica has that lags behind.
    replica: Mutex<Bodies>,
    /// How many bodies fit, where that is bounded.
    room: Mutex<Option<usize>>,
}

impl SimStore {
    /// From now on only so many bodies fit.
    pub fn set_room(&self, room: Option<usize>) {
        *self.room.lock().unwrap_or_else(PoisonError::into_inner) = room;
    }

    fn has_room(&self, bodies: usize) -> bool {
        let room = *self.room.lock().unwrap_or_else(PoisonError::into_inner);
        room.is_none_or(|room| bodies < room)
    }

    /// Loses everything, owners included, as a flush or a failover would.
    pub fn flush(&self) {
        *self.lock() = Bodies::default();
    }

    /// Loses bodies but knows its owners, as under memory pressure.
    pub fn evict(&self) {
        self.lock().bodies.clear();
    }

    /// A replica gets to know all that is there now.
    pub fn replicate(&self) {
        let now = self.lock().clone();
        *self.replica.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// The replica takes over: what came since is lost, and what was there then is back, owners
    /// included.
    pub fn promote(&self) {
        let then = self.replica.lock().unwrap_or_else(PoisonError::into_inner).clone();
        *self.lock() = then;
    }

    /// How many bodies it has.
    pub fn len(&self) -> usize {
        self.lock().bodies.len()
    }

    /// The groups that are closed and not yet cleaned.
    pub fn closed(&self) -> Vec<Bytes> {
        self.lock().closed.iter().map(|(_, group)| group.clone()).collect()
    }

    fn contents(&self, of: &Owner) -> Contents {
        let (store, share) = (self.lock(), share_of(of));
        let bodies = store.bodies.keys().filter(|(s, ..)| *s == share);
        let closed = store.closed.iter().filter(|(s, _)| *s == share);
        Contents {
            owner: store.owners.get(&share).copied(),
            bodies: bodies.map(|(_, group, at)| (group.clone(), at.clone())).collect(),
            closed: closed.map(|(_, group)| group.clone()).collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Bodies> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
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
            // The naive versions: whoever comes may write, or whoever comes when all is lost.
            _ if planted(Bug::StoreUnfenced) => Ok(share_of(owner)),
            None if planted(Bug::StoreLossIgnored) => Ok(share_of(owner)),
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

    async fn put(&self, owner: &Owner, held: &[StoreEntry]) -> Result<PutOutcome, Fault> {
        let mut store = self.lock();
        let share = store.fence(owner)?;
        let full = || PutOutcome::Full(Fault::wait("the store has no room"));
        if !self.has_room(store.bodies.len()) {
            return Ok(full());
        }
        for StoreEntry { place, record, .. } in held {
            if !self.has_room(store.bodies.len()) {
                // What went in before stays, as where a call is made in parts.
                return Ok(full());
            }
            let at = (share.clone(), place.group.clone(), place.position.clone());
            if store.bodies.insert(at, record.clone()).is_none() {
                store.closed.remove(&(share.clone(), place.group.clone()));
            }
        }
        Ok(PutOutcome::Kept)
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

    async fn load(
        &self,
        owner: &Owner,
        places: &[StoreAddress],
    ) -> Result<Vec<Option<Record>>, Fault> {
        let store = self.lock();
        let load = |place: &StoreAddress| {
            let at = (share_of(owner), place.group.clone(), place.position.clone());
            store.bodies.get(&at).cloned()
        };
        Ok(places.iter().map(load).collect())
    }

    async fn clean(&self, owner: &Owner, places: &[StoreAddress]) -> Result<(), Fault> {
        let mut store = self.lock();
        let share = store.fence(owner)?;
        for StoreAddress { group, position, .. } in places {
            if planted(Bug::CleansWholeGroups) {
                store.bodies.retain(|(of, other, _), _| (of, other) != (&share, group));
            }
            store.bodies.remove(&(share.clone(), group.clone(), position.clone()));
            if !store.has_group(&share, group) {
                store.closed.remove(&(share.clone(), group.clone()));
            }
        }
        Ok(())
    }
}

/// The store of a world as one of its processes reaches it; what it writes is looked at.
pub(super) struct StoreHandle {
    pub world: Arc<World>,
    pub process: usize,
}

impl StoreHandle {
    async fn write<T>(
        &self,
        owner: &Owner,
        call: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        self.world.awake(self.process).await;
        let store = self.world.store();
        let before = store.contents(owner);
        let answer = call.await;
        let after = store.contents(owner);
        self.world.with(|w| promises::check_store(w, owner, &before, &after));
        self.world.awake(self.process).await;
        answer
    }
}

#[async_trait]
impl Store for StoreHandle {
    async fn own(&self, owner: &Owner) -> Result<(), Fault> {
        self.world.awake(self.process).await;
        self.world.store().own(owner).await
    }

    async fn put(&self, owner: &Owner, held: &[StoreEntry]) -> Result<PutOutcome, Fault> {
        let store = self.world.store();
        let outcome = self.write(owner, store.put(owner, held)).await?;
        if matches!(outcome, PutOutcome::Full(_)) {
            self.world.with(|w| {
                w.tally.hit(Trouble::StoreFull);
                w.note("the store is full");
            });
        }
        Ok(outcome)
    }

    async fn close(&self, owner: &Owner, groups: &[Bytes]) -> Result<(), Fault> {
        let store = self.world.store();
        self.write(owner, store.close(owner, groups)).await
    }

    async fn load(
        &self,
        owner: &Owner,
        places: &[StoreAddress],
    ) -> Result<Vec<Option<Record>>, Fault> {
        self.world.awake(self.process).await;
        self.world.store().load(owner, places).await
    }

    async fn clean(&self, owner: &Owner, places: &[StoreAddress]) -> Result<(), Fault> {
        let store = self.world.store();
        self.write(owner, store.clean(owner, places)).await
    }
}
