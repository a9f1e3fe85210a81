//! The simulator on a fixed set of seeds, on those that once failed, and on any seed one asks for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ops::Range;

use potok_testkit::sim::{
    HELD_SEEDS, TWO_GROUPS_SEEDS, Tally, Trouble, listed_seeds, run_seed, seed_ranges,
};

/// Seeds that every test run goes through, without groups and again with them; in a soak many more.
fn seeds() -> u64 {
    if std::env::var_os("POTOK_SOAK").is_some() { 10_000 } else { 1_000 }
}

/// Seeds that once broke a promise, each with what it was.
const FAILED: &str = include_str!("failed_seeds.txt");

/// `cargo xtask sim SEED` comes here with the seed in the environment and shows the whole run;
/// `FROM..TO`, or several of them with commas between, runs many and shows those that fail.
#[test]
fn replay() {
    match std::env::var("POTOK_SIM_SEED").ok().as_deref() {
        None => replay_one(1, false),
        Some(asked) => match seed_ranges(asked).expect("seeds are numbers")[..] {
            [Range { start, end }] if start + 1 == end => replay_one(start, true),
            ref ranges => replay_many(ranges),
        },
    }
}

fn replay_one(seed: u64, shown: bool) {
    let outcome = run_seed(seed).unwrap();
    if shown {
        outcome.trace.iter().for_each(|line| println!("{line}"));
        println!("{}", outcome.tally);
    }
    if let Err(why) = outcome.verdict() {
        panic!("{why}");
    }
}

fn replay_many(ranges: &[Range<u64>]) {
    let mut tally = Tally::default();
    let mut failed = 0;
    for seed in ranges.iter().cloned().flatten() {
        let outcome = run_seed(seed).unwrap();
        tally.add(&outcome.tally);
        if let Err(why) = outcome.verdict() {
            failed += 1;
            println!("{why}");
        }
    }
    println!("{tally}");
    assert_eq!(failed, 0, "{failed} of the seeds {ranges:?} failed");
}

#[test]
fn seeds_that_once_failed_keep_every_promise() {
    let seeds = listed_seeds(FAILED).expect("the list has seeds").into_iter();
    let failures: Vec<String> =
        seeds.filter_map(|seed| run_seed(seed).unwrap().verdict().err()).collect();
    assert!(failures.is_empty(), "{} seeds fail again\n{}", failures.len(), failures.join("\n"));
}

/// The same scenarios, with topics that are read in two consumer groups, every other with groups of
/// records.
#[test]
fn fixed_seeds_with_two_consumer_groups_keep_every_promise() {
    let failures: Vec<String> = (TWO_GROUPS_SEEDS..TWO_GROUPS_SEEDS + seeds())
        .filter_map(|seed| run_seed(seed).unwrap().verdict().err())
        .collect();
    assert!(failures.is_empty(), "{} seeds failed\n{}", failures.len(), failures.join("\n"));
}

/// The same scenarios, with their records held in groups.
#[test]
fn fixed_seeds_with_groups_keep_every_promise() {
    let failures: Vec<String> = (HELD_SEEDS..HELD_SEEDS + seeds())
        .filter_map(|seed| run_seed(seed).unwrap().verdict().err())
        .collect();
    assert!(failures.is_empty(), "{} seeds failed\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn fixed_seeds_keep_every_promise_and_meet_every_trouble() {
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    // Stores have their trouble where records are held.
    for seed in (0..seeds()).chain(HELD_SEEDS..HELD_SEEDS + 100) {
        let outcome = run_seed(seed).unwrap();
        tally.add(&outcome.tally);
        failures.extend(outcome.verdict().err());
    }
    println!("{tally}");
    assert!(failures.is_empty(), "{} seeds failed\n{}", failures.len(), failures.join("\n"));
    let missing = tally.missing(&Trouble::ALL);
    assert!(missing.is_empty(), "never met: {missing:?}");
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    let seeds = [0, HELD_SEEDS, TWO_GROUPS_SEEDS].map(|first| first..first + 25);
    for seed in seeds.into_iter().flatten() {
        let (one, two) = (run_seed(seed).unwrap(), run_seed(seed).unwrap());
        let differ = one.trace.iter().zip(&two.trace).find(|(a, b)| a != b);
        assert_eq!(differ, None, "seed {seed} took two ways");
        assert_eq!(one.trace_hash, two.trace_hash, "seed {seed} took two ways");
    }
}
