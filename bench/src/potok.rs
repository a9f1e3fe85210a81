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
    ask_with(program, args, &[])
}

/// The same with some variables set.
pub fn ask_with<S: AsRef<OsStr>>(
    program: &Path,
    args: impl IntoIterator<Item = S>,
    variables: &[(&str, &str)],
) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args).envs(variables.iter().copied()).stdin(Stdio::null());
    let output = command.output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "potok failed: {error}");
    Ok(String::from_utf8(output.stdout)?)
}

/// What is started.
#[derive(Clone, Copy)]
pub struct Start<'a> {
    /// The name of the pipeline.
    pub pipeline: &'a str,
    /// The file it is in.
    pub file: &'a Path,
    /// The connections file, where there is one.
    pub config: Option<&'a Path>,
    /// Variables that are set.
    pub variables: &'a [(&'a str, &'a str)],
}

/// A pipeline at work in a folder; killed when dropped.
pub struct Running {
    child: Child,
    pipeline: String,
    address: String,
    /// What it says on its standard error.
    journal: PathBuf,
    /// For its CPU time and memory.
    pub process: Process,
}

impl Running {
    /// Starts `orders`. Returns once it says where it listens.
    pub fn start(program: &Path, data: &Path) -> Result<Self> {
        let file = root().join("pipelines/orders.yaml");
        let start = Start { pipeline: "orders", file: &file, config: None, variables: &[] };
        Running::start_with(program, data, start)
    }

    /// The same of any pipeline.
    pub fn start_with(program: &Path, data: &Path, start: Start<'_>) -> Result<Self> {
        let files = [start.file.to_owned()];
        Running::start_files(program, data, start, &files)
    }

    /// Several pipelines in one process; `pipeline` is the one that is asked about.
    pub fn start_all(
        program: &Path,
        data: &Path,
        pipeline: &str,
        files: &[PathBuf],
    ) -> Result<Self> {
        let start = Start { pipeline, file: data, config: None, variables: &[] };
        Running::start_files(program, data, start, files)
    }

    fn start_files(
        program: &Path,
        data: &Path,
        start: Start<'_>,
        files: &[PathBuf],
    ) -> Result<Self> {
        let Start { pipeline, config, variables, .. } = start;
        fs::create_dir_all(data)?;
        let journal = data.join("stderr.log");
        let stderr = File::create(&journal)?;
        let child = Command::new(program)
            .arg("run")
            .args(files)
            .args(["--admin", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir"])
            .arg(data)
            .args(config.into_iter().flat_map(|config| [Path::new("--config"), config]))
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()?;
        let process = Process::of(child.id());
        let pipeline = pipeline.to_owned();
        let mut running = Running { child, pipeline, address: String::new(), journal, process };
        while running.address.is_empty() {
            if running.child.try_wait()?.is_some() {
                bail!("potok ended: {}", fs::read_to_string(&running.journal)?);
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

    /// Where its HTTP sources listen.
    pub fn http(&self) -> Result<String> {
        let info: Value = serde_json::from_str(&self.get("/api/v1/info")?)?;
        Ok(info["http"].as_str().context("an address for HTTP")?.to_owned())
    }

    /// A counter of the pipeline.
    pub fn count(&self, field: &str) -> Result<u64> {
        let status = self.status()?;
        status[field].as_u64().with_context(|| format!("{field} in {status}"))
    }

    /// The pipeline's line, asked over HTTP: starting a command would cost more than the answer.
    pub fn status(&self) -> Result<Value> {
        self.status_of(&self.pipeline)
    }

    /// The same of another pipeline of the process.
    pub fn status_of(&self, pipeline: &str) -> Result<Value> {
        let body = self.get("/api/v1/status")?;
        let name = format!("\"{pipeline}\"");
        let line = body.lines().find(|line| line.contains(&name)).context("the pipeline")?;
        let status: Value = serde_json::from_str(line)?;
        // Beside what runs here are those that left something behind.
        let own = |status: &&Value| status["pipeline"] == pipeline;
        let own = status.as_array().map_or(Some(&status), |all| all.iter().find(own));
        own.cloned().context("the pipeline")
    }

    /// What it answers.
    pub fn get(&self, path: &str) -> Result<String> {
        self.request(&format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address))
    }

    /// Sends lines of JSON, or asks for a change; returns when it is done.
    pub fn post(&self, path: &str, body: &str) -> Result<()> {
        let (address, length) = (&self.address, body.len());
        let answer = self.request(&format!(
            "POST {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/x-ndjson\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        ))?;
        ensure!(!answer.starts_with("{\"error\""), "{path}: {answer}");
        Ok(())
    }

    fn request(&self, request: &str) -> Result<String> {
        let said = || fs::read_to_string(&self.journal).unwrap_or_default();
        let mut stream = TcpStream::connect(&self.address)
            .with_context(|| format!("potok does not answer; it said: {}", said()))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").context("an answer")?;
        Ok(body.to_owned())
    }

    /// A histogram among its metrics: upper bounds in seconds and how many are below, the last
    /// bound being infinite.
    pub fn histogram(&self, name: &str) -> Result<Vec<(f64, u64)>> {
        let (bucket, own) = (format!("{name}_bucket{{"), format!("\"{}\"", self.pipeline));
        let page = self.get("/metrics")?;
        let lines = page.lines().filter(|line| line.starts_with(&bucket) && line.contains(&own));
        let read = |line: &str| {
            let (_, rest) = line.split_once("le=\"")?;
            let (bound, rest) = rest.split_once('"')?;
            let count = rest.split_whitespace().last()?;
            // `+Inf` is how both write infinity.
            Some((bound.parse().ok()?, count.parse::<f64>().ok()? as u64))
        };
        let buckets: Option<Vec<_>> = lines.map(read).collect();
        buckets.filter(|buckets| !buckets.is_empty()).with_context(|| format!("{name} in {page}"))
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
