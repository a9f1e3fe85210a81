//! `potok check`: every problem of pipeline files, before anything runs.

use std::io::Write;
use std::path::PathBuf;

use potok_config::{Connections, Flags, Loaded, Pipeline};
use potok_connectors::redis::EVICTS;
use potok_flow::{Plan, Target};
use serde_json::json;

use crate::failure::Failure;
use crate::{folder, terminal, wire};

/// Look for every mistake in pipeline files, with file, line and column
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok check pipelines/*.yaml
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

impl Check {
    /// Does it.
    pub fn run(self, json: bool) -> Result<(), Failure> {
        let checked = self.check();
        let mut out = terminal::out();
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
        for (file, pipeline) in checked? {
            if json {
                writeln!(out, "{}", json!({ "file": file, "pipeline": pipeline, "good": true }))?;
            } else {
                writeln!(out, "{}: pipeline `{pipeline}` is good", file.display())?;
            }
        }
        out.flush()?;
        Ok(())
    }

    fn check(&self) -> Result<Vec<(PathBuf, String)>, Failure> {
        let (pipelines, connections) = wire::load_with(&self.files, self.connections())?;
        let plans = wire::plans(&pipelines, &connections)?;
        if self.connect {
            folder::block_on(connect(&pipelines, &connections, &plans))?;
        }
        let good = |pipeline: &Loaded<Pipeline>| (pipeline.file.clone(), pipeline.name.to_string());
        Ok(pipelines.iter().map(good).collect())
    }

    fn connections(&self) -> Result<Connections, Failure> {
        let flags = Flags { data_dir: self.data_dir.clone(), ..Flags::default() };
        wire::connections(self.config.as_deref(), &flags)
    }
}

/// Asks the log, where it is not in the data folder, and every destination; all that fail at once.
async fn connect(
    pipelines: &[Loaded<Pipeline>],
    connections: &Connections,
    plans: &[Plan],
) -> Result<(), Failure> {
    let mut failure = folder::ask_log(connections, plans).await.err();
    let holds = plans.iter().any(|plan| plan.hold.is_some());
    if let Some(store) = wire::store(connections)?.filter(|_| holds) {
        if let Err(fault) = store.ping().await {
            let more = Failure::from(fault);
            failure = Some(match failure {
                Some(failure) => failure.join(more),
                None => more,
            });
        } else if let Some(policy) = store.evicts().await {
            eprintln!("warning: {EVICTS} (it is {policy})");
        }
    }
    for (pipeline, plan) in pipelines.iter().zip(plans) {
        for (deliver, planned) in pipeline.deliver.iter().zip(&plan.delivers) {
            let Target::Sink(sink) = &planned.target else { continue };
            let Err(fault) = sink.check().await else { continue };
            let made = wire::can_be_made(deliver, connections).unwrap_or(Err(fault));
            if let Err(fault) = made {
                let more = Failure::from(fault);
                failure = Some(match failure {
                    Some(failure) => failure.join(more),
                    None => more,
                });
            }
        }
    }
    failure.map_or(Ok(()), Err)
}
