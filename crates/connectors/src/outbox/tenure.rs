//! The lease of the table: who relays it.
//!
//! A task of its own, on a session of its own, takes the lease and holds on to it, however busy the
//! relay is. It is believed for a whole lease from the moment *before* the request, less a tenth, by the
//! monotonic clock; after that nothing is handed out or noted, whatever the server would say.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use potok_core::Fault;
use potok_core::trouble::Bug;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::statements::Claim;
use super::table::{Holder, LeaseAttempt, OutboxTable};

/// How often somebody who stands by looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What is known of the lease.
#[derive(Clone, Debug, Default)]
pub(super) struct Tenure {
    pub held: Option<Lease>,
    /// Why it is not known.
    pub fault: Option<Fault>,
}

/// The lease is ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub token: u64,
    /// Until then, by our own clock.
    pub believed: Instant,
    /// What waits was named under other settings.
    pub changed: bool,
}

impl Lease {
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.believed
    }
}

/// The token as it lies in the table.
pub(super) fn word(token: u64) -> String {
    format!("{token:016x}")
}

/// Whoever keeps the lease.
pub(super) struct LeaseKeeper {
    pub table: OutboxTable,
    pub owner: String,
    pub pipeline: String,
    pub label: String,
    pub config: String,
    pub lease: Duration,
    pub told: watch::Sender<Tenure>,
    /// Closed when the lease is not needed any more.
    pub needed: mpsc::Receiver<()>,
    /// A token that whoever hands out rows has given up, because it seemed to be over: after a freeze
    /// an answer may come that renews it all the same.
    pub given_up: Arc<AtomicU64>,
}

impl LeaseKeeper {
    /// Runs until nobody needs the lease, and then lets go of it.
    pub async fn run(mut self) {
        let mut seen: Option<(Holder, Instant)> = None;
        loop {
            let Some(held) = self.stand_by(&mut seen).await else { return };
            info!(lease = %self.table.shape.source(), "{}: relays the table", self.label);
            let is_needed = self.hold(held).await;
            self.told.send_modify(|tenure| tenure.held = None);
            if !is_needed {
                let _ = self.table.release(&word(held.token)).await;
                return;
            }
            warn!("{}: lost the lease of the table", self.label);
        }
    }

    /// Waits until the lease is ours; `None` when nobody needs it any more.
    async fn stand_by(&mut self, seen: &mut Option<(Holder, Instant)>) -> Option<Lease> {
        let mut is_told = false;
        loop {
            let token = RandomState::new().hash_one(0_u8).max(1);
            let before = Instant::now();
            let wait = match self.take(token, seen).await {
                Ok(LeaseAttempt::Mine { changed }) => {
                    *seen = None;
                    let held = Lease { token, believed: before + self.belief(), changed };
                    let _ = self.told.send(Tenure { held: Some(held), fault: None });
                    return Some(held);
                }
                Ok(LeaseAttempt::Held(holder)) => {
                    if !is_told {
                        info!(
                            "{}: stands by, relayed by pipeline {} on {}",
                            self.label, holder.pipeline, holder.owner
                        );
                        is_told = true;
                    }
                    let left = Duration::from_millis(u64::try_from(holder.left_ms).unwrap_or(0));
                    let is_same = seen.as_ref().is_some_and(|(last, _)| {
                        (&last.token, &last.until) == (&holder.token, &holder.until)
                    });
                    if !is_same {
                        *seen = Some((holder, Instant::now()));
                    }
                    self.told.send_if_modified(|tenure| tenure.fault.take().is_some());
                    left.clamp(Duration::from_millis(20), LOOK_EVERY.min(self.lease / 2))
                }
                Err(fault) => {
                    self.told.send_modify(|tenure| tenure.fault = Some(fault));
                    LOOK_EVERY.min(self.lease / 2)
                }
            };
            tokio::select! {
                _ = self.needed.recv() => return None,
                () = sleep(wait) => {}
            }
        }
    }

    async fn take(
        &self,
        token: u64,
        seen: &Option<(Holder, Instant)>,
    ) -> Result<LeaseAttempt, Fault> {
        // Unchanged for a whole lease: its owner is gone, whatever the server's clock says.
        let stale = seen.as_ref().filter(|(_, since)| {
            since.elapsed() >= self.lease && !self.table.shape.plant.is(Bug::ServerClockOnly)
        });
        let claim = Claim {
            token: &word(token),
            owner: &self.owner,
            pipeline: &self.pipeline,
            config: &self.config,
            lease: self.lease,
            stale: stale.map(|(holder, _)| (holder.token.as_str(), holder.until.as_str())),
        };
        self.table.take(&claim).await
    }

    fn belief(&self) -> Duration {
        self.lease - self.lease / 10
    }

    /// Renews the lease until it is lost, then true, or not needed any more, then false.
    async fn hold(&mut self, held: Lease) -> bool {
        let mut believed = held.believed;
        let mut pause = self.lease / 3;
        loop {
            tokio::select! {
                _ = self.needed.recv() => return false,
                () = sleep(pause) => {}
            }
            let before = Instant::now();
            if before >= believed {
                return true;
            }
            let token = word(held.token);
            let renewing = self.table.renew(&token, self.lease);
            match tokio::time::timeout_at(believed, renewing).await {
                Ok(Ok(true)) if self.given_up.load(Ordering::Relaxed) == held.token => {
                    let _ = self.table.release(&token).await;
                    return true;
                }
                Ok(Ok(true)) => {
                    believed = before + self.belief();
                    pause = self.lease / 3;
                    let held = Lease { believed, ..held };
                    let _ = self.told.send(Tenure { held: Some(held), fault: None });
                }
                Ok(Ok(false)) | Err(_) => return true,
                Ok(Err(fault)) => {
                    self.told.send_modify(|tenure| tenure.fault = Some(fault));
                    pause = (self.lease / 20).min(Duration::from_millis(500));
                }
            }
        }
    }
}

/// Ends the keeper when the last of those who need the lease is gone.
#[derive(Clone)]
pub(super) struct LeaseNeed(#[allow(dead_code, reason = "held, not used")] Arc<mpsc::Sender<()>>);

/// The two ends of a need.
pub(super) fn need() -> (LeaseNeed, mpsc::Receiver<()>) {
    let (sender, receiver) = mpsc::channel(1);
    (LeaseNeed(Arc::new(sender)), receiver)
}
