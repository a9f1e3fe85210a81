//! `potok groups`: what pipelines hold until it is complete.

use std::io::Write;

use serde_json::{Value, json};

use crate::client::{Client, Target, encode, for_each_line};
use crate::failure::Failure;
use crate::terminal::{self, Table};

/// Batches being held: what is in them, when they close, and closing them by hand
#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  potok groups list em-processor
  potok groups show em-processor 20250323151500
  potok groups close em-processor 20250323151500")]
pub enum Batches {
    /// Show the batches that are held now
    #[command(after_help = "\
Examples:
  potok groups list
  potok groups list em-processor --limit 1000
  potok groups list em-processor --json             all of them, one to a line

What closes first comes first.
`open` batches still take records; `closed` ones wait until their members are noted in the log,
`sealed` ones to be sent, and `sending` ones for their destinations.")]
    List {
        /// Only of this pipeline
        pipeline: Option<String>,
        /// Show so many; 100 without it, with --json all
        #[arg(long, value_name = "COUNT")]
        limit: Option<usize>,
        /// Show all of them
        #[arg(long, conflicts_with = "limit")]
        all: bool,
        #[command(flatten)]
        place: Target,
    },
    /// Show one batch, as JSON
    #[command(after_help = "\
Examples:
  potok groups show em-processor 20250323151500")]
    Show {
        /// The pipeline
        pipeline: String,
        /// The batch: the value of `group.by`
        id: String,
        #[command(flatten)]
        place: Target,
    },
    /// Close an open group now instead of when it is due
    #[command(after_help = "\
Examples:
  potok groups close em-processor 20250323151500

What comes for it afterwards makes the next batch of that name.")]
    Release {
        /// The pipeline
        pipeline: String,
        /// The batch: the value of `group.by`
        id: String,
        #[command(flatten)]
        place: Target,
    },
    /// Send again what of a batch has become dead letters
    #[command(after_help = "\
Examples:
  potok groups retry em-processor 20250323151500
  potok dead-letters list em-processor               what is set aside, and why

A batch that waits for its destination is tried again by itself. Its dead letters go through the
pipeline one by one, under the same ids as the first time.")]
    Retry {
        /// The pipeline
        pipeline: String,
        /// The batch: the value of `group.by`
        id: String,
        #[command(flatten)]
        place: Target,
    },
    /// Give an open group up: its records become dead letters
    #[command(after_help = "\
Examples:
  potok groups drop em-processor 20250323151500
  potok dead-letters list em-processor --reason dropped

Nothing is lost: the dead letters can be replayed.")]
    Drop {
        /// The pipeline
        pipeline: String,
        /// The batch: the value of `group.by`
        id: String,
        #[command(flatten)]
        place: Target,
    },
}

impl Batches {
    /// Does it.
    pub fn run(self, json: bool) -> Result<(), Failure> {
        match self {
            Batches::List { pipeline, limit, all, place } => {
                let usual = if all || json { usize::MAX } else { SHOWN };
                list(&place, pipeline.as_deref(), limit.unwrap_or(usual).max(1), json)
            }
            Batches::Show { pipeline, id, place } => show(&place, &pipeline, &id),
            Batches::Release { pipeline, id, place } => {
                ask(&place, &pipeline, &id, "release", "closes now", json)
            }
            Batches::Retry { pipeline, id, place } => retry(&place, &pipeline, &id, json),
            Batches::Drop { pipeline, id, place } => ask(
                &place,
                &pipeline,
                &id,
                "drop",
                "is given up: its records become dead letters",
                json,
            ),
        }
    }
}

/// Batches asked for at once, and shown to who does not say how many.
const PAGE: usize = 1_000;
const SHOWN: usize = 100;

#[derive(serde::Deserialize)]
struct Page {
    batches: Vec<Value>,
    total: u64,
    next: Option<String>,
}

/// Goes through what is held, page by page, and says how much there is in all.
fn each_page(
    client: &Client,
    pipeline: Option<&str>,
    limit: usize,
    mut show: impl FnMut(&[Value]) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let (mut left, mut after) = (limit, None::<String>);
    loop {
        let mut path = format!("/api/v1/groups?limit={}", left.min(PAGE));
        for (name, value) in [("pipeline", pipeline), ("after", after.as_deref())] {
            let value = value.map(|value| format!("&{name}={}", encode(value)));
            path.push_str(&value.unwrap_or_default());
        }
        let page: Page = client.get_json(&path)?;
        show(&page.batches)?;
        left = left.saturating_sub(page.batches.len());
        after = page.next;
        if left == 0 || after.is_none() {
            return Ok(page.total);
        }
    }
}

fn list(place: &Target, pipeline: Option<&str>, limit: usize, json: bool) -> Result<(), Failure> {
    let client = Client::find(place)?;
    let mut out = terminal::out();
    if json {
        each_page(&client, pipeline, limit, |batches| {
            batches.iter().try_for_each(|batch| writeln!(out, "{batch}"))?;
            Ok(())
        })?;
        out.flush()?;
        return Ok(());
    }
    let mut shown = 0;
    let total = each_page(&client, pipeline, limit, |batches| {
        let mut table =
            Table::new(&["PIPELINE", "BATCH", "STATE", "RECORDS", "REPEATS", "OPENED", "DUE"]);
        for batch in batches {
            let text = |key: &str| match &batch[key] {
                Value::String(text) => text.clone(),
                Value::Null => "-".to_owned(),
                other => other.to_string(),
            };
            let kinds = batch["kinds"].as_object().into_iter().flatten();
            let kinds: Vec<String> =
                kinds.map(|(kind, counts)| format!("{} {kind}", counts["records"])).collect();
            let cells = [text("pipeline"), text("id"), text("state"), kinds.join(", ")];
            let rest = ["repeats", "opened", "due"].map(text);
            table.row(cells.into_iter().chain(rest));
        }
        shown += batches.len() as u64;
        if !batches.is_empty() {
            table.print(&mut out)?;
        }
        Ok(())
    })?;
    if shown == 0 {
        writeln!(out, "nothing is held now")?;
    } else if shown < total {
        writeln!(out, "… and {} more; --limit COUNT or --all shows them", total - shown)?;
    }
    out.flush()?;
    Ok(())
}

fn show(place: &Target, pipeline: &str, id: &str) -> Result<(), Failure> {
    let path = format!("/api/v1/groups?pipeline={}&id={}", encode(pipeline), encode(id));
    let Page { batches, .. } = Client::find(place)?.get_json(&path)?;
    if batches.is_empty() {
        let what = format!("pipeline `{pipeline}` holds no batch `{id}`");
        let fault = potok_core::Fault::fix(what).code("P0527");
        return Err(Failure::faults(vec![fault.hint("`potok groups list` shows what is held")]));
    }
    let mut out = terminal::out();
    for batch in &batches {
        serde_json::to_writer_pretty(&mut out, batch).map_err(std::io::Error::from)?;
        writeln!(out)?;
    }
    out.flush()?;
    Ok(())
}

fn retry(place: &Target, pipeline: &str, id: &str, json: bool) -> Result<(), Failure> {
    let client = Client::find(place)?;
    let wish = json!({ "pipeline": pipeline, "batch": id });
    let path = "/api/v1/dead-letters/replay";
    let mut replayed = 0_u64;
    for_each_line(client.post(path, "application/json", wish.to_string().into())?, |_, _| {
        replayed += 1;
        Ok(())
    })?;
    let mut out = terminal::out();
    if json {
        writeln!(out, "{}", json!({ "retried": id, "records": replayed }))?;
    } else if replayed == 0 {
        writeln!(out, "{id} has no dead letters")?;
    } else {
        writeln!(out, "{replayed} records of {id} are sent again")?;
    }
    out.flush()?;
    Ok(())
}

fn ask(
    place: &Target,
    pipeline: &str,
    id: &str,
    verb: &str,
    done: &str,
    json: bool,
) -> Result<(), Failure> {
    let path = format!("/api/v1/pipelines/{}/batches/{}/{verb}", encode(pipeline), encode(id));
    let answer: Value = Client::find(place)?.post_json(&path, "application/json", Vec::new())?;
    let mut out = terminal::out();
    if json {
        writeln!(out, "{answer}")?;
    } else {
        writeln!(out, "{id} {done}")?;
    }
    out.flush()?;
    Ok(())
}
