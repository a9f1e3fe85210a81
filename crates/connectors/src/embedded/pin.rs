//! Which records must stay.
//!
//! A record is *pinned* while a registered group that reads its topic has not ended it, and for
//! ever in topics that hold dead letters, their resolutions and replays. What is not pinned is
//! *loose*: it goes when there is need.

use potok_core::RangeSet;

use super::catalog::{Catalog, without};
use super::damage::DEAD_TOPIC;
use super::index::Index;

/// Why loose records of a segment may go now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// By age or size.
    pub due: bool,
    /// The disk is full.
    pub pressed: bool,
}

impl Need {
    /// True when there is none: everything stays.
    pub fn is_none(self) -> bool {
        self == Need::default()
    }

    /// Up to this size a rewritten segment is worth the work.
    pub fn worth(self, bytes: u64) -> u64 {
        if self.pressed { bytes / 4 * 3 } else { bytes / 2 }
    }
}

/// Which records of a partition are pinned.
pub enum Pin {
    /// All of them.
    All,
    /// All but these.
    Except(RangeSet),
    /// None.
    Nothing,
}

impl Pin {
    /// True when the record at `offset` stays.
    pub fn holds(&self, offset: u64) -> bool {
        match self {
            Pin::All => true,
            Pin::Except(ended) => !ended.contains(offset),
            Pin::Nothing => false,
        }
    }
}

/// What is pinned of a partition.
pub fn pin(catalog: &Catalog, topic: &str, partition: u32, need: Need) -> Pin {
    if need.is_none() || topic == DEAD_TOPIC || catalog.kept.contains(topic) {
        return Pin::All;
    }
    let mut ended: Option<RangeSet> = None;
    for group in catalog.groups.values() {
        if !group.topics.iter().any(|read| &**read == topic) {
            continue;
        }
        let own = group.ended(topic, partition).cloned().unwrap_or_default();
        ended = Some(match ended {
            // What both have ended.
            Some(others) => without(&own, &without(&own, &others)),
            None => own,
        });
    }
    match ended {
        Some(ended) => Pin::Except(ended),
        None if need.due => Pin::Nothing,
        None => Pin::All,
    }
}

/// What a segment's index tells of its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// How many offsets are loose.
    pub loose: u64,
    /// About how many bytes are pinned; 0 only where nothing is.
    pub pinned: u64,
}

/// Estimates what of a segment is loose.
pub fn loose(catalog: &Catalog, index: &Index, need: Need) -> Estimate {
    let mut estimate = Estimate::default();
    for (topic, partition, extent) in index.extents() {
        let offsets = extent.last + 1 - extent.first;
        let free = match pin(catalog, topic, partition, need) {
            Pin::All => 0,
            Pin::Nothing => offsets,
            Pin::Except(ended) => {
                ended.count_from(extent.first) - ended.count_from(extent.last + 1)
            }
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
