//! Parts of a process that panic: what can be started again is, and where that cannot be done the
//! process ends, so that whoever watches over it starts it anew.

use crate::check::assert_kept;
use crate::load::{Sender, joined, send_all};
use crate::process::{Home, SMALL_SEGMENTS};
use crate::wait;

/// Keeps little, so that retention has something to do within a test.
const SETTINGS: &str = "retention: { age: 1s, size: 128KiB }\n";

/// A pipeline starts the part again by itself, and says so.
#[test]
fn a_part_of_a_pipeline_that_panics_is_started_again() {
    for place in ["intake:2", "reader:3", "position.before:2", "receipt.after:2"] {
        let home = Home::new();
        let running =
            home.start_with(&[SMALL_SEGMENTS, ("POTOK_PANIC_AT", place)]).expect("starts");
        // Without dead letters: with them progress is not written alone.
        let mut senders = vec![Sender::good_only(91), Sender::good_only(92)];
        send_all(&running, &mut senders, 400);
        wait::until_seen(&format!("a restart after a panic at {place}"), || {
            let status = running.status();
            if status["restarts"].as_u64() >= Some(1) { Ok(()) } else { Err(status) }
        });
        assert_eq!(running.get("/live").unwrap().0, 200);
        send_all(&running, &mut senders, 40);
        assert_kept(&home, &running, &joined(senders));
    }
}

/// Nothing can be trusted that a dead thread of the log has left in memory.
#[test]
fn a_log_whose_thread_panics_ends_the_process() {
    for (place, thread) in [("fsync.after:5", "writer"), ("unlink.before", "retention")] {
        let home = Home::new();
        home.settings(SETTINGS);
        let mut senders = vec![Sender::good_only(93), Sender::good_only(94)];
        let running =
            home.start_with(&[SMALL_SEGMENTS, ("POTOK_PANIC_AT", place)]).expect("starts");
        let journal = home.path().join("stderr.log");
        send_all(&running, &mut senders, 6_000);
        let status = running.ended(&format!("potok ends after a panic at {place}"));
        assert_eq!(status.code(), Some(1), "{place}");
        let said = std::fs::read_to_string(journal).unwrap();
        for part in ["P0210", &format!("the log's {thread} died"), "start it again"] {
            assert!(said.contains(part), "{part} not in {said}");
        }
        // As a supervisor does.
        let running = home.start_with(&[SMALL_SEGMENTS]).expect("starts again");
        send_all(&running, &mut senders, 40);
        assert_kept(&home, &running, &joined(senders));
    }
}

/// A request that panics is one lost answer.
#[test]
fn a_request_that_panics_costs_one_answer() {
    let home = Home::new();
    let mut running = home.start_with(&[("POTOK_PANIC_AT", "admin")]).expect("starts");
    assert_ne!(running.run(["status", "--json"], b"").code, Some(0), "the answer was lost");
    assert!(running.is_alive());
    assert_eq!(running.status()["restarts"], 0);
    assert_eq!(running.get("/ready").unwrap().0, 200);
}
