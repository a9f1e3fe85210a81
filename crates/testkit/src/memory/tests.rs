//! What memory connectors promise beyond the suites.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use bytes::Bytes;
use potok_core::{
    Assignment, Batch, ConsumerGroupSpec, DeliveryId, EndedOffsets, Fault, Headers, Log, Message,
    Move, OpenGroup, Outcome, Output, PipelineInfo, Position, ReadFrom, Sink, SourceBatch,
    SourceEvent, SystemClock, Timestamp, Transaction,
};

use super::*;

fn log(partitions: u32) -> MemoryLog {
    MemoryLog::with_partitions(Arc::new(SystemClock), partitions)
}

fn output(topic: &str, key: Option<&str>, value: &str) -> Output {
    Output {
        topic: topic.into(),
        partition: None,
        key: key.map(|key| Bytes::copy_from_slice(key.as_bytes())),
        headers: Headers::none(),
        value: Some(Bytes::copy_from_slice(value.as_bytes())),
    }
}

fn spec(group: &str, topics: &[&str], from_end: bool) -> ConsumerGroupSpec {
    ConsumerGroupSpec {
        group: group.to_owned(),
        topics: topics.iter().map(|topic| (*topic).into()).collect(),
        from_end,
        exact: false,
        info: PipelineInfo {
            pipeline: group.to_owned(),
            dead_letters: format!("{group}-dead"),
            resolved: format!("{group}-dead-resolved"),
            replay: format!("{group}-replay"),
            replays_max: 5,
            internal: None,
        },
    }
}

async fn assigned(open: &mut OpenGroup) -> Vec<Assignment> {
    match open.source.next().await.unwrap() {
        SourceEvent::Assigned(assigned) => assigned,
        other => panic!("{other:?} came before the assignment"),
    }
}

async fn batch(open: &mut OpenGroup) -> SourceBatch {
    match open.source.next().await.unwrap() {
        SourceEvent::Batch(batch) => batch,
        other => panic!("expected a batch, not {other:?}"),
    }
}

fn ended(batch: &SourceBatch, range: std::ops::Range<u64>) -> Transaction {
    let ended = EndedOffsets {
        partition: batch.partition.clone(),
        assignment: batch.assignment,
        ranges: vec![range],
    };
    Transaction { outputs: Vec::new(), ended: vec![ended] }
}

#[tokio::test]
async fn a_group_resumes_at_the_first_record_that_has_not_ended() {
    let log = log(1);
    let outputs: Vec<Output> = (0..10).map(|n| output("t", None, &n.to_string())).collect();
    let positions = log.append(&outputs).await.unwrap();
    assert_eq!(positions.iter().map(|p| p.offset).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());

    let mut open = log.open_group(spec("g", &["t"], false)).await.unwrap();
    assert_eq!(log.open_group(spec("g", &["t"], false)).await.err().unwrap().next, Move::Fix);
    let first = assigned(&mut open).await.remove(0);
    assert_eq!((first.start, first.ended.is_empty()), (0, true));
    let read = batch(&mut open).await;
    assert_eq!((read.first, read.next, read.records.len()), (0, 10, 10));
    assert_eq!(read.position(&read.records[3]), positions[3]);
    open.journal.transact(&ended(&read, 0..3)).await.unwrap();
    open.journal.transact(&ended(&read, 5..7)).await.unwrap();
    let stale = open.journal.clone();
    drop(open);
    // Still the last assignment: what was in flight when the source went may be noted.
    stale.transact(&ended(&read, 8..9)).await.unwrap();

    let mut open = log.open_group(spec("g", &["t"], true)).await.unwrap();
    let again = assigned(&mut open).await.remove(0);
    assert_eq!(again.start, 3);
    assert_eq!(again.ended.iter().collect::<Vec<_>>(), [5..7, 8..9]);
    assert_ne!(again.nonce, first.nonce);
    stale.transact(&ended(&read, 0..10)).await.unwrap();
    let info = log.consumer_groups().await.unwrap().remove(0);
    let at = &info.partitions[0];
    assert_eq!((at.committed, at.acknowledged_ahead, at.end, info.open), (3, 3, 10, true));
    let read = batch(&mut open).await;
    assert_eq!((read.first, read.assignment), (3, again.nonce));
    open.journal.transact(&ended(&read, 3..10)).await.unwrap();
    assert!(log.ended("g", "t", 0).await.unwrap().is_empty());

    assert_eq!(log.delete_consumer_group("g").await.unwrap_err().next, Move::Fix);
    drop(open);
    log.delete_consumer_group("g").await.unwrap();
    assert!(log.consumer_groups().await.unwrap().is_empty());
}

#[tokio::test]
async fn outputs_and_progress_are_one_transaction() {
    let log = log(2);
    log.append(&[output("in", Some("k"), "1")]).await.unwrap();
    let mut open = log.open_group(spec("g", &["in"], false)).await.unwrap();
    assigned(&mut open).await;
    let read = batch(&mut open).await;
    let mut transaction = ended(&read, 0..1);
    transaction.outputs = vec![Output { partition: Some(9), ..output("out", None, "x") }];
    let refused = Fault::from(open.journal.transact(&transaction).await.unwrap_err());
    assert_eq!(refused.next, Move::Fix);
    let position = |log: MemoryLog| async move {
        let groups = log.consumer_groups().await.unwrap();
        groups[0].partitions.iter().map(|partition| partition.committed).max().unwrap()
    };
    assert_eq!(position(log.clone()).await, 0);
    transaction.outputs = vec![output("out", None, "x")];
    assert_eq!(open.journal.transact(&transaction).await.unwrap().len(), 1);
    assert_eq!(position(log.clone()).await, 1);
}

#[tokio::test]
async fn a_key_keeps_its_partition_and_records_without_spread() {
    let log = log(4);
    let keyed: Vec<Output> = (0..20).map(|_| output("t", Some("same"), "")).collect();
    let positions = log.append(&keyed).await.unwrap();
    assert!(positions.iter().all(|p| p.partition == positions[0].partition));
    let spread: Vec<Output> = (0..20).map(|_| output("u", None, "")).collect();
    log.append(&spread).await.unwrap();
    let topics = log.topics().await.unwrap();
    assert_eq!(topics[1].ends, [5, 5, 5, 5]);
}

#[tokio::test]
async fn waiting_readers_wake_and_paused_sources_do_not() {
    let log = log(1);
    let mut open = log.open_group(spec("g", &["t"], false)).await.unwrap();
    open.source.set_paused(true);
    assigned(&mut open).await;
    let mut reader = log.read("t", ReadFrom::End).await.unwrap();
    assert!(reader.next(false).await.unwrap().is_none());
    let waiting = tokio::spawn(async move { reader.next(true).await.unwrap().unwrap() });
    tokio::task::yield_now().await;
    log.append(&[output("t", None, "late")]).await.unwrap();
    assert_eq!(waiting.await.unwrap().records.len(), 1);
    // Polled once, it has nothing to say; cancelled, it has lost nothing.
    tokio::select! {
        biased;
        said = open.source.next() => panic!("a paused source said {said:?}"),
        () = std::future::ready(()) => {}
    }
    assert_eq!(open.source.ends()[0].end, 1);
    open.source.set_paused(false);
    assert_eq!(batch(&mut open).await.records.len(), 1);
    assert_eq!(log.read("none", ReadFrom::Start).await.err().unwrap().next, Move::Fix);
}

#[tokio::test]
async fn batches_are_bounded_and_from_end_starts_behind() {
    let log = log(1);
    let big = "x".repeat(700_000);
    let outputs: Vec<Output> = (0..4).map(|_| output("t", None, &big)).collect();
    log.append(&outputs).await.unwrap();
    let mut reader = log.read("t", ReadFrom::Offset(1)).await.unwrap();
    let sizes =
        [reader.next(false).await.unwrap().unwrap(), reader.next(false).await.unwrap().unwrap()];
    assert_eq!(sizes.map(|batch| (batch.first, batch.next)), [(1, 3), (3, 4)]);
    let mut open = log.open_group(spec("g", &["t"], true)).await.unwrap();
    assert_eq!(assigned(&mut open).await[0].start, 4);
}

fn message(offset: u64, deliver: u32) -> Message {
    let position = Position { log: 1, topic: "t".into(), partition: 0, offset };
    Message {
        id: DeliveryId { position, deliver, element: 0 },
        key: None,
        headers: Headers::none(),
        value: Bytes::new(),
        source: Bytes::new(),
        once: None,
        time: Timestamp(0),
    }
}

#[tokio::test]
async fn a_sink_takes_each_name_once() {
    let sink = MemorySink::new();
    let batch = |offsets: &[(u64, u32)]| Batch {
        messages: offsets.iter().map(|&(offset, deliver)| message(offset, deliver)).collect(),
    };
    sink.set_outage(Some(Fault::wait("away")));
    assert_eq!(sink.probe().await.unwrap_err().next, Move::Wait);
    assert_eq!(sink.deliver(&batch(&[(1, 0)])).await.unwrap_err().next, Move::Wait);
    sink.set_outage(None);
    let waiting = tokio::spawn({
        let sink = sink.clone();
        async move { sink.reached(4).await }
    });
    for (offsets, repeats) in
        [(vec![(1, 0), (3, 0)], vec![]), (vec![(3, 0), (2, 0), (2, 1), (1, 0)], vec![0, 3])]
    {
        let receipt = sink.deliver(&batch(&offsets)).await.unwrap();
        for (index, outcome) in receipt.outcomes(offsets.len()).enumerate() {
            assert_eq!(matches!(outcome, Outcome::Duplicate), repeats.contains(&index));
        }
    }
    waiting.await.unwrap();
    assert_eq!(sink.count(), 4);
    let names: Vec<_> =
        sink.delivered().iter().map(|m| (m.id.position.offset, m.id.deliver)).collect();
    assert_eq!(names, [(1, 0), (3, 0), (2, 0), (2, 1)]);
    let counting = MemorySink::counting();
    counting.deliver(&batch(&[(1, 0)])).await.unwrap();
    assert_eq!((counting.count(), counting.delivered().len()), (1, 0));
}
