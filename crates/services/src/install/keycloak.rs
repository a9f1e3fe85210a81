//! Keycloak from Maven into the cache, unpacked and built once.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cache::{self, KEYCLOAK_VERSION};
use crate::install::jars::java_home;
use crate::{programs, run};

const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy";

/// Fetches it where it is not in the cache. Whole or not at all: it is put together beside its place
/// and renamed.
pub fn fetch(say: &dyn Fn(&str)) -> Result<()> {
    if cache::keycloak().is_ok() {
        return Ok(());
    }
    say(&format!("fetching Keycloak {KEYCLOAK_VERSION} (Maven, 176 MB)"));
    let cache = cache::folder()?;
    let whole = cache.join(format!("keycloak-{KEYCLOAK_VERSION}"));
    let part = cache.join(format!("keycloak-{KEYCLOAK_VERSION}.part"));
    if part.exists() {
        fs::remove_dir_all(&part)?;
    }
    fs::create_dir_all(&part)?;
    let mut command = Command::new(programs::maven()?);
    command.args(["-B", "-q", COPY]);
    command.arg(format!("-Dartifact=org.keycloak:keycloak-quarkus-dist:{KEYCLOAK_VERSION}:tar.gz"));
    command.arg(format!("-DoutputDirectory={}", part.display()));
    command.arg(format!("-Dmaven.repo.local={}", cache.join("m2").display()));
    // Maven wants a project beside it, or none: not the one of the folder we are in.
    command.current_dir(&part);
    if let Some(home) = java_home() {
        command.env("JAVA_HOME", home);
    }
    run::output(command).context("Maven cannot fetch Keycloak")?;
    let archive = part.join(format!("keycloak-quarkus-dist-{KEYCLOAK_VERSION}.tar.gz"));
    let mut command = Command::new("tar");
    command.arg("xzf").arg(&archive).arg("-C").arg(&part).arg("--strip-components=1");
    run::output(command).context("Keycloak's archive cannot be unpacked")?;
    fs::remove_file(&archive)?;
    say("building Keycloak (20 s)");
    let mut command = Command::new(part.join("bin/kc.sh"));
    command.args(["build", "--db=dev-file"]);
    if let Some(home) = java_home() {
        command.env("JAVA_HOME", home);
    }
    run::output(command).context("Keycloak cannot be built")?;
    say("starting Keycloak for the first time (30 s)");
    crate::keycloak::prepare(&part)?;
    let _ = fs::remove_dir_all(&whole);
    fs::rename(&part, &whole)?;
    // Unpacked, it is not needed twice.
    let _ = fs::remove_dir_all(cache.join("m2/org/keycloak/keycloak-quarkus-dist"));
    Ok(())
}
