//! 6: two versions of one id in a group.

use potok_core::Output;
use potok_testkit::sim::{Act, Deliver, LARGE, RecordKind, Scenario, SimTarget, Trouble, record};

#[cfg(debug_assertions)]
use super::{Bug, Promise, breaks};
use super::{SHAPES, Shape, id_of, run_well, steady};

fn version(topic: &str, kind: RecordKind, number: u64) -> Output {
    let mut output = Output { topic: topic.into(), ..record(kind, "x", "k") };
    let value = output.value.take().unwrap_or_default();
    let mut value: serde_json::Value = serde_json::from_slice(&value).unwrap();
    value["version"] = number.into();
    Output { value: Some(value.to_string().into()), ..output }
}

/// The first version lies in one topic, the second in the other. The process dies in mid-window,
/// or with the batch sealed and not sent, and reads the topics again in some order.
fn versions(shape: Shape, second: RecordKind, dies: u64, seed: u64) -> Scenario {
    let mut scenario = steady(shape);
    scenario.seed = seed;
    scenario.hold.iter_mut().for_each(|hold| hold.replace = true);
    super::away_until(&mut scenario, 3_000);
    scenario.acts = vec![
        (10, Act::Send(vec![version("in", RecordKind::Good, 1)])),
        (200, Act::Send(vec![version("in-two", second, 2)])),
        (dies, Act::Crash),
        (12_000, Act::AllEnded),
    ];
    scenario
}

const DIES: [u64; 2] = [500, 2_000];

fn all_versions(second: RecordKind) -> impl Iterator<Item = (Scenario, String)> {
    let shapes = SHAPES.into_iter();
    shapes.flat_map(move |shape| {
        DIES.into_iter().flat_map(move |dies| {
            (60..68).map(move |seed| {
                let what = format!("{shape:?}, dies at {dies}, seed {seed}");
                (versions(shape, second, dies, seed), what)
            })
        })
    })
}

fn number_of(value: &[u8]) -> u64 {
    let value: serde_json::Value = serde_json::from_slice(value).unwrap();
    value["version"].as_u64().unwrap()
}

#[test]
fn a_second_version_that_is_refused_takes_the_first_along() {
    for (scenario, what) in all_versions(RecordKind::Refused) {
        let outcome = run_well_with_both(scenario, &what);
        // At the end somebody replays both, each alone.
        let mut letters: Vec<u64> = outcome
            .letters
            .iter()
            .filter(|letter| letter.envelope.attempts == 1)
            .map(|letter| number_of(letter.record.value.as_deref().unwrap()))
            .collect();
        letters.sort_unstable();
        assert_eq!(letters, [1, 2], "{what}");
    }
}

#[test]
fn a_first_version_that_is_read_again_does_not_replace_the_second() {
    for (scenario, what) in all_versions(RecordKind::Good) {
        let outcome = run_well_with_both(scenario, &what);
        let rows = outcome.world.with(|w| w.tables[0].rows.clone());
        let versions = rows.iter().filter(|row| id_of(&row.source) == "x");
        let versions: Vec<u64> = versions.map(|row| number_of(&row.source)).collect();
        assert_eq!(versions, [2], "{what}");
    }
}

/// The second version is too large for the topic it is delivered to.
fn refused_by_the_log(shape: Shape, dies: u64, seed: u64) -> Scenario {
    let mut scenario = versions(shape, RecordKind::Good, dies, seed);
    scenario.enabled.insert(Trouble::TooLarge);
    scenario.delivers =
        vec![Deliver { to: SimTarget::Topic("out".into()), key_by_k: false, once: false }];
    for (_, act) in &mut scenario.acts {
        let Act::Send(outputs) = act else { continue };
        for output in outputs.iter_mut().filter(|output| &*output.topic == "in-two") {
            let value = output.value.take().unwrap_or_default();
            output.value = Some([&value[..], " ".repeat(LARGE).as_bytes()].concat().into());
        }
    }
    scenario
}

/// One log writes outputs and progress apart and may refuse an output: the shared one.
#[test]
fn a_second_version_that_the_log_refuses_takes_the_first_along() {
    for shape in SHAPES.into_iter().filter(|shape| shape.sharing > 0) {
        for (dies, seed) in DIES.into_iter().flat_map(|dies| (60..68).map(move |s| (dies, s))) {
            let what = format!("{shape:?}, dies at {dies}, seed {seed}");
            let outcome = run_well_with_both(refused_by_the_log(shape, dies, seed), &what);
            let first = outcome.letters.iter().filter(|letter| letter.envelope.attempts == 1);
            let mut letters: Vec<_> =
                first.map(|l| number_of(l.record.value.as_deref().unwrap())).collect();
            letters.sort_unstable();
            assert_eq!(letters, [1, 2], "{what}");
        }
    }
}

/// Both versions are in one batch.
fn run_well_with_both(scenario: Scenario, what: &str) -> potok_testkit::sim::Outcome {
    let outcome = run_well(scenario, what);
    let seals = outcome.world.with(|w| potok_testkit::sim::seals(w));
    assert!(seals.iter().any(|(_, members)| members.len() == 2), "{what}: {seals:?}");
    outcome
}

/// A version that ends because another took its place is nowhere when that one is refused.
#[cfg(debug_assertions)]
#[test]
fn superseded_that_ends_at_once_is_found() {
    for (scenario, what) in all_versions(RecordKind::Refused) {
        let found = breaks(Bug::SupersededEndsAtOnce, Promise::NothingLost, scenario);
        assert!(found, "{what}");
    }
}

/// Where the topics are read in another order than they were written, the last one read is not the
/// last arrival. On a shared log copies lie in one order.
#[cfg(debug_assertions)]
#[test]
fn the_last_one_read_standing_for_all_is_found() {
    for shape in own_logs() {
        let found = (60..68).filter(|seed| {
            let scenario = versions(shape, RecordKind::Good, 500, *seed);
            breaks(Bug::LastReadWins, Promise::LatestWins, scenario)
        });
        assert!(found.count() > 0, "{shape:?}");
    }
}

/// The calls by which a large dead letter is written, and some around.
const LARGE_CALLS: std::ops::Range<u64> = 5..10;

/// Where versions may lie in different partitions.
fn own_logs() -> impl Iterator<Item = Shape> {
    SHAPES.into_iter().filter(|shape| shape.sharing == 0)
}

/// The second version makes a dead letter that fills a transaction alone, and the process dies at
/// one of the calls around its being written.
fn large(shape: Shape, calls: u64) -> Scenario {
    let mut scenario = steady(shape);
    scenario.hold.iter_mut().for_each(|hold| hold.replace = true);
    super::away_until(&mut scenario, 3_000);
    let mut second = version("in-two", RecordKind::Refused, 2);
    let value = second.value.take().unwrap_or_default();
    second.value = Some([&value[..], " ".repeat(4 << 20).as_bytes()].concat().into());
    scenario.acts = vec![
        (10, Act::Send(super::all_good("in-two", &["b1"]))),
        (100, Act::Send(vec![version("in", RecordKind::Good, 1)])),
        (200, Act::Send(vec![second])),
        (2_999, Act::CrashInCalls(calls)),
        (12_000, Act::AllEnded),
    ];
    scenario
}

#[test]
fn versions_of_different_partitions_end_in_one_transaction() {
    for shape in own_logs() {
        for calls in LARGE_CALLS {
            run_well(large(shape, calls), &format!("{shape:?}, dies at call {calls}"));
        }
    }
}

/// Who notes partition by partition leaves the first version behind, and delivers it.
#[cfg(debug_assertions)]
#[test]
fn versions_that_end_apart_are_found() {
    for shape in own_logs() {
        let found = LARGE_CALLS
            .filter(|calls| breaks(Bug::EndsApart, Promise::LatestWins, large(shape, *calls)));
        assert!(found.count() > 0, "{shape:?}");
    }
}
