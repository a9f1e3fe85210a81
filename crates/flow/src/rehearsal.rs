//! What would become of dead letters that are replayed now: the steps up to the call of a destination,
//! as the pipeline runs at this moment, with nothing noted and nobody asked.
//!
//! A stage that asks somebody or leaves something behind is not called: then nothing is known. Nor is
//! a record tried that ended the process before.

use std::sync::PoisonError;

use potok_core::{DecodeResult, Event, Fault, GroupInfo, Move, Reason, StageResult};
use potok_expr::json::Parser;

use crate::dead_letter::{DeadLetter, Replay};
use crate::deliver::address;
use crate::engine::Engine;
use crate::lane::Item;
use crate::origin::Origin;
use crate::plan::{OnError, Per, Plan, StagePlan};

/// What would become of a dead letter.
#[derive(Clone, Debug)]
pub enum Forecast {
    /// It comes to these deliver entries; whether a destination takes it is known only then.
    Reaches(Vec<String>),
    /// A rule leaves it out.
    Filtered,
    /// It would be a dead letter again.
    DeadLettered(Fault),
    /// The pipeline would stop (`on_error: stop`).
    Blocks(Fault),
    /// It cannot be known, and why.
    Unknown(String),
}

impl Engine {
    /// Says of each dead letter of a pipeline, in order, what a replay would come to. Changes nothing.
    pub async fn rehearse(&self, pipeline: &str, letters: &[DeadLetter]) -> Vec<Forecast> {
        let all = |why: &str| letters.iter().map(|_| Forecast::Unknown(why.to_owned())).collect();
        let plan = {
            let pipelines = self.inner.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
            pipelines.get(pipeline).map(|handle| handle.plan.clone())
        };
        let Some(plan) = plan else { return all("its pipeline does not run here") };
        let (letters, runtime) = (letters.to_vec(), tokio::runtime::Handle::current());
        // Programs of somebody's may take their time, and what dies of a record dies here alone.
        let rehearsing = tokio::task::spawn_blocking(move || {
            runtime.block_on(async {
                let mut forecasts = Vec::with_capacity(letters.len());
                for letter in &letters {
                    forecasts.push(forecast(&plan, letter).await);
                }
                forecasts
            })
        });
        rehearsing.await.unwrap_or_else(|_| all("trying it out failed"))
    }
}

impl Item {
    /// A dead letter that would be replayed.
    fn of_letter(letter: &DeadLetter) -> Self {
        let DeadLetter { envelope, position, record, .. } = letter;
        let replay = Replay::of(envelope, position);
        let origin = Origin {
            position: envelope.origin.clone(),
            failures: 0,
            time: record.time,
            key: record.key.clone(),
            headers: record.headers.clone(),
            replay: Ok(None),
        };
        let mut item = Item::new(0, 0, 0, origin);
        item.replay = Some(Box::new(replay));
        item
    }
}

async fn forecast(plan: &Plan, letter: &DeadLetter) -> Forecast {
    if letter.envelope.reason == Reason::Crashes {
        return Forecast::Unknown("the process died of it before: it is not tried out".to_owned());
    }
    match until_delivery(plan, letter).await {
        Ok(reached) if reached.is_empty() => Forecast::Filtered,
        Ok(reached) => Forecast::Reaches(reached),
        Err(forecast) => forecast,
    }
}

/// The deliver entries that it comes to, or what ends it before.
async fn until_delivery(plan: &Plan, letter: &DeadLetter) -> Result<Vec<String>, Forecast> {
    let mut parser = Parser::new();
    let mut item = Item::of_letter(letter);
    if let Some(DecodeResult::Bad(fault)) = plan.decoder.decode(&[&letter.record]).pop() {
        return Err(Forecast::DeadLettered(fault));
    }
    if let Some(hold) = &plan.hold {
        let value = letter.record.value.as_deref().unwrap_or_default();
        let belongs = hold.belongs(&mut parser, &item, value, None);
        let belongs = belongs.map_err(Forecast::DeadLettered)?;
        let group = belongs.group;
        item.shard = hold.shard_of(&group);
        (item.group, item.kind, item.id) = (group, belongs.kind, belongs.id);
    }
    plan.admit(&mut item, &letter.record);
    for stage in &plan.stages {
        let Some(event) = item.event.take() else { return Ok(Vec::new()) };
        item.event = Some(staged(stage, &item, event).await?);
    }
    let mut reached = Vec::new();
    for deliver in plan.delivers.iter() {
        if item.open == 0 || !item.wants(deliver) {
            continue;
        }
        address(deliver, false, std::slice::from_mut(&mut item), 0);
        match item.letters.pop() {
            Some(rejection) => return Err(Forecast::DeadLettered(rejection.fault)),
            None => reached.push(deliver.label.clone()),
        }
    }
    Ok(reached)
}

/// The event behind a stage.
async fn staged(stage: &StagePlan, item: &Item, event: Event) -> Result<Event, Forecast> {
    if !stage.stage.is_pure() {
        let why = format!("stage `{}` asks somebody, so it is not tried out", stage.name);
        return Err(Forecast::Unknown(why));
    }
    let before = event.clone();
    let answered = match stage.per {
        Per::Event => stage.stage.apply(vec![event]).await,
        Per::Group => {
            let name = item.origin.to_string();
            let group = GroupInfo::replayed(item.group.clone(), item.time(), name);
            stage.stage.apply_group(&group, vec![event]).await
        }
    };
    let fault = match answered.map(|mut answers| answers.pop()) {
        Ok(Some(StageResult::On(event) | StageResult::Merged(event))) => return Ok(event),
        Ok(Some(StageResult::Filtered)) => return Err(Forecast::Filtered),
        Ok(Some(StageResult::Failed(fault))) => fault,
        Ok(Some(StageResult::Into) | None) => {
            return Err(Forecast::Unknown(format!("stage `{}` gave no answer", stage.name)));
        }
        Err(fault) if fault.next == Move::SetAside => fault,
        Err(fault) => return Err(Forecast::Unknown(fault.to_string())),
    };
    let what = format!("stage `{}`: {}", stage.name, fault.what);
    match stage.on_error {
        OnError::Pass => Ok(before),
        OnError::DeadLetter => Err(Forecast::DeadLettered(Fault { what, ..fault })),
        OnError::Stop => Err(Forecast::Blocks(Fault { what, ..fault })),
    }
}
