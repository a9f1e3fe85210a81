//! `potok pause`, `potok resume` and `potok probe`.

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

/// Ask destinations behind closed gates now, instead of when they are due
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok probe orders

A gate asks by itself every few seconds; `potok status` shows which are closed, and why. Records that wait for
somebody to decide about them are tried again, too.")]
pub struct Probe {
    /// The pipeline
    pipeline: String,
    #[command(flatten)]
    place: Target,
}

impl Probe {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        let path = format!("/api/v1/pipelines/{}/probe", encode(&self.pipeline));
        let client = Client::find(&self.place)?;
        let answer: Value = client.post_json(&path, "application/json", Vec::new())?;
        let mut out = terminal::out();
        match answer["probed"].as_u64().unwrap_or_default() {
            _ if json => writeln!(out, "{answer}")?,
            0 => writeln!(out, "every destination of {} is open already", self.pipeline)?,
            asked => writeln!(out, "{} asked now", terminal::count(asked, "destination"))?,
        }
        out.flush()?;
        Ok(())
    }
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
