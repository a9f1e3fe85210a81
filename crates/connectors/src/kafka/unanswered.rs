//! Transactions of which Kafka's client never said what became of them (decision 0125).
//!
//! Each call that was given up keeps a thread and a producer until it comes back. So they are counted,
//! and a group that loses one after another is opened more and more seldom: what they hold stays bounded
//! however long that lasts. The first transaction that is answered ends it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use potok_core::Fault;
use tokio::time::Instant;

use super::{fault, lock};

/// So many in a row are nothing special: a cluster that stood still may cost several.
const FREE: u32 = 3;
/// The wait after the next one; doubles with each, up to the second.
const WAIT: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3_600));

#[derive(Default)]
struct Counted {
    /// Calls that were given up and have not come back.
    outstanding: usize,
    in_a_row: u32,
    again_at: Option<Instant>,
}

/// The unanswered transactions of a process, by group.
#[derive(Default)]
pub struct Unanswered(Mutex<HashMap<String, Counted>>);

/// A transaction that the client works at; dropped when its call comes back.
pub struct ClientCall {
    all: Arc<Unanswered>,
    watched: Arc<WatchedCall>,
}

/// The same for whoever waits for it.
pub struct WatchedCall {
    group: String,
    is_back: AtomicBool,
    is_given_up: AtomicBool,
}

impl Unanswered {
    /// The client is about to be asked.
    pub fn begin(self: &Arc<Self>, group: &str) -> (ClientCall, Arc<WatchedCall>) {
        let (is_back, is_given_up) = (AtomicBool::new(false), AtomicBool::new(false));
        let watched = Arc::new(WatchedCall { group: group.to_owned(), is_back, is_given_up });
        (ClientCall { all: self.clone(), watched: watched.clone() }, watched)
    }

    /// The client has answered, whatever.
    pub fn answered(&self, group: &str) {
        if let Some(counted) = lock(&self.0).get_mut(group) {
            (counted.in_a_row, counted.again_at) = (0, None);
        }
    }

    /// Nobody waits for this call any more.
    pub fn give_up(&self, call: &WatchedCall) {
        // Whether it is back changes under the lock only.
        let mut all = lock(&self.0);
        let counted = all.entry(call.group.clone()).or_default();
        if !call.is_back.load(Ordering::Relaxed) {
            call.is_given_up.store(true, Ordering::Relaxed);
            counted.outstanding += 1;
        }
        counted.in_a_row += 1;
        if let Some(more) = counted.in_a_row.checked_sub(FREE + 1) {
            let wait = WAIT.0.saturating_mul(1 << more.min(10)).min(WAIT.1);
            counted.again_at = Some(Instant::now() + wait);
        }
    }

    /// Whether the group may be opened to write transactions.
    pub fn may_open(&self, group: &str) -> Result<(), Fault> {
        let all = lock(&self.0);
        let Some(counted) = all.get(group) else { return Ok(()) };
        let wait = counted.again_at.map(|at| at.saturating_duration_since(Instant::now()));
        match wait.filter(|wait| !wait.is_zero()) {
            Some(_) => Err(fault::never_answered(counted.in_a_row, counted.outstanding)),
            None => Ok(()),
        }
    }
}

impl Drop for ClientCall {
    fn drop(&mut self) {
        let mut all = lock(&self.all.0);
        self.watched.is_back.store(true, Ordering::Relaxed);
        if self.watched.is_given_up.load(Ordering::Relaxed)
            && let Some(counted) = all.get_mut(&self.watched.group)
        {
            counted.outstanding = counted.outstanding.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn outstanding(all: &Unanswered) -> usize {
        lock(&all.0).get("g").map_or(0, |counted| counted.outstanding)
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_that_is_never_answered_is_opened_more_and_more_seldom() {
        let all = Arc::new(Unanswered::default());
        let (mut calls, mut waits) = (Vec::new(), Vec::new());
        for _ in 0..12 {
            let (call, watched) = all.begin("g");
            calls.push(call);
            all.give_up(&watched);
            let began = Instant::now();
            while all.may_open("g").is_err() {
                tokio::time::advance(Duration::from_secs(1)).await;
            }
            waits.push(began.elapsed());
        }
        assert!(waits[..FREE as usize].iter().all(Duration::is_zero), "{waits:?}");
        assert!(waits.is_sorted() && waits[FREE as usize] == WAIT.0, "{waits:?}");
        assert_eq!(waits.last(), Some(&WAIT.1));
        assert_eq!(outstanding(&all), 12);
        let (call, watched) = all.begin("g");
        all.give_up(&watched);
        let told = all.may_open("g").unwrap_err().to_string();
        assert!(told.contains("13 transactions") && told.contains("13 of them"), "{told}");
        assert!(all.may_open("another").is_ok());
        all.answered("g");
        assert!(all.may_open("g").is_ok());
        drop((call, calls));
        assert_eq!(outstanding(&all), 0);
    }

    #[test]
    fn a_call_that_comes_back_as_it_is_given_up_is_not_outstanding() {
        let all = Arc::new(Unanswered::default());
        let (call, watched) = all.begin("g");
        drop(call);
        all.give_up(&watched);
        assert_eq!(outstanding(&all), 0);
        let (call, watched) = all.begin("g");
        all.give_up(&watched);
        drop(call);
        assert_eq!(outstanding(&all), 0);
    }
}
