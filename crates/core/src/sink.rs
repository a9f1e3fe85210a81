//! Where messages are delivered.

use async_trait::async_trait;

use crate::{Batch, Fault, Receipt};

/// The largest call that a sink takes.
#[derive(Clone, Copy, Debug)]
pub struct SinkLimits {
    /// Messages per call.
    pub batch_records_max: usize,
    /// Bytes per call; a single larger message is still tried alone.
    pub batch_bytes_max: usize,
    /// Messages of one call succeed and fail one by one, not together. The engine then puts a
    /// key into a call at most once, so that a later message never overtakes a failed one.
    pub per_message: bool,
}

impl Default for SinkLimits {
    fn default() -> Self {
        SinkLimits { batch_records_max: 1_000, batch_bytes_max: 4 << 20, per_message: false }
    }
}

/// Writes batches to one outside system. One call is one attempt: waiting, retrying, splitting
/// and dead-lettering belong to the engine, so no sink can get them wrong.
#[async_trait]
pub trait Sink: Send + Sync {
    /// The largest call it takes. Asked once.
    fn limits(&self) -> SinkLimits {
        SinkLimits::default()
    }

    /// Makes ready: creates tables where asked, checks that they fit. Called before the first
    /// delivery and again after a fault here; must be repeatable. `Wait` is waited for like an
    /// outage, so a destination that is down at start stops nothing.
    async fn prepare(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// Says what [`Sink::prepare`] would refuse, and makes nothing: for whoever asks before
    /// anything runs. At least what a probe tells.
    async fn check(&self) -> Result<(), Fault> {
        self.probe().await
    }

    /// One cheap round trip that writes nothing but would notice a read-only destination. The
    /// gate holds the pipeline until it succeeds. Called every `probe_every` while closed, on
    /// resources of its own: lanes that wait for the destination must not starve it.
    async fn probe(&self) -> Result<(), Fault>;

    /// Attempts the whole batch, in order. `Ok` means: every message is durable or is named in
    /// the receipt. `Err` means: none, or (answer lost) an unknown part, is there; the engine
    /// calls again with messages of the same ids, and the sink drops what it has as duplicates.
    /// Called from several lanes at once; batches of one lane one after another. Cancelling
    /// counts as an unknown outcome.
    async fn deliver(&self, batch: &Batch) -> Result<Receipt, Fault>;
}
