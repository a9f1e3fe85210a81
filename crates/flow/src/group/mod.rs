//! group: holds records until what belongs together is there.
//!
//! A lane owns its groups as an index of positions (`index.rs`); bodies are in the plan's `Store`, or
//! in the log itself, and in memory as far as there is room (`bodies.rs`). A group that closes is sealed (`seal.rs`): its
//! exact members are written into the log, and only when the seal is read back is anything of it
//! loaded, processed and delivered (`send.rs`); where groups are sharded, by a task of its own
//! (`tasks.rs`). After a start the lane reads again from the
//! group's position and closes nothing before the end that was there then.
//!
//! Where several processes share the log, the records of one group are first copied into one
//! partition of the internal topic (`gather.rs`), between the seals; whoever has the partition has
//! the group.

mod arrival;
mod board;
mod bodies;
mod clean;
mod clock;
mod files;
mod gather;
pub(crate) mod gathered;
mod index;
mod replays;
mod seal;
mod send;
mod shard;
mod shelf;
mod store;
pub(crate) mod strays;
mod tasks;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use potok_core::trouble::{Bug, crash_point, planted};
use potok_core::{
    Clock, Fault, Output, Owner, Partition, Position, Reason, Record, SourceBatch, Store, Timestamp,
};
use potok_expr::json::Parser;
use potok_expr::{PeriodBy, Scope, Template, View};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::counts::Ending;
use crate::lane::{Cycle, Item, Lane};
use crate::ledger::Note;
use crate::origin::Provenance;
use crate::plan::GroupPlan;
use crate::signal::Signal;
use crate::work::{Chunk, Completion, Stop, ToLane};
use arrival::{Arrival, Stream};
use board::GroupTable;
pub(crate) use board::GroupTables;
pub use board::OpenSlice;
pub(crate) use bodies::Bodies;
use bodies::Room;
use clean::PendingCleanups;
use clock::RunClock;
use files::FileDesk;
pub(crate) use gather::Gather;
pub use gathered::gathered_from;
pub(crate) use index::Command;
use index::{Feed, GroupKey, HeldRecord, Index, NewMember};
pub use index::{GroupCursor, GroupPage, GroupView, KindView};
use seal::Seal;
pub(crate) use seal::SealRoom;
pub(crate) use send::inherit;
pub use shard::ShardPlan;
pub(crate) use shard::{lane_of, shard_in, with_shard};
use store::{FullStore, PutResult};
use strays::RegroupScan;

/// Records that a lane takes in before it looks what is to be closed and sent. Many, so that under
/// load seals and deliveries are written in large pieces.
const TAKEN_MAX: usize = 4_000;

/// The group step of one lane.
pub(crate) struct Holding {
    pub plan: GroupPlan,
    pub store: Arc<dyn Store>,
    /// Finds bodies in the log that the store had no room for.
    pub log: Arc<dyn Store>,
    pub board: Arc<GroupTable>,
    /// Whose groups these are. Where the log is shared, a partition's share and nonce are put in.
    owner: Owner,
    /// Assignments whose shares are ours in the store.
    owned: Vec<(u64, Partition)>,
    search: Arc<RegroupScan>,
    /// For bodies in memory.
    room: Arc<Room>,
    /// What was sent and lies in the store until that is durable.
    sent: PendingCleanups,
    /// The store had no room.
    full: Option<FullStore>,
    desk: FileDesk,
}

impl Holding {
    pub fn new(
        plan: &GroupPlan,
        Bodies { store, log, room }: Bodies,
        owner: Owner,
        clock: &dyn Clock,
        shared: bool,
        attempts: Arc<AtomicU64>,
        search: Arc<RegroupScan>,
    ) -> Self {
        let mut index = Index::new(plan.close.clone(), plan.shard.is_some());
        if !shared {
            index.time_by_run(owner.share);
        }
        let board = Arc::new(GroupTable {
            index: Mutex::new(index),
            nudge: Notify::new(),
            to_write: Notify::new(),
            to_send: Notify::new(),
            closed: Signal::new(false),
            scale: RunClock::new(clock),
            shared,
            attempts,
        });
        let (plan, owned, sent) = (plan.clone(), Vec::new(), PendingCleanups::default());
        let desk = FileDesk::new();
        Holding { plan, store, log, board, owner, owned, search, room, sent, full: None, desk }
    }

    /// The share of what was read there.
    fn share(&self, partition: &Partition) -> u32 {
        if self.board.shared { partition.index } else { self.owner.share }
    }

    /// Who we are to the store for what was read under an assignment.
    fn owner(&self, partition: &Partition, assignment: u64) -> Owner {
        let nonce = if self.board.shared { assignment } else { self.owner.nonce };
        Owner { share: self.share(partition), nonce, ..self.owner.clone() }
    }

    /// The length of clock slices in milliseconds, where those close groups.
    fn every(&self) -> Option<i64> {
        self.plan.close.every.map(|every| every.as_millis().max(1) as i64)
    }

    /// The group that a record belongs to.
    fn group_key(&self, item: &Item, record: &Record, batch: &SourceBatch) -> GroupKey {
        let slice = self.every().map_or(0, |every| record.time.0.div_euclid(every) * every);
        GroupKey { key: item.group.clone(), slice, share: self.share(&batch.partition) }
    }

    /// When the records of a batch came, on the clock of their share. Asked once for each batch.
    fn arrivals(&self, batch: &SourceBatch, clock: &dyn Clock) -> Vec<i64> {
        let scale = &self.board.scale;
        match self.board.shared {
            true => {
                let share = self.share(&batch.partition);
                self.board.index().arrivals(share, batch, scale.now())
            }
            false => scale.arrivals(&batch.records, clock),
        }
    }

    /// What was owned under these assignments is ours no more.
    fn release(&mut self, assignments: &[u64]) {
        self.owned.retain(|(nonce, _)| !assignments.contains(nonce));
    }

    /// When this lane has something to do though nothing comes.
    fn wake(&self) -> Option<Instant> {
        let index = self.board.index();
        if !index.caught_up || !self.search.is_over() {
            return None;
        }
        if (index.has_sealed() && !self.sends_apart()) || index.has_to_seal() {
            return Some(Instant::now());
        }
        let due = index.next_due().filter(|_| !planted(Bug::ClosedByComing));
        due.map(|due| self.board.scale.instant(due))
    }
}

/// Where a record belongs: its group's key, its kind and its id.
pub(crate) struct Membership {
    /// May be a part of the record.
    pub group: Bytes,
    pub kind: Option<u16>,
    pub id: Option<Bytes>,
    /// Its own quiet time, in milliseconds.
    pub quiet: u32,
}

impl GroupPlan {
    /// Finds where a record belongs; its group only where that is not known.
    pub(crate) fn belongs(
        &self,
        parser: &mut Parser,
        item: &Item,
        value: &[u8],
        known: Option<Bytes>,
    ) -> Result<Membership, Fault> {
        let topic = &*item.origin.topic;
        let kind = self.kinds.iter().position(|kind| *kind.topic == *topic);
        let id = match kind.and_then(|kind| self.kinds.get(kind)) {
            Some(kind) => Some(&kind.id),
            None => self.id.as_ref(),
        };
        let shard = self.shard.as_ref().filter(|_| known.is_none());
        let quiet_by = self.close.quiet_by.as_ref();
        let reads = shard.is_some()
            || quiet_by.is_some_and(PeriodBy::needs_value)
            || self.by.iter().chain(id).any(Template::needs_value);
        let scope = Scope {
            value: if reads { parser.parse(value).ok() } else { None },
            key: item.key.as_deref(),
            headers: item.headers(),
            topic,
            id: None,
            receiver: None,
        };
        let found = |bytes: Option<Bytes>, template: &Template, what: &str| {
            bytes.ok_or_else(|| {
                let what = format!("{what} `{}` is missing or null", template.source());
                Fault::set_aside(Reason::NoKey, what)
            })
        };
        let by = self.by.as_ref().filter(|_| known.is_none());
        let group =
            |by: &Template| found(by.eval_shared(&scope, item.key.as_ref()), by, "group.by");
        let group = match shard {
            Some(shard) => Some(shard.key(scope.value)?),
            None => by.map(group).transpose()?.or(known),
        };
        let id = id.map(|id| found(id.eval_bytes(&scope), id, "the id")).transpose()?;
        let kind = kind.and_then(|kind| u16::try_from(kind).ok());
        let quiet = quiet_by.and_then(|quiet_by| quiet_by.find(&scope));
        let quiet = quiet.map_or(0, |quiet| u32::try_from(quiet.as_millis()).unwrap_or(u32::MAX));
        Ok(Membership { group: group.unwrap_or_default(), kind, id, quiet })
    }

    /// The shard of a group, where groups are sharded.
    pub(crate) fn shard_of(&self, group: &[u8]) -> Option<u32> {
        self.shard.as_ref().and_then(|_| shard_in(group))
    }

    /// True when this record closes its group. One that the expression fails on does not.
    fn closes(&self, item: &Item) -> bool {
        let (Some(when), Some(event)) = (&self.close.when, &item.event) else {
            return false;
        };
        when.matches(&View::from(event)).unwrap_or(false)
    }
}

impl Lane {
    /// Works as [`Lane::run`] does, with groups.
    pub(crate) async fn run_holding(mut self, mut holding: Holding) -> Result<(), Stop> {
        if !holding.board.shared {
            self.own_lane(&holding).await?;
        }
        loop {
            // Once it stops, nothing is closed or sent any more; it waits for the intake to end.
            let wake = if self.stopping.get() { None } else { holding.wake() };
            let ask_store = holding.full.as_ref().map(FullStore::ask_at);
            let much = || holding.board.index().has_much_sealed();
            let takes_in = wake.is_none() || holding.sends_apart() || !much();
            let input = tokio::select! {
                biased;
                input = self.inputs.recv(), if takes_in => match input {
                    Some(input) => Some(input),
                    // Open groups stay open: the next start finds them in the log.
                    None => {
                        holding.board.closed.set(true);
                        self.clean_last(&mut holding).await;
                        return Ok(());
                    }
                },
                () = holding.board.nudge.notified() => None,
                () = sleep_until(wake), if wake.is_some() => None,
                () = sleep_until(ask_store), if ask_store.is_some() => {
                    self.ask_store(&mut holding).await?;
                    None
                }
                Some(lot) = holding.sent.next() => {
                    self.clean(&mut holding, lot).await?;
                    None
                }
            };
            let mut records = 0;
            let mut next = input;
            while let Some(input) = next {
                if let ToLane::Chunk(chunk) = &input {
                    records += chunk.records.len();
                }
                self.take_in(&mut holding, input).await?;
                next = if records < TAKEN_MAX { self.inputs.try_recv().ok() } else { None };
            }
            if holding.search.is_over() {
                self.seal_due(&holding);
                if holding.sends_apart() {
                    holding.board.to_write.notify_one();
                } else if self.send_sealed(&mut holding).await? {
                    // There may be much more: others are let in between.
                    tokio::task::yield_now().await;
                }
            }
            self.clean_some(&mut holding).await?;
        }
    }

    async fn take_in(&mut self, holding: &mut Holding, input: ToLane) -> Result<(), Stop> {
        match input {
            ToLane::Chunk(chunk) => {
                let batch = &chunk.taken.batch;
                if self.stopping.get() || !self.live.contains(batch.assignment) {
                    self.hand_back(&chunk);
                } else if self.own.way(&batch.partition.topic) == Provenance::Gathered {
                    self.own_share(holding, batch).await?;
                    self.read_in_order(holding, &chunk).await?;
                } else if self.own.way(&batch.partition.topic) == Provenance::Replayed {
                    // Replays join no group, so the clock of groups does not go by their times.
                    self.hold(holding, chunk, &[]).await?;
                } else {
                    let came = holding.arrivals(batch, &*self.clock);
                    self.hold(holding, chunk, &came).await?;
                }
            }
            ToLane::CaughtUp(caught_up) => self.caught_up(holding, caught_up)?,
            ToLane::Whole => {
                let foreign = holding.board.index().take_waiting();
                self.counters.resumed_seals.fetch_add(foreign, Ordering::Relaxed);
            }
            ToLane::Leaving(assignments) => {
                holding.release(&assignments);
                let forgotten = holding.board.index().forget(&assignments);
                for (assignment, records, notes) in forgotten.assignments {
                    let _ = self.ledger.send(Note::HandedBack { assignment, records, notes });
                }
                if forgotten.torn {
                    let why = "a partition has left that shares a batch with others";
                    return Err(Stop::Reread(why.to_owned()));
                }
            }
        }
        Ok(())
    }

    /// From now on groups may close, or not yet again. What time the log has now, a tick shows:
    /// the last record may be old.
    fn caught_up(&self, holding: &Holding, caught_up: bool) -> Result<(), Stop> {
        let mut index = holding.board.index();
        let was = std::mem::replace(&mut index.caught_up, caught_up);
        if !holding.board.shared {
            return self.look_for_members(holding, was, &index);
        }
        if !caught_up || was {
            return Ok(());
        }
        let ticks = index.shares_with_open().map(|share| seal::tick(&holding.plan.internal, share));
        let ticks: Vec<Output> = ticks.collect();
        drop(index);
        if !ticks.is_empty() {
            let _ = self.ledger.send(Note::Seals(ticks));
        }
        Ok(())
    }

    /// Where the log is this process's own: members of a seal may be with other lanes, which have
    /// to know before any of them closes something.
    fn look_for_members(&self, holding: &Holding, was: bool, index: &Index) -> Result<(), Stop> {
        match (was, index.caught_up) {
            (false, true) => {
                let mut missed = index.missed();
                missed.retain(|(position, _)| !self.live.had_ended(position));
                if planted(Bug::GroupsByKeyNow) {
                    missed.clear();
                }
                if !holding.search.looked(missed) {
                    let why = "seals of earlier runs name records that are not with them";
                    return Err(Stop::Reread(why.to_owned()));
                }
            }
            (true, false) => holding.search.looks_again(),
            _ => {}
        }
        Ok(())
    }

    /// Takes copies of records and notes of our own in the order in which they lie there.
    async fn read_in_order(&mut self, holding: &mut Holding, chunk: &Chunk) -> Result<(), Stop> {
        let batch = &chunk.taken.batch;
        let came = holding.arrivals(batch, &*self.clock);
        let mut runs: Vec<(bool, Vec<(u32, u64)>)> = Vec::new();
        for (at, lane_key) in &chunk.records {
            let record = batch.records.get(*at as usize);
            let is_note = record.is_none_or(|record| self.own.is_note(batch, record));
            match runs.last_mut() {
                Some((notes, records)) if *notes == is_note => records.push((*at, *lane_key)),
                _ => runs.push((is_note, vec![(*at, *lane_key)])),
            }
        }
        for (notes, records) in runs {
            let chunk = Chunk { taken: chunk.taken.clone(), records };
            if notes {
                self.read_notes(holding, &chunk);
            } else {
                self.hold(holding, chunk, &came).await?;
            }
        }
        if let (true, Some(last)) = (holding.board.shared, came.last()) {
            let now = holding.board.scale.now();
            let last = if planted(Bug::WindowsByOwnClock) { self.clock.now().0 } else { *last };
            holding.board.index().learn_time(holding.share(&batch.partition), last, now);
        }
        Ok(())
    }

    /// Takes the records of a chunk into their groups. What cannot be held ends here.
    async fn hold(
        &mut self,
        holding: &mut Holding,
        chunk: Chunk,
        came: &[i64],
    ) -> Result<(), Stop> {
        let batch = &chunk.taken.batch;
        let replayed = self.own.way(&batch.partition.topic) == Provenance::Replayed;
        let mut cycle = Cycle::default();
        let mut held = Vec::new();
        for run in self.runs(&chunk) {
            let note = run.note;
            let mut items = self.decode(&chunk, 0, run);
            if replayed && holding.sends_apart() {
                let waiting = items.extract_if(.., |item| item.letters.is_empty());
                self.keep_replays(holding, &chunk, waiting);
                cycle.items.extend(items);
                continue;
            }
            if replayed {
                // Its group has been sent: it goes on alone.
                self.process_alone(&mut items, note).await?;
                cycle.items.extend(items);
                continue;
            }
            cycle.items.extend(items.extract_if(.., |item| !item.letters.is_empty()));
            // Mostly there is one run, and items are large.
            if held.is_empty() {
                held = items;
            } else {
                held.append(&mut items);
            }
        }
        let stored = self.store(holding, batch, &held, came).await?;
        if planted(Bug::HeldIsEnded) {
            let endings = held.iter().map(|item| (item.index, Ending::Delivered)).collect();
            self.complete(Completion { endings, ..Completion::of(chunk.taken.clone()) });
        }
        self.index(holding, &chunk, &held, came, &stored);
        crash_point("group.held");
        if !cycle.items.is_empty() {
            cycle.chunks.push(chunk);
            let delivered = self.deliver(&mut cycle).await;
            self.finish(cycle);
            delivered?;
        }
        Ok(())
    }

    fn index(
        &self,
        holding: &Holding,
        chunk: &Chunk,
        held: &[Item],
        came: &[i64],
        stored: &PutResult,
    ) {
        let batch = &chunk.taken.batch;
        let board = &holding.board;
        let now = self.clock.now();
        let every = holding.every();
        // Programs run, and bodies are copied, before the lock is taken: whoever looks does not wait
        // for that.
        let closes: Vec<bool> = held.iter().map(|item| holding.plan.closes(item)).collect();
        let records = held.iter().filter_map(|item| batch.records.get(item.index as usize));
        let records: Vec<&Record> = records.collect();
        let bodies = holding.room.keep(&records);
        let mut index = board.index();
        let feed = index.feed(&Feed::of(batch));
        let mut with = stored.with.iter().copied();
        for (((item, record), body), closes) in held.iter().zip(records).zip(bodies).zip(closes) {
            let Some(at) = came.get(item.index as usize).copied() else { continue };
            let with = with.next().unwrap_or(record.offset);
            let group = holding.group_key(item, record, batch);
            let slice_end = every.map(|every| {
                let end = group.slice.saturating_add(every);
                match board.shared {
                    true => end.saturating_add(at.saturating_sub(record.time.0)),
                    false => board.scale.now().saturating_add(end.saturating_sub(now.0)),
                }
            });
            let arrival = self.arrival(&mut index, batch, item, record);
            index.arrives(NewMember {
                group,
                slice_end,
                entry: HeldRecord {
                    at,
                    arrival,
                    closes,
                    quiet: item.quiet,
                    kind: item.kind,
                    id: item.id.clone(),
                    with,
                    in_store: stored.in_store,
                    body,
                    ..HeldRecord::of(chunk, item.index, feed)
                },
            });
        }
    }

    /// Where a record stands in the order of arrival: a copy stands where its record does.
    fn arrival(
        &self,
        index: &mut Index,
        batch: &SourceBatch,
        item: &Item,
        record: &Record,
    ) -> Arrival {
        let time = item.time();
        if let Some(place) = batch.place(item.index as usize) {
            return Arrival { stream: Stream::Log, place, time };
        }
        let Position { topic, partition, .. } = &item.origin;
        let from = Partition { topic: topic.clone(), index: *partition };
        Arrival { stream: index.stream(&from), place: record.offset, time }
    }

    fn read_notes(&self, holding: &Holding, chunk: &Chunk) {
        let batch = &chunk.taken.batch;
        let share = holding.share(&batch.partition);
        let (mut ended, mut unread) = (Vec::new(), false);
        let mut index = holding.board.index();
        let feed = index.feed(&Feed::of(batch));
        for (at, _) in &chunk.records {
            let Some(record) = batch.records.get(*at as usize) else { continue };
            let value = record.value.as_deref().unwrap_or_default();
            match Seal::read(value) {
                Some(seal) => {
                    let key = Bytes::copy_from_slice(record.key.as_deref().unwrap_or_default());
                    let foreign =
                        index.seal_arrives(key, share, seal, HeldRecord::of(chunk, *at, feed));
                    self.counters.resumed_seals.fetch_add(foreign, Ordering::Relaxed);
                }
                None => {
                    unread |= !seal::is_tick(value);
                    ended.push((*at, Ending::Sealed));
                }
            }
        }
        drop(index);
        if unread {
            tracing::warn!(topic = %batch.partition, "not a seal; somebody else writes to this topic");
        }
        if !ended.is_empty() {
            self.complete(Completion { endings: ended, ..Completion::of(chunk.taken.clone()) });
        }
    }

    /// Closes what is due and writes its seals. They count when they are read back.
    fn seal_due(&self, holding: &Holding) {
        let mut index = holding.board.index();
        if !index.caught_up || self.stopping.get() {
            return;
        }
        index.close_due(holding.board.scale.now());
        let seals = index.seals(self.clock.now());
        self.counters.lateness.add(index.lateness.drain(..));
        drop(index);
        if seals.is_empty() {
            return;
        }
        crash_point("seal.before");
        let topic = &holding.plan.internal;
        let output = |(name, seal): &(GroupKey, Seal)| Output {
            // Where its members lie, also when the key would lead elsewhere by now.
            partition: holding.board.shared.then_some(name.share),
            ..seal.output(topic, &name.key)
        };
        let outputs = seals.iter().map(output).collect();
        let _ = self.ledger.send(Note::Seals(outputs));
    }
}

impl Feed {
    fn of(batch: &SourceBatch) -> Self {
        Feed { partition: batch.partition.clone(), log: batch.log, assignment: batch.assignment }
    }
}

impl HeldRecord {
    fn of(chunk: &Chunk, index: u32, feed: u32) -> Self {
        let batch = &chunk.taken.batch;
        let record = batch.records.get(index as usize);
        let offset = record.map_or(batch.first, |record| record.offset);
        let covers = chunk.taken.covers(index as usize);
        let short = |length: u64| u32::try_from(length).unwrap_or(u32::MAX);
        let time = record.map_or(Timestamp(0), |record| record.time);
        let arrival = match batch.place(index as usize) {
            Some(place) => Arrival { stream: Stream::Log, place, time },
            None => Arrival { stream: Stream::Partition(feed), place: offset, time },
        };
        HeldRecord {
            feed,
            offset,
            before: short(offset.saturating_sub(covers.start)),
            from: short(covers.end.saturating_sub(offset)),
            bytes: short(record.map_or(0, Record::bytes) as u64),
            time,
            at: 0,
            arrival,
            closes: false,
            quiet: 0,
            kind: None,
            id: None,
            with: offset,
            in_store: true,
            body: None,
        }
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        // Timers go by milliseconds, and would wait for the next.
        Some(due) if due <= Instant::now() => {}
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
