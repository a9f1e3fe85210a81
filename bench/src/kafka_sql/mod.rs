//! Real services: orders from Kafka into PostgreSQL and MariaDB, and from Kafka through a filter
//! back into Kafka, against bare loops that do the same with the same clients.
//!
//! All sides read the same records, which lie in Kafka before anything is measured, write into
//! tables made by the same statements or topics of the same shape, and wait for the same fsync.
//! They run turn by turn. Time runs from the first records seen to be done to the last, so nobody
//! pays for its start. The servers share the machine with whoever is measured; their CPU seconds
//! are shown too, because what they take is missing elsewhere.

mod filter;
mod mariadb;
mod postgres;
mod server;
mod tables;
mod text;

use anyhow::Result;
use potok_services::{Mariadb, MariadbOptions, Postgres, PostgresOptions};
use rdkafka::message::OwnedHeaders;

use self::filter::{Receipts, Work};
use self::server::Server;
use self::text::Parts;
use crate::potok;
use crate::report::{Contest, Side};
use crate::services::{LANES, PotokProgram, Topic, kafka, pairs};

/// How often each side runs.
const ROUNDS: usize = 3;

/// Runs and prints.
pub fn run(quick: bool) -> Result<()> {
    let (orders, records) = if quick { (30_000, 200_000) } else { (300_000, 1_000_000) };
    let program = potok::build()?;
    let scratch = tempfile::tempdir()?;
    let kafka = kafka()?;
    let ours = PotokProgram::new(&program, &kafka, scratch.path());

    let source = Topic::fill(&kafka, "orders", orders, 4, |_| OwnedHeaders::new())?;
    let parts = Parts::write(scratch.path(), orders, 4)?;
    let settings = pairs(&[("shared_buffers", "512MB"), ("max_wal_size", "8GB")]);
    let server = Postgres::open(&PostgresOptions { settings, ..PostgresOptions::default() })?;
    into_tables(
        "PostgreSQL",
        ["bare loop, UNNEST", "COPY of files"],
        &ours,
        &source,
        &parts,
        &server,
    )?;
    drop(server);
    let settings = pairs(&[("innodb-buffer-pool-size", "1G"), ("innodb-log-file-size", "1G")]);
    let server = Mariadb::open(&MariadbOptions { settings, ..MariadbOptions::default() })?;
    into_tables(
        "MariaDB",
        ["bare loop, many rows", "LOAD DATA of files"],
        &ours,
        &source,
        &parts,
        &server,
    )?;
    drop(server);

    let mut passing = 0;
    let source = Topic::fill(&kafka, "records", records, 5, |order| {
        passing += u64::from(Work::is_of_half(&order.bytes));
        OwnedHeaders::new()
    })?;
    into_kafka(&ours, &source, Work::Half { passing })
}

fn into_tables(
    name: &str,
    [bare, load]: [&'static str; 2],
    ours: &PotokProgram<'_>,
    source: &Topic<'_>,
    parts: &Parts,
    server: &impl Server,
) -> Result<()> {
    let title = format!("kafka-sql: Kafka → four tables of {name}, {LANES} connections");
    let sides: Vec<Side<'_>> = vec![
        (bare, Box::new(|| tables::bare(ours, source, server))),
        ("potok", Box::new(|| tables::potok(ours, source, server))),
        (load, Box::new(|| tables::load(ours, parts, server))),
    ];
    let contest = Contest::of(&title, ROUNDS, sides)?;
    contest.ratio("potok", bare, Some(0.8))?;
    contest.ratio("potok", load, None)
}

fn into_kafka(ours: &PotokProgram<'_>, source: &Topic<'_>, half: Work) -> Result<()> {
    let (bare, forgetful) = ("bare loop", "bare loop, no receipts");
    let sides: Vec<Side<'_>> = vec![
        (bare, Box::new(|| filter::bare(ours, source, half, Receipts::Awaited))),
        ("potok", Box::new(|| filter::potok(ours, source, half))),
        (forgetful, Box::new(|| filter::bare(ours, source, half, Receipts::Ignored))),
    ];
    let title = "kafka-sql: Kafka → filter → Kafka, half of the records pass";
    let contest = Contest::of(title, ROUNDS, sides)?;
    contest.ratio("potok", bare, Some(0.8))?;
    contest.ratio("potok", forgetful, Some(0.6))?;

    let sides: Vec<Side<'_>> = vec![
        (bare, Box::new(|| filter::bare(ours, source, Work::All, Receipts::Awaited))),
        ("potok, raw", Box::new(|| filter::potok(ours, source, Work::All))),
        (forgetful, Box::new(|| filter::bare(ours, source, Work::All, Receipts::Ignored))),
    ];
    let title = "kafka-sql: Kafka → Kafka, every record, nothing decoded";
    let contest = Contest::of(title, ROUNDS, sides)?;
    contest.ratio("potok, raw", bare, None)?;
    contest.ratio("potok, raw", forgetful, None)
}
