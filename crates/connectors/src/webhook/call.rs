//! What is posted.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use potok_core::{Event, Fault, Headers, Reason};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// One call.
pub(super) struct WebhookCall {
    /// `None` where no event can be posted.
    pub body: Option<Bytes>,
    /// The same for the same events, so that a repeat can be told.
    pub name: String,
    /// For each event, why it is not in the body.
    pub failed: Vec<Option<Fault>>,
}

#[derive(Serialize)]
struct SentEvent<'a> {
    id: String,
    topic: &'a str,
    key: Value,
    headers: Map<String, Value>,
    /// As it is: digits and spaces stay.
    value: &'a RawValue,
}

pub(super) fn of(events: &[Event]) -> WebhookCall {
    let (mut sent, mut failed, mut hash) = (Vec::new(), Vec::new(), Sha256::new());
    for event in events {
        let value = match serde_json::from_slice::<&RawValue>(&event.value) {
            Ok(value) => value,
            Err(error) => {
                let what = "the value is not JSON, and a webhook gets nothing else";
                failed.push(Some(Fault::set_aside(Reason::Stage, what).because(error)));
                continue;
            }
        };
        failed.push(None);
        let id = event.position.to_string();
        hash.update(id.as_bytes());
        hash.update(b"\n");
        sent.push(SentEvent {
            id,
            topic: &event.position.topic,
            key: event.key.as_deref().map_or(Value::Null, text),
            headers: headers(&event.headers),
            value,
        });
    }
    // Text and checked JSON: nothing in it can refuse to be written.
    let body = serde_json::to_vec(&sent).ok().filter(|_| !sent.is_empty()).map(Bytes::from);
    let name = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    WebhookCall { body, name, failed }
}

fn headers(headers: &Headers) -> Map<String, Value> {
    let value = |value: Option<&[u8]>| value.map_or(Value::Null, text);
    headers.iter().map(|(name, bytes)| (name.to_owned(), value(bytes))).collect()
}

fn text(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
    }
}
