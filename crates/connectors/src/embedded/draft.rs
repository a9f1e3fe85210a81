//! A transaction, made ready by the caller and finished by the writer.
//!
//! All the work that grows with the data (choosing partitions, laying out records, checksums)
//! happens in the caller's task. The writer only puts in what it alone knows: offsets, time and
//! place.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use potok_core::{Fault, Output, Position};

use super::format::{
    Entry, FRAME_BYTES_MAX, FRAME_HEADER, FrameHeader, FrameKind, RECORD_HEADER, RecordsEntry,
    record_crc,
};
use super::{fault, order};

/// How records find their partition of a topic.
#[derive(Debug)]
pub struct Route {
    /// How many partitions the topic has.
    pub partitions: u32,
    turn: AtomicU32,
}

impl Route {
    /// A topic with so many partitions.
    pub fn new(partitions: u32) -> Self {
        Route { partitions: partitions.max(1), turn: AtomicU32::new(0) }
    }

    fn partition(&self, output: &Output) -> Result<u32, Fault> {
        match (output.partition, &output.key) {
            (Some(partition), _) if partition < self.partitions => Ok(partition),
            (Some(partition), _) => {
                Err(fault::no_partition(&output.topic, partition, self.partitions as usize))
            }
            (None, Some(key)) => Ok(partition_of(key, self.partitions)),
            (None, None) => Ok(self.turn.fetch_add(1, Ordering::Relaxed) % self.partitions),
        }
    }
}

/// The partition of a key: CRC-32 (as in zlib) of the key, modulo the number of partitions. It
/// must stay so for ever, or a key's records would lose their order.
pub fn partition_of(key: &[u8], partitions: u32) -> u32 {
    crc32fast::hash(key) % partitions.max(1)
}

/// Records of one partition within a draft.
#[derive(Debug)]
struct DraftSlot {
    topic: Arc<str>,
    partitions: u32,
    partition: u32,
    count: u32,
    bytes: usize,
    /// Where in the frame its first offset has to be put.
    first_at: usize,
}

/// A frame that lacks its place in the log.
#[derive(Debug)]
pub struct Draft {
    /// Room for the header, then table and payload.
    bytes: Vec<u8>,
    kind: FrameKind,
    table: usize,
    slots: Vec<DraftSlot>,
    /// Its share of the reserve when the disk is full.
    pub urgency: Urgency,
}

/// A frame's share of the reserve when the disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Nothing: it is refused.
    Plain,
    /// The reserve: a pipeline needs it to finish what is in the log, or it must be noted for another
    /// reason.
    Ledger,
    /// The last of it: it makes room.
    MakesRoom,
}

/// Which record of which slot each output became, in the order of the outputs.
#[derive(Debug, Default)]
pub struct OutputSlots {
    /// Slot, and number within the slot.
    records: Vec<(u32, u32)>,
    /// The partition of each slot.
    partitions: Vec<u32>,
}

impl OutputSlots {
    /// The positions of the outputs, given what the writer answered.
    pub fn positions(&self, outputs: &[Output], log: u64, firsts: &[u64]) -> Vec<Position> {
        let of = |(output, (slot, number)): (&Output, &(u32, u32))| {
            let slot = *slot as usize;
            Position {
                log,
                topic: output.topic.clone(),
                partition: self.partitions.get(slot).copied().unwrap_or_default(),
                offset: firsts.get(slot).copied().unwrap_or_default() + u64::from(*number),
            }
        };
        outputs.iter().zip(&self.records).map(of).collect()
    }
}

/// The facts about its place that a frame needs.
#[derive(Clone, Copy, Debug)]
pub struct FramePlacement {
    /// The folder.
    pub nonce: u64,
    /// The opening of the log.
    pub incarnation: u64,
    /// The time of its records.
    pub time: i64,
    pub segment: u64,
    /// The file offset.
    pub at: u64,
}

impl Draft {
    /// Lays out `outputs` and puts `entries` beside them.
    pub fn new(
        outputs: &[Output],
        route: impl FnMut(&Arc<str>) -> Result<Arc<Route>, Fault>,
        entries: &[Entry<'_>],
    ) -> Result<(Draft, OutputSlots), Fault> {
        let (slots, places) = sort(outputs, route)?;
        let payload: usize = slots.iter().map(|slot| slot.bytes).sum();
        if payload > FRAME_BYTES_MAX {
            return Err(fault::transaction_too_large());
        }
        let mut draft = Draft::of_entries(FrameKind::Transaction, entries);
        draft.slots = slots;
        draft.bytes.reserve(draft.slots.len() * 64 + payload);
        draft.lay_out(outputs, &places, payload);
        Ok((draft, places))
    }

    /// A frame of entries alone.
    pub fn of_entries(kind: FrameKind, entries: &[Entry<'_>]) -> Draft {
        let mut bytes = vec![0; FRAME_HEADER];
        entries.iter().for_each(|entry| entry.put(&mut bytes));
        let table = bytes.len() - FRAME_HEADER;
        Draft { bytes, kind, table, slots: Vec::new(), urgency: Urgency::Ledger }
    }

    /// Bytes of the whole frame.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Topic and partition of each slot.
    pub fn slots(&self) -> impl Iterator<Item = (&Arc<str>, u32, u32)> {
        self.slots.iter().map(|slot| (&slot.topic, slot.partition, slot.count))
    }

    /// Bytes behind the table that belong to no records entry: for footers.
    pub fn set_payload(&mut self, payload: &[u8]) {
        self.bytes.truncate(FRAME_HEADER + self.table);
        self.bytes.extend_from_slice(payload);
    }

    /// Puts in what only the writer knows. May be done again for another place.
    pub fn finish(&mut self, firsts: &[u64], place: FramePlacement) -> &[u8] {
        for (slot, first) in self.slots.iter().zip(firsts) {
            put_at(&mut self.bytes, slot.first_at, &first.to_le_bytes());
        }
        let header = FrameHeader {
            kind: self.kind,
            table: self.table as u32,
            payload: (self.bytes.len() - FRAME_HEADER - self.table) as u32,
            nonce: place.nonce,
            incarnation: place.incarnation,
            time: place.time,
            table_crc: crc32fast::hash(self.table()),
        };
        put_at(&mut self.bytes, 0, &header.encode(place.segment, place.at));
        &self.bytes
    }

    /// The finished frame's table.
    pub fn table(&self) -> &[u8] {
        self.bytes.get(FRAME_HEADER..FRAME_HEADER + self.table).unwrap_or_default()
    }

    /// The kind of frame.
    pub fn kind(&self) -> FrameKind {
        self.kind
    }

    /// Writes the slots' entries behind the others, and the records behind the table.
    fn lay_out(&mut self, outputs: &[Output], places: &OutputSlots, payload: usize) {
        for slot in &mut self.slots {
            let entry = Entry::Records(RecordsEntry {
                topic: &slot.topic,
                partitions: slot.partitions,
                partition: slot.partition,
                first: 0,
                count: slot.count,
                bytes: slot.bytes as u32,
                crc: 0,
            });
            entry.put(&mut self.bytes);
            // The entry ends with first (8), count (4), bytes (4) and checksum (4).
            slot.first_at = self.bytes.len() - 20;
        }
        if let Some(came) = order::written(places.records.iter().map(|(slot, _)| *slot)) {
            Entry::Order { came: &came }.put(&mut self.bytes);
        }
        self.table = self.bytes.len() - FRAME_HEADER;
        let start = self.bytes.len();
        self.bytes.resize(start + payload, 0);
        let mut cursors: Vec<usize> = self
            .slots
            .iter()
            .scan(start, |at, slot| Some(std::mem::replace(at, *at + slot.bytes)))
            .collect();
        for (output, (slot, number)) in outputs.iter().zip(&places.records) {
            if let Some(cursor) = cursors.get_mut(*slot as usize) {
                *cursor = put_record(&mut self.bytes, *cursor, *number, output);
            }
        }
        // Each cursor stands at the end of its slot now.
        for (slot, end) in self.slots.iter().zip(cursors) {
            let crc = crc32fast::hash(self.bytes.get(end - slot.bytes..end).unwrap_or_default());
            put_at(&mut self.bytes, slot.first_at + 16, &crc.to_le_bytes());
        }
    }
}

/// Gives every output its slot: one per topic and partition, in order of first appearance.
fn sort(
    outputs: &[Output],
    mut route: impl FnMut(&Arc<str>) -> Result<Arc<Route>, Fault>,
) -> Result<(Vec<DraftSlot>, OutputSlots), Fault> {
    struct RoutedTopic {
        name: Arc<str>,
        route: Arc<Route>,
        slots: Vec<Option<u32>>,
    }
    let mut topics: Vec<RoutedTopic> = Vec::new();
    let mut slots: Vec<DraftSlot> = Vec::new();
    let mut records = Vec::with_capacity(outputs.len());
    let mut last = 0;
    for output in outputs {
        if output.is_too_large() {
            return Err(fault::too_large(output.bytes()));
        }
        // Neighbours mostly share their topic.
        if topics.get(last).is_none_or(|topic| topic.name != output.topic) {
            last = match topics.iter().position(|topic| topic.name == output.topic) {
                Some(known) => known,
                None => {
                    let route = route(&output.topic)?;
                    let slots = vec![None; route.partitions as usize];
                    topics.push(RoutedTopic { name: output.topic.clone(), route, slots });
                    topics.len() - 1
                }
            };
        }
        let Some(topic) = topics.get_mut(last) else { continue };
        let partition = topic.route.partition(output)?;
        let Some(slot) = topic.slots.get_mut(partition as usize) else { continue };
        let slot = *slot.get_or_insert_with(|| {
            slots.push(DraftSlot {
                topic: output.topic.clone(),
                partitions: topic.route.partitions,
                partition,
                count: 0,
                bytes: 0,
                first_at: 0,
            });
            slots.len() as u32 - 1
        });
        if let Some(known) = slots.get_mut(slot as usize) {
            records.push((slot, known.count));
            known.count += 1;
            known.bytes += RECORD_HEADER + output.bytes();
        }
    }
    let partitions = slots.iter().map(|slot| slot.partition).collect();
    Ok((slots, OutputSlots { records, partitions }))
}

/// Writes a record at `at`; returns the place behind it.
fn put_record(bytes: &mut [u8], at: usize, number: u32, output: &Output) -> usize {
    let plus_one = |part: &Option<Bytes>| part.as_ref().map_or(0, |part| part.len() as u32 + 1);
    let headers = output.headers.encoded();
    let mut to = at + 4;
    for length in [plus_one(&output.key), headers.len() as u32, plus_one(&output.value)] {
        to = put_at(bytes, to, &length.to_le_bytes());
    }
    to = put_at(bytes, to, output.key.as_deref().unwrap_or_default());
    to = put_at(bytes, to, headers);
    to = put_at(bytes, to, output.value.as_deref().unwrap_or_default());
    let crc = record_crc(number, bytes.get(at + 4..to).unwrap_or_default());
    put_at(bytes, at, &crc.to_le_bytes());
    to
}

/// Copies `part` to `at`; returns the place behind it.
fn put_at(bytes: &mut [u8], at: usize, part: &[u8]) -> usize {
    if let Some(room) = bytes.get_mut(at..at + part.len()) {
        room.copy_from_slice(part);
    }
    at + part.len()
}
