//! What the relay notes in the table: rows that were published, that failed, that are given up.
//!
//! Notes go one at a time, each under the token of the lease. What the table refuses of many rows is
//! halved down to the row, so that one row never holds up another key.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::trouble::crash_point;
use potok_core::{
    EndedOffsets, Fault, FeedCommit, Move, PostponedRecord, Progress, RECORD_BYTES_MAX, Reason,
    SetAside,
};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::{error, warn};

use super::counters::RelayCounters;
use super::flight::{Flight, RowId, RowInFlight};
use super::statements::{Burial, Delay};
use super::table::{OutboxRow, OutboxTable};
use super::tenure::{Lease, LeaseNeed, Tenure, word};

/// Rows marked in one call.
const MARK_MAX: usize = 2_000;
/// Rows put off in one call: others want the table too.
const PUT_OFF_MAX: usize = 50;
/// Old rows deleted in one call.
const PURGE_MAX: usize = 1_000;
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

    /// Marks rows; what the table refuses is halved down to the row.
    pub async fn mark(&self, token: &str, rows: &[(Option<u64>, RowId)]) -> Result<bool, Fault> {
        let mut parts: Vec<&[(Option<u64>, RowId)]> = rows.chunks(MARK_MAX).rev().collect();
        while let Some(part) = parts.pop() {
            let ids: Vec<String> = part.iter().map(|(_, id)| id.to_string()).collect();
            let heads: Vec<String> = {
                let flight = self.flight();
                ids.iter().filter(|id| flight.is_head(id)).cloned().collect()
            };
            crash_point("sink.commit.before");
            let noted = match self.notes.mark(token, &ids, &heads).await {
                Ok(noted) => noted,
                Err(fault) if fault.next == Move::SetAside => {
                    match part.split_at(part.len() / 2) {
                        ([], _) => self.cannot_mark(token, part, &fault).await?,
                        (one, other) => parts.extend([other, one]),
                    }
                    continue;
                }
                Err(fault) => return Err(fault),
            };
            crash_point("sink.commit.after");
            if !noted.mine {
                return Ok(false);
            }
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

    /// Puts rows off; what the table refuses is halved down to the row, which stays put.
    async fn put_off(&self, token: &str, failed: &[&PostponedRecord]) -> Result<bool, Fault> {
        let mut parts: Vec<&[&PostponedRecord]> = failed.chunks(PUT_OFF_MAX).rev().collect();
        while let Some(part) = parts.pop() {
            let rows: Vec<PutOffRow> = {
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
            };
            let delays: Vec<Delay<'_>> = rows.iter().map(PutOffRow::delay).collect();
            for row in &rows {
                warn!(row = %row.out.id, attempt = row.attempt, "{}: {}", self.label, row.error);
            }
            let noted = match self.notes.put_off(token, &delays).await {
                Ok(noted) => noted,
                Err(fault) if fault.next == Move::SetAside => {
                    match part.split_at(part.len() / 2) {
                        ([], _) => self.cannot_put_off(&rows, &fault),
                        (one, other) => parts.extend([other, one]),
                    }
                    continue;
                }
                Err(fault) => return Err(fault),
            };
            if !noted.mine {
                return Ok(false);
            }
            let mut flight = self.flight();
            for row in &rows {
                flight.put_off(row.offset, row.wait);
                self.counters.failed();
            }
        }
        Ok(true)
    }

    /// The table refuses to count the attempt: the row waits in memory, and with it its key, until
    /// heads are compared with the table the next time.
    fn cannot_put_off(&self, rows: &[PutOffRow], fault: &Fault) {
        let mut flight = self.flight();
        for row in rows {
            error!("{}: row {} failed, which cannot be noted: {fault}", self.label, row.out.id);
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
    /// mended the table. Where there are too many, that is waited for.
    pub async fn mark_refused(&self, token: &str) -> Result<(), Fault> {
        let rows = self.flight().unmarkable(REFUSED_TRIED);
        if rows.is_empty() {
            return Ok(());
        }
        let refused = lock(&self.refused).clone().filter(|(_, again)| Instant::now() < *again);
        let fault = match refused {
            Some((fault, _)) => Some(fault),
            None => self.try_refused(token, &rows).await?,
        };
        let all = self.flight().unmarkable_len();
        let Some(fault) = fault.filter(|_| all >= REFUSED_MAX) else { return Ok(()) };
        let label = &self.label;
        let what = format!("{label}: {all} rows were published and cannot be marked as processed");
        let hint = "a constraint or a trigger of the table refuses it; mend that, and it goes on";
        Err(Fault::wait(what).because(fault).hint(hint).code("P1308"))
    }

    /// Why the first of them that cannot be marked cannot be.
    async fn try_refused(&self, token: &str, rows: &[RowId]) -> Result<Option<Fault>, Fault> {
        let _turn = self.turn.lock().await;
        for id in rows {
            match self.notes.mark(token, &[id.to_string()], &[]).await {
                Ok(noted) if noted.mine && noted.left.is_empty() => {
                    self.flight().marked_at_last(id);
                    self.counters.published(1);
                }
                Ok(_) => return Ok(None),
                Err(fault) if fault.next == Move::SetAside => {
                    let again = Instant::now() + REFUSED_EVERY;
                    *lock(&self.refused) = Some((fault.clone(), again));
                    return Ok(Some(fault));
                }
                Err(fault) => return Err(fault),
            }
        }
        Ok(None)
    }

    /// Deletes old rows; how long to wait before the next time.
    pub async fn purge(&self, table: &OutboxTable, age: Duration) -> Duration {
        let Some(held) = self.held() else { return PURGE_EVERY / 10 };
        let begun = Instant::now();
        let purged = {
            let _turn = self.turn.lock().await;
            table.purge(&word(held.token), age, PURGE_MAX).await
        };
        match purged {
            Ok(PURGE_MAX) => begun.elapsed() * 9,
            Ok(_) => PURGE_EVERY,
            Err(fault) => {
                warn!("{}: old rows stay: {fault}", self.label);
                PURGE_EVERY
            }
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
    fn delay(&self) -> Delay<'_> {
        Delay {
            id: &self.out.id,
            seen: self.out.seen,
            attempt: self.attempt,
            wait: self.wait,
            error: &self.error,
            key: &self.key,
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
        let Some(held) = self.held() else { return Ok(()) };
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
        if mine {
            let mut flight = self.flight();
            offsets(&commit.given_back).into_iter().for_each(|offset| flight.given_back(offset));
        }
        self.wake.notify_one();
        Ok(())
    }
}
