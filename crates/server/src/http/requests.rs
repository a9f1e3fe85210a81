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

/// True when a repeat of what came then is not recognised any more.
fn is_old(time: Timestamp, now: Timestamp) -> bool {
    now.millis_since(time) >= u64::try_from(KEPT.as_millis()).unwrap_or(u64::MAX)
}

impl Requests {
    /// What the log knows of the last day. It may have many days: those before are passed over, and a key that
    /// was used again since is as old as its last request.
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
            for record in batch.records.iter().filter(|record| !is_old(record.time, now)) {
                let taken = record.value.as_deref().and_then(|v| serde_json::from_slice(v).ok());
                let Some(taken): Option<AcceptedRequest> = taken else { continue };
                let turn = requests.turn(&taken.path, &taken.key, record.time);
                if let Ok(mut known) = turn.try_lock() {
                    *known = Some(taken);
                }
                drop(turn);
                requests.forget_old(now);
            }
        }
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

    /// Forgets what is older than a day, and the oldest of too many. What is being decided stays: its repeats
    /// have to find it.
    pub fn forget_old(&self, now: Timestamp) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..known.ages.len() {
            let is_one_too_many = known.ages.len() > KEPT_MAX;
            let goes = |(time, _): &mut (Timestamp, _)| is_one_too_many || is_old(*time, now);
            let Some((_, id)) = known.ages.pop_front_if(goes) else { break };
            if known.turns.get(&id).is_some_and(|turn| Arc::strong_count(turn) > 1) {
                known.ages.push_back((now, id));
            } else {
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
    use std::sync::atomic::{AtomicI64, Ordering};

    use potok_core::Clock;
    use potok_testkit::memory::MemoryLog;

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

    #[derive(Default)]
    struct HandClock(AtomicI64);

    impl Clock for HandClock {
        fn now(&self) -> Timestamp {
            Timestamp(self.0.load(Ordering::Relaxed))
        }
    }

    const HOUR: i64 = 3_600_000;

    /// What is known at an hour of requests that were taken at others: each a key and a body.
    async fn known(taken: Vec<(i64, Vec<(String, &str)>)>, now: i64) -> Requests {
        let clock = Arc::new(HandClock::default());
        let log = MemoryLog::new(clock.clone());
        for (hour, requests) in taken {
            clock.0.store(hour * HOUR, Ordering::Relaxed);
            let requests = requests.into_iter().map(|(key, body)| {
                let (path, body) = ("/a".to_owned(), body.to_owned());
                AcceptedRequest { path, key, body, records: 1 }.output().unwrap()
            });
            log.append(&requests.collect::<Vec<_>>()).await.unwrap();
        }
        Requests::read(&log, Timestamp(now * HOUR)).await.unwrap()
    }

    /// A process that did not stop would know the second request too.
    #[tokio::test]
    async fn a_key_that_was_used_again_is_as_old_as_its_last_request() {
        let key = || "k".to_owned();
        let taken = vec![(0, vec![(key(), "one")]), (25, vec![(key(), "two")])];
        let requests = known(taken, 26).await;
        let turn = requests.turn("/a", "k", Timestamp(26 * HOUR));
        let known = turn.lock().await.clone().unwrap();
        assert_eq!(known.body, "two");
    }

    /// The log keeps requests for longer than they are recognised, and all that it has would fill the memory.
    #[tokio::test]
    async fn a_start_keeps_no_more_in_memory_than_the_process_does() {
        let many = || (0..250_000).map(|n| (n.to_string(), "b")).collect();
        for (now, kept) in [(1, KEPT_MAX), (24, 0)] {
            let requests = known(vec![(0, many())], now).await;
            let table = requests.0.lock().unwrap();
            assert_eq!((table.turns.len(), table.ages.len()), (kept, kept));
            // Room once taken is kept, so it tells how many there were at most.
            assert!(table.ages.capacity() < 2 * KEPT_MAX, "{}", table.ages.capacity());
        }
    }

    #[test]
    fn what_is_being_decided_is_not_forgotten_for_others() {
        let requests = Requests::default();
        let waiting = requests.turn("/a", "first", Timestamp(0));
        for n in 0..=KEPT_MAX {
            drop(requests.turn("/a", &n.to_string(), Timestamp(0)));
            requests.forget_old(Timestamp(0));
        }
        assert_eq!(requests.0.lock().unwrap().turns.len(), KEPT_MAX);
        assert!(Arc::ptr_eq(&waiting, &requests.turn("/a", "first", Timestamp(1))));
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
