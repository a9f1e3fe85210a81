//! Counts the open dead letters of a pipeline and lets go of those that are done.
//!
//! The desk reads the dead-letter topic and the notes about it once, and then what comes, also when the
//! log was in trouble meanwhile. What was
//! dropped goes at once, what was replayed when it has been looked at for long enough
//! (`keep_resolved`); a dead letter without a final note is never let go. First the dead letters
//! go, then their notes: whatever dies in between, no dead letter comes back as open.
//!
//! It also notes repeats (the same dead letter written again after a crash), so that they go by
//! themselves and are not shown to whoever reads on in the middle.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use potok_core::trouble::crash_point;
use potok_core::{
    Clock, Envelope, Fault, Log, PipelineInfo, Position, RangeSet, Record, SourceBatch, Timestamp,
};
use tokio::time::Instant;

use super::pages::Tail;
use super::settled::{Keys, LetterOutcomes, LetterPartition};
use super::{DeadLetterState, LetterKey, Resolution, ResolvedAction};

/// How often it looks for news; where that means to ask a server, seldom.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long what may go waits for more of its kind.
const GATHER: Duration = Duration::from_secs(5);
/// How often it looks how far replays are.
const REPLAYS_EVERY: Duration = Duration::from_secs(60);
/// How often it looks whether the topic is still the one it reads.
const ID_EVERY: Duration = Duration::from_secs(5);
/// The wait after trouble with the log, and how often the same trouble is told of.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
const TOLD_EVERY: Duration = Duration::from_secs(300);
const FACES_MAX: usize = 8;
/// Notes of one append.
const NOTES_MAX: usize = 1_000;

/// How many dead letters are open, for `status`.
#[derive(Debug)]
pub(crate) struct OpenCount(AtomicU64);

impl Default for OpenCount {
    fn default() -> Self {
        OpenCount(AtomicU64::new(u64::MAX))
    }
}

impl OpenCount {
    /// `None` until they are counted, and while they cannot be.
    pub fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|count| *count != u64::MAX)
    }

    fn forget(&self) {
        self.0.store(u64::MAX, Ordering::Relaxed);
    }
}

/// Trouble that may last: told when it begins, when it is another, now and then while it lasts, and
/// when it is over.
#[derive(Default)]
struct Grievance(HashMap<String, Instant>);

impl Grievance {
    /// It was told of before, and nothing has gone well since.
    fn is_lasting(&self) -> bool {
        !self.0.is_empty()
    }

    /// True where it is said now.
    fn tell(&mut self, fault: &Fault, what: &str) -> bool {
        let (why, now) = (fault.to_string(), Instant::now());
        // Trouble of one cause may have several faces by turns.
        self.0.retain(|_, told| now < *told + TOLD_EVERY);
        if self.0.contains_key(&why) || self.0.len() >= FACES_MAX {
            return false;
        }
        tracing::warn!(why, "{what}; trying again");
        self.0.insert(why, now);
        true
    }

    fn end(&mut self, what: &str) {
        if self.is_lasting() {
            self.0.clear();
            tracing::info!("{what}");
        }
    }
}

/// What a desk has read, for as long as the topic is the same.
struct DeskMemory {
    tally: Tally,
    notes: Tail,
    letters: Tail,
    /// The topic's id, once it has one.
    id: Option<u64>,
}

impl DeskMemory {
    fn new(log: &dyn Log, info: &PipelineInfo, keep: Duration) -> Self {
        DeskMemory {
            tally: Tally::new(log, &info.pipeline, keep),
            notes: Tail::new(&info.resolved),
            letters: Tail::new(&info.dead_letters),
            id: None,
        }
    }
}

/// Why a desk stops for a moment.
enum WorkEnd {
    /// The dead-letter topic is another than the one that was read.
    MadeAnew,
    Fault(Fault),
}

impl From<Fault> for WorkEnd {
    fn from(fault: Fault) -> Self {
        WorkEnd::Fault(fault)
    }
}

/// The desk of a pipeline's dead letters.
pub(crate) struct Desk {
    pub log: Arc<dyn Log>,
    pub clock: Arc<dyn Clock>,
    pub info: Arc<PipelineInfo>,
    /// How long replayed ones stay.
    pub keep: Duration,
    pub open: Arc<OpenCount>,
}

impl Desk {
    /// Works until it is aborted.
    pub async fn run(self) {
        let (mut counting, mut sweeping) = (Grievance::default(), Grievance::default());
        let mut memory = DeskMemory::new(&*self.log, &self.info, self.keep);
        loop {
            match self.work(&mut memory, &mut counting, &mut sweeping).await {
                Err(WorkEnd::MadeAnew) => {
                    tracing::warn!(
                        "the dead-letter topic was created anew; counting from its start"
                    );
                    memory = DeskMemory::new(&*self.log, &self.info, self.keep);
                }
                Err(WorkEnd::Fault(fault)) => {
                    // What was read stays; what is not known to be so any more is not shown.
                    if counting.is_lasting() {
                        self.open.forget();
                    }
                    counting.tell(&fault, "dead letters cannot be counted");
                }
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    async fn work(
        &self,
        memory: &mut DeskMemory,
        counting: &mut Grievance,
        sweeping: &mut Grievance,
    ) -> Result<std::convert::Infallible, WorkEnd> {
        let log = &*self.log;
        let mut sweep_at = Some(Instant::now());
        let mut replays_at = Instant::now();
        let mut id_at = Instant::now();
        loop {
            if id_at <= Instant::now() {
                id_at = Instant::now() + ID_EVERY;
                let now = log.topic_id(&self.info.dead_letters).await?;
                let before = std::mem::replace(&mut memory.id, now);
                if before.is_some() && before != now {
                    return Err(WorkEnd::MadeAnew);
                }
            }
            let DeskMemory { tally, notes, letters, .. } = &mut *memory;
            self.catch_up(tally, notes, letters).await?;
            self.open.0.store(tally.open, Ordering::Relaxed);
            if tally.is_due(self.clock.now()) {
                sweep_at.get_or_insert_with(|| Instant::now() + GATHER);
            }
            if sweep_at.is_some_and(|at| at <= Instant::now()) {
                sweep_at = None;
                match self.sweep(tally).await {
                    Ok(()) => sweeping.end("dead letters that are done are removed again"),
                    Err(fault) => {
                        sweeping.tell(&fault, "dead letters that are done cannot be removed");
                        sweep_at = Some(Instant::now() + REPLAYS_EVERY);
                    }
                }
            }
            if replays_at <= Instant::now() {
                replays_at = Instant::now() + REPLAYS_EVERY;
                self.sweep_replays().await?;
            }
            counting.end("dead letters are counted again");
            let is_far = log.reuses_offsets();
            tokio::time::sleep(if is_far { ASK_EVERY } else { LOOK_EVERY }).await;
        }
    }

    /// Takes in what has come since the last time.
    async fn catch_up(
        &self,
        tally: &mut Tally,
        notes: &mut Tail,
        letters: &mut Tail,
    ) -> Result<(), Fault> {
        while let Some(batch) = notes.next(&*self.log).await? {
            batch.records.iter().for_each(|note| tally.note(note));
        }
        while let Some(batch) = letters.next(&*self.log).await? {
            tally.letters(&batch);
            if tally.repeats.len() >= NOTES_MAX {
                self.note_repeats(tally).await?;
            }
        }
        self.note_repeats(tally).await
    }

    /// Lets go of what was dropped, once; for pipelines that do not run.
    pub async fn tidy(&self) -> Result<(), Fault> {
        let DeskMemory { mut tally, mut notes, mut letters, .. } =
            DeskMemory::new(&*self.log, &self.info, self.keep);
        self.catch_up(&mut tally, &mut notes, &mut letters).await?;
        self.sweep(&mut tally).await
    }

    async fn note_repeats(&self, tally: &mut Tally) -> Result<(), Fault> {
        let time = self.clock.now();
        let note = |position: Position| {
            let (entry, action) = (position.to_string(), ResolvedAction::Repeated);
            Resolution { entry, action, time, key: None, outcome: None }.output(&self.info)
        };
        let notes: Vec<_> = tally.repeats.iter().cloned().map(note).collect();
        if !notes.is_empty() {
            self.log.append(&notes).await?;
        }
        tally.repeats.clear();
        Ok(())
    }

    /// Lets go of what is done: the dead letters, then the notes about them.
    async fn sweep(&self, tally: &mut Tally) -> Result<(), Fault> {
        tally.gather_due(self.clock.now());
        let mut gone = BTreeMap::new();
        crash_point("letters.release.before");
        for (place, offsets) in &tally.removable {
            let (log, partition) = *place;
            let released =
                self.log.release(&self.info.dead_letters, log, partition, offsets).await?;
            gone.insert(*place, released);
        }
        crash_point("letters.release.between");
        if gone != tally.gone {
            self.sweep_notes(tally, &gone).await?;
            tally.gone = gone;
        }
        crash_point("letters.release.after");
        Ok(())
    }

    /// Lets go of notes whose dead letters are gone, or were of a topic that is gone.
    async fn sweep_notes(
        &self,
        tally: &Tally,
        gone: &BTreeMap<LetterPartition, RangeSet>,
    ) -> Result<(), Fault> {
        let mut useless: BTreeMap<(u64, u32), RangeSet> = BTreeMap::new();
        let mut notes = Tail::new(&self.info.resolved);
        while let Some(batch) = notes.next(&*self.log).await? {
            let offsets = useless.entry((batch.log, batch.partition.index)).or_default();
            let is_useless = |record: &Record| {
                let about = Resolution::read(record);
                about.and_then(|note| tally.settled.about(&note)).is_some_and(|about| {
                    let place = tally.settled.place(&about);
                    tally.log.is_some_and(|log| log != place.0)
                        || gone.get(&place).is_some_and(|gone| gone.contains(about.offset))
                })
            };
            match tally.settled.reuses_offsets() {
                true => rest(&batch, |record| !is_useless(record), offsets),
                false => {
                    let useless = batch.records.iter().filter(|record| is_useless(record));
                    useless.for_each(|note| offsets.insert(note.offset..note.offset + 1));
                }
            }
        }
        for ((log, partition), offsets) in useless {
            self.log.release(&self.info.resolved, log, partition, &offsets).await?;
        }
        Ok(())
    }

    /// Lets go of replays that have ended. Where offsets are reused, whoever reads them does so.
    async fn sweep_replays(&self) -> Result<(), Fault> {
        if self.log.reuses_offsets() {
            return Ok(());
        }
        for group in self.log.consumer_groups().await? {
            let ours = |topic: &str| {
                group.info.pipeline == self.info.pipeline && topic == self.info.replay
            };
            for partition in group.partitions.iter().filter(|partition| ours(&partition.topic)) {
                let ended = std::iter::once(0..partition.committed).collect();
                self.log.release(&self.info.replay, 0, partition.partition, &ended).await?;
            }
        }
        Ok(())
    }
}

/// Adds the offsets of a batch that hold nothing, or nothing that is needed.
fn rest(batch: &SourceBatch, needed: impl Fn(&&Record) -> bool, offsets: &mut RangeSet) {
    let mut from = batch.first;
    for record in batch.records.iter().filter(needed) {
        offsets.insert(from..record.offset);
        from = record.offset + 1;
    }
    offsets.insert(from..batch.next);
}

/// A body in pieces.
#[derive(Default)]
struct Pieces {
    positions: Vec<Position>,
    bytes: RangeSet,
    whole: bool,
}

/// Dead letters that may go from a moment on.
struct DelayedLetters {
    from: Timestamp,
    offsets: BTreeMap<LetterPartition, RangeSet>,
}

/// The memory of the desk: ranges, and the few bodies in pieces.
struct Tally {
    pipeline: String,
    /// The topic's incarnation, where that matters and is known.
    log: Option<u64>,
    settled: LetterOutcomes,
    keep: Duration,
    /// Dead letters of the pipeline.
    letters: BTreeMap<LetterPartition, RangeSet>,
    open: u64,
    seen: Keys,
    pieces: HashMap<LetterKey, Pieces>,
    /// Dead letters in pieces, by the place of the first one.
    first_pieces: HashMap<(LetterPartition, u64), LetterKey>,
    repeats: Vec<Position>,
    removable: BTreeMap<LetterPartition, RangeSet>,
    is_more_removable: bool,
    waiting: VecDeque<DelayedLetters>,
    gone: BTreeMap<LetterPartition, RangeSet>,
}

impl Tally {
    fn new(log: &dyn Log, pipeline: &str, keep: Duration) -> Self {
        Tally {
            pipeline: pipeline.to_owned(),
            log: None,
            settled: LetterOutcomes::new(log),
            keep,
            letters: BTreeMap::new(),
            open: 0,
            seen: Keys::default(),
            pieces: HashMap::new(),
            first_pieces: HashMap::new(),
            repeats: Vec::new(),
            removable: BTreeMap::new(),
            is_more_removable: false,
            waiting: VecDeque::new(),
            gone: BTreeMap::new(),
        }
    }

    fn note(&mut self, note: &Record) {
        let about = Resolution::read(note).and_then(|resolution| self.settled.about(&resolution));
        let before = about.map(|position| self.settled.state_at(&position));
        let Some((position, resolution)) = self.settled.apply(note) else { return };
        let (place, offset) = (self.settled.place(&position), position.offset);
        let was_open = before == Some(DeadLetterState::Open);
        let known = self.letters.get(&place).is_some_and(|letters| letters.contains(offset));
        if known && was_open && self.settled.state_at(&position) != DeadLetterState::Open {
            self.open = self.open.saturating_sub(1);
        }
        match resolution.action {
            ResolvedAction::Replaying => {}
            ResolvedAction::Replayed => self.wait(place, offset, note.time),
            ResolvedAction::Dropped | ResolvedAction::Repeated => self.remove(place, offset),
        }
    }

    fn letters(&mut self, batch: &SourceBatch) {
        for record in &batch.records {
            self.letter(batch.position(record), record);
        }
        if self.settled.reuses_offsets() {
            let place = (batch.log, batch.partition.index);
            self.log = Some(batch.log);
            // Offsets without a record hold nothing up.
            rest(batch, |_| true, self.removable.entry(place).or_default());
        }
    }

    fn letter(&mut self, position: Position, record: &Record) {
        let Some((envelope, _)) = Envelope::split(&record.headers) else { return };
        let place = self.settled.place(&position);
        if self.settled.is_repeat(&position) {
            return self.remove(place, position.offset);
        }
        let key = LetterKey::of(&envelope);
        let state = self.settled.state(&position, record.time, &key);
        let first = match envelope.piece {
            None => position,
            Some(piece) => {
                let pieces = self.pieces.entry(key.clone()).or_default();
                let len = record.value.as_ref().map_or(0, |value| value.len() as u64);
                pieces.bytes.insert(piece.from..piece.from + len);
                pieces.positions.push(position.clone());
                let Some(first) = pieces.positions.first().cloned() else { return };
                let is_whole = pieces.bytes.first_gap(0) >= piece.of;
                self.first_pieces.insert((self.settled.place(&first), first.offset), key.clone());
                let was_whole = std::mem::replace(&mut pieces.whole, is_whole);
                if was_whole || !is_whole {
                    return;
                }
                first
            }
        };
        if !self.seen.insert(&key) {
            if envelope.pipeline == self.pipeline && state == DeadLetterState::Open {
                self.repeats.push(first);
            }
            return;
        }
        let place = self.settled.place(&first);
        let is_final = matches!(state, DeadLetterState::Replayed | DeadLetterState::Dropped);
        if is_final && self.settled.state_at(&first) == DeadLetterState::Open {
            // Settled by a note about the same one elsewhere, or by one that names no topic id.
            self.remove(place, first.offset);
        }
        if envelope.pipeline == self.pipeline {
            let offset = first.offset;
            self.letters.entry(place).or_default().insert(offset..offset + 1);
            self.open += u64::from(state == DeadLetterState::Open);
        }
    }

    fn remove(&mut self, place: LetterPartition, offset: u64) {
        let removable = self.removable.entry(place).or_default();
        self.is_more_removable |= !removable.contains(offset);
        removable.insert(offset..offset + 1);
    }

    /// May go when it has been looked at for long enough; many share a moment.
    fn wait(&mut self, place: LetterPartition, offset: u64, since: Timestamp) {
        let step = (self.keep / 16).clamp(ASK_EVERY, Duration::from_secs(3_600)).as_millis();
        let (step, keep) = (step as i64, self.keep.as_millis() as i64);
        let from = Timestamp((since.0.saturating_add(keep) / step + 1).saturating_mul(step));
        let at = self.waiting.partition_point(|waiting| waiting.from < from);
        if self.waiting.get(at).is_none_or(|waiting| waiting.from != from) {
            self.waiting.insert(at, DelayedLetters { from, offsets: BTreeMap::new() });
        }
        if let Some(waiting) = self.waiting.get_mut(at) {
            waiting.offsets.entry(place).or_default().insert(offset..offset + 1);
        }
    }

    fn is_due(&self, now: Timestamp) -> bool {
        self.is_more_removable || self.waiting.front().is_some_and(|waiting| waiting.from <= now)
    }

    fn gather_due(&mut self, now: Timestamp) {
        while let Some(waiting) = self.waiting.pop_front_if(|waiting| waiting.from <= now) {
            for (place, offsets) in waiting.offsets {
                let removable = self.removable.entry(place).or_default();
                offsets.iter().for_each(|range| removable.insert(range));
            }
        }
        // The pieces of a body go with the first.
        let removable = &mut self.removable;
        self.first_pieces.retain(|(place, offset), key| {
            if !removable.get(place).is_some_and(|gone| gone.contains(*offset)) {
                return true;
            }
            for position in self.pieces.remove(key).into_iter().flat_map(|of| of.positions) {
                let place = self.settled.place(&position);
                let offset = position.offset;
                removable.entry(place).or_default().insert(offset..offset + 1);
            }
            false
        });
        self.is_more_removable = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn trouble_is_told_of_again_when_it_comes_again_or_lasts() {
        let (fault, mut trouble) = (Fault::retry("away"), Grievance::default());
        assert!(!trouble.is_lasting() && trouble.tell(&fault, "x"));
        assert!(trouble.is_lasting() && !trouble.tell(&fault, "x"));
        assert!(trouble.tell(&Fault::retry("another"), "x") && !trouble.tell(&fault, "x"));
        tokio::time::advance(TOLD_EVERY).await;
        assert!(trouble.tell(&fault, "x") && !trouble.tell(&fault, "x"));
        trouble.end("over");
        assert!(!trouble.is_lasting() && trouble.tell(&fault, "x"));
    }
}
