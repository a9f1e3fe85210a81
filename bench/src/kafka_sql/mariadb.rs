//! MariaDB: prepared inserts of many rows; LOAD DATA beside it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use potok_services::Mariadb;
use sqlx::mysql::MySqlArguments;
use sqlx::{Arguments as _, AssertSqlSafe, Connection as _, MySqlConnection};

use super::server::Server;
use super::text::TableFiles;
use crate::order::{Cell, Order, TABLES};

/// Rows of one statement. What is left goes in powers of two: each number of rows is a statement
/// of its own to the server.
const ROWS: usize = 1_000;

/// Statements by table and number of rows.
type StatementCache = HashMap<(usize, usize), Arc<str>>;

/// The statement for so many rows of a table, made when it is first needed.
fn insert(table: usize, rows: usize) -> Result<Arc<str>> {
    static MADE: Mutex<Option<StatementCache>> = Mutex::new(None);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let made = made.get_or_insert_default();
    if let Some(sql) = made.get(&(table, rows)) {
        return Ok(sql.clone());
    }
    let (name, columns) = TABLES.get(table).context("a table")?;
    let row = format!("({})", vec!["?"; columns.len()].join(","));
    let sql = format!(
        "INSERT INTO {name} ({}) VALUES {} ON DUPLICATE KEY UPDATE order_uid = order_uid",
        columns_of(columns),
        vec![row.as_str(); rows].join(",")
    );
    let sql: Arc<str> = sql.into();
    made.insert((table, rows), sql.clone());
    Ok(sql)
}

fn columns_of(columns: &[&str]) -> String {
    columns.iter().map(|column| format!("`{column}`")).collect::<Vec<_>>().join(",")
}

impl Server for Mariadb {
    type Connection = MySqlConnection;

    fn pid(&self) -> u32 {
        Mariadb::pid(self)
    }

    fn fresh(&self) -> String {
        self.fresh_database()
    }

    fn orders(&self, url: &str) -> Result<u64> {
        let rows = self.query(url, "SELECT count(*) FROM orders");
        Ok(rows.first().and_then(|row| row.first()).context("a count")?.parse()?)
    }

    async fn connect(url: &str) -> Result<MySqlConnection> {
        Ok(MySqlConnection::connect(url).await?)
    }

    async fn run(connection: &mut MySqlConnection, sql: &str) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await?;
        Ok(())
    }

    async fn write<'a>(
        connection: &mut MySqlConnection,
        orders: &[(Order<'a>, &'a str)],
    ) -> Result<()> {
        let mut tables: [Vec<Cell<'a>>; TABLES.len()] = Default::default();
        for (order, position) in orders {
            order.rows(position, |table, row| {
                tables.get_mut(table).into_iter().for_each(|cells| cells.extend_from_slice(row));
            });
        }
        Self::run(connection, "START TRANSACTION").await?;
        for (table, (cells, (_, columns))) in tables.iter().zip(TABLES).enumerate() {
            let mut cells = cells.as_slice();
            while !cells.is_empty() {
                let left = cells.len() / columns.len();
                let rows = if left >= ROWS { ROWS } else { 1 << left.ilog2() };
                let (now, later) = cells.split_at(rows * columns.len());
                let mut arguments = MySqlArguments::default();
                arguments.reserve(now.len(), now.len() * 16);
                for cell in now {
                    match cell {
                        Cell::Text(text) => arguments.add(*text),
                        Cell::Number(number) => arguments.add(*number),
                    }
                    .map_err(|error| anyhow::anyhow!("{error}"))?;
                }
                let query = sqlx::query_with(AssertSqlSafe(insert(table, rows)?), arguments);
                query.execute(&mut *connection).await?;
                cells = later;
            }
        }
        Self::run(connection, "COMMIT").await
    }

    /// The server reads the files itself: no client is as fast.
    async fn load(connection: &mut MySqlConnection, part: &TableFiles) -> Result<()> {
        Self::run(connection, "START TRANSACTION").await?;
        for ((table, columns), file) in TABLES.iter().zip(part.files()) {
            let sql = format!(
                "LOAD DATA INFILE '{}' INTO TABLE {table} CHARACTER SET utf8mb4 ({})",
                file.display(),
                columns_of(columns)
            );
            Self::run(connection, &sql).await?;
        }
        Self::run(connection, "COMMIT").await
    }
}
