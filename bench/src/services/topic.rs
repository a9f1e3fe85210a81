//! Topics full of orders, and the clients of the bare loops.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use potok_services::Kafka;
use potok_traffic::orders::{Order, OrderGenerator};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer, DefaultConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, DeliveryResult, OwnedHeaders};
use rdkafka::producer::{
    BaseRecord, DefaultProducerContext, Producer, ProducerContext, ThreadedProducer,
};
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use super::LANES;
use crate::measure::now;

pub const ANSWER_MAX: Duration = Duration::from_secs(60);

/// The settings that were fastest here: with its own defaults the client is three times slower,
/// and easy to beat.
const CONSUMER: [(&str, &str); 6] = [
    ("enable.auto.offset.store", "false"),
    ("enable.auto.commit", "true"),
    ("auto.commit.interval.ms", "1000"),
    ("fetch.queue.backoff.ms", "5"),
    ("queued.min.messages", "200000"),
    ("fetch.message.max.bytes", "4194304"),
];

/// As durable as potok writes: every record on all replicas, once, in order.
const PRODUCER: [(&str, &str); 7] = [
    ("acks", "all"),
    ("enable.idempotence", "true"),
    ("compression.type", "lz4"),
    ("linger.ms", "5"),
    ("batch.size", "1000000"),
    ("queue.buffering.max.messages", "500000"),
    ("queue.buffering.max.kbytes", "262144"),
];

/// A topic with its records.
pub struct Topic<'a> {
    pub kafka: &'a Kafka,
    pub name: String,
    /// How many records it has, and how many in each partition.
    pub records: u64,
    pub partitions: Vec<u64>,
}

impl<'a> Topic<'a> {
    /// A new topic with this many orders, each with the headers that `headers` makes for it.
    pub fn fill(
        kafka: &'a Kafka,
        name: &str,
        records: u64,
        seed: u64,
        mut headers: impl FnMut(&Order) -> OwnedHeaders,
    ) -> Result<Self> {
        let mut topic = Topic::empty(kafka, name);
        let producer: ThreadedProducer<DefaultProducerContext> = topic.producer().create()?;
        let mut generator = OrderGenerator::good_only(seed);
        for _ in 0..records {
            let order = generator.good();
            let record =
                BaseRecord::to(name).key(order.uid.as_bytes()).payload(order.bytes.as_slice());
            send(&producer, record.headers(headers(&order)))?;
        }
        producer.flush(ANSWER_MAX)?;
        let client = topic.client()?;
        topic.partitions = topic.ends(&client)?;
        topic.records = topic.partitions.iter().sum();
        ensure!(topic.records == records, "{} of {records} records lie in Kafka", topic.records);
        Ok(topic)
    }

    /// A new topic.
    pub fn empty(kafka: &'a Kafka, name: &str) -> Self {
        kafka.create_topic(name, LANES as u32, &[]);
        Topic::named(kafka, name)
    }

    /// One that somebody else makes.
    pub fn named(kafka: &'a Kafka, name: &str) -> Self {
        Topic { kafka, name: name.to_owned(), records: 0, partitions: Vec::new() }
    }

    /// Where its partitions end.
    pub fn ends(&self, client: &BaseConsumer) -> Result<Vec<u64>> {
        let end = |partition: usize| {
            let since = now();
            loop {
                match client.fetch_watermarks(&self.name, partition as i32, ANSWER_MAX) {
                    Ok((_, end)) => return Ok(end.unsigned_abs()),
                    // A topic just made has no leader for a moment.
                    Err(error) if since.elapsed() > ANSWER_MAX => bail!(error),
                    Err(_) => std::thread::sleep(Duration::from_millis(10)),
                }
            }
        };
        (0..LANES).map(end).collect()
    }

    /// A client that only asks.
    pub fn client(&self) -> Result<BaseConsumer> {
        Ok(self.config().set("group.id", "bench").create()?)
    }

    /// A consumer of all of it from the start, that commits what is stored.
    pub fn consumer(&self) -> Result<BaseConsumer<DefaultConsumerContext>> {
        let mut config = self.config();
        for (name, value) in CONSUMER {
            config.set(name, value);
        }
        let consumer: BaseConsumer = config.set("group.id", "bare").create()?;
        let mut list = TopicPartitionList::new();
        for partition in 0..LANES {
            list.add_partition_offset(&self.name, partition as i32, Offset::Beginning)?;
        }
        consumer.assign(&list)?;
        Ok(consumer)
    }

    /// How a producer is set up.
    pub fn producer(&self) -> ClientConfig {
        let mut config = self.config();
        for (name, value) in PRODUCER {
            config.set(name, value);
        }
        config
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.kafka.servers());
        config
    }
}

/// Notices a record that was not written.
#[derive(Default)]
pub struct DeliveryCheck(AtomicBool);

impl ClientContext for DeliveryCheck {}

impl ProducerContext for DeliveryCheck {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_err() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

impl DeliveryCheck {
    /// An error where a record was not written.
    pub fn all_written(&self) -> Result<()> {
        ensure!(!self.0.load(Ordering::Relaxed), "a record was not written");
        Ok(())
    }
}

/// Hands a record over, waiting while the client's queue is full.
pub fn send<C: ProducerContext + 'static>(
    producer: &ThreadedProducer<C>,
    mut record: BaseRecord<'_, [u8], [u8], C::DeliveryOpaque>,
) -> Result<()> {
    loop {
        match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                std::thread::sleep(Duration::from_millis(1));
                record = back;
            }
            Err((error, _)) => bail!("Kafka refuses a record: {error}"),
        }
    }
}

/// The next record. A poll may also end early, for an event that is none.
pub fn next<'a>(
    poll: impl Fn(Duration) -> Option<Result<BorrowedMessage<'a>, KafkaError>>,
) -> Result<BorrowedMessage<'a>> {
    let since = now();
    while since.elapsed() < ANSWER_MAX {
        if let Some(message) = poll(ANSWER_MAX) {
            return Ok(message?);
        }
    }
    bail!("Kafka has no more records")
}
