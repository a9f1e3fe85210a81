//! The journal of an exact group: outputs and the group's positions in one transaction of Kafka's.
//!
//! The broker decides who may commit for the group: the transaction carries the membership
//! as it was when the transaction began, and a member that has since lost a partition is refused
//! with everything it wrote. A process that dies or freezes in a transaction leaves it open; the
//! broker aborts it after [`TIMEOUT`], and until then whoever takes over waits for the outcome.
//!
//! The transactions of a group have one name for the life of the process, so that the next producer
//! ends what the one before it left open, and whatever of that still arrives later is refused
//! (decision 0060). Another process has other names: who may write is decided by the group.
//!
//! Nothing is repeated here. After any fault the group is opened anew and reads on behind the last
//! transaction that counted, whichever that was.
//!
//! A record that its topic will never take fails the transaction it is in. The caller is told which
//! one, and puts something else in its place. The broker says only which batch it refused; so the
//! client is made to send smaller ones until a refused record was alone in its own.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use potok_core::{Fault, Journal, Move, NotWritten, Output, Position, RangeSet, Transaction};
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerGroupMetadata};
use rdkafka::error::KafkaError;
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};
use tokio::time::Instant;

use super::fault::Subject;
use super::metadata::{self, Room};
use super::offer::Offers;
use super::producer::placed;
use super::progress::GroupProgress;
use super::settings::{Health, KafkaConfig, Listener, Role, tell};
use super::source::GroupMembership;
use super::topics::Topics;
use super::unanswered::Unanswered;
use super::{blocking, fault, lock, native};

/// How long the broker lets a transaction be open. Until it ends, nobody reads behind it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long one step of a transaction is tried.
const STEP_MAX: Duration = Duration::from_secs(15);
/// How long the client has for an answer, three steps of a transaction. At times it gives none: it
/// loses sight of a request while its broker stands still (decision 0125).
const ANSWER_MAX: Duration = Duration::from_secs(45);
/// Records written at once. While a request of a partition is under way and more waits for it, the
/// client spins; so no more is offered than mostly fits into one request for each partition, and
/// nothing is sent before it is there.
const ROUND_BYTES: usize = 3 << 20;
const LINGER_MILLIS: &str = "1000";
/// The wait after the client's queue was full.
const FULL_WAIT: Duration = Duration::from_millis(2);
/// Bytes of records that the client sends as one batch, unless it is told otherwise; how much less
/// it gets when the broker has refused one; and where it does not pay to go on step by step.
const BATCH_BYTES: usize = 1_000_000;
const BATCH_SHRINKS_BY: usize = 4;
const BATCH_BYTES_MIN: usize = 1_000;

/// Writes transactions for a group, one after another.
pub struct ExactJournal {
    pub inner: Arc<Inner>,
}

pub struct Inner {
    /// Gone where the client gives no answer.
    pub session: Mutex<Option<Arc<GroupMembership>>>,
    pub group: String,
    pub group_hash: u64,
    pub config: KafkaConfig,
    pub health: Health,
    pub topics: Arc<Topics>,
    pub progress: Arc<Mutex<GroupProgress>>,
    /// The member whose positions these are; gone when the group is closed.
    pub member: Weak<BaseConsumer<Listener>>,
    pub producer: Mutex<Option<ThreadedProducer<Quiet>>>,
    /// Bytes of records in one batch of the next producer; 0 leaves it to the settings.
    pub batch_bytes: AtomicUsize,
    /// The name under which the broker knows the transactions of this group in this process.
    pub transactional_id: String,
    pub unanswered: Arc<Unanswered>,
    /// Of its pipeline.
    pub span: tracing::Span,
}

/// The name of a group's transactions in one process, told from others by `own`.
pub fn transactional_id(group: &str, own: u64) -> String {
    format!("{}-{own:016x}", fault::transactional_ids(group))
}

/// Says what the client has to say. What fails, fails the transaction as a whole; what is
/// acknowledged without a place, and what the broker will never take, is noted here.
pub struct Quiet {
    health: Health,
    /// Of its pipeline: the client speaks from threads of its own.
    span: tracing::Span,
    unplaced: AtomicBool,
    /// By their index in the transaction.
    refused: Mutex<Vec<(usize, Code)>>,
    /// Bytes of records in one batch, or of a single one that is larger.
    batch_bytes: usize,
}

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.span.in_scope(|| tell(level, facility, message));
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if let Some(code) = error.rdkafka_error_code() {
            self.span.in_scope(|| self.health.overhear(code, reason));
        }
    }
}

impl ProducerContext for Quiet {
    /// The index of the record in its transaction.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, index: usize) {
        match result {
            Ok(message) if placed(message.partition(), message.offset()).is_none() => {
                self.unplaced.store(true, Ordering::Release);
            }
            Ok(_) => {}
            Err((error, _)) => {
                let code = error.rdkafka_error_code().filter(|code| is_refusal(*code));
                lock(&self.refused).extend(code.map(|code| (index, code)));
            }
        }
    }
}

/// Says that a record, or its batch, will never be taken.
fn is_refusal(code: Code) -> bool {
    fault::next_move(code) == Move::SetAside
}

/// Why a transaction was not written.
enum TransactionError {
    Client(KafkaError),
    /// By the client: these records, and no others.
    Refused(Vec<(usize, Code)>),
    /// By the broker: the batches in which these records were.
    BatchesRefused(Vec<(usize, Code)>),
}

impl From<KafkaError> for TransactionError {
    fn from(error: KafkaError) -> Self {
        TransactionError::Client(error)
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
        let (call, watched_call) = inner.unanswered.begin(&inner.group);
        let write = blocking(move || {
            let _call = call;
            inner.write(&transaction)
        });
        let inner = self.inner.clone();
        // A task of its own: whoever asked may not wait so long, and the group must be left all the same.
        let watched = tokio::spawn(async move {
            let written = tokio::time::timeout(ANSWER_MAX, write).await;
            if written.is_err() {
                // Whatever the client still does, it is not asked again: the next producer ends what
                // this one has begun.
                *lock(&inner.session) = None;
                inner.unanswered.give_up(&watched_call);
            } else {
                inner.unanswered.answered(&inner.group);
            }
            written
        });
        let watched = watched.await.map_err(fault::poller_died)?;
        let Ok(written) = watched else { return Err(fault::no_answer(ANSWER_MAX).into()) };
        written.map_err(fault::poller_died)??;
        Ok(Vec::new())
    }
}

impl Inner {
    fn write(&self, transaction: &Transaction) -> Result<(), NotWritten> {
        let lost = || Fault::retry(format!("`{}` is not a member of its group", self.group));
        // As it is now: partitions that leave from here on take their part of this with them.
        let membership = self.member.upgrade().and_then(|member| member.group_metadata());
        let membership = membership.ok_or_else(lost)?;
        let positions = self.positions(transaction)?;
        let outputs = &transaction.outputs;
        let mut slot = lock(&self.producer);
        loop {
            let producer = match slot.take() {
                Some(producer) => producer,
                None => self.start()?,
            };
            let failed = match self.write_with(&producer, outputs, &positions, &membership) {
                Ok(()) => {
                    *slot = Some(producer);
                    let mut progress = lock(&self.progress);
                    transaction.ended.iter().for_each(|ended| progress.note(ended));
                    self.health.good();
                    return Ok(());
                }
                Err(failed) => failed,
            };
            let aborted = requires_abort(&failed) && producer.abort_transaction(STEP_MAX).is_ok();
            let batch_bytes = producer.context().batch_bytes;
            // One that was told nonsense is not used again, nor one whose batch was refused: it goes
            // on with sequence numbers that the broker has not seen.
            let is_spent = matches!(failed, TransactionError::BatchesRefused(_));
            if aborted && !is_spent && !producer.context().unplaced.load(Ordering::Acquire) {
                *slot = Some(producer);
            }
            let refused = match failed {
                TransactionError::Client(error) => return Err(self.fault(&error, outputs).into()),
                TransactionError::Refused(refused) => refused,
                TransactionError::BatchesRefused(refused) => {
                    let of = |(index, code): &(usize, Code)| Some((outputs.get(*index)?, *code));
                    if !refused.iter().filter_map(of).all(|(output, code)| {
                        is_alone(output, batch_bytes) || !is_of_the_batch(code)
                    }) {
                        // The next is made to send smaller ones.
                        self.shrink(batch_bytes);
                        continue;
                    }
                    refused
                }
            };
            let why = |(index, code): (usize, Code)| {
                let output = outputs.get(index)?;
                Some((index, fault::refused(&output.topic, output.bytes(), code)))
            };
            return Err(NotWritten::Refused(refused.into_iter().filter_map(why).collect()));
        }
    }

    fn shrink(&self, batch_bytes: usize) {
        let less = match batch_bytes / BATCH_SHRINKS_BY {
            less if less < BATCH_BYTES_MIN => 1,
            less => less,
        };
        self.batch_bytes.store(less, Ordering::Relaxed);
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
        config.set("transactional.id", &self.transactional_id);
        config.set("transaction.timeout.ms", &timeout);
        config.set("linger.ms", LINGER_MILLIS);
        config.set("message.timeout.ms", &timeout);
        config.set("socket.timeout.ms", &timeout);
        // A transaction is aborted as a whole: there are no gaps to guard against.
        config.set("enable.gapless.guarantee", "false");
        let asked = config.get("batch.size").and_then(|size| size.parse().ok());
        let batch_bytes = match self.batch_bytes.load(Ordering::Relaxed) {
            0 => asked.unwrap_or(BATCH_BYTES),
            less => less,
        };
        config.set("batch.size", batch_bytes.to_string());
        let context = Quiet {
            health: self.health.clone(),
            span: self.span.clone(),
            unplaced: false.into(),
            refused: Mutex::default(),
            batch_bytes,
        };
        let producer: ThreadedProducer<Quiet> =
            config.create_with_context(context).map_err(|error| fault::set_up(&error))?;
        persist(|| producer.init_transactions(STEP_MAX))
            .map_err(|error| self.fault(&error, &[]))?;
        Ok(producer)
    }

    /// The meaning of an error.
    fn fault(&self, error: &KafkaError, outputs: &[Output]) -> Fault {
        let mut topics: Vec<Arc<str>> = outputs.iter().map(|o| o.topic.clone()).collect();
        topics.sort();
        topics.dedup();
        let about = Subject { group: &self.group, topics: &topics };
        fault::of_about(about, "take a transaction", error)
    }

    fn write_with(
        &self,
        producer: &ThreadedProducer<Quiet>,
        outputs: &[Output],
        positions: &TopicPartitionList,
        membership: &ConsumerGroupMetadata,
    ) -> Result<(), TransactionError> {
        lock(&producer.context().refused).clear();
        producer.begin_transaction()?;
        let mut bytes = 0;
        let mut offers = Offers::to(producer.client());
        let mut too_much = Vec::new();
        for (index, output) in outputs.iter().enumerate() {
            bytes += output.bytes();
            if bytes > ROUND_BYTES {
                written(producer)?;
                bytes = output.bytes();
            }
            match offer(&mut offers, output, index) {
                Ok(()) => {}
                Err(code) if is_refusal(code) => too_much.push((index, code)),
                Err(code) => {
                    // The client takes nothing more once the broker has refused a batch.
                    written(producer)?;
                    return Err(KafkaError::MessageProduction(code).into());
                }
            }
        }
        if !too_much.is_empty() {
            return Err(TransactionError::Refused(too_much));
        }
        // All receipts are here before anything is committed.
        written(producer)?;
        if producer.context().unplaced.load(Ordering::Acquire) {
            return Err(KafkaError::MessageProduction(Code::UnknownProducerId).into());
        }
        persist(|| producer.send_offsets_to_transaction(positions, membership, STEP_MAX))?;
        potok_core::trouble::crash_point("gather.sent");
        Ok(persist(|| producer.commit_transaction(STEP_MAX))?)
    }
}

/// Waits for the receipts of all that was offered.
fn written(producer: &ThreadedProducer<Quiet>) -> Result<(), TransactionError> {
    native::flush(producer.client(), STEP_MAX)?;
    let refused = std::mem::take(&mut *lock(&producer.context().refused));
    if refused.is_empty() { Ok(()) } else { Err(TransactionError::BatchesRefused(refused)) }
}

/// True when no other record was in the batch of this one.
fn is_alone(output: &Output, batch_bytes: usize) -> bool {
    let bytes = |part: &Option<bytes::Bytes>| part.as_ref().map_or(0, bytes::Bytes::len);
    batch_bytes == 1 || bytes(&output.key) + bytes(&output.value) > batch_bytes
}

/// True when the broker may have meant another record of the batch. Of records that are not valid
/// it says which they are.
fn is_of_the_batch(code: Code) -> bool {
    !matches!(code, Code::InvalidRecord | Code::InvalidTimestamp)
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

fn requires_abort(failed: &TransactionError) -> bool {
    match failed {
        TransactionError::Client(KafkaError::Transaction(error)) => error.txn_requires_abort(),
        // A record the client did not take: nothing fatal, and nothing committed.
        TransactionError::Client(KafkaError::MessageProduction(_)) => true,
        TransactionError::Refused(_) | TransactionError::BatchesRefused(_) => true,
        TransactionError::Client(_) => false,
    }
}

fn offer(offers: &mut Offers<'_, Quiet>, output: &Output, index: usize) -> Result<(), Code> {
    loop {
        match offers.offer(output, index) {
            Err(Code::QueueFull) => std::thread::sleep(FULL_WAIT),
            taken => return taken,
        }
    }
}
