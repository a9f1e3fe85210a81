//! Finds the programs of the services on this machine.
//!
//! What is missing is an error that says how to get it. Finding never installs anything.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::run;

/// The Java that Kafka 4 asks of a broker.
pub const JAVA_MIN: u32 = 17;

/// A program by name: on the path, or where servers lie that are not for everyone's path.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut places = std::env::split_paths(&path).chain(more).map(|folder| folder.join(name));
    places.find(|place| place.is_file())
}

/// What was looked for in vain, and the package of Debian that has it.
#[derive(Debug)]
pub struct Missing {
    pub what: String,
    pub package: &'static str,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Missing { what, package } = self;
        write!(
            f,
            "{what} is not on this machine: run `cargo xtask services install`, or on Debian: \
             apt-get install {package}"
        )
    }
}

impl std::error::Error for Missing {}

type ProgramPath = Result<PathBuf, Missing>;

/// A program of `package`.
fn needed(name: &str, package: &'static str) -> ProgramPath {
    find(name).ok_or_else(|| Missing { what: format!("`{name}`"), package })
}

pub fn redis_server() -> ProgramPath {
    needed("redis-server", "redis-server")
}

pub fn redis_cli() -> ProgramPath {
    needed("redis-cli", "redis-server")
}

pub fn mariadbd() -> ProgramPath {
    needed("mariadbd", "mariadb-server")
}

pub fn mariadb_install_db() -> ProgramPath {
    needed("mariadb-install-db", "mariadb-server")
}

pub fn mariadb() -> ProgramPath {
    needed("mariadb", "mariadb-server")
}

pub fn openssl() -> ProgramPath {
    needed("openssl", "openssl")
}

/// Another client of Kafka, for tests that compare bytes.
pub fn kcat() -> ProgramPath {
    needed("kcat", "kcat")
}

/// The browser. Under another name where it is not Debian's.
pub fn chromium() -> ProgramPath {
    let other = || find("chromium-browser").or_else(|| find("google-chrome"));
    needed("chromium", "chromium").or_else(|missing| other().ok_or(missing))
}

pub fn node() -> ProgramPath {
    needed("node", "nodejs")
}

pub fn npm() -> ProgramPath {
    needed("npm", "npm")
}

pub fn maven() -> ProgramPath {
    needed("mvn", "maven")
}

/// The folder with `postgres`, `initdb` and `psql`. Debian keeps one per version, off the path: the
/// newest counts.
pub fn postgres_folder() -> ProgramPath {
    let whole = |folder: &PathBuf| {
        ["postgres", "initdb", "psql"].iter().all(|program| folder.join(program).is_file())
    };
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let numbered = versions.filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((version, entry.path().join("bin")))
    });
    if let Some((_, folder)) = numbered.filter(|(_, folder)| whole(folder)).max() {
        return Ok(folder);
    }
    let on_path = find("postgres").and_then(|found| Some(found.parent()?.to_owned()));
    let missing = || Missing { what: "PostgreSQL".to_owned(), package: "postgresql" };
    on_path.filter(whole).ok_or_else(missing)
}

/// A Java that is new enough, and what it says of its version.
pub fn java() -> Result<&'static (PathBuf, String), Missing> {
    static FOUND: OnceLock<(PathBuf, String)> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(found);
    }
    // Not remembered where it is missing: it may be installed next.
    let what = format!("Java {JAVA_MIN} or newer");
    let missing = || Missing { what, package: "openjdk-17-jdk-headless" };
    let found = find_java().ok_or_else(missing)?;
    Ok(FOUND.get_or_init(|| found))
}

fn find_java() -> Option<(PathBuf, String)> {
    let home = std::env::var_os("JAVA_HOME").map(|home| Path::new(&home).join("bin/java"));
    let installed = std::fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten();
    let installed = installed.map(|entry| entry.path().join("bin/java"));
    let places = home.into_iter().chain(find("java")).chain(installed);
    // By its own name, not by that of a link: class data is kept per Java.
    places.filter_map(|place| place.canonicalize().ok()).find_map(|place| {
        let version = java_version(&place)?;
        (java_major(&version)? >= JAVA_MIN).then_some((place, version))
    })
}

fn java_version(java: &Path) -> Option<String> {
    let mut command = Command::new(java);
    // On its own lines of standard output, other than `-version`.
    command.arg("--version");
    run::output(command).ok()
}

/// `openjdk 17.0.15 2025-04-15` → 17.
fn java_major(version: &str) -> Option<u32> {
    version.split_whitespace().nth(1)?.split(['.', '-', '+']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_java_is_its_first_number() {
        assert_eq!(java_major("openjdk 17.0.15 2025-04-15\nOpenJDK Runtime"), Some(17));
        assert_eq!(java_major("java 21-ea 2023-09-19"), Some(21));
        assert_eq!(java_major("unheard of"), None);
    }

    #[test]
    fn what_is_missing_says_how_to_get_it() {
        let error = needed("no-such-program", "its-package").unwrap_err().to_string();
        assert!(error.contains("`no-such-program` is not on this machine"), "{error}");
        assert!(error.contains("cargo xtask services install"), "{error}");
        assert!(error.contains("apt-get install its-package"), "{error}");
    }
}
