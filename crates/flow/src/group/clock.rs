//! The clocks of windows. Times never jump.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use potok_core::{Clock, Timestamp};
use tokio::time::Instant;

use super::index::GroupKey;

/// Clocks drift apart: what was learned of the log's so long ago gives way to what is read now.
const LEARNED_MAX_MILLIS: i64 = 10 * 60_000;

/// Milliseconds of this run: wall time at its start, going on evenly whatever the wall clock does.
pub(crate) struct Scale {
    start: Instant,
    wall: Timestamp,
}

impl Scale {
    pub fn new(clock: &dyn Clock) -> Self {
        Scale { start: Instant::now(), wall: clock.now() }
    }

    pub fn now(&self) -> i64 {
        self.wall.0 + i64::try_from(self.start.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// When a record arrived, judged by its age now.
    pub fn arrival(&self, time: Timestamp, clock: &dyn Clock) -> i64 {
        let age = clock.now().millis_since(time);
        self.now().saturating_sub_unsigned(age)
    }

    /// When the tasks of this process should wake for `at`.
    pub fn instant(&self, at: i64) -> Instant {
        let millis = u64::try_from(at.saturating_sub(self.wall.0)).unwrap_or(0);
        self.start + std::time::Duration::from_millis(millis)
    }
}

/// Groups that have one clock and one owner in the store.
#[derive(Default)]
pub(super) struct Share {
    /// When open groups close. May name groups that are gone or close later: looked at again.
    pub due: BinaryHeap<Reverse<(i64, GroupKey)>>,
    /// How far the clock of these groups is ahead of the scale of this run; `None` while nothing
    /// is known of it, and so nothing is due. A record that was read shows that the log's clock
    /// had come so far: never too much, and little too little for a record just written.
    ahead: Option<i64>,
    /// When that was learned, on the scale of this run.
    learned: i64,
}

impl Share {
    /// Its groups are timed by the scale of this run.
    pub fn time_by_run(&mut self) {
        self.ahead = Some(0);
    }

    /// A record of the log's time `time` was read: its clock is there, at least.
    pub fn learn_time(&mut self, time: Timestamp, run_now: i64) {
        let ahead = time.0.saturating_sub(run_now);
        let is_old = run_now.saturating_sub(self.learned) > LEARNED_MAX_MILLIS;
        if is_old || self.ahead.is_none_or(|known| ahead > known) {
            (self.ahead, self.learned) = (Some(ahead), run_now);
        }
    }

    pub fn now(&self, run_now: i64) -> Option<i64> {
        self.ahead.map(|ahead| run_now.saturating_add(ahead))
    }

    /// When to look again, on the scale of this run.
    pub fn next_due(&self) -> Option<i64> {
        let Reverse((due, _)) = self.due.peek()?;
        Some(due.saturating_sub(self.ahead?))
    }
}
