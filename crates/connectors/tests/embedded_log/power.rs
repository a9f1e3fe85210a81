//! Power cuts, failing syncs and short writes, at every operation in turn.

use std::collections::{BTreeMap, BTreeSet};

use potok_connectors::embedded::EmbeddedLog;
use potok_core::{EndedOffsets, Fault, Log, Output, Partition, Position, RangeSet, Transaction};
use potok_testkit::{FaultyDisk, PowerCut};

use super::support::*;

/// What a user of the log knows of it.
#[derive(Default)]
struct History {
    /// Values tried, acknowledged or not.
    tried: BTreeSet<String>,
    /// Acknowledged.
    acked: BTreeMap<Position, String>,
    /// Handed out by a source or reader.
    seen: BTreeMap<Position, String>,
    /// Endings acknowledged.
    ended: BTreeMap<Partition, RangeSet>,
    rounds: u32,
}

fn out_of(value: &str) -> String {
    value.replace("<in", "<out")
}

impl History {
    /// Appends, reads, works off, until done or until a fault.
    async fn work(
        &mut self,
        disk: &FaultyDisk,
        log: &EmbeddedLog,
        rounds: u32,
    ) -> Result<(), Fault> {
        let mut member = Member::open(log, spec("g", &["in"])).await?;
        for _ in 0..rounds {
            self.rounds += 1;
            let round = self.rounds;
            let outputs: Vec<Output> = (0..2)
                .map(|n| output("in", Some(&format!("k{n}")), &format!("<in{round}.{n}>")))
                .collect();
            self.append(log, &outputs).await?;
            self.work_off(disk, &mut member).await?;
        }
        Ok(())
    }

    async fn append(&mut self, log: &EmbeddedLog, outputs: &[Output]) -> Result<(), Fault> {
        let values: Vec<String> = outputs.iter().map(value).collect();
        self.tried.extend(values.iter().cloned());
        let positions = log.append(outputs).await?;
        self.acked.extend(positions.into_iter().zip(values));
        Ok(())
    }

    async fn work_off(&mut self, disk: &FaultyDisk, member: &mut Member) -> Result<(), Fault> {
        // A log that acknowledges what it has not got makes its readers wait for ever.
        let batch = tokio::select! {
            batch = member.batch() => batch?,
            () = died(disk) => return Err(Fault::wait("the power is cut")),
        };
        let of = |record| (batch.position(record), text(record));
        self.seen.extend(batch.records.iter().map(of));
        let done = &member.assigned[&batch.partition].ended;
        let fresh = batch.records.iter().filter(|record| !done.contains(record.offset));
        let outputs: Vec<Output> =
            fresh.map(|record| output("out", Some("k"), &out_of(&text(record)))).collect();
        self.tried.extend(outputs.iter().map(value));
        let ended = EndedOffsets {
            partition: batch.partition.clone(),
            assignment: batch.assignment,
            ranges: vec![batch.first..batch.next],
        };
        let transaction = Transaction { outputs, ended: vec![ended] };
        let positions = member.open.journal.transact(&transaction).await?;
        self.acked.extend(positions.into_iter().zip(transaction.outputs.iter().map(value)));
        self.ended.entry(batch.partition).or_default().insert(batch.first..batch.next);
        Ok(())
    }

    /// Opens what is left and checks all promises.
    async fn check(&mut self, disk: &FaultyDisk) -> Result<(), String> {
        let files: Vec<_> =
            segments(disk).into_iter().map(|p| (p.clone(), disk.contents(&p).len())).collect();
        let log = open_with(disk, small()).map_err(|fault| format!("open: {fault}"))?;
        let found = || format!("; damage {:?} in {files:?}", log.damage());
        let mut present = values(&log, "in").await;
        present.extend(values(&log, "out").await);
        check_known(&self.tried, &present)?;
        check_present(&self.acked, &present)
            .map_err(|wrong| format!("acknowledged: {wrong}{}", found()))?;
        check_present(&self.seen, &present)
            .map_err(|wrong| format!("handed out: {wrong}{}", found()))?;
        self.check_ended(&log, &present).await?;
        // Work goes on, and no position means two things.
        let old: BTreeMap<Position, String> = present.clone();
        let before: BTreeSet<Position> =
            self.acked.keys().chain(self.seen.keys()).cloned().collect();
        self.work(disk, &log, 3).await.map_err(|fault| format!("after it: {fault}"))?;
        let mut now = values(&log, "in").await;
        now.extend(values(&log, "out").await);
        check_present(&old, &now)?;
        check_present(&self.acked, &now)?;
        for position in self.acked.keys().filter(|position| !before.contains(*position)) {
            if let Some(value) = old.get(position) {
                return Err(format!("{position} was {value} already"));
            }
        }
        self.check_ended(&log, &now).await
    }

    /// An ending is there exactly when its output is: they are one transaction.
    async fn check_ended(
        &self,
        log: &EmbeddedLog,
        present: &BTreeMap<Position, String>,
    ) -> Result<(), String> {
        let mut outs: BTreeMap<&str, usize> = BTreeMap::new();
        for value in present.values() {
            *outs.entry(value).or_default() += 1;
        }
        for (position, value) in present.iter().filter(|(position, _)| &*position.topic == "in") {
            let ended = log.ended("g", "in", position.partition).await;
            let ended = ended.is_ok_and(|set| set.contains(position.offset));
            let outputs = outs.get(&*out_of(value)).copied().unwrap_or_default();
            if outputs != usize::from(ended) {
                return Err(format!("{position} {value}: ended {ended}, {outputs} outputs"));
            }
        }
        for (partition, set) in &self.ended {
            let there = log.ended("g", "in", partition.index).await.map_err(|f| f.to_string())?;
            if let Some(range) = set.iter().find(|range| there.first_gap(range.start) < range.end) {
                return Err(format!("{partition}: {range:?} had ended, now {there:?}"));
            }
        }
        Ok(())
    }
}

async fn died(disk: &FaultyDisk) {
    while !disk.is_dead() {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

fn value(output: &Output) -> String {
    String::from_utf8(output.value.clone().unwrap().to_vec()).unwrap()
}

const ROUNDS: u32 = 12;

/// How many operations and syncs the undisturbed work takes.
async fn measure() -> (u64, u64) {
    let disk = FaultyDisk::new();
    let log = open(&disk);
    History::default().work(&disk, &log, ROUNDS).await.unwrap();
    drop(log);
    assert!(segments(&disk).len() >= 3, "the work must roll");
    (disk.operations(), disk.syncs())
}

/// The power is cut in place of every operation in turn, with several ways to tear what was not
/// synced.
async fn check_cuts(seeds: u64) -> Result<(), String> {
    let (operations, _) = measure().await;
    for cut in 0..operations {
        let torn = [PowerCut::Nothing, PowerCut::Everything]
            .into_iter()
            .chain((0..seeds).map(PowerCut::Some));
        for torn in torn {
            let disk = FaultyDisk::new();
            disk.cut_at(cut);
            let mut history = History::default();
            if let Ok(log) = open_with(&disk, small()) {
                let _ = history.work(&disk, &log, ROUNDS).await;
            }
            let left = disk.power_cut(torn);
            history
                .check(&left)
                .await
                .map_err(|wrong| format!("cut at operation {cut}, {torn:?}: {wrong}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_power_cut_at_every_operation() {
    run(check_cuts(3)).unwrap();
}

/// Cut again while the first cut is being recovered from.
#[test]
fn a_power_cut_during_recovery() {
    run(async {
        let mut failed = 0;
        for seed in 0..12 {
            // A torn tail to recover from: written, not synced.
            let disk = FaultyDisk::new();
            let mut history = History::default();
            let log = open(&disk);
            history.work(&disk, &log, 4).await.unwrap();
            disk.cut_at(disk.operations() + 1);
            let _ = history.work(&disk, &log, 1).await;
            let left = disk.power_cut(PowerCut::Some(seed));
            for cut in 0..12 {
                let again = left.copy();
                again.cut_at(cut);
                if let Ok(log) = open_with(&again, small()) {
                    let _ = append(&log, "noise", "x").await;
                }
                failed += u32::from(again.is_dead());
                let torn = PowerCut::Some(seed * 100 + cut);
                let mut known = History {
                    tried: history.tried.clone(),
                    acked: history.acked.clone(),
                    seen: history.seen.clone(),
                    ended: history.ended.clone(),
                    rounds: history.rounds,
                };
                known.check(&again.power_cut(torn)).await.unwrap_or_else(|wrong| {
                    panic!("seed {seed}, cut {cut}: {wrong}");
                });
            }
        }
        assert!(failed > 50, "the cuts must hit recovery: {failed}");
    });
}

/// Every sync fails in turn; the log works on, then the power is cut.
async fn check_failing_syncs() -> Result<(), String> {
    let (_, syncs) = measure().await;
    for failing in 0..syncs {
        for torn in [PowerCut::Nothing, PowerCut::Everything, PowerCut::Some(failing)] {
            let disk = FaultyDisk::new();
            disk.fail_sync(failing);
            let mut history = History::default();
            // A folder that cannot be made durable is not used; trying again is.
            let log = open_with(&disk, small()).or_else(|_| open_with(&disk, small()));
            let log = log.map_err(|fault| fault.to_string())?;
            let mut faults = 0;
            // The failure is answered, once, and is over then.
            while let Err(fault) = history.work(&disk, &log, ROUNDS).await {
                faults += 1;
                if fault.next != potok_core::Move::Wait || faults > 2 {
                    return Err(format!("sync {failing}: {fault}"));
                }
            }
            append(&log, "in", "<in99>").await.map_err(|fault| fault.to_string())?;
            history.tried.insert("<in99>".to_owned());
            if let Some(trouble) = log.trouble() {
                return Err(format!("sync {failing}: still in trouble: {trouble}"));
            }
            drop(log);
            let left = disk.power_cut(torn);
            history
                .check(&left)
                .await
                .map_err(|wrong| format!("sync {failing} failed, then {torn:?}: {wrong}"))?;
        }
    }
    Ok(())
}

#[test]
fn every_sync_fails_in_turn() {
    run(check_failing_syncs()).unwrap();
}

#[test]
fn short_writes_are_finished() {
    run(async {
        let disk = FaultyDisk::new();
        disk.set_short_writes(true);
        let mut history = History::default();
        let log = open(&disk);
        history.work(&disk, &log, ROUNDS).await.unwrap();
        drop(log);
        let disk = disk.power_cut(PowerCut::Nothing);
        history.check(&disk).await.unwrap();
        let log = open(&disk);
        assert!(log.damage().is_empty());
    });
}

/// Interleaving 11: a record is written and not yet synced, somebody reads, the power is cut,
/// other records come.
pub async fn check_readers_stop_at_the_synced_end() -> Result<(), String> {
    let disk = FaultyDisk::new();
    let log = open(&disk);
    let mut member = Member::open(&log, spec("g", &["in"])).await.unwrap();
    append(&log, "in", "<in1>").await.unwrap();
    let mut seen: BTreeMap<Position, String> = BTreeMap::new();
    seen.extend(member.take(1).await.iter().map(|(p, r)| (p.clone(), text(r))));
    disk.hold_syncs(true);
    let appending = {
        let log = log.clone();
        tokio::spawn(async move { append(&log, "in", "<in2>").await })
    };
    while disk.held_syncs() == 0 {
        tokio::task::yield_now().await;
    }
    // Written and not synced. Whoever reads now, in a group or outside, must not see it.
    seen.extend(values(&log, "in").await);
    let wait = std::time::Duration::from_millis(50);
    if let Ok(batch) = tokio::time::timeout(wait, member.batch()).await {
        let batch = batch.unwrap();
        seen.extend(batch.records.iter().map(|record| (batch.position(record), text(record))));
    }
    let left = disk.power_cut(PowerCut::Nothing);
    appending.await.unwrap().expect_err("nobody may be told that it is durable");
    drop((member, log));
    let log = open(&left);
    append(&log, "in", "<in3>").await.unwrap();
    check_present(&seen, &values(&log, "in").await)
}

#[test]
fn readers_stop_at_the_synced_end() {
    run(check_readers_stop_at_the_synced_end()).unwrap();
}

/// The power is cut while the sync is under way: whoever was told "durable" by then was told a
/// lie.
pub async fn check_acknowledged_is_synced() -> Result<(), String> {
    let disk = FaultyDisk::new();
    let log = open(&disk);
    let mut acked = BTreeMap::new();
    acked.insert(append(&log, "in", "<in1>").await.unwrap(), "<in1>".to_owned());
    disk.hold_syncs(true);
    let appending = {
        let log = log.clone();
        tokio::spawn(async move { append(&log, "in", "<in2>").await })
    };
    while disk.held_syncs() == 0 {
        tokio::task::yield_now().await;
    }
    let left = disk.power_cut(PowerCut::Nothing);
    if let Ok(position) = appending.await.unwrap() {
        acked.insert(position, "<in2>".to_owned());
    }
    drop(log);
    let log = open(&left);
    check_present(&acked, &values(&log, "in").await)
}

#[test]
fn acknowledged_is_synced() {
    run(check_acknowledged_is_synced()).unwrap();
}
