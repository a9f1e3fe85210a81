//! MariaDB and MySQL as a destination: every record at most once, all its rows or none.
//!
//! Promised: what `deliver` reports as delivered is committed; a repeat, after whatever crash or
//! lost answer, is found by its delivery id or by its id and hash; several processes may write the
//! same ids at once; a value that a column would cut or bend is refused; a server that is away,
//! full, frozen or read-only is waited for. Rows go many at a time in prepared statements of a few
//! fixed sizes. Not here: updates, deletes and reads.

mod client;
pub(crate) mod fault;
mod settings;
mod sink;
mod statements;
mod track;

pub(crate) use settings::DATABASE;
pub use sink::MysqlSink;
pub(crate) use sink::options;
