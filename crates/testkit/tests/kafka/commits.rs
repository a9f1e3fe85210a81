//! How progress gets into the group.

use std::sync::Arc;

use potok_connectors::kafka::{KafkaConfig, KafkaLog};
use potok_core::{EndedOffsets, Log, Partition, SystemClock, Transaction};
use potok_testkit::services::{Kafka, KafkaOptions, Mode};

use crate::setup::{
    Member, PATIENCE, blocking, config, eventually, log, positions, records, spec, topic, unique,
};

/// Who dies is read again from what is committed, so every ending goes there, not only the first.
#[tokio::test(flavor = "multi_thread")]
async fn what_ends_is_committed_time_and_again() {
    const TIMES: u64 = 20;
    let topic = topic("commits", 1).await;
    let group = unique("commits");
    let (one, another) = (log().await, log().await);
    let mut member = Member::open(&one, spec(&group, &topic, false)).await;
    let all = async {
        for n in 0..TIMES {
            one.append(&records(&topic, 0, [n])).await.unwrap();
            member.until("the record", |member| member.seen.len() as u64 == n + 1).await;
            // Another process knows nothing but what is committed.
            let committed =
                || async { positions(&another, &group).await.get(&0) == Some(&(n + 1)) };
            eventually("its ending is in the group", committed).await;
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("each ending is committed at once");
}

/// A commit may fail while the group rebalances, or because the broker takes less metadata: what
/// it said is said again, though nothing ends any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_was_refused_is_made_again() {
    const RECORDS: u64 = 60;
    let kafka = blocking(|| {
        // Enough for a commit without what ended above.
        let properties = vec![("offset.metadata.max.bytes".to_owned(), "64".to_owned())];
        Kafka::start_with(&KafkaOptions { properties, ..KafkaOptions::default() })
    });
    let kafka = Arc::new(kafka.await);
    let open = || {
        let config = KafkaConfig { servers: kafka.servers(), ..config(&[]) };
        KafkaLog::new(config, Arc::new(SystemClock)).unwrap()
    };
    let (one, another) = (open(), open());
    let (topic, group) = (unique("refused"), unique("refused"));
    one.append(&records(&topic, 0, 0..RECORDS)).await.unwrap();
    let mut member = Member::open(&one, spec(&group, &topic, false)).await;
    member.ends = false;
    member.until("the records", |member| member.seen.len() as u64 == RECORDS).await;
    let place = Partition { topic: topic.as_str().into(), index: 0 };
    let assignment = member.assigned.values().find(|at| at.partition == place).unwrap().nonce;
    let mut ranges: Vec<_> = (1..RECORDS / 2).map(|n| n * 2..n * 2 + 1).collect();
    ranges.insert(0, 0..1);
    let ended = vec![EndedOffsets { partition: place, assignment, ranges }];
    member.journal.transact(&Transaction { outputs: Vec::new(), ended }).await.unwrap();
    let committed = || async { positions(&another, &group).await.get(&0) == Some(&1) };
    eventually("the position is in the group", committed).await;
    drop(member);
    blocking(move || drop((one, another, kafka))).await;
}

/// The broker takes a commit, and its answer is lost: the group goes on behind it, in this process and
/// in the next one.
#[tokio::test(flavor = "multi_thread")]
async fn the_lost_answer_to_a_commit_repeats_nothing() {
    let kafka =
        blocking(|| Kafka::start_with(&KafkaOptions { proxied: true, ..KafkaOptions::default() }));
    let kafka = Arc::new(kafka.await);
    let open = |servers| {
        let config = KafkaConfig { servers, ..config(&[]) };
        KafkaLog::new(config, Arc::new(SystemClock)).unwrap()
    };
    let (log, direct) = (open(kafka.servers()), open(kafka.direct_servers()));
    let (topic, group) = (unique("unheard"), unique("unheard"));
    direct.append(&records(&topic, 0, 0..10)).await.unwrap();
    let committed = |offset: u64| {
        let (log, group) = (&direct, &group);
        async move { positions(log, group).await.get(&0) == Some(&offset) }
    };
    let mut member = Member::open(&log, spec(&group, &topic, false)).await;
    member.ends = false;
    member.until("the records", |member| member.seen.len() == 10).await;
    assert!(!committed(10).await);
    kafka.proxy(0).set(Mode::DropReplies);
    let place = Partition { topic: topic.as_str().into(), index: 0 };
    let nonce = member.assigned.values().find(|at| at.partition == place).unwrap().nonce;
    member.end(&place, nonce, 0..10).await;
    eventually("the broker has it", || committed(10)).await;
    kafka.proxy(0).set(Mode::Pass);
    direct.append(&records(&topic, 0, 10..20)).await.unwrap();
    member.ends = true;
    member.until("what came since", |member| member.seen.len() >= 20).await;
    eventually("it is committed, too", || committed(20)).await;
    let all: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    assert_eq!(member.values(), all);
    drop(member);
    direct.append(&records(&topic, 0, [20])).await.unwrap();
    let mut next = Member::open(&direct, spec(&group, &topic, false)).await;
    next.until("the newest", |member| !member.seen.is_empty()).await;
    assert_eq!(next.values(), ["20"]);
    drop(next);
    blocking(move || drop((log, direct, kafka))).await;
}
