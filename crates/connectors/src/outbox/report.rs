//! What people ask about an outbox, and what they do to it by hand.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use potok_core::{FailingRow, Fault, LeaseOwner, OutboxControl, OutboxCounts, OutboxStatus};
use tokio::time::Instant;

use super::session::{Cells, number, text};
use super::shape::{LEASES, Shape, WAITING};
use super::statements::ReadLimits;
use super::table::OutboxTable;
use super::{Outbox, SessionPurpose};
use crate::sql::Dialect;

/// Rows are counted up to here.
pub(super) const COUNT_MAX: usize = 100_000;
/// Failing keys that are listed.
const FAILING_MAX: usize = 100;
/// Without an index on `processed_at` the rate is a look at the whole table: it may take so long, and
/// is not taken again for a while.
const RATE_MS_MAX: u64 = 2_000;
const RATE_EVERY: Duration = Duration::from_secs(10);
const MINUTE: Duration = Duration::from_secs(60);

impl Shape {
    /// How many rows wait, and since when.
    pub(super) fn backlog(&self) -> String {
        let (outbox, pending) = (self.outbox(), self.pending("o"));
        let most = COUNT_MAX + 1;
        format!(
            "SELECT count(*), min({}) FROM (SELECT * FROM {outbox} o WHERE {pending} \
             ORDER BY {} LIMIT {most}) o",
            self.epoch_ms("o", &self.names.added_at),
            self.order_by("o").join(", ")
        )
    }

    /// How many rows were processed in the last minute.
    fn rate(&self) -> Vec<String> {
        let at = &self.names.processed_at;
        let select = format!(
            "count(*) FROM {} WHERE {} AND {} IS NOT NULL AND NOT ({})",
            self.outbox(),
            self.is_processed(),
            self.quote(at),
            self.is_older(at, MINUTE)
        );
        match self.dialect {
            Dialect::Sqlite => vec![format!("SELECT {select}")],
            Dialect::Postgres => vec![
                format!("SET LOCAL statement_timeout = {RATE_MS_MAX}"),
                format!("SELECT {select}"),
            ],
            Dialect::Mysql => vec![format!(
                "/*M! SET STATEMENT max_statement_time = {} FOR */ SELECT \
                 /*+ MAX_EXECUTION_TIME({RATE_MS_MAX}) */ {select}",
                RATE_MS_MAX / 1_000
            )],
        }
    }

    fn failing_count(&self) -> String {
        let (waiting, source) = (self.table(WAITING), self.literal(&self.source()));
        format!("SELECT count(*) FROM {waiting} WHERE source = {source} AND behind IS NULL")
    }

    fn failing(&self) -> String {
        let (waiting, source) = (self.table(WAITING), self.literal(&self.source()));
        format!(
            "SELECT w.id, w.key_shown, w.attempt, {}, w.error, (SELECT count(*) FROM {waiting} b \
             WHERE b.source = w.source AND b.behind = w.id) FROM {waiting} w \
             WHERE w.source = {source} AND w.behind IS NULL ORDER BY w.until LIMIT {FAILING_MAX}",
            self.ms_until("w.until")
        )
    }

    fn owner(&self) -> String {
        format!(
            "SELECT owner, pipeline, {} FROM {} WHERE name = {} AND token <> ''",
            self.ms_until("until"),
            self.table(LEASES),
            self.literal(&self.lease)
        )
    }

    /// Marks a row as processed without publishing it.
    fn skip(&self, ids: &[String]) -> Vec<String> {
        let names = &self.names;
        let id = self.quote(&names.id);
        let there = format!("o.{id} IN ({}) AND {}", self.ids(ids), self.pending("o"));
        let (outbox, alias) = match self.dialect {
            Dialect::Mysql => (format!("{} o", self.outbox()), "o."),
            _ => (format!("{} AS o", self.outbox()), ""),
        };
        vec![
            format!("SELECT {} FROM {} o WHERE {there}", self.id_text("o"), self.outbox()),
            format!(
                "UPDATE {outbox} SET {alias}{} = {}, {alias}{} = {} WHERE {there}",
                self.quote(&names.processed),
                self.yes(),
                self.quote(&names.processed_at),
                self.now_for(&names.processed_at)
            ),
        ]
    }
}

fn count(row: Option<&Cells>, at: usize) -> u64 {
    row.and_then(|row| number(row, at)).and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
}

/// Milliseconds from now on in seconds; what has passed is now.
fn seconds(ms: Option<i64>) -> f64 {
    ms.unwrap_or(0).max(0) as f64 / 1_000.0
}

impl Outbox {
    pub(super) async fn table(&self) -> Result<OutboxTable, Fault> {
        let shape = Arc::new(self.look().await?);
        Ok(OutboxTable { shape, session: self.session(SessionPurpose::Look) })
    }

    /// The statements that make everything; by the table that is there, if it can be looked at. The
    /// second is why it could not.
    pub async fn ddl(&self) -> (Vec<String>, Option<Fault>) {
        let (shape, fault) = self.seen_or_planned().await;
        (shape.ddl(self.settings.keep_processed.is_some()), fault)
    }

    /// The statements that make a trigger which tells relays of new rows; none where the database has
    /// no such thing.
    pub async fn notify_ddl(&self) -> (Vec<String>, Option<Fault>) {
        let (shape, fault) = self.seen_or_planned().await;
        (shape.notify_ddl(), fault)
    }

    async fn seen_or_planned(&self) -> (Shape, Option<Fault>) {
        let looked = self.look_at(&*self.asking, false).table().await;
        let (shape, fault) = match looked {
            Ok(found) => (found, None),
            Err(fault) => (None, Some(fault)),
        };
        (shape.unwrap_or_else(|| Shape::planned(self.dialect(), &self.names)), fault)
    }

    /// What the relay must be allowed.
    pub fn grants(&self) -> Vec<String> {
        Shape::planned(self.dialect(), &self.names).grants()
    }

    /// How the server would read while these rows are out, and how it would mark them: what both cost is
    /// decided there. For tests.
    #[doc(hidden)]
    pub async fn plans(&self, ids: &[String]) -> Result<[Vec<String>; 2], Fault> {
        let shape = self.look().await?;
        let session = self.session(SessionPurpose::Note);
        let limits = ReadLimits { rows: 2_000, bytes: 4 << 20 };
        let explain = match self.dialect() {
            Dialect::Sqlite => "EXPLAIN QUERY PLAN",
            Dialect::Postgres | Dialect::Mysql => "EXPLAIN",
        };
        let lines = |rows: Vec<Cells>| {
            let line = |row: &Cells| {
                let cells = (0..row.len()).map(|at| text(row, at).unwrap_or_default());
                cells.collect::<Vec<_>>().join(" ")
            };
            rows.iter().map(line).collect()
        };
        // Whoever has no lease has nothing to read or to mark.
        let (leases, name) = (shape.leases(), shape.lease_literal());
        let token =
            session.query(format!("SELECT token FROM {leases} WHERE name = {name}")).await?;
        let token = token.first().and_then(|row| text(row, 0)).unwrap_or_default();
        let read = session.query(format!("{explain} {}", shape.read(&token, ids, limits))).await?;
        let note = shape.mark(&token, ids);
        for sql in note.before {
            session.query(sql).await?;
        }
        // Behind the one that keeps the lease.
        let mark = note.statements.into_iter().nth(1).unwrap_or_default();
        let mark = session.query(format!("{explain} {mark}")).await?;
        Ok([lines(read), lines(mark)])
    }

    /// Rows processed per second in the last minute; `None` where that cannot be said quickly.
    async fn rate(&self, table: &OutboxTable) -> Option<f64> {
        let known = *self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, rate)) = known
            && at.elapsed() < RATE_EVERY
        {
            return rate;
        }
        let rows = table.session.transact(&[], &table.shape.rate()).await.ok();
        let rate = rows.map(|rows| count(rows.first(), 0) as f64 / MINUTE.as_secs_f64());
        *self.rate.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), rate));
        rate
    }

    /// Keys that fail, with the first hundred; without rows that somebody has taken care of by hand.
    async fn failing(&self, table: &OutboxTable) -> Result<(u64, Vec<FailingRow>), Fault> {
        let OutboxTable { shape, session } = table;
        let rows = session.query(shape.failing()).await?;
        let ids: Vec<String> = rows.iter().filter_map(|row| text(row, 0)).collect();
        let waiting = match ids.is_empty() {
            true => Vec::new(),
            false => session.query(shape.pending_of(&ids)).await?,
        };
        let waiting: Vec<String> = waiting.iter().filter_map(|row| text(row, 0)).collect();
        let all = match rows.len() < FAILING_MAX {
            true => waiting.len() as u64,
            false => count(session.query(shape.failing_count()).await?.first(), 0),
        };
        let failing = rows.iter().map(|row| FailingRow {
            id: text(row, 0).unwrap_or_default(),
            key: text(row, 1).unwrap_or_default(),
            attempt: count(Some(row), 2),
            next_seconds: seconds(number(row, 3)),
            error: text(row, 4).unwrap_or_default(),
            behind: count(Some(row), 5),
        });
        Ok((all, failing.filter(|row| waiting.contains(&row.id)).collect()))
    }

    /// How it stands.
    pub async fn status(&self) -> Result<OutboxStatus, Fault> {
        let table = self.table().await?;
        let OutboxTable { shape, session } = &table;
        let backlog = session.query(shape.backlog()).await?;
        let (failing_keys, failing) = self.failing(&table).await?;
        let owner = session.query(shape.owner()).await?;
        let dead = potok_core::FeedLetters::count(self).await?.letters;
        let now = session.query(format!("SELECT {}", shape.now_ms())).await?;
        let now = now.first().and_then(|row| number(row, 0)).unwrap_or(0);
        let oldest = backlog.first().and_then(|row| number(row, 1));
        let owner = owner.first().map(|row| LeaseOwner {
            owner: text(row, 0).unwrap_or_default(),
            pipeline: text(row, 1).unwrap_or_default(),
            lease_seconds: seconds(number(row, 2)),
        });
        Ok(OutboxStatus {
            table: shape.source(),
            waiting: count(backlog.first(), 0),
            oldest_seconds: oldest.map(|ms| seconds(Some(now.saturating_sub(ms)))),
            rate: self.rate(&table).await,
            dead,
            failing_keys,
            failing,
            owner: owner.filter(|owner| owner.lease_seconds > 0.0),
        })
    }

    /// Makes rows that failed due: these, or all; which ones they were.
    pub async fn retry(&self, ids: Option<&[String]>) -> Result<Vec<String>, Fault> {
        self.table().await?.make_due(ids).await
    }

    /// Marks rows as processed without publishing them; which of them waited.
    pub async fn skip(&self, ids: &[String]) -> Result<Vec<String>, Fault> {
        let OutboxTable { shape, session } = self.table().await?;
        let rows = session.transact(&[], &shape.skip(ids)).await?;
        Ok(rows.iter().filter_map(|row| text(row, 0)).collect())
    }
}

#[async_trait]
impl OutboxControl for Outbox {
    async fn status(&self) -> Result<OutboxStatus, Fault> {
        Outbox::status(self).await
    }

    async fn retry(&self, ids: Option<&[String]>) -> Result<Vec<String>, Fault> {
        Outbox::retry(self, ids).await
    }

    async fn skip(&self, ids: &[String]) -> Result<Vec<String>, Fault> {
        Outbox::skip(self, ids).await
    }

    fn counts(&self) -> OutboxCounts {
        self.counters.counts()
    }
}
