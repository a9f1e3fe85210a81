//! A value that tasks wait for.
//!
//! Wakes them in the order in which they came, so that a simulated run is the same every time;
//! tokio's `watch` wakes in random order.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

pub(crate) struct Signal<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T: Copy> Signal<T> {
    pub fn new(value: T) -> Self {
        Signal { value: Mutex::new(value), changed: Notify::new() }
    }

    pub fn get(&self) -> T {
        *self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets it, wakes everybody, returns what it was.
    pub fn set(&self, value: T) -> T {
        let mut held = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *held, value);
        drop(held);
        self.changed.notify_waiters();
        before
    }

    /// Waits until the value is wanted.
    pub async fn wait_for(&self, wanted: impl Fn(T) -> bool) {
        loop {
            // Made before the look, so that a change in between is not missed.
            let changed = self.changed.notified();
            if wanted(self.get()) {
                return;
            }
            changed.await;
        }
    }
}
