//! Waiting for something to become true. The only place of these tests that sleeps.

use std::time::{Duration, Instant};

/// Long enough for two loaded cores; only a failure ever waits this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks until there is an answer; fails, saying what was waited for, when patience ends.
#[track_caller]
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(now() < deadline, "waited {PATIENCE:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[allow(clippy::disallowed_methods, reason = "a deadline of a test")]
fn now() -> Instant {
    Instant::now()
}
