//! Orders from Kafka into four tables: a bare loop, potok, and plain files.
//!
//! The bare loop has a thread and a connection for each partition. It parses records where the
//! client keeps them, writes 1,000 of them per transaction, and stores their offsets behind that.
//! It checks nothing, hashes nothing, routes nothing, and looks for nothing that is there already.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rdkafka::Message;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, Consumer, DefaultConsumerContext};
use tokio::runtime::{Builder, Runtime};

use super::server::Server;
use super::text::Parts;
use crate::measure::{Process, Run, measure, watch};
use crate::order::Order;
use crate::services::{LANES, PotokProgram, Topic, next};

const PER_TRANSACTION: usize = 1_000;
/// Asking potok costs it something, and the runs are long.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Tables in a database of their own.
fn fresh<S: Server>(ours: &PotokProgram<'_>, server: &S) -> Result<String> {
    let url = server.fresh();
    let ddl = ours.ddl(&url)?;
    runtime()?.block_on(async {
        let mut connection = S::connect(&url).await?;
        S::run(&mut connection, &ddl).await
    })?;
    Ok(url)
}

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// A run counts when every order is there.
fn all_there<S: Server>(server: &S, url: &str, orders: u64, run: Run) -> Result<Run> {
    let found = server.orders(url)?;
    ensure!(found == orders, "{found} of {orders} orders are in the table");
    Ok(run)
}

/// The program, on tables it makes itself.
pub fn potok<S: Server>(ours: &PotokProgram<'_>, source: &Topic<'_>, server: &S) -> Result<Run> {
    let url = server.fresh();
    let running = ours.orders(&url)?;
    let servers = || ours.servers(Some(server.pid()));
    let run = watch(&running.process, source.records, LOOK_EVERY, servers, || {
        running.count("delivered")
    })?;
    drop(running);
    all_there(server, &url, source.records, run)
}

/// Files, the fastest way the database has.
pub fn load<S: Server>(ours: &PotokProgram<'_>, parts: &Parts, server: &S) -> Result<Run> {
    let url = fresh(ours, server)?;
    let before = ours.servers(Some(server.pid()))?;
    let load = |part| {
        runtime()?.block_on(async {
            let mut connection = S::connect(&url).await?;
            S::load(&mut connection, part).await
        })
    };
    let mut run = measure(parts.orders, || {
        std::thread::scope(|scope| {
            let load = &load;
            let start = |part| scope.spawn(move || load(part));
            let threads: Vec<_> = parts.all.iter().map(start).collect();
            threads.into_iter().try_for_each(ended)
        })
    })?;
    run.servers = Some(ours.servers(Some(server.pid()))? - before);
    all_there(server, &url, parts.orders, run)
}

/// What all threads of a bare loop know.
struct Shared<'a> {
    url: &'a str,
    topic: &'a str,
    consumer: Arc<BaseConsumer>,
    done: AtomicU64,
    failed: AtomicBool,
}

/// A bare loop.
pub fn bare<S: Server>(ours: &PotokProgram<'_>, source: &Topic<'_>, server: &S) -> Result<Run> {
    let url = fresh(ours, server)?;
    let own = Process::own();
    own.forget_peak()?;
    let shared = Shared {
        url: &url,
        topic: &source.name,
        consumer: Arc::new(source.consumer()?),
        done: AtomicU64::new(0),
        failed: AtomicBool::new(false),
    };
    let run = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (partition, records) in (0..).zip(&source.partitions) {
            let queue = shared.consumer.split_partition_queue(&source.name, partition);
            let queue = queue.context("a queue for each partition")?;
            let shared = &shared;
            threads.push(scope.spawn(move || {
                let ended = write_partition::<S>(shared, &queue, partition, *records);
                shared.failed.fetch_or(ended.is_err(), Ordering::Relaxed);
                ended
            }));
        }
        let run = watch(
            &own,
            source.records,
            LOOK_EVERY,
            || ours.servers(Some(server.pid())),
            || {
                // Events come here, records to the threads.
                if let Some(event) = shared.consumer.poll(Duration::ZERO) {
                    event?;
                }
                if shared.failed.load(Ordering::Relaxed) {
                    bail!("a thread failed");
                }
                Ok(shared.done.load(Ordering::Relaxed))
            },
        );
        threads.into_iter().try_for_each(ended)?;
        run
    })?;
    shared.consumer.unassign()?;
    all_there(server, &url, source.records, run)
}

fn ended(thread: std::thread::ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    match thread.join() {
        Ok(ended) => ended,
        Err(_) => bail!("a thread panicked"),
    }
}

fn write_partition<S: Server>(
    shared: &Shared<'_>,
    queue: &PartitionQueue<DefaultConsumerContext>,
    partition: i32,
    records: u64,
) -> Result<()> {
    let runtime = runtime()?;
    let mut connection = runtime.block_on(S::connect(shared.url))?;
    let mut left = usize::try_from(records)?;
    while left > 0 {
        let count = left.min(PER_TRANSACTION);
        let mut messages = Vec::with_capacity(count);
        while messages.len() < count {
            messages.push(next(|wait| queue.poll(wait))?);
        }
        let positions: Vec<String> = messages
            .iter()
            .map(|m| format!("{}/{partition}/{}@0000000000000000/0/0", shared.topic, m.offset()))
            .collect();
        let mut orders: Vec<(Order<'_>, &str)> = Vec::with_capacity(count);
        for (message, position) in messages.iter().zip(&positions) {
            let order = serde_json::from_slice(message.payload().unwrap_or_default());
            orders.push((order.context("a good order")?, position));
        }
        runtime.block_on(S::write(&mut connection, &orders))?;
        let last = messages.last().map_or(0, |message| message.offset());
        shared.consumer.store_offset(shared.topic, partition, last)?;
        shared.done.fetch_add(count as u64, Ordering::Relaxed);
        left -= count;
    }
    Ok(())
}

const _: () = assert!(LANES == 4, "as many as pipelines/orders.yaml has workers");
