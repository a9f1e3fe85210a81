//! Processes that stand still: nothing goes out of one and nothing comes in, while the world's
//! time goes on. What it was about to do it does when it wakes.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::world::World;

/// After so long a silent process counts as gone: others may have its partitions.
pub const SESSION: Duration = Duration::from_secs(6);

/// A process that woke works on for so long before it hears what was taken from it.
pub(super) const HEARS_AFTER: Duration = Duration::from_secs(2);

/// Longer than any run.
const FOR_GOOD: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Who stands still, from when and until when.
#[derive(Debug, Default)]
pub struct FrozenProcesses(BTreeMap<usize, (Instant, Instant)>);

impl FrozenProcesses {
    pub(super) fn freeze(&mut self, process: usize, length: Option<Duration>) {
        // The dead stay dead.
        if !self.is_dead(process) {
            let now = Instant::now();
            self.0.insert(process, (now, now + length.unwrap_or(FOR_GOOD)));
        }
    }

    /// All of them live or are dead for good: another life begins.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// True when it will never wake.
    pub(super) fn is_dead(&self, process: usize) -> bool {
        self.0.get(&process).is_some_and(|(from, until)| *until - *from == FOR_GOOD)
    }

    /// When a process wakes that stands still now.
    pub(super) fn until(&self, process: usize) -> Option<Instant> {
        let (_, until) = self.0.get(&process)?;
        Some(*until).filter(|until| *until > Instant::now())
    }

    /// When a process will hear that its partitions are another's, where its session is over.
    pub(super) fn is_gone(&self, process: usize) -> Option<Instant> {
        let (from, until) = *self.0.get(&process)?;
        let now = Instant::now();
        (until > now && now >= from + SESSION).then(|| until + HEARS_AFTER)
    }
}

impl World {
    /// Waits for as long as this process stands still.
    pub async fn awake(&self, process: usize) {
        while let Some(until) = self.with(|w| w.frozen.until(process)) {
            tokio::time::sleep_until(until).await;
        }
    }
}
