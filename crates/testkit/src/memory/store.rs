//! Bodies of held records, in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::{Fault, Owner, Position, PutOutcome, Record, Store, StoreAddress, StoreEntry};

use super::lock;

/// Keeps bodies until they are cleaned. Clones are the same store.
#[derive(Clone, Default)]
pub struct MemoryStore(Arc<Mutex<Shares>>);

/// By pipeline and number.
type Shares = HashMap<(Arc<str>, u32), MemoryShare>;

type KindAndId = (Option<Arc<str>>, Bytes);

/// The groups of one share of a pipeline.
#[derive(Default)]
struct MemoryShare {
    owner: Option<u64>,
    groups: HashMap<Bytes, StoredGroup>,
}

#[derive(Default)]
struct StoredGroup {
    closed: bool,
    records: HashMap<Position, Record>,
    /// Under its kind and id, the record that came last.
    shown: BTreeMap<KindAndId, Position>,
}

/// What a program that looks into the store finds of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryGroup {
    /// It waits to be sent.
    pub closed: bool,
    /// Kind, id (the position where there is none) and the latest record of that name.
    pub records: Vec<(Option<Arc<str>>, Bytes, Record)>,
}

impl MemoryShare {
    fn check(&self, owner: &Owner) -> Result<(), Fault> {
        if self.owner == Some(owner.nonce) {
            return Ok(());
        }
        let Owner { pipeline, share, .. } = owner;
        Err(Fault::retry(format!("share {share} of {pipeline} belongs to another owner")))
    }
}

impl MemoryStore {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// What can be seen of a group.
    pub fn look(&self, pipeline: &str, share: u32, group: &[u8]) -> Option<MemoryGroup> {
        let all = lock(&self.0);
        let group = all.get(&(pipeline.into(), share))?.groups.get(group)?;
        let shown = |((kind, id), position): (&KindAndId, &Position)| {
            let record = group.records.get(position)?.clone();
            Some((kind.clone(), id.clone(), record))
        };
        let records = group.shown.iter().filter_map(shown).collect();
        Some(MemoryGroup { closed: group.closed, records })
    }

    /// Runs `work` on the share, for its owner only.
    fn owned<T>(
        &self,
        owner: &Owner,
        work: impl FnOnce(&mut MemoryShare) -> T,
    ) -> Result<T, Fault> {
        let mut all = lock(&self.0);
        let share = all.entry((owner.pipeline.clone(), owner.share)).or_default();
        share.check(owner)?;
        Ok(work(share))
    }
}

/// Where lookers find the record: without an id, nothing replaces it.
fn shown_as(place: &StoreAddress) -> KindAndId {
    let id = place.id.clone().unwrap_or_else(|| place.position.to_string().into());
    (place.kind.clone(), id)
}

#[async_trait]
impl Store for MemoryStore {
    async fn own(&self, owner: &Owner) -> Result<(), Fault> {
        let mut all = lock(&self.0);
        let share = all.entry((owner.pipeline.clone(), owner.share)).or_default();
        // What the owner before has not cleaned is read again, or has ended.
        *share = MemoryShare { owner: Some(owner.nonce), groups: HashMap::new() };
        Ok(())
    }

    async fn put(&self, owner: &Owner, held: &[StoreEntry]) -> Result<PutOutcome, Fault> {
        self.owned(owner, |share| {
            for StoreEntry { place, record, .. } in held {
                let group = share.groups.entry(place.group.clone()).or_default();
                let before = group.records.insert(place.position.clone(), record.clone());
                if before.is_none() {
                    group.closed = false;
                    group.shown.insert(shown_as(place), place.position.clone());
                }
            }
            PutOutcome::Kept
        })
    }

    async fn close(&self, owner: &Owner, groups: &[Bytes]) -> Result<(), Fault> {
        self.owned(owner, |share| {
            for name in groups {
                if let Some(group) = share.groups.get_mut(name) {
                    group.closed = true;
                }
            }
        })
    }

    async fn load(
        &self,
        owner: &Owner,
        places: &[StoreAddress],
    ) -> Result<Vec<Option<Record>>, Fault> {
        let all = lock(&self.0);
        let share = all.get(&(owner.pipeline.clone(), owner.share));
        let load = |place: &StoreAddress| {
            let group = share?.groups.get(&place.group)?;
            group.records.get(&place.position).cloned()
        };
        Ok(places.iter().map(load).collect())
    }

    async fn clean(&self, owner: &Owner, places: &[StoreAddress]) -> Result<(), Fault> {
        self.owned(owner, |share| {
            for place in places {
                let Some(group) = share.groups.get_mut(&place.group) else { continue };
                group.records.remove(&place.position);
                let shown = shown_as(place);
                if group.shown.get(&shown) == Some(&place.position) {
                    group.shown.remove(&shown);
                }
                if group.records.is_empty() {
                    share.groups.remove(&place.group);
                }
            }
        })
    }
}
