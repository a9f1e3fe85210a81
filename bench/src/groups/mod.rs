//! Groups: records held by key until their group is complete, then delivered together.
//!
//! On Kafka, with and without Redis, against bare loops that make the same hops; on the embedded
//! log, against that log's own appends and reads; and a million groups open at once.

mod embedded;
mod kafka;
mod keep;
mod million;

use anyhow::Result;
use potok_services::{Redis, RedisOptions};

pub use embedded::bare_log;

use crate::potok;
use crate::services::{self, PotokProgram};

/// The header that says which group a record is of.
const GROUP_HEADER: &str = "group";

/// Which records make a group.
#[derive(Clone, Copy)]
pub struct Shape {
    pub records: u64,
    /// Records of a group; it closes with the last.
    per_group: u64,
    /// Groups that are filled at a time, a record of each in turn.
    at_a_time: u64,
}

impl Shape {
    /// All groups are open until the end.
    fn all_open(groups: u64, per_group: u64) -> Self {
        Shape { records: groups * per_group, per_group, at_a_time: groups }
    }

    /// The group of a record.
    fn group(&self, number: u64) -> String {
        let (lot, within) = (number / (self.at_a_time * self.per_group), number % self.at_a_time);
        format!("group-{}", lot * self.at_a_time + within)
    }

    /// The pipeline's step.
    fn step(&self) -> String {
        close_step(&format!("max_count: {}, max_age: 1h", self.per_group))
    }
}

fn close_step(close: &str) -> String {
    format!("group: {{ by: header.{GROUP_HEADER}, close: {{ {close} }} }}")
}

/// A pipeline that only groups: like the bare loops it does not look into bodies.
fn pipeline(name: &str, from: &str, step: &str, to: &str) -> String {
    format!(
        "name: {name}\nsource: {{ topic: {from} }}\ndecode: {{ format: raw }}\n{step}\n\
         deliver: [{{ topic: {to} }}]\n"
    )
}

/// What can be measured by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum BenchPart {
    Embedded,
    Kafka,
    Million,
}

pub const ALL: &[BenchPart] = &[BenchPart::Embedded, BenchPart::Kafka, BenchPart::Million];

/// Runs and prints.
pub fn run(quick: bool, parts: &[BenchPart]) -> Result<()> {
    let program = potok::build()?;
    let scratch = tempfile::tempdir()?;
    if parts.contains(&BenchPart::Embedded) {
        embedded::run(&program, scratch.path(), quick)?;
    }
    if parts.contains(&BenchPart::Million) {
        million::on_embedded(&program, scratch.path(), quick)?;
    }
    if parts == [BenchPart::Embedded] {
        return Ok(());
    }
    let kafka = services::kafka()?;
    // What is held in Redis lies in the log as well: nothing is gained by its writing files.
    let settings = vec![("appendonly".to_owned(), "no".to_owned())];
    let redis = Redis::open(&RedisOptions { settings, ..RedisOptions::default() })?;
    let ours = PotokProgram::new(&program, &kafka, scratch.path());
    if parts.contains(&BenchPart::Kafka) {
        kafka::run(&ours, &redis, quick)?;
    }
    if parts.contains(&BenchPart::Million) {
        million::on_kafka(&ours, &redis, quick)?;
    }
    Ok(())
}

/// The store of `potok.yaml` where Redis keeps what is held.
fn store(redis: &Redis, keys: &str) -> String {
    format!("store: {{ redis: \"{}\", keys: {keys} }}\n", redis.url())
}
