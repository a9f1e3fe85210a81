//! 7 and 8: what somebody does to topics and to the pipeline while its process is down.

use std::collections::BTreeSet;

use potok_testkit::sim::{Act, Change, RecordKind, Scenario};

use super::{BACK, SHAPES, Shape, all_good, endings, holding, run_well, sealed_ids, sent, set};
#[cfg(debug_assertions)]
use super::{Bug, Promise, run, with_bug};

/// The first process dies when what was sent first is sealed and what was sent later is open.
const DIES: u64 = 3_500;

/// 7: two topics with equal partition numbers and offsets feed one group, one behind the other.
fn two_topics(shape: Shape) -> Scenario {
    let mut scenario = holding(shape);
    scenario.acts = vec![
        (10, Act::Send(all_good("in", &["a1", "a2", "a3"]))),
        (1_600, Act::Send(all_good("in-two", &["b1", "b2", "b3"]))),
        (3_300, Act::Send(all_good("in-two", &["b4"]))),
        (3_310, Act::Send(all_good("in", &["a4"]))),
        (DIES, Act::Crash),
        (8_000, Act::Crash),
        (BACK, Act::Send(all_good("in", &["a5"]))),
    ];
    scenario
}

/// 7: a topic is deleted and created anew while a sealed group names records of it; the new ones
/// have the same offsets and belong to the same group.
fn made_anew(shape: Shape) -> Scenario {
    let mut scenario = holding(shape);
    scenario.acts = vec![
        (10, Act::Send(all_good("in", &["a1", "a2", "a3"]))),
        (20, Act::Send(all_good("in-two", &["b1", "b2"]))),
        (DIES, Act::MakeAnew("in".into(), all_good("in", &["c1", "c2", "c3"]))),
        (8_000, Act::Crash),
        (BACK, Act::Send(all_good("in", &["c4"]))),
    ];
    scenario
}

#[test]
fn two_topics_with_equal_partition_numbers_feed_one_group() {
    for shape in SHAPES {
        let outcome = run_well(two_topics(shape), &format!("{shape:?}"));
        let endings = endings(&outcome);
        for id in ["a1", "a2", "a3", "a4", "a5", "b1", "b2", "b3", "b4"] {
            assert_eq!(endings.get(id), Some(&vec!["delivered"]), "{shape:?}: {id}");
        }
        let sealed = sealed_ids(&outcome);
        for batch in [["a1", "a2", "a3"], ["b1", "b2", "b3"]] {
            assert!(sealed.contains(&set(&batch)), "{shape:?}: {batch:?} not in {sealed:?}");
        }
    }
}

#[test]
fn a_topic_made_anew_is_not_the_old_one() {
    for shape in SHAPES {
        let outcome = run_well(made_anew(shape), &format!("{shape:?}"));
        let endings = endings(&outcome);
        for id in ["b1", "b2", "c1", "c2", "c3", "c4"] {
            assert_eq!(endings.get(id), Some(&vec!["delivered"]), "{shape:?}: {id}");
        }
        for id in ["a1", "a2", "a3"] {
            // Where copies of them were made, they outlive their topic.
            let expected = (shape.sharing > 0).then(|| vec!["delivered"]);
            assert_eq!(endings.get(id), expected.as_ref(), "{shape:?}: {id}");
        }
        let sealed = sealed_ids(&outcome);
        let first = set(&["a1", "a2", "a3", "b1", "b2"]);
        assert!(sealed.contains(&first), "{shape:?}: {first:?} not in {sealed:?}");
    }
}

/// Members of a seal are looked for by number: those of the other topic join the first batch, and
/// what the new topic has is sent with what the old one had.
#[cfg(debug_assertions)]
#[test]
fn members_known_by_number_are_found() {
    for shape in SHAPES.into_iter().filter(|shape| shape.sharing == 0) {
        for scenario in [two_topics(shape), made_anew(shape)] {
            let outcome = with_bug(Bug::MembersByNumber, || run(scenario)).unwrap();
            assert!(outcome.broke(Promise::SentAsSealed), "{shape:?}: {:?}", outcome.verdict());
        }
    }
}

/// Names are made of partition number and offset: the destination takes one record for another
/// that it has.
#[cfg(debug_assertions)]
#[test]
fn names_made_of_numbers_are_found() {
    let swallowed = |scenario: Scenario, id: &str| {
        let outcome = with_bug(Bug::NamesByNumber, || run(scenario)).unwrap();
        outcome.broke(Promise::NothingLost) && !endings(&outcome).contains_key(id)
    };
    for shape in SHAPES {
        assert!(swallowed(two_topics(shape), "b1"), "{shape:?}");
        if shape.sharing > 0 {
            assert!(swallowed(made_anew(shape), "c1"), "{shape:?}");
        }
    }
}

/// 8: groups are sealed and open when the process dies; it starts again with something changed,
/// dies once more, and then the destination is back.
fn changed(shape: Shape, by: Option<&'static str>, change: Change) -> Scenario {
    let mut scenario = holding(shape);
    scenario.hold.iter_mut().for_each(|hold| hold.by = by);
    scenario.partitions = 2;
    scenario.changes = vec![(1, change)];
    let first = vec![
        sent("in", RecordKind::Good, "s1", "k0"),
        sent("in-two", RecordKind::Unwanted, "s2", "k0"),
        sent("in", RecordKind::Outdated, "s3", "k0"),
        sent("in-two", RecordKind::Good, "s4", "k1"),
        sent("in", RecordKind::Good, "s5", "k0"),
        sent("in", RecordKind::Good, "s6", "k1"),
    ];
    let open = vec![
        sent("in", RecordKind::Good, "o1", "k0"),
        sent("in-two", RecordKind::Unwanted, "o2", "k1"),
        sent("in", RecordKind::Outdated, "o3", "k1"),
        sent("in", RecordKind::Good, "o4", "k2"),
    ];
    let later = |id| vec![sent("in", RecordKind::Good, id, "k0")];
    scenario.acts = vec![
        (10, Act::Send(first)),
        (3_300, Act::Send(open)),
        (DIES, Act::Crash),
        (5_000, Act::Send(later("n1"))),
        (8_000, Act::Crash),
        (BACK, Act::Send(later("n2"))),
    ];
    scenario
}

const ALL: [&str; 12] = ["s1", "s2", "s3", "s4", "s5", "s6", "o1", "o2", "o3", "o4", "n1", "n2"];

/// What the first process sealed.
fn first_seals(by: Option<&str>) -> Vec<BTreeSet<String>> {
    match by {
        Some(_) => vec![set(&["s1", "s2", "s3", "s5"]), set(&["s4", "s6"])],
        None => vec![set(&["s1", "s2", "s3", "s4", "s5", "s6"])],
    }
}

const OTHER_KEYS: [(Option<&str>, Option<&str>); 3] =
    [(Some(".k"), Some(".id")), (Some(".k"), None), (None, Some(".k"))];

#[test]
fn another_by_finds_sealed_batches_as_they_were() {
    for shape in SHAPES {
        for (before, after) in OTHER_KEYS {
            let what = format!("{shape:?}, {before:?} to {after:?}");
            let outcome = run_well(changed(shape, before, Change::By(after)), &what);
            let endings = endings(&outcome);
            let sealed = sealed_ids(&outcome);
            for id in ALL {
                assert_eq!(endings.get(id), Some(&vec!["delivered"]), "{what}: {id}");
                assert!(sealed.iter().any(|seal| seal.contains(id)), "{what}: {id}");
            }
            for batch in first_seals(before) {
                assert!(sealed.contains(&batch), "{what}: {batch:?} not in {sealed:?}");
            }
        }
    }
}

#[test]
fn another_filter_or_schema_ends_what_is_held() {
    for shape in SHAPES {
        for (change, caught, ending) in [
            (Change::Filter, ["s2", "o2"], "filtered"),
            (Change::Schema, ["s3", "o3"], "dead-lettered"),
        ] {
            let what = format!("{shape:?}, {change:?}");
            let outcome = run_well(changed(shape, Some(".k"), change), &what);
            let endings = endings(&outcome);
            for id in ALL {
                let expected = if caught.contains(&id) { ending } else { "delivered" };
                assert_eq!(endings.get(id), Some(&vec![expected]), "{what}: {id}");
            }
            let sealed = sealed_ids(&outcome);
            for batch in first_seals(Some(".k")) {
                assert!(sealed.contains(&batch), "{what}: {batch:?} not in {sealed:?}");
            }
        }
    }
}

/// Sealed groups look for their members where `by` puts them now: nobody is there, and the seal
/// ends before its members.
#[cfg(debug_assertions)]
#[test]
fn groups_by_the_key_of_now_are_found() {
    for shape in SHAPES {
        for (before, after) in OTHER_KEYS {
            let scenario = changed(shape, before, Change::By(after));
            let outcome = with_bug(Bug::GroupsByKeyNow, || run(scenario)).unwrap();
            let what = format!("{shape:?}, {before:?} to {after:?}: {:?}", outcome.verdict());
            assert!(outcome.broke(Promise::NotedOnlyWhenEnded), "{what}");
        }
    }
}
