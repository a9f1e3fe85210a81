//! The outbox: a table that an application writes in its own transactions, relayed to topics.
//!
//! Promised: every row that was committed is published; a row is first published after every row of its
//! key that was committed before it was inserted; a row is marked only after it was published, and a
//! repeat has the same id. One process at a time relays a table, under a lease (`tenure.rs`); every read
//! is one snapshot from the first row that waits (`statements.rs`); a row that failed keeps its key back,
//! and no other (`flight.rs`). Not here: what follows the log of the database, and several relays that
//! share a table at a time.

mod batch_size;
mod counters;
mod ddl;
mod feed;
mod flight;
mod keys;
mod letters;
mod look;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod notify;
#[cfg(feature = "postgres")]
mod postgres;
mod relay;
mod report;
mod session;
mod settings;
mod shape;
#[cfg(feature = "sqlite")]
mod sqlite;
mod statements;
mod table;
mod tenure;
mod waiting;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use potok_core::Fault;
use potok_core::trouble::{Bug, Plant};
use potok_expr::Template;

use counters::RelayCounters;
use look::Look;
use session::OutboxSession;
use shape::{Names, Shape};

use crate::sql::Dialect;

pub use settings::OutboxSettings;
pub(crate) use settings::register;

/// What a session is for: each has its own, so that none waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionPurpose {
    Lease,
    Read,
    Note,
    Purge,
    Look,
}

/// How the table is relayed.
#[derive(Clone, Debug)]
struct RelayOptions {
    attempts: u32,
    first: Duration,
    max: Duration,
    lease: Duration,
    keep_processed: Option<Duration>,
    create_tables: bool,
    /// The longest pause between two reads of a table where nothing waits.
    poll: Option<Duration>,
    /// What is kept in order.
    key: Option<Template>,
    /// What the pipeline file comes down to: where it changed, rows that wait are tried at once.
    config: String,
    /// What records call the place they come from.
    topic: Arc<str>,
    /// The naive version that a test has switched on.
    plant: Plant,
}

/// Where the table is.
enum OutboxServer {
    #[cfg(feature = "sqlite")]
    Sqlite(PathBuf),
    #[cfg(feature = "postgres")]
    Postgres(Box<sqlx::postgres::PgConnectOptions>),
    #[cfg(feature = "mysql")]
    Mysql(Box<sqlx::mysql::MySqlConnectOptions>),
}

/// An outbox table: a feed, and what `potok outbox` asks.
pub struct Outbox {
    label: String,
    /// Which process this is, for people.
    owner: String,
    /// The pipeline file, for hints.
    pipeline: String,
    names: Names,
    settings: RelayOptions,
    server: OutboxServer,
    /// As it was last seen.
    shape: Mutex<Option<Shape>>,
    /// For questions of people.
    asking: Arc<dyn OutboxSession>,
    counters: Arc<RelayCounters>,
    /// Whoever keeps the lease: it has let go of it when it ends.
    keeper: Mutex<Option<tokio::task::JoinHandle<()>>>,
    /// Rows per second, when that was asked last.
    rate: Mutex<Option<(tokio::time::Instant, Option<f64>)>>,
}

impl Outbox {
    fn dialect(&self) -> Dialect {
        self.server.dialect()
    }

    fn session(&self, purpose: SessionPurpose) -> Arc<dyn OutboxSession> {
        match purpose {
            SessionPurpose::Look => self.asking.clone(),
            _ => self.server.session(&self.label, purpose, &self.settings),
        }
    }

    fn look_at<'a>(&'a self, session: &'a dyn OutboxSession, create: bool) -> Look<'a> {
        Look {
            session,
            dialect: self.dialect(),
            names: &self.names,
            label: &self.label,
            pipeline: &self.pipeline,
            create,
            plant: self.settings.plant,
        }
    }

    /// Looks at everything, and makes what is missing where that is wanted.
    async fn prepare(&self) -> Result<Shape, Fault> {
        let session = self.session(SessionPurpose::Read);
        let mut shape = self.look_at(&*session, self.settings.create_tables).prepare().await?;
        if self.settings.plant.is(Bug::LeaseBySettings) {
            shape.lease = format!("{} {}", shape.lease, self.settings.config);
        }
        *self.shape.lock().unwrap_or_else(PoisonError::into_inner) = Some(shape.clone());
        Ok(shape)
    }

    /// Whether the table can be relayed, and what somebody should know about it; changes nothing.
    async fn doubts(&self) -> Result<Vec<String>, Fault> {
        #[cfg(feature = "sqlite")]
        if let OutboxServer::Sqlite(path) = &self.server
            && self.settings.create_tables
            && !path.exists()
        {
            // To look into the file would make it.
            return Ok(Vec::new());
        }
        self.look_at(&*self.asking, self.settings.create_tables).check().await
    }

    /// The table as it was last seen, or as it is.
    async fn look(&self) -> Result<Shape, Fault> {
        let known = self.shape.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(shape) = known {
            return Ok(shape);
        }
        let session = self.asking.clone();
        let shape = self.look_at(&*session, false).prepare().await?;
        *self.shape.lock().unwrap_or_else(PoisonError::into_inner) = Some(shape.clone());
        Ok(shape)
    }
}

#[cfg(not(feature = "postgres"))]
impl Outbox {
    /// No other database tells of new rows.
    fn spawn_listener(&self, _relay: &Arc<relay::Relay>, _shape: &Arc<Shape>) {}
}

impl OutboxServer {
    fn dialect(&self) -> Dialect {
        match self {
            #[cfg(feature = "sqlite")]
            OutboxServer::Sqlite(_) => Dialect::Sqlite,
            #[cfg(feature = "postgres")]
            OutboxServer::Postgres(_) => Dialect::Postgres,
            #[cfg(feature = "mysql")]
            OutboxServer::Mysql(_) => Dialect::Mysql,
        }
    }

    fn session(
        &self,
        label: &str,
        purpose: SessionPurpose,
        settings: &RelayOptions,
    ) -> Arc<dyn OutboxSession> {
        let lease = settings.lease;
        let call = match purpose {
            // A renewal that takes long comes too late.
            SessionPurpose::Lease => (lease / 3).min(Duration::from_secs(2)),
            // A note keeps the lease from being renewed and from being taken over.
            SessionPurpose::Note | SessionPurpose::Purge => lease / 3,
            SessionPurpose::Read | SessionPurpose::Look => Duration::from_secs(20),
        };
        match self {
            #[cfg(feature = "sqlite")]
            OutboxServer::Sqlite(path) => {
                let create = settings.create_tables;
                Arc::new(sqlite::SqliteSession::new(label, path.clone(), create, call))
            }
            #[cfg(feature = "postgres")]
            OutboxServer::Postgres(options) => {
                let options = options.as_ref().clone();
                Arc::new(postgres::PostgresSession::new(label, options, call, lease))
            }
            #[cfg(feature = "mysql")]
            OutboxServer::Mysql(options) => {
                let options = options.as_ref().clone();
                Arc::new(mysql::MysqlSession::new(label, options, call, settings))
            }
        }
    }
}
