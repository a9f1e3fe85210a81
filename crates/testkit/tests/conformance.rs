//! Every implementation of a contract that needs no service, through the suite of its contract.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "conformance/embedded.rs"]
mod embedded;
#[path = "conformance/memory.rs"]
mod memory;
#[path = "conformance/simulated.rs"]
mod simulated;
#[path = "conformance/sqlite.rs"]
mod sqlite;

/// Fails with every check that failed; a suite that checked nothing fails too.
fn passed(result: Result<usize, String>) {
    match result {
        Ok(0) => panic!("the suite is empty"),
        Ok(_) => {}
        Err(why) => panic!("{why}"),
    }
}
