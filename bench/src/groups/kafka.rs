//! Kafka → groups → Kafka: bare loops, and potok with what is held in memory or in Redis.
//!
//! A bare loop is two threads that a careful person would write first: one copies every record
//! into another topic, keyed by its group, waits for the receipts now and then and commits; the
//! other reads that topic, keeps bodies in a map or in Redis (see `keep.rs`), and when a group has
//! all its records hands them to the topic they are for, with their headers. It knows how many
//! there will be, decodes nothing, and a restart would cost it everything it holds.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use potok_services::Redis;
use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Header, Headers, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ThreadedProducer};

use super::keep::{self, Keep};
use super::{GROUP_HEADER, Shape, pipeline, store};
use crate::measure::{Process, Run, watch_from};
use crate::report::{Contest, Side};
use crate::services::{ANSWER_MAX, DeliveryCheck, LANES, PotokProgram, Topic, next, send};

const ROUNDS: usize = 5;
/// Runs take seconds, and asking Kafka for four ends costs little.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Records between two stops to wait for receipts.
const PER_STOP: u64 = 100_000;

/// Runs and prints.
pub fn run(ours: &PotokProgram<'_>, redis: &Redis, quick: bool) -> Result<()> {
    let (groups, per_group) = if quick { (1_000, 60) } else { (3_000, 80) };
    let all_open = Shape::all_open(groups, per_group);
    let in_turn = Shape { at_a_time: 100, ..all_open };
    contest(ours, redis, "100 groups are filled at a time", in_turn, &KEEPS)?;
    contest(ours, redis, "every group open until the end", all_open, &KEEPS[..1])
}

/// Bare loops, and potok with the same store.
const KEEPS: [(&str, &str, Option<&str>); 3] = [
    ("bare loop, in memory", "potok, in memory", None),
    ("bare loop, Redis readable", "potok, Redis readable", Some("readable")),
    ("bare loop, Redis packed", "potok, Redis packed", Some("packed")),
];

fn contest(
    ours: &PotokProgram<'_>,
    redis: &Redis,
    how: &str,
    shape: Shape,
    keeps: &[(&'static str, &'static str, Option<&str>)],
) -> Result<()> {
    let mut number = 0;
    let name = format!("grouped-{}", ours.next());
    let source = Topic::fill(ours.kafka, &name, shape.records, 6, |_| {
        let group = shape.group(number);
        number += 1;
        OwnedHeaders::new().insert(Header { key: GROUP_HEADER, value: Some(&group) })
    })?;
    let servers = || ours.servers(Some(redis.pid()));
    let mut sides: Vec<Side<'_>> = Vec::new();
    for (bare_loop, program, layout) in keeps {
        let keep = || match layout {
            None => Ok(Keep::in_memory()),
            Some("readable") => Keep::readable(&redis.url()),
            Some(_) => Keep::packed(&redis.url()),
        };
        let connections = layout.map(|layout| store(redis, layout)).unwrap_or_default();
        let (source, servers) = (&source, &servers);
        sides.push((bare_loop, Box::new(move || bare(ours, source, shape, keep()?, servers))));
        sides.push((
            program,
            Box::new(move || {
                keep::empty(&redis.url())?;
                potok(ours, source, shape, &connections, servers)
            }),
        ));
    }
    let title = format!("groups: Kafka → groups → Kafka, {how}");
    let contest = Contest::of(&title, ROUNDS, sides)?;
    for (bare_loop, program, _) in keeps {
        contest.ratio(program, bare_loop, Some(0.7))?;
    }
    Ok(())
}

/// The program.
fn potok(
    ours: &PotokProgram<'_>,
    source: &Topic<'_>,
    shape: Shape,
    connections: &str,
    servers: &dyn Fn() -> Result<f64>,
) -> Result<Run> {
    let name = format!("groups-{}", ours.next());
    let to = Topic::empty(source.kafka, &format!("out-{name}"));
    let internal = Topic::named(source.kafka, &format!("potok-{name}"));
    let text = pipeline(&name, &source.name, &shape.step(), &to.name);
    let running = ours.start(&name, &text, connections, &[])?;
    arrivals(source, [&internal, &to], &running.process, servers)
}

/// Watches from the first copy of a record to the last record delivered.
fn arrivals(
    source: &Topic<'_>,
    [internal, to]: [&Topic<'_>; 2],
    process: &Process,
    servers: &dyn Fn() -> Result<f64>,
) -> Result<Run> {
    let client = to.client()?;
    let end = |topic: &Topic<'_>| Ok::<u64, anyhow::Error>(topic.ends(&client)?.iter().sum());
    let run =
        watch_from(process, source.records, LOOK_EVERY, servers, || end(internal), || end(to))?;
    ensure!(end(to)? == source.records, "{} of {} arrived", end(to)?, source.records);
    source.kafka.delete_topic(&internal.name);
    source.kafka.delete_topic(&to.name);
    Ok(run)
}

/// A bare loop.
fn bare(
    ours: &PotokProgram<'_>,
    source: &Topic<'_>,
    shape: Shape,
    keep: Keep,
    servers: &dyn Fn() -> Result<f64>,
) -> Result<Run> {
    let number = ours.next();
    let internal = Topic::empty(source.kafka, &format!("internal-{number}"));
    let to = Topic::empty(source.kafka, &format!("out-{number}"));
    let own = Process::own();
    own.forget_peak()?;
    std::thread::scope(|scope| {
        let gathering = scope.spawn(|| gather(source, &internal));
        let holding = scope.spawn(|| hold(&internal, shape, keep, &to));
        let run = arrivals(source, [&internal, &to], &own, servers);
        for thread in [gathering, holding] {
            match thread.join() {
                Ok(ended) => ended?,
                Err(_) => bail!("the loop panicked"),
            }
        }
        run
    })
}

fn gather(source: &Topic<'_>, internal: &Topic<'_>) -> Result<()> {
    let consumer = source.consumer()?;
    let producer: ThreadedProducer<DeliveryCheck> =
        internal.producer().create_with_context(DeliveryCheck::default())?;
    let mut offsets = Offsets::default();
    for number in 1..=source.records {
        let message = next(|wait| consumer.poll(wait))?;
        let headers = message.headers().context("headers")?;
        let group = headers.try_get(0).and_then(|header| header.value).context("a group")?;
        let value = message.payload().unwrap_or_default();
        let record = BaseRecord::to(&internal.name).key(group).payload(value);
        send(&producer, record.headers(headers.detach()))?;
        offsets.read(&message)?;
        if number % PER_STOP == 0 || number == source.records {
            producer.flush(ANSWER_MAX)?;
            offsets.store(&consumer, &source.name)?;
        }
    }
    producer.context().all_written()
}

fn hold(internal: &Topic<'_>, shape: Shape, mut keep: Keep, to: &Topic<'_>) -> Result<()> {
    let consumer = internal.consumer()?;
    let producer: ThreadedProducer<DeliveryCheck> =
        to.producer().create_with_context(DeliveryCheck::default())?;
    let mut offsets = Offsets::default();
    let deliver = |group: &[u8], value: &[u8], headers: Option<OwnedHeaders>| {
        let record = BaseRecord::to(&to.name).key(group).payload(value);
        send(&producer, BaseRecord { headers, ..record })
    };
    for _ in 0..shape.records {
        let message = next(|wait| consumer.poll(wait))?;
        let (key, value) = (message.key().context("a key")?, message.payload().unwrap_or_default());
        let id = format!("{}-{}", message.partition(), message.offset());
        keep.put(key, &id, value, || message.headers().map(BorrowedHeaders::detach))?;
        keep.deliver_complete(shape.per_group, deliver)?;
        offsets.read(&message)?;
    }
    keep.finish(shape.per_group, deliver)?;
    producer.flush(ANSWER_MAX)?;
    offsets.store(&consumer, &internal.name)?;
    producer.context().all_written()
}

/// The last offset read of each partition.
#[derive(Default)]
struct Offsets([Option<i64>; LANES]);

impl Offsets {
    fn read(&mut self, message: &BorrowedMessage<'_>) -> Result<()> {
        let place = self.0.get_mut(usize::try_from(message.partition())?);
        *place.context("a partition")? = Some(message.offset());
        Ok(())
    }

    fn store(&self, consumer: &BaseConsumer, topic: &str) -> Result<()> {
        for (partition, offset) in (0..).zip(self.0) {
            if let Some(offset) = offset {
                consumer.store_offset(topic, partition, offset)?;
            }
        }
        Ok(())
    }
}
