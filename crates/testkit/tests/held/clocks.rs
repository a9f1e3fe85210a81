//! Clocks of a shared log that are set while groups are open. How long windows last is checked in
//! every run; here also who is together.

use potok_testkit::sim::{Act, RecordKind, Scenario};

#[cfg(debug_assertions)]
use super::{Bug, Promise, breaks};
use super::{SHAPES, Shape, all_delivered, all_good, run_well, sealed_ids, sent, set, steady};

/// Groups of a second. The log's clock is set while the first one is open.
fn set_while_open(shape: Shape, millis: i64, dies: bool) -> Scenario {
    let mut scenario = steady(shape);
    scenario.acts = vec![
        (10, Act::Send(all_good("in", &["a1"]))),
        (300, Act::JumpOfLog(millis)),
        (400, Act::Send(all_good("in-two", &["a2"]))),
        (800, Act::Send(all_good("in", &["a3"]))),
        (3_000, Act::Send(all_good("in", &["b1"]))),
        (3_700, Act::Send(all_good("in", &["b2"]))),
        (12_000, Act::AllEnded),
    ];
    if dies {
        scenario.acts.insert(3, (600, Act::Crash));
        scenario.acts.insert(6, (3_300, Act::Crash));
    }
    scenario
}

fn all(millis: i64) -> impl Iterator<Item = (Scenario, String)> {
    let shared = SHAPES.into_iter().filter(|shape| shape.sharing > 0);
    shared.flat_map(move |shape| {
        [false, true].map(|dies| {
            let what = format!("{shape:?}, set by {millis} ms, dies: {dies}");
            (set_while_open(shape, millis, dies), what)
        })
    })
}

#[test]
fn a_log_whose_clock_is_set_back_closes_nothing_early() {
    for (scenario, what) in [-700, -5_000, -3_600_000].into_iter().flat_map(all) {
        let outcome = run_well(scenario, &what);
        let sealed = sealed_ids(&outcome);
        for batch in [set(&["a1", "a2", "a3"]), set(&["b1", "b2"])] {
            assert!(sealed.contains(&batch), "{what}: {batch:?} not in {sealed:?}");
        }
    }
}

/// Who takes the log's times as they are closes windows before their time.
#[cfg(debug_assertions)]
#[test]
fn a_clock_that_is_trusted_though_it_was_set_back_is_found() {
    for millis in [-700, -5_000, -3_600_000] {
        let found = all(millis).filter(|(scenario, _)| {
            breaks(Bug::SetClockTrusted, Promise::WindowsLast, scenario.clone())
        });
        assert!(found.count() > 0, "set by {millis} ms");
    }
}

/// Windows go by the log's clock: what is open then closes, what comes afterwards has its time.
#[test]
fn a_log_whose_clock_is_set_forward_goes_on() {
    for (scenario, what) in [700, 5_000, 3_600_000].into_iter().flat_map(all) {
        let outcome = run_well(scenario, &what);
        all_delivered(&outcome, &["a1", "a2", "a3", "b1", "b2"], &what);
        let (sealed, batch) = (sealed_ids(&outcome), set(&["b1", "b2"]));
        assert!(sealed.contains(&batch), "{what}: {batch:?} not in {sealed:?}");
    }
}

/// A dead letter is replayed while a group is open, from the partition of the same number, and
/// nothing comes afterwards.
#[test]
fn a_replay_does_not_stop_the_clock_of_open_groups() {
    for shape in SHAPES.into_iter().filter(|shape| shape.sharing > 0) {
        let mut scenario = steady(Shape { sharing: 1, ..shape });
        scenario.helped = false;
        scenario.acts = vec![
            (10, Act::Send(vec![sent("in", RecordKind::StageFails, "a", "a")])),
            (5_000, Act::Send(all_good("in", &["b"]))),
            (5_500, Act::Replay(1)),
            (12_000, Act::AllEnded),
        ];
        let what = format!("{shape:?}");
        all_delivered(&run_well(scenario, &what), &["b"], &what);
    }
}
