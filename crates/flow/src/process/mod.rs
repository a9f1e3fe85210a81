//! process: stages between decoding and delivery.
//!
//! Stages run in the order of the file. Where one works per group, it and those behind it run
//! when the members of a sealed group are together again (`group.rs`).

mod calls;
mod count;
mod group;
mod health;
mod merge;
mod vrl;

use std::sync::atomic::Ordering;
use std::task::Poll;

use futures::FutureExt;
use potok_core::{Event, Fault, GroupInfo, StageResult};
use potok_expr::json::Parser;

use crate::crash_notes::Range;
use crate::lane::{Item, Lane};
use crate::plan::{OnError, StagePlan};
use crate::status::Counters;
use crate::work::Stop;
use calls::Calls;
pub(crate) use count::StageCounts;
pub(crate) use group::GroupItems;
pub use health::StageStatus;
pub(crate) use health::Stages;
use merge::lead;
pub use vrl::{VrlGroupStage, VrlStage};

impl Lane {
    /// Takes the records of one run through all stages before the first that works per group.
    pub(crate) async fn process(&mut self, items: &mut [Item], note: Range) -> Result<(), Stop> {
        self.run_stages(0..self.plan.first_per_group(), items, None, note).await
    }

    /// Takes records through stages; `group` is what those per group are told.
    async fn run_stages(
        &mut self,
        stages: std::ops::Range<usize>,
        items: &mut [Item],
        group: Option<&GroupInfo>,
        note: Range,
    ) -> Result<(), Stop> {
        let plan = self.plan.clone();
        let mut parser = Parser::new();
        for (index, stage) in plan.stages.iter().enumerate().take(stages.end).skip(stages.start) {
            // Copies: an event that fails goes on as the stage received it.
            let events: Vec<Event> = items.iter().filter_map(|item| item.event.clone()).collect();
            if events.is_empty() {
                continue;
            }
            let calls = Calls::new(index, stage, events, group);
            let mut staged = self.apply(calls, note).await?;
            if !merge::is_whole(stage.per, &staged) {
                let what = format!("stage `{}` merged events and left no message", stage.name);
                return Err(Stop::Fix(Fault::fix(what).code("P0402")));
            }
            self.counters.stages.answered(index, &staged);
            if let Some(group) = group {
                merge::name(group, items, &mut staged);
            }
            let working = items.iter_mut().filter(|item| item.event.is_some());
            for (item, staged) in working.zip(staged) {
                if let StageResult::On(event) | StageResult::Merged(event) = &staged {
                    self.counters.counted.add(index, &event.value, &mut parser);
                }
                item.accept(stage, staged, &self.counters)?;
            }
        }
        Ok(())
    }

    /// Runs a stage with the crash note set only while it computes: what it waits for, it did not
    /// die of.
    pub(crate) async fn noted(
        &self,
        mut applying: impl Future<Output = Result<Vec<StageResult>, Fault>> + Unpin,
        note: Range,
    ) -> Result<Vec<StageResult>, Fault> {
        std::future::poll_fn(|context| {
            self.notes.enter(self.slot, note);
            let polled: Poll<_> = applying.poll_unpin(context);
            self.notes.leave(self.slot);
            polled
        })
        .await
    }
}

impl Item {
    fn accept(
        &mut self,
        stage: &StagePlan,
        staged: StageResult,
        counters: &Counters,
    ) -> Result<(), Stop> {
        match (staged, stage.on_error) {
            (StageResult::On(event), _) => self.event = Some(event),
            (StageResult::Merged(event), _) => {
                self.leads = true;
                self.event = Some(event);
            }
            (StageResult::Into, _) => {
                self.merged = true;
                self.event = None;
                self.open = 0;
            }
            (StageResult::Filtered, _) => {
                self.filtered = true;
                self.event = None;
                self.open = 0;
            }
            // The event is still as the stage received it.
            (StageResult::Failed(_), OnError::Pass) => {
                counters.passed.fetch_add(1, Ordering::Relaxed);
            }
            (StageResult::Failed(fault), OnError::DeadLetter) => {
                let what = format!("stage `{}`: {}", stage.name, fault.what);
                self.set_aside(Fault { what, ..fault });
            }
            (StageResult::Failed(fault), OnError::Stop) => {
                let what = format!("stage `{}` failed on {}", stage.name, self.origin);
                let hint = "change the stage or its `on_error`, then `potok resume`";
                return Err(Stop::Fix(Fault::fix(what).because(fault).code("P0401").hint(hint)));
            }
        }
        Ok(())
    }
}
