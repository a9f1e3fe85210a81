//! The one thread that writes a database file.
//!
//! SQLite has one writer at a time, so all lanes and pipelines of this process that write a file
//! share one thread and one connection. The thread takes what has queued up while it was busy and
//! commits it together, so one fsync serves many calls and a lone call waits for nobody.
//!
//! The fast way assumes that every record is taken. Where one is not, everything is rolled back
//! and each call is done again in a transaction of its own with a savepoint per record: the bad
//! ones are named, nothing of them remains, the others go in. An error that is about the file and
//! not about a record is answered to every call in the transaction; what was committed in spite of
//! it is found by delivery id when the engine calls again.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::thread;

use potok_core::trouble::crash_point;
use potok_core::{Fault, Outcome};
use rusqlite::{Connection, Error};
use tokio::sync::oneshot;

use super::client::DatabaseFile;
use super::fault;
use super::statements::SqlitePlan;
use crate::sql::{Dialect, Endings, Rows, Tables};

/// About as many rows as one transaction takes.
const ROWS_MAX: usize = 10_000;

/// The way to the thread of one file.
pub(super) struct SqliteWriter {
    path: PathBuf,
    jobs: Mutex<Option<Sender<WriterJob>>>,
}

enum WriterJob {
    Prepare { tables: Arc<Tables>, reply: oneshot::Sender<Result<SqlitePlan, Fault>> },
    Write(WriteCall),
}

struct WriteCall {
    plan: Arc<SqlitePlan>,
    rows: Rows,
    reply: oneshot::Sender<Result<Endings, Fault>>,
}

impl SqliteWriter {
    /// The writer of a file; all who ask for the same path get the same.
    pub fn of(path: &Path) -> Arc<SqliteWriter> {
        static WRITERS: LazyLock<Mutex<HashMap<PathBuf, Weak<SqliteWriter>>>> =
            LazyLock::new(Mutex::default);
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let mut writers = WRITERS.lock().unwrap_or_else(PoisonError::into_inner);
        writers.retain(|_, writer| writer.strong_count() > 0);
        if let Some(writer) = writers.get(&path).and_then(Weak::upgrade) {
            return writer;
        }
        let writer = Arc::new(SqliteWriter { path: path.clone(), jobs: Mutex::default() });
        writers.insert(path, Arc::downgrade(&writer));
        writer
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file, creates and compares the tables.
    pub async fn prepare(&self, tables: Arc<Tables>) -> Result<SqlitePlan, Fault> {
        let (reply, answer) = oneshot::channel();
        self.send(WriterJob::Prepare { tables, reply })?;
        answer.await.map_err(|_| died())?
    }

    /// Writes rows; returns once they are durable. Cancelling leaves the outcome unknown.
    pub async fn write(&self, plan: Arc<SqlitePlan>, rows: Rows) -> Result<Endings, Fault> {
        let (reply, answer) = oneshot::channel();
        self.send(WriterJob::Write(WriteCall { plan, rows, reply }))?;
        answer.await.map_err(|_| died())?
    }

    /// Starts the thread on first use, and again should it have died.
    fn send(&self, mut job: WriterJob) -> Result<(), Fault> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = jobs.as_ref() {
            match sender.send(job) {
                Ok(()) => return Ok(()),
                Err(back) => job = back.0,
            }
        }
        let (sender, receiver) = channel();
        let path = self.path.clone();
        thread::Builder::new()
            .name("sqlite-writer".to_owned())
            .spawn(move || run(path, &receiver))
            .map_err(|error| Fault::retry("cannot start the SQLite writer").because(error))?;
        let sent = sender.send(job).map_err(|_| died());
        *jobs = Some(sender);
        sent
    }
}

fn died() -> Fault {
    Fault::retry("the SQLite writer died in the attempt").code("P0311")
}

/// Serves jobs until every [`SqliteWriter`] handle is gone.
fn run(path: PathBuf, jobs: &Receiver<WriterJob>) {
    let mut worker = WriterThread { path, database: None };
    let mut ahead: Option<WriterJob> = None;
    while let Some(job) = ahead.take().or_else(|| jobs.recv().ok()) {
        match job {
            WriterJob::Prepare { tables, reply } => {
                // Nobody listens any more where the call was cancelled.
                let _ = reply.send(worker.prepare(&tables));
            }
            WriterJob::Write(call) => {
                let mut rows = call.rows.count();
                let mut calls = vec![call];
                while rows < ROWS_MAX {
                    match jobs.try_recv() {
                        Ok(WriterJob::Write(call)) => {
                            rows += call.rows.count();
                            calls.push(call);
                        }
                        Ok(other) => {
                            ahead = Some(other);
                            break;
                        }
                        Err(_) => break,
                    }
                }
                worker.write(calls);
            }
        }
    }
}

/// Why a transaction did not come through.
enum WriteTrouble {
    Sqlite(Error),
    /// The file is another one, or none.
    Gone,
}

impl From<Error> for WriteTrouble {
    fn from(error: Error) -> Self {
        WriteTrouble::Sqlite(error)
    }
}

struct WriterThread {
    path: PathBuf,
    database: Option<DatabaseFile>,
}

impl WriterThread {
    fn prepare(&mut self, tables: &Tables) -> Result<SqlitePlan, Fault> {
        if self.database.as_ref().is_some_and(|database| !database.is_in_place()) {
            self.close();
        }
        let prepared = self.prepare_once(tables);
        if prepared.is_err() {
            self.close();
        }
        prepared
    }

    fn prepare_once(&mut self, tables: &Tables) -> Result<SqlitePlan, Fault> {
        let path = self.path.clone();
        let sort = |error: Error| fault::sort(tables.label(), &path, &error);
        let database = self.open(tables.creates()).map_err(sort)?;
        let mut found = database.find(tables).map_err(sort)?;
        if tables.creates() && found.iter().any(Option::is_none) {
            database.create(tables).map_err(|error| {
                if fault::may_be_the_tables(&error) {
                    return Fault::fix(format!("{}: cannot create the tables", tables.label()))
                        .because(error)
                        .hint("see the statements with `potok ddl`, then `potok resume`")
                        .code("P0302");
                }
                sort(error)
            })?;
            found = database.find(tables).map_err(sort)?;
        }
        tables.fit(&found, Dialect::Sqlite).map(SqlitePlan::new)
    }

    fn open(&mut self, create: bool) -> Result<&mut DatabaseFile, Error> {
        match &mut self.database {
            Some(database) => Ok(database),
            closed => Ok(closed.insert(DatabaseFile::open(&self.path, create)?)),
        }
    }

    /// After trouble the file is opened anew by the next attempt.
    fn close(&mut self) {
        if let Some(database) = self.database.take() {
            database.abandon();
        }
    }

    fn write(&mut self, calls: Vec<WriteCall>) {
        // Whoever cancelled will call again; the work would only be done twice.
        let calls: Vec<WriteCall> =
            calls.into_iter().filter(|call| !call.reply.is_closed()).collect();
        match self.together(&calls) {
            Ok(endings) => {
                for (call, endings) in calls.into_iter().zip(endings) {
                    let _ = call.reply.send(Ok(endings));
                }
            }
            // A record, or the tables of one call: find out which.
            Err(WriteTrouble::Sqlite(error))
                if fault::is_about_the_record(&error) || fault::may_be_the_tables(&error) =>
            {
                for call in calls {
                    let endings = self.one_by_one(&call);
                    let _ = call.reply.send(endings);
                }
            }
            Err(trouble) => {
                self.close();
                for call in calls {
                    let fault = self.sort(call.plan.tables.label(), &trouble);
                    let _ = call.reply.send(Err(fault));
                }
            }
        }
    }

    /// All calls in one transaction, or none of them.
    fn together(&mut self, calls: &[WriteCall]) -> Result<Vec<Endings>, WriteTrouble> {
        let database = self.open(false)?;
        transaction(database, |connection| {
            calls
                .iter()
                .map(|call| {
                    let mut ready = call.plan.ready(connection)?;
                    let mut endings = Endings::new();
                    for record in call.rows.records(&call.plan.tables) {
                        if let Some(ending) = ready.insert(&call.rows, &record)? {
                            endings.push((record.message, ending));
                        }
                    }
                    Ok(endings)
                })
                .collect()
        })
    }

    /// One call in a transaction of its own, its bad records named.
    fn one_by_one(&mut self, call: &WriteCall) -> Result<Endings, Fault> {
        let label = call.plan.tables.label().to_owned();
        let mut refused: BTreeMap<usize, Fault> = BTreeMap::new();
        loop {
            let known = refused.len();
            let result = self.open(false).map_err(WriteTrouble::from).and_then(|database| {
                transaction(database, |connection| each_apart(connection, call, &mut refused))
            });
            match result {
                Ok(endings) => return Ok(endings),
                // A trigger may end the transaction together with its record: begin again
                // without that one. Every round names at least one more.
                Err(WriteTrouble::Sqlite(_)) if refused.len() > known => {}
                Err(trouble) => {
                    let fault =
                        self.misfit(call, &trouble).unwrap_or_else(|| self.sort(&label, &trouble));
                    self.close();
                    return Err(fault);
                }
            }
        }
    }

    /// Where an error may mean that the tables changed, what is wrong with them.
    fn misfit(&self, call: &WriteCall, trouble: &WriteTrouble) -> Option<Fault> {
        let WriteTrouble::Sqlite(error) = trouble else { return None };
        let database = self.database.as_ref().filter(|_| fault::may_be_the_tables(error))?;
        let found = database.find(&call.plan.tables).ok()?;
        let fault = call.plan.tables.fit(&found, Dialect::Sqlite).err()?;
        Some(fault.because(error))
    }

    fn sort(&self, label: &str, trouble: &WriteTrouble) -> Fault {
        match trouble {
            WriteTrouble::Sqlite(error) => fault::sort(label, &self.path, error),
            WriteTrouble::Gone => fault::gone(label, &self.path),
        }
    }
}

/// Runs `work` in a transaction and commits it. On any error nothing of it remains.
fn transaction<T>(
    database: &DatabaseFile,
    work: impl FnOnce(&Connection) -> Result<T, Error>,
) -> Result<T, WriteTrouble> {
    let connection = &database.connection;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let done = work(connection).and_then(|done| {
        crash_point("sink.commit.before");
        connection.execute_batch("COMMIT")?;
        crash_point("sink.commit.after");
        Ok(done)
    });
    if done.is_err() && !connection.is_autocommit() {
        // Should this fail too, the connection is given up, which rolls back.
        let _ = connection.execute_batch("ROLLBACK");
    }
    let done = done?;
    // Rows in a file that lost its name are rows nobody will find.
    if database.is_in_place() { Ok(done) } else { Err(WriteTrouble::Gone) }
}

/// Inserts record by record. What the database refuses leaves nothing behind and is added to
/// `refused`; what is in there already is passed over.
fn each_apart(
    connection: &Connection,
    call: &WriteCall,
    refused: &mut BTreeMap<usize, Fault>,
) -> Result<Endings, Error> {
    let mut ready = call.plan.ready(connection)?;
    let mut endings = Endings::new();
    for record in call.rows.records(&call.plan.tables) {
        if let Some(fault) = refused.get(&record.message) {
            endings.push((record.message, Outcome::Failed(fault.clone())));
            continue;
        }
        connection.execute_batch("SAVEPOINT record")?;
        match ready.insert(&call.rows, &record) {
            Ok(ending) => endings.extend(ending.map(|ending| (record.message, ending))),
            Err(error) if fault::is_about_the_record(&error) => {
                let fault = fault::refused(&error);
                refused.insert(record.message, fault.clone());
                endings.push((record.message, Outcome::Failed(fault)));
                connection.execute_batch("ROLLBACK TO record")?;
            }
            Err(error) => return Err(error),
        }
        connection.execute_batch("RELEASE record")?;
    }
    Ok(endings)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use bytes::Bytes;
    use potok_core::{DeliveryId, Headers, Message, Move, Position, Timestamp};
    use potok_expr::json::Parser;
    use potok_expr::{RowsPath, Template};
    use serde_json::json;

    use super::*;
    use crate::sql::SqlSinkConfig;

    fn worker(folder: &Path) -> (WriterThread, Arc<SqlitePlan>) {
        let schema = json!({ "properties": {
            "id": { "type": "string" }, "text": { "type": "string" }
        } });
        let tables = Tables::new(&SqlSinkConfig {
            label: "db `t`".to_owned(),
            rows: vec![("t".to_owned(), RowsPath::parse(".").unwrap())],
            once_by: vec![Template::parse(".id").unwrap()],
            schema: Some(schema),
            create_tables: true,
        });
        let mut worker = WriterThread { path: folder.join("t.sqlite"), database: None };
        let plan = worker.prepare(&tables.unwrap()).unwrap();
        (worker, Arc::new(plan))
    }

    type WriteAnswer = oneshot::Receiver<Result<Endings, Fault>>;

    fn call(
        plan: &Arc<SqlitePlan>,
        offset: u64,
        values: &[serde_json::Value],
    ) -> (WriteCall, WriteAnswer) {
        let mut rows = Rows::default();
        for (index, value) in values.iter().enumerate() {
            let offset = offset + index as u64;
            let position = Position { log: 1, topic: "t".into(), partition: 0, offset };
            let value = Bytes::from(value.to_string());
            let message = Message {
                id: DeliveryId { position, deliver: 0, element: 0 },
                key: None,
                headers: Headers::none(),
                source: value.clone(),
                value,
                once: None,
                time: Timestamp(0),
            };
            rows.add(&plan.tables, &mut Parser::new(), index, &message).unwrap();
        }
        let (reply, answer) = oneshot::channel();
        (WriteCall { plan: plan.clone(), rows, reply }, answer)
    }

    fn count(worker: &WriterThread) -> i64 {
        let database = worker.database.as_ref().unwrap();
        database.connection.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn a_full_disk_is_waited_for_and_nothing_of_the_attempt_remains() {
        let folder = tempfile::tempdir().unwrap();
        let (mut worker, plan) = worker(folder.path());
        let values: Vec<_> =
            (0..50).map(|n| json!({ "id": n.to_string(), "text": "x".repeat(9_000) })).collect();
        let full = "PRAGMA max_page_count = 40";
        worker.database.as_ref().unwrap().connection.execute_batch(full).unwrap();
        let (small, mut small_answer) = call(&plan, 100, &[json!({ "id": "small" })]);
        let (large, mut large_answer) = call(&plan, 0, &values);
        worker.write(vec![small, large]);
        for answer in [small_answer.try_recv().unwrap(), large_answer.try_recv().unwrap()] {
            let fault = answer.unwrap_err();
            assert_eq!((fault.next, fault.code), (Move::Wait, "P0306"), "{fault}");
        }
        // There is room again: the next attempt opens the file anew and succeeds.
        let (large, mut answer) = call(&plan, 0, &values);
        worker.write(vec![large]);
        assert!(answer.try_recv().unwrap().unwrap().is_empty());
        assert_eq!(count(&worker), 50);
    }

    #[test]
    fn calls_committed_together_are_answered_apart() {
        let folder = tempfile::tempdir().unwrap();
        let (mut worker, plan) = worker(folder.path());
        let connection = &worker.database.as_ref().unwrap().connection;
        let trigger = "CREATE TRIGGER bad BEFORE INSERT ON t WHEN new.text = 'bad' \
                       BEGIN SELECT RAISE(ABORT, 'bad text'); END";
        connection.execute_batch(trigger).unwrap();
        let value = |id: &str, text: &str| json!({ "id": id, "text": text });
        let (first, mut first_answer) = call(&plan, 0, &[value("a", "1"), value("b", "1")]);
        let (second, mut second_answer) =
            call(&plan, 10, &[value("c", "bad"), value("a", "2"), value("d", "bad")]);
        let (third, mut third_answer) = call(&plan, 20, &[value("a", "1"), value("e", "1")]);
        let (dropped, unheard) = call(&plan, 30, &[value("f", "1")]);
        drop(unheard);
        worker.write(vec![first, second, third, dropped]);
        assert!(first_answer.try_recv().unwrap().unwrap().is_empty());
        let endings = second_answer.try_recv().unwrap().unwrap();
        let words: Vec<String> = endings
            .iter()
            .map(|(index, ending)| match ending {
                Outcome::Failed(fault) => format!("{index} {}", fault.reason),
                _ => format!("{index}"),
            })
            .collect();
        assert_eq!(words, ["0 refused", "1 conflict", "2 refused"]);
        let endings = third_answer.try_recv().unwrap().unwrap();
        assert!(matches!(endings[..], [(0, Outcome::Duplicate | Outcome::Again)]), "{endings:?}");
        assert_eq!(count(&worker), 3);
    }

    #[tokio::test]
    async fn a_writer_that_died_is_started_again() {
        let folder = tempfile::tempdir().unwrap();
        let writer = SqliteWriter::of(&folder.path().join("t.sqlite"));
        let (sender, receiver) = channel();
        drop(receiver);
        *writer.jobs.lock().unwrap() = Some(sender);
        let (worker, plan) = worker(folder.path());
        drop(worker);
        let (call, _) = call(&plan, 0, &[json!({ "id": "a" })]);
        assert!(writer.write(plan, call.rows).await.unwrap().is_empty());
        assert!(Arc::ptr_eq(&writer, &SqliteWriter::of(&folder.path().join("t.sqlite"))));
    }
}
