//! `potok top`: the overview of the dashboard in a terminal.
//!
//! It shows what `/api/v1/problems`, `/status` and `/rates` say, once a second, in as many columns and
//! rows as the terminal has now. A process that goes away is waited for.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use potok_core::{Clock, SystemClock};
use serde::Deserialize;
use serde_json::Value;

use super::status::{self, StatusLine};
use crate::client::{Client, Target};
use crate::failure::Failure;
use crate::terminal::{self, Table};

const EVERY: Duration = Duration::from_secs(1);
/// Columns and rows of a screen that does not say how large it is.
const SCREEN_USUAL: (usize, usize) = (80, 24);
/// Heights of a small line of rates.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Lines that are neither problems nor pipelines: the first, an empty one, the head of the table.
const BESIDES: usize = 3;
/// Seconds that such a line shows.
const SECONDS: usize = 20;

/// Watch all pipelines: what needs a person, what flows, what is held
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok top
  potok top --once                             print it and end, for scripts
  potok top --admin 127.0.0.1:7600

Ctrl-C ends it. The same in a browser: the address that `potok run` and `potok dev` print.")]
pub struct Top {
    /// Print it once and end; so it is too where nobody looks at the output
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    place: Target,
}

#[derive(Deserialize)]
struct Problem {
    severity: String,
    what: String,
    cause: String,
    #[serde(rename = "do")]
    advice: String,
}

#[derive(Deserialize)]
struct RatesAnswer {
    pipelines: Vec<PipelineRates>,
}

#[derive(Deserialize)]
struct PipelineRates {
    pipeline: String,
    now: CurrentRates,
    delivered: Vec<f64>,
}

#[derive(Deserialize)]
struct CurrentRates {
    received: Option<f64>,
    delivered: Option<f64>,
}

impl Top {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        let client = Client::find(&self.place)?;
        if json {
            let problems: Vec<Value> = client.get_json("/api/v1/problems")?;
            let mut out = terminal::out();
            problems.iter().try_for_each(|problem| writeln!(out, "{problem}"))?;
            out.flush()?;
            return Ok(());
        }
        let seen = Overview::read(&client)?;
        if self.once || !terminal::is_screen() {
            let (columns, _) = terminal::screen().unwrap_or(SCREEN_USUAL);
            let mut out = terminal::out();
            for line in seen.draw(None, columns, usize::MAX) {
                writeln!(out, "{line}")?;
            }
            out.flush()?;
            return Ok(());
        }
        self.watch(client, seen)
    }

    /// Draws once a second, until somebody ends it. Where nobody answers it says so, shows what was seen
    /// last, and goes on when the process is back.
    fn watch(&self, client: Client, mut seen: Overview) -> Result<(), Failure> {
        let mut why = client.holds_folder().then(|| "no process runs here".to_owned());
        // A folder that is held open would keep the process from starting that is waited for.
        let mut client = Some(client).filter(|client| !client.holds_folder());
        let mut silent_since = SystemClock.now();
        write!(terminal::out(), "\x1b[2J")?;
        loop {
            let silence = why.as_deref().map(|why| {
                let span = terminal::span(SystemClock.now().millis_since(silent_since));
                format!("no answer for {span}, trying again: {why}")
            });
            show(|columns, rows| seen.draw(silence.as_deref(), columns, rows))?;
            std::thread::sleep(EVERY);
            let looked = match &client {
                Some(client) => Overview::read(client).map(Some),
                None => self.look_again(&mut client),
            };
            match looked {
                Ok(Some(new)) => (seen, why, silent_since) = (new, None, SystemClock.now()),
                Ok(None) => why = Some("no process runs here".to_owned()),
                Err(failure) => (client, why) = (None, Some(failure.what())),
            }
        }
    }

    /// Looks whether a process is there by now.
    fn look_again(&self, client: &mut Option<Client>) -> Result<Option<Overview>, Failure> {
        let Some(found) = Client::find_process(&self.place)? else { return Ok(None) };
        let seen = Overview::read(&found)?;
        *client = Some(found);
        Ok(Some(seen))
    }
}

/// Draws a view over the one before, in as many columns and rows as there are now.
fn show(draw: impl FnOnce(usize, usize) -> Vec<String>) -> Result<(), Failure> {
    let (columns, rows) = terminal::screen().unwrap_or(SCREEN_USUAL);
    let view = draw(columns, rows);
    let mut out = terminal::out();
    write!(out, "\x1b[H")?;
    for (at, line) in view.iter().enumerate() {
        match at + 1 == view.len() {
            true => write!(out, "{line}\x1b[K\x1b[J")?,
            false => writeln!(out, "{line}\x1b[K")?,
        }
    }
    out.flush()?;
    Ok(())
}

/// What a process said of itself.
struct Overview {
    problems: Vec<Problem>,
    all: Vec<StatusLine>,
    rates: BTreeMap<String, PipelineRates>,
}

impl Overview {
    fn read(client: &Client) -> Result<Self, Failure> {
        let problems = client.look_json("/api/v1/problems")?;
        let all = status::read(client.look_json("/api/v1/status")?)?;
        let rates: RatesAnswer = client.look_json(&format!("/api/v1/rates?seconds={SECONDS}"))?;
        let rates = rates.pipelines.into_iter().map(|rates| (rates.pipeline.clone(), rates));
        Ok(Overview { problems, all, rates: rates.collect() })
    }

    /// It in at most so many columns and rows, below why it may be old.
    fn draw(&self, silence: Option<&str>, columns: usize, rows: usize) -> Vec<String> {
        let head = silence.map(|silence| {
            terminal::on_stdout().red(&terminal::short(silence, columns.saturating_sub(1)))
        });
        let rows = rows.saturating_sub(usize::from(head.is_some())).max(1);
        let view = draw(&self.problems, &self.all, &self.rates, columns, rows);
        head.into_iter().chain(view).collect()
    }
}

/// The view in at most so many columns and rows.
fn draw(
    problems: &[Problem],
    all: &[StatusLine],
    rates: &BTreeMap<String, PipelineRates>,
    columns: usize,
    rows: usize,
) -> Vec<String> {
    let colours = terminal::on_stdout();
    let mut view = Vec::new();
    match problems.len() {
        0 => view.push(colours.green("Nothing needs a person.")),
        1 => view.push(colours.bold("1 thing needs a look")),
        many => view.push(colours.bold(&format!("{many} things need a look"))),
    }
    // Pipelines have their place on a small screen too: there a problem is one line.
    let room = rows.saturating_sub(all.len() + BESIDES);
    let is_short = problems.len().saturating_mul(3) > room;
    let most = if is_short { room.saturating_sub(1).max(1) } else { problems.len() };
    for problem in problems.iter().take(most) {
        let Problem { severity, what, cause, advice } = problem;
        let what = terminal::short(what, columns.saturating_sub(4));
        view.push(match severity.as_str() {
            "act" => format!("  {}", colours.red(&what)),
            _ => format!("  {}", colours.yellow(&what)),
        });
        if is_short {
            continue;
        }
        view.push(format!("    {}", terminal::short(cause, columns.saturating_sub(6))));
        view.push(format!("    {}", terminal::short(advice, columns.saturating_sub(6))));
    }
    if problems.len() > most {
        view.push(format!("  … and {} more", problems.len() - most));
    }
    view.push(String::new());
    let mut table =
        Table::new(&["PIPELINE", "STATE", "IN/S", "OUT/S", "LATELY", "LAG", "DEAD OPEN"]);
    let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.0}"));
    let count = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
    for line in all {
        let of = rates.get(&line.pipeline);
        table.row([
            line.pipeline.clone(),
            line.state.clone(),
            rate(of.and_then(|of| of.now.received)),
            rate(of.and_then(|of| of.now.delivered)),
            of.map(|of| small(&of.delivered)).unwrap_or_default(),
            count(line.lag),
            count(line.dead_letters_open),
        ]);
    }
    view.extend(table.lines_within(Some(columns), colours, |column, text| match (column, text) {
        (1, "running") => Some(colours.green(text)),
        (1, "blocked") => Some(colours.red(text)),
        (1, _) => Some(colours.yellow(text)),
        _ => None,
    }));
    for line in all {
        view.extend(line.held().map(|held| format!("{}: {held}", line.pipeline)));
    }
    if all.is_empty() {
        view.push("no pipeline has run in this data folder yet".to_owned());
    }
    // What would scroll away could not be drawn over.
    while view.len() > 1 && terminal::rows(&view, columns) > rows {
        view.pop();
    }
    view
}

/// Rates as a line of blocks.
fn small(rates: &[f64]) -> String {
    let top = rates.iter().copied().fold(1.0, f64::max);
    let height = |rate: &f64| {
        let at = (rate / top * (HEIGHTS.len() - 1) as f64).round() as usize;
        HEIGHTS.get(at).copied().unwrap_or(' ')
    };
    rates.iter().map(height).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fits_the_screen_and_says_first_what_needs_a_person() {
        let problem = |n: usize| Problem {
            severity: "waits".to_owned(),
            what: format!("orders waits for db {n}"),
            cause: format!("connection\x1b[2J refused {}", "x".repeat(200)),
            advice: "see to it".to_owned(),
        };
        let view = draw(&[problem(1)], &[], &BTreeMap::new(), 40, 7);
        assert!(view[0].contains("1 thing needs a look") && view[1].contains("orders waits"));
        assert!(view.iter().all(|line| terminal::seen(line) <= 40), "{view:?}");
        assert!(view[2].contains("refused") && !view[2].contains('\x1b'), "{view:?}");
        // On a small one, problems are short and the table is still there.
        let many: Vec<Problem> = (0..9).map(problem).collect();
        let view = draw(&many, &[], &BTreeMap::new(), 40, 8);
        assert!(view.len() <= 8 && view[1].contains("db 0"), "{view:?}");
        assert!(view.iter().any(|line| line.contains("… and 5 more")), "{view:?}");
        assert!(view.iter().any(|line| line.contains("PIPELINE")), "{view:?}");
    }

    #[test]
    fn rates_are_blocks() {
        assert_eq!(small(&[0.0, 7.0, 3.5]), "▁█▅");
    }
}
