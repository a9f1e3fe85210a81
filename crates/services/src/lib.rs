//! Real services on this machine: Apache Kafka, PostgreSQL, MariaDB, Redis and Keycloak, and a browser,
//! for tests and for people who want to play (`cargo xtask services up`).
//!
//! Each starts on free loopback ports with its data in a scratch folder, and the call returns when
//! it really answers. It can be killed, frozen and started again on the same data, and a [`Proxy`]
//! in front of it delays, cuts or swallows what passes. Dropping it stops it and removes its
//! folder; nothing survives the process that started it, however that one ends.
//!
//! Everything here blocks. Calls without a `Result` are for tests: they panic with what went
//! wrong and the end of the service's own log. Nothing here downloads or installs anything on its
//! own; [`install`] does, for `cargo xtask`.

mod cache;
mod certificate;
mod chromium;
mod folder;
pub mod install;
mod interrupt;
mod kafka;
mod keycloak;
mod mariadb;
mod node;
mod ports;
mod postgres;
mod process;
mod programs;
mod proxy;
mod redis;
mod run;
mod spawn;
mod url;
mod wait;

use std::fmt::Display;
use std::sync::OnceLock;

pub use certificate::Certificate;
pub use chromium::{Chromium, Page};
pub use interrupt::Interrupt;
pub use kafka::{Kafka, KafkaOptions};
pub use keycloak::{Keycloak, KeycloakOptions};
pub use mariadb::{Mariadb, MariadbOptions};
pub use node::{NodeScript, signalr_for_pages};
pub use ports::is_free as port_is_free;
pub use postgres::{Postgres, PostgresOptions};
pub use proxy::{Mode, Proxy};
pub use redis::{Redis, RedisOptions, Sentinel};

/// The Kafka of this process, one node, started on first use.
#[track_caller]
pub fn kafka() -> &'static Kafka {
    static SHARED: OnceLock<Kafka> = OnceLock::new();
    SHARED.get_or_init(Kafka::start)
}

/// The PostgreSQL of this process, started on first use.
#[track_caller]
pub fn postgres() -> &'static Postgres {
    static SHARED: OnceLock<Postgres> = OnceLock::new();
    SHARED.get_or_init(Postgres::start)
}

/// The MariaDB of this process, started on first use.
#[track_caller]
pub fn mariadb() -> &'static Mariadb {
    static SHARED: OnceLock<Mariadb> = OnceLock::new();
    SHARED.get_or_init(Mariadb::start)
}

/// The Redis of this process, started on first use.
#[track_caller]
pub fn redis() -> &'static Redis {
    static SHARED: OnceLock<Redis> = OnceLock::new();
    SHARED.get_or_init(Redis::start)
}

/// A test without its service cannot go on, and must not pass by skipping.
#[track_caller]
#[allow(clippy::panic, reason = "these calls are for tests, which fail this way")]
fn must<T, E: Display>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error:#}"),
    }
}

/// What every service of one process can be made to do.
macro_rules! lifecycle {
    ($service:ty) => {
        impl $service {
            /// SIGKILL, to it and its children; returns when they are gone.
            #[track_caller]
            pub fn kill(&self) {
                crate::must(self.process.kill());
            }

            /// Stops it the way an operator would; kills it where that takes too long.
            #[track_caller]
            pub fn stop(&self) {
                crate::must(self.process.stop());
            }

            /// SIGSTOP, to it and its children: connections stay open, nobody answers.
            #[track_caller]
            pub fn freeze(&self) {
                crate::must(self.process.freeze());
            }

            /// Ends [`freeze`](Self::freeze).
            #[track_caller]
            pub fn thaw(&self) {
                crate::must(self.process.thaw());
            }

            /// Starts it on the same data and port, stopping it first where it runs; returns when
            /// it answers.
            #[track_caller]
            pub fn restart(&self) {
                crate::must(self.process.stop().and_then(|()| self.launch()));
            }

            /// Its process; 0 while it does not run.
            pub fn pid(&self) -> u32 {
                self.process.pid().unwrap_or_default()
            }

            /// The loopback port it listens on, also while it does not run.
            pub fn port(&self) -> u16 {
                self.port
            }

            /// What it has written to its log so far.
            pub fn logs(&self) -> String {
                self.process.logs()
            }

            /// Where its data lies.
            pub fn folder(&self) -> &std::path::Path {
                self.folder.path()
            }
        }
    };
}
use lifecycle;
