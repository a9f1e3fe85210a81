//! `potok check`: every problem of pipeline files, before anything runs.

use std::io::Write;
use std::path::PathBuf;

use potok_config::{Connections, Env, Flags, LoadedFile, Pipeline, Problem, holds_connections};
use potok_connectors::redis;
use potok_flow::{Input, Plan, Target};
use serde_json::json;

use crate::failure::{Failure, painted};
use crate::registry::registry;
use crate::{folder, terminal, wire};

/// Look for every mistake in pipeline files, with file, line and column
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok check pipelines/*.yaml                a potok.yaml among them is checked as what it is
  potok check orders.yaml --connect           also ask log and destinations whether they are there
  potok check orders.yaml --json              one object per problem, for editors")]
pub struct Check {
    /// Pipeline files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Also ask the log and every destination whether they are there; writes nothing
    #[arg(long)]
    connect: bool,
    /// Data folder [default: ./potok-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Connections file [default: ./potok.yaml if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// A file that is good.
struct CheckedFile {
    file: PathBuf,
    /// `None` where it has connections.
    pipeline: Option<String>,
    warnings: Vec<Problem>,
}

impl Check {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        let checked = self.check();
        let mut out = terminal::out();
        let mut warnings = 0;
        for problem in checked.iter().flatten().flat_map(|file| &file.warnings) {
            warnings += 1;
            if json {
                serde_json::to_writer(&mut out, problem).map_err(std::io::Error::from)?;
                writeln!(out)?;
            } else {
                eprintln!("{}\n", painted(problem, terminal::on_stderr()));
            }
        }
        if let (Err(failure), true) = (&checked, json) {
            for problem in failure.file_problems() {
                serde_json::to_writer(&mut out, problem).map_err(std::io::Error::from)?;
                writeln!(out)?;
            }
            for error in failure.json_errors() {
                writeln!(out, "{error}")?;
            }
            out.flush()?;
        }
        let checked = checked?;
        let good = terminal::on_stdout().green("good");
        for CheckedFile { file, pipeline, .. } in &checked {
            if json {
                writeln!(out, "{}", json!({ "file": file, "pipeline": pipeline, "good": true }))?;
                continue;
            }
            match pipeline {
                Some(pipeline) => {
                    writeln!(out, "{}: pipeline `{pipeline}` is {good}", file.display())?;
                }
                None => writeln!(out, "{}: connections are {good}", file.display())?,
            }
        }
        if !json && (checked.len() > 1 || warnings > 0) {
            let warnings = match warnings {
                0 => String::new(),
                warnings => format!(", {}", terminal::count(warnings, "warning")),
            };
            writeln!(out, "{}: no error{warnings}", terminal::count(checked.len() as u64, "file"))?;
        }
        out.flush()?;
        Ok(())
    }

    fn check(&self) -> Result<Vec<CheckedFile>, Failure> {
        let env = Env::process();
        let (settings, files): (Vec<PathBuf>, Vec<PathBuf>) =
            self.files.iter().cloned().partition(|file| holds_connections(file, &env, registry()));
        let mut failure: Option<Failure> = None;
        for file in &settings {
            if let Err(more) = wire::connections(Some(file), &Flags::default()) {
                failure = Some(wire::joined(failure, more));
            }
        }
        // What is wrong with the connections that count may have been said just now.
        let connections = match (self.connections(), &failure) {
            (Err(_), Some(_)) => Err(Failure::problems([])),
            (connections, _) => connections,
        };
        let loaded = wire::load_with(&files, connections);
        let (pipelines, connections) = match (loaded, failure) {
            (Ok(loaded), None) => loaded,
            (Ok(_), Some(failure)) => return Err(failure),
            (Err(more), failure) => return Err(wire::joined(failure, more)),
        };
        let plans = wire::plans(&pipelines, &connections)?;
        if let Some(doubt) = potok_config::Auth::doubt(&connections.auth.user) {
            eprintln!("warning: {doubt}");
        }
        for (pipeline, what) in wire::without_address(&pipelines, &plans) {
            eprintln!("note: pipeline `{pipeline}`: {what}");
        }
        if self.connect {
            folder::block_on(connect(&connections, &plans))?;
        }
        let good = |pipeline: &LoadedFile<Pipeline>| CheckedFile {
            file: pipeline.file.clone(),
            pipeline: Some(pipeline.name.to_string()),
            warnings: [&*pipeline.warnings, &*wire::unseen_repeats(pipeline, &connections)]
                .concat(),
        };
        let settings = settings.into_iter();
        let settings =
            settings.map(|file| CheckedFile { file, pipeline: None, warnings: Vec::new() });
        Ok(pipelines.iter().map(good).chain(settings).collect())
    }

    fn connections(&self) -> Result<Connections, Failure> {
        let flags = Flags { data_dir: self.data_dir.clone(), ..Flags::default() };
        wire::connections(self.config.as_deref(), &flags)
    }
}

/// Asks the log, where it is not in the data folder, and every destination; all that fail at once.
async fn connect(connections: &Connections, plans: &[Plan]) -> Result<(), Failure> {
    let mut failure = folder::ask_log(connections, plans).await.err();
    let holds = plans.iter().any(|plan| plan.hold.is_some());
    if let Some(store) = redis::store(connections)?.filter(|_| holds) {
        if let Err(fault) = store.ping().await {
            failure = Some(wire::joined(failure, fault.into()));
        } else if let Some(policy) = store.evicts().await {
            eprintln!("warning: {} (it is {policy})", redis::EVICTS);
        }
    }
    for track in plans.iter().filter_map(|plan| plan.hold.as_ref()?.track.as_ref()) {
        if let Err(fault) = track.tracker.check().await {
            failure = Some(wire::joined(failure, fault.into()));
        }
    }
    for input in plans.iter().flat_map(|plan| &plan.inputs) {
        let Input::Feed { name, feed } = input else { continue };
        match feed.check().await {
            Ok(warnings) => {
                warnings.iter().for_each(|warning| eprintln!("warning: `{name}`: {warning}"));
            }
            Err(fault) => failure = Some(wire::joined(failure, fault.into())),
        }
    }
    for planned in plans.iter().flat_map(|plan| &plan.delivers) {
        let Target::Sink(sink) = &planned.target else { continue };
        if let Err(fault) = sink.check().await {
            failure = Some(wire::joined(failure, fault.into()));
        }
    }
    failure.map_or(Ok(()), Err)
}
