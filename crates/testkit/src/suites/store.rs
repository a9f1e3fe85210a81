//! The suite of [`Store`].

use std::sync::Arc;

use async_trait::async_trait;
use potok_core::{Move, Partition, Position, Record, SourceBatch, Store, Timestamp};

pub use super::reading::strange;
use super::{ensure, run_checks, within};

/// What may differ between stores.
#[derive(Clone, Copy, Debug)]
pub struct StoreFeatures {
    /// What was put is there after opening it again.
    pub durable: bool,
    /// Bodies are read back from the log they lie in: nothing is put and nothing forgotten.
    pub of_log: bool,
}

/// Brings stores to the suite.
#[async_trait]
pub trait StoreHarness: Send + Sync {
    /// What this store declares.
    fn features(&self) -> StoreFeatures;

    /// An empty store.
    async fn fresh(&self) -> Result<Arc<dyn Store>, String>;

    /// The same store, let go and opened again.
    async fn reopen(&self, store: Arc<dyn Store>) -> Result<Arc<dyn Store>, String>;

    /// Records to keep, of that partition. A store that reads from a log says which lie there.
    async fn batch(&self, index: u32) -> Result<SourceBatch, String> {
        Ok(made_up(index))
    }
}

/// Runs every check; the number that passed, or all failures in words.
pub async fn run_all(harness: &dyn StoreHarness) -> Result<usize, String> {
    run_checks!(
        "store",
        harness,
        [
            bodies_come_back_exact,
            putting_twice_changes_nothing,
            what_is_missing_is_none,
            cleaning_forgets_and_is_repeatable,
            an_older_owner_is_fenced_off,
            partitions_are_fenced_apart,
            incarnations_are_kept_apart,
            bodies_survive_reopening,
        ]
    )
}

/// Records with difficult bytes, as one batch of the topic `held`.
fn made_up(index: u32) -> SourceBatch {
    let records: Vec<Record> = strange("held")
        .into_iter()
        .zip(10_u64..)
        .map(|(output, n)| Record {
            offset: 2 * n,
            time: Timestamp(n as i64),
            key: output.key,
            headers: output.headers,
            value: output.value,
        })
        .collect();
    let next = records.last().map_or(0, |r| r.offset + 1);
    let partition = Partition { topic: "held".into(), index };
    SourceBatch { partition, log: 7, assignment: 1, first: 20, next, records }
}

fn positions(batch: &SourceBatch) -> Vec<Position> {
    batch.records.iter().map(|record| batch.position(record)).collect()
}

async fn holds(store: &Arc<dyn Store>, batch: &SourceBatch) -> Result<(), String> {
    let loaded = within("load", store.load(&positions(batch))).await?;
    ensure!(loaded.len() == batch.records.len(), "{} answers", loaded.len());
    for (record, got) in batch.records.iter().zip(loaded) {
        let got = got.ok_or(format!("{} is missing", batch.position(record)))?;
        ensure!(*record == got, "{} changed into {got:?}", batch.position(record));
    }
    Ok(())
}

async fn holds_none(store: &Arc<dyn Store>, batch: &SourceBatch) -> Result<(), String> {
    let loaded = within("load", store.load(&positions(batch))).await?;
    ensure!(loaded.len() == batch.records.len(), "{} answers", loaded.len());
    ensure!(loaded.iter().all(Option::is_none), "the store holds what it should not");
    Ok(())
}

async fn bodies_come_back_exact(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.fresh().await?;
    let batch = harness.batch(0).await?;
    within("own", store.own(&batch.partition, 1)).await?;
    within("put", store.put(&batch, 1)).await?;
    holds(&store, &batch).await
}

async fn putting_twice_changes_nothing(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.fresh().await?;
    let batch = harness.batch(0).await?;
    within("own", store.own(&batch.partition, 1)).await?;
    within("put", store.put(&batch, 1)).await?;
    within("put", store.put(&batch, 1)).await?;
    holds(&store, &batch).await
}

async fn what_is_missing_is_none(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.fresh().await?;
    let mut batch = harness.batch(0).await?;
    within("own", store.own(&batch.partition, 1)).await?;
    ensure!(within("load", store.load(&[])).await?.is_empty(), "something came for nothing");
    let mut all = positions(&batch);
    let kept = all.len();
    // Behind everything, in another partition, and under another incarnation.
    for change in 0..3 {
        let mut elsewhere = all.first().cloned().ok_or("the batch is empty")?;
        match change {
            0 => elsewhere.offset = batch.next + 1_000_000,
            1 => elsewhere.partition += 1,
            _ => elsewhere.log ^= 1,
        }
        all.push(elsewhere);
    }
    let missing_one = !harness.features().of_log;
    if missing_one {
        holds_none(&store, &batch).await?;
        batch.records.remove(1);
    }
    within("put", store.put(&batch, 1)).await?;
    let loaded = within("load", store.load(&all)).await?;
    let missing: Vec<_> = (0..).zip(&loaded).filter(|(_, r)| r.is_none()).map(|(i, _)| i).collect();
    let mut expected: Vec<usize> = (kept..kept + 3).collect();
    if missing_one {
        expected.insert(0, 1);
    }
    ensure!(missing == expected, "missing are {missing:?} instead of {expected:?}");
    Ok(())
}

async fn cleaning_forgets_and_is_repeatable(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.fresh().await?;
    let (one, two) = (harness.batch(0).await?, harness.batch(1).await?);
    for batch in [&one, &two] {
        within("own", store.own(&batch.partition, 1)).await?;
        within("put", store.put(batch, 1)).await?;
    }
    within("clean", store.clean(&positions(&one), 1)).await?;
    within("clean", store.clean(&positions(&one), 1)).await?;
    within("clean", store.clean(&[], 1)).await?;
    if !harness.features().of_log {
        holds_none(&store, &one).await?;
    }
    holds(&store, &two).await
}

async fn an_older_owner_is_fenced_off(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.fresh().await?;
    let batch = harness.batch(0).await?;
    within("own", store.own(&batch.partition, 11)).await?;
    within("put", store.put(&batch, 11)).await?;
    // Nonces are not numbers to compare: the later owner has the smaller one here.
    within("own", store.own(&batch.partition, 5)).await?;
    match store.clean(&positions(&batch), 11).await {
        Ok(()) => return Err("an older owner cleaned".to_owned()),
        Err(fault) => ensure!(fault.next == Move::Retry, "clean gave {:?}", fault.next),
    }
    holds(&store, &batch).await?;
    within("clean", store.clean(&positions(&batch), 5)).await?;
    match store.put(&batch, 11).await {
        Ok(()) => return Err("an older owner put".to_owned()),
        Err(fault) => ensure!(fault.next == Move::Retry, "put gave {:?}", fault.next),
    }
    if harness.features().of_log { Ok(()) } else { holds_none(&store, &batch).await }
}

async fn partitions_are_fenced_apart(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.fresh().await?;
    let (one, two) = (harness.batch(0).await?, harness.batch(1).await?);
    within("own", store.own(&one.partition, 1)).await?;
    within("own", store.own(&two.partition, 2)).await?;
    within("put", store.put(&one, 1)).await?;
    within("put", store.put(&two, 2)).await?;
    ensure!(store.put(&one, 2).await.is_err(), "the owner of another partition put");
    holds(&store, &one).await?;
    holds(&store, &two).await
}

async fn incarnations_are_kept_apart(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.fresh().await?;
    let old = harness.batch(0).await?;
    let new = SourceBatch { log: old.log ^ 1, ..old.clone() };
    within("own", store.own(&old.partition, 1)).await?;
    within("put", store.put(&old, 1)).await?;
    holds_none(&store, &new).await?;
    if harness.features().of_log {
        return Ok(());
    }
    within("put", store.put(&new, 1)).await?;
    within("clean", store.clean(&positions(&old), 1)).await?;
    holds(&store, &new).await
}

async fn bodies_survive_reopening(harness: &dyn StoreHarness) -> Result<(), String> {
    if !harness.features().durable {
        return Ok(());
    }
    let store = harness.fresh().await?;
    let batch = harness.batch(0).await?;
    within("own", store.own(&batch.partition, 1)).await?;
    within("put", store.put(&batch, 1)).await?;
    let store = harness.reopen(store).await?;
    holds(&store, &batch).await?;
    within("own", store.own(&batch.partition, 2)).await?;
    within("put", store.put(&batch, 2)).await
}
