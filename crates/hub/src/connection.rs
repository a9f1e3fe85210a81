//! One connection of a client, whatever its transport: what is queued for it, what it has not
//! answered yet, and why it ends.
//!
//! Only what this very connection was sent and has not completed counts as an acknowledgement, and
//! only once: ids are shared by all receivers of a message, so that everybody knows everybody's.
//! Lists are allocated when they are needed and given back when they are empty; an idle connection
//! has none.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures::task::AtomicWaker;

use crate::Frame;
use crate::calls::Calls;
use crate::contract::{AckRule, Answer, Transport, UserId};
use crate::counters::{Counters, add};
use crate::delivery::{Delivery, Settlements};
use crate::protocol::{ClientCompletion, Encoded, Protocol};
use crate::settings::Limits;
use crate::transport::http_side::HttpSide;
use crate::trouble::{Planted, planted};

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Ending {
    /// The client went, in good order.
    ByClient = 1,
    /// The transport broke.
    Broken,
    /// The token expired, or the hub is drained: the client is to reconnect.
    Elsewhere,
    /// Closed for good, because it was told to, or for a newer connection.
    Kicked,
    /// It did not take what was queued for it.
    Slow,
    /// It said nothing for too long.
    Silent,
    /// It broke the protocol or a limit of it.
    Violation,
}

impl Ending {
    pub const ALL: [Ending; 7] = [
        Ending::ByClient,
        Ending::Broken,
        Ending::Elsewhere,
        Ending::Kicked,
        Ending::Slow,
        Ending::Silent,
        Ending::Violation,
    ];

    /// As metrics call it.
    pub fn name(self) -> &'static str {
        match self {
            Ending::ByClient => "by_client",
            Ending::Broken => "broken",
            Ending::Elsewhere => "reconnect",
            Ending::Kicked => "disconnected",
            Ending::Slow => "slow",
            Ending::Silent => "silent",
            Ending::Violation => "violation",
        }
    }

    /// The Close message that it deserves: an error, and whether to reconnect.
    pub fn farewell(self) -> Option<(Option<&'static str>, bool)> {
        match self {
            Ending::Elsewhere => Some((None, true)),
            Ending::Kicked => Some((None, false)),
            Ending::Violation => {
                Some((Some("The message broke the protocol or a limit of the hub."), false))
            }
            // It would sit in the queue, or nobody is there to read it.
            Ending::ByClient | Ending::Broken | Ending::Slow | Ending::Silent => None,
        }
    }
}

/// Who a connection is and where it came from.
pub(crate) struct Origin {
    pub id: [u8; 16],
    pub user: UserId,
    pub address: IpAddr,
    pub agent: Box<str>,
    pub transport: Transport,
    pub opened: SystemTime,
}

pub(crate) struct Connection {
    pub origin: Origin,
    outbox: Mutex<Outbox>,
    waker: AtomicWaker,
    ending: AtomicU8,
    /// Seconds of the hub's own clock, as all below.
    expires: AtomicU32,
    next_ping: AtomicU32,
    /// When it was last heard; 0 before its first message.
    heard: AtomicU32,
    attached: u32,
    resumed: AtomicU32,
    counters: Arc<Counters>,
    pub calls: Mutex<Calls>,
    /// What transports without a socket of their own need.
    pub http: Option<Box<HttpSide>>,
}

#[derive(Default)]
struct Outbox {
    protocol: Option<Protocol>,
    /// To be written, in order.
    ready: VecDeque<QueuedFrame>,
    ready_bytes: usize,
    /// Since when the first of them has been the first.
    first_since: u32,
    /// What does not fit the window yet.
    waiting: VecDeque<(Arc<Frame>, Arc<Delivery>)>,
    /// Sent, or about to be, in order.
    unanswered: VecDeque<UnansweredMessage>,
    /// Those of them that are waited for, and their bytes: the window.
    counted: usize,
    counted_bytes: usize,
    /// Not waited for, until it completes something.
    mute: bool,
    /// Since when it has not been given anything because it is about to be closed.
    leaving_since: Option<u32>,
    ended: bool,
}

/// What a ping counts for, whatever the protocol.
const PING_BYTES: usize = 11;

enum QueuedFrame {
    Message(Arc<Frame>),
    Control(Encoded),
    Ping,
}

impl QueuedFrame {
    fn bytes(&self) -> usize {
        match self {
            QueuedFrame::Message(frame) => frame.bytes(),
            QueuedFrame::Control(encoded) => encoded.as_bytes().len(),
            QueuedFrame::Ping => PING_BYTES,
        }
    }
}

struct UnansweredMessage {
    number: u64,
    bytes: usize,
    delivery: Arc<Delivery>,
    /// Whether the delivery waits for it.
    counted: bool,
}

impl Connection {
    pub fn new(origin: Origin, now: u32, first_ping: u32, counters: Arc<Counters>) -> Self {
        let http = match origin.transport {
            Transport::WebSockets => None,
            Transport::ServerSentEvents | Transport::LongPolling => {
                Some(Box::new(HttpSide::new(now)))
            }
        };
        Connection {
            origin,
            outbox: Mutex::default(),
            waker: AtomicWaker::new(),
            ending: AtomicU8::new(0),
            expires: AtomicU32::new(0),
            next_ping: AtomicU32::new(now + first_ping),
            heard: AtomicU32::new(0),
            attached: now,
            resumed: AtomicU32::new(0),
            counters,
            calls: Mutex::default(),
            http,
        }
    }

    pub fn protocol(&self) -> Option<Protocol> {
        self.outbox().protocol
    }

    pub fn queued_bytes(&self) -> usize {
        self.outbox().ready_bytes
    }

    pub fn is_mute(&self) -> bool {
        self.outbox().mute
    }

    /// Lets it live until then, if that is later: an older token takes nothing away.
    pub fn prolong(&self, second: u32) {
        self.expires.fetch_max(second, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub fn expires(&self) -> u32 {
        self.expires.load(Ordering::Relaxed)
    }

    pub fn hear(&self, now: u32) {
        self.heard.store(now.max(1), Ordering::Relaxed);
    }

    /// Once a second.
    pub fn may_resume(&self, now: u32) -> bool {
        self.resumed.swap(now, Ordering::Relaxed) != now
    }

    pub fn register(&self, waker: &std::task::Waker) {
        self.waker.register(waker);
    }

    pub fn wake(&self) {
        self.waker.wake();
    }

    /// From here on it speaks `protocol`; `answer` goes out before anything else.
    pub fn speak(&self, protocol: Protocol, answer: Encoded, now: u32) {
        self.outbox().protocol = Some(protocol);
        self.control(answer, now);
    }

    /// Queues what is no message of anybody.
    pub fn control(&self, encoded: Encoded, now: u32) {
        self.outbox().push(QueuedFrame::Control(encoded), now, &self.counters);
        self.wake();
    }

    /// Takes a message, or lets go of it at once.
    pub fn offer(
        &self,
        frame: &Arc<Frame>,
        delivery: &Arc<Delivery>,
        limits: &Limits,
        now: u32,
        settlements: &mut Settlements,
    ) {
        let bytes = frame.bytes();
        let mut outbox = self.outbox();
        if outbox.ended {
            drop(outbox);
            return settlements.release(delivery);
        }
        let number = frame.number();
        if planted(limits, Planted::NoWindow) {
            if outbox.ready_bytes + bytes > limits.queued_bytes {
                drop(outbox);
                settlements.release(delivery);
                return self.end(Ending::Slow);
            }
            outbox.remember(number, delivery.clone(), bytes, true, limits);
        } else if outbox.mute {
            if outbox.ready_bytes + bytes > limits.queued_bytes {
                drop(outbox);
                settlements.release(delivery);
                return self.end(Ending::Slow);
            }
            delivery.mark_written();
            outbox.remember(number, delivery.clone(), bytes, false, limits);
            settlements.release(delivery);
        } else if outbox.has_window(bytes, limits) && outbox.waiting.is_empty() {
            outbox.remember(number, delivery.clone(), bytes, true, limits);
        } else if outbox.waiting.len() < limits.waiting {
            delivery.mark_waited();
            outbox.waiting.push_back((frame.clone(), delivery.clone()));
            self.counters.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
            return;
        } else {
            drop(outbox);
            return settlements.release(delivery);
        }
        delivery.mark_written();
        outbox.push(QueuedFrame::Message(frame.clone()), now, &self.counters);
        drop(outbox);
        self.wake();
    }

    /// What is to be written next.
    pub fn take(&self, now: u32) -> Option<Encoded> {
        let mut outbox = self.outbox();
        let parcel = outbox.ready.pop_front()?;
        outbox.first_since = now;
        outbox.leave(parcel.bytes(), &self.counters);
        let protocol = outbox.protocol.unwrap_or(Protocol::Json);
        drop(outbox);
        Some(match (parcel, protocol) {
            (QueuedFrame::Control(encoded), _) => encoded,
            (QueuedFrame::Ping, _) => protocol.ping(),
            (QueuedFrame::Message(frame), Protocol::Json) => Encoded::Text(frame.json().clone()),
            (QueuedFrame::Message(frame), Protocol::MessagePack) => {
                Encoded::Binary(frame.msgpack().clone())
            }
        })
    }

    pub fn has_ready(&self) -> bool {
        !self.outbox().ready.is_empty()
    }

    /// A completion of the message with that number, and whether it was one of this connection's.
    pub fn complete(
        &self,
        number: Option<u64>,
        completed: ClientCompletion,
        limits: &Limits,
        now: u32,
        settlements: &mut Settlements,
    ) -> bool {
        let mut outbox = self.outbox();
        let mut place = outbox.unanswered.iter().position(|sent| Some(sent.number) == number);
        if place.is_none() && planted(limits, Planted::SlotReused) {
            place = (!outbox.unanswered.is_empty()).then_some(0);
        }
        let Some(sent) = place.and_then(|place| outbox.unanswered.remove(place)) else {
            add(&self.counters.unknown);
            return false;
        };
        if sent.counted {
            outbox.counted -= 1;
            outbox.counted_bytes -= sent.bytes;
        }
        outbox.mute = false;
        let more = outbox.promote(limits, now, &self.counters);
        outbox.tidy();
        drop(outbox);
        if more {
            self.wake();
        }
        match completed {
            ClientCompletion::NoResult => add(&self.counters.no_result),
            ClientCompletion::Threw => add(&self.counters.threw),
            ClientCompletion::Result | ClientCompletion::Void => {}
        }
        let acknowledges = match completed {
            ClientCompletion::Result => true,
            ClientCompletion::NoResult if planted(limits, Planted::ErrorIsNotDelivered) => false,
            ClientCompletion::Void | ClientCompletion::NoResult => {
                sent.delivery.ack == AckRule::Any
            }
            ClientCompletion::Threw => false,
        };
        if acknowledges {
            if !settlements.settle(&sent.delivery, Answer::Acknowledged) {
                add(&self.counters.late);
            }
        } else if sent.counted {
            settlements.release(&sent.delivery);
        }
        true
    }

    /// A message ran into its deadline here: the connection is mute where it was sent the message.
    pub fn missed(
        &self,
        delivery: &Arc<Delivery>,
        limits: &Limits,
        now: u32,
        settlements: &mut Settlements,
    ) {
        let mut outbox = self.outbox();
        let is_it = |other: &Arc<Delivery>| Arc::ptr_eq(other, delivery);
        if let Some(place) = outbox.waiting.iter().position(|(_, waiting)| is_it(waiting)) {
            if let Some((frame, _)) = outbox.waiting.remove(place) {
                self.counters.queued_bytes.fetch_sub(frame.bytes(), Ordering::Relaxed);
            }
            return outbox.tidy();
        }
        if !outbox.unanswered.iter().any(|sent| sent.counted && is_it(&sent.delivery)) {
            return;
        }
        outbox.mute = !planted(limits, Planted::WaitsEachTime);
        (outbox.counted, outbox.counted_bytes) = (0, 0);
        for sent in outbox.unanswered.iter_mut().filter(|sent| sent.counted) {
            sent.counted = false;
            settlements.release(&sent.delivery);
        }
        let waiting = std::mem::take(&mut outbox.waiting);
        drop(outbox);
        for (frame, delivery) in waiting {
            self.counters.queued_bytes.fetch_sub(frame.bytes(), Ordering::Relaxed);
            self.offer(&frame, &delivery, limits, now, settlements);
        }
    }

    /// Drops a message that is not on its way yet.
    pub fn forget(&self, delivery: &Arc<Delivery>) {
        let mut outbox = self.outbox();
        let place = outbox.waiting.iter().position(|(_, other)| Arc::ptr_eq(other, delivery));
        if let Some((frame, _)) = place.and_then(|place| outbox.waiting.remove(place)) {
            self.counters.queued_bytes.fetch_sub(frame.bytes(), Ordering::Relaxed);
        }
    }

    /// Ends it, once; its transport notices.
    pub fn end(&self, ending: Ending) {
        let ended =
            self.ending.compare_exchange(0, ending as u8, Ordering::AcqRel, Ordering::Acquire);
        if ended.is_ok() {
            if ending == Ending::Slow {
                add(&self.counters.slow);
            }
            if let Some(count) = self.counters.closed.get(ending as usize - 1) {
                add(count);
            }
        }
        if let Some(http) = &self.http {
            http.over.notify_one();
        }
        self.wake();
    }

    pub fn ending(&self) -> Option<Ending> {
        let ending = self.ending.load(Ordering::Acquire);
        Ending::ALL.into_iter().find(|known| *known as u8 == ending)
    }

    /// Lets go of all messages, when nothing will come of them any more. Answers that are left stay.
    pub fn clear(&self, settlements: &mut Settlements) {
        let mut outbox = self.outbox();
        outbox.ended = true;
        let waiting = std::mem::take(&mut outbox.waiting);
        let unanswered = std::mem::take(&mut outbox.unanswered);
        outbox.ready.retain(|parcel| matches!(parcel, QueuedFrame::Control(_)));
        let left: usize = outbox.ready.iter().map(QueuedFrame::bytes).sum();
        let bytes = std::mem::replace(&mut outbox.ready_bytes, left).saturating_sub(left)
            + waiting.iter().map(|(frame, _)| frame.bytes()).sum::<usize>();
        (outbox.counted, outbox.counted_bytes) = (0, 0);
        drop(outbox);
        self.counters.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let counted = unanswered.into_iter().filter(|sent| sent.counted).map(|sent| sent.delivery);
        for delivery in counted.chain(waiting.into_iter().map(|(_, delivery)| delivery)) {
            settlements.release(&delivery);
        }
    }

    /// It is about to be closed, and no longer given messages. Returns whether it is time: it owes
    /// no answer, or has had its time.
    pub fn leave(&self, farewell: Duration, now: u32) -> bool {
        let mut outbox = self.outbox();
        let since = *outbox.leaving_since.get_or_insert(now);
        outbox.counted == 0 || u64::from(now.saturating_sub(since)) >= farewell.as_secs()
    }

    pub fn is_leaving(&self) -> bool {
        self.outbox().leaving_since.is_some()
    }

    /// Whether it was sent a message of that number and has not completed it.
    pub fn owes(&self, number: u64) -> bool {
        self.outbox().unanswered.iter().any(|sent| sent.number == number)
    }

    /// Once a second: whether it is to be closed, because its token has expired or it is leaving
    /// already. Everything else that time brings happens here.
    pub fn tick(&self, limits: &Limits, now: u32) -> bool {
        if self.ending().is_some() {
            // Its transport may have been asleep.
            self.wake();
            return false;
        }
        let since = |then: u32| Duration::from_secs(now.saturating_sub(then).into());
        let mut outbox = self.outbox();
        if outbox.protocol.is_none() && since(self.attached) >= limits.handshake_within {
            drop(outbox);
            self.end(Ending::Broken);
            return false;
        }
        let polled = self.origin.transport == Transport::LongPolling;
        let leaving = outbox.leaving_since.is_some();
        let heard = self.heard.load(Ordering::Relaxed);
        if polled {
            drop(outbox);
            let http = self.http.as_deref();
            if http.is_some_and(|http| http.is_left(limits.between_polls, now)) {
                self.end(Ending::Silent);
            }
        } else if !outbox.ready.is_empty() && since(outbox.first_since) >= limits.stalled_for {
            drop(outbox);
            self.end(Ending::Slow);
        } else if heard > 0 && since(heard) >= limits.silent_for {
            drop(outbox);
            self.end(Ending::Silent);
        } else if outbox.protocol.is_some() && now >= self.next_ping.load(Ordering::Relaxed) {
            let next = now.saturating_add(limits.ping_every.as_secs() as u32);
            self.next_ping.store(next, Ordering::Relaxed);
            outbox.push(QueuedFrame::Ping, now, &self.counters);
            drop(outbox);
            self.wake();
        }
        leaving || now >= self.expires.load(Ordering::Relaxed)
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Connection {
    /// What its transport never took is on nobody's way any more.
    fn drop(&mut self) {
        let outbox = self.outbox.get_mut().unwrap_or_else(PoisonError::into_inner);
        let waiting: usize = outbox.waiting.iter().map(|(frame, _)| frame.bytes()).sum();
        self.counters.queued_bytes.fetch_sub(outbox.ready_bytes + waiting, Ordering::Relaxed);
    }
}

impl Outbox {
    fn push(&mut self, parcel: QueuedFrame, now: u32, counters: &Counters) {
        if self.ended {
            return;
        }
        let bytes = parcel.bytes();
        if self.ready.is_empty() {
            self.first_since = now;
        }
        self.ready.push_back(parcel);
        self.ready_bytes += bytes;
        counters.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn leave(&mut self, bytes: usize, counters: &Counters) {
        self.ready_bytes = self.ready_bytes.saturating_sub(bytes);
        counters.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.tidy();
    }

    fn has_window(&self, bytes: usize, limits: &Limits) -> bool {
        self.counted < limits.unanswered
            && (self.counted == 0 || self.counted_bytes + bytes <= limits.unanswered_bytes)
    }

    fn remember(
        &mut self,
        number: u64,
        delivery: Arc<Delivery>,
        bytes: usize,
        counted: bool,
        limits: &Limits,
    ) {
        // What is not waited for is only remembered so that a late completion is recognised.
        while self.unanswered.len() >= 2 * limits.unanswered {
            let Some(place) = self.unanswered.iter().position(|sent| !sent.counted) else { break };
            self.unanswered.remove(place);
        }
        self.unanswered.push_back(UnansweredMessage { number, bytes, delivery, counted });
        if counted {
            self.counted += 1;
            self.counted_bytes += bytes;
        }
    }

    /// Moves what fits the window to what is written; whether there was something.
    fn promote(&mut self, limits: &Limits, now: u32, counters: &Counters) -> bool {
        let mut any = false;
        while let Some((frame, _)) = self.waiting.front() {
            if !self.has_window(frame.bytes(), limits) {
                break;
            }
            let Some((frame, delivery)) = self.waiting.pop_front() else { break };
            let bytes = frame.bytes();
            counters.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            if delivery.is_settled() {
                continue;
            }
            delivery.mark_written();
            self.remember(frame.number(), delivery, bytes, true, limits);
            self.push(QueuedFrame::Message(frame), now, counters);
            any = true;
        }
        any
    }

    /// Gives back what is empty.
    fn tidy(&mut self) {
        if self.ready.is_empty() && self.ready.capacity() > 0 {
            self.ready = VecDeque::new();
        }
        if self.waiting.is_empty() && self.waiting.capacity() > 0 {
            self.waiting = VecDeque::new();
        }
        if self.unanswered.is_empty() && self.unanswered.capacity() > 0 {
            self.unanswered = VecDeque::new();
        }
    }
}
