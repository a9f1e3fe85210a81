//! The order of arrival within a group, whatever partitions its records came from.
//!
//! Where the log has one order for all partitions, that order is it. On a shared log the order of a
//! source partition is kept, and between partitions the times decide that the source's log gave:
//! records are merged, by the time of the one whose turn it is in each partition. In which order they
//! happened to be read decides nothing, so a re-read finds the same order.

use std::collections::BTreeMap;

use potok_core::Timestamp;
use potok_core::trouble::{Bug, planted};

/// Where a record stands in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// The stream it came in.
    pub stream: Stream,
    /// Its place in its stream.
    pub place: u64,
    /// When it came; decides between streams.
    pub time: Timestamp,
}

/// Records that have an order among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stream {
    /// All of the log.
    Log,
    /// One partition, by a number that is its own in every run.
    Partition(u32),
}

/// Puts what came into the order of arrival.
pub(crate) fn sort<T>(came: Vec<T>, arrival: impl Fn(&T) -> Arrival) -> Vec<T> {
    if planted(Bug::LastReadWins) || is_in_order(&came, &arrival) {
        return came;
    }
    let mut streams: BTreeMap<Stream, Vec<T>> = BTreeMap::new();
    for one in came {
        streams.entry(arrival(&one).stream).or_default().push(one);
    }
    let mut streams: Vec<Vec<T>> = streams.into_values().collect();
    for stream in &mut streams {
        // From the back, which is cheap to take from.
        stream.sort_by_key(|one| std::cmp::Reverse(arrival(one).place));
    }
    if let [_] = streams.as_slice() {
        return streams.into_iter().flatten().rev().collect();
    }
    let mut ordered = Vec::new();
    while let Some(first) = streams
        .iter_mut()
        .filter(|stream| !stream.is_empty())
        .min_by_key(|stream| stream.last().map(|one| (arrival(one).time, arrival(one).place)))
    {
        ordered.extend(first.pop());
    }
    ordered
}

/// True where one stream lies in order already, which is the rule.
fn is_in_order<T>(came: &[T], arrival: &impl Fn(&T) -> Arrival) -> bool {
    let mut places = came.iter().map(arrival);
    let Some(mut last) = places.next() else { return true };
    places.all(|next| {
        let follows = next.stream == last.stream && next.place > last.place;
        last = next;
        follows
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stream, place and time.
    fn sorted(came: &[(u32, u64, i64)]) -> Vec<(u32, u64)> {
        let arrival = |(stream, place, time): &(u32, u64, i64)| Arrival {
            stream: Stream::Partition(*stream),
            place: *place,
            time: Timestamp(*time),
        };
        sort(came.to_vec(), arrival).into_iter().map(|(stream, place, _)| (stream, place)).collect()
    }

    #[test]
    fn partitions_are_merged_by_time_and_keep_their_own_order() {
        let came = [(0, 10, 5), (0, 11, 1), (1, 12, 3), (1, 13, 4), (0, 14, 9), (1, 15, 9)];
        let expected = [(1, 12), (1, 13), (0, 10), (0, 11), (0, 14), (1, 15)];
        assert_eq!(sorted(&came), expected);
        let mut read_otherwise = came.to_vec();
        read_otherwise.reverse();
        assert_eq!(sorted(&read_otherwise), expected, "however it was read");
    }

    #[test]
    fn one_order_of_the_whole_log_needs_no_times() {
        let arrival = |place: &u64| Arrival {
            stream: Stream::Log,
            place: *place,
            // A clock that runs backwards.
            time: Timestamp(-(*place as i64)),
        };
        assert_eq!(sort(vec![3, 1, 2], arrival), [1, 2, 3]);
        assert_eq!(sort(vec![1, 2, 3], arrival), [1, 2, 3]);
    }

    /// A huge group is cut into parts behind this; each part is put into order again when it is sent.
    #[test]
    fn a_part_of_what_is_in_order_is_in_order() {
        let came: Vec<(u32, u64, i64)> =
            (0..200_u64).map(|n| ((n * 7 % 5) as u32, n, ((n * 37) % 101) as i64)).collect();
        let whole = sorted(&came);
        let of = |(stream, place): &(u32, u64)| {
            came.iter().copied().find(|(s, p, _)| (s, p) == (stream, place))
        };
        for part in whole.chunks(30) {
            let members: Vec<_> = part.iter().rev().filter_map(of).collect();
            assert_eq!(sorted(&members), part);
        }
    }
}
