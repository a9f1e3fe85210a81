//! `potok outbox`: the table that a pipeline relays. Asks the database, not the process: what it says
//! holds whoever relays the table, and when nobody does.

use std::io::Write;
use std::path::PathBuf;

use potok_connectors::outbox::{DeadRow, Outbox as Table, Status};
use potok_core::Fault;
use serde_json::json;

use crate::client::Target;
use crate::failure::Failure;
use crate::{folder, terminal, wire};

/// The outbox table of a pipeline: its statements, how it stands, and rows that failed
#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  potok outbox ddl pipelines/outbox.yaml
  potok outbox status pipelines/outbox.yaml
  potok outbox retry pipelines/outbox.yaml --all
  potok outbox dead-letters list pipelines/outbox.yaml")]
pub enum Outbox {
    /// Print the SQL statements that make its tables
    #[command(after_help = "\
Examples:
  potok outbox ddl pipelines/outbox.yaml | psql messenger
  potok outbox ddl pipelines/outbox.yaml --grants

Each statement can be run again, also where the outbox table is there already: it is looked at where
it can be reached. On a large table that is in use, PostgreSQL builds the index without stopping
writers if you say CREATE INDEX CONCURRENTLY.")]
    Ddl {
        #[command(flatten)]
        place: OutboxTarget,
        /// The privileges a relay needs, instead; for a user called potok
        #[arg(long)]
        grants: bool,
    },
    /// Show what waits, what fails, and who relays the table
    #[command(after_help = "\
Examples:
  potok outbox status pipelines/outbox.yaml
  potok outbox status pipelines/outbox.yaml --json")]
    Status {
        #[command(flatten)]
        place: OutboxTarget,
    },
    /// Try rows that failed at once, whatever they wait for
    #[command(after_help = "\
Examples:
  potok outbox retry pipelines/outbox.yaml 0b0a1c52-6f0e-4b0e-9c56-1f0f5a1d2e3f
  potok outbox retry pipelines/outbox.yaml --all")]
    Retry {
        #[command(flatten)]
        place: OutboxTarget,
        /// Ids of rows
        #[arg(required_unless_present = "all", value_name = "ID")]
        ids: Vec<String>,
        /// All that failed
        #[arg(long, conflicts_with = "ids")]
        all: bool,
    },
    /// Mark rows as processed without publishing them
    #[command(after_help = "\
Examples:
  potok outbox skip pipelines/outbox.yaml 0b0a1c52-6f0e-4b0e-9c56-1f0f5a1d2e3f")]
    Skip {
        #[command(flatten)]
        place: OutboxTarget,
        /// Ids of rows
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Rows that failed for the last time
    #[command(subcommand)]
    DeadLetters(Letters),
}

/// Dead letters in the table
#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  potok outbox dead-letters list pipelines/outbox.yaml
  potok outbox dead-letters replay pipelines/outbox.yaml --all")]
pub enum Letters {
    /// List them
    #[command(after_help = "\
Examples:
  potok outbox dead-letters list pipelines/outbox.yaml --json")]
    List {
        #[command(flatten)]
        place: OutboxTarget,
    },
    /// Show some of them whole
    #[command(after_help = "\
Examples:
  potok outbox dead-letters show pipelines/outbox.yaml 0b0a1c52-6f0e-4b0e-9c56-1f0f5a1d2e3f")]
    Show {
        #[command(flatten)]
        place: OutboxTarget,
        /// Ids of rows
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Put them back into the outbox, in their order
    #[command(after_help = "\
Examples:
  potok outbox dead-letters replay pipelines/outbox.yaml --all")]
    Replay {
        #[command(flatten)]
        place: OutboxTarget,
        /// Ids of rows
        #[arg(required_unless_present = "all", value_name = "ID")]
        ids: Vec<String>,
        /// All of them
        #[arg(long, conflicts_with = "ids")]
        all: bool,
    },
    /// Remove them for good
    #[command(after_help = "\
Examples:
  potok outbox dead-letters drop pipelines/outbox.yaml 0b0a1c52-6f0e-4b0e-9c56-1f0f5a1d2e3f")]
    Drop {
        #[command(flatten)]
        place: OutboxTarget,
        /// Ids of rows
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

/// Which outbox.
#[derive(clap::Args)]
pub struct OutboxTarget {
    /// The pipeline file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Connections file [default: ./potok.yaml if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data folder [default: ./potok-data, or what potok.yaml or POTOK_DATA_DIR says]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl OutboxTarget {
    fn table(self) -> Result<Table, Failure> {
        let target = Target { config: self.config, data_dir: self.data_dir, ..Target::default() };
        let connections = target.connections()?;
        let pipelines = wire::load(&[self.file])?;
        let table = pipelines.iter().find_map(|pipeline| wire::outbox(pipeline, &connections));
        table.unwrap_or_else(|| {
            let what = "the pipeline has no outbox as its source";
            Err(Failure::new("P1306", what).hint("name a file with `source: { outbox: … }`"))
        })
    }
}

fn failed(fault: Fault) -> Failure {
    Failure::faults(vec![fault])
}

impl Outbox {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        folder::block_on(self.ask(json))
    }

    async fn ask(self, json: bool) -> Result<(), Failure> {
        match self {
            Outbox::Ddl { place, grants } => ddl(&place.table()?, grants, json).await,
            Outbox::Status { place } => {
                status(&place.table()?.status().await.map_err(failed)?, json)
            }
            Outbox::Retry { place, ids, all } => {
                let ids = (!all).then_some(ids);
                let done = place.table()?.retry(ids.as_deref()).await.map_err(failed)?;
                done_with("retried", ids.as_deref(), &done, json)
            }
            Outbox::Skip { place, ids } => {
                let done = place.table()?.skip(&ids).await.map_err(failed)?;
                done_with("skipped", Some(&ids), &done, json)
            }
            Outbox::DeadLetters(letters) => letters.ask(json).await,
        }
    }
}

impl Letters {
    async fn ask(self, json: bool) -> Result<(), Failure> {
        match self {
            Letters::List { place } => {
                let rows = place.table()?.dead_rows(None).await.map_err(failed)?;
                list(&rows, json)
            }
            Letters::Show { place, ids } => {
                let rows = place.table()?.dead_rows(Some(&ids)).await.map_err(failed)?;
                let mut out = terminal::out();
                for row in &rows {
                    let line = match json {
                        true => serde_json::to_string(row),
                        false => serde_json::to_string_pretty(row),
                    };
                    writeln!(out, "{}", line.unwrap_or_default())?;
                }
                out.flush()?;
                let found: Vec<String> = rows.into_iter().map(|row| row.id).collect();
                missing(Some(&ids), &found)
            }
            Letters::Replay { place, ids, all } => {
                let table = place.table()?;
                let ids = match all {
                    true => {
                        let rows = table.dead_rows(None).await.map_err(failed)?;
                        rows.into_iter().map(|row| row.id).collect()
                    }
                    false => ids,
                };
                let done = table.replay(&ids).await.map_err(failed)?;
                done_with("replayed", Some(&ids), &done, json)
            }
            Letters::Drop { place, ids } => {
                let table = place.table()?;
                let rows = table.dead_rows(Some(&ids)).await.map_err(failed)?;
                let found: Vec<String> = rows.into_iter().map(|row| row.id).collect();
                table.drop_dead(&found).await.map_err(failed)?;
                done_with("dropped", Some(&ids), &found, json)
            }
        }
    }
}

async fn ddl(table: &Table, grants: bool, json: bool) -> Result<(), Failure> {
    let (statements, fault) = match grants {
        true => (table.grants(), None),
        false => table.ddl().await,
    };
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

fn status(status: &Status, json: bool) -> Result<(), Failure> {
    let mut out = terminal::out();
    if json {
        writeln!(out, "{}", serde_json::to_string(status).unwrap_or_default())?;
        out.flush()?;
        return Ok(());
    }
    let millis = |seconds: f64| (seconds.max(0.0) * 1_000.0) as u64;
    writeln!(out, "table      {}", status.table)?;
    let oldest = status
        .oldest_seconds
        .map(|age| format!(", the oldest for {}", terminal::span(millis(age))));
    writeln!(out, "waiting    {}{}", status.waiting, oldest.unwrap_or_default())?;
    writeln!(out, "rate       {:.1} a second in the last minute", status.rate)?;
    writeln!(out, "dead       {}", status.dead)?;
    match &status.owner {
        Some(owner) if owner.lease_seconds > 0.0 => writeln!(
            out,
            "relayed by {} on {}, lease for {}",
            owner.pipeline,
            owner.owner,
            terminal::span(millis(owner.lease_seconds))
        )?,
        _ => writeln!(out, "relayed by nobody")?,
    }
    if !status.failing.is_empty() {
        let mut table =
            terminal::Table::new(&["FAILING KEY", "ROW", "ATTEMPT", "NEXT IN", "BEHIND", "ERROR"]);
        for failing in &status.failing {
            table.row([
                terminal::short(&failing.key, 40),
                failing.id.clone(),
                failing.attempt.to_string(),
                terminal::span(millis(failing.next_seconds)),
                failing.behind.to_string(),
                terminal::short(&failing.error, 80),
            ]);
        }
        table.print(&mut out)?;
    }
    out.flush()?;
    Ok(())
}

fn list(rows: &[DeadRow], json: bool) -> Result<(), Failure> {
    let mut out = terminal::out();
    if json {
        for row in rows {
            writeln!(out, "{}", serde_json::to_string(row).unwrap_or_default())?;
        }
    } else {
        let mut table =
            terminal::Table::new(&["ROW", "TYPE", "ATTEMPTS", "REASON", "SINCE", "ERROR"]);
        for row in rows {
            table.row([
                row.id.clone(),
                terminal::short(row.event_type.as_deref().unwrap_or_default(), 40),
                row.attempts.to_string(),
                row.reason.clone(),
                row.dead_at.clone(),
                terminal::short(&row.error, 80),
            ]);
        }
        table.print(&mut out)?;
    }
    out.flush()?;
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
    missing(asked, done)
}

fn missing(asked: Option<&[String]>, found: &[String]) -> Result<(), Failure> {
    let gone = asked.unwrap_or_default().iter().find(|id| !found.contains(id));
    gone.map_or(Ok(()), |id| {
        let what = format!("there is no such row: {id}");
        Err(Failure::new("P1307", what)
            .hint("`potok outbox status` and `dead-letters list` have ids"))
    })
}
