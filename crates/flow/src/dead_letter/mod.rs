//! Dead letters: listing, replaying, dropping and at last removing what was set aside.
//!
//! A dead letter is a record in the pipeline's dead-letter topic (its form: `potok_core::Envelope`).
//! It is never changed; what became of it is noted in a second topic, and the list is the fold of
//! both. A replay is a new record in a third topic that only this pipeline reads; it carries the
//! origin, so that whatever it delivers has the names the original would have had.
//!
//! There may be millions of them. So they are read one by one ([`Pages`]), what became of them is
//! kept as ranges of offsets ([`LetterOutcomes`]), and a task of its own counts those that are open and
//! lets go of those that are done ([`desk`]). A note outlives the dead letter it is about.

mod catalogue;
pub(crate) mod desk;
mod outcomes;
mod pages;
mod settled;

use std::borrow::Borrow;
use std::fmt;

use bytes::Bytes;
use potok_core::{
    Clock, Envelope, Fault, HeadersBuilder, Log, Output, PipelineInfo, Position, Record,
    ShardPlace, Timestamp,
};
use serde::{Deserialize, Serialize};

pub use catalogue::{Catalogue, LetterNews};
pub use outcomes::{FailedReplay, Outcomes};
pub use pages::{LetterId, Pages, find};
pub use settled::{LetterNotes, LetterOutcomes};

/// Name of the first header of a replayed record.
pub const REPLAY_HEADER: &str = "potok-replay";

/// The headers that a replayed record has beside the original's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replay {
    /// Where the original lay: its deliveries are named by it.
    pub origin: Position,
    /// The only deliver entry to run; `None` runs them all, since none was reached.
    pub deliver: Option<u32>,
    /// Which attempt this is; the original was the first.
    pub attempt: u32,
    /// The dead letter that this replays, closed when the replay has ended: its position. Before
    /// positions were noted, `topic/partition/offset`.
    pub entry: String,
    /// Where its group was, where groups are sharded: it goes to that shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardPlace>,
}

impl Replay {
    /// The replay of the dead letter that lies there.
    pub(crate) fn of(envelope: &Envelope, position: &Position) -> Self {
        Replay {
            origin: envelope.origin.clone(),
            deliver: envelope.deliver,
            attempt: envelope.attempts.saturating_add(1),
            entry: position.to_string(),
            shard: envelope.shard.clone(),
        }
    }

    /// The original of a record of a replay topic.
    pub fn read(record: &Record) -> Option<Self> {
        let (name, value) = record.headers.iter().next()?;
        serde_json::from_slice(value.filter(|_| name == REPLAY_HEADER)?).ok()
    }
}

/// The identity of a dead letter: two with one key are two notes of one outcome.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LetterKey {
    /// Which pipeline set it aside; several may read one topic. Older notes do not say, and are about
    /// those of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<String>,
    /// Where the record lay.
    pub origin: Position,
    /// Which attempt failed.
    pub attempts: u32,
    /// Which deliver entry failed.
    pub deliver: Option<u32>,
}

impl LetterKey {
    /// The key of the dead letter with this envelope.
    pub fn of(envelope: &Envelope) -> Self {
        LetterKey {
            pipeline: Some(envelope.pipeline.clone()),
            origin: envelope.origin.clone(),
            attempts: envelope.attempts,
            deliver: envelope.deliver,
        }
    }

    /// The key of the dead letter that a pipeline replays.
    fn of_replayed(pipeline: &str, replay: &Replay) -> Self {
        LetterKey {
            pipeline: Some(pipeline.to_owned()),
            origin: replay.origin.clone(),
            attempts: replay.attempt.saturating_sub(1),
            deliver: replay.deliver,
        }
    }
}

/// The outcome of a dead letter: the value of a record in the resolved topic, keyed by its entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolution {
    /// The dead letter's position; see [`Replay::entry`].
    pub entry: String,
    /// Its outcome.
    pub action: ResolvedAction,
    /// When.
    pub time: Timestamp,
    /// Which dead letter that was, wherever else it lies too. Older notes do not say.
    #[serde(flatten)]
    pub key: Option<LetterKey>,
    /// How its replay ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

impl fmt::Display for Resolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match (self.action, self.outcome) {
            (ResolvedAction::Replaying, _) => "replay sent",
            (ResolvedAction::Replayed, None) => "replay ended",
            (ResolvedAction::Replayed, Some(Outcome::Delivered)) => "replay delivered",
            (ResolvedAction::Replayed, Some(Outcome::Filtered)) => "replay filtered",
            (ResolvedAction::Replayed, Some(Outcome::Duplicate)) => "replay was there already",
            (ResolvedAction::Replayed, Some(Outcome::DeadLettered)) => "replay failed again",
            (ResolvedAction::Dropped, _) => "dropped",
            (ResolvedAction::Repeated, _) => "written twice",
        };
        write!(f, "{what}: {}", self.entry.split_once('@').map_or(&*self.entry, |(place, _)| place))
    }
}

/// How a replay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A destination took it.
    Delivered,
    /// A rule left it out.
    Filtered,
    /// It was there already.
    Duplicate,
    /// It is a new dead letter.
    DeadLettered,
}

impl Resolution {
    /// The replay has ended in its pipeline.
    pub(crate) fn of_replay(
        pipeline: &str,
        replay: &Replay,
        outcome: Outcome,
        time: Timestamp,
    ) -> Self {
        Resolution {
            entry: replay.entry.clone(),
            action: ResolvedAction::Replayed,
            time,
            key: Some(LetterKey::of_replayed(pipeline, replay)),
            outcome: Some(outcome),
        }
    }

    /// Makes of a note about a replay that it ended in a dead letter.
    pub(crate) fn failed_again(note: &mut Output) {
        let said = note.value.as_deref().and_then(|value| serde_json::from_slice(value).ok());
        let Some(said): Option<Resolution> = said else { return };
        let resolution = Resolution { outcome: Some(Outcome::DeadLettered), ..said };
        note.value = Some(serde_json::to_vec(&resolution).unwrap_or_default().into());
    }

    /// Reads a record of the resolved topic; `None` where it is no note.
    pub fn read(record: &Record) -> Option<Self> {
        serde_json::from_slice(record.value.as_deref()?).ok()
    }

    /// The record that notes it.
    pub fn output(&self, info: &PipelineInfo) -> Output {
        Output {
            topic: info.resolved.as_str().into(),
            partition: None,
            key: Some(Bytes::copy_from_slice(self.entry.as_bytes())),
            headers: potok_core::Headers::none(),
            // Serialising plain strings and numbers does not fail.
            value: Some(serde_json::to_vec(self).unwrap_or_default().into()),
        }
    }
}

/// The possible outcomes of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResolvedAction {
    /// Sent into the pipeline again; not yet ended.
    Replaying,
    /// The replay has ended: delivered, or a new dead letter of its own.
    Replayed,
    /// Given up by hand.
    Dropped,
    /// A second note of the same dead letter; the first stands for both.
    Repeated,
}

/// Where a dead letter stands, in the order in which that comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadLetterState {
    /// Waits for somebody.
    Open,
    /// On its way through the pipeline again.
    Replaying,
    /// Went through again.
    Replayed,
    /// Given up by hand.
    Dropped,
}

/// One entry of the list.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// Its id: where it lies, e.g. `orders-dead/0/12`, on a log that reuses offsets with the first
    /// digits of the topic's id, `orders-dead/0/12@9c41d2f0`.
    pub id: String,
    /// Where it lies.
    pub position: Position,
    /// The facts about it.
    pub envelope: Envelope,
    /// Where it stands.
    pub state: DeadLetterState,
    /// When it was written.
    pub time: Timestamp,
    /// The record as it was: key, headers and value byte-exact.
    pub record: Record,
}

/// The topics of a pipeline's dead letters.
pub fn info(pipeline: &str, dead_letter_topic: &str, replays_max: u32) -> PipelineInfo {
    PipelineInfo {
        pipeline: pipeline.to_owned(),
        dead_letters: dead_letter_topic.to_owned(),
        resolved: format!("{dead_letter_topic}-resolved"),
        replay: format!("{pipeline}-replay"),
        replays_max,
        internal: None,
    }
}

/// All dead letters of a pipeline at once, oldest first: for tests. Whoever does not know how many
/// there are reads [`Pages`].
pub async fn list(log: &dyn Log, info: &PipelineInfo) -> Result<Vec<DeadLetter>, Fault> {
    let mut pages = Pages::open(log, info, None).await?;
    let mut letters = Vec::new();
    while let Some(letter) = pages.next().await? {
        if letter.envelope.pipeline == info.pipeline {
            letters.push(letter);
        }
    }
    letters.sort_by_key(|letter| (letter.time, letter.position.partition, letter.position.offset));
    Ok(letters)
}

/// The id of the dead letter at that position.
pub(crate) fn id_of(position: &Position, reuses_offsets: bool) -> String {
    let Position { log, topic, partition, offset } = position;
    match reuses_offsets {
        true => format!("{topic}/{partition}/{offset}@{:08x}", log >> 32),
        false => format!("{topic}/{partition}/{offset}"),
    }
}

/// Sends open dead letters into their pipeline again; returns how many. The records and the notes
/// that they are on their way are one append, so none is sent twice.
pub async fn replay(
    log: &dyn Log,
    info: &PipelineInfo,
    letters: &[impl Borrow<DeadLetter>],
    clock: &dyn Clock,
) -> Result<usize, Fault> {
    let mut outputs = Vec::new();
    for letter in letters.iter().map(Borrow::borrow) {
        if letter.state != DeadLetterState::Open {
            continue;
        }
        if letter.envelope.attempts > info.replays_max {
            return Err(Fault::fix(format!(
                "dead letter {} was replayed {} times already",
                letter.id, info.replays_max
            ))
            .code("P0403")
            .hint("raise dead_letter.replays_max, or drop it"));
        }
        let replay = Replay::of(&letter.envelope, &letter.position);
        // Serialising plain strings and numbers does not fail.
        let json = serde_json::to_vec(&replay).unwrap_or_default();
        let headers = HeadersBuilder::new()
            .add(REPLAY_HEADER, Some(&json))
            .add_all(&letter.record.headers)
            .build();
        outputs.push(Output {
            topic: info.replay.as_str().into(),
            partition: None,
            key: letter.record.key.clone(),
            headers,
            value: letter.record.value.clone(),
        });
        outputs.push(resolved(info, letter, ResolvedAction::Replaying, clock));
    }
    append(log, outputs, 2).await
}

/// Gives open dead letters up; returns how many.
pub async fn drop_letters(
    log: &dyn Log,
    info: &PipelineInfo,
    letters: &[DeadLetter],
    clock: &dyn Clock,
) -> Result<usize, Fault> {
    let open = letters.iter().filter(|letter| letter.state == DeadLetterState::Open);
    let outputs =
        open.map(|letter| resolved(info, letter, ResolvedAction::Dropped, clock)).collect();
    append(log, outputs, 1).await
}

fn resolved(
    info: &PipelineInfo,
    letter: &DeadLetter,
    action: ResolvedAction,
    clock: &dyn Clock,
) -> Output {
    let (entry, time) = (letter.position.to_string(), clock.now());
    let key = Some(LetterKey::of(&letter.envelope));
    Resolution { entry, action, time, key, outcome: None }.output(info)
}

async fn append(log: &dyn Log, outputs: Vec<Output>, per_letter: usize) -> Result<usize, Fault> {
    if outputs.is_empty() {
        return Ok(0);
    }
    log.append(&outputs).await?;
    Ok(outputs.len() / per_letter)
}
