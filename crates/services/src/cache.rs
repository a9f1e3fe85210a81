//! Where downloads and prepared things lie: outside the repository, once per version.
//!
//! ```text
//! $XDG_CACHE_HOME/potok, or ~/.cache/potok
//!   kafka-4.2.0/            complete or absent: written beside it and renamed
//!     jars/*.jar
//!     formatted/            what `StorageTool format` writes for a node without users
//!   kafka-4.2.0-<java>.jsa  class data of that very Java, for quick starts; may be absent
//!   keycloak-26.7.3/        unpacked and built; `data` is that of a finished first start
//!   signalr-10.0.11/        what npm installs
//!   m2/                     Maven's own downloads
//!   lock                    held while something here is written
//! ```
//!
//! A new version gets a new name, so nothing here is ever changed in place, and whoever reads
//! needs no lock.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::programs;

pub const KAFKA_VERSION: &str = "4.2.0";
pub const KEYCLOAK_VERSION: &str = "26.7.3";
pub const SIGNALR_VERSION: &str = "10.0.11";

/// The folder of everything below; not necessarily there.
pub fn folder() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let caches = set("XDG_CACHE_HOME").map(PathBuf::from);
    let caches = caches.filter(|path| path.is_absolute());
    let caches = caches.or_else(|| Some(Path::new(&set("HOME")?).join(".cache")));
    Ok(caches.context("neither XDG_CACHE_HOME nor HOME is set")?.join("potok"))
}

/// Keycloak, unpacked, built, and with the data of a first start.
pub fn keycloak() -> Result<PathBuf> {
    let folder = installed(&format!("keycloak-{KEYCLOAK_VERSION}"), "Keycloak", "Maven")?;
    if !folder.join("data/h2").is_dir() {
        bail!("Keycloak was not prepared: run `cargo xtask services install`");
    }
    Ok(folder)
}

/// Where scripts find the SignalR clients.
pub fn signalr() -> Result<PathBuf> {
    let folder = installed(&format!("signalr-{SIGNALR_VERSION}"), "@microsoft/signalr", "npm")?;
    Ok(folder.join("node_modules"))
}

fn installed(name: &str, what: &str, with: &str) -> Result<PathBuf> {
    let folder = folder()?.join(name);
    if !folder.is_dir() {
        bail!(
            "{what} is not in {}: run `cargo xtask services install`, which fetches it with {with}",
            folder.display()
        );
    }
    Ok(folder)
}

/// Kafka as it lies in the cache.
#[derive(Clone, Debug)]
pub struct KafkaJars {
    pub folder: PathBuf,
    /// All jars in a fixed order: the class data only fits the very same path.
    pub classpath: String,
}

impl KafkaJars {
    /// What `cargo xtask services install` has put there.
    pub fn find() -> Result<Self> {
        let folder = folder()?.join(format!("kafka-{KAFKA_VERSION}"));
        if !folder.is_dir() {
            bail!(
                "Apache Kafka {KAFKA_VERSION} is not in {}: run `cargo xtask services install`, \
                 which fetches it with Maven",
                folder.display()
            );
        }
        KafkaJars::open(folder)
    }

    pub fn open(folder: PathBuf) -> Result<Self> {
        let jars = std::fs::read_dir(folder.join("jars"))?.flatten().map(|entry| entry.path());
        let is_jar = |path: &PathBuf| path.extension().is_some_and(|ext| ext == "jar");
        let mut jars: Vec<_> = jars.filter(is_jar).collect();
        jars.sort();
        let classpath = std::env::join_paths(jars)?.to_string_lossy().into_owned();
        Ok(KafkaJars { folder, classpath })
    }

    /// Where the class data of the Java found on this machine belongs.
    pub fn class_data(&self) -> Result<PathBuf> {
        let (java, version) = programs::java()?;
        let mut hasher = DefaultHasher::new();
        (java, version, &self.classpath).hash(&mut hasher);
        let name = format!("kafka-{KAFKA_VERSION}-{:016x}.jsa", hasher.finish());
        Ok(self.folder.with_file_name(name))
    }
}
