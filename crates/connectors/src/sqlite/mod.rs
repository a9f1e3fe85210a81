//! SQLite as a destination: every record at most once, all its rows or none.
//!
//! Promised: what `deliver` reports as delivered is on disk; a repeat, after whatever crash, is
//! found by its delivery id or by its id and hash; a record the tables refuse takes no other with
//! it; a file that is away, full, locked or read-only is waited for. Not here: updates, deletes
//! and reads. A database has many uses, this connector writes records into it.

mod client;
pub(crate) mod fault;
mod settings;
mod sink;
mod statements;
mod track;
mod writer;

pub(crate) use client::open_file;
pub(crate) use settings::{DATABASE, path};
pub use sink::SqliteSink;
