//! Records of a group leave as they came, from whatever partitions, read in whatever order; and at
//! their time.

use potok_testkit::sim::{Act, Deliver, Manner, RecordKind, Scenario, SimTarget, Style};

#[cfg(debug_assertions)]
use super::{Bug, Promise, breaks};
use super::{SHAPES, Shape, all_delivered, all_good, id_of, run_well, sealed_ids, steady};

const IDS: [&str; 8] = ["a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8"];

/// One group from two topics, record by record in turn. The process dies in mid-window, or when the
/// batch is sealed and its destination away, and reads the topics again in some order.
fn in_turn(shape: Shape, dies: u64, seed: u64) -> Scenario {
    let mut scenario = steady(shape);
    scenario.seed = seed;
    super::away_until(&mut scenario, 3_000);
    let topics = ["in", "in-two"].into_iter().cycle();
    let send = |((id, topic), at)| (at, Act::Send(all_good(topic, &[id])));
    scenario.acts = IDS.into_iter().zip(topics).zip((10..).step_by(100)).map(send).collect();
    scenario.acts.push((dies, Act::Crash));
    scenario.acts.sort_by_key(|(at, _)| *at);
    scenario.acts.push((12_000, Act::AllEnded));
    scenario
}

fn all() -> impl Iterator<Item = (Scenario, String)> {
    SHAPES.into_iter().flat_map(|shape| {
        [450, 2_000].into_iter().flat_map(move |dies| {
            (60..64).map(move |seed| {
                let what = format!("{shape:?}, dies at {dies}, seed {seed}");
                (in_turn(shape, dies, seed), what)
            })
        })
    })
}

#[test]
fn records_of_a_group_leave_as_they_came() {
    for (scenario, what) in all() {
        let outcome = run_well(scenario, &what);
        let rows = outcome.world.with(|w| w.tables[0].rows.clone());
        let ids: Vec<String> = rows.iter().map(|row| id_of(&row.source)).collect();
        let of_group: Vec<&String> = ids.iter().filter(|id| IDS.contains(&id.as_str())).collect();
        assert_eq!(of_group, IDS, "{what}");
    }
}

#[cfg(debug_assertions)]
#[test]
fn a_group_that_leaves_by_partition_is_found() {
    // On a shared log copies lie in one partition.
    for shape in SHAPES.into_iter().filter(|shape| shape.sharing == 0) {
        let mut scenario = in_turn(shape, 450, 60);
        // What goes to other destinations is called record by record.
        scenario.delivers =
            vec![Deliver { to: SimTarget::Topic("out".into()), key_by_k: true, once: false }];
        assert!(breaks(Bug::ByPartition, Promise::OrderOfArrival, scenario), "{shape:?}");
    }
}

/// Where the log is shared, somebody who pauses the pipeline keeps new records out: what was gathered
/// before goes out at its time, and what comes meanwhile when the pipeline goes on.
#[test]
fn what_was_gathered_before_a_pause_goes_out_in_it() {
    for shape in SHAPES.into_iter().filter(|shape| shape.sharing > 0) {
        let mut scenario = steady(shape);
        scenario.acts = vec![
            (10, Act::Send(all_good("in", &["a1", "a2"]))),
            (500, Act::Pause),
            (6_000, Act::AllEnded),
            (6_100, Act::Send(all_good("in", &["b1"]))),
            (12_000, Act::Resume),
            (20_000, Act::AllEnded),
        ];
        let what = format!("{shape:?}");
        let outcome = run_well(scenario, &what);
        all_delivered(&outcome, &["a1", "a2", "b1"], &what);
        let at = |act: &str| outcome.trace.iter().position(|line| line.contains(act)).unwrap();
        let (paused, resumed) = (at("act Pause"), at("act Resume"));
        let calls = |lines: &[String]| lines.iter().filter(|l| l.contains("destination 0")).count();
        assert!(calls(&outcome.trace[paused..resumed]) > 0, "{what}: nothing went out meanwhile");
        assert!(calls(&outcome.trace[resumed..]) > 0, "{what}: nothing waited");
    }
}

/// A destination that answers for each message gets as many of a group in one call as have keys of
/// their own, in order; not one for each call, though they are one group's.
#[test]
fn a_call_for_single_messages_takes_one_of_each_key() {
    for shape in SHAPES {
        let mut scenario = steady(shape);
        scenario.hold.iter_mut().for_each(|hold| hold.by = None);
        let manner = Manner { style: Style::PerMessage, ..Manner::default() };
        scenario.delivers =
            vec![Deliver { to: SimTarget::Sink(manner), key_by_k: false, once: false }];
        let keys = ["k0", "k1", "k2", "k0", "k3"];
        let send = |(id, key): (&str, &str)| super::sent("in", RecordKind::Good, id, key);
        scenario.acts = vec![
            (10, Act::Send(IDS.into_iter().zip(keys).map(send).collect())),
            (12_000, Act::AllEnded),
        ];
        let outcome = run_well(scenario, &format!("{shape:?}"));
        let calls = outcome.trace.iter().filter(|line| line.contains("destination 0 ["));
        let sizes: Vec<usize> = calls
            .filter_map(|line| line.split_once('[')?.1.split_once(']'))
            .map(|(names, _)| names.split(' ').count())
            .collect();
        assert_eq!(sizes.iter().take(2).copied().collect::<Vec<_>>(), [3, 2], "{shape:?}");
        let rows = outcome.world.with(|w| w.tables[0].rows.clone());
        let ids: Vec<String> = rows.iter().map(|row| id_of(&row.source)).take(5).collect();
        assert_eq!(ids, IDS[..5], "{shape:?}");
    }
}

/// Something comes every 300 ms, and half a second of silence would close it.
#[test]
fn a_group_that_never_goes_quiet_leaves_at_its_maximum_age() {
    for shape in SHAPES {
        let mut scenario = steady(shape);
        scenario.hold.iter_mut().for_each(|hold| {
            (hold.quiet, hold.after_first) = (Some(500), 2_000);
        });
        let ids: Vec<String> = (0..30).map(|number| format!("a{number}")).collect();
        let send = |(at, id): (u64, &String)| (at, Act::Send(all_good("in", &[id])));
        scenario.acts = (10..).step_by(300).zip(&ids).map(send).collect();
        scenario.acts.push((13_000, Act::AllEnded));
        let outcome = run_well(scenario, &format!("{shape:?}"));
        let batches = sealed_ids(&outcome);
        let batches = batches.iter().filter(|batch| batch.iter().any(|id| ids.contains(id)));
        let batches: Vec<usize> = batches.map(|batch| batch.len()).collect();
        // Nine seconds: one batch for every two of them, each of what came in that time.
        assert!((4..=6).contains(&batches.len()), "{shape:?}: {batches:?}");
        assert!(batches.iter().all(|records| *records <= 7), "{shape:?}: {batches:?}");
    }
}

#[cfg(debug_assertions)]
#[test]
fn a_group_that_closes_late_is_found() {
    for shape in SHAPES {
        let mut scenario = steady(shape);
        scenario.acts = vec![(10, Act::Send(all_good("in", &["a1"])))];
        assert!(breaks(Bug::ClosesLate, Promise::WindowsEnd, scenario), "{shape:?}");
    }
}
