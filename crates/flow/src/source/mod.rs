//! source: polling, room, and the way into lanes.
//!
//! For each source one task polls it for as long as the pipeline runs, also while it is paused or the
//! room is used up: polling is what keeps a group membership alive. Records go to lanes by the
//! hash of their lane key, so order per key needs no lock.

mod behind;
mod routing;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use potok_core::trouble::{Bug, crash_point, planted};
use potok_core::{Assignment, Fault, Move, PartitionEnd, Record, Source, SourceBatch, SourceEvent};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::counts::Ending;
use crate::feed::FeedInput;
use crate::ledger::Note;
use crate::live::Assignments;
use crate::origin::OwnTopics;
use crate::signal::Signal;
use crate::status::Counters;
use crate::waits::{Waits, WaitsFor};
use crate::work::{Chunk, Completion, InFlightBatch, Stop, ToLane};
pub(crate) use behind::CatchUp;
pub(crate) use routing::{Routing, hash_of};

/// The longest wait after a source that cannot be polled.
const POLL_WAIT_MAX: Duration = Duration::from_secs(5);

/// A source that failed and has been asked for so long without failing again works: there is
/// nothing to read.
const QUIET: Duration = Duration::from_secs(2);

/// The state that the intakes of a run share.
#[derive(Clone)]
pub(crate) struct IntakeShared {
    pub own: OwnTopics,
    pub behind: CatchUp,
    pub lanes: Vec<mpsc::UnboundedSender<ToLane>>,
    pub ledger: mpsc::UnboundedSender<Note>,
    pub room: Arc<Semaphore>,
    pub room_bytes: usize,
    pub counters: Arc<Counters>,
    pub live: Arc<Assignments>,
    pub waits: Arc<Waits>,
    pub paused: Arc<Signal<bool>>,
    pub stopping: Arc<Signal<bool>>,
    /// Where groups are gathered: how much of the internal topic was not read, for whoever writes
    /// there.
    pub unread: Option<Arc<Signal<u64>>>,
}

/// Polls one source.
pub(crate) struct Intake {
    /// Which of those of its run.
    number: usize,
    source: Box<dyn Source>,
    routing: Routing,
    shared: IntakeShared,
    /// An end was reached up to which groups have to wait, and nobody was told yet.
    reached: bool,
    /// Lanes that were sent records which others may follow that came among them.
    in_part: BTreeSet<usize>,
    assigned: HashMap<u64, Assignment>,
    /// Where groups are gathered: how far each partition was read, by assignment.
    read: HashMap<u64, u64>,
    /// The feed it reads, if it does not read topics.
    feed: Option<Arc<FeedInput>>,
}

/// Numbers batches across runs, for the ages that `status` shows.
static SEQUENCE: AtomicU64 = AtomicU64::new(0);

impl Intake {
    pub fn new(
        number: usize,
        source: Box<dyn Source>,
        routing: Routing,
        shared: IntakeShared,
    ) -> Self {
        Intake {
            number,
            source,
            routing,
            shared,
            reached: false,
            in_part: BTreeSet::new(),
            assigned: HashMap::new(),
            read: HashMap::new(),
            feed: None,
        }
    }

    /// Opens a feed and polls it until asked to stop. Other inputs do not wait for it.
    pub async fn run_feed(
        number: usize,
        feed: Arc<FeedInput>,
        routing: Routing,
        shared: IntakeShared,
    ) -> Result<(), Stop> {
        let source = tokio::select! {
            biased;
            () = shared.stopping.wait_for(|stopping| stopping) => return Ok(()),
            source = feed.open(&shared.waits, 2 * number) => source.map_err(Stop::Fix)?,
        };
        Intake { feed: Some(feed), ..Intake::new(number, source, routing, shared) }.run().await
    }

    /// The kind of wait it reports.
    fn waits_for(&self) -> (WaitsFor, usize) {
        let what = if self.feed.is_some() { WaitsFor::Feed } else { WaitsFor::Source };
        (what, 2 * self.number)
    }

    /// Polls until asked to stop.
    pub async fn run(mut self) -> Result<(), Stop> {
        let mut waiting: Option<(SourceBatch, usize)> = None;
        let (what, part) = self.waits_for();
        let mut failures = 0_u32;
        // When a source that failed counts as back though it has nothing to say.
        let mut quiet_at: Option<Instant> = None;
        loop {
            let paused = self.shared.paused.get();
            self.source.set_paused(paused || waiting.is_some());
            let needed = waiting.as_ref().map_or(0, |(_, bytes)| *bytes);
            let heard = tokio::select! {
                biased;
                () = self.shared.stopping.wait_for(|stopping| stopping) => {
                    self.give_back(waiting);
                    return Ok(());
                }
                () = self.shared.paused.wait_for(|now| now != paused) => IntakeWake::Pause,
                room = room(&self.shared.room, needed), if waiting.is_some() => IntakeWake::Room(room),
                said = self.source.next() => IntakeWake::Event(said),
                () = sleep_until(quiet_at.unwrap_or_else(Instant::now)), if quiet_at.is_some() => {
                    IntakeWake::Quiet
                }
            };
            let said = match (heard, waiting.take()) {
                (IntakeWake::Quiet, still) => {
                    waiting = still;
                    (failures, quiet_at) = (0, None);
                    self.shared.waits.end(what, part);
                    continue;
                }
                (IntakeWake::Pause, still) => {
                    waiting = still;
                    continue;
                }
                (IntakeWake::Room(room), batch) => {
                    if let (Some((batch, _)), Some(room)) = (batch, room) {
                        self.route(batch, room);
                    }
                    continue;
                }
                (IntakeWake::Event(said), still) => {
                    waiting = still;
                    said
                }
            };
            match said {
                Ok(SourceEvent::Batch(mut batch)) => {
                    crash_point("intake");
                    if let Some(feed) = &self.feed {
                        batch.assignment = feed.nonce(batch.assignment);
                    }
                    quiet_at = None;
                    if std::mem::take(&mut failures) > 0 {
                        self.shared.waits.end(what, part);
                    }
                    if let Some(batch) = self.wanted(batch) {
                        let bytes = batch.records.iter().map(Record::bytes).sum();
                        waiting = Some((batch, self.shared.room_bytes.min(bytes)));
                    }
                }
                Ok(said) => self.hear(said, &mut waiting).await,
                Err(fault) if matches!(fault.next, Move::Fix | Move::SetAside) => {
                    return Err(Stop::Fix(fault));
                }
                // The run starts again, and with it the source.
                Err(fault) if fault.next == Move::Retry => {
                    return Err(Stop::Reread(fault.to_string()));
                }
                Err(fault) => {
                    failures += 1;
                    self.shared.waits.begin_with(what, part, &fault);
                    wait_after(failures).await;
                    quiet_at = Some(Instant::now() + QUIET);
                }
            }
        }
    }

    /// Names the assignments of a feed as they are named here.
    fn named(&self, mut said: SourceEvent) -> SourceEvent {
        let Some(feed) = &self.feed else { return said };
        match &mut said {
            SourceEvent::Assigned(all) => {
                all.iter_mut().for_each(|of| of.nonce = feed.nonce(of.nonce))
            }
            SourceEvent::Revoked(nonces)
            | SourceEvent::Lost(nonces)
            | SourceEvent::Finished(nonces) => {
                nonces.iter_mut().for_each(|nonce| *nonce = feed.nonce(*nonce));
            }
            SourceEvent::Batch(_) | SourceEvent::Stalled(_) => {}
        }
        said
    }

    async fn hear(&mut self, said: SourceEvent, waiting: &mut Option<(SourceBatch, usize)>) {
        let own = match (&self.feed, &said) {
            (Some(feed), SourceEvent::Assigned(all)) => {
                Some((feed.number, all.iter().map(|of| of.nonce).collect()))
            }
            _ => None,
        };
        match self.named(said) {
            SourceEvent::Assigned(assignments) => {
                for assignment in &assignments {
                    self.shared.live.insert(assignment);
                    self.assigned.insert(assignment.nonce, assignment.clone());
                }
                self.shared.behind.heard(self.number);
                self.note_ends(&assignments);
                self.note_unread();
                self.tell(Note::Assigned(assignments, own));
            }
            SourceEvent::Revoked(nonces) => {
                self.forget(&nonces, waiting);
                let (done, left) = oneshot::channel();
                self.tell(Note::Leaving { assignments: nonces, done });
                // A ledger that is gone has nothing to wait for.
                let _ = left.await;
            }
            SourceEvent::Lost(nonces) => {
                if self.feed.is_some() {
                    nonces.iter().for_each(|nonce| self.shared.live.lose(*nonce));
                }
                self.forget(&nonces, waiting);
                self.tell(Note::Lost(nonces));
            }
            SourceEvent::Finished(nonces) => {
                self.forget(&nonces, waiting);
                self.tell(Note::Finished(nonces));
            }
            SourceEvent::Stalled(fault) => {
                let (what, part) = self.waits_for();
                match fault {
                    Some(fault) => self.shared.waits.begin_with(what, part, &fault),
                    None => self.shared.waits.end(what, part),
                }
            }
            SourceEvent::Batch(_) => {}
        }
    }

    fn forget(&mut self, nonces: &[u64], waiting: &mut Option<(SourceBatch, usize)>) {
        for nonce in nonces {
            self.shared.live.remove(*nonce);
            self.assigned.remove(nonce);
            self.shared.behind.remove(*nonce);
            self.read.remove(nonce);
        }
        self.note_unread();
        if self.shared.own.internal.is_some() {
            self.tell_lanes(|| ToLane::Leaving(nonces.to_vec()));
            self.tell_caught_up();
        }
        if waiting.as_ref().is_some_and(|(batch, _)| nonces.contains(&batch.assignment)) {
            *waiting = None;
        }
    }

    /// Leaves out what has ended before; `None` when the assignment is not ours any more.
    fn wanted(&self, mut batch: SourceBatch) -> Option<SourceBatch> {
        let assignment = self.assigned.get(&batch.assignment)?;
        let highest = assignment.ended.iter().last().map_or(0, |range| range.end);
        batch.retain(|record| {
            if planted(Bug::ResumeAtHighest) {
                return record.offset >= highest;
            }
            record.offset >= assignment.start && !assignment.ended.contains(record.offset)
        });
        Some(batch)
    }

    fn route(&mut self, batch: SourceBatch, room: OwnedSemaphorePermit) {
        let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed);
        let records = batch.records.len() as u64;
        let assignment = batch.assignment;
        let (next, has_more) = (batch.next, batch.has_more());
        let in_order = batch.order.is_some() && self.shared.own.internal.is_some();
        let is_note = |record: &&Record| self.shared.own.is_note(&batch, record);
        let notes = batch.records.iter().filter(is_note).count() as u64;
        let in_flight = self.shared.counters.counts.received(records - notes);
        if let Some(first) = batch.records.first() {
            self.shared.counters.batch_opened(sequence, first.time);
        }
        let counters = self.shared.counters.clone();
        let is_whole = batch.whole().is_some();
        let taken = Arc::new(InFlightBatch {
            batch,
            sequence,
            counters,
            _room: Some(room),
            apart: None,
            puts_off: self.feed.as_ref().and_then(|feed| feed.abilities.puts_off),
        });
        self.tell(Note::Routed { assignment, records: in_flight, notes });
        if records == 0 || planted(Bug::NaiveCommit) {
            // Nothing but a gap: it has ended by being read.
            self.tell(Note::Completed(Completion::of(taken.clone()).into()));
        }
        for (lane, records) in self.routing.split(&taken.batch, self.shared.lanes.len()) {
            let chunk = Chunk { taken: taken.clone(), records };
            if in_order {
                self.in_part.insert(lane);
            }
            let sent = self.shared.lanes.get(lane).map(|lane| lane.send(ToLane::Chunk(chunk)));
            if let Some(Err(mpsc::error::SendError(ToLane::Chunk(chunk)))) = sent {
                // The lane died; the supervisor is about to start everything again.
                let records = chunk.records.iter().map(|(index, _)| (*index, Ending::HandedBack));
                let endings = records.collect();
                let completion = Completion { endings, ..Completion::of(chunk.taken.clone()) };
                self.tell(Note::Completed(completion.into()));
            }
        }
        if is_whole && planted(Bug::FinishedTooEarly) {
            self.tell(Note::Finished(vec![assignment]));
        }
        self.reached |= self.shared.behind.reached(assignment, next);
        if !has_more {
            self.tell_whole();
        }
        self.read.insert(assignment, next);
        self.note_unread();
    }

    /// A batch for which there was no room goes back where its feed has to be told.
    fn give_back(&self, waiting: Option<(SourceBatch, usize)>) {
        let Some((batch, _)) = waiting.filter(|_| self.feed.is_some()) else { return };
        let (assignment, records) = (batch.assignment, batch.records.len());
        let counters = self.shared.counters.clone();
        let in_flight = counters.counts.received(records as u64);
        self.tell(Note::Routed { assignment, records: in_flight, notes: 0 });
        let taken = InFlightBatch {
            batch,
            sequence: u64::MAX,
            counters,
            _room: None,
            apart: None,
            puts_off: None,
        };
        let endings = (0..records as u32).map(|index| (index, Ending::HandedBack)).collect();
        let completion = Completion { endings, ..Completion::of(Arc::new(taken)) };
        self.tell(Note::Completed(completion.into()));
    }

    /// Everything was sent that came among each other.
    fn tell_whole(&mut self) {
        for lane in std::mem::take(&mut self.in_part) {
            // A lane that is gone ended the run; the supervisor knows.
            self.shared.lanes.get(lane).into_iter().for_each(|lane| _ = lane.send(ToLane::Whole));
        }
        if std::mem::take(&mut self.reached) {
            self.tell_caught_up();
        }
    }

    fn note_unread(&self) {
        let Some(signal) = &self.shared.unread else { return };
        let mut unread = 0;
        for PartitionEnd { partition, end } in self.source.ends() {
            let of = |assignment: &&Assignment| assignment.partition == partition;
            if let Some(assignment) = self.assigned.values().find(of)
                && self.shared.own.internal.as_ref() == Some(&partition.topic)
            {
                let read = self.read.get(&assignment.nonce).unwrap_or(&assignment.start);
                unread += end.saturating_sub(*read);
            }
        }
        signal.set(unread);
    }

    /// Groups close when everything was read that was there when the partitions came.
    fn note_ends(&mut self, assignments: &[Assignment]) {
        if self.shared.own.internal.is_none() {
            return;
        }
        let ends = self.source.ends();
        // Replays come into no group, and a lane that waits with one must not keep groups open.
        let is_replay = |of: &&Assignment| of.partition.topic == self.shared.own.replay;
        for assignment in assignments.iter().filter(|of| !is_replay(of)) {
            let end = ends.iter().find(|end| end.partition == assignment.partition);
            let end = end.map_or(0, |end| end.end);
            if assignment.ended.first_gap(assignment.start) < end {
                let lane = self.routing.lane_of(&assignment.partition, self.shared.lanes.len());
                self.shared.behind.insert(self.number, assignment.nonce, end, lane);
            }
        }
        self.tell_caught_up();
    }

    fn tell_caught_up(&self) {
        let lanes = &self.shared.lanes;
        self.shared.behind.tell(self.number, lanes.len(), |lane, caught_up| {
            // A lane that is gone ended the run; the supervisor knows.
            lanes.get(lane).into_iter().for_each(|lane| _ = lane.send(ToLane::CaughtUp(caught_up)));
        });
    }

    fn tell_lanes(&self, input: impl Fn() -> ToLane) {
        for lane in &self.shared.lanes {
            // A lane that is gone ended the run; the supervisor knows.
            let _ = lane.send(input());
        }
    }

    fn tell(&self, note: Note) {
        // A ledger that is gone ended the run; the supervisor knows.
        let _ = self.shared.ledger.send(note);
    }
}

async fn wait_after(failures: u32) {
    let wait = Duration::from_millis(50).saturating_mul(1 << failures.min(10));
    tokio::time::sleep(wait.min(POLL_WAIT_MAX)).await;
}

/// A reason for the intake to wake.
enum IntakeWake {
    /// The source has failed, and has not failed again for a while.
    Quiet,
    Pause,
    Room(Option<OwnedSemaphorePermit>),
    Event(Result<SourceEvent, Fault>),
}

async fn room(room: &Arc<Semaphore>, bytes: usize) -> Option<OwnedSemaphorePermit> {
    let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
    room.clone().acquire_many_owned(permits).await.ok()
}
