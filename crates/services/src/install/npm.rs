//! The stock SignalR clients from npm into the cache, for tests that speak to the hub as pages do.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cache::{self, SIGNALR_VERSION};
use crate::{programs, run};

/// The last that cannot answer messages; the hub tells it so.
const OLD_VERSION: &str = "6.0.25";

/// Fetches them where they are not in the cache. Whole or not at all: they are put together beside
/// their place and renamed.
pub fn fetch(say: &dyn Fn(&str)) -> Result<()> {
    if cache::signalr().is_ok() {
        return Ok(());
    }
    say(&format!("fetching @microsoft/signalr {SIGNALR_VERSION} (npm, 8 MB)"));
    let cache = cache::folder()?;
    let whole = cache.join(format!("signalr-{SIGNALR_VERSION}"));
    let part = cache.join(format!("signalr-{SIGNALR_VERSION}.part"));
    if part.exists() {
        fs::remove_dir_all(&part)?;
    }
    fs::create_dir_all(&part)?;
    let mut command = Command::new(programs::npm()?);
    command.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]).arg(&part);
    command.arg(format!("@microsoft/signalr@{SIGNALR_VERSION}"));
    command.arg(format!("@microsoft/signalr-protocol-msgpack@{SIGNALR_VERSION}"));
    command.arg(format!("signalr-old@npm:@microsoft/signalr@{OLD_VERSION}"));
    run::output(command).context("npm cannot fetch @microsoft/signalr")?;
    fs::rename(&part, &whole)?;
    Ok(())
}
