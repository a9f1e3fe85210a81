//! A webhook as a destination, on a real HTTP server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use potok_connectors::webhook::WebhookSink;
use potok_core::Sink;
use potok_testkit::suites::sink::{self, SinkFeatures, SinkHarness};
use serde_json::{Value, json};

use super::passed;
use super::webhook_server::{ReceivedRequest, Reply, Server};

/// Takes what has a text, once for each key.
#[derive(Default)]
struct Receiver(Arc<Mutex<Vec<(String, Value)>>>);

impl Receiver {
    fn answer(taken: &Mutex<Vec<(String, Value)>>, asked: &ReceivedRequest) -> Reply {
        if asked.method != "POST" {
            return Reply::Status(405, String::new());
        }
        let key = asked.header("idempotency-key").unwrap_or_default().to_owned();
        let value: Value = serde_json::from_slice(&asked.body).unwrap();
        if !value["text"].is_string() {
            return Reply::Status(422, "no text".to_owned());
        }
        let mut taken = taken.lock().unwrap();
        if !taken.iter().any(|(known, _)| *known == key) {
            taken.push((key, value));
        }
        Reply::Status(204, String::new())
    }
}

#[derive(Default)]
struct WebhookSinks(Mutex<Option<(Server, Receiver)>>);

impl WebhookSinks {
    fn open(&self) -> Arc<dyn Sink> {
        let url = self.0.lock().unwrap().as_ref().unwrap().0.url.clone();
        Arc::new(WebhookSink::new(&url, Duration::from_secs(20)).unwrap())
    }
}

#[async_trait]
impl SinkHarness for WebhookSinks {
    /// Duplicates are dropped by the receiver, which does not say so.
    fn features(&self) -> SinkFeatures {
        SinkFeatures { deduplicates: false, once: false, ordered: false }
    }

    async fn fresh(&self) -> Result<Arc<dyn Sink>, String> {
        let receiver = Receiver::default();
        let taken = receiver.0.clone();
        let server = Server::start(move |_, asked| Receiver::answer(&taken, asked)).await;
        *self.0.lock().unwrap() = Some((server, receiver));
        Ok(self.open())
    }

    async fn reopen(&self, sink: Arc<dyn Sink>) -> Result<Arc<dyn Sink>, String> {
        drop(sink);
        Ok(self.open())
    }

    fn value(&self, id: &str, text: &str) -> Bytes {
        json!({"id": id, "text": text}).to_string().into()
    }

    fn refused(&self, id: &str) -> Option<Bytes> {
        Some(json!({"id": id, "text": null}).to_string().into())
    }

    async fn found(&self) -> Result<Vec<(String, String)>, String> {
        let open = self.0.lock().unwrap();
        let taken = open.as_ref().unwrap().1.0.lock().unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        Ok(taken.iter().map(|(_, value)| (text(&value["id"]), text(&value["text"]))).collect())
    }
}

#[tokio::test]
async fn webhook_sink() {
    passed(sink::run_all(&WebhookSinks::default()).await);
}
