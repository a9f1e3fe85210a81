//! Connectors: the systems potok reads from and writes to, each behind the contracts of
//! `potok_core`. They know nothing of each other and nothing of the engine.

pub mod embedded;
pub mod kafka;
pub mod memory;
pub mod mysql;
mod owners;
pub mod postgres;
pub mod redis;
pub mod sql;
pub mod sqlite;
pub mod webhook;
