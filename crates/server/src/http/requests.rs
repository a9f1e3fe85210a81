//! Requests that were taken under an `Idempotency-Key`: a repeat gets the answer of the first.
//!
//! What was taken is written in the same append as its records, so on a log of this process's own
//! it is known again after any crash. A log that several processes share has no such append: there
//! it is known to this process alone, for as long as it runs.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use potok_core::{Fault, Headers, Log, Output, ReadFrom, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex as TurnMutex;

/// The topic of what was taken.
pub(super) const TOPIC: &str = "potok-http-requests";
/// How long a repeat is recognised.
const KEPT: Duration = Duration::from_secs(24 * 3_600);
/// How many are kept at most; the oldest go first.
const KEPT_MAX: usize = 100_000;

/// A request that was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AcceptedRequest {
    pub path: String,
    pub key: String,
    /// SHA-256 of its body, in hexadecimal.
    pub body: String,
    /// How many records it brought.
    pub records: usize,
}

impl AcceptedRequest {
    pub fn output(&self) -> Result<Output, Fault> {
        let value = serde_json::to_vec(self)
            .map_err(|error| Fault::fix("a request cannot be noted").because(error))?;
        Ok(Output {
            topic: TOPIC.into(),
            partition: None,
            key: Some(self.key.clone().into()),
            headers: Headers::none(),
            value: Some(Bytes::from(value)),
        })
    }
}

/// One key's request: whoever holds the lock decides it, the others wait for the outcome.
pub(super) type Turn = Arc<TurnMutex<Option<AcceptedRequest>>>;

#[derive(Default)]
struct RequestTable {
    turns: HashMap<(String, String), Turn>,
    /// When each came to be, oldest first.
    ages: VecDeque<(Timestamp, (String, String))>,
}

/// All requests of the last day.
#[derive(Default)]
pub(super) struct Requests(Mutex<RequestTable>);

impl Requests {
    /// What the log knows of the last day.
    pub async fn read(log: &dyn Log, now: Timestamp) -> Result<Self, Fault> {
        let requests = Requests::default();
        if log.is_shared() {
            return Ok(requests);
        }
        let topics = log.topics().await?;
        if topics.iter().all(|topic| topic.topic != TOPIC) {
            return Ok(requests);
        }
        let mut reader = log.read(TOPIC, ReadFrom::Start).await?;
        while let Some(batch) = reader.next(false).await? {
            for record in &batch.records {
                let taken = record.value.as_deref().and_then(|v| serde_json::from_slice(v).ok());
                let Some(taken): Option<AcceptedRequest> = taken else { continue };
                let turn = requests.turn(&taken.path, &taken.key, record.time);
                if let Ok(mut known) = turn.try_lock() {
                    *known = Some(taken);
                }
            }
        }
        requests.forget_old(now);
        Ok(requests)
    }

    /// The turn of a key; `now` counts where the key is new.
    pub fn turn(&self, path: &str, key: &str, now: Timestamp) -> Turn {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let id = (path.to_owned(), key.to_owned());
        if let Some(turn) = known.turns.get(&id) {
            return turn.clone();
        }
        let turn = Turn::default();
        known.turns.insert(id.clone(), turn.clone());
        known.ages.push_back((now, id));
        turn
    }

    /// Forgets what is older than a day, and the oldest of too many.
    pub fn forget_old(&self, now: Timestamp) {
        let kept = u64::try_from(KEPT.as_millis()).unwrap_or(u64::MAX);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((time, _)) = known.ages.front() {
            if now.millis_since(*time) < kept && known.ages.len() <= KEPT_MAX {
                break;
            }
            if let Some((_, id)) = known.ages.pop_front() {
                known.turns.remove(&id);
            }
        }
    }

    /// Forgets a key under which nothing was taken, so that refused requests leave nothing behind.
    pub fn forget(&self, path: &str, key: &str) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let id = (path.to_owned(), key.to_owned());
        // Others may wait for their turn: then the key stays.
        if known.turns.get(&id).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            known.turns.remove(&id);
            if let Some(at) = known.ages.iter().rposition(|(_, other)| *other == id) {
                known.ages.remove(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_older_than_a_day_is_forgotten() {
        let requests = Requests::default();
        let hour = 3_600_000_i64;
        let _ = requests.turn("/a", "old", Timestamp(0));
        let _ = requests.turn("/a", "new", Timestamp(23 * hour));
        requests.forget_old(Timestamp(24 * hour));
        let known = requests.0.lock().unwrap();
        let keys: Vec<_> = known.turns.keys().map(|(_, key)| key.as_str()).collect();
        assert_eq!((keys, known.ages.len()), (vec!["new"], 1));
    }

    #[test]
    fn a_key_that_others_wait_for_is_not_forgotten() {
        let requests = Requests::default();
        let waiting = requests.turn("/a", "k", Timestamp(0));
        requests.forget("/a", "k");
        assert!(Arc::ptr_eq(&waiting, &requests.turn("/a", "k", Timestamp(1))));
        drop(waiting);
        requests.forget("/a", "k");
        let known = requests.0.lock().unwrap();
        assert!(known.turns.is_empty() && known.ages.is_empty());
    }
}
