//! From pipeline files to plans: the one place that knows configuration and the engine. What a
//! connector is, it says itself; a file per step of the pipeline.

mod delivers;
mod group;
mod http;
mod inputs;
mod stages;
mod track;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use potok_config::{
    Connections, Env, FeedSettings as _, Flags, Format, LoadedFile, Pipeline, Refusal, Site, Size,
    check_together, load_connections, load_pipeline,
};
use potok_connectors::outbox::OutboxSettings;
use potok_core::{Decoder, Fault};
use potok_expr::Template;
use potok_flow::decode::{JsonDecoder, RawDecoder};
use potok_flow::{Plan, Retry};

use crate::failure::Failure;
use crate::registry::registry;
pub use http::{http_sources, unseen_repeats};

/// Reads pipeline files; all problems of all files at once.
pub fn load(files: &[PathBuf]) -> Result<Vec<LoadedFile<Pipeline>>, Failure> {
    let env = Env::process();
    let (mut loaded, mut problems) = (Vec::new(), Vec::new());
    for file in files {
        match load_pipeline(file, &env, registry()) {
            Ok(pipeline) => loaded.push(pipeline),
            Err(found) => problems.extend(found),
        }
    }
    problems.extend(check_together(&loaded));
    if problems.is_empty() { Ok(loaded) } else { Err(Failure::problems(problems)) }
}

/// The connections that flags, the environment and the file lead to.
pub fn connections(file: Option<&Path>, flags: &Flags) -> Result<Connections, Failure> {
    Ok(load_connections(file, flags, &Env::process(), registry())?)
}

/// Pipeline files together with the connections they run on; all problems at once.
pub fn load_with(
    files: &[PathBuf],
    connections: Result<Connections, Failure>,
) -> Result<(Vec<LoadedFile<Pipeline>>, Connections), Failure> {
    match (load(files), connections) {
        (Ok(pipelines), Ok(connections)) => Ok((pipelines, connections)),
        (Err(one), Err(other)) => Err(one.join(other)),
        (Err(failure), Ok(_)) | (Ok(_), Err(failure)) => Err(failure),
    }
}

/// Builds the plans of all pipelines; all problems of all of them at once.
pub fn plans(
    pipelines: &[LoadedFile<Pipeline>],
    connections: &Connections,
) -> Result<Vec<Plan>, Failure> {
    gathered(pipelines.iter().map(|pipeline| plan(pipeline, connections)))
}

/// One failure of two.
pub fn joined(failure: Option<Failure>, more: Failure) -> Failure {
    match failure {
        Some(failure) => failure.join(more),
        None => more,
    }
}

/// All of these, or everything that is wrong with any of them.
fn gathered<T>(all: impl IntoIterator<Item = Result<T, Failure>>) -> Result<Vec<T>, Failure> {
    let (mut good, mut failure) = (Vec::new(), None);
    for one in all {
        match one {
            Ok(one) => good.push(one),
            Err(more) => failure = Some(joined(failure, more)),
        }
    }
    failure.map_or(Ok(good), Err)
}

fn plan(pipeline: &LoadedFile<Pipeline>, connections: &Connections) -> Result<Plan, Failure> {
    let name = pipeline.name.to_string();
    let site = Wiring { pipeline, connections };
    let delivers = delivers::plans(&site)?;
    let inputs = inputs::of(&site)?;
    let come_whole = inputs::come_whole(&inputs);
    Ok(Plan {
        // A shard has a lane of its own, also one that there was before.
        workers: delivers
            .iter()
            .filter_map(|deliver| Some(deliver.shard?.saturating_add(1)))
            .fold(hold_shards(pipeline).max(pipeline.workers), u32::max) as usize,
        inputs,
        decoder: decoder(pipeline),
        hold: if come_whole { None } else { group::plan(&site)? },
        stages: stages::plans(&site)?,
        delivers,
        order_by: pipeline.order_by.as_ref().map(|order_by| order_by.template().clone()),
        retry: Retry {
            attempts: pipeline.retry.attempts,
            first: *pipeline.retry.first,
            max: *pipeline.retry.max,
        },
        probe_every: *pipeline.gate.probe_every,
        dead_letter_topic: pipeline.dead_letter_topic().into(),
        replays_max: pipeline.dead_letter.replays_max,
        keep_resolved: Some(*pipeline.dead_letter.keep_resolved),
        in_flight_bytes: in_memory(pipeline.limits.in_flight_bytes),
        name,
    })
}

/// How many shards its groups are spread over; 0 where they are not.
fn hold_shards(pipeline: &Pipeline) -> u32 {
    let shard = pipeline.group.as_ref().and_then(|group| group.shard.as_ref());
    shard.map_or(0, |shard| shard.of)
}

/// A pipeline file and the connections it runs on.
struct Wiring<'a> {
    pipeline: &'a LoadedFile<Pipeline>,
    connections: &'a Connections,
}

impl Wiring<'_> {
    /// What a connector is told: `step` and `label` are what messages call it.
    fn site(&self, step: &str, label: &str, once_by: Vec<Template>) -> Site<'_> {
        Site {
            pipeline: &self.pipeline.name,
            label: format!("pipeline `{}`, {step} `{label}`", self.pipeline.name),
            connections: self.connections,
            schema: self.pipeline.schema.as_deref(),
            once_by,
            shard: None,
            order_key: self.order_key(),
            dead_table: self.pipeline.dead_letter.table.as_deref(),
            file_hash: self.pipeline.fingerprint(),
        }
    }

    /// What is kept in order, where that is one expression: as `Plan::lane_key` has it.
    fn order_key(&self) -> Option<Template> {
        let key = || match self.pipeline.deliver.as_slice() {
            [only] => only.key.as_ref(),
            _ => None,
        };
        let expression = self.pipeline.order_by.as_ref().or_else(key)?;
        Some(expression.template().clone())
    }

    /// What is in the way of a connector: mistakes of the file at their places, the rest as it is.
    fn refused(&self, section: &str, index: usize, refusals: Vec<Refusal>) -> Failure {
        let (mut problems, mut faults) = (Vec::new(), Vec::new());
        for Refusal { keys, fault } in refusals {
            if keys.is_empty() {
                faults.push(fault);
                continue;
            }
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let (code, hint) = (fault.code, fault.hint.as_deref());
            let problem = self.pipeline.problem_of(section, index, &keys, code, &fault.what, hint);
            problems.push(problem);
        }
        let failure = Failure::problems(problems);
        if faults.is_empty() { failure } else { failure.join(Failure::faults(faults)) }
    }
}

/// Something that a file which was loaded always has is not there.
fn nothing_to_run(label: &str, cause: impl Into<String>) -> Failure {
    let what = format!("{label}: it has nothing to run");
    Failure::faults(vec![Fault::fix(what).because(cause.into()).code("P0526")])
}

/// As much of a size as there can be in memory.
fn in_memory(size: Size) -> usize {
    usize::try_from(size.bytes()).unwrap_or(usize::MAX)
}

fn decoder(pipeline: &LoadedFile<Pipeline>) -> Arc<dyn Decoder> {
    match pipeline.decode.format {
        Format::Json => {
            let schema = pipeline.schema.as_deref().zip(pipeline.validator());
            Arc::new(JsonDecoder::new(schema))
        }
        Format::Raw => Arc::new(RawDecoder),
    }
}

/// Destinations that have no address and are therefore topics, in words.
pub fn without_address(
    pipelines: &[LoadedFile<Pipeline>],
    plans: &[Plan],
) -> Vec<(String, String)> {
    let all = pipelines.iter().zip(plans);
    let all = all.flat_map(|(pipeline, plan)| {
        let topics = plan.delivers.iter().filter_map(|plan| {
            delivers::topic_instead(pipeline.deliver.get(plan.number as usize)?, plan)
        });
        topics.map(|(label, topic)| {
            let what = format!("`{label}` has no address: its messages go to the topic `{topic}`");
            (pipeline.name.to_string(), what)
        })
    });
    all.collect()
}

/// True for the name of a pipeline file, in the place of a pipeline.
pub fn is_file(name: &str) -> bool {
    name.ends_with(".yaml") || name.ends_with(".yml")
}

/// The outbox that a pipeline relays, where it has one.
pub fn outbox(
    pipeline: &LoadedFile<Pipeline>,
    connections: &Connections,
) -> Option<Result<potok_connectors::outbox::Outbox, Failure>> {
    let wiring = Wiring { pipeline, connections };
    pipeline.inputs().enumerate().find_map(|(index, input)| {
        let potok_config::Input::Feed(settings) = input else { return None };
        let settings = settings.as_any()?.downcast_ref::<OutboxSettings>()?;
        let outbox = settings.outbox(&wiring.site("source", settings.label(), Vec::new()));
        Some(outbox.map_err(|refusals| wiring.refused("source", index, refusals)))
    })
}

/// The statements that make a pipeline's tables.
pub fn ddl(
    pipeline: &LoadedFile<Pipeline>,
    connections: &Connections,
) -> Result<Vec<String>, Failure> {
    let wiring = Wiring { pipeline, connections };
    let mut statements = delivers::ddl(&wiring)?;
    statements.extend(track::ddl(&wiring)?);
    Ok(statements)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::fs;

    use potok_flow::Target;

    use super::*;

    fn shipped() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pipelines/orders.yaml")
    }

    fn defaults(folder: &Path) -> Connections {
        let file = folder.join("potok.yaml");
        fs::write(&file, "log: embedded\n").unwrap();
        let flags = Flags { data_dir: Some(folder.to_owned()), ..Flags::default() };
        load_connections(Some(&file), &flags, &Env::default(), registry()).unwrap()
    }

    #[test]
    fn the_shipped_pipeline_becomes_a_plan() {
        let folder = tempfile::tempdir().unwrap();
        let connections = defaults(folder.path());
        let pipelines = load(&[shipped()]).unwrap();
        let plans = plans(&pipelines, &connections).unwrap();
        let [plan] = plans.as_slice() else { panic!("one plan") };
        assert_eq!(plan.name, "orders");
        let [potok_flow::Input::Topics { group, .. }] = plan.inputs.as_slice() else {
            panic!("one input")
        };
        assert_eq!(group, "order-consumer");
        assert_eq!(*plan.dead_letter_topic, *"orders-dead");
        assert_eq!(plan.retry.attempts, 5);
        assert!(matches!(plan.delivers[0].target, Target::Sink(_)));
        assert_eq!(plan.delivers[0].once_by[0].source(), ".order_uid");
        let statements = ddl(&pipelines[0], &connections).unwrap();
        assert!(statements.iter().any(|statement| statement.contains("\"items\"")));
    }

    #[test]
    fn a_pipeline_of_stages_and_topics_becomes_a_plan() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("route.yaml");
        let text = "name: route\nsource: { topic: in, from: latest }\nprocess:\n  \
            - { stage: tidy, vrl: '.a = 1', on_error: stop, count: { all: .a } }\ndeliver:\n  \
            - { topic: { by: header.kind, map: { x: out-x } }, key: .id }\n";
        fs::write(&file, text).unwrap();
        let pipelines = load(&[file]).unwrap_or_else(|failure| panic!("{failure:?}"));
        let plans = plans(&pipelines, &defaults(folder.path())).unwrap();
        assert!(matches!(plans[0].inputs[0], potok_flow::Input::Topics { from_end: true, .. }));
        let stage = &plans[0].stages[0];
        assert_eq!(stage.on_error, potok_flow::OnError::Stop);
        let counts: Vec<_> =
            stage.counts.iter().map(|count| (count.name.as_str(), count.path.source())).collect();
        assert_eq!(counts, [("all", ".a")]);
        let Target::Topic(potok_flow::TopicTarget::Map { map, .. }) = &plans[0].delivers[0].target
        else {
            panic!("a topic by field");
        };
        assert_eq!(map.get("x").map(|topic| &**topic), Some("out-x"));
    }

    #[test]
    fn problems_of_all_files_come_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["one.yaml", "two.yaml"].map(|name| folder.path().join(name));
        for file in &files {
            fs::write(file, "nmae: x\n").unwrap();
        }
        let Err(failure) = load(&files) else { panic!("both are wrong") };
        for file in &files {
            let file = file.display().to_string();
            assert!(failure.file_problems().iter().any(|problem| problem.file == file));
        }
        assert_eq!(failure.exit, crate::failure::USAGE);
    }
}
