//! PostgreSQL as a destination, on a real server.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use potok_connectors::postgres::PostgresSink;
use potok_core::Sink;
use potok_testkit::services;
use potok_testkit::suites::sink::{self, SinkFeatures, SinkHarness};
use serde_json::json;

use super::passed;
use super::sqlite::things;

#[derive(Default)]
struct PostgresSinks(Mutex<String>);

impl PostgresSinks {
    fn open(&self) -> Arc<dyn Sink> {
        match PostgresSink::new(&self.0.lock().unwrap(), things()) {
            Ok(sink) => Arc::new(sink),
            Err(faults) => panic!("{faults:?}"),
        }
    }
}

#[async_trait]
impl SinkHarness for PostgresSinks {
    fn features(&self) -> SinkFeatures {
        SinkFeatures { deduplicates: true, once: true, ordered: false }
    }

    async fn fresh(&self) -> Result<Arc<dyn Sink>, String> {
        *self.0.lock().unwrap() = services::postgres().fresh_database();
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
        let url = self.0.lock().unwrap().clone();
        let rows = services::postgres().query(&url, "SELECT id, text FROM things");
        Ok(rows.into_iter().map(|row| (row[0].clone(), row[1].clone())).collect())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_sink() {
    passed(sink::run_all(&PostgresSinks::default()).await);
}
