//! `potok status`: how pipelines stand.

use std::collections::BTreeMap;
use std::io::Write;

use serde::Deserialize;
use serde_json::Value;

use crate::client::{Client, Target, encode};
use crate::failure::Failure;
use crate::terminal::{self, Table, span};

/// Show how pipelines stand; works without a running process too
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok status
  potok status orders --json
  potok status --data-dir /var/lib/potok

received = delivered + filtered + duplicates + dead_lettered + in_flight, since the process
started. `lag` counts records in the pipeline's topics and feeds that have not ended, `oldest` is the
age in milliseconds of the oldest one in flight. What groups hold is in flight too: `held_records` in
`open_groups`, of which the next closes at `next_close`. `dead_letters_open` counts dead letters that
wait for somebody, whenever they were written; the others count since `since`, and are null (`-`) for
a pipeline that does not run. What stages count (`count`) stands below the table.")]
pub struct Status {
    /// Only this pipeline
    pipeline: Option<String>,
    #[command(flatten)]
    place: Target,
}

/// The part of a status that people see.
#[derive(Deserialize)]
pub struct StatusLine {
    pub pipeline: String,
    pub state: String,
    why: Option<String>,
    pub gate: Gate,
    pub lag: Option<u64>,
    oldest: Option<u64>,
    since: Option<String>,
    pub dead_letters_open: Option<u64>,
    pub received: Option<u64>,
    pub delivered: Option<u64>,
    pub filtered: Option<u64>,
    pub duplicates: Option<u64>,
    pub dead_lettered: Option<u64>,
    pub in_flight: Option<u64>,
    #[serde(default)]
    open_groups: u64,
    #[serde(default)]
    held_records: u64,
    next_close_in: Option<u64>,
    #[serde(default)]
    counted: BTreeMap<String, BTreeMap<String, u64>>,
    #[serde(default)]
    damaged: Vec<DamagedRange>,
}

#[derive(Deserialize)]
pub struct Gate {
    pub state: String,
    since: Option<String>,
    why: Option<String>,
}

#[derive(Deserialize)]
struct DamagedRange {
    file: String,
    from: u64,
    to: u64,
    kept_in: String,
}

impl Status {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        let path = match &self.pipeline {
            Some(pipeline) => format!("/api/v1/status?pipeline={}", encode(pipeline)),
            None => "/api/v1/status".to_owned(),
        };
        let all: Vec<Value> = Client::find(&self.place)?.get_json(&path)?;
        let mut out = terminal::out();
        if json {
            for status in all {
                writeln!(out, "{status}")?;
            }
        } else {
            let lines: Vec<StatusLine> = read(all)?;
            print(&mut out, &lines)?;
        }
        out.flush()?;
        Ok(())
    }
}

/// The part of what the API says that people see.
pub fn read(all: Vec<Value>) -> Result<Vec<StatusLine>, Failure> {
    serde_json::from_value(all.into()).map_err(|error| {
        Failure::new("P0513", "the process answered with something else than expected")
            .because(error)
    })
}

impl StatusLine {
    /// What groups hold and when they go on; `None` where they hold nothing.
    pub fn held(&self) -> Option<String> {
        if self.held_records == 0 {
            return None;
        }
        let groups = match self.open_groups {
            0 => "groups that have closed".to_owned(),
            groups => terminal::count(groups, "group"),
        };
        let next = match self.next_close_in {
            None => String::new(),
            Some(0) => ", next is due".to_owned(),
            Some(millis @ 1..60_000) => format!(", next closes in {} s", millis.div_ceil(1_000)),
            Some(millis) => format!(", next closes in {}", span(millis)),
        };
        Some(format!("{} held in {groups}{next}", self.held_records))
    }
}

/// The lines people see; the same in `potok dev`. On a narrow screen columns go on below.
pub fn table(lines: &[StatusLine], columns: Option<usize>) -> Vec<String> {
    let mut table = Table::new(&[
        "PIPELINE",
        "STATE",
        "GATE",
        "LAG",
        "OLDEST",
        "RECEIVED",
        "DELIVERED",
        "FILTERED",
        "DUPLICATES",
        "DEAD",
        "IN FLIGHT",
        "DEAD OPEN",
    ]);
    for line in lines {
        let counts = [
            line.received,
            line.delivered,
            line.filtered,
            line.duplicates,
            line.dead_lettered,
            line.in_flight,
            line.dead_letters_open,
        ];
        // Nobody watches a destination for a pipeline that does not run.
        let gate = if line.since.is_some() { line.gate.state.as_str() } else { "-" };
        let words = [line.pipeline.clone(), line.state.clone(), gate.to_owned()];
        let lag = [
            line.lag.map_or("?".to_owned(), |lag| lag.to_string()),
            line.oldest.map_or("-".to_owned(), span),
        ];
        let cells = words.into_iter().chain(lag);
        table.row(cells.chain(counts.iter().map(count)));
    }
    let colours = terminal::on_stdout();
    table.lines_within(columns, colours, |column, text| match (column, text) {
        (1, "running") | (2, "open") => Some(colours.green(text)),
        (1, "blocked") => Some(colours.red(text)),
        (1 | 2, _) => Some(colours.yellow(text)),
        _ => None,
    })
}

fn count(count: &Option<u64>) -> String {
    count.map_or("-".to_owned(), |count| count.to_string())
}

fn print(out: &mut impl Write, lines: &[StatusLine]) -> Result<(), Failure> {
    if lines.is_empty() {
        writeln!(out, "no pipeline has run in this data folder yet")?;
        return Ok(());
    }
    for line in table(lines, terminal::screen().map(|(columns, _)| columns)) {
        writeln!(out, "{line}")?;
    }
    let mut since: Vec<&str> = lines.iter().filter_map(|line| line.since.as_deref()).collect();
    since.sort_unstable();
    since.dedup();
    if let Some(first) = since.first() {
        writeln!(
            out,
            "counted since {first}; DEAD OPEN: dead letters that wait, whenever written"
        )?;
    }
    for line in lines {
        if let Some(why) = &line.why {
            writeln!(out, "{} is {}: {}", line.pipeline, line.state, terminal::plain(why))?;
        }
        if let Some(why) = &line.gate.why {
            let since = line.gate.since.as_deref().unwrap_or("just now");
            let (pipeline, gate) = (&line.pipeline, &line.gate.state);
            writeln!(out, "{pipeline}: gate {gate} since {since}: {}", terminal::plain(why))?;
        }
        if let Some(held) = line.held() {
            writeln!(out, "{}: {held}", line.pipeline)?;
        }
        for (stage, counters) in &line.counted {
            let counts: Vec<_> =
                counters.iter().map(|(name, count)| format!("{name} {count}")).collect();
            writeln!(out, "{}: stage {stage} counted {}", line.pipeline, counts.join(", "))?;
        }
    }
    // Damage is the log's, and the same for every pipeline on it.
    for damage in lines.first().iter().flat_map(|line| &line.damaged) {
        let DamagedRange { file, from, to, kept_in } = damage;
        writeln!(out, "damaged: bytes {from} to {to} of {file}, kept in {kept_in}")?;
    }
    Ok(())
}
