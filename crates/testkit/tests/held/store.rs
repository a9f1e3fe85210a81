//! 1: the store of held records loses everything, comes back empty, or goes back to what a replica
//! had; and then nobody sends anything more.

use potok_testkit::sim::{Act, Scenario};

#[cfg(debug_assertions)]
use super::{Bug, Promise, breaks};
use super::{SHAPES, Shape, all_delivered, all_good, away_until, run_well, steady};

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
