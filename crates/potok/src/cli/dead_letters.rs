//! `potok dead-letters`: what was set aside, and what to do about it.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use potok_config::Period;
use potok_core::Reason;
use serde_json::{Map, Value, json};

use crate::client::{Answer, Client, Target, encode, for_each_line};
use crate::failure::Failure;
use crate::terminal::{self, Table, plain, short};
use crate::wire;

/// How long a replay waits for what comes of it.
const WAIT_USUAL: Duration = Duration::from_secs(10);
/// Rows that are lined up together.
const PAGE_ROWS: usize = 200;

/// Dead letters: records set aside, with the reason; list, show, replay or drop them
#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  potok dead-letters list orders
  potok dead-letters show orders-dead/0/12
  potok dead-letters replay orders --reason retries_exhausted --since 1h
  potok dead-letters drop orders --where '.customer_id == \"test\"' --dry-run")]
pub enum DeadLetters {
    /// List dead letters that wait for somebody
    #[command(after_help = "\
Examples:
  potok dead-letters list
  potok dead-letters list orders --reason invalid,no_key --since 2026-11-15
  potok dead-letters list orders --where '.payment.amount > 1000' --json
  potok dead-letters list --summary")]
    List {
        #[command(flatten)]
        which: Selection,
        /// Also those replayed, and those dropped that are not removed yet
        #[arg(long)]
        all: bool,
        /// So many at most
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        limit: Option<u32>,
        /// Go on where an earlier list with --limit stopped
        #[arg(long)]
        cursor: Option<String>,
        /// How many there are for each pipeline and reason, with one of them
        #[arg(long)]
        summary: bool,
    },
    /// Show dead letters whole
    #[command(after_help = "\
Examples:
  potok dead-letters show orders-dead/0/12
  potok dead-letters show orders --reason conflict")]
    Show {
        #[command(flatten)]
        which: Selection,
    },
    /// Send dead letters into their pipeline again, under their old names
    #[command(after_help = "\
Examples:
  potok dead-letters replay orders-dead/0/12
  potok dead-letters replay orders --reason retries_exhausted --rate 50
  potok dead-letters replay orders --since 1h --dry-run
  potok dead-letters replay em-processor --group 20250323151500
  potok dead-letters replay outbox

An entry closes when its replay has ended; a second failure is a new entry. What came of it is
printed at the end, as far as it is known by then. Without a running process they wait for its next
start. Rows of an outbox go back into its table, with their old places in the order.")]
    Replay {
        #[command(flatten)]
        which: Selection,
        #[command(flatten)]
        how: ReplayOptions,
        /// How long to wait for what comes of it, e.g. 30s [default: 10s]
        #[arg(long, value_name = "TIME", conflicts_with = "no_wait")]
        wait: Option<String>,
        /// Do not wait for what comes of it
        #[arg(long)]
        no_wait: bool,
    },
    /// Give dead letters up; they are removed and their disk space is freed
    #[command(after_help = "\
Examples:
  potok dead-letters drop orders-dead/0/12
  potok dead-letters drop orders --reason undecodable --dry-run")]
    Drop {
        #[command(flatten)]
        which: Selection,
        #[command(flatten)]
        how: ReplayOptions,
    },
    /// Give up records that wait for a decision: they become dead letters
    #[command(
        name = "set-aside",
        after_help = "\
Examples:
  potok dead-letters set-aside orders --dry-run
  potok dead-letters set-aside orders orders/0/41

A record that its destination keeps refusing while nothing else gets through may be bad, or the
destination may be. It waits and is tried again and again; `potok status` shows it. It goes on by
itself as soon as that can be told. `potok resume` tries it now."
    )]
    SetAside {
        /// The pipeline
        pipeline: String,
        /// Where the records came from, such as orders/0/41; without any, all that wait
        positions: Vec<String>,
        /// Only say which
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        place: Target,
    },
}

/// Which dead letters; everything given must hold.
#[derive(clap::Args)]
pub struct Selection {
    /// A pipeline, or ids of dead letters such as orders-dead/0/12. For the table of an outbox that no
    /// process here relays, the pipeline file instead of its name
    #[arg(value_name = "PIPELINE|ID")]
    named: Vec<String>,
    #[arg(long, help = reasons_help())]
    reason: Option<String>,
    /// Only records of this group: the value of `group.by`
    #[arg(long, value_name = "KEY")]
    group: Option<String>,
    /// Only those set aside since then: 2026-11-15T08:00:00Z, 2026-11-15, or how long ago, 10m
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only those whose error, without its values, is this, as the dashboard shows it
    #[arg(long, value_name = "TEXT")]
    cause: Option<String>,
    /// Only what was there at this mark, which a dry run prints
    #[arg(long, value_name = "MARK")]
    until: Option<String>,
    /// Only where this VRL predicate on the record holds, e.g. '.amount > 10'
    #[arg(long = "where", value_name = "VRL")]
    predicate: Option<String>,
    #[command(flatten)]
    place: Target,
}

/// How to replay or drop.
#[derive(clap::Args)]
pub struct ReplayOptions {
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// At most so many a second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
}

/// Every reason by its word.
fn reasons_help() -> String {
    let words: Vec<_> = Reason::ALL.iter().map(|reason| reason.word()).collect();
    format!("Only with these reasons, separated by commas: {}", words.join(", "))
}

impl Selection {
    /// Whom to ask, and the pipeline of the file that was named.
    fn client(&self) -> Result<(Client, Option<String>), Failure> {
        let Some(file) = self.named.iter().find(|name| wire::is_file(name)) else {
            return Ok((Client::find(&self.place)?, None));
        };
        let (pipeline, table) = super::outbox::table_of(file, &self.place)?;
        let client = Client::of_feed(&self.place, &pipeline, Arc::new(table))?;
        Ok((client, Some(pipeline)))
    }

    /// The filter as the API takes it.
    fn filter(&self, pipeline: Option<&str>) -> Map<String, Value> {
        // Names of pipelines hold no slash; ids do, unless they are rows behind the name of an outbox.
        let is_id = |name: &&String| name.contains('/') && !wire::is_file(name);
        let (mut ids, pipelines): (Vec<&String>, Vec<&String>) = self.named.iter().partition(is_id);
        let mut filter = Map::new();
        if let Some((first, rows)) = pipelines.split_first() {
            let pipeline = match pipeline {
                Some(of_file) => of_file,
                None => first.as_str(),
            };
            filter.insert("pipeline".to_owned(), json!(pipeline));
            ids.extend(rows);
        }
        if !ids.is_empty() {
            filter.insert("ids".to_owned(), json!(ids));
        }
        let options = [
            ("reason", &self.reason),
            ("group", &self.group),
            ("since", &self.since),
            ("cause", &self.cause),
            ("until", &self.until),
            ("where", &self.predicate),
        ];
        for (name, option) in options {
            if let Some(text) = option {
                filter.insert(name.to_owned(), json!(text));
            }
        }
        filter
    }

    /// True where only the log was asked, and an outbox of that name would have them in its table.
    fn may_be_in_a_table(&self) -> bool {
        let [name] = self.named.as_slice() else { return false };
        let is_name = !name.contains('/') && !wire::is_file(name);
        is_name && matches!(Client::find_process(&self.place), Ok(None))
    }

    fn get(&self, all: bool, more: &str) -> Result<Answer, Failure> {
        let (client, pipeline) = self.client()?;
        let filter = self.filter(pipeline.as_deref());
        let mut path = format!("/api/v1/dead-letters?all={all}{more}");
        for (name, value) in &filter {
            let text = match value {
                Value::Array(ids) => {
                    ids.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
                }
                other => other.as_str().unwrap_or_default().to_owned(),
            };
            path.push_str(&format!("&{name}={}", encode(&text)));
        }
        client.get(&path)
    }
}

impl DeadLetters {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        match self {
            DeadLetters::List { which, summary: true, all, .. } => {
                summary(which.get(all, "&summary=true")?, json)
            }
            DeadLetters::List { which, all, limit, cursor, .. } => {
                let mut more = format!("&brief={}", !json);
                if let Some(limit) = limit {
                    more.push_str(&format!("&limit={limit}"));
                }
                if let Some(cursor) = cursor {
                    more.push_str(&format!("&cursor={}", encode(&cursor)));
                }
                let is_empty = list(which.get(all, &more)?, all, json)?;
                if is_empty && which.may_be_in_a_table() {
                    eprintln!(
                        "no process runs here: dead letters of an outbox are in its table, which is \
                         asked where its file is named"
                    );
                }
                Ok(())
            }
            DeadLetters::Show { which } => {
                // Who names one wants to see it, whatever became of it.
                let all = which.named.len() > 1
                    || which.named.iter().any(|name| name.contains('/') && !wire::is_file(name));
                show(which.get(all, "")?, json)
            }
            DeadLetters::Replay { which, how, wait, no_wait } => {
                let wait = match wait {
                    _ if no_wait => Duration::ZERO,
                    None => WAIT_USUAL,
                    Some(text) => *serde_json::from_value::<Period>(json!(text))
                        .map_err(|error| Failure::usage(format!("--wait {text}: {error}")))?,
                };
                act(&which, &how, "replay", wait, json)
            }
            DeadLetters::Drop { which, how } => act(&which, &how, "drop", Duration::ZERO, json),
            DeadLetters::SetAside { pipeline, positions, dry_run, place } => {
                let path = format!("/api/v1/pipelines/{}/set-aside", encode(&pipeline));
                let wish = json!({ "positions": positions, "dry_run": dry_run }).to_string();
                let client = Client::find(&place)?;
                let records = client.post_json(&path, "application/json", wish.into())?;
                show_set_aside(&records, dry_run, json)
            }
        }
    }
}

fn parse(line: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(line).map_err(|error| {
        Failure::new("P0513", "the process answered with something else than expected")
            .because(error)
    })
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Prints them; true where there are none.
fn list(answer: Answer, all: bool, json: bool) -> Result<bool, Failure> {
    let mut out = terminal::out();
    let mut table = match all {
        true => Table::new(&["ID", "STATE", "REASON", "ATTEMPTS", "TIME", "KEY", "ERROR"]),
        false => Table::new(&["ID", "REASON", "ATTEMPTS", "TIME", "KEY", "ERROR"]),
    };
    // A person sees a line each; a program gets everything.
    let chars_max = |chars| if terminal::is_screen() { chars } else { usize::MAX };
    let (mut count, mut cursor) = (0_u64, None);
    for_each_line(answer, |line, more| {
        if json {
            count += 1;
            out.write_all(line)?;
            if !more {
                out.flush()?;
            }
            return Ok(());
        }
        let letter = parse(line)?;
        if let Some(at) = letter.get("cursor").and_then(Value::as_str) {
            cursor = Some(at.to_owned());
            return Ok(());
        }
        count += 1;
        let attempts = letter.get("attempts").and_then(Value::as_u64).unwrap_or(0).to_string();
        let key = letter.get("key").or_else(|| letter.get("key_base64"));
        let key = key.and_then(Value::as_str).unwrap_or("-");
        let mut row = vec![text(&letter, "id").to_owned()];
        if all {
            row.push(text(&letter, "state").to_owned());
        }
        row.extend([
            text(&letter, "reason").to_owned(),
            attempts,
            text(&letter, "time").to_owned(),
            short(key, chars_max(32)),
            short(text(&letter, "error"), chars_max(80)),
        ]);
        table.row(row);
        if table.len() >= PAGE_ROWS {
            table.print_page(&mut out)?;
        }
        Ok(())
    })?;
    match (json, count) {
        (true, _) => {}
        (false, 0) => writeln!(out, "no dead letters")?,
        (false, _) => table.print_page(&mut out)?,
    }
    if let Some(cursor) = cursor {
        writeln!(out, "there may be more: --cursor {cursor}")?;
    }
    out.flush()?;
    Ok(count == 0)
}

fn summary(answer: Answer, json: bool) -> Result<(), Failure> {
    let mut out = terminal::out();
    let mut table = Table::new(&["PIPELINE", "REASON", "COUNT", "FIRST", "LAST", "EXAMPLE"]);
    for_each_line(answer, |line, _| {
        if json {
            out.write_all(line)?;
            return Ok(());
        }
        let count = parse(line)?;
        let number = count.get("count").and_then(Value::as_u64).unwrap_or(0).to_string();
        let cell = |name| text(&count, name).to_owned();
        let (pipeline, reason) = (cell("pipeline"), cell("reason"));
        table.row([pipeline, reason, number, cell("first"), cell("last"), cell("example")]);
        Ok(())
    })?;
    match (json, table.len()) {
        (true, _) => {}
        (false, 0) => writeln!(out, "no dead letters")?,
        (false, _) => table.print(&mut out)?,
    }
    out.flush()?;
    Ok(())
}

fn show(answer: Answer, json: bool) -> Result<(), Failure> {
    let mut out = terminal::out();
    let mut first = true;
    for_each_line(answer, |line, _| {
        if json {
            out.write_all(line)?;
            return Ok(());
        }
        let letter = parse(line)?;
        if !std::mem::take(&mut first) {
            writeln!(out)?;
        }
        show_one(&mut out, &letter).map_err(Failure::from)
    })?;
    out.flush()?;
    Ok(())
}

fn show_one(out: &mut impl Write, letter: &Value) -> std::io::Result<()> {
    let bold = |text: &str| terminal::on_stdout().bold(text);
    writeln!(out, "{}", bold(text(letter, "id")))?;
    for name in ["pipeline", "state", "reason", "error"] {
        writeln!(out, "  {name:<9} {}", plain(text(letter, name)))?;
    }
    if let Some(fields) = letter.get("differs").and_then(Value::as_array) {
        let fields: Vec<_> = fields.iter().filter_map(Value::as_str).collect();
        writeln!(out, "  differs   {}", plain(&fields.join(", ")))?;
    }
    let attempts = letter.get("attempts").and_then(Value::as_u64).unwrap_or(0);
    writeln!(out, "  attempts  {attempts}")?;
    let origin = letter.get("origin").map(|origin| text(origin, "position"));
    writeln!(out, "  origin    {}", plain(origin.unwrap_or_default()))?;
    if let Some(shard) = letter.get("shard").and_then(Value::as_u64) {
        writeln!(out, "  shard     {shard}")?;
    }
    if let Some(file) = letter.get("file").and_then(Value::as_str) {
        writeln!(out, "  file      {}", plain(file))?;
    }
    writeln!(out, "  time      {}", text(letter, "time"))?;
    for name in ["key", "key_base64"] {
        if let Some(key) = letter.get(name).and_then(Value::as_str) {
            writeln!(out, "  {name:<9} {}", plain(key))?;
        }
    }
    for header in letter.get("headers").and_then(Value::as_array).into_iter().flatten() {
        writeln!(out, "  header    {}", plain(&header.to_string()))?;
    }
    for name in ["value", "value_base64"] {
        if let Some(value) = letter.get(name).and_then(Value::as_str) {
            writeln!(out, "  {name}")?;
            for line in value.lines() {
                writeln!(out, "    {}", plain(line))?;
            }
        }
    }
    Ok(())
}

fn show_set_aside(records: &Value, dry_run: bool, json: bool) -> Result<(), Failure> {
    let mut out = terminal::out();
    let records = records.as_array().map(Vec::as_slice).unwrap_or_default();
    for record in records {
        if json {
            writeln!(out, "{record}")?;
            continue;
        }
        let did = if dry_run { "would set aside" } else { "set aside" };
        let refused = record.get("refused").and_then(Value::as_u64).unwrap_or(0);
        let (position, deliver) = (text(record, "position"), text(record, "deliver"));
        let error = short(text(record, "error"), 80);
        writeln!(out, "{did} {position}: refused {refused} times by {}: {error}", plain(deliver))?;
    }
    if records.is_empty() && !json {
        writeln!(out, "nothing waits for a decision")?;
    }
    out.flush()?;
    Ok(())
}

fn act(
    which: &Selection,
    how: &ReplayOptions,
    verb: &str,
    wait: Duration,
    json: bool,
) -> Result<(), Failure> {
    let (client, pipeline) = which.client()?;
    let mut wish = which.filter(pipeline.as_deref());
    if wish.is_empty() {
        return Err(Failure::usage(format!("say which dead letters to {verb}"))
            .hint("a pipeline, ids, or a filter such as --reason"));
    }
    let by_id = wish.contains_key("ids");
    wish.insert("dry_run".to_owned(), json!(how.dry_run));
    if verb == "replay" {
        wish.insert("wait".to_owned(), json!(wait.as_millis() as u64));
    }
    if let Some(rate) = how.rate {
        wish.insert("rate".to_owned(), json!(rate));
    }
    let path = format!("/api/v1/dead-letters/{verb}");
    let answer = client.post(&path, "application/json", Value::from(wish).to_string().into())?;
    let mut out = terminal::out();
    let (mut done, mut skipped) = (0_u64, 0_u64);
    let (mut outcome, mut forecast, mut until) = (None, None, None);
    for_each_line(answer, |line, more| {
        let letter = parse(line)?;
        if let Some(warning) = letter.get("warning").and_then(Value::as_str) {
            let mark = terminal::on_stderr().yellow("warning:");
            eprintln!("{mark} {}", plain(warning));
            return Ok(());
        }
        if let Some(would) = letter.get("forecast") {
            forecast = Some(would.clone());
            if json {
                out.write_all(line)?;
            }
            return Ok(());
        }
        if let Some(mark) = letter.get("until").and_then(Value::as_str) {
            until = Some(mark.to_owned());
            if json {
                out.write_all(line)?;
            }
            return Ok(());
        }
        if let Some(came) = letter.get("outcome").filter(|came| came.is_object()) {
            outcome = Some(came.clone());
            if json {
                out.write_all(line)?;
            }
            return Ok(());
        }
        let action = text(&letter, "action");
        if action == "skipped" {
            skipped += 1;
        } else {
            done += 1;
        }
        if json {
            out.write_all(line)?;
        } else if action == "skipped" {
            let why = plain(text(&letter, "why"));
            writeln!(out, "skipped {}: {why}", text(&letter, "id"))?;
        } else if how.dry_run {
            let (id, reason) = (text(&letter, "id"), text(&letter, "reason"));
            match text(&letter, "outcome") {
                "" => writeln!(out, "would {verb} {id} ({reason})")?,
                outcome => {
                    let why = short(text(&letter, "why"), 120);
                    let outcome = outcome.replace('_', " ");
                    writeln!(out, "would {verb} {id} ({reason}): {} {why}", plain(&outcome))?;
                }
            }
        }
        if !more {
            out.flush()?;
        }
        Ok(())
    })?;
    if !json {
        let past = if verb == "drop" { "dropped" } else { "replayed" };
        let would = if how.dry_run { "would be " } else { "" };
        let letters = if done == 1 { "dead letter" } else { "dead letters" };
        writeln!(out, "{done} {letters} {would}{past}")?;
        if let Some(outcome) = outcome.filter(|_| done > 0) {
            print_outcome(&mut out, &outcome)?;
        }
        if let Some(forecast) = forecast {
            print_forecast(&mut out, &forecast)?;
        }
        if let Some(until) = until.filter(|_| done > 0) {
            writeln!(out, "only these, whatever comes: --until {until}")?;
        }
    }
    out.flush()?;
    if by_id && skipped > 0 {
        let what = format!("{skipped} of the dead letters named could not be replayed");
        return Err(Failure::new("P0515", what));
    }
    Ok(())
}

/// What a replay would come to, as it runs now.
fn print_forecast(out: &mut impl Write, forecast: &Value) -> std::io::Result<()> {
    let words = [
        ("reaches_destination", "come to their destination"),
        ("filtered", "are filtered"),
        ("dead_lettered", "fail again"),
        ("blocks", "stop the pipeline"),
        ("unknown", "are not known"),
    ];
    let count = |name: &str| forecast.get(name).and_then(Value::as_u64).unwrap_or(0);
    let said = words.into_iter().filter(|(name, _)| count(name) > 0);
    let said: Vec<_> = said.map(|(name, word)| format!("{} {word}", count(name))).collect();
    writeln!(out, "as it runs now: {}", said.join(", "))?;
    let why = forecast.get("why").and_then(Value::as_object);
    for (cause, count) in why.into_iter().flatten() {
        writeln!(out, "  {count}: {}", short(cause, 120))?;
    }
    Ok(())
}

/// What came of a replay.
fn print_outcome(out: &mut impl Write, outcome: &Value) -> std::io::Result<()> {
    let count = |name: &str| outcome.get(name).and_then(Value::as_u64).unwrap_or(0);
    let words = [
        ("delivered", "delivered"),
        ("filtered", "filtered"),
        ("duplicates", "there already"),
        ("dead_lettered", "dead again"),
        ("under_way", "still under way"),
    ];
    let said = words.into_iter().filter(|(name, _)| count(name) > 0);
    let said: Vec<_> = said.map(|(name, word)| format!("{} {word}", count(name))).collect();
    writeln!(out, "so far: {}", said.join(", "))?;
    let dead = outcome.get("dead_again").and_then(Value::as_array);
    let dead = dead.map_or(&[][..], Vec::as_slice);
    for letter in dead {
        let error = short(text(letter, "error"), 120);
        writeln!(out, "  {} ({}): {error}", text(letter, "id"), text(letter, "reason"))?;
    }
    let rest = count("dead_lettered").saturating_sub(dead.len() as u64);
    if rest > 0 {
        writeln!(out, "  and {rest} more")?;
    }
    if count("under_way") > 0 {
        writeln!(out, "`potok dead-letters list` shows those that fail again")?;
    }
    Ok(())
}
