//! Messages out of a stream of bytes that comes in parts of any size.
//!
//! A client may send a byte at a time. Each byte is looked at once and kept once, however small the
//! parts are, so that what a client costs grows with what it sends and with nothing else.

use super::{Framing, ProtocolError, split_behind};

/// The beginning of a message whose end has not come; nothing is allocated between messages.
#[derive(Debug, Default)]
pub struct Inbound {
    held: Vec<u8>,
    /// Bytes at the beginning of it that do not end a message.
    seen: usize,
}

impl Inbound {
    /// What was held, if anything, and `part` behind it.
    pub fn join<'a>(&mut self, part: &'a [u8]) -> InboundBytes<'a> {
        let seen = std::mem::take(&mut self.seen);
        let mut held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            held.extend_from_slice(part);
        }
        InboundBytes { held, part, at: 0, seen }
    }

    /// Keeps what is left for the next part.
    pub fn keep(&mut self, left: InboundBytes<'_>) {
        let InboundBytes { mut held, part, at, seen } = left;
        if held.is_empty() {
            held = part.get(at..).unwrap_or_default().to_vec();
        } else if at >= held.len() {
            held = Vec::new();
        } else {
            // Where a message ended, what is behind it came with this part.
            drop(held.drain(..at));
        }
        (self.held, self.seen) = (held, seen);
    }
}

/// Bytes that are being cut.
pub struct InboundBytes<'a> {
    held: Vec<u8>,
    part: &'a [u8],
    at: usize,
    seen: usize,
}

impl InboundBytes<'_> {
    /// The next whole message; `None` where more bytes are needed.
    pub fn next(&mut self, framing: Framing, limit: usize) -> Result<Option<&[u8]>, ProtocolError> {
        let all = if self.held.is_empty() { self.part } else { &self.held };
        let rest = all.get(self.at..).unwrap_or_default();
        let seen = std::mem::take(&mut self.seen);
        let cut = split_behind(seen, framing, rest, limit)?;
        match cut {
            Some((_, behind)) => self.at = all.len() - behind.len(),
            None => self.seen = rest.len(),
        }
        Ok(cut.map(|(message, _)| message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Encoded, Protocol};

    const LIMIT: usize = 32 << 10;

    /// Messages that come out of parts of that size.
    fn cut(stream: &[u8], framing: Framing, size: usize) -> Vec<Vec<u8>> {
        let (mut inbound, mut messages) = (Inbound::default(), Vec::new());
        for part in stream.chunks(size) {
            let mut bytes = inbound.join(part);
            while let Some(message) = bytes.next(framing, LIMIT).unwrap() {
                messages.push(message.to_vec());
            }
            inbound.keep(bytes);
        }
        assert_eq!((inbound.held.capacity(), inbound.held.len()), (0, 0), "given back");
        messages
    }

    #[test]
    fn parts_of_any_size_are_the_same_messages() {
        for protocol in [Protocol::Json, Protocol::MessagePack] {
            let said: Vec<Encoded> = (0..50)
                .flat_map(|n| {
                    [protocol.ack(n), protocol.ping(), protocol.completion("p1", &Ok("x".into()))]
                })
                .collect();
            let stream: Vec<u8> = said.iter().flat_map(|one| one.as_bytes()).copied().collect();
            let whole = cut(&stream, protocol.framing(), stream.len());
            assert_eq!(whole.len(), said.len());
            for size in 1..100 {
                assert_eq!(cut(&stream, protocol.framing(), size), whole, "{size}");
            }
        }
    }

    /// A byte at a time up to the limit: nothing is looked at again, and nothing copied but where the
    /// buffer grows to twice its size.
    #[test]
    fn a_byte_at_a_time_costs_what_it_is() {
        for framing in [Framing::Separated, Framing::Counted] {
            let mut inbound = Inbound::default();
            // A length of 32 KiB, or letters.
            let head = if framing == Framing::Counted { [0x80, 0x80, 2] } else { *b"abc" };
            let (mut moves, mut place) = (0, std::ptr::null());
            for number in 0..LIMIT {
                let byte = head.get(number).copied().unwrap_or(b'x');
                let mut bytes = inbound.join(std::slice::from_ref(&byte));
                assert_eq!(bytes.seen, number, "what was looked at is known");
                assert_eq!(bytes.next(framing, LIMIT).unwrap(), None);
                inbound.keep(bytes);
                moves += usize::from(std::mem::replace(&mut place, inbound.held.as_ptr()) != place);
            }
            assert_eq!((inbound.held.len(), inbound.seen), (LIMIT, LIMIT));
            assert!(moves <= 2 * LIMIT.ilog2() as usize, "{moves}");
        }
    }

    /// The largest message there may be, whose length counts for nothing.
    #[test]
    fn a_message_in_parts_may_be_as_long_as_one_in_a_piece() {
        let mut stream = vec![0x80, 0x80, 2];
        stream.extend(std::iter::repeat_n(b'x', LIMIT));
        assert_eq!(cut(&stream, Framing::Counted, LIMIT + 2), [vec![b'x'; LIMIT]]);
        let mut stream = vec![b'x'; LIMIT];
        stream.push(0x1e);
        assert_eq!(cut(&stream, Framing::Separated, LIMIT), [vec![b'x'; LIMIT]]);
        let mut inbound = Inbound::default();
        let too_much = [b'x'; LIMIT + 1];
        assert!(inbound.join(&too_much).next(Framing::Separated, LIMIT).is_err());
    }
}
