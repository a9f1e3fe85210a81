//! Reads a topic outside any group.

use std::sync::Arc;

use async_trait::async_trait;
use potok_core::{Fault, Reader, SourceBatch};

use super::scan::ScanCursor;
use super::shared::OpenLog;
use super::source::Filler;

/// A pass over one topic. What was released is left out, wherever it still lies.
pub struct EmbeddedReader {
    shared: Arc<OpenLog>,
    filler: Filler,
}

impl EmbeddedReader {
    /// Reads `lanes`.
    pub fn new(shared: &Arc<OpenLog>, lanes: Vec<ScanCursor>) -> Self {
        EmbeddedReader { shared: shared.clone(), filler: Filler::new(shared, lanes) }
    }
}

#[async_trait]
impl Reader for EmbeddedReader {
    async fn next(&mut self, follow: bool) -> Result<Option<SourceBatch>, Fault> {
        while let Some(mut batch) = self.filler.next(follow).await? {
            let partition = &batch.partition;
            if let Some(released) =
                self.shared.state().catalog.released(&partition.topic, partition.index)
            {
                batch.records.retain(|record| !released.contains(record.offset));
                if batch.records.is_empty() {
                    continue;
                }
            }
            return Ok(Some(batch));
        }
        Ok(None)
    }
}
