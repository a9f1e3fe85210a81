//! What becomes of records of one id in one group, where later ones replace earlier ones.

use std::collections::{BTreeMap, BTreeSet};

use potok_core::Position;

use super::order::Arrival;
use super::{Expectation, Promise, members, name_of, origin_of};
use crate::sim::pipeline::INTERNAL;
use crate::sim::scenario::SimTarget;
use crate::sim::workload::field;
use crate::sim::world::State;

/// One member of a sealed group.
struct Version {
    /// The record itself, also where a copy of it is the member.
    origin: Position,
    arrived: Arrival,
}

impl Version {
    fn came_before(&self, other: &Version) -> bool {
        self.arrived.came_before(&other.arrived)
    }
}

/// Of the records of one id in a batch the last arrival is delivered, and the others end as it
/// does.
pub(super) fn check_versions(w: &mut State, expect: &Expectation) {
    let is_blind = (w.shared && expect.scenario.has_jumps_of_log())
        || (w.read_apart && expect.scenario.has_jumps());
    if expect.scenario.hold.is_none_or(|hold| !hold.replace) || is_blind {
        return;
    }
    for versions in sealed_versions(w) {
        for earlier in &versions {
            let Some(later) = versions.iter().find(|other| earlier.came_before(other)) else {
                continue;
            };
            let last = versions.iter().find(|last| !versions.iter().any(|v| last.came_before(v)));
            check_pair(w, expect, earlier, last.unwrap_or(later));
        }
    }
}

fn check_pair(w: &mut State, expect: &Expectation, earlier: &Version, last: &Version) {
    for (index, deliver) in (0..).zip(&expect.scenario.delivers) {
        let is_dead = |version: &Version| {
            w.observed.has_letter(&version.origin, Some(index), 1)
                || w.observed.has_letter(&version.origin, None, 1)
        };
        let (dead, last_dead) = (is_dead(earlier), is_dead(last));
        let name = name_of(&earlier.origin, index);
        let arrived = match &deliver.to {
            SimTarget::Topic(_) => w.observed.named.contains_key(&name.to_string()),
            SimTarget::Sink(_) => {
                let table = w.tables.get(index as usize);
                table.is_some_and(|table| table.by_name.contains_key(&name))
            }
        };
        if arrived && !dead {
            let what = format!("{name} arrived, though {} came later", last.origin);
            w.violated(Promise::LatestWins, what);
        } else if last_dead && !dead {
            let what = format!("{name} ended for {}, which is a dead letter", last.origin);
            w.violated(Promise::NothingLost, what);
        }
    }
}

/// Members of one batch that have one id, for every batch and id with several. A record belongs to
/// the first seal that names it.
fn sealed_versions(w: &State) -> Vec<Vec<Version>> {
    let mut taken: BTreeSet<Position> = BTreeSet::new();
    let mut all = Vec::new();
    for (_, note) in w.disk.records(INTERNAL).filter(|(_, record)| origin_of(record).is_none()) {
        let seal = serde_json::from_slice(note.value.as_deref().unwrap_or_default());
        let mut by_id: BTreeMap<String, Vec<Version>> = BTreeMap::new();
        for at in members(&seal.unwrap_or_default()) {
            let Some(record) = w.disk.record(&at).filter(|_| taken.insert(at.clone())) else {
                continue;
            };
            let Some(id) = field(record.value.as_deref(), "id") else { continue };
            let origin = origin_of(record).unwrap_or(at);
            let Some(arrived) = Arrival::of(w, &origin) else { continue };
            by_id.entry(id).or_default().push(Version { origin, arrived });
        }
        all.extend(by_id.into_values().filter(|versions| versions.len() > 1));
    }
    all
}
