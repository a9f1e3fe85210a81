//! `potok dev`: everything at once, with nothing installed.
//!
//! The shipped pipelines run on the embedded default, fed with generated traffic, and the
//! terminal shows what they do and where to look. Files that say otherwise (`potok.yaml`, the
//! environment's connections) are left aside on purpose: this must work anywhere.

mod traffic;

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use potok_config::{Connections, Env, Flags, load_connections};
use potok_flow::{Engine, Status};
use tokio::time::Instant;

use super::logging::Logging;
use super::status;
use crate::failure::Failure;
use crate::process::{Process, Signals};
use crate::registry::registry;
use crate::{folder, terminal, wire};

/// The shipped pipelines and what they need, as they lie in `pipelines/`.
const SHIPPED: &[(&str, &str)] = &[
    ("orders.yaml", include_str!("../../../../pipelines/orders.yaml")),
    ("schemas/order.json", include_str!("../../../../pipelines/schemas/order.json")),
    ("shop-events.yaml", include_str!("../../../../pipelines/shop-events.yaml")),
    ("schemas/shop-event.json", include_str!("../../../../pipelines/schemas/shop-event.json")),
    ("chat.yaml", include_str!("../../../../pipelines/chat.yaml")),
    ("em-processor.yaml", include_str!("../../../../pipelines/em-processor.yaml")),
    ("outbox.yaml", include_str!("../../../../pipelines/outbox.yaml")),
];
/// Connections of the embedded default.
const CONNECTIONS: (&str, &str) = (
    "potok.yaml",
    "# Written by `potok dev`: everything embedded, nothing installed.\nlog: embedded\n",
);
const ADMIN: &str = "127.0.0.1:7600";
const HTTP: &str = "127.0.0.1:7601";
/// A person sees the view this often, a file gets a line this often.
const VIEW_EVERY: Duration = Duration::from_secs(1);
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Columns and rows of a screen that does not say how large it is.
const SCREEN_USUAL: (usize, usize) = (80, 24);

/// Try it: all shipped pipelines with generated traffic, nothing to install
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok dev
  potok dev --rate 5000
  potok dev --only orders --no-traffic --data-dir ./try

Ctrl-C finishes what is in flight; started again it goes on where it was, with what groups held.
The pipeline files are put into the data folder for you to look at.")]
pub struct Dev {
    /// Data folder [default: ./potok-data, or what POTOK_DATA_DIR says]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Only these pipelines; may be repeated
    #[arg(long, value_name = "PIPELINE")]
    only: Vec<String>,
    /// Generated records a second, for each pipeline
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Generate nothing; feed it with `potok send`
    #[arg(long)]
    no_traffic: bool,
    /// Do not open the dashboard in a browser
    #[arg(long)]
    no_open: bool,
    /// Loopback address for health, metrics and commands [default: 127.0.0.1:7600, or a free port]
    #[arg(long, value_name = "HOST:PORT")]
    admin: Option<String>,
}

impl Dev {
    pub fn run(self, json: bool, logging: &Logging) -> Result<(), Failure> {
        let data_dir =
            self.data_dir.clone().or_else(|| std::env::var_os("POTOK_DATA_DIR").map(PathBuf::from));
        let data_dir = data_dir.unwrap_or_else(|| PathBuf::from("./potok-data"));
        let files = unpack(&data_dir.join("pipelines"))?;
        let view = io::stdout().is_terminal() && !json;
        let log_file = view.then(|| data_dir.join("dev.log"));
        logging.start(
            if view { "info" } else { "warn" },
            log_file.as_deref().map(create).transpose()?,
        )?;
        let connections = self.connections(&data_dir)?;
        let mut pipelines = wire::load(&files)?;
        self.check_only(pipelines.iter().map(|pipeline| pipeline.name.to_string()).collect())?;
        pipelines
            .retain(|p| self.only.is_empty() || self.only.iter().any(|only| **only == *p.name));
        let plans = wire::plans(&pipelines, &connections)?;
        folder::block_on(async {
            let mut signals = Signals::listen()?;
            let mut process = Process::start(&connections, &pipelines, plans).await?;
            let fed = pipelines.iter().map(|pipeline| pipeline.name.as_str());
            let fed = fed.filter(|_| !self.no_traffic);
            let traffic = traffic::start(process.engine(), fed, self.rate, &data_dir);
            if view && !self.no_open {
                open_in_browser(&format!("http://{}/", process.address));
            }
            let screen = Screen { data_dir, log_file, address: process.address.to_string() };
            let engine = process.engine().clone();
            tokio::select! {
                () = signals.next() => {}
                shown = show(&screen, &engine, view, json) => shown?,
                failure = process.failed() => return Err(failure),
            }
            drop(traffic);
            // Ctrl-C prints itself; start a line of our own.
            let _ = writeln!(io::stderr(), "\nstopping: what is in flight ends first");
            let held = process.stop(&mut signals).await?;
            for (pipeline, records) in held {
                let records = terminal::count(records, "held record");
                let _ = writeln!(io::stderr(), "{pipeline}: {records} go on at the next start");
            }
            Ok(())
        })
    }

    fn connections(&self, data_dir: &Path) -> Result<Connections, Failure> {
        let file = data_dir.join("pipelines").join(CONNECTIONS.0);
        // A newcomer's first run should not fail because the usual port is taken.
        let usual_or_free = |usual: &str| {
            let free = std::net::TcpListener::bind(usual).is_ok();
            if free { usual.to_owned() } else { "127.0.0.1:0".to_owned() }
        };
        let admin = self.admin.clone().unwrap_or_else(|| usual_or_free(ADMIN));
        let flags = Flags {
            data_dir: Some(data_dir.to_owned()),
            admin: Some(admin),
            http: Some(usual_or_free(HTTP)),
        };
        Ok(load_connections(Some(&file), &flags, &Env::default(), registry())?)
    }

    fn check_only(&self, known: Vec<String>) -> Result<(), Failure> {
        match self.only.iter().find(|only| !known.contains(only)) {
            None => Ok(()),
            Some(only) => Err(Failure::usage(format!("there is no shipped pipeline `{only}`"))
                .hint(format!("shipped: {}", known.join(", ")))),
        }
    }
}

/// Puts the shipped files where people can look at them; returns the pipelines among them.
fn unpack(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut pipelines = Vec::new();
    for (name, text) in SHIPPED.iter().chain([&CONNECTIONS]) {
        let path = folder.join(name);
        let parent = path.parent().unwrap_or(folder);
        let written = fs::create_dir_all(parent).and_then(|()| fs::write(&path, text));
        written.map_err(|error| {
            Failure::new("P0522", format!("{} cannot be written", path.display())).because(error)
        })?;
        if name.ends_with(".yaml") && *name != CONNECTIONS.0 {
            pipelines.push(path);
        }
    }
    Ok(pipelines)
}

fn create(path: &Path) -> Result<File, Failure> {
    fs::OpenOptions::new().create(true).append(true).open(path).map_err(|error| {
        Failure::new("P0522", format!("{} cannot be written", path.display())).because(error)
    })
}

/// Opens the dashboard where there is a screen to open it on. It is printed all the same, so nothing
/// that goes wrong here matters.
fn open_in_browser(address: &str) {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let Some(program) = opener(std::env::consts::OS, is_set) else { return };
    let mut command = std::process::Command::new(program);
    command.arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return };
    // Nobody waits for it, but somebody has to see it end.
    std::thread::spawn(move || child.wait());
}

/// What opens an address here; nothing on a server, or over a connection from elsewhere.
fn opener(system: &str, is_set: impl Fn(&str) -> bool) -> Option<&'static str> {
    if is_set("SSH_CONNECTION") || is_set("CI") {
        return None;
    }
    match system {
        "macos" => Some("open"),
        "linux" if is_set("DISPLAY") || is_set("WAYLAND_DISPLAY") => Some("xdg-open"),
        _ => None,
    }
}

/// What the view says besides the pipelines.
struct Screen {
    data_dir: PathBuf,
    log_file: Option<PathBuf>,
    address: String,
}

async fn show(screen: &Screen, engine: &Engine, view: bool, json: bool) -> Result<(), Failure> {
    let started = Instant::now();
    let mut before = (started, engine.status().await);
    let mut drawn = 0;
    if !json {
        let mut out = terminal::out();
        for line in screen.places(&before.1) {
            writeln!(out, "{line}")?;
        }
        writeln!(out)?;
        out.flush()?;
    }
    let every = if view { VIEW_EVERY } else { LINE_EVERY };
    // Nothing can be said of a second before it is over.
    let mut ticks = tokio::time::interval_at(started + every, every);
    loop {
        ticks.tick().await;
        let (now, all) = (Instant::now(), engine.status().await);
        let seconds = (now - before.0).as_secs_f64().max(0.001);
        let lines = to_lines(&all)?;
        let mut out = terminal::out();
        if json {
            for status in &all {
                serde_json::to_writer(&mut out, status).map_err(io::Error::from)?;
                writeln!(out)?;
            }
        } else if view {
            let up = terminal::span(u64::try_from(started.elapsed().as_millis()).unwrap_or(0));
            let (columns, rows) = terminal::screen().unwrap_or(SCREEN_USUAL);
            let rates = rates(&before.1, &all, seconds);
            let failing = failing(engine).await;
            let view = live(&up, &lines, &rates, &failing, columns, rows);
            // Up to where the last view began, then over it.
            if drawn > 0 {
                write!(out, "\x1b[{drawn}A\x1b[J")?;
            }
            drawn = terminal::rows(&view, columns);
            for line in view {
                writeln!(out, "{line}")?;
            }
        } else {
            let rates = rates(&before.1, &all, seconds);
            for (line, rate) in lines.iter().zip(&rates) {
                writeln!(out, "{}", in_a_line(line, rate))?;
            }
            for line in failing(engine).await {
                writeln!(out, "{line}")?;
            }
        }
        out.flush()?;
        before = (now, all);
    }
}

/// What changes on the screen, in at most so many rows: the table, and what it does not say.
fn live(
    up: &str,
    lines: &[status::StatusLine],
    rates: &[DevRates],
    failing: &[String],
    columns: usize,
    rows: usize,
) -> Vec<String> {
    let mut view = vec![format!("potok dev  up {up}")];
    view.extend(status::table(lines, Some(columns)));
    for (line, rate) in lines.iter().zip(rates) {
        let (name, DevRates { received, delivered, .. }) = (&line.pipeline, rate);
        view.push(format!("{name}: {received:.0} in and {delivered:.0} out a second"));
        view.extend(line.held().map(|held| format!("{name}: {held}")));
    }
    view.extend(failing.iter().map(|line| terminal::short(line, columns)));
    // What would scroll away could not be drawn over.
    while terminal::rows(&view, columns) >= rows.max(2) {
        view.pop();
    }
    view
}

/// What fails in outboxes, and why: one row of each.
async fn failing(engine: &Engine) -> Vec<String> {
    let mut lines = Vec::new();
    for (pipeline, feed) in engine.feeds(None) {
        let Some(table) = feed.outbox() else { continue };
        let Ok(status) = table.status().await else { continue };
        let Some(row) = status.failing.first() else { continue };
        let keys = terminal::count(status.failing_keys, "key");
        let attempts = terminal::count(row.attempt, "attempt");
        lines.push(format!(
            "{pipeline}: {keys} failing: {} after {attempts}: {}",
            row.key, row.error
        ));
    }
    lines
}

/// The same of one pipeline for a file.
fn in_a_line(line: &status::StatusLine, rates: &DevRates) -> String {
    let held = line.held().map(|held| format!("; {held}")).unwrap_or_default();
    format!(
        "{}: per second {:.0} received, {:.0} delivered, {:.0} duplicates, {:.0} dead-lettered; \
         gate {}, lag {}{held}",
        line.pipeline,
        rates.received,
        rates.delivered,
        rates.duplicates,
        rates.dead_lettered,
        line.gate.state,
        line.lag.unwrap_or_default(),
    )
}

fn to_lines(all: &[Status]) -> Result<Vec<status::StatusLine>, Failure> {
    let value = serde_json::to_value(all).and_then(serde_json::from_value);
    value.map_err(|error| Failure::new("P0513", "the status cannot be read").because(error))
}

/// What happens in a second.
struct DevRates {
    received: f64,
    delivered: f64,
    duplicates: f64,
    dead_lettered: f64,
}

fn rates(before: &[Status], all: &[Status], seconds: f64) -> Vec<DevRates> {
    let one = |status: &Status| {
        let old = before.iter().find(|old| old.pipeline == status.pipeline);
        let rate =
            |of: fn(&Status) -> u64| of(status).saturating_sub(old.map_or(0, of)) as f64 / seconds;
        DevRates {
            received: rate(|s| s.received),
            delivered: rate(|s| s.delivered),
            duplicates: rate(|s| s.duplicates),
            dead_lettered: rate(|s| s.dead_lettered),
        }
    };
    all.iter().map(one).collect()
}

impl Screen {
    /// Where to look.
    fn places(&self, all: &[Status]) -> Vec<String> {
        let dir = self.data_dir.strip_prefix(".").unwrap_or(&self.data_dir).display();
        let mut lines = vec![format!("dashboard     http://{}/", self.address)];
        for status in all {
            let name = &status.pipeline;
            lines.extend(outcome(name, &dir.to_string()));
            lines.push(format!("dead letters  potok dead-letters list {name} --data-dir {dir}"));
            lines.push(format!("pipeline      {dir}/pipelines/{name}.yaml"));
        }
        lines.push(format!("status        potok status --data-dir {dir}"));
        lines.push(format!("metrics       http://{}/metrics", self.address));
        if let Some(log_file) = &self.log_file {
            lines.push(format!("log           {}", log_file.display()));
        }
        lines.push(
            "Ctrl-C finishes what is in flight; what is held goes on at the next start.".to_owned(),
        );
        lines
    }
}

/// Where to see what a shipped pipeline makes of its records.
fn outcome(pipeline: &str, dir: &str) -> Vec<String> {
    match pipeline {
        "em-processor" => vec![
            format!("held          potok groups list {pipeline} --data-dir {dir}"),
            format!("outcome       potok read processor-event --follow --data-dir {dir}"),
            format!("records       potok read adapter-event --follow --data-dir {dir}"),
        ],
        "outbox" => vec![
            format!(
                "rows          sqlite3 {dir}/db/messenger.sqlite 'select count(*) from outbox'"
            ),
            format!("table         potok outbox status --data-dir {dir}"),
            format!("outcome       potok read system-notifications-topic-v1 --data-dir {dir}"),
        ],
        "chat" => vec![
            format!("held          potok groups list {pipeline} --data-dir {dir}"),
            format!("outcome       potok read chat-batches --follow --data-dir {dir}"),
            format!("records       potok read queue:incoming --follow --data-dir {dir}"),
        ],
        "shop-events" => vec![
            format!("rows          sqlite3 {dir}/db/shop-0.sqlite 'select count(*) from events'"),
            format!("records       potok read shop-events-in --follow --data-dir {dir}"),
        ],
        _ => vec![
            format!(
                "rows          sqlite3 {dir}/db/{pipeline}.sqlite 'select count(*) from {pipeline}'"
            ),
            format!("records       potok read {pipeline} --follow --data-dir {dir}"),
        ],
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_browser_is_opened_where_somebody_sits() {
        let with = |system: &str, set: &[&str]| opener(system, |name| set.contains(&name));
        assert_eq!(with("linux", &["DISPLAY"]), Some("xdg-open"));
        assert_eq!(with("linux", &["WAYLAND_DISPLAY"]), Some("xdg-open"));
        assert_eq!(with("macos", &[]), Some("open"));
        for nowhere in [&["DISPLAY", "SSH_CONNECTION"][..], &["DISPLAY", "CI"], &[]] {
            assert_eq!(with("linux", nowhere), None, "{nowhere:?}");
        }
    }

    fn lines() -> Vec<status::StatusLine> {
        let one = |pipeline: &str, held: u64| {
            serde_json::json!({
                "pipeline": pipeline, "state": "running", "why": null,
                "gate": { "state": "open", "since": null, "why": null },
                "lag": 2_949, "oldest": 59_900, "received": 1_234_567, "delivered": 1_230_000,
                "filtered": 0, "duplicates": 87, "dead_lettered": 12, "in_flight": 2_949,
                "since": "2026-11-17T08:00:00.000Z", "dead_letters_open": 62,
                "open_groups": 3, "held_records": held, "next_close_in": 11_200,
            })
        };
        let all = vec![one("em-processor", 2_949), one("orders", 0)];
        serde_json::from_value(all.into()).unwrap()
    }

    #[test]
    fn the_view_fits_every_screen_and_loses_no_digit() {
        let rates =
            || DevRates { received: 50.0, delivered: 48.0, duplicates: 1.0, dead_lettered: 1.0 };
        let rates = [rates(), rates()];
        for columns in [60, 80, 100, 120, 200] {
            let view = live("1m01s", &lines(), &rates, &[], columns, 24);
            assert!(
                view.iter().all(|line| terminal::seen(line) <= columns),
                "{columns}: {view:#?}"
            );
            let text = view.join("\n");
            for part in [
                "2949",
                "59.9s",
                "1234567",
                "1230000",
                "87",
                "12",
                "DUPLICATES",
                "IN FLIGHT",
                "50 in and 48 out a second",
                "2949 held in 3 groups, next closes in 12 s",
            ] {
                assert!(text.contains(part), "{part} at {columns}: {view:#?}");
            }
        }
        let small = live("1s", &lines(), &rates, &[], 80, 5);
        assert!(terminal::rows(&small, 80) < 5, "{small:#?}");
    }

    #[test]
    fn commands_to_copy_are_whole() {
        let screen = Screen {
            data_dir: PathBuf::from("./potok-data"),
            log_file: None,
            address: "127.0.0.1:7600".to_owned(),
        };
        let status = Status::unknown("orders", potok_flow::State::Running);
        let places = screen.places(&[status]).join("\n");
        assert!(places.contains("'select count(*) from orders'"), "{places}");
        assert!(places.lines().all(|line| line.chars().count() <= 80), "{places}");
    }
}
