//! Which lane a record goes to.

use std::hash::Hasher;
use std::sync::Arc;

use potok_core::trouble::{Bug, planted};
use potok_core::{Record, SourceBatch};
use potok_expr::{Scope, Template, json::Parser};

use crate::crash_notes::{CrashNotes, Range};
use crate::lane::Origin;
use crate::plan::Plan;

/// Splits batches by lane key.
pub(crate) struct Routing {
    key: Vec<Template>,
    needs_value: bool,
    parser: Parser,
    notes: Arc<CrashNotes>,
    replay_topic: Arc<str>,
    /// Where the seals of groups lie, keyed by their groups.
    internal: Option<Arc<str>>,
    turn: usize,
}

impl Routing {
    pub fn new(plan: &Plan, notes: Arc<CrashNotes>, replay_topic: Arc<str>) -> Self {
        let key = plan.lane_key();
        let needs_value = key.iter().any(Template::needs_value);
        let internal = plan.hold.as_ref().map(|hold| hold.internal.clone());
        Routing { key, needs_value, parser: Parser::new(), notes, replay_topic, internal, turn: 0 }
    }

    /// The records of each lane, by index in the batch with the hash of the lane key. A record
    /// without a readable lane key goes by its own key; it is about to become a dead letter.
    pub fn split(&mut self, batch: &SourceBatch, lanes: usize) -> Vec<(usize, Vec<(u32, u64)>)> {
        let mut split: Vec<Vec<(u32, u64)>> = vec![Vec::new(); lanes.max(1)];
        self.notes.enter(0, Range::of_batch(batch, batch.first, batch.next.max(batch.first + 1)));
        for (index, record) in batch.records.iter().enumerate() {
            let hash = self.hash(batch, record);
            let mut lane = (hash % split.len() as u64) as usize;
            if planted(Bug::LaneOrderLost) {
                self.turn += 1;
                lane = self.turn % split.len();
            }
            if let Some(records) = split.get_mut(lane) {
                records.push((index as u32, hash));
            }
        }
        self.notes.leave(0);
        split.into_iter().enumerate().filter(|(_, records)| !records.is_empty()).collect()
    }

    fn hash(&mut self, batch: &SourceBatch, record: &Record) -> u64 {
        if let Some(internal) = &self.internal {
            if batch.partition.topic == *internal {
                return hash_of(record.key.as_deref().unwrap_or_default());
            }
            if self.key.is_empty() {
                // All records are one group.
                return hash_of(b"");
            }
        }
        let replayed = batch.partition.topic == self.replay_topic;
        let origin = replayed.then(|| Origin::of(batch, record, true));
        let value = record.value.as_deref().filter(|_| self.needs_value);
        let node = value.and_then(|value| self.parser.parse(value).ok());
        let scope = Scope {
            value: node,
            key: record.key.as_deref(),
            headers: origin.as_ref().map_or(&record.headers, |origin| &origin.headers),
            topic: origin.as_ref().map_or(&batch.partition.topic, |origin| &origin.position.topic),
            id: None,
            receiver: None,
        };
        let mut hasher = std::hash::DefaultHasher::new();
        let mut part = Vec::new();
        for template in &self.key {
            part.clear();
            if !template.eval(&scope, &mut part) {
                return own_key(record);
            }
            hasher.write_usize(part.len());
            hasher.write(&part);
        }
        if self.key.is_empty() { own_key(record) } else { hasher.finish() }
    }
}

/// The hash of a lane key of one part.
pub(crate) fn hash_of(key: &[u8]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write_usize(key.len());
    hasher.write(key);
    hasher.finish()
}

fn own_key(record: &Record) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    match &record.key {
        Some(key) => hasher.write(key),
        // Nothing to keep in order: spread.
        None => hasher.write_u64(record.offset),
    }
    hasher.finish()
}
