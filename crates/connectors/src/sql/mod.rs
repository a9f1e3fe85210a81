//! What every SQL destination shares: which tables a record becomes, the statements that create
//! them, and the values of a record's rows.
//!
//! One record becomes one row of the table at `.` and rows of its children, all or none. The
//! first table carries the rule of "once": a unique business id, the hash of the source bytes and
//! the record's position. How statements are run, and what errors mean, is each system's own.

mod ddl;
mod fit;
mod rows;
mod schema;
mod tables;

#[cfg(test)]
mod tests;

pub use ddl::Dialect;
pub use fit::{FoundColumn, FoundTable};
pub use rows::{Cell, RecordRows, Rows};
pub use tables::{Column, Kind, SqlSinkConfig, Table, Tables};
