//! Puts the pinned records of neighbouring old segments into one file, in the place of the newest
//! of them.
//!
//! Records keep offset, time, incarnation and their place in the order of the log: the merged
//! segment holds the records of the oldest member first. It is written under another name, synced,
//! and renamed over the newest member; in the same moment readers lose sight of the others, whose
//! files go afterwards. A crash in between leaves them there: the merged segment's header names the
//! segment before the oldest member, so the next opening knows what is left over and does not read
//! it. No record is seen twice, and none too early.
//!
//! It does not decide what to merge (`retention`) nor what is pinned (`pin`).

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::catalog::Catalog;
use super::damage;
use super::disk::{DiskFile, write_all};
use super::draft::{Draft, FramePlacement};
use super::format::{
    Entry, FrameHeader, FrameKind, RecordSpan, RecordsEntry, SEGMENT_HEADER, SegmentHeader,
    record_crc,
};
use super::index::Index;
use super::order::{self, FrameOrder};
use super::pin::{EvictionCause, Pin, loose, pin};
use super::segment;
use super::shared::{OpenLog, Segment};
use super::walk::{Frame, Step, Walker};
use super::writer::{Gather, note_records};

/// A segment to be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub number: u64,
    /// Why its loose records may go.
    pub need: EvictionCause,
}

/// A member's file, as it was when the merge began.
struct Source {
    member: Member,
    file: Arc<dyn DiskFile>,
    end: u64,
}

/// Merges `members`, oldest first. `most` bounds the new file: where the records turn out to take
/// more, or a member is gone or has damage that must be kept aside first, nothing changes.
/// Returns true when they are merged; the files of all but the last are left over then.
pub fn merge(shared: &OpenLog, members: &[Member], most: u64) -> io::Result<bool> {
    let Some(last) = members.last().copied() else { return Ok(false) };
    let new = shared.paths.new_segment(last.number);
    let copied = copy(shared, members, most).inspect_err(|_| {
        let _ = shared.disk.remove(&new);
    })?;
    let Some((end, index)) = copied else {
        let _ = shared.disk.remove(&new);
        return Ok(false);
    };
    {
        // Under the lock, so that nobody opens the new file with the old index in hand.
        let mut state = shared.state_mut();
        let state = &mut *state;
        shared.disk.rename(&new, &shared.paths.segment(last.number))?;
        if let Some(segment) = state.segments.get_mut(&last.number) {
            let loose = Some(loose(&state.catalog, &index, last.need).loose);
            *segment = Segment { end, index, generation: segment.generation + 1, loose };
        }
        for member in members.iter().filter(|member| member.number != last.number) {
            state.segments.remove(&member.number);
            state.left_over.insert(member.number);
        }
    }
    shared.disk.sync_dir(&shared.paths.log)?;
    Ok(true)
}

/// Writes and syncs the new file; its end and its index.
fn copy(shared: &OpenLog, members: &[Member], most: u64) -> io::Result<Option<(u64, Index)>> {
    let Some(opened) = MergeInput::new(shared, members)? else { return Ok(None) };
    let Some(last) = opened.sources.last() else { return Ok(None) };
    let number = last.member.number;
    let file = shared.disk.create(&shared.paths.new_segment(number))?;
    let pending = vec![0; SEGMENT_HEADER];
    let mut copy = Copy {
        shared,
        catalog: &opened.catalog,
        number,
        gather: Gather { file: file.as_ref(), at: 0, pending },
        index: Index::default(),
        newest: None,
    };
    copy.checkpoint(last, members)?;
    for source in &opened.sources {
        if !copy.take_all(source, most)? {
            return Ok(None);
        }
    }
    let place = copy.place(copy.newest);
    let footer = segment::footer(&copy.index, place);
    copy.gather.put(&footer)?;
    copy.gather.flush()?;
    let (end, index) = (copy.gather.at, copy.index);
    if end > most {
        return Ok(None);
    }
    let (previous, previous_end) = opened.before;
    let header = SegmentHeader {
        nonce: shared.nonce,
        number,
        previous,
        previous_end,
        compacted: Some(end),
        merged: true,
    };
    write_all(file.as_ref(), &header.encode(), 0)?;
    file.sync()?;
    Ok(Some((end, index)))
}

/// The input of a merge, all of one moment.
struct MergeInput {
    sources: Vec<Source>,
    catalog: Catalog,
    /// Number and end of the segment before the oldest; zeros for none.
    before: (u64, u64),
}

impl MergeInput {
    fn new(shared: &OpenLog, members: &[Member]) -> io::Result<Option<MergeInput>> {
        let state = shared.state();
        let mut sources = Vec::with_capacity(members.len());
        for member in members {
            let Some(segment) = state.segments.get(&member.number) else { return Ok(None) };
            let file = shared.open_segment(&state, member.number)?;
            sources.push(Source { member: *member, file, end: segment.end });
        }
        let oldest = members.first().map_or(0, |member| member.number);
        let before = state.segments.range(..oldest).next_back();
        let before = before.map_or((0, 0), |(number, segment)| (*number, segment.end));
        Ok(Some(MergeInput { sources, catalog: state.catalog.clone(), before }))
    }
}

/// A segment in the making, with the pinned records of others.
struct Copy<'a> {
    shared: &'a OpenLog,
    catalog: &'a Catalog,
    number: u64,
    gather: Gather<'a>,
    index: Index,
    newest: Option<FrameHeader>,
}

impl Copy<'_> {
    fn place(&self, like: Option<FrameHeader>) -> FramePlacement {
        FramePlacement {
            nonce: self.shared.nonce,
            incarnation: like.map_or(0, |header| header.incarnation),
            time: like.map_or(0, |header| header.time),
            segment: self.number,
            at: self.gather.end(),
        }
    }

    fn walker(&self, source: &Source) -> Walker {
        Walker::new(source.file.clone(), source.member.number, self.shared.nonce, source.end)
    }

    /// Takes over the newest member's checkpoint, where it is good; it is the state at a later
    /// moment than the others'. Segments that are gone by now are left out of it.
    fn checkpoint(&mut self, source: &Source, members: &[Member]) -> io::Result<()> {
        let Step::Frame(frame) = self.walker(source).at(SEGMENT_HEADER as u64)? else {
            return Ok(());
        };
        if frame.header.kind != FrameKind::Checkpoint {
            return Ok(());
        }
        let mut entries = frame.entries();
        entries.retain(|entry| match entry {
            Entry::Segment { number } => {
                *number == self.number
                    || self.catalog.segments.contains(number)
                        && members.iter().all(|member| member.number != *number)
            }
            _ => true,
        });
        let mut draft = Draft::of_entries(FrameKind::Checkpoint, &entries);
        let place = self.place(Some(frame.header));
        self.gather.put(draft.finish(&[], place))
    }

    /// Takes over what is pinned of a segment; false when it cannot be merged now.
    fn take_all(&mut self, source: &Source, most: u64) -> io::Result<bool> {
        let mut walker = self.walker(source);
        let mut at = SEGMENT_HEADER as u64;
        while self.gather.end() <= most {
            let (from, to, good) = match walker.at(at)? {
                Step::End => return Ok(true),
                Step::Frame(frame) => {
                    let good = self.take(source.member.need, &mut walker, &frame)?;
                    self.newest = Some(frame.header);
                    (frame.at, frame.end(), good)
                }
                Step::Bad(bad) => (bad.from, bad.to, false),
            };
            at = to;
            if !good && !self.is_known(source.member.number, from, to) {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Takes over what is pinned of a frame; false when its records do not fit.
    fn take(
        &mut self,
        need: EvictionCause,
        walker: &mut Walker,
        frame: &Frame,
    ) -> io::Result<bool> {
        let entries = frame.entries();
        let mut whole = true;
        let mut payload = Vec::new();
        let mut taken = Vec::new();
        // Which entry of the new frame has taken which record of which entry.
        let mut homes: Vec<HashMap<u32, u32>> = Vec::new();
        for (records, range) in frame.records(&entries) {
            let mut home = HashMap::new();
            let pin = pin(self.catalog, records.topic, records.partition, need);
            let bytes = walker.bytes(range.start, records.bytes as usize)?;
            whole &= crc32fast::hash(&bytes) == records.crc;
            for run in runs(records, &bytes, &pin) {
                let numbers = run.spans.iter().zip(run.first - records.first..);
                home.extend(numbers.map(|(_, number)| (number as u32, taken.len() as u32)));
                let (entry, run_bytes) = run.encode(records, &bytes);
                taken.push(Entry::Records(entry));
                payload.extend_from_slice(&run_bytes);
            }
            homes.push(home);
        }
        if taken.is_empty() {
            return Ok(whole);
        }
        let came: Vec<u32> = FrameOrder::of(&entries)
            .in_order()
            .filter_map(|(entry, number)| homes.get(entry)?.get(&number).copied())
            .collect();
        let came = order::written(came.into_iter());
        taken.extend(came.as_deref().map(|came| Entry::Order { came }));
        let place = self.place(Some(frame.header));
        let mut draft = Draft::of_entries(FrameKind::Transaction, &taken);
        draft.set_payload(&payload);
        self.gather.put(draft.finish(&[], place))?;
        note_records(&mut self.index, place.at, place.time, &taken);
        Ok(whole)
    }

    /// Damage that is not noted yet is noted first: merging the segment would erase it.
    fn is_known(&self, segment: u64, from: u64, to: u64) -> bool {
        let known = self.catalog.knows_damage(segment, from, to);
        if !known {
            let found = damage::DamageReport::within(segment, from, to);
            self.shared.report(&self.shared.state(), found);
        }
        known
    }
}

/// Pinned records of an entry that follow each other without gap.
struct PinnedRun {
    /// Offset of the first.
    first: u64,
    spans: Vec<RecordSpan>,
}

fn runs(records: &RecordsEntry<'_>, payload: &Bytes, pin: &Pin<'_>) -> Vec<PinnedRun> {
    let mut runs: Vec<PinnedRun> = Vec::new();
    let mut at = 0;
    for number in 0..records.count {
        let Some(span) = RecordSpan::read(payload, at) else { break };
        at = span.all.end;
        let offset = records.first + u64::from(number);
        if !pin.holds(offset) || !span.fits(payload, number) {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.first + run.spans.len() as u64 == offset => run.spans.push(span),
            _ => runs.push(PinnedRun { first: offset, spans: vec![span] }),
        }
    }
    runs
}

impl PinnedRun {
    /// The run as an entry of its own. The records' checksums hold their place within the entry,
    /// which is another one now.
    fn encode<'a>(
        &self,
        records: &RecordsEntry<'a>,
        payload: &Bytes,
    ) -> (RecordsEntry<'a>, Vec<u8>) {
        let mut bytes = Vec::new();
        for (number, span) in (0_u32..).zip(&self.spans) {
            let rest = payload.get(span.all.start + 4..span.all.end).unwrap_or_default();
            bytes.extend_from_slice(&record_crc(number, rest).to_le_bytes());
            bytes.extend_from_slice(rest);
        }
        let entry = RecordsEntry {
            first: self.first,
            count: self.spans.len() as u32,
            bytes: bytes.len() as u32,
            crc: crc32fast::hash(&bytes),
            ..*records
        };
        (entry, bytes)
    }
}
