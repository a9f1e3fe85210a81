//! The simulator on a fixed set of seeds, and on any seed one asks for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use potok_testkit::sim::{HELD_SEEDS, Tally, run_seed};

/// Seeds that every test run goes through.
const SEEDS: u64 = 1_000;

/// `cargo xtask sim SEED` comes here with the seed in the environment and shows the whole run;
/// `FROM..TO` runs many and shows those that fail.
#[test]
fn replay() {
    let number = |text: &str| text.parse().expect("a seed is a number");
    match std::env::var("POTOK_SIM_SEED").ok().as_deref() {
        None => replay_one(1, false),
        Some(asked) => match asked.split_once("..") {
            None => replay_one(number(asked), true),
            Some((from, to)) => replay_many(number(from)..number(to)),
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

fn replay_many(seeds: std::ops::Range<u64>) {
    let mut tally = Tally::default();
    let mut failed = 0;
    for seed in seeds.clone() {
        let outcome = run_seed(seed).unwrap();
        tally.add(&outcome.tally);
        if let Err(why) = outcome.verdict() {
            failed += 1;
            println!("{why}");
        }
    }
    println!("{tally}");
    assert_eq!(failed, 0, "{failed} of the seeds {seeds:?} failed");
}

/// The same scenarios, with their records held in groups.
#[test]
fn fixed_seeds_with_groups_keep_every_promise() {
    let failures: Vec<String> = (HELD_SEEDS..HELD_SEEDS + SEEDS)
        .filter_map(|seed| run_seed(seed).unwrap().verdict().err())
        .collect();
    assert!(failures.is_empty(), "{} seeds failed\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn fixed_seeds_keep_every_promise_and_meet_every_trouble() {
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    for seed in 0..SEEDS {
        let outcome = run_seed(seed).unwrap();
        tally.add(&outcome.tally);
        failures.extend(outcome.verdict().err());
    }
    println!("{tally}");
    assert!(failures.is_empty(), "{} seeds failed\n{}", failures.len(), failures.join("\n"));
    let missing = tally.missing();
    assert!(missing.is_empty(), "never met: {missing:?}");
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    for seed in 0..25 {
        let (one, two) = (run_seed(seed).unwrap(), run_seed(seed).unwrap());
        let differ = one.trace.iter().zip(&two.trace).find(|(a, b)| a != b);
        assert_eq!(differ, None, "seed {seed} took two ways");
        assert_eq!(one.trace_hash, two.trace_hash, "seed {seed} took two ways");
    }
}
