//! Waiting for something to become true. The only place of these tests that sleeps.

use std::time::Duration;

/// Long enough for two loaded cores; only a failure ever waits this long.
const LOOKS_MAX: u32 = 6_000;
const PAUSE: Duration = Duration::from_millis(20);

/// Asks until there is an answer; fails, saying what was waited for, when patience ends.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    for _ in 0..LOOKS_MAX {
        if let Some(answer) = ask().await {
            return answer;
        }
        tokio::time::sleep(PAUSE).await;
    }
    panic!("waited in vain: {what}");
}
