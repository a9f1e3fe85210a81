//! Waiting for something to become true. The only place of these tests that sleeps.

use std::time::Duration;

/// Waits for a condition.
#[track_caller]
pub fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    for _ in 0..6_000 {
        if let Some(done) = done() {
            return done;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not within a minute: {what}");
}
