//! When a record that keeps failing is to blame, and not its destination.
//!
//! A destination may refuse everything for a while, or some calls by chance. A record is set aside
//! only when others got through *between its failures*, one right after the other: it fails,
//! another is taken, it is called at once and fails again. Three times, if nobody else has had
//! trouble lately; where calls of others fail too and succeed later, as often as makes chance
//! less likely than one in a million. Failures before its attempts are used up, with their long
//! waits in between, do not count, nor do those while nothing else gets through, however many.

use potok_core::{Fault, Timestamp};

/// How often others must have got through between failures of a record.
const PASSED_MIN: u32 = 3;
/// How likely it may be that a healthy record is set aside where calls fail by chance.
const CHANCE_MAX: f64 = 1e-6;
/// Where more calls than this fail, more can hardly be told.
const LATE_MAX: f64 = 0.9;
/// How many successes are remembered.
const LATELY: u32 = 256;

/// A message that failed alone, and what speaks against it.
pub(super) struct Suspect {
    /// How it failed last.
    pub fault: Fault,
    /// How often; once its attempts are used up, it is called only when others get through, at once.
    pub refused: u32,
    pub since: Timestamp,
    /// How many calls had started when it failed last.
    pub failed_at: u64,
    /// How often it failed again right after another got through that was called after its
    /// failure before.
    pub passed: u32,
}

impl Suspect {
    pub fn new(fault: Fault, now: Timestamp) -> Self {
        Suspect { fault, refused: 0, since: now, failed_at: 0, passed: 0 }
    }

    pub fn is_used_up(&self, attempts: u32) -> bool {
        self.refused >= attempts
    }

    pub fn is_to_blame(&self, fares: CallRecord, attempts: u32) -> bool {
        self.is_used_up(attempts) && self.passed >= fares.passes_needed()
    }
}

/// How the calls of a destination have fared lately.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallRecord {
    /// Calls that succeeded.
    passed: u32,
    /// The calls among them that had failed before.
    late: u32,
}

impl CallRecord {
    pub fn add(&mut self, late: bool) {
        self.passed += 1;
        self.late += u32::from(late);
        if self.passed > LATELY {
            (self.passed, self.late) = (self.passed / 2, self.late / 2);
        }
    }

    fn passes_needed(self) -> u32 {
        if self.late == 0 {
            return PASSED_MIN;
        }
        let chance = (f64::from(self.late) / f64::from(self.passed + 1)).min(LATE_MAX);
        let needed = (CHANCE_MAX.ln() / chance.ln()).ceil();
        (needed as u32).max(PASSED_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_others_fail_the_more_is_needed() {
        let fares = |passed: u32, late: u32| CallRecord { passed, late }.passes_needed();
        assert_eq!(fares(0, 0), 3);
        assert_eq!(fares(200, 0), 3);
        assert_eq!(fares(199, 1), 3);
        assert_eq!(fares(199, 22), 7);
        assert_eq!(fares(199, 100), 20);
        assert_eq!(fares(199, 199), 132);
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut fares = CallRecord::default();
        fares.add(true);
        for _ in 0..LATELY {
            fares.add(false);
        }
        assert_eq!(fares.passes_needed(), PASSED_MIN);
    }
}
