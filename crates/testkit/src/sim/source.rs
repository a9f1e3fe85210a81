//! The simulated log's groups: partitions are assigned, taken away and given back.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use potok_core::{
    Assignment, ConsumerGroupSpec, Fault, Journal, LogOrder, NotWritten, OfferMode, OfferOutcome,
    Output, Partition, PartitionEnd, Position, Record, Source, SourceBatch, SourceEvent,
    Transaction,
};
use tokio::time::Instant;

use super::disk::{Disk, Progress};
use super::log::SimLog;
use super::offer::Offer;
use super::pipeline::INTERNAL;
use super::promises;
use super::trouble::{Recovery, Trouble};
use super::world::State;

/// Which partitions are whose, shared by a group's source and journal.
pub struct SimAssignments {
    /// The groups, each with the topics it reads.
    groups: Vec<(String, Vec<Arc<str>>)>,
    /// Which of the processes that share the log.
    pub(super) process: usize,
    /// Outputs and endings are written together or not at all.
    pub(super) exact: bool,
    /// Its source is still there.
    read: bool,
    held: BTreeMap<Partition, SimAssignment>,
    /// Revoked, valid until the source is asked again.
    leaving: BTreeMap<u64, Partition>,
    /// Given to another process while this one was silent, and when it hears of it.
    stolen: Vec<(Instant, u64)>,
    /// When a partition that left comes back.
    away: BTreeMap<Partition, Instant>,
    /// What was read together and is handed out one by one.
    ready: VecDeque<SourceBatch>,
}

struct SimAssignment {
    nonce: u64,
    cursor: u64,
    /// What had ended when it was assigned.
    before: Progress,
}

impl SimAssignments {
    pub(super) fn new(specs: &[ConsumerGroupSpec], process: usize) -> Self {
        let groups = specs.iter().map(|spec| (spec.group.clone(), spec.topics.clone()));
        SimAssignments {
            groups: groups.collect(),
            exact: specs.iter().any(|spec| spec.exact),
            process,
            read: true,
            held: BTreeMap::new(),
            leaving: BTreeMap::new(),
            stolen: Vec::new(),
            away: BTreeMap::new(),
            ready: VecDeque::new(),
        }
    }

    /// The group that reads a topic; `None` where none of these does.
    pub(super) fn group_of(&self, topic: &str) -> Option<&str> {
        let reads = |(_, topics): &&(String, Vec<Arc<str>>)| topics.iter().any(|of| **of == *topic);
        self.groups.iter().find(reads).map(|(group, _)| group.as_str())
    }

    pub(super) fn first_group(&self) -> &str {
        self.groups.first().map_or("", |(group, _)| group)
    }

    fn topics(&self) -> Vec<Arc<str>> {
        self.groups.iter().flat_map(|(_, topics)| topics).cloned().collect()
    }

    /// Where the group of a partition stands in it.
    fn progress(&self, disk: &Disk, partition: &Partition) -> Progress {
        let group = self.group_of(&partition.topic);
        group.and_then(|group| disk.progress(group, partition)).unwrap_or_default()
    }

    /// Nobody reads any more, but what is in flight may still be noted.
    pub(super) fn is_read(&self) -> bool {
        self.read
    }

    /// The group was opened again: what was assigned before counts for nothing.
    pub(super) fn retire(&mut self) {
        self.held.clear();
        self.leaving.clear();
        self.stolen.clear();
    }

    /// True when endings of this assignment may be noted now.
    pub fn is_valid(&self, partition: &Partition, nonce: u64) -> bool {
        let held = self.held.get(partition).is_some_and(|held| held.nonce == nonce);
        held || self.leaving.contains_key(&nonce)
    }

    /// True when another process must keep its hands off the partition.
    fn has(&self, partition: &Partition) -> bool {
        self.held.contains_key(partition) || self.leaving.values().any(|left| left == partition)
    }
}

/// The records of a group.
pub struct SimSource {
    log: Arc<SimLog>,
    live: Arc<Mutex<SimAssignments>>,
    process: usize,
    paused: bool,
    /// It has said that there is nothing yet, where others wait for that.
    said_nothing: bool,
    /// When the call under way answers. Kept across cancelled calls, so that asking often does
    /// not put the answer off for ever.
    ready_at: Option<Instant>,
}

impl SimSource {
    pub(super) fn new(log: Arc<SimLog>, live: Arc<Mutex<SimAssignments>>, process: usize) -> Self {
        SimSource { log, live, process, paused: false, said_nothing: false, ready_at: None }
    }

    /// Decides what to say now; `None` when there is nothing.
    fn say(&mut self) -> Option<Result<SourceEvent, Fault>> {
        let group = lock(&self.live).first_group().to_owned();
        let others = self.log.others(&group, self.process);
        let mut live = lock(&self.live);
        self.log.world.with(|w| {
            let now = Instant::now();
            let stolen: Vec<u64> = live
                .stolen
                .extract_if(.., |(at, _)| *at <= now || w.calm)
                .map(|(_, n)| n)
                .collect();
            if !stolen.is_empty() {
                return Some(Ok(SourceEvent::Lost(stolen)));
            }
            let mut others: Vec<_> = others.iter().map(|other| lock(other)).collect();
            if let Some(assigned) = assign(w, &mut live, &mut others) {
                return Some(Ok(assigned));
            }
            drop(others);
            if w.read_apart
                && live.held.is_empty()
                && !std::mem::replace(&mut self.said_nothing, true)
            {
                return Some(Ok(SourceEvent::Assigned(Vec::new())));
            }
            if !live.held.is_empty() && w.strikes(Trouble::Revoked, 25) {
                let taken = take_away(w, &mut live);
                let nonces = taken.iter().map(|(nonce, _)| *nonce).collect();
                live.leaving.extend(taken);
                return Some(Ok(SourceEvent::Revoked(nonces)));
            }
            if !live.held.is_empty() && w.strikes(Trouble::Lost, 25) {
                let taken = take_away(w, &mut live);
                self.log.changed.notify_waiters();
                return Some(Ok(SourceEvent::Lost(
                    taken.into_iter().map(|(nonce, _)| nonce).collect(),
                )));
            }
            if w.strikes(Trouble::NextFault, 20) || w.log_is_under(Trouble::LogAway) {
                return Some(Err(Fault::wait("simulated: the log hands nothing out")));
            }
            if self.paused {
                None
            } else {
                hand_out(w, &mut live).map(|b| Ok(SourceEvent::Batch(b)))
            }
        })
    }
}

fn lock(live: &Mutex<SimAssignments>) -> MutexGuard<'_, SimAssignments> {
    live.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Assigns partitions that nobody has, at times only some of them.
fn assign(
    w: &mut State,
    live: &mut SimAssignments,
    others: &mut [MutexGuard<'_, SimAssignments>],
) -> Option<SourceEvent> {
    let now = Instant::now();
    let mut free = w.disk.partitions_of(&live.topics());
    free.retain(|p| !live.held.contains_key(p) && live.away.get(p).is_none_or(|at| *at <= now));
    expire(w, others, &free);
    steal(w, others, &free);
    free.retain(|partition| !others.iter().any(|other| other.has(partition)));
    if free.is_empty() {
        return None;
    }
    // Sources that are read apart on a log of one process say at once what is theirs (decision 0040): a
    // seal of one may name members of another.
    if !w.calm && !w.read_apart {
        free.truncate(w.chance.between(1, free.len() as u64) as usize);
    }
    let mut assignments = Vec::new();
    for partition in free {
        forget_metadata(w, live, &partition);
        let progress = live.progress(&w.disk, &partition);
        if !progress.ended.is_empty() {
            w.tally.recovered(Recovery::ResumedAbove);
        }
        let (nonce, start) = (w.chance.next(), progress.position);
        w.note(format_args!("assigned {partition} from {start}"));
        live.away.remove(&partition);
        let held = SimAssignment { nonce, cursor: start, before: progress.clone() };
        live.held.insert(partition.clone(), held);
        assignments.push(Assignment { partition, nonce, start, ended: progress.ended });
    }
    Some(SourceEvent::Assigned(assignments))
}

/// What had ended above the position goes with the metadata of the commit: it is done again.
fn forget_metadata(w: &mut State, live: &SimAssignments, partition: &Partition) {
    let progress = live.progress(&w.disk, partition);
    if live.exact || progress.ended.is_empty() || !w.strikes(Trouble::MetadataLost, 3) {
        return;
    }
    w.note(format_args!("what ended above {} in {partition} is forgotten", progress.position));
    promises::excuse_forgotten(w, partition, &progress.ended);
    if let Some(group) = live.group_of(&partition.topic) {
        w.disk.forget_above(group, partition);
    }
}

/// Takes everything from processes that were silent for longer than a session.
fn expire(w: &mut State, others: &mut [MutexGuard<'_, SimAssignments>], wanted: &[Partition]) {
    for other in others {
        let Some(hears) = w.frozen.is_gone(other.process) else { continue };
        other.leaving.retain(|_, partition| !wanted.contains(partition));
        for partition in wanted {
            if let Some(held) = other.held.remove(partition) {
                w.note(format_args!("{partition} is taken from a process that stands still"));
                other.stolen.push((hears, held.nonce));
                other.away.insert(partition.clone(), hears);
            }
        }
    }
}

/// Takes a partition from a process that seems to be gone, and hears of it some time later.
fn steal(w: &mut State, others: &mut [MutexGuard<'_, SimAssignments>], wanted: &[Partition]) {
    for other in others {
        let held: Vec<Partition> = wanted
            .iter()
            .filter(|partition| other.held.contains_key(*partition))
            .cloned()
            .collect();
        if !held.is_empty() && w.strikes(Trouble::Lost, 25) {
            let hears_in = Duration::from_millis(w.chance.below(6_000));
            for partition in held {
                if let Some(held) = other.held.remove(&partition) {
                    w.note(format_args!("{partition} is taken from a silent process"));
                    other.stolen.push((Instant::now() + hears_in, held.nonce));
                    let away = hears_in + Duration::from_millis(w.chance.below(3_000));
                    other.away.insert(partition, Instant::now() + away);
                }
            }
        }
    }
}

/// Takes some partitions away for a while.
fn take_away(w: &mut State, live: &mut SimAssignments) -> Vec<(u64, Partition)> {
    let held: Vec<Partition> = live.held.keys().cloned().collect();
    let mut taken = Vec::new();
    for partition in held {
        // At least one leaves: the last one when chance spared all others.
        let last = taken.is_empty() && live.held.len() == 1;
        if !last && !w.chance.one_in(2) {
            continue;
        }
        if let Some(held) = live.held.remove(&partition) {
            w.note(format_args!("{partition} leaves"));
            taken.push((held.nonce, partition.clone()));
            let away = Duration::from_millis(w.chance.below(3_000));
            live.away.insert(partition, Instant::now() + away);
        }
    }
    taken
}

fn hand_out(w: &mut State, live: &mut SimAssignments) -> Option<SourceBatch> {
    let has_groups = w.expect.as_ref().is_some_and(|expect| expect.scenario.hold.is_some());
    if w.has_one_order() && has_groups {
        return hand_out_in_order(w, live);
    }
    let skips_ended = w.chance.one_in(2);
    let count = w.chance.between(1, 40) as usize;
    let State { chance, disk, .. } = w;
    let waiting: Vec<Partition> = live
        .held
        .iter()
        .filter(|(p, held)| disk.shelf(p).is_some_and(|shelf| shelf.next > held.cursor))
        .map(|(partition, _)| partition.clone())
        .collect();
    let partition = chance.pick(&waiting)?;
    let ended = live.progress(disk, partition).ended;
    let held = live.held.get_mut(partition)?;
    let keep = |offset| !skips_ended || !ended.contains(offset);
    let batch = batch(disk, partition, held.nonce, held.cursor, count, keep);
    // Behind the last record there may be offsets that were never used.
    let batch = batch.or_else(|| gap(disk, partition, held.nonce, held.cursor))?;
    held.cursor = batch.next;
    observe(w, live, &batch);
    Some(batch)
}

/// A batch is handed out.
fn observe(w: &mut State, live: &SimAssignments, batch: &SourceBatch) {
    let Some(SimAssignment { before, .. }) = live.held.get(&batch.partition) else { return };
    let new = |record: &&Record| {
        record.offset >= before.position && !before.ended.contains(record.offset)
    };
    let new = batch.records.iter().filter(new);
    let reader = (live.process, live.group_of(&batch.partition.topic).unwrap_or_default());
    promises::observe_taken(w, reader, (batch.log, &batch.partition), new);
    w.note(format_args!("hands out {} {}..{}", batch.partition, batch.first, batch.next));
}

/// As the embedded log does it: the next records in the order of the log, partition by partition.
fn hand_out_in_order(w: &mut State, live: &mut SimAssignments) -> Option<SourceBatch> {
    live.ready.retain(|batch| live.held.values().any(|held| held.nonce == batch.assignment));
    if live.ready.is_empty() {
        read_on(w, live);
    }
    let mut batch = live.ready.pop_front()?;
    if let Some(order) = &mut batch.order {
        order.more = !live.ready.is_empty();
    }
    observe(w, live, &batch);
    Some(batch)
}

fn read_on(w: &mut State, live: &mut SimAssignments) {
    let count = w.chance.between(1, 40) as usize;
    let State { chance, disk, .. } = w;
    let mut batches = Vec::new();
    for (partition, held) in &live.held {
        let all = batch(disk, partition, held.nonce, held.cursor, usize::MAX, |_| true);
        batches.extend(all.or_else(|| {
            let is_behind = disk.shelf(partition).is_some_and(|shelf| shelf.next > held.cursor);
            is_behind.then(|| gap(disk, partition, held.nonce, held.cursor)).flatten()
        }));
    }
    let mut places: Vec<u64> = batches
        .iter()
        .flat_map(|batch| batch.records.iter().filter_map(|r| disk.place(&batch.position(r))))
        .collect();
    places.sort_unstable();
    let last = places.get(count.min(places.len()).saturating_sub(1)).copied().unwrap_or(0);
    for mut batch in batches {
        let all = std::mem::take(&mut batch.records);
        let places: Vec<u64> = all
            .iter()
            .filter_map(|record| disk.place(&batch.position(record)))
            .take_while(|place| *place <= last)
            .collect();
        if !all.is_empty() {
            batch.records = all.into_iter().take(places.len()).collect();
            let Some(end) = batch.records.last().map(|record| record.offset + 1) else { continue };
            batch.next = end;
        }
        if let Some(held) = live.held.get_mut(&batch.partition) {
            held.cursor = batch.next;
        }
        batch.order = Some(LogOrder { places, more: false });
        live.ready.push_back(batch);
    }
    // In which order partitions come is nobody's promise.
    let turn = chance.below(live.ready.len().max(1) as u64) as usize;
    live.ready.rotate_left(turn);
}

/// Up to `count` records from `from` on; they lie under one incarnation.
pub(super) fn batch(
    disk: &Disk,
    partition: &Partition,
    assignment: u64,
    from: u64,
    count: usize,
    keep: impl Fn(u64) -> bool,
) -> Option<SourceBatch> {
    let shelf = disk.shelf(partition)?;
    let start = shelf.records.partition_point(|(_, record)| record.offset < from);
    let rest = shelf.records.get(start..)?;
    let (log, _) = *rest.first()?;
    let taken: Vec<_> = rest.iter().take(count).take_while(|(of, _)| *of == log).collect();
    let next = taken.last().map(|(_, record)| record.offset + 1)?;
    let records = taken.into_iter().map(|(_, r)| r).filter(|r| keep(r.offset)).cloned().collect();
    let (partition, first) = (partition.clone(), from);
    Some(SourceBatch { partition, log, assignment, first, next, records, order: None, feed: None })
}

/// A batch that stands for offsets without records.
fn gap(disk: &Disk, partition: &Partition, assignment: u64, first: u64) -> Option<SourceBatch> {
    let next = disk.shelf(partition)?.next;
    let log = disk.incarnation(&partition.topic);
    let (partition, records) = (partition.clone(), Vec::new());
    Some(SourceBatch { partition, log, assignment, first, next, records, order: None, feed: None })
}

#[async_trait]
impl Source for SimSource {
    async fn next(&mut self) -> Result<SourceEvent, Fault> {
        let left = std::mem::take(&mut lock(&self.live).leaving);
        if !left.is_empty() {
            self.log.changed.notify_waiters();
        }
        let log = self.log.clone();
        loop {
            let ready_at = *self.ready_at.get_or_insert_with(|| {
                let millis = log.world.with(|w| match w.strikes(Trouble::NextSlow, 15) {
                    true => w.chance.between(20, 3_000),
                    false => w.chance.below(3),
                });
                Instant::now() + Duration::from_millis(millis)
            });
            tokio::time::sleep_until(ready_at).await;
            log.world.step("the log, handing out").await;
            log.world.awake(self.process).await;
            let changed = log.changed.notified();
            if let Some(said) = self.say() {
                self.ready_at = None;
                return said;
            }
            let back = {
                let live = lock(&self.live);
                let times = live.away.values().chain(live.stolen.iter().map(|(at, _)| at));
                // What is over and still another's comes with a change.
                times.copied().filter(|at| *at > Instant::now()).min()
            };
            match back {
                Some(back) => {
                    let _ = tokio::time::timeout_at(back, changed).await;
                }
                None => changed.await,
            }
        }
    }

    fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    fn ends(&self) -> Vec<PartitionEnd> {
        let live = lock(&self.live);
        let end = |partition: &Partition| {
            self.log.world.with(|w| w.disk.shelf(partition).map_or(0, |shelf| shelf.next))
        };
        let ends = live.held.keys();
        ends.map(|p| PartitionEnd { partition: p.clone(), end: end(p) }).collect()
    }
}

impl Drop for SimSource {
    fn drop(&mut self) {
        lock(&self.live).read = false;
    }
}

/// The progress of a group.
pub struct SimJournal {
    pub(super) log: Arc<SimLog>,
    /// One for each source.
    pub(super) lives: Vec<Arc<Mutex<SimAssignments>>>,
    /// More than one: outputs and progress part, as on Kafka.
    pub(super) overlap: usize,
    /// Calls that overlap take effect in their order.
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
}

impl Drop for SimJournal {
    fn drop(&mut self) {
        // The process has left the group: others may have its partitions.
        self.lives.iter().for_each(|live| lock(live).retire());
        self.log.changed.notify_waiters();
    }
}

#[async_trait]
impl Journal for SimJournal {
    async fn transact(&self, transaction: &Transaction) -> Result<Vec<Position>, NotWritten> {
        let (log, lives) = (self.log.clone(), self.lives.clone());
        let process = lives.first().map_or(0, |live| lock(live).process);
        let world = log.world.clone();
        let written = if self.overlap == 1 {
            log.write(transaction.clone(), lives).await
        } else {
            let turn = self.turn.clone().lock_owned().await;
            log.write_in(turn, transaction.clone(), lives).await
        };
        world.awake(process).await;
        written
    }

    async fn offer(&self, outputs: &[Output], mode: OfferMode) -> Vec<OfferOutcome> {
        let (log, lives) = (self.log.clone(), self.lives.clone());
        let process = lives.first().map_or(0, |live| lock(live).process);
        let world = log.world.clone();
        let is_frame = self.overlap == 1;
        let outcomes = Offer { outputs: outputs.to_vec(), mode, is_frame }.put(log, lives).await;
        world.awake(process).await;
        outcomes
    }

    fn output_bytes_max(&self, topic: &str) -> Option<usize> {
        let of_seals = self.log.world.with(|w| w.seal_max).filter(|max| max.is_told);
        of_seals.filter(|_| topic == INTERNAL).map(|max| max.bytes)
    }

    fn overlap(&self) -> usize {
        self.overlap
    }
}
