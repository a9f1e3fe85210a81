//! The hold of this process on a claim: the token that Redis compares, and until when nobody else may
//! have the claim.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use potok_core::LeaseCheck;
use tokio::time::Instant;

use super::calls::ClaimToken;

/// Shared by the table of claims, the batch that was handed out, and the notes of its trials: a look may
/// give the claim another token meanwhile.
pub(super) struct ClaimHold {
    lasts: Duration,
    state: Mutex<HoldState>,
}

struct HoldState {
    token: ClaimToken,
    /// By the monotonic clock, when the lease surely had not begun yet; `None` once it is lost or over.
    renewed: Option<Instant>,
}

impl ClaimHold {
    pub fn new(token: ClaimToken, asked: Instant, lasts: Duration) -> Self {
        ClaimHold { lasts, state: Mutex::new(HoldState { token, renewed: Some(asked) }) }
    }

    fn state(&self) -> MutexGuard<'_, HoldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn token(&self) -> ClaimToken {
        self.state().token.clone()
    }

    /// It goes on under another token, from a look that was asked for at `asked`.
    pub fn go_on(&self, token: ClaimToken, asked: Instant) {
        *self.state() = HoldState { token, renewed: Some(asked) };
    }

    /// Its lease began anew, no earlier than `asked`.
    pub fn renew(&self, asked: Instant) {
        let mut state = self.state();
        if state.renewed.is_some() {
            state.renewed = Some(asked);
        }
    }

    /// It is not ours any more.
    pub fn end(&self) {
        self.state().renewed = None;
    }
}

impl LeaseCheck for ClaimHold {
    fn is_held(&self) -> bool {
        self.state().renewed.is_some_and(|renewed| renewed.elapsed() < self.lasts)
    }

    fn lasts(&self) -> Duration {
        self.lasts
    }
}
