//! The same `orders` on real Kafka, PostgreSQL and MariaDB: processes are killed, servers frozen,
//! restarted and cut off, and the same independent checker compares what was acknowledged with
//! what arrived.
//!
//! `cargo xtask soak` sets `POTOK_SOAK=1` for the long versions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "shared with the tests of the embedded default")]
#[path = "../binary/batches.rs"]
mod batches;
mod chaos;
#[allow(dead_code, reason = "shared with the tests of the embedded default")]
#[path = "../binary/check.rs"]
mod check;
mod cli;
mod database;
mod gathering;
mod guide;
mod leaks;
#[allow(dead_code, reason = "shared with the tests of the embedded default")]
#[path = "../binary/ledger.rs"]
mod ledger;
mod order;
mod outages;
mod outbox;
mod outbox_chaos;
mod outbox_guide;
mod outbox_trouble;
mod poison;
#[allow(dead_code, reason = "shared with the tests of the embedded default")]
#[path = "../binary/process.rs"]
mod process;
mod replica;
mod rights;
mod shop_day;
mod shop_events;
mod store;
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
