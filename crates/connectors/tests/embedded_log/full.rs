//! A full disk, at every byte: an error to the sender, nothing torn, and work goes on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use potok_connectors::embedded::{EmbeddedLog, Options};
use potok_core::{EndedOffsets, Log, Move, OfferMode, OfferOutcome, Output, Position, Transaction};
use potok_testkit::FaultyDisk;

use super::support::*;

fn three(round: usize) -> Vec<Output> {
    (0..3).map(|n| output("in", Some(&format!("k{n}")), &format!("<{round}.{n}>"))).collect()
}

async fn append_all(
    log: &EmbeddedLog,
    acked: &mut BTreeMap<Position, String>,
    round: usize,
) -> Result<(), potok_core::Fault> {
    let outputs = three(round);
    let positions = log.append(&outputs).await?;
    let values =
        outputs.iter().map(|o| String::from_utf8(o.value.clone().unwrap().to_vec()).unwrap());
    acked.extend(positions.into_iter().zip(values));
    Ok(())
}

#[test]
fn full_at_every_byte_and_free_again() {
    run(async {
        let disk = FaultyDisk::new();
        let log = open(&disk);
        let mut acked = BTreeMap::new();
        append_all(&log, &mut acked, 0).await.unwrap();
        let base = disk.used();
        append_all(&log, &mut acked, 1).await.unwrap();
        let frame = disk.used() - base;
        drop(log);
        // Room for no byte of a frame, for one, … for all but one; with rolls on the way.
        for room in 0..frame * 3 {
            let disk = FaultyDisk::new();
            let log = open(&disk);
            let mut acked = BTreeMap::new();
            append_all(&log, &mut acked, 0).await.unwrap();
            disk.set_capacity(Some(disk.used() + room));
            let mut round = 1;
            let fault = loop {
                match append_all(&log, &mut acked, round).await {
                    Ok(()) => round += 1,
                    Err(fault) => break fault,
                }
            };
            assert_eq!((fault.next, fault.code), (Move::Wait, "P0203"), "room {room}: {fault}");
            assert!(log.trouble().is_some_and(|trouble| trouble.contains("full")));
            assert_eq!(values(&log, "in").await, acked, "nothing torn is visible");
            // Still full: still an error, still nothing torn.
            assert!(append_all(&log, &mut acked, 90).await.is_err());

            disk.set_capacity(None);
            append_all(&log, &mut acked, 91).await.unwrap();
            assert_eq!(log.trouble(), None);
            assert_eq!(values(&log, "in").await, acked);
            drop(log);
            let log = open(&disk);
            assert_eq!(values(&log, "in").await, acked);
            assert!(log.damage().is_empty(), "{:?}", log.damage());
        }
    });
}

#[test]
fn a_disk_that_is_full_at_opening_opens_all_the_same() {
    run(async {
        for room in [0, 10, 200, 4_100] {
            let disk = FaultyDisk::new();
            disk.set_capacity(Some(room));
            let log = open_with(&disk, small()).unwrap();
            let fault = append(&log, "in", "<1>").await.unwrap_err();
            assert_eq!((fault.next, fault.code), (Move::Wait, "P0203"), "{room}");
            disk.set_capacity(None);
            append(&log, "in", "<1>").await.unwrap();
            drop(log);
            // A log with a torn tail, on a disk that has no room to keep it aside.
            let path = segments(&disk)[0].clone();
            let mut bytes = disk.contents(&path);
            bytes.extend_from_slice(&[7; 100]);
            disk.overwrite(&path, bytes);
            disk.set_capacity(Some(disk.used()));
            let torn = disk.copy();
            torn.set_capacity(Some(disk.used()));
            // Without a reserve to give, too.
            let _ = potok_connectors::embedded::Disk::remove(&torn, &dir().join("log/reserve"));
            torn.set_capacity(Some(torn.used()));
            for disk in [disk, torn] {
                let log = open_with(&disk, small()).unwrap();
                assert_eq!(values(&log, "in").await.len(), 1);
                assert!(append(&log, "in", "<2>").await.is_err());
                disk.set_capacity(None);
                append(&log, "in", "<3>").await.unwrap();
                assert_eq!(values(&log, "in").await.len(), 2);
                assert_eq!(log.damage().len(), 1);
            }
        }
    });
}

#[test]
fn trouble_ends_by_itself_when_there_is_room_again() {
    run(async {
        let disk = FaultyDisk::new();
        let log = open(&disk);
        append(&log, "in", "<1>").await.unwrap();
        disk.set_capacity(Some(disk.used()));
        append(&log, "in", "<2>").await.unwrap_err();
        assert!(log.trouble().is_some());
        disk.set_capacity(None);
        // Nobody appends any more: `/ready` would never come back otherwise.
        while log.trouble().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        append(&log, "in", "<3>").await.unwrap();
    });
}

/// A group whose records are worked off, a few at a time, perhaps into another topic.
async fn work_off(member: &mut Member, records: usize, outputs: bool) {
    let mut done = 0;
    while done < records {
        let batch = member.batch().await.unwrap();
        done += batch.records.len();
        let mut from = batch.first;
        for some in batch.records.chunks(5) {
            let to = some.last().unwrap().offset + 1;
            let transaction = Transaction {
                outputs: match outputs {
                    true => some.iter().map(|record| output("out", None, &text(record))).collect(),
                    false => Vec::new(),
                },
                ended: vec![EndedOffsets {
                    partition: batch.partition.clone(),
                    assignment: batch.assignment,
                    ranges: vec![from..to],
                }],
            };
            from = to;
            // What the engine does about `Wait`.
            while let Err(refused) = member.open.journal.transact(&transaction).await {
                let fault = potok_core::Fault::from(refused);
                assert_eq!(fault.next, Move::Wait, "{fault}");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
}

/// Interleaving 13: one pipeline paused until the disk is full, then resumed.
async fn check_recovers_by_working(outputs: bool) {
    let disk = FaultyDisk::new();
    let options = Options {
        segment_bytes: 4_000,
        reserve_bytes: 9_000,
        retention_age: Some(Duration::from_secs(3_600)),
        // A source hands out a megabyte at once, far more than a segment here: with several
        // partitions the first would have to be done before any segment has ended.
        partitions: 1,
        ..small()
    };
    let clock = TestClock::new();
    let log = EmbeddedLog::open_on(Arc::new(disk.clone()), dir(), options, clock.clone()).unwrap();
    let mut member = Member::open(&log, spec("slow", &["in"])).await.unwrap();
    disk.set_capacity(Some(60_000));
    let mut acked = 0;
    let fault = loop {
        let value = format!("{acked}: a record of some length, so that the disk fills up");
        match append(&log, "in", &value).await {
            Ok(_) => acked += 1,
            Err(fault) => break fault,
        }
    };
    assert_eq!(fault.code, "P0203");
    assert!(acked > 100);
    work_off(&mut member, acked, outputs).await;
    if outputs {
        // They are as large as the inputs. Nobody reads them, so they go by age.
        assert_eq!(values(&log, "out").await.len(), acked);
        clock.advance(Duration::from_secs(7_200));
    }
    // Nobody frees anything from outside.
    let mut tries = 0;
    while let Err(fault) = append(&log, "in", "again").await {
        assert_eq!(fault.code, "P0203");
        tries += 1;
        assert!(tries < 10_000, "no room comes back: {} used", disk.used());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_paused_pipeline_that_filled_the_disk_recovers_by_working() {
    run(check_recovers_by_working(false));
}

#[test]
fn so_does_one_that_writes_into_the_same_log() {
    run(check_recovers_by_working(true));
}

#[test]
fn the_last_of_the_reserve_lets_segments_go() {
    run(async {
        let disk = FaultyDisk::new();
        let options = Options { retention_age: Some(Duration::from_secs(60)), ..small() };
        let clock = TestClock::new();
        let log =
            EmbeddedLog::open_on(Arc::new(disk.clone()), dir(), options, clock.clone()).unwrap();
        let member = Member::open(&log, spec("g", &["in"])).await.unwrap();
        for n in 0..60 {
            append(&log, "noise", &format!("<{n}>")).await.unwrap();
        }
        // Nothing is left: the reserve is spent too, and not a byte is free.
        disk.set_capacity(Some(disk.used()));
        while append(&log, "in", "<more>").await.is_ok() {}
        let fill = |n: u64| Transaction {
            outputs: vec![output("out", None, &format!("{n}").repeat(50))],
            ended: vec![EndedOffsets {
                partition: member.assigned.keys().next().unwrap().clone(),
                assignment: member.assigned.values().next().unwrap().nonce,
                ranges: std::iter::once(1_000 + n..1_001 + n).collect(),
            }],
        };
        let mut n = 0;
        while member.open.journal.transact(&fill(n)).await.is_ok() {
            n += 1;
        }
        let before = disk.used();
        disk.set_capacity(Some(before));
        clock.advance(Duration::from_secs(3_600));
        log.retain_now().await;
        assert!(disk.used() < before, "segments that nobody needs must go: {before}");
    });
}

/// Fills the disk, by appends or by what a feed offers, until it is refused as an outage.
async fn fill(log: &EmbeddedLog, member: &Member, by_offers: bool) {
    loop {
        let fault = if by_offers {
            let offered = [output("in", None, "<more>")];
            match member.open.journal.offer(&offered, OfferMode::Run).await.pop() {
                Some(OfferOutcome::Written) => continue,
                Some(OfferOutcome::Unsent(fault)) => fault,
                other => panic!("{other:?}"),
            }
        } else {
            match append(log, "in", "<more>").await {
                Ok(_) => continue,
                Err(fault) => fault,
            }
        };
        assert_eq!((fault.next, fault.code), (Move::Wait, "P0203"), "{fault}");
        return;
    }
}

/// What comes out of a table is new to the log, like any append: the naive version spends on it what
/// those need who work the disk off.
#[test]
fn neither_appends_nor_offers_eat_the_reserve() {
    run(check_reserve_is_kept(false));
    run(check_reserve_is_kept(true));
}

async fn check_reserve_is_kept(by_offers: bool) {
    let disk = FaultyDisk::new();
    let log = open(&disk);
    let member = Member::open(&log, spec("g", &["in"])).await.unwrap();
    append(&log, "in", "<first>").await.unwrap();
    disk.set_capacity(Some(disk.used() + 2_000));
    fill(&log, &member, by_offers).await;
    let ended = |from: u64| Transaction {
        outputs: Vec::new(),
        ended: member
            .assigned
            .values()
            .map(|assignment| EndedOffsets {
                partition: assignment.partition.clone(),
                assignment: assignment.nonce,
                // Not those that are there, or retention would make room.
                ranges: std::iter::once(1_000 + from..1_001 + from).collect(),
            })
            .collect(),
    };
    // Many endings fit into the reserve; in between, what is new is refused every time.
    for n in 0..15 {
        member.open.journal.transact(&ended(n)).await.unwrap();
        fill(&log, &member, by_offers).await;
        assert!(log.trouble().is_some());
    }
    assert_eq!(log.ended("g", "in", 0).await.unwrap().first_gap(1_000), 1_015);
}
