//! A session with a database, as the relay uses it: text in, rows of text out.
//!
//! Statements carry their values as literals. So a note of several statements goes to the server in one
//! packet, and a process that is frozen in the middle of one leaves no transaction open; and lists of
//! thousands of ids are constants to the planner.

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::Fault;

/// A row: bytes as the database prints them, `None` for null.
pub(crate) type Cells = Vec<Option<Bytes>>;

/// One session at a time; opened when it is first used, and anew after trouble.
///
/// A fault whose move is `SetAside` means that the database refused what was to be written; every
/// other one is about the database.
#[async_trait]
pub(crate) trait OutboxSession: Send + Sync {
    /// Runs one statement by itself.
    async fn query(&self, sql: String) -> Result<Vec<Cells>, Fault>;

    /// Runs statements in one transaction, all or none; returns the rows of all of them.
    /// `before` is run ahead of it, outside of it.
    async fn transact(&self, before: &[String], statements: &[String])
    -> Result<Vec<Cells>, Fault>;
}

/// The cell as text.
pub(crate) fn text(cells: &Cells, at: usize) -> Option<String> {
    let cell = cells.get(at)?.as_ref()?;
    Some(String::from_utf8_lossy(cell).into_owned())
}

/// The cell as a number.
pub(crate) fn number(cells: &Cells, at: usize) -> Option<i64> {
    let text = text(cells, at)?;
    let whole = text.split_once('.').map_or(text.as_str(), |(whole, _)| whole);
    whole.parse().ok()
}
