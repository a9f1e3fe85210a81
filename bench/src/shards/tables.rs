//! Events into two databases: a bare loop, potok, and plain files.
//!
//! The bare loop reads lines of a file, parses each where it lies, and hands rows to a thread and a
//! connection for each shard: 1,000 rows in one prepared statement, which is a transaction.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use potok_services::Mariadb;
use potok_traffic::shop::ShopGenerator;
use serde::Deserialize;
use serde_json::value::RawValue;
use sqlx::mysql::MySqlArguments;
use sqlx::{Arguments as _, AssertSqlSafe, Connection as _, MySqlConnection};
use tokio::runtime::{Builder, Runtime};

use super::SHARDS;
use crate::measure::{Process, Run, measure, watch_from};
use crate::potok::{self, Running, Start, root};

/// Rows of one statement and transaction.
const ROWS: usize = 1_000;
/// Batches that wait for a connection.
const AHEAD: usize = 4;
/// Asking potok costs it something, and the runs are long.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const COLUMNS: &str =
    "event_id, event_type, shop_id, user_id, timestamp, shard, payload, content_hash, potok_id";
const COLUMN_COUNT: usize = 9;
const NO_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// An event, as far as its row goes.
#[derive(Deserialize)]
struct Event<'a> {
    event_id: &'a str,
    event_type: i64,
    shop_id: i64,
    user_id: i64,
    timestamp: &'a str,
    #[serde(borrow)]
    payload: &'a RawValue,
}

impl Event<'_> {
    fn shard(&self) -> u64 {
        self.shop_id.rem_euclid(SHARDS as i64).cast_unsigned()
    }
}

/// What all sides share.
pub struct Tables<'a> {
    program: &'a Path,
    scratch: &'a Path,
    server: &'a Mariadb,
    events: u64,
    /// The events, one to a line.
    lines: PathBuf,
    /// The rows of each shard, values between tabs.
    files: Vec<PathBuf>,
    runs: Cell<u64>,
}

/// The addresses of the databases of one run.
struct Databases {
    shards: Vec<String>,
    tracking: String,
}

impl Databases {
    fn variables(&self) -> Vec<(String, String)> {
        let shards = self.shards.iter().enumerate();
        let mut variables: Vec<(String, String)> =
            shards.map(|(at, url)| (format!("POTOK_DB_SHOP_{at}"), url.clone())).collect();
        variables.push(("POTOK_DB_TRACKING".to_owned(), self.tracking.clone()));
        variables
    }
}

impl<'a> Tables<'a> {
    /// Writes so many events into files.
    pub fn new(
        program: &'a Path,
        scratch: &'a Path,
        server: &'a Mariadb,
        events: u64,
    ) -> Result<Self> {
        let lines = scratch.join("events.ndjson");
        let files: Vec<PathBuf> =
            (0..SHARDS).map(|shard| scratch.join(format!("events-{shard}"))).collect();
        let mut all = BufWriter::new(File::create(&lines)?);
        let mut parts = Vec::new();
        for path in &files {
            parts.push(BufWriter::new(File::create(path)?));
        }
        let mut generator = ShopGenerator::good_only(8);
        for number in 0..events {
            let event = generator.next_event();
            all.write_all(&event.bytes)?;
            all.write_all(b"\n")?;
            let event: Event<'_> = serde_json::from_slice(&event.bytes)?;
            let shard = event.shard();
            let part = parts.get_mut(usize::try_from(shard)?).context("a shard")?;
            // The generator's texts have nothing that would have to be escaped but quotes.
            writeln!(
                part,
                "{}\t{}\t{}\t{}\t{}\t{shard}\t{}\t{NO_HASH}\t{}",
                event.event_id,
                event.event_type,
                event.shop_id,
                event.user_id,
                event.timestamp,
                event.payload.get(),
                position(number),
            )?;
        }
        all.flush()?;
        parts.iter_mut().try_for_each(BufWriter::flush)?;
        Ok(Tables { program, scratch, server, events, lines, files, runs: Cell::new(0) })
    }

    /// Empty databases, with their tables where somebody else has to make them.
    fn fresh(&self, with_tables: bool) -> Result<Databases> {
        let url = || self.server.fresh_database();
        let shards = (0..SHARDS).map(|_| url()).collect();
        let databases = Databases { shards, tracking: url() };
        if with_tables {
            let variables = databases.variables();
            let variables: Vec<(&str, &str)> =
                variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let file = root().join("pipelines/shop-events.yaml");
            let ddl = potok::ask_with(self.program, [Path::new("ddl"), &file], &variables)?;
            for url in &databases.shards {
                runtime()?.block_on(async {
                    let mut connection = MySqlConnection::connect(url).await?;
                    sqlx::raw_sql(AssertSqlSafe(ddl.clone())).execute(&mut connection).await?;
                    Ok::<_, sqlx::Error>(())
                })?;
            }
        }
        Ok(databases)
    }

    fn server_cpu(&self) -> Result<f64> {
        Process::of(self.server.pid()).family_cpu()
    }

    /// A run counts when every event is there.
    fn all_there(&self, databases: &Databases, run: Run) -> Result<Run> {
        let mut found = 0;
        for url in &databases.shards {
            let rows = self.server.query(url, "SELECT COUNT(*) FROM events");
            let count = rows.first().and_then(|row| row.first()).context("a count")?;
            found += count.parse::<u64>()?;
        }
        ensure!(found == self.events, "{found} of {} events are there", self.events);
        Ok(run)
    }

    /// The program, from its start until everything is delivered and tracked. The topic is filled
    /// before.
    pub fn potok(&self) -> Result<Run> {
        self.runs.set(self.runs.get() + 1);
        let data = self.scratch.join(format!("shards-{}", self.runs.get()));
        fs::create_dir_all(&data)?;
        let status = Command::new(self.program)
            .args(["send", "shop-events-in", "--data-dir"])
            .arg(&data)
            .stdin(Stdio::from(File::open(&self.lines)?))
            .stdout(Stdio::null())
            .status()?;
        ensure!(status.success(), "the events are not taken");
        let databases = self.fresh(false)?;
        let variables = databases.variables();
        let variables: Vec<(&str, &str)> =
            variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let file = root().join("pipelines/shop-events.yaml");
        let start =
            Start { pipeline: "shop-events", file: &file, config: None, variables: &variables };
        let running = Running::start_with(self.program, &data, start)?;
        let run = watch_from(
            &running.process,
            self.events,
            LOOK_EVERY,
            || self.server_cpu(),
            || running.count("received"),
            || running.count("delivered"),
        )?;
        drop(running);
        fs::remove_dir_all(&data)?;
        self.all_there(&databases, run)
    }

    /// A bare loop.
    pub fn bare(&self) -> Result<Run> {
        let databases = self.fresh(true)?;
        let text = fs::read_to_string(&self.lines)?;
        let before = self.server_cpu()?;
        let mut run = measure(self.events, || {
            std::thread::scope(|scope| {
                let mut senders = Vec::new();
                let mut threads = Vec::new();
                for url in &databases.shards {
                    let (sender, receiver) = sync_channel(AHEAD);
                    senders.push(sender);
                    threads.push(scope.spawn(move || write(url, &receiver)));
                }
                let mut waiting: Vec<Vec<(u64, Event<'_>)>> =
                    senders.iter().map(|_| Vec::with_capacity(ROWS)).collect();
                for (number, line) in (0..).zip(text.lines()) {
                    let event: Event<'_> = serde_json::from_str(line)?;
                    let shard = usize::try_from(event.shard())?;
                    let rows = waiting.get_mut(shard).context("a shard")?;
                    rows.push((number, event));
                    if rows.len() == ROWS {
                        let rows = std::mem::replace(rows, Vec::with_capacity(ROWS));
                        // A thread that is gone says why when it is joined.
                        let sender = senders.get(shard).context("a shard")?;
                        if sender.send(rows).is_err() {
                            break;
                        }
                    }
                }
                for (sender, rows) in senders.into_iter().zip(waiting) {
                    let _ = sender.send(rows);
                }
                threads.into_iter().try_for_each(|thread| match thread.join() {
                    Ok(ended) => ended,
                    Err(_) => bail!("a thread panicked"),
                })
            })
        })?;
        run.servers = Some(self.server_cpu()? - before);
        self.all_there(&databases, run)
    }

    /// Files, the fastest way the database has: it reads them itself.
    pub fn load(&self) -> Result<Run> {
        let databases = self.fresh(true)?;
        let before = self.server_cpu()?;
        let mut run = measure(self.events, || {
            std::thread::scope(|scope| {
                let pairs = databases.shards.iter().zip(&self.files);
                let threads: Vec<_> =
                    pairs.map(|(url, file)| scope.spawn(move || load(url, file))).collect();
                threads.into_iter().try_for_each(|thread| match thread.join() {
                    Ok(ended) => ended,
                    Err(_) => bail!("a thread panicked"),
                })
            })
        })?;
        run.servers = Some(self.server_cpu()? - before);
        self.all_there(&databases, run)
    }
}

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

fn position(number: u64) -> String {
    format!("shop-events-in/0/{number}@0000000000000000/0/0")
}

/// Writes what comes, batch by batch, each a transaction of its own.
fn write(url: &str, batches: &Receiver<Vec<(u64, Event<'_>)>>) -> Result<()> {
    runtime()?.block_on(async {
        let mut connection = MySqlConnection::connect(url).await?;
        for rows in batches {
            if rows.is_empty() {
                continue;
            }
            let row = format!("({})", ["?"; COLUMN_COUNT].join(","));
            let sql = format!(
                "INSERT INTO events ({COLUMNS}) VALUES {} ON DUPLICATE KEY UPDATE event_id = event_id",
                vec![row.as_str(); rows.len()].join(",")
            );
            let mut arguments = MySqlArguments::default();
            arguments.reserve(rows.len() * COLUMN_COUNT, rows.len() * 256);
            for (number, event) in &rows {
                add_row(&mut arguments, *number, event)
                    .map_err(|error| anyhow::anyhow!("{error}"))?;
            }
            sqlx::query_with(AssertSqlSafe(sql), arguments).execute(&mut connection).await?;
        }
        Ok(())
    })
}

fn add_row(
    arguments: &mut MySqlArguments,
    number: u64,
    event: &Event<'_>,
) -> Result<(), sqlx::error::BoxDynError> {
    arguments.add(event.event_id)?;
    arguments.add(event.event_type)?;
    arguments.add(event.shop_id)?;
    arguments.add(event.user_id)?;
    arguments.add(event.timestamp)?;
    arguments.add(event.shard().cast_signed())?;
    arguments.add(event.payload.get())?;
    arguments.add(NO_HASH)?;
    arguments.add(position(number))
}

fn load(url: &str, file: &Path) -> Result<()> {
    runtime()?.block_on(async {
        let mut connection = MySqlConnection::connect(url).await?;
        let sql = format!(
            "LOAD DATA INFILE '{}' INTO TABLE events CHARACTER SET utf8mb4 ({COLUMNS})",
            file.display()
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
        Ok(())
    })
}
