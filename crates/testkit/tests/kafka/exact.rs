//! Groups whose outputs and positions are one transaction: what is refused, and what is slow.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use potok_connectors::kafka::{CreateTopics, KafkaConfig, KafkaLog};
use potok_core::{
    ConsumerGroupSpec, EndedOffsets, Log, Move, NotWritten, OpenGroup, Output, Reason, SourceBatch,
    SourceEvent, SystemClock, Transaction,
};
use potok_testkit::services::{self, Kafka, KafkaOptions, Mode};

use crate::setup::{
    PATIENCE, blocking, config, eventually, log, positions, records, spec, text, topic, topic_with,
    unique,
};

fn exact(group: &str, topic: &str) -> ConsumerGroupSpec {
    ConsumerGroupSpec { exact: true, ..spec(group, topic, false) }
}

/// Bytes that do not become fewer when they are compressed.
fn noise(bytes: usize, seed: u32) -> Bytes {
    let mut state = seed;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..bytes).map(|_| byte()).collect::<Vec<u8>>().into()
}

/// The next batch of a group.
async fn next_batch(group: &mut OpenGroup) -> SourceBatch {
    let next = async {
        loop {
            if let SourceEvent::Batch(batch) = group.source.next().await.unwrap() {
                return batch;
            }
        }
    };
    tokio::time::timeout(PATIENCE, next).await.expect("records come")
}

fn ended(batch: &SourceBatch) -> Vec<EndedOffsets> {
    vec![EndedOffsets {
        partition: batch.partition.clone(),
        assignment: batch.assignment,
        ranges: vec![batch.first..batch.next],
    }]
}

async fn read_all(log: &Arc<KafkaLog>, topic: &str) -> Vec<String> {
    let mut reader = log.read(topic, potok_core::ReadFrom::Start).await.unwrap();
    let mut values = Vec::new();
    while let Some(batch) = reader.next(false).await.unwrap() {
        values.extend(batch.records.iter().map(text));
    }
    values
}

/// One record of many is too large for its topic, for the broker or for the client: that one is
/// named, nothing is written, and the same group writes the rest when something else is in its place.
/// Neighbours that only shared its batch, or that make a batch too large together, are not named.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_topic_never_takes_is_named_and_the_rest_is_written_once() {
    let from = topic("refused-from", 1).await;
    let to = topic_with("refused-to", 1, &[("max.message.bytes", "20000")]).await;
    let log = log().await;
    log.append(&records(&from, 0, 0..10)).await.unwrap();
    let group = unique("refused");
    let mut open = log.open_group(exact(&group, &from)).await.unwrap();
    let batch = next_batch(&mut open).await;
    let too_large = [(7, noise(30_000, 1)), (40, noise(50_000, 2)), (41, noise(66 << 20, 3))];
    // Together far more than the topic takes at once.
    let mut outputs: Vec<Output> = records(&to, 0, 0..80);
    outputs
        .iter_mut()
        .zip(0..)
        .for_each(|(output, at)| output.value = Some(noise(1_500, 100 + at)));
    for (at, value) in &too_large {
        outputs[*at].value = Some(value.clone());
    }
    let mut transaction = Transaction { outputs, ended: ended(&batch) };
    let mut refused = Vec::new();
    while let Err(not_written) = open.journal.transact(&transaction).await {
        let NotWritten::Refused(faults) = not_written else { panic!("{not_written:?}") };
        assert!(!faults.is_empty());
        for (at, fault) in faults {
            assert_eq!((fault.next, fault.reason), (Move::SetAside, Reason::TooLarge), "{fault}");
            transaction.outputs[at].value = Some(format!("instead of {at}").into());
            refused.push(at);
        }
        assert_eq!(read_all(&log, &to).await, [""; 0], "nothing is written before all is");
    }
    refused.sort_unstable();
    assert_eq!(refused, too_large.map(|(at, _)| at));
    let written = read_all(&log, &to).await;
    assert_eq!(written.len(), 80);
    assert_eq!(written.iter().filter(|value| value.starts_with("instead of ")).count(), 3);
    assert_eq!(positions(&log, &group).await.get(&0), Some(&10), "noted with it");
    // Every batch that was refused took another producer. Each ended what the one before it had left
    // open, which it does by having its name.
    drop(open);
    let tool = "org.apache.kafka.tools.TransactionsCommand";
    let listed = blocking(move || services::kafka().tool(tool, &["list"])).await;
    let ours = format!("potok-{group}-");
    let ids = listed.lines().filter(|line| line.starts_with(&ours)).count();
    assert_eq!(ids, 1, "{listed}");
}

/// A broker that stands still keeps a transaction waiting. Whoever opens the group again meanwhile,
/// its source being gone, waits for that transaction and then goes on; nobody has to act.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_whose_transaction_is_under_way_is_waited_for() {
    let kafka = Arc::new(blocking(Kafka::start).await);
    let config = KafkaConfig {
        servers: kafka.servers(),
        properties: Vec::new(),
        create_topics: Some(CreateTopics { partitions: 1, replication: Some(1) }),
        client_id: "potok-test".to_owned(),
    };
    let log = KafkaLog::new(config, Arc::new(SystemClock)).unwrap();
    log.append(&records("from", 0, 0..10)).await.unwrap();
    let mut open = log.open_group(exact("frozen", "from")).await.unwrap();
    let batch = next_batch(&mut open).await;
    // Two readers in one process are a mistake.
    let fault = log.open_group(exact("frozen", "from")).await.err().expect("it is being read");
    assert_eq!((fault.next, fault.code), (Move::Fix, "P0609"));
    let copies =
        |topic: &str| Transaction { outputs: records(topic, 0, 0..10), ended: ended(&batch) };
    // A first one, so that everything is there.
    let first = Transaction { ended: Vec::new(), ..copies("to") };
    open.journal.transact(&first).await.unwrap();
    let frozen = kafka.clone();
    blocking(move || frozen.freeze()).await;
    let (journal, transaction) = (open.journal.clone(), copies("to"));
    let writing = tokio::spawn(async move { journal.transact(&transaction).await });
    // Long enough to be in the middle of it, whatever that is; then its task is cut off.
    tokio::time::sleep(Duration::from_secs(1)).await;
    writing.abort();
    drop(open);
    let opening = {
        let log = log.clone();
        tokio::spawn(async move {
            let mut faults = Vec::new();
            loop {
                match log.open_group(exact("frozen", "from")).await {
                    Ok(open) => return (open, faults),
                    Err(fault) => faults.push(fault),
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
    };
    tokio::time::sleep(Duration::from_secs(2)).await;
    let thawed = kafka.clone();
    blocking(move || thawed.thaw()).await;
    let (mut open, faults) =
        tokio::time::timeout(PATIENCE * 2, opening).await.expect("it opens").unwrap();
    for fault in faults {
        assert_eq!(fault.next, Move::Wait, "{fault}");
    }
    // The transaction counted as a whole, or not at all: then its records come again.
    let counted = positions(&log, "frozen").await.get(&0) == Some(&10);
    if !counted {
        let batch = next_batch(&mut open).await;
        assert_eq!(batch.records.len(), 10);
        let again = Transaction { outputs: records("to", 0, 0..10), ended: ended(&batch) };
        open.journal.transact(&again).await.unwrap();
    }
    assert_eq!(read_all(&log, "to").await.len(), 20);
}

/// The broker ends a transaction, and its answer is lost. Whoever wrote it learns that it is there, or
/// opens the group again behind it: nothing of it is written twice.
#[tokio::test(flavor = "multi_thread")]
async fn the_lost_answer_to_a_transaction_that_ended_writes_nothing_twice() {
    let kafka =
        blocking(|| Kafka::start_with(&KafkaOptions { proxied: true, ..KafkaOptions::default() }));
    let kafka = Arc::new(kafka.await);
    let open_log = |servers| {
        KafkaLog::new(KafkaConfig { servers, ..config(&[]) }, Arc::new(SystemClock)).unwrap()
    };
    let (log, direct) = (open_log(kafka.servers()), open_log(kafka.direct_servers()));
    direct.append(&records("from", 0, 0..10)).await.unwrap();
    let mut open = log.open_group(exact("unheard", "from")).await.unwrap();
    let batch = next_batch(&mut open).await;
    let first = Transaction { outputs: records("to", 0, 0..10), ended: Vec::new() };
    open.journal.transact(&first).await.unwrap();
    // The last answer is still on its way when what it says is seen, and all of them take less than a
    // transaction may.
    kafka.proxy(0).set(Mode::Delay(Duration::from_millis(700)));
    let journal = open.journal.clone();
    let second = Transaction { outputs: records("to", 0, 10..20), ended: ended(&batch) };
    let writing = tokio::spawn(async move { journal.transact(&second).await });
    eventually("the transaction has ended", || async {
        positions(&direct, "unheard").await.get(&0) == Some(&10)
    })
    .await;
    kafka.proxy(0).set(Mode::DropReplies);
    assert!(!writing.is_finished(), "the answer was there already: the fault did not bite");
    kafka.proxy(0).set(Mode::Pass);
    let wrote = tokio::time::timeout(PATIENCE * 2, writing).await.expect("it ends").unwrap();
    let numbers = |range: std::ops::Range<u32>| range.map(|n| n.to_string()).collect::<Vec<_>>();
    assert_eq!(read_all(&direct, "to").await, numbers(0..20));
    if let Err(not_written) = wrote {
        let NotWritten::Fault(fault) = not_written else { panic!("{not_written:?}") };
        assert!(matches!(fault.next, Move::Retry | Move::Wait), "{fault}");
        drop(open);
        open = loop {
            match log.open_group(exact("unheard", "from")).await {
                Ok(open) => break open,
                Err(fault) => assert_eq!(fault.next, Move::Wait, "{fault}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
    }
    // What comes next is what was sent since.
    direct.append(&records("from", 0, 10..15)).await.unwrap();
    let batch = next_batch(&mut open).await;
    assert_eq!(batch.records.iter().map(text).collect::<Vec<_>>(), numbers(10..15));
    let third = Transaction { outputs: records("to", 0, 20..25), ended: ended(&batch) };
    open.journal.transact(&third).await.unwrap();
    assert_eq!(read_all(&direct, "to").await, numbers(0..25));
    assert_eq!(positions(&direct, "unheard").await.get(&0), Some(&15));
    drop(open);
    blocking(move || drop((log, direct, kafka))).await;
}
