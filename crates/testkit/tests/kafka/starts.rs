//! Where groups start: fresh ones, after another tool, after retention, at the end of a transaction.

use std::sync::Arc;
use std::time::Duration;

use potok_core::{Log, Partition};
use potok_testkit::services;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

use crate::setup::{
    Member, PATIENCE, blocking, eventually, log, positions, records, spec, topic, unique,
};

/// Interleaving 18: the place where "the end" was is committed before anything is read, so a
/// process that dies before its first commit skips nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_group_at_the_end_killed_before_its_first_commit_skips_nothing() {
    let topic = topic("latest", 2).await;
    let group = unique("latest");
    let first = log().await;
    first.append(&records(&topic, 0, ["old"])).await.unwrap();
    let mut member = Member::open(&first, spec(&group, &topic, true)).await;
    member.ends = false;
    first.append(&records(&topic, 0, ["new"])).await.unwrap();
    first.append(&records(&topic, 1, ["other"])).await.unwrap();
    member.until("both records", |member| member.seen.len() == 2).await;
    drop(member);
    blocking(move || drop(first)).await;
    // Nothing had ended: both come again, though the group asks for the end.
    let second = log().await;
    let mut member = Member::open(&second, spec(&group, &topic, true)).await;
    member.until("both records again", |member| member.seen.len() == 2).await;
    let mut values = member.values();
    values.sort();
    assert_eq!(values, ["new", "other"]);
}

/// Interleaving 20: other tools commit what they like.
#[tokio::test(flavor = "multi_thread")]
async fn commits_of_other_tools_are_read_past() {
    for metadata in ["", "somebody else's", "potok1:AAAA", "\u{1F980}"] {
        let topic = topic("foreign", 1).await;
        let group = unique("foreign");
        let log = log().await;
        log.append(&records(&topic, 0, 0..6)).await.unwrap();
        commit(&group, &topic, 2, metadata).await;
        let mut member = Member::open(&log, spec(&group, &topic, false)).await;
        member.until("the rest", |member| member.seen.len() == 4).await;
        assert_eq!(member.values(), ["2", "3", "4", "5"], "{metadata:?}");
    }
}

/// Commits as another client would.
async fn commit(group: &str, topic: &str, offset: i64, metadata: &'static str) {
    let (group, topic) = (group.to_owned(), topic.to_owned());
    blocking(move || {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", services::kafka().servers())
            .set("group.id", &group)
            .create()
            .unwrap();
        let mut list = TopicPartitionList::new();
        let mut place = list.add_partition(&topic, 0);
        place.set_offset(Offset::Offset(offset)).unwrap();
        place.set_metadata(metadata);
        consumer.commit(&list, CommitMode::Sync).unwrap();
    })
    .await;
}

/// Interleaving 18: what lies behind the last record and is no record does not hold the commit.
#[tokio::test(flavor = "multi_thread")]
async fn a_transactional_tail_is_passed() {
    let topic = topic("transactions", 1).await;
    let group = unique("transactions");
    let log = log().await;
    let mut member = Member::open(&log, spec(&group, &topic, false)).await;
    let to = topic.clone();
    let marked = blocking(move || {
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", services::kafka().servers())
            .set("transactional.id", &to)
            .create()
            .unwrap();
        producer.init_transactions(PATIENCE).unwrap();
        for (round, keep) in [(0, true), (1, false), (2, true), (3, false)] {
            producer.begin_transaction().unwrap();
            for n in 0..3 {
                let value = format!("{round}/{n}");
                producer.send(BaseRecord::<(), str>::to(&to).payload(&value)).unwrap();
            }
            producer.flush(PATIENCE).unwrap();
            match keep {
                true => producer.commit_transaction(PATIENCE).unwrap(),
                false => producer.abort_transaction(PATIENCE).unwrap(),
            }
        }
        // The last mark is written a moment after its transaction is answered for.
        let end = || producer.client().fetch_watermarks(&to, 0, PATIENCE).unwrap().1;
        // Each look is a round trip, which is pause enough.
        (0..50_000).any(|_| end() == 16)
    })
    .await;
    assert!(marked, "there are twelve records and four marks");
    member.until("what was committed", |member| member.seen.len() == 6).await;
    let expected = ["0/0", "0/1", "0/2", "2/0", "2/1", "2/2"];
    assert_eq!(member.values(), expected);
    let done = async {
        while positions(&log, &group).await.get(&0) != Some(&16) {
            let _ = tokio::time::timeout(Duration::from_millis(50), member.step()).await;
        }
    };
    tokio::time::timeout(PATIENCE, done).await.expect("the position passes the tail");
    let committed = async || committed_offset(&group, &topic).await == 16;
    eventually("the commit passes the tail", committed).await;
}

/// What the broker has for the group.
async fn committed_offset(group: &str, topic: &str) -> i64 {
    let (group, topic) = (group.to_owned(), topic.to_owned());
    blocking(move || {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", services::kafka().servers())
            .set("group.id", &group)
            .create()
            .unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition(&topic, 0);
        let list = consumer.committed_offsets(list, PATIENCE).unwrap();
        list.elements().first().and_then(|place| place.offset().to_raw()).unwrap()
    })
    .await
}

/// Retention that overtakes a group is told, and reading goes on at the oldest record.
#[tokio::test(flavor = "multi_thread")]
async fn what_retention_took_is_told_and_read_past() {
    let topic = topic("retention", 1).await;
    let group = unique("retention");
    let first = log().await;
    first.append(&records(&topic, 0, 0..10)).await.unwrap();
    let mut member = Member::open(&first, spec(&group, &topic, false)).await;
    member.until("ten records", |member| member.seen.len() == 10).await;
    drop(member);
    blocking(move || drop(first)).await;

    let second = log().await;
    second.append(&records(&topic, 0, 10..20)).await.unwrap();
    delete_before(&topic, 15).await;
    let mut member = Member::open(&second, spec(&group, &topic, false)).await;
    member.until("the rest", |member| member.seen.len() == 5).await;
    assert_eq!(member.values(), ["15", "16", "17", "18", "19"]);
    let damage = second.damage();
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert_eq!((damage[0].from, damage[0].to), (10, 15));
    assert_eq!(damage[0].file, Partition { topic: topic.as_str().into(), index: 0 }.to_string());
}

/// The same while the group reads: it is paused, and comes back to find its records gone.
#[tokio::test(flavor = "multi_thread")]
async fn what_retention_took_while_reading_is_told_and_read_past() {
    // Segments of one record's size, so that deleting takes effect at once.
    let topic = topic("overtaken", 1).await;
    let group = unique("overtaken");
    let log: Arc<_> = log().await;
    let large = "x".repeat(900_000);
    let batch = |n: u32| records(&topic, 0, [format!("{n}{large}")]);
    for n in 0..100 {
        log.append(&batch(n)).await.unwrap();
    }
    let mut member = Member::open(&log, spec(&group, &topic, false)).await;
    member.until("a first record", |member| !member.seen.is_empty()).await;
    // Nobody takes records now; the client holds some and stops fetching.
    member.source.set_paused(true);
    member.for_a_while(Duration::from_secs(2)).await;
    delete_before(&topic, 98).await;
    member.source.set_paused(false);
    member.until("the last record", |m| m.seen.iter().any(|(_, offset, _)| *offset == 99)).await;
    let offsets: Vec<u64> = member.seen.iter().map(|(_, offset, _)| *offset).collect();
    assert!(offsets.is_sorted_by(|a, b| a < b), "{offsets:?}");
    let gone: u64 = log.damage().iter().map(|damage| damage.to - damage.from).sum();
    assert_eq!(offsets.len() as u64 + gone, 100, "each record came or is told: {offsets:?}");
    assert!(gone > 0, "the client had fetched everything before");
}

async fn delete_before(topic: &str, offset: i64) {
    let topic = topic.to_owned();
    blocking(move || {
        let file = services::kafka().folder().join(format!("{topic}.json"));
        let wish = format!(
            r#"{{"version":1,"partitions":[{{"topic":"{topic}","partition":0,"offset":{offset}}}]}}"#
        );
        std::fs::write(&file, wish).unwrap();
        let words = ["--offset-json-file", file.to_str().unwrap()];
        services::kafka().tool("DeleteRecordsCommand", &words);
    })
    .await;
}
