//! The backlogs of feeds, for `status`: asked in the background, so that a feed that is slow or away
//! holds up nobody who looks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use potok_core::{Backlog, Feed, LetterCount};
use tokio::time::Instant;

use crate::plan::Plan;

/// A feed is not asked more often.
const ASKED_EVERY: Duration = Duration::from_secs(1);
/// How long it may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// It is left alone for so many times what its answer took.
const REST: u32 = 20;
const REST_MAX: Duration = Duration::from_secs(30);

/// The last known backlogs of a pipeline's feeds.
#[derive(Default)]
pub(crate) struct Backlogs(Vec<FeedBacklog>);

struct FeedBacklog {
    name: Arc<str>,
    feed: Arc<dyn Feed>,
    /// `None` while it does not answer.
    said: Mutex<Option<Backlog>>,
    /// Dead letters that it keeps; `None` where it keeps none, and while it does not answer.
    letters: Mutex<Option<LetterCount>>,
}

impl Backlogs {
    pub fn of(plan: &Plan) -> Self {
        let asked = |(name, feed): (&Arc<str>, &Arc<dyn Feed>)| FeedBacklog {
            name: name.clone(),
            feed: feed.clone(),
            said: Mutex::default(),
            letters: Mutex::default(),
        };
        Backlogs(plan.feeds().map(asked).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each feed, with what waits in it where it says so.
    pub fn list(&self) -> Vec<(Arc<str>, Option<Backlog>)> {
        let said = |asked: &FeedBacklog| {
            (asked.name.clone(), *asked.said.lock().unwrap_or_else(PoisonError::into_inner))
        };
        self.0.iter().map(said).collect()
    }

    /// All open dead letters, where those of the log are known and each feed has counted its own.
    pub fn with_letters(&self, of_log: Option<u64>) -> Option<u64> {
        let keeping = self.0.iter().filter(|asked| asked.feed.letters().is_some());
        keeping.fold(of_log, |sum, asked| {
            let letters = asked.letters.lock().unwrap_or_else(PoisonError::into_inner);
            Some(sum? + letters.as_ref()?.letters)
        })
    }

    /// What each feed has counted.
    pub fn counts(&self) -> Vec<Vec<(&'static str, u64)>> {
        self.0.iter().map(|asked| asked.feed.counts()).collect()
    }

    /// Asks, for ever.
    pub async fn ask(self: Arc<Self>) {
        let all = self.0.iter().map(FeedBacklog::ask);
        futures::future::join_all(all).await;
    }
}

impl FeedBacklog {
    async fn ask(&self) {
        loop {
            let asked_at = Instant::now();
            let answer = tokio::time::timeout(ANSWER_MAX, self.feed.backlog()).await;
            let said = answer.ok().and_then(Result::ok);
            *self.said.lock().unwrap_or_else(PoisonError::into_inner) = said;
            if let Some(letters) = self.feed.letters() {
                let count = tokio::time::timeout(ANSWER_MAX, letters.count()).await;
                let count = count.ok().and_then(Result::ok);
                *self.letters.lock().unwrap_or_else(PoisonError::into_inner) = count;
            }
            let rest = asked_at.elapsed().saturating_mul(REST).min(REST_MAX);
            tokio::time::sleep(rest.max(ASKED_EVERY)).await;
        }
    }
}
