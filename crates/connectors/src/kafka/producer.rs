//! Writing records: idempotent, acknowledged by all replicas, never given up, in order.
//!
//! One producer serves the whole process, apart from what may be refused (`refusals.rs`), and one thread serves its receipts. A call hands all its
//! records over and waits once for all receipts; nothing is allocated per record but the bytes.
//!
//! When the broker refuses a record for good (too large, not valid), the producer stops rather than
//! let followers overtake it. Then a new one takes its place, and what was not written goes out
//! again in its old order. What was written before it stopped is known by its receipts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use potok_core::{Fault, Move, Output};
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{BaseProducer, Producer as _, ProducerContext, PurgeConfig};
use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::sync::{Notify, RwLock};

use super::offer::Offers;
use super::patience::Patience;
use super::settings::{Health, KafkaConfig, Role, answers, tell};
use super::turns::Turn;
use super::{fault, lock};

/// How long the receipts thread waits for something to do.
const POLL: Duration = Duration::from_millis(100);
/// How often an absent cluster is asked whether it is back.
const PROBE: Duration = Duration::from_secs(1);
/// How long the client may take to say what it has dropped.
const DROPPED_MAX: Duration = Duration::from_secs(2);
/// The receipt of a record that was given up: what the client would say if it had a limit of its own.
pub const GIVEN_UP: Code = Code::MessageTimedOut;
/// The wait after the client's queue was full.
const FULL_WAIT: Duration = Duration::from_millis(2);

/// Numbers the producers of this process.
static NUMBER: AtomicU64 = AtomicU64::new(1);

/// Where a record was written, or why it was not.
pub type Receipt = Result<(u32, u64), Code>;

/// Records of one call, and their receipts so far.
struct ProducerCall {
    receipts: Mutex<(Vec<Option<Receipt>>, usize)>,
    /// Where records belong that were not written, as far as the client knew.
    partitions: Mutex<HashMap<usize, u32>>,
    done: Notify,
}

impl ProducerCall {
    fn note(&self, index: usize, receipt: Receipt) {
        let mut receipts = lock(&self.receipts);
        let (all, left) = &mut *receipts;
        if let Some(place @ None) = all.get_mut(index) {
            *place = Some(receipt);
            *left -= 1;
            if *left == 0 {
                self.done.notify_one();
            }
        }
    }
}

/// Calls that wait for receipts, by number.
#[derive(Default)]
struct PendingCalls {
    next: u32,
    open: HashMap<u32, Arc<ProducerCall>>,
    /// The call that had the last receipt: most often the next one is of the same.
    last: Option<(u32, Arc<ProducerCall>)>,
}

/// Serves receipts and errors of a producer.
struct Receipts {
    calls: Arc<Mutex<PendingCalls>>,
    health: Health,
    broken: Arc<AtomicBool>,
}

impl ClientContext for Receipts {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        tell(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if let Some(code) = error.rdkafka_error_code() {
            if matches!(code, Code::Fatal | Code::GaplessGuarantee) {
                self.broken.store(true, Ordering::Release);
            }
            self.health.overhear(code, reason);
        }
    }
}

/// Where an acknowledged record lies. Without an offset it need not lie anywhere: a broker that
/// became the leader between two batches has refused the first and taken the second; offered the
/// first again, it calls that a repeat, and the client says that all is well.
pub fn placed(partition: i32, offset: i64) -> Option<(u32, u64)> {
    Some((u32::try_from(partition).ok()?, u64::try_from(offset).ok()?))
}

impl ProducerContext for Receipts {
    /// The number of the call in the upper half, the index of the record in the lower.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let receipt = match result {
            Ok(message) => placed(message.partition(), message.offset()).ok_or_else(|| {
                // What else this producer is told is not to be believed either.
                self.broken.store(true, Ordering::Release);
                tracing::warn!(
                    topic = message.topic(),
                    partition = message.partition(),
                    "a record was acknowledged without a place; writing it again"
                );
                Code::UnknownProducerId
            }),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(Code::Unknown)),
        };
        let missed =
            result.as_ref().err().and_then(|(_, message)| u32::try_from(message.partition()).ok());
        let (number, index) = ((opaque >> 32) as u32, opaque & 0xffff_ffff);
        let mut calls = lock(&self.calls);
        if calls.last.as_ref().is_none_or(|(last, _)| *last != number) {
            calls.last = calls.open.get(&number).map(|call| (number, call.clone()));
        }
        // A call that was cancelled wants no receipts.
        if let Some((_, call)) = &calls.last {
            lock(&call.partitions).extend(missed.map(|partition| (index, partition)));
            call.note(index, receipt);
        }
    }
}

/// A producer and the thread that serves it.
struct RunningProducer {
    producer: BaseProducer<Receipts>,
    broken: Arc<AtomicBool>,
    /// What it has sent is not waited for any more, either.
    given_up: AtomicBool,
    /// Another for each producer of this process.
    number: u64,
}

impl RunningProducer {
    fn has_stopped(&self) -> bool {
        self.broken.load(Ordering::Acquire) || self.producer.client().fatal_error().is_some()
    }
}

/// Writes records, through as many producers in turn as it takes.
pub struct Producer {
    config: KafkaConfig,
    role: Role,
    health: Health,
    calls: Arc<Mutex<PendingCalls>>,
    live: Mutex<Arc<RunningProducer>>,
    /// Held for writing by records that must be sent alone.
    turn: RwLock<()>,
}

/// Where a record of a call stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeliveryState {
    Open,
    /// Refused together with others.
    Suspect,
    Done(Receipt),
}

impl Producer {
    pub fn new(config: &KafkaConfig, role: Role, health: &Health) -> Result<Producer, Fault> {
        let calls = Arc::default();
        let live = Mutex::new(start(config, role, health, &calls)?);
        let (config, health) = (config.clone(), health.clone());
        Ok(Producer { config, role, health, calls, live, turn: RwLock::new(()) })
    }

    /// Writes records in order, once: behind one that is refused nothing of its partition is written.
    /// Receipts that are missing, or that say that the producer had stopped, are of such records.
    /// Those of which nothing is heard are given up.
    pub async fn write_once(
        &self,
        outputs: &[&Output],
        patience: &Patience<'_>,
    ) -> Result<Vec<Option<Receipt>>, Fault> {
        let receipts = self.send_turn(outputs, false, Some(patience)).await?;
        let has_stopped = |receipt: &Receipt| matches!(receipt, Err(code) if is_of_the_stop(*code));
        Ok(receipts.into_iter().map(|of| of.filter(|receipt| !has_stopped(receipt))).collect())
    }

    /// Writes the records and waits for all receipts, in the order of the records. Only refusals
    /// for good are errors here: what merely takes long is waited for.
    pub async fn write(&self, outputs: &[&Output]) -> Result<Vec<Receipt>, Fault> {
        self.write_rest(outputs, vec![DeliveryState::Open; outputs.len()], None).await
    }

    /// Does the same, but gives up what nothing is heard of.
    pub async fn write_patiently(
        &self,
        outputs: &[&Output],
        patience: &Patience<'_>,
    ) -> Result<Vec<Receipt>, Fault> {
        let open = vec![DeliveryState::Open; outputs.len()];
        self.write_rest(outputs, open, Some(patience)).await
    }

    /// Does the same for calls that overlap: lets the next one begin as soon as the records are
    /// handed over, and goes again alone where they were not all written.
    pub async fn write_in(
        &self,
        turn: &Turn<'_>,
        outputs: &[&Output],
    ) -> Result<Vec<Receipt>, Fault> {
        let mut states = vec![DeliveryState::Open; outputs.len()];
        let live = lock(&self.live).clone();
        {
            let _turn = self.turn.read().await;
            if !live.has_stopped() && turn.may_use(live.number) {
                let receipts = self.send(&live, outputs, || turn.handed_over(), None).await;
                note(&mut states, receipts, false);
            }
        }
        if states.iter().any(|state| !matches!(state, DeliveryState::Done(_))) {
            turn.alone().await;
        }
        self.write_rest(outputs, states, None).await
    }

    /// Writes what is not done.
    ///
    /// The client sends records in batches and the broker refuses a batch as a whole, so a refused
    /// record may only have stood beside a bad one. It counts as refused when it is refused alone.
    async fn write_rest(
        &self,
        outputs: &[&Output],
        mut states: Vec<DeliveryState>,
        patience: Option<&Patience<'_>>,
    ) -> Result<Vec<Receipt>, Fault> {
        loop {
            let next = states.iter().position(|state| !matches!(state, DeliveryState::Done(_)));
            let Some(first) = next else { break };
            let rest = states.get(first..).unwrap_or_default();
            // Alone, or together with all that follow up to the next that must go alone.
            let alone = rest.first() == Some(&DeliveryState::Suspect);
            let many = rest.iter().take_while(|state| **state == DeliveryState::Open).count();
            let last = if alone { first + 1 } else { first + many };
            let wanted = outputs.get(first..last).unwrap_or_default();
            let receipts = self.send_turn(wanted, alone, patience).await?;
            note(states.get_mut(first..last).unwrap_or_default(), receipts, alone);
        }
        let receipt = |state| match state {
            DeliveryState::Done(receipt) => receipt,
            DeliveryState::Open | DeliveryState::Suspect => Err(Code::Unknown),
        };
        Ok(states.into_iter().map(receipt).collect())
    }

    /// Sends records; alone means that nothing of others is sent meanwhile either.
    async fn send_turn(
        &self,
        outputs: &[&Output],
        alone: bool,
        patience: Option<&Patience<'_>>,
    ) -> Result<Vec<Option<Receipt>>, Fault> {
        let live = self.current()?;
        if alone {
            let _turn = self.turn.write().await;
            return Ok(self.send(&live, outputs, || (), patience).await);
        }
        let _turn = self.turn.read().await;
        Ok(self.send(&live, outputs, || (), patience).await)
    }

    /// The producer in use; a new one where the last has stopped.
    fn current(&self) -> Result<Arc<RunningProducer>, Fault> {
        let mut live = lock(&self.live);
        if live.has_stopped() {
            live.broken.store(true, Ordering::Release);
            *live = start(&self.config, self.role, &self.health, &self.calls)?;
        }
        Ok(live.clone())
    }

    /// Hands records to the client, says so, and waits for the receipts.
    async fn send(
        &self,
        live: &RunningProducer,
        outputs: &[&Output],
        handed_over: impl FnOnce(),
        patience: Option<&Patience<'_>>,
    ) -> Vec<Option<Receipt>> {
        let call = Arc::new(ProducerCall {
            receipts: Mutex::new((outputs.iter().map(|_| None).collect(), outputs.len())),
            partitions: Mutex::default(),
            done: Notify::new(),
        });
        let number = {
            let mut calls = lock(&self.calls);
            calls.next = calls.next.wrapping_add(1);
            let number = calls.next;
            calls.open.insert(number, call.clone());
            number
        };
        // Forgets the call also when this future is dropped.
        let _registered = CallRegistration { calls: &self.calls, number };
        let mut offers = Offers::to(live.producer.client());
        for (index, output) in outputs.iter().enumerate() {
            let opaque = (number as usize) << 32 | index;
            if let Err(code) = offer(live, &mut offers, output, opaque).await {
                call.note(index, Err(code));
            }
        }
        drop(offers);
        handed_over();
        match patience {
            None => call.done.notified().await,
            Some(patience) => tokio::select! {
                () = call.done.notified() => {}
                () = patience.is_over(|| lock(&call.receipts).1) => {
                    give_up(live, &call, outputs, patience).await;
                }
            },
        }
        let receipts = std::mem::take(&mut lock(&call.receipts).0);
        if receipts.iter().flatten().any(Result::is_ok) {
            self.health.good();
        }
        receipts
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        lock(&self.live).broken.store(true, Ordering::Release);
    }
}

/// Stops the producer, so that what it has not written is out of its hands, and says where that belongs.
async fn give_up(
    live: &RunningProducer,
    call: &ProducerCall,
    outputs: &[&Output],
    patience: &Patience<'_>,
) {
    live.given_up.store(true, Ordering::Release);
    live.broken.store(true, Ordering::Release);
    // Where that takes longer, nobody knows to which partition they belong.
    let _ = tokio::time::timeout(DROPPED_MAX, call.done.notified()).await;
    let partitions = lock(&call.partitions);
    for (index, (receipt, output)) in lock(&call.receipts).0.iter_mut().zip(outputs).enumerate() {
        if receipt.is_none_or(|receipt| receipt.is_err_and(is_of_the_stop)) {
            *receipt = Some(Err(GIVEN_UP));
            patience.gave_up(output, partitions.get(&index).copied());
        }
    }
}

/// Takes in what became of records that were sent together, or of one that was sent alone.
fn note(states: &mut [DeliveryState], receipts: Vec<Option<Receipt>>, alone: bool) {
    let together = !alone && states.len() > 1;
    for (state, receipt) in states.iter_mut().zip(receipts) {
        *state = match receipt {
            // Whatever a stopped producer had not written goes to its successor.
            Some(Err(code)) if is_of_the_stop(code) => DeliveryState::Open,
            Some(Err(code)) if together && is_of_the_batch(code) => DeliveryState::Suspect,
            Some(receipt) => DeliveryState::Done(receipt),
            None => DeliveryState::Open,
        };
    }
}

struct CallRegistration<'a> {
    calls: &'a Mutex<PendingCalls>,
    number: u32,
}

impl Drop for CallRegistration<'_> {
    fn drop(&mut self) {
        let mut calls = lock(self.calls);
        calls.open.remove(&self.number);
        calls.last = None;
    }
}

/// Errors that say nothing about the record: the producer had stopped for another one.
fn is_of_the_stop(code: Code) -> bool {
    matches!(
        code,
        Code::Fatal
            | Code::GaplessGuarantee
            | Code::PurgeQueue
            | Code::PurgeInflight
            | Code::OutOfOrderSequenceNumber
            | Code::UnknownProducerId
            | Code::InvalidProducerEpoch
            | Code::InvalidProducerIdMapping
            | Code::BrokerDestroy
            | Code::Inconsistent
    )
}

/// Errors of a batch, which may be about one record of it.
fn is_of_the_batch(code: Code) -> bool {
    fault::next_move(code) == Move::SetAside
}

/// Gives a record to the client, waiting while its queue is full.
async fn offer(
    live: &RunningProducer,
    offers: &mut Offers<'_, Receipts>,
    output: &Output,
    opaque: usize,
) -> Result<(), Code> {
    loop {
        match offers.offer(output, opaque) {
            Err(Code::QueueFull) => tokio::time::sleep(FULL_WAIT).await,
            taken => return taken,
        }
        if live.broken.load(Ordering::Acquire) {
            return Err(Code::Fatal);
        }
    }
}

fn start(
    config: &KafkaConfig,
    role: Role,
    health: &Health,
    calls: &Arc<Mutex<PendingCalls>>,
) -> Result<Arc<RunningProducer>, Fault> {
    let broken = Arc::new(AtomicBool::new(false));
    let context = Receipts { calls: calls.clone(), health: health.clone(), broken: broken.clone() };
    let client = config.client(role);
    let producer = client.create_with_context(context).map_err(|error| fault::set_up(&error))?;
    let live = Arc::new(RunningProducer {
        producer,
        broken,
        given_up: AtomicBool::new(false),
        number: NUMBER.fetch_add(1, Ordering::Relaxed),
    });
    let (served, health) = (Arc::downgrade(&live), health.clone());
    let serve = move || {
        let mut asked = tokio::time::Instant::now();
        // Ends when nobody can send any more: then there is nobody to tell either.
        while let Some(live) = served.upgrade() {
            live.producer.poll(POLL);
            if live.broken.load(Ordering::Acquire) {
                // What waits in a producer that has stopped would wait for ever.
                let waiting = PurgeConfig::default().queue();
                live.producer.purge(match live.given_up.load(Ordering::Acquire) {
                    true => waiting.inflight(),
                    false => waiting,
                });
            }
            if health.trouble().is_some() && asked.elapsed() >= PROBE {
                if answers(live.producer.client(), PROBE) {
                    health.good();
                }
                asked = tokio::time::Instant::now();
            }
        }
    };
    std::thread::Builder::new()
        .name("kafka-receipts".into())
        .spawn(serve)
        .map_err(fault::poller_died)?;
    Ok(live)
}
