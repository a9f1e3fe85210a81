//! Opening a feed, however long it is away.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use potok_core::{Fault, Feed, FeedAbilities, Log, Move, PipelineInfo, Progress, Source};

use crate::waits::{Waits, WaitsFor};

/// A feed of a run, from before it is open.
pub(crate) struct FeedInput {
    /// Which of the run's.
    pub number: usize,
    pub name: Arc<str>,
    pub feed: Arc<dyn Feed>,
    pub abilities: FeedAbilities,
    pub info: Arc<PipelineInfo>,
    pub log: Arc<dyn Log>,
    pub probe_every: Duration,
    /// Where it is told what became of its records, once it is open.
    pub progress: Arc<OnceLock<Arc<dyn Progress>>>,
}

impl FeedInput {
    /// Opens it, waiting for as long as it is away.
    pub async fn open(&self, waits: &Waits, part: usize) -> Result<Box<dyn Source>, Fault> {
        loop {
            match self.feed.open(&self.info, self.log.clone()).await {
                Ok(open) => {
                    waits.end(WaitsFor::Feed, part);
                    // It is opened once in a run.
                    let _ = self.progress.set(open.progress);
                    return Ok(open.source);
                }
                Err(fault) if matches!(fault.next, Move::Wait | Move::Retry) => {
                    waits.begin_with(WaitsFor::Feed, part, &fault);
                    tokio::time::sleep(self.probe_every).await;
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    /// The name of an assignment among those of all inputs. Feeds name theirs as they like, one for
    /// one: two feeds, or a feed and the log, may use the same number.
    pub fn nonce(&self, assignment: u64) -> u64 {
        let place = (self.number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut mixed = assignment.wrapping_add(place);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
