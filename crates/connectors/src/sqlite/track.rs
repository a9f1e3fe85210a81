//! The tables of a tracker in an SQLite file. One transaction at a time: lanes take turns instead of
//! waiting for each other's locks.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use potok_core::Fault;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Error, ToSql, params, params_from_iter};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::client::DatabaseFile;
use super::fault;
use crate::sql::{
    Dialect, FoundTracking, SqlValue, TextRow, TrackDatabase, TrackSession, TrackTables,
};

/// One file.
pub(super) struct SqliteTracking {
    label: Arc<str>,
    path: Arc<PathBuf>,
    /// Open as long as nothing is wrong with it.
    database: Arc<Mutex<Option<DatabaseFile>>>,
}

impl SqliteTracking {
    pub fn new(label: &str, path: PathBuf) -> Self {
        SqliteTracking { label: label.into(), path: Arc::new(path), database: Arc::default() }
    }

    /// The file, open and in no transaction.
    async fn session(&self) -> Result<SqliteTrackSession, Fault> {
        let mut session = SqliteTrackSession {
            label: self.label.clone(),
            path: self.path.clone(),
            database: self.database.clone().lock_owned().await,
        };
        let (path, known) = (self.path.clone(), session.database.take());
        let open = move || {
            let known = known.filter(DatabaseFile::is_in_place);
            let database = known.map_or_else(|| DatabaseFile::open(&path, true), Ok)?;
            if !database.connection.is_autocommit() {
                // Somebody has given up in the middle.
                database.connection.execute_batch("ROLLBACK")?;
            }
            Ok(database)
        };
        let opened = tokio::task::spawn_blocking(open).await;
        let opened = opened.map_err(|error| self.gone(&error))?;
        let opened = opened.map_err(|error: Error| fault::sort(&self.label, &self.path, &error));
        *session.database = Some(opened?);
        Ok(session)
    }

    fn gone(&self, error: &tokio::task::JoinError) -> Fault {
        Fault::wait(format!("{}: a call was cut off", self.label)).because(error).code("P1404")
    }
}

/// A transaction on the file.
struct SqliteTrackSession {
    label: Arc<str>,
    path: Arc<PathBuf>,
    database: OwnedMutexGuard<Option<DatabaseFile>>,
}

impl SqliteTrackSession {
    /// Runs something on a thread where it may wait for the disk. Who is cancelled meanwhile loses
    /// the connection, and with it the transaction.
    async fn with<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut DatabaseFile) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Fault> {
        let lost = || Fault::wait("the connection to the tracking table is gone").code("P1404");
        let mut database = self.database.take().ok_or_else(lost)?;
        let done = tokio::task::spawn_blocking(move || {
            let done = work(&mut database);
            (database, done)
        });
        let (database, done) = done.await.map_err(|_| lost())?;
        *self.database = Some(database);
        done.map_err(|error| fault::sort(&self.label, &self.path, &error))
    }
}

impl ToSql for SqlValue {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            SqlValue::Null => ToSqlOutput::Borrowed(ValueRef::Null),
            SqlValue::Number(number) => ToSqlOutput::Borrowed(ValueRef::Integer(*number)),
            SqlValue::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
        })
    }
}

fn text(value: ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(text) | ValueRef::Blob(text) => {
            Some(String::from_utf8_lossy(text).into_owned())
        }
    }
}

#[async_trait]
impl TrackSession for SqliteTrackSession {
    async fn run(&mut self, sql: &str, values: &[SqlValue]) -> Result<u64, Fault> {
        let (sql, values) = (sql.to_owned(), values.to_vec());
        self.with(move |database| {
            let mut statement = database.connection.prepare_cached(&sql)?;
            statement.execute(params_from_iter(&values)).map(|changed| changed as u64)
        })
        .await
    }

    async fn ask(&mut self, sql: &str, values: &[SqlValue]) -> Result<Vec<TextRow>, Fault> {
        let (sql, values) = (sql.to_owned(), values.to_vec());
        self.with(move |database| {
            let mut statement = database.connection.prepare_cached(&sql)?;
            let columns = statement.column_count();
            let mut found = statement.query(params_from_iter(&values))?;
            let mut rows = Vec::new();
            while let Some(row) = found.next()? {
                let cells = (0..columns).map(|at| row.get_ref(at).map(text));
                rows.push(cells.collect::<Result<TextRow, Error>>()?);
            }
            Ok(rows)
        })
        .await
    }

    async fn commit(mut self: Box<Self>) -> Result<(), Fault> {
        let in_place = self
            .with(|database| {
                // A file that was replaced meanwhile would take it, and nobody would read it.
                let in_place = database.is_in_place();
                let end = if in_place { "COMMIT" } else { "ROLLBACK" };
                database.connection.execute_batch(end).map(|()| in_place)
            })
            .await?;
        if in_place {
            return Ok(());
        }
        let what = format!("{}: {} was replaced", self.label, self.path.display());
        Err(Fault::wait(what).hint("it is opened again").code("P1404"))
    }

    async fn roll_back(mut self: Box<Self>) -> Result<(), Fault> {
        self.with(|database| database.connection.execute_batch("ROLLBACK")).await
    }
}

#[async_trait]
impl TrackDatabase for SqliteTracking {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    async fn begin(&self) -> Result<Box<dyn TrackSession>, Fault> {
        let mut session = self.session().await?;
        session.with(|database| database.connection.execute_batch("BEGIN IMMEDIATE")).await?;
        Ok(Box::new(session))
    }

    async fn find(&self, tables: &TrackTables) -> Result<FoundTracking, Fault> {
        let mut session = self.session().await?;
        let (table, beside, trigger) =
            (tables.table.clone(), tables.beside.clone(), tables.trigger());
        session
            .with(move |database| {
                let connection = &database.connection;
                let columns = |table: &str| -> Result<Vec<(String, String, bool)>, Error> {
                    let sql = "SELECT name, type FROM pragma_table_xinfo(?1) WHERE hidden = 0";
                    let mut statement = connection.prepare_cached(sql)?;
                    let column = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, false));
                    statement.query_map(params![table], column)?.collect()
                };
                let sql = "SELECT i.name, x.name FROM pragma_index_list(?1) i, \
                           pragma_index_xinfo(i.name) x WHERE i.\"unique\" = 1 AND i.partial = 0 AND \
                           x.key = 1 ORDER BY i.name, x.name";
                let mut statement = connection.prepare_cached(sql)?;
                let mut unique: Vec<(String, Vec<String>)> = Vec::new();
                let mut rows = statement.query(params![table])?;
                while let Some(row) = rows.next()? {
                    let (index, column): (String, Option<String>) = (row.get(0)?, row.get(1)?);
                    match unique.last_mut().filter(|(last, _)| *last == index) {
                        Some((_, columns)) => columns.extend(column),
                        None => unique.push((index, column.into_iter().collect())),
                    }
                }
                let sql = "SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND name = ?1";
                Ok(FoundTracking {
                    columns: columns(&table)?,
                    unique: unique.into_iter().map(|(_, columns)| columns).collect(),
                    beside: columns(&beside)?.into_iter().map(|(name, ..)| name).collect(),
                    follows: connection.prepare_cached(sql)?.exists(params![trigger])?,
                })
            })
            .await
    }

    async fn create(&self, tables: &TrackTables) -> Result<(), Fault> {
        let mut session = self.begin().await?;
        for statement in tables.ddl(Dialect::Sqlite) {
            session.run(&statement, &[]).await?;
        }
        session.commit().await
    }
}
