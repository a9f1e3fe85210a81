//! The outbox: rows of a PostgreSQL table into Kafka, against a bare loop on one connection that
//! selects, produces, waits for the receipts and updates, one after the other.
//!
//! Both sides find the same rows in a table made by the same statements, and every row must be marked
//! at the end. Then how long a row takes from its commit until a consumer has it, while others write.

use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use memchr::memmem;
use potok_services::{Postgres, PostgresOptions};
use rdkafka::Message as _;
use rdkafka::producer::{BaseRecord, Producer as _, ThreadedProducer};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};
use tokio::runtime::Runtime;

use crate::measure::{Process, Run, now, watch};
use crate::potok::{self, Running};
use crate::report::{Contest, Side};
use crate::services::{ANSWER_MAX, DeliveryCheck, PotokProgram, Topic, kafka, next, pairs, send};

const ROUNDS: usize = 3;
/// Counting what waits costs the server something.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Rows of one turn of the bare loop.
const PER_TURN: usize = 1_000;
const KEYS: u64 = 1_000;
/// Rows a second while latency is measured, and who writes them.
const RATE: u64 = 1_000;
const WRITERS: u64 = 4;

/// Runs and prints.
pub fn run(quick: bool) -> Result<()> {
    let (rows, seconds) = if quick { (20_000, 10) } else { (200_000, 30) };
    let program = potok::build()?;
    let scratch = tempfile::tempdir()?;
    let kafka = kafka()?;
    let ours = PotokProgram::new(&program, &kafka, scratch.path());
    let settings = pairs(&[("shared_buffers", "512MB"), ("max_wal_size", "8GB")]);
    let server = Postgres::open(&PostgresOptions { settings, ..PostgresOptions::default() })?;
    let bench = Bench { ours: &ours, server: &server, runtime: Runtime::new()? };
    let bare = "bare loop, one connection";
    let sides: Vec<Side<'_>> =
        vec![(bare, Box::new(|| bench.bare(rows))), ("potok", Box::new(|| bench.potok(rows)))];
    let title = "outbox: rows of PostgreSQL → Kafka, all of them marked";
    let contest = Contest::of(title, ROUNDS, sides)?;
    contest.ratio("potok", bare, Some(1.0))?;
    for notify in [false, true] {
        let how = if notify { "with the trigger" } else { "polled" };
        println!("outbox: from commit to readable at {RATE} rows/s, {how}");
        bench.latency(seconds, notify)?;
    }
    Ok(())
}

struct Bench<'a> {
    ours: &'a PotokProgram<'a>,
    server: &'a Postgres,
    runtime: Runtime,
}

/// A database with its table, the topic its rows go to, and a session for questions.
struct Table<'a> {
    url: String,
    topic: Topic<'a>,
    number: u64,
    session: RefCell<PgConnection>,
}

impl<'a> Bench<'a> {
    fn pipeline(number: u64, topic: &str) -> String {
        format!(
            "name: outbox-{number}\nsource: {{ outbox: outbox, db: bench }}\n\
             deliver: [{{ topic: {topic}, key: .key }}]\n"
        )
    }

    fn execute(&self, table: &Table<'_>, sql: String) -> Result<()> {
        let mut session = table.session.borrow_mut();
        self.runtime.block_on(async {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *session).await?;
            Ok(())
        })
    }

    /// A table with so many rows that wait.
    fn table(&self, rows: u64, notify: bool) -> Result<Table<'a>> {
        let (number, url) = (self.ours.next(), self.server.fresh_database());
        let topic = Topic::empty(self.ours.kafka, &format!("outbox-{number}"));
        let text = Self::pipeline(number, &topic.name);
        let ddl = self.ours.outbox_ddl(&text, &url, notify)?;
        let session = self.runtime.block_on(PgConnection::connect(&url))?;
        let table = Table { url, topic, number, session: RefCell::new(session) };
        self.execute(&table, ddl)?;
        let fill = format!(
            "INSERT INTO outbox (event_type, payload) SELECT 'A', json_build_object('key', \
             'k' || n % {KEYS}, 'n', n, 'text', repeat('x', 200)) FROM generate_series(1, {rows}) n"
        );
        self.execute(&table, fill)?;
        self.execute(&table, "ANALYZE outbox; CHECKPOINT".to_owned())
            .or_else(|_| self.execute(&table, "ANALYZE outbox".to_owned()))?;
        Ok(table)
    }

    /// Watches rows being marked.
    fn marks(&self, table: &Table<'_>, rows: u64, process: &Process) -> Result<Run> {
        let marked = || {
            let mut session = table.session.borrow_mut();
            let sql = "SELECT count(*) FROM outbox WHERE NOT processed";
            let left = self.runtime.block_on(sqlx::query(sql).fetch_one(&mut *session))?;
            Ok(rows - u64::try_from(left.try_get::<i64, _>(0)?)?)
        };
        let servers = || self.ours.servers(Some(self.server.pid()));
        let run = watch(process, rows, LOOK_EVERY, servers, marked)?;
        let there: u64 = table.topic.ends(&table.topic.client()?)?.iter().sum();
        ensure!(there >= rows, "{there} of {rows} rows are in Kafka");
        self.ours.kafka.delete_topic(&table.topic.name);
        Ok(run)
    }

    fn start(&self, table: &Table<'_>) -> Result<Running> {
        let text = Self::pipeline(table.number, &table.topic.name);
        let name = format!("outbox-{}", table.number);
        self.ours.start(&name, &text, "", &[("POTOK_DB_BENCH", &table.url)])
    }

    fn potok(&self, rows: u64) -> Result<Run> {
        let table = self.table(rows, false)?;
        let running = self.start(&table)?;
        self.marks(&table, rows, &running.process)
    }

    fn bare(&self, rows: u64) -> Result<Run> {
        let table = self.table(rows, false)?;
        let producer: ThreadedProducer<DeliveryCheck> =
            table.topic.producer().create_with_context(DeliveryCheck::default())?;
        let own = Process::own();
        own.forget_peak()?;
        let (url, topic) = (table.url.clone(), table.topic.name.clone());
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| pump(&url, &topic, &producer));
            let run = self.marks(&table, rows, &own);
            match thread.join() {
                Ok(pumped) => pumped.and(run),
                Err(_) => bail!("the loop panicked"),
            }
        })
    }

    /// Writers commit row by row, a consumer notes when it has each.
    fn latency(&self, seconds: u64, notify: bool) -> Result<()> {
        let table = self.table(0, notify)?;
        let running = self.start(&table)?;
        let rows = RATE * seconds;
        let committed: Vec<Mutex<Option<Instant>>> = (0..rows).map(|_| Mutex::default()).collect();
        let consumer = table.topic.consumer()?;
        let number = AtomicU64::new(0);
        let (cpu, begun) = (running.process.cpu()?, now());
        let mut waits = std::thread::scope(|scope| -> Result<Vec<f64>> {
            let writers: Vec<_> = (0..WRITERS)
                .map(|_| scope.spawn(|| write(&table.url, &committed, &number, begun)))
                .collect();
            let mut waits = Vec::new();
            for _ in 0..rows {
                let message = next(|wait| consumer.poll(wait))?;
                let read = now();
                let n = number_of(message.payload().unwrap_or_default())?;
                let place = committed.get(n).context("a number")?;
                // It may be read before the writer has heard of its commit.
                let wait = loop {
                    let at = *place.lock().map_err(|_| anyhow::anyhow!("a writer panicked"))?;
                    match at {
                        Some(at) => break read.saturating_duration_since(at),
                        None => std::thread::yield_now(),
                    }
                };
                waits.push(wait.as_secs_f64() * 1e3);
            }
            for writer in writers {
                writer.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??;
            }
            Ok(waits)
        })?;
        waits.sort_by(f64::total_cmp);
        let at = |share: f64| waits.get((waits.len() as f64 * share) as usize).copied();
        println!(
            "  p50 {:.1} ms, p99 {:.1} ms, {:.0} rows/s written   {:.0} % of a core   peak {} MB",
            at(0.5).unwrap_or(f64::NAN),
            at(0.99).unwrap_or(f64::NAN),
            rows as f64 / begun.elapsed().as_secs_f64(),
            (running.process.cpu()? - cpu) / begun.elapsed().as_secs_f64() * 100.0,
            running.process.peak()? / 1_000_000,
        );
        Ok(())
    }
}

/// Commits rows in time with the rate, each in a transaction of its own.
fn write(
    url: &str,
    committed: &[Mutex<Option<Instant>>],
    number: &AtomicU64,
    begun: Instant,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut session = PgConnection::connect(url).await?;
        let sql = "INSERT INTO outbox (event_type, payload) VALUES ('A', $1::text::json)";
        loop {
            let n = number.fetch_add(1, Ordering::Relaxed);
            let Some(place) = committed.get(usize::try_from(n)?) else { return Ok(()) };
            let at = begun + Duration::from_micros(n * 1_000_000 / RATE);
            tokio::time::sleep_until(at.into()).await;
            let payload = format!("{{\"key\":\"k{}\",\"n\":{n}}}", n % KEYS);
            sqlx::query(sql).bind(payload).execute(&mut session).await?;
            *place.lock().map_err(|_| anyhow::anyhow!("somebody panicked"))? = Some(now());
        }
    })
}

fn number_of(payload: &[u8]) -> Result<usize> {
    let value: serde_json::Value = serde_json::from_slice(payload)?;
    Ok(usize::try_from(value["n"].as_u64().context("a number")?)?)
}

/// What somebody would write: select, produce, wait for the receipts, update, and again.
fn pump(url: &str, topic: &str, producer: &ThreadedProducer<DeliveryCheck>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut session = PgConnection::connect(url).await?;
        let select = format!(
            "SELECT id::text, payload::text FROM outbox WHERE NOT processed ORDER BY seq \
             LIMIT {PER_TURN}"
        );
        let update = "UPDATE outbox SET processed = true, processed_at = now() \
                      WHERE id = ANY($1::uuid[])";
        loop {
            let rows = sqlx::query(AssertSqlSafe(select.clone())).fetch_all(&mut session).await?;
            if rows.is_empty() {
                return Ok(());
            }
            let mut ids: Vec<String> = Vec::with_capacity(rows.len());
            for row in &rows {
                let payload: &str = row.try_get(1)?;
                let key = key_of(payload.as_bytes()).context("a key")?;
                send(producer, BaseRecord::to(topic).key(key).payload(payload.as_bytes()))?;
                ids.push(row.try_get(0)?);
            }
            producer.flush(ANSWER_MAX)?;
            producer.context().all_written()?;
            sqlx::query(update).bind(ids).execute(&mut session).await?;
        }
    })
}

/// The key, without parsing the rest.
fn key_of(payload: &[u8]) -> Option<&[u8]> {
    let field = br#""key" : ""#;
    let rest = payload.get(memmem::find(payload, field)? + field.len()..)?;
    rest.get(..memchr::memchr(b'"', rest)?)
}
