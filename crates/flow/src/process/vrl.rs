//! A stage written in VRL: changes the event, or filters it with `abort`.

use async_trait::async_trait;
use potok_core::{Event, Fault, Reason, Stage, Staged};
use potok_expr::{Program, ProgramError, Ran, View};

/// Runs one program on each event.
pub struct VrlStage {
    program: Program,
}

impl VrlStage {
    /// A stage of a checked program.
    pub fn new(program: Program) -> Self {
        VrlStage { program }
    }

    fn apply_one(&self, mut event: Event) -> Staged {
        let failed = |what: String| Staged::Failed(Fault::set_aside(Reason::Stage, what));
        match self.program.run(&View::from(&event)) {
            Ok(Ran::Unchanged) => Staged::On(event),
            Ok(Ran::Value(value)) => {
                event.value = value;
                Staged::On(event)
            }
            Ok(Ran::Filtered) => Staged::Filtered,
            Err(ProgramError::Failed(what)) => failed(what),
            Err(ProgramError::Deadline) => failed("the program ran past its deadline".to_owned()),
        }
    }
}

#[async_trait]
impl Stage for VrlStage {
    async fn apply(&self, events: Vec<Event>) -> Result<Vec<Staged>, Fault> {
        Ok(events.into_iter().map(|event| self.apply_one(event)).collect())
    }
}
