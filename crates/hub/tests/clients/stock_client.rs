//! A stock client in a process of Node.

use std::path::Path;

use potok_services::NodeScript;
use serde_json::{Value, json};

pub struct StockClient {
    script: NodeScript,
}

impl StockClient {
    /// Not connected yet.
    pub fn new(url: &str, transport: &str, protocol: &str) -> Self {
        StockClient::of(url, transport, protocol, "@microsoft/signalr")
    }

    /// A client of another version.
    pub fn of(url: &str, transport: &str, protocol: &str, library: &str) -> Self {
        StockClient::with(&[url, transport, protocol, library])
    }

    /// One that comes back to its connection.
    pub fn stateful(url: &str, protocol: &str) -> Self {
        StockClient::with(&[url, "WebSockets", protocol, "@microsoft/signalr", "stateful"])
    }

    /// One that opens its WebSocket without asking first.
    pub fn unnegotiated(url: &str, protocol: &str) -> Self {
        StockClient::with(&[url, "WebSockets", protocol, "@microsoft/signalr", "unnegotiated"])
    }

    fn with(arguments: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/client.js");
        StockClient { script: NodeScript::start(&script, arguments) }
    }

    pub fn order(&mut self, order: Value) {
        self.script.say(&order.to_string());
    }

    /// What it tells next.
    pub fn event(&mut self) -> Value {
        let line = tokio::task::block_in_place(|| self.script.line());
        serde_json::from_str(&line.expect("the client ended")).unwrap()
    }

    /// The next of that kind. What comes before it must be of the kinds `but`.
    pub fn await_event(&mut self, kind: &str, but: &[&str]) -> Value {
        loop {
            let event = self.event();
            if event["event"] == kind {
                return event;
            }
            let other = event["event"].as_str().unwrap_or_default();
            assert!(but.contains(&other), "{kind} was awaited: {event}");
        }
    }

    pub fn start(&mut self, token: &str) -> Value {
        self.order(json!({"token": token, "start": true}));
        self.await_event("started", &[])
    }
}
