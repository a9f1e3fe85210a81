//! The benchmark suite: potok, and the physical limit or a bare loop beside it, in one run.
//!
//! Machines differ and are shared, so the figure that counts is the ratio of two measurements
//! taken turn by turn; raw rates, CPU seconds and peak memory are printed beside it. Nothing here
//! is a test: a missed goal is printed, not an error.

mod chat;
mod dashboard;
mod engine;
mod groups;
mod hub;
mod idle;
mod kafka_sql;
mod log;
mod measure;
mod memory;
mod order;
mod orders;
mod outbox;
mod plain;
mod potok;
mod report;
mod services;
mod shards;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, ValueEnum};

/// Measures potok against what the machine could do.
#[derive(Parser)]
#[command(
    name = "bench",
    after_help = "Examples:\n  cargo run --release -p bench -- log orders\n  cargo run --release -p bench -- kafka-sql\n  cargo run --release -p bench -- all --quick"
)]
struct Cli {
    /// What to measure, one after another
    #[arg(required_unless_present_any = ["bare_log", "bare_http", "hub_clients"], value_enum)]
    what: Vec<Measurement>,
    /// The other side of `groups-embedded`, which has a process of its own like potok
    #[arg(long, hide = true, value_name = "FOLDER")]
    bare_log: Option<PathBuf>,
    /// The other side of HTTP intake in `shards`, for the same reason
    #[arg(long, hide = true, value_name = "FOLDER")]
    bare_http: Option<PathBuf>,
    /// The clients of `hub`, which have a process of their own
    #[arg(long, hide = true, value_name = "ADDRESS/COUNT")]
    hub_clients: Option<String>,
    /// Smaller sizes: a look, not a measurement
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Measurement {
    /// The embedded log against a plain file with checksums, same fsync policy
    Log,
    /// Orders end to end against a bare "parse + batched SQLite insert" loop
    Orders,
    /// The engine alone on memory connectors
    Engine,
    /// Peak memory while a million orders pass
    Memory,
    /// What an idle process costs, and how soon a lone record is delivered
    Idle,
    /// Kafka into PostgreSQL, MariaDB and back into Kafka, against bare loops; starts the services
    KafkaSql,
    /// Records held in groups: the three below
    Groups,
    /// Groups on the embedded log against that log's own appends and reads
    GroupsEmbedded,
    /// Groups on Kafka, in memory and in Redis, against bare loops; starts the services
    GroupsKafka,
    /// A million open groups, embedded and on Kafka with Redis: memory, lateness, restart
    GroupsMillion,
    /// The hub: idle connections, a message to everybody, acknowledged messages
    Hub,
    /// Rows of PostgreSQL into Kafka against a bare loop, and latency; starts the services
    Outbox,
    /// Shop events into two shards on MariaDB and over HTTP, against bare loops; starts the services
    Shards,
    /// Chats in a Redis queue against a bare drain, and a million that wait; starts Redis
    Chat,
    /// Pages with a million groups and dead letters, and lanes with ten viewers
    Dashboard,
    /// All of them
    All,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    if cfg!(debug_assertions) {
        eprintln!("bench: this is a debug build; only `--release` says something");
    }
    if let Some(folder) = &cli.bare_log {
        return groups::bare_log(folder);
    }
    if let Some(folder) = &cli.bare_http {
        return shards::bare_http(folder);
    }
    if let Some(place) = &cli.hub_clients {
        return hub::clients::run(place);
    }
    let all = [
        Measurement::Log,
        Measurement::Engine,
        Measurement::Orders,
        Measurement::Memory,
        Measurement::Idle,
        Measurement::KafkaSql,
        Measurement::Groups,
        Measurement::Hub,
        Measurement::Outbox,
        Measurement::Shards,
        Measurement::Chat,
        Measurement::Dashboard,
    ];
    let whats = if cli.what.contains(&Measurement::All) { &all[..] } else { &cli.what };
    for what in whats {
        match what {
            Measurement::Log => log::run(cli.quick)?,
            Measurement::Orders => orders::run(cli.quick)?,
            Measurement::Engine => engine::run(cli.quick)?,
            Measurement::Memory => memory::run(cli.quick)?,
            Measurement::Idle => idle::run(cli.quick)?,
            Measurement::KafkaSql => kafka_sql::run(cli.quick)?,
            Measurement::Groups => groups::run(cli.quick, groups::ALL)?,
            Measurement::GroupsEmbedded => groups::run(cli.quick, &[groups::BenchPart::Embedded])?,
            Measurement::GroupsKafka => groups::run(cli.quick, &[groups::BenchPart::Kafka])?,
            Measurement::GroupsMillion => groups::run(cli.quick, &[groups::BenchPart::Million])?,
            Measurement::Hub => hub::run(cli.quick)?,
            Measurement::Outbox => outbox::run(cli.quick)?,
            Measurement::Shards => shards::run(cli.quick)?,
            Measurement::Chat => chat::run(cli.quick)?,
            Measurement::Dashboard => dashboard::run(cli.quick)?,
            Measurement::All => {}
        }
    }
    Ok(())
}
