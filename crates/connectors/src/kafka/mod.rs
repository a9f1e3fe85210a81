//! Kafka as the log: topics, consumer groups and their progress on a real cluster.
//!
//! What it promises is the contract of [`potok_core::Log`], with these words of its own:
//! - A position's `log` is the topic's id: a topic deleted and created anew is another log.
//! - Outputs of a transaction are written first (idempotent, acks=all, without a time limit), and
//!   only after their receipts is anything noted as ended. They can part: a crash in between costs
//!   repeats, which carry the same names. Several transactions are on their way at a time, their
//!   outputs in order (`turns.rs`).
//! - Progress is committed to the consumer group a few times a second and whenever a partition
//!   leaves. A commit that is lost costs re-reads, nothing else. What ended above the position
//!   travels in the commit's metadata (`metadata.rs`).
//! - An exact group writes outputs and positions in one transaction of Kafka's (`exact.rs`).
//! - Nothing is skipped in silence: where retention overtook a group, it is told as damage.
//!
//! One thread per open group polls librdkafka for as long as the group is open, whatever the engine
//! does (`poller.rs`). A broker that is away is waited for, at start too.
//!
//! Deliberately absent: Kafka transactions for groups that are not exact, retries of its own beyond
//! librdkafka's.

mod assignment;
mod batch;
mod events;
mod exact;
mod fault;
mod handover;
mod log;
mod metadata;
mod native;
mod offer;
mod own;
mod patience;
mod poller;
mod producer;
mod progress;
mod reader;
mod refusals;
mod registry;
mod settings;
mod source;
mod store;
mod topics;
mod turns;
mod unanswered;
mod writer;

pub use log::KafkaLog;
pub use settings::{CreateTopics, KafkaConfig};

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::task::JoinHandle;

/// A number nobody else has: the standard library seeds its hashers from the system.
fn nonce() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// Runs what blocks on a thread for that; its lines in the log belong where the caller's do.
fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let span = tracing::Span::current();
    tokio::task::spawn_blocking(move || span.in_scope(work))
}

/// State behind these locks is changed in single steps, so what a panic left behind is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
