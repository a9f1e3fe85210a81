//! Sessions with PostgreSQL.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::Fault;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Error, PgConnection, Row as _, ValueRef as _};
use tokio::sync::Mutex;

use super::session::{Cells, OutboxSession};
use crate::postgres::fault;

/// One session; others wait for their turn.
pub(super) struct PostgresSession {
    label: String,
    options: PgConnectOptions,
    /// How long a call may take.
    call: Duration,
    /// A transaction that is open without a word from us so long is given up by the server.
    idle: Duration,
    connection: Mutex<Option<PgConnection>>,
}

impl PostgresSession {
    pub fn new(label: &str, options: PgConnectOptions, call: Duration, lease: Duration) -> Self {
        let options = match options.get_application_name() {
            Some(_) => options,
            None => options.application_name("potok"),
        };
        PostgresSession {
            label: label.to_owned(),
            options: options.disable_statement_logging(),
            call,
            idle: lease / 2,
            connection: Mutex::default(),
        }
    }

    async fn connect(&self) -> Result<PgConnection, Error> {
        let mut connection = self.options.connect().await?;
        // Lists of ids are constants here; a plan that was made for others would be slow.
        let sql = format!(
            "SET statement_timeout = {}; SET lock_timeout = {}; \
             SET idle_in_transaction_session_timeout = {}; \
             SET standard_conforming_strings = on; SET plan_cache_mode = force_custom_plan; \
             SET TimeZone = 'UTC'; SET bytea_output = 'hex'; \
             SELECT set_config('synchronous_commit', 'on', false) \
             WHERE current_setting('synchronous_commit') = 'off'; \
             DO $$ BEGIN IF pg_is_in_recovery() THEN RAISE EXCEPTION USING ERRCODE = '25006', \
             MESSAGE = 'this server is a replica'; END IF; END $$",
            self.call.as_millis(),
            // A note that waits holds on to the lease, which must be renewed meanwhile.
            (self.idle / 3).as_millis().clamp(1, 1_000),
            self.idle.as_millis().max(1),
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
                let mut cells = Vec::with_capacity(row.len());
                for at in 0..row.len() {
                    let value = row.try_get_raw(at)?;
                    cells.push(match value.is_null() {
                        true => None,
                        false => {
                            let bytes = value.as_bytes().map_err(Error::Decode)?;
                            Some(Bytes::copy_from_slice(bytes))
                        }
                    });
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
impl OutboxSession for PostgresSession {
    async fn query(&self, sql: String) -> Result<Vec<Cells>, Fault> {
        self.run(sql).await
    }

    async fn transact(
        &self,
        before: &[String],
        statements: &[String],
    ) -> Result<Vec<Cells>, Fault> {
        let mut sql = before.iter().map(|sql| format!("{sql};\n")).collect::<String>();
        sql.push_str("BEGIN ISOLATION LEVEL READ COMMITTED;\n");
        statements.iter().for_each(|statement| {
            sql.push_str(statement);
            sql.push_str(";\n");
        });
        sql.push_str("COMMIT");
        self.run(sql).await
    }
}
