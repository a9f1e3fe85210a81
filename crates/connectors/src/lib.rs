//! Connectors: the systems potok reads from and writes to, each behind the contracts of
//! `potok_core`. They know nothing of each other and nothing of the engine.
//!
//! A connector is a folder with the same files everywhere: `settings.rs` (the keys it has in YAML),
//! `client.rs` (the connection), `sink.rs`, `stage.rs`, `feed.rs`, `store.rs` (the contracts), and
//! `fault.rs` (whose move it is when something fails). It is there when it has a line in
//! [`registry`]. Each system is a Cargo feature.

pub mod embedded;
pub mod group_files;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub mod outbox;
mod owners;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "webhook")]
pub mod webhook;

use potok_config::Registry;

/// One line for each connector that pipeline files can name.
const CONNECTORS: &[fn(&mut Registry)] = &[
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    sql::register,
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    outbox::register,
    #[cfg(feature = "redis")]
    redis::register,
    #[cfg(feature = "webhook")]
    webhook::register,
];

/// The connectors that this build has.
pub fn registry() -> Registry {
    let mut registry = Registry::new();
    CONNECTORS.iter().for_each(|register| register(&mut registry));
    registry
}
