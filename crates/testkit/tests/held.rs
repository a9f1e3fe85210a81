//! Interleavings of sealed and open groups with what somebody does to topics and to the pipeline
//! while its process is down. Each runs where the log is one process's own and where several
//! share it, also checks that work finishes, and every other promise; and each finds the weaker
//! rule.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};

#[cfg(debug_assertions)]
use potok_core::trouble::{Bug, with_bug};
use potok_core::{Output, Position, Record};
#[cfg(debug_assertions)]
use potok_testkit::sim::Promise;
use potok_testkit::sim::{
    Act, Change, Hold, Kind, Outcome, Scenario, Spell, StageManner, Trouble, World, record, run,
    seals,
};

/// The first process dies when what was sent first is sealed and what was sent later is open.
const DIES: u64 = 3_500;

/// Until then the destination takes nothing.
const BACK: u64 = 20_000;

/// Lanes, processes that share the log, and whether bodies are in a store that outlives them.
#[derive(Clone, Copy, Debug)]
struct Shape {
    workers: usize,
    sharing: usize,
    stored: bool,
}

const SHAPES: [Shape; 5] = [
    Shape { workers: 1, sharing: 0, stored: false },
    Shape { workers: 4, sharing: 0, stored: false },
    Shape { workers: 4, sharing: 0, stored: true },
    Shape { workers: 2, sharing: 2, stored: false },
    Shape { workers: 2, sharing: 2, stored: true },
];

/// Two topics feed groups by `.k` that close after a second.
fn holding(shape: Shape) -> Scenario {
    let mut scenario = Scenario::plain(78);
    scenario.topics.push("in-two".into());
    scenario.workers = vec![shape.workers];
    scenario.sharing = shape.sharing;
    scenario.overlap = if shape.sharing > 0 { 4 } else { 1 };
    scenario.stage = Some(StageManner { rewrites: true, dead_letters: true });
    scenario.hold = Some(Hold {
        by: Some(".k"),
        after_first: 1_000,
        quiet: None,
        max_count: None,
        stored: shape.stored,
        replace: false,
    });
    let trouble = Trouble::SinkReadOnly;
    scenario.spells.insert(0, vec![Spell { from: 0, to: BACK, trouble }]);
    scenario
}

fn sent(topic: &str, kind: Kind, id: &str, key: &str) -> Output {
    Output { topic: topic.into(), ..record(kind, id, key) }
}

fn all_good(topic: &str, ids: &[&str]) -> Vec<Output> {
    ids.iter().map(|id| sent(topic, Kind::Good, id, "k")).collect()
}

fn id_of(value: &[u8]) -> String {
    let value: serde_json::Value = serde_json::from_slice(value).unwrap();
    value["id"].as_str().unwrap().to_owned()
}

/// The id of a record, also of one that was deleted with its topic.
fn id_at(world: &World, at: &Position) -> String {
    let id = |record: &Record| id_of(record.value.as_deref().unwrap());
    world.with(|w| w.disk.record(at).or_else(|| w.disk.gone().get(at)).map(id)).unwrap()
}

/// What became of each record, by id.
fn endings(outcome: &Outcome) -> BTreeMap<String, Vec<&'static str>> {
    let mut found: BTreeSet<(String, &'static str, usize)> = BTreeSet::new();
    let (rows, filtered) = outcome.world.with(|w| (w.tables[0].rows.clone(), w.filtered.clone()));
    found.extend(rows.iter().zip(0..).map(|(row, at)| (id_of(&row.source), "delivered", at)));
    found.extend(filtered.iter().map(|at| (id_at(&outcome.world, at), "filtered", 0)));
    let letters = outcome.letters.iter().map(|letter| &letter.record);
    found.extend(letters.map(|r| (id_of(r.value.as_deref().unwrap()), "dead-lettered", 0)));
    let mut endings: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
    for (id, ending, _) in found {
        endings.entry(id).or_default().push(ending);
    }
    endings
}

/// The ids that each seal names.
fn sealed(outcome: &Outcome) -> Vec<BTreeSet<String>> {
    let seals = outcome.world.with(|w| seals(w));
    let ids = |members: &BTreeSet<Position>| {
        members.iter().map(|at| id_at(&outcome.world, at)).collect::<BTreeSet<String>>()
    };
    seals.iter().map(|(_, members)| ids(members)).collect()
}

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

fn run_well(scenario: Scenario, what: &str) -> Outcome {
    let outcome = run(scenario).unwrap();
    if let Err(why) = outcome.verdict() {
        outcome.trace.iter().rev().take(60).rev().for_each(|line| println!("{line}"));
        panic!("{what}: {why}");
    }
    let mut seen = BTreeSet::new();
    for id in sealed(&outcome).into_iter().flatten() {
        assert!(seen.insert(id.clone()), "{what}: {id} was sealed twice");
    }
    outcome
}

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

/// 7: a topic is deleted and created anew while a sealed batch names records of it; the new ones
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
        let sealed = sealed(&outcome);
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
        let sealed = sealed(&outcome);
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
        sent("in", Kind::Good, "s1", "k0"),
        sent("in-two", Kind::Unwanted, "s2", "k0"),
        sent("in", Kind::Outdated, "s3", "k0"),
        sent("in-two", Kind::Good, "s4", "k1"),
        sent("in", Kind::Good, "s5", "k0"),
        sent("in", Kind::Good, "s6", "k1"),
    ];
    let open = vec![
        sent("in", Kind::Good, "o1", "k0"),
        sent("in-two", Kind::Unwanted, "o2", "k1"),
        sent("in", Kind::Outdated, "o3", "k1"),
        sent("in", Kind::Good, "o4", "k2"),
    ];
    let later = |id| vec![sent("in", Kind::Good, id, "k0")];
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
            let sealed = sealed(&outcome);
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
            let sealed = sealed(&outcome);
            for batch in first_seals(Some(".k")) {
                assert!(sealed.contains(&batch), "{what}: {batch:?} not in {sealed:?}");
            }
        }
    }
}

/// Sealed batches look for their members where `by` puts them now: nobody is there, and the seal
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
