//! Every command a person or CI runs: `cargo xtask --help`.
//!
//! Nothing needs to be installed for it beyond what builds potok: the services that tests start
//! it installs itself, where it may. CI calls nothing else.

mod cargo;
mod fast;
mod new_connector;
mod pictures;
mod services;
mod tidy;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

/// Checks, tests and generated files of potok.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything a change must pass; exactly what CI runs
    Test {
        /// Leave out clippy and the tests that start services or the binary
        #[arg(long)]
        fast: bool,
    },
    /// Format, clippy and tidy
    Check,
    /// Simulate whole pipelines under trouble
    Sim {
        /// One seed to replay and show, or `FROM..TO`; without it, fresh ones: 500 without groups, 500
        /// with groups, 500 in two consumer groups, and 1,000 of feeds
        #[arg(value_name = "SEED")]
        seeds: Option<String>,
        /// The seeds are of pipelines on feeds
        #[arg(long, requires = "seeds")]
        feeds: bool,
    },
    /// The long versions of the tests: more seeds, more kills, more records
    Soak,
    /// Real Kafka, PostgreSQL, MariaDB and Redis, as the tests start them
    #[command(subcommand)]
    Services(services::ServicesCommand),
    /// Write the generated reference pages and the schema anew
    Docs,
    /// Take the pictures of the documents anew
    Pictures,
    /// Write a connector to begin with
    NewConnector {
        /// Small letters, digits and `_`
        name: String,
    },
    /// Rules no compiler checks: paths named in the documents, sizes, headings
    Tidy,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask lies in the workspace")?;
    std::env::set_current_dir(root)?;
    match command {
        Command::Test { fast: false } => {
            prerequisites()?;
            services::install_all()?;
            check()?;
            // One build of the whole workspace; building parts of it on their own would pick
            // other features of the dependencies and compile them again.
            cargo::run("test", &["--workspace", "--no-fail-fast"])
        }
        Command::Test { fast: true } => {
            prerequisites()?;
            tidy::run()?;
            fast::run()
        }
        Command::Check => check(),
        Command::Sim { seeds: Some(seeds), feeds } => {
            let (variable, test) = if feeds { FEED_SIMULATOR } else { SIMULATOR };
            simulate(&[test], &[(variable, &seeds)])
        }
        Command::Sim { seeds: None, .. } => {
            let FreshSeeds { pipelines, feeds } = fresh_seeds(millis_since_1970());
            let tests = [(SIMULATOR, pipelines), (FEED_SIMULATOR, feeds)];
            let seeds = tests.iter().map(|((variable, _), seeds)| (*variable, &**seeds));
            simulate(&tests.each_ref().map(|((_, test), _)| *test), &seeds.collect::<Vec<_>>())
        }
        Command::Soak => {
            prerequisites()?;
            services::install_all()?;
            cargo::run_with(&[("POTOK_SOAK", "1")], "test", &["--workspace", "--no-fail-fast"])
        }
        Command::Services(command) => services::run(command),
        Command::Docs => {
            let bless = [("POTOK_BLESS", "1")];
            cargo::run_with(&bless, "test", &["-p", "potok-config", "--test", "reference"])
        }
        Command::Pictures => pictures::run(),
        Command::NewConnector { name } => new_connector::run(&name),
        Command::Tidy => tidy::run(),
    }
}

fn check() -> Result<()> {
    prerequisites()?;
    cargo::run("fmt", &["--all", "--check"])?;
    tidy::run()?;
    cargo::run("clippy", &["--workspace", "--all-targets", "--", "-D", "warnings"])
}

/// The tests that simulate, each with the variable that says which seeds.
const SIMULATOR: (&str, &str) = ("POTOK_SIM_SEED", "sim");
const FEED_SIMULATOR: (&str, &str) = ("POTOK_FEED_SEED", "feeds");

fn simulate(tests: &[&str], seeds: &[(&str, &str)]) -> Result<()> {
    let tests = tests.iter().flat_map(|test| ["--test", test]);
    let mut args: Vec<&str> = ["-p", "potok-testkit"].into_iter().chain(tests).collect();
    args.extend(["--no-fail-fast", "--", "--nocapture", "replay"]);
    cargo::run_with(seeds, "test", &args)
}

/// From this seed on the simulator's pipelines hold records in groups, and around feeds there is more
/// trouble.
const HELD_SEEDS: u64 = 1 << 32;

/// From this seed on the simulator's pipelines read in two consumer groups.
const TWO_GROUPS_SEEDS: u64 = 2 << 32;

/// Fresh seeds of each kind.
const FRESH: u64 = 500;

/// Ranges of seeds as the tests that simulate read them.
struct FreshSeeds {
    /// Without groups, with groups, and in two consumer groups.
    pipelines: String,
    /// Without and with trouble around the feed.
    feeds: String,
}

/// Seeds that nobody has tried, most likely: by the time in milliseconds, of each kind some.
fn fresh_seeds(now: u64) -> FreshSeeds {
    let range = |first: u64| {
        let from = first + now % (HELD_SEEDS - FRESH);
        format!("{from}..{}", from + FRESH)
    };
    let [plain, held, two_groups] = [0, HELD_SEEDS, TWO_GROUPS_SEEDS].map(range);
    FreshSeeds {
        pipelines: format!("{plain},{held},{two_groups}"),
        feeds: format!("{plain},{held}"),
    }
}

#[allow(clippy::disallowed_methods, reason = "nothing here is simulated")]
fn millis_since_1970() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(0)
}

/// What a fresh machine may lack, said before half an hour of compiling ends in a riddle.
fn prerequisites() -> Result<()> {
    let missing: Vec<_> = ["cc", "make", "perl"]
        .into_iter()
        .filter(|program| !std::env::split_paths(&path()).any(|dir| dir.join(program).is_file()))
        .collect();
    if !missing.is_empty() {
        bail!(
            "not found on this machine: {}. Building needs a C compiler, make and perl; on Debian: \
             apt-get install build-essential perl",
            missing.join(", ")
        );
    }
    Ok(())
}

fn path() -> std::ffi::OsString {
    std::env::var_os("PATH").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The kinds of seeds in a text of ranges: how many of each there are.
    fn kinds(text: &str) -> [u64; 3] {
        let mut kinds = [0; 3];
        for range in text.split(',') {
            let (from, to) = range.split_once("..").unwrap();
            let (from, to): (u64, u64) = (from.parse().unwrap(), to.parse().unwrap());
            let kind = |seed: u64| (seed / HELD_SEEDS) as usize;
            assert_eq!(kind(from), kind(to - 1), "{range} is of two kinds");
            kinds[kind(from)] += to - from;
        }
        kinds
    }

    #[test]
    fn fresh_seeds_are_of_every_kind() {
        // The last of them are years in which somebody may still run this.
        for now in [0, 1, HELD_SEEDS - 1, HELD_SEEDS, 1_795_000_000_000, 4_000_000_000_000] {
            let FreshSeeds { pipelines, feeds } = fresh_seeds(now);
            assert_eq!(kinds(&pipelines), [FRESH; 3], "{pipelines}");
            assert_eq!(kinds(&feeds), [FRESH, FRESH, 0], "{feeds}");
        }
    }

    #[test]
    fn kinds_of_seeds_begin_where_the_simulator_says() {
        let simulator = include_str!("../../crates/testkit/src/sim/scenario.rs");
        for (name, first) in [("HELD_SEEDS", "1 << 32"), ("TWO_GROUPS_SEEDS", "2 << 32")] {
            assert!(simulator.contains(&format!("pub const {name}: u64 = {first};")), "{name}");
        }
        let feeds = include_str!("../../crates/testkit/src/sim/feed/trouble.rs");
        assert!(feeds.contains("pub const FEED_TROUBLE_SEEDS: u64 = 1 << 32;"));
    }
}
