//! Sealed groups as files, and the table that shows how far each has come.
//!
//! ```text
//! seal read back ─► name taken, rows of all shards ─► file written ─► stages ─► destination
//!                   first stage started               done            …         done, then the end
//!                                                                               in the log
//! ```
//! Every step says "at least so far", so a repeat after a crash finds what is there. A step that
//! cannot be made (the table is away, the disk is full) holds the files of its shard and nothing else: the
//! lane goes on taking in, closing and sealing, and with the files of a former shard beside it. Names and files are the work of one task, what lies
//! behind them that of another (`tasks.rs`), so files are also written while a destination is away.
//!
//! A shard without records in a slice has a row too, made with those of the others. Its lane finds it
//! and ends it when the slice is over. Should a record come later, it is in the next name: nothing
//! leaves `done`.

mod desk;

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use potok_core::trouble::{Bug, crash_point, planted};
use potok_core::{
    Fault, FileCounts, FileFacts, FilesAsk, GroupFiles, Move, NewFile, Partition, StageState,
    Timestamp, TrackStep,
};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::index::{Feed, SealedGroup, ToWrite};
use super::send::Next;
use super::{Holding, seal, shard_in};
use crate::counts::Ending;
use crate::crash_notes::sender_slot;
use crate::lane::{Cycle, Lane};
use crate::ledger::Note;
use crate::plan::{GroupPlan, TrackPlan};
use crate::waits::{self, WaitsFor};
use crate::work::Stop;

pub(super) use desk::FileDesk;

/// How often old files are looked for.
const EXPIRE_EVERY: Duration = Duration::from_secs(3_600);
/// Unclaimed rows are looked for once a slice, and not more often than this.
const SWEEP_MIN: Duration = Duration::from_secs(1);
/// Names that a slice may have where nobody but the file system knows them.
const NAMES_MAX: u32 = 100_000;

/// A stage that files pass, or several that are passed together.
#[derive(Clone, Copy)]
enum Step {
    /// The group is in its file, or that cannot be written before somebody acts.
    Written(StageState),
    /// Stages begin, or have ended.
    Process(StageState),
    /// The destination is being called, has taken everything, or must be mended.
    Deliver(StageState),
}

impl GroupPlan {
    pub(crate) fn makes_files(&self) -> bool {
        self.files.is_some() || self.track.is_some()
    }
}

impl TrackPlan {
    /// The last tracked stage of a step and the state it has reached; `None` where there is none.
    fn stage(&self, step: Step) -> Option<(usize, StageState)> {
        let TrackPlan { written, process, deliver, .. } = *self;
        let (first, count, state) = match step {
            Step::Written(state) => (0, written, state),
            Step::Process(state) => (written, process, state),
            Step::Deliver(state) => (written + process, deliver, state),
        };
        let at = match state {
            // The first of them has begun; of the others nobody can tell yet.
            StageState::Started | StageState::New | StageState::Failed => 0,
            StageState::Done => count.checked_sub(1)?,
        };
        (count > 0).then_some((first + at, state))
    }
}

impl Holding {
    /// When there is something to do for files though nothing comes.
    pub(super) fn files_wake(&self) -> Option<Instant> {
        if !self.plan.makes_files() {
            return None;
        }
        let desk = &self.desk;
        let next = match (desk.held_until(), desk.prepared) {
            (Some(until), _) => until,
            (None, false) => Instant::now(),
            // Nothing is done before all was read; then the lane says so.
            (None, true) if !self.may_work() => return None,
            (None, true) if self.has_to_write() => Instant::now(),
            (None, true) => {
                let retry = desk.retry_at().into_iter();
                retry.fold(desk.sweep_at.min(desk.expire_at), Instant::min)
            }
        };
        Some(next)
    }
}

impl Lane {
    /// Does what is to be done for files: makes ready, writes what was sealed, ends rows of shards
    /// without records, removes old files.
    pub(super) async fn keep_files(&mut self, holding: &mut Holding) -> Result<(), Stop> {
        if !holding.plan.makes_files() || self.stopping.get() || holding.desk.is_held() {
            return Ok(());
        }
        match self.tend_files(holding).await {
            Err(Stop::Shut) => Ok(()),
            tended => tended,
        }
    }

    async fn tend_files(&mut self, holding: &mut Holding) -> Result<(), Stop> {
        let now = Instant::now();
        if !holding.desk.prepared {
            if let Some(track) = holding.plan.track.clone() {
                self.track(holding, None, track.tracker.prepare()).await?;
            }
            holding.desk.prepared = true;
        }
        let mut is_idle = true;
        if holding.may_work() {
            // A file that cannot be written keeps no row of another slice from its end.
            is_idle = match self.write_waiting(holding).await {
                Ok(is_idle) => is_idle,
                Err(Stop::Shut) => false,
                Err(stop) => return Err(stop),
            };
            if holding.desk.sweep_at <= now {
                let every = holding.plan.close.every.unwrap_or(SWEEP_MIN);
                holding.desk.sweep_at = now + every.clamp(SWEEP_MIN, Duration::from_secs(60));
                self.sweep(holding).await?;
            }
            // Whose file is old and has not been sent is known when all that wait have their names.
            let has_unwritten = holding.board.index().next_unwritten(|_| true).is_some();
            if holding.desk.expire_at <= now && !has_unwritten {
                holding.desk.expire_at = now + EXPIRE_EVERY;
                self.expire(holding).await;
            }
        }
        self.files_go_on(&mut holding.desk, |shard| is_idle || shard.is_none());
        Ok(())
    }

    /// Makes one call for the files of a shard, or of all.
    async fn track<T>(
        &mut self,
        holding: &mut Holding,
        shard: Option<u32>,
        call: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Stop> {
        call.await.map_err(|fault| self.hold_files(&mut holding.desk, shard, fault))
    }

    /// A step cannot be made. It is tried again later, with everything before it: the files of that
    /// shard wait, and say for what. Where somebody has to mend something it is the same: no other
    /// shard has to wait for that.
    fn hold_files(&self, desk: &mut FileDesk, shard: Option<u32>, fault: Fault) -> Stop {
        let fault = if fault.next == Move::Fix { fault.needs_somebody() } else { fault };
        let salt = self.slot as u64 * 83;
        desk.hold(shard, |failures| self.plan.retry.wait(failures, salt));
        self.waits.begin_with(WaitsFor::Tracking, self.part_of(shard), &fault);
        Stop::Shut
    }

    /// What had failed for these shards has been done, or is nobody's task here any more, as when a
    /// partition has left: nothing is waited for. What is not tried again yet is still waited for.
    pub(super) fn files_go_on(&self, desk: &mut FileDesk, tried: impl Fn(Option<u32>) -> bool) {
        for shard in desk.let_go(tried) {
            self.waits.end(WaitsFor::Tracking, self.part_of(shard));
        }
    }

    /// Who says that files of a shard wait.
    fn part_of(&self, shard: Option<u32>) -> usize {
        let is_sender = self.slot == sender_slot(self.number);
        shard.map_or(self.slot, |shard| waits::shard_part(shard, is_sender))
    }

    /// Gives a sealed group its name and writes its file. Does nothing where that was done.
    pub(super) async fn write_file(
        &mut self,
        holding: &mut Holding,
        sealed: &SealedGroup,
        feeds: &[Feed],
        content: Bytes,
    ) -> Result<(), Stop> {
        if sealed.file.get().is_some() {
            return Ok(());
        }
        let Some(new) = new_file(&holding.plan, sealed, feeds) else { return Ok(()) };
        let files = holding.plan.files.clone();
        let name = match holding.plan.track.clone() {
            Some(track) => {
                let named = track.tracker.name(&new);
                let name = self.track(holding, Some(new.shard), named).await?;
                crash_point("file.named");
                let shard = new.shard;
                if let Some(files) = &files
                    && let Err(fault) = write_as(&**files, shard, &name, content.clone()).await
                {
                    if fault.needs_somebody {
                        let error = Some(fault.to_string());
                        let facts = FileFacts { error, ..FileFacts::default() };
                        let failed = Step::Written(StageState::Failed);
                        self.reach(holding, &name, new, failed, facts).await?;
                    }
                    // Only this shard waits, and looks again.
                    return Err(self.hold_files(&mut holding.desk, Some(shard), fault));
                }
                name
            }
            None => {
                let Some(files) = &files else { return Ok(()) };
                let mut number = 0;
                loop {
                    let name: Arc<str> = match number {
                        0 => new.slice.as_str().into(),
                        _ => format!("{}.{number}", new.slice).into(),
                    };
                    let written = files.write(new.shard, &name, content.clone());
                    if self.track(holding, Some(new.shard), written).await? {
                        break name;
                    }
                    number += 1;
                    if number == NAMES_MAX {
                        let what = format!("the slice {} has no free name", new.slice);
                        let fault = Fault::fix(what).code("P1407").hint("move its files away");
                        return Err(self.hold_files(&mut holding.desk, Some(new.shard), fault));
                    }
                }
            }
        };
        crash_point("file.written");
        let facts = FileFacts {
            records: Some(sealed.entries.len() as u64),
            hash: Some(hash_of(&content)),
            ..FileFacts::default()
        };
        let written = Step::Written(StageState::Done);
        self.reach(holding, &name, new, written, facts).await?;
        let _ = sealed.file.set(name);
        Ok(())
    }

    /// Notes that a file has come so far.
    async fn reach(
        &mut self,
        holding: &mut Holding,
        name: &Arc<str>,
        of: NewFile,
        step: Step,
        facts: FileFacts,
    ) -> Result<(), Stop> {
        let Some(track) = holding.plan.track.clone() else { return Ok(()) };
        let Some((stage, state)) = track.stage(step) else { return Ok(()) };
        let step = TrackStep { file: name.clone(), of, stage, state, facts };
        match self.track(holding, Some(step.of.shard), track.tracker.advance(&step)).await {
            Err(Stop::Shut) if planted(Bug::TrackIgnored) => Ok(()),
            reached => reached,
        }
    }

    async fn reach_of(
        &mut self,
        holding: &mut Holding,
        sealed: &SealedGroup,
        feeds: &[Feed],
        step: Step,
        facts: FileFacts,
    ) -> Result<(), Stop> {
        match (sealed.file.get(), new_file(&holding.plan, sealed, feeds)) {
            (Some(name), Some(of)) => self.reach(holding, name, of, step, facts).await,
            _ => Ok(()),
        }
    }

    /// Stages are about to see a group.
    pub(super) async fn file_enters_stages(
        &mut self,
        holding: &mut Holding,
        sealed: &SealedGroup,
        feeds: &[Feed],
    ) -> Result<(), Stop> {
        let step = Step::Process(StageState::Started);
        self.reach_of(holding, sealed, feeds, step, FileFacts::default()).await
    }

    /// A stage has stopped the pipeline.
    pub(super) async fn file_failed_in_stages(
        &mut self,
        holding: &mut Holding,
        sealed: &SealedGroup,
        feeds: &[Feed],
        fault: &Fault,
    ) {
        let facts = FileFacts { error: Some(fault.to_string()), ..FileFacts::default() };
        let step = Step::Process(StageState::Failed);
        // It stops whatever the table says.
        let _ = self.reach_of(holding, sealed, feeds, step, facts).await;
    }

    /// Stages are through with a group, and it goes to its destination.
    pub(super) async fn file_leaves_stages(
        &mut self,
        holding: &mut Holding,
        sealed: &SealedGroup,
        feeds: &[Feed],
    ) -> Result<(), Stop> {
        crash_point("file.worked");
        let facts = FileFacts { attempt: true, ..FileFacts::default() };
        let first = if planted(Bug::DoneFirst) { StageState::Done } else { StageState::Started };
        let step = Step::Deliver(first);
        match holding.plan.track.as_ref().and_then(|track| track.stage(step)) {
            Some(_) => self.reach_of(holding, sealed, feeds, step, facts).await,
            None => {
                let step = Step::Process(StageState::Done);
                self.reach_of(holding, sealed, feeds, step, facts).await
            }
        }
    }

    /// The gate of its shard is closed. Where somebody has to mend something the file has failed;
    /// else it waits, as what it is.
    pub(super) async fn file_waits(
        &mut self,
        holding: &mut Holding,
        sealed: &SealedGroup,
        feeds: &[Feed],
    ) {
        let gate = shard_in(&sealed.key).and_then(|shard| self.shut_gate_of(shard));
        let Some(why) = gate.and_then(|gate| gate.to_be_fixed()) else { return };
        let facts = FileFacts { error: Some(why), ..FileFacts::default() };
        let step = Step::Deliver(StageState::Failed);
        // Where this is not noted now, it is at the next attempt.
        let _ = self.reach_of(holding, sealed, feeds, step, facts).await;
    }

    /// Everything of a group has a receipt or is set aside: says so, before it ends in the log. Where
    /// something of it has not ended, nothing has.
    pub(super) async fn file_is_done(
        &mut self,
        holding: &mut Holding,
        sealed: &SealedGroup,
        feeds: &[Feed],
        cycle: &mut Cycle,
    ) -> Result<(), Stop> {
        let mut counts = FileCounts::default();
        let mut all_ended = true;
        for item in &cycle.items {
            match item.ending() {
                Ending::HandedBack => all_ended = false,
                Ending::DeadLettered => counts.dead += 1,
                Ending::Filtered => counts.filtered += 1,
                Ending::Delivered => counts.rows += 1,
                _ if item.again => counts.rows += 1,
                _ => counts.duplicates += 1,
            }
        }
        if !all_ended {
            hand_all_back(cycle);
            return Ok(());
        }
        crash_point("file.delivered");
        let facts = FileFacts { counts: Some(counts), ..FileFacts::default() };
        let step = Step::Deliver(StageState::Done);
        self.reach_of(holding, sealed, feeds, step, facts).await?;
        crash_point("file.done");
        Ok(())
    }

    /// Writes the file of the next group that has none; true where there is none.
    async fn write_waiting(&mut self, holding: &mut Holding) -> Result<bool, Stop> {
        self.unpark_next(holding, Next::Write).await?;
        let (to_write, feeds) = {
            let index = holding.board.index();
            let next = index.to_write(|sealed| !holding.desk.holds(&sealed.key));
            (next, index.feeds.clone())
        };
        let group = match to_write {
            ToWrite::Nothing => return Ok(true),
            ToWrite::Parked => return Ok(false),
            ToWrite::Group(sealed) => [*sealed],
        };
        self.write_from_log(holding, &group, &feeds).await?;
        let [sealed] = group;
        if let Some(name) = sealed.file.get() {
            holding.board.index().is_written(&sealed, name);
        }
        let shard = shard_in(&sealed.key);
        self.files_go_on(&mut holding.desk, |of| of == shard);
        holding.board.to_send.notify_one();
        Ok(false)
    }

    /// The destination of this shard must be mended. The first file that waits for it has failed;
    /// one that somebody has put back to `new` is tried once more.
    pub(super) async fn look_for_retry(&mut self, holding: &mut Holding) {
        holding.desk.look = None;
        let Some(gate) = self.shut_gate() else { return };
        let Some(why) = gate.to_be_fixed() else { return };
        let Some(track) = holding.plan.track.clone() else { return };
        let Some((stage, _)) = track.stage(Step::Deliver(StageState::Failed)) else { return };
        let first = {
            let index = holding.board.index();
            let own = |sealed: &&SealedGroup| {
                shard_in(&sealed.key).is_some_and(|shard| shard as usize == self.number)
            };
            index.next_to_send().find(own).and_then(|sealed| {
                Some((sealed.file.get()?.clone(), new_file(&holding.plan, sealed, &index.feeds)?))
            })
        };
        let Some((name, of)) = first else { return };
        let ask = FilesAsk::Named(name.to_string());
        let listed = track.tracker.list(&ask);
        let Ok(rows) = self.track(holding, Some(of.shard), listed).await else { return };
        let row = rows.iter().find(|row| row.shard == i64::from(of.shard));
        let state = row.and_then(|row| row.stages.get(stage)).map(|stage| stage.state.as_str());
        match state {
            Some("failed") | None => holding.desk.asked = false,
            Some("new") if !holding.desk.asked => {
                holding.desk.asked = true;
                gate.hurry();
            }
            _ => {
                holding.desk.asked = false;
                let facts = FileFacts { error: Some(why), ..FileFacts::default() };
                // Where this is not noted now, it is at the next look.
                let failed = Step::Deliver(StageState::Failed);
                let _ = self.reach(holding, &name, of, failed, facts).await;
            }
        }
    }

    /// Ends rows of shards that had no records in a slice that is over.
    async fn sweep(&mut self, holding: &mut Holding) -> Result<(), Stop> {
        let Some(TrackPlan { tracker, .. }) = holding.plan.track.clone() else { return Ok(()) };
        let rows = self.track(holding, None, tracker.unclaimed()).await?;
        let lanes = self.plan.workers.max(1);
        let (mut ended, mut ticks) = (Vec::new(), Vec::new());
        for (file, shard) in rows {
            if shard as usize % lanes != self.number {
                continue;
            }
            let of = Partition { topic: holding.plan.internal.clone(), index: shard };
            let is_ours = self.live.nonce_of(&of).is_some();
            match holding.slice_is_over(&file, shard, self.clock.now(), is_ours) {
                Some(true) => ended.push((file, shard)),
                Some(false) => {}
                // Nobody has read anything there lately: what time it is, a tick shows.
                None => ticks.push(seal::tick(&holding.plan.internal, shard)),
            }
        }
        ticks.dedup_by_key(|tick| tick.partition);
        if !ticks.is_empty() {
            let _ = self.ledger.send(Note::Seals(ticks));
        }
        if ended.is_empty() || planted(Bug::EmptyForgotten) {
            return Ok(());
        }
        self.track(holding, None, tracker.sweep(&ended)).await
    }

    async fn expire(&mut self, holding: &mut Holding) {
        if let (0, Some(TrackPlan { tracker, .. })) = (self.number, holding.plan.track.clone()) {
            // What is left over goes the next time, soon.
            match self.track(holding, None, tracker.expire()).await {
                Ok(0) | Err(_) => {}
                Ok(_) => holding.desk.expire_at = Instant::now() + SWEEP_MIN,
            }
        }
        let Some(files) = holding.plan.files.clone() else { return };
        let waiting = holding.board.index().files_waiting();
        let lanes = self.plan.workers.max(1);
        let own = self.number;
        let mine = move |shard: u32| shard as usize % lanes == own;
        if let Err(fault) = files.expire(&mine, &waiting).await {
            tracing::warn!(why = %fault, "old files could not be removed");
        }
    }
}

impl Holding {
    /// A group has no file, and may be tried now.
    fn has_to_write(&self) -> bool {
        let index = self.board.index();
        index.next_unwritten(|sealed| !self.desk.holds(&sealed.key)).is_some()
    }

    /// Whether nothing more can come for a slice; `None` where the log's time is not known here.
    /// Where the partition of the shard is not ours its owner says so, who writes the ticks too.
    fn slice_is_over(&self, file: &str, shard: u32, now: Timestamp, is_ours: bool) -> Option<bool> {
        let start = slice_start(file)?;
        let end = start.saturating_add(self.every().unwrap_or(0));
        if self.board.shared && !is_ours {
            return Some(false);
        }
        let index = self.board.index();
        let now = match self.board.shared {
            true => index.share_now(shard, self.board.scale.now())?,
            false => now.0,
        };
        if index.has_slice(shard, start) {
            return Some(false);
        }
        // On a shared log time goes on only with what is read.
        if self.board.shared && now < end { None } else { Some(now >= end) }
    }
}

/// Writes a file under a name that the tracking table has given out.
async fn write_as(
    files: &dyn GroupFiles,
    shard: u32,
    name: &str,
    content: Bytes,
) -> Result<(), Fault> {
    if files.write(shard, name, content).await? {
        return Ok(());
    }
    let what = format!("{} has other content than this group", files.place(shard, name));
    let hint = "move it away: names are given out by the tracking table, so another program wrote it; \
                the other shards go on";
    Err(Fault::wait(what).code("P1407").hint(hint).needs_somebody())
}

/// Nothing of the cycle has ended.
pub(super) fn hand_all_back(cycle: &mut Cycle) {
    for item in &mut cycle.items {
        item.open = item.open.max(1);
    }
}

/// What the tracker is told of a sealed group.
fn new_file(plan: &GroupPlan, sealed: &SealedGroup, feeds: &[Feed]) -> Option<NewFile> {
    let feed = feeds.get(sealed.seal.feed as usize)?;
    Some(NewFile {
        seal: feed.position(sealed.seal.offset).to_string(),
        slice: slice_name(sealed.slice),
        shard: shard_in(&sealed.key)?,
        shards: plan.shard.as_ref()?.of,
    })
}

/// The name of the slice that begins then, in UTC: `20250101000000`.
pub(super) fn slice_name(start: i64) -> String {
    let written = Timestamp(start).to_string();
    let second = written.split('.').next().unwrap_or_default();
    second.chars().filter(char::is_ascii_digit).collect()
}

/// When the slice of a file begins.
fn slice_start(file: &str) -> Option<i64> {
    let digits = file.split('.').next().filter(|name| name.len() == 14)?;
    let number = |range: std::ops::Range<usize>| digits.get(range)?.parse::<i64>().ok();
    let (year, month, day) = (number(0..4)?, number(4..6)?, number(6..8)?);
    let (hour, minute, second) = (number(8..10)?, number(10..12)?, number(12..14)?);
    // Days from a civil date, years counted from March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let era = year.div_euclid(400);
    let day_of_era = {
        let year = year.rem_euclid(400);
        year * 365 + year / 4 - year / 100 + (153 * month + 2) / 5 + day - 1
    };
    let days = era * 146_097 + day_of_era - 719_468;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000)
}

/// One line for a value: JSON has line breaks only between its parts, where they mean nothing.
pub(super) fn push_line(content: &mut Vec<u8>, value: Option<&[u8]>) {
    let value = value.unwrap_or(b"null");
    if value.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        content.extend(value.iter().filter(|byte| !matches!(byte, b'\n' | b'\r')));
    } else {
        content.extend_from_slice(value);
    }
    content.push(b'\n');
}

fn hash_of(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Names of files in an index that wait to be sent.
pub(super) type FilesWaiting = HashSet<(u32, Arc<str>)>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_named_by_their_start_in_utc() {
        for (name, start) in [
            ("20250101000000", 1_735_689_600_000),
            ("20240229235950", 1_709_251_190_000),
            ("19700101000000", 0),
            ("20001231000010", 978_220_810_000),
        ] {
            assert_eq!(slice_name(start), name);
            assert_eq!(slice_start(name), Some(start));
            assert_eq!(slice_start(&format!("{name}.12")), Some(start));
        }
        assert_eq!(slice_start("foreign"), None);
    }

    #[test]
    fn a_value_is_one_line() {
        let mut content = Vec::new();
        push_line(&mut content, Some(b"{\r\n \"a\": 1\n}"));
        push_line(&mut content, Some(b"7"));
        push_line(&mut content, None);
        assert_eq!(content, b"{ \"a\": 1}\n7\nnull\n");
    }
}
