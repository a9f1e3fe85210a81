//! What is checked while the run goes on: what is written, and what is noted as ended.

use std::collections::BTreeSet;

use potok_core::{EndedOffsets, Envelope, Output, Partition, Position, RangeSet, Record};

use super::{Expectation, ID_HEADER, Promise};
use super::{ever, has_ended, letter_id, members, name_of, origin_in, origin_of, replay_of};
use crate::sim::pipeline::{HELD_GROUP, INTERNAL};
use crate::sim::scenario::{Act, Change, Hold};
use crate::sim::trouble::Recovery;
use crate::sim::world::State;

/// A group that closes later than this after it was due is late, in simulated milliseconds without
/// trouble.
const LATE_MAX: u64 = 3_000;

/// Indexes what was just written.
pub(in crate::sim) fn observe_outputs(w: &mut State, outputs: &[Output], positions: &[Position]) {
    let Some(expect) = w.expect.clone() else { return };
    let now = w.millis();
    for (output, position) in outputs.iter().zip(positions) {
        w.note(format_args!("written {position}"));
        if expect.scenario.topics.contains(&output.topic) {
            w.observed.sent.insert(position.clone(), now);
        }
        if output.topic == expect.dead {
            match Envelope::split(&output.headers) {
                Some((envelope, _)) => {
                    w.note(format_args!("dead letter {} {}", envelope.origin, envelope.reason));
                    if envelope.attempts > 1 {
                        w.tally.recovered(Recovery::ReplayFailedAgain);
                    }
                    let letters = w.observed.letters.entry(envelope.origin.clone());
                    letters.or_default().push(envelope);
                }
                None => w.violated(
                    Promise::NothingInvented,
                    format!("{position} in the dead letters has no envelope"),
                ),
            }
        } else if *output.topic == *INTERNAL {
            w.observed.gathered.insert(position.clone(), now);
            check_window(w, &expect, output, position);
            check_end_of_window(w, &expect, output, position);
            let named = sealed_by(w, output.value.as_deref());
            w.observed.seals.extend(Some(named).filter(|named| !named.is_empty()));
        } else if let Some(id) = output.headers.get(ID_HEADER) {
            let id = String::from_utf8_lossy(id).into_owned();
            *w.observed.named.entry(id).or_default() += 1;
        }
    }
}

/// True for the copy of a record that is larger than that.
pub(in crate::sim) fn observe_copy(w: &mut State, output: &Output, most: usize) -> bool {
    let is_refused = *output.topic == *INTERNAL && output.bytes() > most;
    match origin_in(&output.headers).filter(|_| is_refused) {
        Some(origin) => {
            w.note(format_args!("refuses the copy of {origin}"));
            w.observed.refused_copies.insert(origin);
            true
        }
        None => false,
    }
}

/// Checks that a group closed when it was due, or as soon as whatever was in the way was over. A
/// clock that was set says nothing about when that is.
fn check_end_of_window(w: &mut State, expect: &Expectation, seal: &Output, position: &Position) {
    let scenario = &expect.scenario;
    let is_even = if w.shared { !scenario.has_jumps_of_log() } else { !scenario.has_jumps() };
    let Some(hold) = scenario.hold.filter(|_| is_even) else { return };
    let value = seal.value.as_deref().unwrap_or_default();
    let said: serde_json::Value = serde_json::from_slice(value).unwrap_or_default();
    let came = if w.shared { &w.observed.gathered } else { &w.observed.sent };
    let mut came: Vec<u64> = members(&said).iter().filter_map(|at| came.get(at)).copied().collect();
    came.sort_unstable();
    // A part does not have the last record of its group, and where groups are made by something else
    // than before, nobody has seen when this one would have been full or quiet.
    let is_regrouped = scenario.changes.iter().any(|(_, what)| matches!(what, Change::By(_)));
    let is_whole = !is_part(&said) && !is_regrouped;
    let (quiet, max_count) = (hold.quiet, hold.max_count.filter(|_| is_whole));
    let hold = Hold { quiet: quiet.filter(|_| is_whole), max_count, ..hold };
    let Some(due) = due(&hold, &came) else { return };
    let now = w.millis();
    let hindered = if now > due { w.hindrances.within(due, now) } else { 0 };
    if now > due + hindered + LATE_MAX {
        let late = now - due;
        let what = format!(
            "{position} closes a group {late} ms after it was due, {hindered} of them in trouble"
        );
        w.violated(Promise::WindowsEnd, what);
    }
}

/// When a group closes whose members came then, by whichever rule is the first.
fn due(hold: &Hold, came: &[u64]) -> Option<u64> {
    let (first, last) = (came.first()?, came.last()?);
    let quiet = hold.quiet.map(|quiet| last + quiet);
    let full = hold.max_count.and_then(|count| came.get(count.checked_sub(1)?).copied());
    let rules = [Some(first + hold.after_first), quiet, full];
    rules.into_iter().flatten().min()
}

/// True for the seal of a part of a group.
fn is_part(seal: &serde_json::Value) -> bool {
    seal["parts"].as_u64() != Some(1)
}

/// Checks that no group was closed before its time. What is set forward is the log's own clock, and
/// windows go by it.
fn check_window(w: &mut State, expect: &Expectation, seal: &Output, position: &Position) {
    let Some(hold) = expect.scenario.hold.filter(|_| w.shared) else { return };
    let shortens = |(_, act): &(u64, Act)| match act {
        Act::Release(_) => true,
        Act::JumpOfLog(millis) => *millis > 0,
        _ => false,
    };
    let shortened = expect.scenario.acts.iter().any(shortens);
    if hold.quiet.is_some() || hold.max_count.is_some() || shortened {
        return;
    }
    let value = seal.value.as_deref().unwrap_or_default();
    let said: serde_json::Value = serde_json::from_slice(value).unwrap_or_default();
    // Whichever part has the first record of its group.
    let members = if is_part(&said) { Vec::new() } else { members(&said) };
    let first = members.iter().filter_map(|member| w.observed.gathered.get(member)).min();
    let Some(lasted) = first.map(|first| w.millis() - first) else { return };
    if lasted < hold.after_first {
        let what = format!("{position} closes a group after {lasted} ms");
        w.violated(Promise::WindowsLast, what);
    }
}

/// The records that a seal names; of copies, what they are copies of.
pub(super) fn sealed_by(w: &State, seal: Option<&[u8]>) -> BTreeSet<Position> {
    let seal: serde_json::Value =
        serde_json::from_slice(seal.unwrap_or_default()).unwrap_or_default();
    let origin = |at: Position| w.disk.record(&at).and_then(origin_of).unwrap_or(at);
    members(&seal).into_iter().map(origin).collect()
}

/// A stage that works per group was handed these together.
pub(in crate::sim) fn check_batch(w: &mut State, batch: Vec<Position>) {
    // What is replayed comes alone, and perhaps was never sealed.
    if batch.len() < 2 {
        return;
    }
    let names = |member: &Position| w.observed.seals.iter().position(|s| s.contains(member));
    let seals: BTreeSet<Option<usize>> = batch.iter().map(names).collect();
    if w.expect.is_some() && (seals.len() > 1 || seals.contains(&None)) {
        w.violated(
            Promise::SentAsSealed,
            format!("no seal was the first to name all of {batch:?}"),
        );
    }
}

/// These outputs were written by a transaction whose answer was lost, or that could not end its
/// records any more: the log's contract says that they come again, under the same names.
pub(in crate::sim) fn excuse_repeats(w: &mut State, outputs: &[Output]) {
    for output in outputs {
        let letter = Envelope::split(&output.headers);
        let letter = letter.map(|(e, _)| letter_id(&e.origin, e.deliver, e.attempts));
        let name = output.headers.get(ID_HEADER).map(|id| String::from_utf8_lossy(id).into_owned());
        if let Some(id) = letter.or(name) {
            *w.observed.excused.entry(id).or_default() += 1;
        }
    }
}

/// Records of that partition had ended, and nobody knows any more: they are done again, under the
/// same names.
pub(in crate::sim) fn excuse_forgotten(w: &mut State, partition: &Partition, ended: &RangeSet) {
    let Some(expect) = w.expect.clone() else { return };
    let records = w.disk.shelf(partition).map_or(&[][..], |shelf| &shelf.records);
    let forgotten = records.iter().filter(|(_, record)| ended.contains(record.offset));
    let forgotten: Vec<(u64, Record)> = forgotten.cloned().collect();
    for (log, record) in forgotten {
        let (topic, offset) = (partition.topic.clone(), record.offset);
        let at = Position { log, topic, partition: partition.index, offset };
        let replay = (at.topic == expect.replay).then(|| replay_of(&record.headers)).flatten();
        let attempts = replay.as_ref().map_or(1, |replay| replay.attempt);
        let origin = replay.map(|replay| replay.origin).or_else(|| origin_of(&record));
        let origin = origin.unwrap_or_else(|| at.clone());
        w.observed.forgotten.insert(at);
        let entries = 0..expect.scenario.delivers.len() as u32;
        let names = entries.clone().map(|index| name_of(&origin, index).to_string());
        let letters = entries.map(Some).chain([None]);
        let letters = letters.map(|deliver| letter_id(&origin, deliver, attempts));
        for of in names.chain(letters).collect::<Vec<_>>() {
            *w.observed.excused.entry(of).or_default() += 1;
        }
    }
}

/// The log did not take these endings: their partition is another's.
pub(in crate::sim) fn ignored(w: &mut State, ended: &EndedOffsets) {
    let ranges = w.observed.ignored.entry(ended.assignment).or_default();
    ended.ranges.iter().for_each(|range| ranges.insert(range.clone()));
}

/// Checks that records which were just noted as ended have an ending.
pub(in crate::sim) fn audit_ended(
    w: &mut State,
    group: &str,
    partition: &Partition,
    offsets: &[u64],
) {
    let Some(expect) = w.expect.clone() else { return };
    if w.shared && group != HELD_GROUP {
        // Gathered: the copies end, and are looked at below and at the end.
        return;
    }
    if *partition.topic == *INTERNAL {
        return audit_internal(w, &expect, partition, offsets);
    }
    for &offset in offsets {
        let shelf = w.disk.shelf(partition);
        let found = shelf.and_then(|shelf| shelf.records.iter().find(|(_, r)| r.offset == offset));
        let Some((log, record)) = found.cloned() else { continue };
        let (topic, partition) = (partition.topic.clone(), partition.index);
        let position = Position { log, topic, partition, offset };
        if let Err(what) = has_ended(w, &expect, &position, &record) {
            w.violated(Promise::NotedOnlyWhenEnded, format!("{position}: {what}"));
        }
    }
}

/// Checks that copies of records, and the members of seals, which were just noted as ended have an
/// ending.
fn audit_internal(w: &mut State, expect: &Expectation, partition: &Partition, offsets: &[u64]) {
    let Some(shelf) = w.disk.shelf(partition) else { return };
    let ended = shelf.records.iter().filter(|(_, record)| offsets.contains(&record.offset));
    let ended: Vec<Record> = ended.map(|(_, record)| record.clone()).collect();
    for note in ended {
        if let Some(origin) = origin_of(&note) {
            let Some(record) = ever(w, &origin) else { continue };
            if let Err(what) = has_ended(w, expect, &origin, &record) {
                let what = format!("the copy of {origin}: {what}");
                w.violated(Promise::NotedOnlyWhenEnded, what);
            }
            continue;
        }
        let value = note.value.as_deref().unwrap_or_default();
        let seal: serde_json::Value = serde_json::from_slice(value).unwrap_or_default();
        for member in members(&seal) {
            let Some(record) = w.disk.record(&member).cloned() else { continue };
            let (member, record) = match origin_of(&record) {
                Some(origin) => match ever(w, &origin) {
                    Some(record) => (origin, record),
                    None => continue,
                },
                None => (member, record),
            };
            if let Err(what) = has_ended(w, expect, &member, &record) {
                let what = format!("a seal has ended before its member {member}: {what}");
                w.violated(Promise::NotedOnlyWhenEnded, what);
            }
        }
    }
}
