//! Groups that a feed has closed itself. All members of one end together, so that the feed is told
//! once: it may have nothing smaller to note than the group.

use potok_core::{CloseReason, Fault, Reason, SourceBatch};

use crate::counts::Ending;
use crate::deliver::ID_HEADER;
use crate::group::inherit;
use crate::lane::{Cycle, Item, Lane};
use crate::work::Chunk;

impl Item {
    /// Learns what the feed says of its record.
    pub(crate) fn know_feed(&mut self, chunk: &Chunk) {
        let batch = &chunk.taken.batch;
        (self.puts_off, self.assignment) = (chunk.taken.puts_off, batch.assignment);
        if batch.feed.is_none() {
            return;
        }
        self.named = self.headers().get(ID_HEADER).is_some();
        if let Some(whole) = batch.whole() {
            self.whole = true;
            self.group = whole.key.clone();
        }
    }

    /// Sets it aside where somebody has given its group up.
    pub(crate) fn heed_drop(&mut self, chunk: &Chunk) {
        let whole = chunk.taken.batch.whole();
        if whole.is_some_and(|whole| CloseReason::of(&whole.reason) == CloseReason::Dropped) {
            self.letters.clear();
            self.set_aside(Fault::set_aside(Reason::Dropped, "its group was dropped by hand"));
        }
    }
}

impl Lane {
    /// A record without a group, from a feed that groups, belongs to none.
    pub(crate) fn refuse_groupless(&self, batch: &SourceBatch) -> Result<(), Fault> {
        match batch.feed.is_some() && batch.whole().is_none() && self.plan.comes_whole() {
            true => Err(Fault::set_aside(Reason::NoKey, "it belongs to no group")),
            false => Ok(()),
        }
    }

    /// The extra steps for records of feeds before the ledger learns the outcomes of a cycle.
    pub(crate) fn settle_feeds(&mut self, cycle: &mut Cycle) {
        self.put_off_failed(cycle);
        if cycle.items.iter().any(|item| item.whole || item.merged) {
            inherit(&mut cycle.items);
            end_together(&mut cycle.items);
        }
    }
}

/// Where a member of a group is given back, all are.
fn end_together(items: &mut [Item]) {
    let is_back = |item: &&Item| item.whole && item.ending() == Ending::HandedBack;
    let mut back: Vec<usize> = items.iter().filter(is_back).map(Item::chunk).collect();
    back.dedup();
    for item in items.iter_mut().filter(|item| item.whole && back.contains(&item.chunk())) {
        item.keep_back();
    }
}
