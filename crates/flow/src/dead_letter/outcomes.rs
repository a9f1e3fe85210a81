//! Watching the outcomes of replays that were just sent.

use std::collections::BTreeMap;

use potok_core::{Envelope, Fault, Log, PipelineInfo, Position, RangeSet, ReadFrom, Reason};

use super::pages::Tail;
use super::settled::LetterPartition;
use super::{DeadLetter, LetterOutcomes, Outcome, id_of};

/// So many new dead letters are named; the others are counted.
const NAMED_MAX: usize = 100;

/// A replay that failed: a new dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedReplay {
    pub id: String,
    /// Why.
    pub reason: Reason,
    /// Why, in words.
    pub error: String,
}

/// Watches what is noted about replays from the moment it was begun.
pub struct Outcomes {
    notes: Tail,
    letters: Tail,
    settled: LetterOutcomes,
    sent: BTreeMap<LetterPartition, RangeSet>,
    ended: BTreeMap<LetterPartition, RangeSet>,
    /// Sent, and not ended yet.
    pub under_way: u64,
    /// Taken by a destination.
    pub delivered: u64,
    /// Left out by a rule.
    pub filtered: u64,
    /// There already.
    pub duplicates: u64,
    /// Failed again.
    pub dead_lettered: u64,
    /// The first of those.
    pub dead_again: Vec<FailedReplay>,
}

impl Outcomes {
    /// Begins to watch; what was noted before does not count.
    pub async fn begin(log: &dyn Log, info: &PipelineInfo) -> Result<Self, Fault> {
        let mut notes = Tail::from(&info.resolved, ReadFrom::End);
        let mut letters = Tail::from(&info.dead_letters, ReadFrom::End);
        notes.open(log).await?;
        letters.open(log).await?;
        Ok(Outcomes {
            notes,
            letters,
            settled: LetterOutcomes::new(log),
            sent: BTreeMap::new(),
            ended: BTreeMap::new(),
            under_way: 0,
            delivered: 0,
            filtered: 0,
            duplicates: 0,
            dead_lettered: 0,
            dead_again: Vec::new(),
        })
    }

    /// This one was sent.
    pub fn sent(&mut self, letter: &DeadLetter) {
        let offset = letter.position.offset;
        let place = self.settled.place(&letter.position);
        self.sent.entry(place).or_default().insert(offset..offset + 1);
        self.under_way += 1;
    }

    /// Takes in what has come.
    pub async fn look(&mut self, log: &dyn Log) -> Result<(), Fault> {
        // A note is there only when its dead letter is.
        while let Some(batch) = self.notes.next(log).await? {
            for note in &batch.records {
                let Some((about, resolution)) = self.settled.apply(note) else { continue };
                let Some(outcome) = resolution.outcome else { continue };
                let (place, offset) = (self.settled.place(&about), about.offset);
                let is_new = is_in(&self.sent, place, offset) && !is_in(&self.ended, place, offset);
                if !is_new {
                    continue;
                }
                self.ended.entry(place).or_default().insert(offset..offset + 1);
                self.under_way = self.under_way.saturating_sub(1);
                match outcome {
                    Outcome::Delivered => self.delivered += 1,
                    Outcome::Filtered => self.filtered += 1,
                    Outcome::Duplicate => self.duplicates += 1,
                    Outcome::DeadLettered => self.dead_lettered += 1,
                }
            }
        }
        while let Some(batch) = self.letters.next(log).await? {
            for record in &batch.records {
                let envelope = Envelope::split(&record.headers).map(|(envelope, _)| envelope);
                let Some(Envelope { replay_of: Some(of), reason, error, piece, .. }) = envelope
                else {
                    continue;
                };
                let of: Option<Position> = of.parse().ok();
                let is_ours =
                    of.is_some_and(|of| is_in(&self.sent, self.settled.place(&of), of.offset));
                if is_ours
                    && piece.is_none_or(|piece| piece.from == 0)
                    && self.dead_again.len() < NAMED_MAX
                {
                    let id = id_of(&batch.position(record), self.settled.reuses_offsets());
                    self.dead_again.push(FailedReplay { id, reason, error });
                }
            }
        }
        Ok(())
    }
}

fn is_in(
    offsets: &BTreeMap<LetterPartition, RangeSet>,
    place: LetterPartition,
    offset: u64,
) -> bool {
    offsets.get(&place).is_some_and(|offsets| offsets.contains(offset))
}
