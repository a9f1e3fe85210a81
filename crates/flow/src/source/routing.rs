//! Which lane a record goes to.

use std::hash::Hasher;
use std::sync::Arc;

use potok_core::trouble::{Bug, planted};
use potok_core::{FeedAbilities, Partition, Record, SourceBatch};
use potok_expr::{Scope, Template, json::Parser};

use crate::crash_notes::{self, CrashNotes, Range};
use crate::dead_letter::Replay;
use crate::group::{ShardPlan, lane_of, strays};
use crate::origin::{OwnTopics, Provenance};
use crate::plan::Plan;

/// Splits batches by lane key.
pub(crate) struct Routing {
    key: Vec<Template>,
    shard: Option<ShardPlan>,
    needs_value: bool,
    parser: Parser,
    notes: Arc<CrashNotes>,
    own: OwnTopics,
    /// Held records are gathered in the internal topic, each partition of which has one lane.
    gathered: bool,
    strays: strays::SealKeys,
    turn: usize,
    /// Its place in the crash notes.
    slot: usize,
    /// Its feed puts records off: it keeps the order of their own keys, so that is what lanes do too.
    by_own_key: bool,
}

impl Routing {
    pub fn new(
        plan: &Plan,
        intake: usize,
        notes: Arc<CrashNotes>,
        own: OwnTopics,
        gathered: bool,
        strays: strays::SealKeys,
    ) -> Self {
        let key = plan.lane_key();
        let needs_value = key.iter().any(Template::needs_value);
        let (parser, slot) = (Parser::new(), crash_notes::intake_slot(intake));
        let shard = plan.hold.as_ref().and_then(|hold| hold.shard.clone());
        Routing {
            key,
            shard,
            needs_value,
            parser,
            notes,
            own,
            gathered,
            strays,
            turn: 0,
            slot,
            by_own_key: false,
        }
    }

    /// The same for a feed.
    pub fn of_feed(self, abilities: FeedAbilities) -> Self {
        Routing { by_own_key: abilities.puts_off.is_some(), ..self }
    }

    /// The lane that has a partition for itself, if one has.
    pub fn lane_of(&self, partition: &Partition, lanes: usize) -> Option<usize> {
        let internal = self.own.internal.as_ref() == Some(&partition.topic);
        (self.gathered && internal).then_some(partition.index as usize % lanes.max(1))
    }

    /// The records of each lane, by index in the batch with the hash of the lane key. A record
    /// without a readable lane key goes by its own key; it is about to become a dead letter.
    pub fn split(&mut self, batch: &SourceBatch, lanes: usize) -> Vec<(usize, Vec<(u32, u64)>)> {
        let mut split: Vec<Vec<(u32, u64)>> = vec![Vec::new(); lanes.max(1)];
        let own_lane = self.lane_of(&batch.partition, lanes);
        let next = batch.next.max(batch.first + 1);
        let is_named = batch.feed.as_ref().is_some_and(|feed| feed.origins.is_some());
        self.notes.enter(
            self.slot,
            match is_named {
                true => Range::of_feed(batch, batch.records.len()),
                false => Range::of_batch(batch, batch.first, next),
            },
        );
        for (index, record) in batch.records.iter().enumerate() {
            let hash = match batch.whole() {
                Some(group) => hash_of(&group.key),
                None => self.hash(batch, index, record),
            };
            let hashed = (hash % split.len() as u64) as usize;
            let mut lane = own_lane.unwrap_or(hashed);
            if planted(Bug::LaneOrderLost) {
                self.turn += 1;
                lane = self.turn % split.len();
            }
            if let Some(records) = split.get_mut(lane) {
                records.push((index as u32, hash));
            }
        }
        self.notes.leave(self.slot);
        split.into_iter().enumerate().filter(|(_, records)| !records.is_empty()).collect()
    }

    fn hash(&mut self, batch: &SourceBatch, index: usize, record: &Record) -> u64 {
        if self.by_own_key {
            return own_key(batch, index, record);
        }
        let way = self.own.way(&batch.partition.topic);
        if self.own.internal.is_some() {
            if way == Provenance::Gathered {
                return self.group_lane(record.key.as_deref().unwrap_or_default());
            }
            if let Some(key) = strays::key_of(&self.strays, batch, record) {
                return self.group_lane(key);
            }
            if let Some(shard) = &self.shard {
                let replay = (way == Provenance::Replayed).then(|| Replay::read(record)).flatten();
                if let Some(place) = replay.and_then(|replay| replay.shard) {
                    return u64::from(place.number);
                }
                let value = record.value.as_deref();
                let node = value.and_then(|value| self.parser.parse(value).ok());
                return shard
                    .key(node)
                    .map_or_else(|_| own_key(batch, index, record), |key| lane_of(&key));
            }
            if self.key.is_empty() {
                // All records are one group.
                return hash_of(b"");
            }
        }
        let origin =
            (way == Provenance::Replayed).then(|| self.own.origin(batch, index, record, way));
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
                return own_key(batch, index, record);
            }
            hasher.write_usize(part.len());
            hasher.write(&part);
        }
        if self.key.is_empty() { own_key(batch, index, record) } else { hasher.finish() }
    }

    /// The lane of a group, by its key.
    fn group_lane(&self, key: &[u8]) -> u64 {
        if self.shard.is_some() { lane_of(key) } else { hash_of(key) }
    }
}

/// The hash of a lane key of one part.
pub(crate) fn hash_of(key: &[u8]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write_usize(key.len());
    hasher.write(key);
    hasher.finish()
}

fn own_key(batch: &SourceBatch, index: usize, record: &Record) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    match (&record.key, &batch.feed) {
        (Some(key), _) => hasher.write(key),
        // A feed hands it out again at another place, and it is to be known by its key.
        (None, Some(_)) => {
            let origin = batch.origin(index).map(|(origin, _)| origin.to_string());
            hasher.write(origin.unwrap_or_default().as_bytes());
        }
        // Nothing to keep in order: spread.
        (None, None) => hasher.write_u64(record.offset),
    }
    hasher.finish()
}
