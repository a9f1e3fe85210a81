//! Groups in the index: when they close, and what a seal leaves of them.

use super::*;

fn feed() -> Feed {
    Feed { partition: Partition { topic: "t".into(), index: 0 }, log: 1, assignment: 1 }
}

/// Of groups that close after 100 ms.
fn index(close: ClosePlan) -> Index {
    let after_first = Some(Duration::from_millis(100));
    let mut index = Index::new(ClosePlan { after_first, ..close });
    index.time_by_run(0);
    index.feed(&feed());
    index
}

fn entry(offset: u64, at: i64) -> Entry {
    Entry {
        feed: 0,
        offset,
        before: 0,
        from: 1,
        bytes: 1,
        time: Timestamp(at),
        at,
        closes: false,
        kind: None,
        id: None,
        with: offset,
        in_store: true,
        rewritten: false,
        body: None,
    }
}

fn add(index: &mut Index, entry: Entry) {
    let group = GroupKey { key: Bytes::from_static(b"g"), slice: 0, share: 0 };
    index.add(Arriving { group, entry, slice_end: None });
}

/// Reads a seal that an earlier owner has written.
fn read_seal(index: &mut Index, offsets: &[u64]) -> Vec<u64> {
    let mut members = Members::default();
    let Feed { partition, log, .. } = feed();
    offsets.iter().for_each(|offset| members.insert(log, &partition, *offset));
    let generation = Generation { name: 7, part: 0, parts: 1 };
    let seal = Seal { generation, slice: 0, opened: Timestamp(0), dropped: false, members };
    assert!(index.read_seal(Bytes::from_static(b"g"), 0, seal, entry(1_000, 0)));
    let taken = index.take_sealed(100, |_| 0);
    taken.iter().flat_map(|sealed| &sealed.entries).map(|entry| entry.offset).collect()
}

/// What is closed at that time: the offsets of each batch.
fn closed(index: &mut Index, now: i64) -> Vec<Vec<u64>> {
    index.close_due(now);
    let seals = index.seals();
    let offsets = |seal: &Seal| seal.members.positions().map(|at| at.offset).collect();
    seals.iter().map(|(_, seal)| offsets(seal)).collect()
}

/// Its owner had closed the group before it read all that came in time. Who reads that again
/// meets the seal behind all of it.
#[test]
fn what_a_seal_leaves_behind_has_a_window_of_its_own() {
    let mut index = index(ClosePlan::default());
    for (offset, at) in [(0, 0), (1, 60), (2, 110)] {
        add(&mut index, entry(offset, at));
    }
    assert_eq!(read_seal(&mut index, &[0]), [0]);
    assert!(closed(&mut index, 159).is_empty());
    add(&mut index, entry(3, 160));
    assert_eq!(closed(&mut index, 160), [vec![1, 2]]);
    assert_eq!(closed(&mut index, 260), [vec![3]]);
}

#[test]
fn what_a_seal_leaves_behind_is_closed_by_what_closes_it_still() {
    let mut index = index(ClosePlan { max_count: Some(3), ..ClosePlan::default() });
    for (offset, at) in (0..4).zip(0..) {
        add(&mut index, entry(offset, at));
    }
    // The group was full, and is no more.
    assert_eq!(read_seal(&mut index, &[0, 1]), [0, 1]);
    assert!(closed(&mut index, 101).is_empty());
    add(&mut index, Entry { closes: true, ..entry(4, 50) });
    add(&mut index, entry(5, 51));
    assert_eq!(read_seal(&mut index, &[2]), [2]);
    assert_eq!(closed(&mut index, 60), [vec![3, 4]], "its last record closes it");
    assert_eq!(closed(&mut index, 151), [vec![5]]);
}

#[test]
fn a_group_that_was_put_forward_closes_once() {
    let mut index = index(ClosePlan::default());
    for (offset, at) in [(0, 10), (1, 5)] {
        add(&mut index, entry(offset, at));
    }
    index.close_due(104);
    assert!(index.seals().is_empty());
    index.close_due(120);
    assert_eq!(index.lateness, [15]);
    assert_eq!(index.seals().len(), 1);
}
