//! The promises, checked by name.
//!
//! Some are watched while the run goes on (what is noted as ended has ended, in `watch.rs`; counts
//! say what happened, in `counts.rs`), the others are checked when all is quiet. Truth is what the world holds: the
//! records of the source topics, the tables, and the topics written to.

mod counts;
mod names;
mod order;
mod store;
mod versions;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use potok_core::{
    DeliveryId, Envelope, Headers, Partition, Piece, Position, RangeSet, Reason, Record,
};
use potok_flow::dead_letter::{REPLAY_HEADER, Replay};

use super::pipeline::INTERNAL;
use super::scenario::{Change, Deliver, Scenario, SimTarget};
use super::sink::Style;
use super::trouble::Recovery;
use super::workload::{RecordKind, field};
use super::world::State;
pub use counts::ProcessCounts;
pub(super) use counts::{
    check_counts, observe_ended, observe_receipt, observe_taken, observe_written,
};
pub use names::Promise;
pub(super) use store::check_store;
use watch::sealed_by;
pub(super) use watch::{
    audit_ended, check_batch, excuse_forgotten, excuse_repeats, ignored, observe_copy,
    observe_outputs,
};

/// Header in which flow writes the name of a delivery.
const ID_HEADER: &str = "potok-id";

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Violation {
    pub promise: Promise,
    /// How, in words.
    pub what: String,
}

/// What the checks know of the pipeline.
#[derive(Clone, Debug)]
pub struct Expectation {
    /// The scenario it runs.
    pub scenario: Scenario,
    /// Where its dead letters go.
    pub dead: Arc<str>,
    /// Where replays enter.
    pub replay: Arc<str>,
}

/// What was written, indexed as it happens.
#[derive(Debug, Default)]
pub struct Observations {
    /// Outputs by the name they carry.
    named: BTreeMap<String, u64>,
    /// Dead letters by origin, every copy.
    letters: BTreeMap<Position, Vec<Envelope>>,
    /// The members of each seal: the records themselves, also where copies of them are named.
    seals: Vec<BTreeSet<Position>>,
    /// Endings that the log did not take, by assignments that had left: who sent them cannot know.
    ignored: BTreeMap<u64, RangeSet>,
    /// When records of the internal topic were written, in simulated milliseconds.
    gathered: BTreeMap<Position, u64>,
    /// The same of what was sent.
    sent: BTreeMap<Position, u64>,
    /// Records whose copy the internal topic will never take.
    refused_copies: BTreeSet<Position>,
    /// Records that had ended once, which nobody knows any more.
    forgotten: BTreeSet<Position>,
    /// How often outputs may be there again: by name, or by what a dead letter is known by.
    excused: BTreeMap<String, u64>,
}

impl Observations {
    fn has_letter(&self, origin: &Position, deliver: Option<u32>, attempts: u32) -> bool {
        let letters = self.letters.get(origin).into_iter().flatten();
        letters.into_iter().any(|l| l.deliver == deliver && l.attempts == attempts)
    }

    fn copies_max(&self, of: &str) -> u64 {
        1 + self.excused.get(of).copied().unwrap_or_default()
    }

    /// True when any attempt at this deliver entry became a dead letter.
    fn was_dead(&self, origin: &Position, deliver: u32) -> bool {
        let letters = self.letters.get(origin).into_iter().flatten();
        letters.into_iter().any(|l| l.deliver.is_none_or(|of| of == deliver))
    }
}

/// All seals that were written: the key of each, and the records it names.
pub fn seals(w: &State) -> Vec<(Bytes, BTreeSet<Position>)> {
    let notes = w.disk.records(INTERNAL).filter(|(_, record)| origin_of(record).is_none());
    let seal = |(_, record): (Position, &Record)| {
        (record.key.clone().unwrap_or_default(), sealed_by(w, record.value.as_deref()))
    };
    notes.map(seal).filter(|(_, members)| !members.is_empty()).collect()
}

/// How often what has that name may be there again.
pub(super) fn excused(w: &State, name: &str) -> u64 {
    w.observed.copies_max(name) - 1
}

/// What copies of one dead letter have in common.
fn letter_id(origin: &Position, deliver: Option<u32>, attempts: u32) -> String {
    format!("{origin} entry {deliver:?} attempt {attempts}")
}

/// The record that a copy in the internal topic was made of.
fn origin_of(record: &Record) -> Option<Position> {
    origin_in(&record.headers)
}

fn origin_in(headers: &Headers) -> Option<Position> {
    let (name, text) = headers.iter().next()?;
    let place = text.filter(|_| name == "potok-origin")?.split(|byte| *byte == 0).next()?;
    let text = std::str::from_utf8(place).ok()?;
    let parts: Vec<&str> = text.splitn(5, ' ').collect();
    let [log, partition, offset, _, topic] = parts.as_slice() else { return None };
    Some(Position {
        log: u64::from_str_radix(log, 16).ok()?,
        topic: (*topic).into(),
        partition: partition.parse().ok()?,
        offset: offset.parse().ok()?,
    })
}

/// A record that lies at a position, or did before its topic was deleted.
fn ever(w: &State, at: &Position) -> Option<Record> {
    w.disk.record(at).or_else(|| w.disk.gone().get(at)).cloned()
}

/// The positions that a seal names.
fn members(seal: &serde_json::Value) -> Vec<Position> {
    let mut members = Vec::new();
    for part in seal["members"].as_array().into_iter().flatten() {
        let log = part["log"].as_str().and_then(|log| u64::from_str_radix(log, 16).ok());
        for range in part["offsets"].as_array().into_iter().flatten() {
            let (start, end) = (range[0].as_u64().unwrap_or(0), range[1].as_u64().unwrap_or(0));
            members.extend((start..end).map(|offset| Position {
                log: log.unwrap_or_default(),
                topic: part["topic"].as_str().unwrap_or_default().into(),
                partition: part["partition"].as_u64().unwrap_or(0) as u32,
                offset,
            }));
        }
    }
    members
}

/// Says why a record of a source topic or of the replay topic has not ended. One whose place
/// another took ends with that one.
fn has_ended(
    w: &State,
    expect: &Expectation,
    at: &Position,
    record: &Record,
) -> Result<(), String> {
    ended_itself(w, expect, at, record).or_else(|why| {
        let other = |(other, record): &(Position, &Record)| {
            other != at && ended_itself(w, expect, other, record).is_ok()
        };
        versions(w, expect, record).iter().find(|version| other(version)).map(|_| ()).ok_or(why)
    })
}

/// The records that have the same id in the same group, where later ones replace earlier ones.
fn versions<'a>(
    w: &'a State,
    expect: &'a Expectation,
    record: &Record,
) -> Vec<(Position, &'a Record)> {
    let Some(wanted) = version_name(expect, record) else { return Vec::new() };
    let all = expect.scenario.topics.iter().flat_map(|topic| w.disk.records(topic));
    all.filter(|(_, other)| version_name(expect, other).as_ref() == Some(&wanted)).collect()
}

/// The group and the id by which a later record replaces an earlier one, where that happens.
fn version_name(expect: &Expectation, record: &Record) -> Option<(Option<String>, String)> {
    let hold = expect.scenario.hold.filter(|hold| hold.replace)?;
    let value = record.value.as_deref();
    let group = hold.by.and_then(|by| field(value, by.trim_start_matches('.')));
    Some((group, field(value, "id")?))
}

/// How many records there are by each such name.
fn version_counts(w: &State, expect: &Expectation) -> BTreeMap<(Option<String>, String), usize> {
    let mut counts = BTreeMap::new();
    if expect.scenario.hold.is_some_and(|hold| hold.replace) {
        let all = expect.scenario.topics.iter().flat_map(|topic| w.disk.records(topic));
        for name in all.filter_map(|(_, record)| version_name(expect, record)) {
            *counts.entry(name).or_default() += 1;
        }
    }
    counts
}

fn ended_itself(
    w: &State,
    expect: &Expectation,
    at: &Position,
    record: &Record,
) -> Result<(), String> {
    let replay = (at.topic == expect.replay).then(|| replay_of(&record.headers)).flatten();
    let (origin, only, attempt) = match &replay {
        Some(replay) => (&replay.origin, replay.deliver, replay.attempt),
        None => (at, None, 1),
    };
    let kind = RecordKind::of(record.value.as_deref());
    if w.observed.has_letter(origin, None, attempt) {
        return Ok(());
    }
    if kind == RecordKind::Filtered && expect.scenario.stage.is_some()
        || w.filtered.contains(origin)
    {
        return Ok(());
    }
    for (index, deliver) in (0..).zip(&expect.scenario.delivers) {
        if only.is_some_and(|only| only != index) {
            continue;
        }
        let dead = w.observed.has_letter(origin, Some(index), attempt);
        if !dead && !is_there(w, deliver, origin, index, record) {
            return Err(format!("{kind:?}, neither delivered to entry {index} nor a dead letter"));
        }
    }
    Ok(())
}

fn replay_of(headers: &Headers) -> Option<Replay> {
    let (name, value) = headers.iter().next()?;
    serde_json::from_slice(value.filter(|_| name == REPLAY_HEADER)?).ok()
}

fn name_of(origin: &Position, deliver: u32) -> DeliveryId {
    DeliveryId { position: origin.clone(), deliver, element: 0 }
}

/// True when a delivery of this record, or of one with the same business id and bytes, is there.
fn is_there(w: &State, deliver: &Deliver, origin: &Position, index: u32, record: &Record) -> bool {
    let name = name_of(origin, index);
    match &deliver.to {
        SimTarget::Topic(_) => w.observed.named.contains_key(&name.to_string()),
        SimTarget::Sink(_) => {
            let Some(table) = w.tables.get(index as usize) else { return false };
            let once = deliver.once.then(|| field(record.value.as_deref(), "id")).flatten();
            let twin = once
                .and_then(|id| table.by_once.get(id.as_bytes()))
                .and_then(|&row| table.rows.get(row));
            table.by_name.contains_key(&name)
                || twin.is_some_and(|row| Some(&row.source) == record.value.as_ref())
        }
    }
}

/// Checks everything that must hold once all is quiet.
pub(super) fn check_end(w: &mut State) {
    let Some(expect) = w.expect.clone() else { return };
    let inputs: BTreeMap<Position, Record> = expect
        .scenario
        .topics
        .iter()
        .flat_map(|topic| w.disk.records(topic).map(|(at, r)| (at, r.clone())).collect::<Vec<_>>())
        .collect();
    for (at, record) in &inputs {
        if let Err(what) = has_ended(w, &expect, at, record) {
            w.violated(Promise::NothingLost, format!("{at}: {what}"));
        }
    }
    if w.shared {
        check_copies_made(w, &inputs);
    }
    // What was gathered before its topic was deleted is there and ends; the rest may have ended.
    let mut inputs = inputs;
    for (at, record) in w.disk.gone().clone() {
        let is_copied = w.disk.records(INTERNAL).any(|(_, r)| origin_of(r).as_ref() == Some(&at));
        if is_copied && let Err(what) = has_ended(w, &expect, &at, &record) {
            w.violated(Promise::NothingLost, format!("{at}, gathered before: {what}"));
        }
        inputs.insert(at, record);
    }
    versions::check_versions(w, &expect);
    check_letters(w, &expect, &inputs);
    for (index, deliver) in (0..).zip(&expect.scenario.delivers) {
        match &deliver.to {
            SimTarget::Sink(_) => check_table(w, &expect, &inputs, deliver, index),
            SimTarget::Topic(topic) => check_topic(w, &expect, &inputs, deliver, index, topic),
        }
    }
}

/// Each record was gathered once, or not at all where its copy is refused.
fn check_copies_made(w: &mut State, inputs: &BTreeMap<Position, Record>) {
    let mut copies: BTreeMap<Position, u64> = BTreeMap::new();
    for origin in w.disk.records(INTERNAL).filter_map(|(_, record)| origin_of(record)) {
        *copies.entry(origin).or_default() += 1;
    }
    for at in inputs.keys() {
        let is_refused = w.observed.refused_copies.contains(at);
        match copies.get(at).copied().unwrap_or_default() {
            0 if is_refused => {}
            1 if !is_refused => {}
            0 => w.violated(Promise::NothingLost, format!("{at} was not gathered")),
            many => w.violated(Promise::GatheredOnce, format!("{at} was gathered {many} times")),
        }
    }
}

/// The reason for which this record may be a dead letter of this entry.
fn deserved(
    w: &State,
    expect: &Expectation,
    record: &Record,
    deliver: Option<u32>,
) -> Option<Reason> {
    let kind = RecordKind::of(record.value.as_deref());
    let stage = expect.scenario.stage;
    let Some(index) = deliver else {
        return match kind {
            RecordKind::Undecodable => Some(Reason::Undecodable),
            RecordKind::NoKey if expect.scenario.hold.is_some_and(|hold| hold.by.is_some()) => {
                Some(Reason::NoKey)
            }
            RecordKind::Outdated if expect.scenario.is_changed(usize::MAX, is_schema) => {
                Some(Reason::Undecodable)
            }
            RecordKind::Killer => Some(Reason::Crashes),
            RecordKind::StageFails if stage.is_some_and(|s| s.dead_letters) => Some(Reason::Stage),
            _ => None,
        };
    };
    let entry = expect.scenario.delivers.get(index as usize)?;
    let is_sink = matches!(entry.to, SimTarget::Sink(_));
    let bytes = record.value.as_ref().map_or(0, Bytes::len);
    let lacks_key = kind == RecordKind::NoKey && entry.key_by_k;
    if !is_sink && !lacks_key && expect.scenario.output_max().is_some_and(|most| bytes > most) {
        return Some(Reason::TooLarge);
    }
    match kind {
        RecordKind::NoKey if entry.key_by_k => Some(Reason::NoKey),
        RecordKind::Refused | RecordKind::Late if is_sink => Some(Reason::Refused),
        RecordKind::Poison if is_sink => Some(Reason::RetriesExhausted),
        RecordKind::Good if entry.once => {
            let id = field(record.value.as_deref(), "id")?;
            let table = w.tables.get(index as usize)?;
            let row = table.rows.get(*table.by_once.get(id.as_bytes())?)?;
            (Some(&row.source) != record.value.as_ref()).then_some(Reason::Conflict)
        }
        _ => None,
    }
}

/// True for a dead letter that was written instead of a copy.
fn is_instead_of_copy(w: &State, origin: &Position, deliver: Option<u32>, reason: Reason) -> bool {
    let is_refused = w.observed.refused_copies.contains(origin);
    is_refused && deliver.is_none() && reason == Reason::TooLarge
}

fn is_schema(change: &Change) -> bool {
    matches!(change, Change::Schema)
}

fn check_letters(w: &mut State, expect: &Expectation, inputs: &BTreeMap<Position, Record>) {
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    let dead: Vec<Record> = w.disk.records(&expect.dead).map(|(_, r)| r.clone()).collect();
    for letter in dead {
        let Some((envelope, headers)) = Envelope::split(&letter.headers) else { continue };
        let Envelope { origin, deliver, reason, attempts, error, piece: envelope_piece, .. } =
            envelope;
        let Some(record) = inputs.get(&origin) else {
            w.violated(Promise::NothingInvented, format!("dead letter of unknown {origin}"));
            continue;
        };
        let value = match &envelope_piece {
            Some(Piece { from, .. }) => {
                let from = usize::try_from(*from).unwrap_or(usize::MAX);
                let piece = letter.value.as_ref().map_or(0, Bytes::len);
                let whole = record.value.as_ref();
                whole.and_then(|whole| whole.get(from..from + piece)).map(Bytes::copy_from_slice)
            }
            None => record.value.clone(),
        };
        let same = record.key == letter.key && value == letter.value;
        if !same || record.headers != headers {
            let what = format!("the dead letter of {origin} has other bytes");
            w.violated(Promise::NothingInvented, what);
        }
        let kind = RecordKind::of(record.value.as_deref());
        let shared = versions(w, expect, record)
            .iter()
            .any(|(_, other)| deserved(w, expect, other, deliver) == Some(reason));
        match deserved(w, expect, record, deliver) {
            Some(right) if right == reason => {}
            // It was set aside with the one that took its place.
            _ if shared => {}
            _ if is_instead_of_copy(w, &origin, deliver, reason) => {}
            right => {
                let promise = match (right, error.contains("simulated outage")) {
                    (_, true) => Promise::OutageIsNoPoison,
                    (Some(_), false) => Promise::BadOnceInDeadLetters,
                    (None, false) => Promise::HealthyStayAlive,
                };
                let what = format!(
                    "{origin} ({kind:?}) is a dead letter of entry {deliver:?}: {reason}, {error}"
                );
                w.violated(promise, what);
            }
        }
        // Of several pieces the first stands for all.
        if envelope_piece.is_some_and(|piece| piece.from > 0) {
            continue;
        }
        match reason {
            Reason::RetriesExhausted if !error.contains("by hand") => {
                w.tally.recovered(Recovery::PoisonFound);
            }
            Reason::Crashes => w.tally.recovered(Recovery::KillerFound),
            _ => {}
        }
        *found.entry(letter_id(&origin, deliver, attempts)).or_default() += 1;
    }
    for (letter, copies) in found {
        if copies > w.observed.copies_max(&letter) {
            w.violated(Promise::BadOnceInDeadLetters, format!("{letter}: {copies} copies"));
        }
    }
}

/// The bytes with which a record must arrive.
fn arriving(expect: &Expectation, deliver: &Deliver, record: &Record) -> (Option<Bytes>, Bytes) {
    let value = record.value.clone().unwrap_or_default();
    let kind = RecordKind::of(Some(&value));
    let rewritten = expect.scenario.stage.is_some_and(|stage| stage.rewrites);
    let value = match rewritten && kind != RecordKind::StageFails {
        true => [&value[..], b" "].concat().into(),
        false => value,
    };
    let key = match deliver.key_by_k {
        true => field(record.value.as_deref(), "k").map(Bytes::from),
        false => record.key.clone(),
    };
    (key, value)
}

fn own_headers(headers: &Headers) -> Vec<(&str, Option<&[u8]>)> {
    headers.iter().filter(|(name, _)| *name != ID_HEADER).collect()
}

/// What is kept in order with what: lane key and source partition; `None` where nothing is.
fn ordered_with(
    expect: &Expectation,
    at: &Position,
    record: &Record,
) -> Option<(Bytes, Partition)> {
    let value = record.value.as_deref();
    // What was refused and, before that was noted, taken after all, comes behind its followers.
    if RecordKind::of(value) == RecordKind::Late {
        return None;
    }
    let scenario = &expect.scenario;
    let lane = if let Some(hold) = scenario.hold {
        // With another `by` other records are kept in order with it.
        if scenario.is_changed(usize::MAX, |change| matches!(change, Change::By(_))) {
            return None;
        }
        match hold.by {
            Some(by) => field(value, by.trim_start_matches('.')).map(Bytes::from),
            None => Some(Bytes::new()),
        }
    } else if scenario.order_by_k {
        field(value, "k").map(Bytes::from)
    } else if scenario.delivers.iter().any(|deliver| deliver.once) {
        field(value, "id").map(Bytes::from)
    } else if scenario.delivers.iter().any(|deliver| deliver.key_by_k) {
        field(value, "k").map(Bytes::from)
    } else {
        record.key.clone()
    };
    let partition = Partition { topic: at.topic.clone(), index: at.partition };
    lane.map(|lane| (lane, partition))
}

/// Follows arrivals and finds the one that came before its turn.
#[derive(Default)]
struct Order(BTreeMap<(Bytes, Partition, u32), u64>);

impl Order {
    /// Takes the next arrival; `lane` tells apart what is not kept in order.
    fn arrives(
        &mut self,
        expect: &Expectation,
        at: &Position,
        record: &Record,
        lane: u32,
    ) -> Option<u64> {
        let (key, partition) = ordered_with(expect, at, record)?;
        let last = self.0.entry((key, partition, lane)).or_insert(at.offset);
        let before = *last;
        *last = before.max(at.offset);
        (before > at.offset).then_some(before)
    }
}

fn check_table(
    w: &mut State,
    expect: &Expectation,
    inputs: &BTreeMap<Position, Record>,
    deliver: &Deliver,
    index: u32,
) {
    let rows = w.tables.get(index as usize).map(|table| table.rows.clone()).unwrap_or_default();
    let deduplicates = matches!(&deliver.to, SimTarget::Sink(manner) if manner.deduplicates);
    let is_grouped = expect.scenario.hold.is_some() && !expect.scenario.order_by_k;
    let by_message = is_grouped
        && matches!(&deliver.to, SimTarget::Sink(manner) if manner.style == Style::PerMessage);
    let mut order = Order::default();
    let mut groups = order::ByGroup::new(w, expect);
    let mut seen: BTreeSet<Position> = BTreeSet::new();
    let mut values: BTreeMap<Bytes, u64> = BTreeMap::new();
    for row in rows {
        let at = &row.id.position;
        *values.entry(row.source.clone()).or_default() += 1;
        let Some(record) = inputs.get(at).filter(|_| row.id.deliver == index) else {
            let promise = match values.get(&row.source) {
                Some(1) => Promise::NothingInvented,
                _ => Promise::OneName,
            };
            w.violated(promise, format!("{} names no record that was sent", row.id));
            continue;
        };
        let (key, value) = arriving(expect, deliver, record);
        if row.key != key || row.value != value || Some(&row.source) != record.value.as_ref() {
            w.violated(Promise::NothingInvented, format!("{} arrived with other bytes", row.id));
        }
        if own_headers(&row.headers) != own_headers(&record.headers) {
            let what = format!("{} arrived with other headers", row.id);
            w.violated(Promise::NothingInvented, what);
        }
        if !seen.insert(at.clone()) {
            if deduplicates {
                w.violated(Promise::OnceInSinks, format!("{} is there twice", row.id));
            }
            continue;
        }
        if w.observed.was_dead(at, index) {
            w.tally.recovered(Recovery::ReplayDelivered);
        } else if !w.disk.gone().contains_key(at) {
            // Where each message of a group has an answer of its own, those of one key are in order.
            let key = row.once.as_ref().or(row.key.as_ref()).filter(|_| by_message);
            let lane = key.map_or(0, |key| fold(key));
            if let Some(before) = order.arrives(expect, at, record, lane) {
                let what = format!("{} arrived behind offset {before} of its key", row.id);
                w.violated(Promise::OrderPerKey, what);
            }
            if let Some(before) = groups.leaves(w, expect, at, record, lane) {
                let what = format!("{} arrived behind {before} of its group", row.id);
                w.violated(Promise::OrderOfArrival, what);
            }
        }
    }
    if deduplicates {
        check_copies(w, Promise::OnceInSinks, inputs, values);
    }
}

/// A number for a key.
fn fold(key: &[u8]) -> u32 {
    key.iter().fold(1, |number: u32, byte| number.wrapping_mul(31).wrapping_add(u32::from(*byte)))
}

/// Nothing may be there more often than it was sent.
fn check_copies(
    w: &mut State,
    promise: Promise,
    inputs: &BTreeMap<Position, Record>,
    found: BTreeMap<Bytes, u64>,
) {
    let mut sent: BTreeMap<&Bytes, u64> = BTreeMap::new();
    for value in inputs.values().filter_map(|record| record.value.as_ref()) {
        *sent.entry(value).or_default() += 1;
    }
    for (value, copies) in found {
        let sent = sent.get(&value).copied().unwrap_or_default();
        if copies > sent {
            let value = String::from_utf8_lossy(&value).into_owned();
            w.violated(promise, format!("sent {sent} times, there {copies} times: {value}"));
        }
    }
}

fn check_topic(
    w: &mut State,
    expect: &Expectation,
    inputs: &BTreeMap<Position, Record>,
    deliver: &Deliver,
    index: u32,
    topic: &str,
) {
    let outputs: Vec<_> = w.disk.records(topic).map(|(at, r)| (at, r.clone())).collect();
    let names: BTreeMap<String, &Position> =
        inputs.keys().map(|at| (name_of(at, index).to_string(), at)).collect();
    let mut order = Order::default();
    let mut groups = order::ByGroup::new(w, expect);
    let mut seen: BTreeMap<&Position, u64> = BTreeMap::new();
    for (lies, output) in outputs {
        let id = output.headers.get(ID_HEADER).map(|id| String::from_utf8_lossy(id).into_owned());
        let id = id.unwrap_or_default();
        let Some((at, record)) = names.get(&id).and_then(|at| Some((*at, inputs.get(*at)?))) else {
            w.violated(Promise::OneName, format!("{lies} carries the name `{id}` of no record"));
            continue;
        };
        let (key, value) = arriving(expect, deliver, record);
        let same = output.key == key && output.value.as_ref() == Some(&value);
        if !same || own_headers(&output.headers) != own_headers(&record.headers) {
            w.violated(Promise::NothingInvented, format!("{id} arrived with other bytes"));
        }
        let copies = seen.entry(at).or_default();
        *copies += 1;
        if *copies > w.observed.copies_max(&id) {
            w.violated(Promise::OnceInTopics, format!("{id} is in {topic} {copies} times"));
        }
        if *copies > 1 {
            continue;
        }
        if w.observed.was_dead(at, index) {
            w.tally.recovered(Recovery::ReplayDelivered);
            continue;
        }
        // An excused repeat may lie in another partition than the first copy, so that this is
        // perhaps not the first.
        if w.observed.copies_max(&id) > 1 {
            continue;
        }
        if w.disk.gone().contains_key(at) {
            continue;
        }
        if let Some(before) = order.arrives(expect, at, record, lies.partition) {
            let what = format!("{id} lies behind offset {before} of its key");
            w.violated(Promise::OrderPerKey, what);
        }
        if let Some(before) = groups.leaves(w, expect, at, record, lies.partition) {
            let what = format!("{id} lies behind {before} of its group");
            w.violated(Promise::OrderOfArrival, what);
        }
    }
}

/// After the last replay each bad record is listed once, and open, unless somebody dropped it.
pub(super) fn check_list(w: &mut State, letters: &[potok_flow::dead_letter::DeadLetter]) {
    use potok_flow::dead_letter::DeadLetterState;
    // Open entries, and whether one was dropped.
    let mut listed: BTreeMap<(Position, Option<u32>), (u64, bool)> = BTreeMap::new();
    for letter in letters {
        let of = (letter.envelope.origin.clone(), letter.envelope.deliver);
        let (open, dropped) = listed.entry(of).or_default();
        match letter.state {
            DeadLetterState::Open => *open += 1,
            DeadLetterState::Dropped => *dropped = true,
            DeadLetterState::Replaying => {
                let what = format!("{} is still being replayed", letter.id);
                w.violated(Promise::WorkFinishes, what);
            }
            DeadLetterState::Replayed => {}
        }
    }
    let Some(expect) = w.expect.clone() else { return };
    for ((origin, deliver), (entries, dropped)) in listed {
        let record = w.disk.record(&origin).cloned();
        let arrived = match (&record, deliver) {
            (Some(record), Some(index)) => {
                let entry = expect.scenario.delivers.get(index as usize);
                entry.is_some_and(|entry| is_there(w, entry, &origin, index, record))
            }
            // A replay is not copied: whatever else becomes of it, that dead letter is done with.
            (Some(record), None) if w.observed.refused_copies.contains(&origin) => {
                deserved(w, &expect, record, None).is_none()
            }
            _ => false,
        };
        let expected = u64::from(!arrived && !dropped);
        if entries != expected {
            let what =
                format!("{origin} entry {deliver:?}: {entries} open entries, expected {expected}");
            w.violated(Promise::BadOnceInDeadLetters, what);
        }
    }
}
