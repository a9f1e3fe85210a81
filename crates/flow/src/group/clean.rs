//! Follows what was sent until that is durable, and then removes it from the store.
//!
//! A lane goes on meanwhile, but not far: what waits to be written is bounded. What it sends and what
//! it removes follow each other in order.

use std::collections::VecDeque;
use std::time::Duration;

use futures::FutureExt;
use potok_core::trouble::crash_point;
use potok_core::{Owner, StoreAddress};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Holding;
use crate::lane::Lane;
use crate::work::Stop;

/// A lane that has sent more lots, or more bytes besides the last lot, waits for the first to be
/// durable.
const LOTS_MAX: usize = 8;
const BYTES_MAX: u64 = 6 << 20;
/// How long a lane that stops waits for them.
const STOP_MAX: Duration = Duration::from_secs(2);

/// Records that have ended.
pub(super) struct PendingCleanup {
    pub owner: Owner,
    /// Under which their seal was read.
    pub assignment: u64,
    pub bytes: u64,
    /// Where they lie in the store; none where the log is the store.
    pub places: Vec<StoreAddress>,
}

/// What is to be cleaned, in the order in which it was sent, each with who says that this is durable.
#[derive(Default)]
pub(super) struct PendingCleanups(VecDeque<(oneshot::Receiver<()>, PendingCleanup)>);

impl PendingCleanups {
    /// True where the lane has gone far enough ahead.
    fn are_many(&self) -> bool {
        let bytes: u64 = self.0.iter().rev().skip(1).map(|(_, lot)| lot.bytes).sum();
        self.0.len() > LOTS_MAX || bytes > BYTES_MAX
    }

    pub fn push(&mut self, durable: oneshot::Receiver<()>, lot: PendingCleanup) {
        self.0.push_back((durable, lot));
    }

    /// Waits for the first to be durable. One whose ledger is gone stays in the store: it is read
    /// again. Nothing is lost when the waiting is cancelled.
    pub async fn next(&mut self) -> Option<Option<PendingCleanup>> {
        let (durable, _) = self.0.front_mut()?;
        let is_durable = durable.await.is_ok();
        let (_, lot) = self.0.pop_front()?;
        Some(is_durable.then_some(lot))
    }
}

impl Lane {
    /// Removes what is durable, and where much waits, waits for the first of it; not once it stops:
    /// the log may not take anything for long.
    pub(super) async fn clean_some(&mut self, holding: &mut Holding) -> Result<(), Stop> {
        loop {
            while let Some(Some(lot)) = holding.sent.next().now_or_never() {
                self.clean(holding, lot).await?;
            }
            if !holding.sent.are_many() {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = self.stopping.wait_for(|stopping| stopping) => return Ok(()),
                Some(lot) = holding.sent.next() => self.clean(holding, lot).await?,
            }
        }
    }

    /// Removes everything before the lane stops; what takes too long the next owner removes.
    pub(super) async fn clean_last(&mut self, holding: &mut Holding) {
        let _ = timeout(STOP_MAX, async {
            while let Some(lot) = holding.sent.next().await {
                self.clean(holding, lot).await?;
            }
            Ok::<(), Stop>(())
        })
        .await;
    }

    pub(super) async fn clean(
        &mut self,
        holding: &mut Holding,
        lot: Option<PendingCleanup>,
    ) -> Result<(), Stop> {
        let Some(PendingCleanup { owner, assignment, places, .. }) = lot else { return Ok(()) };
        if places.is_empty() {
            return Ok(());
        }
        // The new owner of the partition has emptied its share.
        if !self.live.contains(assignment) {
            return Ok(());
        }
        crash_point("clean.before");
        let store = holding.store.clone();
        self.insist(&*store, || store.clean(&owner, &places)).await?;
        holding.made_room();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lot_may_be_large_but_not_those_before_it() {
        let lots = |sizes: &[u64]| {
            let mut lots = PendingCleanups::default();
            for bytes in sizes {
                let owner = Owner { pipeline: "p".into(), share: 0, nonce: 1 };
                let lot =
                    PendingCleanup { owner, assignment: 1, bytes: *bytes, places: Vec::new() };
                lots.push(oneshot::channel().1, lot);
            }
            lots
        };
        assert!(!lots(&[]).are_many());
        assert!(!lots(&[10 * BYTES_MAX]).are_many(), "one batch must go, however large");
        assert!(!lots(&[BYTES_MAX, 1]).are_many());
        assert!(lots(&[BYTES_MAX, 1, 1]).are_many());
        assert!(!lots(&[1; LOTS_MAX]).are_many());
        assert!(lots(&[1; LOTS_MAX + 1]).are_many());
    }
}
