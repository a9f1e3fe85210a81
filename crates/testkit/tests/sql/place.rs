//! A database and a sink on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use potok_connectors::mysql::MysqlSink;
use potok_connectors::postgres::PostgresSink;
use potok_connectors::sql::{SqlSinkConfig, SqlTimeouts};
use potok_connectors::sqlite::SqliteSink;
use potok_core::{Batch, Fault, Message, Move, Outcome, Sink};
use potok_testkit::services;
use rusqlite::Connection;
use rusqlite::types::Value as SqlValue;
use tempfile::TempDir;

use crate::order::orders_config;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Sqlite,
    Postgres,
    Mariadb,
}

impl System {
    /// A sink for the database at `url`.
    pub fn sink(self, url: &str, config: SqlSinkConfig) -> Arc<dyn Sink> {
        self.try_sink(url, config, SqlTimeouts::default()).unwrap()
    }

    /// The same, which gives up sooner.
    pub fn hasty_sink(self, url: &str, config: SqlSinkConfig) -> Arc<dyn Sink> {
        self.try_sink(url, config, hasty()).unwrap()
    }

    pub fn try_sink(
        self,
        url: &str,
        config: SqlSinkConfig,
        timeouts: SqlTimeouts,
    ) -> Result<Arc<dyn Sink>, Vec<Fault>> {
        Ok(match self {
            System::Sqlite => Arc::new(SqliteSink::new(PathBuf::from(url), config)?),
            System::Postgres => Arc::new(PostgresSink::new(url, config)?.with_timeouts(timeouts)),
            System::Mariadb => Arc::new(MysqlSink::new(url, config)?.with_timeouts(timeouts)),
        })
    }

    /// A new database: a file, or one on the server that all tests share.
    pub fn database(self, folder: &TempDir) -> String {
        match self {
            System::Sqlite => {
                let path = folder.path().join("test.sqlite");
                fs::write(&path, "").unwrap();
                path.display().to_string()
            }
            System::Postgres => services::postgres().fresh_database(),
            System::Mariadb => services::mariadb().fresh_database(),
        }
    }

    /// Rows as text, from the file or from the shared server.
    pub fn query(self, url: &str, sql: &str) -> Vec<String> {
        let rows = match self {
            System::Sqlite => return query_file(Path::new(url), sql),
            System::Postgres => services::postgres().query(url, sql),
            System::Mariadb => services::mariadb().query(url, sql),
        };
        rows.into_iter().map(|row| row.join(", ")).collect()
    }

    /// What is said differently.
    pub fn pick<T>(self, sqlite: T, postgres: T, mariadb: T) -> T {
        match self {
            System::Sqlite => sqlite,
            System::Postgres => postgres,
            System::Mariadb => mariadb,
        }
    }

    /// The same, in tests of servers.
    pub fn pick_server<T>(self, postgres: T, mariadb: T) -> T {
        match self {
            System::Sqlite => panic!("SQLite is no server"),
            System::Postgres => postgres,
            System::Mariadb => mariadb,
        }
    }
}

pub fn hasty() -> SqlTimeouts {
    SqlTimeouts {
        connect: Duration::from_secs(2),
        call: Duration::from_secs(4),
        lock: Duration::from_secs(2),
    }
}

/// A database of its own, and a sink on it.
pub struct TestDatabase {
    pub system: System,
    /// The address, or the path of the file.
    pub url: String,
    pub folder: TempDir,
    pub sink: Arc<dyn Sink>,
}

impl TestDatabase {
    /// Orders into four tables, which are created.
    pub async fn orders(system: System) -> TestDatabase {
        let place = TestDatabase::made_by(system, "", orders_config());
        place.sink.prepare().await.unwrap();
        place
    }

    /// A database made by `sql`, and a sink for it. Not prepared.
    pub fn made_by(system: System, sql: &str, config: SqlSinkConfig) -> TestDatabase {
        let folder = tempfile::tempdir().unwrap();
        let url = system.database(&folder);
        if !sql.is_empty() {
            system.query(&url, sql);
        }
        let sink = system.sink(&url, config);
        TestDatabase { system, url, folder, sink }
    }

    /// Delivers; every outcome as one word, with what a failed one says.
    pub async fn deliver(&self, messages: Vec<Message>) -> Vec<String> {
        outcomes(&self.sink, messages).await
    }

    /// The file of SQLite.
    pub fn path(&self) -> &Path {
        Path::new(&self.url)
    }

    pub fn query(&self, sql: &str) -> Vec<String> {
        self.system.query(&self.url, sql)
    }

    pub fn count(&self, table: &str) -> usize {
        self.query(&format!("SELECT count(*) FROM {table}"))[0].parse().unwrap()
    }
}

/// Runs statements on a file; a query's rows as text.
pub fn query_file(path: &Path, sql: &str) -> Vec<String> {
    let connection = Connection::open(path).unwrap();
    if !["SELECT", "PRAGMA"].iter().any(|word| sql.starts_with(word)) {
        connection.execute_batch(sql).unwrap();
        return Vec::new();
    }
    let mut statement = connection.prepare(sql).unwrap();
    let width = statement.column_count();
    let mut rows = statement.query([]).unwrap();
    let mut lines = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        let cell = |index| match row.get::<_, SqlValue>(index).unwrap() {
            SqlValue::Null => "NULL".to_owned(),
            SqlValue::Integer(integer) => integer.to_string(),
            SqlValue::Real(real) => format!("{real:?}"),
            SqlValue::Text(text) => text,
            SqlValue::Blob(_) => "blob".to_owned(),
        };
        lines.push((0..width).map(cell).collect::<Vec<_>>().join(", "));
    }
    lines
}

/// One attempt.
pub async fn attempt(sink: &Arc<dyn Sink>, messages: Vec<Message>) -> Result<Vec<String>, Fault> {
    let len = messages.len();
    let receipt = sink.deliver(&Batch { messages }).await?;
    Ok(receipt.outcomes(len).map(word).collect())
}

/// As the engine does it: a batch of which some are bad is split until they are alone, and what
/// only failed is tried again.
pub async fn outcomes(sink: &Arc<dyn Sink>, messages: Vec<Message>) -> Vec<String> {
    let fault = match attempt(sink, messages.clone()).await {
        Ok(words) => return words,
        Err(fault) => fault,
    };
    match fault.next {
        Move::SetAside if messages.len() > 1 => {
            let mut left = messages;
            let right = left.split_off(left.len() / 2);
            let mut words = Box::pin(outcomes(sink, left)).await;
            words.extend(Box::pin(outcomes(sink, right)).await);
            words
        }
        Move::SetAside => vec![word(Outcome::Failed(fault))],
        Move::Retry => Box::pin(outcomes(sink, messages)).await,
        Move::Wait | Move::Fix => panic!("{fault}"),
    }
}

fn word(outcome: Outcome) -> String {
    match outcome {
        Outcome::Delivered => "delivered".to_owned(),
        Outcome::Duplicate | Outcome::Again => "duplicates".to_owned(),
        Outcome::Failed(fault) => format!("{:?} {}: {fault}", fault.next, fault.reason),
    }
}

pub fn is(fault: &Fault, next: Move, code: &str) {
    assert_eq!((fault.next, fault.code), (next, code), "{fault}");
}
