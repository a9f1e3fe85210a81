//! The power goes at random moments: whatever was not synced is gone from the whole data folder.

use std::time::Duration;

use potok_traffic::Random;

use crate::check::{Letter, Tables, assert_kept};
use crate::disk::Disk;
use crate::load::{Sender, joined, under_load};
use crate::process::Home;
use crate::{short_or_soak, wait};

#[test]
fn survives_power_cuts_at_random_moments() {
    let mut random = Random::new(11);
    let home = Home::new();
    let disk = Disk::under(&home);
    let mut senders = vec![Sender::new(110), Sender::new(111)];
    for _ in 0..short_or_soak(10, 200) {
        let running = disk.start(&home, &[]).expect("starts");
        under_load(&running, &mut senders, || {
            wait::random_moment(&mut random, Duration::from_millis(1_500));
            disk.power_off();
            running.signal("KILL");
        });
        running.ended("potok is killed");
        disk.power_on(&home);
    }
    let running = disk.start(&home, &[]).expect("starts");
    let ledger = joined(senders);
    assert!(ledger.has_every_kind(), "the load was too light: {}", ledger.acknowledged());
    assert_kept(&home, &running, &ledger);
}

/// The naive version acknowledges what is not on the disk yet. If the checker did not see that,
/// the test above would mean nothing.
#[test]
fn a_log_that_acknowledges_too_early_is_caught() {
    let home = Home::new();
    let disk = Disk::under(&home);
    let mut sender = Sender::new(112);
    let running = disk.start(&home, &[("POTOK_PLANT", "AckBeforeFsync")]).expect("starts");
    assert!(sender.send(&running, 50));
    running.drained();
    disk.power_off();
    assert!(sender.send(&running, 50), "the naive version acknowledges without a sync");
    running.kill();
    disk.power_on(&home);

    let running = disk.start(&home, &[]).expect("starts");
    running.drained();
    let letters = running.run(["dead-letters", "list", "orders", "--json"], b"").good();
    let problems = sender.ledger.problems(&Tables::read(&home.database()), &Letter::all(&letters));
    let lost = problems.iter().filter(|problem| problem.contains("not in the tables")).count();
    assert!(lost > 20, "the loss is seen: {problems:?}");
}
