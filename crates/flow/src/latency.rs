//! How long records took from their arrival in the log to their ending.
//!
//! Counted in buckets, a batch at a time; nothing is kept per record.

use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of the buckets in milliseconds; what is above the last counts nowhere but in the
/// total.
const BOUNDS: [u64; 14] =
    [1, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 10_000, 60_000, 600_000, 3_600_000];

/// The times of one pipeline.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    sum_millis: AtomicU64,
}

/// The counts so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyCounts {
    /// Upper bound in milliseconds, and how many records took at most so long.
    pub at_most: Vec<(u64, u64)>,
    /// All records.
    pub count: u64,
    /// Their times together, in milliseconds.
    pub sum_millis: u64,
}

impl Latency {
    /// Adds the times of records that ended together.
    pub fn add(&self, millis: impl Iterator<Item = u64>) {
        let mut buckets = [0; BOUNDS.len()];
        let (mut count, mut sum) = (0, 0_u64);
        for millis in millis {
            let at = BOUNDS.partition_point(|bound| *bound < millis);
            if let Some(bucket) = buckets.get_mut(at) {
                *bucket += 1;
            }
            count += 1;
            sum = sum.saturating_add(millis);
        }
        for (counter, more) in self.buckets.iter().zip(buckets) {
            if more > 0 {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        }
        self.count.fetch_add(count, Ordering::Relaxed);
        self.sum_millis.fetch_add(sum, Ordering::Relaxed);
    }

    pub fn counts(&self) -> LatencyCounts {
        let count = self.count.load(Ordering::Relaxed);
        let mut below = 0;
        let at_most = BOUNDS.iter().zip(&self.buckets).map(|(bound, bucket)| {
            below += bucket.load(Ordering::Relaxed);
            (*bound, below)
        });
        let at_most: Vec<_> = at_most.collect();
        // Read first, it may lag behind the buckets.
        let count = at_most.last().map_or(count, |(_, below)| count.max(*below));
        LatencyCounts { at_most, count, sum_millis: self.sum_millis.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_its_bucket_and_all_above() {
        let latency = Latency::default();
        latency.add([0, 1, 2, 99, 7_200_000].into_iter());
        let counts = latency.counts();
        let at_most = |bound| {
            let found = counts.at_most.iter().find(|(known, _)| *known == bound);
            found.map(|(_, below)| *below)
        };
        assert_eq!([at_most(1), at_most(5), at_most(100)], [Some(2), Some(3), Some(4)]);
        assert_eq!(at_most(3_600_000), Some(4));
        assert_eq!((counts.count, counts.sum_millis), (5, 7_200_102));
    }
}
