//! A decoded record.

use bytes::Bytes;

use crate::{Headers, Position, Timestamp};

/// A record whose value passed its decoder. Stages read and replace the value; everything that
/// names the record stays as it was.
#[derive(Clone, Debug)]
pub struct Event {
    /// Where the record lies; for a replayed dead letter, where the original lay.
    pub position: Position,
    /// When the log took it.
    pub time: Timestamp,
    /// The key, byte-exact.
    pub key: Option<Bytes>,
    /// The headers, byte-exact.
    pub headers: Headers,
    /// The decoded value (checked JSON where the decoder says so).
    pub value: Bytes,
    /// The value as it was read, before decoding and stages: what `once_by` compares.
    pub source: Bytes,
    /// The record had no value; a delivery to a topic has none either while `value` is empty.
    pub tombstone: bool,
}
