//! What nodes say to each other, as bytes.
//!
//! ```text
//! parcel   := version 1 ‖ kind 1 ‖ from 8 ‖ body
//! deliver  := entries: leg 8 ‖ milliseconds 4 ‖ rule 1 ‖ user text ‖ method text ‖ id text ‖ payload text
//! replies  := entries: leg 8 ‖ outcome 1
//! ask      := number 8 ‖ question text
//! tell     := number 8 ‖ answer text
//! echo     := nothing
//! text     := length 4 ‖ UTF-8        numbers are big-endian
//! ```
//!
//! Redis is inside the trust boundary: who can publish there can speak to anyone. Still nothing that
//! arrives is believed further than it goes: lengths are checked before anything is copied, a payload
//! becomes a [`Frame`](crate::Frame) only by the checks that all payloads pass.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

use super::NodeId;
use crate::contract::{AckRule, UserId};

/// Nodes of another version are not understood, and answer nothing.
const VERSION: u8 = 1;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parcel {
    Deliver(Vec<Letter>),
    Replies(Vec<Reply>),
    /// A question to a node, as JSON.
    Ask {
        number: u64,
        question: String,
    },
    Tell {
        number: u64,
        answer: String,
    },
    /// To oneself: whether the line still carries something.
    Echo,
}

/// A message for a user of the other node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Letter {
    /// The sender's number for it, which comes back with the reply.
    pub leg: u64,
    /// How long the user's connections may take, from its arrival: clocks of nodes differ.
    pub within: Duration,
    pub ack: AckRule,
    pub user: UserId,
    pub method: String,
    pub id: String,
    pub payload: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub leg: u64,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Acknowledged,
    Written,
    NotWritten,
    /// The user is not here.
    Gone,
}

impl Parcel {
    pub fn encode(&self, from: NodeId) -> Bytes {
        let mut out = BytesMut::with_capacity(64);
        let kind = match self {
            Parcel::Deliver(_) => 1,
            Parcel::Replies(_) => 2,
            Parcel::Ask { .. } => 3,
            Parcel::Tell { .. } => 4,
            Parcel::Echo => 5,
        };
        out.put_u8(VERSION);
        out.put_u8(kind);
        out.put_u64(from.0);
        match self {
            Parcel::Deliver(letters) => letters.iter().for_each(|letter| letter.encode(&mut out)),
            Parcel::Replies(replies) => {
                for Reply { leg, outcome } in replies {
                    out.put_u64(*leg);
                    out.put_u8(*outcome as u8);
                }
            }
            Parcel::Ask { number, question: text } | Parcel::Tell { number, answer: text } => {
                out.put_u64(*number);
                put_text(&mut out, text);
            }
            Parcel::Echo => {}
        }
        out.freeze()
    }

    /// Who sent it, and what; `None` for bytes that no node sends.
    pub fn decode(bytes: &[u8]) -> Option<(NodeId, Parcel)> {
        let mut rest = bytes;
        let [version, kind] = take(&mut rest)?;
        if version != VERSION {
            return None;
        }
        let from = NodeId(u64::from_be_bytes(take(&mut rest)?));
        let parcel = match kind {
            1 => Parcel::Deliver(entries(rest, Letter::decode)?),
            2 => Parcel::Replies(entries(rest, Reply::decode)?),
            3 | 4 => {
                let number = u64::from_be_bytes(take(&mut rest)?);
                let text = take_text(&mut rest)?;
                if !rest.is_empty() {
                    return None;
                }
                match kind {
                    3 => Parcel::Ask { number, question: text },
                    _ => Parcel::Tell { number, answer: text },
                }
            }
            5 if rest.is_empty() => Parcel::Echo,
            _ => return None,
        };
        Some((from, parcel))
    }
}

impl Letter {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u64(self.leg);
        out.put_u32(self.within.as_millis().try_into().unwrap_or(u32::MAX));
        out.put_u8(match self.ack {
            AckRule::Any => 0,
            AckRule::Result => 1,
        });
        for text in [self.user.as_str(), &self.method, &self.id, &self.payload] {
            put_text(out, text);
        }
    }

    fn decode(rest: &mut &[u8]) -> Option<Self> {
        let leg = u64::from_be_bytes(take(rest)?);
        let within = Duration::from_millis(u32::from_be_bytes(take(rest)?).into());
        let ack = match take(rest)? {
            [0] => AckRule::Any,
            [1] => AckRule::Result,
            _ => return None,
        };
        let user = UserId::new(&take_text(rest)?);
        let (method, id) = (take_text(rest)?, take_text(rest)?);
        Some(Letter { leg, within, ack, user, method, id, payload: take_text(rest)? })
    }
}

impl Reply {
    fn decode(rest: &mut &[u8]) -> Option<Self> {
        let leg = u64::from_be_bytes(take(rest)?);
        let [outcome] = take(rest)?;
        let all = [Outcome::Acknowledged, Outcome::Written, Outcome::NotWritten, Outcome::Gone];
        let outcome = all.into_iter().find(|known| *known as u8 == outcome)?;
        Some(Reply { leg, outcome })
    }
}

fn entries<T>(mut rest: &[u8], decode: fn(&mut &[u8]) -> Option<T>) -> Option<Vec<T>> {
    let mut all = Vec::new();
    while !rest.is_empty() {
        all.push(decode(&mut rest)?);
    }
    Some(all)
}

fn put_text(out: &mut BytesMut, text: &str) {
    // No text here is longer than a message, which is bounded far below.
    out.put_u32(text.len() as u32);
    out.put_slice(text.as_bytes());
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, behind) = rest.split_first_chunk::<N>()?;
    *rest = behind;
    Some(*taken)
}

fn take_text(rest: &mut &[u8]) -> Option<String> {
    let length = u32::from_be_bytes(take(rest)?) as usize;
    let (text, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    String::from_utf8(text.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(leg: u64) -> Letter {
        Letter {
            leg,
            within: Duration::from_millis(1_500),
            ack: AckRule::Result,
            user: UserId::new("älice"),
            method: "notify".to_owned(),
            id: "m-1".to_owned(),
            payload: r#"{"a":1}"#.to_owned(),
        }
    }

    fn samples() -> Vec<Parcel> {
        let reply = |leg, outcome| Reply { leg, outcome };
        vec![
            Parcel::Deliver(vec![letter(1), letter(2)]),
            Parcel::Replies(vec![reply(1, Outcome::Gone), reply(2, Outcome::Acknowledged)]),
            Parcel::Ask { number: 7, question: "{}".to_owned() },
            Parcel::Tell { number: 7, answer: String::new() },
        ]
    }

    #[test]
    fn what_is_said_is_heard() {
        for parcel in samples() {
            let bytes = parcel.encode(NodeId(9));
            assert_eq!(Parcel::decode(&bytes), Some((NodeId(9), parcel)));
        }
    }

    #[test]
    fn any_bytes_are_survived() {
        let samples: Vec<_> = samples().iter().map(|parcel| parcel.encode(NodeId(9))).collect();
        for bytes in &samples {
            for cut in 0..bytes.len() {
                let _ = Parcel::decode(&bytes[..cut]);
                let mut changed = bytes.to_vec();
                changed[cut] = changed[cut].wrapping_add(0x7f);
                let _ = Parcel::decode(&changed);
            }
            assert_eq!(Parcel::decode(&bytes[..bytes.len() - 1]).is_some(), bytes.len() == 10);
        }
        let mut huge = samples[0][..10].to_vec();
        huge.extend([0xff; 40]);
        assert_eq!(Parcel::decode(&huge), None, "a length beyond the end reserves nothing");
    }
}
