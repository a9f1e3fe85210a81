//! How the log lies on disk, version 1. This file writes every byte of it and reads it back.
//!
//! ```text
//! <data dir>/
//!   LOCK                           held by the one process that owns the folder; its pid inside
//!   log/00000000000000000001.seg   segments, in order of their numbers; numbers only grow
//!   log/reserve, log/reserve.last  room kept for noting what has ended when the disk is full
//!   log/*.new                      a segment being made; garbage after a crash
//!   damaged/<segment>-<from>.bin   bytes that could not be read, as they were found
//!
//! segment = segment header, frame, frame, …             numbers little endian throughout
//!
//! segment header, 64 bytes
//!   0  8 magic "POTOKSEG"
//!   8  1 version              9  1 flags: 1 compacted, 2 merged  10  6 zero
//!  16  8 folder nonce: names the folder; every frame repeats it
//!  24  8 number, as in the file name
//!  32  8 number of the segment before, 0 for none; if merged, segments in between are left over
//!  40  8 where that segment's frames end; what lies behind was never acknowledged
//!  48  8 where its own frames end, if compacted; else 0     56  4 zero
//!  60  4 CRC-32 of bytes 0..60
//!
//! frame = frame header, table, payload
//!
//! frame header, 48 bytes
//!   0  4 magic "PTKF"
//!   4  1 version              5  1 kind: 1 transaction, 2 checkpoint, 3 footer       6  2 zero
//!   8  4 table length        12  4 payload length
//!  16  8 folder nonce        24  8 incarnation: a nonce for each opening of the log
//!  32  8 time, milliseconds since 1970: the arrival of every record in the frame
//!  40  4 CRC-32 of the table
//!  44  4 CRC-32 of segment number, file offset and bytes 0..44
//!
//! table = entries, each: u8 kind, then (text = u16 length + UTF-8; list = u32 count + items)
//!   1 records    text topic, u32 partitions of the topic, u32 partition, u64 first offset,
//!                u32 count, u32 payload bytes, u32 CRC-32 of those bytes
//!   2 ended      text group, text topic, u32 partition, list of (u64 from, u64 to)
//!   3 topic      text name, list of (u64 next offset, u64 end)
//!   4 group      u8 fresh (forget what is known of it), text name, u32 + JSON of its pipeline,
//!                list of text topics
//!   5 forgotten  text group
//!   6 damaged    u64 segment, u64 from, u64 to, i64 noticed, u8 tail, u8 settled, text kept in
//!   7 dropped    u64 segment: retention is about to unlink it
//!   8 segment    u64 number: it exists
//!   9 kept       text topic: never goes by age
//!  10 floor      u64: the first offset of topics not known yet
//!  11 index      text topic, u32 partition, u64 first, u64 last, u64 bytes,
//!                list of (u64 offset, u64 file offset)              (footers only)
//!  12 span       i64 first time, i64 last time                      (footers only)
//!  13 order      list of u16: for each record of the frame as it came, the number of its records
//!                entry; only where they do not lie in that order
//!  14 released   text topic, u32 partition, list of (u64 from, u64 to): offsets that may go
//!
//! payload = the records of the first records entry, of the second, …; a record is
//!   0  4 CRC-32 of its place within the entry (u32) and of bytes 4.. of the record
//!   4  4 key length + 1, 0 for none
//!   8  4 headers length
//!  12  4 value length + 1, 0 for none (a tombstone)
//!  16    key, headers (layout of `potok_core::Headers`), value
//! ```
//!
//! **A frame is a transaction**: it counts when its header, its table and all its records fit
//! their checksums, else none of its entries counts. The header's checksum covers the folder, the
//! segment and the offset, so a copy of a frame inside a payload or another file is no frame.
//! Names are spelled out in every frame: no frame needs another one to be understood.
//! The checksum of a record does not say where it belongs: within a frame that is damaged, a record
//! of another one that came to lie in the place of its own, among others of its entry, is taken for
//! it (decision 0062).
//!
//! **A segment** begins with a checkpoint: the whole state at that moment, as entries 2 to 10. A
//! segment that was left in good order ends with a footer: its index, and as payload (8 bytes)
//! the file offset of the footer itself, so that it is found from the end of the file.
//!
//! **Retention** merges neighbours: the pinned records of all of them, each at its offset and in
//! order, and the newest one's checkpoint, become one file under the newest one's number. Where a
//! crash kept the older ones from going, records lie in two segments; an offset always means the
//! same record, and readers take it from the older.
//!
//! **Recovery** reads the newest checkpoint that fits and applies the frames behind it. Bytes that
//! are no frame are damage: they are copied to `damaged/`, noted, made a dead letter, and reading
//! goes on at the next frame that fits. The state of a group is the union of its ended ranges, so
//! what a damaged frame held is open again. Nothing is appended to a segment that was found
//! damaged: a new one starts, with offsets above all that could have been handed out (a record
//! takes more than one byte, so the length of the damage bounds their number).
//!
//! **Limits**: a record up to `RECORD_BYTES_MAX` and potok's own headers; a frame up to [`FRAME_BYTES_MAX`]; offsets,
//! segment numbers and file offsets are 64 bits and are never used twice.

use std::ops::Range;

use super::numbers::{Cut, put_pairs, put_text, put_u32, put_u64};

/// The version this file writes, and the highest it reads.
pub const VERSION: u8 = 1;
/// Length of the segment header.
pub const SEGMENT_HEADER: usize = 64;
/// Length of the frame header.
pub const FRAME_HEADER: usize = 48;
/// The bytes before key, headers and value of a record.
pub const RECORD_HEADER: usize = 16;
/// The largest frame: a transaction that would be larger is refused.
pub const FRAME_BYTES_MAX: usize = 512 << 20;
/// The longest topic or group name, in bytes.
pub const NAME_BYTES_MAX: usize = 249;

const SEGMENT_MAGIC: &[u8; 8] = b"POTOKSEG";
/// The mark that a search for the next frame looks for.
pub const FRAME_MAGIC: &[u8; 4] = b"PTKF";
const COMPACTED: u8 = 1;
const MERGED: u8 = 2;

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Names the folder.
    pub nonce: u64,
    pub number: u64,
    /// The number of the segment before; 0 for none.
    pub previous: u64,
    /// Where that segment's frames end.
    pub previous_end: u64,
    /// Retention has made it of older ones: only records are left, and one checkpoint. Where its
    /// frames end; `previous_end` in the next segment speaks of the file it replaced.
    pub compacted: Option<u64>,
    /// Those were several, and segments between `previous` and this one are left over of them.
    pub merged: bool,
}

/// The first bytes of a file, as they were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderRead {
    /// A header of this version.
    Good(SegmentHeader),
    /// A sound header of a version this build does not know.
    Newer(u8),
    /// No sound header of this segment.
    Bad,
}

impl SegmentHeader {
    /// The 64 bytes.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER] {
        let mut bytes = [0; SEGMENT_HEADER];
        bytes[0..8].copy_from_slice(SEGMENT_MAGIC);
        bytes[8] = VERSION;
        bytes[9] = if self.compacted.is_some() { COMPACTED } else { 0 }
            | if self.merged { MERGED } else { 0 };
        bytes[16..24].copy_from_slice(&self.nonce.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.previous.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.previous_end.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.compacted.unwrap_or(0).to_le_bytes());
        let crc = crc32fast::hash(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads the header of the file that is named as segment `number`.
    pub fn decode(bytes: &[u8], number: u64) -> HeaderRead {
        let Some(bytes) = bytes.first_chunk::<SEGMENT_HEADER>() else { return HeaderRead::Bad };
        let mut cut = Cut(bytes);
        let crc = u32::from_le_bytes([bytes[60], bytes[61], bytes[62], bytes[63]]);
        if crc != crc32fast::hash(&bytes[..60]) || cut.take(8) != Some(SEGMENT_MAGIC) {
            return HeaderRead::Bad;
        }
        if bytes[8] > VERSION {
            return HeaderRead::Newer(bytes[8]);
        }
        cut.take(8);
        let mut next = || cut.u64().unwrap_or_default();
        let header = SegmentHeader {
            nonce: next(),
            number: next(),
            previous: next(),
            previous_end: next(),
            compacted: Some(next()).filter(|_| bytes[9] & COMPACTED != 0),
            merged: bytes[9] & MERGED != 0,
        };
        if header.number == number { HeaderRead::Good(header) } else { HeaderRead::Bad }
    }
}

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Something happened.
    Transaction = 1,
    /// Everything that is known, at the start of a segment.
    Checkpoint = 2,
    /// The index, at the end of a segment.
    Footer = 3,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Its purpose.
    pub kind: FrameKind,
    /// Bytes of the table.
    pub table: u32,
    /// Bytes of the payload.
    pub payload: u32,
    /// The folder it was written in.
    pub nonce: u64,
    /// The opening of the log it was written under.
    pub incarnation: u64,
    /// When.
    pub time: i64,
    /// Checksum of the table.
    pub table_crc: u32,
}

impl FrameHeader {
    /// The 48 bytes, for this place and no other.
    pub fn encode(&self, segment: u64, at: u64) -> [u8; FRAME_HEADER] {
        let mut bytes = [0; FRAME_HEADER];
        bytes[0..4].copy_from_slice(FRAME_MAGIC);
        bytes[4] = VERSION;
        bytes[5] = self.kind as u8;
        bytes[8..12].copy_from_slice(&self.table.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.payload.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.nonce.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.time.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.table_crc.to_le_bytes());
        let crc = header_crc(&bytes[..44], segment, at);
        bytes[44..48].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads the header that lies at this place; `None` when these bytes are none.
    pub fn decode(bytes: &[u8], segment: u64, at: u64) -> Option<FrameHeader> {
        let bytes = bytes.first_chunk::<FRAME_HEADER>()?;
        let mut cut = Cut(bytes);
        if cut.take(4)? != FRAME_MAGIC || cut.u8()? != VERSION {
            return None;
        }
        let kind = match cut.u8()? {
            1 => FrameKind::Transaction,
            2 => FrameKind::Checkpoint,
            3 => FrameKind::Footer,
            _ => return None,
        };
        cut.take(2)?;
        let header = FrameHeader {
            kind,
            table: cut.u32()?,
            payload: cut.u32()?,
            nonce: cut.u64()?,
            incarnation: cut.u64()?,
            time: cut.u64()?.cast_signed(),
            table_crc: cut.u32()?,
        };
        (cut.u32()? == header_crc(&bytes[..44], segment, at)).then_some(header)
    }

    /// Bytes of the whole frame.
    pub fn len(&self) -> u64 {
        FRAME_HEADER as u64 + u64::from(self.table) + u64::from(self.payload)
    }
}

fn header_crc(bytes: &[u8], segment: u64, at: u64) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&segment.to_le_bytes());
    hasher.update(&at.to_le_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

/// Records of one partition in one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordsEntry<'a> {
    pub topic: &'a str,
    /// How many partitions the topic has.
    pub partitions: u32,
    pub partition: u32,
    /// The offset of the first; the others follow without gap.
    pub first: u64,
    /// How many.
    pub count: u32,
    /// Bytes in the payload.
    pub bytes: u32,
    /// Checksum of those bytes.
    pub crc: u32,
}

/// Bytes that could not be read, as the log remembers them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamageNote {
    /// The segment they were in.
    pub segment: u64,
    /// First bad byte.
    pub from: u64,
    /// Behind the last bad byte.
    pub to: u64,
    /// When it was noticed, milliseconds since 1970.
    pub noticed: i64,
    /// Nothing good lay behind.
    pub tail: bool,
    /// Offsets that the damaged frames had ended are open again.
    pub settled: bool,
    /// The copy, relative to the data folder; empty when there was nothing to copy.
    pub kept_in: String,
}

/// One entry of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// Records; their bytes lie in the payload.
    Records(RecordsEntry<'a>),
    /// Offsets of a partition that have ended for a group.
    Ended { group: &'a str, topic: &'a str, partition: u32, ranges: Vec<Range<u64>> },
    /// A topic, with next offset and end of each partition.
    Topic { topic: &'a str, heads: Vec<(u64, u64)> },
    /// A registered group.
    Group { fresh: bool, group: &'a str, info: &'a [u8], topics: Vec<&'a str> },
    /// A group that is registered no more.
    Forgotten { group: &'a str },
    /// Damage that was noticed and kept aside.
    Damaged(DamageNote),
    /// A segment that retention is about to unlink.
    Dropped { segment: u64 },
    /// A segment that exists.
    Segment { number: u64 },
    /// A topic that never goes by age.
    Kept { topic: &'a str },
    /// The first offset of topics not known yet.
    Floor { offset: u64 },
    /// Where a partition's records lie in this segment.
    Index {
        topic: &'a str,
        partition: u32,
        first: u64,
        last: u64,
        bytes: u64,
        points: Vec<(u64, u64)>,
    },
    /// First and last time in this segment.
    Span { first: i64, last: i64 },
    /// In which order the frame's records came (see `order`).
    Order { came: &'a [u8] },
    /// Offsets of a kept topic that may go.
    Released { topic: &'a str, partition: u32, ranges: Vec<Range<u64>> },
}

impl<'a> Entry<'a> {
    /// Appends the entry's bytes.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Entry::Records(records) => {
                out.push(1);
                put_text(out, records.topic);
                put_u32(out, records.partitions);
                put_u32(out, records.partition);
                put_u64(out, records.first);
                put_u32(out, records.count);
                put_u32(out, records.bytes);
                put_u32(out, records.crc);
            }
            Entry::Ended { group, topic, partition, ranges } => {
                out.push(2);
                put_text(out, group);
                put_text(out, topic);
                put_u32(out, *partition);
                put_pairs(out, ranges.iter().map(|range| (range.start, range.end)));
            }
            Entry::Topic { topic, heads } => {
                out.push(3);
                put_text(out, topic);
                put_pairs(out, heads.iter().copied());
            }
            Entry::Group { fresh, group, info, topics } => {
                out.extend_from_slice(&[4, u8::from(*fresh)]);
                put_text(out, group);
                put_u32(out, info.len() as u32);
                out.extend_from_slice(info);
                put_u32(out, topics.len() as u32);
                topics.iter().for_each(|topic| put_text(out, topic));
            }
            Entry::Forgotten { group } => {
                out.push(5);
                put_text(out, group);
            }
            Entry::Damaged(note) => {
                out.push(6);
                put_u64(out, note.segment);
                put_u64(out, note.from);
                put_u64(out, note.to);
                put_u64(out, note.noticed.cast_unsigned());
                out.extend_from_slice(&[u8::from(note.tail), u8::from(note.settled)]);
                put_text(out, &note.kept_in);
            }
            Entry::Dropped { segment } => {
                out.push(7);
                put_u64(out, *segment);
            }
            Entry::Segment { number } => {
                out.push(8);
                put_u64(out, *number);
            }
            Entry::Kept { topic } => {
                out.push(9);
                put_text(out, topic);
            }
            Entry::Floor { offset } => {
                out.push(10);
                put_u64(out, *offset);
            }
            Entry::Index { topic, partition, first, last, bytes, points } => {
                out.push(11);
                put_text(out, topic);
                put_u32(out, *partition);
                put_u64(out, *first);
                put_u64(out, *last);
                put_u64(out, *bytes);
                put_pairs(out, points.iter().copied());
            }
            Entry::Span { first, last } => {
                out.push(12);
                put_u64(out, first.cast_unsigned());
                put_u64(out, last.cast_unsigned());
            }
            Entry::Order { came } => {
                out.push(13);
                put_u32(out, came.len() as u32 / 2);
                out.extend_from_slice(came);
            }
            Entry::Released { topic, partition, ranges } => {
                out.push(14);
                put_text(out, topic);
                put_u32(out, *partition);
                put_pairs(out, ranges.iter().map(|range| (range.start, range.end)));
            }
        }
    }

    fn read(cut: &mut Cut<'a>) -> Option<Self> {
        Some(match cut.u8()? {
            1 => Entry::Records(RecordsEntry {
                topic: cut.text()?,
                partitions: cut.u32()?,
                partition: cut.u32()?,
                first: cut.u64()?,
                count: cut.u32()?,
                bytes: cut.u32()?,
                crc: cut.u32()?,
            }),
            2 => Entry::Ended {
                group: cut.text()?,
                topic: cut.text()?,
                partition: cut.u32()?,
                ranges: cut.pairs()?.into_iter().map(|(from, to)| from..to).collect(),
            },
            3 => Entry::Topic { topic: cut.text()?, heads: cut.pairs()? },
            4 => {
                let fresh = cut.u8()? != 0;
                let group = cut.text()?;
                let info_len = cut.u32()? as usize;
                let info = cut.take(info_len)?;
                let topics = (0..cut.u32()?).map(|_| cut.text()).collect::<Option<Vec<_>>>()?;
                Entry::Group { fresh, group, info, topics }
            }
            5 => Entry::Forgotten { group: cut.text()? },
            6 => Entry::Damaged(DamageNote {
                segment: cut.u64()?,
                from: cut.u64()?,
                to: cut.u64()?,
                noticed: cut.u64()?.cast_signed(),
                tail: cut.u8()? != 0,
                settled: cut.u8()? != 0,
                kept_in: cut.text()?.to_owned(),
            }),
            7 => Entry::Dropped { segment: cut.u64()? },
            8 => Entry::Segment { number: cut.u64()? },
            9 => Entry::Kept { topic: cut.text()? },
            10 => Entry::Floor { offset: cut.u64()? },
            11 => Entry::Index {
                topic: cut.text()?,
                partition: cut.u32()?,
                first: cut.u64()?,
                last: cut.u64()?,
                bytes: cut.u64()?,
                points: cut.pairs()?,
            },
            12 => Entry::Span { first: cut.u64()?.cast_signed(), last: cut.u64()?.cast_signed() },
            13 => {
                let count = cut.u32()? as usize;
                Entry::Order { came: cut.take(count.checked_mul(2)?)? }
            }
            14 => Entry::Released {
                topic: cut.text()?,
                partition: cut.u32()?,
                ranges: cut.pairs()?.into_iter().map(|(from, to)| from..to).collect(),
            },
            _ => return None,
        })
    }
}

/// Reads a whole table; `None` when a part of it is no entry.
pub fn entries(table: &[u8]) -> Option<Vec<Entry<'_>>> {
    let mut cut = Cut(table);
    let mut entries = Vec::new();
    while !cut.0.is_empty() {
        entries.push(Entry::read(&mut cut)?);
    }
    Some(entries)
}

/// Writes entries one behind the other.
#[cfg(test)]
pub fn table(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    entries.iter().for_each(|entry| entry.put(&mut out));
    out
}

/// The checksum of a record: of its place within its entry, and of all its bytes behind the
/// checksum. The place is in it so that a wrong length before it cannot pass for another record.
pub fn record_crc(place: u32, rest: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(place);
    hasher.update(rest);
    hasher.finalize()
}

/// One record as it lies in a payload: byte ranges relative to where it was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordSpan {
    pub all: Range<usize>,
    pub key: Option<Range<usize>>,
    pub headers: Range<usize>,
    pub value: Option<Range<usize>>,
}

impl RecordSpan {
    /// Reads where the parts of the record at `at` lie; `None` when they do not lie in `payload`.
    pub fn read(payload: &[u8], at: usize) -> Option<RecordSpan> {
        let header = payload.get(at..)?.first_chunk::<RECORD_HEADER>()?;
        let [_, _, _, _, k0, k1, k2, k3, h0, h1, h2, h3, v0, v1, v2, v3] = *header;
        let key = u32::from_le_bytes([k0, k1, k2, k3]) as usize;
        let headers = u32::from_le_bytes([h0, h1, h2, h3]) as usize;
        let value = u32::from_le_bytes([v0, v1, v2, v3]) as usize;
        let key_at = at + RECORD_HEADER;
        let headers_at = key_at + key.saturating_sub(1);
        let value_at = headers_at + headers;
        let end = value_at + value.saturating_sub(1);
        (end <= payload.len()).then(|| RecordSpan {
            all: at..end,
            key: (key > 0).then_some(key_at..headers_at),
            headers: headers_at..value_at,
            value: (value > 0).then_some(value_at..end),
        })
    }

    /// True when the record fits its own checksum.
    pub fn fits(&self, payload: &[u8], place: u32) -> bool {
        payload
            .get(self.all.clone())
            .and_then(|bytes| bytes.split_first_chunk::<4>())
            .is_some_and(|(crc, rest)| u32::from_le_bytes(*crc) == record_crc(place, rest))
    }
}

/// A number nobody else has: from the operating system's randomness, through the standard
/// library's hasher keys.
pub fn fresh_nonce() -> u64 {
    use std::hash::BuildHasher;
    loop {
        let nonce = std::collections::hash_map::RandomState::new().hash_one("potok");
        // 0 stands for "none" in places where a nonce is expected.
        if nonce != 0 {
            return nonce;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn every_entry() -> Vec<Entry<'static>> {
        vec![
            Entry::Records(RecordsEntry {
                topic: "orders",
                partitions: 4,
                partition: 3,
                first: 1 << 40,
                count: 2,
                bytes: 99,
                crc: 7,
            }),
            Entry::Ended { group: "g", topic: "orders", partition: 1, ranges: vec![0..3, 5..9] },
            Entry::Topic { topic: "поток", heads: vec![(1, 1), (7, 5)] },
            Entry::Group { fresh: true, group: "g", info: b"{}", topics: vec!["a", "b"] },
            Entry::Forgotten { group: "g" },
            Entry::Damaged(DamageNote {
                segment: 3,
                from: 64,
                to: 100,
                noticed: -5,
                tail: true,
                settled: false,
                kept_in: "damaged/x.bin".into(),
            }),
            Entry::Dropped { segment: 1 },
            Entry::Segment { number: 2 },
            Entry::Kept { topic: "orders-dead" },
            Entry::Floor { offset: 12 },
            Entry::Index {
                topic: "a",
                partition: 0,
                first: 3,
                last: 9,
                bytes: 44,
                points: vec![(3, 64)],
            },
            Entry::Span { first: -1, last: 5 },
            Entry::Order { came: &[1, 0, 0, 0] },
            Entry::Released { topic: "orders-dead", partition: 1, ranges: vec![0..3, 5..9] },
        ]
    }

    #[test]
    fn entries_survive_the_disk_and_cut_tables_are_none() {
        let bytes = table(&every_entry());
        assert_eq!(entries(&bytes), Some(every_entry()));
        let whole: Vec<usize> =
            (1..=every_entry().len()).map(|count| table(&every_entry()[..count]).len()).collect();
        for len in 1..bytes.len() {
            assert_eq!(entries(&bytes[..len]).is_some(), whole.contains(&len), "cut at {len}");
        }
    }

    #[test]
    fn a_frame_header_is_one_only_at_its_place() {
        let header = FrameHeader {
            kind: FrameKind::Checkpoint,
            table: 10,
            payload: 20,
            nonce: 1,
            incarnation: 2,
            time: -3,
            table_crc: 4,
        };
        let bytes = header.encode(5, 6);
        assert_eq!(FrameHeader::decode(&bytes, 5, 6), Some(header));
        assert_eq!(FrameHeader::decode(&bytes, 5, 7), None);
        assert_eq!(FrameHeader::decode(&bytes, 6, 6), None);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FrameHeader::decode(&flipped, 5, 6), None, "bit {bit}");
        }
    }

    #[test]
    fn a_segment_header_knows_its_number_and_newer_versions() {
        let header = SegmentHeader {
            nonce: 1,
            number: 2,
            previous: 1,
            previous_end: 3,
            compacted: Some(9),
            merged: true,
        };
        let bytes = header.encode();
        assert_eq!(SegmentHeader::decode(&bytes, 2), HeaderRead::Good(header));
        assert_eq!(SegmentHeader::decode(&bytes, 3), HeaderRead::Bad);
        assert_eq!(SegmentHeader::decode(&bytes[..63], 2), HeaderRead::Bad);
        let mut newer = bytes;
        newer[8] = VERSION + 1;
        let crc = crc32fast::hash(&newer[..60]);
        newer[60..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(SegmentHeader::decode(&newer, 2), HeaderRead::Newer(VERSION + 1));
    }

    #[test]
    fn nonces_differ() {
        let mut seen: Vec<u64> = (0..1_000).map(|_| fresh_nonce()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 1_000);
    }
}
