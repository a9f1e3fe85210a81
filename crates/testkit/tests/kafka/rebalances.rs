//! Members that come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use potok_connectors::kafka::KafkaLog;
use potok_core::{Log, Partition};

use crate::setup::{Member, PATIENCE, blocking, log_with, positions, records, spec, topic, unique};

/// What members saw together: each record at least once, and in order within each assignment.
type SeenRecords = Vec<(Partition, u64, String)>;

fn all_came(seen: &SeenRecords, partitions: u32, each: u64) {
    let found: BTreeSet<(u32, u64)> =
        seen.iter().map(|(p, offset, _)| (p.index, *offset)).collect();
    for partition in 0..partitions {
        for offset in 0..each {
            assert!(found.contains(&(partition, offset)), "{partition}/{offset} never came");
        }
    }
}

/// Interleaving 19, faster: a second member comes and goes every few hundred milliseconds while
/// records flow. Nothing is skipped, everything ends, each member sees a partition in order.
async fn churn(properties: &'static [(&'static str, &'static str)]) {
    const PARTITIONS: u32 = 4;
    const EACH: u64 = 3_000;
    let topic = topic("churn", PARTITIONS).await;
    let group = unique("churn");
    let steady = log_with(properties).await;
    let mut member = Member::open(&steady, spec(&group, &topic, false)).await;

    let sending = tokio::spawn(send(steady.clone(), topic.clone(), PARTITIONS, EACH));
    let done = Arc::new(AtomicBool::new(false));
    let guest = tokio::spawn({
        let (group, topic, done) = (group.clone(), topic.clone(), done.clone());
        async move {
            let mut all: Vec<SeenRecords> = Vec::new();
            while !done.load(Ordering::Acquire) {
                let log = log_with(properties).await;
                let mut guest = Member::open(&log, spec(&group, &topic, false)).await;
                // Long enough to be given something, whatever else the machine does.
                let given = guest.until("partitions", |member| !member.assigned.is_empty());
                let _ = tokio::time::timeout(Duration::from_secs(5), given).await;
                guest.for_a_while(Duration::from_millis(600)).await;
                all.push(std::mem::take(&mut guest.seen));
                drop(guest);
                blocking(move || drop(log)).await;
            }
            all
        }
    });
    let finished = async {
        let mut checked = tokio::time::Instant::now();
        loop {
            let _ = tokio::time::timeout(Duration::from_millis(100), member.step()).await;
            if checked.elapsed() > Duration::from_millis(500) && sending.is_finished() {
                let at = positions(&steady, &group).await;
                if at.len() == PARTITIONS as usize && at.values().all(|position| *position == EACH)
                {
                    break;
                }
                checked = tokio::time::Instant::now();
            }
        }
    };
    tokio::time::timeout(2 * PATIENCE, finished).await.expect("everything ends");
    done.store(true, Ordering::Release);
    member.for_a_while(Duration::from_secs(2)).await;
    let guests = guest.await.unwrap();
    assert!(member.revoked > 0, "nothing was ever taken away");
    assert_eq!(member.lost, 0, "partitions were lost instead of handed over");
    assert!(guests.iter().any(|seen| !seen.is_empty()), "no guest ever read anything");
    let mut together = member.seen.clone();
    together.extend(guests.into_iter().flatten());
    all_came(&together, PARTITIONS, EACH);
    // Handed over in good order, a partition is read once: what ended is never read again.
    assert_eq!(together.len() as u64, u64::from(PARTITIONS) * EACH, "records came twice");
}

async fn send(log: Arc<KafkaLog>, topic: String, partitions: u32, each: u64) {
    for n in 0..each / 100 {
        for partition in 0..partitions {
            let values = n * 100..(n + 1) * 100;
            log.append(&records(&topic, partition, values)).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_come_and_go_cooperatively() {
    churn(&[("heartbeat.interval.ms", "200")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_come_and_go_eagerly() {
    const EAGER: (&str, &str) = ("partition.assignment.strategy", "range,roundrobin");
    churn(&[EAGER, ("heartbeat.interval.ms", "200")]).await;
}

/// A static member that comes back in time finds its partitions, and nobody else noticed.
#[tokio::test(flavor = "multi_thread")]
async fn a_static_member_returns_without_a_rebalance() {
    let topic = topic("static", 4).await;
    let group = unique("static");
    let one = log_with(&[("group.instance.id", "one")]).await;
    let two = log_with(&[("group.instance.id", "two")]).await;
    let mut first = Member::open(&one, spec(&group, &topic, false)).await;
    first.until("all partitions", |member| topics(member) == 4).await;
    let mut second = Member::open(&two, spec(&group, &topic, false)).await;
    let shared = async {
        while topics(&first) != 2 || topics(&second) != 2 {
            tokio::select! {
                () = first.step() => {}
                () = second.step() => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, shared).await.expect("the partitions are shared");
    let mine: BTreeSet<Partition> = partitions(&second);
    let before = (first.revoked, first.lost);
    drop(second);
    blocking(move || drop(two)).await;
    let two = log_with(&[("group.instance.id", "two")]).await;
    let mut second = Member::open(&two, spec(&group, &topic, false)).await;
    second.until("the same partitions", |member| partitions(member) == mine).await;
    one.append(&records(&topic, 0, 0..3)).await.unwrap();
    one.append(&records(&topic, 3, 0..3)).await.unwrap();
    let read = async {
        while first.seen.len() + second.seen.len() < 6 {
            tokio::select! {
                () = first.step() => {}
                () = second.step() => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("all records come");
    assert_eq!((first.revoked, first.lost), before, "the other member was disturbed");
}

fn partitions(member: &Member) -> BTreeSet<Partition> {
    let ours = member.assigned.values().map(|assignment| assignment.partition.clone());
    ours.filter(|partition| !partition.topic.ends_with("-replay")).collect()
}

fn topics(member: &Member) -> usize {
    partitions(member).len()
}

/// Pausing is level-triggered: what is assigned while paused is paused too, and lifted with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_member_stays_paused_through_rebalances_and_never_stops_polling() {
    let topic = topic("paused", 4).await;
    let group = unique("paused");
    // Polling must go on: a member that does not poll for ten seconds is put out.
    let quick = &[("max.poll.interval.ms", "10000"), ("session.timeout.ms", "6000")];
    let one = log_with(quick).await;
    let two = log_with(quick).await;
    let mut first = Member::open(&one, spec(&group, &topic, false)).await;
    let mut second = Member::open(&two, spec(&group, &topic, false)).await;
    first.source.set_paused(true);
    let shared = async {
        while topics(&first) != 2 || topics(&second) != 2 {
            tokio::select! {
                () = first.step() => {}
                () = second.step() => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, shared).await.expect("the partitions are shared");
    let large = "x".repeat(100_000);
    for partition in 0..4 {
        let values: Vec<String> = (0..100).map(|n| format!("{n} {large}")).collect();
        for values in values.chunks(10) {
            one.append(&records(&topic, partition, values)).await.unwrap();
        }
    }
    // The engine goes on calling, as it does while a destination is away.
    let both = async {
        tokio::join!(
            first.for_a_while(Duration::from_secs(14)),
            second.for_a_while(Duration::from_secs(14)),
        );
    };
    both.await;
    assert!(first.seen.is_empty(), "paused, {} records came", first.seen.len());
    assert_eq!((first.lost, second.lost), (0, 0), "somebody was put out");
    assert_eq!(second.seen.len(), 200, "the other member reads on");
    // All partitions come to the paused one.
    drop(second);
    blocking(move || drop(two)).await;
    first.until("all partitions", |member| topics(member) == 4).await;
    first.for_a_while(Duration::from_secs(2)).await;
    assert!(first.seen.is_empty(), "paused, {} records came", first.seen.len());
    first.source.set_paused(false);
    first.until("all the rest", |member| member.seen.len() == 200).await;
    let mut last: BTreeMap<u32, u64> = BTreeMap::new();
    for (partition, offset, _) in &first.seen {
        if let Some(before) = last.insert(partition.index, *offset) {
            assert!(before < *offset, "{partition}: {offset} came behind {before}");
        }
    }
}

/// A partition that leaves while its member is full, and comes back when it is not, is read on: the
/// client keeps the pause of a partition that is away.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_left_while_paused_is_read_when_it_returns() {
    let topic = topic("returns", 4).await;
    let group = unique("returns");
    let (one, two) = (log_with(&[]).await, log_with(&[]).await);
    let mut first = Member::open(&one, spec(&group, &topic, false)).await;
    first.until("all partitions", |member| topics(member) == 4).await;
    first.source.set_paused(true);
    let large = "x".repeat(100_000);
    for partition in 0..4 {
        for n in 0..10 {
            let values = (0..10).map(|m| format!("{} {large}", n * 10 + m));
            one.append(&records(&topic, partition, values)).await.unwrap();
        }
    }
    // More than it takes without an engine that takes it: it stops fetching.
    first.for_a_while(Duration::from_secs(3)).await;
    let mut second = Member::open(&two, spec(&group, &topic, false)).await;
    let shared = async {
        while topics(&first) != 2 || topics(&second) != 2 {
            tokio::select! {
                () = first.step() => {}
                () = second.step() => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, shared).await.expect("the partitions are shared");
    first.source.set_paused(false);
    let read = async {
        while first.seen.len() < 200 || second.seen.len() < 200 {
            tokio::select! {
                () = first.step() => {}
                () = second.step() => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("each reads its part");
    drop(second);
    blocking(move || drop(two)).await;
    first.until("all partitions", |member| topics(member) == 4).await;
    for partition in 0..4 {
        one.append(&records(&topic, partition, ["late"])).await.unwrap();
    }
    let late = |member: &Member| member.seen.iter().filter(|(_, _, value)| value == "late").count();
    first.until("a record of each partition", |member| late(member) == 4).await;
}
