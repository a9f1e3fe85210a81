//! Consumer groups: where they start, what they remember, who may note what.

use std::collections::BTreeSet;

use potok_connectors::embedded::{EmbeddedLog, Options};
use potok_core::{
    ConsumerGroupSpec, EndedOffsets, Log, Move, Partition, Position, RangeSet, Record, Transaction,
};
use potok_testkit::FaultyDisk;

use super::support::*;

fn one() -> Options {
    Options { partitions: 1, ..small() }
}

fn partition(topic: &str) -> Partition {
    Partition { topic: topic.into(), index: 0 }
}

fn ended(member: &Member, topic: &str, ranges: &[(u64, u64)]) -> EndedOffsets {
    let partition = partition(topic);
    EndedOffsets {
        assignment: member.assigned[&partition].nonce,
        partition,
        ranges: ranges.iter().map(|(from, to)| *from..*to).collect(),
    }
}

async fn fill(log: &EmbeddedLog, topic: &str, count: u64) {
    for n in 0..count {
        append(log, topic, &n.to_string()).await.unwrap();
    }
}

fn offsets(records: &[(Position, Record)]) -> Vec<u64> {
    records.iter().map(|(position, _)| position.offset).collect()
}

#[test]
fn progress_outputs_and_holes_survive_reopening() {
    run(async {
        let disk = FaultyDisk::new();
        {
            let log = open_with(&disk, one()).unwrap();
            fill(&log, "in", 20).await;
            let mut member = Member::open(&log, spec("g", &["in"])).await.unwrap();
            assert_eq!(offsets(&member.take(20).await), (0..20).collect::<Vec<_>>());
            let transaction = Transaction {
                outputs: vec![output("out", None, "a"), output("out", None, "b")],
                ended: vec![ended(&member, "in", &[(0, 3), (5, 7), (9, 10)])],
            };
            let written = member.open.journal.transact(&transaction).await.unwrap();
            assert_eq!(written.iter().map(|p| p.offset).collect::<Vec<_>>(), [0, 1]);
            let more =
                Transaction { outputs: Vec::new(), ended: vec![ended(&member, "in", &[(3, 4)])] };
            assert_eq!(member.open.journal.transact(&more).await.unwrap(), []);
            // Enough to roll, so that the checkpoint has to carry it too.
            fill(&log, "noise", 60).await;
        }
        for _ in 0..2 {
            let log = open_with(&disk, one()).unwrap();
            let expected: RangeSet = [0..4, 5..7, 9..10].into_iter().collect();
            assert_eq!(log.ended("g", "in", 0).await.unwrap(), expected);
            let groups = log.consumer_groups().await.unwrap();
            let at = &groups[0].partitions[0];
            assert_eq!((at.committed, at.acknowledged_ahead, at.end), (4, 3, 20));
            assert_eq!(groups[0].info, spec("g", &[]).info);
            assert!(!groups[0].open);
            let mut member = Member::open(&log, spec("g", &["in"])).await.unwrap();
            let assignment = &member.assigned[&partition("in")];
            assert_eq!(assignment.start, 4);
            assert_eq!(assignment.ended, [5..7, 9..10].into_iter().collect());
            assert_eq!(offsets(&member.take(16).await), (4..20).collect::<Vec<_>>());
            assert_eq!(values(&log, "out").await.len(), 2);
        }
    });
}

#[test]
fn a_fresh_group_starts_at_the_earliest_or_where_the_end_was() {
    run(async {
        let disk = FaultyDisk::new();
        {
            let log = open_with(&disk, one()).unwrap();
            fill(&log, "in", 5).await;
            let late = ConsumerGroupSpec { from_end: true, ..spec("late", &["in", "unborn"]) };
            let member = Member::open(&log, late).await.unwrap();
            assert_eq!(member.assigned[&partition("in")].start, 5);
            assert_eq!(member.assigned[&partition("unborn")].start, 0);
        }
        // Killed before anything ended: the end has not moved.
        let log = open_with(&disk, one()).unwrap();
        fill(&log, "in", 3).await;
        let late = ConsumerGroupSpec { from_end: true, ..spec("late", &["in", "unborn"]) };
        let mut member = Member::open(&log, late).await.unwrap();
        assert_eq!(offsets(&member.take(3).await), [5, 6, 7]);
        append(&log, "unborn", "x").await.unwrap();
        assert_eq!(offsets(&member.take(1).await), [0]);
        let mut early = Member::open(&log, spec("early", &["in"])).await.unwrap();
        assert_eq!(offsets(&early.take(8).await), (0..8).collect::<Vec<_>>());
    });
}

#[test]
fn a_group_is_open_once_and_old_journals_note_nothing() {
    run(async {
        let log = open_with(&FaultyDisk::new(), one()).unwrap();
        fill(&log, "in", 4).await;
        let old = Member::open(&log, spec("g", &["in"])).await.unwrap();
        let Err(fault) = log.open_group(spec("g", &["in"])).await else { panic!("it is open") };
        assert_eq!((fault.next, fault.code), (Move::Fix, "P0208"));
        assert_eq!(log.delete_consumer_group("g").await.unwrap_err().code, "P0208");
        assert!(log.consumer_groups().await.unwrap()[0].open);

        // The source may go before the last endings are noted.
        let Member { open, assigned } = old;
        drop(open.source);
        assert!(!log.consumer_groups().await.unwrap()[0].open);
        let old = assigned[&partition("in")].nonce;
        let note = |assignment: u64, to: u64| Transaction {
            outputs: vec![output("out", None, "x")],
            ended: vec![EndedOffsets {
                partition: partition("in"),
                assignment,
                ranges: vec![0..to],
            }],
        };
        open.journal.transact(&note(old, 1)).await.unwrap();
        assert_eq!(log.ended("g", "in", 0).await.unwrap().first_gap(0), 1);

        let new = Member::open(&log, spec("g", &["in"])).await.unwrap();
        assert_eq!(new.assigned[&partition("in")].start, 1);
        // Now it counts for nothing; the outputs are still written.
        assert_eq!(open.journal.transact(&note(old, 2)).await.unwrap().len(), 1);
        assert_eq!(log.ended("g", "in", 0).await.unwrap().first_gap(0), 1);
        // A nonce that is not this assignment's is ignored by the new journal too.
        new.open.journal.transact(&note(old, 3)).await.unwrap();
        assert_eq!(log.ended("g", "in", 0).await.unwrap().first_gap(0), 1);
        new.open.journal.transact(&note(new.assigned[&partition("in")].nonce, 3)).await.unwrap();
        assert_eq!(log.ended("g", "in", 0).await.unwrap().first_gap(0), 3);
        assert_eq!(values(&log, "out").await.len(), 4);
    });
}

#[test]
fn a_cancelled_opening_leaves_the_group_free() {
    run(async {
        let log = open_with(&FaultyDisk::new(), one()).unwrap();
        for _ in 0..200 {
            let opening = log.open_group(spec("g", &["in"]));
            let _ = tokio::time::timeout(std::time::Duration::ZERO, opening).await;
        }
        // The writer may still be about to answer the last of them.
        while let Err(fault) = Member::open(&log, spec("g", &["in"])).await {
            assert_eq!(fault.code, "P0208");
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn pausing_holds_batches_back_and_cancelling_loses_none() {
    run(async {
        let log = open_with(&FaultyDisk::new(), one()).unwrap();
        let mut member = Member::open(&log, spec("g", &["in"])).await.unwrap();
        member.open.source.set_paused(true);
        fill(&log, "in", 3).await;
        let wait = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(wait, member.open.source.next()).await.is_err());
        assert_eq!(member.open.source.ends()[0].end, 3);
        member.open.source.set_paused(false);
        let mut seen = Vec::new();
        while seen.len() < 3 {
            // Cancelled over and over, also while a read is under way.
            let next = tokio::time::timeout(std::time::Duration::from_micros(1), member.batch());
            if let Ok(batch) = next.await {
                seen.extend(batch.unwrap().records.iter().map(|record| record.offset));
            }
        }
        assert_eq!(seen, [0, 1, 2]);
    });
}

#[test]
fn forgetting_a_group_forgets_its_progress() {
    run(async {
        let disk = FaultyDisk::new();
        let log = open_with(&disk, one()).unwrap();
        assert_eq!(log.delete_consumer_group("g").await.unwrap_err().code, "P0209");
        fill(&log, "in", 4).await;
        let member = Member::open(&log, spec("g", &["in"])).await.unwrap();
        let transaction =
            Transaction { outputs: Vec::new(), ended: vec![ended(&member, "in", &[(0, 4)])] };
        member.open.journal.transact(&transaction).await.unwrap();
        drop(member);
        log.delete_consumer_group("g").await.unwrap();
        assert!(log.consumer_groups().await.unwrap().is_empty());
        assert_eq!(log.ended("g", "in", 0).await.unwrap_err().code, "P0209");
        drop(log);
        let log = open_with(&disk, one()).unwrap();
        assert!(log.consumer_groups().await.unwrap().is_empty());
        let mut member = Member::open(&log, spec("g", &["in"])).await.unwrap();
        assert_eq!(offsets(&member.take(4).await), [0, 1, 2, 3]);
    });
}

#[test]
fn a_group_that_reads_other_topics_now_remembers_the_old_ones() {
    run(async {
        let disk = FaultyDisk::new();
        let log = open_with(&disk, one()).unwrap();
        fill(&log, "a", 3).await;
        fill(&log, "b", 3).await;
        let member = Member::open(&log, spec("g", &["a", "a"])).await.unwrap();
        let transaction =
            Transaction { outputs: Vec::new(), ended: vec![ended(&member, "a", &[(0, 2)])] };
        member.open.journal.transact(&transaction).await.unwrap();
        drop(member);
        let mut member = Member::open(&log, spec("g", &["b"])).await.unwrap();
        let topics: BTreeSet<String> =
            member.take(3).await.iter().map(|(position, _)| position.topic.to_string()).collect();
        assert_eq!(topics, BTreeSet::from(["b".to_owned()]));
        drop(member);
        let mut member = Member::open(&log, spec("g", &["a", "b"])).await.unwrap();
        assert_eq!(member.assigned[&partition("a")].start, 2);
        assert_eq!(member.take(4).await.len(), 4);
    });
}
