//! The tables of a tracker in a MariaDB or MySQL database.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use potok_core::Fault;
use sqlx::mysql::{MySqlArguments, MySqlRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Error, MySql, MySqlConnection, Row as _};

use super::client::Mysql;
use super::fault;
use crate::sql::{
    Connections, Dialect, FoundTracking, SqlServer, SqlTimeouts, SqlTrouble, SqlValue, TextRow,
    TrackDatabase, TrackSession, TrackTables,
};

/// One database.
pub(super) struct MysqlTracking {
    label: Arc<str>,
    server: Mysql,
    timeouts: SqlTimeouts,
    connections: Arc<Connections<MySqlConnection>>,
}

impl MysqlTracking {
    pub fn new(label: &str, server: Mysql) -> Self {
        let connections = Arc::new(Connections::new());
        MysqlTracking { label: label.into(), server, timeouts: SqlTimeouts::default(), connections }
    }

    fn fault(&self, error: &Error) -> Fault {
        sort(&self.label, error)
    }

    async fn connect(&self) -> Result<MySqlConnection, Fault> {
        let connecting = self.server.connect(&self.timeouts);
        match tokio::time::timeout(self.timeouts.connect, connecting).await {
            Ok(connected) => connected.map_err(|error| self.fault(&error)),
            Err(_) => Err(SqlTrouble::Silent.fault(&fault::SYSTEM, &self.label, None)),
        }
    }
}

fn sort(label: &str, error: &Error) -> Fault {
    fault::trouble(error).fault(&fault::SYSTEM, label, Some(error))
}

/// A transaction. Dropping it closes its connection, and the server gives it up.
struct MysqlTrackSession {
    label: Arc<str>,
    connection: MySqlConnection,
    connections: Arc<Connections<MySqlConnection>>,
}

impl MysqlTrackSession {
    /// The transaction is over: the connection is for the next one.
    fn keep(self) {
        self.connections.give_back(self.connection);
    }
}

fn bound<'q>(sql: &str, values: &[SqlValue]) -> Query<'q, MySql, MySqlArguments> {
    let mut query = sqlx::query(AssertSqlSafe(sql.to_owned()));
    for value in values {
        query = match value {
            SqlValue::Null => query.bind(None::<String>),
            SqlValue::Number(number) => query.bind(*number),
            SqlValue::Text(text) => query.bind(text.clone()),
        };
    }
    query
}

fn cells(row: &MySqlRow) -> Result<TextRow, Error> {
    let cell = |at: usize| {
        let bytes: Option<Vec<u8>> = row.try_get_unchecked(at)?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    };
    (0..row.len()).map(cell).collect()
}

#[async_trait]
impl TrackSession for MysqlTrackSession {
    async fn run(&mut self, sql: &str, values: &[SqlValue]) -> Result<u64, Fault> {
        let done = bound(sql, values).execute(&mut self.connection).await;
        done.map(|done| done.rows_affected()).map_err(|error| sort(&self.label, &error))
    }

    async fn ask(&mut self, sql: &str, values: &[SqlValue]) -> Result<Vec<TextRow>, Fault> {
        let rows = bound(sql, values).fetch_all(&mut self.connection).await;
        let rows = rows.and_then(|rows| rows.iter().map(cells).collect());
        rows.map_err(|error| sort(&self.label, &error))
    }

    async fn commit(mut self: Box<Self>) -> Result<(), Fault> {
        Mysql::commit(&mut self.connection).await.map_err(|error| sort(&self.label, &error))?;
        self.keep();
        Ok(())
    }

    async fn roll_back(mut self: Box<Self>) -> Result<(), Fault> {
        Mysql::roll_back(&mut self.connection).await.map_err(|error| sort(&self.label, &error))?;
        self.keep();
        Ok(())
    }
}

#[async_trait]
impl TrackDatabase for MysqlTracking {
    fn dialect(&self) -> Dialect {
        Dialect::Mysql
    }

    async fn begin(&self) -> Result<Box<dyn TrackSession>, Fault> {
        let (label, connections) = (self.label.clone(), self.connections.clone());
        // One that was used before may have died since: nothing was done on it.
        if let Some(mut connection) = self.connections.take() {
            let begun = tokio::time::timeout(self.timeouts.connect, Mysql::begin(&mut connection));
            if let Ok(Ok(())) = begun.await {
                return Ok(Box::new(MysqlTrackSession { label, connection, connections }));
            }
            self.connections.forget();
        }
        let mut connection = self.connect().await?;
        Mysql::begin(&mut connection).await.map_err(|error| self.fault(&error))?;
        Ok(Box::new(MysqlTrackSession { label, connection, connections }))
    }

    async fn find(&self, tables: &TrackTables) -> Result<FoundTracking, Fault> {
        let mut session = self.begin().await?;
        let sql = "SELECT COLUMN_NAME, CAST(COLUMN_TYPE AS CHAR), EXTRA FROM \
                   information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ? \
                   ORDER BY ORDINAL_POSITION";
        let column = |row: &TextRow| {
            let word = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
            let follows = word(2).to_ascii_lowercase().contains("on update");
            (word(0), word(1).to_ascii_lowercase(), follows)
        };
        let of_table = session.ask(sql, &[tables.table.as_str().into()]).await?;
        let of_beside = session.ask(sql, &[tables.beside.as_str().into()]).await?;
        let sql = "SELECT INDEX_NAME, COLUMN_NAME FROM information_schema.STATISTICS WHERE \
                   TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ? AND NON_UNIQUE = 0 ORDER BY \
                   INDEX_NAME, COLUMN_NAME";
        let mut unique: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for row in session.ask(sql, &[tables.table.as_str().into()]).await? {
            if let [Some(index), Some(column)] = row.as_slice() {
                unique.entry(index.clone()).or_default().push(column.clone());
            }
        }
        session.commit().await?;
        Ok(FoundTracking {
            columns: of_table.iter().map(column).collect(),
            unique: unique.into_values().collect(),
            beside: of_beside.iter().map(column).map(|(name, ..)| name).collect(),
            follows: true,
        })
    }

    async fn create(&self, tables: &TrackTables) -> Result<(), Fault> {
        let mut session = self.begin().await?;
        for statement in tables.ddl(Dialect::Mysql) {
            session.run(&statement, &[]).await?;
        }
        session.commit().await
    }
}
