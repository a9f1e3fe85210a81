//! An outbox table as people see it: how it stands, and what they do to its rows by hand.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::Fault;

/// What people ask of an outbox table. Answers come from the table itself: they hold whoever relays
/// it, and when nobody does.
#[async_trait]
pub trait OutboxControl: Send + Sync {
    /// How it stands now.
    async fn status(&self) -> Result<OutboxStatus, Fault>;

    /// Makes rows that failed due: these, or all; which ones they were.
    async fn retry(&self, ids: Option<&[String]>) -> Result<Vec<String>, Fault>;

    /// Marks rows as processed without publishing them; which of them waited.
    async fn skip(&self, ids: &[String]) -> Result<Vec<String>, Fault>;

    /// What this process did with the table since it was started. Asks nobody.
    fn counts(&self) -> OutboxCounts;
}

/// How an outbox table stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutboxStatus {
    /// The table, with its schema.
    pub table: String,
    /// Rows that are not processed, counted up to 100,001.
    pub waiting: u64,
    /// Seconds since the oldest of them was written; `None` where none waits.
    pub oldest_seconds: Option<f64>,
    /// Rows processed per second, in the last minute; `None` where the table is too large to say so
    /// quickly without an index on `processed_at`.
    pub rate: Option<f64>,
    /// Dead letters, counted up to 100,001.
    pub dead: u64,
    /// Keys whose first row failed.
    pub failing_keys: u64,
    /// The first hundred of them, those that are tried next in front.
    pub failing: Vec<FailingRow>,
    /// Who relays the table; `None` where nobody does.
    pub owner: Option<LeaseOwner>,
}

/// A row that failed, and with it its key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FailingRow {
    /// The row.
    pub id: String,
    /// The key whose rows wait behind it.
    pub key: String,
    /// How often it failed.
    pub attempt: u64,
    /// Seconds until it is tried again; 0 when it is due.
    pub next_seconds: f64,
    /// Why it failed.
    pub error: String,
    /// Rows of its key that wait for it, as far as they have been read.
    pub behind: u64,
}

/// Who has the lease of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaseOwner {
    /// Host and process.
    pub owner: String,
    /// The pipeline it relays for.
    pub pipeline: String,
    /// Seconds until the lease runs out, unless it is renewed before.
    pub lease_seconds: f64,
}

/// What one process did with an outbox table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutboxCounts {
    /// Rows it published and marked.
    pub published: u64,
    /// Failures of rows.
    pub failed: u64,
    /// Keys it keeps back because a row of them failed; 0 where it does not own the table.
    pub failing_keys: u64,
    /// It owns the table.
    pub is_owner: bool,
    /// It listens for the notifications of a trigger.
    pub is_listening: bool,
}
