//! Stages written in VRL: they change events, or filter them with `abort`.

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::trouble::deadly;
use potok_core::{Event, Fault, GroupInfo, Reason, Stage, StageResult, Timestamp};
use potok_expr::{GroupOutcome, Program, ProgramError, ProgramOutcome, View};

/// Runs one program on each event.
pub struct VrlStage {
    program: Program,
}

impl VrlStage {
    /// A stage of a checked program.
    pub fn new(program: Program) -> Self {
        VrlStage { program }
    }

    fn apply_one(&self, event: Event) -> StageResult {
        deadly(&event.value);
        match self.program.run(&View::from(&event)) {
            Ok(ran) => staged(event, ran),
            Err(error) => StageResult::Failed(failed(error)),
        }
    }
}

#[async_trait]
impl Stage for VrlStage {
    fn is_pure(&self) -> bool {
        true
    }

    async fn apply(&self, events: Vec<Event>) -> Result<Vec<StageResult>, Fault> {
        Ok(events.into_iter().map(|event| self.apply_one(event)).collect())
    }
}

/// Runs one program on each sealed group.
pub struct VrlGroupStage {
    program: Program,
}

impl VrlGroupStage {
    /// A stage of a program that was compiled for batches.
    pub fn new(program: Program) -> Self {
        VrlGroupStage { program }
    }
}

#[async_trait]
impl Stage for VrlGroupStage {
    fn is_pure(&self) -> bool {
        true
    }

    async fn apply(&self, events: Vec<Event>) -> Result<Vec<StageResult>, Fault> {
        let group = GroupInfo::replayed(Bytes::new(), Timestamp(0), String::new());
        self.apply_group(&group, events).await
    }

    /// Where the program fails, it fails for the group as a whole.
    async fn apply_group(
        &self,
        group: &GroupInfo,
        events: Vec<Event>,
    ) -> Result<Vec<StageResult>, Fault> {
        events.iter().for_each(|event| deadly(&event.value));
        let views: Vec<View<'_>> = events.iter().map(View::from).collect();
        let ran = self.program.run_batch(group, &views).map_err(failed)?;
        let value = match ran {
            GroupOutcome::Each(ran) => {
                return Ok(events.into_iter().zip(ran).map(|(e, ran)| staged(e, ran)).collect());
            }
            GroupOutcome::One(value) => value,
        };
        let mut answers: Vec<StageResult> =
            events.iter().skip(1).map(|_| StageResult::Into).collect();
        // It goes on as the last of them, with the headers and the time of that one.
        answers.extend(
            events
                .into_iter()
                .next_back()
                .map(|event| StageResult::Merged(Event { value, ..event })),
        );
        Ok(answers)
    }
}

fn staged(mut event: Event, ran: ProgramOutcome) -> StageResult {
    match ran {
        ProgramOutcome::Unchanged => StageResult::On(event),
        ProgramOutcome::Value(value) => {
            event.value = value;
            StageResult::On(event)
        }
        ProgramOutcome::Filtered => StageResult::Filtered,
    }
}

fn failed(error: ProgramError) -> Fault {
    let what = match error {
        ProgramError::Failed(what) => what,
        ProgramError::Deadline => "the program ran past its deadline".to_owned(),
    };
    Fault::set_aside(Reason::Stage, what)
}
