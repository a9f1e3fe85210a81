//! What goes, what stays, and that readers do not notice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use potok_connectors::embedded::{Disk, EmbeddedLog, Options};
use potok_core::{EndedOffsets, Log, Output, Position, ReadFrom, Store, Transaction};
use potok_testkit::{FaultyDisk, PowerCut};

use super::support::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn hourly() -> Options {
    Options { retention_age: Some(HOUR), ..small() }
}

struct Bench {
    disk: FaultyDisk,
    clock: Arc<TestClock>,
    log: Arc<EmbeddedLog>,
}

impl Bench {
    fn new(options: Options) -> Bench {
        Bench::on(FaultyDisk::new(), options)
    }

    fn on(disk: FaultyDisk, options: Options) -> Bench {
        let clock = TestClock::new();
        let log = EmbeddedLog::open_on(Arc::new(disk.clone()), dir(), options, clock.clone());
        Bench { disk, clock, log: log.unwrap() }
    }

    async fn fill(&self, topic: &str, count: usize) -> BTreeMap<Position, String> {
        let mut acked = BTreeMap::new();
        for n in 0..count {
            let value = format!("{topic} number {n}");
            acked.insert(append(&self.log, topic, &value).await.unwrap(), value);
        }
        acked
    }

    async fn older(&self, by: Duration) {
        self.clock.advance(by);
        self.log.retain_now().await;
    }
}

/// Notes that all of these have ended.
async fn end(member: &Member, positions: &BTreeSet<Position>) {
    let transaction = Transaction { outputs: Vec::new(), ended: ended_of(member, positions) };
    member.open.journal.transact(&transaction).await.unwrap();
}

fn ended_of(member: &Member, positions: &BTreeSet<Position>) -> Vec<EndedOffsets> {
    let ended = positions.iter().map(|position| {
        let partition =
            potok_core::Partition { topic: position.topic.clone(), index: position.partition };
        EndedOffsets {
            assignment: member.assigned[&partition].nonce,
            partition,
            ranges: std::iter::once(position.offset..position.offset + 1).collect(),
        }
    });
    ended.collect()
}

#[test]
fn old_records_go_and_others_stay() {
    run(async {
        let bench = Bench::new(hourly());
        bench.fill("t", 100).await;
        let before = bench.disk.used();
        bench.older(HOUR / 2).await;
        assert_eq!(values(&bench.log, "t").await.len(), 100);
        bench.older(HOUR).await;
        let left = values(&bench.log, "t").await;
        assert!(left.len() < 50 && !left.is_empty(), "the newest two segments stay");
        assert!(bench.disk.used() < before / 2);
        assert!(segments(&bench.disk).len() <= 3);
        // The offsets are what they were, and the next one too.
        let newest = bench.fill("t", 1).await;
        assert!(newest.keys().all(|position| position.offset >= 40));
        bench.log.retain_now().await;
        let left = values(&bench.log, "t").await;
        let clean = Bench::on(bench.disk.copy(), hourly());
        assert!(clean.log.damage().is_empty(), "{:?}", clean.log.damage());
        assert_eq!(values(&clean.log, "t").await.len(), left.len());
    });
}

#[test]
fn the_log_is_kept_below_its_size() {
    run(async {
        let bench = Bench::new(Options { retention_bytes: Some(8_000), ..small() });
        bench.fill("t", 400).await;
        bench.log.retain_now().await;
        let size: usize = segments(&bench.disk).iter().map(|p| bench.disk.contents(p).len()).sum();
        assert!(size < 11_000, "{size}");
        assert!(!values(&bench.log, "t").await.is_empty());
    });
}

#[test]
fn a_paused_pipeline_holds_its_records_and_not_the_disk() {
    run(async {
        // Large enough that checkpoints are small beside the records.
        let hourly = || Options { segment_bytes: 8_000, ..hourly() };
        let bench = Bench::new(hourly());
        // One slow record in twenty, in every segment.
        let mut slow = BTreeMap::new();
        let paused = Member::open(&bench.log, spec("slow", &["slow"])).await.unwrap();
        let quick = Member::open(&bench.log, spec("quick", &["busy"])).await.unwrap();
        let mut busy = BTreeSet::new();
        for _ in 0..60 {
            slow.extend(bench.fill("slow", 1).await);
            busy.extend(bench.fill("busy", 19).await.into_keys());
        }
        let mut rest = busy.into_iter().peekable();
        while rest.peek().is_some() {
            end(&quick, &rest.by_ref().take(50).collect()).await;
        }
        let before = bench.disk.used();
        bench.older(HOUR * 2).await;
        assert!(bench.disk.used() < before / 2, "{} of {before}", bench.disk.used());
        // All of them, at the same offsets, in the same order, with the same time.
        assert_eq!(values(&bench.log, "slow").await, slow);
        let offsets = |records: Vec<(Position, potok_core::Record)>| -> Vec<(u32, u64, i64)> {
            records.iter().map(|(p, r)| (p.partition, p.offset, r.time.0)).collect()
        };
        let read = offsets(read_all(&bench.log, "slow").await);
        assert!(read.iter().all(|(_, _, time)| *time == 1_700_000_000_000));
        let store = bench.log.store();
        let positions: Vec<Position> = slow.keys().cloned().collect();
        let loaded = store.load(&owner(1), &places(&positions)).await.unwrap();
        let loaded: Vec<String> = loaded.into_iter().map(|record| text(&record.unwrap())).collect();
        assert_eq!(loaded, slow.values().cloned().collect::<Vec<_>>());
        // Looking again finds nothing more to do.
        let quiet = bench.disk.operations();
        bench.log.retain_now().await;
        assert_eq!(bench.disk.operations(), quiet);

        // The same after reopening, and the group goes on with them.
        drop((paused, quick));
        let disk = bench.disk.copy();
        drop(bench);
        let bench = Bench::on(disk, hourly());
        assert!(bench.log.damage().is_empty(), "{:?}", bench.log.damage());
        assert_eq!(values(&bench.log, "slow").await, slow);
        let mut member = Member::open(&bench.log, spec("slow", &["slow"])).await.unwrap();
        let taken = member.take(slow.len()).await;
        end(&member, &taken.into_iter().map(|(position, _)| position).collect()).await;
        bench.older(HOUR * 2).await;
        bench.fill("busy", 60).await;
        bench.older(HOUR * 2).await;
        assert!(values(&bench.log, "slow").await.len() < 5, "what has ended goes at last");
    });
}

#[test]
fn readers_read_on_while_segments_are_rewritten() {
    run(async {
        let bench = Bench::new(hourly());
        let group = Member::open(&bench.log, spec("g", &["t"])).await.unwrap();
        let all = bench.fill("t", 200).await;
        // Every seventh stays.
        let ended: BTreeSet<Position> =
            all.keys().enumerate().filter(|(n, _)| n % 7 != 0).map(|(_, p)| p.clone()).collect();
        let mut reader = bench.log.read("t", ReadFrom::Start).await.unwrap();
        let first = reader.next(false).await.unwrap().unwrap();
        end(&group, &ended).await;
        bench.older(HOUR * 2).await;
        // Those behind the first batch that are pinned all come, each once, in order.
        let mut seen: Vec<Position> =
            first.records.iter().map(|record| first.position(record)).collect();
        while let Some(batch) = reader.next(false).await.unwrap() {
            check_batch(&batch).unwrap();
            seen.extend(batch.records.iter().map(|record| batch.position(record)));
        }
        let once: BTreeSet<&Position> = seen.iter().collect();
        assert_eq!(once.len(), seen.len());
        for pinned in all.keys().filter(|position| !ended.contains(*position)) {
            assert!(once.contains(pinned), "{pinned}");
        }
    });
}

#[test]
fn dead_letters_and_their_resolutions_never_go_by_age() {
    run(async {
        let bench = Bench::new(hourly());
        let member = Member::open(&bench.log, spec("g", &["in"])).await.unwrap();
        let mut kept = BTreeMap::new();
        for topic in ["g-dead", "g-dead-resolved", "g-replay", "potok-dead"] {
            kept.extend(bench.fill(topic, 3).await);
        }
        bench.fill("noise", 100).await;
        drop(member);
        // Also when the pipeline is forgotten.
        bench.log.delete_consumer_group("g").await.unwrap();
        bench.older(HOUR * 100).await;
        let mut found = BTreeMap::new();
        for topic in ["g-dead", "g-dead-resolved", "g-replay", "potok-dead"] {
            found.extend(values(&bench.log, topic).await);
        }
        assert_eq!(found, kept);
        assert!(values(&bench.log, "noise").await.len() < 40);
    });
}

#[test]
fn a_forgotten_group_holds_nothing() {
    run(async {
        let bench = Bench::new(hourly());
        drop(Member::open(&bench.log, spec("g", &["t"])).await.unwrap());
        bench.fill("t", 100).await;
        bench.older(HOUR * 2).await;
        assert_eq!(values(&bench.log, "t").await.len(), 100);
        bench.log.delete_consumer_group("g").await.unwrap();
        bench.log.retain_now().await;
        assert!(values(&bench.log, "t").await.len() < 50);
        // A group that comes later starts at what is left, without lag for what is not.
        let mut late = Member::open(&bench.log, spec("late", &["t"])).await.unwrap();
        let left = values(&bench.log, "t").await;
        let info = bench.log.consumer_groups().await.unwrap();
        let lag: u64 = info[0].partitions.iter().map(|p| p.end - p.committed).sum();
        assert_eq!(lag as usize, left.len());
        late.take(left.len()).await;
    });
}

/// What is in a topic, when each record comes once and in order.
async fn once(log: &EmbeddedLog, topic: &str) -> BTreeMap<Position, String> {
    let all = read_all(log, topic).await;
    let mut last = BTreeMap::new();
    for (position, _) in &all {
        let before = last.insert(position.partition, position.offset);
        assert!(
            before.is_none_or(|before| before < position.offset),
            "{position} after {before:?}"
        );
    }
    all.into_iter().map(|(position, record)| (position, text(&record))).collect()
}

#[test]
fn power_cuts_during_retention_lose_nothing_that_is_held() {
    run(async {
        let build = || async {
            let bench = Bench::new(hourly());
            let slow = Member::open(&bench.log, spec("slow", &["slow"])).await.unwrap();
            let mut held = BTreeMap::new();
            for round in 0..6 {
                held.extend(bench.fill("slow", 1).await);
                if round % 2 == 0 {
                    held.extend(bench.fill("slow-dead", 1).await);
                }
                bench.fill("noise", 20).await;
            }
            drop(slow);
            bench.clock.advance(HOUR * 2);
            (bench, held)
        };
        let held_in = |log: Arc<EmbeddedLog>| async move {
            let mut held = once(&log, "slow").await;
            held.extend(once(&log, "slow-dead").await);
            held
        };
        let (bench, _) = build().await;
        let start = bench.disk.operations();
        bench.log.retain_now().await;
        let operations = bench.disk.operations() - start;
        assert!(operations > 10);
        for cut in 0..operations {
            for torn in [
                PowerCut::Nothing,
                PowerCut::Everything,
                PowerCut::Some(cut),
                PowerCut::Some(cut + 1_000),
            ] {
                let (bench, held) = build().await;
                bench.disk.cut_at(bench.disk.operations() + cut);
                bench.log.retain_now().await;
                let left = bench.disk.power_cut(torn);
                drop(bench);
                // Opened twice: what was left over goes in the first, and is not missed later.
                let first = Bench::on(left, hourly());
                // At most the log's own note that a segment goes was cut short.
                let tail = first.log.damage().iter().all(|damage| damage.tail);
                assert!(tail, "cut {cut}, {torn:?}: {:?}", first.log.damage());
                let damage = first.log.damage().len();
                assert_eq!(held_in(first.log.clone()).await, held, "cut {cut}, {torn:?}");
                first.log.retain_now().await;
                assert_eq!(held_in(first.log.clone()).await, held, "cut {cut}, {torn:?}");
                let left = first.disk.power_cut(torn);
                drop(first);
                let after = Bench::on(left, hourly());
                assert_eq!(held_in(after.log.clone()).await, held, "cut {cut}, {torn:?}");
                after.older(HOUR * 4).await;
                assert_eq!(held_in(after.log.clone()).await, held, "cut {cut}, {torn:?}");
                assert_eq!(after.log.damage().len(), damage, "{:?}", after.log.damage());
                assert!(segments(&after.disk).len() <= 5, "{:?}", segments(&after.disk));
                after.fill("noise", 30).await;
            }
        }
    });
}

#[test]
fn a_dead_letter_now_and_then_does_not_hold_a_file_each() {
    run(async {
        const SEGMENT: u64 = 8_000;
        let options = || Options { segment_bytes: SEGMENT, ..hourly() };
        let bench = Bench::new(options());
        let member = Member::open(&bench.log, spec("g", &["in"])).await.unwrap();
        let (mut letters, mut most) = (BTreeMap::new(), 0);
        // Each turn fills a segment; every fifth has a dead letter.
        let noise = "x".repeat(SEGMENT as usize);
        for turn in 0..2_500 {
            append(&bench.log, "noise", &noise).await.unwrap();
            if turn % 5 == 0 {
                let value = format!("dead {turn}");
                letters.insert(append(&bench.log, "g-dead", &value).await.unwrap(), value);
            }
            bench.clock.advance(HOUR * 2);
            if turn % 25 == 0 {
                bench.log.retain_now().await;
                // A dead letter takes some 200 bytes with its frame and its place in the index.
                let live = letters.len() as u64 * 200;
                let files = segments(&bench.disk).len() as u64;
                assert!(files <= 2 * live / SEGMENT + 12, "{files} files, {live} bytes");
                most = most.max(files);
            }
        }
        assert!(most < 30, "{most} files");
        assert_eq!(once(&bench.log, "g-dead").await, letters);
        // Bodies are found as well, and nothing more is to be done.
        let positions: Vec<Position> = letters.keys().cloned().collect();
        let loaded = bench.log.store().load(&owner(1), &places(&positions)).await.unwrap();
        assert!(loaded.iter().all(Option::is_some));
        bench.log.retain_now().await;
        let quiet = bench.disk.operations();
        bench.log.retain_now().await;
        assert_eq!(bench.disk.operations(), quiet);
        // The same after reopening; and the topic is written on behind them.
        drop(member);
        let disk = bench.disk.copy();
        drop(bench);
        let bench = Bench::on(disk, options());
        assert!(bench.log.damage().is_empty(), "{:?}", bench.log.damage());
        assert_eq!(once(&bench.log, "g-dead").await, letters);
        let position = append(&bench.log, "g-dead", "one more").await.unwrap();
        letters.insert(position, "one more".to_owned());
        bench.older(HOUR * 20_000).await;
        assert_eq!(once(&bench.log, "g-dead").await, letters);
    });
}

#[test]
fn readers_read_on_while_segments_are_merged() {
    let disk = FaultyDisk::new();
    let clock = TestClock::new();
    let options = Options { segment_bytes: 1_000, ..hourly() };
    let log = EmbeddedLog::open_on(Arc::new(disk.clone()), dir(), options, clock.clone()).unwrap();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(3).enable_all().build().unwrap().block_on(async {
        let _member = Member::open(&log, spec("g", &["in"])).await.unwrap();
        let writer = {
            let log = log.clone();
            tokio::spawn(async move {
                for n in 0..400 {
                    append(&log, "noise", &"x".repeat(900)).await.unwrap();
                    append(&log, "g-dead", &n.to_string()).await.unwrap();
                    clock.advance(HOUR * 2);
                    log.retain_now().await;
                }
            })
        };
        // Whatever is merged under it, a reader sees what was there when it began, once.
        while !writer.is_finished() {
            let ends: u64 = log
                .topics()
                .await
                .unwrap()
                .iter()
                .filter(|t| t.topic == "g-dead")
                .flat_map(|t| &t.ends)
                .sum();
            assert!(once(&log, "g-dead").await.len() as u64 >= ends);
        }
        writer.await.unwrap();
        assert_eq!(once(&log, "g-dead").await.len(), 400);
    });
    assert!(log.damage().is_empty());
}

#[test]
fn damage_is_kept_before_its_segment_goes() {
    run(async {
        let bench = Bench::new(hourly());
        let slow = Member::open(&bench.log, spec("slow", &["slow"])).await.unwrap();
        let mut held = BTreeMap::new();
        for _ in 0..6 {
            held.extend(bench.fill("slow", 1).await);
            bench.fill("noise", 20).await;
        }
        let path = segments(&bench.disk)[0].clone();
        let bytes = bench.disk.contents(&path);
        let at = bytes.windows(14).position(|window| window == b"noise number 2").unwrap();
        bench.disk.overwrite(&path, flip(&bytes, at));
        bench.older(HOUR * 2).await;
        bench.log.retain_now().await;
        append(&bench.log, "noise", "wait for the writer").await.unwrap();
        assert_eq!(bench.log.damage().len(), 1);
        let kept = bench.disk.contents(&dir().join(&bench.log.damage()[0].kept_in));
        assert!(!kept.is_empty());
        assert_eq!(values(&bench.log, "slow").await, held);
        drop(slow);
        // The next opening settles it; then the segment may go.
        let disk = bench.disk.copy();
        drop(bench);
        let after = Bench::on(disk, hourly());
        after.older(HOUR * 2).await;
        assert_eq!(values(&after.log, "slow").await, held);
        assert_eq!(after.log.damage().len(), 1);
        let name = Disk::list(&after.disk, &dir().join("damaged")).unwrap();
        assert_eq!(name.len(), 1);
    });
}

#[test]
fn appends_go_on_while_retention_works() {
    let disk = FaultyDisk::new();
    let clock = TestClock::new();
    let options = Options { retention_bytes: Some(20_000), partitions: 2, ..small() };
    let log = EmbeddedLog::open_on(Arc::new(disk.clone()), dir(), options, clock).unwrap();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(3).enable_all().build().unwrap().block_on(async {
        let mut group = Member::open(&log, spec("g", &["t"])).await.unwrap();
        let writer = {
            let log = log.clone();
            tokio::spawn(async move {
                for n in 0..600 {
                    let outputs: Vec<Output> =
                        vec![output("t", Some("k"), &n.to_string()), output("noise", None, "x")];
                    log.append(&outputs).await.unwrap();
                }
            })
        };
        let mut next = 0;
        while next < 600 {
            let batch = group.batch().await.unwrap();
            for record in &batch.records {
                assert_eq!(text(record), next.to_string());
                next += 1;
            }
            let transaction = Transaction {
                outputs: Vec::new(),
                ended: vec![EndedOffsets {
                    partition: batch.partition.clone(),
                    assignment: batch.assignment,
                    ranges: std::iter::once(batch.first..batch.next).collect(),
                }],
            };
            group.open.journal.transact(&transaction).await.unwrap();
            log.retain_now().await;
        }
        writer.await.unwrap();
    });
    assert!(log.damage().is_empty());
}

/// What a damaged frame had ended is open again from the next start on, however long that takes.
#[test]
fn inputs_of_a_damaged_frame_stay_until_the_next_start() {
    run(async {
        let bench = Bench::new(hourly());
        let inputs = bench.fill("in", 40).await;
        let mut member = Member::open(&bench.log, spec("g", &["in"])).await.unwrap();
        member.take(40).await;
        let all: BTreeSet<Position> = inputs.keys().cloned().collect();
        let first: BTreeSet<Position> = all.iter().take(1).cloned().collect();
        let outputs = vec![output("out", None, "<made of the first>")];
        let ended = |positions: &BTreeSet<Position>| ended_of(&member, positions);
        let transaction = Transaction { outputs, ended: ended(&first) };
        member.open.journal.transact(&transaction).await.unwrap();
        end(&member, &all.difference(&first).cloned().collect()).await;
        // Enough behind it that no segment of all this is among the newest.
        bench.fill("noise", 60).await;

        let made = b"<made of the first>";
        let holding = |path: &std::path::PathBuf| {
            let bytes = bench.disk.contents(path);
            bytes.windows(made.len()).position(|window| window == made).map(|at| (bytes, at))
        };
        let path = segments(&bench.disk).into_iter().find(|path| holding(path).is_some()).unwrap();
        let (bytes, at) = holding(&path).unwrap();
        bench.disk.overwrite(&path, flip(&bytes, at));
        assert_eq!(values(&bench.log, "out").await.len(), 0, "a reader comes upon it");
        append(&bench.log, "noise", "wait for the writer").await.unwrap();
        assert_eq!(bench.log.damage().len(), 1);

        for _ in 0..3 {
            bench.older(HOUR * 2).await;
            bench.fill("noise", 30).await;
        }
        let disk = bench.disk.copy();
        drop(member);
        drop(bench);
        let again = Bench::on(disk, hourly());
        let position = first.first().unwrap();
        let ended = again.log.ended("g", "in", position.partition).await.unwrap();
        assert!(!ended.contains(position.offset), "its output is lost, so it is open again");
        let there = values(&again.log, "in").await;
        assert_eq!(there.get(position), inputs.get(position), "and it is still there");
        // When it has come out again, all goes as ever.
        let mut member = Member::open(&again.log, spec("g", &["in"])).await.unwrap();
        member.batch().await.unwrap();
        end(&member, &first).await;
        let before = segments(&again.disk).len();
        again.clock.advance(HOUR * 20);
        again.fill("noise", 60).await;
        again.older(HOUR * 20).await;
        assert!(segments(&again.disk).len() < before, "nothing is held any more");
    });
}
