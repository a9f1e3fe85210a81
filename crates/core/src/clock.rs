//! The only way to ask the time.
//!
//! Wall time comes from a [`Clock`], so that simulations own it. Waiting goes through
//! `tokio::time`, which simulations pause; nothing else may read a clock (`clippy.toml` refuses it).

use std::fmt;

use chrono::{DateTime, Datelike, Timelike};
use serde::{Deserialize, Serialize};

/// Wall time in milliseconds since 1970, UTC.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Milliseconds from `earlier` to this; 0 where the clock went backwards.
    pub fn millis_since(self, earlier: Timestamp) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }
}

impl fmt::Display for Timestamp {
    /// `2026-11-15T23:59:59.123Z`; milliseconds where no calendar reaches.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(time) = DateTime::from_timestamp_millis(self.0) else {
            return write!(f, "{} ms after 1970", self.0);
        };
        let (year, month, day) = (time.year(), time.month(), time.day());
        let (hour, minute, second) = (time.hour(), time.minute(), time.second());
        let millis = time.timestamp_subsec_millis();
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

/// Tells wall time. It may jump in either direction; durations are never computed from it where
/// a wrong answer could lose or hold a record.
pub trait Clock: Send + Sync + 'static {
    /// The time of day; it may jump when the clock of the machine is set.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the one place that may ask")]
    fn now(&self) -> Timestamp {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Timestamp(since_epoch.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_print_as_utc() {
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp(1_709_210_096_789).to_string(), "2024-02-29T12:34:56.789Z");
        assert_eq!(Timestamp(-1).to_string(), "1969-12-31T23:59:59.999Z");
        assert_eq!(Timestamp(1_735_689_599_000).to_string(), "2024-12-31T23:59:59.000Z");
        assert_eq!(Timestamp(253_402_300_800_000).to_string(), "10000-01-01T00:00:00.000Z");
        assert_eq!(Timestamp(i64::MAX).to_string(), "9223372036854775807 ms after 1970");
    }
}
