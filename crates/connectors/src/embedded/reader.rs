//! Reads a topic outside any group.

use async_trait::async_trait;
use potok_core::{Fault, Reader, SourceBatch};

use super::source::Filler;

/// A pass over one topic.
pub struct EmbeddedReader(pub Filler);

#[async_trait]
impl Reader for EmbeddedReader {
    async fn next(&mut self, follow: bool) -> Result<Option<SourceBatch>, Fault> {
        self.0.next(follow).await
    }
}
