//! Wall time of a simulation: the runtime's paused time, plus what jumps added.

use std::sync::Arc;

use potok_core::{Clock, Timestamp};

use super::world::World;

/// Where simulated wall time starts: some instant in 2023.
const EPOCH: i64 = 1_700_000_000_000;

/// Tells the world's time, as a process with this clock sees it.
#[derive(Clone)]
pub struct SimClock {
    world: Arc<World>,
    /// Milliseconds by which this one is wrong besides; `None` is that of the brokers, whatever
    /// jumps here.
    off: Option<i64>,
}

impl SimClock {
    /// The clock of the first process.
    pub fn new(world: Arc<World>) -> Self {
        SimClock { world, off: Some(0) }
    }

    /// The clock of another process.
    pub fn off_by(world: Arc<World>, millis: i64) -> Self {
        SimClock { world, off: Some(millis) }
    }

    /// The clock of a log that is not of this process.
    pub fn of_shared_log(world: Arc<World>) -> Self {
        SimClock { world, off: None }
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let millis = self.world.with(|w| {
            let wrong = self.off.map_or(w.log_clock_jump, |off| off + w.clock_jump);
            w.millis() as i64 + wrong
        });
        Timestamp(EPOCH + millis)
    }
}
