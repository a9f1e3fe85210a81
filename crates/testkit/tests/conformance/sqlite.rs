//! SQLite as a destination, on a real file.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use potok_connectors::sql::SqlSinkConfig;
use potok_connectors::sqlite::SqliteSink;
use potok_core::Sink;
use potok_expr::{RowsPath, Template};
use potok_testkit::suites::sink::{self, SinkFeatures, SinkHarness};
use serde_json::json;
use tempfile::TempDir;

use super::passed;

/// One table of ids and texts, created where it is missing.
pub fn things() -> SqlSinkConfig {
    SqlSinkConfig {
        label: "db `suite`".to_owned(),
        rows: vec![("things".to_owned(), RowsPath::parse(".").unwrap())],
        once_by: vec![Template::parse(".id").unwrap()],
        schema: Some(json!({
            "type": "object",
            "properties": {"id": {"type": "string"}, "text": {"type": "string"}},
            "required": ["id", "text"],
        })),
        create_tables: true,
    }
}

#[derive(Default)]
struct SqliteSinks(Mutex<Option<TempDir>>);

impl SqliteSinks {
    fn file(&self) -> PathBuf {
        self.0.lock().unwrap().as_ref().unwrap().path().join("suite.sqlite")
    }

    fn open(&self) -> Arc<dyn Sink> {
        match SqliteSink::new(self.file(), things()) {
            Ok(sink) => Arc::new(sink),
            Err(faults) => panic!("{faults:?}"),
        }
    }
}

#[async_trait]
impl SinkHarness for SqliteSinks {
    fn features(&self) -> SinkFeatures {
        SinkFeatures { deduplicates: true, once: true, ordered: true }
    }

    async fn fresh(&self) -> Result<Arc<dyn Sink>, String> {
        *self.0.lock().unwrap() = Some(tempfile::tempdir().unwrap());
        Ok(self.open())
    }

    async fn reopen(&self, sink: Arc<dyn Sink>) -> Result<Arc<dyn Sink>, String> {
        drop(sink);
        Ok(self.open())
    }

    fn value(&self, id: &str, text: &str) -> Bytes {
        json!({"id": id, "text": text}).to_string().into()
    }

    /// The schema's decoder would not let it through; the table does not either.
    fn refused(&self, id: &str) -> Option<Bytes> {
        Some(json!({"id": id, "text": null}).to_string().into())
    }

    async fn found(&self) -> Result<Vec<(String, String)>, String> {
        let read = || -> rusqlite::Result<Vec<(String, String)>> {
            let database = rusqlite::Connection::open(self.file())?;
            let mut select = database.prepare("SELECT id, text FROM things ORDER BY rowid")?;
            select.query_map((), |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        };
        read().map_err(|error| error.to_string())
    }
}

#[tokio::test]
async fn sqlite_sink() {
    passed(sink::run_all(&SqliteSinks::default()).await);
}
