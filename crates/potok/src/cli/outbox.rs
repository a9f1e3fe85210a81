//! `potok outbox`: the table that a pipeline relays. Where a file is named, the database is asked, not
//! the process: what it says holds whoever relays the table, and when nobody does.

use std::io::Write;
use std::path::PathBuf;

use potok_connectors::outbox::Outbox as Table;
use potok_core::{Fault, OutboxStatus};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::client::{Client, Target, encode};
use crate::failure::Failure;
use crate::{folder, terminal, wire};

/// The outbox table of a pipeline: its statements, how it stands, and rows that failed
#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  potok outbox ddl pipelines/outbox.yaml
  potok outbox status
  potok outbox retry --all
  potok dead-letters list outbox")]
pub enum Outbox {
    /// Print the SQL statements that make its tables
    #[command(after_help = "\
Examples:
  potok outbox ddl pipelines/outbox.yaml | psql messenger
  potok outbox ddl pipelines/outbox.yaml --notify | psql messenger
  potok outbox ddl pipelines/outbox.yaml --grants

Each statement can be run again, also where the outbox table is there already: it is looked at where
it can be reached. On a large table that is in use, PostgreSQL builds the index without stopping
writers if you say CREATE INDEX CONCURRENTLY. The trigger of --notify tells the relay of new rows at
once instead of within a quarter of a second; it costs writers, because notifications of all commits
go through one lock.")]
    Ddl {
        /// The pipeline file
        #[arg(value_name = "FILE")]
        file: String,
        #[command(flatten)]
        place: Target,
        /// The privileges a relay needs, instead; for a user called potok
        #[arg(long)]
        grants: bool,
        /// With a trigger that tells the relay of new rows; PostgreSQL 14 and newer
        #[arg(long, conflicts_with = "grants")]
        notify: bool,
    },
    /// Show what waits, what fails, and who relays the table
    #[command(after_help = "\
Examples:
  potok outbox status
  potok outbox status pipelines/outbox.yaml --json")]
    Status {
        /// The pipeline file, or the name of a pipeline that runs here [default: all that run here]
        #[arg(value_name = "FILE|PIPELINE")]
        named: Option<String>,
        #[command(flatten)]
        place: Target,
    },
    /// Try rows that failed at once, whatever they wait for
    #[command(after_help = "\
Examples:
  potok outbox retry 0b0a1c52-6f0e-4b0e-9c56-1f0f5a1d2e3f
  potok outbox retry pipelines/outbox.yaml --all")]
    Retry {
        #[command(flatten)]
        rows: Rows,
        /// All that failed
        #[arg(long)]
        all: bool,
    },
    /// Mark rows as processed without publishing them
    #[command(after_help = "\
Examples:
  potok outbox skip 0b0a1c52-6f0e-4b0e-9c56-1f0f5a1d2e3f
  potok outbox skip pipelines/outbox.yaml 0b0a1c52-6f0e-4b0e-9c56-1f0f5a1d2e3f")]
    Skip {
        #[command(flatten)]
        rows: Rows,
    },
}

/// Which rows of which outbox.
#[derive(clap::Args)]
pub struct Rows {
    /// Ids of rows; in front of them the pipeline file, where no process here relays the table
    #[arg(value_name = "[FILE] ID")]
    named: Vec<String>,
    /// The pipeline, where several that run here have an outbox
    #[arg(long, value_name = "PIPELINE")]
    pipeline: Option<String>,
    #[command(flatten)]
    place: Target,
}

/// The outbox of a pipeline file, with the name of the pipeline.
pub(super) fn table_of(file: &str, place: &Target) -> Result<(String, Table), Failure> {
    let connections = place.connections()?;
    let pipelines = wire::load(&[PathBuf::from(file)])?;
    let table = pipelines.iter().find_map(|pipeline| {
        let table = wire::outbox(pipeline, &connections)?;
        Some(table.map(|table| (pipeline.name.to_string(), table)))
    });
    table.unwrap_or_else(|| {
        let what = "the pipeline has no outbox as its source";
        Err(Failure::new("P1306", what).hint("name a file with `source: { outbox: … }`"))
    })
}

/// The process that relays outboxes here.
fn process(place: &Target) -> Result<Client, Failure> {
    Client::find_process(place)?.ok_or_else(|| {
        Failure::new("P1330", "no process runs in this data folder")
            .hint("name the pipeline file: `potok outbox status pipelines/outbox.yaml`")
    })
}

fn failed(fault: Fault) -> Failure {
    Failure::faults(vec![fault])
}

/// One outbox as it is shown.
#[derive(Serialize, Deserialize)]
struct OutboxLine {
    pipeline: String,
    #[serde(flatten)]
    status: Option<OutboxStatus>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Outbox {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        match self {
            Outbox::Ddl { file, place, grants, notify } => {
                let (_, table) = table_of(&file, &place)?;
                folder::block_on(ddl(&table, grants, notify, json))
            }
            Outbox::Status { named, place } => show(&status(named.as_deref(), &place)?, json),
            Outbox::Retry { rows, all } => rows.act("retry", all, json),
            Outbox::Skip { rows } => rows.act("skip", false, json),
        }
    }
}

fn status(named: Option<&str>, place: &Target) -> Result<Vec<OutboxLine>, Failure> {
    if let Some(file) = named.filter(|named| wire::is_file(named)) {
        let (pipeline, table) = table_of(file, place)?;
        let status = folder::block_on(async { table.status().await.map_err(failed) })?;
        return Ok(vec![OutboxLine { pipeline, status: Some(status), error: None }]);
    }
    #[derive(Deserialize)]
    struct Answer {
        outboxes: Vec<OutboxLine>,
    }
    let only = named.map(|pipeline| format!("?pipeline={}", encode(pipeline)));
    let path = format!("/api/v1/outbox{}", only.unwrap_or_default());
    Ok(process(place)?.get_json::<Answer>(&path)?.outboxes)
}

impl Rows {
    fn act(self, verb: &str, all: bool, json: bool) -> Result<(), Failure> {
        let (files, ids): (Vec<String>, Vec<String>) =
            self.named.into_iter().partition(|named| wire::is_file(named));
        if ids.is_empty() != all {
            let what = format!("say which rows to {verb}");
            let hint = match verb {
                "retry" => "ids of rows, or --all; `potok outbox status` has the ids",
                _ => "ids of rows; `potok outbox status` has them",
            };
            return Err(Failure::usage(what).hint(hint));
        }
        let ids = (!all).then_some(ids);
        let done: Vec<String> = match files.first() {
            Some(file) => {
                let (_, table) = table_of(file, &self.place)?;
                let done = folder::block_on(async {
                    match &ids {
                        Some(ids) if verb == "skip" => table.skip(ids).await.map_err(failed),
                        ids => table.retry(ids.as_deref()).await.map_err(failed),
                    }
                });
                done?
            }
            None => {
                let wish = json!({ "pipeline": self.pipeline, "ids": ids }).to_string();
                let path = format!("/api/v1/outbox/{verb}");
                let client = process(&self.place)?;
                let done: Value = client.post_json(&path, "application/json", wish.into())?;
                serde_json::from_value(done.get("ids").cloned().unwrap_or_default())
                    .unwrap_or_default()
            }
        };
        let word = if verb == "skip" { "skipped" } else { "retried" };
        done_with(word, ids.as_deref(), &done, json)
    }
}

async fn ddl(table: &Table, grants: bool, notify: bool, json: bool) -> Result<(), Failure> {
    let (mut statements, fault) = match grants {
        true => (table.grants(), None),
        false => table.ddl().await,
    };
    if notify {
        let trigger = table.notify_ddl().await.0;
        if trigger.is_empty() {
            return Err(Failure::new("P1332", "this database does not tell of new rows")
                .hint("leave --notify away: the table is polled, on PostgreSQL as well"));
        }
        statements.extend(trigger);
    }
    if let Some(fault) = fault {
        eprintln!("the table cannot be looked at, so these are for a new one: {fault}");
    }
    let mut out = terminal::out();
    for statement in statements {
        match json {
            true => writeln!(out, "{}", json!({ "statement": statement }))?,
            false => writeln!(out, "{statement};")?,
        }
    }
    out.flush()?;
    Ok(())
}

/// Rows are counted up to here.
const COUNTED_MAX: u64 = 100_000;

fn counted(rows: u64) -> String {
    if rows > COUNTED_MAX { format!("over {COUNTED_MAX}") } else { rows.to_string() }
}

fn millis(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1_000.0) as u64
}

fn show(lines: &[OutboxLine], json: bool) -> Result<(), Failure> {
    let mut out = terminal::out();
    for (at, line) in lines.iter().enumerate() {
        if json {
            writeln!(out, "{}", serde_json::to_string(line).unwrap_or_default())?;
            continue;
        }
        if at > 0 {
            writeln!(out)?;
        }
        writeln!(out, "pipeline   {}", line.pipeline)?;
        match (&line.status, &line.error) {
            (Some(status), _) => show_status(&mut out, status)?,
            (None, why) => {
                let why = why.as_deref().unwrap_or("the database does not say");
                writeln!(out, "unknown    {}", terminal::plain(why))?;
            }
        }
    }
    out.flush()?;
    Ok(())
}

fn show_status(out: &mut impl Write, status: &OutboxStatus) -> Result<(), Failure> {
    writeln!(out, "table      {}", status.table)?;
    let oldest = status
        .oldest_seconds
        .map(|age| format!(", the oldest for {}", terminal::span(millis(age))));
    writeln!(out, "waiting    {}{}", counted(status.waiting), oldest.unwrap_or_default())?;
    match status.rate {
        Some(rate) => writeln!(out, "rate       {rate:.1} a second in the last minute")?,
        None => writeln!(out, "rate       unknown without an index on the time of processing")?,
    }
    writeln!(out, "dead       {}", counted(status.dead))?;
    match &status.owner {
        Some(owner) => writeln!(
            out,
            "relayed by {} on {}, lease for {}",
            owner.pipeline,
            owner.owner,
            terminal::span(millis(owner.lease_seconds))
        )?,
        None => writeln!(out, "relayed by nobody")?,
    }
    if status.failing.is_empty() {
        return Ok(());
    }
    let mut table =
        terminal::Table::new(&["FAILING KEY", "ROW", "ATTEMPT", "NEXT IN", "BEHIND", "ERROR"]);
    for failing in &status.failing {
        let next = match failing.next_seconds > 0.0 {
            true => terminal::span(millis(failing.next_seconds)),
            false => "now".to_owned(),
        };
        table.row([
            terminal::short(&failing.key, 40),
            failing.id.clone(),
            failing.attempt.to_string(),
            next,
            failing.behind.to_string(),
            terminal::short(&failing.error, 80),
        ]);
    }
    table.print(out)?;
    let more = status.failing_keys.saturating_sub(status.failing.len() as u64);
    if more > 0 {
        writeln!(out, "and {more} more failing keys")?;
    }
    Ok(())
}

/// Says what was done; fails where some of those that were named are not there.
fn done_with(
    word: &str,
    asked: Option<&[String]>,
    done: &[String],
    json: bool,
) -> Result<(), Failure> {
    let mut out = terminal::out();
    for id in done {
        match json {
            true => writeln!(out, "{}", json!({ "id": id, "action": word }))?,
            false => writeln!(out, "{id}  {word}")?,
        }
    }
    out.flush()?;
    let gone = asked.unwrap_or_default().iter().find(|id| !done.contains(id));
    gone.map_or(Ok(()), |id| {
        let what = format!("there is no such row: {id}");
        Err(Failure::new("P1307", what).hint("`potok outbox status` has the ids of rows that fail"))
    })
}
