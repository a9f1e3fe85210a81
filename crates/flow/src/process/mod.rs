//! process: stages between decoding and delivery.

mod vrl;

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::Poll;

use potok_core::{Event, Fault, Move, Stage, Staged};

use crate::crash_notes::Range;
use crate::lane::{Item, Lane};
use crate::plan::{OnError, StagePlan};
use crate::status::Counters;
use crate::work::Stop;
pub use vrl::VrlStage;

impl Lane {
    /// Takes the records of one run through all stages.
    pub(crate) async fn process(&mut self, items: &mut [Item], note: Range) -> Result<(), Stop> {
        let plan = self.plan.clone();
        for stage in &plan.stages {
            // Copies, one per attempt: an event that fails goes on as the stage received it.
            let events = || items.iter().filter_map(|item| item.event.clone()).collect::<Vec<_>>();
            let staged = self.apply(stage, events, note).await?;
            let working = items.iter_mut().filter(|item| item.event.is_some());
            for (item, staged) in working.zip(staged) {
                item.accept(stage, staged, &self.counters)?;
            }
        }
        Ok(())
    }

    async fn apply(
        &mut self,
        stage: &StagePlan,
        events: impl Fn() -> Vec<Event>,
        note: Range,
    ) -> Result<Vec<Staged>, Stop> {
        let mut attempt = 0;
        loop {
            let events = events();
            let given = events.len();
            if given == 0 {
                return Ok(Vec::new());
            }
            let fault = match self.noted(&*stage.stage, events, note).await {
                Ok(staged) if staged.len() == given => return Ok(staged),
                Ok(staged) => {
                    let got = staged.len();
                    let what = format!("stage `{}` answered {got} of {given} events", stage.name);
                    return Err(Stop::Fix(Fault::fix(what).code("P0402")));
                }
                Err(fault) => fault,
            };
            match fault.next {
                Move::Fix => return Err(Stop::Fix(fault)),
                Move::SetAside => {
                    return Ok((0..given).map(|_| Staged::Failed(fault.clone())).collect());
                }
                Move::Wait | Move::Retry => {
                    attempt += 1;
                    self.wait(self.plan.retry.wait(attempt, self.slot as u64 * 97)).await?;
                }
            }
        }
    }

    /// Runs a stage with the crash note set only while it computes: what it waits for, it did not
    /// die of.
    async fn noted(
        &self,
        stage: &dyn Stage,
        events: Vec<Event>,
        note: Range,
    ) -> Result<Vec<Staged>, Fault> {
        let mut applying = pin!(stage.apply(events));
        std::future::poll_fn(|context| {
            self.notes.enter(self.slot, note);
            let polled: Poll<_> = applying.as_mut().poll(context);
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
        staged: Staged,
        counters: &Counters,
    ) -> Result<(), Stop> {
        match (staged, stage.on_error) {
            (Staged::On(event), _) => self.event = Some(event),
            (Staged::Filtered, _) => {
                self.filtered = true;
                self.event = None;
                self.open = 0;
            }
            // The event is still as the stage received it.
            (Staged::Failed(_), OnError::Pass) => {
                counters.passed.fetch_add(1, Ordering::Relaxed);
            }
            (Staged::Failed(fault), OnError::DeadLetter) => {
                let what = format!("stage `{}`: {}", stage.name, fault.what);
                self.set_aside(Fault { what, ..fault });
            }
            (Staged::Failed(fault), OnError::Stop) => {
                let what = format!("stage `{}` failed on {}", stage.name, self.origin);
                let hint = "change the stage or its `on_error`, then `potok resume`";
                return Err(Stop::Fix(Fault::fix(what).because(fault).code("P0401").hint(hint)));
            }
        }
        Ok(())
    }
}
