//! The suite of [`Log`]: appending, reading topics back, and what tools ask of it.
//!
//! Consumer groups have a suite of their own ([`super::source`]) on the same harness.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::{Log, Move, Output, Position, RECORD_BYTES_MAX, ReadFrom, Record};

use super::reading::{append, drain, keyed, numbered, placed, poll_once, read_all, same, strange};
use super::{QUIET, ensure, run_checks, within};

/// What may differ between logs.
#[derive(Clone, Copy, Debug)]
pub struct LogFeatures {
    /// Partitions of a topic that is created on first use.
    pub partitions: u32,
    /// What was acknowledged is there after opening it again.
    pub durable: bool,
    /// Outputs and progress of a transaction cannot part.
    pub transactional: bool,
}

/// Brings logs to the suites.
#[async_trait]
pub trait LogHarness: Send + Sync {
    /// What this log declares.
    fn features(&self) -> LogFeatures;

    /// A log in which none of the names given out by [`LogHarness::name`] exists yet.
    async fn fresh(&self) -> Result<Arc<dyn Log>, String>;

    /// The same log, let go and opened again.
    async fn reopen(&self, log: Arc<dyn Log>) -> Result<Arc<dyn Log>, String>;

    /// How long nothing must have come until a check takes it that nothing will. A server on the
    /// other side of a network needs longer than a log in this process.
    fn quiet(&self) -> std::time::Duration {
        QUIET
    }

    /// True where a record can be seen no sooner than its writer is told, whoever runs first.
    fn acknowledges_at_once(&self) -> bool {
        false
    }

    /// Keeps what is written from becoming durable until the log is opened again; false where that
    /// cannot be done.
    fn stall(&self) -> bool {
        false
    }

    /// True when something was written that cannot become durable.
    fn is_stalled(&self) -> bool {
        false
    }

    /// A topic or group name for this run. Shared servers add something of their own.
    fn name(&self, name: &str) -> String {
        name.to_owned()
    }
}

/// Runs every check; the number that passed, or all failures in words.
pub async fn run_all(harness: &dyn LogHarness) -> Result<usize, String> {
    run_checks!(
        "log",
        harness,
        [
            order_is_kept_per_partition,
            bytes_come_back_exact,
            positions_are_unique_and_in_order,
            positions_are_stable_across_reopen,
            equal_keys_share_a_partition,
            unkeyed_records_spread,
            an_empty_append_is_fine,
            an_oversized_record_is_refused_whole,
            reading_starts_where_told,
            a_follower_waits_and_a_cancelled_one_loses_nothing,
            readers_see_only_what_is_acknowledged,
            readers_wait_for_what_is_not_durable,
            an_unknown_topic_is_a_fix,
            topics_tell_their_ends,
            a_healthy_log_reports_no_trouble,
        ]
    )
}

async fn order_is_kept_per_partition(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("order");
    for round in 0..5 {
        let outputs: Vec<Output> = (0..40)
            .map(|n| keyed(&topic, &format!("k{}", n % 7), format!("{round}/{n}")))
            .collect();
        append(&log, &outputs).await?;
    }
    let all = read_all(&log, &topic, ReadFrom::Start).await?;
    ensure!(all.len() == 200, "{} of 200 records came back", all.len());
    let mut last: BTreeMap<Bytes, (u32, u32)> = BTreeMap::new();
    // Positions sort by partition and offset, so this walks each partition in order.
    for (position, record) in &all {
        let number = number_pair(record)?;
        let key = record.key.clone().unwrap_or_default();
        if let Some(before) = last.insert(key, number) {
            ensure!(before < number, "{position}: {number:?} lies behind {before:?}");
        }
    }
    Ok(())
}

fn number_pair(record: &Record) -> Result<(u32, u32), String> {
    let text = String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()).into_owned();
    let pair = text.split_once('/').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    pair.ok_or(format!("the value changed into {text}"))
}

async fn bytes_come_back_exact(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("bytes");
    let sent = strange(&topic);
    let positions = append(&log, &sent).await?;
    let check = async |log: &Arc<dyn Log>| {
        let all = read_all(log, &topic, ReadFrom::Start).await?;
        ensure!(all.len() == sent.len(), "{} of {} came back", all.len(), sent.len());
        for (position, output) in positions.iter().zip(&sent) {
            let record = all.get(position).ok_or(format!("{position} is not there"))?;
            same(output, record).map_err(|why| format!("{position}: {why}"))?;
        }
        Ok(())
    };
    check(&log).await?;
    if harness.features().durable {
        let log = harness.reopen(log).await?;
        check(&log).await.map_err(|why| format!("after reopening: {why}"))?;
    }
    Ok(())
}

async fn positions_are_unique_and_in_order(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("positions");
    let mut last: BTreeMap<u32, u64> = BTreeMap::new();
    for _ in 0..4 {
        let outputs: Vec<_> = (0..25).map(|n| keyed(&topic, &n.to_string(), "v")).collect();
        for position in append(&log, &outputs).await? {
            ensure!(*position.topic == *topic, "{position} is in another topic");
            if let Some(before) = last.insert(position.partition, position.offset) {
                ensure!(before < position.offset, "{position} came behind offset {before}");
            }
        }
    }
    Ok(())
}

async fn positions_are_stable_across_reopen(harness: &dyn LogHarness) -> Result<(), String> {
    if !harness.features().durable {
        return Ok(());
    }
    let mut log = harness.fresh().await?;
    let topic = harness.name("stable");
    let mut known: BTreeMap<Position, String> = BTreeMap::new();
    for round in 0..4 {
        let outputs: Vec<_> =
            (0..10).map(|n| keyed(&topic, &n.to_string(), format!("{round}/{n}"))).collect();
        for (position, n) in append(&log, &outputs).await?.into_iter().zip(0..) {
            let before = known.insert(position.clone(), format!("{round}/{n}"));
            ensure!(before.is_none(), "{position} was given out twice");
        }
        log = harness.reopen(log).await?;
        let found: BTreeMap<Position, String> = read_all(&log, &topic, ReadFrom::Start)
            .await?
            .into_iter()
            .map(|(p, r)| (p, String::from_utf8_lossy(&r.value.unwrap_or_default()).into_owned()))
            .collect();
        ensure!(found == known, "after reopening {round}: {found:?} instead of {known:?}");
    }
    Ok(())
}

async fn equal_keys_share_a_partition(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("keys");
    let mut homes: BTreeMap<usize, BTreeSet<u32>> = BTreeMap::new();
    for _ in 0..3 {
        let outputs: Vec<_> = (0..16).map(|n| keyed(&topic, &n.to_string(), "v")).collect();
        for (n, position) in append(&log, &outputs).await?.iter().enumerate() {
            homes.entry(n).or_default().insert(position.partition);
        }
    }
    ensure!(homes.values().all(|home| home.len() == 1), "a key has several homes: {homes:?}");
    let used: BTreeSet<_> = homes.values().flatten().collect();
    let partitions = harness.features().partitions;
    ensure!(used.iter().all(|&&p| p < partitions), "partitions {used:?} of {partitions}");
    ensure!(partitions == 1 || used.len() > 1, "all 16 keys share one partition");
    Ok(())
}

async fn unkeyed_records_spread(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("unkeyed");
    let mut used = BTreeSet::new();
    // One by one as well as together: neither may pile up in one partition for ever.
    for round in 0..40 {
        let output = Output { key: None, ..keyed(&topic, "", round.to_string()) };
        used.extend(append(&log, &[output.clone(), output]).await?.iter().map(|p| p.partition));
    }
    ensure!(
        harness.features().partitions == 1 || used.len() > 1,
        "80 unkeyed records went to one partition"
    );
    Ok(())
}

async fn an_empty_append_is_fine(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    append(&log, &[]).await.map(drop)
}

async fn an_oversized_record_is_refused_whole(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("oversized");
    append(&log, &[keyed(&topic, "k", "before")]).await?;
    let huge = keyed(&topic, "k", vec![b'x'; RECORD_BYTES_MAX + 1]);
    let refused = log.append(&[keyed(&topic, "k", "with it"), huge]).await;
    ensure!(refused.is_err(), "a record over the limit was taken");
    append(&log, &[keyed(&topic, "k", "after")]).await?;
    let values: Vec<_> =
        read_all(&log, &topic, ReadFrom::Start).await?.into_values().map(|r| r.value).collect();
    let expected = [Some(Bytes::from("before")), Some(Bytes::from("after"))];
    ensure!(values == expected, "the topic holds {} records, expected 2", values.len());
    Ok(())
}

async fn reading_starts_where_told(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("from");
    let positions = append(&log, &numbered(&topic, 0, 10)).await?;
    let sixth = positions.get(5).ok_or("too few positions")?;
    let from_sixth = read_all(&log, &topic, ReadFrom::Offset(sixth.offset)).await?;
    let expected: BTreeSet<&Position> = positions.iter().skip(5).collect();
    let found: BTreeSet<&Position> = from_sixth.keys().collect();
    ensure!(found == expected, "from {sixth}: {found:?}");
    let beyond = read_all(&log, &topic, ReadFrom::Offset(u64::MAX)).await?;
    ensure!(beyond.is_empty(), "there are records behind the last offset");

    let mut at_end = within("read", log.read(&topic, ReadFrom::End)).await?;
    let before = drain(at_end.as_mut()).await?;
    ensure!(before.is_empty(), "a reader from the end saw {} old records", before.len());
    let later = append(&log, &numbered(&topic, 0, 1)).await?;
    let batch = within("a record behind the end", at_end.next(true)).await?;
    let seen: Vec<_> = placed(batch.ok_or("a follower said it is at the end")?)?;
    ensure!(seen.iter().map(|(p, _)| p).eq(&later), "{seen:?} instead of {later:?}");
    Ok(())
}

async fn a_follower_waits_and_a_cancelled_one_loses_nothing(
    harness: &dyn LogHarness,
) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("follow");
    append(&log, &numbered(&topic, 0, 1)).await?;
    let mut reader = within("read", log.read(&topic, ReadFrom::Start)).await?;
    drain(reader.as_mut()).await?;
    let early = tokio::time::timeout(QUIET, reader.next(true)).await;
    ensure!(early.is_err(), "a follower came back though nothing was added");

    let mut sent = Vec::new();
    let mut seen = Vec::new();
    for round in 0..20 {
        let output = Output { value: Some(format!("{round}").into()), ..keyed(&topic, "k", "") };
        sent.extend(append(&log, &[output]).await?);
        if let Some(next) = poll_once(reader.next(true)).await {
            let batch = next.map_err(|fault| fault.to_string())?;
            seen.extend(placed(batch.ok_or("a follower said it is at the end")?)?);
        }
    }
    while seen.len() < sent.len() {
        let batch = within("the rest", reader.next(true)).await?;
        seen.extend(placed(batch.ok_or("a follower said it is at the end")?)?);
    }
    let seen: Vec<_> = seen.into_iter().map(|(position, _)| position).collect();
    ensure!(seen == sent, "saw {seen:?} instead of {sent:?}");
    Ok(())
}

/// What writers have begun to append, and where the log says that it lies once it says so.
type AppendResults = Arc<Mutex<BTreeMap<Bytes, Option<Position>>>>;

/// Appends one record after another until the log is gone.
async fn write_on(log: Arc<dyn Log>, topic: String, writer: u32, told: AppendResults) {
    for n in 0.. {
        let output = keyed(&topic, &format!("w{writer}"), format!("{writer}/{n}"));
        let value = output.value.clone().unwrap_or_default();
        lock(&told).insert(value.clone(), None);
        match log.append(&[output]).await {
            Ok(positions) => lock(&told).insert(value, positions.into_iter().next()),
            Err(_) => return,
        };
        tokio::task::yield_now().await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads while others write. What was seen was sent; and when the log goes down in the midst of
/// it, what was seen or acknowledged by then is there afterwards.
async fn readers_see_only_what_is_acknowledged(harness: &dyn LogHarness) -> Result<(), String> {
    for round in 0..4 {
        let log = harness.fresh().await?;
        let topic = harness.name(&format!("acknowledged-{round}"));
        append(&log, &numbered(&topic, 0, 1)).await?;
        let mut reader = within("read", log.read(&topic, ReadFrom::End)).await?;
        let told = AppendResults::default();
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..4 {
            writers.spawn(write_on(log.clone(), topic.clone(), writer, told.clone()));
        }
        let mut seen: BTreeMap<Position, Bytes> = BTreeMap::new();
        while seen.len() < 25 {
            let batch = within("a record that was appended", reader.next(true)).await?;
            let told = lock(&told);
            for (position, record) in placed(batch.ok_or("a follower said it is at the end")?)? {
                let value = record.value.unwrap_or_default();
                let known = told.get(&value);
                ensure!(known.is_some(), "{position} was seen, and nobody has sent it");
                let is_told = known.and_then(Option::as_ref);
                ensure!(
                    is_told.is_some() || !harness.acknowledges_at_once(),
                    "{position} was seen before it was acknowledged"
                );
                ensure!(is_told.is_none_or(|at| *at == position), "{position} is {is_told:?}");
                let twice = seen.insert(position.clone(), value);
                ensure!(twice.is_none(), "{position} came twice");
            }
        }
        let acknowledged: Vec<_> = lock(&told).clone().into_iter().collect();
        drop(reader);
        let log = harness.reopen(log).await?;
        writers.shutdown().await;
        let there = read_all(&log, &topic, ReadFrom::Start).await?;
        let lies = |at: &Position| there.get(at).and_then(|record| record.value.clone());
        for (at, value) in &seen {
            ensure!(lies(at).as_ref() == Some(value), "{at} was seen, and is not there any more");
        }
        for (value, at) in acknowledged {
            let is_there = at.as_ref().is_none_or(|at| lies(at).as_ref() == Some(&value));
            ensure!(is_there, "{at:?} was acknowledged, and is not there any more");
        }
    }
    Ok(())
}

/// Where a harness can keep the log from making anything durable: nobody sees what may still be lost.
async fn readers_wait_for_what_is_not_durable(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("undurable");
    append(&log, &numbered(&topic, 0, 1)).await?;
    let mut reader = within("read", log.read(&topic, ReadFrom::End)).await?;
    if !harness.stall() {
        return Ok(());
    }
    let told = AppendResults::default();
    let writer = tokio::spawn(write_on(log.clone(), topic.clone(), 0, told.clone()));
    while !harness.is_stalled() {
        tokio::task::yield_now().await;
    }
    let early = tokio::time::timeout(QUIET, reader.next(true)).await;
    let is_told = lock(&told).values().any(Option::is_some);
    drop(reader);
    let log = harness.reopen(log).await?;
    writer.abort();
    ensure!(early.is_err(), "a record was seen that was not acknowledged");
    ensure!(!is_told, "a record was acknowledged that was not durable");
    append(&log, &numbered(&topic, 0, 1)).await.map(drop)
}

async fn an_unknown_topic_is_a_fix(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    match log.read(&harness.name("nowhere"), ReadFrom::Start).await {
        Ok(_) => Err("a topic that does not exist can be read".to_owned()),
        Err(fault) => {
            ensure!(fault.next == Move::Fix, "the fault is {:?}: {fault}", fault.next);
            Ok(())
        }
    }
}

async fn topics_tell_their_ends(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("ends");
    let positions = append(&log, &numbered(&topic, 0, 3)).await?;
    let topics = within("topics", log.topics()).await?;
    let sorted = topics.is_sorted_by(|a, b| a.topic < b.topic);
    ensure!(sorted, "topics are not sorted by name");
    let info = topics.iter().find(|info| info.topic == topic).ok_or("the topic is not listed")?;
    ensure!(
        info.ends.len() == harness.features().partitions as usize,
        "{} partitions are listed",
        info.ends.len()
    );
    let end = info.ends.first().copied().unwrap_or_default();
    let last = positions.last().map_or(0, |p| p.offset);
    ensure!(end > last, "the end {end} is not behind the last record {last}");
    Ok(())
}

async fn a_healthy_log_reports_no_trouble(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    append(&log, &[keyed(&harness.name("healthy"), "k", "v")]).await?;
    let log = harness.reopen(log).await?;
    ensure!(log.damage().is_empty(), "damage in a healthy log: {:?}", log.damage());
    ensure!(log.trouble().is_none(), "trouble in a healthy log: {:?}", log.trouble());
    Ok(())
}
