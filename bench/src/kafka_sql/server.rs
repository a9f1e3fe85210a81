//! A database server as the bare loops see it.

use anyhow::Result;

use super::text::TableFiles;
use crate::order::Order;

/// A server, and the fastest way into its tables.
pub trait Server: Sync {
    /// A session with it.
    type Connection;

    /// Its process.
    fn pid(&self) -> u32;

    /// The address of a new empty database.
    fn fresh(&self) -> String;

    /// How many orders a database has.
    fn orders(&self, url: &str) -> Result<u64>;

    /// A new session.
    async fn connect(url: &str) -> Result<Self::Connection>;

    /// Runs statements.
    async fn run(connection: &mut Self::Connection, sql: &str) -> Result<()>;

    /// Writes orders and their positions in one transaction.
    async fn write<'a>(
        connection: &mut Self::Connection,
        orders: &[(Order<'a>, &'a str)],
    ) -> Result<()>;

    /// Loads files of rows in one transaction.
    async fn load(connection: &mut Self::Connection, part: &TableFiles) -> Result<()>;
}
