//! What every SQL destination shares: which tables a record becomes, the statements that create
//! them, and the values of a record's rows.
//!
//! One record becomes one row of the table at `.` and rows of its children, all or none. The
//! first table carries the rule of "once": a unique business id, the hash of the source bytes and
//! the record's position. How statements are run, and what errors mean, is each system's own.

mod call;
mod connections;
mod ddl;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod fault;
mod fit;
mod once;
mod rows;
mod schema;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod server;
mod settings;
mod tables;
mod track;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod url;

#[cfg(test)]
mod tests;

pub use connections::SqlTimeouts;
pub use ddl::Dialect;
pub use fit::{FoundColumn, FoundTable, RollbackSupport};
pub use rows::{Cell, RecordRows, Rows};
pub use settings::{CONNECTIONS, SqlSettings, track_ddl, tracker};
pub use tables::{Bounds, Column, ColumnKind, SqlSinkConfig, Table, Tables};
pub use track::{LogIdentity, TrackConfig};

pub(crate) use call::{Endings, read, receipt};
pub(crate) use connections::Connections;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) use fault::{SqlTrouble, System};
pub(crate) use once::{ExistingRow, OnceSteps, conflict, unexplained, write};
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) use server::{ServerSink, SqlServer};
pub(crate) use settings::{DatabaseLocation, DatabaseSystem, database, register};
pub(crate) use track::{
    FoundTracking, SqlTracker, SqlValue, TextRow, TrackDatabase, TrackSession, TrackTables,
};
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) use url::{bare_host, check_parameters, must_verify};
