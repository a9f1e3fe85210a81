//! Puts on this machine what the services need and it lacks.
//!
//! What is there is used as it is: where nothing is missing, nothing is downloaded and no network
//! is needed. Programs come from Debian's packages, where we may install them; Kafka and
//! Keycloak come from Maven into the cache, the SignalR clients from npm. Where we may not, the failure says what to type.

mod apt;
mod jars;
mod keycloak;
mod npm;

use std::fs::{File, TryLockError};
use std::str::FromStr;

use anyhow::{Context, Result, bail};

pub use self::jars::KAFKA_VERSION;
pub(crate) use self::jars::java_home;
use crate::cache::{self, KafkaJars};
use crate::programs::{self, Missing};

/// What can be started here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Kafka,
    Postgres,
    Mariadb,
    Redis,
    Keycloak,
    /// With the SignalR clients; nothing that is started on its own.
    Node,
    /// For tests of pages; nothing that is started on its own.
    Chromium,
}

impl Service {
    pub const ALL: [Service; 7] = [
        Service::Kafka,
        Service::Postgres,
        Service::Mariadb,
        Service::Redis,
        Service::Keycloak,
        Service::Node,
        Service::Chromium,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Service::Kafka => "kafka",
            Service::Postgres => "postgres",
            Service::Mariadb => "mariadb",
            Service::Redis => "redis",
            Service::Keycloak => "keycloak",
            Service::Node => "node",
            Service::Chromium => "chromium",
        }
    }

    /// What it lacks here.
    fn missing(self) -> Vec<Missing> {
        let java = || programs::java().map(drop);
        let openssl = || programs::openssl().map(drop);
        let kcat = || programs::kcat().map(drop);
        let looked = match self {
            // Maven has nothing left to do once the jars are there.
            Service::Kafka if KafkaJars::find().is_ok() => vec![java(), openssl(), kcat()],
            Service::Kafka => {
                vec![java(), openssl(), kcat(), programs::maven().map(drop)]
            }
            Service::Postgres => vec![programs::postgres_folder().map(drop), openssl()],
            Service::Mariadb => {
                let all = [programs::mariadbd, programs::mariadb_install_db, programs::mariadb];
                all.into_iter().map(|find| find().map(drop)).chain([openssl()]).collect()
            }
            Service::Keycloak if cache::keycloak().is_ok() => vec![java()],
            Service::Keycloak => vec![java(), programs::maven().map(drop)],
            Service::Node if cache::signalr().is_ok() => vec![programs::node().map(drop)],
            Service::Node => vec![programs::node().map(drop), programs::npm().map(drop)],
            Service::Chromium => vec![programs::chromium().map(drop)],
            Service::Redis => {
                let all = [programs::redis_server, programs::redis_cli];
                all.into_iter().map(|find| find().map(drop)).collect()
            }
        };
        looked.into_iter().filter_map(Result::err).collect()
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
            let what: Vec<_> = left.iter().map(|missing| missing.what.as_str()).collect();
            bail!("not found even after the installation: {}", what.join(", "));
        }
    }
    if services.contains(&Service::Kafka) {
        jars::fetch(say)?;
        jars::make_class_data(say);
    }
    if services.contains(&Service::Keycloak) {
        keycloak::fetch(say)?;
    }
    if services.contains(&Service::Node) {
        npm::fetch(say)?;
    }
    Ok(())
}

/// Whether nothing is left to do.
fn is_complete(services: &[Service]) -> bool {
    let installed = services.iter().all(|service| service.missing().is_empty());
    let fetched =
        || KafkaJars::find().is_ok_and(|jars| jars.class_data().is_ok_and(|file| file.is_file()));
    installed
        && (!services.contains(&Service::Kafka) || fetched())
        && (!services.contains(&Service::Keycloak) || cache::keycloak().is_ok())
        && (!services.contains(&Service::Node) || cache::signalr().is_ok())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_known_by_name() {
        for service in Service::ALL {
            assert_eq!(service.name().parse(), Ok(service));
        }
        let unknown = "mysql".parse::<Service>().unwrap_err();
        assert_eq!(
            unknown,
            "`mysql` is none of kafka, postgres, mariadb, redis, keycloak, node, chromium"
        );
    }
}
