//! Tokens are in no log, whatever happens to their requests.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../hub/support.rs"]
#[allow(dead_code, reason = "shared with the tests of the hub's own clients")]
mod support;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use potok_hub::Hub;
use serde_json::json;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::support::{Client, TestHub, ask, until};

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Written {
    type Writer = Written;

    fn make_writer(&'a self) -> Written {
        self.clone()
    }
}

#[tokio::test]
async fn tokens_are_in_no_log_and_in_no_answer() {
    let written = Written::default();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(written.clone())
        .finish()
        .with(filter_fn(|metadata| !metadata.target().starts_with(potok_hub::UNLOGGED_TARGET)))
        .init();
    let hub = TestHub::start().await;
    let token = hub.token("alice");
    let socket = format!("ws://{}/hubs/notifications?access_token={token}", hub.address);
    let mut client = Client::open(&socket, &token).await.unwrap();
    client.shake_hands().await;
    // A broken message, a broken token, a token of nobody, and one in the wrong place.
    client.write("{\"type\":\"6\"}\u{1e}").await;
    while client.heard().await.is_some() {}
    until("it is gone", || hub.node.stats().connections == 0).await;
    let forged = format!("{}x", &token[..token.len() - 2]);
    for token in [&forged, "a.b.c", &token] {
        let path = format!("/hubs/notifications?access_token={token}");
        let answer = ask(&hub, "GET", &path, &[]).await;
        let answer = answer.head + &answer.body;
        assert!(!answer.contains("eyJ") && !answer.contains(token), "{answer}");
    }
    let mut stays = hub.connect("alice").await;
    stays
        .say(json!({"type": 1, "target": "Refresh", "arguments": [forged], "invocationId": "1"}))
        .await;
    assert!(!stays.hear().await.to_string().contains("eyJ"));
    stays
        .say(json!({"type": 1, "target": "Refresh", "arguments": [token], "invocationId": "2"}))
        .await;
    assert!(stays.hear().await["result"].is_u64());
    let log = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("broke the protocol"), "the log is looked at: {log}");
    // What every token begins with.
    for line in log.lines() {
        assert!(!line.contains("eyJ") && !line.contains("access_token"), "{line}");
    }
}
