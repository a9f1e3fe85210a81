//! The step `source`.

use std::sync::Arc;

use potok_config::{Input, Pipeline, Refusal, StartFrom};
use potok_core::Fault;

use super::Wiring;
use crate::failure::Failure;

/// What a plan says of where records come from.
pub(super) struct Inputs {
    pub group: String,
    pub topics: Vec<Arc<str>>,
    pub from_end: bool,
}

/// The sources of a pipeline.
pub(super) fn of(wiring: &Wiring<'_>) -> Result<Inputs, Failure> {
    let pipeline = wiring.pipeline;
    let groups = pipeline.consumer_groups();
    let from_end = |input: &Input| match input {
        Input::Topics { from, .. } => *from == StartFrom::Latest,
        Input::Feed(_) => false,
    };
    for (index, input) in pipeline.inputs().enumerate() {
        if let Some(what) = refused(pipeline, input) {
            let fault = Fault::fix(what).code("P0152");
            let keys = ["consumer_group", "from", ""];
            return Err(wiring.refused("source", index, vec![Refusal::at(keys, fault)]));
        }
    }
    Ok(Inputs {
        group: groups.first().map_or(pipeline.name.to_string(), |group| (*group).to_owned()),
        topics: pipeline.topics().into_iter().map(Arc::from).collect(),
        from_end: pipeline.inputs().next().is_some_and(from_end),
    })
}

/// One pipeline has one consumer group and one start, and reads topics.
fn refused(pipeline: &Pipeline, input: &Input) -> Option<&'static str> {
    let first = pipeline.inputs().next()?;
    match (first, input) {
        (_, Input::Feed(_)) | (Input::Feed(_), _) => Some("the engine does not run feeds yet"),
        (Input::Topics { from: first, .. }, Input::Topics { from, .. }) if first != from => {
            Some("the sources of one pipeline begin at the same end")
        }
        _ if first.consumer_group() != input.consumer_group() => {
            Some("the sources of one pipeline have one consumer group")
        }
        _ => None,
    }
}
