//! The suite of [`potok_core::Feed`]: what the engine relies on.
//!
//! A feed that closes groups itself is asked the same: what it hands out is looked at record by
//! record, and besides whether a group stays what it was.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use potok_core::{
    EndedOffsets, Fault, Feed, FeedCommit, Log, Partition, PipelineInfo, Position, PostponedRecord,
    Progress, Reason, Record, SetAside, Source, SourceEvent, WholeGroup,
};

use super::reading::{eventually, poll_once};
use super::{PATIENCE, QUIET, ensure, run_checks, within};

/// Brings feeds.
#[async_trait]
pub trait FeedHarness: Send + Sync {
    /// A feed with nothing in it. One check after the other asks for one.
    async fn fresh(&self) -> Result<Arc<dyn Feed>, String>;

    /// The last fresh one as another process would see it.
    async fn another(&self) -> Result<Arc<dyn Feed>, String>;

    /// Puts records into the last fresh one, each with key and value, in this order. They are there
    /// when it returns. Where the feed closes groups, those of one call and key are one group.
    async fn fill(&self, records: &[(&str, &str)]) -> Result<(), String>;

    /// The values of those that were set aside, as [`FeedHarness::fill`] had them. Only where the feed
    /// puts off.
    async fn set_aside(&self) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    /// The value that a record was filled with.
    fn value_of(&self, record: &Record) -> String {
        String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()).into_owned()
    }

    /// The key that a record was filled with.
    fn key_of(&self, record: &Record) -> String {
        String::from_utf8_lossy(record.key.as_deref().unwrap_or_default()).into_owned()
    }

    /// What it keeps in a log, it keeps in this one.
    async fn log(&self) -> Result<Arc<dyn Log>, String>;

    /// True where an opening that another one has followed cannot change anything any more. A feed
    /// that only one process may have at a time says no.
    fn is_fenced(&self) -> bool {
        true
    }
}

/// Runs every check; the number that passed, or all failures in words.
pub async fn run_all(harness: &dyn FeedHarness) -> Result<usize, String> {
    run_checks!(
        "feed",
        harness,
        [
            records_come_once_and_in_order,
            a_cancelled_next_loses_nothing,
            pausing_holds_until_set_again,
            what_has_ended_does_not_come_again,
            what_was_given_back_comes_again_in_order,
            names_survive_reopening,
            a_foreign_assignment_changes_nothing,
            an_old_opening_changes_nothing,
            two_openings_never_hand_out_one_record,
            a_commit_repeated_is_harmless,
            the_backlog_tells_what_waits,
            what_is_put_off_comes_first_of_its_key,
            attempts_survive_reopening,
            what_is_set_aside_is_kept_apart,
            a_group_stays_what_it_was,
        ]
    )
}

/// A record that was handed out.
#[derive(Clone, Debug)]
struct FeedRecord {
    partition: Partition,
    assignment: u64,
    offset: u64,
    key: String,
    value: String,
    name: Position,
    failures: u32,
    whole: Option<WholeGroup>,
}

/// An opened feed, and what it has said.
struct OpenedFeed<'a> {
    harness: &'a dyn FeedHarness,
    source: Box<dyn Source>,
    progress: Arc<dyn Progress>,
    assigned: HashSet<u64>,
    seen: Vec<FeedRecord>,
    finished: HashSet<u64>,
}

fn info() -> PipelineInfo {
    PipelineInfo {
        pipeline: "suite".into(),
        dead_letters: "suite-dead".into(),
        resolved: "suite-dead-resolved".into(),
        replay: "suite-replay".into(),
        replays_max: 5,
        internal: None,
    }
}

impl<'a> OpenedFeed<'a> {
    async fn open(harness: &'a dyn FeedHarness, feed: &Arc<dyn Feed>) -> Result<Self, String> {
        let log = harness.log().await?;
        // An owner that is gone may be missed for a while.
        let info = info();
        let opened = eventually("opening", || feed.open(&info, log.clone())).await?;
        Ok(OpenedFeed {
            harness,
            source: opened.source,
            progress: opened.progress,
            assigned: HashSet::new(),
            seen: Vec::new(),
            finished: HashSet::new(),
        })
    }

    fn take(&mut self, said: SourceEvent) -> Result<(), String> {
        match said {
            SourceEvent::Assigned(all) => self.assigned.extend(all.iter().map(|of| of.nonce)),
            SourceEvent::Batch(batch) => {
                let nonce = batch.assignment;
                ensure!(self.assigned.contains(&nonce), "records of {nonce}, never assigned");
                let mut next = batch.first;
                for (at, record) in batch.records.iter().enumerate() {
                    ensure!(
                        record.offset >= next && record.offset < batch.next,
                        "offset {} lies outside {}..{}",
                        record.offset,
                        next,
                        batch.next
                    );
                    next = record.offset + 1;
                    let (name, failures) = batch.origin(at).ok_or("a record without an origin")?;
                    self.seen.push(FeedRecord {
                        partition: batch.partition.clone(),
                        assignment: nonce,
                        offset: record.offset,
                        key: self.harness.key_of(record),
                        value: self.harness.value_of(record),
                        name,
                        failures,
                        whole: batch.whole().cloned(),
                    });
                }
            }
            SourceEvent::Revoked(nonces) | SourceEvent::Lost(nonces) => {
                nonces.iter().for_each(|nonce| _ = self.assigned.remove(nonce));
            }
            SourceEvent::Finished(nonces) => self.finished.extend(nonces),
            SourceEvent::Stalled(Some(fault)) => return Err(format!("stalled: {fault}")),
            SourceEvent::Stalled(None) => {}
        }
        Ok(())
    }

    async fn until(&mut self, records: usize) -> Result<(), String> {
        while self.seen.len() < records {
            let what = format!("{} of {records} records", self.seen.len());
            let said = within(&what, self.source.next()).await?;
            self.take(said)?;
        }
        Ok(())
    }

    /// Takes whatever comes for a short while.
    async fn look(&mut self) -> Result<(), String> {
        let end = tokio::time::Instant::now() + QUIET;
        while let Ok(said) = tokio::time::timeout_at(end, self.source.next()).await {
            self.take(said.map_err(|fault| fault.to_string())?)?;
        }
        Ok(())
    }

    fn values(&self) -> Vec<&str> {
        self.seen.iter().map(|seen| seen.value.as_str()).collect()
    }

    fn values_of(&self, key: &str) -> Vec<&str> {
        let of_key = self.seen.iter().filter(|seen| seen.key == key);
        of_key.map(|seen| seen.value.as_str()).collect()
    }

    async fn commit(&self, commit: &FeedCommit) -> Result<(), String> {
        eventually("a commit", || self.progress.commit(commit)).await
    }

    /// Everything it handed out under these values is told to it as ended.
    async fn end(&self, values: &[&str]) -> Result<(), String> {
        self.commit(&FeedCommit { ended: self.of(values), ..FeedCommit::default() }).await
    }

    fn of(&self, values: &[&str]) -> Vec<EndedOffsets> {
        let wanted = self.seen.iter().filter(|seen| values.contains(&seen.value.as_str()));
        ended(wanted)
    }
}

/// Single offsets, by assignment.
fn ended<'a>(seen: impl Iterator<Item = &'a FeedRecord>) -> Vec<EndedOffsets> {
    let mut by: BTreeMap<u64, EndedOffsets> = BTreeMap::new();
    for FeedRecord { partition, assignment, offset, .. } in seen {
        let new = || {
            let (partition, ranges) = (partition.clone(), Vec::new());
            EndedOffsets { partition, assignment: *assignment, ranges }
        };
        by.entry(*assignment).or_insert_with(new).ranges.push(*offset..*offset + 1);
    }
    by.into_values().collect()
}

const SIX: [(&str, &str); 6] =
    [("a", "a1"), ("b", "b1"), ("a", "a2"), ("c", "c1"), ("a", "a3"), ("b", "b2")];

async fn filled<'a>(
    harness: &'a dyn FeedHarness,
) -> Result<(Arc<dyn Feed>, OpenedFeed<'a>), String> {
    let feed = harness.fresh().await?;
    harness.fill(&SIX).await?;
    let mut opened = OpenedFeed::open(harness, &feed).await?;
    opened.until(6).await?;
    Ok((feed, opened))
}

async fn records_come_once_and_in_order(harness: &dyn FeedHarness) -> Result<(), String> {
    let (_feed, mut opened) = filled(harness).await?;
    opened.look().await?;
    for (key, wanted) in [("a", &["a1", "a2", "a3"][..]), ("b", &["b1", "b2"]), ("c", &["c1"])] {
        ensure!(opened.values_of(key) == wanted, "key {key}: {:?}", opened.values_of(key));
    }
    let places: BTreeSet<_> =
        opened.seen.iter().map(|seen| (seen.assignment, seen.offset)).collect();
    ensure!(places.len() == 6, "one place was handed out twice: {:?}", opened.seen);
    Ok(())
}

async fn a_cancelled_next_loses_nothing(harness: &dyn FeedHarness) -> Result<(), String> {
    let feed = harness.fresh().await?;
    harness.fill(&SIX).await?;
    let mut opened = OpenedFeed::open(harness, &feed).await?;
    for _ in 0..50 {
        if let Some(said) = poll_once(opened.source.next()).await {
            opened.take(said.map_err(|fault| fault.to_string())?)?;
        }
    }
    opened.until(6).await?;
    opened.look().await?;
    let all: BTreeSet<&str> = opened.values().into_iter().collect();
    ensure!(opened.seen.len() == 6 && all.len() == 6, "saw {:?}", opened.values());
    Ok(())
}

async fn pausing_holds_until_set_again(harness: &dyn FeedHarness) -> Result<(), String> {
    let feed = harness.fresh().await?;
    let mut opened = OpenedFeed::open(harness, &feed).await?;
    opened.source.set_paused(true);
    harness.fill(&SIX).await?;
    opened.look().await?;
    opened.source.set_paused(true);
    opened.look().await?;
    ensure!(opened.seen.is_empty(), "records while paused: {:?}", opened.values());
    opened.source.set_paused(false);
    opened.until(6).await
}

async fn what_has_ended_does_not_come_again(harness: &dyn FeedHarness) -> Result<(), String> {
    let (feed, opened) = filled(harness).await?;
    // Where groups come whole, they end whole.
    opened.end(&["a1", "a2", "a3", "c1"]).await?;
    drop(opened);
    let mut again = OpenedFeed::open(harness, &feed).await?;
    again.until(2).await?;
    again.look().await?;
    ensure!(again.values() == ["b1", "b2"], "came again: {:?}", again.values());
    Ok(())
}

async fn what_was_given_back_comes_again_in_order(harness: &dyn FeedHarness) -> Result<(), String> {
    let (_feed, mut opened) = filled(harness).await?;
    let (given_back, ended) = (opened.of(&["a1", "a2", "a3"]), opened.of(&["c1"]));
    opened.commit(&FeedCommit { given_back, ended, ..FeedCommit::default() }).await?;
    opened.until(9).await?;
    opened.look().await?;
    let wanted = ["a1", "a2", "a3", "a1", "a2", "a3"];
    ensure!(opened.values_of("a") == wanted, "saw {:?}", opened.values_of("a"));
    ensure!(opened.values_of("c") == ["c1"], "what has ended came again");
    ensure!(opened.values_of("b").len() == 2, "what is under way came again");
    Ok(())
}

async fn names_survive_reopening(harness: &dyn FeedHarness) -> Result<(), String> {
    let (feed, opened) = filled(harness).await?;
    let names = |opened: &OpenedFeed<'_>| -> BTreeMap<String, Position> {
        opened.seen.iter().map(|seen| (seen.value.clone(), seen.name.clone())).collect()
    };
    let first = names(&opened);
    let distinct: BTreeSet<&Position> = first.values().collect();
    ensure!(distinct.len() == 6, "two records have one name: {first:?}");
    drop(opened);
    let mut again = OpenedFeed::open(harness, &feed).await?;
    again.until(6).await?;
    ensure!(names(&again) == first, "{first:?} became {:?}", names(&again));
    Ok(())
}

async fn a_foreign_assignment_changes_nothing(harness: &dyn FeedHarness) -> Result<(), String> {
    let (feed, opened) = filled(harness).await?;
    let mut foreign = opened.of(&["a1", "a2", "a3"]);
    foreign.iter_mut().for_each(|of| of.assignment ^= 0x5555_5555);
    opened.commit(&FeedCommit { ended: foreign, ..FeedCommit::default() }).await?;
    drop(opened);
    OpenedFeed::open(harness, &feed).await?.until(6).await
}

async fn an_old_opening_changes_nothing(harness: &dyn FeedHarness) -> Result<(), String> {
    if !harness.is_fenced() {
        return Ok(());
    }
    let (_feed, old) = filled(harness).await?;
    let ended = FeedCommit { ended: old.of(&["b1", "b2"]), ..FeedCommit::default() };
    let progress = old.progress.clone();
    drop(old);
    let another = harness.another().await?;
    let mut new = OpenedFeed::open(harness, &another).await?;
    new.until(6).await?;
    // It may say so or not.
    let _ = tokio::time::timeout(PATIENCE, progress.commit(&ended)).await;
    drop(new);
    OpenedFeed::open(harness, &another).await?.until(6).await
}

async fn two_openings_never_hand_out_one_record(harness: &dyn FeedHarness) -> Result<(), String> {
    if !harness.is_fenced() {
        return Ok(());
    }
    let feed = harness.fresh().await?;
    let mut one = OpenedFeed::open(harness, &feed).await?;
    let another = harness.another().await?;
    let log = harness.log().await?;
    let opened = tokio::time::timeout(QUIET, another.open(&info(), log)).await;
    let mut other = match opened {
        Ok(Ok(opened)) => Some(OpenedFeed {
            harness,
            source: opened.source,
            progress: opened.progress,
            assigned: HashSet::new(),
            seen: Vec::new(),
            finished: HashSet::new(),
        }),
        // The other one has it.
        Ok(Err(_)) | Err(_) => None,
    };
    harness.fill(&SIX).await?;
    let total = |one: &OpenedFeed<'_>, other: &Option<OpenedFeed<'_>>| {
        let valid = |of: &OpenedFeed<'_>| {
            let live = of.seen.iter().filter(|seen| of.assigned.contains(&seen.assignment));
            live.map(|seen| seen.value.clone()).collect::<Vec<_>>()
        };
        let mut all = valid(one);
        all.extend(other.iter().flat_map(valid));
        all
    };
    let begun = tokio::time::Instant::now();
    loop {
        one.look().await?;
        if let Some(other) = &mut other {
            other.look().await?;
        }
        let all = total(&one, &other);
        let distinct: BTreeSet<&String> = all.iter().collect();
        ensure!(distinct.len() == all.len(), "both have one record: {all:?}");
        if distinct.len() == 6 {
            return Ok(());
        }
        ensure!(begun.elapsed() < PATIENCE, "only {distinct:?} were handed out");
    }
}

async fn a_commit_repeated_is_harmless(harness: &dyn FeedHarness) -> Result<(), String> {
    let (feed, opened) = filled(harness).await?;
    let ended = opened.of(&["c1"]);
    let given_back = opened.of(&["b1", "b2"]);
    let mut commit = FeedCommit { ended, given_back, ..FeedCommit::default() };
    let head = opened.seen.iter().find(|seen| seen.value == "a1").cloned();
    if let (Some(head), Some(_)) = (head, feed.abilities().puts_off) {
        commit.put_off.push(put_off(&head, 1, Duration::ZERO));
        commit.given_back.extend(opened.of(&["a2", "a3"]));
    }
    opened.commit(&commit).await?;
    opened.commit(&commit).await?;
    drop(opened);
    let mut again = OpenedFeed::open(harness, &feed).await?;
    let puts_off = feed.abilities().puts_off.is_some();
    // Behind a head that failed nothing comes of its key.
    again.until(if puts_off { 3 } else { 5 }).await?;
    ensure!(again.values_of("b") == ["b1", "b2"], "saw {:?}", again.values());
    ensure!(!again.values().contains(&"c1"), "what has ended came again");
    if puts_off {
        let head = again.seen.iter().find(|seen| seen.key == "a");
        ensure!(head.is_some_and(|head| head.failures == 1), "attempts counted twice: {head:?}");
    }
    Ok(())
}

async fn the_backlog_tells_what_waits(harness: &dyn FeedHarness) -> Result<(), String> {
    let (feed, opened) = filled(harness).await?;
    let waits = async |records: u64| match feed.backlog().await? {
        told if told.records == records => Ok(()),
        told => Err(Fault::wait(format!("{told:?}"))),
    };
    eventually("a backlog of 6", || waits(6)).await?;
    opened.end(&["b1", "b2"]).await?;
    eventually("a backlog of 4", || waits(4)).await
}

fn put_off(head: &FeedRecord, attempt: u32, wait: Duration) -> PostponedRecord {
    let FeedRecord { partition, assignment, offset, .. } = head.clone();
    PostponedRecord {
        partition,
        assignment,
        offset,
        attempt,
        wait,
        error: "the suite said so".into(),
    }
}

async fn what_is_put_off_comes_first_of_its_key(harness: &dyn FeedHarness) -> Result<(), String> {
    let feed = harness.fresh().await?;
    if feed.abilities().puts_off.is_none() {
        return Ok(());
    }
    let (_feed, mut opened) = filled(harness).await?;
    let head = opened.seen.iter().find(|seen| seen.value == "a1").cloned();
    let head = head.ok_or("no a1")?;
    let commit = FeedCommit {
        put_off: vec![put_off(&head, 1, Duration::from_millis(300))],
        given_back: opened.of(&["a2", "a3"]),
        ended: opened.of(&["b1", "b2", "c1"]),
        ..FeedCommit::default()
    };
    opened.commit(&commit).await?;
    harness.fill(&[("a", "a4"), ("d", "d1")]).await?;
    opened.until(8).await?;
    opened.look().await?;
    let came: Vec<&str> = opened.values().split_off(6);
    let of_a: Vec<&&str> = came.iter().filter(|value| value.starts_with('a')).collect();
    ensure!(of_a == [&"a1"] && came.contains(&"d1"), "came: {came:?}");
    ensure!(opened.seen.last().is_some_and(|_| came.len() == 2), "came: {came:?}");
    // When it has ended, the others follow.
    let head = opened.seen.iter().rev().find(|seen| seen.value == "a1").cloned();
    let ended = ended(head.iter());
    opened.commit(&FeedCommit { ended, ..FeedCommit::default() }).await?;
    opened.until(11).await?;
    let of_a = opened.values_of("a").split_off(4);
    ensure!(of_a == ["a2", "a3", "a4"], "behind it came {of_a:?}");
    Ok(())
}

async fn attempts_survive_reopening(harness: &dyn FeedHarness) -> Result<(), String> {
    let feed = harness.fresh().await?;
    if feed.abilities().puts_off.is_none() {
        return Ok(());
    }
    harness.fill(&[("a", "a1"), ("a", "a2")]).await?;
    for attempt in 1..=3 {
        let mut opened = OpenedFeed::open(harness, &feed).await?;
        let records = if attempt == 1 { 2 } else { 1 };
        opened.until(records).await?;
        let head = opened.seen.first().cloned().ok_or("nothing came")?;
        ensure!(head.value == "a1" && head.failures == attempt - 1, "{attempt}: {head:?}");
        let put_off = vec![put_off(&head, attempt, Duration::ZERO)];
        let given_back = opened.of(&["a2"]);
        opened.commit(&FeedCommit { put_off, given_back, ..FeedCommit::default() }).await?;
    }
    Ok(())
}

async fn what_is_set_aside_is_kept_apart(harness: &dyn FeedHarness) -> Result<(), String> {
    let feed = harness.fresh().await?;
    if feed.abilities().puts_off.is_none() {
        return Ok(());
    }
    let (feed, opened) = filled(harness).await?;
    let head = opened.seen.iter().find(|seen| seen.value == "a1").cloned();
    let FeedRecord { partition, assignment, offset, .. } = head.ok_or("no a1")?;
    let (attempt, reason, error) = (5, Reason::NoKey, "the suite said so".to_owned());
    let aside = SetAside { partition, assignment, offset, attempt, reason, error };
    let commit = FeedCommit {
        set_aside: vec![aside],
        given_back: opened.of(&["a2", "a3"]),
        ended: opened.of(&["b1", "b2", "c1"]),
        ..FeedCommit::default()
    };
    opened.commit(&commit).await?;
    opened.commit(&commit).await?;
    drop(opened);
    let kept = harness.set_aside().await?;
    ensure!(kept == ["a1"], "kept {kept:?}");
    let mut again = OpenedFeed::open(harness, &feed).await?;
    again.until(2).await?;
    again.look().await?;
    ensure!(again.values() == ["a2", "a3"], "saw {:?}", again.values());
    Ok(())
}

async fn a_group_stays_what_it_was(harness: &dyn FeedHarness) -> Result<(), String> {
    let feed = harness.fresh().await?;
    if !feed.abilities().comes_whole {
        return Ok(());
    }
    let (feed, mut opened) = filled(harness).await?;
    let group = |opened: &OpenedFeed<'_>| {
        let of_a = opened.seen.iter().rev().find(|seen| seen.key == "a");
        of_a.and_then(|seen| seen.whole.clone()).ok_or("no group came")
    };
    let first = group(&opened)?;
    let given_back = opened.of(&["a1", "a2", "a3"]);
    opened.commit(&FeedCommit { given_back, ..FeedCommit::default() }).await?;
    harness.fill(&[("a", "a4")]).await?;
    opened.until(9).await?;
    ensure!(group(&opened)? == first, "{first:?} became {:?}", group(&opened)?);
    drop(opened);
    let mut again = OpenedFeed::open(harness, &feed).await?;
    again.until(6).await?;
    ensure!(again.values_of("a").starts_with(&["a1", "a2", "a3"]), "{:?}", again.values());
    ensure!(group(&again)? == first, "after reopening: {:?}", group(&again)?);
    let of_a = again.seen.iter().find(|seen| seen.key == "a").map(|seen| seen.assignment);
    again.end(&["a1", "a2", "a3"]).await?;
    let begun = tokio::time::Instant::now();
    while !of_a.is_some_and(|nonce| again.finished.contains(&nonce)) {
        ensure!(begun.elapsed() < PATIENCE, "a group that has ended was not finished");
        again.look().await?;
    }
    again.until(7).await?;
    let last = again.seen.last().map(|seen| seen.value.as_str());
    ensure!(last == Some("a4"), "the next group holds {last:?}");
    ensure!(group(&again)?.generation != first.generation, "two groups have one generation");
    Ok(())
}
