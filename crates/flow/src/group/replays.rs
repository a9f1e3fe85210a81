//! Replays of dead letters that go to a shard.
//!
//! A replay joins no group and goes on alone. It must not wait in its lane, though: behind a closed
//! gate it would keep its part of the room that all lanes share, and nothing of the other shards would
//! be read. So no more than its place waits, apart from the groups of its shard, and its body is read
//! from the log again when something may be sent.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use potok_core::StoreAddress;

use super::Holding;
use super::index::{Feed, HeldRecord};
use super::send::chunk_of;
use crate::counts::Ending;
use crate::lane::{Cycle, Item, Lane};
use crate::ledger::Note;
use crate::work::{Chunk, Stop};

/// Replays that are sent together.
const LOT_RECORDS_MAX: usize = 500;
const LOT_BYTES_MAX: u64 = 8 << 20;

/// The place of a replay.
#[derive(Clone, Copy, Debug)]
struct WaitingReplay {
    /// By its number in the index.
    feed: u32,
    before: u32,
    from: u32,
    bytes: u32,
    offset: u64,
}

/// Replays of one lane that have not been sent, in order, by the shard that they go to.
#[derive(Debug, Default)]
pub(crate) struct WaitingReplays(BTreeMap<Option<u32>, VecDeque<WaitingReplay>>);

/// Replays of one feed and shard that are sent now.
struct ReplayLot {
    shard: Option<u32>,
    feed: Feed,
    replays: Vec<WaitingReplay>,
}

impl WaitingReplays {
    /// How many wait for which shard.
    pub fn shards(&self) -> impl Iterator<Item = (u32, usize)> {
        self.0.iter().filter_map(|(shard, replays)| Some(((*shard)?, replays.len())))
    }

    /// Forgets those of feeds that have left.
    pub fn forget(&mut self, mut has_left: impl FnMut(u32) -> bool) {
        self.0.retain(|_, replays| {
            replays.retain(|replay| !has_left(replay.feed));
            !replays.is_empty()
        });
    }

    fn push(&mut self, shard: Option<u32>, entry: &HeldRecord) {
        let HeldRecord { feed, before, from, bytes, offset, .. } = *entry;
        let replay = WaitingReplay { feed, before, from, bytes, offset };
        self.0.entry(shard).or_default().push_back(replay);
    }

    /// Takes the first ones of a shard that may be called.
    fn take(
        &mut self,
        may_call: impl Fn(Option<u32>) -> bool,
    ) -> Option<(Option<u32>, Vec<WaitingReplay>)> {
        let (shard, replays) = self.0.iter_mut().find(|(shard, _)| may_call(**shard))?;
        let (shard, feed) = (*shard, replays.front()?.feed);
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while bytes < LOT_BYTES_MAX && taken.len() < LOT_RECORDS_MAX {
            let next = replays.pop_front_if(|replay| replay.feed == feed);
            let Some(replay) = next else { break };
            bytes += u64::from(replay.bytes);
            taken.push(replay);
        }
        if replays.is_empty() {
            self.0.remove(&shard);
        }
        Some((shard, taken))
    }

    /// Puts back what could not be sent.
    fn put_back(
        &mut self,
        shard: Option<u32>,
        replays: impl DoubleEndedIterator<Item = WaitingReplay>,
    ) {
        for replay in replays.rev() {
            self.0.entry(shard).or_default().push_front(replay);
        }
    }
}

impl WaitingReplay {
    fn entry(&self) -> HeldRecord {
        let WaitingReplay { feed, before, from, bytes, offset } = *self;
        HeldRecord { before, from, bytes, ..HeldRecord::at_place(feed, offset) }
    }
}

impl Lane {
    /// Takes in replays that can be read: from now on no more than their places are kept.
    pub(super) fn keep_replays(
        &self,
        holding: &Holding,
        chunk: &Chunk,
        items: impl Iterator<Item = Item>,
    ) {
        let mut index = holding.board.index();
        let feed = index.feed(&Feed::of(&chunk.taken.batch));
        for item in items {
            index.replays.push(item.shard, &HeldRecord::of(chunk, item.index, feed));
        }
        drop(index);
        holding.board.to_send.notify_one();
    }

    /// Sends some of the replays that wait and whose shard may be called; false where there is none.
    pub(super) async fn send_replays(&mut self, holding: &Holding) -> Result<bool, Stop> {
        if self.stopping.get() {
            return Ok(false);
        }
        let Some(lot) = self.take_replays(holding) else { return Ok(false) };
        let places: Vec<StoreAddress> =
            lot.replays.iter().map(|replay| lot.place(replay)).collect();
        let owner = holding.owner(&lot.feed.partition, lot.feed.assignment);
        let log = holding.log.clone();
        let mut records = self.insist(&*log, || log.load(&owner, &places)).await?;
        if let Some(at) = records.iter().position(Option::is_none) {
            let place = places.get(at).map(|place| place.position.to_string());
            return Err(Stop::Reread(format!("the log has no {}", place.unwrap_or_default())));
        }
        let entries: Vec<HeldRecord> = lot.replays.iter().map(WaitingReplay::entry).collect();
        let records = entries.iter().zip(records.iter_mut().map(Option::take));
        let chunk = self.again(chunk_of(&lot.feed, records));
        let mut cycle = Cycle::default();
        for run in self.runs(&chunk) {
            let note = run.note;
            let mut items = self.decode(&chunk, 0, run);
            let processed = self.process_alone(&mut items, note).await;
            cycle.items.extend(items);
            processed?;
        }
        cycle.chunks.push(chunk);
        self.gives_way = true;
        let delivered = self.deliver(&mut cycle).await;
        self.gives_way = false;
        let is_shut = matches!(delivered, Err(Stop::Shut));
        if is_shut {
            let waits = cycle.items.extract_if(.., |item| item.ending() == Ending::HandedBack);
            self.put_back(holding, &lot, &waits.collect::<Vec<Item>>());
        }
        self.finish(cycle);
        if is_shut { Ok(true) } else { delivered.map(|()| true) }
    }

    fn take_replays(&self, holding: &Holding) -> Option<ReplayLot> {
        let mut index = holding.board.index();
        let (shard, replays) = index.replays.take(|shard| self.may_replay(shard))?;
        let feed = index.feeds.get(replays.first()?.feed as usize)?.clone();
        Some(ReplayLot { shard, feed, replays })
    }

    /// True where a replay to that shard may be sent now.
    fn may_replay(&self, shard: Option<u32>) -> bool {
        let Some(shard) = shard else { return true };
        match self.shut_gate_of(shard) {
            // Nobody asks for the destination of a former shard before something is there for it.
            Some(gate) => {
                gate.want();
                false
            }
            None => self.leads_to(shard),
        }
    }

    /// The gate has closed: these wait for it. What has left meanwhile is its next owner's.
    fn put_back(&self, holding: &Holding, lot: &ReplayLot, waits: &[Item]) {
        let assignment = lot.feed.assignment;
        let mut index = holding.board.index();
        if !self.live.contains(assignment) {
            drop(index);
            let records = waits.len() as u64;
            let _ = self.ledger.send(Note::HandedBack { assignment, records, notes: 0 });
            return;
        }
        let feed = index.feed(&lot.feed);
        let mut waiting: Vec<u32> = waits.iter().map(|item| item.index).collect();
        waiting.sort_unstable();
        let replays = waiting.iter().filter_map(|at| lot.replays.get(*at as usize));
        let replays = replays.map(|replay| WaitingReplay { feed, ..*replay });
        index.replays.put_back(lot.shard, replays);
    }
}

impl ReplayLot {
    fn place(&self, replay: &WaitingReplay) -> StoreAddress {
        StoreAddress {
            group: Bytes::new(),
            kind: None,
            id: None,
            position: self.feed.position(replay.offset),
            with: replay.offset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets, each with its feed and its shard.
    fn waiting(places: &[(u64, u32, u32)]) -> WaitingReplays {
        let mut waiting = WaitingReplays::default();
        for (offset, feed, shard) in places {
            waiting.push(Some(*shard), &HeldRecord::at_place(*feed, *offset));
        }
        waiting
    }

    fn take(waiting: &mut WaitingReplays, may_call: impl Fn(u32) -> bool) -> Vec<u64> {
        let taken = waiting.take(|shard| shard.is_some_and(&may_call));
        let (_, replays) = taken.unwrap_or_default();
        replays.iter().map(|replay| replay.offset).collect()
    }

    /// Naive: the first one that waits keeps back all behind it, whatever shard they go to.
    #[test]
    fn a_shard_that_is_away_keeps_no_replay_of_another_back() {
        let mut waiting = waiting(&[(1, 0, 1), (2, 0, 3), (3, 0, 1), (4, 0, 3)]);
        assert_eq!(take(&mut waiting, |shard| shard == 3), [2, 4]);
        assert!(take(&mut waiting, |shard| shard == 3).is_empty());
        assert_eq!(take(&mut waiting, |_| true), [1, 3]);
        assert!(waiting.0.is_empty());
    }

    #[test]
    fn what_comes_back_is_first_again_and_in_its_order() {
        let mut waiting = waiting(&[(1, 0, 1), (2, 0, 1), (3, 0, 1)]);
        let (shard, taken) = waiting.take(|_| true).unwrap_or_default();
        waiting.push(shard, &HeldRecord::at_place(0, 4));
        waiting.put_back(shard, taken.into_iter().skip(1));
        assert_eq!(take(&mut waiting, |_| true), [2, 3, 4]);
    }

    #[test]
    fn a_lot_is_bounded_and_of_one_feed() {
        let max = LOT_RECORDS_MAX as u64;
        let places: Vec<(u64, u32, u32)> = (0..2 * max).map(|at| (at, 0, 0)).collect();
        let mut full = waiting(&places);
        assert_eq!(take(&mut full, |_| true).len(), LOT_RECORDS_MAX);
        assert_eq!(take(&mut full, |_| true).len(), LOT_RECORDS_MAX);
        assert!(full.0.is_empty());
        let mut mixed = waiting(&[(1, 0, 0), (2, 0, 0), (1, 1, 0), (3, 0, 0)]);
        assert_eq!(take(&mut mixed, |_| true), [1, 2]);
        mixed.forget(|feed| feed == 1);
        assert_eq!(take(&mut mixed, |_| true), [3]);
    }
}
