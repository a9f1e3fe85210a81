//! Bytes as read, with key, headers, time and place.

use std::fmt::{Display, Write as _};

use bytes::{BufMut, Bytes, BytesMut};

use crate::{Lease, OWN_HEADERS_PREFIX, Partition, Position, Timestamp, Trials};

/// One record as it lies in the log. Cheap to clone: the bytes are shared with the block they
/// were read in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Offset within the partition of the batch that holds it.
    pub offset: u64,
    /// When the log took it: the only clock of windows.
    pub time: Timestamp,
    /// The key, byte-exact; `None` is not the empty key.
    pub key: Option<Bytes>,
    /// The headers, byte-exact and in order.
    pub headers: Headers,
    /// The value; `None` is a tombstone.
    pub value: Option<Bytes>,
}

impl Record {
    /// Its size in memory, for queues bounded by bytes.
    pub fn bytes(&self) -> usize {
        // The constant stands for the bookkeeping around the bytes.
        64 + self.key.as_ref().map_or(0, Bytes::len)
            + self.headers.encoded().len()
            + self.value.as_ref().map_or(0, Bytes::len)
    }
}

/// Headers as one block of bytes, read by walking: repeated names and null values are kept.
///
/// Layout, repeated: `u32` name length, name, `u32` value length + 1 (0 is null), value; little
/// endian. The same bytes lie in the embedded log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Bytes);

impl Headers {
    /// No headers.
    pub const fn none() -> Self {
        Headers(Bytes::new())
    }

    /// Takes bytes in the layout above, as read back from where [`Headers::encoded`] was put.
    pub fn from_encoded(bytes: Bytes) -> Self {
        Headers(bytes)
    }

    /// The layout above.
    pub fn encoded(&self) -> &Bytes {
        &self.0
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Name and value of each, in order. Stops where the bytes are not the layout above.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
        let mut rest: &[u8] = &self.0;
        std::iter::from_fn(move || {
            let name_len = read_len(&mut rest)?;
            let name = std::str::from_utf8(take(&mut rest, name_len)?).ok()?;
            let value = match read_len(&mut rest)? {
                0 => None,
                plus_one => Some(take(&mut rest, plus_one - 1)?),
            };
            Some((name, value))
        })
    }

    /// Bytes of those that potok has added itself.
    pub fn own_bytes(&self) -> usize {
        let own = self.iter().filter(|(name, _)| name.starts_with(OWN_HEADERS_PREFIX));
        // Two lengths of four bytes go with each.
        own.map(|(name, value)| 8 + name.len() + value.map_or(0, <[u8]>::len)).sum()
    }

    /// The value of the last header of that name; `None` where it is missing or null.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter().filter(|(found, _)| *found == name).last()?.1
    }

    /// Everything behind the first header, sharing the bytes.
    pub fn without_first(&self) -> Headers {
        let mut rest: &[u8] = &self.0;
        let mut skip = || {
            let name_len = read_len(&mut rest)?;
            take(&mut rest, name_len)?;
            let value_len = read_len(&mut rest)?;
            take(&mut rest, value_len.saturating_sub(1))
        };
        match skip() {
            Some(_) => {
                let from = self.0.len() - rest.len();
                Headers(self.0.slice(from..))
            }
            None => Headers::none(),
        }
    }
}

fn read_len(rest: &mut &[u8]) -> Option<usize> {
    let (head, tail) = rest.split_first_chunk::<4>()?;
    *rest = tail;
    Some(u32::from_le_bytes(*head) as usize)
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    Some(head)
}

/// Builds [`Headers`] one by one.
#[derive(Debug, Default)]
pub struct HeadersBuilder(BytesMut);

impl HeadersBuilder {
    /// Starts with none.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts with none, and with room for so many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        HeadersBuilder(BytesMut::with_capacity(bytes))
    }

    /// Adds one behind those already there.
    #[must_use]
    pub fn add(mut self, name: &str, value: Option<&[u8]>) -> Self {
        self.0.put_u32_le(name.len() as u32);
        self.0.put_slice(name.as_bytes());
        self.0.put_u32_le(value.map_or(0, |v| v.len() as u32 + 1));
        self.0.put_slice(value.unwrap_or_default());
        self
    }

    /// Adds one whose value is written in place.
    #[must_use]
    pub fn add_written(mut self, name: &str, write: impl FnOnce(&mut HeaderValue<'_>)) -> Self {
        self.0.put_u32_le(name.len() as u32);
        self.0.put_slice(name.as_bytes());
        let length_at = self.0.len();
        self.0.put_u32_le(0);
        write(&mut HeaderValue(&mut self.0));
        let length = (self.0.len() - length_at - 4) as u32 + 1;
        if let Some(place) = self.0.get_mut(length_at..length_at + 4) {
            place.copy_from_slice(&length.to_le_bytes());
        }
        self
    }

    /// Adds all of `headers`, byte-exact.
    #[must_use]
    pub fn add_all(mut self, headers: &Headers) -> Self {
        self.0.put_slice(headers.encoded());
        self
    }

    /// The headers in the order in which they were added.
    pub fn build(self) -> Headers {
        Headers(self.0.freeze())
    }
}

/// The value of a header while it is written.
pub struct HeaderValue<'a>(&'a mut BytesMut);

impl HeaderValue<'_> {
    /// Goes on with these bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.put_slice(bytes);
    }

    /// Goes on with this as text.
    pub fn show(&mut self, text: impl Display) {
        // Memory takes everything.
        let _ = write!(self.0, "{text}");
    }
}

/// Records of one partition, in order, as a source hands them out.
#[derive(Clone, Debug)]
pub struct SourceBatch {
    /// Where they come from.
    pub partition: Partition,
    /// Incarnation of the log they were written under.
    pub log: u64,
    /// The assignment under which they were read (see [`crate::Assignment::nonce`]).
    pub assignment: u64,
    /// The batch stands for all offsets in `first..next`; those without a record are gaps.
    pub first: u64,
    /// The offset behind the batch.
    pub next: u64,
    /// The records, offsets ascending, all within `first..next`.
    pub records: Vec<Record>,
    /// How they lie among those of other partitions, where the log knows that.
    pub order: Option<LogOrder>,
    /// The feed's own facts about them; `None` for records of the log.
    pub feed: Option<Box<FeedFacts>>,
}

/// Facts about a batch of records that only feeds know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedFacts {
    /// For each record, in order, where its place is not its identity: the position its deliveries
    /// are named after (a row's id), and how often it failed before.
    pub origins: Option<Vec<(Position, u32)>>,
    /// The batch is a group that its feed has closed: all its records are here, in order.
    pub whole: Option<WholeGroup>,
    /// Those who had the group before died with it: its records run one at a time.
    pub trials: Option<Trials>,
    /// Under which the batch was handed out: no call begins for it once that is over.
    pub lease: Option<Lease>,
}

/// A group that a feed has closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeGroup {
    /// The group's key as the feed has it: bytes of any kind.
    pub key: Bytes,
    /// Tells it from other groups of that key; the same each time the group is handed out.
    pub generation: u64,
    /// When its first record came.
    pub opened: Timestamp,
    /// When it closed.
    pub closed: Timestamp,
    /// Why it closed: `silence_reached`, `max_wait_reached`, `max_count`, `closed_by_hand`.
    pub reason: String,
}

/// The order of arrival across partitions, of a log that has one order for all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOrder {
    /// The place of each record of a batch: what came later, in whatever partition, has a higher
    /// one. The same under every reading, but for the numbers themselves.
    pub places: Vec<u64>,
    /// Batches of other partitions follow at once, with records that came among these. When none
    /// does, everything that comes later has higher places.
    pub more: bool,
}

impl SourceBatch {
    /// Position of a record of this batch.
    pub fn position(&self, record: &Record) -> Position {
        Position {
            log: self.log,
            topic: self.partition.topic.clone(),
            partition: self.partition.index,
            offset: record.offset,
        }
    }

    /// The position that names the deliveries of record `index`, and how often it has failed.
    pub fn origin(&self, index: usize) -> Option<(Position, u32)> {
        let origins = self.feed.as_ref().and_then(|feed| feed.origins.as_ref());
        let named = origins.and_then(|origins| origins.get(index).cloned());
        named.or_else(|| Some((self.position(self.records.get(index)?), 0)))
    }

    /// How its records are tried, where those who had them before died.
    pub fn trials(&self) -> Option<&Trials> {
        self.feed.as_ref().and_then(|feed| feed.trials.as_ref())
    }

    /// The lease it was handed out under, where its feed has one.
    pub fn lease(&self) -> Option<&Lease> {
        self.feed.as_ref().and_then(|feed| feed.lease.as_ref())
    }

    /// The group that its feed has closed, where it is one.
    pub fn whole(&self) -> Option<&WholeGroup> {
        self.feed.as_ref().and_then(|feed| feed.whole.as_ref())
    }

    /// Keeps the records that `keep` wants.
    pub fn retain(&mut self, keep: impl Fn(&Record) -> bool) {
        if let Some(order) = &mut self.order {
            let mut records = self.records.iter();
            order.places.retain(|_| records.next().is_some_and(&keep));
        }
        if let Some(origins) = self.feed.as_mut().and_then(|feed| feed.origins.as_mut()) {
            let mut records = self.records.iter();
            origins.retain(|_| records.next().is_some_and(&keep));
        }
        self.records.retain(keep);
    }

    /// The place of record `index` in the order of the whole log.
    pub fn place(&self, index: usize) -> Option<u64> {
        self.order.as_ref()?.places.get(index).copied()
    }

    /// True where batches follow at once with records that came among these.
    pub fn has_more(&self) -> bool {
        self.order.as_ref().is_some_and(|order| order.more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_keep_repeats_nulls_and_empties() {
        let headers = HeadersBuilder::new()
            .add("a", Some(b"1"))
            .add("a", None)
            .add("", Some(b""))
            .add("a", Some(b"\xff"))
            .build();
        let all: Vec<_> = headers.iter().collect();
        assert_eq!(
            all,
            [("a", Some(&b"1"[..])), ("a", None), ("", Some(&b""[..])), ("a", Some(&b"\xff"[..]))]
        );
        assert_eq!(headers.get("a"), Some(&b"\xff"[..]));
        assert_eq!(headers.without_first().iter().count(), 3);
        assert!(Headers::none().without_first().is_empty());
    }

    #[test]
    fn a_value_written_in_place_is_like_any_other() {
        let written = |headers: HeadersBuilder| {
            let seven = headers.add_written("a", |value| {
                value.show(7);
                value.bytes(b"\xff\0");
            });
            seven.build()
        };
        let before = HeadersBuilder::new().add("b", None);
        let plain = HeadersBuilder::new().add("b", None).add("a", Some(b"7\xff\0")).build();
        assert_eq!(written(before), plain);
        let empty = HeadersBuilder::new().add_written("", |_| ()).build();
        assert_eq!(empty, HeadersBuilder::new().add("", Some(b"")).build());
    }

    #[test]
    fn records_that_stay_keep_their_origins() {
        let record = |offset| Record {
            offset,
            time: Timestamp(0),
            key: None,
            headers: Headers::none(),
            value: None,
        };
        let row = |id: &str| Position { log: 0, topic: id.into(), partition: 0, offset: 0 };
        let origins = Some(vec![(row("a"), 0), (row("b"), 2), (row("c"), 1)]);
        let mut batch = SourceBatch {
            partition: Partition { topic: "rows".into(), index: 0 },
            log: 0,
            assignment: 1,
            first: 4,
            next: 7,
            records: vec![record(4), record(5), record(6)],
            order: None,
            feed: Some(Box::new(FeedFacts { origins, ..FeedFacts::default() })),
        };
        batch.retain(|record| record.offset != 4);
        assert_eq!(batch.origin(0), Some((row("b"), 2)));
        assert_eq!(batch.origin(1), Some((row("c"), 1)));
        assert_eq!(batch.origin(2), None);
    }

    #[test]
    fn broken_headers_end_early_and_do_not_panic() {
        let headers = Headers::from_encoded(Bytes::from_static(b"\x05\x00\x00\x00ab"));
        assert_eq!(headers.iter().count(), 0);
    }
}
