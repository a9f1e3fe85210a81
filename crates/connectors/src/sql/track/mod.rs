//! A table that shows how far files have come: SQLite, MariaDB and MySQL.
//!
//! There are two tables. One has the documented columns, and nothing but a move of a status touches
//! it, so its `updated_at` tells the truth. What potok notes besides lies in the other. Every step is
//! a transaction of conditional statements: whoever repeats it, and whatever others wrote meanwhile,
//! only legal moves happen, and nothing leaves `done`.
//!
//! Not here: leases. Who works on a file is decided by the log; the table only shows it.

mod foreign;
mod identity;
mod schema;
mod statements;
#[cfg(all(test, feature = "sqlite"))]
mod tests;
mod together;
mod tracker;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use potok_core::Fault;

use super::Dialect;

pub use identity::LogIdentity;
pub(crate) use schema::{FoundTracking, TrackTables};
pub(crate) use tracker::SqlTracker;

/// What a tracker is made of.
#[derive(Clone, Debug)]
pub struct TrackConfig {
    /// What messages call it.
    pub label: String,
    /// The table with the documented columns.
    pub table: String,
    /// The tracked stages, in order, each with the whole minutes it may take.
    pub stages: Vec<(Arc<str>, Option<i64>)>,
    /// Creates missing tables.
    pub create_tables: bool,
    /// Whose rows are ours: the pipeline and the log.
    pub pipeline: String,
    /// See there.
    pub log: LogIdentity,
    /// Who works here, for people.
    pub owner: String,
    /// How long rows are kept after their file has ended; for ever where nothing is said.
    pub keep: Option<Duration>,
}

/// A value of a statement.
#[derive(Clone, Debug)]
pub(crate) enum SqlValue {
    /// Nothing.
    Null,
    Number(i64),
    Text(String),
}

impl From<u32> for SqlValue {
    fn from(number: u32) -> Self {
        SqlValue::Number(i64::from(number))
    }
}

impl From<u64> for SqlValue {
    fn from(number: u64) -> Self {
        SqlValue::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<&str> for SqlValue {
    fn from(text: &str) -> Self {
        SqlValue::Text(text.to_owned())
    }
}

impl<T: Into<SqlValue>> From<Option<T>> for SqlValue {
    fn from(value: Option<T>) -> Self {
        value.map_or(SqlValue::Null, Into::into)
    }
}

/// A row of an answer, all as text.
pub(crate) type TextRow = Vec<Option<String>>;

/// The way to one database.
#[async_trait]
pub(crate) trait TrackDatabase: Send + Sync {
    /// Its SQL.
    fn dialect(&self) -> Dialect;

    /// A session in a new transaction. Dropping it gives the transaction up, and may cost the connection.
    async fn begin(&self) -> Result<Box<dyn TrackSession>, Fault>;

    /// What is there of these tables.
    async fn find(&self, tables: &TrackTables) -> Result<FoundTracking, Fault>;

    /// Creates what is missing; others may be doing the same.
    async fn create(&self, tables: &TrackTables) -> Result<(), Fault>;
}

/// A transaction.
#[async_trait]
pub(crate) trait TrackSession: Send {
    /// Runs a statement; how many rows it has changed.
    async fn run(&mut self, sql: &str, values: &[SqlValue]) -> Result<u64, Fault>;

    /// Asks for rows.
    async fn ask(&mut self, sql: &str, values: &[SqlValue]) -> Result<Vec<TextRow>, Fault>;

    /// Commits.
    async fn commit(self: Box<Self>) -> Result<(), Fault>;

    /// Gives the transaction up and keeps the connection, for what is expected to happen often.
    async fn roll_back(self: Box<Self>) -> Result<(), Fault>;
}
