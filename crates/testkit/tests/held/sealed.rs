//! 4, 5 and 9: what is sealed stays as it was sealed, and what comes later is the next generation.

use potok_core::Output;
use potok_testkit::sim::{Act, RecordKind, Scenario, SealMax};

#[cfg(debug_assertions)]
use super::{Bug, Promise, breaks};
use super::{SHAPES, Shape, all_delivered, all_good, away_until, happened, run_well};
use super::{sealed_ids, sent, set, steady};

/// 4: a batch is closed by hand in mid-window, and more of its group comes before it is sent. The
/// process dies at one of the calls around the sending, is down for longer than the window, and
/// starts again with more workers, and more comes.
fn dies_sending(shape: Shape, calls: u64) -> Scenario {
    let mut scenario = steady(shape);
    scenario.hold.iter_mut().for_each(|hold| hold.after_first = 10_000);
    scenario.workers = vec![shape.workers, shape.workers + 3];
    scenario.down = 15_000;
    away_until(&mut scenario, 2_000);
    scenario.acts = vec![
        (10, Act::Send(all_good("in", &["a1", "a2"]))),
        (20, Act::Send(all_good("in-two", &["b1"]))),
        (500, Act::Release("k")),
        (900, Act::Send(all_good("in", &["a3"]))),
        (1_999, Act::CrashInCalls(calls)),
        (18_000, Act::Send(all_good("in-two", &["b2", "b3"]))),
        (40_000, Act::AllEnded),
    ];
    scenario
}

const CALLS: std::ops::Range<u64> = 1..16;

#[test]
fn a_batch_that_was_sent_is_sent_again_as_it_was() {
    for shape in SHAPES {
        let mut died = 0;
        for calls in CALLS {
            let what = format!("{shape:?}, dies at call {calls}");
            let outcome = run_well(dies_sending(shape, calls), &what);
            all_delivered(&outcome, &["a1", "a2", "a3", "b1", "b2", "b3"], &what);
            let (first, sealed) = (set(&["a1", "a2", "b1"]), sealed_ids(&outcome));
            assert!(sealed.contains(&first), "{what}: {first:?} not in {sealed:?}");
            died += usize::from(happened(&outcome, "dies at the destination, after it wrote"));
        }
        assert!(died > 0, "{shape:?}: it never died before the receipt was noted");
    }
}

/// Who decides anew what belongs together sends the same records in another batch.
#[cfg(debug_assertions)]
#[test]
fn seals_that_are_forgotten_are_found() {
    for shape in SHAPES {
        let found = CALLS.filter(|calls| {
            breaks(Bug::SealsForgotten, Promise::SentAsSealed, dies_sending(shape, *calls))
        });
        assert!(found.count() > 0, "{shape:?}");
    }
}

const KEYS: [&str; 4] = ["k0", "k1", "k2", "k3"];

/// Milliseconds around the closing of groups.
const AROUND: std::ops::Range<u64> = 1_000..1_032;

fn of_group(generation: &str, key: &str) -> Vec<Output> {
    let id = |number| format!("{key}-{generation}{number}");
    [1, 2].map(|number| sent("in", RecordKind::Good, &id(number), key)).to_vec()
}

/// 5: more comes for groups that close about now.
fn closing(shape: Shape, at: u64) -> Scenario {
    let mut scenario = steady(shape);
    let of_all = |generation| KEYS.into_iter().flat_map(move |key| of_group(generation, key));
    scenario.acts = vec![
        (10, Act::Send(of_all("a").collect())),
        (at, Act::Send(of_all("b").collect())),
        (9_000, Act::AllEnded),
    ];
    scenario
}

/// 5: a sealed group waits for its destination, is sent and is cleaned up; more of its group comes
/// all the time.
fn sending(shape: Shape) -> Scenario {
    let mut scenario = steady(shape);
    away_until(&mut scenario, 3_000);
    scenario.acts = vec![(10, Act::Send(of_group("a", "k0")))];
    for (at, number) in (1_300..2_900).step_by(400).chain(2_990..3_030).zip(0..) {
        let late = sent("in", RecordKind::Good, &format!("late{number}"), "k0");
        scenario.acts.push((at, Act::Send(vec![late])));
    }
    scenario.acts.push((12_000, Act::AllEnded));
    scenario
}

#[test]
fn a_record_that_comes_while_its_group_closes_is_in_one_generation() {
    for shape in SHAPES {
        let mut in_time = 0;
        for at in AROUND {
            let what = format!("{shape:?}, at {at}");
            let outcome = run_well(closing(shape, at), &what);
            let sealed = sealed_ids(&outcome);
            for key in KEYS {
                let ids = ["a1", "a2", "b1", "b2"].map(|id| format!("{key}-{id}"));
                let [a1, a2, b1, b2] = ids.each_ref().map(String::as_str);
                all_delivered(&outcome, &[a1, a2, b1, b2], &what);
                let seal_of = |id: &str| sealed.iter().position(|seal| seal.contains(id));
                assert_eq!(seal_of(a1), seal_of(a2), "{what}: {key}");
                in_time += usize::from(seal_of(a1) == seal_of(b1));
            }
        }
        let all = KEYS.len() * AROUND.count();
        assert!((1..all).contains(&in_time), "{shape:?}: {in_time} of {all} came in time");
    }
}

#[test]
fn a_record_that_comes_while_its_batch_is_sent_is_in_the_next_generation() {
    for shape in SHAPES {
        let what = format!("{shape:?}");
        let outcome = run_well(sending(shape), &what);
        let ids: Vec<String> = (0..44).map(|number| format!("late{number}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        all_delivered(&outcome, &ids, &what);
        let sealed = sealed_ids(&outcome);
        assert!(sealed.contains(&set(&["k0-a1", "k0-a2"])), "{what}: {sealed:?}");
    }
}

/// A record that joins a batch which is sealed already is named by no seal.
#[cfg(debug_assertions)]
#[test]
fn late_records_that_join_a_sealed_batch_are_found() {
    for shape in SHAPES {
        let found = AROUND
            .filter(|at| breaks(Bug::LateJoinsSealed, Promise::SentAsSealed, closing(shape, *at)));
        assert!(found.count() > 0, "{shape:?}");
    }
}

/// Who removes a whole group when one batch of it was sent removes the next generation.
#[cfg(debug_assertions)]
#[test]
fn cleaning_whole_groups_is_found() {
    for shape in SHAPES.into_iter().filter(|shape| shape.stored) {
        let found = breaks(Bug::CleansWholeGroups, Promise::CleanedWhenEnded, sending(shape));
        assert!(found, "{shape:?}");
    }
}

/// 5: a batch is closed by hand in mid-window. What comes of its group afterwards is the next
/// generation, also for a process that reads all of it again and may meet the seal last: `a3` would
/// have been in the window of `a1`, `a4` comes behind it.
fn left_behind(shape: Shape, seed: u64) -> Scenario {
    let mut scenario = steady(shape);
    scenario.seed = seed;
    away_until(&mut scenario, 5_000);
    scenario.acts = vec![
        (10, Act::Send(all_good("in", &["a1", "a2"]))),
        (300, Act::Release("k")),
        (600, Act::Send(all_good("in", &["a3"]))),
        (1_200, Act::Send(all_good("in", &["a4"]))),
        (1_300, Act::Crash),
        (9_000, Act::AllEnded),
    ];
    scenario
}

#[test]
fn what_a_seal_leaves_behind_has_a_window_of_its_own() {
    for shape in SHAPES {
        for seed in 70..80 {
            let what = format!("{shape:?}, seed {seed}");
            let outcome = run_well(left_behind(shape, seed), &what);
            all_delivered(&outcome, &["a1", "a2", "a3", "a4"], &what);
            let sealed = sealed_ids(&outcome);
            for batch in [set(&["a1", "a2"]), set(&["a3", "a4"])] {
                assert!(sealed.contains(&batch), "{what}: {batch:?} not in {sealed:?}");
            }
        }
    }
}

/// 9: something comes four times in each window, so that a next generation is always open. No
/// record may be open for longer than a window and what the sending takes.
fn never_idle(shape: Shape) -> Scenario {
    let mut scenario = steady(shape);
    scenario.open_max = Some(2_500);
    for (at, number) in (10..30_000).step_by(250).zip(0..) {
        let one = sent("in", RecordKind::Good, &format!("a{number}"), "k");
        scenario.acts.push((at, Act::Send(vec![one])));
    }
    scenario
}

#[test]
fn the_commit_follows_a_group_that_is_never_idle() {
    for shape in SHAPES {
        let outcome = run_well(never_idle(shape), &format!("{shape:?}"));
        let batches = sealed_ids(&outcome).len();
        assert!(batches > 20, "{shape:?}: {batches} batches in thirty windows");
    }
}

/// Who waits until nothing is open never commits.
#[cfg(debug_assertions)]
#[test]
fn a_commit_that_waits_until_all_is_idle_is_found() {
    for shape in SHAPES {
        let found = breaks(Bug::CommitWhenIdle, Promise::CommitAdvances, never_idle(shape));
        assert!(found, "{shape:?}");
    }
}

/// Records of two groups by turns, so that those of one lie apart, on a log that takes no seal of all
/// of them.
fn large_groups(shape: Shape, is_told: bool) -> Scenario {
    let mut scenario = steady(shape);
    let bytes = if is_told { 1_500 } else { 400 };
    scenario.seal_max = Some(SealMax { bytes, is_told });
    let one = |number: u32| {
        let key = if number.is_multiple_of(2) { "k0" } else { "k1" };
        sent("in", RecordKind::Good, &format!("a{number}"), key)
    };
    scenario.acts = vec![(10, Act::Send((0..80).map(one).collect())), (20_000, Act::AllEnded)];
    scenario
}

const REFUSED: &str = "refuses a seal";

#[test]
fn a_group_whose_seal_is_too_large_goes_in_smaller_parts() {
    for shape in SHAPES.into_iter().filter(|shape| shape.sharing > 0) {
        for is_told in [true, false] {
            let what = format!("{shape:?}, told {is_told}");
            let outcome = run_well(large_groups(shape, is_told), &what);
            let ids: Vec<String> = (0..80).map(|number| format!("a{number}")).collect();
            all_delivered(&outcome, &ids.iter().map(String::as_str).collect::<Vec<_>>(), &what);
            assert!(sealed_ids(&outcome).len() > 2, "{what}: not in parts");
            assert_eq!(happened(&outcome, REFUSED), !is_told, "{what}");
        }
    }
}

/// Who makes the same seal again never gets it written.
#[cfg(debug_assertions)]
#[test]
fn a_seal_that_is_made_again_as_it_was_is_found() {
    for shape in SHAPES.into_iter().filter(|shape| shape.sharing > 0) {
        let found = breaks(Bug::SealsUncut, Promise::WorkFinishes, large_groups(shape, false));
        assert!(found, "{shape:?}");
    }
}
