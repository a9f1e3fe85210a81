//! Wall time of a simulation: the runtime's paused time, plus what jumps added.

use std::sync::Arc;

use potok_core::{Clock, Timestamp};

use super::world::World;

/// Where simulated wall time starts: some instant in 2023.
const EPOCH: i64 = 1_700_000_000_000;

/// Tells the world's time.
#[derive(Clone)]
pub struct SimClock(pub Arc<World>);

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let (millis, jumped) = self.0.with(|w| (w.millis(), w.clock_jump));
        Timestamp(EPOCH + millis as i64 + jumped)
    }
}
