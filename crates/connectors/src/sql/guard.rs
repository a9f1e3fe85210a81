//! The database of a shard knows its number.
//!
//! Whoever swaps the addresses of two shards between two starts would have records that are read
//! again written to the other database, where nothing recognises them. So each database keeps, for a
//! pipeline and a table, which shard it is; another number blocks that shard. MariaDB, MySQL and
//! SQLite; a PostgreSQL shard is not guarded.

use std::sync::Arc;

use async_trait::async_trait;
use potok_core::{Batch, Fault, Receipt, Sink, SinkLimits};

use super::{Dialect, TrackDatabase};

/// The table, the same in every shard.
const TABLE: &str = "potok_shard";

/// Which shard a database is to be.
#[derive(Clone, Debug)]
pub(crate) struct ShardMark {
    pub label: String,
    pub pipeline: String,
    /// The first table that is written there.
    pub table: String,
    pub shard: u32,
    /// The table is made where it is missing.
    pub create: bool,
}

/// A sink into the database of one shard.
pub(crate) struct GuardedSink {
    pub inner: Arc<dyn Sink>,
    pub database: Arc<dyn TrackDatabase>,
    pub mark: ShardMark,
}

/// The statement that makes the table.
pub(crate) fn guard_ddl(dialect: Dialect) -> Option<String> {
    let (text, end) = match dialect {
        Dialect::Mysql => {
            ("VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", " ENGINE=InnoDB")
        }
        Dialect::Sqlite => ("TEXT", ""),
        Dialect::Postgres => return None,
    };
    let quote = |name: &str| dialect.quote(name);
    Some(format!(
        "CREATE TABLE IF NOT EXISTS {} (\n  {} {text} NOT NULL,\n  {} {text} NOT NULL,\n  {} INT NOT \
         NULL,\n  PRIMARY KEY ({}, {})\n){end}",
        quote(TABLE),
        quote("pipeline"),
        quote("table_name"),
        quote("shard"),
        quote("pipeline"),
        quote("table_name"),
    ))
}

impl GuardedSink {
    /// Notes the number where there is none, if that is wanted, and compares it.
    async fn guard(&self, writes: bool) -> Result<(), Fault> {
        let ShardMark { label, pipeline, table, shard, create } = &self.mark;
        let dialect = self.database.dialect();
        let is_there = match dialect {
            Dialect::Mysql => {
                "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() \
                 AND table_name = ?"
            }
            Dialect::Sqlite | Dialect::Postgres => {
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name = ?"
            }
        };
        let mut session = self.database.begin().await?;
        if session.ask(is_there, &[TABLE.into()]).await?.is_empty() {
            if !create {
                let what =
                    format!("{label}: there is no table `{TABLE}`, which keeps the shard's number");
                let hint = "create it with what `potok ddl` prints, or set `create_tables: true`";
                return Err(Fault::fix(what).hint(hint).code("P1421"));
            }
            if !writes {
                return Ok(());
            }
            session.run(&guard_ddl(dialect).unwrap_or_default(), &[]).await?;
        }
        let name = dialect.quote(TABLE);
        let ask =
            format!("SELECT CAST(shard AS CHAR) FROM {name} WHERE pipeline = ? AND table_name = ?");
        let key = [pipeline.as_str().into(), table.as_str().into()];
        let mut found = session.ask(&ask, &key).await?;
        if found.is_empty() && writes {
            let stays = match dialect {
                Dialect::Mysql => "INSERT IGNORE INTO",
                Dialect::Sqlite | Dialect::Postgres => "INSERT OR IGNORE INTO",
            };
            let sql = format!("{stays} {name} (pipeline, table_name, shard) VALUES (?, ?, ?)");
            let [pipeline, table] = key.clone();
            session.run(&sql, &[pipeline, table, (*shard).into()]).await?;
            found = session.ask(&ask, &key).await?;
        }
        session.commit().await?;
        let found = found.first().and_then(|row| row.first().cloned().flatten());
        match found {
            // Another process has just noted one that this transaction does not see yet.
            None if writes => {
                Err(Fault::retry(format!("{label}: `{TABLE}` does not say which shard it is")))
            }
            Some(found) if found != shard.to_string() => {
                let what = format!("{label}: this database is shard {found}, not {shard}");
                let hint = "two addresses have changed places: set them back. Where this database \
                            really is to be another shard, change the row in `potok_shard`";
                Err(Fault::fix(what).hint(hint).code("P1420"))
            }
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Sink for GuardedSink {
    fn limits(&self) -> SinkLimits {
        self.inner.limits()
    }

    async fn prepare(&self) -> Result<(), Fault> {
        self.inner.prepare().await?;
        self.guard(true).await
    }

    async fn check(&self) -> Result<(), Fault> {
        self.inner.check().await?;
        self.guard(false).await
    }

    async fn probe(&self) -> Result<(), Fault> {
        self.inner.probe().await
    }

    async fn deliver(&self, batch: &Batch) -> Result<Receipt, Fault> {
        self.inner.deliver(batch).await
    }
}
