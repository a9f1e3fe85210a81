//! SQLite as a destination, from outside: real files, real faults.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod crash;
mod once;
mod order;
mod refusal;
mod rows;
mod setup;
mod trouble;
