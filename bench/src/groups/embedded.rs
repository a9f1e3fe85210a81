//! Groups on the embedded log, end to end, against that log's own appends and reads.
//!
//! For both sides the same records are appended, a thousand at a time. Then a fresh process opens the
//! log: potok, or a bare loop that reads them back and appends what it has read to another topic,
//! which is what is done with a record at least.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use potok_connectors::embedded::{EmbeddedLog, Options};
use potok_core::{Headers, HeadersBuilder, Log, Output, ReadFrom, SystemClock};
use potok_traffic::orders::OrderGenerator;
use tokio::runtime::Runtime;

use super::{GROUP_HEADER, Shape, pipeline};
use crate::measure::{Process, Run, measure, now};
use crate::potok::{Running, Start};
use crate::report::{Contest, Side};

const ROUNDS: usize = 5;
/// Asking costs some time: it walks over everything that is held.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Records appended together.
const PER_APPEND: usize = 1_000;
const FROM: &str = "records";
const TO: &str = "grouped";
const NAME: &str = "groups";

/// Runs and prints.
pub fn run(program: &Path, scratch: &Path, quick: bool) -> Result<()> {
    let (groups, per_group) = if quick { (1_000, 60) } else { (3_000, 80) };
    let all_open = Shape::all_open(groups, per_group);
    let in_turn = Shape { at_a_time: 100, ..all_open };
    contest("100 groups are filled at a time", program, scratch, in_turn)?;
    contest("every group open until the end", program, scratch, all_open)
}

fn contest(how: &str, program: &Path, scratch: &Path, shape: Shape) -> Result<()> {
    let runtime = Runtime::new()?;
    let outputs = outputs(shape);
    let (bare_log, ours) = ("bare log: in, back, out", "potok, embedded");
    let data = scratch.join("embedded");
    let sides: Vec<Side<'_>> = vec![
        (
            bare_log,
            Box::new(|| {
                let appended = filled(&runtime, &data, shape, &outputs)?;
                bare(&data, appended)
            }),
        ),
        (
            ours,
            Box::new(|| {
                let appended = filled(&runtime, &data, shape, &outputs)?;
                potok(program, &data, shape, appended)
            }),
        ),
    ];
    let title = format!("groups: embedded log → groups → embedded log, {how}");
    Contest::of(&title, ROUNDS, sides)?.ratio(ours, bare_log, Some(0.5))
}

fn outputs(shape: Shape) -> Vec<Output> {
    let mut generator = OrderGenerator::good_only(7);
    let topic: Arc<str> = FROM.into();
    let output = |number| {
        let order = generator.good();
        let group = shape.group(number);
        let headers = HeadersBuilder::new().add(GROUP_HEADER, Some(group.as_bytes())).build();
        output(&topic, Some(order.uid.into()), headers, Some(order.bytes.into()))
    };
    (0..shape.records).map(output).collect()
}

fn output(
    topic: &Arc<str>,
    key: Option<bytes::Bytes>,
    headers: Headers,
    value: Option<bytes::Bytes>,
) -> Output {
    Output { topic: topic.clone(), partition: None, key, headers, value }
}

fn open(folder: &Path) -> Result<Arc<EmbeddedLog>> {
    Ok(EmbeddedLog::open(folder, Options::default(), Arc::new(SystemClock))?)
}

/// A new log with the records in it, and what appending them took.
fn filled(runtime: &Runtime, folder: &Path, shape: Shape, outputs: &[Output]) -> Result<Run> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    let log = open(folder)?;
    measure(shape.records, || runtime.block_on(append(&log, outputs)))
}

async fn append(log: &EmbeddedLog, outputs: &[Output]) -> Result<()> {
    for outputs in outputs.chunks(PER_APPEND) {
        log.append(outputs).await?;
    }
    Ok(())
}

/// A fresh process that only reads and appends.
fn bare(data: &Path, appended: Run) -> Result<Run> {
    let start = now();
    let output = Command::new(std::env::current_exe()?).arg("--bare-log").arg(data).output()?;
    let wall = appended.wall + start.elapsed();
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout)?;
    let mut said = said.split_whitespace();
    let mut next = || said.next().context("count, CPU seconds and peak");
    let (count, cpu, peak): (u64, f64, u64) =
        (next()?.parse()?, next()?.parse()?, next()?.parse()?);
    ensure!(count == appended.records, "{count} of {} records came back", appended.records);
    Ok(Run { wall, cpu: appended.cpu + cpu, peak, ..appended })
}

/// What that process does; says how many records there were, its CPU seconds and its peak.
pub fn bare_log(folder: &Path) -> Result<()> {
    let count = Runtime::new()?.block_on(async { read_and_append(&*open(folder)?).await })?;
    let own = Process::own();
    println!("{count} {} {}", own.cpu()?, own.peak()?);
    Ok(())
}

async fn read_and_append(log: &EmbeddedLog) -> Result<usize> {
    let to: Arc<str> = TO.into();
    let mut reader = log.read(FROM, ReadFrom::Start).await?;
    let mut read = Vec::new();
    let mut count = 0;
    while let Some(batch) = reader.next(false).await? {
        let records = batch.records.into_iter();
        read.extend(records.map(|record| output(&to, record.key, record.headers, record.value)));
        if read.len() >= PER_APPEND {
            count += read.len();
            append(log, &read).await?;
            read.clear();
        }
    }
    append(log, &read).await?;
    Ok(count + read.len())
}

/// The program, from its start until everything is delivered.
fn potok(program: &Path, data: &Path, shape: Shape, appended: Run) -> Result<Run> {
    let file = data.join("pipeline.yaml");
    std::fs::write(&file, pipeline(NAME, FROM, &shape.step(), TO))?;
    let start = now();
    let running = Running::start_with(
        program,
        data,
        Start { pipeline: NAME, file: &file, config: None, variables: &[] },
    )?;
    while running.count("delivered")? < shape.records {
        std::thread::sleep(LOOK_EVERY);
    }
    let wall = appended.wall + start.elapsed();
    let (cpu, peak) = (appended.cpu + running.process.cpu()?, running.process.peak()?);
    Ok(Run { wall, cpu, peak, ..appended })
}
