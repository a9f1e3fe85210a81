//! When something stood in the way of closing groups.
//!
//! A group may be late by the time that trouble took from the lane that had to close it. So every
//! trouble says how long it lasts, with what comes after it: waiting before the next attempt, asking
//! a destination, reading again. Times that overlap count once.

use super::trouble::Trouble;

/// What is worked off behind trouble: the wait before the next attempt, and what has piled up
/// meanwhile, in milliseconds.
pub const PILED_UP: u64 = 3_000;

/// A pipeline that ended over trouble waits, starts again and reads everything from the log.
pub const RESTART: u64 = 14_000;

/// The same where a life begins, which waits for nothing.
pub const START: u64 = 2_000;

/// Stretches of simulated time, in milliseconds.
#[derive(Debug, Default)]
pub struct Hindrances {
    /// Ascending, apart from each other.
    spans: Vec<(u64, u64)>,
    /// Began then and is not over.
    pause: Option<u64>,
}

impl Hindrances {
    /// Something is in the way for that time.
    pub fn add(&mut self, from: u64, to: u64) {
        let (mut from, mut to) = (from, to.max(from));
        self.spans.retain(|span| {
            let is_apart = span.1 < from || span.0 > to;
            if !is_apart {
                (from, to) = (from.min(span.0), to.max(span.1));
            }
            is_apart
        });
        let at = self.spans.partition_point(|span| span.0 < from);
        self.spans.insert(at, (from, to));
    }

    /// Somebody has paused the pipeline, or it goes on.
    pub fn pause(&mut self, now: u64, is_paused: bool) {
        match self.pause.take() {
            Some(since) if is_paused => self.pause = Some(since),
            Some(since) => self.add(since, now + PILED_UP),
            None => self.pause = is_paused.then_some(now),
        }
    }

    /// A trouble strikes now.
    pub fn strikes(&mut self, trouble: Trouble, now: u64) {
        let lasts = match trouble {
            Trouble::SinkPanics => RESTART,
            _ => PILED_UP,
        };
        self.add(now, now + lasts);
    }

    /// How much of that time something was in the way.
    pub fn within(&self, from: u64, to: u64) -> u64 {
        let paused = self.pause.map(|since| (since, u64::MAX));
        let mut reached = from;
        let mut sum = 0;
        let mut spans: Vec<_> = self.spans.iter().copied().chain(paused).collect();
        spans.sort_unstable();
        for (start, end) in spans {
            let (start, end) = (start.max(reached), end.min(to));
            if start < end {
                sum += end - start;
                reached = end;
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_counts_once() {
        let mut hindrances = Hindrances::default();
        for (from, to) in [(10, 20), (40, 50), (15, 30), (29, 35), (60, 70)] {
            hindrances.add(from, to);
        }
        assert_eq!(hindrances.within(0, 100), 25 + 10 + 10);
        assert_eq!(hindrances.within(30, 45), 5 + 5);
        assert_eq!(hindrances.within(35, 40), 0);
        hindrances.pause(65, true);
        hindrances.pause(80, true);
        assert_eq!(hindrances.within(60, 100), 40);
        hindrances.pause(90, false);
        assert_eq!(hindrances.within(60, 10_000), 30 + PILED_UP);
    }
}
