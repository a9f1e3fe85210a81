//! The simulated log, as one life of the process sees it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::trouble::{Bug, planted};
use potok_core::{
    Clock, ConsumerGroup, ConsumerGroupSpec, Damage, EndedOffsets, Fault, Log, NotWritten,
    OpenGroups, Output, Owner, Partition, Position, PutOutcome, RangeSet, ReadFrom, Reader, Reason,
    Record, Source, SourceBatch, Store, StoreAddress, StoreEntry, TopicInfo, Transaction,
};
use tokio::sync::{Notify, OwnedMutexGuard, oneshot};

use super::clock::SimClock;
use super::pipeline::INTERNAL;
use super::promises;
use super::scenario::SealMax;
use super::source::{SimAssignments, SimJournal, SimSource};
use super::trouble::{Recovery, Trouble};
use super::world::{State, World};

/// How often a write asks whether the log that was away is back.
const AWAY_ASKED_EVERY: Duration = Duration::from_millis(50);

/// Members of groups, by group and process.
type Members = BTreeMap<(String, usize), Arc<Mutex<SimAssignments>>>;

/// One life's handle on the log.
pub struct SimLog {
    pub(super) world: Arc<World>,
    /// Something was appended, or a partition is free again.
    pub(super) changed: Notify,
    /// The groups that processes have opened in this life; each may be opened again once its
    /// source is gone.
    groups: Mutex<Members>,
}

impl SimLog {
    /// Opens the world's log.
    pub fn open(world: Arc<World>) -> Arc<SimLog> {
        Arc::new(SimLog { world, changed: Notify::new(), groups: Mutex::new(BTreeMap::new()) })
    }

    fn groups(&self) -> MutexGuard<'_, Members> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_read(&self, group: &str, process: Option<usize>) -> bool {
        let groups = self.groups();
        let members = groups.iter().filter(|((name, member), _)| {
            name == group && process.is_none_or(|process| process == *member)
        });
        let mut members = members.map(|(_, l)| l.lock().unwrap_or_else(PoisonError::into_inner));
        members.any(|live| live.is_read())
    }

    /// The other members of a group.
    pub(super) fn others(&self, group: &str, process: usize) -> Vec<Arc<Mutex<SimAssignments>>> {
        let groups = self.groups();
        let others =
            groups.iter().filter(|((name, member), _)| name == group && *member != process);
        others.map(|(_, live)| live.clone()).collect()
    }

    /// A write runs to its end even when its caller goes away, as a request under way would; only
    /// the death of the process stops it. `lives` say which assignments may note endings.
    pub(super) async fn write(
        self: Arc<Self>,
        transaction: Transaction,
        lives: Vec<Arc<Mutex<SimAssignments>>>,
    ) -> Result<Vec<Position>, NotWritten> {
        let (slow, refused, lost) = match lives.is_empty() {
            false => (Trouble::TransactSlow, Trouble::TransactRefused, Trouble::TransactReplyLost),
            true => (Trouble::TransactSlow, Trouble::AppendRefused, Trouble::AppendReplyLost),
        };
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            self.world.latency(slow).await;
            self.world.step("the log, before a write").await;
            self.whose_is_awake(&lives).await;
            if self.world.with(|w| w.strikes(refused, 15) || w.log_is_under(Trouble::LogAway)) {
                self.world.with(|w| w.note("the log refuses a write"));
                let _ = answer.send(Err(Fault::wait("simulated: the log is away").into()));
                return;
            }
            if lives.is_empty() && self.world.with(State::has_full_disk) {
                let _ = answer.send(Err(Fault::wait("simulated: the disk is full").into()));
                return;
            }
            let refused = self.world.with(|w| refused_copies(w, &transaction, &lives));
            let written = match refused.is_empty() {
                true => self.apply(&transaction, &lives),
                false => Err(NotWritten::Refused(refused)),
            };
            self.changed.notify_waiters();
            self.world.step("the log, after a write").await;
            self.world.latency(slow).await;
            let lost = written.is_ok() && self.world.with(|w| w.strikes(lost, 15));
            let _ = answer.send(if lost {
                self.world.with(|w| {
                    w.note("the answer of the log is lost");
                    promises::excuse_repeats(w, &transaction.outputs);
                });
                Err(Fault::retry("simulated: the answer of the log was lost").into())
            } else {
                written
            });
        });
        match answered.await {
            Ok(answer) => answer,
            // The task went down with the process.
            Err(_) => std::future::pending().await,
        }
    }

    /// Writes when its turn has come and waits out trouble meanwhile; the next one's turn comes
    /// before this one is answered.
    pub(super) async fn write_in(
        self: Arc<Self>,
        turn: OwnedMutexGuard<()>,
        transaction: Transaction,
        lives: Vec<Arc<Mutex<SimAssignments>>>,
    ) -> Result<Vec<Position>, NotWritten> {
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            self.world.latency(Trouble::TransactSlow).await;
            self.world.step("the log, before a write").await;
            self.whose_is_awake(&lives).await;
            while self.world.with(|w| w.strikes(Trouble::TransactRefused, 15)) {
                self.world.with(|w| w.note("the log makes a write wait"));
                self.world.latency(Trouble::TransactSlow).await;
            }
            while self.world.with(|w| w.log_is_under(Trouble::LogAway)) {
                tokio::time::sleep(AWAY_ASKED_EVERY).await;
            }
            // Nothing ends them together with it: after a crash they come again. What becomes of
            // records of feeds is known where those are.
            self.world.with(|w| {
                if w.expect.is_some() {
                    promises::excuse_repeats(w, &transaction.outputs);
                }
            });
            let refused = self.world.with(|w| {
                let mut refused = too_large(w, &transaction.outputs);
                refused.extend(large_seals(w, &transaction.outputs));
                refused
            });
            let written = if refused.is_empty() {
                self.apply(&transaction, &lives)
            } else {
                let outputs = (0..).zip(transaction.outputs);
                let outputs = outputs.filter(|(at, _)| !refused.iter().any(|(is, _)| is == at));
                let outputs = outputs.map(|(_, output)| output).collect();
                let others = Transaction { outputs, ended: Vec::new() };
                self.apply(&others, &lives).and(Err(NotWritten::Refused(refused)))
            };
            drop(turn);
            self.changed.notify_waiters();
            self.world.step("the log, after a write").await;
            self.world.latency(Trouble::TransactSlow).await;
            let _ = answer.send(written);
        });
        match answered.await {
            Ok(answer) => answer,
            // The task went down with the process.
            Err(_) => std::future::pending().await,
        }
    }

    /// A process that stands still may do so in the middle of a write: its last part is missing.
    pub(super) async fn whose_is_awake(&self, lives: &[Arc<Mutex<SimAssignments>>]) {
        if let Some(live) = lives.first() {
            let process = live.lock().unwrap_or_else(PoisonError::into_inner).process;
            self.world.awake(process).await;
        }
    }

    pub(super) fn apply(
        &self,
        transaction: &Transaction,
        lives: &[Arc<Mutex<SimAssignments>>],
    ) -> Result<Vec<Position>, NotWritten> {
        let clock = match self.world.with(|w| w.shared) {
            true => SimClock::of_shared_log(self.world.clone()),
            false => SimClock::new(self.world.clone()),
        };
        let time = clock.now();
        self.world.with(|w| {
            let lives = lives.iter().map(|l| l.lock().unwrap_or_else(PoisonError::into_inner));
            let lives: Vec<_> = lives.collect();
            let left = |ended: &&EndedOffsets| {
                let mut lives = lives.iter();
                !lives.any(|live| live.is_valid(&ended.partition, ended.assignment))
            };
            if lives.iter().any(|live| live.exact)
                && !planted(Bug::StaleCommit)
                && let Some(ended) = transaction.ended.iter().find(left)
            {
                w.note(format_args!("refuses it all: {} has left", ended.partition));
                w.tally.recovered(Recovery::StaleIgnored);
                return Err(Fault::retry(format!("{} has left", ended.partition)).into());
            }
            let positions = w.disk.append(&transaction.outputs, time)?;
            promises::observe_outputs(w, &transaction.outputs, &positions);
            if let Some(live) = lives.first() {
                promises::observe_written(w, live.process, &transaction.outputs);
            }
            for ended in &transaction.ended {
                let reads = |live: &&MutexGuard<'_, SimAssignments>| {
                    live.group_of(&ended.partition.topic).is_some()
                };
                let Some(live) = lives.iter().find(reads) else { continue };
                note_ended(w, live, ended, transaction);
            }
            Ok(positions)
        })
    }
}

/// Notes what has ended in a partition, if it is still its reader's.
fn note_ended(
    w: &mut State,
    live: &SimAssignments,
    ended: &EndedOffsets,
    transaction: &Transaction,
) {
    let is_owner = live.is_valid(&ended.partition, ended.assignment);
    let mut group = live.group_of(&ended.partition.topic).unwrap_or_default();
    promises::observe_ended(w, (live.process, group), &ended.partition, &ended.ranges);
    if !is_owner && planted(Bug::StaleCommit) {
        let what = format!("{} was noted by who had it before", ended.partition);
        w.violated(promises::Promise::OwnersCommit, what);
    } else if !is_owner {
        w.note(format_args!("ignores {}: an old assignment", ended.partition));
        w.tally.recovered(Recovery::StaleIgnored);
        promises::excuse_repeats(w, &transaction.outputs);
        promises::ignored(w, ended);
        return;
    }
    if planted(Bug::NotesInWrongGroup) {
        group = super::pipeline::GROUP;
    }
    let newly = w.disk.note_ended(group, &ended.partition, &ended.ranges);
    w.note(format_args!("ended {} {:?}", ended.partition, ended.ranges));
    promises::audit_ended(w, group, &ended.partition, &newly);
}

/// The outputs that their topics will never take, by index.
pub(super) fn too_large(w: &mut State, outputs: &[Output]) -> Vec<(usize, Fault)> {
    let Some(most) = w.output_max else { return Vec::new() };
    let mut refused = Vec::new();
    for (at, output) in outputs.iter().enumerate() {
        if w.limited.contains(&output.topic) && output.bytes() > most {
            w.tally.hit(Trouble::TooLarge);
            w.note(format_args!("refuses {} bytes for {}", output.bytes(), output.topic));
            let what = "simulated: the record is too large for its topic";
            refused.push((at, Fault::set_aside(Reason::TooLarge, what)));
        }
    }
    refused
}

/// The seals that the internal topic will never take, by index.
fn large_seals(w: &mut State, outputs: &[Output]) -> Vec<(usize, Fault)> {
    let Some(SealMax { bytes, .. }) = w.seal_max else { return Vec::new() };
    let is_large =
        |(_, output): &(usize, &Output)| *output.topic == *INTERNAL && output.bytes() > bytes;
    let large = outputs.iter().enumerate().filter(is_large);
    let large: Vec<(usize, usize)> = large.map(|(at, output)| (at, output.bytes())).collect();
    let refuse = |(at, bytes): (usize, usize)| {
        w.note(format_args!("refuses a seal of {bytes} bytes"));
        (at, Fault::set_aside(Reason::TooLarge, "simulated: the seal is too large"))
    };
    large.into_iter().map(refuse).collect()
}

/// The outputs of a transaction of gathering that their topics will never take: copies, where that is
/// the trouble, and dead letters in their place.
fn refused_copies(
    w: &mut State,
    transaction: &Transaction,
    lives: &[Arc<Mutex<SimAssignments>>],
) -> Vec<(usize, Fault)> {
    let is_exact = |live: &Arc<Mutex<SimAssignments>>| {
        live.lock().unwrap_or_else(PoisonError::into_inner).exact
    };
    if !w.enabled.contains(&Trouble::CopyRefused) || !lives.iter().any(is_exact) {
        return Vec::new();
    }
    let most = w.output_max.unwrap_or(usize::MAX);
    let mut refused = too_large(w, &transaction.outputs);
    for (at, output) in transaction.outputs.iter().enumerate() {
        if promises::observe_copy(w, output, most) {
            w.tally.hit(Trouble::CopyRefused);
            let what = "simulated: the copy is too large for its topic";
            refused.push((at, Fault::set_aside(Reason::TooLarge, what)));
        }
    }
    refused
}

/// Bodies of held records, read from where they lie in the log. Nothing is put there, so nobody has
/// to be kept from it.
struct LogBodies(Arc<World>);

#[async_trait]
impl Store for LogBodies {
    fn reads_from_log(&self) -> bool {
        true
    }

    async fn own(&self, _: &Owner) -> Result<(), Fault> {
        Ok(())
    }

    async fn put(&self, _: &Owner, _: &[StoreEntry]) -> Result<PutOutcome, Fault> {
        Ok(PutOutcome::Kept)
    }

    async fn close(&self, _: &Owner, _: &[Bytes]) -> Result<(), Fault> {
        Ok(())
    }

    async fn load(&self, _: &Owner, places: &[StoreAddress]) -> Result<Vec<Option<Record>>, Fault> {
        let load = |place: &StoreAddress| self.0.with(|w| w.disk.record(&place.position).cloned());
        Ok(places.iter().map(load).collect())
    }

    async fn clean(&self, _: &Owner, _: &[StoreAddress]) -> Result<(), Fault> {
        Ok(())
    }
}

/// The contracts' methods take `&self`; what is written outlives the call, so each log is held
/// with a way to itself.
#[derive(Clone)]
pub struct LogHandle {
    log: Arc<SimLog>,
    /// Which of the processes that share it.
    process: usize,
}

impl LogHandle {
    /// For the first process.
    pub fn new(log: Arc<SimLog>) -> Self {
        Self::of_process(log, 0)
    }

    /// For another one.
    pub fn of_process(log: Arc<SimLog>, process: usize) -> Self {
        LogHandle { log, process }
    }
}

#[async_trait]
impl Log for LogHandle {
    fn is_shared(&self) -> bool {
        self.log.world.with(|w| w.shared)
    }

    fn bodies(&self) -> Arc<dyn Store> {
        Arc::new(LogBodies(self.log.world.clone()))
    }

    async fn append(&self, outputs: &[Output]) -> Result<Vec<Position>, Fault> {
        let transaction = Transaction { outputs: outputs.to_vec(), ended: Vec::new() };
        Ok(self.log.clone().write(transaction, Vec::new()).await?)
    }

    async fn open(&self, specs: Vec<ConsumerGroupSpec>) -> Result<OpenGroups, Fault> {
        let log = &self.log;
        log.world.awake(self.process).await;
        log.world.latency(Trouble::NextSlow).await;
        if log.world.with(|w| w.log_is_under(Trouble::LogAway)) {
            return Err(Fault::wait("simulated: the log is away"));
        }
        for spec in &specs {
            if log.is_read(&spec.group, Some(self.process)) {
                return Err(Fault::fix(format!("group {} is open already", spec.group)));
            }
            log.world.with(|w| {
                w.disk.register(&spec.group, spec.info.clone(), &spec.topics, spec.from_end);
                w.note(format_args!("group {} opens", spec.group));
            });
        }
        let exact = specs.iter().any(|spec| spec.exact);
        let overlap = if exact { 1 } else { log.world.with(|w| w.overlap) };
        // Where there is one order of all records, one source keeps it.
        let together = if log.world.with(|w| w.has_one_order()) { specs.len().max(1) } else { 1 };
        let (mut sources, mut lives) = (Vec::<Box<dyn Source>>::new(), Vec::new());
        for specs in specs.chunks(together) {
            let live = Arc::new(Mutex::new(SimAssignments::new(specs, self.process)));
            for spec in specs {
                let of = (spec.group.clone(), self.process);
                if let Some(old) = log.groups().insert(of, live.clone()) {
                    old.lock().unwrap_or_else(PoisonError::into_inner).retire();
                }
            }
            sources.push(Box::new(SimSource::new(log.clone(), live.clone(), self.process)));
            lives.push(live);
        }
        let journal = SimJournal { log: log.clone(), lives, overlap, turn: Arc::default() };
        Ok(OpenGroups { sources, journal: Arc::new(journal) })
    }

    async fn read(&self, topic: &str, from: ReadFrom) -> Result<Box<dyn Reader>, Fault> {
        let log = &self.log;
        log.world.latency(Trouble::NextSlow).await;
        if log.world.with(|w| w.log_is_under(Trouble::LogAway)) {
            return Err(Fault::wait("simulated: the log is away"));
        }
        let ends = log.world.with(|w| {
            let shelves = w.disk.topic(topic)?;
            Some(shelves.iter().map(|shelf| shelf.next).collect::<Vec<_>>())
        });
        let Some(ends) = ends else {
            return Err(Fault::fix(format!("there is no topic {topic}")));
        };
        let cursors =
            ends.into_iter().zip(0..).map(|(end, partition)| from.offset(partition, end)).collect();
        Ok(Box::new(SimReader { log: log.clone(), topic: topic.into(), cursors }))
    }

    async fn topics(&self) -> Result<Vec<TopicInfo>, Fault> {
        Ok(self.log.world.with(|w| w.disk.topic_infos()))
    }

    async fn consumer_groups(&self) -> Result<Vec<ConsumerGroup>, Fault> {
        Ok(self.log.world.with(|w| w.disk.group_infos(|group| self.log.is_read(group, None))))
    }

    async fn delete_consumer_group(&self, group: &str) -> Result<(), Fault> {
        if self.log.is_read(group, None) {
            return Err(Fault::fix(format!("group {group} is being read")));
        }
        match self.log.world.with(|w| w.disk.forget(group)) {
            true => Ok(()),
            false => Err(Fault::fix(format!("there is no group {group}"))),
        }
    }

    fn damage(&self) -> Vec<Damage> {
        Vec::new()
    }

    fn trouble(&self) -> Option<String> {
        None
    }

    async fn ended(&self, group: &str, topic: &str, partition: u32) -> Result<RangeSet, Fault> {
        let partition = Partition { topic: topic.into(), index: partition };
        let progress = self.log.world.with(|w| w.disk.progress(group, &partition));
        progress
            .map(|progress| progress.ended)
            .ok_or_else(|| Fault::fix(format!("there is no group {group}")))
    }
}

struct SimReader {
    log: Arc<SimLog>,
    topic: Arc<str>,
    cursors: Vec<u64>,
}

impl SimReader {
    fn take(&mut self) -> Option<SourceBatch> {
        for (cursor, index) in self.cursors.iter_mut().zip(0..) {
            let partition = Partition { topic: self.topic.clone(), index };
            let batch = self.log.world.with(|w| {
                let count = w.chance.between(1, 50) as usize;
                super::source::batch(&w.disk, &partition, 0, *cursor, count, |_| true)
            });
            if let Some(batch) = batch {
                *cursor = batch.next;
                return Some(batch);
            }
        }
        None
    }
}

#[async_trait]
impl Reader for SimReader {
    async fn next(&mut self, follow: bool) -> Result<Option<SourceBatch>, Fault> {
        let log = self.log.clone();
        loop {
            let changed = log.changed.notified();
            match self.take() {
                None if follow => changed.await,
                batch => return Ok(batch),
            }
        }
    }
}
