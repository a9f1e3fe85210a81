//! Waiting for something to become true. The only place of these tests that sleeps.

use std::cell::Cell;
use std::time::Duration;

thread_local! {
    static PATIENCE: Cell<Duration> = const { Cell::new(Duration::from_secs(60)) };
}

const PAUSE: Duration = Duration::from_millis(10);

/// Waits for a condition.
#[track_caller]
pub fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let patience = PATIENCE.get();
    for _ in 0..patience.as_millis() / PAUSE.as_millis() {
        if let Some(done) = done() {
            return done;
        }
        std::thread::sleep(PAUSE);
    }
    panic!("not within {patience:?}: {what}");
}

/// Waits no longer than this on this thread: what is waited for is known not to come.
pub fn with_patience<T>(patience: Duration, work: impl FnOnce() -> T) -> T {
    let before = PATIENCE.replace(patience);
    let result = work();
    PATIENCE.set(before);
    result
}
