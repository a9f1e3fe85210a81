//! Every naive version is found by the test of its mechanism. What a test says when it fails is part of
//! the proof: it must not fail for another reason.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use potok_core::trouble::{Bug, with_bug};

use crate::wait::with_patience;
use crate::{bounds, chats, locks, outgoing, reports, takeover, trouble};

/// Long enough for what comes at all; the naive version waits in vain.
const PATIENCE: Duration = Duration::from_secs(12);

/// Runs a test with a bug in place; it has to fail, saying one of these.
#[track_caller]
fn is_found(bug: Bug, said: &[&str], test: impl Fn()) {
    let run = || with_patience(PATIENCE, || catch_unwind(AssertUnwindSafe(&test)));
    let Err(panic) = with_bug(bug, run) else { panic!("{bug:?} was not found") };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    assert!(said.iter().any(|said| text.contains(said)), "{bug:?} was found by accident: {text}");
}

const LEFT: &str = "nothing is left";
const HANDED_OUT: &str = "messages are handed out";
const DIFFERS: &str = "left == right";

#[test]
fn keys_by_index() {
    // Whether an answer is lost that matters is chance.
    let again_and_again = || {
        (0..10).for_each(|_| trouble::lost_answers_put_no_message_into_a_foreign_chat());
    };
    is_found(Bug::KeysByIndex, &[DIFFERS], again_and_again);
}

#[test]
fn pops_plainly() {
    is_found(Bug::PopsPlainly, &[DIFFERS], locks::a_foreign_processor_lock_stops_the_sorting);
}

#[test]
fn taken_apart() {
    is_found(Bug::TakenApart, &[DIFFERS, LEFT], takeover::several_copies_share_the_queue);
}

#[test]
fn one_bad_stops_all() {
    is_found(Bug::OneBadStopsAll, &[HANDED_OUT], trouble::one_bad_chat_stops_no_other);
}

#[test]
fn refused_when_full() {
    is_found(
        Bug::RefusedWhenFull,
        &[HANDED_OUT, "called `Result::unwrap()`"],
        bounds::a_full_server_is_emptied,
    );
}

#[test]
fn name_without_members() {
    is_found(Bug::NameWithoutMembers, &["left != right"], trouble::other_members_have_another_name);
}

#[test]
fn arrival_moves_lease() {
    is_found(
        Bug::ArrivalMovesLease,
        &["it is taken over"],
        takeover::arrivals_do_not_put_off_the_end_of_a_lease,
    );
    is_found(
        Bug::ArrivalMovesLease,
        &["its lease has moved"],
        takeover::arrivals_move_no_lease_of_what_belongs_to_no_chat,
    );
}

#[test]
fn lock_by_value() {
    is_found(
        Bug::LockByValue,
        &["it is seen", DIFFERS],
        locks::a_lock_that_was_overwritten_is_left_alone,
    );
}

#[test]
fn ack_deletes_list() {
    is_found(
        Bug::AckDeletesList,
        &["the next comes"],
        takeover::what_comes_while_a_chat_is_delivered_is_the_next_group,
    );
}

#[test]
fn no_rearm() {
    is_found(
        Bug::NoRearm,
        &["the next comes"],
        takeover::what_comes_while_a_chat_is_delivered_is_the_next_group,
    );
}

#[test]
fn ack_without_token() {
    is_found(
        Bug::AckWithoutToken,
        &["it is the second one's"],
        takeover::an_acknowledgement_under_an_old_token_changes_nothing,
    );
}

#[test]
fn claim_anew() {
    is_found(Bug::ClaimAnew, &[DIFFERS], takeover::arrivals_do_not_put_off_the_end_of_a_lease);
}

#[test]
fn claimed_stay_listed() {
    is_found(
        Bug::ClaimedStayListed,
        &["for somebody else"],
        locks::what_is_claimed_is_for_nobody_else,
    );
}

#[test]
fn no_max_age() {
    is_found(
        Bug::NoMaxAge,
        &["it leaves while messages come", "right: \"max_wait_reached\""],
        chats::a_chat_that_never_goes_quiet_leaves_at_its_age,
    );
}

#[test]
fn claims_trusted() {
    is_found(
        Bug::ClaimsTrusted,
        &["it is lost"],
        reports::an_emptied_server_is_reported_and_goes_on,
    );
}

#[test]
fn own_pushes_only() {
    is_found(
        Bug::OwnPushesOnly,
        &[HANDED_OUT],
        locks::pushes_of_the_old_processor_are_delivered_too,
    );
}

#[test]
fn takes_all() {
    is_found(Bug::TakesAll, &[DIFFERS], chats::many_messages_are_cut_into_several_groups);
}

#[test]
fn bytes_reached() {
    is_found(Bug::BytesReached, &[DIFFERS], chats::a_group_has_no_more_bytes_than_it_may);
}

#[test]
fn own_deaths() {
    is_found(
        Bug::OwnDeaths,
        &["its owner lives"],
        takeover::whoever_loses_sight_of_redis_has_not_died,
    );
}

#[test]
fn adopts_at_expiry() {
    is_found(
        Bug::AdoptsAtExpiry,
        &["about to read"],
        reports::a_lock_that_ran_out_is_waited_for_a_little_longer,
    );
}

#[test]
fn far_looks_left() {
    is_found(Bug::FarLooksLeft, &[HANDED_OUT], trouble::looks_that_lie_far_ahead_are_pulled_in);
}

#[test]
fn keys_by_format() {
    is_found(
        Bug::KeysByFormat,
        &[DIFFERS, HANDED_OUT],
        chats::chats_are_told_apart_whatever_their_ids_hold,
    );
}

#[test]
fn wish_without_count() {
    is_found(Bug::WishWithoutCount, &[DIFFERS], reports::a_close_by_hand_takes_what_was_there);
}

#[test]
fn any_pipeline() {
    is_found(Bug::AnyPipeline, &["shared"], bounds::a_database_has_room_for_one_pipeline);
}

#[test]
fn empty_kept() {
    is_found(Bug::EmptyKept, &[LEFT], chats::a_chat_of_nothing_but_null_is_gone);
}

#[test]
fn index_trusted() {
    is_found(Bug::IndexTrusted, &[HANDED_OUT], locks::what_lost_its_index_leaves_all_the_same);
}

#[test]
fn marked_first() {
    is_found(
        Bug::MarkedFirst,
        &[DIFFERS],
        outgoing::a_list_that_was_none_gets_its_message_once_it_is_one,
    );
}
