//! How many rows one statement takes on.
//!
//! What is too many for the database or the table is found by halving, and kept: the next statement
//! begins with what went well, and twice as many after each success.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A number between one and the most.
#[derive(Debug)]
pub(super) struct BatchSize {
    now: AtomicUsize,
    most: usize,
}

impl BatchSize {
    pub const fn up_to(most: usize) -> Self {
        BatchSize { now: AtomicUsize::new(most), most }
    }

    pub fn get(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    pub fn set(&self, size: usize) {
        self.now.store(size.clamp(1, self.most), Ordering::Relaxed);
    }

    /// So many went well.
    pub fn passed(&self, rows: usize) {
        if rows >= self.get() {
            self.set(rows.saturating_mul(2));
        }
    }

    /// So many were too many, or something was the matter with one of them.
    pub fn failed(&self, rows: usize) {
        self.set(rows.min(self.get()) / 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_halved_by_failures_and_doubled_by_successes() {
        let size = BatchSize::up_to(2_000);
        size.failed(300);
        assert_eq!(size.get(), 150);
        size.passed(20);
        assert_eq!(size.get(), 150, "fewer rows prove nothing");
        for _ in 0..20 {
            size.failed(size.get());
        }
        assert_eq!(size.get(), 1);
        for _ in 0..20 {
            size.passed(size.get());
        }
        assert_eq!(size.get(), 2_000);
    }
}
