//! How a dead letter lies in its topic.
//!
//! Key and value are the record's own, byte-exact. The first header is [`DEAD_LETTER_HEADER`] with
//! the JSON of an [`Envelope`]; the headers behind it are the record's own, byte-exact. A body that
//! the log does not take whole lies in several such records, each with its [`Piece`]; where key and
//! headers are large, they lie in the pieces too, as [`PackedRecord`].

use async_trait::async_trait;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::{Fault, Headers, HeadersBuilder, Position, Reason, Record, Timestamp};

/// Name of the first header of a dead letter.
pub const DEAD_LETTER_HEADER: &str = "potok-dead-letter";

/// The facts about a dead letter, beside its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// The pipeline that set it aside.
    pub pipeline: String,
    /// Where the record lay.
    pub origin: Position,
    /// Which `deliver` entry failed; `None` when it came to none.
    pub deliver: Option<u32>,
    /// Why, as one of a closed list.
    pub reason: Reason,
    /// Why, in words.
    pub error: String,
    /// How often it was tried: 1 at first, one more with each replay.
    pub attempts: u32,
    /// When it was set aside.
    pub time: Timestamp,
    /// The dead letter whose replay failed, by its position; `None` at the first failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_of: Option<String>,
    /// Where its group was, where groups are sharded; `None` where it came to no group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardPlace>,
    /// Which part of the body this record holds; `None` when it holds all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub piece: Option<Piece>,
}

/// The shard of a record, and the file that its group became. A replay goes to that shard, however many
/// there are by then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardPlace {
    /// Counted from 0.
    pub number: u32,
    /// The name of the file; `None` where groups become no files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// A part of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Where it begins.
    pub from: u64,
    /// How long the whole body is.
    pub of: u64,
    /// The body is a [`PackedRecord`].
    #[serde(default, skip_serializing_if = "is_false")]
    pub packed: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_false(value: &bool) -> bool {
    !value
}

/// What a record holds, in one stretch of bytes.
///
/// ```text
/// key length + 1 (0: none)   4 bytes, little endian
/// key
/// headers length             4 bytes, little endian
/// headers                    as the log has them
/// value                      behind a byte 1; a byte 0 alone: none
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedRecord {
    /// Its own.
    pub key: Option<Bytes>,
    /// The same.
    pub headers: Headers,
    /// The same.
    pub value: Option<Bytes>,
}

impl PackedRecord {
    /// In one stretch.
    pub fn pack(&self) -> Bytes {
        let PackedRecord { key, headers, value } = self;
        let headers = headers.encoded();
        let mut packed = BytesMut::new();
        packed.put_u32_le(key.as_ref().map_or(0, |key| key.len() as u32 + 1));
        packed.put_slice(key.as_deref().unwrap_or_default());
        packed.put_u32_le(headers.len() as u32);
        packed.put_slice(headers);
        packed.put_u8(u8::from(value.is_some()));
        packed.put_slice(value.as_deref().unwrap_or_default());
        packed.freeze()
    }

    /// Reads back what [`PackedRecord::pack`] made, sharing the bytes; `None` for other bytes.
    pub fn unpack(mut packed: Bytes) -> Option<PackedRecord> {
        let key = match packed.try_get_u32_le().ok()?.checked_sub(1) {
            Some(length) => Some(split_off(&mut packed, length)?),
            None => None,
        };
        let length = packed.try_get_u32_le().ok()?;
        let headers = Headers::from_encoded(split_off(&mut packed, length)?);
        let value = match packed.try_get_u8().ok()? {
            0 if packed.is_empty() => None,
            1 => Some(packed),
            _ => return None,
        };
        Some(PackedRecord { key, headers, value })
    }
}

fn split_off(packed: &mut Bytes, length: u32) -> Option<Bytes> {
    let length = length as usize;
    (length <= packed.len()).then(|| packed.split_to(length))
}

impl Envelope {
    /// The headers of the dead letter of a record with `headers`.
    pub fn headers(&self, headers: &Headers) -> Headers {
        // Serialising plain strings and numbers does not fail.
        let json = serde_json::to_vec(self).unwrap_or_default();
        HeadersBuilder::new().add(DEAD_LETTER_HEADER, Some(&json)).add_all(headers).build()
    }

    /// Reads back what [`Envelope::headers`] made: the envelope and the record's own headers.
    pub fn split(headers: &Headers) -> Option<(Envelope, Headers)> {
        let (name, value) = headers.iter().next()?;
        if name != DEAD_LETTER_HEADER {
            return None;
        }
        let envelope = serde_json::from_slice(value?).ok()?;
        Some((envelope, headers.without_first()))
    }
}

/// Dead letters that a feed keeps itself, such as those of an outbox table.
#[async_trait]
pub trait FeedLetters: Send + Sync {
    /// Where they are: ids begin with it and a slash.
    fn place(&self) -> &str;

    /// How many there are. Must be cheap.
    async fn count(&self) -> Result<LetterCount, Fault>;

    /// Up to so many of them, oldest first, behind the one of that time and id.
    async fn list(
        &self,
        after: Option<(Timestamp, &str)>,
        most: usize,
    ) -> Result<Vec<FeedLetter>, Fault>;

    /// Those of these ids that are there.
    async fn find(&self, ids: &[String]) -> Result<Vec<FeedLetter>, Fault>;

    /// Puts these back where they came from, all or none, with their old places in the order; which
    /// of them were there.
    async fn replay(&self, ids: &[String]) -> Result<Vec<String>, Fault>;

    /// Removes these for good; which of them were there.
    async fn discard(&self, ids: &[String]) -> Result<Vec<String>, Fault>;

    /// Those of these ids that were put back and have not ended since.
    async fn under_way(&self, ids: &[String]) -> Result<Vec<String>, Fault>;
}

/// How many dead letters a feed keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LetterCount {
    /// Counted up to 100,001.
    pub letters: u64,
    /// When the newest of them was set aside.
    pub newest: Option<Timestamp>,
}

/// A dead letter that a feed keeps.
#[derive(Clone, Debug)]
pub struct FeedLetter {
    /// Its id there, without the [place](FeedLetters::place).
    pub id: String,
    /// The record as it was handed out.
    pub record: Record,
    /// Where the record lay.
    pub origin: Position,
    /// Why, as one of a closed list.
    pub reason: Reason,
    /// Why, in words.
    pub error: String,
    /// How often it was tried.
    pub attempts: u32,
    /// When it was set aside.
    pub time: Timestamp,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_envelope_leaves_the_own_headers_byte_exact() {
        let own =
            HeadersBuilder::new().add(DEAD_LETTER_HEADER, None).add("a", Some(b"\xff")).build();
        let envelope = Envelope {
            pipeline: "orders".into(),
            origin: "orders/0/1@0000000000000001".parse().unwrap(),
            deliver: Some(0),
            reason: Reason::Conflict,
            error: "“quotes” and \u{0}".into(),
            attempts: 2,
            time: Timestamp(5),
            replay_of: Some("orders-dead/0/1@0000000000000002".into()),
            shard: Some(ShardPlace { number: 1, file: Some("20250101000000.1".into()) }),
            piece: Some(Piece { from: 3, of: 9, packed: true }),
        };
        assert_eq!(Envelope::split(&envelope.headers(&own)), Some((envelope, own)));
    }

    #[test]
    fn a_packed_record_is_read_as_it_was() {
        let headers = HeadersBuilder::new().add("a", None).add("a", Some(b"\xff")).build();
        let bytes = Bytes::from_static;
        for key in [None, Some(bytes(b"")), Some(bytes(b"\0key"))] {
            for value in [None, Some(bytes(b"")), Some(bytes(b"value"))] {
                for headers in [Headers::none(), headers.clone()] {
                    let record = PackedRecord { key: key.clone(), headers, value: value.clone() };
                    let packed = record.pack();
                    assert_eq!(PackedRecord::unpack(packed.clone()), Some(record.clone()));
                    for end in 0..packed.len() {
                        // What was cut is no record, or one with less of its value.
                        let cut = PackedRecord::unpack(packed.slice(..end));
                        assert!(cut.is_none_or(|cut| cut.key == key && cut.value != value));
                    }
                }
            }
        }
    }
}
