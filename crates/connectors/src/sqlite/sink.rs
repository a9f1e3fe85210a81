//! The destination: records into the tables of one SQLite file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use potok_core::{Batch, Fault, Receipt, Sink, SinkLimits};

use super::statements::SqlitePlan;
use super::writer::SqliteWriter;
use super::{client, fault};
use crate::sql::{Dialect, Endings, SqlSinkConfig, Tables, read, receipt};

/// Writes records into the tables of one SQLite file.
pub struct SqliteSink {
    tables: Arc<Tables>,
    writer: Arc<SqliteWriter>,
    /// Set by the last `prepare` that succeeded.
    plan: Mutex<Option<Arc<SqlitePlan>>>,
}

impl SqliteSink {
    /// A sink for the file at `path`. Touches no disk; says everything that is wrong with the
    /// mapping at once.
    pub fn new(path: PathBuf, config: SqlSinkConfig) -> Result<SqliteSink, Vec<Fault>> {
        let tables = Arc::new(Tables::new(&config)?);
        Ok(SqliteSink { tables, writer: SqliteWriter::of(&path), plan: Mutex::default() })
    }

    async fn plan(&self) -> Result<Arc<SqlitePlan>, Fault> {
        let plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match plan {
            Some(plan) => Ok(plan),
            None => self.prepare_plan().await,
        }
    }

    async fn prepare_plan(&self) -> Result<Arc<SqlitePlan>, Fault> {
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
            client::probe(&path).map_err(|error| fault::sort(tables.label(), &path, &error))
        };
        let probed = tokio::task::spawn_blocking(probe).await;
        probed.unwrap_or_else(|error| Err(Fault::retry("the probe died").because(error)))
    }

    async fn check(&self) -> Result<(), Fault> {
        self.probe().await?;
        let (path, tables) = (self.writer.path().to_owned(), self.tables.clone());
        if !path.exists() {
            return can_be_made(tables.label(), &path);
        }
        let look = move || {
            let sort = |error| fault::sort(tables.label(), &path, &error);
            let found = client::look(&path, &tables).map_err(sort)?;
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

/// Whether a file that is not there yet can be made at the start. Leaves nothing behind.
fn can_be_made(label: &str, file: &Path) -> Result<(), Fault> {
    // Folders that are missing are made in the first one above that is there.
    let above = |above: &&Path| above.as_os_str().is_empty() || above.exists();
    let above = file.ancestors().skip(1).find(above).unwrap_or(Path::new("."));
    let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
    let trial = above.join(format!(".potok-check-{}", std::process::id()));
    let made = File::create_new(&trial).and_then(|_| fs::remove_file(&trial));
    made.map_err(|error| {
        Fault::wait(format!("{label}: {} cannot be made", file.display()))
            .because(format!("{}: {error}", above.display()))
            .code("P0305")
            .hint("choose another file, or let potok write to that folder")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_can_be_made_where_its_folder_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let below = |path: &str| folder.path().join(path);
        fs::write(below("file"), "").unwrap();
        can_be_made("x", &below("new/folder/orders.sqlite")).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
        // A file is no folder; and nobody, not even root, makes files in /proc.
        for file in [below("file/orders.sqlite"), PathBuf::from("/proc/potok/orders.sqlite")] {
            let fault = can_be_made("x", &file).unwrap_err();
            assert_eq!(fault.code, "P0305");
            assert!(fault.what.contains("orders.sqlite"), "{fault}");
        }
    }
}
