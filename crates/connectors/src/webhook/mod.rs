//! Webhooks: a destination that gets each message by HTTP POST (`sink.rs`), and a stage that asks
//! somebody over HTTP: events go out as a JSON array, answers come back as one.
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
mod destination;
mod fault;
mod settings;
mod sink;
mod stage;

pub use destination::CONNECTIONS;
pub use sink::WebhookSink;
pub use stage::WebhookStage;

use potok_config::Registry;

/// Adds the stage and the destination.
pub(crate) fn register(registry: &mut Registry) {
    settings::register(registry);
    destination::register(registry);
}
