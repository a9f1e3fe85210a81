//! Which records must stay.
//!
//! A record is *pinned* while a registered group that reads its topic has not ended it, and in
//! topics that hold dead letters, their resolutions and replays until it is released. What is not
//! pinned is *loose*: it goes when there is need; what was released needs none.

use std::borrow::Cow;

use potok_core::RangeSet;

use super::catalog::{Catalog, without};
use super::damage::DEAD_TOPIC;
use super::index::Index;

/// Why loose records of a segment may go now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictionCause {
    /// By age or size.
    pub due: bool,
    /// The disk is full.
    pub pressed: bool,
}

impl EvictionCause {
    /// True when there is none: everything stays.
    pub fn is_none(self) -> bool {
        self == EvictionCause::default()
    }

    /// Up to this size a rewritten segment is worth the work.
    pub fn worth(self, bytes: u64) -> u64 {
        if self.pressed { bytes / 4 * 3 } else { bytes / 2 }
    }
}

/// Which records of a partition are pinned.
pub enum Pin<'a> {
    All,
    /// All but these.
    Except(Cow<'a, RangeSet>),
    /// None.
    Nothing,
}

impl Pin<'_> {
    /// True when the record at `offset` stays.
    pub fn holds(&self, offset: u64) -> bool {
        match self {
            Pin::All => true,
            Pin::Except(ended) => !ended.contains(offset),
            Pin::Nothing => false,
        }
    }
}

/// The pinned offsets of a partition.
pub fn pin<'a>(catalog: &'a Catalog, topic: &str, partition: u32, need: EvictionCause) -> Pin<'a> {
    if topic == DEAD_TOPIC || catalog.kept.contains(topic) {
        let Some(released) = catalog.released(topic, partition) else { return Pin::All };
        return Pin::Except(match ended(catalog, topic, partition) {
            Some(ended) => Cow::Owned(both(released, &ended)),
            None => Cow::Borrowed(released),
        });
    }
    if need.is_none() {
        return Pin::All;
    }
    match ended(catalog, topic, partition) {
        Some(ended) => Pin::Except(ended),
        None if need.due => Pin::Nothing,
        None => Pin::All,
    }
}

/// The offsets that all groups reading a partition have ended; `None` where nobody reads it.
fn ended<'a>(catalog: &'a Catalog, topic: &str, partition: u32) -> Option<Cow<'a, RangeSet>> {
    let mut ended: Option<Cow<'a, RangeSet>> = None;
    for group in catalog.groups.values() {
        if !group.topics.iter().any(|read| &**read == topic) {
            continue;
        }
        let own = group.ended(topic, partition).map_or_else(Cow::default, Cow::Borrowed);
        ended = Some(match ended {
            Some(others) => Cow::Owned(both(&own, &others)),
            None => own,
        });
    }
    ended
}

/// The offsets that lie in both sets.
fn both(one: &RangeSet, other: &RangeSet) -> RangeSet {
    without(one, &without(one, other))
}

/// An estimate of a segment's records, from its index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// How many offsets are loose.
    pub loose: u64,
    /// About how many bytes are pinned; 0 only where nothing is.
    pub pinned: u64,
}

/// Estimates what of a segment is loose.
pub fn loose(catalog: &Catalog, index: &Index, need: EvictionCause) -> Estimate {
    let mut estimate = Estimate::default();
    for (topic, partition, extent) in index.extents() {
        let offsets = extent.last + 1 - extent.first;
        let free = match pin(catalog, topic, partition, need) {
            Pin::All => 0,
            Pin::Nothing => offsets,
            Pin::Except(loose) => loose.count_within(extent.first..extent.last + 1),
        };
        estimate.loose += free;
        // Wide: in a merged segment offsets lie far apart.
        let pinned = u128::from(extent.bytes) * u128::from(offsets - free);
        estimate.pinned += (pinned / u128::from(offsets.max(1))) as u64;
        if free < offsets {
            // An estimate of nothing is not nothing.
            estimate.pinned = estimate.pinned.max(1);
        }
    }
    estimate
}
