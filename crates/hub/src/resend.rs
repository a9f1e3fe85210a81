//! Connections that outlive their socket: a client that was offered it comes back with the secret it
//! has, and both sides send again what the other has not confirmed.
//!
//! Messages have numbers by their order, from 1; only those count that are not sent anew every time
//! ([`ClientMessage::is_numbered`]). Each side says how far it has read (`Ack`), and with which
//! number it begins after a break (`Sequence`). A completion confirms too: who completed a message
//! has read everything before it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use axum::extract::ws::WebSocket;

use crate::outbox::QueuedFrame;
use crate::protocol::{ClientMessage, ProtocolError};

/// What a client has not confirmed, and what it is to be told.
#[derive(Default)]
pub(crate) struct ResendBuffer {
    kept: VecDeque<QueuedFrame>,
    pub bytes: usize,
    /// Messages so far.
    count: u64,
    /// Since when it has no socket.
    pub alone_since: Option<u32>,
    /// Whether users of it are to know already.
    pub is_open: bool,
    /// The last message of the client that was read, and the last that it was told of.
    received: u64,
    told: u64,
}

impl ResendBuffer {
    /// A message that goes out now, or when the client is back; its number.
    pub fn keep(&mut self, frame: QueuedFrame) -> u64 {
        self.bytes += frame.bytes();
        self.kept.push_back(frame);
        self.count += 1;
        self.count
    }

    /// Lets go of what arrived, up to that number; its bytes.
    pub fn confirm(&mut self, number: u64) -> usize {
        let mut bytes = 0;
        while self.first() <= number {
            let Some(frame) = self.kept.pop_front() else { break };
            bytes += frame.bytes();
        }
        self.bytes -= bytes;
        if self.kept.is_empty() {
            self.kept = VecDeque::new();
        }
        bytes
    }

    /// The number of the first that is not confirmed, or of the next message.
    pub fn first(&self) -> u64 {
        self.count - self.kept.len() as u64 + 1
    }

    pub fn unconfirmed(&self) -> impl Iterator<Item = QueuedFrame> {
        self.kept.iter().cloned()
    }

    /// A message of the client was read.
    pub fn receive(&mut self, number: u64) {
        self.received = number;
    }

    /// The client is back, and may not have heard what it was told.
    pub fn tell_again(&mut self) {
        self.told = 0;
    }

    /// What the client is to be told, where that is news.
    pub fn ack(&mut self) -> Option<u64> {
        (self.received > self.told).then(|| {
            self.told = self.received;
            self.received
        })
    }
}

/// The numbers of a client's messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbering {
    next: u64,
    /// The last that was new.
    latest: u64,
    /// Nothing counts until the client has said where it begins.
    waits: bool,
}

impl Default for Numbering {
    fn default() -> Self {
        Numbering { next: 1, latest: 0, waits: false }
    }
}

/// What to do with a client's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It has this number, where it has one.
    New(Option<u64>),
    /// It was read before, or says only where the client begins.
    Known,
}

impl Numbering {
    /// The client came back.
    pub fn restart(&mut self) {
        self.waits = true;
    }

    pub fn take(&mut self, message: &ClientMessage) -> Result<Arrival, ProtocolError> {
        if let ClientMessage::Sequence(number) = message {
            // More than was sent would leave a gap that nobody sees.
            if !self.waits || *number == 0 || *number > self.next {
                return Err(ProtocolError("a number that cannot be"));
            }
            (self.next, self.waits) = (*number, false);
            return Ok(Arrival::Known);
        }
        if self.waits {
            return Ok(Arrival::Known);
        }
        if !message.is_numbered() {
            return Ok(Arrival::New(None));
        }
        let number = self.next;
        self.next += 1;
        if number <= self.latest {
            return Ok(Arrival::Known);
        }
        self.latest = number;
        Ok(Arrival::New(Some(number)))
    }
}

/// Where a socket waits with which a client came back. Nothing is allocated for clients that do not.
#[derive(Default)]
pub(crate) struct ReturnSlot(OnceLock<Box<Mutex<Option<WebSocket>>>>);

impl ReturnSlot {
    fn slot(&self) -> MutexGuard<'_, Option<WebSocket>> {
        self.0.get_or_init(Box::default).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest counts.
    pub fn put(&self, socket: WebSocket) {
        *self.slot() = Some(socket);
    }

    pub fn take(&self) -> Option<WebSocket> {
        self.0.get()?;
        self.slot().take()
    }

    pub fn is_filled(&self) -> bool {
        self.0.get().is_some() && self.slot().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Protocol;

    #[test]
    fn what_is_confirmed_is_let_go_and_the_rest_has_its_numbers() {
        let mut buffer = ResendBuffer::default();
        assert_eq!(buffer.first(), 1);
        for number in 1..=5 {
            let frame = QueuedFrame::Reply(Protocol::Json.ack(number));
            assert_eq!(buffer.keep(frame), number);
        }
        let all = buffer.bytes;
        assert_eq!((buffer.confirm(0), buffer.first()), (0, 1));
        let gone = buffer.confirm(3);
        assert_eq!((buffer.first(), buffer.unconfirmed().count()), (4, 2));
        assert_eq!(all - gone, buffer.bytes);
        // More than was sent confirms what was sent.
        buffer.confirm(u64::MAX);
        assert_eq!((buffer.first(), buffer.bytes), (6, 0));
        assert_eq!(buffer.ack(), None);
        buffer.receive(2);
        assert_eq!((buffer.ack(), buffer.ack()), (Some(2), None));
        buffer.tell_again();
        assert_eq!(buffer.ack(), Some(2));
    }

    #[test]
    fn a_client_that_begins_anew_is_read_from_where_it_was() {
        let mut numbering = Numbering::default();
        let part = ClientMessage::StreamPart;
        for number in 1..=3 {
            assert_eq!(numbering.take(&part), Ok(Arrival::New(Some(number))));
            assert_eq!(numbering.take(&ClientMessage::Ping), Ok(Arrival::New(None)));
        }
        numbering.restart();
        assert_eq!(numbering.take(&part), Ok(Arrival::Known), "before it says where it begins");
        assert_eq!(numbering.take(&ClientMessage::Sequence(2)), Ok(Arrival::Known));
        assert_eq!(numbering.take(&part), Ok(Arrival::Known));
        assert_eq!(numbering.take(&part), Ok(Arrival::Known));
        assert_eq!(numbering.take(&part), Ok(Arrival::New(Some(4))));
        assert!(numbering.take(&ClientMessage::Sequence(5)).is_err(), "without a break");
        for impossible in [0, 6] {
            numbering.restart();
            assert!(numbering.take(&ClientMessage::Sequence(impossible)).is_err());
        }
    }
}
