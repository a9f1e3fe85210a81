//! `potok files` and `potok stuck`: closed groups as files, and how far each has come.

use std::io::Write;

use potok_core::Fault;
use serde_json::Value;

use crate::client::{Client, Target, encode};
use crate::failure::Failure;
use crate::terminal::{self, Table};

/// Names of files that are not done.
const UNFINISHED_MAX: u32 = 10_000;

/// Files of closed groups: by file, shard and stage
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  potok files
  potok files --in-progress                   only what is not done
  potok files --json                          one row a line
  potok files show 20250101000000
  potok files retry 20250101000000            puts what has failed back to `new`

`open` slices still take records and have no row yet; the others are in the tracking table. Below are
the numbers of each shard: rows in all, and how the last stage stands in them.")]
pub struct Files {
    #[command(subcommand)]
    command: Option<FileCommand>,
    /// Only of this pipeline
    #[arg(long, value_name = "PIPELINE")]
    pipeline: Option<String>,
    /// Show the newest so many names
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    limit: u32,
    /// Only names older than this one: where an earlier list stopped
    #[arg(long, value_name = "NAME")]
    before: Option<String>,
    /// Only rows with a stage that is not done, of up to 10,000 names
    #[arg(long)]
    in_progress: bool,
    #[command(flatten)]
    place: Target,
}

#[derive(clap::Subcommand)]
enum FileCommand {
    /// Show everything that is known of one file, as JSON
    #[command(after_help = "\
Examples:
  potok files show 20250101000000")]
    Show {
        /// Its name
        name: String,
        #[command(flatten)]
        place: Target,
    },
    /// Try again what has failed of one file: it becomes `new`, and its destination is asked at once
    #[command(after_help = "\
Examples:
  potok files retry 20250101000000
  potok files retry 20250101000000 --shard 1")]
    Retry {
        /// Its name
        name: String,
        /// Only in this shard
        #[arg(long, value_name = "SHARD")]
        shard: Option<u32>,
        #[command(flatten)]
        place: Target,
    },
}

/// Files that have been in a stage for longer than they should, and why
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok stuck
  potok stuck --json

How long is too long is said by `track.stuck`, stage by stage. It is computed in the database, by the
database's clock.")]
pub struct StuckFiles {
    /// Only of this pipeline
    #[arg(long, value_name = "PIPELINE")]
    pipeline: Option<String>,
    #[command(flatten)]
    place: Target,
}

impl Files {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        match self.command {
            Some(FileCommand::Show { name, place }) => show(&place, &name),
            Some(FileCommand::Retry { name, shard, place }) => retry(&place, &name, shard),
            None => self.list(json),
        }
    }

    fn list(self, json: bool) -> Result<(), Failure> {
        let limit = if self.in_progress { UNFINISHED_MAX } else { self.limit };
        let mut path = format!("/api/v1/files?limit={limit}");
        if let Some(before) = &self.before {
            path.push_str(&format!("&before={}", encode(before)));
        }
        if let Some(pipeline) = &self.pipeline {
            path.push_str(&format!("&pipeline={}", encode(pipeline)));
        }
        if self.in_progress {
            path.push_str("&in_progress=true");
        }
        let all: Value = Client::find(&self.place)?.get_json(&path)?;
        let mut out = terminal::out();
        for pipeline in list_of(&all, "pipelines") {
            if json {
                for file in list_of(pipeline, "files") {
                    writeln!(out, "{file}")?;
                }
                continue;
            }
            print(pipeline, &mut out)?;
            // Whoever asked for the newest knows that there are older ones.
            if let Some(next) = pipeline["next"].as_str().filter(|_| self.in_progress) {
                writeln!(out, "there may be more: --before {next}")?;
            }
        }
        out.flush()?;
        Ok(())
    }
}

impl StuckFiles {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        let mut path = "/api/v1/stuck".to_owned();
        if let Some(pipeline) = &self.pipeline {
            path.push_str(&format!("?pipeline={}", encode(pipeline)));
        }
        let all: Value = Client::find(&self.place)?.get_json(&path)?;
        let mut out = terminal::out();
        let stuck = list_of(&all, "stuck");
        if json {
            for file in stuck {
                writeln!(out, "{file}")?;
            }
        } else if stuck.is_empty() {
            writeln!(out, "nothing is stuck")?;
        } else {
            let mut table = Table::new(&["FILE", "SHARD", "STARTED", "MINUTES", "REASON"]);
            for file in stuck {
                let started = list_of(file, "stages").iter();
                let started = started.filter(|stage| stage["state"] == "started");
                let started: Vec<String> = started.map(|stage| text(&stage["stage"])).collect();
                let cells = [text(&file["filename"]), text(&file["shard"]), started.join(", ")];
                let rest = ["minutes", "reason"].map(|key| text(&file[key]));
                table.row(cells.into_iter().chain(rest));
            }
            table.print(&mut out)?;
        }
        out.flush()?;
        if all["more"] == true {
            eprintln!("there are more: these are stuck for longest");
        }
        Ok(())
    }
}

fn show(place: &Target, name: &str) -> Result<(), Failure> {
    let path = format!("/api/v1/files?name={}", encode(name));
    let all: Value = Client::find(place)?.get_json(&path)?;
    let files: Vec<&Value> =
        list_of(&all, "pipelines").iter().flat_map(|pipeline| list_of(pipeline, "files")).collect();
    if files.is_empty() {
        let what = format!("there is no file `{name}`");
        let fault = Fault::fix(what).code("P1409").hint("`potok files` shows their names");
        return Err(Failure::faults(vec![fault]));
    }
    let mut out = terminal::out();
    for file in files {
        serde_json::to_writer_pretty(&mut out, file).map_err(std::io::Error::from)?;
        writeln!(out)?;
    }
    out.flush()?;
    Ok(())
}

fn retry(place: &Target, name: &str, shard: Option<u32>) -> Result<(), Failure> {
    let mut path = format!("/api/v1/files/{}/retry", encode(name));
    if let Some(shard) = shard {
        path.push_str(&format!("?shard={shard}"));
    }
    let answer: Value = Client::find(place)?.post_json(&path, "application/json", Vec::new())?;
    let mut out = terminal::out();
    writeln!(out, "{} stages of {name} are tried again", text(&answer["stages"]))?;
    out.flush()?;
    Ok(())
}

fn print(pipeline: &Value, out: &mut impl Write) -> Result<(), Failure> {
    let stages: Vec<String> = list_of(pipeline, "stages").iter().map(text).collect();
    let mut heads = vec!["FILE", "SHARD"];
    heads.extend(stages.iter().map(String::as_str));
    heads.extend(["RECORDS", "ROWS", "DUPLICATES", "FILTERED", "DEAD", "UPDATED", "REASON"]);
    let mut table = Table::new(&heads);
    for slice in list_of(pipeline, "open") {
        let mut cells = vec![text(&slice["filename"]), text(&slice["shard"])];
        cells.extend(
            stages.iter().enumerate().map(
                |(at, _)| {
                    if at == 0 { "open".to_owned() } else { "-".to_owned() }
                },
            ),
        );
        cells.push(text(&slice["records"]));
        cells.extend(["-"; 6].map(str::to_owned));
        table.row(cells);
    }
    for file in list_of(pipeline, "files") {
        let mut cells = vec![text(&file["filename"]), text(&file["shard"])];
        cells.extend(list_of(file, "stages").iter().map(|stage| text(&stage["state"])));
        cells.push(text(&file["records"]));
        let counts = &file["counts"];
        cells.extend(["rows", "duplicates", "filtered", "dead"].map(|key| text(&counts[key])));
        cells.extend(["updated_at", "reason"].map(|key| text(&file[key])));
        table.row(cells);
    }
    table.print(&mut *out)?;
    let mut table = Table::new(&["SHARD", "TOTAL", "COMPLETED", "PROCESSING", "FAILED"]);
    for shard in list_of(pipeline, "shards") {
        let cells = ["shard", "total", "completed", "processing", "failed"];
        table.row(cells.map(|key| text(&shard[key])));
    }
    writeln!(out)?;
    table.print(&mut *out)?;
    Ok(())
}

fn list_of<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}
