//! `potok pause` and `potok resume`.

use std::io::Write;

use serde_json::Value;

use crate::client::{Client, Target, encode};
use crate::failure::Failure;
use crate::terminal;

/// Stop taking records into a pipeline; what is in flight ends, the rest waits in the log
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok pause orders
  potok resume orders

On the embedded log, groups that are held wait too; on Kafka, what has been gathered still closes and goes
out. A pause lasts until `potok resume` or the next start of the process.")]
pub struct Pause {
    /// The pipeline
    pipeline: String,
    #[command(flatten)]
    place: Target,
}

/// Go on after a pause, or after mending what a pipeline stopped for
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok resume orders")]
pub struct Resume {
    /// The pipeline
    pipeline: String,
    #[command(flatten)]
    place: Target,
}

impl Pause {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        ask(&self.place, &self.pipeline, "pause", "is paused", json)
    }
}

impl Resume {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        ask(&self.place, &self.pipeline, "resume", "goes on", json)
    }
}

fn ask(place: &Target, pipeline: &str, verb: &str, done: &str, json: bool) -> Result<(), Failure> {
    let path = format!("/api/v1/pipelines/{}/{verb}", encode(pipeline));
    let status: Value = Client::find(place)?.post_json(&path, "application/json", Vec::new())?;
    let mut out = terminal::out();
    if json {
        writeln!(out, "{status}")?;
    } else {
        writeln!(out, "{pipeline} {done}")?;
    }
    out.flush()?;
    Ok(())
}
