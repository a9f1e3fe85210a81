//! Sessions with MariaDB and MySQL: how they are set up, and what the database has.

use std::collections::HashMap;

use sqlx::mysql::{MySqlConnectOptions, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Error, MySqlConnection, Row as _};
use tracing::warn;

use super::fault;
use super::statements::{BEGIN, MysqlBatch, MysqlPlan};
use crate::sql::{
    Bounds, ColumnKind, Dialect, Endings, FoundColumn, FoundTable, RollbackSupport, Rows,
    SqlServer, SqlTimeouts, SqlTrouble, System, Tables, write,
};

/// A transaction still open after so many seconds without a word from us is given up by MariaDB:
/// we were stopped, and others wait for its locks.
const IDLE_TRANSACTION_MAX_SECONDS: u64 = 60;
/// Nothing is cut, bent or guessed: zero is a number and no request for the next one.
const SQL_MODE: &str = "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,\
                        ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO";
/// Statements of all sizes for some tables stay prepared.
const STATEMENTS_MAX: usize = 256;

/// The way to one database.
pub(super) struct Mysql {
    options: MySqlConnectOptions,
}

impl Mysql {
    pub fn new(options: MySqlConnectOptions) -> Mysql {
        // The mode of the session is set as a whole below. Statements hold no values, but there
        // is nothing to learn from them either.
        let options = options
            .charset("utf8mb4")
            .pipes_as_concat(false)
            .no_engine_substitution(false)
            .statement_cache_capacity(STATEMENTS_MAX)
            .disable_statement_logging();
        Mysql { options }
    }
}

impl SqlServer for Mysql {
    type Connection = MySqlConnection;
    type Plan = MysqlPlan;
    const SYSTEM: System = fault::SYSTEM;
    const DIALECT: Dialect = Dialect::Mysql;

    async fn connect(&self, timeouts: &SqlTimeouts) -> Result<MySqlConnection, Error> {
        let mut connection = self.options.connect().await?;
        let sql = format!(
            "SET SESSION sql_mode = '{SQL_MODE}', SESSION autocommit = 1, \
             SESSION foreign_key_checks = 1, SESSION unique_checks = 1, \
             SESSION innodb_lock_wait_timeout = {} \
             /*M!100300 , SESSION max_statement_time = {:.3}, \
             SESSION idle_transaction_timeout = {IDLE_TRANSACTION_MAX_SECONDS} */; \
             SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            timeouts.lock.as_secs().max(1),
            timeouts.statement().as_secs_f64(),
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
        Ok(connection)
    }

    async fn begin(connection: &mut MySqlConnection) -> Result<(), Error> {
        run(connection, BEGIN).await
    }

    async fn commit(connection: &mut MySqlConnection) -> Result<(), Error> {
        run(connection, "COMMIT").await
    }

    async fn roll_back(connection: &mut MySqlConnection) -> Result<(), Error> {
        run(connection, "ROLLBACK").await
    }

    async fn write(
        connection: &mut MySqlConnection,
        plan: &MysqlPlan,
        rows: &Rows,
    ) -> Result<Endings, Error> {
        write(&mut MysqlBatch { connection, plan, rows }, &plan.tables, rows).await
    }

    /// Whether this user may write now is told by an update of nothing: the variables bind some
    /// users and not others.
    async fn takes_writes(
        connection: &mut MySqlConnection,
        tables: &Tables,
    ) -> Result<bool, Error> {
        let table = Dialect::Mysql.quote(tables.names().next().unwrap_or_default());
        let sql = format!("UPDATE {table} SET `potok_id` = `potok_id` WHERE FALSE");
        match sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await {
            Ok(_) => Ok(true),
            Err(error) => match fault::trouble(&error) {
                SqlTrouble::ReadOnly => Ok(false),
                // No such table, or another one: that is for `prepare` to say.
                SqlTrouble::SetUp => Ok(true),
                _ => Err(error),
            },
        }
    }

    async fn find(
        connection: &mut MySqlConnection,
        tables: &Tables,
    ) -> Result<Vec<Option<FoundTable>>, Error> {
        let mut found = Vec::new();
        for name in tables.names() {
            found.push(find_table(connection, name).await?);
        }
        Ok(found)
    }

    async fn create(connection: &mut MySqlConnection, tables: &Tables) -> Result<(), Error> {
        let version = sqlx::query("SELECT VERSION()").fetch_one(&mut *connection).await?;
        let is_mariadb = text(&version, 0)?.is_some_and(|version| version.contains("MariaDB"));
        for statement in tables.ddl(Dialect::Mysql) {
            // The same collation has another name in MySQL. It is at the end, behind all names.
            let statement = match statement.rsplit_once("COLLATE=utf8mb4_nopad_bin") {
                Some((before, _)) if !is_mariadb => format!("{before}COLLATE=utf8mb4_0900_bin"),
                _ => statement,
            };
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *connection).await?;
        }
        Ok(())
    }

    async fn plan(connection: &mut MySqlConnection, tables: Tables) -> Result<MysqlPlan, Error> {
        let sql = "SELECT @@max_allowed_packet, @@innodb_flush_log_at_trx_commit";
        let row = sqlx::query(sql).fetch_one(connection).await?;
        let packet: i64 = row.try_get_unchecked(0)?;
        if row.try_get_unchecked::<i64, _>(1)? != 1 {
            warn!(
                "{}: with innodb_flush_log_at_trx_commit other than 1 the server acknowledges \
                 rows that a power cut takes away",
                tables.label()
            );
        }
        Ok(MysqlPlan::new(tables, usize::try_from(packet).unwrap_or_default()))
    }

    fn tables(plan: &MysqlPlan) -> &Tables {
        &plan.tables
    }

    fn trouble(error: &Error) -> SqlTrouble {
        fault::trouble(error)
    }
}

async fn run(connection: &mut MySqlConnection, sql: &'static str) -> Result<(), Error> {
    sqlx::raw_sql(sql).execute(connection).await.map(drop)
}

/// The servers differ in the types their descriptions have; all are text.
fn text(row: &MySqlRow, at: usize) -> Result<Option<String>, Error> {
    let bytes: Option<Vec<u8>> = row.try_get_unchecked(at)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

async fn find_table(
    connection: &mut MySqlConnection,
    name: &str,
) -> Result<Option<FoundTable>, Error> {
    let sql = "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, \
             CAST(CHARACTER_MAXIMUM_LENGTH AS CHAR), IS_NULLABLE, COLUMN_DEFAULT, EXTRA, \
             COLLATION_NAME \
         FROM information_schema.COLUMNS \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION";
    let rows = sqlx::query(sql).bind(name).fetch_all(&mut *connection).await?;
    if rows.is_empty() {
        return Ok(None);
    }
    let mut columns = Vec::with_capacity(rows.len());
    let mut bytewise: HashMap<String, bool> = HashMap::new();
    for row in &rows {
        let declared = DeclaredColumn::read(row)?;
        bytewise.insert(declared.name.clone(), declared.compares_bytes());
        columns.extend(declared.column());
    }
    let unique = find_unique(connection, name, &bytewise).await?;
    let keeping = find_keeping(connection, name).await?;
    Ok(Some(FoundTable { columns, unique, keeping }))
}

/// What a transaction means to the table. Of a partitioned one this is the engine of its parts.
async fn find_keeping(
    connection: &mut MySqlConnection,
    table: &str,
) -> Result<RollbackSupport, Error> {
    let sql = "SELECT t.TABLE_TYPE, t.ENGINE, e.TRANSACTIONS FROM information_schema.TABLES t \
         LEFT JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE \
         WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME = ?";
    let row = sqlx::query(sql).bind(table).fetch_optional(connection).await?;
    // Gone since its columns were read: whoever writes to it will hear so.
    let Some(row) = row else { return Ok(RollbackSupport::Transactions) };
    Ok(match (text(&row, 0)?.as_deref(), text(&row, 1)?, text(&row, 2)?.as_deref()) {
        (Some("VIEW"), ..) => RollbackSupport::View,
        (_, Some(_), Some("YES")) => RollbackSupport::Transactions,
        (_, engine, _) => RollbackSupport::Engine(engine.unwrap_or_else(|| "(none)".to_owned())),
    })
}

/// A column as the server describes it.
struct DeclaredColumn {
    name: String,
    data_type: String,
    column_type: String,
    length: Option<usize>,
    nullable: bool,
    default: Option<String>,
    extra: String,
    collation: Option<String>,
}

impl DeclaredColumn {
    fn read(row: &MySqlRow) -> Result<DeclaredColumn, Error> {
        let word = |at| text(row, at).map(Option::unwrap_or_default);
        Ok(DeclaredColumn {
            name: word(0)?,
            data_type: word(1)?.to_ascii_lowercase(),
            column_type: word(2)?.to_ascii_lowercase(),
            length: text(row, 3)?.and_then(|length| length.parse().ok()),
            nullable: word(4)? == "YES",
            default: text(row, 5)?,
            extra: word(6)?.to_ascii_lowercase(),
            collation: text(row, 7)?,
        })
    }

    /// Two values are the same only if their bytes are.
    fn compares_bytes(&self) -> bool {
        match &self.collation {
            Some(collation) => {
                collation.ends_with("_nopad_bin") || collation.ends_with("_0900_bin")
            }
            // BINARY is filled up with zeros.
            None => self.data_type != "binary",
        }
    }

    /// What one can write; `None` where the server computes it.
    fn column(self) -> Option<FoundColumn> {
        if self.extra.contains("generated") && !self.extra.contains("default_generated") {
            return None;
        }
        let (kind, integers) = match self.data_type.as_str() {
            "tinyint" => (ColumnKind::Integer, Some(self.range(8))),
            "smallint" => (ColumnKind::Integer, Some(self.range(16))),
            "mediumint" => (ColumnKind::Integer, Some(self.range(24))),
            "int" => (ColumnKind::Integer, Some(self.range(32))),
            "bigint" => (ColumnKind::Integer, Some(self.range(64))),
            "float" | "double" => (ColumnKind::Real, None),
            "json" => (ColumnKind::Json, None),
            // Whatever it is, it can be written as text: dates, decimals, enums, bytes.
            _ => (ColumnKind::Text, None),
        };
        let chars_max = self.length.filter(|_| matches!(&*self.data_type, "char" | "varchar"));
        // Where nothing is given, the server counts.
        let counts = self.extra.contains("auto_increment");
        let has_default = self.default.is_some_and(|default| default != "NULL");
        Some(FoundColumn {
            default: has_default.then(|| format!("DEFAULT({})", Dialect::Mysql.quote(&self.name))),
            not_null: !self.nullable && !counts,
            bounds: Bounds { sql_type: self.column_type, chars_max, integers },
            name: self.name,
            kind,
        })
    }

    fn range(&self, bits: u32) -> (i64, i64) {
        let half = 1_i128 << (bits - 1);
        let (from, to) = if self.column_type.contains("unsigned") {
            (0, half * 2 - 1)
        } else {
            (-half, half - 1)
        };
        (i64::try_from(from).unwrap_or(i64::MIN), i64::try_from(to).unwrap_or(i64::MAX))
    }
}

/// The unique indexes on whole columns that compare bytes.
async fn find_unique(
    connection: &mut MySqlConnection,
    table: &str,
    bytewise: &HashMap<String, bool>,
) -> Result<Vec<Vec<String>>, Error> {
    let sql = "SELECT INDEX_NAME, COLUMN_NAME, CAST(SUB_PART AS CHAR) \
         FROM information_schema.STATISTICS \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ? AND NON_UNIQUE = 0 \
         ORDER BY INDEX_NAME, SEQ_IN_INDEX";
    let rows = sqlx::query(sql).bind(table).fetch_all(connection).await?;
    let mut sets: Vec<(String, Option<Vec<String>>)> = Vec::new();
    for row in &rows {
        let index = text(row, 0)?.unwrap_or_default();
        // The name is null where the index is on an expression; a part is not the whole.
        let whole = text(row, 2)?.is_none();
        let name =
            text(row, 1)?.filter(|name| whole && bytewise.get(name).copied().unwrap_or(false));
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
