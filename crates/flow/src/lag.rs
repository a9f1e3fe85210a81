//! The log's view of its consumer groups, asked no more often than the log can bear.
//!
//! On Kafka every question is some round trips per group, and whoever watches a pipeline asks many
//! times a second. So an answer that took its time is good for a multiple of that.

use std::sync::Arc;
use std::time::Duration;

use potok_core::{ConsumerGroup, Fault, Log};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long the log may take.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// An answer that came within this time is not kept.
const QUICK: Duration = Duration::from_millis(5);
/// Another answer is good for so many times what it took, but no longer than a moment.
const GOOD_FOR: u32 = 20;
const GOOD_MAX: Duration = Duration::from_secs(1);

/// The log's answer; shared, because it is given out many times.
pub(crate) type Groups = Result<Arc<Vec<ConsumerGroup>>, Fault>;

/// Asks for groups, one asker at a time.
#[derive(Default)]
pub(crate) struct GroupsCache(Mutex<Option<(Instant, Groups)>>);

impl GroupsCache {
    pub async fn consumer_groups(&self, log: &dyn Log) -> Groups {
        let mut last = self.0.lock().await;
        let asked_at = Instant::now();
        if let Some((good_until, groups)) = &*last
            && asked_at < *good_until
        {
            return groups.clone();
        }
        let groups = soon(log.consumer_groups()).await.map(Arc::new);
        let took = asked_at.elapsed();
        let good_for = took.saturating_mul(GOOD_FOR).min(GOOD_MAX);
        *last = (took > QUICK).then(|| (Instant::now() + good_for, groups.clone()));
        groups
    }

    /// Drops the answer, because it is not true any more.
    pub async fn forget(&self) {
        *self.0.lock().await = None;
    }
}

/// Asks with a time limit: a log that is away must not hold up `status`.
pub(crate) async fn soon<T>(asked: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let answer = tokio::time::timeout(ANSWER_MAX, asked).await;
    answer.unwrap_or_else(|_| Err(Fault::wait("the log does not answer")))
}
