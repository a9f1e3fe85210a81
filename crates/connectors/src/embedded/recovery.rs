//! Opens what is on disk, whatever state it is in.
//!
//! It promises not to fail over any damage, to apply every whole frame behind the newest good
//! checkpoint, to lose no record outside a damaged frame, and to report every damage it comes
//! upon exactly once. It writes nothing but the removal of half-made segments: what it found is
//! handed to the writer, which notes it at the start of a new segment.
//!
//! Read with full checks are the segment with the newest good checkpoint, those behind it, and
//! the one before it. Of older ones the footer is enough; where it is missing, they are read too.

use std::io;
use std::path::Path;
use std::sync::Arc;

use potok_core::Fault;

use super::catalog::Catalog;
use super::damage;
use super::disk::{Disk, DiskFile, read_up_to};
use super::fault;
use super::format::{
    FRAME_HEADER, FRAME_MAGIC, FrameHeader, FrameKind, HeaderRead, SEGMENT_HEADER, SegmentHeader,
    fresh_nonce,
};
use super::index::Index;
use super::segment::read_footer;
use super::shared::{Bugs, LogState, Paths, Segment, Tail};
use super::walk::{Step, Walker};
use super::writer::{Resume, note_records};

/// The state that was found.
pub struct RecoveredLog {
    /// Names the folder.
    pub nonce: u64,
    /// Everything known.
    pub state: LogState,
    /// Where the writer goes on.
    pub resume: Resume,
}

/// One segment file.
struct OnDisk {
    number: u64,
    file: Arc<dyn DiskFile>,
    len: u64,
    header: Option<SegmentHeader>,
    /// Where its frames end as far as is known without reading them.
    limit: u64,
    /// Where they should end, as far as something says so and the footer does not.
    expected: Option<u64>,
    /// The index of its footer, when that ends the file.
    footer: Option<Index>,
}

/// Bytes of a segment that count for nothing.
struct Hole {
    from: u64,
    to: u64,
    /// It may have held transactions.
    transactions: bool,
    /// Its offsets are known all the same.
    offsets_known: bool,
}

/// The result of reading a whole segment.
struct Read {
    index: Index,
    holes: Vec<Hole>,
    /// Behind the last whole frame, where nothing but a hole follows it.
    end: u64,
}

/// Reads the folder.
pub fn recover(disk: &dyn Disk, paths: &Paths, bugs: Bugs) -> Result<RecoveredLog, Fault> {
    let unusable = |error: &io::Error| fault::unusable(&paths.dir, error);
    disk.create_dir(&paths.log).map_err(|error| unusable(&error))?;
    let names = disk.list(&paths.log).map_err(|error| unusable(&error))?;
    for name in names.iter().filter(|name| name.ends_with(".new")) {
        // Never got its name, so nothing in it was acknowledged.
        let _ = disk.remove(&paths.log.join(name));
    }
    let mut numbers: Vec<u64> =
        names.iter().filter_map(|name| Paths::segment_number(name)).collect();
    numbers.sort_unstable();
    if numbers.is_empty() {
        sync_dirs(disk, paths).map_err(|error| unusable(&error))?;
    }
    let mut segments = Vec::new();
    for number in numbers {
        segments.push(look(disk, paths, number)?);
    }
    let nonce = folder_nonce(&mut segments).map_err(|error| unusable(&error))?;
    let merged = MergedSegments::of(&segments);
    let (left_over, segments) =
        segments.into_iter().partition(|segment| merged.holds(segment.number));
    let recovery = Recovery { disk, paths, bugs, nonce, segments, left_over, merged };
    recovery.run().map_err(|error| unusable(&error))
}

/// Makes folders durable that may be new: a power cut that takes the folder takes its segments.
fn sync_dirs(disk: &dyn Disk, paths: &Paths) -> io::Result<()> {
    disk.sync_dir(&paths.dir)?;
    for dir in paths.dir.ancestors().skip(1) {
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        match disk.sync_dir(dir) {
            Ok(()) => {}
            // A folder above that we may not even open was made by others, long ago; and not
            // every file system knows how to sync one.
            Err(error) => match error.kind() {
                io::ErrorKind::PermissionDenied
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::Unsupported => return Ok(()),
                _ => return Err(error),
            },
        }
    }
    Ok(())
}

fn look(disk: &dyn Disk, paths: &Paths, number: u64) -> Result<OnDisk, Fault> {
    let read = || -> io::Result<_> {
        let file = disk.open(&paths.segment(number))?;
        let len = file.len()?;
        let header = read_up_to(file.as_ref(), 0, SEGMENT_HEADER)?;
        Ok((file, len, SegmentHeader::decode(&header, number)))
    };
    let (file, len, header) = read().map_err(|error| fault::unusable(&paths.dir, &error))?;
    let header = match header {
        HeaderRead::Good(header) => Some(header),
        HeaderRead::Bad => None,
        HeaderRead::Newer(version) => {
            return Err(fault::newer(&format!("log/{}", Paths::segment_name(number)), version));
        }
    };
    Ok(OnDisk { number, file, len, header, limit: len, expected: None, footer: None })
}

/// The nonce most segments agree on. Where no header is readable, the frames tell it.
fn folder_nonce(segments: &mut [OnDisk]) -> io::Result<u64> {
    let mut seen: Vec<u64> = segments.iter().filter_map(|s| Some(s.header?.nonce)).collect();
    if seen.is_empty() {
        for segment in segments.iter() {
            seen.extend(nonce_of_frames(segment)?);
        }
    }
    let votes = |nonce: &u64| seen.iter().filter(|seen| *seen == nonce).count();
    // Of several with as many votes the last one is taken: the oldest segment's.
    let nonce = seen.iter().rev().max_by_key(|nonce| votes(nonce)).copied();
    let nonce = nonce.unwrap_or_else(fresh_nonce);
    for segment in segments {
        // A segment of another folder is none of ours.
        segment.header = segment.header.filter(|header| header.nonce == nonce);
    }
    Ok(nonce)
}

fn nonce_of_frames(segment: &OnDisk) -> io::Result<Option<u64>> {
    let bytes = read_up_to(segment.file.as_ref(), 0, usize::try_from(segment.len).unwrap_or(0))?;
    let found = bytes.windows(FRAME_HEADER).enumerate().find_map(|(at, window)| {
        let header = window.starts_with(FRAME_MAGIC);
        header.then(|| FrameHeader::decode(window, segment.number, at as u64)).flatten()
    });
    Ok(found.map(|header| header.nonce))
}

struct Recovery<'a> {
    disk: &'a dyn Disk,
    paths: &'a Paths,
    bugs: Bugs,
    nonce: u64,
    segments: Vec<OnDisk>,
    /// Segments that were merged into another one and not unlinked any more. Not read: were some
    /// of them gone and others not, their records would come before those of the merged one.
    left_over: Vec<OnDisk>,
    merged: MergedSegments,
}

/// Which segments were merged into others: those between two numbers, for each merged one.
struct MergedSegments(Vec<(u64, u64)>);

impl MergedSegments {
    fn of(segments: &[OnDisk]) -> MergedSegments {
        let headers = segments.iter().filter_map(|segment| segment.header);
        let merged = headers.filter(|header| header.merged);
        MergedSegments(merged.map(|header| (header.previous, header.number)).collect())
    }

    fn holds(&self, number: u64) -> bool {
        self.0.iter().any(|(above, by)| *above < number && number < *by)
    }
}

impl Recovery<'_> {
    fn run(mut self) -> io::Result<RecoveredLog> {
        self.find_limits()?;
        let (base, catalog) = self.checkpoint_before(u64::MAX)?.unwrap_or_default();
        let mut state = LogState { catalog, ..LogState::default() };
        let mut found = Vec::new();
        let mut newest_whole = true;
        for position in 0..self.segments.len() {
            let Some(segment) = self.segments.get(position) else { continue };
            let newest = position + 1 == self.segments.len();
            // Everything from one before the base on is read; of the others the footer is enough.
            let read = match &segment.footer {
                Some(index) if position + 1 < base => {
                    Read { index: index.clone(), holes: Vec::new(), end: segment.limit }
                }
                _ => {
                    let catalog = (position >= base).then_some(&mut state.catalog);
                    self.read(segment, catalog)?
                }
            };
            let mut holes = read.holes;
            holes.extend(segment.outer_holes());
            if newest {
                newest_whole = holes.is_empty();
            }
            for hole in &holes {
                if self.bugs.tail_erased && newest && hole.to >= segment.limit {
                    segment.file.set_len(hole.from)?;
                    newest_whole = true;
                    continue;
                }
                if position >= base && !hole.offsets_known && !self.bugs.offsets_reused {
                    state.catalog.jump(hole.to - hole.from);
                }
                found.push(damage::DamageReport {
                    segment: segment.number,
                    from: hole.from,
                    to: hole.to,
                    tail: newest && hole.to >= segment.limit,
                    // What a hole behind the base had ended was never applied. A compacted
                    // segment notes nothing but records.
                    settled: position >= base || !hole.transactions || segment.is_compacted(),
                });
            }
            state.segments.insert(
                segment.number,
                Segment { end: read.end, index: read.index, ..Segment::default() },
            );
        }
        found.retain(|found| !state.catalog.knows_damage(found.segment, found.from, found.to));
        let missing = self.missing(&state, &found);
        found.extend(missing);
        let reopened = self.settle(&mut state, &mut found)?;
        state.catalog.segments = state.segments.keys().copied().collect();
        // They count as there until it is noted that they go.
        state.left_over = self.left_over.iter().map(|segment| segment.number).collect();
        state.catalog.segments.extend(&state.left_over);
        keep_above_ended(&mut state.catalog);
        if let Some((number, segment)) = state.segments.last_key_value() {
            state.tail = Tail { segment: *number, at: segment.end };
        }
        let whole = newest_whole && found.is_empty() && !reopened;
        let resume = self.resume(&state, whole, found);
        Ok(RecoveredLog { nonce: self.nonce, state, resume })
    }

    /// Where the newest segment may be written on, if it may.
    fn resume(&self, state: &LogState, whole: bool, found: Vec<damage::DamageReport>) -> Resume {
        let newest = self.segments.last();
        let goes_on = newest.filter(|segment| {
            // What an earlier process wrote and did not get to sync counts from now on, so it
            // has to be durable. Where that fails, nothing is added behind it.
            let synced = || segment.file.sync().and_then(|()| self.disk.sync_dir(&self.paths.log));
            whole && state.tail.at == segment.len && segment.header.is_some() && synced().is_ok()
        });
        Resume {
            active: goes_on.map(|segment| (segment.number, segment.file.clone())),
            newest: newest.map_or(0, |segment| segment.number),
            found,
        }
    }

    /// A segment ends with its footer; without one, where the next segment says; the newest at
    /// the end of the file.
    fn find_limits(&mut self) -> io::Result<()> {
        let nexts: Vec<Option<SegmentHeader>> =
            self.segments.iter().skip(1).map(|segment| segment.header).collect();
        for (position, segment) in self.segments.iter_mut().enumerate() {
            segment.footer = read_footer(&segment.file, segment.number, self.nonce, segment.len)?;
            let next = nexts.get(position).copied().flatten();
            segment.expected = segment.expected_end(next).filter(|_| segment.footer.is_none());
            segment.limit = segment.len.min(segment.expected.unwrap_or(segment.len));
        }
        Ok(())
    }

    /// The newest segment up to `number` whose checkpoint is good, and that checkpoint.
    fn checkpoint_before(&self, number: u64) -> io::Result<Option<(usize, Catalog)>> {
        for (position, segment) in self.segments.iter().enumerate().rev() {
            if segment.number <= number
                && let Some(catalog) = self.checkpoint(segment)?
            {
                return Ok(Some((position, catalog)));
            }
        }
        Ok(None)
    }

    /// The oldest segment above `number` whose checkpoint is good, and that checkpoint.
    fn checkpoint_after(&self, number: u64) -> io::Result<Option<(usize, Catalog)>> {
        for (position, segment) in self.segments.iter().enumerate() {
            if segment.number > number
                && let Some(catalog) = self.checkpoint(segment)?
            {
                return Ok(Some((position, catalog)));
            }
        }
        Ok(None)
    }

    fn checkpoint(&self, segment: &OnDisk) -> io::Result<Option<Catalog>> {
        let mut walker =
            Walker::new(segment.file.clone(), segment.number, self.nonce, segment.limit);
        Ok(match walker.at(SEGMENT_HEADER as u64)? {
            Step::Frame(frame) if frame.header.kind == FrameKind::Checkpoint => {
                let mut catalog = Catalog::default();
                catalog.apply(FrameKind::Checkpoint, &frame.entries());
                Some(catalog)
            }
            _ => None,
        })
    }

    /// Reads a segment with every check, applying what fits to `catalog`.
    fn read(&self, segment: &OnDisk, mut catalog: Option<&mut Catalog>) -> io::Result<Read> {
        let mut walker =
            Walker::new(segment.file.clone(), segment.number, self.nonce, segment.limit);
        let mut at = SEGMENT_HEADER as u64;
        let mut read = Read { index: Index::default(), holes: Vec::new(), end: segment.limit };
        loop {
            let mut hole = None;
            match walker.at(at)? {
                Step::End => return Ok(read),
                Step::Bad(bad) => {
                    at = bad.to;
                    hole = Some(Hole {
                        from: bad.from,
                        to: bad.to,
                        transactions: matches!(bad.kind, None | Some(FrameKind::Transaction)),
                        offsets_known: matches!(
                            bad.kind,
                            Some(FrameKind::Checkpoint | FrameKind::Footer)
                        ),
                    });
                }
                Step::Frame(frame) => {
                    at = frame.end();
                    let entries = frame.entries();
                    if walker.payload_fits(&frame)? {
                        if let Some(catalog) = &mut catalog {
                            // Checkpoints repeat what is known; where they do not, a damaged
                            // frame before them is the reason, and what it ended must not count.
                            if frame.header.kind == FrameKind::Transaction {
                                catalog.apply(FrameKind::Transaction, &entries);
                            }
                        }
                    } else {
                        if let Some(catalog) = &mut catalog {
                            catalog.skip_offsets(&entries);
                        }
                        let (from, to) = (frame.at, frame.end());
                        hole = Some(Hole {
                            from,
                            to,
                            transactions: frame.header.kind == FrameKind::Transaction,
                            offsets_known: true,
                        });
                    }
                    // Records of a frame that does not fit as a whole may still fit one by one.
                    note_records(&mut read.index, frame.at, frame.header.time, &entries);
                }
            }
            let Some(hole) = hole else { continue };
            if hole.to >= segment.limit {
                read.end = hole.from;
            }
            read.holes.push(hole);
            if self.bugs.stop_at_damage {
                return Ok(read);
            }
        }
    }

    /// Segments that should be there and are not, or are empty.
    fn missing(
        &self,
        state: &LogState,
        found: &[damage::DamageReport],
    ) -> Vec<damage::DamageReport> {
        let there = |number: u64| {
            self.segments.iter().any(|segment| segment.number == number && segment.len > 0)
                || self.merged.holds(number)
                || found.iter().any(|found| found.segment == number)
        };
        let mut expected = state.catalog.segments.clone();
        expected.extend(self.segments.iter().map(|segment| segment.number));
        expected
            .into_iter()
            .filter(|number| !there(*number) && !state.catalog.knows_damage(*number, 0, 0))
            .map(damage::DamageReport::lost)
            .collect()
    }

    /// Opens again what damaged frames had ended, where a later checkpoint counts it as ended.
    /// True when anything changed that is not on disk yet.
    fn settle(&self, state: &mut LogState, found: &mut [damage::DamageReport]) -> io::Result<bool> {
        let noted = state.catalog.damage.iter().filter(|note| !note.settled);
        let mut unsettled: Vec<u64> = noted.map(|note| note.segment).collect();
        let changed = !unsettled.is_empty();
        unsettled.extend(found.iter().filter(|found| !found.settled).map(|found| found.segment));
        unsettled.sort_unstable();
        unsettled.dedup();
        for segment in unsettled {
            self.reopen(&mut state.catalog, segment)?;
        }
        state.catalog.damage.iter_mut().for_each(|note| note.settled = true);
        found.iter_mut().for_each(|found| found.settled = true);
        Ok(changed)
    }

    /// What had ended in segment `damaged`: all that the next checkpoint knows and neither the
    /// checkpoint before nor the whole frames in between account for.
    fn reopen(&self, catalog: &mut Catalog, damaged: u64) -> io::Result<()> {
        let Some((after, known)) = self.checkpoint_after(damaged)? else { return Ok(()) };
        let before = self.checkpoint_before(damaged)?;
        let from_the_start = self.segments.first().is_some_and(|segment| segment.number == 1);
        if before.is_none() && !from_the_start {
            // Nothing tells what was ended there and what long before.
            return Ok(());
        }
        let (start, mut base) = before.unwrap_or_default();
        for segment in self.segments.get(start..after).unwrap_or_default() {
            self.read(segment, Some(&mut base))?;
        }
        for (group, topic, partition, lost) in known.ended_beyond(&base) {
            catalog.reopen(group, topic, partition, &lost);
        }
        Ok(())
    }
}

impl OnDisk {
    fn is_compacted(&self) -> bool {
        self.compacted_end().is_some()
    }

    fn compacted_end(&self) -> Option<u64> {
        self.header.and_then(|header| header.compacted)
    }

    /// Where the frames end, as it was written down elsewhere.
    fn expected_end(&self, next: Option<SegmentHeader>) -> Option<u64> {
        let next = next.filter(|next| next.previous == self.number);
        self.compacted_end().or(next.map(|next| next.previous_end))
    }

    /// Damage that is not between frames: an unreadable segment header, a file cut short.
    fn outer_holes(&self) -> Vec<Hole> {
        let mut holes = Vec::new();
        if self.header.is_none() {
            let to = self.len.min(SEGMENT_HEADER as u64);
            holes.push(Hole { from: 0, to, transactions: false, offsets_known: true });
        }
        if let Some(to) = self.expected {
            holes.push(Hole { from: self.len, to, transactions: true, offsets_known: false });
        }
        holes.retain(|hole| hole.from < hole.to);
        holes
    }
}

/// An offset that counts as ended is never given to a new record, which would be swallowed.
fn keep_above_ended(catalog: &mut Catalog) {
    for group in catalog.groups.values() {
        for (topic, partitions) in &group.ended {
            for (partition, ended) in partitions {
                let above = ended.iter().last().map_or(0, |range| range.end);
                let heads = catalog.topics.get_mut(topic);
                if let Some(head) = heads.and_then(|heads| heads.get_mut(*partition as usize)) {
                    head.next = head.next.max(above);
                }
            }
        }
    }
}
