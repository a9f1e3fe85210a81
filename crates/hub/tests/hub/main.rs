//! The hub over real sockets, with clients written by hand: what the stock client never does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod acknowledgements;
mod bad_clients;
mod bounds;
mod calls;
mod crowds;
mod doors;
mod endings;
mod resuming;
mod returning;
#[allow(dead_code, reason = "shared with the tests of several nodes")]
mod support;
