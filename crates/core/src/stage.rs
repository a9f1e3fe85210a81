//! A step between decoding and delivery.

use async_trait::async_trait;

use crate::{Event, Fault};

/// What a stage made of one event.
#[derive(Debug)]
pub enum Staged {
    /// It goes on, perhaps changed.
    On(Event),
    /// A rule filtered it: an ending.
    Filtered,
    /// The stage could not handle this one; the pipeline's `on_error` says what happens.
    Failed(Fault),
}

/// Maps events to events, batch by batch.
#[async_trait]
pub trait Stage: Send + Sync {
    /// Handles the events of one lane in order; answers for each, same length, same order.
    ///
    /// May be called again with the same events after a crash. A fault for the whole batch is
    /// treated like a destination's: `Wait` and `Retry` are retried by the engine. Cancelling
    /// must leave nothing behind that a repeat would contradict.
    async fn apply(&self, events: Vec<Event>) -> Result<Vec<Staged>, Fault>;
}
