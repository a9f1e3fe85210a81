//! What a lane knows of its files between two groups: what was tried last, and which steps could not
//! be made. A step that fails holds what is of its shard; only one that concerns them all holds everything.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::group::shard_in;

/// What a lane knows of its files between two groups.
pub(in crate::group) struct FileDesk {
    /// The tables are there and fit.
    pub prepared: bool,
    /// Steps that could not be made: for a shard, or for all of them.
    held: BTreeMap<Option<u32>, Hold>,
    /// When to look for rows and for files that are over.
    pub sweep_at: Instant,
    pub expire_at: Instant,
    /// Of each shard the seal of what was tried last: the first that waits at a closed gate shows how
    /// far it came.
    tried: BTreeMap<u32, u64>,
    /// Somebody has put the first that waits back to `new`, and its destination was asked.
    pub asked: bool,
    /// When to look whether somebody has.
    pub look: Option<Instant>,
}

/// A step that could not be made so far.
struct Hold {
    /// Nothing is tried before.
    until: Instant,
    failures: u32,
}

impl Hold {
    fn lasts(&self) -> bool {
        Instant::now() < self.until
    }
}

impl FileDesk {
    pub fn new() -> Self {
        let now = Instant::now();
        FileDesk {
            prepared: false,
            held: BTreeMap::new(),
            sweep_at: now,
            expire_at: now,
            tried: BTreeMap::new(),
            asked: false,
            look: None,
        }
    }

    /// When to look next, every so often as long as it is wanted.
    pub fn look_at(&mut self, wanted: bool, every: Duration) -> Option<Instant> {
        self.look = match (wanted, self.look) {
            (true, None) => Some(Instant::now() + every),
            (true, known) => known,
            (false, _) => None,
        };
        self.look
    }

    /// When the first of what has failed may be tried again.
    pub fn retry_at(&self) -> Option<Instant> {
        self.held.values().filter(|hold| hold.lasts()).map(|hold| hold.until).min()
    }

    /// Notes an attempt at a group.
    pub fn tries(&mut self, shard: u32, seal: u64) {
        self.tried.insert(shard, seal);
    }

    /// False for the first attempt at a group. A closed gate need not keep it from its stages.
    pub fn has_tried(&self, shard: u32, seal: u64) -> bool {
        self.tried.get(&shard) == Some(&seal)
    }

    /// Until when everything waits, which may be over; then it is tried again.
    pub fn held_until(&self) -> Option<Instant> {
        self.held.get(&None).map(|hold| hold.until)
    }

    /// A step has failed, of a shard or of all: how long it waits depends on how often that was.
    pub fn hold(&mut self, shard: Option<u32>, wait: impl Fn(u32) -> Duration) {
        let now = Instant::now();
        let hold = self.held.entry(shard).or_insert(Hold { until: now, failures: 0 });
        hold.failures = hold.failures.saturating_add(1);
        hold.until = now + wait(hold.failures);
    }

    /// Forgets the failures of those whose wait is over and that are meant; says which.
    pub fn let_go(&mut self, meant: impl Fn(Option<u32>) -> bool) -> Vec<Option<u32>> {
        let over = self.held.iter().filter(|(shard, hold)| !hold.lasts() && meant(**shard));
        let over: Vec<Option<u32>> = over.map(|(shard, _)| *shard).collect();
        self.held.retain(|shard, _| !over.contains(shard));
        over
    }

    /// A step that concerns all shards has failed: everything waits.
    pub fn is_held(&self) -> bool {
        self.held.get(&None).is_some_and(Hold::lasts)
    }

    /// A step of a file of this group's shard has failed: what is of that shard waits.
    pub fn holds(&self, group: &[u8]) -> bool {
        self.held.get(&shard_in(group)).is_some_and(Hold::lasts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Naive: a lane has one queue of failures, and a file of a former shard that cannot be written keeps
    /// the files of the shard beside it.
    #[tokio::test(start_paused = true)]
    async fn a_failure_holds_its_own_shard() {
        let mut desk = FileDesk::new();
        let wait = |failures: u32| Duration::from_secs(u64::from(failures));
        desk.hold(Some(3), wait);
        desk.hold(Some(3), wait);
        assert!(desk.holds(b"3/4") && !desk.holds(b"1/2") && !desk.is_held());
        assert_eq!(desk.retry_at(), Some(Instant::now() + Duration::from_secs(2)));
        assert!(desk.let_go(|_| true).is_empty(), "it lasts");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(!desk.holds(b"3/4") && desk.retry_at().is_none());
        assert!(desk.let_go(|shard| shard == Some(1)).is_empty(), "not tried yet");
        assert_eq!(desk.let_go(|shard| shard == Some(3)), [Some(3)]);
        desk.hold(Some(3), wait);
        assert_eq!(desk.retry_at(), Some(Instant::now() + Duration::from_secs(1)));
        desk.hold(None, wait);
        assert!(desk.is_held() && !desk.holds(b"1/2"));
    }
}
