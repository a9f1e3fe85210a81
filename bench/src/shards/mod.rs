//! Shop events: from a topic into the databases of two shards, and over HTTP into the topic.
//!
//! For the tables all sides write the same events into tables made by the same statements, and wait for
//! the same fsync. potok runs `pipelines/shop-events.yaml` as it is: it reads its own log, seals slices,
//! writes their files, tracks them in a third database, and looks for what is there already. The bare
//! loop does none of that. For the intake both sides take the same bodies from the same clients and
//! answer after an fsync that is shared by the requests that wait for one.

mod http;
mod tables;

use anyhow::Result;
use potok_services::{Mariadb, MariadbOptions};

pub use self::http::bare as bare_http;
use self::tables::Tables;
use crate::potok;
use crate::report::{Contest, Side};
use crate::services::pairs;

/// How often each side runs.
const ROUNDS: usize = 3;
/// Shards, and connections of the bare loop.
const SHARDS: u64 = 2;

/// Runs and prints.
pub fn run(quick: bool) -> Result<()> {
    let (events, posted) = if quick { (40_000, 40_000) } else { (400_000, 400_000) };
    let program = potok::build()?;
    let scratch = tempfile::tempdir()?;
    let settings = pairs(&[("innodb-buffer-pool-size", "1G"), ("innodb-log-file-size", "1G")]);
    let server = Mariadb::open(&MariadbOptions { settings, ..MariadbOptions::default() })?;
    let tables = Tables::new(&program, scratch.path(), &server, events)?;
    let (bare, ours, load) = ("bare loop, many rows", "potok", "LOAD DATA of files");
    let sides: Vec<Side<'_>> = vec![
        (bare, Box::new(|| tables.bare())),
        (ours, Box::new(|| tables.potok())),
        (load, Box::new(|| tables.load())),
    ];
    let title = "shards: topic → two shards on MariaDB, a file and a tracked row for each slice";
    let contest = Contest::of(title, ROUNDS, sides)?;
    contest.ratio(ours, bare, Some(0.8))?;
    contest.ratio(ours, load, None)?;
    drop(server);
    http::run(&program, scratch.path(), posted)
}
