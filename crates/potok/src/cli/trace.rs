//! `potok trace`: where something was seen.

use std::io::Write;

use serde_json::Value;

use crate::client::{Client, Target, encode};
use crate::failure::Failure;
use crate::terminal::{self, Table};

/// Show everything the log knows of one record, key or group, oldest first
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok trace b563feb7b2b84b6test              a key, or an id anywhere in a record
  potok trace adapter-event/2/17               a record by its place, and what became of it
  potok trace 20250323151500                   a group: its records, its seal, what is held

Looks through all topics that are still kept, newest first, which takes a while where they are large:
`--since 1h` looks no further back. Exit code 1 when it was seen nowhere.")]
pub struct Trace {
    /// A key, an id, a header's value, a group, or topic/partition/offset
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    id: String,
    /// Nothing older than this moment or span, e.g. 10m, 2h, 2026-11-15T23:59:59Z
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    #[command(flatten)]
    place: Target,
}

/// A person waits and can stop it.
const SECONDS_MAX: u64 = 3_600;
const MEGABYTES_MAX: u64 = 1 << 30;

#[derive(serde::Deserialize)]
struct TraceAnswer {
    seen: Vec<Value>,
    complete: bool,
}

impl Trace {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        let since = self.since.as_ref().map(|since| format!("&since={}", encode(since)));
        let path = format!(
            "/api/v1/trace?id={}{}&seconds={SECONDS_MAX}&megabytes={MEGABYTES_MAX}",
            encode(&self.id),
            since.unwrap_or_default()
        );
        let found: TraceAnswer = Client::find(&self.place)?.get_json(&path)?;
        let seen = found.seen;
        if !found.complete {
            let _ = writeln!(std::io::stderr(), "not everything was looked at: use --since");
        }
        if seen.is_empty() {
            let what = format!("`{}` was seen nowhere in the topics that are kept", self.id);
            return Err(Failure::new("P0528", what));
        }
        let mut out = terminal::out();
        if json {
            for one in &seen {
                writeln!(out, "{one}")?;
            }
        } else {
            let mut table = Table::new(&["TIME", "WHAT", "AT", "PIPELINE", "KEY", "MORE"]);
            for one in &seen {
                let text = |name: &str| one[name].as_str().unwrap_or("-").to_owned();
                table.row(["time", "what", "at", "pipeline", "key", "more"].map(text));
            }
            table.print(&mut out)?;
        }
        out.flush()?;
        Ok(())
    }
}
