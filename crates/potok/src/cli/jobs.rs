//! `potok jobs`: replays and drops of dead letters that a process does by itself.

use std::io::Write;

use serde_json::Value;

use crate::client::{Client, Target, encode};
use crate::failure::Failure;
use crate::terminal::{self, Table, plain, short};

/// Replays and drops of dead letters that were begun as jobs: how far they are; stop one
#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  potok jobs list
  potok jobs show 5f0c9c41d2f0a1b2c3d4e5f6
  potok jobs stop 5f0c9c41d2f0a1b2c3d4e5f6

The dashboard begins them. They are remembered by the process that runs them, the last hundred; what
they did lies in the topic `potok-audit`.")]
pub enum Jobs {
    /// Show the latest, newest first
    #[command(after_help = "\
Examples:
  potok jobs list
  potok jobs list --json")]
    List {
        #[command(flatten)]
        place: Target,
    },
    /// Show one, as JSON
    #[command(after_help = "\
Examples:
  potok jobs show 5f0c9c41d2f0a1b2c3d4e5f6")]
    Show {
        /// Its id
        id: String,
        #[command(flatten)]
        place: Target,
    },
    /// Stop one after what it has in hand; the rest stays open
    #[command(after_help = "\
Examples:
  potok jobs stop 5f0c9c41d2f0a1b2c3d4e5f6")]
    Stop {
        /// Its id
        id: String,
        #[command(flatten)]
        place: Target,
    },
}

impl Jobs {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        match self {
            Jobs::List { place } => list(&place, json),
            Jobs::Show { id, place } => {
                let job: Value = Client::find(&place)?.get_json(&path_of(&id))?;
                print(&format!("{job:#}"))
            }
            Jobs::Stop { id, place } => {
                let job: Value = Client::find(&place)?.delete_json(&path_of(&id))?;
                match json {
                    true => print(&job.to_string()),
                    false => {
                        print(&format!("{} stops; what is left stays open", cell(&job, "name")))
                    }
                }
            }
        }
    }
}

fn path_of(id: &str) -> String {
    format!("/api/v1/jobs/{}", encode(id))
}

fn print(line: &str) -> Result<(), Failure> {
    let mut out = terminal::out();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}

fn cell(job: &Value, name: &str) -> String {
    match &job[name] {
        Value::String(text) => plain(text).into_owned(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

fn list(place: &Target, json: bool) -> Result<(), Failure> {
    let jobs: Vec<Value> = Client::find(place)?.get_json("/api/v1/jobs")?;
    let mut out = terminal::out();
    if json {
        for job in &jobs {
            writeln!(out, "{job}")?;
        }
    } else if jobs.is_empty() {
        writeln!(out, "no jobs")?;
    } else {
        let columns = ["id", "phase", "done", "skipped", "started", "name"];
        let mut table = Table::new(&["ID", "PHASE", "DONE", "LEFT OUT", "STARTED", "NAME"]);
        for job in &jobs {
            table.row(columns.map(|name| short(&cell(job, name), 60)));
        }
        table.print(&mut out)?;
    }
    out.flush()?;
    Ok(())
}
