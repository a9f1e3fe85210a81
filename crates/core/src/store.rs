//! Where the bodies of held records are while a group is open.

use async_trait::async_trait;

use crate::{Fault, Partition, Position, Record, SourceBatch};

/// Keeps bodies of held records for the owner of their group. Never the only home of a record:
/// the log still has it, and losing the store costs a re-read. Index and clock are the engine's.
///
/// Every write is fenced: it carries the owner's nonce for the partition, and a store that knows
/// a newer owner writes nothing and answers with a fault.
#[async_trait]
pub trait Store: Send + Sync {
    /// Makes this process the owner of a partition's bodies; older nonces are refused from now
    /// on. Called at assignment, before the first `put`.
    async fn own(&self, partition: &Partition, nonce: u64) -> Result<(), Fault>;

    /// Keeps the records of a batch. Idempotent by position. `Retry` when fenced off.
    async fn put(&self, batch: &SourceBatch, nonce: u64) -> Result<(), Fault>;

    /// The records at these positions, in order; `None` where the store does not have one (the
    /// engine re-reads it from the log). A body comes back byte-exact or not at all.
    async fn load(&self, positions: &[Position]) -> Result<Vec<Option<Record>>, Fault>;

    /// Forgets the records at these positions, once their group is done. Idempotent.
    async fn clean(&self, positions: &[Position], nonce: u64) -> Result<(), Fault>;
}
