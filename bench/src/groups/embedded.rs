//! Groups on the embedded log, end to end, against that log's own appends and reads.
//!
//! Both sides append the same records, a thousand at a time. The bare loop then reads them back
//! and appends what it has read to another topic, which is what is done with a record at least.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use potok_connectors::embedded::{EmbeddedLog, Options};
use potok_core::{Headers, HeadersBuilder, Log, Output, ReadFrom, SystemClock};
use potok_traffic::orders::Generator;
use tokio::runtime::Runtime;

use super::{GROUP_HEADER, Shape, pipeline};
use crate::measure::{Run, measure, now};
use crate::potok::{Running, Start};
use crate::report::{Contest, Side};

const ROUNDS: usize = 3;
/// Asking walks over everything that is held.
const LOOK_EVERY: Duration = Duration::from_millis(50);
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
                let log = fresh(&data)?;
                measure(shape.records, || runtime.block_on(bare(&log, &outputs)))
            }),
        ),
        (ours, Box::new(|| potok(program, &runtime, &data, shape, &outputs))),
    ];
    let title = format!("groups: embedded log → groups → embedded log, {how}");
    Contest::of(&title, ROUNDS, sides)?.ratio(ours, bare_log, Some(0.5))
}

fn outputs(shape: Shape) -> Vec<Output> {
    let mut generator = Generator::good_only(7);
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

/// An empty log. Opening is no part of what is measured.
fn fresh(folder: &Path) -> Result<Arc<EmbeddedLog>> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    Ok(EmbeddedLog::open(folder, Options::default(), Arc::new(SystemClock))?)
}

async fn append(log: &EmbeddedLog, outputs: &[Output]) -> Result<()> {
    for outputs in outputs.chunks(PER_APPEND) {
        log.append(outputs).await?;
    }
    Ok(())
}

async fn bare(log: &EmbeddedLog, outputs: &[Output]) -> Result<()> {
    append(log, outputs).await?;
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
    count += read.len();
    ensure!(count == outputs.len(), "{count} of {} records came back", outputs.len());
    Ok(())
}

/// The same appends, then a fresh process from its start until everything is delivered.
fn potok(
    program: &Path,
    runtime: &Runtime,
    data: &Path,
    shape: Shape,
    outputs: &[Output],
) -> Result<Run> {
    let log = fresh(data)?;
    let appended = measure(shape.records, || runtime.block_on(append(&log, outputs)))?;
    drop(log);
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
    Ok(Run { records: shape.records, wall, cpu, peak, servers: None })
}
