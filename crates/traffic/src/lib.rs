//! Traffic that looks like the real thing, for `potok dev`, tests and benchmarks.
//!
//! Everything is a function of a seed: the same seed makes the same bytes on every machine and in
//! every run, so a test can say what must have arrived without keeping what it sent. Nothing here
//! reads a clock, a file or the environment.
#![deny(missing_docs)]

pub mod gdelt;
pub mod messenger;
pub mod orders;
mod random;
pub mod shop;

pub use random::Random;
