//! What the tests of potok stand on.
//!
//! [`suites`] holds one conformance suite per contract of `core`: whatever implements a `Log`, a
//! `Sink` or a `Store`, simulated, embedded or a real service, passes the same named checks.
//! [`sim`] runs the real engine on one thread over a simulated log, sink and clock, makes trouble
//! from a seed, and checks the promises by name.
//!
//! [`services`] starts real Kafka, PostgreSQL, MariaDB and Redis, for the same suites and for tests
//! of the binary.
//!
//! [`memory`] has every role in memory, [`FaultyDisk`] is a disk under the embedded log that fails
//! on purpose.
//!
//! Nothing here is part of the product, and nothing of the simulator asks the machine for time or
//! chance: a seed says everything.

mod faulty_disk;
pub mod memory;
#[cfg(feature = "sim")]
pub mod sim;
pub mod suites;

pub use faulty_disk::{FaultyDisk, PowerCut};

pub use potok_services as services;
