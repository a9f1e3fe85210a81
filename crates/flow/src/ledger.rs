//! The ledger: where every record is, and the one place where endings become durable.
//!
//! ```text
//!   taken ──► in a lane ──► ended (receipt, filter, duplicate)   ─┐
//!     │                └──► ended with outputs or dead letters ───┼─► one transaction ─► noted
//!     └──► handed back (drain, revoked, lost): not ended, will be read again
//! ```
//!
//! Endings that carry outputs or dead letters are written at once, together with the progress
//! they mean, so that neither can exist without the other. Bare progress may wait a little: if it
//! is lost, the same records are read again and recognised as duplicates by their delivery ids.
//!
//! A position moves only over records that have ended; that follows from progress being a set of
//! ended ranges, whose first gap is the position.
//!
//! Where the log lets transactions overlap, several are on their way at a time, in order; what has
//! ended with one is noted when its outputs and those of all before it are written. Elsewhere one is
//! written at a time, and the next is made ready meanwhile.

use std::collections::HashMap;
use std::future::ready;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{FuturesOrdered, StreamExt};
use potok_core::trouble::{Bug, crash_point, planted};
use potok_core::{
    Assignment, EndedOffsets, Fault, Journal, Move, NotWritten, Output, Partition, Position,
    Reason, Transaction, Turn,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::counts::{Ending, InFlight};
use crate::feed::{CommitTurn, CommitTurns, FeedPart, FeedWriter, OfferBook};
use crate::group::SealRoom;
use crate::live::Assignments;
use crate::outgoing::{DeadLetterWriter, Outgoing, Purpose, of_leader, pieces};
use crate::pending::{Outputs, PendingEndings, keep};
use crate::plan::Retry;
use crate::status::Counters;
use crate::waits::{Waits, WaitsFor};
use crate::work::{CompletedWork, Completion, Follower, InFlightBatch, Stop};

/// How long bare progress may wait for more.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// A transaction that takes longer than this is told of.
pub(crate) const SLOW: Duration = Duration::from_secs(10);
/// How long a partition that leaves waits for the calls that are in flight.
const LEAVE_MAX: Duration = Duration::from_secs(5);
/// Outputs of one transaction; one completion is never split. Few enough to be in a processor's cache
/// from the lane to the log; more where several are on their way, so that brokers get few requests.
const TRANSACTION_BYTES_MAX: usize = 1 << 20;
const OVERLAPPING_BYTES_MAX: usize = 4 << 20;
/// Transactions under way where they do not overlap: one that is written, and one that waits.
const IN_TURN: usize = 2;

/// A message to the ledger.
pub(crate) enum Note {
    /// Of a feed, with its number and how it calls them.
    Assigned(Vec<Assignment>, Option<(usize, Vec<u64>)>),
    /// Records of an assignment went to lanes, and so many notes of our own.
    Routed { assignment: u64, records: InFlight, notes: u64 },
    /// The outcomes of records that were worked on together; noted in one transaction.
    Completed(CompletedWork),
    /// So many held records of an assignment are given back, and so many notes: it leaves.
    HandedBack { assignment: u64, records: u64, notes: u64 },
    /// Seals to write. They are acted on when they are read.
    Seals(Vec<Output>),
    /// Answers when everything told before is durable.
    Durable(oneshot::Sender<()>),
    /// These assignments leave in good order; answers when all that can be noted is noted.
    Leaving { assignments: Vec<u64>, done: oneshot::Sender<()> },
    /// These assignments are gone; nothing of them is noted any more.
    Lost(Vec<u64>),
    /// All of these assignments is noted.
    Finished(Vec<u64>),
}

struct AssignedPartition {
    partition: Partition,
    /// Records that went to lanes and did not come back, where any did; and notes of our own.
    records: Option<InFlight>,
    notes: u64,
    ended: PendingRanges,
    /// Of which feed it is, and how that one calls it.
    feed: Option<(usize, u64)>,
}

impl AssignedPartition {
    fn is_idle(&self) -> bool {
        self.notes == 0 && self.records.as_ref().is_none_or(InFlight::is_empty)
    }

    /// So many of its records, which are done with here.
    fn part(&mut self, records: usize) -> Option<InFlight> {
        self.records.as_mut().map(|all| all.part(records as u64))
    }
}

/// Ranges that have ended since the last transaction, in order of arrival.
#[derive(Default)]
struct PendingRanges(Vec<Range<u64>>);

impl PendingRanges {
    fn insert(&mut self, range: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.0.push(range),
        }
    }

    /// All of it, in order and joined; nothing is left.
    fn take(&mut self) -> Vec<Range<u64>> {
        let mut ranges = std::mem::take(&mut self.0);
        ranges.retain(|range| !range.is_empty());
        ranges.sort_by_key(|range| range.start);
        ranges.dedup_by(|next, last| {
            let meets = next.start <= last.end;
            if meets {
                last.end = last.end.max(next.end);
            }
            meets
        });
        ranges
    }
}

/// A transaction to write.
struct JournalEntry {
    pending: Vec<PendingEndings>,
    outputs: Outputs,
    ended: Vec<EndedOffsets>,
    /// Which feeds are told of it.
    turns: Vec<CommitTurn>,
    /// Told when it is noted.
    durable: Vec<oneshot::Sender<()>>,
    /// Told when the one before is noted.
    before: oneshot::Receiver<()>,
    /// Tells the one behind.
    noted: oneshot::Sender<()>,
}

pub(crate) struct Ledger {
    pub notes: mpsc::UnboundedReceiver<Note>,
    pub live: Arc<Assignments>,
    scribe: Arc<JournalWriter>,
    held: HashMap<u64, AssignedPartition>,
    leaving: Vec<(Vec<u64>, Instant, oneshot::Sender<()>)>,
    pending: Vec<PendingEndings>,
    /// Theirs, in the order in which they leave.
    outputs: Outputs,
    pending_bytes: usize,
    seals: Vec<Output>,
    durable: Vec<oneshot::Sender<()>>,
    progress_due: Option<Instant>,
    /// Transactions on their way, oldest first.
    writing: FuturesOrdered<BoxFuture<'static, Result<(), Stop>>>,
    /// Told when the last of them is noted.
    noted: oneshot::Receiver<()>,
    /// The same for what each feed was told.
    turns: CommitTurns,
}

/// What woke the ledger.
enum LedgerWake {
    Note(Option<Note>),
    Written(Result<(), Stop>),
    Due,
}

impl Ledger {
    pub fn new(
        notes: mpsc::UnboundedReceiver<Note>,
        live: Arc<Assignments>,
        scribe: JournalWriter,
    ) -> Self {
        let (nothing_before, noted) = oneshot::channel();
        // Nobody waits yet who could be gone.
        let _ = nothing_before.send(());
        Ledger {
            notes,
            live,
            scribe: Arc::new(scribe),
            held: HashMap::new(),
            leaving: Vec::new(),
            pending: Vec::new(),
            outputs: Outputs::default(),
            pending_bytes: 0,
            seals: Vec::new(),
            durable: Vec::new(),
            progress_due: None,
            writing: FuturesOrdered::new(),
            noted,
            turns: CommitTurns::default(),
        }
    }

    /// Runs until every sender of notes is gone, then notes the rest.
    pub async fn run(mut self) -> Result<(), Stop> {
        let overlaps = self.scribe.overlaps();
        let (most, bytes_max) = match overlaps {
            true => (self.scribe.journal.overlap(), OVERLAPPING_BYTES_MAX),
            false => (IN_TURN, TRANSACTION_BYTES_MAX),
        };
        loop {
            let leave_due = self.leaving.iter().map(|(_, due, _)| *due).min();
            let due = self.progress_due.into_iter().chain(leave_due).min();
            // Whichever branch wakes it, there is room for one more transaction afterwards.
            let has_room = self.writing.len() < most;
            let heard = tokio::select! {
                biased;
                Some(written) = self.writing.next() => LedgerWake::Written(written),
                note = self.notes.recv(), if has_room => LedgerWake::Note(note),
                () = sleep_until(due), if has_room && due.is_some() => LedgerWake::Due,
            };
            match heard {
                LedgerWake::Note(None) => {
                    self.flush();
                    return self.settle().await;
                }
                LedgerWake::Note(Some(note)) => self.take(note),
                LedgerWake::Written(written) => written?,
                LedgerWake::Due => {}
            }
            while self.pending_bytes < bytes_max
                && let Ok(note) = self.notes.try_recv()
            {
                self.take(note);
            }
            let progress_is_due = self.progress_due.is_some_and(|due| due <= Instant::now());
            let any_left = self.any_left();
            let asked = !self.seals.is_empty() || !self.durable.is_empty();
            let any = asked || !self.pending.is_empty();
            // A transaction that has to wait for its turn is filled up first.
            let waits = !overlaps && !self.writing.is_empty() && self.pending_bytes < bytes_max;
            if progress_is_due || (any && !waits) || any_left {
                self.flush();
            }
            if any_left {
                self.settle().await?;
                self.answer_left();
            }
        }
    }

    /// Waits until all that is on its way is noted.
    async fn settle(&mut self) -> Result<(), Stop> {
        while let Some(written) = self.writing.next().await {
            written?;
        }
        Ok(())
    }

    fn take(&mut self, note: Note) {
        match note {
            Note::Assigned(assignments, feed) => {
                for (at, assignment) in assignments.into_iter().enumerate() {
                    let Assignment { partition, nonce, .. } = assignment;
                    let (records, ended) = (None, PendingRanges::default());
                    let feed = feed.as_ref();
                    let feed = feed.and_then(|(number, own)| Some((*number, *own.get(at)?)));
                    self.held.insert(
                        nonce,
                        AssignedPartition { partition, records, notes: 0, ended, feed },
                    );
                }
            }
            // Of a partition that is another's by now, they are handed back at once.
            Note::Routed { assignment, records, notes } => {
                if let Some(held) = self.held.get_mut(&assignment) {
                    held.notes += notes;
                    match &mut held.records {
                        Some(all) => all.join(records),
                        none => *none = Some(records),
                    }
                }
            }
            Note::Completed(completed) => self.complete_all(completed),
            Note::HandedBack { assignment, records, notes } => {
                if let Some(held) = self.held.get_mut(&assignment) {
                    held.notes = held.notes.saturating_sub(notes);
                    drop(held.part(records as usize));
                }
            }
            Note::Seals(seals) => {
                self.pending_bytes += seals.iter().map(|seal| 64 + seal.bytes()).sum::<usize>();
                self.seals.extend(seals);
            }
            Note::Durable(done) => self.durable.push(done),
            Note::Leaving { assignments, done } => {
                self.leaving.push((assignments, Instant::now() + LEAVE_MAX, done));
            }
            Note::Lost(assignments) => {
                assignments.iter().for_each(|nonce| drop(self.held.remove(nonce)));
                self.drop_pending_of(&assignments);
            }
            Note::Finished(assignments) => {
                assignments.iter().for_each(|nonce| drop(self.held.remove(nonce)));
            }
        }
    }

    fn complete_all(&mut self, completed: CompletedWork) {
        let CompletedWork { completions, mut outputs, followers } = completed;
        let mut with_outputs = vec![false; completions.len()];
        let waiting = outputs.iter().map(|(of, _)| of);
        for of in waiting.chain(followers.iter().map(|Follower { own: (of, _), .. }| of)) {
            with_outputs.get_mut(*of).into_iter().for_each(|with| *with = true);
        }
        if planted(Bug::ByPartition) {
            outputs.sort_by_key(|(of, _)| *of);
        }
        let completions = completions.into_iter().zip(with_outputs);
        let pending: Vec<Option<usize>> =
            completions.map(|(completion, with)| self.complete(completion, with)).collect();
        for (of, outgoing) in outputs {
            if let Some(Some(pending)) = pending.get(of) {
                self.pending_bytes += 64 + outgoing.output.bytes();
                self.outputs.push(*pending, outgoing);
            }
        }
        let number = |of: usize| pending.get(of).copied().flatten();
        for Follower { leader: (leader, at), own: (own, index) } in followers {
            let (Some(leader), Some(own)) = (number(leader), number(own)) else { continue };
            if let Some(leader) = self.pending.get_mut(leader) {
                leader.followers.push((at, own, index));
            }
        }
    }

    /// Takes note of endings; says which of the pending ones they are, where something is to be
    /// written for them.
    fn complete(&mut self, completion: Completion, with_outputs: bool) -> Option<usize> {
        let Completion { taken, mut endings, reasons, failures } = completion;
        let mut nonce = taken.batch.assignment;
        if planted(Bug::StaleCompletion) && !self.held.contains_key(&nonce) {
            nonce = self.live.nonce_of(&taken.batch.partition).unwrap_or(nonce);
        }
        let Some(held) = self.held.get_mut(&nonce) else {
            // The partition is another's by now: what was done here is not ours to note. Its
            // owner does it again, under the same names.
            return None;
        };
        let of = |is: fn(Ending) -> bool| endings.iter().filter(|(_, e)| is(*e)).count();
        let counted = of(Ending::is_counted);
        let handed_back = of(|ending| matches!(ending, Ending::HandedBack | Ending::PutOff));
        drop(held.part(handed_back));
        held.notes = held.notes.saturating_sub((endings.len() - counted - handed_back) as u64);
        let records = held.part(counted);
        let feed = held.feed.map(|(number, own)| {
            let partition = held.partition.clone();
            FeedPart::new(number, partition, own, endings.clone(), failures)
        });
        if feed.is_none() {
            for (index, ending) in &endings {
                if !ending.is_handed_back() {
                    held.ended.insert(taken.covers(*index as usize));
                }
            }
            if endings.is_empty() {
                held.ended.insert(taken.batch.first..taken.batch.next);
            }
            self.progress_due.get_or_insert_with(|| Instant::now() + PROGRESS_EVERY);
        }
        endings.retain(|(_, ending)| ending.is_counted());
        if !with_outputs && feed.is_none() {
            self.scribe.count(&taken, &endings, records);
            return None;
        }
        let followers = Vec::new();
        self.pending.push(PendingEndings {
            assignment: nonce,
            endings,
            records,
            reasons,
            followers,
            taken,
            feed,
        });
        Some(self.pending.len() - 1)
    }

    /// Drops work for assignments that are lost: it is not ours to write any more.
    fn drop_pending_of(&mut self, assignments: &[u64]) {
        let stays = |pending: &PendingEndings| !assignments.contains(&pending.assignment);
        keep(&mut self.pending, &mut self.outputs, stays);
    }

    fn any_left(&self) -> bool {
        self.leaving.iter().any(|(nonces, due, _)| self.has_left(nonces, *due))
    }

    fn has_left(&self, nonces: &[u64], due: Instant) -> bool {
        let idle = |nonce| self.held.get(nonce).is_none_or(AssignedPartition::is_idle);
        due <= Instant::now() || nonces.iter().all(idle)
    }

    fn answer_left(&mut self) {
        let leaving = std::mem::take(&mut self.leaving);
        for (nonces, due, done) in leaving {
            if self.has_left(&nonces, due) {
                nonces.iter().for_each(|nonce| drop(self.held.remove(nonce)));
                // The intake that asked may be gone; then nobody needs the answer.
                let _ = done.send(());
            } else {
                self.leaving.push((nonces, due, done));
            }
        }
    }

    /// Sends what is pending on its way.
    fn flush(&mut self) {
        self.progress_due = None;
        self.pending_bytes = 0;
        let pending = std::mem::take(&mut self.pending);
        let durable = std::mem::take(&mut self.durable);
        let mut outputs = Outputs::default();
        for seal in self.seals.drain(..) {
            outputs.push(usize::MAX, Outgoing { index: 0, purpose: Purpose::Seal, output: seal });
        }
        outputs.append(std::mem::take(&mut self.outputs));
        let mut all_ended = Vec::new();
        for (nonce, held) in &mut self.held {
            if planted(Bug::CommitWhenIdle) && !held.is_idle() {
                continue;
            }
            let ranges = held.ended.take();
            if !ranges.is_empty() {
                let partition = held.partition.clone();
                all_ended.push(EndedOffsets { partition, assignment: *nonce, ranges });
            }
        }
        let turns = self.turns.next(&pending);
        let nothing = all_ended.is_empty() && outputs.outputs.is_empty() && turns.is_empty();
        if nothing && durable.is_empty() {
            return;
        }
        // Outputs of one partition must meet the log in one order, run for run.
        all_ended.sort_by(|a, b| a.partition.cmp(&b.partition));
        let (noted, is_noted) = oneshot::channel();
        let before = std::mem::replace(&mut self.noted, is_noted);
        let entry =
            JournalEntry { pending, outputs, ended: all_ended, turns, durable, before, noted };
        let writing = self.scribe.clone().write_entry(entry);
        self.writing.push_back(match self.scribe.overlaps() {
            // They meet the log in the order in which they are polled.
            true => Box::pin(writing),
            // Each waits for its turn: meanwhile the ledger takes the next.
            false => {
                let writing = AbortOnDropHandle::new(tokio::spawn(writing.in_current_span()));
                Box::pin(writing.map(|ended| ended.unwrap_or_else(|e| Err(Stop::died(e)))))
            }
        });
    }
}

/// Writes transactions, however long the log is in trouble.
pub(crate) struct JournalWriter {
    pub journal: Arc<dyn Journal>,
    pub letters: Arc<DeadLetterWriter>,
    pub counters: Arc<Counters>,
    pub retry: Retry,
    pub waits: Arc<Waits>,
    /// Numbers transactions that take long.
    pub slow: AtomicU16,
    /// The writers of the pipeline's feeds, by number.
    pub feeds: Vec<FeedWriter>,
    pub offers: OfferBook,
    pub seal_room: Arc<SealRoom>,
}

impl JournalWriter {
    /// Writes the outputs and notes what has ended with them: together, or where transactions
    /// overlap when the one before is noted.
    async fn write_entry(self: Arc<Self>, entry: JournalEntry) -> Result<(), Stop> {
        let JournalEntry { mut pending, mut outputs, mut ended, mut turns, durable, before, noted } =
            entry;
        let mut before = Some(before);
        if self.has_offers(&pending) {
            come(before.take()).await;
            self.offer(&mut pending, &mut outputs).await?;
        }
        let turn = pin!(come(before));
        for (feed, turn) in turns.iter().filter_map(|turn| Some((self.feed(turn)?, turn))) {
            for output in feed.in_log(turn, &pending) {
                let note = Outgoing { index: 0, purpose: Purpose::FeedNote, output };
                outputs.push(usize::MAX, note);
            }
        }
        if planted(Bug::FeedNotedFirst) {
            self.commit(std::mem::take(&mut turns), &pending).await?;
        }
        let with_letters = pending.iter().any(|pending| !pending.reasons.is_empty());
        if planted(Bug::DeadLetterNotAwaited) && with_letters {
            let ended = std::mem::take(&mut ended);
            self.write(&mut [], Outputs::default(), ended, pin!(ready(()))).await?;
        }
        crash_point(if with_letters { "dead_letter.before" } else { "position.before" });
        if self.overlaps() {
            // How a replay ended is known when the log has taken or refused what it made.
            let mut resolutions = outputs.take_resolutions();
            self.write(&mut pending, outputs, Vec::new(), pin!(ready(()))).await?;
            resolutions.correct(&pending);
            self.write(&mut pending, resolutions, Vec::new(), pin!(ready(()))).await?;
            self.write(&mut [], Outputs::default(), ended, turn).await?;
        } else {
            self.write(&mut pending, outputs, ended, turn).await?;
        }
        crash_point(if with_letters { "dead_letter.after" } else { "position.after" });
        // The one behind may not be there yet.
        let _ = noted.send(());
        if !turns.is_empty() {
            self.commit(turns, &pending).await?;
        }
        durable.into_iter().for_each(|done| _ = done.send(()));
        for PendingEndings { endings, records, reasons, taken, feed, .. } in pending {
            self.count(&taken, &endings, records);
            let put_off = feed.as_ref().map_or(0, FeedPart::put_off);
            self.counters.put_off.fetch_add(put_off, Ordering::Relaxed);
            let given_up = feed.iter().flat_map(FeedPart::given_up);
            reasons
                .into_iter()
                .chain(given_up)
                .for_each(|reason| self.counters.dead_letter(reason));
        }
        Ok(())
    }

    fn feed(&self, turn: &CommitTurn) -> Option<&FeedWriter> {
        self.feeds.get(turn.number)
    }

    /// Tells the feeds, each in its turn.
    async fn commit(&self, turns: Vec<CommitTurn>, pending: &[PendingEndings]) -> Result<(), Stop> {
        let commit = |turn: CommitTurn| Some(self.feed(&turn)?.commit(turn, pending));
        futures::future::try_join_all(turns.into_iter().filter_map(commit)).await?;
        Ok(())
    }

    /// True where several transactions are on their way at a time.
    fn overlaps(&self) -> bool {
        self.journal.overlap() > 1
    }

    /// Writes outputs and progress in their turn. What the log will never take goes another way.
    async fn write(
        &self,
        pending: &mut [PendingEndings],
        outputs: Outputs,
        ended: Vec<EndedOffsets>,
        turn: Turn<'_>,
    ) -> Result<(), Stop> {
        let Outputs { outputs, mut of } = outputs;
        let mut transaction = Transaction { outputs, ended };
        if transaction.is_empty() {
            turn.await;
            return Ok(());
        }
        let mut turn = Some(turn);
        while !transaction.is_empty() {
            let refused = match self.transact(&transaction, turn.take()).await? {
                Ok(positions) => {
                    self.tell(&transaction.outputs, &positions, &of);
                    return Ok(());
                }
                Err(refused) => refused,
            };
            let mut instead = Outputs::default();
            for (at, fault) in refused {
                let (Some(output), Some(of)) = (transaction.outputs.get(at), of.get(at)) else {
                    continue;
                };
                self.instead(pending, output, *of, fault, &mut instead)?;
            }
            (transaction.outputs, of) = (instead.outputs, instead.of);
        }
        Ok(())
    }

    fn instead(
        &self,
        pending: &mut [PendingEndings],
        output: &Output,
        (at, index, purpose): (usize, u32, Purpose),
        fault: Fault,
        instead: &mut Outputs,
    ) -> Result<(), Stop> {
        if matches!(purpose, Purpose::Seal) {
            return Err(self.seal_refused(output, fault));
        }
        let Some(of) = pending.get_mut(at) else { return Err(Stop::Fix(fault)) };
        match purpose {
            Purpose::Delivery(deliver) => {
                instead.push(at, of.set_aside(&self.letters, index, deliver, &fault));
                let followers = of.followers.iter().filter(|(leader, ..)| *leader == index);
                let followers: Vec<(usize, u32)> =
                    followers.map(|(_, own, index)| (*own, *index)).collect();
                let fault = of_leader(&fault);
                for (at, index) in followers {
                    let Some(of) = pending.get_mut(at) else { continue };
                    instead.push(at, of.set_aside(&self.letters, index, deliver, &fault));
                }
            }
            Purpose::DeadLetter => {
                let Some(pieces) = pieces(output) else { return Err(Stop::Fix(fault)) };
                for output in pieces {
                    instead.push(at, Outgoing { index, purpose, output });
                }
            }
            Purpose::Resolution | Purpose::Seal | Purpose::FeedNote => {
                return Err(Stop::Fix(fault));
            }
        }
        Ok(())
    }

    /// A seal that is too large has named too many members: they are read again, and their group goes
    /// in smaller parts.
    fn seal_refused(&self, seal: &Output, fault: Fault) -> Stop {
        let is_too_large = fault.reason == Reason::TooLarge && !planted(Bug::SealsUncut);
        match is_too_large && self.seal_room.refused(seal) {
            true => Stop::Reread(format!("{fault}; what was to be sealed goes in smaller parts")),
            false => Stop::Fix(fault),
        }
    }

    /// Says in the process' log which dead letters were written.
    fn tell(&self, outputs: &[Output], positions: &[Position], of: &[(usize, u32, Purpose)]) {
        let written = outputs.iter().zip(positions).zip(of);
        let letters = written.filter(|(_, (_, _, purpose))| matches!(purpose, Purpose::DeadLetter));
        letters.for_each(|((output, position), _)| self.letters.notices.written(output, position));
    }

    /// Tries until it is written; `Err` says what the log will never take.
    async fn transact(
        &self,
        transaction: &Transaction,
        mut turn: Option<Turn<'_>>,
    ) -> Result<Result<Vec<Position>, Vec<(usize, Fault)>>, Stop> {
        let mut attempt = 0;
        loop {
            let attempted = async {
                match turn.take() {
                    Some(turn) => self.journal.transact_in_turn(transaction, turn).await,
                    None => self.journal.transact(transaction).await,
                }
            };
            let fault = match self.tell_if_slow(attempted).await {
                Ok(positions) => {
                    if attempt > 0 {
                        self.waits.end(WaitsFor::Log, 0);
                    }
                    return Ok(Ok(positions));
                }
                Err(NotWritten::Refused(refused)) if !refused.is_empty() => {
                    return Ok(Err(refused));
                }
                Err(not_written) => Fault::from(not_written),
            };
            if fault.next == Move::Fix {
                return Err(Stop::Fix(fault));
            }
            attempt += 1;
            self.waits.begin_with(WaitsFor::Log, 0, &fault);
            tokio::time::sleep(self.retry.wait(attempt, u64::from(attempt) * 311)).await;
        }
    }

    /// Says so while the log works at a transaction for long: a log that waits out trouble by itself,
    /// such as a partition of Kafka that takes nothing, tells nobody.
    async fn tell_if_slow<T>(&self, attempted: impl Future<Output = T>) -> T {
        let mut attempted = pin!(attempted);
        if let Ok(ended) = tokio::time::timeout(SLOW, &mut attempted).await {
            return ended;
        }
        let part = 1 + usize::from(self.slow.fetch_add(1, Ordering::Relaxed));
        let what = format!("it has been working at a transaction for {} s", SLOW.as_secs());
        self.waits.begin(WaitsFor::Log, part, what);
        let ended = attempted.await;
        self.waits.end(WaitsFor::Log, part);
        ended
    }

    fn count(&self, taken: &InFlightBatch, endings: &[(u32, Ending)], records: Option<InFlight>) {
        if let Some(records) = records {
            records.end(endings);
        }
        let now = self.letters.clock.now();
        let ended = endings.iter();
        let records = ended.filter_map(|(index, _)| taken.batch.records.get(*index as usize));
        self.counters.latency.add(records.map(|record| now.millis_since(record.time)));
    }
}

/// Waits for the turn of a transaction: the one before is noted.
async fn come(before: Option<oneshot::Receiver<()>>) {
    if let Some(before) = before.filter(|_| !planted(Bug::OutOfTurn))
        && before.await.is_err()
    {
        // The one before failed and ends the run.
        std::future::pending().await
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_ended_is_noted_in_order_and_joined() {
        let mut unnoted = PendingRanges::default();
        for range in [4..6, 6..7, 20..21, 1..2, 2..4, 9..9, 20..21, 12..30] {
            unnoted.insert(range);
        }
        assert_eq!(unnoted.take(), [1..7, 12..30]);
        assert_eq!(unnoted.take(), []);
    }
}
