//! Whether the counts of a process say what the world saw of it.
//!
//! The world notes what it handed to each process and what that one has written, since the process
//! started. From this follows how many records it must have counted as delivered, filtered,
//! duplicates and dead-lettered. Where it took a record twice (its partition left and came back, a
//! part died), nobody outside can tell how each time ended: that many more are allowed.

use std::collections::{BTreeMap, BTreeSet};

use potok_core::{Envelope, Message, Outcome, Output, Partition, Position, Record};
use potok_flow::Status;

use super::{
    Expectation, ID_HEADER, Promise, ever, name_of, origin_of, replay_of, version_counts,
    version_name,
};
use crate::sim::pipeline::{HELD_GROUP, INTERNAL};
use crate::sim::trouble::Trouble;
use crate::sim::workload::RecordKind;
use crate::sim::world::State;

/// What the world saw of one process since it started.
#[derive(Debug, Default)]
pub struct ProcessCounts {
    /// Records that were handed to it, and how often.
    taken: BTreeMap<Position, u64>,
    /// Names of deliveries that went through.
    delivered: BTreeSet<String>,
    /// Dead letters it has written: origin, entry and attempt.
    letters: BTreeSet<(Position, Option<u32>, u32)>,
    /// Records it has noted as ended.
    ended: BTreeSet<Position>,
    /// How many it said it has taken in so far, with those that it has handed back.
    said: u64,
}

/// How records ended, in the order of the fields of a status.
#[derive(Debug, Default, PartialEq, Eq)]
struct Endings {
    delivered: u64,
    filtered: u64,
    duplicates: u64,
    dead_lettered: u64,
}

impl Endings {
    fn all(&self) -> [(&'static str, u64); 4] {
        let Endings { delivered, filtered, duplicates, dead_lettered } = *self;
        let (delivered, filtered) = (("delivered", delivered), ("filtered", filtered));
        [delivered, filtered, ("duplicates", duplicates), ("dead_lettered", dead_lettered)]
    }
}

impl ProcessCounts {
    /// Records that were set aside instead of being copied: nobody takes these.
    fn instead_of_copies(&self, w: &State) -> u64 {
        let is_instead = |(origin, deliver, attempt): &&(Position, Option<u32>, u32)| {
            deliver.is_none() && *attempt == 1 && w.observed.refused_copies.contains(origin)
        };
        self.letters.iter().filter(is_instead).count() as u64
    }
}

fn deeds(w: &mut State, process: usize) -> &mut ProcessCounts {
    w.deeds.entry(process).or_default()
}

/// True for a record that its reader counts: neither one that is only copied, nor a note of the
/// pipeline itself.
fn is_counted(w: &State, group: &str, partition: &Partition, record: &Record) -> bool {
    let copied = w.shared && group != HELD_GROUP;
    let note = *partition.topic == *INTERNAL && origin_of(record).is_none();
    !copied && !note
}

/// These records were handed to a process, which had not ended them before.
pub(in crate::sim) fn observe_taken<'a>(
    w: &mut State,
    (process, group): (usize, &str),
    (log, partition): (u64, &Partition),
    records: impl Iterator<Item = &'a Record>,
) {
    for record in records {
        if is_counted(w, group, partition, record) {
            let (topic, partition) = (partition.topic.clone(), partition.index);
            let position = Position { log, topic, partition, offset: record.offset };
            *deeds(w, process).taken.entry(position).or_default() += 1;
        }
    }
}

/// A destination has answered a process so.
pub(in crate::sim) fn observe_receipt<'a>(
    w: &mut State,
    process: usize,
    outcomes: impl Iterator<Item = (&'a Message, Outcome)>,
) {
    let delivered = outcomes.filter(|(_, outcome)| matches!(outcome, Outcome::Delivered));
    deeds(w, process).delivered.extend(delivered.map(|(message, _)| message.id.to_string()));
}

/// A process has written these.
pub(in crate::sim) fn observe_written(w: &mut State, process: usize, outputs: &[Output]) {
    let Some(expect) = w.expect.clone() else { return };
    for output in outputs {
        if output.topic == expect.dead {
            let letter =
                Envelope::split(&output.headers).map(|(e, _)| (e.origin, e.deliver, e.attempts));
            deeds(w, process).letters.extend(letter);
        } else if let Some(id) = output.headers.get(ID_HEADER) {
            let id = String::from_utf8_lossy(id).into_owned();
            deeds(w, process).delivered.insert(id);
        }
    }
}

/// A process notes these as ended, whether or not that counts for the log. What has ended before
/// is only a gap between them.
pub(in crate::sim) fn observe_ended(
    w: &mut State,
    (process, group): (usize, &str),
    partition: &Partition,
    ranges: &[std::ops::Range<u64>],
) {
    let records = w.disk.shelf(partition).map_or(&[][..], |shelf| &shelf.records);
    let before = w.disk.progress(group, partition).unwrap_or_default();
    let is_ended = |offset: u64| {
        let had_ended = offset < before.position || before.ended.contains(offset);
        !had_ended && ranges.iter().any(|range| range.contains(&offset))
    };
    let ended = records.iter().filter(|(_, record)| is_ended(record.offset));
    let ended: Vec<Position> = ended
        .filter(|(_, record)| is_counted(w, group, partition, record))
        .map(|(log, record)| Position {
            log: *log,
            topic: partition.topic.clone(),
            partition: partition.index,
            offset: record.offset,
        })
        .collect();
    deeds(w, process).ended.extend(ended);
}

/// Compares what a process says with what the world saw of it.
pub(in crate::sim) fn check_counts(w: &mut State, process: usize, status: &Status) {
    let Status { received, delivered, filtered, duplicates, dead_lettered, in_flight, .. } =
        *status;
    let counted = Endings { delivered, filtered, duplicates, dead_lettered };
    let ended: u64 = counted.all().iter().map(|(_, count)| count).sum();
    if received != ended + in_flight {
        let what = format!("received {received}, in flight {in_flight}, {counted:?}");
        w.violated(Promise::CountsAddUp, what);
    }
    let Some(expect) = w.expect.clone() else { return };
    let Some(mut deeds) = w.deeds.remove(&process) else { return };
    let before = std::mem::replace(&mut deeds.said, received + status.returned);
    if deeds.said < before {
        let what =
            format!("what process {process} has received fell from {before} to {}", deeds.said);
        w.violated(Promise::CountsAddUp, what);
    }
    let taken = deeds.taken.values().sum::<u64>() + deeds.instead_of_copies(w);
    if received > taken {
        let what = format!("process {process} counts {received} records of {taken}");
        w.violated(Promise::CountsAreTrue, what);
    }
    if in_flight == 0 {
        check_endings(w, &expect, &deeds, (process, status), &counted);
    }
    w.deeds.insert(process, deeds);
}

fn check_endings(
    w: &mut State,
    expect: &Expectation,
    deeds: &ProcessCounts,
    (process, status): (usize, &Status),
    counted: &Endings,
) {
    let mut sure = Endings::default();
    // Where the answer to a transaction of gathering was lost, nobody counts its dead letters.
    let mut unsure = deeds.instead_of_copies(w);
    let mut shown = Vec::new();
    // How often something went out for what was one record at first: which time it was taken as a
    // repeat, nobody can tell.
    let mut went_out: BTreeMap<Position, u64> = BTreeMap::new();
    let mut taken = Vec::new();
    for (at, times) in &deeds.taken {
        let Some(record) = ever(w, at) else {
            unsure += times;
            continue;
        };
        let sent = Attempted::of(expect, at, &record);
        if !sent.is_dead(deeds) {
            *went_out.entry(sent.origin.clone()).or_default() += times;
        }
        taken.push((at, times, sent, record));
    }
    let versions = version_counts(w, expect);
    for (at, times, sent, record) in &taken {
        // One that was sent again may stand for the first, which then counts as its repeat.
        let name = version_name(expect, record);
        let alone = name.and_then(|name| versions.get(&name)).is_none_or(|count| *count < 2);
        let goes_out = went_out.get(&sent.origin).copied().unwrap_or_default();
        let is_sure = **times == 1 && deeds.ended.contains(*at) && alone;
        if !is_sure || (goes_out > 1 && !sent.is_dead(deeds)) {
            unsure += *times;
            continue;
        }
        let before = sure.all();
        *ending(w, expect, deeds, (sent, record), &mut sure) += 1;
        let of = sure.all().into_iter().zip(before).find(|(now, before)| now != before);
        shown.extend(of.map(|((what, _), _)| format!("{at} {what}")));
    }
    // What a part had noted and not yet counted when it died is never counted.
    let died = status.restarts + status.store_rebuilds > 0
        || expect.scenario.enabled.contains(&Trouble::SinkNeedsFix);
    for ((what, counted), (_, sure)) in counted.all().into_iter().zip(sure.all()) {
        let least = if died { 0 } else { sure };
        if !(least..=sure + unsure).contains(&counted) {
            let most = sure + unsure;
            let like: Vec<_> = shown.iter().filter(|text| text.ends_with(what)).collect();
            let text = format!("process {process} counts {counted} {what}, not {least} to {most}");
            w.violated(Promise::CountsAreTrue, format!("{text}: {like:?}"));
        }
    }
}

/// What a record was at first, which entries it is for, and which attempt this is.
struct Attempted {
    origin: Position,
    wanted: Vec<u32>,
    attempt: u32,
}

impl Attempted {
    fn of(expect: &Expectation, at: &Position, record: &Record) -> Self {
        let replay = (at.topic == expect.replay).then(|| replay_of(&record.headers)).flatten();
        let (origin, only, attempt) = match replay {
            Some(replay) => (replay.origin, replay.deliver, replay.attempt),
            None => (origin_of(record).unwrap_or_else(|| at.clone()), None, 1),
        };
        let mut wanted: Vec<u32> = (0..expect.scenario.delivers.len() as u32).collect();
        wanted.retain(|index| only.is_none_or(|only| only == *index));
        Attempted { origin, wanted, attempt }
    }

    fn is_dead(&self, deeds: &ProcessCounts) -> bool {
        let entries = self.wanted.iter().map(|index| Some(*index)).chain([None]);
        let letter = |deliver| (self.origin.clone(), deliver, self.attempt);
        entries.map(letter).any(|letter| deeds.letters.contains(&letter))
    }
}

/// Where a record that was taken once is to be counted.
fn ending<'a>(
    w: &State,
    expect: &Expectation,
    deeds: &ProcessCounts,
    (sent, record): (&Attempted, &Record),
    endings: &'a mut Endings,
) -> &'a mut u64 {
    let mut names = sent.wanted.iter().map(|index| name_of(&sent.origin, *index).to_string());
    let kind = RecordKind::of(record.value.as_deref());
    if sent.is_dead(deeds) {
        &mut endings.dead_lettered
    } else if names.any(|name| deeds.delivered.contains(&name)) {
        &mut endings.delivered
    } else if (kind == RecordKind::Filtered && expect.scenario.stage.is_some())
        || w.filtered.contains(&sent.origin)
    {
        &mut endings.filtered
    } else {
        &mut endings.duplicates
    }
}
