//! What must have become of the records of a feed.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use potok_core::{Headers, Output};
use serde_json::{Value, json};

use super::run::{DEAD, FeedScenario, OUT};
use super::{FeedManner, ROW, Row, SimFeed};
use crate::sim::chance::Chance;
use crate::sim::promises;
use crate::sim::scenario::LARGE;
use crate::sim::world::World;

/// What a record is meant to become; its value says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FeedRecordKind {
    Good,
    Filtered,
    /// The stage fails on it,
    Fails,
    /// or does so until then, in simulated milliseconds.
    FailsUntil(u64),
    /// It is not JSON.
    Bad,
    /// It has nothing to be delivered under.
    NoKey,
    /// The destination refuses it.
    Refused,
    /// It is larger than some topics take.
    Large,
}

impl FeedRecordKind {
    pub fn any(chance: &mut Chance, span: u64) -> Self {
        match chance.below(16) {
            0 => FeedRecordKind::Filtered,
            1 => FeedRecordKind::Fails,
            2 | 3 => FeedRecordKind::FailsUntil(chance.below(span)),
            4 => FeedRecordKind::Bad,
            5 => FeedRecordKind::NoKey,
            _ => FeedRecordKind::Good,
        }
    }

    pub fn value(self, id: u64, key: &[u8]) -> Bytes {
        let key = String::from_utf8_lossy(key);
        let value = match self {
            FeedRecordKind::Good => json!({"id": id, "k": key}),
            FeedRecordKind::Filtered => json!({"id": id, "k": key, "what": "filter"}),
            FeedRecordKind::Fails => json!({"id": id, "k": key, "what": "fail"}),
            FeedRecordKind::FailsUntil(until) => json!({"id": id, "k": key, "until": until}),
            FeedRecordKind::Bad => return Bytes::from(format!("{{\"id\":{id}")),
            FeedRecordKind::NoKey => json!({"id": id}),
            // Destinations read ids as text.
            FeedRecordKind::Refused => json!({"id": id.to_string(), "k": key, "do": "refuse"}),
            FeedRecordKind::Large => json!({"id": id, "k": key, "text": "x".repeat(LARGE)}),
        };
        Bytes::from(value.to_string())
    }

    pub fn of(value: &[u8]) -> Self {
        let Ok(value) = serde_json::from_slice::<Value>(value) else { return FeedRecordKind::Bad };
        match (value["what"].as_str(), value["until"].as_u64()) {
            (Some("filter"), _) => FeedRecordKind::Filtered,
            (Some("fail"), _) => FeedRecordKind::Fails,
            (_, Some(until)) => FeedRecordKind::FailsUntil(until),
            _ if value["k"].is_null() => FeedRecordKind::NoKey,
            _ if !value["do"].is_null() => FeedRecordKind::Refused,
            _ if !value["text"].is_null() => FeedRecordKind::Large,
            _ => FeedRecordKind::Good,
        }
    }
}

pub(super) fn id_of(value: &[u8]) -> Option<u64> {
    number(&serde_json::from_slice::<Value>(value).ok()?["id"])
}

fn number(id: &Value) -> Option<u64> {
    id.as_u64().or_else(|| id.as_str()?.parse().ok())
}

/// The ids of the records that lie in the log.
pub(super) fn log_ids() -> impl Iterator<Item = u64> {
    1_000_000..1_000_012
}

/// One of them.
pub(super) fn log_record(id: u64, topic: &str) -> Output {
    let key = Bytes::from(format!("k{}", id % 3));
    let (value, headers) = (Some(FeedRecordKind::Good.value(id, &key)), Headers::none());
    Output { topic: topic.into(), partition: None, key: Some(key), headers, value }
}

/// Those of them that did not arrive.
pub(super) fn missing_of_log(world: &World, scenario: &FeedScenario) -> Vec<u64> {
    if !scenario.reads_topics() {
        return Vec::new();
    }
    let arrived = arrived(world, scenario.sink.is_some());
    let is_there = |id: &u64| arrived.iter().any(|one| one.ids.contains(id));
    log_ids().filter(|id| !is_there(id)).collect()
}

/// One message that arrived: its name, its records, its key.
struct FeedMessage {
    name: String,
    ids: Vec<u64>,
}

/// Everything that arrived, in order where it has one.
fn arrived(world: &World, sink: bool) -> Vec<FeedMessage> {
    let ids = |value: &[u8]| {
        let value: Value = serde_json::from_slice(value).unwrap_or_default();
        let merged = value["ids"].as_array().into_iter().flatten();
        merged.chain(value.get("id")).filter_map(number).collect()
    };
    world.with(|w| {
        if sink {
            let rows = w.tables.first().map_or(&[][..], |table| &table.rows);
            let row = |row: &potok_core::Message| FeedMessage {
                name: row.id.to_string(),
                ids: ids(&row.value),
            };
            return rows.iter().map(row).collect();
        }
        let record = |(_, record): (_, &potok_core::Record)| {
            let names = record.headers.iter().filter(|(name, _)| *name == "potok-id");
            let names = names.filter_map(|(_, value)| Some(String::from_utf8_lossy(value?)));
            let name = names.collect::<Vec<_>>().join(" and ");
            FeedMessage { name, ids: ids(record.value.as_deref().unwrap_or_default()) }
        };
        w.disk.records(OUT).map(record).collect()
    })
}

/// The records that became dead letters.
fn letters(world: &World) -> BTreeSet<u64> {
    let id = |record: &potok_core::Record| {
        let envelope = potok_core::Envelope::split(&record.headers);
        let origin = envelope.map(|(envelope, _)| envelope.origin);
        origin.filter(|origin| *origin.topic == *ROW).map(|origin| origin.offset)
    };
    world.with(|w| w.disk.records(DEAD).filter_map(|(_, record)| id(record)).collect())
}

/// True where what a record became is durable already.
pub(super) fn is_durable(world: &World, row: &Row, sink: bool, _merges: bool) -> bool {
    let Some(id) = id_of(&row.value) else { return true };
    match FeedRecordKind::of(&row.value) {
        FeedRecordKind::Filtered | FeedRecordKind::Bad => true,
        _ => {
            arrived(world, sink).iter().any(|one| one.ids.contains(&id))
                || letters(world).contains(&id)
        }
    }
}

/// Everything that is wrong when all is quiet.
pub(super) fn check_end(world: &World, feed: &SimFeed, scenario: &FeedScenario) -> Vec<String> {
    let mut wrong = Vec::new();
    let arrived = arrived(world, scenario.sink.is_some());
    let letters = letters(world);
    let mut names: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
    let mut copies: BTreeMap<u64, u64> = BTreeMap::new();
    let mut sets: BTreeMap<&str, BTreeSet<&Vec<u64>>> = BTreeMap::new();
    for one in &arrived {
        for id in &one.ids {
            names.entry(*id).or_default().insert(&one.name);
            *copies.entry(*id).or_default() += 1;
        }
        sets.entry(&one.name).or_default().insert(&one.ids);
    }
    for (name, sets) in sets.iter().filter(|(_, sets)| sets.len() > 1) {
        wrong.push(format!("{name} names different work: {sets:?}"));
    }
    let rows = feed.lock().rows.clone();
    for (id, row) in &rows {
        let kind = FeedRecordKind::of(&row.value);
        let names = names.get(id).cloned().unwrap_or_default();
        if names.len() > 1 {
            wrong.push(format!("row {id} was delivered under {names:?}"));
        }
        let is_named = scenario.named && scenario.sink.is_none() && !scenario.merges;
        if is_named && names.iter().any(|name| **name != id.to_string()) {
            wrong.push(format!("row {id} is called {names:?}"));
        }
        let copies = copies.get(id).copied().unwrap_or_default();
        wrong.extend(check_repeats(world, *id, row, copies, &names));
        wrong.extend(check_row(*id, row, kind, !names.is_empty(), &letters, scenario));
    }
    if scenario.manner == FeedManner::Rows && !letters.is_empty() {
        wrong.push(format!("rows {letters:?} are dead letters of the pipeline"));
    }
    let missing = missing_of_log(world, scenario);
    if !missing.is_empty() {
        wrong.push(format!("{missing:?} of the log did not arrive"));
    }
    wrong.extend(check_order(&rows, &arrived));
    wrong
}

fn check_row(
    id: u64,
    row: &Row,
    kind: FeedRecordKind,
    is_there: bool,
    letters: &BTreeSet<u64>,
    scenario: &FeedScenario,
) -> Option<String> {
    let is_dead = match scenario.manner {
        FeedManner::Rows => row.aside,
        FeedManner::Chats => letters.contains(&id),
    };
    let kind = scenario.expected(kind);
    let fine = match kind {
        FeedRecordKind::Good => is_there && !is_dead,
        FeedRecordKind::Filtered => !is_there && !is_dead,
        // It may have failed too often meanwhile.
        FeedRecordKind::FailsUntil(_) => is_there || is_dead,
        _ => !is_there && is_dead,
    };
    let is_counted = match (scenario.manner, kind) {
        (FeedManner::Chats, _) => row.failures == 0,
        (_, FeedRecordKind::Good | FeedRecordKind::Filtered) => row.failures == 0,
        (_, FeedRecordKind::FailsUntil(_)) => row.aside == (row.failures == 5),
        _ => row.failures == 5,
    };
    (!fine || !is_counted || !row.ended)
        .then(|| format!("row {id}, {kind:?}: arrived {is_there}, dead letter {is_dead}, {row:?}"))
}

/// A record is there again only where nobody could know that it was: its feed was opened anew, or
/// taken away, before it heard what became of it, or an answer of the log was lost.
fn check_repeats(
    world: &World,
    id: u64,
    row: &Row,
    copies: u64,
    names: &BTreeSet<&str>,
) -> Option<String> {
    // A message made of several may carry names of theirs before its own.
    let own = |name: &&str| name.rsplit(" and ").next().unwrap_or_default().to_owned();
    let excused = |name| world.with(|w| promises::excused(w, &own(name)));
    let most = 1 + row.unsure + names.iter().map(excused).sum::<u64>();
    (copies > most).then(|| format!("row {id} is there {copies} times, not {most} at most"))
}

/// Records of a key arrive for the first time in their order.
fn check_order(rows: &BTreeMap<u64, Row>, arrived: &[FeedMessage]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut last: BTreeMap<&Bytes, u64> = BTreeMap::new();
    let mut wrong = Vec::new();
    for id in arrived.iter().flat_map(|one| &one.ids) {
        let Some(row) = rows.get(id).filter(|_| seen.insert(*id)) else { continue };
        if let Some(before) = last.insert(&row.key, *id).filter(|before| before > id) {
            wrong.push(format!("row {id} arrived behind row {before} of its key"));
        }
    }
    wrong
}
