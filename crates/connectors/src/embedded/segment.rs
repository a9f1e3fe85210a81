//! How a segment begins and how it ends.
//!
//! A segment is made under another name, whole: header, checkpoint, notes. It gets its name when
//! all of that is durable, so a segment that exists always has a checkpoint, and a crash in
//! between leaves nothing but garbage under the other name.

use std::io;
use std::sync::Arc;

use potok_core::trouble::crash_point;

use super::disk::{DiskFile, read_up_to, write_all};
use super::draft::{Draft, FramePlacement};
use super::format::{Entry, FrameKind, SEGMENT_HEADER, SegmentHeader, entries};
use super::index::Index;
use super::shared::{OpenLog, Segment, Tail};
use super::walk::{Step, Walker};
use super::writer::note_records;

/// The plan of a new segment.
pub struct SegmentPlan {
    pub number: u64,
    /// The incarnation of its first frames.
    pub incarnation: u64,
    /// Notes of damage, with the offsets of their dead letters.
    pub notes: Vec<(Draft, Vec<u64>)>,
    /// Bytes of the footer that the segment before will get.
    pub footer: u64,
}

/// A segment that is durable, and has not got its name yet.
pub struct UnnamedSegment {
    plan: SegmentPlan,
    file: Arc<dyn DiskFile>,
    /// Where each note starts.
    starts: Vec<u64>,
    end: u64,
    time: i64,
}

impl UnnamedSegment {
    /// Writes and syncs it under its other name.
    pub fn new(shared: &OpenLog, mut plan: SegmentPlan) -> io::Result<UnnamedSegment> {
        let time = shared.clock.now().0;
        let (mut bytes, starts) = content(shared, &mut plan, time);
        crash_point("checkpoint.before");
        let path = shared.paths.new_segment(plan.number);
        let write = || -> io::Result<Arc<dyn DiskFile>> {
            let file = shared.disk.create(&path)?;
            write_all(file.as_ref(), &bytes, 0)?;
            file.sync()?;
            Ok(file)
        };
        let file = write().inspect_err(|_| {
            let _ = shared.disk.remove(&path);
        })?;
        crash_point("checkpoint.after");
        let end = bytes.len() as u64;
        bytes.clear();
        Ok(UnnamedSegment { plan, file, starts, end, time })
    }

    /// Not wanted after all.
    pub fn discard(self, shared: &OpenLog) {
        let _ = shared.disk.remove(&shared.paths.new_segment(self.plan.number));
    }

    /// Gives it its name, durably, and makes it the newest segment. After an error it may exist
    /// or not.
    pub fn put_in_place(self, shared: &OpenLog) -> io::Result<(Arc<dyn DiskFile>, u64)> {
        let number = self.plan.number;
        shared.disk.rename(&shared.paths.new_segment(number), &shared.paths.segment(number))?;
        shared.disk.sync_dir(&shared.paths.log)?;
        let mut state = shared.state_mut();
        let mut index = Index::default();
        for ((draft, _), at) in self.plan.notes.iter().zip(self.starts) {
            let entries = entries(draft.table()).unwrap_or_default();
            state.catalog.apply(FrameKind::Transaction, &entries);
            note_records(&mut index, at, self.time, &entries);
        }
        state.catalog.segments.insert(number);
        state.segments.insert(number, Segment { end: self.end, index, ..Segment::default() });
        state.tail = Tail { segment: number, at: self.end };
        shared.tail.send_replace(state.tail);
        Ok((self.file, self.end))
    }
}

/// Header, checkpoint and notes; and where each note starts.
fn content(shared: &OpenLog, plan: &mut SegmentPlan, time: i64) -> (Vec<u8>, Vec<u64>) {
    let state = shared.state();
    let before = state.segments.last_key_value();
    let header = SegmentHeader {
        nonce: shared.nonce,
        number: plan.number,
        previous: before.map_or(0, |(number, _)| *number),
        previous_end: before.map_or(0, |(_, segment)| segment.end + plan.footer),
        compacted: None,
        merged: false,
    };
    let mut bytes = header.encode().to_vec();
    let place = |at: usize| FramePlacement {
        nonce: shared.nonce,
        incarnation: plan.incarnation,
        time,
        segment: plan.number,
        at: at as u64,
    };
    let mut checkpoint = state.catalog.checkpoint();
    checkpoint.push(Entry::Segment { number: plan.number });
    let mut draft = Draft::of_entries(FrameKind::Checkpoint, &checkpoint);
    bytes.extend_from_slice(draft.finish(&[], place(SEGMENT_HEADER)));
    let mut starts = Vec::new();
    for (note, firsts) in &mut plan.notes {
        starts.push(bytes.len() as u64);
        bytes.extend_from_slice(note.finish(firsts, place(bytes.len())));
    }
    (bytes, starts)
}

/// A footer for its place: the index, and where it starts itself.
pub fn footer(index: &Index, place: FramePlacement) -> Vec<u8> {
    let mut draft = Draft::of_entries(FrameKind::Footer, &index.entries());
    draft.set_payload(&place.at.to_le_bytes());
    draft.finish(&[], place).to_vec()
}

/// The index in the footer at the end of a file of `len` bytes; `None` when there is no footer.
pub fn read_footer(
    file: &Arc<dyn DiskFile>,
    segment: u64,
    nonce: u64,
    len: u64,
) -> io::Result<Option<Index>> {
    let Some(last) = len.checked_sub(8) else { return Ok(None) };
    let pointer = read_up_to(file.as_ref(), last, 8)?;
    let Some(pointer) = pointer.first_chunk::<8>() else { return Ok(None) };
    let at = u64::from_le_bytes(*pointer);
    if at < SEGMENT_HEADER as u64 || at >= len {
        return Ok(None);
    }
    match Walker::new(file.clone(), segment, nonce, len).at(at)? {
        Step::Frame(frame) if frame.header.kind == FrameKind::Footer && frame.end() == len => {
            Ok(Some(Index::from_entries(&frame.entries())))
        }
        _ => Ok(None),
    }
}
