//! Groups in the index: when they close, and what a seal leaves of them.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use super::*;

fn feed() -> Feed {
    Feed { partition: Partition { topic: "t".into(), index: 0 }, log: 1, assignment: 1 }
}

/// Of groups that close after 100 ms.
fn index(close: ClosePlan) -> Index {
    let after_first = Some(Duration::from_millis(100));
    let mut index = Index::new(ClosePlan { after_first, ..close }, false);
    index.time_by_run(0);
    index.feed(&feed());
    index
}

fn entry(offset: u64, at: i64) -> HeldRecord {
    HeldRecord {
        feed: 0,
        offset,
        before: 0,
        from: 1,
        bytes: 1,
        time: Timestamp(at),
        at,
        arrival: Arrival { stream: Stream::Partition(0), place: offset, time: Timestamp(at) },
        closes: false,
        quiet: 0,
        kind: None,
        id: None,
        with: offset,
        in_store: true,
        body: None,
    }
}

fn add(index: &mut Index, entry: HeldRecord) {
    let group = GroupKey { key: Bytes::from_static(b"g"), slice: 0, share: 0 };
    index.add(NewMember { group, entry, slice_end: None });
}

/// Reads a seal that an earlier owner has written.
fn read_seal(index: &mut Index, offsets: &[u64]) -> Vec<u64> {
    let mut members = Members::default();
    let Feed { partition, log, .. } = feed();
    offsets.iter().for_each(|offset| members.insert(log, &partition, *offset));
    let generation = Generation { name: 7, part: 0, parts: 1 };
    let (opened, closed) = (Timestamp(0), Timestamp(0));
    let reason = CloseReason::Unknown;
    let seal = Seal { generation, slice: 0, opened, closed, reason, dropped: false, members };
    assert!(index.read_seal(Bytes::from_static(b"g"), 0, seal, entry(1_000, 0)));
    let taken = index.take_sealed(100, |_| 0);
    taken.iter().flat_map(|sealed| &sealed.entries).map(|entry| entry.offset).collect()
}

/// What is closed at that time: the offsets of each batch.
fn closed(index: &mut Index, now: i64) -> Vec<Vec<u64>> {
    index.close_due(now);
    let seals = index.seals(Timestamp(0));
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
    add(&mut index, HeldRecord { closes: true, ..entry(4, 50) });
    add(&mut index, entry(5, 51));
    assert_eq!(read_seal(&mut index, &[2]), [2]);
    assert_eq!(closed(&mut index, 60), [vec![3, 4]], "its last record closes it");
    assert_eq!(closed(&mut index, 151), [vec![5]]);
}

#[test]
fn a_group_closes_before_it_has_more_bytes_than_it_may() {
    let mut index = index(ClosePlan { max_bytes: Some(10), ..ClosePlan::default() });
    for (offset, bytes) in (0..).zip([4, 4, 4, 6, 20, 1]) {
        add(&mut index, HeldRecord { bytes, ..entry(offset, 0) });
    }
    assert_eq!(closed(&mut index, 1), [vec![0, 1], vec![2, 3], vec![4]]);
    assert_eq!(closed(&mut index, 101), [vec![5]]);
}

#[test]
fn a_group_that_was_put_forward_closes_once() {
    let mut index = index(ClosePlan::default());
    for (offset, at) in [(0, 10), (1, 5)] {
        add(&mut index, entry(offset, at));
    }
    index.close_due(104);
    assert!(index.seals(Timestamp(0)).is_empty());
    index.close_due(120);
    assert_eq!(index.lateness, [15]);
    assert_eq!(index.seals(Timestamp(0)).len(), 1);
}

#[test]
fn a_command_is_for_the_group_that_was_open_when_it_was_given() {
    // It named a key: carried out after the group had closed, it closed the next one under it.
    let mut index = index(ClosePlan { max_count: Some(2), ..ClosePlan::default() });
    add(&mut index, entry(0, 0));
    assert!(index.wish(b"g", None, Command::Close));
    let first = index.open.values().next().unwrap().name;
    add(&mut index, entry(1, 0));
    add(&mut index, entry(2, 0));
    assert_eq!(closed(&mut index, 1), [vec![0, 1]], "it was full, and the next one stays open");
    assert!(!index.wish(b"g", Some(&[first]), Command::Drop), "that one is open no more");
    let second = index.open.values().next().unwrap().name;
    assert!(!index.wish(b"h", None, Command::Close));
    assert!(index.wish(b"g", Some(&[second]), Command::Drop));
    assert_eq!(closed(&mut index, 2), [vec![2]]);
}

/// The seals of all that is closed are read back, and what they name is sent.
fn send_closed(index: &mut Index, now: i64) {
    index.close_due(now);
    for (name, seal) in index.seals(Timestamp(0)) {
        assert!(!index.read_seal(name.key, name.share, seal, entry(u64::MAX, now)));
    }
    while !index.take_sealed(usize::MAX, |_| 0).is_empty() {
        index.sent();
    }
}

fn arriving(key: String, entry: HeldRecord) -> NewMember {
    let group = GroupKey { key: key.into(), slice: 0, share: 0 };
    NewMember { group, entry, slice_end: None }
}

/// A key that always has an open group, and groups that are closed one after another.
#[test]
fn what_has_closed_leaves_nothing_behind() {
    let mut index = index(ClosePlan { max_count: Some(2), ..ClosePlan::default() });
    for number in 0..100_000_u64 {
        let at = number as i64;
        // Late by one: when two are sent, one is open.
        index.arrives(arriving("always".into(), entry(3 * number, at)));
        index.arrives(arriving("always".into(), entry(3 * number + 1, at)));
        index.arrives(arriving(format!("once-{number}"), entry(3 * number + 2, at)));
        send_closed(&mut index, at);
        assert!(index.open.len() <= 102, "{} at {number}", index.open.len());
    }
    let due: usize = index.shares.values().map(|share| share.due.len()).sum();
    assert_eq!(due, index.open.len(), "each once");
    assert_eq!((index.frozen.len(), index.sealing.len(), index.sealed.len()), (0, 0, 0));
    send_closed(&mut index, i64::MAX - 1);
    assert_eq!((index.size(), index.next_due()), ((0, 0, 0), None));
    assert_eq!((index.feeds.len(), index.waiting.len()), (1, 0));
}

#[test]
fn feeds_that_have_left_make_room_for_others() {
    let mut index = index(ClosePlan::default());
    for assignment in 2..1_000 {
        let now = Feed { assignment, ..feed() };
        let at = index.feed(&now);
        assert_eq!(index.feed(&now), at);
        add(&mut index, HeldRecord { feed: at, ..entry(assignment, 0) });
        let forgotten = index.forget(&[assignment]).assignments;
        assert_eq!(forgotten, [(assignment, 1, 0)]);
    }
    assert_eq!(index.feeds.len(), 2);
    assert_eq!(index.feed(&feed()), 0, "one that stays keeps its number");
    assert_eq!((index.size(), index.next_due()), ((0, 0, 0), None));
}

/// Partition by partition, as a stretch of the log is read; five of them make a group.
#[test]
fn what_came_among_each_other_is_taken_in_as_it_came() {
    let mut index = index(ClosePlan { max_count: Some(5), ..ClosePlan::default() });
    for partition in 0..3 {
        for place in (partition..15).step_by(3) {
            let arrival = Arrival { stream: Stream::Log, place, time: Timestamp(0) };
            index.arrives(arriving("g".into(), HeldRecord { arrival, ..entry(place, 0) }));
        }
    }
    assert!(closed(&mut index, 0).is_empty(), "all of it waits for the last");
    assert_eq!(index.take_waiting(), 0);
    let mut batches = closed(&mut index, 0);
    batches.iter_mut().for_each(|offsets| offsets.sort_unstable());
    let expected: Vec<Vec<u64>> = vec![(0..5).collect(), (5..10).collect(), (10..15).collect()];
    assert_eq!(batches, expected);
}

/// Copies lie in the internal topic as they were gathered; the parts of a huge group follow the
/// times of their source.
#[test]
fn the_parts_of_a_huge_group_are_in_order() {
    let mut index = index(ClosePlan::default());
    let records = 2 * PART_RECORDS_MAX as u64 + 10;
    let half = records / 2;
    for place in 0..records {
        // First all of one partition, then all of the other, which came at the same times.
        let (stream, time) = (Stream::Partition((place / half) as u32), (place % half) as i64);
        let arrival = Arrival { stream, place, time: Timestamp(time) };
        index.arrives(arriving("g".into(), HeldRecord { arrival, ..entry(place, 0) }));
    }
    index.close_due(1_000);
    let mut last = Timestamp(-1);
    while let Some(frozen) = index.frozen.pop_front() {
        assert!(frozen.entries.len() <= PART_RECORDS_MAX);
        for entry in frozen.entries {
            assert!(entry.arrival.time >= last);
            last = entry.arrival.time;
        }
    }
    assert_eq!(last, Timestamp(half as i64 - 1));
}

/// Something always comes before it would go quiet.
#[test]
fn what_never_goes_quiet_closes_at_its_maximum_age() {
    let millis = |millis| Some(Duration::from_millis(millis));
    let close = ClosePlan { quiet: millis(50), max_age: millis(200), ..ClosePlan::default() };
    let mut index = Index::new(close, false);
    index.time_by_run(0);
    index.feed(&feed());
    let mut batches = Vec::new();
    for at in (0..=400).step_by(40) {
        batches.extend(closed(&mut index, at));
        add(&mut index, entry(at as u64, at));
    }
    let at_most_200 =
        |batch: &Vec<u64>| batch.iter().max() < batch.iter().min().map(|m| m + 200).as_ref();
    assert_eq!(batches.len(), 2, "{batches:?}");
    assert!(batches.iter().all(at_most_200), "{batches:?}");
    // And who goes quiet closes sooner.
    assert!(closed(&mut index, 440).is_empty());
    assert_eq!(closed(&mut index, 451), [vec![400]]);
}

#[test]
fn a_long_list_comes_in_pages_what_closes_first_in_front() {
    const GROUPS: u64 = 200_000;
    let mut index = index(ClosePlan::default());
    for number in 0..GROUPS {
        // Many are due together.
        let at = (number * 7_919 % 1_000) as i64;
        index.arrives(arriving(format!("{number:x}"), entry(number, at)));
    }
    // Some are closed already.
    index.close_due(101);
    let shown =
        ViewContext { pipeline: "p", kinds: &[], owner: "lane 0", wall_ahead: 0, attempts: 1 };
    let (mut seen, mut last) = (HashSet::new(), None::<GroupCursor>);
    loop {
        let page = index.places("p", last.as_ref(), 1_000);
        assert!(page.is_sorted());
        assert!(page.first().is_none_or(|first| Some(first) > last.as_ref()));
        for place in &page {
            let read: GroupCursor = place.to_string().parse().unwrap();
            assert_eq!(read, *place, "a place survives being written");
            let view = index.view_at(place, &shown).unwrap();
            assert!(seen.insert(view.id));
        }
        let Some(behind) = page.into_iter().next_back() else { break };
        last = Some(behind);
    }
    assert_eq!((seen.len() as u64, index.groups()), (GROUPS, GROUPS));
    let one = index.views_of(b"ff", &shown);
    assert_eq!(one.iter().map(|view| view.id.as_str()).collect::<Vec<_>>(), ["ff"]);
    assert!(index.views_of(b"no", &shown).is_empty());
    assert!("".parse::<GroupCursor>().is_err() && "1.2.3".parse::<GroupCursor>().is_err());
}

/// A sealed group of these offsets, as this run has sealed it.
fn seal_one(index: &mut Index, seal: u64, offsets: &[u64]) {
    let mut members = Members::default();
    let Feed { partition, log, .. } = feed();
    for offset in offsets {
        add(index, entry(*offset, 0));
        members.insert(log, &partition, *offset);
    }
    let generation = Generation { name: seal, part: 0, parts: 1 };
    let (opened, closed) = (Timestamp(0), Timestamp(0));
    let reason = CloseReason::Unknown;
    let note = Seal { generation, slice: 0, opened, closed, reason, dropped: false, members };
    index.read_seal(Bytes::from_static(b"g"), 0, note, entry(seal, 0));
}

/// The naive version keeps the entries of every group that has no file yet: while the tracking table
/// is away that is all of them.
#[test]
fn what_waits_for_its_file_or_its_turn_is_parked_but_for_the_first() {
    let mut index = index(ClosePlan::default());
    let seals = [(1_000, [0, 1]), (1_001, [2, 3]), (1_002, [4, 5])];
    for (seal, offsets) in seals {
        seal_one(&mut index, seal, &offsets);
    }
    let parked = |index: &Index| -> Vec<(u64, bool)> {
        let mut all: Vec<_> =
            index.sealed().map(|s| (s.seal.offset, s.parked().is_some())).collect();
        all.sort_unstable();
        all
    };
    let none = Arc::new(crate::group::bodies::Room::of(0));
    index.park(&none, true, false);
    assert_eq!(parked(&index), [(1_000, false), (1_001, true), (1_002, true)]);
    // The first has its file; it is sent first, and the second is written next.
    let first = index.next_unwritten(|_| true).unwrap().clone();
    assert_eq!(first.seal.offset, 1_000);
    index.is_written(&first, &Arc::from("a"));
    let second = index.next_unwritten(|_| true).unwrap().clone();
    assert_eq!((second.seal.offset, second.records()), (1_001, 2));
    // Naive: it is written as it is, and its file is empty.
    assert!(matches!(index.to_write(|_| true), ToWrite::Parked));
    let mut members = Members::default();
    let Feed { partition, log, .. } = feed();
    [2, 3].iter().for_each(|offset| members.insert(log, &partition, *offset));
    let entries = second.parked().unwrap().entries(&members, &index.feeds).unwrap();
    index.unpark(&second.key, &second.seal, entries);
    let ToWrite::Group(group) = index.to_write(|_| true) else { unreachable!("it was read") };
    assert_eq!(group.entries.len(), 2);
    index.park(&none, true, false);
    assert_eq!(parked(&index), [(1_000, false), (1_001, false), (1_002, true)]);
    assert_eq!(index.size(), (0, 6, 6), "parked or not, they are held");
}

/// The naive version puts what was parked in order by the times or the offsets of its partitions: its
/// file would have other content than before, and its message another name.
#[test]
fn what_was_parked_keeps_its_order_of_arrival() {
    let other = Partition { topic: "t".into(), index: 1 };
    let feeds = [feed(), Feed { partition: other, ..feed() }];
    // Written in this order, all at one time.
    let places = [(1, 7), (0, 40), (1, 9), (0, 41), (1, 8)];
    let mut members = Members::default();
    let came = |(at, (feed, offset)): (u64, (u32, u64))| {
        let arrival = Arrival { stream: Stream::Log, place: at, time: Timestamp(0) };
        HeldRecord { feed, arrival, ..entry(offset, 0) }
    };
    let entries: Vec<HeldRecord> = (0..).zip(places).map(came).collect();
    for (feed, offset) in places {
        let Feed { partition, log, .. } = &feeds[feed as usize];
        members.insert(*log, partition, offset);
    }
    let order = |entries: Vec<HeldRecord>| -> Vec<(u32, u64)> {
        let sorted = arrival::sort(entries, |entry| entry.arrival);
        sorted.iter().map(|entry| (entry.feed, entry.offset)).collect()
    };
    let once = parked::Parked::of(&entries).entries(&members, &feeds).unwrap();
    let twice = parked::Parked::of(&once).entries(&members, &feeds).unwrap();
    assert_eq!(order(once), places);
    assert_eq!(order(twice), places, "parked again");
}

/// The naive version numbers partitions as they are read: records of one time and one place in two of
/// them change their order with a restart, and the file of their group is another.
#[test]
fn partitions_have_the_same_order_whichever_is_read_first() {
    let partition = |index| Partition { topic: "in".into(), index };
    let (first, second) = (index(ClosePlan::default()), index(ClosePlan::default()));
    let forward = [0, 1, 2, 3].map(|at| first.stream(&partition(at)));
    let mut backward = [3, 2, 1, 0].map(|at| second.stream(&partition(at)));
    backward.reverse();
    assert_eq!(forward, backward);
    let distinct: HashSet<String> = forward.iter().map(|stream| format!("{stream:?}")).collect();
    assert_eq!(distinct.len(), 4);
}
