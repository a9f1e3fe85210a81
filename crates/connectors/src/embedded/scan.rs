//! Reads records of some partitions, in the order of the log, once each.
//!
//! One pass over the log serves all partitions of a group. A scan knows for each partition (a
//! *lane*) the offset it wants next; where it stands in the files is only a short cut that can be
//! found again from those offsets, so retention may rewrite or remove segments under it.
//! It never reads behind the synced end, and jumps there when none of its partitions has more.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use potok_core::{Headers, LogOrder, Partition, Record, SourceBatch, Timestamp};

use super::damage;
use super::format::{FrameKind, RecordSpan};
use super::order::FrameOrder;
use super::shared::{LogState, OpenLog, Tail};
use super::walk::{BadBytes, Frame, Step, Walker};

/// A batch is handed out when it has so many records…
const BATCH_RECORDS_MAX: usize = 5_000;
/// …or the scan has gathered so many bytes.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// One partition that is wanted.
#[derive(Clone, Debug)]
pub struct ScanCursor {
    pub partition: Partition,
    /// The assignment its batches carry.
    pub assignment: u64,
    /// The first offset not handed out.
    pub next: u64,
}

/// Where the scan reads now.
struct ScanPosition {
    segment: u64,
    generation: u32,
    at: u64,
    walker: Walker,
}

/// Records of one entry, fetched and not yet taken apart.
struct Piece {
    lane: usize,
    log: u64,
    time: Timestamp,
    first: u64,
    count: u32,
    /// The place of its frame among all that the scan meets, and of its records in the frame.
    first_place: u64,
    places: Vec<u64>,
    payload: Bytes,
    /// The checksum over all of them did not fit: each has to prove itself.
    doubtful: bool,
}

/// A pass over the log.
pub struct Scan {
    shared: Arc<OpenLog>,
    lanes: Vec<ScanCursor>,
    /// Topic → partition → lane.
    by_topic: HashMap<Arc<str>, Vec<Option<usize>>>,
    place: Option<ScanPosition>,
    /// Segments up to this one are done with.
    done: u64,
    /// How many records it has met: it meets them in the order in which they came.
    met: u64,
}

impl Scan {
    /// Starts a scan; nothing is read yet.
    pub fn new(shared: Arc<OpenLog>, lanes: Vec<ScanCursor>) -> Self {
        let mut by_topic: HashMap<Arc<str>, Vec<Option<usize>>> = HashMap::new();
        for (number, lane) in lanes.iter().enumerate() {
            let partitions = by_topic.entry(lane.partition.topic.clone()).or_default();
            let index = lane.partition.index as usize;
            partitions.resize(partitions.len().max(index + 1), None);
            if let Some(slot) = partitions.get_mut(index) {
                *slot = Some(number);
            }
        }
        Scan { shared, lanes, by_topic, place: None, done: 0, met: 0 }
    }

    /// The next batches; none when everything synced has been read. Blocks on the disk. After an
    /// error the next call says what this one would have said.
    pub fn fill(&mut self) -> io::Result<Vec<SourceBatch>> {
        match self.collect() {
            Ok(pieces) => Ok(self.take_apart(pieces)),
            Err(error) => {
                // The records gathered so far are dropped and found again by their offsets.
                self.place = None;
                self.done = 0;
                Err(error)
            }
        }
    }

    fn collect(&mut self) -> io::Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let mut gathered = 0;
        let mut fetched = 0;
        let mut first = true;
        loop {
            let at_limit = self.place.as_ref().is_none_or(|at| at.at >= at.walker.limit());
            if (first || at_limit) && !self.find_place()? {
                break;
            }
            first = false;
            let Some(place) = &mut self.place else { break };
            let before = place.walker.fetched();
            let found = place.walker.at(place.at)?;
            match found {
                Step::Frame(frame) => {
                    place.at = frame.end();
                    let bytes = self.gather(&frame, &mut pieces)?;
                    gathered += bytes;
                }
                Step::Bad(bad) => self.pass(bad),
                // At the limit: the next turn finds where to go on.
                Step::End => {}
            }
            fetched += self.place.as_ref().map_or(0, |place| place.walker.fetched() - before);
            if gathered >= BATCH_BYTES_MAX {
                break;
            }
        }
        // Slices hold the whole block they were read in. Where little of it is wanted, a copy
        // lets the block go; otherwise a few records could hold a lot of memory.
        if (gathered as u64) < fetched / 2 {
            for piece in &mut pieces {
                piece.payload = Bytes::copy_from_slice(&piece.payload);
            }
        }
        Ok(pieces)
    }

    /// Makes `place` one with something to read; false when there is nothing more.
    fn find_place(&mut self) -> io::Result<bool> {
        let shared = self.shared.clone();
        let state = shared.state();
        let behind = |lane: &ScanCursor| {
            lane.next < state.catalog.head(&lane.partition.topic, lane.partition.index).end
        };
        if !self.lanes.iter().any(behind) {
            self.go_to_tail(state.tail);
            return Ok(false);
        }
        if let Some(place) = &mut self.place {
            if place.at < place.walker.limit() {
                return Ok(true);
            }
            let now = state.segments.get(&place.segment);
            match now.filter(|segment| segment.generation == place.generation) {
                Some(segment) if segment.end > place.walker.limit() => {
                    place.walker.extend(segment.end);
                    return Ok(true);
                }
                Some(_) if place.segment == state.tail.segment => return Ok(false),
                Some(_) => self.done = place.segment,
                // Rewritten while it was being read: what is left of it is found by offset.
                None => self.done = place.segment.saturating_sub(1),
            }
            self.place = None;
        }
        self.seek(&state)
    }

    /// Goes to the first segment, behind those done with, that has something wanted.
    fn seek(&mut self, state: &LogState) -> io::Result<bool> {
        for (number, segment) in state.segments.range(self.done + 1..) {
            let wanted = |lane: &ScanCursor| {
                segment.index.seek(&lane.partition.topic, lane.partition.index, lane.next)
            };
            if let Some(at) = self.lanes.iter().filter_map(wanted).min() {
                let file = match self.shared.open_segment(state, *number) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        // Somebody took it away under us: it is reported, the others are read.
                        self.shared.report(state, damage::DamageReport::lost(*number));
                        self.done = *number;
                        continue;
                    }
                    opened => opened?,
                };
                let walker = Walker::new(file, *number, self.shared.nonce, segment.end)
                    .into_blocks(self.shared.blocks.clone());
                let generation = segment.generation;
                self.place = Some(ScanPosition { segment: *number, generation, at, walker });
                return Ok(true);
            }
        }
        self.go_to_tail(state.tail);
        Ok(false)
    }

    /// Nothing before the synced end is wanted: the next thing to read lies behind it.
    fn go_to_tail(&mut self, tail: Tail) {
        match &mut self.place {
            Some(place) if place.segment == tail.segment => {
                place.walker.extend(tail.at);
                place.at = tail.at;
            }
            _ => {
                self.place = None;
                self.done = tail.segment.saturating_sub(1);
            }
        }
    }

    /// Fetches what is wanted of a frame; returns its bytes.
    fn gather(&mut self, frame: &Frame, pieces: &mut Vec<Piece>) -> io::Result<usize> {
        if frame.header.kind != FrameKind::Transaction {
            return Ok(0);
        }
        let Some(place) = &mut self.place else { return Ok(0) };
        let entries = frame.entries();
        let frame_places = FrameOrder::of(&entries);
        let first_place = self.met;
        self.met += frame_places.count();
        let mut by_entry = Vec::new();
        let mut gathered = 0;
        for (number, (records, range)) in frame.records(&entries).enumerate() {
            let partitions = self.by_topic.get(records.topic);
            let lane = partitions.and_then(|lanes| *lanes.get(records.partition as usize)?);
            let Some(lane) = lane else { continue };
            let behind = records.first + u64::from(records.count);
            if self.lanes.get(lane).is_none_or(|lane| behind <= lane.next) {
                continue;
            }
            let payload = place.walker.bytes(range.start, records.bytes as usize)?;
            let doubtful = crc32fast::hash(&payload) != records.crc;
            if doubtful {
                let found = damage::DamageReport::within(place.segment, frame.at, frame.end());
                self.shared.report(&self.shared.state(), found);
                if self.shared.bugs.stop_at_damage {
                    place.at = place.walker.limit();
                    return Ok(gathered);
                }
            }
            gathered += payload.len();
            if by_entry.is_empty() {
                by_entry = frame_places.by_entry();
            }
            let places = by_entry.get_mut(number).map(std::mem::take).unwrap_or_default();
            pieces.push(Piece {
                lane,
                log: frame.header.incarnation,
                time: Timestamp(frame.header.time),
                first: records.first,
                count: records.count,
                first_place,
                places,
                payload,
                doubtful,
            });
        }
        Ok(gathered)
    }

    /// Goes past damage.
    fn pass(&mut self, bad: BadBytes) {
        let Some(place) = &mut self.place else { return };
        place.at = if self.shared.bugs.stop_at_damage { place.walker.limit() } else { bad.to };
        let found = damage::DamageReport::within(place.segment, bad.from, bad.to);
        self.shared.report(&self.shared.state(), found);
    }

    /// Makes batches of pieces: per lane and incarnation, in order.
    fn take_apart(&mut self, pieces: Vec<Piece>) -> Vec<SourceBatch> {
        let mut done: Vec<SourceBatch> = Vec::new();
        let mut open: Vec<OpenBatch> = self.lanes.iter().map(|_| OpenBatch::default()).collect();
        for piece in &pieces {
            if let Some(open) = open.get_mut(piece.lane) {
                open.expected += piece.count as usize;
            }
        }
        for piece in pieces {
            if let (Some(lane), Some(open)) =
                (self.lanes.get_mut(piece.lane), open.get_mut(piece.lane))
            {
                open.pour(&piece, lane, &mut done);
            }
        }
        // Lanes in their order, so that the same log always reads the same.
        done.extend(open.into_iter().filter_map(|open| open.batch));
        done.retain(|batch| !batch.records.is_empty());
        let behind = done.len().saturating_sub(1);
        for order in done.iter_mut().take(behind).filter_map(|batch| batch.order.as_mut()) {
            order.more = true;
        }
        done
    }
}

/// The batch of a lane that is being filled.
#[derive(Default)]
struct OpenBatch {
    batch: Option<SourceBatch>,
    /// How many records are still to come, at most.
    expected: usize,
}

impl OpenBatch {
    /// Puts a piece's records into the batch; batches that are full are done.
    fn pour(&mut self, piece: &Piece, lane: &mut ScanCursor, done: &mut Vec<SourceBatch>) {
        if self.batch.as_ref().is_some_and(|batch| batch.log != piece.log) {
            done.extend(self.batch.take());
        }
        let mut records = piece.records(lane.next);
        loop {
            let expected = self.expected.min(BATCH_RECORDS_MAX);
            let batch = self.batch.get_or_insert_with(|| SourceBatch {
                partition: lane.partition.clone(),
                log: piece.log,
                assignment: lane.assignment,
                first: lane.next,
                next: lane.next,
                records: Vec::with_capacity(expected),
                order: Some(LogOrder { places: Vec::with_capacity(expected), more: false }),
                feed: None,
            });
            let before = batch.records.len();
            for (record, place) in records.by_ref().take(BATCH_RECORDS_MAX - before) {
                batch.records.push(record);
                batch.order.iter_mut().for_each(|order| order.places.push(place));
            }
            self.expected = self.expected.saturating_sub(batch.records.len() - before);
            if let Some(last) = batch.records.last() {
                lane.next = last.offset + 1;
                batch.next = lane.next;
            }
            if batch.records.len() < BATCH_RECORDS_MAX {
                return;
            }
            done.extend(self.batch.take());
        }
    }
}

impl Piece {
    /// The records from offset `from` on, slices of the payload, each with its place.
    fn records(&self, from: u64) -> impl Iterator<Item = (Record, u64)> {
        let mut at = 0;
        let mut number = 0;
        std::iter::from_fn(move || {
            while number < self.count {
                let span = RecordSpan::read(&self.payload, at)?;
                let (at_number, offset) = (number, self.first + u64::from(number));
                at = span.all.end;
                number += 1;
                // The checksum over all of them fitted, or each has to prove itself. One that was alone
                // cannot: what fits its own checksum and not that of all is another record.
                let is_proven = || self.count > 1 && span.fits(&self.payload, at_number);
                if offset >= from && (!self.doubtful || is_proven()) {
                    let place = self.places.get(at_number as usize).copied().unwrap_or_default();
                    let record = record(&self.payload, &span, offset, self.time);
                    return Some((record, self.first_place + place));
                }
            }
            None
        })
    }
}

/// Cuts a record out of the payload it lies in.
pub fn record(payload: &Bytes, span: &RecordSpan, offset: u64, time: Timestamp) -> Record {
    Record {
        offset,
        time,
        key: span.key.clone().map(|range| payload.slice(range)),
        headers: match span.headers.is_empty() {
            true => Headers::none(),
            false => Headers::from_encoded(payload.slice(span.headers.clone())),
        },
        value: span.value.clone().map(|range| payload.slice(range)),
    }
}
