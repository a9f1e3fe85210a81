//! SQLite as a destination: every record at most once, all its rows or none.
//!
//! Promised: what `deliver` reports as delivered is on disk; a repeat, after whatever crash, is
//! found by its delivery id or by its id and hash; a record the tables refuse takes no other with
//! it; a file that is away, full, locked or read-only is waited for. Not here: updates, deletes
//! and reads. A database has many uses, this connector writes records into it.

mod database;
mod fault;
mod statements;
mod writer;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use potok_core::{Batch, Fault, Receipt, Sink, SinkLimits};

use crate::sql::{Dialect, Endings, SqlSinkConfig, Tables, read, receipt};
use statements::Plan;
use writer::Writer;

/// Writes records into the tables of one SQLite file.
pub struct SqliteSink {
    tables: Arc<Tables>,
    writer: Arc<Writer>,
    /// Set by the last `prepare` that succeeded.
    plan: Mutex<Option<Arc<Plan>>>,
}

impl SqliteSink {
    /// A sink for the file at `path`. Touches no disk; says everything that is wrong with the
    /// mapping at once.
    pub fn new(path: PathBuf, config: SqlSinkConfig) -> Result<SqliteSink, Vec<Fault>> {
        let tables = Arc::new(Tables::new(&config)?);
        Ok(SqliteSink { tables, writer: Writer::of(&path), plan: Mutex::default() })
    }

    async fn plan(&self) -> Result<Arc<Plan>, Fault> {
        let plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match plan {
            Some(plan) => Ok(plan),
            None => self.prepare_plan().await,
        }
    }

    async fn prepare_plan(&self) -> Result<Arc<Plan>, Fault> {
        let plan = Arc::new(self.writer.prepare(self.tables.clone()).await?);
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = Some(plan.clone());
        Ok(plan)
    }
}

#[async_trait]
impl Sink for SqliteSink {
    fn limits(&self) -> SinkLimits {
        SinkLimits { batch_records_max: 2_000, batch_bytes_max: 4 << 20, per_message: false }
    }

    async fn prepare(&self) -> Result<(), Fault> {
        self.prepare_plan().await.map(drop)
    }

    async fn probe(&self) -> Result<(), Fault> {
        let path = self.writer.path().to_owned();
        if self.tables.creates() && !path.exists() {
            // Creating it is the duty of `prepare`, which says so where it cannot.
            return Ok(());
        }
        let tables = self.tables.clone();
        let probe = move || {
            database::probe(&path).map_err(|error| fault::sort(tables.label(), &path, &error))
        };
        let probed = tokio::task::spawn_blocking(probe).await;
        probed.unwrap_or_else(|error| Err(Fault::retry("the probe died").because(error)))
    }

    async fn check(&self) -> Result<(), Fault> {
        self.probe().await?;
        let (path, tables) = (self.writer.path().to_owned(), self.tables.clone());
        if !path.exists() {
            return Ok(());
        }
        let look = move || {
            let sort = |error| fault::sort(tables.label(), &path, &error);
            let found = database::look(&path, &tables).map_err(sort)?;
            tables.check(&found, Dialect::Sqlite)
        };
        let looked = tokio::task::spawn_blocking(look).await;
        looked.unwrap_or_else(|error| Err(Fault::retry("the look died").because(error)))
    }

    async fn deliver(&self, batch: &Batch) -> Result<Receipt, Fault> {
        let plan = self.plan().await?;
        let (rows, set_aside) = read(&plan.tables, batch);
        let endings =
            if rows.is_empty() { Endings::new() } else { self.writer.write(plan, rows).await? };
        Ok(receipt(set_aside, endings))
    }
}
