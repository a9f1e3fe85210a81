//! Who is to blame: a record that keeps failing, or its destination? On the simulated systems;
//! each run also checks that work finishes, and every other promise.
#![cfg(debug_assertions)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use potok_core::Output;
use potok_core::trouble::{Bug, with_bug};
use potok_flow::dead_letter::DeadLetterState;
use potok_testkit::sim::{
    Act, Deliver, Hold, Manner, Outcome, Promise, RecordKind, Recovery, Scenario, SimTarget, Spell,
    Style, Trouble, record, run,
};

const STYLES: [Style; 3] = [Style::Whole, Style::Prefix, Style::PerMessage];

fn plain(style: Style, workers: usize) -> Scenario {
    let to = SimTarget::Sink(Manner { style, ..Manner::default() });
    Scenario {
        delivers: vec![Deliver { to, key_by_k: false, once: false }],
        workers: vec![workers],
        partitions: 3,
        // Nobody helps.
        decides_after: None,
        ..Scenario::plain(11)
    }
}

fn run_well(scenario: Scenario) -> Outcome {
    let outcome = run(scenario).unwrap();
    if let Err(why) = outcome.verdict() {
        outcome.trace.iter().for_each(|line| println!("{line}"));
        panic!("{why}");
    }
    outcome
}

/// How many dead letters are open.
fn letters(outcome: &Outcome) -> usize {
    outcome.letters.iter().filter(|letter| letter.state == DeadLetterState::Open).count()
}

fn poison(n: usize) -> Output {
    record(RecordKind::Poison, &format!("p{n}"), &format!("poison {n}"))
}

fn good(n: usize) -> Output {
    record(RecordKind::Good, &n.to_string(), &format!("good {n}"))
}

/// Everything refused, though the probe answers.
fn refused(from: u64, to: u64) -> Spell {
    Spell { from, to, trouble: Trouble::SinkRetriesAll }
}

/// One record fails in a short brown-out; others get through, and then, but for it, all is quiet
/// while the destination refuses everything for a long time.
fn brown_out(style: Style, others: &str) -> Scenario {
    let mut scenario = plain(style, 2);
    scenario.enabled.insert(Trouble::SinkRetriesAll);
    scenario.spells.insert(0, vec![refused(0, 45), refused(400, 90_000)]);
    let second = Duration::from_millis(500);
    scenario.retry = (3, second, second);
    scenario.acts = vec![(10, Act::Send(vec![good(1)]))];
    let other = |n: u64| record(RecordKind::Good, &format!("w{n}"), others);
    scenario.acts.extend((0..10).map(|n| (50 + n * 20, Act::Send(vec![other(n)]))));
    scenario.acts.push((180_000, Act::AllEnded));
    scenario
}

#[test]
fn a_lone_healthy_record_outlives_a_long_brown_out() {
    for style in STYLES {
        for others in ["a", "b", "c", "d"] {
            let outcome = run_well(brown_out(style, others));
            assert!(outcome.letters.is_empty(), "{style:?}: {:?}", outcome.letters);
        }
    }
}

#[test]
fn one_that_fails_alone_at_trials_is_no_culprit() {
    let is_found = |others| {
        let outcome = with_bug(Bug::LoneCulprit, || run(brown_out(Style::Whole, others))).unwrap();
        outcome.broke(Promise::HealthyStayAlive)
    };
    assert!(["a", "b", "c", "d"].into_iter().any(is_found));
}

/// A destination that comes and goes, every few milliseconds or seconds, with little or much to do.
fn coming_and_going() -> impl Iterator<Item = Scenario> {
    let steps = [(7, 3), (40, 20), (300, 150), (2_000, 1_000), (2_000, 1_800)];
    let cases = STYLES.into_iter().flat_map(move |style| steps.map(|step| (style, step)));
    cases.flat_map(|case| [1, 30].map(|burst| (case, burst))).map(|(case, burst)| {
        let (style, (step, share)) = case;
        let mut scenario = plain(style, 3);
        scenario.enabled.insert(Trouble::SinkRetriesAll);
        let down = (0..60_000 / step).map(|n| refused(n * step, n * step + share));
        scenario.spells.insert(0, down.collect());
        let sends = (0..40).map(|n| {
            let records = (0..burst).map(|at| good(n as usize * 100 + at)).collect();
            (n * 1_300, Act::Send(records))
        });
        scenario.acts = sends.collect();
        scenario
    })
}

#[test]
fn healthy_records_outlive_a_destination_that_comes_and_goes() {
    for scenario in coming_and_going() {
        let summary = scenario.summary();
        assert!(run_well(scenario).letters.is_empty(), "{summary}");
    }
}

/// The same with long waits between attempts, in which others get through.
fn coming_and_going_between_attempts() -> Scenario {
    let mut scenario = plain(Style::Whole, 4);
    scenario.enabled.insert(Trouble::SinkRetriesAll);
    scenario.spells.insert(0, (0..300).map(|n| refused(n * 200, n * 200 + 100)).collect());
    let wait = Duration::from_millis(500);
    scenario.retry = (4, wait, wait);
    scenario.acts = (0..400).map(|n| (n * 100, Act::Send(vec![good(n as usize)]))).collect();
    scenario
}

#[test]
fn a_success_long_before_is_no_witness() {
    let outcome = run_well(coming_and_going_between_attempts());
    assert!(outcome.letters.is_empty(), "{:?}", outcome.letters);
    let naive = with_bug(Bug::WitnessLongAgo, || run(coming_and_going_between_attempts())).unwrap();
    assert!(naive.broke(Promise::HealthyStayAlive), "{:?}", naive.violations);
}

/// With others flowing, poison ends by itself: wherever it stands, however much of it there is.
#[test]
fn poison_is_found_where_others_get_through() {
    for style in STYLES {
        for workers in [1, 3] {
            for (bad, front) in [(1, 0), (1, 7), (2, 0), (3, 5), (12, 0), (40, 0)] {
                let mut sent: Vec<Output> = (0..front).map(good).collect();
                sent.extend((0..bad).map(poison));
                sent.extend((front..front + 20 + 4 * bad).map(good));
                let mut scenario = plain(style, workers);
                scenario.acts = vec![(10, Act::Send(sent))];
                // Where each has an answer of its own, all that are healthy leave at once.
                let later = |n: usize| (0..10).map(|at| good(1_000 * n + at)).collect();
                let waves = (1..12).map(|n| (n as u64 * 5_000, Act::Send(later(n))));
                scenario.acts.extend(waves);
                scenario.acts.push((180_000, Act::AllEnded));
                let outcome = run_well(scenario);
                let case = format!("{style:?}, {workers} workers, {bad} bad behind {front}");
                assert_eq!(letters(&outcome), bad, "{case}");
            }
        }
    }
}

/// One record a second is enough.
#[test]
fn poison_is_found_where_little_happens() {
    for style in STYLES {
        for workers in [1, 4] {
            let mut scenario = plain(style, workers);
            scenario.acts = vec![(10, Act::Send(vec![poison(0)]))];
            scenario.acts.extend((1..10).map(|n| (n * 8_000, Act::Send(vec![good(n as usize)]))));
            scenario.acts.push((100_000, Act::AllEnded));
            assert_eq!(letters(&run_well(scenario)), 1, "{style:?}, {workers} workers");
        }
    }
}

/// Poison at the head of each lane, healthy records of other keys behind it.
#[test]
fn poison_at_every_head_is_found() {
    for style in STYLES {
        let mut scenario = plain(style, 4);
        scenario.acts = vec![
            (10, Act::Send((0..16).map(poison).collect())),
            (5_000, Act::Send((0..60).map(good).collect())),
            (180_000, Act::AllEnded),
        ];
        assert_eq!(letters(&run_well(scenario)), 16, "{style:?}");
    }
}

/// Alone, or with followers of its own key only, it waits, and somebody decides.
#[test]
fn lone_poison_waits_for_a_decision() {
    for style in STYLES {
        for followers in [0, 3] {
            let mut sent = vec![record(RecordKind::Poison, "p", "k")];
            sent.extend((0..followers).map(|n| record(RecordKind::Good, &n.to_string(), "k")));
            let mut scenario = plain(style, 2);
            scenario.decides_after = Some(20_000);
            scenario.acts = vec![(10, Act::Send(sent)), (60_000, Act::AllEnded)];
            let outcome = run_well(scenario);
            assert!(outcome.tally.recoveries(Recovery::Decided) > 0, "{style:?}");
        }
    }
}

/// In groups too: those of other lanes, or sent together with it, show that the destination works.
/// What lies behind it in its lane waits with it, so with one lane somebody may have to decide.
#[test]
fn poison_in_groups_is_found() {
    for style in STYLES {
        for workers in [1, 3] {
            let mut scenario = plain(style, workers);
            scenario.decides_after = (workers == 1).then_some(20_000);
            scenario.hold = Some(Hold {
                by: Some(".k"),
                after_first: 1_000,
                quiet: None,
                max_count: None,
                stored: false,
                replace: false,
            });
            let key = |n: u64| format!("k{}", n % 12);
            let mut sent: Vec<Output> =
                (0..60).map(|n| record(RecordKind::Good, &n.to_string(), &key(n))).collect();
            sent.insert(20, record(RecordKind::Poison, "p", "k3"));
            scenario.acts = vec![(10, Act::Send(sent)), (60_000, Act::AllEnded)];
            assert_eq!(letters(&run_well(scenario)), 1, "{style:?}, {workers} workers");
        }
    }
}
