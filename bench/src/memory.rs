//! Peak memory of the process while a million orders come in over HTTP and go out to SQLite.

use std::path::Path;

use anyhow::Result;

use crate::measure::{Run, now};
use crate::orders::write_orders;
use crate::potok::{self, Running};
use crate::report::{print_goal, print_side, thousands};

const GOAL_BYTES: u64 = 256_000_000;

/// Runs and prints.
pub fn run(quick: bool) -> Result<()> {
    let count: u64 = if quick { 50_000 } else { 1_000_000 };
    let program = potok::build()?;
    let scratch = tempfile::tempdir()?;
    let file = scratch.path().join("orders.ndjson");
    write_orders(&file, count, 2)?;
    println!("memory: {} orders sent, checked and delivered by one process", thousands(count));
    let running = Running::start(&program, &scratch.path().join("data"))?;
    let start = now();
    let send = ["send", "orders", "--admin", running.address(), "--file"].map(Path::new);
    potok::ask(&program, send.into_iter().chain([file.as_path()]))?;
    running.delivered(count)?;
    let wall = start.elapsed();
    let (cpu, peak) = (running.process.cpu()?, running.process.peak()?);
    print_side("send and deliver", &[Run { records: count, wall, cpu, peak, servers: None }])?;
    print_goal(&format!("peak {} MB", peak / 1_000_000), "≤ 256 MB", peak <= GOAL_BYTES);
    Ok(())
}
