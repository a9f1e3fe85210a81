//! The destination: messages go to a Sample server, one line each.

use std::time::Duration;

use async_trait::async_trait;
use potok_core::{Batch, Fault, Receipt, Sink, SinkLimits};

use super::client::Client;
use super::fault::sorted;

/// Sends messages to one Sample server.
pub struct SampleSink {
    client: Client,
}

impl SampleSink {
    /// A sink for the server at `url`. Connects when it is called first.
    pub fn new(url: &str, timeout: Duration) -> Self {
        SampleSink { client: Client::new(url, timeout) }
    }
}

#[async_trait]
impl Sink for SampleSink {
    fn limits(&self) -> SinkLimits {
        SinkLimits { batch_records_max: 500, ..SinkLimits::default() }
    }

    async fn probe(&self) -> Result<(), Fault> {
        self.client.send(b"").await.map_err(sorted)
    }

    async fn deliver(&self, batch: &Batch) -> Result<Receipt, Fault> {
        let mut lines = Vec::new();
        for message in &batch.messages {
            lines.extend_from_slice(&message.value);
            lines.push(b'\n');
        }
        self.client.send(&lines).await.map_err(sorted)?;
        Ok(Receipt::delivered())
    }
}
