//! Several nodes of one hub: in one process, and on a real Redis that is flushed, killed and frozen.
//! Where a naive version exists, the same test is run with it, and must see it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod failover;
mod lines;
mod on_redis;
mod pair;
mod restarts;
mod resuming;
#[path = "../hub/support.rs"]
#[allow(dead_code, reason = "shared with the tests of one node")]
mod support;
mod talking;
mod trouble;
mod waiting;
