//! PostgreSQL: an array per column through UNNEST; COPY beside it.

use std::sync::LazyLock;

use anyhow::{Context, Result};
use potok_services::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::{Arguments as _, AssertSqlSafe, Connection as _, PgConnection};
use tokio::fs::File;

use super::server::Server;
use super::text::TableFiles;
use crate::order::{Cell, NUMBERS, Order, TABLES};

static INSERTS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let insert = |(table, columns): &(&str, &[&str])| {
        let arrays = (1..).zip(columns.iter()).map(|(at, column)| {
            let kind = if NUMBERS.contains(column) { "int8" } else { "text" };
            format!("${at}::{kind}[]")
        });
        format!(
            "INSERT INTO {table} ({}) SELECT * FROM UNNEST({}) ON CONFLICT DO NOTHING",
            columns_of(columns),
            arrays.collect::<Vec<_>>().join(",")
        )
    };
    TABLES.iter().map(insert).collect()
});

fn columns_of(columns: &[&str]) -> String {
    columns.iter().map(|column| format!("\"{column}\"")).collect::<Vec<_>>().join(",")
}

/// The values of a column.
enum Column<'a> {
    Texts(Vec<&'a str>),
    Numbers(Vec<i64>),
}

impl Server for Postgres {
    type Connection = PgConnection;

    fn pid(&self) -> u32 {
        Postgres::pid(self)
    }

    fn fresh(&self) -> String {
        self.fresh_database()
    }

    fn orders(&self, url: &str) -> Result<u64> {
        let rows = self.query(url, "SELECT count(*) FROM orders");
        Ok(rows.first().and_then(|row| row.first()).context("a count")?.parse()?)
    }

    async fn connect(url: &str) -> Result<PgConnection> {
        Ok(PgConnection::connect(url).await?)
    }

    async fn run(connection: &mut PgConnection, sql: &str) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await?;
        Ok(())
    }

    async fn write<'a>(
        connection: &mut PgConnection,
        orders: &[(Order<'a>, &'a str)],
    ) -> Result<()> {
        let mut tables = TABLES.map(|(_, columns)| {
            let column = |name: &&str| match NUMBERS.contains(name) {
                true => Column::Numbers(Vec::with_capacity(orders.len())),
                false => Column::Texts(Vec::with_capacity(orders.len())),
            };
            columns.iter().map(column).collect::<Vec<_>>()
        });
        for (order, position) in orders {
            order.rows(position, |table, row| {
                let columns = tables.get_mut(table).into_iter().flatten();
                for (column, cell) in columns.zip(row) {
                    match (column, cell) {
                        (Column::Texts(texts), Cell::Text(text)) => texts.push(text),
                        (Column::Numbers(numbers), Cell::Number(number)) => numbers.push(*number),
                        _ => {}
                    }
                }
            });
        }
        Self::run(connection, "BEGIN").await?;
        for (sql, columns) in INSERTS.iter().zip(&tables) {
            let mut arguments = PgArguments::default();
            for column in columns {
                match column {
                    Column::Texts(texts) => arguments.add(texts),
                    Column::Numbers(numbers) => arguments.add(numbers),
                }
                .map_err(|error| anyhow::anyhow!("{error}"))?;
            }
            let query = sqlx::query_with(AssertSqlSafe(sql.as_str()), arguments);
            query.execute(&mut *connection).await?;
        }
        Self::run(connection, "COMMIT").await
    }

    async fn load(connection: &mut PgConnection, part: &TableFiles) -> Result<()> {
        Self::run(connection, "BEGIN").await?;
        for ((table, columns), file) in TABLES.iter().zip(part.files()) {
            let sql = format!("COPY {table} ({}) FROM STDIN", columns_of(columns));
            let mut copy = connection.copy_in_raw(&sql).await?;
            copy.read_from(File::open(file).await?).await?;
            copy.finish().await?;
        }
        Self::run(connection, "COMMIT").await
    }
}
