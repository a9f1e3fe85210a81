//! What one connection is to be sent, and what it owes an answer for. Its [`Connection`] has the lock.
//!
//! Lists are allocated when they are needed and given back when they are empty.
//!
//! [`Connection`]: crate::connection::Connection

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::Frame;
use crate::counters::Counters;
use crate::delivery::Delivery;
use crate::protocol::{Encoded, Protocol};
use crate::resend::ResendBuffer;
use crate::settings::Limits;

#[derive(Default)]
pub(crate) struct Outbox {
    pub protocol: Option<Protocol>,
    /// To be written, in order.
    pub ready: VecDeque<QueuedFrame>,
    pub ready_bytes: usize,
    /// Since when the first of them has been the first.
    pub first_since: u32,
    /// What does not fit the window yet.
    pub waiting: WaitingMessages,
    /// Sent, or about to be, in order.
    pub unanswered: VecDeque<UnansweredMessage>,
    /// Those of them that are waited for, and their bytes: the window.
    pub counted: usize,
    pub counted_bytes: usize,
    /// Not waited for, until it completes something.
    pub mute: bool,
    /// When it was first asked for an answer; 0 before that, and from its first one on.
    pub first_asked: u32,
    pub has_answered: bool,
    /// Since when it has not been given anything because it is about to be closed.
    pub leaving_since: Option<u32>,
    pub ended: bool,
    /// Where its client may come back.
    pub resend: Option<Box<ResendBuffer>>,
}

type WaitingMessages = VecDeque<(Arc<Frame>, Arc<Delivery>)>;

pub(crate) fn bytes_of(waiting: &WaitingMessages) -> usize {
    waiting.iter().map(|(frame, _)| frame.bytes()).sum()
}

/// What a ping counts for, whatever the protocol.
const PING_BYTES: usize = 11;

#[derive(Clone)]
pub(crate) enum QueuedFrame {
    Message(Arc<Frame>),
    /// The answer to a call of the client.
    Reply(Encoded),
    /// What is no message of anybody.
    Control(Encoded),
    Ping,
}

impl QueuedFrame {
    pub fn bytes(&self) -> usize {
        match self {
            QueuedFrame::Message(frame) => frame.bytes(),
            QueuedFrame::Reply(encoded) | QueuedFrame::Control(encoded) => encoded.as_bytes().len(),
            QueuedFrame::Ping => PING_BYTES,
        }
    }
}

pub(crate) struct UnansweredMessage {
    pub number: u64,
    pub bytes: usize,
    pub delivery: Arc<Delivery>,
    /// Whether the delivery waits for it.
    pub counted: bool,
    /// Its place among all messages for a client that may come back.
    pub place: u64,
}

impl Outbox {
    /// Queues it, or keeps it until there is a socket; its number where its client may come back.
    pub fn push(&mut self, parcel: QueuedFrame, now: u32, counters: &Counters) -> u64 {
        if self.ended {
            return 0;
        }
        let Some(resend) = &mut self.resend else {
            self.queue(parcel, now, counters);
            return 0;
        };
        let is_alone = resend.alone_since.is_some();
        let number = match parcel {
            QueuedFrame::Message(_) | QueuedFrame::Reply(_) => {
                counters.queued_bytes.fetch_add(parcel.bytes(), Ordering::Relaxed);
                resend.keep(parcel.clone())
            }
            QueuedFrame::Control(_) | QueuedFrame::Ping => 0,
        };
        if !is_alone {
            self.queue(parcel, now, counters);
        }
        number
    }

    /// Sends a message, and remembers it.
    pub fn write(
        &mut self,
        frame: &Arc<Frame>,
        delivery: &Arc<Delivery>,
        counted: bool,
        limits: &Limits,
        now: u32,
        counters: &Counters,
    ) {
        let place = self.push(QueuedFrame::Message(frame.clone()), now, counters);
        if self.first_asked == 0 && !self.has_answered {
            self.first_asked = now.max(1);
        }
        let (number, bytes, delivery) = (frame.number(), frame.bytes(), delivery.clone());
        let sent = UnansweredMessage { number, bytes, delivery, counted, place };
        self.remember(sent, limits);
    }

    pub fn held_bytes(&self) -> usize {
        let kept = self.resend.as_ref().map_or(0, |resend| resend.bytes);
        self.ready_bytes.max(kept)
    }

    /// What is to be written is written no more.
    pub fn drop_ready(&mut self, counters: &Counters) {
        self.ready = VecDeque::new();
        let bytes = std::mem::take(&mut self.ready_bytes);
        counters.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub fn queue(&mut self, parcel: QueuedFrame, now: u32, counters: &Counters) {
        let bytes = parcel.bytes();
        if self.ready.is_empty() {
            self.first_since = now;
        }
        self.ready.push_back(parcel);
        self.ready_bytes += bytes;
        counters.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn leave(&mut self, bytes: usize, counters: &Counters) {
        self.ready_bytes = self.ready_bytes.saturating_sub(bytes);
        counters.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.tidy();
    }

    pub fn has_window(&self, bytes: usize, limits: &Limits) -> bool {
        let kept = self.resend.as_ref().map_or(0, |resend| resend.bytes);
        self.counted < limits.unanswered
            && (self.counted == 0 || self.counted_bytes + bytes <= limits.unanswered_bytes)
            && (kept == 0 || kept + bytes <= limits.unconfirmed_bytes)
    }

    /// Whether a message may wait that does not fit the window.
    pub fn may_wait(&self, bytes: usize, limits: &Limits) -> bool {
        self.waiting.len() < limits.waiting
            && bytes_of(&self.waiting) + bytes <= limits.queued_bytes
    }

    pub fn remember(&mut self, sent: UnansweredMessage, limits: &Limits) {
        // What is not waited for is only remembered so that a late completion is recognised.
        while self.unanswered.len() >= 2 * limits.unanswered {
            let Some(place) = self.unanswered.iter().position(|sent| !sent.counted) else { break };
            self.unanswered.remove(place);
        }
        if sent.counted {
            self.counted += 1;
            self.counted_bytes += sent.bytes;
        }
        self.unanswered.push_back(sent);
    }

    /// Moves what fits the window to what is written; whether there was something.
    pub fn promote(&mut self, limits: &Limits, now: u32, counters: &Counters) -> bool {
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
            self.write(&frame, &delivery, true, limits, now, counters);
            any = true;
        }
        any
    }

    /// Gives back what is empty.
    pub fn tidy(&mut self) {
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
