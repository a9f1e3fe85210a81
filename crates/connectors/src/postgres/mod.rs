//! PostgreSQL as a destination: every record at most once, all its rows or none.
//!
//! Promised: what `deliver` reports as delivered is committed, with the disk told to keep it; a
//! repeat, after whatever crash or lost answer, is found by its delivery id or by its id and hash;
//! several processes may write the same ids at once; a server that is away, full, frozen or
//! read-only is waited for. One statement per table takes a whole batch as arrays. Not here:
//! updates, deletes and reads, and pools in front of the server that hand one session to many.

mod arrays;
mod client;
pub(crate) mod fault;
mod settings;
mod sink;
mod statements;

pub(crate) use settings::DATABASE;
pub use sink::PostgresSink;
pub(crate) use sink::options;
