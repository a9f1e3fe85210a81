//! 2, 3 and 10: owners of groups that die, or stand still for longer than their session and wake.

use std::collections::BTreeMap;

use potok_testkit::sim::{Act, Outcome, Scenario, seals};

#[cfg(debug_assertions)]
use super::{Bug, Promise, breaks, run, with_bug};
use super::{
    SHAPES, Shape, all_delivered, all_good, endings, happened, run_through, run_well, steady,
};

/// The processes of a shape that shares its log: with one partition one of them has the groups.
const PROCESSES: usize = 2;

fn shared() -> impl Iterator<Item = Shape> {
    SHAPES.into_iter().filter(|shape| shape.sharing == PROCESSES)
}

/// 2: what is held dies with its process, in mid-window or sealed and not sent. Where the log is
/// shared, one of the processes dies; the other one has what it held when its session is over.
fn killed(shape: Shape, process: usize, at: u64) -> Scenario {
    let mut scenario = steady(shape);
    super::away_until(&mut scenario, 3_000);
    scenario.workers = vec![shape.workers, shape.workers + 2];
    scenario.acts = vec![
        (10, Act::Send(all_good("in", &["a1", "a2"]))),
        (20, Act::Send(all_good("in-two", &["b1"]))),
        (at, if shape.sharing > 0 { Act::Kill(process) } else { Act::Crash }),
        (9_000, Act::Send(all_good("in", &["a3"]))),
        (20_000, Act::AllEnded),
    ];
    scenario
}

fn all_killed() -> impl Iterator<Item = (Scenario, String)> {
    SHAPES.into_iter().flat_map(|shape| {
        let victims = 0..shape.sharing.max(1);
        victims.flat_map(move |process| {
            [500, 1_800].into_iter().map(move |at| {
                let what = format!("{shape:?}, process {process} dies at {at}");
                (killed(shape, process, at), what)
            })
        })
    })
}

#[test]
fn what_is_held_is_read_again_by_another_owner() {
    let mut taken_over = 0;
    for (scenario, what) in all_killed() {
        let outcome = run_well(scenario, &what);
        all_delivered(&outcome, &["a1", "a2", "a3", "b1"], &what);
        taken_over += usize::from(happened(&outcome, "potok-sim/0 is taken from a process"));
    }
    assert!(taken_over > 0, "no process that died had the groups");
}

/// What counts as ended when it is held dies with its owner.
#[cfg(debug_assertions)]
#[test]
fn held_is_ended_is_found() {
    for shape in SHAPES.into_iter().filter(|shape| shape.sharing == 0) {
        let found = breaks(Bug::HeldIsEnded, Promise::NothingLost, killed(shape, 0, 500));
        assert!(found, "{shape:?}");
    }
    for shape in shared() {
        let found =
            |process| breaks(Bug::HeldIsEnded, Promise::NothingLost, killed(shape, process, 500));
        assert!((0..PROCESSES).any(found), "{shape:?}");
    }
}

/// When the owner stops, millisecond by millisecond: while it gathers the first records, while it
/// puts them into the store, in mid-window, while they are sealed, and while they are sent.
fn stops() -> impl Iterator<Item = u64> {
    (10..40).chain([500]).chain((1_005..1_040).step_by(2))
}

/// 3: a process stands still for longer than its session. The other one delivers what it held, and
/// more of the same group, and has some of it open when the first one wakes.
fn frozen(shape: Shape, process: usize, at: u64) -> Scenario {
    let mut scenario = steady(shape);
    scenario.acts = vec![
        (10, Act::Send(all_good("in", &["a1", "a2"]))),
        (at, Act::Freeze(process, 12_000)),
        (at + 9_000, Act::Send(all_good("in-two", &["b1", "b2"]))),
        (at + 11_500, Act::Send(all_good("in", &["c1", "c2"]))),
        (at + 12_100, Act::Send(all_good("in", &["c3"]))),
        (at + 20_000, Act::AllEnded),
    ];
    scenario
}

const FROZEN_IDS: [&str; 7] = ["a1", "a2", "b1", "b2", "c1", "c2", "c3"];

#[test]
fn an_owner_that_wakes_changes_nothing() {
    for shape in shared() {
        let (mut delivered, mut late) = (0, 0);
        for process in 0..PROCESSES {
            for at in stops() {
                let what = format!("{shape:?}, process {process} stops at {at}");
                let outcome = run_through(frozen(shape, process, at), &what);
                all_delivered(&outcome, &FROZEN_IDS, &what);
                delivered += usize::from(happened(&outcome, "potok-sim/0 is taken from a process"));
                late += usize::from(happened(&outcome, "an old assignment"));
            }
        }
        assert!(delivered > 0, "{shape:?}: it never had the groups");
        assert!(late > 0, "{shape:?}: it never came back with something to note");
    }
}

/// Counts the stops at which the naive version breaks the promise.
#[cfg(debug_assertions)]
fn found_at(bug: Bug, promise: Promise, shape: Shape) -> usize {
    let stops = (0..PROCESSES).flat_map(|process| stops().map(move |at| (process, at)));
    stops.filter(|(process, at)| breaks(bug, promise, frozen(shape, *process, *at))).count()
}

/// A store that does not compare owners gets bodies back that were sent long ago.
#[cfg(debug_assertions)]
#[test]
fn a_store_that_takes_writes_from_old_owners_is_found() {
    for shape in shared().filter(|shape| shape.stored) {
        assert!(found_at(Bug::StoreUnfenced, Promise::OwnersWrite, shape) > 0, "{shape:?}");
    }
}

/// A log that does not compare assignments takes endings from who had the partition before, and
/// copies of records that were gathered by another one meanwhile.
#[cfg(debug_assertions)]
#[test]
fn a_log_that_takes_commits_from_old_owners_is_found() {
    for shape in shared() {
        assert!(found_at(Bug::StaleCommit, Promise::OwnersCommit, shape) > 0, "{shape:?}");
        assert!(found_at(Bug::StaleCommit, Promise::GatheredOnce, shape) > 0, "{shape:?}");
    }
}

/// 10: the process dies at one of the calls by which records are gathered. One of them was sent
/// twice: those are two records.
fn gathering(shape: Shape, seed: u64, calls: u64) -> Scenario {
    let mut scenario = steady(shape);
    scenario.seed = seed;
    scenario.acts = vec![
        (5, Act::Send(all_good("in-two", &["b1"]))),
        (10, Act::Send(all_good("in", &["a1", "a1", "a2"]))),
        (10, Act::CrashInCalls(calls)),
        (9_000, Act::AllEnded),
    ];
    scenario
}

const CALLS: std::ops::Range<u64> = 1..16;

/// How many batches each record is in.
fn batches(outcome: &Outcome) -> BTreeMap<String, usize> {
    let mut batches = BTreeMap::new();
    for at in outcome.world.with(|w| seals(w)).into_iter().flat_map(|(_, members)| members) {
        *batches.entry(at.to_string()).or_default() += 1;
    }
    batches
}

#[test]
fn a_record_is_gathered_once_whenever_the_process_dies() {
    let (mut died, sent_twice) = (0, vec!["delivered", "delivered"]);
    for shape in SHAPES {
        for (seed, calls) in (70..74).flat_map(|seed| CALLS.map(move |calls| (seed, calls))) {
            let what = format!("{shape:?}, seed {seed}, dies at call {calls}");
            let outcome = run_through(gathering(shape, seed, calls), &what);
            all_delivered(&outcome, &["a2", "b1"], &what);
            assert_eq!(endings(&outcome).get("a1"), Some(&sent_twice), "{what}");
            assert!(batches(&outcome).values().all(|batches| *batches == 1), "{what}");
            died += usize::from(happened(&outcome, "the process dies at the log, after a write"));
        }
    }
    assert!(died > 0, "it never died between writing and hearing of it");
}

/// Who copies first and notes positions later has copied twice when he dies in between.
#[cfg(debug_assertions)]
#[test]
fn records_gathered_apart_are_found() {
    for shape in shared() {
        let runs = (70..74).flat_map(|seed| CALLS.map(move |calls| (seed, calls)));
        let found = runs.filter(|(seed, calls)| {
            let scenario = gathering(shape, *seed, *calls);
            let outcome = with_bug(Bug::GatheredApart, || run(scenario)).unwrap();
            outcome.broke(Promise::GatheredOnce)
        });
        assert!(found.count() > 0, "{shape:?}");
    }
}
