//! Sorts what comes in the list into chats, as it comes.
//!
//! Any number of processes may do so at a time. Whoever waits for the list to fill changes nothing
//! there, so it does not matter who is woken first.

use std::sync::Arc;
use std::time::Duration;

use potok_core::trouble::{Bug, crash_point, planted};
use potok_core::{Fault, Timestamp};
use tokio::time::{Instant, sleep};

use super::super::client::RedisClient;
use super::calls::{QueueCalls, SortOutcome};
use super::claims::{Claims, QueueWorker};
use super::feed::{Counters, QueueOptions};
use super::keys::{KeyReader, SortedEntries};

/// After a refusal: waiting for the list would return at once.
const AGAIN: Duration = Duration::from_millis(250);

/// How often the processor lock, which lasts thirty seconds, is renewed while nothing comes.
const HOLD_EVERY: Duration = Duration::from_secs(10);

/// A processor lock without an end is overwritten when it was there for so long.
const ENDLESS_MAX: Duration = Duration::from_secs(30);

pub(super) struct Sorter {
    pub calls: Arc<QueueCalls>,
    /// A connection that may be busy waiting.
    pub waiting: RedisClient,
    pub claims: Arc<Claims>,
    pub options: Arc<QueueOptions>,
    pub counters: Arc<Counters>,
    /// When the next look is due at the latest, for the visitor.
    pub next_look: tokio::sync::mpsc::UnboundedSender<Instant>,
}

impl Sorter {
    /// Until it is aborted.
    pub async fn run(self) {
        let (mut held, mut endless_since) = (Instant::now(), None);
        let mut is_first = true;
        loop {
            let hold = is_first || held.elapsed() >= HOLD_EVERY;
            let force = endless_since.is_some_and(|since: Instant| since.elapsed() >= ENDLESS_MAX);
            let outcome = self.round(hold, force).await;
            if force && matches!(outcome, Ok(Round::Sorted | Round::Nothing)) {
                tracing::warn!(
                    list = self.options.list,
                    "the processor lock had no end and is ours now"
                );
            }
            let trouble = match &outcome {
                Ok(Round::Locked { .. }) => Some(
                    Fault::wait("another program holds `queue:processor:lock`")
                        .hint("stop the old processor; the lock runs out after 30 seconds")
                        .code("P1206"),
                ),
                Ok(Round::Full) => Some(
                    Fault::wait(format!("{} chats wait in Redis", self.options.waiting_max))
                        .hint("it goes on when some are delivered; `waiting_max` says how many may")
                        .code("P1207"),
                ),
                Err(fault) => Some(fault.clone()),
                _ => None,
            };
            self.claims.trouble(QueueWorker::Sorter, trouble);
            match outcome {
                Ok(Round::Locked { endless: true }) => {
                    endless_since = endless_since.or_else(|| Some(Instant::now()));
                }
                _ => endless_since = None,
            }
            match outcome {
                Ok(Round::Sorted) => (held, is_first) = (Instant::now(), false),
                Ok(Round::Nothing) => {
                    if hold {
                        (held, is_first) = (Instant::now(), false);
                    }
                    self.wait().await;
                }
                Ok(Round::Moved) => {}
                Ok(Round::Locked { .. }) => sleep(AGAIN).await,
                Ok(Round::Full) => {
                    // The lock is ours whether there is room or not.
                    let nothing = SortedEntries::default();
                    if held.elapsed() >= HOLD_EVERY
                        && self.calls.sort(&[], &nothing, "", "-", false).await.is_ok()
                    {
                        held = Instant::now();
                    }
                    sleep(AGAIN).await;
                }
                Err(_) => sleep(AGAIN).await,
            }
        }
    }

    async fn round(&self, hold: bool, force: bool) -> Result<Round, Fault> {
        let head = self.calls.peek().await?;
        if head.entries.is_empty() && !hold {
            return Ok(Round::Nothing);
        }
        let options = &self.options;
        let large = options.max_bytes.map(|_| self.calls.large());
        let sorted = KeyReader::new(options, large).sort(&head.entries);
        let seen_at = Timestamp(i64::try_from(head.now / 1_000).unwrap_or(i64::MAX)).to_string();
        let nonce = self.claims.token();
        crash_point("queue.sort.before");
        let outcome = self.calls.sort(&head.entries, &sorted, &seen_at, &nonce, force).await?;
        crash_point("queue.sort.after");
        Ok(match outcome {
            SortOutcome::Done { next } => {
                self.counters.add(&self.counters.skipped, sorted.skipped);
                self.counters.add(&self.counters.sorted, head.entries.len() as u64);
                if let Some(next) = next {
                    // Fails where nobody looks any more.
                    let _ = self.next_look.send(Instant::now() + next);
                }
                if head.entries.is_empty() { Round::Nothing } else { Round::Sorted }
            }
            SortOutcome::Moved => Round::Moved,
            SortOutcome::Locked { endless } => Round::Locked { endless },
            SortOutcome::Full => Round::Full,
        })
    }

    /// Until something is in the list; it stays there.
    async fn wait(&self) {
        if planted(Bug::MoverUnfenced) {
            return self.wait_by_moving().await;
        }
        let mut wait = redis::cmd("BLMOVE");
        wait.arg(&self.options.list).arg(&self.options.list).arg("LEFT").arg("LEFT").arg(1);
        if self.waiting.command(&wait).await.is_err() {
            sleep(AGAIN).await;
        }
    }

    /// The naive version: what is waited for is taken along, and put back when this goes on.
    async fn wait_by_moving(&self) {
        let (list, own) =
            (&self.options.list, format!("{}.{}", self.options.list, self.claims.token()));
        let mut wait = redis::cmd("BLMOVE");
        wait.arg(list).arg(&own).arg("LEFT").arg("LEFT").arg(1);
        let mut back = redis::cmd("LMOVE");
        back.arg(&own).arg(list).arg("LEFT").arg("LEFT");
        for step in [wait, back] {
            let _ = self.waiting.command(&step).await;
        }
    }
}

/// What came of one look at the list.
enum Round {
    Sorted,
    Nothing,
    Moved,
    Locked { endless: bool },
    Full,
}
