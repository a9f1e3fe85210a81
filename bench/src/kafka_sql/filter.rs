//! Kafka to Kafka: a bare loop, and potok.
//!
//! The bare loop is one thread: poll, look at one field without parsing the rest, hand over to the
//! producer. It keeps neither order nor count of anything. With receipts awaited it stops now and
//! then until all are there and commits what it has read; without, it commits what it has handed
//! over, and a crash would lose that.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use memchr::memmem;
use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseRecord, Producer, ThreadedProducer};

use crate::measure::{Process, Run, watch};
use crate::services::{ANSWER_MAX, DeliveryCheck, LANES, PotokProgram, Topic, next, send};

/// Runs take seconds, and asking Kafka for four ends costs little.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Records between two stops to wait for receipts.
const PER_STOP: u64 = 100_000;

/// What passes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// The records of two of four locales, and how many those are.
    Half { passing: u64 },
    /// Every record, unread.
    All,
}

impl Work {
    fn passes(self, value: &[u8]) -> bool {
        if self == Work::All {
            return true;
        }
        Work::is_of_half(value)
    }

    /// True for a record of those two locales.
    pub fn is_of_half(value: &[u8]) -> bool {
        // The field is near the end, behind everything that could hold its name in a text.
        let field = br#""locale":""#;
        let Some(at) = memmem::rfind(value, field) else { return false };
        let rest = value.get(at + field.len()..).unwrap_or_default();
        rest.starts_with(b"en\"") || rest.starts_with(b"ru\"")
    }

    /// The same for potok.
    fn steps(self) -> &'static str {
        match self {
            Work::Half { .. } => {
                "process:\n  - stage: keep\n    \
                 vrl: 'if .locale != \"en\" && .locale != \"ru\" { abort }'"
            }
            Work::All => "decode: { format: raw }",
        }
    }

    /// How many records of the topic pass.
    fn count(self, source: &Topic<'_>) -> u64 {
        match self {
            Work::Half { passing } => passing,
            Work::All => source.records,
        }
    }
}

/// Whether receipts are waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Receipts {
    Awaited,
    Ignored,
}

/// The program.
pub fn potok(ours: &PotokProgram<'_>, source: &Topic<'_>, work: Work) -> Result<Run> {
    let to = Topic::empty(source.kafka, &format!("out-{}", ours.next()));
    let running = ours.between(source, &to, work.steps())?;
    arrivals(ours, source, &to, work, &running.process)
}

/// Watches what passes arrive in the other topic: what a consumer of it would see.
fn arrivals(
    ours: &PotokProgram<'_>,
    source: &Topic<'_>,
    to: &Topic<'_>,
    work: Work,
    process: &Process,
) -> Result<Run> {
    let (client, passing) = (to.client()?, work.count(source));
    let arrived = || Ok::<u64, anyhow::Error>(to.ends(&client)?.iter().sum());
    let mut run = watch(process, passing, LOOK_EVERY, || ours.servers(None), arrived)?;
    ensure!(arrived()? == passing, "{passing} records pass, and {} arrived", arrived()?);
    // Rates are of what was read.
    run.records = run.records * source.records / passing;
    source.kafka.delete_topic(&to.name);
    Ok(run)
}

/// A bare loop.
pub fn bare(
    ours: &PotokProgram<'_>,
    source: &Topic<'_>,
    work: Work,
    receipts: Receipts,
) -> Result<Run> {
    let to = Topic::empty(source.kafka, &format!("out-{}", ours.next()));
    let consumer = source.consumer()?;
    let producer: ThreadedProducer<DeliveryCheck> =
        to.producer().create_with_context(DeliveryCheck::default())?;
    let own = Process::own();
    own.forget_peak()?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| pump(&consumer, &producer, (source, &to.name), work, receipts));
        let run = arrivals(ours, source, &to, work, &own);
        match thread.join() {
            Ok(pumped) => pumped.and(run),
            Err(_) => bail!("the loop panicked"),
        }
    })
}

fn pump(
    consumer: &BaseConsumer,
    producer: &ThreadedProducer<DeliveryCheck>,
    (source, to): (&Topic<'_>, &str),
    work: Work,
    receipts: Receipts,
) -> Result<()> {
    let mut offsets = [None; LANES];
    for number in 1..=source.records {
        let message = next(|wait| consumer.poll(wait))?;
        let value = message.payload().unwrap_or_default();
        if work.passes(value) {
            let key = message.key().unwrap_or_default();
            send(producer, BaseRecord::to(to).key(key).payload(value))?;
        }
        if let Some(place) = offsets.get_mut(usize::try_from(message.partition())?) {
            *place = Some(message.offset());
        }
        if number % PER_STOP == 0 || number == source.records {
            if receipts == Receipts::Awaited {
                producer.flush(ANSWER_MAX)?;
            }
            for (partition, offset) in (0..).zip(offsets) {
                if let Some(offset) = offset {
                    consumer.store_offset(&source.name, partition, offset)?;
                }
            }
        }
    }
    producer.flush(ANSWER_MAX)?;
    producer.context().all_written()
}
