//! The waits of a pipeline: whichever part of it waits says so here, and takes it back.
//!
//! `status`, `/ready`, the metrics and the log all read from this one place, so nothing waits in
//! silence. A destination that is away is not listed: its gate says so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use potok_core::{Clock, Fault, Timestamp};
use serde::Serialize;

/// A reason to wait, besides a destination behind its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// The log does not take outcomes, or cannot be opened.
    Log,
    /// Nothing can be read: the source, or the coordinator of its consumer group, does not answer.
    Source,
    /// A feed cannot be opened or read, or does not take outcomes.
    Feed,
    /// The store of open groups does not answer, or is full.
    Store,
    /// Records cannot be copied into the internal topic.
    Gathering,
    /// A person has to say what becomes of a record.
    Decision,
    /// A file cannot be written, or its row in the tracking table cannot be moved.
    Tracking,
    /// There is no destination for a shard that groups were sealed for.
    Destination,
    /// Held records have to be read again after a start; groups do not close before that.
    CatchUp,
}

impl WaitsFor {
    /// Everything there is to wait for, as `status` and the metrics spell it.
    pub const ALL: [(WaitsFor, &'static str); 9] = [
        (WaitsFor::Log, "log"),
        (WaitsFor::Source, "source"),
        (WaitsFor::Feed, "feed"),
        (WaitsFor::Store, "store"),
        (WaitsFor::Gathering, "gathering"),
        (WaitsFor::Decision, "decision"),
        (WaitsFor::Tracking, "tracking"),
        (WaitsFor::Destination, "destination"),
        (WaitsFor::CatchUp, "catch_up"),
    ];

    /// As `status` and the metrics spell it.
    pub fn word(self) -> &'static str {
        let known = Self::ALL.iter().find(|(what, _)| *what == self);
        known.map_or("", |(_, word)| word)
    }
}

/// Behind the numbers of all parts come those of parts that wait for one shard, two for each.
const OF_SHARDS: usize = 1 << 20;

/// The number of whoever writes the files of a shard, or sends them, among the parts of a pipeline.
pub(crate) fn shard_part(shard: u32, is_sender: bool) -> usize {
    OF_SHARDS.saturating_add(2 * shard as usize).saturating_add(usize::from(is_sender))
}

/// The shard that a part waits for, where it is one.
fn shard_of(part: usize) -> Option<u32> {
    u32::try_from(part.checked_sub(OF_SHARDS)? / 2).ok()
}

/// One thing that a pipeline waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wait {
    /// The reason.
    #[serde(rename = "for")]
    pub what: WaitsFor,
    /// Since when, as RFC 3339.
    pub since: String,
    /// The reason, with what to do where a person can do something.
    pub why: String,
    /// It passes only when somebody acts.
    #[serde(skip)]
    pub needs_somebody: bool,
}

/// A part that waits: since when, why, and whether it passes only when somebody acts.
struct Reason {
    since: Timestamp,
    why: String,
    needs_somebody: bool,
}

/// The present waits of one pipeline.
pub(crate) struct Waits {
    clock: Arc<dyn Clock>,
    /// By what for and which part of the pipeline: lanes wait on their own.
    waits: Mutex<BTreeMap<(WaitsFor, usize), Reason>>,
}

impl Waits {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Waits { clock, waits: Mutex::default() }
    }

    /// A part of the pipeline waits. Said again and again while it lasts; logged once.
    pub fn begin(&self, what: WaitsFor, part: usize, why: impl ToString) {
        self.say(what, part, why.to_string(), false);
    }

    /// The same because of a fault, which knows whether somebody has to act.
    pub fn begin_with(&self, what: WaitsFor, part: usize, fault: &Fault) {
        self.say(what, part, fault.to_string(), fault.needs_somebody);
    }

    fn say(&self, what: WaitsFor, part: usize, why: String, needs_somebody: bool) {
        let mut waits = self.lock();
        let is_first = !waits.keys().any(|(known, _)| *known == what);
        if is_first {
            tracing::warn!(waits_for = what.word(), why, "work waits");
        }
        let since = waits.get(&(what, part)).map_or_else(|| self.clock.now(), |known| known.since);
        waits.insert((what, part), Reason { since, why, needs_somebody });
    }

    /// That part of the pipeline goes on. Does nothing where it did not wait.
    pub fn end(&self, what: WaitsFor, part: usize) {
        let mut waits = self.lock();
        let is_last =
            waits.remove(&(what, part)).is_some() && !waits.keys().any(|(known, _)| *known == what);
        if is_last {
            tracing::info!(waits_for = what.word(), "work goes on");
        }
    }

    /// The run is over, and with it whatever waited.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// One line for each thing waited for, since when the first part has waited for it.
    pub fn list(&self) -> Vec<Wait> {
        self.of_parts(|_| true)
    }

    /// The same, with the shard that waits where it is only one; these come first.
    pub fn by_shard(&self) -> Vec<(Option<u32>, Wait)> {
        let shards: BTreeSet<_> = self.lock().keys().map(|(_, part)| shard_of(*part)).collect();
        let of = |shard| self.of_parts(|part| shard_of(part) == shard);
        let each = |shard| of(shard).into_iter().map(move |wait| (shard, wait));
        shards.into_iter().rev().flat_map(each).collect()
    }

    fn of_parts(&self, wanted: impl Fn(usize) -> bool) -> Vec<Wait> {
        let mut list: Vec<(Timestamp, Wait)> = Vec::new();
        for ((what, _), reason) in self.lock().iter().filter(|((_, part), _)| wanted(*part)) {
            let Reason { since, why, needs_somebody } = reason;
            match list.last_mut().filter(|(_, wait)| wait.what == *what) {
                Some((first, wait)) => {
                    if since < first {
                        (*first, wait.since) = (*since, since.to_string());
                    }
                    // A wait that needs somebody comes first.
                    if *needs_somebody && !wait.needs_somebody {
                        (wait.why, wait.needs_somebody) = (why.clone(), true);
                    }
                }
                None => {
                    let wait = Wait {
                        what: *what,
                        since: since.to_string(),
                        why: why.clone(),
                        needs_somebody: *needs_somebody,
                    };
                    list.push((*since, wait));
                }
            }
        }
        list.into_iter().map(|(_, wait)| wait).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(WaitsFor, usize), Reason>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
