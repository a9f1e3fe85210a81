//! Sessions with PostgreSQL: how they are set up, and what the database has.

use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Error, PgConnection, Row as _};

use super::fault;
use super::statements::{PostgresBatch, PostgresPlan};
use crate::sql::{
    Bounds, ColumnKind, Dialect, Endings, FoundColumn, FoundTable, Rows, SqlServer, SqlTimeouts,
    SqlTrouble, System, Tables, write,
};

/// A transaction still open after so long without a word from us is given up by the server: we
/// were stopped, and others wait for its locks.
const IDLE_TRANSACTION_MAX_MS: u128 = 60_000;
/// Whoever creates tables holds this lock: `CREATE TABLE IF NOT EXISTS` fails where two run at
/// once. The number is the word potok.
const CREATE_LOCK: i64 = 0x70_6f_74_6f_6b;

/// The way to one database.
pub(super) struct Postgres {
    options: PgConnectOptions,
}

impl Postgres {
    pub fn new(options: PgConnectOptions) -> Postgres {
        let options = match options.get_application_name() {
            Some(_) => options,
            None => options.application_name("potok"),
        };
        // Statements hold no values, but there is nothing to learn from them either.
        Postgres { options: options.disable_statement_logging() }
    }
}

impl SqlServer for Postgres {
    type Connection = PgConnection;
    type Plan = PostgresPlan;
    const SYSTEM: System = fault::SYSTEM;
    const DIALECT: Dialect = Dialect::Postgres;

    async fn connect(&self, timeouts: &SqlTimeouts) -> Result<PgConnection, Error> {
        let mut connection = self.options.connect().await?;
        // A commit is answered when it is on disk, whatever the server's default.
        let sql = format!(
            "SET statement_timeout = {}; SET lock_timeout = {}; \
             SET idle_in_transaction_session_timeout = {IDLE_TRANSACTION_MAX_MS}; \
             SET standard_conforming_strings = on; \
             SELECT set_config('synchronous_commit', 'on', false) \
             WHERE current_setting('synchronous_commit') = 'off'",
            timeouts.statement().as_millis(),
            timeouts.lock.as_millis(),
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
        Ok(connection)
    }

    async fn begin(connection: &mut PgConnection) -> Result<(), Error> {
        run(connection, "BEGIN ISOLATION LEVEL READ COMMITTED").await
    }

    async fn commit(connection: &mut PgConnection) -> Result<(), Error> {
        run(connection, "COMMIT").await
    }

    async fn roll_back(connection: &mut PgConnection) -> Result<(), Error> {
        run(connection, "ROLLBACK").await
    }

    async fn write(
        connection: &mut PgConnection,
        plan: &PostgresPlan,
        rows: &Rows,
    ) -> Result<Endings, Error> {
        write(&mut PostgresBatch { connection, plan, rows }, &plan.tables, rows).await
    }

    async fn takes_writes(connection: &mut PgConnection, _: &Tables) -> Result<bool, Error> {
        let sql = "SELECT NOT pg_is_in_recovery() \
                   AND current_setting('transaction_read_only') = 'off'";
        sqlx::query(sql).fetch_one(connection).await?.try_get(0)
    }

    async fn find(
        connection: &mut PgConnection,
        tables: &Tables,
    ) -> Result<Vec<Option<FoundTable>>, Error> {
        let mut found = Vec::new();
        for name in tables.names() {
            found.push(find_table(connection, name).await?);
        }
        Ok(found)
    }

    async fn create(connection: &mut PgConnection, tables: &Tables) -> Result<(), Error> {
        let mut sql = format!("BEGIN; SELECT pg_advisory_xact_lock({CREATE_LOCK});\n");
        for statement in tables.ddl(Dialect::Postgres) {
            sql.push_str(&statement);
            sql.push_str(";\n");
        }
        sql.push_str("COMMIT");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
    }

    async fn plan(_: &mut PgConnection, tables: Tables) -> Result<PostgresPlan, Error> {
        Ok(PostgresPlan::new(tables))
    }

    fn tables(plan: &PostgresPlan) -> &Tables {
        &plan.tables
    }

    fn trouble(error: &Error) -> SqlTrouble {
        fault::trouble(error)
    }
}

async fn run(connection: &mut PgConnection, sql: &'static str) -> Result<(), Error> {
    sqlx::raw_sql(sql).execute(connection).await.map(drop)
}

/// The table that the name means along the search path.
async fn find_table(
    connection: &mut PgConnection,
    name: &str,
) -> Result<Option<FoundTable>, Error> {
    // Of a domain, what is below it. A column that counts by itself has the next number as its
    // default; one that is always computed cannot be written.
    let sql = "SELECT a.attname::text, format_type(b.oid, NULL), b.typname::text, \
             CASE WHEN t.typbasetype <> 0 THEN t.typtypmod ELSE a.atttypmod END, \
             a.attnotnull, \
             CASE WHEN a.attidentity <> '' THEN \
               format('nextval(pg_get_serial_sequence(%L, %L))', quote_ident($1), a.attname) \
             ELSE pg_get_expr(d.adbin, d.adrelid) END \
         FROM pg_attribute a \
         JOIN pg_type t ON t.oid = a.atttypid \
         JOIN pg_type b ON b.oid = CASE WHEN t.typbasetype <> 0 THEN t.typbasetype ELSE t.oid END \
         LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
         WHERE a.attrelid = to_regclass(quote_ident($1)) AND a.attnum > 0 \
         AND NOT a.attisdropped AND a.attgenerated = '' AND a.attidentity <> 'a' \
         ORDER BY a.attnum";
    let rows = sqlx::query(sql).bind(name).fetch_all(&mut *connection).await?;
    let columns: Vec<FoundColumn> = rows.iter().map(column).collect::<Result<_, _>>()?;
    if columns.is_empty() {
        return Ok(None);
    }
    let unique = find_unique(connection, name).await?;
    Ok(Some(FoundTable { columns, unique, ..FoundTable::default() }))
}

fn column(row: &PgRow) -> Result<FoundColumn, Error> {
    let (sql_type, name): (String, &str) = (row.try_get(1)?, row.try_get(2)?);
    let modifier: i32 = row.try_get(3)?;
    let default: Option<String> = row.try_get(5)?;
    let (kind, integers) = match name {
        "int2" => (ColumnKind::Integer, Some((i16::MIN.into(), i16::MAX.into()))),
        "int4" => (ColumnKind::Integer, Some((i32::MIN.into(), i32::MAX.into()))),
        "int8" => (ColumnKind::Integer, None),
        "float4" | "float8" => (ColumnKind::Real, None),
        "bool" => (ColumnKind::Boolean, None),
        "json" | "jsonb" => (ColumnKind::Json, None),
        // Whatever it is, it can be written as text: dates, decimals, enums, addresses.
        _ => (ColumnKind::Text, None),
    };
    // The modifier of these is their length and four.
    let chars_max = matches!(name, "varchar" | "bpchar")
        .then(|| usize::try_from(modifier).ok()?.checked_sub(4))
        .flatten();
    Ok(FoundColumn {
        name: row.try_get(0)?,
        kind,
        not_null: row.try_get(4)?,
        default,
        bounds: Bounds { sql_type, chars_max, integers },
    })
}

/// The unique indexes that cover every row, are checked at once and compare bytes. A collation
/// that is deterministic takes nothing for equal that differs in a byte.
async fn find_unique(connection: &mut PgConnection, name: &str) -> Result<Vec<Vec<String>>, Error> {
    let sql = "SELECT i.indexrelid::int8, a.attname::text, \
             coalesce(c.collisdeterministic, true) AND t.typname NOT IN ('citext', 'bpchar') \
         FROM pg_index i \
         CROSS JOIN LATERAL generate_series(0, i.indnkeyatts - 1) AS k(at) \
         LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k.at] \
         LEFT JOIN pg_type t ON t.oid = a.atttypid \
         LEFT JOIN pg_collation c ON c.oid = i.indcollation[k.at] \
         WHERE i.indrelid = to_regclass(quote_ident($1)) AND i.indisunique AND i.indisvalid \
         AND i.indimmediate AND i.indpred IS NULL \
         ORDER BY 1, k.at";
    let rows = sqlx::query(sql).bind(name).fetch_all(connection).await?;
    let mut sets: Vec<(i64, Option<Vec<String>>)> = Vec::new();
    for row in &rows {
        let index: i64 = row.try_get(0)?;
        // The name is null where the index is on an expression.
        let name: Option<String> = row.try_get(1)?;
        let bytewise: Option<bool> = row.try_get(2)?;
        let name = name.filter(|_| bytewise == Some(true));
        match sets.last_mut().filter(|(last, _)| *last == index) {
            Some((_, set)) => {
                *set = set.take().zip(name).map(|(mut set, name)| {
                    set.push(name);
                    set
                });
            }
            None => sets.push((index, name.map(|name| vec![name]))),
        }
    }
    Ok(sets.into_iter().filter_map(|(_, set)| set).collect())
}
