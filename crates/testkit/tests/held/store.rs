//! 1: the store of held records loses everything, comes back empty, or goes back to what a replica
//! had; and then nobody sends anything more. And it is full: what makes room is the lanes' own work.

use potok_testkit::sim::{Act, Scenario};

#[cfg(debug_assertions)]
use super::{Bug, Promise, breaks};
use super::{SHAPES, Shape, all_delivered, all_good, away_until, happened, run_well, steady};

/// How the store comes to lack what it had.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// Everything, owners included.
    Flushed,
    /// The bodies alone.
    Evicted,
    /// A replica takes over that knew nobody yet.
    StaleBefore,
    /// One that knew the owner and the first record.
    StaleHalf,
    /// One that knew an earlier owner.
    StaleOwner,
}

const LOSSES: [Loss; 5] =
    [Loss::Flushed, Loss::Evicted, Loss::StaleBefore, Loss::StaleHalf, Loss::StaleOwner];

/// In mid-window; when the batch is sealed and waits for its destination.
const WHEN: [u64; 2] = [700, 2_500];

/// By then everything must have gone out.
const OUT: u64 = 9_000;

fn stored() -> impl Iterator<Item = Shape> {
    let one_lane = Shape { workers: 1, sharing: 0, stored: true };
    SHAPES.into_iter().filter(|shape| shape.stored).chain([one_lane])
}

/// Seeds that have no body in memory besides, some, and all.
const SEEDS: [u64; 3] = [72, 75, 78];

fn lossy(shape: Shape, loss: Loss, at: u64, seed: u64) -> Scenario {
    let mut scenario = steady(shape);
    scenario.seed = seed;
    away_until(&mut scenario, 4_000);
    let replicated_at = match loss {
        Loss::Flushed | Loss::Evicted => None,
        Loss::StaleBefore => Some(0),
        Loss::StaleHalf => Some(200),
        Loss::StaleOwner => Some(90),
    };
    let happens = match loss {
        Loss::Flushed => Act::Flush,
        Loss::Evicted => Act::Evict,
        Loss::StaleBefore | Loss::StaleHalf | Loss::StaleOwner => Act::Promote,
    };
    let mut acts = vec![
        (50, Act::Send(all_good("in", &["a1"]))),
        (400, Act::Send(all_good("in", &["a2", "a3"]))),
        (410, Act::Send(all_good("in-two", &["b1"]))),
        (at, happens),
        (OUT, Act::AllEnded),
    ];
    acts.extend(replicated_at.map(|at| (at, Act::Replicate)));
    if matches!(loss, Loss::StaleOwner) {
        acts.push((100, Act::Crash));
    }
    acts.sort_by_key(|(at, _)| *at);
    scenario.acts = acts;
    scenario
}

#[test]
fn what_a_store_has_lost_goes_out_all_the_same() {
    for shape in stored() {
        for loss in LOSSES {
            for (at, seed) in WHEN.into_iter().flat_map(|at| SEEDS.map(|seed| (at, seed))) {
                let what = format!("{shape:?}, {loss:?} at {at}, seed {seed}");
                let outcome = run_well(lossy(shape, loss, at, seed), &what);
                all_delivered(&outcome, &["a1", "a2", "a3", "b1"], &what);
            }
        }
    }
}

/// Who takes what the store still has for all there was loses the rest.
#[cfg(debug_assertions)]
#[test]
fn a_loss_that_is_ignored_is_found() {
    for shape in stored() {
        for loss in LOSSES.into_iter().filter(|loss| !matches!(loss, Loss::StaleOwner)) {
            let scenario = lossy(shape, loss, 700, SEEDS[0]);
            let found = breaks(Bug::StoreLossIgnored, Promise::NothingLost, scenario);
            assert!(found, "{shape:?}, {loss:?}");
        }
    }
}

/// How much fits into a store, and what happens to the process meanwhile.
const ROOMS: [usize; 3] = [0, 1, 3];
const DIES: [Option<u64>; 3] = [None, Some(700), Some(2_500)];

/// The store takes a few bodies and no more until all has ended. Groups close by their window; the process dies
/// before that, or when what it sealed waits for its destination, and starts while the store is full
/// of what it left there.
fn scarce(shape: Shape, room: usize, dies: Option<u64>, seed: u64) -> Scenario {
    let mut scenario = steady(shape);
    scenario.seed = seed;
    away_until(&mut scenario, 4_000);
    scenario.acts = vec![
        (0, Act::Room(Some(room))),
        (50, Act::Send(all_good("in", &["a1"]))),
        (400, Act::Send(all_good("in", &["a2", "a3"]))),
        (410, Act::Send(all_good("in-two", &["b1"]))),
        (5_000, Act::Send(all_good("in-two", &["b2", "b3", "b4", "b5"]))),
        (12_000, Act::AllEnded),
        (12_001, Act::Room(None)),
    ];
    scenario.acts.extend(dies.map(|at| (at, Act::Crash)));
    scenario.acts.sort_by_key(|(at, _)| *at);
    scenario
}

fn all_scarce() -> impl Iterator<Item = (Scenario, String)> {
    stored().flat_map(|shape| {
        ROOMS.into_iter().flat_map(move |room| {
            DIES.into_iter().flat_map(move |dies| {
                SEEDS.map(|seed| {
                    let what = format!("{shape:?}, room {room}, dies at {dies:?}, seed {seed}");
                    (scarce(shape, room, dies, seed), what)
                })
            })
        })
    })
}

#[test]
fn a_store_that_is_full_holds_nothing_up() {
    for (scenario, what) in all_scarce() {
        let outcome = run_well(scenario, &what);
        all_delivered(&outcome, &["a1", "a2", "a3", "b1", "b2", "b3", "b4", "b5"], &what);
        assert!(happened(&outcome, "the store is full"), "{what}");
        assert_eq!(outcome.world.store().len(), 0, "{what}: it is empty in the end");
    }
}

/// Who waits for room where only his own work makes room waits for ever.
#[cfg(debug_assertions)]
#[test]
fn a_lane_that_waits_for_room_is_found() {
    for (scenario, what) in all_scarce() {
        assert!(breaks(Bug::WaitsForRoom, Promise::WorkFinishes, scenario), "{what}");
    }
}
