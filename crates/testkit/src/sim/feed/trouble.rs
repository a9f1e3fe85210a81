//! Trouble of the log and of destinations, for pipelines on feeds; the feed itself always makes some.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::check::FeedRecordKind;
use super::run::{DEAD, FeedScenario, OUT};
use crate::sim::chance::Chance;
use crate::sim::scenario::LARGE;
use crate::sim::sink::{Spell, Table};
use crate::sim::trouble::Trouble;
use crate::sim::world::World;

/// From this seed on the log and destinations make trouble too.
pub const FEED_TROUBLE_SEEDS: u64 = 1 << 32;

/// Lasts for a while: of the log, and of destinations.
const LOG_SPELLS: [Trouble; 3] = [Trouble::LogAway, Trouble::DiskFull, Trouble::TopicForbidden];
const SINK_SPELLS: [Trouble; 4] =
    [Trouble::SinkAway, Trouble::SinkReadOnly, Trouble::SinkRetriesAll, Trouble::SinkNeedsFix];

/// The trouble of one run.
#[derive(Clone, Debug, Default)]
pub(super) struct FeedTrouble {
    pub enabled: BTreeSet<Trouble>,
    log_spells: Vec<Spell>,
    sink_spells: Vec<Spell>,
}

impl FeedTrouble {
    /// From a chance of its own: the rest of a scenario is as it would be without.
    pub fn of(chance: &mut Chance, scenario: &FeedScenario, span: u64) -> Self {
        let mut enabled: BTreeSet<Trouble> =
            Trouble::OF_FEEDS.into_iter().filter(|_| chance.one_in(3)).collect();
        // What is like Kafka has many disks.
        if scenario.overlap > 1 {
            enabled.remove(&Trouble::DiskFull);
        }
        let mut spells = |of: &[Trouble]| {
            let mut spells = Vec::new();
            for trouble in of.iter().copied().filter(|trouble| enabled.contains(trouble)) {
                for _ in 0..chance.between(1, 3) {
                    let from = chance.below(span);
                    spells.push(Spell { from, to: from + chance.between(50, 20_000), trouble });
                }
            }
            spells
        };
        let (log_spells, sink_spells) = (spells(&LOG_SPELLS), spells(&SINK_SPELLS));
        FeedTrouble { enabled, log_spells, sink_spells }
    }

    /// Makes records of some that were good which the log or the destination refuses.
    pub fn spoil(
        &self,
        chance: &mut Chance,
        scenario: &FeedScenario,
        records: &mut [(Bytes, Bytes)],
    ) {
        let mut kinds = Vec::new();
        if self.enabled.contains(&Trouble::TooLarge) {
            kinds.push(FeedRecordKind::Large);
        }
        if self.enabled.contains(&Trouble::Refused) && scenario.sink.is_some() && !scenario.merges {
            kinds.push(FeedRecordKind::Refused);
        }
        for (key, value) in records {
            let id = super::check::id_of(value).filter(|_| chance.one_in(6));
            let is_good = FeedRecordKind::of(value) == FeedRecordKind::Good;
            if let (Some(id), Some(kind), true) = (id, chance.pick(&kinds), is_good) {
                *value = kind.value(id, key);
            }
        }
    }

    /// Lets the world make it.
    pub fn begin(&self, world: &World) {
        world.with(|w| {
            w.enabled = self.enabled.clone();
            w.log_spells = self.log_spells.clone();
            w.output_max = self.enabled.contains(&Trouble::TooLarge).then_some(LARGE / 2);
            w.limited = vec![OUT.into(), DEAD.into()];
            w.tables = vec![Table::default()];
            w.tables.iter_mut().for_each(|table| table.spells.clone_from(&self.sink_spells));
        });
    }
}
