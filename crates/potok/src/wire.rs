//! From pipeline files to plans: the one place that knows configuration and connectors.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use potok_config::{
    Connections, DbConnection, Deliver, Env, Expression, Flags, Format, KeyStyle, Loaded, OnError,
    OnRepeat, Per, Pipeline, Predicate, Size, Stage, StoreConnection, TopicMap, TopicTarget,
    check_together, load_connections, load_pipeline, not_yet,
};
use potok_connectors::mysql::MysqlSink;
use potok_connectors::postgres::PostgresSink;
use potok_connectors::redis::{self, RedisStore};
use potok_connectors::sql::{Dialect, SqlSinkConfig, Tables};
use potok_connectors::sqlite::SqliteSink;
use potok_connectors::webhook::WebhookStage;
use potok_core::{Decoder, Fault};
use potok_expr::{Places, Template};
use potok_flow::decode::{JsonDecoder, RawDecoder};
use potok_flow::process::{VrlGroupStage, VrlStage};
use potok_flow::{
    ClosePlan, CountPlan, DeliverPlan, GroupPlan, KindPlan, Plan, Retry, StagePlan, Target,
};

use crate::failure::Failure;

/// Reads pipeline files; all problems of all files at once.
pub fn load(files: &[PathBuf]) -> Result<Vec<Loaded<Pipeline>>, Failure> {
    let env = Env::process();
    let (mut loaded, mut problems) = (Vec::new(), Vec::new());
    for file in files {
        match load_pipeline(file, &env) {
            Ok(pipeline) => {
                problems.extend(not_yet(&pipeline));
                loaded.push(pipeline);
            }
            Err(found) => problems.extend(found),
        }
    }
    problems.extend(check_together(&loaded));
    if problems.is_empty() { Ok(loaded) } else { Err(Failure::problems(problems)) }
}

/// The connections that flags, the environment and the file lead to.
pub fn connections(file: Option<&Path>, flags: &Flags) -> Result<Connections, Failure> {
    Ok(load_connections(file, flags, &Env::process())?)
}

/// Pipeline files together with the connections they run on; all problems at once.
pub fn load_with(
    files: &[PathBuf],
    connections: Result<Connections, Failure>,
) -> Result<(Vec<Loaded<Pipeline>>, Connections), Failure> {
    match (load(files), connections) {
        (Ok(pipelines), Ok(connections)) => Ok((pipelines, connections)),
        (Err(one), Err(other)) => Err(one.join(other)),
        (Err(failure), Ok(_)) | (Ok(_), Err(failure)) => Err(failure),
    }
}

/// Builds the plans of all pipelines; all problems of all of them at once.
pub fn plans(
    pipelines: &[Loaded<Pipeline>],
    connections: &Connections,
) -> Result<Vec<Plan>, Failure> {
    let mut plans = Vec::new();
    let mut failure: Option<Failure> = None;
    for pipeline in pipelines {
        match plan(pipeline, connections) {
            Ok(plan) => plans.push(plan),
            Err(more) => failure = Some(joined(failure, more)),
        }
    }
    failure.map_or(Ok(plans), Err)
}

/// One failure of two.
pub fn joined(failure: Option<Failure>, more: Failure) -> Failure {
    match failure {
        Some(failure) => failure.join(more),
        None => more,
    }
}

fn plan(pipeline: &Loaded<Pipeline>, connections: &Connections) -> Result<Plan, Failure> {
    let name = pipeline.name.to_string();
    let mut delivers = Vec::new();
    let mut failure: Option<Failure> = None;
    for (index, deliver) in pipeline.deliver.iter().enumerate() {
        match deliver_plan(pipeline, index, deliver, connections) {
            Ok(plan) => delivers.push(plan),
            Err(more) => failure = Some(joined(failure, more)),
        }
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    let stages = pipeline.process.iter().enumerate();
    let stages = stages.map(|(at, stage)| stage_plan(&name, stage, pipeline.program_places(at)));
    Ok(Plan {
        workers: pipeline.workers as usize,
        group: pipeline.consumer_group().to_owned(),
        topics: pipeline.topics().into_iter().map(Arc::from).collect(),
        from_end: pipeline.from_end(),
        decoder: decoder(pipeline),
        hold: hold_plan(pipeline, connections)?,
        stages: stages.collect::<Result<_, _>>()?,
        delivers,
        order_by: order_by(pipeline),
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

fn hold_plan(
    pipeline: &Loaded<Pipeline>,
    connections: &Connections,
) -> Result<Option<GroupPlan>, Failure> {
    let Some(group) = &pipeline.group else { return Ok(None) };
    let template = |expression: &Expression| expression.template().clone();
    let kinds = group.kinds.iter().map(|(name, kind)| KindPlan {
        name: name.into(),
        topic: kind.topic.as_ref().into(),
        id: template(&kind.id),
    });
    let close = &group.close;
    let when = close.when.as_ref().map(Predicate::program).transpose();
    let when = when.map_err(|errors| {
        let messages: Vec<_> = errors.into_iter().map(|error| error.message).collect();
        let what = format!("pipeline `{}`, `close.when`: {}", pipeline.name, messages.join("; "));
        Failure::faults(vec![Fault::fix(what).code("P0526")])
    })?;
    let store = store(connections)?.map(|store| Arc::new(store) as _);
    let memory_usual = match &store {
        Some(_) => potok_flow::HELD_MEMORY_BESIDE_A_STORE,
        None => potok_flow::HELD_MEMORY_DEFAULT,
    };
    Ok(Some(GroupPlan {
        memory_max: pipeline.limits.held_memory_bytes.map_or(memory_usual, in_memory),
        by: group.by.as_ref().map(template),
        kinds: kinds.collect(),
        id: group.id.as_ref().map(template),
        close: ClosePlan {
            after_first: close.after_first.map(|period| *period),
            quiet: close.quiet.map(|period| *period),
            every: close.every.map(|period| *period),
            max_age: close.max_age.map(|period| *period),
            max_count: close.max_count.map(|count| count as usize),
            max_bytes: close.max_bytes.map(|size| size.bytes()),
            when,
        },
        on_repeat: match group.on_repeat {
            OnRepeat::Replace => potok_flow::OnRepeat::Replace,
            OnRepeat::Keep => potok_flow::OnRepeat::Keep,
            OnRepeat::Count => potok_flow::OnRepeat::Count,
        },
        store,
        internal: format!("potok-{}", pipeline.name).into(),
    }))
}

/// As much of a size as there can be in memory.
fn in_memory(size: Size) -> usize {
    usize::try_from(size.bytes()).unwrap_or(usize::MAX)
}

/// Target held records are, if not in the log.
pub fn store(connections: &Connections) -> Result<Option<RedisStore>, Failure> {
    let StoreConnection::Redis { url, keys } = &connections.store else { return Ok(None) };
    let keys = match keys {
        KeyStyle::Readable => redis::KeyStyle::Readable,
        KeyStyle::Packed => redis::KeyStyle::Packed,
    };
    Ok(Some(RedisStore::new(url.expose(), keys)?))
}

/// Order is the pipeline's; a deliver entry may name it as well.
fn order_by(pipeline: &Pipeline) -> Option<Template> {
    let own = pipeline.order_by.as_ref();
    let of_deliver = || pipeline.deliver.iter().find_map(|deliver| deliver.order_by.as_ref());
    own.or_else(of_deliver).map(|expression| expression.template().clone())
}

fn decoder(pipeline: &Loaded<Pipeline>) -> Arc<dyn Decoder> {
    match pipeline.decode.format {
        Format::Json => {
            let schema = pipeline.schema.as_deref().zip(pipeline.validator());
            Arc::new(JsonDecoder::new(schema))
        }
        Format::Raw => Arc::new(RawDecoder),
    }
}

fn stage_plan(pipeline: &str, stage: &Stage, places: Option<Places>) -> Result<StagePlan, Failure> {
    let place = format!("pipeline `{pipeline}`, process `{}`", stage.stage);
    let on_error = match stage.on_error {
        OnError::Pass => potok_flow::OnError::Pass,
        OnError::DeadLetter => potok_flow::OnError::DeadLetter,
        OnError::Stop => potok_flow::OnError::Stop,
    };
    let per = match stage.per {
        Per::Event => potok_flow::Per::Event,
        Per::Group => potok_flow::Per::Group,
    };
    let runs: Arc<dyn potok_core::Stage> = match (&stage.vrl, &stage.webhook) {
        (Some(vrl), _) => {
            let program = vrl.program(stage.per).map_err(|errors| {
                let messages: Vec<_> = errors.into_iter().map(|error| error.message).collect();
                nothing_to_run(&place, messages.join("; "))
            })?;
            let program = program.with_places(places);
            match stage.per {
                Per::Event => Arc::new(VrlStage::new(program)),
                Per::Group => Arc::new(VrlGroupStage::new(program)),
            }
        }
        (None, Some(url)) => {
            let webhook = WebhookStage::new(url.expose(), *stage.timeout).map_err(|fault| {
                let what = format!("{place}: {}", fault.what);
                Failure::faults(vec![Fault { what, ..fault }])
            })?;
            Arc::new(webhook)
        }
        (None, None) => return Err(nothing_to_run(&place, "no `vrl`, no `webhook`".to_owned())),
    };
    let counts = stage.count.iter();
    let counts =
        counts.map(|(name, path)| CountPlan { name: name.to_owned(), path: path.path().clone() });
    Ok(StagePlan {
        name: stage.stage.to_string(),
        stage: runs,
        per,
        on_error,
        counts: counts.collect(),
    })
}

fn nothing_to_run(place: &str, cause: String) -> Failure {
    let what = format!("{place}: it has nothing to run");
    Failure::faults(vec![Fault::fix(what).because(cause).code("P0526")])
}

fn deliver_plan(
    pipeline: &Loaded<Pipeline>,
    index: usize,
    deliver: &Deliver,
    connections: &Connections,
) -> Result<DeliverPlan, Failure> {
    let label = deliver.label();
    let (target, headers_id) = match &deliver.topic {
        Some(TopicTarget::Name(topic)) => {
            (Target::Topic(potok_flow::TopicTarget::Fixed(topic.as_ref().into())), true)
        }
        Some(TopicTarget::ByField(TopicMap { by, map })) => {
            let map = map.iter().map(|(value, topic)| (value.to_owned(), topic.as_ref().into()));
            let by = by.template().clone();
            (Target::Topic(potok_flow::TopicTarget::Map { by, map: map.collect() }), true)
        }
        None => (Target::Sink(sink(pipeline, index, deliver, connections)?), false),
    };
    let kinds = pipeline.group.iter().flat_map(|group| group.kinds.iter());
    let kind = deliver.kind.as_ref().and_then(|kind| {
        let at = kinds.map(|(name, _)| name).position(|name| name == kind);
        at.and_then(|at| u16::try_from(at).ok())
    });
    Ok(DeliverPlan {
        label: label.to_owned(),
        kind,
        target,
        key: deliver.key.as_ref().map(|key| key.template().clone()),
        once_by: once_by(deliver),
        headers_id,
    })
}

fn once_by(deliver: &Deliver) -> Vec<Template> {
    deliver.once_by.iter().map(|expression| expression.template().clone()).collect()
}

fn sink(
    pipeline: &Loaded<Pipeline>,
    index: usize,
    deliver: &Deliver,
    connections: &Connections,
) -> Result<Arc<dyn potok_core::Sink>, Failure> {
    let label = deliver.label();
    let Some(db) = &deliver.db else {
        // The check of the file has named what this version does not run.
        let what = format!("pipeline `{}`, deliver `{label}`: no destination", pipeline.name);
        return Err(Failure::faults(vec![Fault::fix(what).code("P0526")]));
    };
    let config = sql_config(pipeline, label, deliver);
    let sink: Result<Arc<dyn potok_core::Sink>, Vec<Fault>> = match connections.db(db) {
        DbConnection::Sqlite { file } => {
            SqliteSink::new(file, config).map(|sink| Arc::new(sink) as _)
        }
        DbConnection::Postgres { url } => {
            PostgresSink::new(url.expose(), config).map(|sink| Arc::new(sink) as _)
        }
        DbConnection::Mysql { url } => {
            MysqlSink::new(url.expose(), config).map(|sink| Arc::new(sink) as _)
        }
    };
    sink.map_err(|faults| in_the_file(pipeline, index, &config_label(pipeline, label), faults))
}

fn config_label(pipeline: &Pipeline, label: &str) -> String {
    format!("pipeline `{}`, deliver `{label}`", pipeline.name)
}

/// What is wrong with the tables of a delivery, at the place in its file.
fn in_the_file(
    pipeline: &Loaded<Pipeline>,
    index: usize,
    label: &str,
    faults: Vec<Fault>,
) -> Failure {
    let (mapping, others): (Vec<Fault>, Vec<Fault>) =
        faults.into_iter().partition(|fault| fault.code == "P0304");
    let problem = |fault: Fault| {
        let what = fault.what.strip_prefix(label).unwrap_or(&fault.what);
        let what = what.trim_start_matches(": ");
        let table = what.strip_prefix("table `").and_then(|rest| rest.split('`').next());
        let table = table.map(|table| format!("rows.{table}"));
        let keys = match &table {
            Some(table) => vec![table.as_str(), "table", "rows"],
            None if what.contains("`create_tables`") => vec!["create_tables"],
            None if what.contains("`once_by`") => vec!["once_by"],
            None => vec!["rows", "table"],
        };
        pipeline.problem_of_deliver(index, &keys, fault.code, what, fault.hint.as_deref())
    };
    let problems = Failure::problems(mapping.into_iter().map(problem).collect::<Vec<_>>());
    if others.is_empty() { problems } else { problems.join(Failure::faults(others)) }
}

fn sql_config(pipeline: &Loaded<Pipeline>, label: &str, deliver: &Deliver) -> SqlSinkConfig {
    let rows = deliver.tables().into_iter().map(|(table, path)| (table.to_owned(), path));
    SqlSinkConfig {
        label: config_label(pipeline, label),
        rows: rows.collect(),
        once_by: once_by(deliver),
        schema: pipeline.schema.as_deref().cloned(),
        create_tables: deliver.create_tables,
    }
}

/// The statements that make a pipeline's tables.
pub fn ddl(pipeline: &Loaded<Pipeline>, connections: &Connections) -> Result<Vec<String>, Failure> {
    let mut statements = Vec::new();
    for deliver in pipeline.deliver.iter() {
        let Some(db) = &deliver.db else { continue };
        let dialect = match connections.db(db) {
            DbConnection::Sqlite { .. } => Dialect::Sqlite,
            DbConnection::Postgres { .. } => Dialect::Postgres,
            DbConnection::Mysql { .. } => Dialect::Mysql,
        };
        let config = sql_config(pipeline, deliver.label(), deliver);
        let tables = Tables::new(&config).map_err(Failure::faults)?;
        statements.extend(tables.ddl(dialect));
    }
    Ok(statements)
}

/// Whether a database file that is not there yet can be made by the pipeline at its start: `None`
/// when it is there, or somebody else has to make it. Leaves nothing behind.
pub fn can_be_made(deliver: &Deliver, connections: &Connections) -> Option<Result<(), Fault>> {
    let db = deliver.db.as_ref().filter(|_| deliver.create_tables)?;
    match connections.db(db) {
        DbConnection::Sqlite { file } if !file.exists() => {
            // Folders that are missing are made in the first one above that is there.
            let above = |above: &&Path| above.as_os_str().is_empty() || above.exists();
            let above = file.ancestors().skip(1).find(above).unwrap_or(Path::new("."));
            let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
            let trial = above.join(format!(".potok-check-{}", std::process::id()));
            let made = File::create_new(&trial).and_then(|_| fs::remove_file(&trial));
            Some(made.map_err(|error| {
                let what = format!("db `{db}`: {} cannot be made", file.display());
                Fault::wait(what)
                    .because(format!("{}: {error}", above.display()))
                    .code("P0305")
                    .hint("choose another file, or let potok write to that folder")
            }))
        }
        DbConnection::Sqlite { .. }
        | DbConnection::Postgres { .. }
        | DbConnection::Mysql { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    fn shipped() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pipelines/orders.yaml")
    }

    fn defaults(folder: &Path) -> Connections {
        let file = folder.join("potok.yaml");
        fs::write(&file, "log: embedded\n").unwrap();
        let flags = Flags { data_dir: Some(folder.to_owned()), ..Flags::default() };
        load_connections(Some(&file), &flags, &Env::default()).unwrap()
    }

    #[test]
    fn the_shipped_pipeline_becomes_a_plan() {
        let folder = tempfile::tempdir().unwrap();
        let connections = defaults(folder.path());
        let pipelines = load(&[shipped()]).unwrap();
        let plans = plans(&pipelines, &connections).unwrap();
        let [plan] = plans.as_slice() else { panic!("one plan") };
        assert_eq!((plan.name.as_str(), plan.group.as_str()), ("orders", "order-consumer"));
        assert_eq!(*plan.dead_letter_topic, *"orders-dead");
        assert_eq!(plan.retry.attempts, 5);
        assert!(matches!(plan.delivers[0].target, Target::Sink(_)));
        assert_eq!(plan.delivers[0].once_by[0].source(), ".order_uid");
        let statements = ddl(&pipelines[0], &connections).unwrap();
        assert!(statements.iter().any(|statement| statement.contains("\"items\"")));
        let deliver = &pipelines[0].deliver[0];
        assert!(matches!(can_be_made(deliver, &connections), Some(Ok(()))));
        let before = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(before, 1, "the try leaves nothing behind");
    }

    #[test]
    fn a_database_in_a_folder_that_cannot_be_written_cannot_be_made() {
        let folder = tempfile::tempdir().unwrap();
        let pipelines = load(&[shipped()]).unwrap();
        let deliver = &pipelines[0].deliver[0];
        fs::write(folder.path().join("file"), "").unwrap();
        // A file is no folder; and nobody, not even root, makes files in /proc.
        let below = folder.path().join("file");
        for file in [below.join("orders.sqlite"), PathBuf::from("/proc/potok/orders.sqlite")] {
            let config = folder.path().join("potok.yaml");
            fs::write(&config, format!("db: {{ orders: 'sqlite:{}' }}\n", file.display())).unwrap();
            let flags = Flags { data_dir: Some(folder.path().to_owned()), ..Flags::default() };
            let connections = load_connections(Some(&config), &flags, &Env::default()).unwrap();
            let Some(Err(fault)) = can_be_made(deliver, &connections) else {
                panic!("{} cannot be made", file.display());
            };
            assert_eq!(fault.code, "P0305");
            assert!(fault.what.contains("orders.sqlite"), "{fault}");
        }
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
        assert!(plans[0].from_end);
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
