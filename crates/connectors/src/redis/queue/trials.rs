//! Claims whose owners died: which message is being tried is noted in the claim, so that whoever takes it
//! over next knows of which one they died, whatever becomes of their data folders.

use std::sync::Arc;

use async_trait::async_trait;
use potok_core::{TrialNotes, Trials};

use super::calls::{ClaimAnswer, QueueCalls};
use super::hold::ClaimHold;

/// From so many takeovers on, messages run one at a time.
const TAKEOVERS_MAX: u64 = 3;

/// How a claim is tried, if it is.
pub(super) fn of_claim(
    calls: &Arc<QueueCalls>,
    claim: &ClaimAnswer,
    hold: &Arc<ClaimHold>,
) -> Option<Trials> {
    let notes = || Arc::new(ClaimNotes { calls: calls.clone(), hold: hold.clone() });
    (claim.takeovers >= TAKEOVERS_MAX)
        .then(|| Trials { deaths: claim.deaths.clone(), notes: notes() })
}

struct ClaimNotes {
    calls: Arc<QueueCalls>,
    hold: Arc<ClaimHold>,
}

#[async_trait]
impl TrialNotes for ClaimNotes {
    async fn trying(&self, offset: Option<u64>) {
        if let Err(fault) = self.calls.trying(&self.hold.token(), offset).await {
            tracing::debug!(%fault, "what is being tried could not be noted");
        }
    }
}
