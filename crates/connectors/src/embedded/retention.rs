//! Lets go of what nobody needs any more, on a thread of its own.
//!
//! A record is *pinned* while a registered group that reads its topic has not ended it, and for
//! ever in topics that hold dead letters, their resolutions and replays. What is not pinned goes
//! when it is older than `retention_age`, when the log is larger than `retention_bytes`, or, in
//! topics that groups read, when the disk is full. A segment without pinned records is unlinked,
//! after that was noted durably; one with few is rewritten in place, at the same offsets, so that
//! one paused pipeline does not hold the disk. The newest two segments are never touched: their
//! checkpoints are the state.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use bytes::Bytes;
use potok_core::trouble::crash_point;
use potok_core::{RangeSet, Timestamp};
use tokio::sync::oneshot;

use super::catalog::{Catalog, without};
use super::damage::{self, DEAD_TOPIC};
use super::disk::{read_up_to, write_all};
use super::draft::{Draft, Place};
use super::format::{
    Entry, HeaderRead, Kind, RecordSpan, RecordsEntry, SEGMENT_HEADER, SegmentHeader, record_crc,
};
use super::index::Index;
use super::segment;
use super::shared::{Alarm, Command, Segment, Shared, State};
use super::walk::{Found, Frame, Walker};
use super::writer::note_records;

/// Never touched: their checkpoints are the state.
const NEWEST_KEPT: usize = 2;

enum Wake {
    Look,
    Press,
    Now(oneshot::Sender<()>),
    Stop,
}

/// Wakes retention.
#[derive(Clone)]
pub struct Keeper(mpsc::Sender<Wake>);

/// What a keeper wakes.
pub struct Waking(mpsc::Receiver<Wake>);

impl Keeper {
    /// A keeper, and what to start with it.
    pub fn new() -> (Keeper, Waking) {
        let (sender, receiver) = mpsc::channel();
        (Keeper(sender), Waking(receiver))
    }

    /// There may be something to let go of.
    pub fn wake(&self) {
        let _ = self.0.send(Wake::Look);
    }

    /// The disk is full.
    pub fn press(&self) {
        let _ = self.0.send(Wake::Press);
    }

    /// Looks now; the answer comes when it is done.
    pub fn now(&self) -> oneshot::Receiver<()> {
        let (reply, answer) = oneshot::channel();
        let _ = self.0.send(Wake::Now(reply));
        answer
    }

    /// Ends the thread.
    pub fn stop(&self) {
        let _ = self.0.send(Wake::Stop);
    }
}

impl Waking {
    /// Starts the thread.
    pub fn start(self, shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
        let thread = std::thread::Builder::new().name("potok-log-keeper".to_owned());
        thread.spawn(move || {
            let _alarm = Alarm(shared.clone(), "the log's retention");
            self.run(&shared);
        })
    }

    fn run(&self, shared: &Shared) {
        loop {
            let mut pressed = false;
            let mut waiting = Vec::new();
            let first = match self.0.recv_timeout(shared.options.retain_every) {
                Ok(wake) => Some(wake),
                Err(mpsc::RecvTimeoutError::Timeout) => None,
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            };
            // Many reasons to look are one.
            for wake in first.into_iter().chain(self.0.try_iter()) {
                match wake {
                    Wake::Look => {}
                    Wake::Press => pressed = true,
                    Wake::Now(reply) => waiting.push(reply),
                    Wake::Stop => return,
                }
            }
            if let Err(error) = look(shared, pressed) {
                tracing::warn!(%error, "retention could not finish; it tries again");
            }
            for reply in waiting {
                let _ = reply.send(());
            }
        }
    }
}

/// What has to become of a segment.
enum Fate {
    Keep,
    Unlink,
    Rewrite,
}

/// Why segments may go now.
#[derive(Clone, Copy)]
struct Need {
    /// By age or size.
    due: bool,
    /// The disk is full.
    pressed: bool,
}

impl Need {
    /// Up to this size a rewritten segment is worth the work.
    fn worth(self, bytes: u64) -> u64 {
        if self.pressed { bytes / 4 * 3 } else { bytes / 2 }
    }
}

/// Which records of a partition are pinned.
enum Pin {
    All,
    /// All but these.
    Except(RangeSet),
    Nothing,
}

impl Pin {
    fn holds(&self, offset: u64) -> bool {
        match self {
            Pin::All => true,
            Pin::Except(ended) => !ended.contains(offset),
            Pin::Nothing => false,
        }
    }
}

/// What is pinned of a partition.
fn pin(catalog: &Catalog, topic: &str, partition: u32, need: Need) -> Pin {
    if topic == DEAD_TOPIC || catalog.kept.contains(topic) {
        return Pin::All;
    }
    let mut ended: Option<RangeSet> = None;
    for group in catalog.groups.values() {
        if !group.topics.iter().any(|read| &**read == topic) {
            continue;
        }
        let own = group.ended(topic, partition).cloned().unwrap_or_default();
        ended = Some(match ended {
            // What both have ended.
            Some(others) => without(&own, &without(&own, &others)),
            None => own,
        });
    }
    match ended {
        Some(ended) => Pin::Except(ended),
        None if need.due => Pin::Nothing,
        None => Pin::All,
    }
}

fn look(shared: &Shared, pressed: bool) -> io::Result<()> {
    let now = shared.clock.now();
    let numbers: Vec<u64> = shared.state().segments.keys().copied().collect();
    let old = numbers.len().saturating_sub(NEWEST_KEPT);
    for number in numbers.into_iter().take(old) {
        let fate = {
            let mut state = shared.state_mut();
            fate(shared, &mut state, number, now, pressed)
        };
        match fate {
            Some((Fate::Unlink, _)) => unlink(shared, number)?,
            Some((Fate::Rewrite, need)) => rewrite(shared, number, need).inspect_err(|_| {
                if let Some(segment) = shared.state_mut().segments.get_mut(&number) {
                    segment.loose = None;
                }
            })?,
            Some((Fate::Keep, _)) | None => {}
        }
    }
    Ok(())
}

fn fate(
    shared: &Shared,
    state: &mut State,
    number: u64,
    now: Timestamp,
    pressed: bool,
) -> Option<(Fate, Need)> {
    // Until the next opening has settled it, its frames tell what was lost with the damaged ones.
    let unsettled = |note: &super::format::DamageNote| note.segment == number && !note.settled;
    if state.catalog.damage.iter().any(unsettled) {
        return None;
    }
    let total: u64 = state.segments.values().map(|segment| segment.end).sum();
    let catalog = &state.catalog;
    let segment = state.segments.get_mut(&number)?;
    let aged = match (shared.options.retention_age, segment.index.newest()) {
        (Some(age), Some(newest)) => {
            u128::from(now.millis_since(Timestamp(newest))) > age.as_millis()
        }
        // Nothing but notes in it.
        (_, None) => true,
        (None, _) => false,
    };
    let over = shared.options.retention_bytes.is_some_and(|most| total > most);
    let need = Need { due: aged || over, pressed };
    if !need.due && !need.pressed {
        return None;
    }
    let (mut pinned, mut loose) = (0_u64, 0_u64);
    for (topic, partition, extent) in segment.index.extents() {
        let offsets = extent.last + 1 - extent.first;
        let free = match pin(catalog, topic, partition, need) {
            Pin::All => 0,
            Pin::Nothing => offsets,
            Pin::Except(ended) => {
                ended.count_from(extent.first) - ended.count_from(extent.last + 1)
            }
        };
        loose += free;
        pinned += extent.bytes * (offsets - free) / offsets.max(1);
        if free < offsets {
            // An estimate of nothing is not nothing.
            pinned = pinned.max(1);
        }
    }
    if pinned == 0 {
        return Some((Fate::Unlink, need));
    }
    // Looked at before, and nothing more is loose since: reading it again would tell nothing new.
    if segment.loose == Some(loose) || pinned > need.worth(segment.end) {
        return Some((Fate::Keep, need));
    }
    segment.loose = Some(loose);
    Some((Fate::Rewrite, need))
}

/// Notes that the segment goes, then lets it go.
fn unlink(shared: &Shared, number: u64) -> io::Result<()> {
    let (reply, answer) = mpsc::channel();
    let asked = shared.command(Command::Drop(vec![number], reply));
    if asked.is_err() || !answer.recv().unwrap_or(false) {
        return Err(io::Error::other("could not note that a segment goes"));
    }
    shared.state_mut().segments.remove(&number);
    crash_point("unlink.before");
    shared.disk.remove(&shared.paths.segment(number))?;
    crash_point("unlink.after");
    shared.disk.sync_dir(&shared.paths.log)
}

/// Puts a segment with the pinned records alone in the place of the old one.
fn rewrite(shared: &Shared, number: u64, need: Need) -> io::Result<()> {
    let Some(kept) = Kept::read(shared, number, need)? else { return Ok(()) };
    if kept.bytes.len() as u64 > need.worth(kept.old_end) {
        return Ok(());
    }
    let new = shared.paths.new_segment(number);
    let write = || -> io::Result<()> {
        let file = shared.disk.create(&new)?;
        write_all(file.as_ref(), &kept.bytes, 0)?;
        file.sync()
    };
    write().inspect_err(|_| {
        let _ = shared.disk.remove(&new);
    })?;
    {
        // Under the lock, so that nobody opens the new file with the old index in hand.
        let mut state = shared.state_mut();
        shared.disk.rename(&new, &shared.paths.segment(number))?;
        if let Some(segment) = state.segments.get_mut(&number) {
            *segment = Segment {
                end: kept.bytes.len() as u64,
                index: kept.index,
                generation: segment.generation + 1,
                loose: segment.loose,
            };
        }
    }
    shared.disk.sync_dir(&shared.paths.log)
}

/// A segment in the making, with the pinned records of another one.
struct Kept {
    bytes: Vec<u8>,
    index: Index,
    old_end: u64,
}

impl Kept {
    /// Reads what is pinned; `None` when the segment is gone or has damage that must be kept
    /// aside first.
    fn read(shared: &Shared, number: u64, need: Need) -> io::Result<Option<Kept>> {
        let (file, old_end, catalog) = {
            let state = shared.state();
            let Some(segment) = state.segments.get(&number) else { return Ok(None) };
            (shared.open_segment(&state, number)?, segment.end, state.catalog.clone())
        };
        let header = read_up_to(file.as_ref(), 0, SEGMENT_HEADER)?;
        let (previous, previous_end) = match SegmentHeader::decode(&header, number) {
            HeaderRead::Good(header) => (header.previous, header.previous_end),
            _ => (0, 0),
        };
        let nonce = shared.nonce;
        let bytes = vec![0; SEGMENT_HEADER];
        let mut kept = Kept { bytes, index: Index::default(), old_end };
        let mut walker = Walker::new(file, number, nonce, old_end);
        let mut at = SEGMENT_HEADER as u64;
        let mut last = None;
        loop {
            match walker.at(at)? {
                Found::End => break,
                Found::Frame(frame) => {
                    at = frame.end();
                    if !kept.take(&catalog, number, nonce, need, &mut walker, &frame)?
                        && !is_known(shared, &catalog, number, frame.at, frame.end())
                    {
                        return Ok(None);
                    }
                    last = Some(frame.header);
                }
                Found::Bad(bad) => {
                    at = bad.to;
                    if !is_known(shared, &catalog, number, bad.from, bad.to) {
                        return Ok(None);
                    }
                }
            }
        }
        let place = Place {
            nonce,
            incarnation: last.map_or(0, |header| header.incarnation),
            time: last.map_or(0, |header| header.time),
            segment: number,
            at: kept.bytes.len() as u64,
        };
        let footer = segment::footer(&kept.index, place);
        kept.bytes.extend_from_slice(&footer);
        let compacted = Some(kept.bytes.len() as u64);
        let header = SegmentHeader { nonce, number, previous, previous_end, compacted };
        kept.bytes.splice(..SEGMENT_HEADER, header.encode());
        Ok(Some(kept))
    }

    /// Takes over what is pinned of a frame; false when its records do not fit.
    fn take(
        &mut self,
        catalog: &Catalog,
        segment: u64,
        nonce: u64,
        need: Need,
        walker: &mut Walker,
        frame: &Frame,
    ) -> io::Result<bool> {
        let entries = frame.entries();
        let mut whole = true;
        let mut payload = Vec::new();
        let mut taken = Vec::new();
        if frame.header.kind == Kind::Checkpoint {
            taken = entries.clone();
        }
        for (records, range) in frame.records(&entries) {
            let pin = pin(catalog, records.topic, records.partition, need);
            let bytes = walker.bytes(range.start, records.bytes as usize)?;
            whole &= crc32fast::hash(&bytes) == records.crc;
            for run in runs(records, &bytes, &pin) {
                let (entry, run_bytes) = run.encode(records, &bytes);
                taken.push(Entry::Records(entry));
                payload.extend_from_slice(&run_bytes);
            }
        }
        if taken.is_empty() {
            return Ok(whole);
        }
        let at = self.bytes.len() as u64;
        let header = frame.header;
        let mut draft = Draft::of_entries(header.kind, &taken);
        draft.set_payload(&payload);
        let place =
            Place { nonce, incarnation: header.incarnation, time: header.time, segment, at };
        self.bytes.extend_from_slice(draft.finish(&[], place));
        note_records(&mut self.index, at, header.time, &taken);
        Ok(whole)
    }
}

/// Damage that is not noted yet is noted first: rewriting the segment would erase it.
fn is_known(shared: &Shared, catalog: &Catalog, segment: u64, from: u64, to: u64) -> bool {
    let known = catalog.knows_damage(segment, from, to);
    if !known {
        shared.report(damage::Found { segment, from, to, tail: false, settled: false });
    }
    known
}

/// Pinned records of an entry that follow each other without gap.
struct Run {
    /// Offset of the first.
    first: u64,
    spans: Vec<RecordSpan>,
}

fn runs(records: &RecordsEntry<'_>, payload: &Bytes, pin: &Pin) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
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
            _ => runs.push(Run { first: offset, spans: vec![span] }),
        }
    }
    runs
}

impl Run {
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
