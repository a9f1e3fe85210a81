//! The suite of [`potok_core::Source`] and [`potok_core::Journal`]: consumer groups of a log.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use potok_core::{EndedOffsets, Log, Move, Output, Partition, Position, ReadFrom, Transaction};
use tokio::sync::oneshot;

use super::log::LogHarness;
use super::reading::{
    GroupReading, append, eventually, keyed, numbered, read_all, same, spec, strange,
};
use super::{QUIET, ensure, run_checks, within};

/// Runs every check; the number that passed, or all failures in words.
pub async fn run_all(harness: &dyn LogHarness) -> Result<usize, String> {
    run_checks!(
        "source",
        harness,
        [
            a_group_starts_at_the_earliest,
            a_group_told_so_starts_at_the_end_and_remembers,
            records_come_in_order_once_and_exact,
            a_lone_record_is_handed_out,
            a_log_of_one_process_names_all_partitions_at_once,
            a_topic_created_later_is_found,
            a_cancelled_next_loses_nothing,
            a_paused_source_gives_no_records_but_the_rest,
            pausing_holds_until_set_again,
            a_group_resumes_at_the_first_gap,
            ended_ranges_above_survive,
            ended_ranges_join_in_any_order,
            a_foreign_assignment_is_ignored,
            an_old_assignment_is_ignored,
            a_transaction_writes_outputs_and_progress_together,
            overlapping_transactions_keep_their_order,
            a_transaction_waits_for_its_turn,
            a_refused_transaction_leaves_nothing,
            groups_are_independent,
            a_group_opens_once_per_process,
            a_forgotten_group_starts_anew,
            ends_and_groups_tell_the_lag,
        ]
    )
}

fn partition(topic: &str, index: u32) -> Partition {
    Partition { topic: topic.into(), index }
}

/// Offset of the `n`th of these positions, counted from 0.
fn at(positions: &[Position], n: usize) -> Result<u64, String> {
    positions.get(n).map(|p| p.offset).ok_or(format!("there is no position {n}"))
}

/// Notes as ended the `from`th up to the `to`th record, that one not included.
async fn end(
    reading: &GroupReading,
    part: &Partition,
    positions: &[Position],
    runs: &[(usize, usize)],
) -> Result<(), String> {
    let mut ranges = Vec::new();
    for &(from, to) in runs {
        ranges.push(at(positions, from)?..at(positions, to - 1)? + 1);
    }
    let transaction =
        Transaction { outputs: Vec::new(), ended: vec![reading.ended(part, ranges)?] };
    within("transact", reading.journal.transact(&transaction)).await.map(drop)
}

/// Lets the group go and opens it again, in a reopened log where that keeps what was noted.
async fn again(
    harness: &dyn LogHarness,
    log: Arc<dyn Log>,
    reading: GroupReading,
    group: &str,
    topic: &str,
) -> Result<(Arc<dyn Log>, GroupReading), String> {
    drop(reading);
    let log = if harness.features().durable { harness.reopen(log).await? } else { log };
    let reading = GroupReading::open(&log, spec(harness, group, &[topic], false)).await?;
    Ok((log, reading))
}

async fn a_group_starts_at_the_earliest(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("earliest");
    append(&log, &numbered(&topic, 0, 5)).await?;
    let mut reading = GroupReading::open(&log, spec(harness, "earliest", &[&topic], false)).await?;
    reading.until(5).await?;
    ensure!(reading.values() == ["0", "1", "2", "3", "4"], "saw {:?}", reading.values());
    Ok(())
}

async fn a_group_told_so_starts_at_the_end_and_remembers(
    harness: &dyn LogHarness,
) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("latest");
    append(&log, &numbered(&topic, 0, 3)).await?;
    let spec = spec(harness, "latest", &[&topic], true);
    let mut reading = GroupReading::open(&log, spec.clone()).await?;
    reading.until_assigned(&partition(&topic, 0)).await?;
    reading.until_quiet(harness).await?;
    ensure!(reading.seen.is_empty(), "saw records from before: {:?}", reading.values());
    drop(reading);
    // The start was resolved once: what comes while nobody reads is not skipped.
    append(&log, &[Output { partition: Some(0), ..keyed(&topic, "k", "later") }]).await?;
    let log = if harness.features().durable { harness.reopen(log).await? } else { log };
    let mut reading = GroupReading::open(&log, spec).await?;
    reading.until(1).await?;
    ensure!(reading.values() == ["later"], "saw {:?}", reading.values());
    Ok(())
}

async fn records_come_in_order_once_and_exact(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("exact");
    let mut sent = strange(&topic);
    sent.extend((0..300).map(|n| keyed(&topic, &format!("k{}", n % 5), n.to_string())));
    let positions = append(&log, &sent).await?;
    let mut reading = GroupReading::open(&log, spec(harness, "exact", &[&topic], false)).await?;
    reading.until(sent.len()).await?;
    reading.until_quiet(harness).await?;
    ensure!(reading.seen.len() == sent.len(), "{} of {}", reading.seen.len(), sent.len());
    for (position, record) in &reading.seen {
        let index = positions.iter().position(|p| p == position);
        let output = index.and_then(|i| sent.get(i)).ok_or(format!("{position} is unknown"))?;
        same(output, record).map_err(|why| format!("{position}: {why}"))?;
    }
    let unique: BTreeSet<_> = reading.seen.iter().map(|(position, _)| position).collect();
    ensure!(unique.len() == sent.len(), "records came twice under one assignment");
    Ok(())
}

/// What is not named is taken for another process's, and groups close without waiting for it.
async fn a_log_of_one_process_names_all_partitions_at_once(
    harness: &dyn LogHarness,
) -> Result<(), String> {
    let log = harness.fresh().await?;
    if log.is_shared() {
        return Ok(());
    }
    let topics = ["all-1", "all-2"].map(|name| harness.name(name));
    let mut all = BTreeSet::new();
    for topic in &topics {
        for index in 0..harness.features().partitions {
            append(&log, &numbered(topic, index, 1)).await?;
            all.insert(partition(topic, index));
        }
    }
    let topics = topics.each_ref().map(String::as_str);
    let mut reading = GroupReading::open(&log, spec(harness, "all", &topics, false)).await?;
    reading.step("an assignment").await?;
    let named: BTreeSet<_> = reading.assigned.keys().cloned().collect();
    ensure!(named == all, "named {named:?} of {all:?}");
    Ok(())
}

async fn a_lone_record_is_handed_out(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("lone");
    append(&log, &[keyed(&topic, "k", "first")]).await?;
    let mut reading = GroupReading::open(&log, spec(harness, "lone", &[&topic], false)).await?;
    reading.until(1).await?;
    for n in 2..5 {
        append(&log, &[keyed(&topic, "k", n.to_string())]).await?;
        reading.until(n).await?;
    }
    Ok(())
}

async fn a_topic_created_later_is_found(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("created-later");
    let mut reading =
        GroupReading::open(&log, spec(harness, "created-later", &[&topic], true)).await?;
    reading.until_quiet(harness).await?;
    append(&log, &numbered(&topic, 0, 3)).await?;
    // Found later means from the earliest, even for a group that started at the end.
    reading.until(3).await?;
    ensure!(reading.values() == ["0", "1", "2"], "saw {:?}", reading.values());
    Ok(())
}

async fn a_cancelled_next_loses_nothing(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("cancelled");
    let mut reading =
        GroupReading::open(&log, spec(harness, "cancelled", &[&topic], false)).await?;
    for n in 0..50 {
        append(&log, &[Output { partition: Some(0), ..keyed(&topic, "k", n.to_string()) }]).await?;
        reading.poke().await?;
        reading.poke().await?;
    }
    reading.until(50).await?;
    let expected: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    ensure!(reading.values() == expected, "saw {:?}", reading.values());
    Ok(())
}

async fn a_paused_source_gives_no_records_but_the_rest(
    harness: &dyn LogHarness,
) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("paused");
    append(&log, &numbered(&topic, 0, 3)).await?;
    let mut reading = GroupReading::open(&log, spec(harness, "paused", &[&topic], false)).await?;
    reading.set_paused(true);
    reading.until_assigned(&partition(&topic, 0)).await?;
    reading.until_quiet(harness).await?;
    ensure!(reading.seen.is_empty(), "a paused source gave {:?}", reading.values());
    reading.set_paused(false);
    reading.until(3).await
}

async fn pausing_holds_until_set_again(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("level");
    append(&log, &numbered(&topic, 0, 1)).await?;
    let mut reading = GroupReading::open(&log, spec(harness, "level", &[&topic], false)).await?;
    reading.until(1).await?;
    for round in 0..3 {
        // Setting what is set already changes nothing, and new records do not lift it.
        reading.set_paused(true);
        reading.set_paused(true);
        append(&log, &numbered(&topic, 0, 1)).await?;
        reading.until_quiet(harness).await?;
        let seen = reading.seen.len();
        ensure!(seen == round + 1, "paused, the source gave {} records", seen - round - 1);
        reading.set_paused(false);
        reading.set_paused(false);
        reading.until(round + 2).await?;
    }
    Ok(())
}

async fn a_group_resumes_at_the_first_gap(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("gap");
    let part = partition(&topic, 0);
    let positions = append(&log, &numbered(&topic, 0, 10)).await?;
    let mut reading = GroupReading::open(&log, spec(harness, "gap", &[&topic], false)).await?;
    reading.until(10).await?;
    end(&reading, &part, &positions, &[(0, 3), (5, 7)]).await?;
    let (_log, mut reading) = again(harness, log, reading, "gap", &topic).await?;
    let assignment = reading.until_assigned(&part).await?;
    let (third, fourth) = (at(&positions, 2)?, at(&positions, 3)?);
    // Offsets between two records hold nothing, so any of them is the first gap.
    ensure!(
        (third + 1..=fourth).contains(&assignment.start),
        "resumed at {} instead of {fourth}",
        assignment.start
    );
    reading.until_quiet(harness).await?;
    for value in ["3", "4", "7", "8", "9"] {
        ensure!(
            reading.values().iter().any(|v| v == value),
            "record {value} did not come again: {:?}",
            reading.values()
        );
    }
    ensure!(!reading.values().iter().any(|v| v == "2"), "a record below the position came again");
    Ok(())
}

async fn ended_ranges_above_survive(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("above");
    let part = partition(&topic, 0);
    let positions = append(&log, &numbered(&topic, 0, 10)).await?;
    let mut reading = GroupReading::open(&log, spec(harness, "above", &[&topic], false)).await?;
    reading.until(10).await?;
    end(&reading, &part, &positions, &[(0, 2), (4, 6)]).await?;
    end(&reading, &part, &positions, &[(8, 9)]).await?;
    let (log, mut reading) = again(harness, log, reading, "above", &topic).await?;
    let assignment = reading.until_assigned(&part).await?;
    for n in [4, 5, 8] {
        ensure!(assignment.ended.contains(at(&positions, n)?), "the ending of {n} was forgotten");
    }
    for n in [2, 3, 6, 7, 9] {
        ensure!(!assignment.ended.contains(at(&positions, n)?), "{n} has not ended");
    }
    let group = harness.name("above");
    let kept = within("ended", log.ended(&group, &topic, 0)).await?;
    ensure!(kept.contains(at(&positions, 8)?), "`ended` does not know of 8");
    Ok(())
}

async fn ended_ranges_join_in_any_order(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("join");
    let part = partition(&topic, 0);
    let positions = append(&log, &numbered(&topic, 0, 8)).await?;
    let mut reading = GroupReading::open(&log, spec(harness, "join", &[&topic], false)).await?;
    reading.until(8).await?;
    for run in [(6, 8), (2, 4), (2, 4), (0, 1), (4, 6), (1, 2)] {
        end(&reading, &part, &positions, &[run]).await?;
    }
    let (_log, mut reading) = again(harness, log, reading, "join", &topic).await?;
    let assignment = reading.until_assigned(&part).await?;
    ensure!(assignment.start > at(&positions, 7)?, "resumed at {}", assignment.start);
    reading.until_quiet(harness).await?;
    ensure!(reading.seen.is_empty(), "records that ended came again: {:?}", reading.values());
    Ok(())
}

async fn a_foreign_assignment_is_ignored(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let (topic, out) = (harness.name("foreign"), harness.name("foreign-out"));
    let part = partition(&topic, 0);
    let positions = append(&log, &numbered(&topic, 0, 3)).await?;
    let mut reading = GroupReading::open(&log, spec(harness, "foreign", &[&topic], false)).await?;
    reading.until(3).await?;
    let good = reading.ended(&part, [at(&positions, 0)?..at(&positions, 0)? + 1])?;
    let foreign = EndedOffsets {
        assignment: good.assignment ^ 1,
        ranges: vec![0..at(&positions, 2)? + 1],
        ..good.clone()
    };
    let transaction =
        Transaction { outputs: vec![keyed(&out, "k", "kept")], ended: vec![foreign, good] };
    within("transact", reading.journal.transact(&transaction)).await?;
    let (log, mut reading) = again(harness, log, reading, "foreign", &topic).await?;
    reading.until(2).await?;
    ensure!(reading.values() == ["1", "2"], "saw {:?} instead of 1 and 2", reading.values());
    let outputs = read_all(&log, &out, ReadFrom::Start).await?;
    ensure!(outputs.len() == 1, "the transaction's output is there {} times", outputs.len());
    Ok(())
}

async fn an_old_assignment_is_ignored(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("old");
    let part = partition(&topic, 0);
    let positions = append(&log, &numbered(&topic, 0, 3)).await?;
    let mut reading = GroupReading::open(&log, spec(harness, "old", &[&topic], false)).await?;
    reading.until(3).await?;
    let old = reading.ended(&part, [0..at(&positions, 2)? + 1])?;
    let (log, mut reading) = again(harness, log, reading, "old", &topic).await?;
    reading.until(3).await?;
    let fresh = reading.until_assigned(&part).await?;
    ensure!(fresh.nonce != old.assignment, "the nonce of an assignment was given out again");
    let transaction = Transaction { outputs: Vec::new(), ended: vec![old] };
    within("transact", reading.journal.transact(&transaction)).await?;
    let (_log, mut reading) = again(harness, log, reading, "old", &topic).await?;
    reading.until(3).await
}

async fn a_transaction_writes_outputs_and_progress_together(
    harness: &dyn LogHarness,
) -> Result<(), String> {
    let log = harness.fresh().await?;
    let (topic, one, two) = (harness.name("tx"), harness.name("tx-one"), harness.name("tx-two"));
    let part = partition(&topic, 0);
    let positions = append(&log, &numbered(&topic, 0, 4)).await?;
    let mut reading = GroupReading::open(&log, spec(harness, "tx", &[&topic], false)).await?;
    reading.until(4).await?;
    let mut outputs = strange(&one);
    outputs.extend([keyed(&two, "k", "a"), keyed(&two, "k", "b")]);
    let ended = vec![reading.ended(&part, [at(&positions, 0)?..at(&positions, 2)? + 1])?];
    let transaction = Transaction { outputs: outputs.clone(), ended };
    let written = within("transact", reading.journal.transact(&transaction)).await?;
    ensure!(written.len() == outputs.len(), "{} outputs, {}", outputs.len(), written.len());
    within("an empty one", reading.journal.transact(&Transaction::default())).await?;

    let (log, mut reading) = again(harness, log, reading, "tx", &topic).await?;
    let mut all = read_all(&log, &one, ReadFrom::Start).await?;
    all.extend(read_all(&log, &two, ReadFrom::Start).await?);
    ensure!(all.len() == outputs.len(), "{} of {} outputs", all.len(), outputs.len());
    for (position, output) in written.iter().zip(&outputs) {
        let record = all.get(position).ok_or(format!("{position} is not there"))?;
        same(output, record).map_err(|why| format!("{position}: {why}"))?;
    }
    reading.until_quiet(harness).await?;
    ensure!(reading.values() == ["3"], "saw {:?} instead of 3", reading.values());
    Ok(())
}

async fn overlapping_transactions_keep_their_order(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let (topic, out) = (harness.name("overlap"), harness.name("overlap-out"));
    append(&log, &numbered(&topic, 0, 1)).await?;
    let mut reading = GroupReading::open(&log, spec(harness, "overlap", &[&topic], false)).await?;
    reading.until(1).await?;
    let journal = &reading.journal;
    let transaction = |outputs: std::ops::Range<usize>| Transaction {
        outputs: outputs.map(|n| keyed(&out, "k", n.to_string())).collect(),
        ended: Vec::new(),
    };
    // Of different sizes, so that later ones could be faster.
    let transactions = [0..200, 200..201, 201..290, 290..300].map(transaction);
    let calls = transactions.iter().map(|t| within("transact", journal.transact(t)));
    let calls = stream::iter(calls).buffered(journal.overlap());
    let written: Vec<Position> =
        calls.try_collect::<Vec<_>>().await?.into_iter().flatten().collect();
    let all = read_all(&log, &out, ReadFrom::Start).await?;
    ensure!(all.len() == 300, "{} of 300 outputs", all.len());
    ensure!(written.is_sorted_by_key(|position| position.offset), "out of order: {written:?}");
    for (n, position) in written.iter().enumerate() {
        let value = all.get(position).and_then(|record| record.value.clone());
        ensure!(value.as_deref() == Some(n.to_string().as_bytes()), "{n} is not at {position}");
    }
    Ok(())
}

async fn a_transaction_waits_for_its_turn(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let (topic, out) = (harness.name("turn"), harness.name("turn-out"));
    append(&log, &numbered(&topic, 0, 1)).await?;
    let mut reading = GroupReading::open(&log, spec(harness, "turn", &[&topic], false)).await?;
    reading.until(1).await?;
    let journal = &reading.journal;
    let transaction = |outputs: std::ops::Range<usize>| Transaction {
        outputs: outputs.map(|n| keyed(&out, "k", n.to_string())).collect(),
        ended: Vec::new(),
    };
    let (first, second, nothing) = (transaction(0..300), transaction(300..301), transaction(0..0));
    let (go, turn) = oneshot::channel::<()>();
    let (go_on, last_turn) = oneshot::channel::<()>();
    let comes = |turn: oneshot::Receiver<()>| async move {
        let _ = turn.await;
    };
    // Those behind are asked first.
    let ((), written, ()) = tokio::try_join!(
        async {
            let turn = pin!(comes(last_turn));
            within("an empty one", journal.transact_in_turn(&nothing, turn)).await.map(drop)
        },
        async {
            let turn = pin!(comes(turn));
            let written = within("the second", journal.transact_in_turn(&second, turn)).await?;
            let _ = go_on.send(());
            Ok(written)
        },
        async {
            within("the first", journal.transact(&first)).await?;
            let ends = read_all(&log, &out, ReadFrom::Start).await?.len();
            ensure!(ends == 300, "{ends} were written before the second's turn");
            let _ = go.send(());
            Ok(())
        }
    )?;
    let all = read_all(&log, &out, ReadFrom::Start).await?;
    ensure!(all.len() == 301, "{} of 301 outputs", all.len());
    let at = written.first().ok_or("no place")?;
    ensure!(all.keys().all(|position| position.offset <= at.offset), "it is not the last");
    Ok(())
}

async fn a_refused_transaction_leaves_nothing(harness: &dyn LogHarness) -> Result<(), String> {
    if !harness.features().transactional {
        return Ok(());
    }
    let log = harness.fresh().await?;
    let (topic, out) = (harness.name("refused"), harness.name("refused-out"));
    let part = partition(&topic, 0);
    let positions = append(&log, &numbered(&topic, 0, 2)).await?;
    append(&log, &[keyed(&out, "k", "before")]).await?;
    let mut reading = GroupReading::open(&log, spec(harness, "refused", &[&topic], false)).await?;
    reading.until(2).await?;
    let huge = keyed(&out, "k", vec![0; potok_core::RECORD_BYTES_MAX + 1]);
    let ended = vec![reading.ended(&part, [0..at(&positions, 1)? + 1])?];
    let transaction = Transaction { outputs: vec![keyed(&out, "k", "with it"), huge], ended };
    let refused = reading.journal.transact(&transaction).await;
    ensure!(refused.is_err(), "a record over the limit was taken");
    let (log, mut reading) = again(harness, log, reading, "refused", &topic).await?;
    reading.until(2).await?;
    let outputs = read_all(&log, &out, ReadFrom::Start).await?;
    ensure!(outputs.len() == 1, "a part of it was written: {} records", outputs.len());
    Ok(())
}

async fn groups_are_independent(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("shared");
    let part = partition(&topic, 0);
    let positions = append(&log, &numbered(&topic, 0, 4)).await?;
    let mut one = GroupReading::open(&log, spec(harness, "one", &[&topic], false)).await?;
    let mut two = GroupReading::open(&log, spec(harness, "two", &[&topic], false)).await?;
    one.until(4).await?;
    two.until(4).await?;
    end(&one, &part, &positions, &[(0, 4)]).await?;
    drop(one);
    let (_log, mut two) = again(harness, log, two, "two", &topic).await?;
    two.until(4).await
}

async fn a_group_opens_once_per_process(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("twice");
    append(&log, &numbered(&topic, 0, 1)).await?;
    let spec = spec(harness, "twice", &[&topic], false);
    let first = GroupReading::open(&log, spec.clone()).await?;
    match log.open_group(spec.clone()).await {
        Ok(_) => return Err("the group was opened twice".to_owned()),
        Err(fault) => ensure!(fault.next == Move::Fix, "the fault is {:?}: {fault}", fault.next),
    }
    drop(first);
    GroupReading::open(&log, spec).await?.until(1).await
}

async fn a_forgotten_group_starts_anew(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("forget");
    let part = partition(&topic, 0);
    let positions = append(&log, &numbered(&topic, 0, 3)).await?;
    let spec = spec(harness, "forget", &[&topic], false);
    let mut reading = GroupReading::open(&log, spec.clone()).await?;
    reading.until(3).await?;
    end(&reading, &part, &positions, &[(0, 3)]).await?;
    let while_open = log.delete_consumer_group(&spec.group).await;
    ensure!(while_open.is_err(), "a group that is being read was forgotten");
    drop(reading);
    eventually("forget", || log.delete_consumer_group(&spec.group)).await?;
    let groups = within("groups", log.consumer_groups()).await?;
    ensure!(groups.iter().all(|g| g.group != spec.group), "the group is still listed");
    let log = if harness.features().durable { harness.reopen(log).await? } else { log };
    let mut reading = GroupReading::open(&log, spec).await?;
    reading.until(3).await
}

async fn ends_and_groups_tell_the_lag(harness: &dyn LogHarness) -> Result<(), String> {
    let log = harness.fresh().await?;
    let topic = harness.name("lag");
    let part = partition(&topic, 0);
    let positions = append(&log, &numbered(&topic, 0, 5)).await?;
    let spec = spec(harness, "lag", &[&topic], false);
    let mut reading = GroupReading::open(&log, spec.clone()).await?;
    reading.until(5).await?;
    let ends = reading.ends();
    let end_of = ends.iter().find(|e| e.partition == part).ok_or("the partition has no end")?;
    ensure!(end_of.end > at(&positions, 4)?, "the end is {}", end_of.end);
    end(&reading, &part, &positions, &[(0, 2), (3, 4)]).await?;
    let groups = within("groups", log.consumer_groups()).await?;
    let group = groups.iter().find(|g| g.group == spec.group).ok_or("the group is not listed")?;
    ensure!(group.open, "a group that is being read is not listed as open");
    ensure!(group.info == spec.info, "the group's pipeline changed: {:?}", group.info);
    let progress = group.partitions.iter().find(|p| p.topic == topic && p.partition == 0);
    let progress = progress.ok_or("the partition is not listed")?;
    let (second, third) = (at(&positions, 1)?, at(&positions, 2)?);
    ensure!((second + 1..=third).contains(&progress.committed), "at {}", progress.committed);
    ensure!(progress.acknowledged_ahead == 1, "{} ended above", progress.acknowledged_ahead);
    ensure!(progress.end > at(&positions, 4)?, "ends at {}", progress.end);
    drop(reading);
    let closed = async {
        loop {
            let groups = log.consumer_groups().await?;
            if groups.iter().any(|g| g.group == spec.group && !g.open) {
                return Ok::<(), potok_core::Fault>(());
            }
            tokio::time::sleep(QUIET / 10).await;
        }
    };
    within("the group to be listed as closed", closed).await
}
