//! Why a group closes.

use std::time::Duration;

use potok_core::CloseReason;

use super::{Command, Group};
use crate::plan::ClosePlan;

impl Group {
    pub(super) fn due_reason(&self, close: &ClosePlan) -> CloseReason {
        close.due_reason(self.first, self.last, self.own_quiet(), self.until)
    }
}

impl Group {
    /// The quiet time of its last record, where that has one of its own.
    pub(super) fn own_quiet(&self) -> Option<Duration> {
        (self.quiet > 0).then(|| Duration::from_millis(self.quiet.into()))
    }
}

impl Command {
    pub(super) fn reason(self) -> CloseReason {
        match self {
            Command::Close => CloseReason::ClosedByHand,
            Command::Drop => CloseReason::Dropped,
        }
    }
}
