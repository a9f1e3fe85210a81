//! The outcomes of dead letters, as ranges.
//!
//! Millions of notes are a few ranges where neighbours went the same way, and about 30 bytes for
//! each dead letter where they did not. Notes may be read in any order, and twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use potok_core::{Fault, Log, PipelineInfo, Position, RangeSet, Record, Timestamp};

use super::pages::Tail;
use super::{DeadLetterState, LetterKey, Resolution, ResolvedAction};

/// A partition of the dead-letter topic: its incarnation, where that matters, and its number.
pub(crate) type LetterPartition = (u64, u32);

/// Dead letters whose keys differ in nothing but the offset of their origin.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Series {
    /// `None` of notes that do not say it.
    pipeline: Option<String>,
    log: u64,
    topic: Arc<str>,
    partition: u32,
    attempts: u32,
    deliver: Option<u32>,
}

impl Series {
    fn of(key: &LetterKey) -> Self {
        let Position { log, topic, partition, .. } = &key.origin;
        Series {
            pipeline: key.pipeline.clone(),
            log: *log,
            topic: topic.clone(),
            partition: *partition,
            attempts: key.attempts,
            deliver: key.deliver,
        }
    }
}

/// A set of keys.
#[derive(Default)]
pub(crate) struct Keys(BTreeMap<Series, RangeSet>);

impl Keys {
    /// Adds one; false when it was there.
    pub fn insert(&mut self, key: &LetterKey) -> bool {
        let offsets = self.0.entry(Series::of(key)).or_default();
        let offset = key.origin.offset;
        let is_new = !offsets.contains(offset);
        offsets.insert(offset..offset + 1);
        is_new
    }
}

/// Offsets by what became of them.
#[derive(Clone, Default)]
struct Marks {
    replaying: RangeSet,
    replayed: RangeSet,
    dropped: RangeSet,
}

impl Marks {
    fn set(&mut self, offset: u64, action: ResolvedAction) {
        let offsets = match action {
            ResolvedAction::Replaying => &mut self.replaying,
            ResolvedAction::Replayed => &mut self.replayed,
            ResolvedAction::Dropped => &mut self.dropped,
            ResolvedAction::Repeated => return,
        };
        offsets.insert(offset..offset + 1);
    }

    /// The last of the states that it came to.
    fn state(&self, offset: u64) -> DeadLetterState {
        if self.dropped.contains(offset) {
            DeadLetterState::Dropped
        } else if self.replayed.contains(offset) {
            DeadLetterState::Replayed
        } else if self.replaying.contains(offset) {
            DeadLetterState::Replaying
        } else {
            DeadLetterState::Open
        }
    }
}

/// What became of the dead letters of a topic.
#[derive(Clone)]
pub struct LetterOutcomes {
    reuses_offsets: bool,
    places: BTreeMap<LetterPartition, Marks>,
    repeats: BTreeMap<LetterPartition, RangeSet>,
    keys: BTreeMap<(u64, Series), Marks>,
    /// Notes that do not say which incarnation of the topic they are about, with their times: a
    /// dead letter that is younger lies in another one.
    undated: BTreeMap<(u32, u64), (Timestamp, DeadLetterState)>,
}

impl LetterOutcomes {
    /// Nothing is known yet.
    pub fn new(log: &dyn Log) -> Self {
        LetterOutcomes::of(log.reuses_offsets())
    }

    pub(super) fn of(reuses_offsets: bool) -> Self {
        LetterOutcomes {
            reuses_offsets,
            places: BTreeMap::new(),
            repeats: BTreeMap::new(),
            keys: BTreeMap::new(),
            undated: BTreeMap::new(),
        }
    }

    /// True where an offset may mean two records over time.
    pub(crate) fn reuses_offsets(&self) -> bool {
        self.reuses_offsets
    }

    pub(crate) fn place(&self, position: &Position) -> LetterPartition {
        (self.log(position.log), position.partition)
    }

    /// Offsets of a log that does not reuse them mean the same under every incarnation.
    fn log(&self, log: u64) -> u64 {
        if self.reuses_offsets { log } else { 0 }
    }

    /// The place that a note is about; `None` where the topic's incarnation matters and the note does
    /// not say it.
    pub(crate) fn about(&self, resolution: &Resolution) -> Option<Position> {
        let dated = resolution.entry.parse().ok();
        dated.or_else(|| match self.reuses_offsets {
            true => None,
            false => format!("{}@0", resolution.entry).parse().ok(),
        })
    }

    /// Takes a note in. Returns what it is about, where the note says so.
    pub(crate) fn apply(&mut self, note: &Record) -> Option<(Position, Resolution)> {
        let resolution = Resolution::read(note)?;
        let Some(position) = self.about(&resolution) else {
            let undated = format!("{}@0", resolution.entry).parse::<Position>().ok()?;
            let mut marks = Marks::default();
            marks.set(undated.offset, resolution.action);
            let state = marks.state(undated.offset);
            let at = (undated.partition, undated.offset);
            let known = self.undated.entry(at).or_insert((note.time, state));
            *known = (known.0.max(note.time), known.1.max(state));
            return None;
        };
        let (place, offset) = (self.place(&position), position.offset);
        if resolution.action == ResolvedAction::Repeated {
            self.repeats.entry(place).or_default().insert(offset..offset + 1);
            return Some((position, resolution));
        }
        self.places.entry(place).or_default().set(offset, resolution.action);
        if let Some(key) = &resolution.key {
            let marks = self.keys.entry((place.0, Series::of(key))).or_default();
            marks.set(key.origin.offset, resolution.action);
        }
        Some((position, resolution))
    }

    /// The outcome in notes about this very position.
    pub(crate) fn state_at(&self, position: &Position) -> DeadLetterState {
        let marks = self.places.get(&self.place(position));
        marks.map_or(DeadLetterState::Open, |marks| marks.state(position.offset))
    }

    /// Where a dead letter stands: what became of it here, or of the same one elsewhere.
    pub fn state(&self, position: &Position, time: Timestamp, key: &LetterKey) -> DeadLetterState {
        let series = Series::of(key);
        let of_any = Series { pipeline: None, ..series.clone() };
        let of_key = [series, of_any].map(|series| {
            let marks = self.keys.get(&(self.log(position.log), series));
            marks.map_or(DeadLetterState::Open, |marks| marks.state(key.origin.offset))
        });
        let undated = self.undated.get(&(position.partition, position.offset));
        let undated = undated.filter(|(noted, _)| *noted >= time).map(|(_, state)| *state);
        let [of_ours, of_any] = of_key;
        let undated = undated.unwrap_or(DeadLetterState::Open);
        self.state_at(position).max(of_ours).max(of_any).max(undated)
    }

    /// True for a second note of the same dead letter.
    pub fn is_repeat(&self, position: &Position) -> bool {
        let repeats = self.repeats.get(&self.place(position));
        repeats.is_some_and(|repeats| repeats.contains(position.offset))
    }
}

/// The notes of a topic, followed: a look reads only what has come since the one before.
pub struct LetterNotes {
    notes: Tail,
    settled: Arc<LetterOutcomes>,
}

impl LetterNotes {
    /// Nothing is read yet.
    pub fn new(log: &dyn Log, info: &PipelineInfo) -> Self {
        let settled = Arc::new(LetterOutcomes::new(log));
        LetterNotes { notes: Tail::new(&info.resolved), settled }
    }

    /// What became of dead letters by now. After a fault it is not known what was read.
    pub async fn catch_up(&mut self, log: &dyn Log) -> Result<Arc<LetterOutcomes>, Fault> {
        while let Some(batch) = self.notes.next(log).await? {
            // Whoever has what was known before keeps it.
            let settled = Arc::make_mut(&mut self.settled);
            batch.records.iter().for_each(|record| drop(settled.apply(record)));
        }
        Ok(self.settled.clone())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use potok_core::Headers;

    use super::*;

    fn note(entry: &str, action: ResolvedAction, at: i64) -> Record {
        let time = Timestamp(at);
        let resolution =
            Resolution { entry: entry.to_owned(), action, time, key: None, outcome: None };
        let value = Some(serde_json::to_vec(&resolution).unwrap().into());
        Record { offset: 0, time, key: None, headers: Headers::none(), value }
    }

    fn key() -> LetterKey {
        let origin = "in/0/1@0000000000000001".parse().unwrap();
        LetterKey { pipeline: Some("p".to_owned()), origin, attempts: 1, deliver: None }
    }

    /// A note about a dead letter that lies elsewhere, too.
    fn keyed(key: LetterKey) -> Record {
        let about = note("d/0/3", ResolvedAction::Dropped, 50);
        let resolution = Resolution { key: Some(key), ..Resolution::read(&about).unwrap() };
        Record { value: Some(serde_json::to_vec(&resolution).unwrap().into()), ..about }
    }

    #[test]
    fn a_note_of_one_pipeline_says_nothing_about_the_dead_letter_of_another() {
        let elsewhere = "d/0/9@000000000000000a".parse().unwrap();
        let of = |pipeline: &str| LetterKey { pipeline: Some(pipeline.to_owned()), ..key() };
        let mut settled = LetterOutcomes::of(false);
        settled.apply(&keyed(key()));
        let state = |settled: &LetterOutcomes, key: &LetterKey| {
            settled.state(&elsewhere, Timestamp(10), key)
        };
        assert_eq!(state(&settled, &of("p")), DeadLetterState::Dropped);
        assert_eq!(state(&settled, &of("q")), DeadLetterState::Open);
        // Older notes do not say whose dead letter it was.
        let mut settled = LetterOutcomes::of(false);
        let older = keyed(LetterKey { pipeline: None, ..key() });
        let text = std::str::from_utf8(older.value.as_deref().unwrap()).unwrap();
        assert!(text.contains("origin") && !text.contains("pipeline"), "{text}");
        settled.apply(&older);
        assert_eq!(state(&settled, &of("p")), DeadLetterState::Dropped);
        assert_eq!(state(&settled, &of("q")), DeadLetterState::Dropped);
    }

    #[test]
    fn a_record_that_two_pipelines_set_aside_is_two_dead_letters() {
        let mut seen = Keys::default();
        assert!(seen.insert(&key()));
        assert!(seen.insert(&LetterKey { pipeline: Some("q".to_owned()), ..key() }));
        assert!(!seen.insert(&key()));
    }

    #[test]
    fn a_note_is_about_the_topic_it_names() {
        let mut settled = LetterOutcomes::of(true);
        settled.apply(&note("d/0/3@000000000000000a", ResolvedAction::Dropped, 50));
        let state = |settled: &LetterOutcomes, position: &str| {
            settled.state(&position.parse().unwrap(), Timestamp(10), &key())
        };
        assert_eq!(state(&settled, "d/0/3@000000000000000a"), DeadLetterState::Dropped);
        assert_eq!(state(&settled, "d/0/3@000000000000000b"), DeadLetterState::Open);
        // Where offsets are not reused, incarnations of the log do not matter.
        let mut settled = LetterOutcomes::of(false);
        settled.apply(&note("d/0/3@000000000000000a", ResolvedAction::Replaying, 50));
        settled.apply(&note("d/0/3", ResolvedAction::Replayed, 60));
        assert_eq!(state(&settled, "d/0/3@000000000000000b"), DeadLetterState::Replayed);
    }

    #[test]
    fn a_note_that_names_no_topic_id_is_about_what_was_there_when_it_was_written() {
        let mut settled = LetterOutcomes::of(true);
        settled.apply(&note("d/0/3", ResolvedAction::Dropped, 50));
        let at = "d/0/3@000000000000000a".parse().unwrap();
        assert_eq!(settled.state(&at, Timestamp(50), &key()), DeadLetterState::Dropped);
        assert_eq!(settled.state(&at, Timestamp(51), &key()), DeadLetterState::Open);
    }
}
