//! Where the bodies of held records are while a group is open.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Fault, Position, Record, Timestamp};

/// The right to write: the owner of a share of a pipeline's groups, for as long as it has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The name of the pipeline, as its file gives it.
    pub pipeline: Arc<str>,
    /// Which share of its groups: the partition of the internal topic, or 0 where one process
    /// has them all.
    pub share: u32,
    /// Names this ownership; another one, earlier or later, has another.
    pub nonce: u64,
}

/// Where a held record belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAddress {
    /// The group's key.
    pub group: Bytes,
    /// The record's kind, where the pipeline names kinds.
    pub kind: Option<Arc<str>>,
    /// Its id within the group, where the pipeline names one.
    pub id: Option<Bytes>,
    /// Its place in the log.
    pub position: Position,
    /// Offset of the first record stored in the same piece; its own offset if stored alone.
    /// Records that name the same one may lie together: who puts one again puts all of them again.
    pub with: u64,
}

/// A record to hold.
#[derive(Clone, Debug)]
pub struct StoreEntry {
    /// Where it belongs.
    pub place: StoreAddress,
    /// When the group's first record arrived.
    pub opened: Timestamp,
    /// Its body.
    pub record: Record,
}

/// The outcome of putting records into a store.
#[derive(Clone, Debug)]
pub enum PutOutcome {
    /// All of them are there.
    Kept,
    /// The store is full. Some of them may be there, but the engine counts on none: it finds them
    /// in the log, and cleans them as it cleans the others.
    Full(Fault),
}

/// Keeps bodies of held records for the owner of their group. Never the only home of a record:
/// the log still has it, and losing the store costs a re-read. Index and clock are the engine's.
///
/// Every write is fenced: it carries the owner, and a store that knows another owner of that
/// share, or none any more, writes nothing and answers with `Retry`. The engine then reads the
/// share's groups again from the log. Calls for one share come one after another.
///
/// A full store says so when something is put. All other calls work as usual: they are what makes
/// room.
#[async_trait]
pub trait Store: Send + Sync {
    /// True where bodies lie in the log that the pipeline reads: `load` finds them there, and
    /// `put`, `close` and `clean` need not be called.
    fn reads_from_log(&self) -> bool {
        false
    }

    /// Makes this process the owner of a share; who owned it before is refused from now on, and
    /// what it left behind may be there still. Called at assignment, before the first `put`.
    async fn own(&self, owner: &Owner) -> Result<(), Fault>;

    /// The pipeline has only so many shares by now: what the others have left behind goes. Called once
    /// by the owner of the first share, where all shares are one process's.
    async fn own_no_more(&self, _owner: &Owner, _shares: u32) -> Result<(), Fault> {
        Ok(())
    }

    /// Keeps records, in order of arrival, of any groups of the share. Idempotent by position.
    /// Where two records of a group have the same kind and id, programs that look into the store
    /// find the later; both bodies can be loaded. With no records it says whether there is room.
    async fn put(&self, owner: &Owner, held: &[StoreEntry]) -> Result<PutOutcome, Fault>;

    /// Notes that these groups are closed: they wait to be sent, and no record joins them. Called
    /// again after a fault, and for the same group again with its next generation.
    async fn close(&self, owner: &Owner, groups: &[Bytes]) -> Result<(), Fault>;

    /// The bodies of these records, in order; `None` where the store does not have one (it costs
    /// a re-read). A body comes back byte-exact or not at all.
    async fn load(
        &self,
        owner: &Owner,
        places: &[StoreAddress],
    ) -> Result<Vec<Option<Record>>, Fault>;

    /// Forgets these records, and of each group everything once its last record goes. Called when
    /// they have ended, durably. Idempotent.
    async fn clean(&self, owner: &Owner, places: &[StoreAddress]) -> Result<(), Fault>;
}
