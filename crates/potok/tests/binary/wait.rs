//! Waiting for something to become true. The only place of these tests that sleeps.

use std::fmt::Display;
use std::time::{Duration, Instant};

use potok_traffic::Random;

/// Long enough for two loaded cores; only a failure ever waits this long.
pub const PATIENCE: Duration = Duration::from_secs(120);

const PAUSE: Duration = Duration::from_millis(10);

/// Asks until there is an answer; fails, saying what was waited for, when patience ends.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    until_seen(what, || ask().ok_or(""))
}

/// The same for who can say what there is instead.
pub fn until_seen<T, S: Display>(what: &str, mut ask: impl FnMut() -> Result<T, S>) -> T {
    let deadline = now() + PATIENCE;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(seen) => assert!(now() < deadline, "waited {PATIENCE:?} in vain: {what} {seen}"),
        }
        std::thread::sleep(PAUSE);
    }
}

#[allow(dead_code, reason = "for the tests on real services")]
/// Lets time pass, for trouble that has to last.
pub fn pass(time: Duration) {
    std::thread::sleep(time);
}

/// A random moment up to `max` from now, for trouble that must not depend on when it comes.
pub fn random_moment(random: &mut Random, max: Duration) {
    std::thread::sleep(Duration::from_micros(random.below(max.as_micros() as u64)));
}

#[allow(clippy::disallowed_methods, reason = "a deadline of a test")]
fn now() -> Instant {
    Instant::now()
}
