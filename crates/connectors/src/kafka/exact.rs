//! The journal of an exact group: outputs and the group's positions in one transaction of Kafka's.
//!
//! Who may commit for the group is decided by the broker: the transaction carries the membership
//! as it was when the transaction began, and a member that has since lost a partition is refused
//! with everything it wrote. A process that dies or freezes in a transaction leaves it open; the
//! broker aborts it after [`TIMEOUT`], and until then whoever takes over waits for the outcome.
//!
//! Nothing is repeated here. After any fault the group is opened anew and reads on behind the last
//! transaction that counted, whichever that was.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use potok_core::{Fault, Journal, NotWritten, Output, Position, RangeSet, Transaction};
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerGroupMetadata};
use rdkafka::error::KafkaError;
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};
use tokio::time::Instant;

use super::metadata::{self, Room};
use super::offer::Offers;
use super::producer::placed;
use super::progress::Progress;
use super::settings::{Health, KafkaConfig, Listener, Role, tell};
use super::source::Session;
use super::topics::Topics;
use super::{fault, lock, native, nonce};

/// How long the broker lets a transaction be open. Until it ends, nobody reads behind it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long one step of a transaction is tried.
const STEP_MAX: Duration = Duration::from_secs(15);
/// Records written at once. While a request of a partition is under way and more waits for it, the
/// client spins; so no more is offered than mostly fits into one request for each partition, and
/// nothing is sent before it is there.
const ROUND_BYTES: usize = 3 << 20;
const LINGER_MILLIS: &str = "1000";
/// The wait after the client's queue was full.
const FULL_WAIT: Duration = Duration::from_millis(2);

/// Writes transactions for a group, one after another.
pub struct ExactJournal {
    pub inner: Arc<Inner>,
}

pub struct Inner {
    pub _session: Arc<Session>,
    pub group: String,
    pub group_hash: u64,
    pub config: KafkaConfig,
    pub health: Health,
    pub topics: Arc<Topics>,
    pub progress: Arc<Mutex<Progress>>,
    /// The member whose positions these are; gone when the group is closed.
    pub member: Weak<BaseConsumer<Listener>>,
    pub producer: Mutex<Option<ThreadedProducer<Quiet>>>,
}

/// Says what the client has to say. What fails, fails the transaction as a whole; what is
/// acknowledged without a place is noted here.
pub struct Quiet {
    health: Health,
    unplaced: AtomicBool,
}

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        tell(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if let Some(code) = error.rdkafka_error_code() {
            self.health.overhear(code, reason);
        }
    }
}

impl ProducerContext for Quiet {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Ok(message) = result
            && placed(message.partition(), message.offset()).is_none()
        {
            self.unplaced.store(true, Ordering::Release);
        }
    }
}

#[async_trait]
impl Journal for ExactJournal {
    async fn transact(&self, transaction: &Transaction) -> Result<Vec<Position>, NotWritten> {
        if transaction.is_empty() {
            return Ok(Vec::new());
        }
        let runs = transaction.outputs.chunk_by(|a, b| a.topic == b.topic);
        let mut topics: Vec<_> = runs.filter_map(|run| Some(run.first()?.topic.clone())).collect();
        topics.sort();
        topics.dedup();
        self.inner.topics.ensure(&topics).await?;
        let (inner, transaction) = (self.inner.clone(), transaction.clone());
        let write = move || inner.write(&transaction);
        tokio::task::spawn_blocking(write).await.map_err(fault::poller_died)??;
        Ok(Vec::new())
    }
}

impl Inner {
    fn write(&self, transaction: &Transaction) -> Result<(), Fault> {
        let lost = || Fault::retry(format!("`{}` is not a member of its group", self.group));
        // As it is now: partitions that leave from here on take their part of this with them.
        let member = self.member.upgrade().ok_or_else(lost)?;
        let membership = member.group_metadata().ok_or_else(lost)?;
        let positions = self.positions(transaction)?;
        let mut slot = lock(&self.producer);
        let producer = match slot.take() {
            Some(producer) => producer,
            None => self.start()?,
        };
        match self.write_with(&producer, &transaction.outputs, &positions, &membership) {
            Ok(()) => {
                *slot = Some(producer);
                let mut progress = lock(&self.progress);
                transaction.ended.iter().for_each(|ended| progress.note(ended));
                self.health.good();
                Ok(())
            }
            Err(error) => {
                let aborted =
                    requires_abort(&error) && producer.abort_transaction(STEP_MAX).is_ok();
                // One that was told nonsense is not used again.
                if aborted && !producer.context().unplaced.load(Ordering::Acquire) {
                    *slot = Some(producer);
                }
                Err(fault::of("take a transaction", &error))
            }
        }
    }

    /// Where the group stands after the transaction.
    fn positions(&self, transaction: &Transaction) -> Result<TopicPartitionList, Fault> {
        let progress = lock(&self.progress);
        let mut list = TopicPartitionList::new();
        for ended in &transaction.ended {
            let Some(held) = progress.get(ended.assignment) else {
                return Err(Fault::retry(format!("{} has left", ended.partition)));
            };
            let Some(end) = ended.ranges.iter().map(|range| range.end).max() else { continue };
            let (topic, index) = (&*ended.partition.topic, ended.partition.index as i32);
            let known = list.find_partition(topic, index).map(|place| place.offset());
            let offset = Offset::Offset(i64::try_from(end).unwrap_or(i64::MAX));
            if known.is_none() {
                list.add_partition(topic, index);
            }
            let log = held.log;
            let text = metadata::encode(log, self.group_hash, end, &RangeSet::new(), Room::Bare);
            if let Some(mut place) = list.find_partition(topic, index) {
                place.set_offset(offset).map_err(|error| fault::of("place a partition", &error))?;
                place.set_metadata(text);
            }
        }
        Ok(list)
    }

    fn start(&self) -> Result<ThreadedProducer<Quiet>, Fault> {
        let mut config = self.config.client(Role::Producer);
        let timeout = TIMEOUT.as_millis().to_string();
        // Another name for each: which member may write is decided by the group, not by the name.
        config.set("transactional.id", format!("potok-{}-{:016x}", self.group, nonce()));
        config.set("transaction.timeout.ms", &timeout);
        config.set("linger.ms", LINGER_MILLIS);
        config.set("message.timeout.ms", &timeout);
        config.set("socket.timeout.ms", &timeout);
        // A transaction is aborted as a whole: there are no gaps to guard against.
        config.set("enable.gapless.guarantee", "false");
        let producer: ThreadedProducer<Quiet> = config
            .create_with_context(Quiet { health: self.health.clone(), unplaced: false.into() })
            .map_err(|error| fault::set_up(&error))?;
        persist(|| producer.init_transactions(STEP_MAX))
            .map_err(|error| fault::of("begin transactions", &error))?;
        Ok(producer)
    }

    fn write_with(
        &self,
        producer: &ThreadedProducer<Quiet>,
        outputs: &[Output],
        positions: &TopicPartitionList,
        membership: &ConsumerGroupMetadata,
    ) -> Result<(), KafkaError> {
        producer.begin_transaction()?;
        let mut bytes = 0;
        let mut offers = Offers::to(producer.client());
        for output in outputs {
            bytes += output.bytes();
            if bytes > ROUND_BYTES {
                native::flush(producer.client(), STEP_MAX)?;
                bytes = output.bytes();
            }
            offer(&mut offers, output)?;
        }
        // All receipts are here before anything is committed.
        native::flush(producer.client(), STEP_MAX)?;
        if producer.context().unplaced.load(Ordering::Acquire) {
            return Err(KafkaError::MessageProduction(Code::UnknownProducerId));
        }
        persist(|| producer.send_offsets_to_transaction(positions, membership, STEP_MAX))?;
        potok_core::trouble::crash_point("gather.sent");
        persist(|| producer.commit_transaction(STEP_MAX))
    }
}

/// Does it again for as long as the client says that it may, bounded.
fn persist(step: impl Fn() -> Result<(), KafkaError>) -> Result<(), KafkaError> {
    let since = Instant::now();
    loop {
        match step() {
            Err(KafkaError::Transaction(error))
                if error.is_retriable() && since.elapsed() < STEP_MAX => {}
            done => return done,
        }
    }
}

fn requires_abort(error: &KafkaError) -> bool {
    match error {
        KafkaError::Transaction(error) => error.txn_requires_abort(),
        // A record the client did not take: nothing fatal, and nothing committed.
        KafkaError::MessageProduction(_) => true,
        _ => false,
    }
}

fn offer(offers: &mut Offers<'_, Quiet>, output: &Output) -> Result<(), KafkaError> {
    loop {
        match offers.offer(output, 0) {
            Err(Code::QueueFull) => std::thread::sleep(FULL_WAIT),
            taken => return taken.map_err(KafkaError::MessageProduction),
        }
    }
}
