//! One connection of a client, whatever its transport: what is queued for it, what it has not
//! answered yet, and why it ends.
//!
//! Only what this very connection was sent and has not completed counts as an acknowledgement, and
//! only once: ids are shared by all receivers of a message, so that everybody knows everybody's.
//! Lists are allocated when they are needed and given back when they are empty; an idle connection
//! has none.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::task::AtomicWaker;

use crate::Frame;
use crate::calls::Calls;
use crate::contract::{AckRule, Answer, Transport, UserId};
use crate::counters::{Counters, add};
use crate::delivery::{Delivery, Settlements};
use crate::outbox::{Outbox, QueuedFrame, bytes_of};
use crate::protocol::{ClientCompletion, Encoded, Protocol, handshake};
use crate::resend::ReturnSlot;
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
    /// It did not shake hands, or not in a way that is understood.
    NoHandshake,
}

impl Ending {
    pub const ALL: [Ending; 8] = [
        Ending::ByClient,
        Ending::Broken,
        Ending::Elsewhere,
        Ending::Kicked,
        Ending::Slow,
        Ending::Silent,
        Ending::Violation,
        Ending::NoHandshake,
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
            Ending::NoHandshake => "handshake",
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
            // It would sit in the queue, or nobody is there to read it, or it was told already.
            Ending::ByClient
            | Ending::Broken
            | Ending::Slow
            | Ending::Silent
            | Ending::NoHandshake => None,
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
    /// Whether its client was told that it may come back to it.
    pub returns: bool,
    pub opened: SystemTime,
}

pub(crate) struct Connection {
    pub origin: Origin,
    outbox: Mutex<Outbox>,
    waker: AtomicWaker,
    ending: AtomicU8,
    /// Whether it has shaken hands, or will not any more.
    opened: AtomicBool,
    /// When its newest token was issued, in nanoseconds since 1970; 0 where none said it.
    issued: AtomicU64,
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
    /// Where its client comes back.
    pub slot: ReturnSlot,
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
            opened: AtomicBool::new(false),
            issued: AtomicU64::new(0),
            expires: AtomicU32::new(0),
            next_ping: AtomicU32::new(now + first_ping),
            heard: AtomicU32::new(0),
            attached: now,
            resumed: AtomicU32::new(0),
            counters,
            calls: Mutex::default(),
            http,
            slot: ReturnSlot::default(),
        }
    }

    /// It has shaken hands, or will not any more; whether that is news.
    pub fn note_opened(&self) -> bool {
        !self.opened.swap(true, Ordering::AcqRel)
    }

    pub fn protocol(&self) -> Option<Protocol> {
        self.outbox().protocol
    }

    /// What is to be written, or to be kept until the client confirms it, whichever is more.
    pub fn queued_bytes(&self) -> usize {
        self.outbox().held_bytes()
    }

    pub fn is_mute(&self) -> bool {
        self.outbox().mute
    }

    /// Lets it live until then, by a token that was issued at that time. Where that is sooner than
    /// before, an older token takes nothing away.
    pub fn prolong(&self, second: u32, issued: Option<SystemTime>) {
        self.expires.fetch_max(second, Ordering::Relaxed);
        let since_1970 = issued.and_then(|issued| issued.duration_since(UNIX_EPOCH).ok());
        let issued = since_1970.map_or(0, |since| since.as_nanos() as u64);
        self.issued.fetch_max(issued, Ordering::Relaxed);
    }

    /// When the newest token was issued that its client has shown.
    pub fn issued(&self) -> Option<SystemTime> {
        let issued = self.issued.load(Ordering::Relaxed);
        (issued > 0).then(|| UNIX_EPOCH + Duration::from_nanos(issued))
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

    /// Says why there will be no handshake, and ends it.
    pub fn refuse(&self, why: &str, now: u32) -> Ending {
        self.control(Encoded::Text(handshake::answer(Some(why)).into()), now);
        self.end(Ending::NoHandshake);
        Ending::NoHandshake
    }

    /// Queues the answer to a call.
    pub fn reply(&self, encoded: Encoded, now: u32) {
        self.outbox().push(QueuedFrame::Reply(encoded), now, &self.counters);
        self.wake();
    }

    /// From here on its messages are numbered, and its client may come back.
    pub fn number_messages(&self) {
        self.outbox().resend = Some(Box::default());
    }

    /// Its user may know it now; it has told its client that it numbers messages.
    pub fn note_open(&self) {
        if let Some(resend) = &mut self.outbox().resend {
            resend.is_open = true;
        }
    }

    /// Whether its client may come back, now that the socket has broken.
    pub fn lose_socket(&self, now: u32) -> bool {
        let mut outbox = self.outbox();
        if self.ending().is_some() || outbox.ended {
            return false;
        }
        let Some(resend) = &mut outbox.resend else { return false };
        resend.alone_since = Some(now);
        outbox.drop_ready(&self.counters);
        true
    }

    /// Whether a client may come back here.
    pub fn waits_for_return(&self) -> bool {
        let outbox = self.outbox();
        outbox.resend.is_some() && !outbox.ended && self.ending().is_none()
    }

    /// Its client is back: it is told where we begin, and what it has not confirmed.
    pub fn send_again(&self, now: u32) {
        let mut outbox = self.outbox();
        let protocol = outbox.protocol.unwrap_or(Protocol::Json);
        let Some(resend) = &mut outbox.resend else { return };
        resend.alone_since = None;
        resend.tell_again();
        // It was silent for as long as it was away, and longer.
        self.hear(now);
        let first = QueuedFrame::Control(protocol.sequence(resend.first()));
        let again: Vec<_> = resend.unconfirmed().collect();
        outbox.drop_ready(&self.counters);
        for frame in std::iter::once(first).chain(again) {
            outbox.queue(frame, now, &self.counters);
        }
    }

    /// The client has read up to that number.
    pub fn confirm(&self, number: u64, limits: &Limits, now: u32) {
        let mut outbox = self.outbox();
        let Some(resend) = &mut outbox.resend else { return };
        let bytes = resend.confirm(number);
        self.counters.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let more = outbox.promote(limits, now, &self.counters);
        outbox.tidy();
        drop(outbox);
        if more {
            self.wake();
        }
    }

    /// A message of the client was read.
    pub fn receive(&self, number: u64) {
        if let Some(resend) = &mut self.outbox().resend {
            resend.receive(number);
        }
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
        let is_mute = outbox.mute && !planted(limits, Planted::NoWindow);
        if is_mute || planted(limits, Planted::NoWindow) {
            if outbox.held_bytes() + bytes > limits.queued_bytes {
                drop(outbox);
                settlements.release(delivery);
                return self.end(Ending::Slow);
            }
            delivery.mark_written();
            outbox.write(frame, delivery, !is_mute, limits, now, &self.counters);
            if is_mute {
                settlements.release(delivery);
            }
        } else if outbox.has_window(bytes, limits) && outbox.waiting.is_empty() {
            delivery.mark_written();
            outbox.write(frame, delivery, true, limits, now, &self.counters);
        } else if outbox.may_wait(bytes, limits) {
            delivery.mark_waited();
            outbox.waiting.push_back((frame.clone(), delivery.clone()));
            self.counters.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
            return;
        } else {
            drop(outbox);
            return settlements.release(delivery);
        }
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
            (QueuedFrame::Reply(encoded) | QueuedFrame::Control(encoded), _) => encoded,
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
        (outbox.first_asked, outbox.has_answered) = (0, true);
        if let Some(resend) = &mut outbox.resend {
            // Who completed it has read all that came before it.
            let bytes = resend.confirm(sent.place);
            self.counters.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        let more = outbox.promote(limits, now, &self.counters);
        outbox.tidy();
        drop(outbox);
        if more {
            self.wake();
        }
        match completed {
            ClientCompletion::NoResult => add(&self.counters.no_result),
            ClientCompletion::MultipleResults => add(&self.counters.multiple),
            ClientCompletion::Threw => add(&self.counters.threw),
            ClientCompletion::Result => add(&self.counters.result),
            ClientCompletion::Void => add(&self.counters.void),
        }
        let acknowledges = match completed {
            ClientCompletion::Result => true,
            ClientCompletion::NoResult | ClientCompletion::MultipleResults
                if planted(limits, Planted::ErrorIsNotDelivered) =>
            {
                false
            }
            ClientCompletion::Void
            | ClientCompletion::NoResult
            | ClientCompletion::MultipleResults => sent.delivery.ack == AckRule::Any,
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

    /// Whether its client went as soon as it was asked for its first answer, as those do that do not
    /// know what an answer is. Before [`clear`](Self::clear) alone.
    pub fn went_when_asked(&self, now: u32) -> bool {
        let outbox = self.outbox();
        let by_itself = matches!(self.ending(), Some(Ending::ByClient | Ending::Broken));
        let asked = outbox.first_asked;
        by_itself && !outbox.ended && asked > 0 && now.saturating_sub(asked) <= 1
    }

    /// Lets go of all messages, when nothing will come of them any more. Answers that are left stay.
    pub fn clear(&self, settlements: &mut Settlements) {
        let mut outbox = self.outbox();
        outbox.ended = true;
        let waiting = std::mem::take(&mut outbox.waiting);
        let unanswered = std::mem::take(&mut outbox.unanswered);
        let is_answer =
            |frame: &QueuedFrame| matches!(frame, QueuedFrame::Reply(_) | QueuedFrame::Control(_));
        outbox.ready.retain(is_answer);
        let left: usize = outbox.ready.iter().map(QueuedFrame::bytes).sum();
        let bytes = std::mem::replace(&mut outbox.ready_bytes, left).saturating_sub(left)
            + bytes_of(&waiting)
            + outbox.resend.take().map_or(0, |resend| resend.bytes);
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
            self.refuse(handshake::TOO_LATE, now);
            return false;
        }
        let polled = self.origin.transport == Transport::LongPolling;
        let leaving = outbox.leaving_since.is_some();
        let heard = self.heard.load(Ordering::Relaxed);
        if let Some(alone) = outbox.resend.as_ref().and_then(|resend| resend.alone_since) {
            drop(outbox);
            if since(alone) >= limits.return_within {
                self.end(Ending::Broken);
            }
        } else if polled {
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
        } else if let Some(protocol) = outbox.protocol {
            let ack = outbox.resend.as_mut().and_then(|resend| resend.ack());
            let is_ping = now >= self.next_ping.load(Ordering::Relaxed);
            let is_unopened = outbox.resend.as_ref().is_some_and(|resend| !resend.is_open);
            if let Some(ack) = ack {
                let ack = QueuedFrame::Control(protocol.ack(ack));
                outbox.push(ack, now, &self.counters);
            }
            if is_ping {
                let next = now.saturating_add(limits.ping_every.as_secs() as u32);
                self.next_ping.store(next, Ordering::Relaxed);
                outbox.push(QueuedFrame::Ping, now, &self.counters);
            }
            drop(outbox);
            if ack.is_some() || is_ping || is_unopened {
                self.wake();
            }
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
        let kept = outbox.resend.as_ref().map_or(0, |resend| resend.bytes);
        let bytes = outbox.ready_bytes + bytes_of(&outbox.waiting) + kept;
        self.counters.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}
