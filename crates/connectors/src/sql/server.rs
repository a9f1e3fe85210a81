//! A sink on a database server: what PostgreSQL and MariaDB have in common.
//!
//! One call is one transaction on one connection, bounded in time. Whatever goes wrong inside it,
//! nothing of it is there, except where the answer to COMMIT was lost: then nobody knows, and the
//! repeat finds by delivery id what is there. Not here: retries. The one thing tried twice is to
//! begin, when a connection that was used before turns out to be dead.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use potok_core::trouble::crash_point;
use potok_core::{Batch, Fault, Receipt, SinkLimits};
use sqlx::Error;

use super::fault::{SqlTrouble, System};
use super::{Connections, Dialect, Endings, FoundTable, Rows, SqlTimeouts, Tables, read, receipt};

/// What one system does its own way.
pub(crate) trait SqlServer: Send + Sync {
    /// A session with it.
    type Connection: Send;
    /// Tables as they are, and the statements for them.
    type Plan: Send + Sync;
    /// Its name and its pages.
    const SYSTEM: System;
    /// Its SQL.
    const DIALECT: Dialect;

    /// A new session, set up as this sink needs it.
    fn connect(
        &self,
        timeouts: &SqlTimeouts,
    ) -> impl Future<Output = Result<Self::Connection, Error>> + Send;

    /// Begins a transaction.
    fn begin(connection: &mut Self::Connection) -> impl Future<Output = Result<(), Error>> + Send;

    /// Commits it.
    fn commit(connection: &mut Self::Connection) -> impl Future<Output = Result<(), Error>> + Send;

    /// Gives it up.
    fn roll_back(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Writes the rows of one call, within a transaction.
    fn write(
        connection: &mut Self::Connection,
        plan: &Self::Plan,
        rows: &Rows,
    ) -> impl Future<Output = Result<Endings, Error>> + Send;

    /// Would it take writes? Writes nothing.
    fn takes_writes(
        connection: &mut Self::Connection,
        tables: &Tables,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// What it has of these tables.
    fn find(
        connection: &mut Self::Connection,
        tables: &Tables,
    ) -> impl Future<Output = Result<Vec<Option<FoundTable>>, Error>> + Send;

    /// Creates the tables that are missing; others may be doing the same.
    fn create(
        connection: &mut Self::Connection,
        tables: &Tables,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// The statements for tables that fit.
    fn plan(
        connection: &mut Self::Connection,
        tables: Tables,
    ) -> impl Future<Output = Result<Self::Plan, Error>> + Send;

    /// The tables of a plan.
    fn tables(plan: &Self::Plan) -> &Tables;

    /// What an error means.
    fn trouble(error: &Error) -> SqlTrouble;
}

/// A sink on a server.
pub(crate) struct ServerSink<S: SqlServer> {
    server: S,
    tables: Tables,
    timeouts: SqlTimeouts,
    connections: Connections<S::Connection>,
    /// Set by the last `prepare` that succeeded.
    plan: Mutex<Option<Arc<S::Plan>>>,
}

impl<S: SqlServer> ServerSink<S> {
    pub fn new(server: S, tables: Tables) -> Self {
        ServerSink {
            server,
            tables,
            timeouts: SqlTimeouts::default(),
            connections: Connections::new(),
            plan: Mutex::default(),
        }
    }

    pub fn set_timeouts(&mut self, timeouts: SqlTimeouts) {
        self.timeouts = timeouts;
    }

    /// A call is bounded by the engine; batches as large as servers take gladly.
    pub fn limits() -> SinkLimits {
        SinkLimits { batch_records_max: 1_024, batch_bytes_max: 4 << 20, per_message: false }
    }

    pub async fn prepare(&self) -> Result<(), Fault> {
        self.prepare_plan().await.map(drop)
    }

    /// Everything that `prepare` would refuse, without making anything.
    pub async fn check(&self) -> Result<(), Fault> {
        let tables = &self.tables;
        let look = async {
            let mut connection = self.connect().await?;
            if !S::takes_writes(&mut connection, tables).await? {
                return Ok(None);
            }
            S::find(&mut connection, tables).await.map(Some)
        };
        match self.bounded(self.timeouts.call, look).await {
            Ok(Some(found)) => tables.check(&found, S::DIALECT),
            Ok(None) => Err(self.fault(SqlTrouble::ReadOnly, None)),
            Err((trouble, error)) => Err(self.fault(trouble, error.as_ref())),
        }
    }

    /// On a connection of its own, which is new: it shows whether one would be let in.
    pub async fn probe(&self) -> Result<(), Fault> {
        let ask = async {
            let mut connection = self.connect().await?;
            S::takes_writes(&mut connection, &self.tables).await
        };
        match self.bounded(self.timeouts.connect + self.timeouts.connect, ask).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.fault(SqlTrouble::ReadOnly, None)),
            Err((trouble, error)) => Err(self.fault(trouble, error.as_ref())),
        }
    }

    pub async fn deliver(&self, batch: &Batch) -> Result<Receipt, Fault> {
        let plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let plan = match plan {
            Some(plan) => plan,
            None => self.prepare_plan().await?,
        };
        let (rows, set_aside) = read(S::tables(&plan), batch);
        let endings =
            if rows.is_empty() { Endings::new() } else { self.write(&plan, &rows).await? };
        Ok(receipt(set_aside, endings))
    }

    async fn write(&self, plan: &S::Plan, rows: &Rows) -> Result<Endings, Fault> {
        let _place = self.connections.place().await;
        let committing = AtomicBool::new(false);
        let attempt = self.attempt(plan, rows, &committing);
        let (mut trouble, error) = match self.bounded(self.timeouts.call, attempt).await {
            Ok(endings) => return Ok(endings),
            Err(failed) => failed,
        };
        if !trouble.is_about_records() {
            self.connections.forget();
        }
        if matches!(trouble, SqlTrouble::Away | SqlTrouble::Silent)
            && committing.load(Ordering::Relaxed)
        {
            trouble = SqlTrouble::CommitLost;
        }
        if trouble == SqlTrouble::SetUp
            && let Some(misfit) = self.misfit(plan).await
        {
            return Err(match error {
                Some(error) => misfit.because(error),
                None => misfit,
            });
        }
        Err(self.fault(trouble, error.as_ref()))
    }

    /// One transaction. The connection comes back only where nothing is open in its session;
    /// else, and when this is cancelled, it is closed.
    async fn attempt(
        &self,
        plan: &S::Plan,
        rows: &Rows,
        committing: &AtomicBool,
    ) -> Result<Endings, Error> {
        let mut connection = self.begin().await?;
        let written = match S::write(&mut connection, plan, rows).await {
            Ok(endings) => {
                crash_point("sink.commit.before");
                committing.store(true, Ordering::Relaxed);
                let committed = S::commit(&mut connection).await;
                crash_point("sink.commit.after");
                committed.map(|()| endings)
            }
            Err(error) => Err(error),
        };
        let is_good = match &written {
            Ok(_) => true,
            Err(error) => {
                S::trouble(error).is_about_records() && S::roll_back(&mut connection).await.is_ok()
            }
        };
        if is_good {
            self.connections.give_back(connection);
        }
        written
    }

    /// A connection in a new transaction. One that was used before may have died since: nothing
    /// was done on it, so another takes its place.
    async fn begin(&self) -> Result<S::Connection, Error> {
        if let Some(mut connection) = self.connections.take() {
            let begun = S::begin(&mut connection);
            if let Ok(Ok(())) = tokio::time::timeout(self.timeouts.connect, begun).await {
                return Ok(connection);
            }
            self.connections.forget();
        }
        let mut connection = self.connect().await?;
        S::begin(&mut connection).await?;
        Ok(connection)
    }

    async fn connect(&self) -> Result<S::Connection, Error> {
        let connecting = self.server.connect(&self.timeouts);
        match tokio::time::timeout(self.timeouts.connect, connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(Error::Io(std::io::ErrorKind::TimedOut.into())),
        }
    }

    async fn prepare_plan(&self) -> Result<Arc<S::Plan>, Fault> {
        let _place = self.connections.place().await;
        let prepared = self.bounded(self.timeouts.call, async { Ok(self.prepare_once().await) });
        let plan = match prepared.await {
            Ok(prepared) => Arc::new(prepared?),
            Err((trouble, error)) => return Err(self.fault(trouble, error.as_ref())),
        };
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = Some(plan.clone());
        Ok(plan)
    }

    async fn prepare_once(&self) -> Result<S::Plan, Fault> {
        let sort = |error: Error| self.fault(S::trouble(&error), Some(&error));
        let mut connection = self.connect().await.map_err(sort)?;
        let tables = &self.tables;
        if !S::takes_writes(&mut connection, tables).await.map_err(sort)? {
            return Err(self.fault(SqlTrouble::ReadOnly, None));
        }
        let mut found = S::find(&mut connection, tables).await.map_err(sort)?;
        if tables.creates() && found.iter().any(Option::is_none) {
            S::create(&mut connection, tables).await.map_err(|error| match S::trouble(&error) {
                SqlTrouble::SetUp | SqlTrouble::Refused | SqlTrouble::TooLarge => {
                    Fault::fix(format!("{}: cannot create the tables", tables.label()))
                        .because(error)
                        .hint("see the statements with `potok ddl`, then `potok resume`")
                        .code("P0302")
                }
                trouble => self.fault(trouble, Some(&error)),
            })?;
            found = S::find(&mut connection, tables).await.map_err(sort)?;
        }
        let tables = tables.fit(&found, S::DIALECT)?;
        S::plan(&mut connection, tables).await.map_err(sort)
    }

    /// Where an error may mean that the tables changed, what is wrong with them.
    async fn misfit(&self, plan: &S::Plan) -> Option<Fault> {
        let tables = S::tables(plan);
        let look = async {
            let mut connection = self.connect().await?;
            S::find(&mut connection, tables).await
        };
        let found = self.bounded(self.timeouts.call, look).await.ok()?;
        tables.fit(&found, S::DIALECT).err()
    }

    async fn bounded<T>(
        &self,
        max: Duration,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, (SqlTrouble, Option<Error>)> {
        match tokio::time::timeout(max, work).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err((S::trouble(&error), Some(error))),
            Err(_) => Err((SqlTrouble::Silent, None)),
        }
    }

    fn fault(&self, trouble: SqlTrouble, error: Option<&Error>) -> Fault {
        let cause = error.map(|error| error as &dyn std::fmt::Display);
        trouble.fault(&S::SYSTEM, self.tables.label(), cause)
    }
}
