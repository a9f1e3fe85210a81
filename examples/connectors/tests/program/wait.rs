//! Waiting for something to become true: the only place of these tests that sleeps.

use std::time::{Duration, Instant};

#[allow(clippy::disallowed_methods, reason = "a deadline of a test")]
pub fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_there() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what} did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}
