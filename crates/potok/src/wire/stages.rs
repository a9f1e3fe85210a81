//! The step `process`.

use std::sync::Arc;

use potok_config::{OnError, Per, Stage, StageVrl, StageWork};
use potok_flow::process::{VrlGroupStage, VrlStage};
use potok_flow::{CountPlan, StagePlan};

use super::{Wiring, gathered, nothing_to_run};
use crate::failure::Failure;

/// The plans of all stages.
pub(super) fn plans(wiring: &Wiring<'_>) -> Result<Vec<StagePlan>, Failure> {
    let stages = wiring.pipeline.process.iter().enumerate();
    gathered(stages.map(|(index, stage)| plan(wiring, index, stage)))
}

fn plan(wiring: &Wiring<'_>, index: usize, stage: &Stage) -> Result<StagePlan, Failure> {
    let counts = stage.count.iter();
    let counts =
        counts.map(|(name, path)| CountPlan { name: name.to_owned(), path: path.path().clone() });
    Ok(StagePlan {
        name: stage.stage.to_string(),
        stage: built(wiring, index, stage)?,
        per: match stage.per {
            Per::Event => potok_flow::Per::Event,
            Per::Group => potok_flow::Per::Group,
        },
        on_error: match stage.on_error {
            OnError::Pass => potok_flow::OnError::Pass,
            OnError::DeadLetter => potok_flow::OnError::DeadLetter,
            OnError::Stop => potok_flow::OnError::Stop,
        },
        counts: counts.collect(),
    })
}

fn built(
    wiring: &Wiring<'_>,
    index: usize,
    stage: &Stage,
) -> Result<Arc<dyn potok_core::Stage>, Failure> {
    let site = wiring.site("process", &stage.stage, Vec::new());
    match stage.work() {
        Some(StageWork::Vrl(program)) => vrl(wiring, index, program, stage.per, &site.label),
        Some(StageWork::Connector(settings)) => {
            settings.build(&site).map_err(|refusals| wiring.refused("process", index, refusals))
        }
        None => Err(nothing_to_run(&site.label, "no stage of that name is known")),
    }
}

fn vrl(
    wiring: &Wiring<'_>,
    index: usize,
    program: &StageVrl,
    per: Per,
    label: &str,
) -> Result<Arc<dyn potok_core::Stage>, Failure> {
    let program = program.program(per).map_err(|errors| {
        let messages: Vec<_> = errors.into_iter().map(|error| error.message).collect();
        nothing_to_run(label, messages.join("; "))
    })?;
    let program = program.with_places(wiring.pipeline.program_places(index));
    Ok(match per {
        Per::Event => Arc::new(VrlStage::new(program)),
        Per::Group => Arc::new(VrlGroupStage::new(program)),
    })
}
