//! The Kafka connector on a real broker: the suites of its contracts, and what only Kafka can do to
//! it. Most tests share one broker and keep apart by names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bytes;
mod commits;
mod conformance;
mod exact;
mod offers;
mod outages;
mod rebalances;
mod setup;
mod starts;
mod topics;
