//! Puts on this machine what the services need and it lacks.
//!
//! What is there is used as it is: where nothing is missing, nothing is downloaded and no network
//! is needed. Programs come from Debian's packages, where we may install them; Kafka comes from
//! Maven into the cache. Where we may not, the failure says what to type.

mod apt;
mod jars;

use std::fs::{File, TryLockError};
use std::str::FromStr;

use anyhow::{Context, Result, bail};

pub use self::jars::KAFKA_VERSION;
use crate::cache::{self, KafkaJars};
use crate::programs;

/// What can be started here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Kafka,
    Postgres,
    Mariadb,
    Redis,
}

impl Service {
    pub const ALL: [Service; 4] =
        [Service::Kafka, Service::Postgres, Service::Mariadb, Service::Redis];

    pub fn name(self) -> &'static str {
        match self {
            Service::Kafka => "kafka",
            Service::Postgres => "postgres",
            Service::Mariadb => "mariadb",
            Service::Redis => "redis",
        }
    }

    /// The packages it lacks here, each with what was looked for in vain.
    fn missing(self) -> Vec<Missing> {
        let mut missing = Vec::new();
        let mut look = |package: &'static str, found: Result<()>| {
            missing.extend(found.err().map(|error| Missing { package, why: error.to_string() }));
        };
        match self {
            Service::Kafka => {
                look("openjdk-17-jdk-headless", programs::java().map(drop));
                look("openssl", programs::openssl().map(drop));
                if KafkaJars::find().is_err() {
                    look("maven", programs::maven().map(drop));
                }
            }
            Service::Postgres => {
                look("postgresql", programs::postgres_folder().map(drop));
                look("openssl", programs::openssl().map(drop));
            }
            Service::Mariadb => {
                let all = [programs::mariadbd, programs::mariadb_install_db, programs::mariadb];
                look("mariadb-server", all.into_iter().try_for_each(|find| find().map(drop)));
                look("openssl", programs::openssl().map(drop));
            }
            Service::Redis => {
                let all = [programs::redis_server, programs::redis_cli];
                look("redis-server", all.into_iter().try_for_each(|find| find().map(drop)));
            }
        }
        missing
    }
}

impl FromStr for Service {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Service::ALL.into_iter().find(|service| service.name() == name);
        let names = || Service::ALL.map(Service::name).join(", ");
        known.ok_or_else(|| format!("`{name}` is none of {}", names()))
    }
}

struct Missing {
    package: &'static str,
    why: String,
}

/// Returns when all of `services` can be started. `say` gets a sentence per step that takes time.
pub fn ensure(services: &[Service], say: &dyn Fn(&str)) -> Result<()> {
    if is_complete(services) {
        return Ok(());
    }
    let _lock = lock(say)?;
    let missing: Vec<_> = services.iter().flat_map(|service| service.missing()).collect();
    if !missing.is_empty() {
        apt::install(&missing, say)?;
        let left: Vec<_> = services.iter().flat_map(|service| service.missing()).collect();
        if !left.is_empty() {
            let why: Vec<_> = left.iter().map(|missing| missing.why.as_str()).collect();
            bail!("after the installation still: {}", why.join("; "));
        }
    }
    if services.contains(&Service::Kafka) {
        jars::fetch(say)?;
        jars::make_class_data(say);
    }
    Ok(())
}

/// Whether nothing is left to do.
fn is_complete(services: &[Service]) -> bool {
    let installed = services.iter().all(|service| service.missing().is_empty());
    let fetched =
        || KafkaJars::find().is_ok_and(|jars| jars.class_data().is_ok_and(|file| file.is_file()));
    installed && (!services.contains(&Service::Kafka) || fetched())
}

/// One installation at a time, whoever started it; the others find its work done.
fn lock(say: &dyn Fn(&str)) -> Result<File> {
    let folder = cache::folder()?;
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make the cache {}", folder.display()))?;
    let lock = File::create(folder.join("lock"))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            say("waiting for another installation of the services to finish");
            lock.lock()?;
        }
        Err(TryLockError::Error(error)) => return Err(error.into()),
    }
    Ok(lock)
}
