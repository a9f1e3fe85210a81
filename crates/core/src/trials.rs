//! Records whose owners died: they are tried one at a time, and what is being tried is noted where the
//! next owner sees it.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

/// How the records of a batch are tried.
#[derive(Clone)]
pub struct Trials {
    /// Offsets at which an owner died while it worked on that record alone, and how often.
    pub deaths: Vec<(u64, u32)>,
    /// Where it is noted what is being tried.
    pub notes: Arc<dyn TrialNotes>,
}

/// Keeps what is being tried where it survives its owner.
#[async_trait]
pub trait TrialNotes: Send + Sync {
    /// Called before the record at this offset is worked on alone; `None` when nothing is any more. A
    /// note that cannot be kept costs a further death, no record: nothing is answered.
    async fn trying(&self, offset: Option<u64>);
}

impl Trials {
    /// The offset that stands for all records of the batch together.
    pub const TOGETHER: u64 = u64::MAX;

    /// How often an owner died at this offset.
    pub fn deaths_at(&self, offset: u64) -> u32 {
        let at = self.deaths.iter().find(|(known, _)| *known == offset);
        at.map_or(0, |(_, deaths)| *deaths)
    }
}

impl fmt::Debug for Trials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trials").field("deaths", &self.deaths).finish_non_exhaustive()
    }
}

impl PartialEq for Trials {
    fn eq(&self, other: &Self) -> bool {
        self.deaths == other.deaths
    }
}

impl Eq for Trials {}
