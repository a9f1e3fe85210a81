//! Whole processes: potok is started, fed, killed, cut off and starved, and an independent
//! checker compares what was acknowledged with what arrived.
//!
//! One binary for all of them, so that they link once and share the cores. `cargo xtask soak` sets
//! `POTOK_SOAK=1` for the long versions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bad_input;
mod batches;
mod changes;
mod chat;
mod check;
mod cli;
mod conditions;
mod crash_points;
mod dead_letters;
mod disk;
mod dying;
mod generations;
mod groups;
mod guide;
mod held;
mod http;
mod hub;
mod ingest;
mod ledger;
mod letters;
mod load;
mod mistakes;
mod order;
mod outages;
mod outbox;
mod posting;
mod power_cut;
mod private;
mod process;
mod random_kills;
mod receiver;
mod samples;
mod send;
mod shop;
mod shop_apart;
mod shop_files;
mod shop_naive;
mod shop_replays;
mod stages;
mod top;
mod wait;
mod walk;
mod webhooks;

/// The long version where asked for, else the short one.
fn short_or_soak(short: u64, soak: u64) -> u64 {
    if std::env::var_os("POTOK_SOAK").is_some() { soak } else { short }
}
