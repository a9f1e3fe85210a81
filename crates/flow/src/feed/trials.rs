//! Groups whose owners died: their records run one at a time, each noted where the next owner sees it.
//!
//! Crash notes lie in one data folder. What several processes share goes round them, so its feed keeps the
//! notes of such a group ([`Trials`]). Each record is tried alone in all stages, those per group too, and
//! what comes of it is thrown away; then the group is worked on as ever, without those that were too
//! often the last that was tried. A stage may be asked for a record more often than for others, which
//! is true of any repeat.

use potok_core::trouble::{Bug, planted};
use potok_core::{Event, SourceBatch, StageResult, Trials};
use tokio::sync::OwnedMutexGuard;

use crate::crash_notes::{DEATHS_MAX, Range, Suspicion};
use crate::lane::{Item, Lane, crashes};
use crate::plan::Per;
use crate::process::GroupItems;
use crate::work::Stop;

/// How the records of a batch are tried, if they are.
pub(crate) fn of_batch(batch: &SourceBatch) -> Option<&Trials> {
    batch.trials().filter(|_| !planted(Bug::TriedTogether))
}

/// What the deaths of earlier owners say of the record at `index`.
pub(crate) fn verdict(trials: &Trials, batch: &SourceBatch, index: u32) -> Suspicion {
    let offset = batch.records.get(index as usize).map(|record| record.offset);
    match offset.map_or(0, |offset| trials.deaths_at(offset)) {
        deaths if deaths >= DEATHS_MAX => Suspicion::Guilty(deaths),
        _ => Suspicion::Alone,
    }
}

impl Lane {
    /// Waits until no other lane tries records alone, where that is to be done.
    pub(crate) async fn turn(&self, trials: Option<&Trials>) -> Option<OwnedMutexGuard<()>> {
        match trials {
            Some(_) => Some(self.notes.trial().await),
            None => None,
        }
    }

    /// Takes the members of a group, if they are one, through the stages per group: each alone, then all together.
    pub(crate) async fn process_tried(
        &mut self,
        items: &mut [Item],
        first: usize,
        group: Option<GroupItems>,
        trials: &Trials,
    ) -> Result<(), Stop> {
        let Some(group) = group else {
            trials.notes.trying(None).await;
            return Ok(());
        };
        for item in items.iter() {
            let Some(event) = item.event.clone() else { continue };
            trials.notes.trying(Some(item.origin.offset)).await;
            self.try_alone(event, &group).await;
        }
        trials.notes.trying(Some(Trials::TOGETHER)).await;
        let deaths = trials.deaths_at(Trials::TOGETHER);
        if deaths >= DEATHS_MAX {
            let alive = items.iter_mut().filter(|item| item.event.is_some());
            alive.for_each(|item| item.set_aside(crashes(deaths)));
        }
        let processed = self.process_batches(items, first, std::iter::once(group)).await;
        trials.notes.trying(None).await;
        processed
    }

    /// What goes wrong here goes wrong again with the group, and is dealt with there.
    async fn try_alone(&self, event: Event, group: &GroupItems) {
        let note = Range::of_record(&event.position);
        let plan = self.plan.clone();
        let mut events = vec![event];
        for stage in plan.stages.iter().skip(plan.first_per_group()) {
            let applying = match stage.per {
                Per::Group => stage.stage.apply_group(&group.group, events),
                Per::Event => stage.stage.apply(events),
            };
            let Ok(staged) = self.noted(applying, note).await else { return };
            let on = |staged: StageResult| match staged {
                StageResult::On(event) | StageResult::Merged(event) => Some(event),
                _ => None,
            };
            events = staged.into_iter().filter_map(on).collect();
        }
    }
}
