//! The keys of a source that is an outbox table.

use std::any::Any;
use std::sync::{Arc, Mutex};

use potok_config::{
    ConnectionName, EntryCheck, FeedSettings, Period, Refusal, Registry, Site, SqlName,
};
use potok_core::Feed;
use potok_core::trouble::Plant;
use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::Names;
use super::{Outbox, OutboxServer, RelayOptions, SessionPurpose};
use crate::sql::{CONNECTIONS, DatabaseLocation, Dialect, database};

/// Adds outbox tables as sources.
pub(crate) fn register(registry: &mut Registry) {
    registry.connections(CONNECTIONS).feed::<OutboxSettings>("outbox");
}

/// An outbox table, which an application writes in its own transactions. The value of a record is
/// the payload byte for byte; its headers are `id`, `event_type`, `added_at`, and `traceparent` where the
/// table has such a column. Rows are marked as processed when they are published.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutboxSettings {
    /// The table.
    ///
    /// Example: `outbox: outbox`
    outbox: SqlName,
    /// The database, by its name in `potok.yaml` under `db`.
    ///
    /// Example: `db: messenger`
    db: ConnectionName,
    /// How often a row may fail before it becomes a dead letter. Kept in `retry_count`; a log that is
    /// away costs no attempt.
    ///
    /// Example: `attempts: 10`
    #[serde(default = "ten")]
    #[schemars(range(min = 1, max = 1000))]
    attempts: u32,
    /// How long a row that failed waits. Later rows of its key wait with it.
    ///
    /// Example: `backoff: { first: 1s, max: 10m }`
    #[serde(default)]
    backoff: Backoff,
    /// What the columns of the table are called, where they have other names.
    ///
    /// Example: `columns: { id: Id, event_type: Type, payload: Data }`
    #[serde(default)]
    columns: Columns,
    /// Further columns that become headers.
    ///
    /// Example: `headers: [conversation_id]`
    #[serde(default)]
    headers: Vec<SqlName>,
    /// Deletes processed rows that are older. Without it they stay.
    ///
    /// Example: `keep_processed: 7d`
    keep_processed: Option<Period>,
    /// Creates missing tables at start. Default: for SQLite only. `potok outbox ddl` prints the
    /// statements.
    ///
    /// Example: `create_tables: true`
    create_tables: Option<bool>,
    /// How long a relay owns the table without a sign of life. Another one takes over after it.
    ///
    /// Example: `lease: 10s`
    #[serde(default = "ten_seconds")]
    lease: Period,
    /// How long the relay waits at most before it looks for new rows, where it has found none. Default:
    /// 250ms, and 1s where a trigger tells it of new rows (`potok outbox ddl --notify`).
    ///
    /// Example: `poll: 500ms`
    poll: Option<Period>,
}

fn ten() -> u32 {
    10
}

fn ten_seconds() -> Period {
    Period::secs(10)
}

/// How long a row that failed waits: twice as long each time.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Backoff {
    /// The wait after the first failure.
    ///
    /// Example: `first: 1s`
    first: Period,
    /// The longest wait.
    ///
    /// Example: `max: 10m`
    max: Period,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff { first: Period::secs(1), max: Period::secs(600) }
    }
}

/// What the columns of an outbox table are called.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Columns {
    /// Names a row, once and for all. Default: `id`.
    ///
    /// Example: `id: Id`
    id: Option<SqlName>,
    /// What happened. Default: `event_type`.
    ///
    /// Example: `event_type: Type`
    event_type: Option<SqlName>,
    /// The message. Default: `payload`.
    ///
    /// Example: `payload: Data`
    payload: Option<SqlName>,
    /// When the row was written. Default: `added_at`.
    ///
    /// Example: `added_at: CreatedAt`
    added_at: Option<SqlName>,
    /// True when it was published. Default: `processed`.
    ///
    /// Example: `processed: Processed`
    processed: Option<SqlName>,
    /// When it was. Default: `processed_at`.
    ///
    /// Example: `processed_at: ProcessedAt`
    processed_at: Option<SqlName>,
    /// How often it failed. Default: `retry_count`.
    ///
    /// Example: `retry_count: RetryCount`
    retry_count: Option<SqlName>,
    /// Where the trace is, if the table has it. Default: `traceparent`.
    ///
    /// Example: `traceparent: TraceParent`
    traceparent: Option<SqlName>,
    /// What rows are ordered by. Default: a column that the database counts up, in SQLite the row's own
    /// number, else the time and the id, which is not the order in which rows were committed.
    ///
    /// Example: `order: seq`
    order: Option<SqlName>,
}

impl OutboxSettings {
    fn names(&self, dead: Option<&str>) -> Names {
        let name = |set: &Option<SqlName>, usual: &str| {
            set.as_ref().map_or_else(|| usual.to_owned(), ToString::to_string)
        };
        let columns = &self.columns;
        Names {
            table: self.outbox.to_string(),
            dead: dead.map_or_else(|| format!("{}_dead", self.outbox), str::to_owned),
            id: name(&columns.id, "id"),
            event_type: name(&columns.event_type, "event_type"),
            payload: name(&columns.payload, "payload"),
            added_at: name(&columns.added_at, "added_at"),
            processed: name(&columns.processed, "processed"),
            processed_at: name(&columns.processed_at, "processed_at"),
            retry_count: name(&columns.retry_count, "retry_count"),
            traceparent: name(&columns.traceparent, "traceparent"),
            order: columns.order.as_ref().map(ToString::to_string),
            headers: self.headers.iter().map(ToString::to_string).collect(),
        }
    }

    /// The outbox that these settings mean.
    pub fn outbox(&self, site: &Site<'_>) -> Result<Outbox, Vec<Refusal>> {
        let location = site.connections.named(&CONNECTIONS, &self.db);
        let place =
            DatabaseLocation { name: &self.db, location, data_dir: &site.connections.data_dir };
        let database = database(&place, &site.label).map_err(|refusal| vec![refusal])?;
        let server = match database.dialect {
            #[cfg(feature = "sqlite")]
            Dialect::Sqlite => OutboxServer::Sqlite(crate::sqlite::path(&place)),
            #[cfg(feature = "postgres")]
            Dialect::Postgres => {
                let options = crate::postgres::options(&site.label, place.text());
                OutboxServer::Postgres(Box::new(options.map_err(|fault| vec![fault.into()])?))
            }
            #[cfg(feature = "mysql")]
            Dialect::Mysql => {
                let options = crate::mysql::options(&site.label, place.text());
                OutboxServer::Mysql(Box::new(options.map_err(|fault| vec![fault.into()])?))
            }
            #[allow(unreachable_patterns, reason = "a build may lack some")]
            _ => return Err(Vec::new()),
        };
        let is_sqlite = database.dialect == Dialect::Sqlite;
        let settings = RelayOptions {
            attempts: self.attempts,
            first: *self.backoff.first,
            max: *self.backoff.max,
            lease: *self.lease,
            keep_processed: self.keep_processed.map(|period| *period),
            create_tables: self.create_tables.unwrap_or(is_sqlite),
            poll: self.poll.map(|period| *period),
            key: site.order_key.clone(),
            config: format!("{:016x}", site.file_hash),
            topic: self.outbox.as_str().into(),
            plant: Plant::here(),
        };
        let asking = server.session(&site.label, SessionPurpose::Read, &settings);
        Ok(Outbox {
            label: site.label.clone(),
            owner: format!("{} (process {})", host(), std::process::id()),
            pipeline: site.pipeline.to_owned(),
            names: self.names(site.dead_table),
            settings,
            server,
            shape: Default::default(),
            asking,
            counters: Arc::default(),
            keeper: Mutex::default(),
            rate: Mutex::default(),
        })
    }
}

/// What this machine is called.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let name = name.map(|name| name.trim().to_owned()).unwrap_or_default();
    if name.is_empty() { "an unnamed host".to_owned() } else { name }
}

/// An outbox pipeline that cannot keep its promise.
const CANNOT: &str = "P1304";

impl FeedSettings for OutboxSettings {
    fn label(&self) -> &str {
        &self.outbox
    }

    fn check(&self, entry: &mut EntryCheck<'_>) {
        if *self.backoff.first > *self.backoff.max {
            let what = "`first` is longer than `max`";
            entry.refuse_as("P0152", "backoff", what, "`max` is the longest wait");
        }
        if self.lease.as_secs() < 1 {
            let what = "a lease under a second would be lost at the first hiccup";
            entry.refuse_as("P0152", "lease", what, "e.g. `lease: 10s`");
        }
        if self.poll.is_some_and(|poll| poll.is_zero()) {
            let what = "without a pause the relay would only ask the database";
            entry.refuse_as("P0152", "poll", what, "e.g. `poll: 250ms`");
        }
        if entry.has_group() {
            let what = "`group` with an outbox: rows are published one by one";
            let hint = "publish them to a topic, and group in a pipeline that reads it";
            entry.refuse_as(CANNOT, "outbox", what, hint);
        }
        if entry.delivers() != ["topic"] {
            let what = "an outbox is published by exactly one `deliver`, to a topic";
            let hint = "with two, each attempt would repeat the one that succeeded; let another \
                        pipeline read the topic";
            entry.refuse_as(CANNOT, "outbox", what, hint);
        }
        if entry.sources() > 1 {
            let what = "an outbox is the only source of its pipeline";
            entry.refuse_as(CANNOT, "outbox", what, "make it two pipelines");
        }
    }

    fn build(&self, site: &Site<'_>) -> Result<Arc<dyn Feed>, Vec<Refusal>> {
        Ok(Arc::new(self.outbox(site)?))
    }

    fn keeps_dead_letters(&self) -> bool {
        true
    }

    /// The second would stand by for ever.
    fn sole(&self) -> Option<String> {
        Some(format!("{} {}", &*self.db, &*self.outbox))
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}
