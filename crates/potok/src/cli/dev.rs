//! `potok dev`: everything at once, with nothing installed.
//!
//! The shipped pipelines run on the embedded default, fed with generated traffic, and the
//! terminal shows what they do and where to look. Files that say otherwise (`potok.yaml`, the
//! environment's connections) are left aside on purpose: this must work anywhere.

mod traffic;

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use potok_config::{Connections, Env, Flags, load_connections};
use potok_flow::{Engine, Status};
use tokio::time::Instant;

use super::logging::Logging;
use super::status;
use crate::failure::Failure;
use crate::process::{Process, Signals};
use crate::{folder, terminal, wire};

/// The shipped pipelines and what they need, as they lie in `pipelines/`.
const SHIPPED: &[(&str, &str)] = &[
    ("orders.yaml", include_str!("../../../../pipelines/orders.yaml")),
    ("schemas/order.json", include_str!("../../../../pipelines/schemas/order.json")),
    ("em-processor.yaml", include_str!("../../../../pipelines/em-processor.yaml")),
];
/// Connections of the embedded default.
const CONNECTIONS: (&str, &str) = (
    "potok.yaml",
    "# Written by `potok dev`: everything embedded, nothing installed.\nlog: embedded\n",
);
const ADMIN: &str = "127.0.0.1:7600";
/// A person sees the view this often, a file gets a line this often.
const VIEW_EVERY: Duration = Duration::from_secs(1);
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Try it: all shipped pipelines with generated traffic, nothing to install
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok dev
  potok dev --rate 5000
  potok dev --only orders --no-traffic --data-dir ./try

Ctrl-C finishes what is in flight; started again it goes on where it was. The pipeline files are
put into the data folder for you to look at.")]
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
    /// Loopback address for health, metrics and commands [default: 127.0.0.1:7600, or a free port]
    #[arg(long, value_name = "HOST:PORT")]
    admin: Option<String>,
}

impl Dev {
    /// Does it.
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
            let traffic = traffic::start(process.engine(), fed, self.rate);
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
            process.stop(&mut signals).await
        })
    }

    fn connections(&self, data_dir: &Path) -> Result<Connections, Failure> {
        let file = data_dir.join("pipelines").join(CONNECTIONS.0);
        // A newcomer's first run should not fail because the usual port is taken.
        let admin = self.admin.clone().unwrap_or_else(|| {
            let free = std::net::TcpListener::bind(ADMIN).is_ok();
            if free { ADMIN.to_owned() } else { "127.0.0.1:0".to_owned() }
        });
        let flags =
            Flags { data_dir: Some(data_dir.to_owned()), admin: Some(admin), ..Flags::default() };
        Ok(load_connections(Some(&file), &flags, &Env::default())?)
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
    if !view && !json {
        let mut out = terminal::out();
        for line in screen.places(&before.1) {
            writeln!(out, "{line}")?;
        }
        out.flush()?;
    }
    let mut ticks = tokio::time::interval(if view { VIEW_EVERY } else { LINE_EVERY });
    loop {
        ticks.tick().await;
        let (now, all) = (Instant::now(), engine.status().await);
        let rates = rates(&before, now, &all);
        let mut out = terminal::out();
        if json {
            for status in &all {
                serde_json::to_writer(&mut out, status).map_err(io::Error::from)?;
                writeln!(out)?;
            }
        } else if view {
            let up = terminal::span(u64::try_from(started.elapsed().as_millis()).unwrap_or(0));
            let mut lines = vec![format!("potok dev  up {up}"), String::new()];
            lines.extend(status::table(&to_lines(&all)?));
            lines.push(String::new());
            lines.extend(rates);
            lines.push(String::new());
            lines.extend(screen.places(&all));
            // Up to where the last view began, then over it.
            if drawn > 0 {
                write!(out, "\x1b[{drawn}A\x1b[J")?;
            }
            drawn = lines.len();
            // Too long a line is cut off, not wrapped: a line of ours is a line of the screen.
            write!(out, "\x1b[?7l")?;
            for line in lines {
                writeln!(out, "{line}")?;
            }
            write!(out, "\x1b[?7h")?;
        } else {
            for rate in rates {
                writeln!(out, "{rate}")?;
            }
        }
        out.flush()?;
        before = (now, all);
    }
}

fn to_lines(all: &[Status]) -> Result<Vec<status::Line>, Failure> {
    let value = serde_json::to_value(all).and_then(serde_json::from_value);
    value.map_err(|error| Failure::new("P0513", "the status cannot be read").because(error))
}

/// One line for each pipeline: what happens in a second.
fn rates(before: &(Instant, Vec<Status>), now: Instant, all: &[Status]) -> Vec<String> {
    let line = |status: &Status| {
        let old = before.1.iter().find(|old| old.pipeline == status.pipeline);
        let seconds = (now - before.0).as_secs_f64().max(0.001);
        let rate =
            |of: fn(&Status) -> u64| of(status).saturating_sub(old.map_or(0, of)) as f64 / seconds;
        format!(
            "{}: per second {:.0} received, {:.0} delivered, {:.0} suppressed, {:.0} dead-lettered; \
             gate {}, lag {}",
            status.pipeline,
            rate(|s| s.received),
            rate(|s| s.delivered),
            rate(|s| s.suppressed),
            rate(|s| s.dead_lettered),
            status.gate.state,
            status.lag.unwrap_or_default(),
        )
    };
    all.iter().map(line).collect()
}

impl Screen {
    /// Where to look.
    fn places(&self, all: &[Status]) -> Vec<String> {
        let dir = self.data_dir.display();
        let mut lines = Vec::new();
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
        lines.push("Ctrl-C finishes what is in flight; started again it goes on.".to_owned());
        lines
    }
}

/// Where to see what a shipped pipeline makes of its records.
fn outcome(pipeline: &str, dir: &str) -> Vec<String> {
    match pipeline {
        "em-processor" => vec![
            format!("held          potok batches list {pipeline} --data-dir {dir}"),
            format!("outcome       potok read processor-event --follow --data-dir {dir}"),
            format!("records       potok read adapter-event --follow --data-dir {dir}"),
        ],
        _ => vec![
            format!(
                "rows          sqlite3 {dir}/db/{pipeline}.sqlite 'select count(*) from {pipeline}'"
            ),
            format!("records       potok read {pipeline} --follow --data-dir {dir}"),
        ],
    }
}
