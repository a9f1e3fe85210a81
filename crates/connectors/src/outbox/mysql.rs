//! Sessions with MariaDB and MySQL.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::Fault;
use potok_core::trouble::{Bug, Plant};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Error, MySqlConnection, Row as _};
use tokio::sync::Mutex;

use super::RelayOptions;
use super::session::{Cells, OutboxSession};
use crate::mysql::fault;

/// Nothing is cut, bent or guessed, and a backslash is an escape in literals.
const SQL_MODE: &str = "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,\
                        ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO";

/// One session; others wait for their turn.
pub(super) struct MysqlSession {
    label: String,
    options: MySqlConnectOptions,
    /// How long a call may take.
    call: Duration,
    lease: Duration,
    /// The naive version that a test has switched on.
    plant: Plant,
    connection: Mutex<Option<MySqlConnection>>,
}

impl MysqlSession {
    pub fn new(
        label: &str,
        options: MySqlConnectOptions,
        call: Duration,
        settings: &RelayOptions,
    ) -> Self {
        let options = options
            .charset("utf8mb4")
            .pipes_as_concat(false)
            .no_engine_substitution(false)
            .disable_statement_logging();
        let connection = Mutex::default();
        let (label, lease, plant) = (label.to_owned(), settings.lease, settings.plant);
        MysqlSession { label, options, call, lease, plant, connection }
    }

    async fn connect(&self) -> Result<MySqlConnection, Error> {
        let mut connection = self.options.connect().await?;
        // A note that waits holds on to the lease, which must be renewed meanwhile: it gives up soon,
        // also where somebody has locked the whole table or changes it. `IN` with a long list must not become a temporary table without an index.
        let sql = format!(
            "SET SESSION sql_mode = '{SQL_MODE}', SESSION autocommit = 1, \
             SESSION foreign_key_checks = 1, SESSION unique_checks = 1, \
             SESSION time_zone = '+00:00', SESSION innodb_lock_wait_timeout = 1, \
             SESSION lock_wait_timeout = 1 \
             /*M!100300 , SESSION max_statement_time = {:.3}, \
             SESSION in_predicate_conversion_threshold = {}, \
             SESSION idle_transaction_timeout = {} */; \
             SET SESSION TRANSACTION ISOLATION LEVEL READ {}",
            self.call.as_secs_f64(),
            if self.plant.is(Bug::ListsAsTables) { 1_000 } else { 0 },
            (self.lease / 2).as_secs().max(1),
            if self.plant.is(Bug::ReadsUncommitted) { "UNCOMMITTED" } else { "COMMITTED" },
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
        Ok(connection)
    }

    /// Runs the text as one packet. Whatever goes wrong, and when this is cancelled, the session is
    /// closed and the server rolls back.
    async fn run(&self, sql: String) -> Result<Vec<Cells>, Fault> {
        let sort = |trouble: crate::sql::SqlTrouble, error: Option<&Error>| {
            let cause = error.map(|error| error as &dyn std::fmt::Display);
            trouble.fault(&fault::SYSTEM, &self.label, cause)
        };
        let mut held = self.connection.lock().await;
        let work = async {
            let mut connection = match held.take() {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut connection).await?;
            let mut all = Vec::with_capacity(rows.len());
            for row in &rows {
                let mut cells: Cells = Vec::with_capacity(row.len());
                for at in 0..row.len() {
                    let bytes: Option<Vec<u8>> = row.try_get_unchecked(at)?;
                    cells.push(bytes.map(Bytes::from));
                }
                all.push(cells);
            }
            Ok::<_, Error>((connection, all))
        };
        match tokio::time::timeout(self.call + Duration::from_secs(1), work).await {
            Ok(Ok((connection, all))) => {
                *held = Some(connection);
                Ok(all)
            }
            Ok(Err(error)) => Err(sort(fault::trouble(&error), Some(&error))),
            Err(_) => Err(sort(crate::sql::SqlTrouble::Silent, None)),
        }
    }
}

#[async_trait]
impl OutboxSession for MysqlSession {
    async fn query(&self, sql: String) -> Result<Vec<Cells>, Fault> {
        self.run(sql).await
    }

    async fn transact(
        &self,
        before: &[String],
        statements: &[String],
    ) -> Result<Vec<Cells>, Fault> {
        let mut sql = before.iter().map(|sql| format!("{sql};\n")).collect::<String>();
        sql.push_str("START TRANSACTION;\n");
        statements.iter().for_each(|statement| {
            sql.push_str(statement);
            sql.push_str(";\n");
        });
        sql.push_str("COMMIT");
        self.run(sql).await
    }
}
