//! The origin of a record: itself, or the record it is a replay or a copy of.

use std::sync::Arc;

use bytes::Bytes;
use potok_core::trouble::{Bug, planted};
use potok_core::{Fault, Headers, Position, Reason, Record, SourceBatch, Timestamp};

use crate::dead_letter::{REPLAY_HEADER, Replay};
use crate::group::gathered;

/// How a record came to its pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provenance {
    /// From a topic of the pipeline.
    Straight,
    /// It was set aside before.
    Replayed,
    /// As a copy in the internal topic.
    Gathered,
}

/// Topics that belong to the pipeline itself.
#[derive(Clone)]
pub(crate) struct OwnTopics {
    pub replay: Arc<str>,
    /// Where groups are held: what is noted of them.
    pub internal: Option<Arc<str>>,
    /// The topics it reads.
    pub sources: Vec<Arc<str>>,
}

impl OwnTopics {
    pub fn way(&self, topic: &Arc<str>) -> Provenance {
        match topic {
            topic if *topic == self.replay => Provenance::Replayed,
            topic if self.internal.as_ref() == Some(topic) => Provenance::Gathered,
            _ => Provenance::Straight,
        }
    }

    /// True for a note of our own: a seal, a tick. Those are not counted as records.
    pub fn is_note(&self, batch: &SourceBatch, record: &Record) -> bool {
        self.internal.as_ref() == Some(&batch.partition.topic) && !gathered::is_copy(record)
    }

    /// The origin of a record that came this way.
    pub fn origin(
        &self,
        batch: &SourceBatch,
        index: usize,
        record: &Record,
        way: Provenance,
    ) -> Origin {
        let named = batch.origin(index).filter(|_| !planted(Bug::OriginsIgnored));
        let (position, failures) = named.unwrap_or_else(|| (batch.position(record), 0));
        let origin = Origin {
            position,
            failures,
            time: record.time,
            key: record.key.clone(),
            headers: record.headers.clone(),
            replay: Ok(None),
        };
        match way {
            Provenance::Straight => return origin,
            Provenance::Gathered => {
                return gathered::origin(record, &self.sources).unwrap_or(origin);
            }
            Provenance::Replayed => {}
        }
        match Replay::read(record) {
            Some(replay) => Origin {
                position: replay.origin.clone(),
                headers: record.headers.without_first(),
                replay: Ok(Some(Box::new(replay))),
                ..origin
            },
            None => {
                let what = format!("a record in a replay topic needs the header {REPLAY_HEADER}");
                let fault = Fault::set_aside(Reason::Undecodable, what);
                Origin { replay: Err(fault), ..origin }
            }
        }
    }
}

/// The origin of a record: itself, or the record it is a replay or a copy of.
pub(crate) struct Origin {
    pub position: Position,
    /// How often it failed before, where its feed counts that.
    pub failures: u32,
    pub time: Timestamp,
    pub key: Option<Bytes>,
    pub headers: Headers,
    /// `Err` when a record of the replay topic is not a replay.
    pub replay: Result<Option<Box<Replay>>, Fault>,
}

impl Origin {
    /// Which attempt this is; the original was the first.
    pub fn attempts(&self) -> u32 {
        self.replay().map_or(1, |replay| replay.attempt)
    }

    /// The dead letter that is being replayed.
    pub fn replay_of(&self) -> Option<String> {
        self.replay().map(|replay| replay.entry.clone())
    }

    /// What it is a replay of.
    pub fn replay(&self) -> Option<&Replay> {
        self.replay.as_ref().ok()?.as_deref()
    }
}
