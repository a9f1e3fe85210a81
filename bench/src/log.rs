//! The embedded log against a plain file: append in synced groups, append from many senders, read.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use bytes::Bytes;
use potok_connectors::embedded::{EmbeddedLog, Options};
use potok_core::{Headers, Log, Output, ReadFrom, SystemClock};
use potok_traffic::Random;
use tokio::runtime::Runtime;

use crate::measure::measure;
use crate::plain;
use crate::report::Comparison;

/// Records per synced group, and bytes per record.
const GROUP: usize = 1_000;
const RECORD: usize = 200;
/// Senders at once, and what each sends at a time.
const SENDERS: usize = 20;
const BIT: usize = 50;
/// How often everything is read in one run.
const READS: u64 = 3;

/// Runs and prints all three.
pub fn run(quick: bool) -> Result<()> {
    let groups: u64 = if quick { 200 } else { 1_000 };
    let total = groups * GROUP as u64;
    let runtime = Runtime::new()?;
    let records = records();
    let group: Arc<[Output]> = records.iter().map(output).collect();
    let scratch = tempfile::tempdir()?;
    let (file, folder) = (scratch.path().join("plain"), scratch.path().join("log"));

    Comparison::of(
        "log: append, groups of 1,000 records of 200 B, each group synced",
        ("plain file", || measure(total, || plain::append(&file, &records, groups))),
        ("embedded", || {
            let log = fresh(&folder)?;
            measure(total, || runtime.block_on(append(&log, &group, groups)))
        }),
    )?
    .ratio(Some(0.8));

    Comparison::of(
        "log: append, 20 senders of 50 records each at once; the file syncs per 1,000",
        ("plain file", || measure(total, || plain::append(&file, &records, groups))),
        ("embedded, 20 senders", || {
            let log = fresh(&folder)?;
            measure(total, || runtime.block_on(append_together(&log, &group, groups)))
        }),
    )?
    .ratio(None);

    // Both were left by the last round, and lie in the page cache alike. Several times over: once
    // takes too short a time to tell.
    Comparison::of(
        "log: read everything back, checksums verified",
        ("plain file", || {
            measure(total * READS, || {
                for _ in 0..READS {
                    ensure!(plain::read(&file)? == total, "all records come back");
                }
                Ok(())
            })
        }),
        ("embedded", || {
            let log = open(&folder)?;
            measure(total * READS, || {
                (0..READS).try_for_each(|_| runtime.block_on(read(&log, total)))
            })
        }),
    )?
    .ratio(Some(0.5));
    Ok(())
}

fn records() -> Vec<Bytes> {
    let mut random = Random::new(1);
    (0..GROUP).map(|_| (0..RECORD).map(|_| random.bits() as u8).collect()).collect()
}

fn output(record: &Bytes) -> Output {
    let value = Some(record.clone());
    Output { topic: "bench".into(), partition: None, key: None, headers: Headers::none(), value }
}

/// An empty log. Opening is no part of what is measured.
fn fresh(folder: &Path) -> Result<Arc<EmbeddedLog>> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    open(folder)
}

fn open(folder: &Path) -> Result<Arc<EmbeddedLog>> {
    Ok(EmbeddedLog::open(folder, Options::default(), Arc::new(SystemClock))?)
}

async fn append(log: &EmbeddedLog, group: &[Output], groups: u64) -> Result<()> {
    for _ in 0..groups {
        log.append(group).await?;
    }
    Ok(())
}

async fn append_together(log: &Arc<EmbeddedLog>, group: &Arc<[Output]>, groups: u64) -> Result<()> {
    let mut senders = tokio::task::JoinSet::new();
    for sender in 0..SENDERS {
        let (log, group) = (log.clone(), group.clone());
        senders.spawn(async move {
            let bit = group.iter().skip(sender * BIT).take(BIT).cloned().collect::<Vec<_>>();
            for _ in 0..groups {
                log.append(&bit).await?;
            }
            Ok::<_, potok_core::Fault>(())
        });
    }
    while let Some(done) = senders.join_next().await {
        done??;
    }
    Ok(())
}

async fn read(log: &EmbeddedLog, total: u64) -> Result<()> {
    let mut reader = log.read("bench", ReadFrom::Start).await?;
    let mut count = 0;
    while let Some(batch) = reader.next(false).await? {
        count += batch.records.len() as u64;
    }
    ensure!(count == total, "{count} of {total} records came back");
    Ok(())
}
