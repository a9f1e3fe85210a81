//! `potok changes`: what happened since the process started.

use std::io::Write;

use serde_json::Value;

use crate::client::{Client, Target};
use crate::failure::Failure;
use crate::terminal::{self, Table, plain};

/// Show what happened since the process started: gates, states and restarts, newest first
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok changes
  potok changes --json

The process remembers the last two hundred. What people did is `potok audit`.")]
pub struct Changes {
    #[command(flatten)]
    place: Target,
}

impl Changes {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        let changes = Client::find(&self.place)?.get_json("/api/v1/changes")?;
        let columns = ["time", "pipeline", "kind", "what"];
        listed(changes, columns, ["TIME", "PIPELINE", "KIND", "WHAT"], "nothing has changed", json)
    }
}

/// Prints entries as a table, or each as JSON.
pub(super) fn listed<const N: usize>(
    entries: Vec<Value>,
    columns: [&str; N],
    heads: [&str; N],
    none: &str,
    json: bool,
) -> Result<(), Failure> {
    let mut out = terminal::out();
    if json {
        entries.iter().try_for_each(|entry| writeln!(out, "{entry}"))?;
    } else if entries.is_empty() {
        writeln!(out, "{none}")?;
    } else {
        let mut table = Table::new(&heads);
        for entry in &entries {
            table.row(columns.map(|name| match &entry[name] {
                Value::String(text) => plain(text).into_owned(),
                Value::Null => "-".to_owned(),
                other => other.to_string(),
            }));
        }
        table.print(&mut out)?;
    }
    out.flush()?;
    Ok(())
}
