//! Messages delivered in one call, and the destination's answer.

use bytes::Bytes;

use crate::{DeliveryId, Fault, Headers, Timestamp};

/// One thing to deliver.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its name: stable across repeats, different for different work.
    pub id: DeliveryId,
    /// The key to deliver under.
    pub key: Option<Bytes>,
    /// Headers of the record.
    pub headers: Headers,
    /// The value after decoding and stages.
    pub value: Bytes,
    /// The value as it was read from the source: `content_hash` is the hash of these bytes.
    pub source: Bytes,
    /// The business id, where the pipeline asks for `once_by`.
    pub once: Option<Bytes>,
    /// When the log took the record.
    pub time: Timestamp,
}

impl Message {
    /// Its size in memory, which is nearly that on the wire.
    pub fn bytes(&self) -> usize {
        128 + self.key.as_ref().map_or(0, Bytes::len)
            + self.headers.encoded().len()
            + self.value.len()
    }
}

/// Messages of one lane for one destination, in order.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// In lane order.
    pub messages: Vec<Message>,
}

/// How one message ended at a destination.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It is there, durably.
    Delivered,
    /// The same thing was there already, under another name.
    Duplicate,
    /// It was there already under its own name: an attempt before this one was successful.
    Again,
    /// The destination did not take this one; the others are not touched by it.
    Failed(Fault),
}

/// A destination's answer, message by message. Most messages are simply delivered, so only the
/// others are listed.
#[derive(Clone, Debug, Default)]
pub struct Receipt {
    others: Vec<(usize, Outcome)>,
}

impl Receipt {
    /// Every message of the batch was delivered.
    pub fn delivered() -> Self {
        Self::default()
    }

    /// Notes another ending for the message at `index`. Indexes must ascend.
    pub fn set(&mut self, index: usize, outcome: Outcome) {
        debug_assert!(self.others.last().is_none_or(|(last, _)| *last < index), "indexes ascend");
        self.others.push((index, outcome));
    }

    /// The outcomes of a batch of `len` messages, in order.
    pub fn outcomes(self, len: usize) -> impl Iterator<Item = Outcome> {
        let mut others = self.others.into_iter().peekable();
        (0..len).map(move |index| {
            others
                .next_if(|(at, _)| *at == index)
                .map_or(Outcome::Delivered, |(_, outcome)| outcome)
        })
    }
}
