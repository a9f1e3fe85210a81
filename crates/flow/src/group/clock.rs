//! The clocks of windows. Times never jump.

use std::collections::BTreeSet;

use potok_core::trouble::{Bug, planted};
use potok_core::{Clock, Record, SourceBatch, Timestamp};
use tokio::time::Instant;

use super::index::GroupKey;

/// Clocks drift apart: what was learned of the log's so long ago gives way to what is read now.
const LEARNED_MAX_MILLIS: i64 = 10 * 60_000;

/// Milliseconds of this run: wall time at its start, going on evenly whatever the wall clock does.
pub(crate) struct RunClock {
    start: Instant,
    wall: Timestamp,
}

impl RunClock {
    pub fn new(clock: &dyn Clock) -> Self {
        RunClock { start: Instant::now(), wall: clock.now() }
    }

    /// When the run began, by the wall clock.
    pub fn began(&self) -> Timestamp {
        self.wall
    }

    pub fn now(&self) -> i64 {
        self.wall.0 + i64::try_from(self.start.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// When records arrived, judged by their age now.
    pub fn arrivals(&self, records: &[Record], clock: &dyn Clock) -> Vec<i64> {
        let (wall, now) = (clock.now(), self.now());
        let arrival = |record: &Record| now.saturating_sub_unsigned(wall.millis_since(record.time));
        records.iter().map(arrival).collect()
    }

    /// When the tasks of this process should wake for `at`.
    pub fn instant(&self, at: i64) -> Instant {
        let millis = u64::try_from(at.saturating_sub(self.wall.0)).unwrap_or(0);
        self.start + std::time::Duration::from_millis(millis)
    }
}

/// Groups that have one clock and one owner in the store.
#[derive(Default)]
pub(super) struct Share {
    /// When its open groups close: each is there once.
    pub due: BTreeSet<(i64, GroupKey)>,
    /// How far the clock of these groups is ahead of the scale of this run; `None` while nothing
    /// is known of it, and so nothing is due. A record that was read shows that the log's clock
    /// had come so far: never too much, and little too little for a record just written.
    ahead: Option<i64>,
    /// When that was learned, on the scale of this run.
    learned: i64,
    /// Under which assignment its records are read, and when the last one came.
    last: Option<(u64, i64)>,
    /// By how much the log's clock was found set back since then.
    set_back: i64,
}

impl Share {
    /// Its groups are timed by the scale of this run.
    pub fn time_by_run(&mut self) {
        self.ahead = Some(0);
    }

    /// When the records of a batch came, which are read in the order of the log: at the log's
    /// times of them. Where the log calls one older than the one before, its clock was set back:
    /// that one came now, by the clock that has gone on evenly meanwhile, and the others so much
    /// later. By their own times they would be older than they are, and close windows early.
    pub fn arrivals(&mut self, batch: &SourceBatch, run_now: i64) -> Vec<i64> {
        let before = self.last.filter(|(assignment, _)| *assignment == batch.assignment);
        let mut last = before.map_or(i64::MIN, |(_, last)| last);
        if before.is_none() {
            // All is read again, and may begin behind where the clock was set back.
            (self.ahead, self.set_back) = (None, 0);
        }
        let now = self.now(run_now).unwrap_or(i64::MIN);
        let mut came = Vec::with_capacity(batch.records.len());
        for Record { time, .. } in &batch.records {
            let is_older = time.0.saturating_add(self.set_back) < last;
            if is_older && !planted(Bug::SetClockTrusted) {
                self.set_back = last.max(now).saturating_sub(time.0);
            }
            last = time.0.saturating_add(self.set_back);
            came.push(last);
        }
        self.last = Some((batch.assignment, last));
        came
    }

    /// A record was read that came at `at`: the log's clock is there, at least.
    pub fn learn_time(&mut self, at: i64, run_now: i64) {
        let ahead = at.saturating_sub(run_now);
        let is_old = run_now.saturating_sub(self.learned) > LEARNED_MAX_MILLIS;
        if is_old || self.ahead.is_none_or(|known| ahead > known) {
            (self.ahead, self.learned) = (Some(ahead), run_now);
        }
    }

    pub fn now(&self, run_now: i64) -> Option<i64> {
        self.ahead.map(|ahead| run_now.saturating_add(ahead))
    }

    /// When to look again, on the scale of this run.
    pub fn next_due(&self) -> Option<i64> {
        let (due, _) = self.due.first()?;
        Some(due.saturating_sub(self.ahead?))
    }
}

#[cfg(test)]
mod tests {
    use potok_core::{Headers, Partition};

    use super::*;

    fn batch(assignment: u64, times: &[i64]) -> SourceBatch {
        let record = |(offset, time): (u64, &i64)| {
            let (time, headers) = (Timestamp(*time), Headers::none());
            Record { offset, time, key: None, headers, value: None }
        };
        let partition = Partition { topic: "t".into(), index: 0 };
        let records = (0..).zip(times).map(record).collect();
        let next = times.len() as u64;
        SourceBatch {
            partition,
            log: 1,
            assignment,
            first: 0,
            next,
            records,
            order: None,
            feed: None,
        }
    }

    /// Reads records; says when they came, and what time it is for the share.
    fn read(share: &mut Share, batch: &SourceBatch, run_now: i64) -> (Vec<i64>, Option<i64>) {
        let came = share.arrivals(batch, run_now);
        came.last().iter().for_each(|last| share.learn_time(**last, run_now));
        (came, share.now(run_now))
    }

    #[test]
    fn a_clock_that_is_set_back_makes_nothing_older() {
        let mut share = Share::default();
        assert_eq!(read(&mut share, &batch(1, &[900, 1_000]), 50), (vec![900, 1_000], Some(1_000)));
        // Read late: nobody says that the clock was set.
        assert_eq!(read(&mut share, &batch(1, &[1_010]), 80), (vec![1_010], Some(1_030)));
        // Set back by 500, and read as it was written.
        let (came, now) = read(&mut share, &batch(1, &[560, 570]), 120);
        assert_eq!((came, now), (vec![1_070, 1_080], Some(1_080)));
        assert_eq!(read(&mut share, &batch(1, &[2_560]), 2_110), (vec![3_070], Some(3_070)));
        // Under another assignment it is read again, here from behind where the clock was set.
        assert_eq!(
            read(&mut share, &batch(2, &[570, 2_560]), 2_200),
            (vec![570, 2_560], Some(2_560))
        );
        // Or from before that.
        let (came, now) = read(&mut share, &batch(3, &[1_000, 560, 570]), 2_300);
        assert_eq!((came, now), (vec![1_000, 1_000, 1_010], Some(1_010)));
    }
}
