//! Sets of offsets as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of offsets, kept as disjoint ranges that do not touch.
///
/// Progress is the union of what has ended: entries may arrive in any order, twice, or with one
/// of them lost, and the first offset that is not in the set is always safe to start from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// Ends by starts.
    ranges: BTreeMap<u64, u64>,
    /// How many offsets that is: whoever asks does not have to walk over all of them.
    count: u64,
}

impl RangeSet {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a range, joining it with those it meets.
    pub fn insert(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        if start >= end {
            return;
        }
        // Mostly they come in order.
        if let Some(mut last) = self.ranges.last_entry()
            && start >= *last.key()
        {
            let last_end = *last.get();
            if start <= last_end {
                *last.get_mut() = end.max(last_end);
                self.count += end.saturating_sub(last_end);
            } else {
                self.ranges.insert(start, end);
                self.count += end - start;
            }
            return;
        }
        if let Some((&before, &before_end)) = self.ranges.range(..=start).next_back()
            && before_end >= start
        {
            start = before;
            end = end.max(before_end);
        }
        while let Some((&next, &next_end)) = self.ranges.range(start..=end).next() {
            self.ranges.remove(&next);
            self.count -= next_end - next;
            end = end.max(next_end);
        }
        self.ranges.insert(start, end);
        self.count += end - start;
    }

    /// Takes one offset out; false where it was not in the set.
    pub fn remove(&mut self, offset: u64) -> bool {
        let Some((&start, &end)) = self.ranges.range(..=offset).next_back() else { return false };
        if end <= offset {
            return false;
        }
        self.ranges.remove(&start);
        for (start, end) in [(start, offset), (offset + 1, end)] {
            if start < end {
                self.ranges.insert(start, end);
            }
        }
        self.count -= 1;
        true
    }

    /// How many offsets are in the set.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// True when `offset` is in the set.
    pub fn contains(&self, offset: u64) -> bool {
        self.ranges.range(..=offset).next_back().is_some_and(|(_, &end)| end > offset)
    }

    /// The first offset from `from` on that is not in the set.
    pub fn first_gap(&self, from: u64) -> u64 {
        match self.ranges.range(..=from).next_back() {
            Some((_, &end)) if end > from => end,
            _ => from,
        }
    }

    /// Forgets everything below `offset`.
    pub fn forget_below(&mut self, offset: u64) {
        let above = self.ranges.split_off(&offset);
        let below = std::mem::replace(&mut self.ranges, above);
        self.count -= below.iter().map(|(start, end)| end - start).sum::<u64>();
        let crossing = below.into_values().next_back().filter(|&end| end > offset);
        if let Some(end) = crossing {
            self.insert(offset..end);
        }
    }

    /// Forgets `offset` and everything above.
    pub fn forget_from(&mut self, offset: u64) {
        let above = self.ranges.split_off(&offset);
        self.count -= above.iter().map(|(start, end)| end - start).sum::<u64>();
        if let Some(mut last) = self.ranges.last_entry()
            && *last.get() > offset
        {
            self.count -= *last.get() - offset;
            *last.get_mut() = offset;
        }
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }

    /// How many offsets lie in the set at or above `from`.
    pub fn count_from(&self, from: u64) -> u64 {
        let below = self.ranges.range(..from).map(|(&start, &end)| end.min(from) - start);
        self.count - below.sum::<u64>()
    }

    /// How many offsets of `range` lie in the set.
    pub fn count_within(&self, range: Range<u64>) -> u64 {
        let before = self.ranges.range(..range.start).next_back();
        let inside = self.ranges.range(range.clone());
        let common = |(&start, &end): (&u64, &u64)| {
            end.min(range.end).saturating_sub(start.max(range.start))
        };
        before.into_iter().chain(inside).map(common).sum()
    }

    /// True when nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = RangeSet::new();
        ranges.into_iter().for_each(|range| set.insert(range));
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Checks every operation against a plain set of numbers, over many small random sets.
    #[test]
    fn agrees_with_a_plain_set() {
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..2_000 {
            let (mut set, mut model) = (RangeSet::new(), BTreeSet::new());
            for _ in 0..random(12) {
                let start = random(40);
                let end = start + random(8);
                set.insert(start..end);
                model.extend(start..end);
            }
            if random(3) == 0 {
                let below = random(45);
                set.forget_below(below);
                model.retain(|&n| n >= below);
            }
            if random(3) == 0 {
                let from = random(45);
                set.forget_from(from);
                model.retain(|&n| n < from);
            }
            if random(3) == 0 {
                let one = random(45);
                assert_eq!(set.remove(one), model.remove(&one));
                assert_eq!(set.count(), model.len() as u64);
            }
            for n in 0..50 {
                assert_eq!(set.contains(n), model.contains(&n));
                assert_eq!(set.first_gap(n), (n..).find(|m| !model.contains(m)).unwrap_or(n));
                assert_eq!(set.count_from(n), model.range(n..).count() as u64);
                let within = n..n + random(9);
                assert_eq!(set.count_within(within.clone()), model.range(within).count() as u64);
            }
            let ranges: Vec<_> = set.iter().collect();
            assert!(
                ranges.windows(2).all(|w| w[0].end < w[1].start),
                "disjoint and apart: {ranges:?}"
            );
        }
    }

    #[test]
    fn what_lies_above_is_forgotten() {
        let mut set = RangeSet::from_iter([2..4, 6..10, 12..14]);
        set.forget_from(8);
        assert_eq!(set, RangeSet::from_iter([2..4, 6..8]));
        set.forget_from(20);
        set.forget_from(5);
        assert_eq!((set.count_from(0), set.contains(6)), (2, false));
        set.forget_from(0);
        assert!(set.is_empty() && set.count_from(0) == 0);
    }
}
