//! The engine alone: memory log, lanes, memory sink, nothing decoded.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use potok_core::{Clock, Headers, Log, Output, SystemClock};
use potok_flow::decode::RawDecoder;
use potok_flow::{DeliverPlan, Engine, Input, Plan, Retry, Target};
use potok_testkit::memory::{MemoryLog, MemorySink};
use tokio::runtime::{Builder, Runtime};

use crate::measure::{Run, measure};
use crate::report::{ROUNDS, middle, print_goal, print_side, thousands};

const RECORD: usize = 200;
const KEYS: u64 = 1_000;

/// Runs on one thread, then on all of them.
pub fn run(quick: bool) -> Result<()> {
    let records: u64 = if quick { 200_000 } else { 1_000_000 };
    println!("engine: memory log → lanes → memory sink, records of 200 B, no decode");
    let one = rounds(records, 1, || Builder::new_current_thread().enable_all().build())?;
    print_side("one thread", &one)?;
    let rate = middle(&one)?.rate();
    print_goal(
        &format!("{} records/s on one core", thousands(rate as u64)),
        "≥ 1,000,000",
        rate >= 1e6,
    );
    print_side("all threads, 4 lanes", &rounds(records, 4, Runtime::new)?)
}

fn rounds(
    records: u64,
    workers: usize,
    runtime: impl Fn() -> std::io::Result<Runtime>,
) -> Result<Vec<Run>> {
    (0..ROUNDS).map(|_| round(records, workers, &runtime()?)).collect()
}

fn round(records: u64, workers: usize, runtime: &Runtime) -> Result<Run> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let log = MemoryLog::new(clock.clone());
    runtime.block_on(fill(&log, records))?;
    let sink = MemorySink::counting();
    let engine = Engine::new(Arc::new(log), clock, None);
    let run = measure(records, || {
        runtime.block_on(async {
            engine.start(plan(sink.clone(), workers))?;
            sink.reached(records).await;
            Ok(())
        })
    });
    runtime.block_on(engine.drain(Duration::from_secs(10)));
    run
}

async fn fill(log: &MemoryLog, records: u64) -> Result<()> {
    let value = Bytes::from(vec![b'x'; RECORD]);
    for from in (0..records).step_by(1_000) {
        let outputs: Vec<_> = (from..(from + 1_000).min(records))
            .map(|number| Output {
                topic: "bench".into(),
                partition: None,
                key: Some(Bytes::from((number % KEYS).to_string())),
                headers: Headers::none(),
                value: Some(value.clone()),
            })
            .collect();
        log.append(&outputs).await?;
    }
    Ok(())
}

fn plan(sink: MemorySink, workers: usize) -> Plan {
    Plan {
        name: "bench".into(),
        workers,
        inputs: vec![Input::topics("bench", vec!["bench".into()])],
        decoder: Arc::new(RawDecoder),
        hold: None,
        stages: Vec::new(),
        delivers: vec![DeliverPlan {
            label: "memory".into(),
            number: 0,
            shard: None,
            kind: None,
            target: Target::Sink(Arc::new(sink)),
            key: None,
            once_by: Vec::new(),
            headers_id: false,
        }],
        order_by: None,
        retry: Retry { attempts: 5, first: Duration::from_millis(50), max: Duration::from_secs(5) },
        probe_every: Duration::from_secs(2),
        dead_letter_topic: "bench-dead".into(),
        replays_max: 5,
        keep_resolved: None,
        in_flight_bytes: 64 << 20,
    }
}
