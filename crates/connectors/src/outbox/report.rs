//! What people ask about an outbox, and what they do to it by hand.

use std::sync::Arc;

use potok_core::Fault;
use serde::Serialize;

use super::session::{number, text};
use super::shape::{LEASES, Order, ROWID, Shape, WAITING};
use super::table::OutboxTable;
use super::{Outbox, SessionPurpose};
use crate::sql::Dialect;

/// Rows are counted up to here.
const COUNT_MAX: u64 = 100_000;
/// Failing keys that are listed.
const FAILING_MAX: usize = 100;
/// Of so many of the newest rows the rate is taken.
const RATE_ROWS: usize = 10_000;

/// What `potok outbox status` shows.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub table: String,
    /// Rows that are not processed, counted up to 100,001.
    pub waiting: u64,
    /// Seconds since the oldest of them was written.
    pub oldest_seconds: Option<f64>,
    /// Rows processed in the last minute, per second; of the newest 10,000 rows.
    pub rate: f64,
    /// Dead letters, counted likewise.
    pub dead: u64,
    /// Keys whose first row failed.
    pub failing: Vec<FailingRow>,
    /// Who relays the table.
    pub owner: Option<Owner>,
}

/// A row that failed, and with it its key.
#[derive(Clone, Debug, Serialize)]
pub struct FailingRow {
    /// The row.
    pub id: String,
    pub key: String,
    /// How often it failed.
    pub attempt: u64,
    /// Seconds until it is tried again; negative when it is due.
    pub next_seconds: f64,
    /// Why it failed.
    pub error: String,
    /// Rows of its key that wait for it.
    pub behind: u64,
}

/// Who has the lease.
#[derive(Clone, Debug, Serialize)]
pub struct Owner {
    /// Host and process.
    pub owner: String,
    pub pipeline: String,
    /// Seconds until the lease runs out; negative when it has.
    pub lease_seconds: f64,
}

/// A dead letter of the table.
#[derive(Clone, Debug, Serialize)]
pub struct DeadRow {
    /// The row.
    pub id: String,
    /// What happened.
    pub event_type: Option<String>,
    /// The message.
    pub payload: Option<String>,
    /// When it was written.
    pub added_at: Option<String>,
    /// How often it was tried.
    pub attempts: u64,
    /// Why it was set aside.
    pub reason: String,
    /// The same in words.
    pub error: String,
    /// When.
    pub dead_at: String,
}

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

    fn rate(&self) -> String {
        let at = &self.names.processed_at;
        format!(
            "SELECT count(*) FROM (SELECT {} AS processed_at FROM {} o ORDER BY {} LIMIT {RATE_ROWS}) o \
             WHERE o.processed_at IS NOT NULL AND NOT ({})",
            self.quote(at),
            self.outbox(),
            self.order_by("o").iter().map(|by| format!("{by} DESC")).collect::<Vec<_>>().join(", "),
            self.is_older(at, std::time::Duration::from_secs(60))
                .replace(&self.quote(at), "o.processed_at")
        )
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
            self.literal(&self.source())
        )
    }

    fn dead_rows(&self, ids: Option<&[String]>) -> String {
        let names = &self.names;
        let id = self.quote(&names.id);
        let only = ids.map_or(String::new(), |ids| format!(" WHERE d.{id} IN ({})", self.ids(ids)));
        let text = |name: &str| self.as_text(&format!("d.{}", self.quote(name)));
        format!(
            "SELECT {}, {}, {}, {}, d.{}, d.reason, d.error, {} FROM {} d{only} ORDER BY d.dead_at",
            self.id_text("d"),
            text(&names.event_type),
            self.payload("d"),
            text(&names.added_at),
            self.quote(&names.retry_count),
            self.as_text("d.dead_at"),
            self.table(&names.dead)
        )
    }

    /// Puts dead letters back where they were, all in one transaction.
    fn replay(&self, ids: &[String]) -> Vec<String> {
        let names = &self.names;
        let (outbox, dead) = (self.outbox(), self.table(&names.dead));
        let id = self.quote(&names.id);
        let value = |column: &str| match column {
            _ if column == names.processed => self.no().to_owned(),
            _ if column == names.processed_at => "NULL".to_owned(),
            _ if column == names.retry_count => "0".to_owned(),
            _ => format!("d.{}", self.quote(column)),
        };
        let mut into: Vec<String> = self.written().map(|name| self.quote(name)).collect();
        let mut from: Vec<String> = self.written().map(value).collect();
        if self.order == Order::Rowid {
            into.push("rowid".to_owned());
            from.push(format!(
                "CASE WHEN EXISTS (SELECT 1 FROM {outbox} o WHERE o.rowid = d.{ROWID}) THEN NULL \
                 ELSE d.{ROWID} END"
            ));
        }
        let system =
            if self.dialect == Dialect::Postgres { " OVERRIDING SYSTEM VALUE" } else { "" };
        let there = format!("FROM {dead} d WHERE d.{id} IN ({})", self.ids(ids));
        vec![
            format!("SELECT {} {there}", self.id_text("d")),
            format!(
                "INSERT INTO {outbox} ({}){system} SELECT {} {there}",
                into.join(", "),
                from.join(", ")
            ),
            self.drop_dead(ids),
        ]
    }

    fn drop_dead(&self, ids: &[String]) -> String {
        let dead = self.table(&self.names.dead);
        format!("DELETE FROM {dead} WHERE {} IN ({})", self.quote(&self.names.id), self.ids(ids))
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

fn count(row: Option<&super::session::Cells>, at: usize) -> u64 {
    row.and_then(|row| number(row, at)).and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
}

fn seconds(ms: Option<i64>) -> f64 {
    ms.unwrap_or(0) as f64 / 1_000.0
}

impl Outbox {
    async fn table(&self) -> Result<OutboxTable, Fault> {
        let shape = Arc::new(self.look().await?);
        Ok(OutboxTable { shape, session: self.session(SessionPurpose::Look) })
    }

    /// The statements that make everything; by the table that is there, if it can be looked at. The
    /// second is why it could not.
    pub async fn ddl(&self) -> (Vec<String>, Option<Fault>) {
        let looked = self.look_at(&*self.asking, false).table().await;
        let (shape, fault) = match looked {
            Ok(found) => (found, None),
            Err(fault) => (None, Some(fault)),
        };
        let shape = shape.unwrap_or_else(|| Shape::planned(self.dialect(), &self.names));
        (shape.ddl(self.settings.keep_processed.is_some()), fault)
    }

    /// What the relay must be allowed.
    pub fn grants(&self) -> Vec<String> {
        Shape::planned(self.dialect(), &self.names).grants()
    }

    /// How it stands.
    pub async fn status(&self) -> Result<Status, Fault> {
        let OutboxTable { shape, session } = self.table().await?;
        let backlog = session.query(shape.backlog()).await?;
        let rate = session.query(shape.rate()).await?;
        let failing = session.query(shape.failing()).await?;
        let owner = session.query(shape.owner()).await?;
        let most = COUNT_MAX + 1;
        let dead = shape.table(&shape.names.dead);
        let dead = format!("SELECT count(*) FROM (SELECT 1 AS one FROM {dead} LIMIT {most}) d");
        let dead = session.query(dead).await?;
        let now = session.query(format!("SELECT {}", shape.now_ms())).await?;
        let now = now.first().and_then(|row| number(row, 0)).unwrap_or(0);
        let oldest = backlog.first().and_then(|row| number(row, 1));
        Ok(Status {
            table: shape.source(),
            waiting: count(backlog.first(), 0),
            oldest_seconds: oldest.map(|ms| seconds(Some(now.saturating_sub(ms)))),
            rate: count(rate.first(), 0) as f64 / 60.0,
            dead: count(dead.first(), 0),
            failing: failing
                .iter()
                .map(|row| FailingRow {
                    id: text(row, 0).unwrap_or_default(),
                    key: text(row, 1).unwrap_or_default(),
                    attempt: count(Some(row), 2),
                    next_seconds: seconds(number(row, 3)),
                    error: text(row, 4).unwrap_or_default(),
                    behind: count(Some(row), 5),
                })
                .collect(),
            owner: owner.first().map(|row| Owner {
                owner: text(row, 0).unwrap_or_default(),
                pipeline: text(row, 1).unwrap_or_default(),
                lease_seconds: seconds(number(row, 2)),
            }),
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

    /// Its dead letters: these, or all.
    pub async fn dead_rows(&self, ids: Option<&[String]>) -> Result<Vec<DeadRow>, Fault> {
        let OutboxTable { shape, session } = self.table().await?;
        let rows = session.query(shape.dead_rows(ids)).await?;
        let row = |row: &super::session::Cells| DeadRow {
            id: text(row, 0).unwrap_or_default(),
            event_type: text(row, 1),
            payload: text(row, 2),
            added_at: text(row, 3),
            attempts: count(Some(row), 4),
            reason: text(row, 5).unwrap_or_default(),
            error: text(row, 6).unwrap_or_default(),
            dead_at: text(row, 7).unwrap_or_default(),
        };
        Ok(rows.iter().map(row).collect())
    }

    /// Puts dead letters back into the table, in their order; which ones.
    pub async fn replay(&self, ids: &[String]) -> Result<Vec<String>, Fault> {
        let OutboxTable { shape, session } = self.table().await?;
        let rows = session.transact(&[], &shape.replay(ids)).await?;
        Ok(rows.iter().filter_map(|row| text(row, 0)).collect())
    }

    /// Removes dead letters.
    pub async fn drop_dead(&self, ids: &[String]) -> Result<(), Fault> {
        let OutboxTable { shape, session } = self.table().await?;
        session.transact(&[], &[shape.drop_dead(ids)]).await.map(drop)
    }
}
