//! The suite of [`Store`].

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::{
    Fault, Move, Owner, Partition, Record, SourceBatch, Store, StoreAddress, StoreEntry, Timestamp,
};

pub use super::reading::strange;
use super::{STRANGE_TEXT, ensure, run_checks, within};

/// What may differ between stores.
#[derive(Clone, Copy, Debug)]
pub struct StoreFeatures {
    /// What was put is there after opening it again.
    pub durable: bool,
    /// Bodies are read back from the log they lie in: nothing is put and nothing forgotten.
    pub of_log: bool,
    /// Other programs look into it: [`StoreHarness::look`] answers.
    pub shown: bool,
}

/// What a program that looks into the store finds of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// It waits to be sent.
    pub closed: bool,
    /// Kind (`record` where there is none), id (the position where there is none) and value.
    pub records: BTreeSet<(String, Bytes, Bytes)>,
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

    /// What can be seen of a group of pipeline `p`, share 0, in the latest store.
    async fn look(&self, _group: &Bytes) -> Result<Option<Look>, String> {
        Err("this store shows nothing".to_owned())
    }

    /// Makes the latest store lose everything, owners included; false where it cannot.
    async fn wipe(&self) -> Result<bool, String> {
        Ok(false)
    }
}

/// Runs every check; the number that passed, or all failures in words.
pub async fn run_all(harness: &dyn StoreHarness) -> Result<usize, String> {
    run_checks!(
        "store",
        harness,
        [
            bodies_come_back_exact,
            bodies_come_in_the_order_asked,
            putting_twice_changes_nothing,
            what_is_missing_is_none,
            cleaning_forgets_and_is_repeatable,
            cleaning_some_leaves_the_others,
            what_was_put_together_goes_one_by_one,
            the_last_record_takes_its_group_along,
            the_later_of_one_id_is_shown_and_both_are_kept,
            names_that_run_together_are_kept_apart,
            groups_that_come_mixed_keep_their_order,
            closing_is_shown_and_repeatable,
            a_group_opens_again_with_its_next_generation,
            an_older_owner_is_fenced_off,
            a_share_that_holds_very_much_is_taken_over,
            without_an_owner_nothing_is_written,
            a_vanished_owner_is_noticed,
            shares_are_fenced_apart,
            pipelines_are_fenced_apart,
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
    SourceBatch {
        partition,
        log: 7,
        assignment: 1,
        first: 20,
        next,
        records,
        order: None,
        feed: None,
    }
}

fn owner(share: u32, nonce: u64) -> Owner {
    Owner { pipeline: "p".into(), share, nonce }
}

const OPENED: Timestamp = Timestamp(1_742_742_900_123);

/// The records of a batch, spread over groups, kinds and ids with difficult names.
fn spread(batch: &SourceBatch) -> Vec<StoreEntry> {
    let groups = ["20250323151500", "", "a:b", "\0", STRANGE_TEXT, "a\nb c"];
    let kinds = [None, Some("event"), Some("mention")];
    let ids = [None, Some(""), Some("1"), Some("b:c\0"), Some(STRANGE_TEXT)];
    let mut held = Vec::new();
    for (number, record) in batch.records.iter().enumerate() {
        let place = StoreAddress {
            group: Bytes::from_static(groups[number % groups.len()].as_bytes()),
            kind: kinds[number % kinds.len()].map(Arc::from),
            id: ids[number % ids.len()].map(|id| Bytes::from_static(id.as_bytes())),
            position: batch.position(record),
            with: record.offset,
        };
        held.push(StoreEntry { place, opened: OPENED, record: record.clone() });
    }
    held
}

/// The records of a batch, all of them in one group and without kinds and ids.
fn of_group(batch: &SourceBatch, group: &'static str) -> Vec<StoreEntry> {
    let mut held = spread(batch);
    for StoreEntry { place, .. } in &mut held {
        place.group = Bytes::from_static(group.as_bytes());
        (place.kind, place.id) = (None, None);
    }
    held
}

fn places(held: &[StoreEntry]) -> Vec<StoreAddress> {
    held.iter().map(|held| held.place.clone()).collect()
}

/// Kind and id of the record, as shown.
fn named(held: &StoreEntry) -> (String, Bytes) {
    let StoreAddress { kind, id, position, .. } = &held.place;
    let kind = kind.as_deref().unwrap_or("record").to_owned();
    (kind, id.clone().unwrap_or_else(|| position.to_string().into()))
}

fn shown<'a>(held: impl IntoIterator<Item = &'a StoreEntry>) -> BTreeSet<(String, Bytes, Bytes)> {
    let one = |held: &StoreEntry| {
        let (kind, id) = named(held);
        (kind, id, held.record.value.clone().unwrap_or_default())
    };
    held.into_iter().map(one).collect()
}

async fn holds(store: &Arc<dyn Store>, owner: &Owner, held: &[StoreEntry]) -> Result<(), String> {
    let loaded = within("load", store.load(owner, &places(held))).await?;
    ensure!(loaded.len() == held.len(), "{} answers", loaded.len());
    for (StoreEntry { place, record, .. }, got) in held.iter().zip(loaded) {
        let got = got.ok_or(format!("{} is missing", place.position))?;
        ensure!(*record == got, "{} changed into {got:?}", place.position);
    }
    Ok(())
}

async fn holds_none(
    store: &Arc<dyn Store>,
    owner: &Owner,
    held: &[StoreEntry],
) -> Result<(), String> {
    let loaded = within("load", store.load(owner, &places(held))).await?;
    ensure!(loaded.len() == held.len(), "{} answers", loaded.len());
    ensure!(loaded.iter().all(Option::is_none), "the store holds what it should not");
    Ok(())
}

fn refused<T>(what: &str, answer: Result<T, Fault>) -> Result<(), String> {
    match answer {
        Ok(_) => Err(format!("{what} was not refused")),
        Err(fault) if fault.next == Move::Retry => Ok(()),
        Err(fault) => Err(format!("{what} gave {:?}: {fault}", fault.next)),
    }
}

/// A fresh store, owned and empty, and the difficult records of partition 0.
async fn empty(harness: &dyn StoreHarness) -> Result<(Arc<dyn Store>, SourceBatch), String> {
    let store = harness.fresh().await?;
    within("own", store.own(&owner(0, 1))).await?;
    let batch = harness.batch(0).await?;
    Ok((store, batch))
}

async fn bodies_come_back_exact(harness: &dyn StoreHarness) -> Result<(), String> {
    let (store, batch) = empty(harness).await?;
    let held = spread(&batch);
    within("put", store.put(&owner(0, 1), &held)).await?;
    holds(&store, &owner(0, 1), &held).await
}

async fn bodies_come_in_the_order_asked(harness: &dyn StoreHarness) -> Result<(), String> {
    let (store, batch) = empty(harness).await?;
    let mut held = spread(&batch);
    within("put", store.put(&owner(0, 1), &held)).await?;
    held.reverse();
    held.push(held[0].clone());
    holds(&store, &owner(0, 1), &held).await
}

async fn putting_twice_changes_nothing(harness: &dyn StoreHarness) -> Result<(), String> {
    let (store, batch) = empty(harness).await?;
    let held = spread(&batch);
    within("put", store.put(&owner(0, 1), &held)).await?;
    // Repeats come whole, and as the end of what was put.
    within("put", store.put(&owner(0, 1), &held)).await?;
    within("put", store.put(&owner(0, 1), &held[held.len() / 2..])).await?;
    within("put", store.put(&owner(0, 1), &[])).await?;
    holds(&store, &owner(0, 1), &held).await
}

async fn what_is_missing_is_none(harness: &dyn StoreHarness) -> Result<(), String> {
    let (store, batch) = empty(harness).await?;
    let me = owner(0, 1);
    let nothing = within("load", store.load(&me, &[])).await?;
    ensure!(nothing.is_empty(), "something came for nothing");
    let mut held = spread(&batch);
    let mut all = places(&held);
    let kept = all.len();
    // Behind everything, in another partition, and under another incarnation.
    for change in 0..3 {
        let mut elsewhere = all.first().cloned().ok_or("the batch is empty")?;
        match change {
            0 => elsewhere.position.offset = batch.next + 1_000_000,
            1 => elsewhere.position.partition += 1,
            _ => elsewhere.position.log ^= 1,
        }
        all.push(elsewhere);
    }
    let missing_one = !harness.features().of_log;
    if missing_one {
        holds_none(&store, &me, &held).await?;
        held.remove(1);
    }
    within("put", store.put(&me, &held)).await?;
    let loaded = within("load", store.load(&me, &all)).await?;
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
    let (one, two) = (spread(&harness.batch(0).await?), spread(&harness.batch(1).await?));
    for (share, held) in [(0, &one), (1, &two)] {
        within("own", store.own(&owner(share, 1))).await?;
        within("put", store.put(&owner(share, 1), held)).await?;
    }
    let me = owner(0, 1);
    within("clean", store.clean(&me, &places(&one))).await?;
    within("clean", store.clean(&me, &places(&one))).await?;
    within("clean", store.clean(&me, &[])).await?;
    if !harness.features().of_log {
        holds_none(&store, &me, &one).await?;
    }
    holds(&store, &owner(1, 1), &two).await
}

async fn cleaning_some_leaves_the_others(harness: &dyn StoreHarness) -> Result<(), String> {
    let (store, batch) = empty(harness).await?;
    let me = owner(0, 1);
    let held = of_group(&batch, "g");
    within("put", store.put(&me, &held)).await?;
    let (gone, left) = held.split_at(held.len() / 2);
    within("clean", store.clean(&me, &places(gone))).await?;
    if !harness.features().of_log {
        holds_none(&store, &me, gone).await?;
    }
    if harness.features().shown {
        let look = harness.look(&Bytes::from_static(b"g")).await?.ok_or("the group is gone")?;
        ensure!(look.records == shown(left), "shown are {:?}", look.records);
    }
    holds(&store, &me, left).await
}

async fn what_was_put_together_goes_one_by_one(harness: &dyn StoreHarness) -> Result<(), String> {
    let (store, batch) = empty(harness).await?;
    let me = owner(0, 1);
    let of_log = harness.features().of_log;
    let (mut held, other) = (of_group(&batch, "g"), of_group(&harness.batch(1).await?, "g"));
    let first = held.first().map_or(0, |held| held.place.position.offset);
    held.iter_mut().for_each(|held| held.place.with = first);
    // The others have the same offsets, in another partition.
    let all = [&held[..], &other[..]].concat();
    for _ in 0..2 {
        within("put", store.put(&me, &all)).await?;
        holds(&store, &me, &all).await?;
        let mixed: Vec<StoreEntry> = all.iter().rev().step_by(3).cloned().collect();
        holds(&store, &me, &mixed).await?;
    }
    let (gone, left): (Vec<_>, Vec<_>) = (0..).zip(held).partition(|(n, _)| n % 2 == 0);
    let [gone, left] = [gone, left].map(|held| -> Vec<StoreEntry> {
        held.into_iter().map(|(_, held): (usize, StoreEntry)| held).collect()
    });
    for _ in 0..2 {
        within("clean", store.clean(&me, &places(&gone))).await?;
        holds(&store, &me, &left).await?;
        if !of_log {
            holds_none(&store, &me, &gone).await?;
        }
    }
    for (number, held) in left.iter().enumerate() {
        within("clean", store.clean(&me, &places(std::slice::from_ref(held)))).await?;
        holds(&store, &me, &left[number + 1..]).await?;
    }
    if !of_log {
        holds_none(&store, &me, &left).await?;
    }
    holds(&store, &me, &other).await?;
    within("clean", store.clean(&me, &places(&other))).await?;
    if harness.features().shown {
        let look = harness.look(&Bytes::from_static(b"g")).await?;
        ensure!(look.is_none(), "the group is still shown: {look:?}");
    }
    Ok(())
}

async fn the_last_record_takes_its_group_along(harness: &dyn StoreHarness) -> Result<(), String> {
    let (store, batch) = empty(harness).await?;
    let me = owner(0, 1);
    let held = spread(&batch);
    within("put", store.put(&me, &held)).await?;
    if !harness.features().shown {
        return within("clean", store.clean(&me, &places(&held))).await;
    }
    let groups: BTreeSet<Bytes> = held.iter().map(|held| held.place.group.clone()).collect();
    let closed: Vec<Bytes> = groups.iter().take(2).cloned().collect();
    within("close", store.close(&me, &closed)).await?;
    for group in &groups {
        ensure!(harness.look(group).await?.is_some(), "group {group:?} is not shown");
    }
    // One after another: each group goes with its last record, not before.
    for (number, StoreEntry { place, .. }) in held.iter().enumerate() {
        within("clean", store.clean(&me, std::slice::from_ref(place))).await?;
        let left = held[number + 1..].iter().any(|held| held.place.group == place.group);
        let look = harness.look(&place.group).await?;
        ensure!(look.is_some() == left, "group {:?}: {look:?}", place.group);
    }
    Ok(())
}

async fn the_later_of_one_id_is_shown_and_both_are_kept(
    harness: &dyn StoreHarness,
) -> Result<(), String> {
    let (store, batch) = empty(harness).await?;
    let me = owner(0, 1);
    let mut held = of_group(&batch, "g");
    held.truncate(4);
    for StoreEntry { place, .. } in &mut held {
        place.kind = Some("event".into());
        place.id = Some(Bytes::from_static(b"1"));
    }
    // In one call, in two, and all of it again as after a restart.
    within("put", store.put(&me, &held[..3])).await?;
    within("put", store.put(&me, &held[3..])).await?;
    holds(&store, &me, &held).await?;
    within("put", store.put(&me, &held)).await?;
    holds(&store, &me, &held).await?;
    let group = Bytes::from_static(b"g");
    if harness.features().shown {
        let look = harness.look(&group).await?.ok_or("the group is not shown")?;
        ensure!(look.records == shown(&held[3..]), "shown are {:?}", look.records);
    }
    // The earlier ones have ended, then the one between, then the later before the last.
    within("clean", store.clean(&me, &places(&held[..1]))).await?;
    holds(&store, &me, &held[1..]).await?;
    within("clean", store.clean(&me, &places(&held[3..]))).await?;
    holds(&store, &me, &held[1..3]).await?;
    within("clean", store.clean(&me, &places(&held[1..3]))).await?;
    if harness.features().shown {
        ensure!(harness.look(&group).await?.is_none(), "the group is still shown");
    }
    Ok(())
}

async fn names_that_run_together_are_kept_apart(harness: &dyn StoreHarness) -> Result<(), String> {
    let (store, batch) = empty(harness).await?;
    let me = owner(0, 1);
    let mut held = of_group(&batch, "");
    let names = [("a", "b:c:d"), ("a:b", "c:d"), ("a:b:c", "d"), ("a:b:c:d", ""), ("", "a:b:c:d")];
    held.truncate(2 * names.len());
    for (number, StoreEntry { place, .. }) in held.iter_mut().enumerate() {
        let (group, id) = names[number % names.len()];
        place.group = Bytes::from_static(group.as_bytes());
        place.id = Some(Bytes::from_static(id.as_bytes()));
        place.kind = if number < names.len() { None } else { Some("event".into()) };
    }
    within("put", store.put(&me, &held)).await?;
    holds(&store, &me, &held).await?;
    within("put", store.put(&me, &held)).await?;
    holds(&store, &me, &held).await?;
    let cleaned: Vec<StoreAddress> =
        places(&held).into_iter().filter(|place| place.group == "a:b").collect();
    within("clean", store.clean(&me, &cleaned)).await?;
    held.retain(|held| held.place.group != "a:b");
    holds(&store, &me, &held).await?;
    within("clean", store.clean(&me, &places(&held))).await
}

/// More than one piece of any store, and no group's records behind each other.
async fn groups_that_come_mixed_keep_their_order(harness: &dyn StoreHarness) -> Result<(), String> {
    if harness.features().of_log {
        return Ok(());
    }
    let (store, batch) = empty(harness).await?;
    let me = owner(0, 1);
    let one = spread(&batch).swap_remove(0);
    let (groups, ids, kinds) = (7, 50, ["event", "mention"]);
    let mixed: Vec<StoreEntry> = (0..2_500)
        .map(|n: u64| {
            let mut held = one.clone();
            held.place.group = format!("g{}", n % groups).into();
            held.place.kind = Some(kinds[(n / groups) as usize % 2].into());
            held.place.id = Some((n / groups % ids).to_string().into());
            (held.place.position.offset, held.record.offset) = (n, n);
            held.record.value = Some(format!("value {n}").into());
            held
        })
        .collect();
    for _ in 0..2 {
        within("put", store.put(&me, &mixed)).await?;
        holds(&store, &me, &mixed).await?;
    }
    if harness.features().shown {
        let last = &mixed[mixed.len() - (groups * ids) as usize..];
        for number in 0..groups {
            let group = Bytes::from(format!("g{number}"));
            let look = harness.look(&group).await?.ok_or("the group is not shown")?;
            let expected = shown(last.iter().filter(|held| held.place.group == group));
            ensure!(look.records == expected, "{group:?} shows {:?}", look.records);
        }
    }
    let (gone, left) = mixed.split_at(mixed.len() / 2);
    within("clean", store.clean(&me, &places(gone))).await?;
    holds_none(&store, &me, gone).await?;
    holds(&store, &me, left).await?;
    within("clean", store.clean(&me, &places(left))).await?;
    holds_none(&store, &me, left).await
}

async fn closing_is_shown_and_repeatable(harness: &dyn StoreHarness) -> Result<(), String> {
    let (store, batch) = empty(harness).await?;
    let me = owner(0, 1);
    let held = of_group(&batch, "g");
    within("put", store.put(&me, &held)).await?;
    let group = Bytes::from_static(b"g");
    let unknown = Bytes::from_static(b"unknown");
    let check = async |closed: bool| -> Result<(), String> {
        if harness.features().shown {
            let look = harness.look(&group).await?.ok_or("the group is not shown")?;
            ensure!(look.closed == closed, "closed is {}", look.closed);
            ensure!(look.records == shown(&held), "shown are {:?}", look.records);
            ensure!(harness.look(&unknown).await?.is_none(), "an unknown group is shown");
        }
        holds(&store, &me, &held).await
    };
    check(false).await?;
    within("close", store.close(&me, &[])).await?;
    within("close", store.close(&me, std::slice::from_ref(&unknown))).await?;
    check(false).await?;
    for _ in 0..2 {
        within("close", store.close(&me, &[unknown.clone(), group.clone()])).await?;
        check(true).await?;
    }
    // What is there already does not open it again.
    within("put", store.put(&me, &held)).await?;
    check(true).await
}

async fn a_group_opens_again_with_its_next_generation(
    harness: &dyn StoreHarness,
) -> Result<(), String> {
    let (store, batch) = empty(harness).await?;
    let me = owner(0, 1);
    let held = of_group(&batch, "g");
    let (one, two) = held.split_at(held.len() / 2);
    let group = [Bytes::from_static(b"g")];
    for generation in [one, two] {
        within("put", store.put(&me, generation)).await?;
        holds(&store, &me, generation).await?;
        if harness.features().shown {
            let look = harness.look(&group[0]).await?.ok_or("the group is not shown")?;
            let expected = Look { closed: false, records: shown(generation) };
            ensure!(look == expected, "shown is {look:?}");
        }
        within("close", store.close(&me, &group)).await?;
        if harness.features().shown {
            let look = harness.look(&group[0]).await?;
            ensure!(look.is_some_and(|look| look.closed), "the group is not closed");
        }
        within("clean", store.clean(&me, &places(generation))).await?;
        if harness.features().shown {
            ensure!(harness.look(&group[0]).await?.is_none(), "the group is still shown");
        }
    }
    // Cleaning what has long gone leaves the next generation alone.
    within("put", store.put(&me, two)).await?;
    within("clean", store.clean(&me, &places(one))).await?;
    holds(&store, &me, two).await
}

async fn an_older_owner_is_fenced_off(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.fresh().await?;
    let held = spread(&harness.batch(0).await?);
    // Nonces are not numbers to compare: the later owner has the smaller one here.
    let (old, new) = (owner(0, 11), owner(0, 5));
    within("own", store.own(&old)).await?;
    within("put", store.put(&old, &held)).await?;
    within("own", store.own(&new)).await?;
    within("put", store.put(&new, &held)).await?;
    let groups: Vec<Bytes> = held.iter().map(|held| held.place.group.clone()).collect();
    refused("clean by an older owner", store.clean(&old, &places(&held)).await)?;
    refused("close by an older owner", store.close(&old, &groups).await)?;
    holds(&store, &new, &held).await?;
    if harness.features().shown {
        let look = harness.look(&groups[0]).await?.ok_or("the group is not shown")?;
        ensure!(!look.closed, "an older owner has closed the group");
    }
    within("clean", store.clean(&new, &places(&held))).await?;
    refused("put by an older owner", store.put(&old, &held).await)?;
    if harness.features().of_log { Ok(()) } else { holds_none(&store, &new, &held).await }
}

/// More than one look at a large table shows.
const VERY_MANY: u64 = 25_000;

async fn a_share_that_holds_very_much_is_taken_over(
    harness: &dyn StoreHarness,
) -> Result<(), String> {
    if harness.features().of_log {
        return Ok(());
    }
    let (store, batch) = empty(harness).await?;
    let one = spread(&batch).swap_remove(0);
    let at = |number: u64, group: String, id: String| {
        let mut held = one.clone();
        (held.place.group, held.place.id) = (group.into(), Some(id.into()));
        (held.place.position.offset, held.record.offset) = (number, number);
        held
    };
    let groups = (0..VERY_MANY).map(|n| at(n, format!("g{n}"), "1".to_owned()));
    let ids = (VERY_MANY..2 * VERY_MANY).map(|n| at(n, "all".to_owned(), n.to_string()));
    let held: Vec<StoreEntry> = groups.chain(ids).collect();
    for held in held.chunks(5_000) {
        within("put", store.put(&owner(0, 1), held)).await?;
    }
    let new = owner(0, 2);
    within("own", store.own(&new)).await?;
    let again = held.get(..10).unwrap_or_default();
    within("put", store.put(&new, again)).await?;
    holds(&store, &new, again).await
}

async fn without_an_owner_nothing_is_written(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.fresh().await?;
    let held = spread(&harness.batch(0).await?);
    let me = owner(0, 1);
    refused("put", store.put(&me, &held).await)?;
    refused("close", store.close(&me, &[held[0].place.group.clone()]).await)?;
    refused("clean", store.clean(&me, &places(&held)).await)?;
    within("own", store.own(&me)).await?;
    if harness.features().of_log { Ok(()) } else { holds_none(&store, &me, &held).await }
}

async fn a_vanished_owner_is_noticed(harness: &dyn StoreHarness) -> Result<(), String> {
    let (store, batch) = empty(harness).await?;
    let me = owner(0, 1);
    let held = spread(&batch);
    within("put", store.put(&me, &held)).await?;
    if !harness.wipe().await? {
        return Ok(());
    }
    refused("put", store.put(&me, &held).await)?;
    refused("close", store.close(&me, &[held[0].place.group.clone()]).await)?;
    refused("clean", store.clean(&me, &places(&held)).await)?;
    match store.load(&me, &places(&held)).await {
        Ok(loaded) => ensure!(loaded.iter().all(Option::is_none), "bodies have survived"),
        Err(fault) => ensure!(fault.next == Move::Retry, "load gave {fault}"),
    }
    // It is taken again, and written again from the log.
    within("own", store.own(&me)).await?;
    within("put", store.put(&me, &held)).await?;
    holds(&store, &me, &held).await
}

async fn shares_are_fenced_apart(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.fresh().await?;
    let (one, two) = (spread(&harness.batch(0).await?), spread(&harness.batch(1).await?));
    within("own", store.own(&owner(0, 1))).await?;
    within("own", store.own(&owner(1, 2))).await?;
    within("put", store.put(&owner(0, 1), &one)).await?;
    refused("put by the owner of another share", store.put(&owner(0, 2), &one).await)?;
    // A group has one share; here each has its own.
    let mut two = two;
    for StoreEntry { place, .. } in &mut two {
        place.group = [b"two ", &place.group[..]].concat().into();
    }
    within("put", store.put(&owner(1, 2), &two)).await?;
    within("own", store.own(&owner(2, 3))).await?;
    holds(&store, &owner(0, 1), &one).await?;
    holds(&store, &owner(1, 2), &two).await?;
    within("clean", store.clean(&owner(0, 1), &places(&one))).await?;
    holds(&store, &owner(1, 2), &two).await
}

async fn pipelines_are_fenced_apart(harness: &dyn StoreHarness) -> Result<(), String> {
    let (store, batch) = empty(harness).await?;
    let held = spread(&batch);
    let (one, two) = (owner(0, 1), Owner { pipeline: "q".into(), share: 0, nonce: 2 });
    within("own", store.own(&two)).await?;
    within("put", store.put(&one, &held)).await?;
    within("put", store.put(&two, &held)).await?;
    refused("put by another pipeline's owner", store.put(&owner(0, 2), &held).await)?;
    within("clean", store.clean(&one, &places(&held))).await?;
    holds(&store, &two, &held).await
}

async fn incarnations_are_kept_apart(harness: &dyn StoreHarness) -> Result<(), String> {
    let (store, batch) = empty(harness).await?;
    let me = owner(0, 1);
    let old = spread(&batch);
    let new = spread(&SourceBatch { log: batch.log ^ 1, ..batch });
    within("put", store.put(&me, &old)).await?;
    holds_none(&store, &me, &new).await?;
    if harness.features().of_log {
        return Ok(());
    }
    within("put", store.put(&me, &new)).await?;
    holds(&store, &me, &old).await?;
    within("clean", store.clean(&me, &places(&old))).await?;
    holds(&store, &me, &new).await
}

async fn bodies_survive_reopening(harness: &dyn StoreHarness) -> Result<(), String> {
    if !harness.features().durable {
        return Ok(());
    }
    let (store, batch) = empty(harness).await?;
    let held = spread(&batch);
    within("put", store.put(&owner(0, 1), &held)).await?;
    let store = harness.reopen(store).await?;
    holds(&store, &owner(0, 1), &held).await?;
    within("own", store.own(&owner(0, 2))).await?;
    within("put", store.put(&owner(0, 2), &held)).await?;
    holds(&store, &owner(0, 2), &held).await
}
