//! Why a group closes.

use potok_core::CloseReason;

use super::{Command, Group};
use crate::plan::ClosePlan;

impl Group {
    pub(super) fn due_reason(&self, close: &ClosePlan) -> CloseReason {
        close.due_reason(self.first, self.last, self.until)
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
