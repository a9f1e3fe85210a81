//! The one thread that writes the log.
//!
//! It takes all that is queued, gives offsets, writes the frames, syncs once, and only then makes
//! them visible and answers. It promises that an answer `Ok` survives a power cut, that after an
//! `Err` the log works on (in a new segment where the old one cannot be trusted), and that no
//! offset is ever given twice.
//!
//! *A write that finds no room* is cut off again; nothing is lost but the attempt. *A sync that
//! fails* makes the whole segment suspect behind the last good sync, because the kernel may have
//! dropped the bytes and call the next sync good: the segment is abandoned there.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use potok_core::trouble::crash_point;
use potok_core::{ConsumerGroupSpec, Fault};

use super::damage::{self, DamageReport};
use super::disk::{DiskFile, is_full, write_all};
use super::draft::{Draft, FramePlacement, Urgency};
use super::format::{Entry, FrameKind, entries, fresh_nonce};
use super::index::Index;
use super::reserve::Reserve;
use super::retention::RetentionWaker;
use super::segment;
use super::shared::{
    Alarm, AppendJob, Command, GroupLock, GroupOpening, OpenLog, Tail, WriteRefusal, WrittenFrame,
};
use super::{fault, groups};

/// Frames taken together into one sync.
const BATCH_BYTES_MAX: usize = 32 << 20;
/// Smaller frames are gathered into one write.
const WRITE_BYTES: usize = 128 << 10;
/// How often it looks whether trouble is over, while there is trouble.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// The segment being written.
struct ActiveSegment {
    number: u64,
    file: Arc<dyn DiskFile>,
    /// Behind the last synced frame.
    end: u64,
}

/// Where the log ended when it was opened.
pub struct Resume {
    /// The newest segment, where it may be written on: its number and file.
    pub active: Option<(u64, Arc<dyn DiskFile>)>,
    /// The highest number in use.
    pub newest: u64,
    /// Damage that is not noted yet; a new segment begins with the notes.
    pub found: Vec<DamageReport>,
}

/// The writer.
pub struct LogWriter {
    shared: Arc<OpenLog>,
    keeper: RetentionWaker,
    active: Option<ActiveSegment>,
    newest: u64,
    incarnation: u64,
    /// Offsets given and not yet in the catalog.
    given: HashMap<(Arc<str>, u32), u64>,
    /// The latest session of each group opened by this process.
    sessions: HashMap<Arc<str>, u64>,
    reserve: Reserve,
    found: Vec<DamageReport>,
    /// Room that was asked for in vain.
    wanted: u64,
}

/// A write that did not succeed. The segment is whole again, or abandoned.
type Attempt<T> = Result<T, io::Error>;

impl LogWriter {
    /// Makes the writer; tries at once to note what was found damaged.
    pub fn new(shared: Arc<OpenLog>, keeper: RetentionWaker, resume: Resume) -> LogWriter {
        let end = shared.state().tail.at;
        let active = resume.active.map(|(number, file)| ActiveSegment { number, file, end });
        let reserve = Reserve::open(&shared);
        let mut writer = LogWriter {
            shared,
            keeper,
            active,
            newest: resume.newest,
            incarnation: fresh_nonce(),
            given: HashMap::new(),
            sessions: HashMap::new(),
            reserve,
            found: resume.found,
            wanted: 0,
        };
        if !writer.reserve.is_there() {
            writer.wanted = 1;
            writer.shared.set_trouble(Some(fault::no_reserve().to_string()));
        }
        if let Err(error) = writer.make_ready() {
            writer.in_trouble(&error);
        }
        writer
    }

    /// Says so when the writer's thread dies.
    pub fn alarm(&self) -> Alarm {
        Alarm(self.shared.clone(), "the log's writer")
    }

    /// Works until told to stop.
    pub fn run(mut self, commands: &Receiver<Command>) {
        loop {
            let command = if self.shared.trouble().is_some() {
                match commands.recv_timeout(PROBE_EVERY) {
                    Err(RecvTimeoutError::Timeout) => {
                        self.probe();
                        continue;
                    }
                    other => other.ok(),
                }
            } else {
                commands.recv().ok()
            };
            let Some(command) = command else { return };
            if !self.work(command, commands) {
                return;
            }
        }
    }

    /// Does one command and all that have queued up behind it; false after the last.
    fn work(&mut self, first: Command, commands: &Receiver<Command>) -> bool {
        let mut jobs = Vec::new();
        let mut bytes = 0;
        let mut next = Some(first);
        while let Some(command) = next {
            match command {
                Command::Write(job) => {
                    bytes += job.draft.len();
                    jobs.push(job);
                }
                other => {
                    self.commit(std::mem::take(&mut jobs));
                    if !self.rarely(other) {
                        return false;
                    }
                }
            }
            next = if bytes < BATCH_BYTES_MAX { commands.try_recv().ok() } else { None };
        }
        self.commit(jobs);
        true
    }

    fn rarely(&mut self, command: Command) -> bool {
        match command {
            Command::Write(job) => self.commit(vec![job]),
            Command::Open(spec, reply) => {
                // When the caller was cancelled, the session ends right here.
                let _ = reply.send(self.open_group(&spec));
            }
            Command::Forget(group, reply) => {
                let _ = reply.send(self.forget(&group));
            }
            Command::Damage(found) => self.note(found),
            Command::Drop(segments, reply) => {
                let dropped: Vec<_> =
                    segments.iter().map(|segment| Entry::Dropped { segment: *segment }).collect();
                let mut draft = Draft::of_entries(FrameKind::Transaction, &dropped);
                draft.urgency = Urgency::MakesRoom;
                let _ = reply.send(self.write(draft).is_ok());
            }
            Command::Stop => return false,
        }
        true
    }

    /// Writes the jobs with one sync and answers each.
    fn commit(&mut self, jobs: Vec<AppendJob>) {
        let is_stale = |(group, nonce): &&(Arc<str>, u64)| self.sessions.get(group) != Some(nonce);
        let (stale, jobs): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| job.fence.iter().any(|fence| is_stale(&fence)));
        for job in stale {
            let groups = job.fence.iter().filter(is_stale).map(|(group, _)| group.clone());
            let groups = groups.collect();
            answer(job, Err(WriteRefusal::Stale(groups)));
        }
        let mut jobs = self.without_reserve(jobs);
        if jobs.is_empty() {
            return;
        }
        let Err(error) = self.attempt(&mut jobs) else { return };
        self.in_trouble(&error);
        if !is_full(&error) {
            return jobs.into_iter().for_each(|job| refuse(job, fault::write_failed(&error)));
        }
        // No room: the reserve is for noting what has ended, so that work in hand can finish.
        self.wanted = jobs.iter().map(|job| job.draft.len() as u64).sum();
        self.keeper.press();
        for urgency in [Urgency::Ledger, Urgency::MakesRoom] {
            let (urgent, others): (Vec<_>, Vec<_>) =
                jobs.into_iter().partition(|job| job.draft.urgency >= urgency);
            others.into_iter().for_each(|job| refuse(job, fault::write_failed(&error)));
            jobs = urgent;
            if jobs.is_empty() {
                return;
            }
            self.reserve.release(&self.shared, urgency);
            if self.attempt(&mut jobs).is_ok() {
                return;
            }
        }
        jobs.into_iter().for_each(|job| refuse(job, fault::write_failed(&error)));
    }

    /// While the reserve is spent, plain appends must not eat the room it gave.
    fn without_reserve(&mut self, jobs: Vec<AppendJob>) -> Vec<AppendJob> {
        let is_plain = |job: &AppendJob| job.draft.urgency == Urgency::Plain;
        if !jobs.iter().any(is_plain) || self.reserve.restore(&self.shared).is_ok() {
            return jobs;
        }
        let (plain, ledger): (Vec<_>, Vec<_>) = jobs.into_iter().partition(is_plain);
        self.shared.set_trouble(Some(fault::no_reserve().to_string()));
        self.wanted = plain.iter().map(|job| job.draft.len() as u64).sum();
        plain.into_iter().for_each(|job| refuse(job, fault::no_reserve()));
        self.keeper.press();
        ledger
    }

    /// Writes, syncs, publishes, answers. On an error nothing of it counts, and no job is
    /// answered.
    fn attempt(&mut self, jobs: &mut [AppendJob]) -> Attempt<()> {
        self.make_ready()?;
        let Some(active) = &self.active else {
            return Err(io::Error::other("no segment to write to"));
        };
        let (segment, file, start) = (active.number, active.file.clone(), active.end);
        let time = self.shared.clock.now().0;
        crash_point("append.before");
        let mut firsts = Vec::with_capacity(jobs.len());
        let mut gather = Gather { file: file.as_ref(), at: start, pending: Vec::new() };
        let mut at = start;
        let mut failed = None;
        for job in jobs.iter_mut() {
            let first = give(&self.shared, &mut self.given, &job.draft);
            let place = FramePlacement {
                nonce: self.shared.nonce,
                incarnation: self.incarnation,
                time,
                segment,
                at,
            };
            let bytes = job.draft.finish(&first, place);
            at += bytes.len() as u64;
            firsts.push(first);
            if let Err(error) = gather.put(bytes) {
                failed = Some(error);
                break;
            }
        }
        if let Some(error) = failed.or_else(|| gather.flush().err()) {
            self.cut_off(&error);
            return Err(error);
        }
        crash_point("append.after");
        if self.shared.bugs.reader_ahead {
            self.publish(jobs, at, time);
        }
        if self.shared.bugs.ack_before_fsync {
            self.answer_all(jobs, &firsts);
        }
        crash_point("fsync.before");
        if let Err(error) = file.sync() {
            self.abandon();
            return Err(error);
        }
        crash_point("fsync.after");
        if !self.shared.bugs.reader_ahead {
            self.publish(jobs, at, time);
        }
        self.works_again();
        self.answer_all(jobs, &firsts);
        Ok(())
    }

    /// Folds what was synced into the state, and shows it to readers.
    fn publish(&mut self, jobs: &[AppendJob], end: u64, time: i64) {
        let Some(active) = &mut self.active else { return };
        let mut state = self.shared.state_mut();
        let state = &mut *state;
        let segment = state.segments.entry(active.number).or_default();
        let mut at = active.end;
        for job in jobs {
            let entries = entries(job.draft.table()).unwrap_or_default();
            state.catalog.apply(job.draft.kind(), &entries);
            note_records(&mut segment.index, at, time, &entries);
            at += job.draft.len() as u64;
        }
        segment.end = end;
        active.end = end;
        state.tail = Tail { segment: active.number, at: end };
        self.given.clear();
        self.shared.tail.send_replace(state.tail);
    }

    fn answer_all(&self, jobs: &mut [AppendJob], firsts: &[Vec<u64>]) {
        for (job, firsts) in jobs.iter_mut().zip(firsts) {
            if let Some(reply) = job.reply.take() {
                let written = WrittenFrame { log: self.incarnation, firsts: firsts.clone() };
                let _ = reply.send(Ok(written));
            }
            job.permit = None;
        }
    }

    /// Cuts a write that failed off again, so that the segment ends with its last synced frame.
    fn cut_off(&mut self, error: &io::Error) {
        let Some(active) = &self.active else { return };
        if is_full(error) && active.file.set_len(active.end).is_ok() {
            self.given.clear();
            return;
        }
        self.abandon();
    }

    /// Gives the segment up behind its last synced frame. What was written there may or may not
    /// reach the disk; the next segment's header says that it does not count, and the offsets in
    /// it are not given again.
    fn abandon(&mut self) {
        let Some(active) = self.active.take() else { return };
        tracing::warn!(segment = active.number, end = active.end, "abandoned a segment");
        // Without this, a process started before the power is cut would read them from memory.
        let _ = active.file.set_len(active.end);
        self.incarnation = fresh_nonce();
        let mut state = self.shared.state_mut();
        for ((topic, partition), next) in self.given.drain() {
            let heads = state.catalog.topics.get_mut(&topic);
            match heads.and_then(|heads| heads.get_mut(partition as usize)) {
                Some(head) => head.next = head.next.max(next),
                None => state.catalog.floor = state.catalog.floor.max(next),
            }
        }
    }

    /// Sees to it that there is a segment to write to, with room.
    fn make_ready(&mut self) -> Attempt<()> {
        let full = |active: &ActiveSegment| active.end >= self.shared.options.segment_bytes;
        match &self.active {
            Some(active) if !full(active) && self.found.is_empty() => Ok(()),
            Some(active) => {
                let going_on = active.end;
                let rolled = self.roll();
                match (&self.active, rolled) {
                    // The old segment is as it was: a full disk keeps it growing, nothing more.
                    (Some(active), Err(error)) if active.end == going_on => {
                        tracing::debug!(%error, "could not start a new segment");
                        Ok(())
                    }
                    (_, rolled) => rolled,
                }
            }
            None => self.roll(),
        }
    }

    /// Starts a new segment: checkpoint, notes of damage, and the old segment's footer.
    fn roll(&mut self) -> Attempt<()> {
        crash_point("segment.roll.before");
        let notes = self.keep_found()?;
        let number = self.newest + 1;
        let footer = self.active.as_ref().map(|active| self.footer(active));
        let made = segment::UnnamedSegment::new(
            &self.shared,
            segment::SegmentPlan {
                number,
                incarnation: self.incarnation,
                notes,
                footer: footer.as_ref().map_or(0, |footer| footer.len() as u64),
            },
        )?;
        if let (Some(active), Some(footer)) = (&mut self.active, &footer) {
            let end = active.end + footer.len() as u64;
            if let Err(error) = write_all(active.file.as_ref(), footer, active.end) {
                made.discard(&self.shared);
                self.cut_off(&error);
                return Err(error);
            }
            if let Err(error) = active.file.sync() {
                made.discard(&self.shared);
                self.abandon();
                return Err(error);
            }
            active.end = end;
            if let Some(old) = self.shared.state_mut().segments.get_mut(&active.number) {
                old.end = end;
            }
        }
        // From here on the new segment may exist: the old one must not grow any more, and the
        // number is used up whatever happens.
        self.active = None;
        self.newest = number;
        let (file, end) = made.put_in_place(&self.shared)?;
        crash_point("segment.roll.after");
        self.active = Some(ActiveSegment { number, file, end });
        self.found.clear();
        self.given.clear();
        self.keeper.wake();
        Ok(())
    }

    /// The old segment's footer, as it will lie at its end.
    fn footer(&self, active: &ActiveSegment) -> Vec<u8> {
        let state = self.shared.state();
        let index = state.segments.get(&active.number).map(|segment| &segment.index);
        segment::footer(
            index.unwrap_or(&Index::default()),
            FramePlacement {
                nonce: self.shared.nonce,
                incarnation: self.incarnation,
                time: self.shared.clock.now().0,
                segment: active.number,
                at: active.end,
            },
        )
    }

    /// Copies aside what was found damaged, and makes the notes.
    fn keep_found(&mut self) -> Attempt<Vec<(Draft, Vec<u64>)>> {
        let mut drafts = Vec::new();
        for found in self.found.clone() {
            let draft = match self.keep(&found) {
                Err(error) if is_full(&error) => {
                    self.reserve.release(&self.shared, Urgency::Ledger);
                    self.keep(&found)?
                }
                kept => kept?,
            };
            let firsts = give(&self.shared, &mut self.given, &draft);
            drafts.push((draft, firsts));
        }
        Ok(drafts)
    }

    fn keep(&self, found: &DamageReport) -> io::Result<Draft> {
        let shared = &self.shared;
        let now = shared.clock.now();
        let route = |topic: &Arc<str>| shared.route(topic);
        damage::keep(shared.disk.as_ref(), &shared.paths, shared.nonce, found, now, route)
    }

    /// Notes damage that a reader came upon.
    fn note(&mut self, found: DamageReport) {
        if self.shared.state().catalog.knows_damage(found.segment, found.from, found.to) {
            return;
        }
        tracing::error!(?found, "the log is damaged; the bytes are kept aside, reading goes on");
        let noted = self.keep(&found).map_err(|error| fault::write_failed(&error));
        if let Err(error) = noted.and_then(|draft| self.write(draft)) {
            tracing::warn!(%error, "could not note damage; the next opening will");
        }
    }

    /// Writes a draft of the writer's own.
    fn write(&mut self, draft: Draft) -> Result<(), Fault> {
        let (reply, mut answer) = tokio::sync::oneshot::channel();
        self.commit(vec![AppendJob { draft, fence: Vec::new(), reply: Some(reply), permit: None }]);
        match answer.try_recv() {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(WriteRefusal::Fault(fault))) => Err(fault),
            _ => Err(fault::closed()),
        }
    }

    /// Registers a group where it is new or changed, and starts a session of it.
    fn open_group(&mut self, spec: &ConsumerGroupSpec) -> Result<GroupOpening, Fault> {
        let group: Arc<str> = spec.group.as_str().into();
        let session = GroupLock::start(&self.shared, &group, fresh_nonce())
            .ok_or_else(|| fault::group_open(&group))?;
        if let Some(draft) = groups::registration(&self.shared, spec) {
            self.write(draft)?;
        }
        self.sessions.insert(group, session.nonce);
        let partitions = groups::partitions(&self.shared.state(), spec);
        Ok(GroupOpening { session, partitions })
    }

    fn forget(&mut self, group: &Arc<str>) -> Result<(), Fault> {
        if self.shared.open_groups().contains_key(group) {
            return Err(fault::group_open(group));
        }
        if !self.shared.state().catalog.groups.contains_key(group) {
            return Err(fault::no_group(group));
        }
        self.write(Draft::of_entries(FrameKind::Transaction, &[Entry::Forgotten { group }]))?;
        self.sessions.remove(group);
        self.keeper.wake();
        Ok(())
    }

    fn in_trouble(&self, error: &io::Error) {
        self.shared.set_trouble(Some(fault::write_failed(error).to_string()));
    }

    fn works_again(&mut self) {
        if self.reserve.is_there() && self.shared.trouble().is_some() {
            tracing::info!("the log takes appends again");
            self.wanted = 0;
            self.shared.set_trouble(None);
        }
    }

    /// Looks whether appends would work again, so that trouble ends without traffic.
    fn probe(&mut self) {
        let ready = self.make_ready().is_ok();
        let restored = self.reserve.restore(&self.shared).is_ok();
        if ready && restored && Reserve::has_room(&self.shared, self.wanted) {
            self.works_again();
        } else if self.wanted > 0 {
            self.keeper.press();
        }
    }
}

/// Gives every record of the draft its offset.
fn give(shared: &OpenLog, given: &mut HashMap<(Arc<str>, u32), u64>, draft: &Draft) -> Vec<u64> {
    let mut firsts = Vec::new();
    for (topic, partition, count) in draft.slots() {
        let next = given
            .entry((topic.clone(), partition))
            .or_insert_with(|| shared.state().catalog.head(topic, partition).next);
        firsts.push(*next);
        *next += u64::from(count);
    }
    firsts
}

/// Puts the records entries of a frame into the index.
pub fn note_records(index: &mut Index, at: u64, time: i64, entries: &[Entry<'_>]) {
    for entry in entries {
        if let Entry::Records(records) = entry {
            index.note(at, time, records);
        }
    }
}

fn answer(job: AppendJob, result: Result<WrittenFrame, WriteRefusal>) {
    if let Some(reply) = job.reply {
        // A caller that was cancelled does not want to know.
        let _ = reply.send(result);
    }
}

fn refuse(job: AppendJob, fault: Fault) {
    answer(job, Err(WriteRefusal::Fault(fault)));
}

/// Gathers small frames into one write.
pub struct Gather<'a> {
    /// Written to.
    pub file: &'a dyn DiskFile,
    /// Behind what is written.
    pub at: u64,
    /// Not written yet.
    pub pending: Vec<u8>,
}

impl Gather<'_> {
    /// Behind everything put so far.
    pub fn end(&self) -> u64 {
        self.at + self.pending.len() as u64
    }

    /// Takes bytes; writes them where they are many.
    pub fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() >= WRITE_BYTES {
            self.flush()?;
            write_all(self.file, bytes, self.at)?;
            self.at += bytes.len() as u64;
            return Ok(());
        }
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    /// Writes what is not written yet.
    pub fn flush(&mut self) -> io::Result<()> {
        write_all(self.file, &self.pending, self.at)?;
        self.at += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}
