//! Dies at every named crash point in turn, under load, and starts again.

use potok_core::trouble::CRASH_POINTS;

use crate::check::assert_kept;
use crate::load::{Sender, joined, send_all};
use crate::process::{Home, SMALL_SEGMENTS};
use crate::short_or_soak;

/// After this many orders without passing a point it is taken as never passed.
const ORDERS_MAX: usize = 6_000;

/// Keeps little, so that segments are dropped within a test.
const SETTINGS: &str = "retention: { age: 1s, size: 128KiB }\n";

#[test]
fn dies_at_every_crash_point_and_keeps_its_promise() {
    for (index, point) in CRASH_POINTS.iter().enumerate() {
        for passing in [1, 3].into_iter().chain(2..short_or_soak(2, 12)) {
            dies_at(&format!("{point}:{passing}"), index as u64 * 100 + passing);
        }
    }
}

fn dies_at(place: &str, seed: u64) {
    let home = Home::new();
    home.settings(SETTINGS);
    // Progress is written alone only where there are no dead letters to go along with, and a
    // segment that holds one is never let go of.
    let good_only = place.starts_with("position") || place.starts_with("unlink");
    let sender = if good_only { Sender::good_only } else { Sender::new };
    let mut senders = vec![sender(seed * 2), sender(seed * 2 + 1)];

    // A process that lived before, so that the first passing is not always one of an empty folder.
    let running = home.start_with(&[SMALL_SEGMENTS]).expect("starts");
    send_all(&running, &mut senders, 100);
    running.kill();

    match home.start_with(&[SMALL_SEGMENTS, ("POTOK_CRASH_AT", place)]) {
        Ok(running) => {
            send_all(&running, &mut senders, ORDERS_MAX);
            running.ended(&format!("potok dies at {place}"));
        }
        Err(end) => assert!(end.contains("crash point"), "{place}: {end}"),
    }

    let running = home.start_with(&[SMALL_SEGMENTS]).expect("starts again");
    send_all(&running, &mut senders, 40);
    assert_kept(&home, &running, &joined(senders));
}
