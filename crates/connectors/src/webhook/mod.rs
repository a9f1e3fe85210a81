//! A stage that asks somebody over HTTP: events go out as a JSON array, answers come back as one.
//!
//! ```text
//! POST <address>                      Idempotency-Key: the same for the same events
//! [ { "id": "orders/0/41@…", "topic": "orders", "key": "k", "headers": { "a": "b" },
//!     "value": { … } }, … ]
//!
//! 200 OK
//! [ { "value": { … } }                 goes on changed
//!   { "filtered": true }               is filtered
//!   { "error": "no such customer" }    failed: the stage's `on_error` decides
//!   null ]                             goes on as it was
//! ```
//!
//! A key or header that is not UTF-8 is `{ "base64": "…" }`; of headers with one name the last
//! counts. Redirects are not followed: what is posted goes where the file says and nowhere else.
//! The address is a secret, so no fault shows it or a part of it.

mod address;
mod answer;
mod call;
mod client;
mod fault;

use std::time::Duration;

use async_trait::async_trait;
use potok_core::{Event, Fault, Stage, StageLimits, Staged};

use address::Address;
use client::Client;

/// Events of one call.
const EVENTS_MAX: usize = 500;
/// Bytes of their values.
const BYTES_MAX: usize = 1 << 20;

/// Asks an address what becomes of events.
pub struct WebhookStage {
    client: Client,
}

impl WebhookStage {
    /// A stage that posts to `url` and waits so long for the answer. Connects when it is called
    /// first.
    pub fn new(url: &str, timeout: Duration) -> Result<Self, Fault> {
        Ok(WebhookStage { client: Client::new(Address::parse(url)?, timeout)? })
    }
}

#[async_trait]
impl Stage for WebhookStage {
    fn limits(&self) -> StageLimits {
        StageLimits { events_max: EVENTS_MAX, bytes_max: BYTES_MAX }
    }

    async fn apply(&self, events: Vec<Event>) -> Result<Vec<Staged>, Fault> {
        let call = call::of(&events);
        let body = match call.body {
            Some(body) => self.client.post(body, &call.name).await?,
            None => Default::default(),
        };
        let asked = call.failed.iter().filter(|failed| failed.is_none()).count();
        let mut answers = match asked {
            0 => Vec::new(),
            _ => answer::read(&body, asked),
        }
        .into_iter();
        let staged = events.into_iter().zip(call.failed).map(|(event, failed)| {
            match failed.map_or_else(|| answers.next(), |fault| Some(Err(fault))) {
                Some(Ok(answer)) => answer.applied_to(event),
                Some(Err(fault)) => Staged::Failed(fault),
                // There is one for each that was asked about.
                None => Staged::Failed(answer::missing()),
            }
        });
        Ok(staged.collect())
    }
}
