//! Topics that change under a running group.

use std::collections::BTreeMap;
use std::time::Duration;

use potok_connectors::kafka::{KafkaConfig, KafkaLog};
use potok_core::{
    ConsumerGroupSpec, Log, Move, NotWritten, PipelineInfo, ReadFrom, SystemClock, Transaction,
};
use potok_testkit::services;
use std::sync::Arc;

use crate::setup::{
    Member, blocking, config, eventually, log, records, spec, topic, topic_with, unique,
};

/// Interleaving 18: a partition added in mid-run is read from its start, and only once the older
/// ones have passed where they ended then.
#[tokio::test(flavor = "multi_thread")]
async fn added_partitions_are_found_and_wait_for_the_older_ones() {
    let topic = topic("added", 1).await;
    let group = unique("added");
    let log = log().await;
    log.append(&records(&topic, 0, 0..5)).await.unwrap();
    // A group that began at the end reads what is found later from its start all the same.
    let mut member = Member::open(&log, spec(&group, &topic, true)).await;
    member.until("its partition", |member| !member.assigned.is_empty()).await;
    log.append(&records(&topic, 0, 5..10)).await.unwrap();
    member.ends = false;
    member.until("five records", |member| member.seen.len() == 5).await;
    let grown = topic.clone();
    blocking(move || services::kafka().add_partitions(&grown, 3)).await;
    eventually("the new partitions take records", || async {
        log.append(&records(&topic, 2, ["new"])).await.is_ok()
    })
    .await;
    member
        .until("the new partitions", |m| {
            m.assigned.values().filter(|a| *a.partition.topic == topic).count() == 3
        })
        .await;
    member.for_a_while(Duration::from_secs(3)).await;
    assert_eq!(member.seen.len(), 5, "the new partition did not wait: {:?}", member.values());
    // The older partition ends, and the new one is let go.
    let (nonce, first) = member
        .assigned
        .iter()
        .find(|(_, a)| *a.partition.topic == topic && a.partition.index == 0)
        .map(|(nonce, assignment)| (*nonce, assignment.partition.clone()))
        .unwrap();
    member.end(&first, nonce, 0..10).await;
    member.ends = true;
    member.until("the new record", |member| member.seen.len() == 6).await;
    assert_eq!(member.seen[5].2, "new");
}

/// Interleaving 7: a topic deleted and created anew is not the old one, whether somebody reads it
/// meanwhile or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_created_anew_is_read_from_its_start() {
    let topic = topic("anew", 1).await;
    let group = unique("anew");
    let first = log().await;
    let old = first.append(&records(&topic, 0, ["a", "b", "c"])).await.unwrap();
    let mut member = Member::open(&first, spec(&group, &topic, false)).await;
    member.until("three records", |member| member.seen.len() == 3).await;
    let anew = |topic: String| {
        blocking(move || {
            services::kafka().delete_topic(&topic);
            services::kafka().create_topic(&topic, 1, &[]);
        })
    };
    anew(topic.clone()).await;
    let other = log().await;
    let new = other.append(&records(&topic, 0, ["d", "e", "f", "g", "h"])).await.unwrap();
    assert_ne!(old[0].log, new[0].log, "the same position was given out twice");
    member.until("the new topic", |m| m.values().iter().any(|value| value == "h")).await;
    let new_ones = ["d", "e", "f", "g", "h"];
    eventually_seen(&mut member, &new_ones).await;
    drop(member);
    blocking(move || drop(first)).await;

    anew(topic.clone()).await;
    other.append(&records(&topic, 0, ["i", "j"])).await.ok();
    let third = log().await;
    let count = count(&third, &topic).await;
    if count == 0 {
        third.append(&records(&topic, 0, ["i", "j"])).await.unwrap();
    }
    let mut member = Member::open(&third, spec(&group, &topic, false)).await;
    eventually_seen(&mut member, &["i", "j"]).await;
}

/// The same, filled at once beyond the place that was read, before anybody looks at the topic's id:
/// the client goes on reading at that place, and what it brings belongs to the new topic.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_created_anew_and_filled_at_once_gives_no_record_two_names() {
    let topic = topic("filled", 1).await;
    let group = unique("filled");
    let first = log().await;
    let old = first.append(&records(&topic, 0, (0..5).map(|n| format!("old-{n}")))).await.unwrap();
    let mut member = Member::open(&first, spec(&group, &topic, false)).await;
    member.until("the old records", |member| member.seen.len() == 5).await;
    for round in 0..3 {
        member.seen.clear();
        member.logs.clear();
        let anew = topic.clone();
        blocking(move || {
            services::kafka().delete_topic(&anew);
            services::kafka().create_topic(&anew, 1, &[]);
        })
        .await;
        // Each holds more than the one before.
        let count = 200 * (round + 1);
        let values = (0..count).map(|n| format!("new-{round}-{n}"));
        let other = log().await;
        let new = other.append(&records(&topic, 0, values.clone())).await.unwrap();
        assert_ne!(old[0].log, new[0].log);
        let last = format!("new-{round}-{}", count - 1);
        let is_of_the_new = |m: &Member| m.logs.last() == Some(&new[0].log);
        member
            .until("the new topic, from its start", |m| {
                m.values().contains(&last) && is_of_the_new(m)
            })
            .await;
        let seen: Vec<(u64, String)> = member
            .logs
            .iter()
            .zip(&member.seen)
            .filter(|(_, (_, _, value))| value.starts_with(&format!("new-{round}-")))
            .map(|(log, (_, _, value))| (*log, value.clone()))
            .collect();
        let wanted: Vec<(u64, String)> = values.map(|value| (new[0].log, value)).collect();
        assert_eq!(seen, wanted, "each once, in order, under the name of the new topic");
        blocking(move || drop(other)).await;
    }
}

async fn eventually_seen(member: &mut Member, values: &[&str]) {
    let all = |member: &Member| {
        values.iter().all(|value| member.values().iter().any(|seen| seen == value))
    };
    member.until("every record of the new topic", all).await;
}

async fn count(log: &Arc<KafkaLog>, topic: &str) -> usize {
    let mut reader = log.read(topic, ReadFrom::Start).await.unwrap();
    let mut count = 0;
    while let Some(batch) = reader.next(false).await.unwrap() {
        count += batch.records.len();
    }
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_topics_are_waited_for_where_they_may_not_be_created() {
    let config = blocking(|| KafkaConfig { create_topics: None, ..config(&[]) }).await;
    let log = KafkaLog::new(config, Arc::new(SystemClock)).unwrap();
    let group = unique("waits");
    let spec = spec(&group, &group, false);
    let fault = log.open_group(spec.clone()).await.err().expect("there is no such topic");
    assert_eq!((fault.next, fault.code), (Move::Wait, "P0605"));
    assert!(fault.to_string().contains(&group), "{fault}");
    let fault = log.append(&records(&group, 0, [0])).await.unwrap_err();
    assert_eq!((fault.next, fault.code), (Move::Wait, "P0605"));
    for topic in [&group, &spec.info.dead_letters, &spec.info.resolved, &spec.info.replay] {
        let topic = topic.clone();
        blocking(move || services::kafka().create_topic(&topic, 1, &[])).await;
    }
    let mut member = Member::open(&log, spec).await;
    log.append(&records(&group, 0, [0])).await.unwrap();
    member.until("a record", |member| member.seen.len() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_of_a_pipeline_are_made_for_their_purpose() {
    let log = log().await;
    let group = unique("purposes");
    let member = Member::open(&log, spec(&group, &group, false)).await;
    let described = blocking(move || {
        let words = ["--describe", "--topic", &format!("{group}.*|potok-groups")];
        (services::kafka().tool("TopicCommand", &words), group)
    });
    let (described, group) = described.await;
    let settings: BTreeMap<&str, &str> = described
        .lines()
        .filter(|line| line.contains("PartitionCount"))
        .map(|line| {
            let name = line.split_whitespace().nth(1).unwrap();
            (name, line)
        })
        .collect();
    let dead = settings[format!("{group}-dead").as_str()];
    assert!(dead.contains("retention.ms=-1") && dead.contains("cleanup.policy=delete"), "{dead}");
    assert!(dead.contains("max.message.bytes=69206016"), "{dead}");
    assert!(settings[format!("{group}-dead-resolved").as_str()].contains("retention.ms=-1"));
    let registry = settings["potok-groups"];
    assert!(registry.contains("cleanup.policy=compact"), "{registry}");
    assert!(registry.contains("PartitionCount: 1"), "{registry}");
    drop(member);
}

/// The largest record that a topic of potok's own takes is known, and one of that size is taken.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_own_topic_takes_is_known_before_it_refuses() {
    let log = log().await;
    const SETTINGS: [(&str, &str); 3] = [
        ("message.timestamp.type", "LogAppendTime"),
        ("retention.ms", "-1"),
        ("max.message.bytes", "20000"),
    ];
    let internal = topic_with("takes", 1, &SETTINGS).await;
    let group = unique("takes");
    let mut spec = spec(&group, &group, false);
    spec.info.internal = Some(internal.clone());
    let member = Member::open(&log, spec).await;
    let most = member.journal.output_bytes_max(&internal).unwrap();
    assert!((19_000..20_000).contains(&most), "{most}");
    assert_eq!(member.journal.output_bytes_max("another"), None);
    let mut state = 1_u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let mut outputs = records(&internal, 0, 0..2);
    for (output, bytes) in outputs.iter_mut().zip([most, most + 1_000]) {
        output.key = None;
        output.value = Some((0..bytes).map(|_| noise()).collect::<Vec<_>>().into());
    }
    let transaction = Transaction { outputs, ended: Vec::new() };
    let Err(NotWritten::Refused(refused)) = member.journal.transact(&transaction).await else {
        panic!("one is too large");
    };
    let which: Vec<usize> = refused.iter().map(|(index, _)| *index).collect();
    assert_eq!(which, [1], "of {most} bytes and more");
    drop(member);
}

/// Topics of potok's own that somebody has made otherwise are not used before they are mended, and
/// the message has the command that mends them.
#[tokio::test(flavor = "multi_thread")]
async fn own_topics_that_would_lose_records_are_not_used() {
    let log = log().await;
    let group = unique("own");
    let internal = format!("potok-{group}");
    let spec = ConsumerGroupSpec {
        info: PipelineInfo { internal: Some(internal.clone()), ..spec(&group, &group, false).info },
        topics: vec![internal.as_str().into()],
        ..spec(&group, &group, false)
    };
    let made = internal.clone();
    let settings = [("cleanup.policy", "compact"), ("retention.ms", "1000000")];
    blocking(move || services::kafka().create_topic(&made, 1, &settings)).await;
    let fault = log.open_group(spec.clone()).await.err().expect("it is compacted");
    assert_eq!(
        (fault.next, fault.code, fault.needs_somebody),
        (Move::Wait, "P0618", true),
        "{fault}"
    );
    let text = fault.to_string();
    for word in ["compact", "retention.ms", "CreateTime", &internal] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let (_, command) = text.split_once("`kafka-configs.sh ").expect("a command");
    let command = command.split_once('`').expect("its end").0.to_owned();
    let words = move || {
        let words: Vec<&str> = command.split_whitespace().collect();
        services::kafka().tool("kafka.admin.ConfigCommand", &words);
    };
    blocking(words).await;
    eventually("it opens", || async { log.open_group(spec.clone()).await.is_ok() }).await;
}

/// Records behind an open transaction of somebody else are lag, and the reason is said; a
/// transaction that takes its time and no more is not spoken of.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_stays_open_is_told() {
    let topic = topic("hanging", 1).await;
    let group = unique("hanging");
    let log = log().await;
    let mut member = Member::open(&log, spec(&group, &topic, false)).await;
    log.append(&records(&topic, 0, ["before"])).await.unwrap();
    member.until("the first record", |member| member.seen.len() == 1).await;
    assert_eq!(member.stalled, None);
    let writing = topic.clone();
    let mut hanging = blocking(move || java_transaction(&writing)).await;
    let open = topic.clone();
    eventually("its transaction is open", || {
        let open = open.clone();
        blocking(move || services::kafka().end_offsets(&open)[0] >= 2)
    })
    .await;
    log.append(&records(&topic, 0, ["behind", "it"])).await.unwrap();
    member.until("it is said", |member| member.stalled.is_some()).await;
    let why = member.stalled.clone().unwrap();
    for word in ["P0617", topic.as_str(), "partition 0", "find-hanging"] {
        assert!(why.contains(word), "{word}: {why}");
    }
    let lag = |groups: Vec<potok_core::ConsumerGroup>| -> u64 {
        let ours = groups.into_iter().find(|found| found.group == group).expect("registered");
        let of = ours.partitions.iter().filter(|partition| partition.topic == topic);
        of.map(|partition| partition.end - partition.committed).sum()
    };
    assert!(lag(log.consumer_groups().await.unwrap()) >= 2, "what waits is lag");
    assert_eq!(member.seen.len(), 1, "nobody reads behind it");
    hanging.kill().unwrap();
    hanging.wait().unwrap();
    let aborted = topic.clone();
    blocking(move || {
        let place = ["--topic", &aborted, "--partition", "0", "--start-offset", "1"];
        services::kafka().tool("TransactionsCommand", &[&["abort"][..], &place].concat());
    })
    .await;
    member.until("what lay behind it", |member| member.seen.len() == 3).await;
    member.until("it is over", |member| member.stalled.is_none()).await;
}

/// A producer that begins a transaction and does not end it.
fn java_transaction(topic: &str) -> std::process::Child {
    let producer = format!("bootstrap.servers={}", services::kafka().servers());
    crate::bytes::java("org.apache.kafka.tools.ProducerPerformance")
        .args(["--topic", topic, "--num-records", "1000", "--record-size", "10"])
        .args(["--throughput", "1", "--transactional-id", topic])
        .args(["--transaction-duration-ms", "800000", "--producer-props", &producer])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}
