//! A step between decoding and delivery.

use async_trait::async_trait;

use crate::{Event, Fault, GroupInfo};

/// The result of a stage for one event.
#[derive(Debug)]
pub enum StageResult {
    /// It goes on, perhaps changed.
    On(Event),
    /// All events of a group, this one included, have become this one, which goes on. It gets the
    /// key of the group and a delivery id made of all of them.
    Merged(Event),
    /// It went into the event that is answered with [`StageResult::Merged`], and ends as that one ends.
    Into,
    /// A rule filtered it: an ending.
    Filtered,
    /// The stage could not handle this one; the pipeline's `on_error` says what happens.
    Failed(Fault),
}

/// The largest call that a stage takes.
#[derive(Clone, Copy, Debug)]
pub struct StageLimits {
    /// Events per call.
    pub events_max: usize,
    /// Bytes of values per call; a single larger event is still tried alone.
    pub bytes_max: usize,
}

impl Default for StageLimits {
    fn default() -> Self {
        StageLimits { events_max: usize::MAX, bytes_max: usize::MAX }
    }
}

/// Maps events to events. One call is one attempt: waiting, repeating and splitting belong to the
/// engine.
#[async_trait]
pub trait Stage: Send + Sync {
    /// The largest call it takes; [`Stage::apply_group`] is not cut. Asked before each run of calls.
    fn limits(&self) -> StageLimits {
        StageLimits::default()
    }

    /// True where a call asks nobody and leaves nothing behind, so that it can be made only to see
    /// what would come of it.
    fn is_pure(&self) -> bool {
        false
    }

    /// Handles the events of one lane in order; answers for each, same length, same order.
    ///
    /// May be called again with the same events, or with some of them, in the same process or
    /// after a crash. A fault of the whole call says whose move it is: `Wait` and `Retry` are
    /// repeated, and an event that keeps failing with `Retry` while others succeed has failed;
    /// after `SetAside` the events are tried in halves, until it is known which has failed; `Fix`
    /// stops the pipeline. Cancelling must leave nothing behind that a repeat would contradict.
    async fn apply(&self, events: Vec<Event>) -> Result<Vec<StageResult>, Fault>;

    /// Handles one sealed group in the order of arrival. It may answer one event with
    /// [`StageResult::Merged`] and all others with [`StageResult::Into`]: then the group is one message. Called instead of [`Stage::apply`] where the plan says
    /// that the stage works per group. The same holds for it, but a batch is never split: it
    /// succeeds or fails as a whole, or by what is answered for each event.
    ///
    /// A very large group is sent in parts, and each part is a call. A repeat after a crash may
    /// lack events that have ended meanwhile. A dead letter that is replayed comes alone.
    async fn apply_group(
        &self,
        group: &GroupInfo,
        events: Vec<Event>,
    ) -> Result<Vec<StageResult>, Fault> {
        let _ = group;
        self.apply(events).await
    }
}
