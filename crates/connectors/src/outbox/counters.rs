//! What a process did with the table since it was started: for status and metrics, asking nobody.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, Weak};

use potok_core::OutboxCounts;

use super::relay::Relay;

/// Counts through every opening of the feed.
#[derive(Default)]
pub(super) struct RelayCounters {
    published: AtomicU64,
    failed: AtomicU64,
    is_listening: AtomicBool,
    /// The relay of the last opening.
    relay: Mutex<Weak<Relay>>,
}

impl RelayCounters {
    /// From now on it is this relay that knows.
    pub fn opened(&self, relay: Weak<Relay>) {
        *self.relay.lock().unwrap_or_else(PoisonError::into_inner) = relay;
    }

    pub fn published(&self, rows: usize) {
        self.published.fetch_add(rows as u64, Ordering::Relaxed);
    }

    pub fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub fn set_listening(&self, listening: bool) {
        self.is_listening.store(listening, Ordering::Relaxed);
    }

    pub fn is_listening(&self) -> bool {
        self.is_listening.load(Ordering::Relaxed)
    }

    pub fn counts(&self) -> OutboxCounts {
        let relay = self.relay.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        let failing = relay.and_then(|relay| relay.failing_keys());
        OutboxCounts {
            published: self.published.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            failing_keys: failing.unwrap_or(0),
            is_owner: failing.is_some(),
            is_listening: self.is_listening(),
        }
    }
}
