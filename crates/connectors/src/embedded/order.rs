//! In which order the records of a frame came.
//!
//! A frame has its records partition by partition. Where they came in another order, an entry says
//! so: without it, what one client sends at once would lose its order across partitions.

use super::format::Entry;

/// The entry of records that came in this order, each named by its records entry; `None` where the
/// entries lie in that order themselves.
pub fn written(came: impl Iterator<Item = u32> + Clone) -> Option<Vec<u8>> {
    if came.clone().is_sorted() {
        return None;
    }
    let of = |entry: u32| u16::try_from(entry).map(u16::to_le_bytes);
    // A frame of so many topics and partitions goes without.
    let bytes = came.map(of).collect::<Result<Vec<_>, _>>().ok()?;
    Some(bytes.concat())
}

/// Where the records of a frame stand among each other.
pub struct FrameOrder<'a> {
    order: Option<&'a [u8]>,
    /// How many records each records entry has.
    counts: Vec<u32>,
}

impl<'a> FrameOrder<'a> {
    /// Of a frame with these entries.
    pub fn of(entries: &[Entry<'a>]) -> Self {
        let mut places = FrameOrder { order: None, counts: Vec::new() };
        for entry in entries {
            match entry {
                Entry::Records(records) => places.counts.push(records.count),
                Entry::Order { came } => places.order = Some(came),
                _ => {}
            }
        }
        places
    }

    /// How many records there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| u64::from(*count)).sum()
    }

    /// For each record as it came, its records entry and its number there.
    pub fn in_order(&self) -> impl Iterator<Item = (usize, u32)> {
        let as_they_lie = match self.order {
            Some(_) => &[],
            None => self.counts.as_slice(),
        };
        let as_they_lie = as_they_lie
            .iter()
            .enumerate()
            .flat_map(|(entry, count)| (0..*count).map(move |n| (entry, n)));
        let mut numbers = vec![0; self.counts.len()];
        let (came, _) = self.order.unwrap_or_default().as_chunks::<2>();
        let came = came.iter().filter_map(move |entry| {
            let entry = usize::from(u16::from_le_bytes(*entry));
            let number = numbers.get_mut(entry)?;
            *number += 1;
            Some((entry, *number - 1))
        });
        as_they_lie.chain(came)
    }

    /// The places of each records entry's records within the frame.
    pub fn by_entry(&self) -> Vec<Vec<u64>> {
        let room = |count: &u32| Vec::with_capacity(*count as usize);
        let mut places: Vec<Vec<u64>> = self.counts.iter().map(room).collect();
        for (place, (entry, _)) in (0..).zip(self.in_order()) {
            if let Some(places) = places.get_mut(entry) {
                places.push(place);
            }
        }
        places
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::embedded::format::RecordsEntry;

    fn records(count: u32) -> Entry<'static> {
        Entry::Records(RecordsEntry {
            topic: "t",
            partitions: 4,
            partition: 0,
            first: 0,
            count,
            bytes: 0,
            crc: 0,
        })
    }

    #[test]
    fn what_came_among_each_other_is_told_apart() {
        let came = [0, 1, 2, 1, 0];
        let order = written(came.into_iter()).unwrap();
        let entries = [
            records(2),
            Entry::Floor { offset: 1 },
            records(2),
            records(1),
            Entry::Order { came: &order },
        ];
        let places = FrameOrder::of(&entries);
        assert_eq!(places.count(), 5);
        assert_eq!(places.by_entry(), [vec![0, 4], vec![1, 3], vec![2]]);
        let in_order: Vec<_> = places.in_order().collect();
        assert_eq!(in_order, [(0, 0), (1, 0), (2, 0), (1, 1), (0, 1)]);
    }

    #[test]
    fn what_lies_in_order_needs_no_entry() {
        assert_eq!(written([0, 0, 1, 2, 2].into_iter()), None);
        let places = [records(2), records(1)];
        assert_eq!(FrameOrder::of(&places).by_entry(), [vec![0, 1], vec![2]]);
    }
}
