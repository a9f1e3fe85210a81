//! Flipped bits, cut files, missing files: nothing but the damaged bytes is lost, and those are
//! kept and reported.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use potok_connectors::embedded::{DEAD_TOPIC, Disk, EmbeddedLog, Options};
use potok_core::{
    Damage, EndedOffsets, Envelope, Log, Output, Partition, Position, RangeSet, ReadFrom, Reason,
    Store, Transaction,
};
use potok_testkit::FaultyDisk;

use super::support::*;

/// A log with everything in it, and what was acknowledged.
pub struct Model {
    pub disk: FaultyDisk,
    pub records: BTreeMap<Position, String>,
    /// Offsets of `in` that ended, each with its output.
    pub ended: BTreeMap<Partition, RangeSet>,
    /// How many inputs ended in the frame of an output.
    ended_with: BTreeMap<String, u64>,
    /// Where in the log's files a value lies.
    places: BTreeMap<String, (PathBuf, usize)>,
}

/// The output made of an input.
fn out_of(value: &str) -> String {
    value.replace("<in", "<out")
}

const TOPICS: [&str; 3] = ["in", "out", "noise"];

/// Appends, a group that works them off, several segments, two openings.
pub async fn build() -> Model {
    let disk = FaultyDisk::new();
    let mut model = Model {
        disk,
        records: BTreeMap::new(),
        ended: BTreeMap::new(),
        ended_with: BTreeMap::new(),
        places: BTreeMap::new(),
    };
    let mut number = 0;
    for _ in 0..2 {
        let log = open(&model.disk);
        let mut member = Member::open(&log, spec("g", &["in"])).await.unwrap();
        for _ in 0..6 {
            let outputs: Vec<Output> = (0..3)
                .map(|_| {
                    number += 1;
                    output("in", Some(&format!("k{number}")), &format!("<in{number}>"))
                })
                .collect();
            model.append(&log, &outputs).await;
            model.append(&log, &[output("noise", None, &format!("<n{number}>"))]).await;
            model.work_off(&mut member).await;
        }
    }
    assert!(segments(&model.disk).len() >= 4, "{:?}", segments(&model.disk));
    model.places = model.find_places();
    model
}

impl Model {
    async fn append(&mut self, log: &EmbeddedLog, outputs: &[Output]) {
        let positions = log.append(outputs).await.unwrap();
        let value = |output: &Output| String::from_utf8(output.value.clone().unwrap().to_vec());
        let records = positions.into_iter().zip(outputs.iter().map(|o| value(o).unwrap()));
        self.records.extend(records);
    }

    /// Takes one batch and writes its outputs and its end together.
    async fn work_off(&mut self, member: &mut Member) {
        let batch = member.batch().await.unwrap();
        let outputs: Vec<Output> = batch
            .records
            .iter()
            .map(|record| {
                let value = out_of(&text(record));
                output(
                    "out",
                    record.key.as_ref().map(|key| std::str::from_utf8(key).unwrap()),
                    &value,
                )
            })
            .collect();
        let transaction = Transaction {
            ended: vec![EndedOffsets {
                partition: batch.partition.clone(),
                assignment: batch.assignment,
                ranges: vec![batch.first..batch.next],
            }],
            outputs,
        };
        let positions = member.open.journal.transact(&transaction).await.unwrap();
        let values = transaction
            .outputs
            .iter()
            .map(|output| String::from_utf8(output.value.clone().unwrap().to_vec()).unwrap());
        for (position, value) in positions.into_iter().zip(values) {
            self.ended_with.insert(value.clone(), batch.next - batch.first);
            self.records.insert(position, value);
        }
        self.ended.entry(batch.partition).or_default().insert(batch.first..batch.next);
    }

    fn all_values(&self) -> BTreeSet<String> {
        self.records.values().cloned().collect()
    }

    fn find_places(&self) -> BTreeMap<String, (PathBuf, usize)> {
        let mut places = BTreeMap::new();
        for path in segments(&self.disk) {
            let bytes = self.disk.contents(&path);
            for value in self.records.values() {
                let found = bytes.windows(value.len()).position(|w| w == value.as_bytes());
                if let Some(at) = found {
                    places.insert(value.clone(), (path.clone(), at));
                }
            }
        }
        places
    }
}

async fn present(log: &EmbeddedLog) -> BTreeMap<Position, String> {
    let mut present = BTreeMap::new();
    for topic in TOPICS {
        present.extend(values(log, topic).await);
    }
    present
}

/// Damage of a file that covers this place.
fn covers(damage: &[Damage], file: &Path, at: u64) -> bool {
    damage.iter().any(|damage| {
        Path::new("/data").join(&damage.file) == file && (damage.from..damage.to).contains(&at)
    })
}

/// Every damage is kept as a file and as a dead letter, with exactly the bytes that lie there.
/// `found` is the disk as the log found it: retention may have let go of damaged segments since.
async fn check_kept(
    log: &EmbeddedLog,
    disk: &FaultyDisk,
    found: &FaultyDisk,
) -> Result<(), String> {
    let dead = read_all(log, DEAD_TOPIC).await;
    for damage in log.damage() {
        let bytes = found.contents(&dir().join(&damage.file));
        let to = (damage.to as usize).min(bytes.len());
        let raw = bytes.get(damage.from as usize..to).unwrap_or_default();
        if !raw.is_empty() && disk.contents(&dir().join(&damage.kept_in)) != raw {
            return Err(format!("{damage:?} is not kept byte by byte"));
        }
        let number: u32 = damage.file[4..24].parse().unwrap();
        let letters = dead.iter().filter(|(_, record)| {
            let Some((envelope, _)) = Envelope::split(&record.headers) else { return false };
            envelope.reason == Reason::Damaged
                && envelope.origin.partition == number
                && envelope.origin.offset == damage.from
                && record.value.as_deref() == Some(raw)
        });
        if letters.count() != 1 {
            return Err(format!("{damage:?} is not one dead letter: {dead:?}"));
        }
    }
    Ok(())
}

/// What has ended has its output: a frame is a transaction, damaged or not. An input that is lost
/// itself cannot come again.
fn check_outputs(
    ended: &BTreeMap<Partition, RangeSet>,
    inputs: &BTreeMap<Position, String>,
    present: &BTreeMap<Position, String>,
) -> Result<(), String> {
    let values: BTreeSet<&String> = present.values().collect();
    let there = |position: &Position| &*position.topic == "in" && present.contains_key(position);
    for (position, value) in inputs.iter().filter(|(position, _)| there(position)) {
        let partition = Partition { topic: position.topic.clone(), index: position.partition };
        let has_ended = ended.get(&partition).is_some_and(|set| set.contains(position.offset));
        if has_ended && !values.contains(&out_of(value)) {
            return Err(format!("{position} {value} has ended and its output is lost"));
        }
    }
    Ok(())
}

async fn ended(log: &EmbeddedLog) -> Result<BTreeMap<Partition, RangeSet>, String> {
    let mut all = BTreeMap::new();
    for index in 0..2 {
        let partition = Partition { topic: "in".into(), index };
        let set = match log.ended("g", "in", index).await {
            Ok(set) => set,
            // Its registration was in the damaged bytes, and nothing else was left of it.
            Err(_) => RangeSet::new(),
        };
        all.insert(partition, set);
    }
    Ok(all)
}

/// Appends work, under new positions, and are read.
async fn check_works_on(
    log: &EmbeddedLog,
    before: &BTreeMap<Position, String>,
    above: bool,
) -> Result<(), String> {
    let mut fresh = BTreeMap::new();
    for number in 0..2 {
        for topic in TOPICS {
            let value = format!("new-{topic}-{number}");
            let position = append(log, topic, &value).await.map_err(|fault| fault.to_string())?;
            let old = |old: &&Position| {
                old.topic == position.topic && old.partition == position.partition
            };
            let highest = before.keys().filter(old).map(|old| old.offset).max();
            if before.contains_key(&position) {
                return Err(format!("{position} means two records"));
            }
            if above && highest.is_some_and(|highest| position.offset <= highest) {
                return Err(format!("{position} is not above what was handed out"));
            }
            fresh.insert(position, value);
        }
    }
    check_present(&fresh, &present(log).await)
}

/// Opens a log one of whose files was changed at or behind `at`, and checks everything.
/// `sure` says that what is wrong must be reported.
async fn check_damaged(
    model: &Model,
    disk: &FaultyDisk,
    file: &Path,
    at: usize,
    sure: bool,
    silent: bool,
) -> Result<(), String> {
    let places = &model.places;
    let found = disk.copy();
    let first_report;
    {
        let log = open_with(disk, small()).map_err(|fault| format!("open failed: {fault}"))?;
        let present = present(&log).await;
        check_known(&model.all_values(), &present)?;
        // Readers report through the writer; an append behind them waits for it.
        append(&log, "noise", "<n1>").await.map_err(|fault| fault.to_string())?;
        let damage = log.damage();
        for (position, value) in &model.records {
            match present.get(position) {
                Some(found) if found == value => {}
                Some(found) => return Err(format!("{position} was {value} and is {found}")),
                None => {
                    let (path, place) = &places[value];
                    let lost_silently = silent && path == file && *place >= at;
                    if !covers(&damage, path, *place as u64) && !lost_silently {
                        return Err(format!("{position} {value} is lost; {damage:?}"));
                    }
                }
            }
        }
        if sure && !covers(&damage, file, at as u64) {
            return Err(format!("not reported: {damage:?}"));
        }
        check_kept(&log, disk, &found).await?;
        check_works_on(&log, &model.records, !silent).await?;
        first_report = log.damage();
    }
    // Opened again: nothing is reported twice, what was there is still there.
    let log = open_with(disk, small()).map_err(|fault| format!("second open: {fault}"))?;
    if log.damage() != first_report {
        return Err(format!("{first_report:?} became {:?}", log.damage()));
    }
    check_kept(&log, disk, &found).await?;
    let present = present(&log).await;
    let ended = ended(&log).await?;
    check_outputs(&ended, &model.records, &present)?;
    let inputs = model.records.keys().filter(|position| &*position.topic == "in");
    for position in inputs.filter(|position| present.contains_key(*position)) {
        let partition = Partition { topic: position.topic.clone(), index: position.partition };
        let holds = |sets: &BTreeMap<Partition, RangeSet>| {
            sets.get(&partition).is_some_and(|set| set.contains(position.offset))
        };
        if holds(&ended) && !holds(&model.ended) {
            return Err(format!("{position} has ended, and nobody noted that"));
        }
    }
    check_works_on(&log, &present, true).await
}

/// Opens a log into whose files something was written over, and checks everything.
pub async fn check_hit(model: &Model, disk: &FaultyDisk) -> Result<(), String> {
    // Which byte it is does not matter where nothing has to be reported for sure.
    check_damaged(model, disk, dir(), 0, false, false).await
}

/// Every byte of every file flipped in turn.
pub async fn check_flips(model: &Model, step: usize) -> Result<(), String> {
    let files = segments(&model.disk);
    for (number, path) in files.iter().enumerate() {
        let bytes = model.disk.contents(path);
        // The newest segment and the one before it are read at opening; older ones by those who
        // want their records.
        let sure = number + 2 >= files.len();
        for at in (0..bytes.len()).step_by(step) {
            let disk = model.disk.copy();
            disk.overwrite(path, flip(&bytes, at));
            check_damaged(model, &disk, path, at, sure, false)
                .await
                .map_err(|wrong| format!("{} byte {at}: {wrong}", path.display()))?;
        }
    }
    Ok(())
}

/// Every file cut at every length.
pub async fn check_cuts(model: &Model, step: usize) -> Result<(), String> {
    let files = segments(&model.disk);
    for (number, path) in files.iter().enumerate() {
        let bytes = model.disk.contents(path);
        let newest = number + 1 == files.len();
        for len in (0..bytes.len()).step_by(step) {
            let disk = model.disk.copy();
            disk.overwrite(path, bytes[..len].to_vec());
            // Cut between two frames, the newest segment looks as if it had always ended there.
            check_damaged(model, &disk, path, len, !newest, newest)
                .await
                .map_err(|wrong| format!("{} cut to {len}: {wrong}", path.display()))?;
        }
    }
    Ok(())
}

#[test]
fn every_byte_flipped() {
    run(async {
        let model = build().await;
        check_flips(&model, 1).await.unwrap();
        for other in [dir().join("log/reserve"), dir().join("LOCK")] {
            let disk = model.disk.copy();
            let bytes = disk.contents(&other);
            if !bytes.is_empty() {
                disk.overwrite(&other, flip(&bytes, 3));
            }
            let log = open(&disk);
            assert!(log.damage().is_empty());
            assert_eq!(present(&log).await, model.records);
        }
    });
}

#[test]
fn every_file_cut_at_every_length() {
    run(async {
        let model = build().await;
        check_cuts(&model, 1).await.unwrap();
    });
}

#[test]
fn every_file_missing() {
    run(async {
        let model = build().await;
        let places = &model.places;
        let files = segments(&model.disk);
        for (number, path) in files.iter().enumerate() {
            let disk = model.disk.copy();
            potok_connectors::embedded::Disk::remove(&disk, path).unwrap();
            let log = open(&disk);
            let newest = number + 1 == files.len();
            let reported = log.damage().iter().any(|damage| dir().join(&damage.file) == *path);
            // Nothing tells that there was a newer one.
            assert_eq!(reported, !newest, "{}: {:?}", path.display(), log.damage());
            let present = present(&log).await;
            for (position, value) in &model.records {
                if places[value].0 != *path {
                    assert_eq!(present.get(position), Some(value), "{}", path.display());
                }
            }
            check_works_on(&log, &model.records, false).await.unwrap();
        }
    });
}

#[test]
fn every_byte_of_merged_segments_flipped_and_cut() {
    run(async {
        let model = build_rewritten().await;
        check_flips(&model, 1).await.unwrap();
        check_cuts(&model, 1).await.unwrap();
    });
}

/// A log whose oldest segments retention has merged: `in` is held, `noise` is gone.
async fn build_rewritten() -> Model {
    let options = Options {
        segment_bytes: 2_500,
        retention_age: Some(std::time::Duration::from_secs(60)),
        ..small()
    };
    let disk = FaultyDisk::new();
    let clock = TestClock::new();
    let log =
        EmbeddedLog::open_on(std::sync::Arc::new(disk.clone()), dir(), options, clock.clone());
    let log = log.unwrap();
    drop(Member::open(&log, spec("g", &["in"])).await.unwrap());
    for number in 0..60 {
        let topic = if number % 10 == 0 { "in" } else { "noise" };
        append(&log, topic, &format!("<{topic}{number}>")).await.unwrap();
    }
    let sizes = |disk: &FaultyDisk| -> Vec<usize> {
        segments(disk).iter().map(|path| disk.contents(path).len()).collect()
    };
    let before = sizes(&disk);
    clock.advance(std::time::Duration::from_secs(3_600));
    log.retain_now().await;
    let after = sizes(&disk);
    assert!(after.len() < before.len() && after[0] < before[0] / 2, "{before:?} {after:?}");
    let records = present(&log).await;
    drop(log);
    let mut model = Model {
        disk,
        records,
        ended: BTreeMap::new(),
        ended_with: BTreeMap::new(),
        places: BTreeMap::new(),
    };
    model.places = model.find_places();
    model
}

/// Garbage behind the end, as a write that was cut short leaves it.
pub async fn check_torn_tail() -> Result<(), String> {
    let disk = FaultyDisk::new();
    let mut acked = BTreeMap::new();
    {
        let log = open(&disk);
        for number in 0..3 {
            let value = format!("<{number}>");
            acked.insert(append(&log, "in", &value).await.unwrap(), value);
        }
    }
    let path = segments(&disk)[0].clone();
    let whole = disk.contents(&path);
    let mut torn = whole.clone();
    // The first half of a good frame, which the crash did not let finish.
    let frame = whole[whole.len() - 100..].to_vec();
    torn.extend_from_slice(&frame[..frame.len() / 2]);
    disk.overwrite(&path, torn);
    let found = disk.copy();
    let log = open_with(&disk, small()).map_err(|fault| fault.to_string())?;
    match log.damage().as_slice() {
        [damage] if damage.tail && damage.from == whole.len() as u64 => {}
        other => return Err(format!("the tail is not reported: {other:?}")),
    }
    check_kept(&log, &disk, &found).await?;
    check_present(&acked, &present(&log).await)?;
    check_works_on(&log, &acked, true).await
}

#[test]
fn a_torn_tail_is_kept_aside_and_reported() {
    run(check_torn_tail()).unwrap();
}

/// A flip in the newest frame, whose record had been handed out and had ended.
pub async fn check_offsets_after_damage() -> Result<(), String> {
    let disk = FaultyDisk::new();
    let log = open_with(&disk, Options { partitions: 1, ..small() }).unwrap();
    for value in ["<1>", "<2>", "<3>"] {
        append(&log, "in", value).await.unwrap();
    }
    drop(log);
    let path = segments(&disk)[0].clone();
    let bytes = disk.contents(&path);
    let at = bytes.windows(4).rposition(|window| window == b"PTKF").unwrap();
    disk.overwrite(&path, flip(&bytes, at));
    let log = open_with(&disk, Options { partitions: 1, ..small() }).unwrap();
    let next = append(&log, "in", "<4>").await.unwrap();
    if next.offset <= 2 {
        return Err(format!("{next}: offset 2 was another record"));
    }
    let fresh = append(&log, "a topic made in the damaged frame".split(' ').next().unwrap(), "x");
    let fresh = fresh.await.unwrap();
    if fresh.offset == 0 {
        return Err(format!("{fresh}: a topic may have been made in the damaged bytes"));
    }
    Ok(())
}

#[test]
fn offsets_go_on_above_what_was_lost() {
    run(check_offsets_after_damage()).unwrap();
}

#[test]
fn a_copy_of_a_frame_in_a_payload_is_no_frame() {
    run(async {
        let disk = FaultyDisk::new();
        let options = Options { segment_bytes: 1 << 20, ..small() };
        let log = open_with(&disk, options.clone()).unwrap();
        append(&log, "in", "<original>").await.unwrap();
        let path = segments(&disk)[0].clone();
        let file = disk.contents(&path);
        // All frames so far, as the value of a record; at any alignment.
        let copies: Vec<Output> = (0..9)
            .map(|skip| Output {
                value: Some(Bytes::copy_from_slice(&file[64 - skip..])),
                ..output("copies", None, "")
            })
            .collect();
        let start = disk.contents(&path).len();
        log.append(&copies).await.unwrap();
        append(&log, "in", "<behind>").await.unwrap();
        drop(log);
        // The frame around the copies is damaged, so that everything in it is searched for
        // frames.
        let bytes = disk.contents(&path);
        for at in start..start + 48 {
            let disk = disk.copy();
            disk.overwrite(&path, flip(&bytes, at));
            let log = open_with(&disk, options.clone()).unwrap();
            let found: Vec<String> = values(&log, "in").await.into_values().collect();
            assert_eq!(found.len(), 2, "{found:?}");
            assert_eq!(log.damage().len(), 1);
            assert_eq!(values(&log, "copies").await.len(), 0);
        }
    });
}

#[test]
fn what_a_damaged_frame_had_ended_is_open_again() {
    run(async {
        // In every place of the log in turn: also where a later checkpoint knows better.
        let model = build().await;
        let mut reopened = 0;
        for path in segments(&model.disk) {
            let bytes = model.disk.contents(&path);
            let outputs: Vec<usize> = (0..bytes.len().saturating_sub(5))
                .filter(|at| bytes[*at..].starts_with(b"<out"))
                .collect();
            for at in outputs {
                let disk = model.disk.copy();
                disk.overwrite(&path, flip(&bytes, at));
                let log = open(&disk);
                present(&log).await;
                append(&log, "noise", "<n1>").await.unwrap();
                assert_eq!(log.damage().len(), 1, "{:?} {at}", path);
                drop(log);
                let log = open(&disk);
                let after = ended(&log).await.unwrap();
                check_outputs(&after, &model.records, &present(&log).await).unwrap();
                let count = |sets: &BTreeMap<Partition, RangeSet>| -> u64 {
                    sets.values().map(|set| set.count_from(0)).sum()
                };
                let open_again = count(&model.ended) - count(&after);
                // Exactly the frame's own inputs, not a record more.
                let value = model.places.iter().find(|(_, place)| **place == (path.clone(), at));
                let Some((value, _)) = value else { panic!("no value at {path:?} {at}") };
                assert_eq!(open_again, model.ended_with[value], "{value}");
                reopened += 1;

                // And they come again from their inputs.
                let mut member = Member::open(&log, spec("g", &["in"])).await.unwrap();
                let waiting: u64 = log.consumer_groups().await.unwrap()[0]
                    .partitions
                    .iter()
                    .map(|at| at.end - at.committed - at.acknowledged_ahead)
                    .sum();
                assert!(waiting >= open_again);
                let mut seen = 0;
                while seen < open_again {
                    let batch = member.batch().await.unwrap();
                    let set = &after[&batch.partition];
                    seen += batch.records.iter().filter(|r| !set.contains(r.offset)).count() as u64;
                }
            }
        }
        assert!(reopened > 20);
    });
}

#[test]
fn readers_find_damage_while_the_log_runs() {
    run(async {
        let disk = FaultyDisk::new();
        let log = open(&disk);
        let mut acked = BTreeMap::new();
        for number in 0..60 {
            let value = format!("<{number}>");
            acked.insert(append(&log, "in", &value).await.unwrap(), value);
        }
        let path = segments(&disk)[0].clone();
        let bytes = disk.contents(&path);
        let at = bytes.windows(4).enumerate().filter(|(_, w)| *w == b"PTKF").nth(3).unwrap().0;
        disk.overwrite(&path, flip(&bytes, at + 20));
        for _ in 0..2 {
            let seen = values(&log, "in").await;
            assert_eq!(seen.len(), 59, "everything but the damaged frame");
            append(&log, "noise", "wait for the writer").await.unwrap();
            assert_eq!(log.damage().len(), 1);
            assert_eq!(log.damage()[0].from, at as u64);
        }
        check_kept(&log, &disk, &disk).await.unwrap();
        let mut reader = log.read("in", ReadFrom::Start).await.unwrap();
        let first = reader.next(false).await.unwrap().unwrap();
        assert_eq!(first.first, 0);
        drop(log);
        let log = open(&disk);
        assert_eq!(log.damage().len(), 1);
    });
}

#[test]
fn damage_found_by_whoever_reads_is_reported_once_and_read_past() {
    run(async {
        // A frame's header, its records, the rest of a file, a whole file; found by a reader, and
        // by one who wants a single body back.
        for (kind, by_body) in (0..4).flat_map(|kind| [(kind, false), (kind, true)]) {
            let disk = FaultyDisk::new();
            let log = open(&disk);
            let mut acked = BTreeMap::new();
            for number in 0..60 {
                let value = format!("<{number}>");
                acked.insert(append(&log, "in", &value).await.unwrap(), value);
            }
            let path = segments(&disk)[1].clone();
            let found = disk.copy();
            let bytes = disk.contents(&path);
            let frame = bytes.windows(4).rposition(|window| window == b"PTKF").unwrap();
            let frame = bytes[..frame].windows(4).rposition(|window| window == b"PTKF").unwrap();
            match kind {
                0 => disk.overwrite(&path, flip(&bytes, frame + 20)),
                1 => {
                    let value = bytes[frame..].windows(1).position(|byte| byte == b"<").unwrap();
                    disk.overwrite(&path, flip(&bytes, frame + value));
                }
                2 => disk.overwrite(&path, bytes[..frame].to_vec()),
                _ => Disk::remove(&disk, &path).unwrap(),
            }
            let hurt = if kind == 3 { found } else { disk.copy() };
            for _ in 0..3 {
                if by_body {
                    let positions: Vec<Position> = acked.keys().cloned().collect();
                    let loaded = log.store().load(&owner(1), &places(&positions)).await.unwrap();
                    assert!(loaded.iter().filter(|body| body.is_some()).count() > 40);
                } else {
                    let seen = values(&log, "in").await;
                    assert!(seen.len() > 40 && seen.len() < 60, "{kind}: {}", seen.len());
                }
                append(&log, "noise", "wait for the writer").await.unwrap();
                let damage = log.damage();
                assert_eq!(damage.len(), 1, "{kind}: {damage:?}");
            }
            let file = format!("log/{}", path.file_name().unwrap().to_string_lossy());
            assert_eq!(log.damage()[0].file, file);
            let letters = read_all(&log, DEAD_TOPIC).await;
            assert_eq!(letters.len(), 1, "{kind}: {letters:?}");
            if kind < 2 {
                check_kept(&log, &disk, &hurt).await.unwrap();
            }
            // The next opening knows it already.
            drop(log);
            let log = open(&disk);
            assert_eq!(log.damage().len(), 1, "{kind}: {:?}", log.damage());
            assert_eq!(read_all(&log, DEAD_TOPIC).await.len(), 1);
        }
    });
}

#[test]
fn a_segment_of_another_folder_is_not_read() {
    run(async {
        let (ours, theirs) = (FaultyDisk::new(), FaultyDisk::new());
        let log = open(&ours);
        append(&log, "in", "<ours>").await.unwrap();
        drop(log);
        let log = open(&theirs);
        for number in 0..40 {
            append(&log, "in", &format!("<theirs {number}>")).await.unwrap();
        }
        drop(log);
        let foreign = theirs.contents(&segments(&theirs)[1]);
        let path = dir().join("log/00000000000000000002.seg");
        potok_connectors::embedded::Disk::create(&ours, &path).unwrap();
        ours.overwrite(&path, foreign);
        let log = open(&ours);
        let seen: Vec<String> = values(&log, "in").await.into_values().collect();
        assert_eq!(seen, ["<ours>"]);
        assert!(log.damage().iter().any(|damage| damage.file.ends_with("2.seg")));
    });
}

#[test]
fn a_newer_format_is_refused_not_repaired() {
    run(async {
        let model = build().await;
        let path = segments(&model.disk)[0].clone();
        let mut bytes = model.disk.contents(&path);
        bytes[8] = 99;
        let crc = crc32fast::hash(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
        model.disk.overwrite(&path, bytes);
        let before: Vec<Vec<u8>> =
            segments(&model.disk).iter().map(|path| model.disk.contents(path)).collect();
        let Err(fault) = open_with(&model.disk, small()) else { panic!("it is newer") };
        assert_eq!(fault.code, "P0211");
        let after: Vec<Vec<u8>> =
            segments(&model.disk).iter().map(|path| model.disk.contents(path)).collect();
        assert_eq!(before, after);
    });
}
