//! Follows what was sent until that is durable, and then removes it from the store.
//!
//! A lane goes on meanwhile, but not far: what waits to be written is bounded. What it sends and what
//! it removes follow each other in order.

use std::collections::VecDeque;
use std::time::Duration;

use futures::FutureExt;
use potok_core::trouble::crash_point;
use potok_core::{Owner, Place};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Holding;
use crate::lane::Lane;
use crate::work::Stop;

/// A lane that has sent so many lots, or so many bytes besides the last lot, waits for the first to
/// be durable.
const LOTS_MAX: usize = 8;
const BYTES_MAX: u64 = 16 << 20;
/// How long a lane that stops waits for them.
const STOP_MAX: Duration = Duration::from_secs(2);

/// Records that have ended.
pub(super) struct Lot {
    pub owner: Owner,
    /// Under which their seal was read.
    pub assignment: u64,
    pub bytes: u64,
    /// Where they lie in the store; none where the log is the store.
    pub places: Vec<Place>,
}

/// Lots in the order in which they were sent, each with who says that this is durable.
#[derive(Default)]
pub(super) struct Lots(VecDeque<(oneshot::Receiver<()>, Lot)>);

impl Lots {
    /// More than the first few must wait.
    fn are_many(&self) -> bool {
        let bytes: u64 = self.0.iter().rev().skip(1).map(|(_, lot)| lot.bytes).sum();
        self.0.len() > LOTS_MAX || bytes > BYTES_MAX
    }

    pub fn push(&mut self, durable: oneshot::Receiver<()>, lot: Lot) {
        self.0.push_back((durable, lot));
    }

    /// Waits for the first to be durable. One whose ledger is gone stays in the store: it is read
    /// again. Nothing is lost when the waiting is cancelled.
    pub async fn next(&mut self) -> Option<Option<Lot>> {
        let (durable, _) = self.0.front_mut()?;
        let is_durable = durable.await.is_ok();
        let (_, lot) = self.0.pop_front()?;
        Some(is_durable.then_some(lot))
    }
}

impl Lane {
    /// Removes what is durable, and waits where many lots are left.
    pub(super) async fn clean_some(&mut self, holding: &mut Holding) -> Result<(), Stop> {
        self.clean_while(holding, Lots::are_many).await
    }

    /// Removes everything before the lane stops; what takes too long the next owner removes.
    pub(super) async fn clean_last(&mut self, holding: &mut Holding) {
        let _ = timeout(STOP_MAX, self.clean_while(holding, |lots| !lots.0.is_empty())).await;
    }

    async fn clean_while(
        &mut self,
        holding: &mut Holding,
        must_wait: impl Fn(&Lots) -> bool,
    ) -> Result<(), Stop> {
        loop {
            let next = match holding.sent.next().now_or_never() {
                None if must_wait(&holding.sent) => holding.sent.next().await,
                None => None,
                Some(next) => next,
            };
            match next {
                Some(lot) => self.clean(holding, lot).await?,
                None => return Ok(()),
            }
        }
    }

    pub(super) async fn clean(&mut self, holding: &Holding, lot: Option<Lot>) -> Result<(), Stop> {
        let Some(Lot { owner, assignment, places, .. }) = lot else { return Ok(()) };
        if places.is_empty() {
            return Ok(());
        }
        // Whoever has the partition now has emptied its share.
        if !self.live.contains(assignment) {
            return Ok(());
        }
        crash_point("clean.before");
        self.insist(|| holding.store.clean(&owner, &places)).await
    }
}
