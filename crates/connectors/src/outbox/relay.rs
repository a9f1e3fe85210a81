//! What the relay notes in the table: rows that were published, that failed, that are given up.
//!
//! Notes go one at a time, each under the token of the lease. What the table refuses of many rows is
//! halved down to the row, so that one row never holds up another key.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::trouble::{Bug, crash_point};
use potok_core::{
    EndedOffsets, Fault, FeedCommit, Move, PostponedRecord, Progress, RECORD_BYTES_MAX, Reason,
    SetAside,
};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::batch_size::BatchSize;
use super::counters::RelayCounters;
use super::flight::{Flight, RowId, RowInFlight};
use super::statements::{Burial, Delay};
use super::table::{OutboxRow, OutboxTable};
use super::tenure::{Lease, LeaseNeed, Tenure, word};

/// Rows marked in one call.
pub(super) const MARK_MAX: usize = 2_000;
/// Rows put off in one call: others want the table too.
pub(super) const PUT_OFF_MAX: usize = 50;
/// Old rows deleted in one call.
pub(super) const PURGE_MAX: usize = 1_000;
/// How often old rows are looked for.
const PURGE_EVERY: Duration = Duration::from_secs(10);

/// How long a row waits that somebody has locked.
const LOCKED: Duration = Duration::from_secs(1);
/// Rows that were published and that the table refuses to mark: how many are tried again at a time,
/// how often, and how many are too many.
const REFUSED_TRIED: usize = 20;
const REFUSED_EVERY: Duration = Duration::from_secs(10);
const REFUSED_MAX: usize = 1_000;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What source and progress share.
pub(super) struct Relay {
    pub label: String,
    pub notes: OutboxTable,
    pub tenure: watch::Receiver<Tenure>,
    pub flight: Mutex<Flight>,
    /// Notes go one at a time.
    pub turn: tokio::sync::Mutex<()>,
    /// The table should be read now, whatever the pause.
    pub wake: Notify,
    pub max_wait: Duration,
    pub counters: Arc<RelayCounters>,
    /// How many rows a note marks, and how many it puts off.
    pub marks: BatchSize,
    pub put_offs: BatchSize,
    /// How many old rows are deleted at a time.
    pub purges: BatchSize,
    /// The last tenure that was given up.
    pub given_up: Arc<AtomicU64>,
    /// An index leads to the rows that wait.
    pub has_index: AtomicBool,
    /// What the table said when it refused to mark a row, and when such rows are tried again.
    pub refused: Mutex<Option<(Fault, Instant)>>,
    /// Dropped with the last of those who note: then the lease is let go.
    pub _need: LeaseNeed,
}

impl Relay {
    pub fn flight(&self) -> MutexGuard<'_, Flight> {
        lock(&self.flight)
    }

    /// The lease, while it may be relied on.
    pub fn held(&self) -> Option<Lease> {
        self.tenure.borrow().held.filter(|held| !held.is_over())
    }

    /// Keys that wait behind a row that failed; `None` while another process has the lease.
    pub fn failing_keys(&self) -> Option<u64> {
        self.held().map(|_| self.flight().shut_keys() as u64)
    }

    /// Ends the tenure: what became of a row that is out could not be noted under it. Whoever hands out
    /// rows gives them up, and takes the lease anew; else they would be out for ever.
    pub fn give_up(&self, token: u64) {
        self.given_up.store(token, Ordering::Relaxed);
        self.wake.notify_one();
    }

    /// Marks rows; what the table refuses is halved down to the row. Where it refuses one after the other,
    /// the rest is left to the next attempt.
    pub async fn mark(&self, token: &str, rows: &[(Option<u64>, RowId)]) -> Result<bool, Fault> {
        let (mut rest, mut refused) = (rows, 0);
        while !rest.is_empty() {
            let (part, more) = rest.split_at(rest.len().min(self.marks.get()));
            let ids: Vec<String> = part.iter().map(|(_, id)| id.to_string()).collect();
            let heads: Vec<String> = {
                let flight = self.flight();
                ids.iter().filter(|id| flight.is_head(id)).cloned().collect()
            };
            crash_point("sink.commit.before");
            let noted = match self.notes.mark(token, &ids, &heads).await {
                Ok(noted) => noted,
                Err(fault) => {
                    self.marks.failed(part.len());
                    let is_of_all = self.notes.shape.plant.is(Bug::NotesStandTogether);
                    if fault.next != Move::SetAside || is_of_all {
                        return Err(fault);
                    }
                    if refused == REFUSED_TRIED {
                        return Err(self.marks_refused(&fault));
                    }
                    if part.len() == 1 {
                        self.cannot_mark(token, part, &fault).await?;
                        (rest, refused) = (more, refused + 1);
                    }
                    continue;
                }
            };
            crash_point("sink.commit.after");
            if !noted.mine {
                return Ok(false);
            }
            self.marks.passed(part.len());
            (rest, refused) = (more, 0);
            let mut flight = self.flight();
            let is_left = |id: &RowId| noted.left.iter().any(|left| **left == **id);
            self.counters.published(part.iter().filter(|(_, id)| !is_left(id)).count());
            for (offset, id) in part {
                let is_left = is_left(id);
                match (is_left, offset) {
                    (true, Some(offset)) => flight.published(*offset),
                    (true, None) => {}
                    (false, Some(offset)) => flight.ended(*offset),
                    (false, None) => flight.marked(id),
                }
                if self.notes.shape.plant.is(Bug::RemembersPublished) {
                    flight.cannot_mark(id);
                }
            }
        }
        Ok(true)
    }

    /// They were published, so their keys go on.
    async fn cannot_mark(
        &self,
        token: &str,
        part: &[(Option<u64>, RowId)],
        fault: &Fault,
    ) -> Result<(), Fault> {
        for (offset, id) in part {
            error!("{}: row {id} was published and cannot be marked: {fault}", self.label);
            let is_head = self.flight().is_head(id);
            if is_head {
                self.notes.forget_head(token, id).await?;
            }
            let mut flight = self.flight();
            if let Some(offset) = offset {
                flight.published(*offset);
            }
            flight.cannot_mark(id);
        }
        Ok(())
    }

    /// Puts rows off; what the table refuses is halved down to the row, which waits uncounted. Where the
    /// table refuses one after the other, the rest waits uncounted as well.
    async fn put_off(&self, token: &str, failed: &[&PostponedRecord]) -> Result<bool, Fault> {
        let (mut rest, mut refused) = (failed, 0);
        while !rest.is_empty() {
            let counts = refused < REFUSED_TRIED;
            let size = if counts { self.put_offs.get() } else { PUT_OFF_MAX };
            let (part, more) = rest.split_at(rest.len().min(size));
            let rows = self.put_off_rows(part);
            match self.note_put_off(token, &rows, counts).await {
                Ok(false) => return Ok(false),
                Ok(true) => {
                    self.put_offs.passed(part.len());
                    (rest, refused) = (more, if counts { 0 } else { refused });
                }
                Err(fault) => {
                    self.put_offs.failed(part.len());
                    if fault.next != Move::SetAside {
                        return Err(fault);
                    }
                    if part.len() > 1 && counts {
                        continue;
                    }
                    if !self.put_off_uncounted(token, &rows, &fault).await? {
                        return Ok(false);
                    }
                    (rest, refused) = (more, refused + 1);
                }
            }
        }
        Ok(true)
    }

    fn put_off_rows(&self, part: &[&PostponedRecord]) -> Vec<PutOffRow> {
        let flight = self.flight();
        let row = |failed: &&PostponedRecord| {
            let (offset, out) = flight.outs(std::iter::once(failed.offset)).pop()?;
            Some(PutOffRow {
                offset,
                error: clip(&failed.error),
                key: clip(&String::from_utf8_lossy(&out.key)),
                wait: failed.wait.min(self.max_wait),
                attempt: failed.attempt,
                out,
            })
        };
        part.iter().filter_map(row).collect()
    }

    /// False where the lease is gone.
    async fn note_put_off(
        &self,
        token: &str,
        rows: &[PutOffRow],
        counts: bool,
    ) -> Result<bool, Fault> {
        let delays: Vec<Delay<'_>> = rows.iter().map(|row| row.delay(counts)).collect();
        if !self.notes.put_off(token, &delays).await?.mine {
            return Ok(false);
        }
        for row in rows {
            warn!(row = %row.out.id, attempt = row.attempt, "{}: {}", self.label, row.error);
        }
        self.put_off_here(rows);
        Ok(true)
    }

    /// The table refuses to count the attempt: the row waits without. Where not even that can be noted,
    /// it waits in memory, and with it its key, until heads are compared with the table the next time.
    async fn put_off_uncounted(
        &self,
        token: &str,
        rows: &[PutOffRow],
        fault: &Fault,
    ) -> Result<bool, Fault> {
        for row in rows {
            error!("{}: row {} failed, which cannot be counted: {fault}", self.label, row.out.id);
        }
        match self.note_put_off(token, rows, false).await {
            Err(fault) if fault.next == Move::SetAside => {
                self.put_off_here(rows);
                Ok(true)
            }
            other => other,
        }
    }

    fn put_off_here(&self, rows: &[PutOffRow]) {
        let mut flight = self.flight();
        for row in rows {
            flight.put_off(row.offset, row.wait);
            self.counters.failed();
        }
    }

    async fn set_aside(&self, token: &str, failed: &SetAside) -> Result<bool, Fault> {
        let outs = self.flight().outs(std::iter::once(failed.offset));
        let Some((offset, out)) = outs.into_iter().next() else { return Ok(true) };
        let burial = Burial {
            id: &out.id,
            attempt: failed.attempt,
            reason: failed.reason.word(),
            error: &clip(&failed.error),
        };
        crash_point("dead_letter.before");
        if self.notes.shape.plant.is(Bug::ReopenedEarly) {
            self.flight().ended(offset);
        }
        let buried = self.notes.bury(token, &burial).await;
        crash_point("dead_letter.after");
        let wait = match buried {
            Ok(noted) if !noted.mine => return Ok(false),
            Ok(noted) if noted.left.is_empty() => {
                error!(row = %out.id, reason = %failed.reason, "{}: {}", self.label, failed.error);
                self.flight().ended(offset);
                self.counters.failed();
                return Ok(true);
            }
            // Somebody has it locked.
            Ok(_) => LOCKED.min(self.max_wait),
            // Where the database takes that the row waits, it is the dead letters that cannot be
            // written, and only this key waits.
            Err(fault) => {
                error!(row = %out.id, "{}: it cannot be set aside: {fault}", self.label);
                self.wait_of(&fault)
            }
        };
        // Tried as often as before, it is set aside at the next failure.
        let again = PostponedRecord {
            partition: failed.partition.clone(),
            assignment: failed.assignment,
            offset,
            attempt: out.seen.max(failed.attempt.saturating_sub(1)),
            wait,
            error: failed.error.clone(),
        };
        self.put_off(token, &[&again]).await
    }

    /// How long a row waits that cannot be set aside.
    fn wait_of(&self, fault: &Fault) -> Duration {
        match fault.next {
            Move::SetAside | Move::Fix => self.max_wait,
            Move::Retry | Move::Wait => LOCKED.min(self.max_wait),
        }
    }

    /// Makes a row that no log takes a dead letter, though it was never handed out. Where that cannot
    /// be, it waits, and its key with it.
    pub async fn set_aside_too_large(
        &self,
        token: &str,
        row: &OutboxRow,
        key: &Bytes,
    ) -> Result<(), Fault> {
        let what = format!("the payload is larger than {RECORD_BYTES_MAX} bytes");
        let attempt = row.attempts.saturating_add(1);
        let reason = Reason::TooLarge.word();
        let burial = Burial { id: &row.id, attempt, reason, error: &what };
        let _turn = self.turn.lock().await;
        let wait = match self.notes.bury(token, &burial).await {
            Ok(noted) if !noted.mine => return Ok(()),
            Ok(noted) if noted.left.is_empty() => {
                error!(row = %row.id, reason, "{}: {what}", self.label);
                self.flight().open(&row.id);
                self.counters.failed();
                return Ok(());
            }
            Ok(_) => LOCKED.min(self.max_wait),
            Err(fault) => {
                error!(row = %row.id, "{}: it cannot be set aside: {fault}", self.label);
                self.wait_of(&fault)
            }
        };
        let delay = Delay {
            id: &row.id,
            seen: row.attempts,
            attempt: row.attempts,
            wait,
            error: &what,
            key: &clip(&String::from_utf8_lossy(key)),
            counts: false,
        };
        match self.notes.put_off(token, &[delay]).await {
            Ok(noted) if !noted.mine => return Ok(()),
            Ok(_) => {}
            Err(fault) if fault.next == Move::SetAside => {}
            Err(fault) => return Err(fault),
        }
        let mut flight = self.flight();
        flight.open(&row.id);
        flight.add_head(row.id.clone(), key.clone(), Instant::now() + wait);
        Ok(())
    }

    /// Tries some of the rows again that were published and could not be marked: somebody may have
    /// mended the table, or some of the rows. Where there are too many, that is waited for.
    pub async fn mark_refused(&self, token: &str) -> Result<(), Fault> {
        let refused = lock(&self.refused).clone().filter(|(_, again)| Instant::now() < *again);
        let fault = match refused {
            Some((fault, _)) => Some(fault),
            None => self.try_refused(token).await?,
        };
        let all = self.flight().unmarkable_len();
        let Some(fault) = fault.filter(|_| all >= REFUSED_MAX) else { return Ok(()) };
        Err(self.marks_refused(&fault))
    }

    fn marks_refused(&self, fault: &Fault) -> Fault {
        let (label, all) = (&self.label, self.flight().unmarkable_len());
        let what = format!("{label}: {all} rows were published and cannot be marked as processed");
        let hint = "a constraint or a trigger of the table refuses it; mend that, and it goes on";
        Fault::wait(what).because(fault).hint(hint).code("P1308")
    }

    /// Why those whose turn it is cannot be marked; nothing where one of them could, and others have
    /// their turn at once.
    async fn try_refused(&self, token: &str) -> Result<Option<Fault>, Fault> {
        let rows = self.flight().try_unmarkable(REFUSED_TRIED);
        let (mut refused, mut is_mended) = (None, false);
        for id in &rows {
            let _turn = self.turn.lock().await;
            match self.notes.mark(token, &[id.to_string()], &[]).await {
                Ok(noted) if !noted.mine => return Ok(None),
                Ok(noted) if noted.left.is_empty() => {
                    self.flight().marked_at_last(id);
                    self.counters.published(1);
                    is_mended = true;
                }
                // Somebody has it locked.
                Ok(_) => {}
                Err(fault) if fault.next == Move::SetAside => refused = Some(fault),
                Err(fault) => return Err(fault),
            }
        }
        if let Some(fault) = refused.filter(|_| !is_mended) {
            *lock(&self.refused) = Some((fault.clone(), Instant::now() + REFUSED_EVERY));
            return Ok(Some(fault));
        }
        Ok(None)
    }

    /// Deletes old rows; how long to wait before the next time.
    pub async fn purge(&self, table: &OutboxTable, age: Duration) -> Duration {
        let Some(held) = self.held() else { return PURGE_EVERY / 10 };
        let (begun, most) = (Instant::now(), self.purges.get());
        let purged = async {
            let old = table.old_rows(age, most).await?;
            if old.is_empty() {
                return Ok(0);
            }
            let _turn = self.turn.lock().await;
            table.purge(&word(held.token), &old, age).await
        };
        let purged = purged.await;
        // Never more than a tenth of the server's time.
        let pause = begun.elapsed() * 9;
        match purged {
            Ok(rows) => {
                self.purges.passed(rows);
                if rows == most { pause } else { pause.max(PURGE_EVERY) }
            }
            Err(fault) => {
                self.purges.failed(most);
                let index = table.shape.retention_index();
                warn!("{}: old rows stay: {fault}; with an index it is quick: {index}", self.label);
                pause.max(PURGE_EVERY)
            }
        }
    }

    /// Notes whether an index leads to the rows that wait, and tells where that has changed.
    pub fn found_index(&self, has_index: bool) {
        let had = self.has_index.swap(has_index, Ordering::Relaxed);
        let (label, index) = (&self.label, self.notes.shape.index());
        match (had, has_index) {
            (false, true) => info!("{label}: an index leads to the rows that wait"),
            (true, false) => warn!(
                "{label}: no index leads to the rows that wait any more, so the table is read less \
                 often; {index}"
            ),
            _ => {}
        }
    }
}

/// A row that is put off.
struct PutOffRow {
    offset: u64,
    out: RowInFlight,
    attempt: u32,
    wait: Duration,
    error: String,
    key: String,
}

impl PutOffRow {
    fn delay(&self, counts: bool) -> Delay<'_> {
        Delay {
            id: &self.out.id,
            seen: self.out.seen,
            attempt: self.attempt,
            wait: self.wait,
            error: &self.error,
            key: &self.key,
            counts,
        }
    }
}

/// As much of a text as a person reads.
fn clip(text: &str) -> String {
    text.chars().take(2_000).collect()
}

#[async_trait]
impl Progress for Relay {
    async fn commit(&self, commit: &FeedCommit) -> Result<(), Fault> {
        let _turn = self.turn.lock().await;
        let known = self.tenure.borrow().held;
        let Some(held) = known else { return Ok(()) };
        if held.is_over() {
            self.give_up(held.token);
            return Ok(());
        }
        let (nonce, token) = (held.token, word(held.token));
        let offsets = |all: &[EndedOffsets]| {
            let ours = all.iter().filter(|ended| ended.assignment == nonce);
            ours.flat_map(|ended| ended.ranges.iter().cloned()).flatten().collect::<Vec<u64>>()
        };
        let ended = self.flight().outs(offsets(&commit.ended).into_iter());
        let ended: Vec<_> = ended.into_iter().map(|(at, out)| (Some(at), out.id)).collect();
        let mut mine = ended.is_empty() || self.mark(&token, &ended).await?;
        let put_off = commit.put_off.iter().filter(|failed| failed.assignment == nonce);
        mine = mine && self.put_off(&token, &put_off.collect::<Vec<_>>()).await?;
        for failed in commit.set_aside.iter().filter(|failed| failed.assignment == nonce) {
            mine = mine && self.set_aside(&token, failed).await?;
        }
        if !mine {
            self.give_up(nonce);
            return Ok(());
        }
        let mut flight = self.flight();
        offsets(&commit.given_back).into_iter().for_each(|offset| flight.given_back(offset));
        drop(flight);
        self.wake.notify_one();
        Ok(())
    }
}
