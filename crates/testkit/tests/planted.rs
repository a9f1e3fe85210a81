//! The simulator finds every naive version of the engine that the promise forbids.
//!
//! Each planted bug must be found within a bound of seeds, by a promise it really breaks. This
//! measures the simulator: a bug that slips through is trouble that no seed makes.
#![cfg(debug_assertions)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use potok_core::trouble::{Bug, with_bug};
use potok_testkit::sim::{HELD_SEEDS, Promise, TWO_GROUPS_SEEDS, run_seed};

/// Seeds within which a planted bug must be found.
const SEEDS_MAX: u64 = 200;

/// Plants the bug and looks for a seed that breaks one of these promises.
fn is_found(bug: Bug, by: &[Promise]) {
    is_found_from(0, bug, by);
}

/// The same where records are held in groups.
fn is_found_in_groups(bug: Bug, by: &[Promise]) {
    is_found_from(HELD_SEEDS, bug, by);
}

fn is_found_from(first: u64, bug: Bug, by: &[Promise]) {
    let mut others = std::collections::BTreeSet::new();
    for seed in first..first + SEEDS_MAX {
        let outcome = with_bug(bug, || run_seed(seed)).unwrap();
        if let Some(promise) = by.iter().find(|promise| outcome.broke(**promise)) {
            let without = run_seed(seed).unwrap();
            assert!(!without.broke(*promise), "seed {seed} breaks `{promise}` without the bug too");
            println!("{bug:?}: seed {seed} breaks `{promise}`");
            return;
        }
        others.extend(outcome.violations.iter().map(|violation| violation.promise));
    }
    panic!("{SEEDS_MAX} seeds do not find {bug:?}; it only broke {others:?}");
}

#[test]
fn naive_commit() {
    is_found(Bug::NaiveCommit, &[Promise::NothingLost]);
    is_found(Bug::NaiveCommit, &[Promise::NotedOnlyWhenEnded]);
}

#[test]
fn mark_before_deliver() {
    is_found(Bug::MarkBeforeDeliver, &[Promise::NothingLost]);
    is_found(Bug::MarkBeforeDeliver, &[Promise::NotedOnlyWhenEnded]);
}

#[test]
fn split_order_lost() {
    is_found(Bug::SplitOrderLost, &[Promise::OrderPerKey]);
}

#[test]
fn out_of_turn() {
    is_found(Bug::OutOfTurn, &[Promise::OrderPerKey]);
}

#[test]
fn groups_leave_by_partition() {
    is_found_in_groups(Bug::ByPartition, &[Promise::OrderOfArrival]);
}

#[test]
fn groups_leave_as_they_were_read() {
    is_found_in_groups(Bug::LastReadWins, &[Promise::OrderOfArrival]);
}

#[test]
fn lane_order_lost() {
    is_found(Bug::LaneOrderLost, &[Promise::OrderPerKey]);
}

#[test]
fn outage_is_poison() {
    is_found(Bug::OutageIsPoison, &[Promise::OutageIsNoPoison]);
}

#[test]
fn no_witness_needed() {
    is_found(Bug::NoWitnessNeeded, &[Promise::HealthyStayAlive]);
}

#[test]
fn lone_culprit() {
    is_found(Bug::LoneCulprit, &[Promise::HealthyStayAlive]);
    is_found_in_groups(Bug::LoneCulprit, &[Promise::HealthyStayAlive]);
}

#[test]
fn dead_letter_not_awaited() {
    is_found(Bug::DeadLetterNotAwaited, &[Promise::NothingLost]);
    is_found(Bug::DeadLetterNotAwaited, &[Promise::NotedOnlyWhenEnded]);
}

#[test]
fn receipt_ignored() {
    is_found(Bug::ReceiptIgnored, &[Promise::NothingLost]);
}

#[test]
fn resume_at_highest() {
    is_found(Bug::ResumeAtHighest, &[Promise::NothingLost]);
}

#[test]
fn names_from_counter() {
    is_found(Bug::NamesFromCounter, &[Promise::OneName]);
}

#[test]
fn stale_completion() {
    is_found(Bug::StaleCompletion, &[Promise::OnceInTopics]);
}

#[test]
fn held_is_ended() {
    is_found_in_groups(Bug::HeldIsEnded, &[Promise::NothingLost]);
    is_found_in_groups(Bug::HeldIsEnded, &[Promise::NotedOnlyWhenEnded]);
}

#[test]
fn store_loss_ignored() {
    is_found_in_groups(Bug::StoreLossIgnored, &[Promise::NothingLost]);
}

#[test]
fn seal_ends_first() {
    is_found_in_groups(Bug::SealEndsFirst, &[Promise::NotedOnlyWhenEnded]);
}

#[test]
fn records_gathered_before_their_positions_are_noted() {
    is_found_in_groups(Bug::GatheredApart, &[Promise::GatheredOnce]);
}

#[test]
fn a_copy_that_the_log_refuses_is_left_out() {
    is_found_in_groups(Bug::RefusedCopyLeftOut, &[Promise::NothingLost]);
}

#[test]
fn superseded_ends_at_once() {
    is_found_in_groups(Bug::SupersededEndsAtOnce, &[Promise::NotedOnlyWhenEnded]);
}

#[test]
fn superseded_that_ends_at_once_is_lost() {
    is_found_in_groups(Bug::SupersededEndsAtOnce, &[Promise::NothingLost]);
}

#[test]
fn seals_forgotten() {
    is_found_in_groups(Bug::SealsForgotten, &[Promise::SentAsSealed]);
}

#[test]
fn late_records_join_what_is_sealed() {
    is_found_in_groups(Bug::LateJoinsSealed, &[Promise::SentAsSealed]);
}

#[test]
fn a_log_takes_commits_from_old_owners() {
    is_found_in_groups(Bug::StaleCommit, &[Promise::OwnersCommit]);
    is_found_in_groups(Bug::StaleCommit, &[Promise::GatheredOnce]);
}

#[test]
fn a_store_takes_writes_from_old_owners() {
    is_found_in_groups(Bug::StoreUnfenced, &[Promise::OwnersWrite]);
}

#[test]
fn cleaning_removes_whole_groups() {
    is_found_in_groups(Bug::CleansWholeGroups, &[Promise::CleanedWhenEnded]);
}

#[test]
fn members_by_number() {
    is_found_in_groups(Bug::MembersByNumber, &[Promise::SentAsSealed]);
}

#[test]
fn groups_by_the_key_of_now() {
    is_found_in_groups(Bug::GroupsByKeyNow, &[Promise::NotedOnlyWhenEnded]);
}

#[test]
fn windows_by_the_clock_of_the_process() {
    is_found_in_groups(Bug::WindowsByOwnClock, &[Promise::WindowsLast]);
}

#[test]
fn groups_that_wait_for_something_to_come() {
    is_found_in_groups(Bug::ClosedByComing, &[Promise::WorkFinishes]);
}

/// Trouble or not: a group may be late only by what stood in its way.
#[test]
fn groups_that_close_late() {
    is_found_in_groups(Bug::ClosesLate, &[Promise::WindowsEnd]);
}

#[test]
fn groups_that_do_not_close_when_it_is_quiet() {
    is_found_in_groups(Bug::SilenceIgnored, &[Promise::WindowsEnd]);
}

#[test]
fn groups_that_do_not_close_when_they_are_full() {
    is_found_in_groups(Bug::CountIgnored, &[Promise::WindowsEnd]);
}

#[test]
fn endings_noted_in_the_first_of_two_groups() {
    is_found_from(TWO_GROUPS_SEEDS, Bug::NotesInWrongGroup, &[Promise::WorkFinishes]);
}

#[test]
fn groups_that_wait_for_one_of_two_intakes() {
    is_found_from(TWO_GROUPS_SEEDS, Bug::OneIntakeCatchesUp, &[Promise::SentAsSealed]);
}

#[test]
fn endings_counted_twice() {
    is_found(Bug::EndingsCountedTwice, &[Promise::CountsAddUp]);
    is_found(Bug::EndingsCountedTwice, &[Promise::CountsAreTrue]);
    is_found_in_groups(Bug::EndingsCountedTwice, &[Promise::CountsAreTrue]);
}

#[test]
fn hand_backs_forgotten() {
    is_found(Bug::HandBacksForgotten, &[Promise::CountsAddUp]);
    is_found_in_groups(Bug::HandBacksForgotten, &[Promise::CountsAddUp]);
}

#[test]
fn received_falls_when_records_are_handed_back() {
    is_found(Bug::ReturnsUncounted, &[Promise::CountsAddUp]);
}

#[test]
fn dead_letters_counted_as_delivered() {
    is_found(Bug::LettersCountedDelivered, &[Promise::CountsAreTrue]);
    is_found_in_groups(Bug::LettersCountedDelivered, &[Promise::CountsAreTrue]);
}

#[test]
fn repeats_counted_as_delivered() {
    is_found(Bug::RepeatsCountedDelivered, &[Promise::CountsAreTrue]);
    is_found_in_groups(Bug::RepeatsCountedDelivered, &[Promise::CountsAreTrue]);
}
