//! The embedded log, through its contract, on a real disk and on one that fails.
//!
//! Checks that a planted bug must not survive are functions that return what is wrong, so that
//! `bugs` can assert that each bug is found by the very check that guards against it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod basics;
mod bugs;
mod damage;
mod fixture;
mod full;
mod fuzz;
mod groups;
mod power;
mod retention;
mod support;
