//! The real engine on one thread, over a simulated log, destinations and clock.
//!
//! A seed gives a scenario: a pipeline, a load, and the trouble it meets. First everything that
//! can go wrong does, and the process dies and starts again; then trouble ends, and everything
//! must finish within a bound of simulated time. The promises are checked by name.
//!
//! Time is the runtime's paused time, chance comes from the seed, and everything runs on one
//! thread: the same seed gives the same run, down to every call. `cargo xtask sim SEED` shows it.

mod chance;
mod clock;
mod disk;
mod feed;
mod frozen;
mod hindrances;
mod log;
mod offer;
mod pipeline;
mod promises;
mod runner;
mod scenario;
mod seeds;
mod sink;
mod source;
mod store;
mod trouble;
mod workload;
mod world;

pub use chance::Chance;
pub use clock::SimClock;
pub use disk::{Disk, Progress, SimPartition};
pub use feed::{FEED_TROUBLE_SEEDS, FeedManner, FeedOutcome, Row, Rows, SimFeed, run_feed_seed};
pub use frozen::SESSION;
pub use log::{LogHandle, SimLog};
pub use pipeline::{DEAD, PIPELINE, plan};
pub use promises::{Expectation, Promise, Violation, seals};
pub use runner::{Outcome, run, run_seed};
pub use scenario::{
    Act, Change, Deliver, HELD_SEEDS, Hold, LARGE, Scenario, SealMax, SimTarget, StageManner,
    TWO_GROUPS_SEEDS,
};
pub use seeds::{listed_seeds, seed_ranges};
pub use sink::{Manner, SimSink, Spell, Style, Table};
pub use store::SimStore;
pub use trouble::{Recovery, Tally, Trouble};
pub use workload::{RecordKind, record};
pub use world::{State, World};

/// What simulated panics say; the test output is spared their traces.
pub(crate) const PANIC: &str = "simulated panic";
