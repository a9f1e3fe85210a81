//! The shipped `chat` on a real Redis: several copies are killed and frozen, the old processor pushes
//! beside them, and an independent checker compares what was pushed with what was posted.
//!
//! `cargo xtask soak` sets `POTOK_SOAK=1` for the long versions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod by_hand;
mod chaos;
mod leases;
mod letters;
mod movers;
mod posted;
#[allow(dead_code, reason = "shared with the tests of the embedded default")]
#[path = "../binary/posting.rs"]
mod posting;
#[allow(dead_code, reason = "shared with the tests of the embedded default")]
#[path = "../binary/process.rs"]
mod process;
#[allow(dead_code, reason = "shared with the tests of the embedded default")]
#[path = "../binary/receiver.rs"]
mod receiver;
mod same;
#[path = "../binary/samples.rs"]
mod samples;
#[allow(dead_code, reason = "shared with the tests of the embedded default")]
#[path = "../binary/wait.rs"]
mod wait;

#[allow(dead_code, reason = "shared with the tests of the embedded default")]
#[path = "../binary/walk.rs"]
mod walk;

/// The long version where asked for, else the short one.
fn short_or_soak(short: u64, soak: u64) -> u64 {
    if std::env::var_os("POTOK_SOAK").is_some() { soak } else { short }
}
