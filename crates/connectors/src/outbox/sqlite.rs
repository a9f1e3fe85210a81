//! Sessions with an SQLite file.
//!
//! Notes begin IMMEDIATE, so that they wait for the application's transaction instead of failing in
//! the middle of their own; a SELECT is read to its end at once, because an unfinished one stands in
//! the way of the application. A statement that takes long is interrupted.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::Fault;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Error, InterruptHandle};

use super::session::{Cells, OutboxSession};
use crate::sqlite::{fault, open_file};

/// A session with one file.
pub(super) struct SqliteSession {
    file: Arc<OutboxFile>,
}

struct OutboxFile {
    label: String,
    path: PathBuf,
    /// Makes the file where there is none.
    create: bool,
    /// How long a statement may take, and how long it may wait for others.
    call: Duration,
    connection: Mutex<Option<Connection>>,
    /// Ends what runs on the connection.
    interrupt: Mutex<Option<InterruptHandle>>,
    /// Shared by all sessions of this process with the file.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// SQLite lets writers in by chance: among those of this process each has its turn, so that however
/// much is noted, the lease is renewed in time.
fn turn_of(path: &Path) -> Arc<tokio::sync::Mutex<()>> {
    type FileTurns = HashMap<PathBuf, Weak<tokio::sync::Mutex<()>>>;
    static TURNS: Mutex<Option<FileTurns>> = Mutex::new(None);
    let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let turns = turns.get_or_insert_with(HashMap::new);
    if let Some(turn) = turns.get(path).and_then(Weak::upgrade) {
        return turn;
    }
    turns.retain(|_, turn| turn.strong_count() > 0);
    let turn = Arc::default();
    turns.insert(path.to_owned(), Arc::downgrade(&turn));
    turn
}

impl SqliteSession {
    pub fn new(label: &str, path: PathBuf, create: bool, call: Duration) -> Self {
        let (label, turn) = (label.to_owned(), turn_of(&path));
        let (connection, interrupt) = (Mutex::default(), Mutex::default());
        let file = OutboxFile { label, path, create, call, connection, interrupt, turn };
        SqliteSession { file: Arc::new(file) }
    }

    async fn run(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<Vec<Cells>, Error> + Send + 'static,
    ) -> Result<Vec<Cells>, Fault> {
        let (file, watched) = (self.file.clone(), self.file.clone());
        let mut running = tokio::task::spawn_blocking(move || file.run(work));
        // By itself, so that it is interrupted also where nobody waits for it any more.
        let ran = tokio::spawn(async move {
            loop {
                match tokio::time::timeout(watched.call, &mut running).await {
                    Ok(ran) => return ran,
                    Err(_) => watched.interrupt(),
                }
            }
        });
        let ran = ran.await.and_then(std::convert::identity);
        ran.unwrap_or_else(|error| Err(Fault::retry("the database call died").because(error)))
    }
}

impl OutboxFile {
    fn interrupt(&self) {
        let interrupt = self.interrupt.lock().unwrap_or_else(PoisonError::into_inner);
        interrupt.as_ref().into_iter().for_each(InterruptHandle::interrupt);
    }

    fn open(&self) -> Result<Connection, Error> {
        let connection = open_file(&self.path, self.create)?;
        connection.busy_timeout(self.call)?;
        let interrupt = Some(connection.get_interrupt_handle());
        *self.interrupt.lock().unwrap_or_else(PoisonError::into_inner) = interrupt;
        Ok(connection)
    }

    fn run(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<Vec<Cells>, Error>,
    ) -> Result<Vec<Cells>, Fault> {
        let mut held = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let sort = |error: &Error| match fault::is_about_the_record(error) {
            true => fault::refused(error),
            false => fault::sort(&self.label, &self.path, error),
        };
        let mut connection = match held.take() {
            Some(connection) if self.path.exists() => connection,
            _ => self.open().map_err(|error| sort(&error))?,
        };
        let rows = work(&mut connection);
        // After an error nothing is known about the session but that it rolls back when it is closed.
        if rows.is_ok() {
            *held = Some(connection);
        }
        rows.map_err(|error| sort(&error))
    }
}

fn rows(connection: &Connection, sql: &str, into: &mut Vec<Cells>) -> Result<(), Error> {
    let mut statement = connection.prepare(sql)?;
    let columns = statement.column_count();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let mut cells = Vec::with_capacity(columns);
        for at in 0..columns {
            cells.push(match row.get_ref(at)? {
                ValueRef::Null => None,
                ValueRef::Integer(number) => Some(Bytes::from(number.to_string())),
                ValueRef::Real(number) => Some(Bytes::from(number.to_string())),
                ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
                    Some(Bytes::copy_from_slice(bytes))
                }
            });
        }
        into.push(cells);
    }
    Ok(())
}

#[async_trait]
impl OutboxSession for SqliteSession {
    async fn query(&self, sql: String) -> Result<Vec<Cells>, Fault> {
        let work = move |connection: &mut Connection| {
            let mut all = Vec::new();
            rows(connection, &sql, &mut all)?;
            Ok(all)
        };
        self.run(work).await
    }

    async fn transact(
        &self,
        before: &[String],
        statements: &[String],
    ) -> Result<Vec<Cells>, Fault> {
        let _turn = self.file.turn.lock().await;
        let (before, statements) = (before.to_vec(), statements.to_vec());
        let work = move |connection: &mut Connection| {
            let mut all = Vec::new();
            for sql in &before {
                rows(connection, sql, &mut all)?;
            }
            connection.execute_batch("BEGIN IMMEDIATE")?;
            for sql in &statements {
                rows(connection, sql, &mut all)?;
            }
            connection.execute_batch("COMMIT")?;
            Ok(all)
        };
        self.run(work).await
    }
}
