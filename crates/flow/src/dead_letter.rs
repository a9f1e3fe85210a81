//! Dead letters: listing, replaying and dropping what was set aside.
//!
//! A dead letter is a record in the pipeline's dead-letter topic (its form: `potok_core::Envelope`).
//! It is never changed; what became of it is noted in a second topic, and the list is the fold of
//! both. A replay is a new record in a third topic that only this pipeline reads; it carries the
//! origin, so that whatever it delivers has the names the original would have had.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use potok_core::{
    Clock, Envelope, Fault, HeadersBuilder, Log, Output, Piece, PipelineInfo, Position, ReadFrom,
    Record, Timestamp,
};
use serde::{Deserialize, Serialize};

/// Name of the first header of a replayed record.
pub const REPLAY_HEADER: &str = "potok-replay";

/// What a replayed record carries besides the original's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replay {
    /// Where the original lay: its deliveries are named by it.
    pub origin: Position,
    /// The only deliver entry to run; `None` runs them all, since none was reached.
    pub deliver: Option<u32>,
    /// Which attempt this is; the original was the first.
    pub attempt: u32,
    /// The dead letter that this replays, closed when the replay has ended.
    pub entry: String,
}

/// What became of a dead letter: the value of a record in the resolved topic, keyed by its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolution {
    /// The dead letter's id.
    pub entry: String,
    /// What became of it.
    pub action: ResolvedAction,
    /// When.
    pub time: Timestamp,
}

impl Resolution {
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

/// What can become of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResolvedAction {
    /// Sent into the pipeline again; not yet ended.
    Replaying,
    /// The replay has ended: delivered, or a new dead letter of its own.
    Replayed,
    /// Given up by hand.
    Dropped,
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
    /// Its id: where it lies, e.g. `orders-dead/0/12`.
    pub id: String,
    /// What is known of it.
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

/// All dead letters, oldest first. Repeats of one ending (same origin, attempt and deliver entry)
/// are one entry, the first; so are the pieces of one body, once all are there. A repeat without a
/// key may lie in another partition than the first: what became of any of them became of all.
pub async fn list(log: &dyn Log, info: &PipelineInfo) -> Result<Vec<DeadLetter>, Fault> {
    let states = resolutions(log, info).await?;
    let mut found: HashMap<_, Found> = HashMap::new();
    for_each(log, &info.dead_letters, |position, record| {
        let Some((envelope, headers)) = Envelope::split(&record.headers) else {
            return;
        };
        let ending = (envelope.origin.clone(), envelope.attempts, envelope.deliver);
        let state = states.get(&id_of(&position)).copied().unwrap_or(DeadLetterState::Open);
        let found = found.entry(ending).or_insert_with(|| Found {
            at: (record.time, position.clone()),
            state,
            envelope: Envelope { piece: None, ..envelope.clone() },
            record: Record { headers, value: None, ..record.clone() },
            whole: false,
            pieces: BTreeMap::new(),
        });
        found.state = found.state.max(state);
        found.at = (record.time, position).min(found.at.clone());
        found.add(envelope.piece, record.value);
    })
    .await?;
    let mut letters: Vec<(u32, u64, DeadLetter)> = Vec::with_capacity(found.len());
    for Found { at: (time, position), state, envelope, record, .. } in
        found.into_values().filter(|found| found.whole)
    {
        let id = id_of(&position);
        let letter = DeadLetter { id, envelope, state, time, record };
        letters.push((position.partition, position.offset, letter));
    }
    letters.sort_by_key(|(partition, offset, letter)| (letter.time, *partition, *offset));
    Ok(letters.into_iter().map(|(_, _, letter)| letter).collect())
}

/// What a dead letter is called that lies there.
fn id_of(position: &Position) -> String {
    format!("{}/{}/{}", position.topic, position.partition, position.offset)
}

/// A dead letter while its topic is being read.
struct Found {
    at: (Timestamp, Position),
    state: DeadLetterState,
    envelope: Envelope,
    record: Record,
    whole: bool,
    /// Parts of the body by where they begin.
    pieces: BTreeMap<u64, Bytes>,
}

impl Found {
    fn add(&mut self, piece: Option<Piece>, value: Option<Bytes>) {
        if self.whole {
            return;
        }
        let Some(Piece { from, of }) = piece else {
            self.record.value = value;
            self.whole = true;
            return;
        };
        // The same part may come again, cut otherwise: the longest counts.
        let known = self.pieces.entry(from).or_default();
        if value.as_ref().is_some_and(|value| value.len() > known.len()) {
            *known = value.unwrap_or_default();
        }
        let mut covered = 0;
        for (from, bytes) in &self.pieces {
            if *from > covered {
                return;
            }
            covered = covered.max(from + bytes.len() as u64);
        }
        if covered != of {
            return;
        }
        let mut body = Vec::new();
        for (from, bytes) in std::mem::take(&mut self.pieces) {
            let known = body.len().saturating_sub(from as usize);
            body.extend_from_slice(bytes.get(known..).unwrap_or_default());
        }
        self.record.value = Some(body.into());
        self.whole = true;
    }
}

async fn resolutions(
    log: &dyn Log,
    info: &PipelineInfo,
) -> Result<HashMap<String, DeadLetterState>, Fault> {
    let mut states = HashMap::new();
    for_each(log, &info.resolved, |_, record| {
        let parsed = record.value.as_deref().map(serde_json::from_slice::<Resolution>);
        let Some(Ok(resolution)) = parsed else {
            return;
        };
        let state = match resolution.action {
            ResolvedAction::Replaying => DeadLetterState::Replaying,
            ResolvedAction::Replayed => DeadLetterState::Replayed,
            ResolvedAction::Dropped => DeadLetterState::Dropped,
        };
        // All notes of one entry have one key, hence one partition, hence this order.
        states.insert(resolution.entry, state);
    })
    .await?;
    Ok(states)
}

async fn for_each(
    log: &dyn Log,
    topic: &str,
    mut visit: impl FnMut(Position, Record),
) -> Result<(), Fault> {
    // A topic that nobody has written to yet is empty, not wrong.
    if !log.topics().await?.iter().any(|known| known.topic == topic) {
        return Ok(());
    }
    let mut reader = log.read(topic, ReadFrom::Start).await?;
    while let Some(batch) = reader.next(false).await? {
        for record in &batch.records {
            visit(batch.position(record), record.clone());
        }
    }
    Ok(())
}

/// Sends open dead letters into their pipeline again; returns how many. The records and the notes
/// that they are on their way are one append, so none is sent twice.
pub async fn replay(
    log: &dyn Log,
    info: &PipelineInfo,
    letters: &[DeadLetter],
    clock: &dyn Clock,
) -> Result<usize, Fault> {
    let mut outputs = Vec::new();
    for letter in letters.iter().filter(|letter| letter.state == DeadLetterState::Open) {
        if letter.envelope.attempts > info.replays_max {
            return Err(Fault::fix(format!(
                "dead letter {} was replayed {} times already",
                letter.id, info.replays_max
            ))
            .code("P0403")
            .hint("raise dead_letter.replays_max, or drop it"));
        }
        let replay = Replay {
            origin: letter.envelope.origin.clone(),
            deliver: letter.envelope.deliver,
            attempt: letter.envelope.attempts + 1,
            entry: letter.id.clone(),
        };
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
    Resolution { entry: letter.id.clone(), action, time: clock.now() }.output(info)
}

async fn append(log: &dyn Log, outputs: Vec<Output>, per_letter: usize) -> Result<usize, Fault> {
    if outputs.is_empty() {
        return Ok(0);
    }
    log.append(&outputs).await?;
    Ok(outputs.len() / per_letter)
}
