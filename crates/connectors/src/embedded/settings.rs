//! How a log is kept.

use std::time::Duration;

/// How a log is kept.
#[derive(Clone, Debug)]
pub struct Options {
    /// A segment is closed when it is larger than this.
    pub segment_bytes: u64,
    /// Partitions of topics created from now on.
    pub partitions: u32,
    /// Records that nobody needs go when they are older; `None` keeps them.
    pub retention_age: Option<Duration>,
    /// Records that nobody needs go, oldest first, when the log is larger; `None` keeps them.
    pub retention_bytes: Option<u64>,
    /// Room kept for finishing work on a full disk. More than a segment, so that a pipeline from
    /// topic to topic can write what it makes of a segment before the segment goes.
    pub reserve_bytes: u64,
    /// How often retention looks besides when a segment is closed.
    pub retain_every: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            segment_bytes: 64 << 20,
            partitions: 4,
            retention_age: Some(Duration::from_secs(7 * 24 * 3600)),
            retention_bytes: None,
            reserve_bytes: 72 << 20,
            retain_every: Duration::from_secs(60),
        }
    }
}
