//! Each planted bug is found by the check that guards against it. The tests beside show that the
//! same checks pass without it.

use std::future::Future;

use potok_core::trouble::{Bug, with_bug};

use super::support::run;
use super::{damage, power};

fn assert_found(bug: Bug, check: impl Future<Output = Result<(), String>>) {
    // The log reads the switch when it is opened, on this thread.
    let wrong = with_bug(bug, || run(check)).expect_err("the bug was not found");
    println!("{bug:?}: {wrong}");
}

#[test]
fn acknowledging_before_the_fsync_is_found() {
    assert_found(Bug::AckBeforeFsync, power::check_acknowledged_is_synced());
}

#[test]
fn reading_ahead_of_the_fsync_is_found() {
    assert_found(Bug::ReaderAheadOfFsync, power::check_readers_stop_at_the_synced_end());
}

#[test]
fn erasing_a_torn_tail_is_found() {
    assert_found(Bug::TailErased, damage::check_torn_tail());
}

#[test]
fn reusing_offsets_is_found() {
    assert_found(Bug::OffsetsReused, damage::check_offsets_after_damage());
}

#[test]
fn stopping_at_damage_is_found() {
    assert_found(Bug::StopAtDamage, async {
        let model = damage::build().await;
        damage::check_flips(&model, 41).await
    });
}
