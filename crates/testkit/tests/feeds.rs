//! Pipelines on simulated feeds keep what is promised, and every naive version is found.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use potok_core::trouble::{Bug, with_bug};
use potok_testkit::sim::{FeedOutcome, run_feed_seed};

fn seeds() -> u64 {
    if std::env::var_os("POTOK_SOAK").is_some() { 20_000 } else { 1_000 }
}

fn verdict(outcome: &FeedOutcome) -> Option<String> {
    let FeedOutcome { seed, violations, .. } = outcome;
    let shown: Vec<&str> = violations.iter().take(5).map(String::as_str).collect();
    (!violations.is_empty()).then(|| format!("feed seed {seed}: {}", shown.join("\n  ")))
}

/// `POTOK_FEED_SEED=7 cargo test --test feeds replay -- --nocapture` shows one run.
#[test]
fn replay() {
    let asked = std::env::var("POTOK_FEED_SEED").ok();
    let seed = asked.as_ref().map_or(1, |text| text.parse().expect("a seed is a number"));
    let outcome = run_feed_seed(seed).unwrap();
    if asked.is_some() {
        outcome.trace.iter().for_each(|line| println!("{line}"));
    }
    assert_eq!(verdict(&outcome), None);
}

#[test]
fn fixed_seeds_keep_every_promise() {
    let mut put_off = 0;
    let mut failures = Vec::new();
    for seed in 0..seeds() {
        let outcome = run_feed_seed(seed).unwrap();
        put_off += outcome.put_off;
        failures.extend(verdict(&outcome));
    }
    assert!(failures.is_empty(), "{} seeds failed\n{}", failures.len(), failures.join("\n"));
    assert!(put_off > 0, "nothing was ever put off");
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    for seed in 0..20 {
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
