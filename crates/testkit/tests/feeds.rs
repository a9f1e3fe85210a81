//! Pipelines on simulated feeds keep what is promised, and every naive version is found.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ops::Range;

use potok_core::trouble::{Bug, with_bug};
use potok_testkit::sim::{
    FEED_TROUBLE_SEEDS, FeedOutcome, Tally, Trouble, listed_seeds, run_feed_seed, seed_ranges,
};

fn seeds() -> u64 {
    if std::env::var_os("POTOK_SOAK").is_some() { 20_000 } else { 1_000 }
}

/// Seeds that once broke a promise, each with what it was.
const FAILED: &str = include_str!("failed_feed_seeds.txt");

fn verdict(outcome: &FeedOutcome) -> Option<String> {
    let FeedOutcome { seed, violations, .. } = outcome;
    let shown: Vec<&str> = violations.iter().take(5).map(String::as_str).collect();
    let shown = shown.join("\n  ");
    (!violations.is_empty()).then(|| {
        format!("feed seed {seed}: {shown}\nreplay it with: cargo xtask sim --feeds {seed}")
    })
}

/// `cargo xtask sim --feeds SEED` comes here with the seed in the environment and shows the whole run;
/// `FROM..TO`, or several of them with commas between, runs many and shows those that fail.
#[test]
fn replay() {
    match std::env::var("POTOK_FEED_SEED").ok().as_deref() {
        None => drop(run_all(1..2)),
        Some(asked) => match &seed_ranges(asked).expect("seeds are numbers")[..] {
            [Range { start, end }] if start + 1 == *end => {
                let outcome = run_feed_seed(*start).unwrap();
                outcome.trace.iter().for_each(|line| println!("{line}"));
                println!("{}", outcome.tally);
                assert_eq!(verdict(&outcome), None);
            }
            ranges => println!("{}", run_all(ranges.iter().cloned().flatten()).tally),
        },
    }
}

/// What many runs came to.
#[derive(Default)]
struct FeedRuns {
    tally: Tally,
    put_off: u64,
}

fn run_all(seeds: impl IntoIterator<Item = u64>) -> FeedRuns {
    let mut runs = FeedRuns::default();
    let mut failures = Vec::new();
    for seed in seeds {
        let outcome = run_feed_seed(seed).unwrap();
        runs.tally.add(&outcome.tally);
        runs.put_off += outcome.put_off;
        failures.extend(verdict(&outcome));
    }
    assert!(failures.is_empty(), "{} seeds failed\n{}", failures.len(), failures.join("\n"));
    runs
}

#[test]
fn fixed_seeds_keep_every_promise() {
    assert!(run_all(0..seeds()).put_off > 0, "nothing was ever put off");
}

/// The same scenarios, with a log and destinations that make trouble.
#[test]
fn fixed_seeds_with_trouble_around_the_feed_keep_every_promise() {
    let runs = run_all(FEED_TROUBLE_SEEDS..FEED_TROUBLE_SEEDS + seeds());
    println!("{}", runs.tally);
    let never = runs.tally.never(&Trouble::OF_FEEDS);
    assert!(never.is_empty(), "never met: {never:?}");
}

#[test]
fn seeds_that_once_failed_keep_every_promise() {
    run_all(listed_seeds(FAILED).expect("the list has seeds"));
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    for seed in (0..20).chain(FEED_TROUBLE_SEEDS..FEED_TROUBLE_SEEDS + 20) {
        let (one, two) = (run_feed_seed(seed).unwrap(), run_feed_seed(seed).unwrap());
        let differ = one.trace.iter().zip(&two.trace).find(|(a, b)| a != b);
        assert_eq!(differ, None, "seed {seed} took two ways");
        assert_eq!(one.trace_hash, two.trace_hash, "seed {seed} took two ways");
    }
}

#[test]
fn every_naive_version_is_found() {
    let found = |bug: Bug| {
        let broken = |seed: &u64| {
            let outcome = with_bug(bug, || run_feed_seed(*seed));
            outcome.is_ok_and(|outcome| verdict(&outcome).is_some())
        };
        (0..200).find(broken)
    };
    let bugs = [
        Bug::FeedNotedFirst,
        Bug::GivenBackForgotten,
        Bug::OriginsIgnored,
        Bug::FinishedTooEarly,
        Bug::PutOffAlone,
    ];
    let missed: Vec<Bug> = bugs.into_iter().filter(|bug| found(*bug).is_none()).collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
