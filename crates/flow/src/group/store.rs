//! Bodies on their way into the store, and back.
//!
//! A store that is away is waited for: what it has is needed. One that is full is not: it has room
//! again when groups are closed, sent and cleaned, and all of that is this lane's own work (decision
//! 0018). Records that do not fit are held like the others; their bodies lie in the log, and are read
//! from there if memory does not have them.

use std::time::Duration;

use foldhash::HashMap;
use potok_core::trouble::{Bug, planted};
use potok_core::{
    Fault, Move, Owner, PutOutcome, SourceBatch, Store, StoreAddress, StoreEntry, Timestamp,
};
use tokio::time::Instant;

use super::Holding;
use super::index::GroupKey;
use crate::lane::{Item, Lane};
use crate::waits::WaitsFor;
use crate::work::Stop;

/// Records of a group that a store may keep together: with more bytes the next ones are apart.
const TOGETHER_BYTES_MAX: usize = 32 << 10;

/// A store that was full is called so until it has refused nothing for so long: near its limit it
/// takes one thing and refuses the next.
const CALM: Duration = Duration::from_secs(2);

/// A store without room.
#[derive(Debug)]
pub(super) struct FullStore {
    /// When it refused something last, and how often in a row.
    refused: Instant,
    refusals: u32,
    /// Before this nothing is put.
    until: Instant,
}

impl FullStore {
    /// When to ask whether it has room, where nothing is put meanwhile.
    pub fn ask_at(&self) -> Instant {
        self.until.max(self.refused + CALM)
    }
}

/// The store's answer for the records of a chunk.
#[derive(Default)]
pub(super) struct PutResult {
    /// With which record each was put.
    pub with: Vec<u64>,
    /// All of them are there.
    pub in_store: bool,
}

impl Holding {
    /// Something was removed from the store: there may be room.
    pub fn made_room(&mut self) {
        if let Some(full) = &mut self.full {
            full.until = Instant::now();
        }
    }

    /// A share that is ours, to ask for.
    fn any_owner(&self) -> Option<Owner> {
        match self.board.shared {
            true => self.owned.first().map(|(nonce, partition)| self.owner(partition, *nonce)),
            false => Some(self.owner.clone()),
        }
    }
}

impl Lane {
    /// Where the log is this process's own, its lanes share the groups; makes this lane's share ours.
    /// The first lane also sees to what more lanes of earlier runs have left.
    pub(super) async fn own_lane(&mut self, holding: &Holding) -> Result<(), Stop> {
        let Holding { store, owner, .. } = holding;
        self.insist(&**store, || store.own(owner)).await?;
        if owner.share == 0 {
            let lanes = self.plan.workers.max(1) as u32;
            self.insist(&**store, || store.own_no_more(owner, lanes)).await?;
        }
        Ok(())
    }

    /// Makes a partition's share ours in the store before anything of it is put there.
    pub(super) async fn own_share(
        &mut self,
        holding: &mut Holding,
        batch: &SourceBatch,
    ) -> Result<(), Stop> {
        let is_owned = holding.owned.iter().any(|(nonce, _)| *nonce == batch.assignment);
        if !holding.board.shared || is_owned {
            return Ok(());
        }
        let (store, owner) = (&*holding.store, holding.owner(&batch.partition, batch.assignment));
        self.insist(store, || store.own(&owner)).await?;
        holding.owned.push((batch.assignment, batch.partition.clone()));
        Ok(())
    }

    /// Puts bodies where they wait, unless they lie in the log anyway.
    pub(super) async fn store(
        &mut self,
        holding: &mut Holding,
        batch: &SourceBatch,
        held: &[Item],
        came: &[i64],
    ) -> Result<PutResult, Stop> {
        if holding.store.reads_from_log() || held.is_empty() {
            return Ok(PutResult { with: Vec::new(), in_store: true });
        }
        let held = to_hold(holding, batch, held, came);
        let with = held.iter().map(|held| held.place.with).collect();
        let owner = holding.owner(&batch.partition, batch.assignment);
        let in_store = self.put(holding, &owner, &held).await?;
        Ok(PutResult { with, in_store })
    }

    /// The store had no room some time ago: asks whether it has now.
    pub(super) async fn ask_store(&mut self, holding: &mut Holding) -> Result<(), Stop> {
        match holding.any_owner() {
            Some(owner) => self.put(holding, &owner, &[]).await.map(drop),
            // Nothing is ours that it would have to take.
            None => {
                self.store_has_room(holding);
                Ok(())
            }
        }
    }

    /// True where the store has taken them; false where it is full.
    async fn put(
        &mut self,
        holding: &mut Holding,
        owner: &Owner,
        held: &[StoreEntry],
    ) -> Result<bool, Stop> {
        if holding.full.as_ref().is_some_and(|full| full.until > Instant::now()) {
            return Ok(false);
        }
        let store = holding.store.clone();
        let fault = loop {
            match self.insist(&*store, || store.put(owner, held)).await? {
                PutOutcome::Kept => {
                    self.store_took(holding);
                    return Ok(true);
                }
                PutOutcome::Full(fault) if planted(Bug::WaitsForRoom) => {
                    self.waits.begin(WaitsFor::Store, self.slot, &fault);
                    self.wait(self.plan.retry.max).await?;
                }
                PutOutcome::Full(fault) => break fault,
            }
        };
        self.waits.begin(WaitsFor::Store, self.slot, &fault);
        let refusals = holding.full.take().map_or(0, |full| full.refusals).saturating_add(1);
        let refused = Instant::now();
        let until = refused + self.plan.retry.wait(refusals, self.slot as u64 * 89);
        holding.full = Some(FullStore { refused, refusals, until });
        Ok(false)
    }

    fn store_took(&self, holding: &mut Holding) {
        let Some(full) = &mut holding.full else { return };
        full.refusals = 0;
        if full.refused.elapsed() >= CALM {
            self.store_has_room(holding);
        }
    }

    fn store_has_room(&self, holding: &mut Holding) {
        holding.full = None;
        self.waits.end(WaitsFor::Store, self.slot);
    }

    /// Calls a store until it answers. One that has another owner, or forgot this one, costs a
    /// re-read of everything that is held.
    pub(super) async fn insist<T, F>(
        &mut self,
        store: &dyn Store,
        call: impl Fn() -> F,
    ) -> Result<T, Stop>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let what = if store.reads_from_log() { WaitsFor::Log } else { WaitsFor::Store };
        let mut attempt = 0;
        loop {
            let fault = match call().await {
                Ok(answer) => {
                    if attempt > 0 {
                        self.waits.end(what, self.slot);
                    }
                    return Ok(answer);
                }
                Err(fault) => fault,
            };
            match fault.next {
                Move::Fix => return Err(Stop::Fix(fault)),
                Move::Retry | Move::SetAside => return Err(Stop::Reread(fault.to_string())),
                Move::Wait => {
                    attempt += 1;
                    self.waits.begin(what, self.slot, &fault);
                    self.wait(self.plan.retry.wait(attempt, self.slot as u64 * 89)).await?;
                }
            }
        }
    }
}

/// These records as entries for the store.
fn to_hold(holding: &Holding, batch: &SourceBatch, held: &[Item], came: &[i64]) -> Vec<StoreEntry> {
    struct OpenPiece {
        opened: Timestamp,
        with: u64,
        bytes: usize,
    }
    let kinds = &holding.plan.kinds;
    let index = holding.board.index();
    let waiting = index.opened_by_waiting();
    let mut groups: HashMap<GroupKey, OpenPiece> = HashMap::default();
    held.iter()
        .filter_map(|item| {
            let record = batch.records.get(item.index as usize)?;
            let group = holding.group_key(item, record, batch);
            let at = *came.get(item.index as usize)?;
            let together = groups.entry(group).or_insert_with_key(|group| OpenPiece {
                opened: index
                    .opened(group, at)
                    .or_else(|| waiting.get(group).copied())
                    .unwrap_or(record.time),
                with: record.offset,
                bytes: 0,
            });
            if together.bytes >= TOGETHER_BYTES_MAX {
                (together.with, together.bytes) = (record.offset, 0);
            }
            together.bytes += record.bytes();
            let OpenPiece { opened, with, .. } = *together;
            let kind = item.kind.and_then(|kind| kinds.get(usize::from(kind)));
            let place = StoreAddress {
                group: item.group.clone(),
                kind: kind.map(|kind| kind.name.clone()),
                id: item.id.clone(),
                position: batch.position(record),
                with,
            };
            Some(StoreEntry { place, opened, record: record.clone() })
        })
        .collect()
}
