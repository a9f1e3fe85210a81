//! Waiting for something to become true, with a bound. The only place of this crate that sleeps.

use std::time::{Duration, Instant};

/// Long enough for two loaded cores; only a failure ever waits this long.
pub const PATIENCE: Duration = Duration::from_secs(240);

const PAUSE: Duration = Duration::from_millis(20);

/// Asks until there is an answer; `None` when `bound` has passed without one.
pub fn until<T>(bound: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = now() + bound;
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if now() >= deadline {
            return None;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Real processes live in real time: no simulation ever runs this crate.
#[allow(clippy::disallowed_methods, reason = "real services are not simulated")]
pub fn now() -> Instant {
    Instant::now()
}
