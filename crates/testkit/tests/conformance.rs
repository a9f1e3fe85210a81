//! Every implementation of a contract through the suite of its contract, on real services where it
//! needs one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "conformance/embedded.rs"]
mod embedded;
#[path = "conformance/memory.rs"]
mod memory;
#[path = "conformance/mysql.rs"]
mod mysql;
#[path = "conformance/postgres.rs"]
mod postgres;
#[path = "conformance/redis_queue.rs"]
mod redis_queue;
#[path = "conformance/redis.rs"]
mod redis_store;
#[path = "conformance/simulated.rs"]
mod simulated;
#[path = "conformance/sqlite.rs"]
mod sqlite;
#[path = "conformance/webhook.rs"]
mod webhook;
#[path = "../../connectors/tests/webhook/server.rs"]
#[allow(dead_code, reason = "it can do more for the tests of the stage")]
mod webhook_server;

/// Fails with every check that failed; a suite that checked nothing fails too.
fn passed(result: Result<usize, String>) {
    match result {
        Ok(0) => panic!("the suite is empty"),
        Ok(_) => {}
        Err(why) => panic!("{why}"),
    }
}
