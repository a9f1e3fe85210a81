//! Bodies of held records: they stay in the log and are read back by position.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use potok_core::{
    Fault, Owner, Position, PutOutcome, Record, Store, StoreAddress, StoreEntry, Timestamp,
};

use super::block::BLOCK_BYTES;
use super::format::{RecordSpan, RecordsEntry};
use super::index::Index;
use super::scan::record;
use super::shared::OpenLog;
use super::walk::{Frame, Step, Walker};
use super::{damage, fault};
use crate::owners::Owners;

/// Bytes read at once where neighbours are not wanted: a frame's header and table, mostly.
const FAR_BYTES: usize = 16 << 10;
/// Records that are read together share memory in pieces of this size.
const PIECE_BYTES: usize = 64 << 10;

/// Keeps nothing of its own: what writes elsewhere only checks here who asks.
pub struct EmbeddedStore {
    shared: Arc<OpenLog>,
    owners: Owners,
}

impl EmbeddedStore {
    pub(super) fn new(shared: Arc<OpenLog>) -> Self {
        EmbeddedStore { shared, owners: Owners::default() }
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    fn reads_from_log(&self) -> bool {
        true
    }

    async fn own(&self, owner: &Owner) -> Result<(), Fault> {
        self.owners.own(owner);
        Ok(())
    }

    async fn put(&self, owner: &Owner, _: &[StoreEntry]) -> Result<PutOutcome, Fault> {
        self.owners.check(owner)?;
        Ok(PutOutcome::Kept)
    }

    async fn close(&self, owner: &Owner, _: &[Bytes]) -> Result<(), Fault> {
        self.owners.check(owner)
    }

    async fn load(&self, _: &Owner, places: &[StoreAddress]) -> Result<Vec<Option<Record>>, Fault> {
        let shared = self.shared.clone();
        let positions: Vec<_> = places.iter().map(|place| place.position.clone()).collect();
        let loading = tokio::task::spawn_blocking(move || load(&shared, &positions));
        let loaded = loading.await.map_err(fault::cut_short)?;
        loaded.map_err(|error| fault::read_failed(&error))
    }

    async fn clean(&self, owner: &Owner, _: &[StoreAddress]) -> Result<(), Fault> {
        self.owners.check(owner)
    }
}

/// Reads records back, in the order asked for; `None` for one that is not there, or not byte-exact.
///
/// Every frame is read once at most, for all partitions that have something in it.
fn load(shared: &OpenLog, positions: &[Position]) -> io::Result<Vec<Option<Record>>> {
    let mut loading = StoreLoad {
        shared,
        wanted: WantedRecords::of(positions),
        loaded: positions.iter().map(|_| None).collect(),
        piece: BytesMut::new(),
    };
    let segments: Vec<u64> = shared.state().segments.keys().copied().collect();
    for segment in segments {
        while let Some((mut walker, generation)) = loading.open(segment)? {
            // Where it was rewritten under us, the rest is in the new file.
            if loading.read(segment, &mut walker, generation)? {
                break;
            }
        }
    }
    Ok(loading.loaded)
}

/// The wanted offsets of one partition, ascending.
struct WantedRecords<'a> {
    topic: &'a str,
    partition: u32,
    /// Each with its place among the records that were asked for.
    positions: Vec<(&'a Position, usize)>,
    /// Offsets before this one are done.
    next: usize,
    /// Where in the segment the next one may lie at the earliest; `None` where it does not.
    at: Option<u64>,
}

impl<'a> WantedRecords<'a> {
    fn of(positions: &'a [Position]) -> Vec<Self> {
        let mut partitions: HashMap<(&str, u32), Vec<(&Position, usize)>> = HashMap::new();
        for (place, position) in positions.iter().enumerate() {
            let key = (&*position.topic, position.partition);
            partitions.entry(key).or_default().push((position, place));
        }
        let wanted = partitions.into_iter().map(|((topic, partition), mut positions)| {
            positions.sort_by_key(|(position, _)| position.offset);
            WantedRecords { topic, partition, positions, next: 0, at: None }
        });
        wanted.collect()
    }

    fn next(&self) -> Option<(&'a Position, usize)> {
        self.positions.get(self.next).copied()
    }
}

struct StoreLoad<'a> {
    shared: &'a OpenLog,
    wanted: Vec<WantedRecords<'a>>,
    loaded: Vec<Option<Record>>,
    /// Memory for the records to come: the caller may keep them for long, but not the blocks of
    /// the file they were read in.
    piece: BytesMut,
}

impl StoreLoad<'_> {
    /// Opens a segment that has something wanted.
    fn open(&mut self, segment: u64) -> io::Result<Option<(Walker, u32)>> {
        let shared = self.shared;
        let state = shared.state();
        let Some(known) = state.segments.get(&segment) else { return Ok(None) };
        if !self.seek(&known.index) {
            return Ok(None);
        }
        match shared.open_segment(&state, segment) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                shared.report(&state, damage::DamageReport::lost(segment));
                Ok(None)
            }
            Err(error) => Err(error),
            Ok(file) => {
                let walker = Walker::new(file, segment, shared.nonce, known.end);
                Ok(Some((walker.into_blocks(shared.blocks.clone()), known.generation)))
            }
        }
    }

    /// Finds where in a segment the next of each partition may lie; false where none does.
    fn seek(&mut self, index: &Index) -> bool {
        for wanted in &mut self.wanted {
            let seek = |(position, _): (&Position, usize)| {
                index.seek(wanted.topic, wanted.partition, position.offset)
            };
            wanted.at = wanted.next().and_then(seek);
        }
        self.wanted.iter().any(|wanted| wanted.at.is_some())
    }

    /// The same for a segment that is being read; false where it is another by now.
    fn seek_again(&mut self, segment: u64, generation: u32) -> bool {
        let state = self.shared.state();
        match state.segments.get(&segment) {
            Some(known) if known.generation == generation => {
                self.seek(&known.index);
                true
            }
            _ => false,
        }
    }

    /// Reads what is wanted of a segment; false where it was rewritten meanwhile.
    fn read(&mut self, segment: u64, walker: &mut Walker, generation: u32) -> io::Result<bool> {
        let mut at = 0;
        let mut is_near = false;
        // A record that is not where it should be is damaged or gone: the next one is looked for.
        while let Some(earliest) = self.wanted.iter().filter_map(|wanted| wanted.at).min() {
            is_near &= earliest <= at;
            at = at.max(earliest);
            walker.read_ahead(if is_near { BLOCK_BYTES } else { FAR_BYTES });
            match walker.at(at)? {
                Step::Frame(frame) => {
                    at = frame.end();
                    is_near = self.take(segment, walker, &frame)?;
                    if is_near && !self.seek_again(segment, generation) {
                        return Ok(false);
                    }
                }
                Step::Bad(bad) => {
                    let found = damage::DamageReport::within(segment, bad.from, bad.to);
                    self.shared.report(&self.shared.state(), found);
                    at = bad.to;
                }
                Step::End => {
                    for wanted in &mut self.wanted {
                        wanted.next += usize::from(wanted.at.is_some());
                    }
                    if !self.seek_again(segment, generation) {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Takes what is wanted out of a frame; true where something was.
    fn take(&mut self, segment: u64, walker: &mut Walker, frame: &Frame) -> io::Result<bool> {
        let StoreLoad { shared, wanted, loaded, piece } = self;
        let mut any = false;
        let mut damaged = false;
        let entries = frame.entries();
        for (records, range) in frame.records(&entries) {
            let of_entry = |wanted: &&mut WantedRecords<'_>| {
                (wanted.topic, wanted.partition) == (records.topic, records.partition)
            };
            let Some(wanted) = wanted.iter_mut().find(of_entry) else { continue };
            let behind = records.first + u64::from(records.count);
            if wanted.next().is_none_or(|(position, _)| position.offset >= behind) {
                continue;
            }
            any = true;
            let payload = walker.bytes(range.start, records.bytes as usize)?;
            let mut spans = Spans { payload: &payload, number: 0, at: 0 };
            while let Some((position, place)) = wanted.next()
                && position.offset < behind
            {
                wanted.next += 1;
                let Some(number) = number_of(position, records) else { continue };
                let span = spans.read(number).filter(|_| frame.header.incarnation == position.log);
                let Some(span) = span else { continue };
                if !span.fits(&payload, number) {
                    damaged = true;
                    continue;
                }
                let (time, offset) = (Timestamp(frame.header.time), position.offset);
                let body = copy(piece, payload.get(span.all).unwrap_or_default());
                let read = RecordSpan::read(&body, 0);
                if let (Some(span), Some(loaded)) = (read, loaded.get_mut(place)) {
                    *loaded = Some(record(&body, &span, offset, time));
                }
            }
        }
        if damaged {
            let found = damage::DamageReport::within(segment, frame.at, frame.end());
            shared.report(&shared.state(), found);
        }
        Ok(any)
    }
}

/// Which of the records it is; `None` for one that lies before them.
fn number_of(position: &Position, records: &RecordsEntry<'_>) -> Option<u32> {
    u32::try_from(position.offset.checked_sub(records.first)?).ok()
}

/// Records that lie one behind the other, found by number, ascending.
struct Spans<'a> {
    payload: &'a [u8],
    number: u32,
    at: usize,
}

impl Spans<'_> {
    fn read(&mut self, number: u32) -> Option<RecordSpan> {
        let mut span = RecordSpan::read(self.payload, self.at)?;
        while self.number < number {
            self.at = span.all.end;
            self.number += 1;
            span = RecordSpan::read(self.payload, self.at)?;
        }
        Some(span)
    }
}

/// Puts bytes into the piece, or a fresh one where they do not fit.
fn copy(piece: &mut BytesMut, bytes: &[u8]) -> Bytes {
    if piece.capacity() < bytes.len() {
        *piece = BytesMut::with_capacity(bytes.len().max(PIECE_BYTES));
    }
    piece.extend_from_slice(bytes);
    piece.split().freeze()
}
