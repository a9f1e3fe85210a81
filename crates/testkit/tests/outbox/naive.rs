//! Each mechanism of the outbox is needed: without it the test of the mechanism fails, and says what for.
//!
//! Numbers are those of the interleavings that the relay was designed against: a transaction that commits
//! late (1), a relay that was frozen (4), an answer that was lost (7), a dead letter in two steps (8), a
//! transaction that is rolled back (9), relays with other settings (10), retention (12). Publishing before
//! marking (2, 3) and the order behind a row that failed (5, 6) are the engine's, and have their naive
//! versions in the simulator.

use std::panic::{AssertUnwindSafe, catch_unwind};

use potok_core::trouble::{Bug, with_bug};

use crate::place::System;
use crate::{bounds, failure, lease, order, refusals, rows, setup};

/// What a test says when it fails with this naive version in place.
fn found<T: Future<Output = ()>>(bug: Bug, test: impl FnOnce() -> T + Send + 'static) -> String {
    // On a thread of its own, where the bug stays when the test fails.
    let ran = std::thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let run = || with_bug(bug, || runtime.block_on(test()));
        catch_unwind(AssertUnwindSafe(run))
    });
    let failed = ran.join().unwrap().expect_err("the naive version was not found");
    let text = failed.downcast_ref::<String>().cloned();
    text.unwrap_or_else(|| (*failed.downcast_ref::<&str>().unwrap()).to_owned())
}

macro_rules! each_is_found {
    ($($name:ident: $bug:ident by $test:path, on [$($system:ident),+], who says $says:literal;)+) => {$(
        #[test]
        fn $name() {
            for system in [$(System::$system),+] {
                let said = found(Bug::$bug, move || $test(system));
                assert!(said.contains($says), "on {system:?}: {said}");
            }
        }
    )+};
}

each_is_found! {
    a_high_water_mark: HighWaterMark
        by order::a_row_that_commits_late_comes_before_later_ones_of_its_key,
        on [Postgres, Mariadb], who says "1 was committed before 4";
    pages: KeysetPages
        by order::a_read_sees_what_lies_before_rows_that_are_out,
        on [Postgres, Mariadb], who says "1 was committed before 3";
    notes_without_a_token: NoteWithoutToken
        by lease::whoever_lost_the_lease_changes_nothing,
        on [Postgres, Mariadb], who says "another has the lease";
    a_token_without_its_time: TokenAlone
        by lease::an_old_token_that_comes_back_changes_nothing,
        on [Postgres, Mariadb], who says "its time was over";
    attempts_that_are_counted_up: CountsUp
        by refusals::network::a_lost_answer_counts_one_attempt,
        on [Postgres, Mariadb], who says "it failed once";
    a_dead_letter_in_two_steps: BuriedApart
        by refusals::dead_letters_that_cannot_be_written_hold_up_their_key_alone,
        on [Postgres, Mariadb], who says "it is nowhere";
    dirty_reads: ReadsUncommitted
        by order::rolled_back_rows_never_come,
        on [Mariadb], who says "1 is not committed";
    a_lease_for_each_key: LeaseBySettings
        by lease::others_stand_by_and_take_over,
        on [Postgres, Mariadb], who says "there is one owner";
    the_clock_of_the_server_alone: ServerClockOnly
        by lease::servers::a_clock_that_was_set_back_keeps_no_dead_owner,
        on [Postgres, Mariadb], who says "it says nothing";
    retention_by_age_alone: PurgesByAge
        by rows::old_rows_are_deleted_and_waiting_ones_never,
        on [Postgres, Mariadb], who says "a row that waits was deleted";
    null_is_not_false: NullsForgotten
        by rows::rows_whose_flag_is_null_are_published,
        on [Postgres, Mariadb], who says "it says nothing";
    notes_that_wait_for_locks: WaitsForLocks
        by lease::servers::a_locked_row_holds_up_no_other,
        on [Postgres, Mariadb], who says "only 1 is locked";
    heads_that_are_forgotten: PutOffAlone
        by failure::what_failed_keeps_its_key_back_after_a_restart,
        on [Postgres, Mariadb], who says "2 waits for 1";
    rows_behind_a_head_that_are_not_named: BehindUnnamed
        by failure::a_key_with_more_rows_than_one_read_starves_nobody,
        on [Postgres, Mariadb], who says "it says nothing";
    a_key_that_opens_too_early: ReopenedEarly
        by refusals::dead_letters_that_cannot_be_written_hold_up_their_key_alone,
        on [Postgres, Mariadb], who says "2 waits for it";
    notes_that_stand_together: NotesStandTogether
        by lease::servers::a_row_that_cannot_be_marked_holds_up_no_other,
        on [Postgres, Mariadb], who says "later";
    heads_that_are_not_looked_at: SkipsUnseen
        by failure::a_row_skipped_by_hand_opens_its_key,
        on [Postgres, Mariadb], who says "it says nothing";
    attempts_that_are_set: CountsSet
        by failure::a_repeated_note_counts_once_and_a_reset_stays,
        on [Postgres, Mariadb], who says "a person's reset stays";
    a_memory_of_what_was_published: RemembersPublished
        by failure::a_processed_row_that_is_reset_is_published_again,
        on [Postgres, Mariadb], who says "it says nothing";
    an_index_by_its_name: IndexByName
        by setup::only_an_index_of_rows_that_wait_counts,
        on [Postgres], who says "the index of old rows";
    rows_by_any_index: IndexByPlan
        by bounds::rows_are_noted_by_their_ids,
        on [Mariadb], who says "the whole table";
    lists_that_become_tables: ListsAsTables
        by bounds::a_long_list_of_ids_stays_a_list,
        on [Mariadb], who says "a table of its own";
}

mod sqlite {
    use super::*;

    each_is_found! {
        notes_without_a_token: NoteWithoutToken
            by lease::whoever_lost_the_lease_changes_nothing,
            on [Sqlite], who says "another has the lease";
        a_token_without_its_time: TokenAlone
            by lease::an_old_token_that_comes_back_changes_nothing,
            on [Sqlite], who says "its time was over";
        a_dead_letter_in_two_steps: BuriedApart
            by refusals::dead_letters_that_cannot_be_written_hold_up_their_key_alone,
            on [Sqlite], who says "it is nowhere";
        a_lease_for_each_key: LeaseBySettings
            by lease::others_stand_by_and_take_over,
            on [Sqlite], who says "there is one owner";
        retention_by_age_alone: PurgesByAge
            by rows::old_rows_are_deleted_and_waiting_ones_never,
            on [Sqlite], who says "a row that waits was deleted";
        null_is_not_false: NullsForgotten
            by rows::rows_whose_flag_is_null_are_published,
            on [Sqlite], who says "it says nothing";
        heads_that_are_forgotten: PutOffAlone
            by failure::what_failed_keeps_its_key_back_after_a_restart,
            on [Sqlite], who says "2 waits for 1";
        rows_behind_a_head_that_are_not_named: BehindUnnamed
            by failure::a_key_with_more_rows_than_one_read_starves_nobody,
            on [Sqlite], who says "it says nothing";
        a_key_that_opens_too_early: ReopenedEarly
            by refusals::dead_letters_that_cannot_be_written_hold_up_their_key_alone,
            on [Sqlite], who says "2 waits for it";
        heads_that_are_not_looked_at: SkipsUnseen
            by failure::a_row_skipped_by_hand_opens_its_key,
            on [Sqlite], who says "it says nothing";
        attempts_that_are_set: CountsSet
            by failure::a_repeated_note_counts_once_and_a_reset_stays,
            on [Sqlite], who says "a person's reset stays";
        a_memory_of_what_was_published: RemembersPublished
            by failure::a_processed_row_that_is_reset_is_published_again,
            on [Sqlite], who says "it says nothing";
        an_index_by_its_name: IndexByName
            by setup::only_an_index_of_rows_that_wait_counts,
            on [Sqlite], who says "the index of old rows";
    }
}
