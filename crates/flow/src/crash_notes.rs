//! Which record a lane is working on, written where it survives the process.
//!
//! Before a lane decodes or processes records it notes their range, and it clears the note before
//! it waits for anything. Whoever starts after an unclean death finds the note: records in that
//! range are then run one at a time, and a record in which the process died three times becomes a
//! dead letter. A note is one small write into the page cache, not synced: it has to survive a
//! crash of the process, not of the machine.
//!
//! ```text
//! <pipeline>.notes    one slot of 64 bytes per task, all zero when idle:
//!                     log u64, topic hash u64, partition u64, first u64, next u64 (little endian)
//! <pipeline>.deaths   JSON list of suspects, rewritten at start when there was a note
//! ```

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use potok_core::{Position, SourceBatch};
use serde::{Deserialize, Serialize};

use crate::fixed_hash::FixedHash;

const SLOT_BYTES: usize = 64;
/// Lanes of a pipeline at most.
const LANES_MAX: usize = 1_024;
/// Intakes of a pipeline that have a slot for themselves, and as many gather.
const INTAKES_MAX: usize = 32;
/// The first slot is the first intake's, then come the lanes', and behind those of a pipeline are in
/// turn those of gathering and of the other intakes.
const SLOTS_MAX: usize = LANES_MAX + 2 * INTAKES_MAX;
/// Deaths in one record that make it a dead letter.
const DEATHS_MAX: u32 = 3;
/// A list of suspects longer than this is cut: the oldest have surely passed.
const SUSPECTS_MAX: usize = 1_000;

/// The log number in notes about records of feeds.
const OF_FEED: u64 = u64::MAX;
/// After a death so many times the records that ran together run alone: with them others are handed out
/// again, to all lanes.
const NEAR: u64 = 64;

/// The slot of an intake.
pub(crate) fn intake_slot(number: usize) -> usize {
    if number == 0 { 0 } else { LANES_MAX + 2 * number }
}

/// The slot of one that gathers.
pub(crate) fn gather_slot(number: usize) -> usize {
    LANES_MAX + 1 + 2 * number
}

/// A range of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Range {
    log: u64,
    topic: u64,
    partition: u64,
    first: u64,
    next: u64,
}

impl Range {
    pub fn of_batch(batch: &SourceBatch, first: u64, next: u64) -> Self {
        let (topic, partition) = (hash(&batch.partition.topic), u64::from(batch.partition.index));
        Range { log: batch.log, topic, partition, first, next }
    }

    /// Records of a batch that run together, from one index to another. Where their feed names them,
    /// their places say nothing after a restart: then the note is that so many of that feed ran.
    pub fn of_run(batch: &SourceBatch, indexes: std::ops::Range<u32>, records: usize) -> Self {
        let is_named = batch.feed.as_ref().is_some_and(|feed| feed.origins.is_some());
        if is_named && records > 1 {
            return Range::of_feed(batch, records);
        }
        let first = batch.origin(indexes.start as usize).map(|(origin, _)| origin);
        if let Some(origin) = first.filter(|_| is_named) {
            return Range::of_record(&origin);
        }
        let offset = |index: u32| batch.records.get(index as usize).map_or(0, |r| r.offset);
        Range::of_batch(batch, offset(indexes.start), offset(indexes.end.saturating_sub(1)) + 1)
    }

    /// So many records of a feed, whichever.
    pub fn of_feed(batch: &SourceBatch, records: usize) -> Self {
        let (topic, next) = (hash(&batch.partition.topic), records as u64 * NEAR);
        Range { log: OF_FEED, topic, partition: 0, first: 0, next }
    }

    pub fn of_record(position: &Position) -> Self {
        Range {
            log: position.log,
            topic: hash(&position.topic),
            partition: u64::from(position.partition),
            first: position.offset,
            next: position.offset + 1,
        }
    }

    fn contains(&self, other: &Range) -> bool {
        (self.log, self.topic, self.partition) == (other.log, other.topic, other.partition)
            && self.first <= other.first
            && other.next <= self.next
    }

    fn is_single(&self) -> bool {
        self.next == self.first + 1
    }

    fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut slot = [0; SLOT_BYTES];
        // The end is stored as it is: a note in use never has an end of 0.
        let words = [self.log, self.topic, self.partition, self.first, self.next];
        for (bytes, word) in slot.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        slot
    }

    fn decode(slot: &[u8]) -> Option<Self> {
        let mut words = slot
            .chunks_exact(8)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()));
        let mut word = || words.next();
        let (log, topic, partition, first, next) = (word()?, word()?, word()?, word()?, word()?);
        (next > first).then_some(Range { log, topic, partition, first, next })
    }
}

/// Files that nobody else may read, whatever the umask says.
fn private() -> OpenOptions {
    let mut options = File::options();
    options.write(true).create(true).mode(0o600);
    options
}

fn hash(topic: &str) -> u64 {
    FixedHash::new().text(topic.as_bytes()).finish()
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SuspectRange {
    range: Range,
    deaths: u32,
}

/// The verdict on a record before it is worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suspicion {
    /// Nothing against it.
    None,
    /// The process died near it: run it alone.
    Alone,
    /// The process died in it too often.
    Guilty(u32),
}

/// The notes of one pipeline.
pub(crate) struct CrashNotes {
    /// `None` keeps notes in memory only: they then survive a panic, not the process.
    file: Option<File>,
    memory: Mutex<Vec<u8>>,
    deaths_path: Option<PathBuf>,
    suspects: Mutex<Vec<SuspectRange>>,
}

impl CrashNotes {
    /// Opens the notes of a pipeline and counts the deaths they tell of. Trouble with the files
    /// is not worth refusing to work: notes are then kept in memory.
    pub fn open(folder: Option<&Path>, pipeline: &str) -> Self {
        let open = |folder: &Path| {
            let mut make = DirBuilder::new();
            make.recursive(true).mode(0o700).create(folder).ok()?;
            let path = folder.join(format!("{pipeline}.notes"));
            let mut options = private();
            let file = options.read(true).truncate(false).open(path).ok()?;
            file.set_len((SLOTS_MAX * SLOT_BYTES) as u64).ok()?;
            Some(file)
        };
        let file = folder.and_then(open);
        let deaths_path = folder.map(|folder| folder.join(format!("{pipeline}.deaths")));
        let suspects = deaths_path.as_ref().and_then(|path| std::fs::read(path).ok());
        let suspects = suspects.and_then(|json| serde_json::from_slice(&json).ok());
        let notes = CrashNotes {
            file,
            memory: Mutex::new(vec![0; SLOTS_MAX * SLOT_BYTES]),
            deaths_path,
            suspects: Mutex::new(suspects.unwrap_or_default()),
        };
        notes.count_deaths();
        notes
    }

    /// Turns notes that nobody cleared into suspects. Called when no lane runs: at start, and
    /// after a part of the pipeline died inside this process. True when a record is found guilty
    /// by it.
    pub fn count_deaths(&self) -> bool {
        let mut slots = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &self.file {
            // A short read leaves zeroes: no notes.
            let _ = file.read_exact_at(&mut slots, 0);
        }
        let found: Vec<Range> = slots.chunks_exact(SLOT_BYTES).filter_map(Range::decode).collect();
        slots.fill(0);
        if found.is_empty() {
            return false;
        }
        if let Some(file) = &self.file {
            let _ = file.write_all_at(&slots, 0);
        }
        drop(slots);
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        let mut convicts = false;
        for range in found {
            let before = suspects.iter().filter(|suspect| suspect.range.contains(&range));
            let deaths = 1 + before.map(|suspect| suspect.deaths).max().unwrap_or(0);
            suspects.retain(|suspect| suspect.range != range);
            // Only a record that ran alone can have killed the process twice.
            let deaths = if range.is_single() { deaths } else { 1 };
            convicts |= deaths == DEATHS_MAX;
            suspects.push(SuspectRange { range, deaths });
        }
        let surplus = suspects.len().saturating_sub(SUSPECTS_MAX);
        suspects.drain(..surplus);
        if let Some(path) = &self.deaths_path {
            let json = serde_json::to_vec(&*suspects).unwrap_or_default();
            let written = private().truncate(true).open(path);
            let _ = written.and_then(|file| file.write_all_at(&json, 0));
        }
        convicts
    }

    /// The verdict on a record.
    pub fn suspicion(&self, position: &Position) -> Suspicion {
        let suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        if suspects.is_empty() {
            return Suspicion::None;
        }
        let record = Range::of_record(position);
        let near = suspects.iter().filter(|suspect| suspect.range.contains(&record));
        match near.map(|suspect| (suspect.deaths, suspect.range.is_single())).max() {
            None => Suspicion::None,
            Some((deaths, true)) if deaths >= DEATHS_MAX => Suspicion::Guilty(deaths),
            Some(_) => Suspicion::Alone,
        }
    }

    /// The verdict on a record of a batch, under the position its deliveries are named after.
    pub fn suspicion_in(&self, batch: &SourceBatch, origin: &Position) -> Suspicion {
        let known = self.suspicion(origin);
        if known != Suspicion::None || batch.feed.is_none() {
            return known;
        }
        let topic = hash(&batch.partition.topic);
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        let is_near = |suspect: &SuspectRange| {
            let Range { log, topic: of, next, .. } = suspect.range;
            log == OF_FEED && of == topic && next > 0
        };
        match suspects.iter_mut().find(|suspect| is_near(suspect)) {
            Some(suspect) => {
                suspect.range.next -= 1;
                Suspicion::Alone
            }
            None => Suspicion::None,
        }
    }

    /// True when there is anything to ask [`CrashNotes::suspicion`] about.
    pub fn any_suspects(&self) -> bool {
        !self.suspects.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Notes that `slot` now works on `range`.
    pub fn enter(&self, slot: usize, range: Range) {
        self.write(slot, &range.encode());
    }

    /// Notes that `slot` works on nothing that could kill it.
    pub fn leave(&self, slot: usize) {
        self.write(slot, &[0; SLOT_BYTES]);
    }

    fn write(&self, slot: usize, bytes: &[u8; SLOT_BYTES]) {
        let at = (slot % SLOTS_MAX) * SLOT_BYTES;
        match &self.file {
            // A note that cannot be written costs a re-run, not a record.
            Some(file) => drop(file.write_all_at(bytes, at as u64)),
            None => {
                let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(slot) = memory.get_mut(at..at + SLOT_BYTES) {
                    slot.copy_from_slice(bytes);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(offset: u64) -> Position {
        Position { log: 1, topic: "t".into(), partition: 0, offset }
    }

    fn batch_range(first: u64, next: u64) -> Range {
        Range { next, ..Range::of_record(&position(first)) }
    }

    #[test]
    fn three_deaths_in_one_record_make_it_guilty_and_only_it() {
        let folder = tempfile::tempdir().unwrap();
        let open = || CrashNotes::open(Some(folder.path()), "p");
        open().enter(3, batch_range(10, 20));
        assert_eq!(open().suspicion(&position(15)), Suspicion::Alone);
        assert_eq!(open().suspicion(&position(20)), Suspicion::None);
        open().enter(1, Range::of_record(&position(15)));
        assert_eq!(open().suspicion(&position(15)), Suspicion::Alone);
        open().enter(1, Range::of_record(&position(15)));
        assert_eq!(open().suspicion(&position(15)), Suspicion::Guilty(3));
        assert_eq!(open().suspicion(&position(16)), Suspicion::Alone);
    }

    #[test]
    fn a_note_that_was_cleared_counts_for_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let notes = CrashNotes::open(Some(folder.path()), "p");
        notes.enter(1, batch_range(0, 5));
        notes.leave(1);
        drop(notes);
        assert!(!CrashNotes::open(Some(folder.path()), "p").any_suspects());
    }

    #[test]
    fn every_task_of_the_largest_pipeline_has_a_note_of_its_own() {
        let notes = CrashNotes::open(None, "p");
        let (intake, gathering) = (intake_slot(0), gather_slot(0));
        notes.enter(intake, batch_range(0, 5));
        notes.enter(gathering, batch_range(5, 9));
        notes.leave(gathering);
        notes.count_deaths();
        assert_eq!(notes.suspicion(&position(0)), Suspicion::Alone);
        assert_eq!(notes.suspicion(&position(5)), Suspicion::None);
    }

    #[test]
    fn only_the_death_that_finds_a_record_guilty_says_so() {
        let notes = CrashNotes::open(None, "p");
        let found = [(0, 5), (2, 3), (2, 3), (2, 3), (6, 9)].map(|(first, next)| {
            notes.enter(1, batch_range(first, next));
            notes.count_deaths()
        });
        assert_eq!(found, [false, false, true, false, false]);
        assert!(!notes.count_deaths(), "nobody died");
    }
}
