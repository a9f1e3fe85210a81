//! Says in the process' log that records are set aside: the first at once, then one line for each
//! reason every few seconds, with how many.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use potok_core::{Envelope, Output, Position, Reason};
use tracing::Instrument;

use crate::dead_letter::id_of;

/// How often one reason is told at most.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// Records that were not reported yet.
#[derive(Default)]
struct UnreportedRecords {
    count: u64,
    /// The first of them: its id and its error.
    first: Option<(String, String)>,
}

/// Tells of the dead letters of a pipeline.
pub(crate) struct Notices {
    reuses_offsets: bool,
    /// By reason, while one was told of it a moment ago.
    untold: Mutex<HashMap<Reason, UnreportedRecords>>,
}

impl Notices {
    pub fn new(reuses_offsets: bool) -> Arc<Self> {
        Arc::new(Notices { reuses_offsets, untold: Mutex::default() })
    }

    /// A dead letter was written there. Of one in pieces the first counts.
    pub fn written(self: &Arc<Self>, letter: &Output, position: &Position) {
        let Some((envelope, _)) = Envelope::split(&letter.headers) else { return };
        if envelope.piece.is_some_and(|piece| piece.from > 0) {
            return;
        }
        let id = id_of(position, self.reuses_offsets);
        let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(untold) = untold.get_mut(&envelope.reason) {
            untold.count += 1;
            untold.first.get_or_insert((id, envelope.error));
            return;
        }
        untold.insert(envelope.reason, UnreportedRecords::default());
        drop(untold);
        self.tell(envelope.reason, 1, &id, &envelope.error);
        tokio::spawn(self.clone().tell_later(envelope.reason).in_current_span());
    }

    async fn tell_later(self: Arc<Self>, reason: Reason) {
        loop {
            tokio::time::sleep(TOLD_EVERY).await;
            let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
            let UnreportedRecords { count, first } =
                untold.get_mut(&reason).map(std::mem::take).unwrap_or_default();
            let Some((id, error)) = first else {
                untold.remove(&reason);
                return;
            };
            drop(untold);
            self.tell(reason, count, &id, &error);
        }
    }

    fn tell(&self, reason: Reason, count: u64, first: &str, error: &str) {
        let reason = reason.word();
        tracing::warn!(reason, count, first, error, "dead letters written");
    }
}
