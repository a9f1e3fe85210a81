//! The real program as a child: built in release, started on a scratch folder, watched.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::measure::Process;

const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The root of the workspace.
pub fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}

/// The program, built if it is missing or old.
pub fn build() -> Result<PathBuf> {
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "--quiet", "-p", "potok"])
        .current_dir(root())
        .status()
        .context("cargo does not start")?;
    ensure!(status.success(), "potok does not build");
    // Cargo puts it beside this program, wherever the target folder is.
    let own = std::env::current_exe()?;
    let target = own.ancestors().nth(2).context("a target folder")?;
    Ok(target.join("release/potok"))
}

/// Runs a command of it to its end and returns what it printed.
pub fn ask<S: AsRef<OsStr>>(program: &Path, args: impl IntoIterator<Item = S>) -> Result<String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "potok failed: {error}");
    Ok(String::from_utf8(output.stdout)?)
}

/// `orders` at work in a folder; killed when dropped.
pub struct Running {
    child: Child,
    address: String,
    /// For its CPU time and memory.
    pub process: Process,
}

impl Running {
    /// Starts it. Returns once it says where it listens.
    pub fn start(program: &Path, data: &Path) -> Result<Self> {
        fs::create_dir_all(data)?;
        let journal = File::create(data.join("stderr.log"))?;
        let child = Command::new(program)
            .arg("run")
            .arg(root().join("pipelines/orders.yaml"))
            .args(["--admin", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir"])
            .arg(data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(journal)
            .spawn()?;
        let process = Process::of(child.id());
        let mut running = Running { child, address: String::new(), process };
        while running.address.is_empty() {
            if running.child.try_wait()?.is_some() {
                bail!("potok ended: {}", fs::read_to_string(data.join("stderr.log"))?);
            }
            running.address = running.said(data).unwrap_or_default();
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(running)
    }

    fn said(&self, data: &Path) -> Option<String> {
        let said: Value = serde_json::from_slice(&fs::read(data.join("admin.json")).ok()?).ok()?;
        (said["pid"] == self.child.id()).then(|| said["address"].as_str().map(str::to_owned))?
    }

    /// Where its admin API listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A counter of the pipeline, asked over HTTP: starting a command would cost more than the
    /// answer.
    pub fn count(&self, field: &str) -> Result<u64> {
        let mut stream = TcpStream::connect(&self.address)?;
        let host = &self.address;
        write!(stream, "GET /api/v1/status HTTP/1.0\r\nHost: {host}\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").context("an answer")?;
        let line = body.lines().find(|line| line.contains("\"orders\"")).context("the pipeline")?;
        let status: Value = serde_json::from_str(line)?;
        let status = status.get(0).unwrap_or(&status);
        status[field].as_u64().with_context(|| format!("{field} in {status}"))
    }

    /// Waits until so many records have been delivered.
    pub fn delivered(&self, records: u64) -> Result<()> {
        while self.count("delivered")? < records {
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
