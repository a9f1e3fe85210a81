//! SIGKILL at random moments under load.

use std::time::Duration;

use potok_traffic::Random;
use rusqlite::Connection;

use crate::check::{Tables, assert_kept};
use crate::load::{Sender, joined, send_all, under_load};
use crate::process::{Home, SMALL_SEGMENTS};
use crate::{short_or_soak, wait};

#[test]
fn survives_kills_at_random_moments() {
    let seed = 2_026;
    let mut random = Random::new(seed);
    let home = Home::new();
    let mut senders = vec![Sender::new(seed), Sender::new(seed + 1)];
    for _ in 0..short_or_soak(50, 500) {
        let running = home.start_with(&[SMALL_SEGMENTS]).expect("starts");
        under_load(&running, &mut senders, || {
            wait::random_moment(&mut random, Duration::from_millis(700));
            running.signal("KILL");
        });
        running.ended("potok is killed");
    }
    let running = home.start_with(&[SMALL_SEGMENTS]).expect("starts");
    let ledger = joined(senders);
    assert!(ledger.has_every_kind(), "the load was too light: {}", ledger.acknowledged());
    assert_kept(&home, &running, &ledger);
}

/// Killed again and again before it can finish anything, it must still get on.
#[test]
fn work_finishes_although_every_life_is_short() {
    let mut random = Random::new(7);
    let home = Home::new();
    let mut senders = vec![Sender::new(70)];
    let running = home.start();
    // Records wait in the log while the pipeline is paused.
    running.run(["pause", "orders"], b"").good();
    send_all(&running, &mut senders, 2_000);
    running.kill();
    for _ in 0..short_or_soak(10, 50) {
        let running = home.start();
        wait::random_moment(&mut random, Duration::from_millis(200));
        running.kill();
    }
    let running = home.start();
    assert_kept(&home, &running, &joined(senders));
}

/// The naive versions forget what was on its way when the process died. If the checker did not see
/// that, the tests above would mean nothing.
#[test]
fn versions_that_commit_too_early_are_caught() {
    for bug in ["NaiveCommit", "MarkBeforeDeliver"] {
        let home = Home::new();
        let running = home.start_with(&[("POTOK_PLANT", bug)]).expect("starts");
        let mut sender = Sender::good_only(80);
        assert!(sender.send(&running, 10));
        running.drained();
        let other = Connection::open(home.database()).unwrap();
        other.busy_timeout(wait::PATIENCE).unwrap();
        other.execute_batch("BEGIN EXCLUSIVE").unwrap();
        assert!(sender.send(&running, 50));
        wait::until(&format!("{bug} counts as ended what was never delivered"), || {
            // Not all of them: what a lane has not begun with is not marked early either.
            running.status()["lag"].as_u64().is_some_and(|lag| lag < 50).then_some(())
        });
        running.kill();
        other.execute_batch("ROLLBACK").unwrap();

        let running = home.start();
        running.drained();
        let problems = sender.ledger.problems(&Tables::read(&home.database()), &[]);
        assert!(!problems.is_empty(), "the loss by {bug} is seen");
    }
}
