//! What the runner knows to stand in the way of closing groups.

use potok_flow::Engine;

use super::super::hindrances::{Hindrances, RESTART};
use super::super::pipeline::PIPELINE;
use super::super::trouble::Trouble;
use super::super::workload::RecordKind;
use super::{Open, Runner, SAMPLE_EVERY};

impl Runner {
    /// Notes what stands in the way of closing groups.
    pub(super) fn hinder(&self, what: impl FnOnce(&mut Hindrances, u64)) {
        self.world.with(|w| {
            let now = w.millis();
            what(&mut w.hindrances, now);
        });
    }

    /// A run that finds its store changed ends and reads everything again.
    pub(super) fn loses_store(&self) {
        self.hinder(|hindrances, now| hindrances.add(now, now + RESTART));
    }

    pub(super) fn resume(&self, engines: &[Engine]) {
        self.hinder(|hindrances, now| hindrances.pause(now, false));
        engines.iter().for_each(|engine| drop(engine.resume(PIPELINE)));
    }

    /// A lane stands while one of its records is tried for, or kills, the process.
    pub(super) fn look_for_hindrances(&self) {
        let is_held = self.scenario.hold.is_some();
        let is_bad = |open: &Open| matches!(open.kind, RecordKind::Poison | RecordKind::Killer);
        let may_be = [Trouble::Poison, Trouble::Killer];
        let may_be = may_be.iter().any(|trouble| self.scenario.enabled.contains(trouble));
        if is_held && may_be && self.open_records().iter().any(is_bad) {
            let since = SAMPLE_EVERY.as_millis() as u64;
            self.hinder(|hindrances, now| hindrances.add(now.saturating_sub(since), now + RESTART));
        }
    }
}
