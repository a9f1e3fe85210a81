//! The groups of all lanes, for people who look at them or command them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use potok_core::Timestamp;
use tokio::sync::Notify;

use super::clock::RunClock;
use super::files::slice_name;
use super::index::{Command, GroupCursor, GroupView, Index, ViewContext};
use crate::plan::GroupPlan;
use crate::signal::Signal;

/// A wall clock that is off by more than this was set.
const CLOCK_SET_MILLIS: i64 = 1_000;

/// The groups of one lane, and whoever waits to see them.
pub(crate) struct GroupTable {
    pub(super) index: Mutex<Index>,
    /// Somebody asked for something.
    pub(super) nudge: Notify,
    /// There may be something to write, or to send, for the tasks that do it; see `tasks.rs`.
    pub(super) to_write: Notify,
    pub(super) to_send: Notify,
    /// Its lane takes nothing in any more.
    pub(super) closed: Signal<bool>,
    pub(super) scale: RunClock,
    /// The log is shared: a share is a partition of the internal topic, timed by the log.
    pub(super) shared: bool,
    /// How often what is being sent was tried.
    pub(super) attempts: Arc<AtomicU64>,
}

impl GroupTable {
    pub fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show<T>(
        &self,
        pipeline: &str,
        lane: usize,
        plan: &GroupPlan,
        now: Timestamp,
        what: impl Fn(&Index, &ViewContext<'_>) -> T,
    ) -> T {
        let kinds: Vec<Arc<str>> = plan.kinds.iter().map(|kind| kind.name.clone()).collect();
        let wall_ahead = if self.shared { 0 } else { now.0 - self.scale.now() };
        // Less is no other clock, only the time that looking takes.
        let wall_ahead = if wall_ahead.abs() < CLOCK_SET_MILLIS { 0 } else { wall_ahead };
        let attempts = self.attempts.load(Ordering::Relaxed);
        let owner = &format!("lane {lane}");
        what(&self.index(), &ViewContext { pipeline, kinds: &kinds, owner, wall_ahead, attempts })
    }
}

/// The number and size of a pipeline's groups.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Contents {
    pub open_groups: u64,
    pub records: u64,
    pub bytes: u64,
    /// Milliseconds until the next open group closes; `None` while nothing is known of it.
    pub next_close: Option<u64>,
}

/// A slice that still takes records.
#[derive(Clone, Debug, serde::Serialize)]
pub struct OpenSlice {
    /// The name that its file will have, unless that is taken.
    pub filename: String,
    pub shard: u32,
    /// Records in it so far.
    pub records: u64,
}

/// The boards of all lanes of a pipeline. Those of the run before are gone with it.
#[derive(Default)]
pub(crate) struct GroupTables(Mutex<Vec<Arc<GroupTable>>>);

impl GroupTables {
    pub fn set(&self, boards: Vec<Arc<GroupTable>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = boards;
    }

    pub fn all(&self) -> Vec<Arc<GroupTable>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn oldest(&self) -> Option<Timestamp> {
        self.all().iter().filter_map(|board| board.index().oldest()).min()
    }

    /// When a run began that still reads again what is held; until then nothing closes.
    pub fn catching_up_since(&self) -> Option<Timestamp> {
        let is_behind = |board: &&Arc<GroupTable>| !board.index().caught_up;
        self.all().iter().find(is_behind).map(|board| board.scale.began())
    }

    /// How much is held, and how long until some of it closes.
    pub fn contents(&self) -> Contents {
        let mut contents = Contents::default();
        for board in self.all() {
            let index = board.index();
            let (groups, records, bytes) = index.size();
            contents.open_groups += groups;
            contents.records += records;
            contents.bytes += bytes;
            // A group without a date is due at the end of time.
            let next = index.next_due().filter(|at| index.caught_up && *at < i64::MAX / 2);
            let wait = next.map(|at| u64::try_from(at - board.scale.now()).unwrap_or(0));
            contents.next_close = contents.next_close.into_iter().chain(wait).min();
        }
        contents
    }

    /// Asks something of the open groups of that key, or of those of them that are of these
    /// generations; false where there is none.
    pub fn ask(&self, key: &str, only: Option<&[u64]>, wish: Command) -> bool {
        let mut any = false;
        for board in self.all() {
            any |= board.index().wish(key.as_bytes(), only, wish);
            board.nudge.notify_one();
        }
        any
    }

    /// Slices that are open, by the names that their files will have.
    pub fn open_slices(&self) -> Vec<OpenSlice> {
        let mut all: Vec<_> =
            self.all().iter().flat_map(|board| board.index().open_slices()).collect();
        all.sort_unstable();
        let open = |(start, shard, records): (i64, u32, u64)| OpenSlice {
            filename: slice_name(start),
            shard,
            records,
        };
        all.into_iter().map(open).collect()
    }

    /// How many groups are held.
    pub fn groups(&self) -> u64 {
        self.all().iter().map(|board| board.index().groups()).sum()
    }

    /// The places of the first so many groups behind `after`, each with its lane.
    pub fn places(
        &self,
        pipeline: &str,
        after: Option<&GroupCursor>,
        most: usize,
    ) -> Vec<(GroupCursor, usize)> {
        let mut places = Vec::new();
        for (lane, board) in self.all().iter().enumerate() {
            let of_lane = board.index().places(pipeline, after, most);
            places.extend(of_lane.into_iter().map(|place| (place, lane)));
        }
        places.sort_unstable();
        places.truncate(most);
        places
    }

    /// The group at that place of a lane, where it is still there.
    pub fn view_at(
        &self,
        (place, lane): &(GroupCursor, usize),
        pipeline: &str,
        plan: &GroupPlan,
        now: Timestamp,
    ) -> Option<GroupView> {
        let board = self.all().get(*lane).cloned()?;
        board.show(pipeline, *lane, plan, now, |index, shown| index.view_at(place, shown))
    }

    /// All groups of one key.
    pub fn views_of(
        &self,
        key: &str,
        pipeline: &str,
        plan: &GroupPlan,
        now: Timestamp,
    ) -> Vec<GroupView> {
        let boards = self.all();
        let of_lane = |(lane, board): (usize, &Arc<GroupTable>)| {
            board.show(pipeline, lane, plan, now, |index, shown| {
                index.views_of(key.as_bytes(), shown)
            })
        };
        boards.iter().enumerate().flat_map(of_lane).collect()
    }
}
