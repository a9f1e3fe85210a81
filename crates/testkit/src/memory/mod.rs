//! Every role in memory: for tests, dry runs and measuring the engine alone.
//!
//! They keep the contracts to the letter (positions, nonces, resuming, duplicates by delivery id), and
//! forget everything with the process. Work is done per batch under short locks.

mod log;
mod sink;
mod store;

#[cfg(test)]
mod tests;

pub use log::MemoryLog;
pub use sink::MemorySink;
pub use store::{MemoryGroup, MemoryStore};

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A number nobody else has: the standard library seeds its hashers from the system.
fn nonce() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// What a panicking test left behind is still the best there is.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
