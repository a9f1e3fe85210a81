//! A data folder, the process that runs on it, and the commands one gives to either.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tempfile::TempDir;

use crate::wait;

/// The shipped pipelines.
pub fn pipelines() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pipelines").canonicalize().unwrap()
}

/// Small segments, so that rolls, checkpoints and unlinks happen within a test.
pub const SMALL_SEGMENTS: (&str, &str) = ("POTOK_SEGMENT_BYTES", "65536");

/// What a finished command left.
#[derive(Debug)]
pub struct ProcessOutput {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl ProcessOutput {
    /// Standard output, which must be text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("output is UTF-8")
    }

    /// Fails unless it went well.
    #[track_caller]
    pub fn good(self) -> Self {
        self.exits(0)
    }

    /// Fails unless it ended with this code.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.stderr, self.text());
        self
    }

    /// Lines of JSON.
    #[track_caller]
    pub fn lines(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).expect(line);
        self.text().lines().map(parse).collect()
    }
}

/// A command of the binary under test, free of settings that happen to be around.
pub fn potok<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = without_settings(env!("CARGO_BIN_EXE_potok"));
    command.args(args);
    command
}

/// A program that is given none of the settings that happen to be around.
pub fn without_settings(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("POTOK_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command to its end with `input` on its standard input.
pub fn run(mut command: Command, input: &[u8]) -> ProcessOutput {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    let mut stdin = child.stdin.take().expect("piped");
    let output = std::thread::scope(|scope| {
        // It may stop reading early, which its exit code tells better than a broken pipe does.
        scope.spawn(move || stdin.write_all(input).ok());
        child.wait_with_output().expect("the command ends")
    });
    ProcessOutput {
        code: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A scratch folder with potok's data and its settings in it.
pub struct Home {
    dir: TempDir,
    /// Processes that were started here.
    starts: AtomicUsize,
}

impl Home {
    pub fn new() -> Self {
        let home = Home {
            dir: tempfile::tempdir().expect("a scratch folder"),
            starts: AtomicUsize::new(0),
        };
        fs::create_dir(home.data()).unwrap();
        home.settings("");
        home
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn data(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("data")
    }

    pub fn database(&self) -> PathBuf {
        self.data().join("db/orders.sqlite")
    }

    /// Writes `potok.yaml`.
    pub fn settings(&self, yaml: &str) {
        fs::write(self.path().join("potok.yaml"), yaml).unwrap();
    }

    /// A command on this folder.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = potok(args);
        command.current_dir(self.path()).arg("--data-dir").arg(self.data());
        command
    }

    /// Runs a command on this folder to its end.
    pub fn run<const N: usize>(&self, args: [&str; N]) -> ProcessOutput {
        run(self.command(args), b"")
    }

    /// Starts the shipped `orders` and waits until it is ready.
    pub fn start(&self) -> Running {
        self.start_with(&[]).unwrap_or_else(|end| panic!("potok ended at start: {end}"))
    }

    /// Starts `orders` with more in its environment; `Err` says how it ended before it was ready.
    pub fn start_with(&self, environment: &[(&str, &str)]) -> Result<Running, String> {
        self.start_file(&pipelines().join("orders.yaml"), environment)
    }

    /// Starts one pipeline file.
    pub fn start_file(&self, file: &Path, environment: &[(&str, &str)]) -> Result<Running, String> {
        self.spawn(file, environment)?.ready()
    }

    #[allow(dead_code, reason = "for the tests on real services")]
    /// Starts `orders` where it cannot become ready, and returns when it listens.
    pub fn start_unready(&self, environment: &[(&str, &str)]) -> Running {
        self.start_file_unready(&pipelines().join("orders.yaml"), environment)
    }

    /// The same of another file.
    pub fn start_file_unready(&self, file: &Path, environment: &[(&str, &str)]) -> Running {
        let running = self.spawn(file, environment);
        running.unwrap_or_else(|end| panic!("potok ended at start: {end}"))
    }

    /// True when one process has done everything here: what it counts is all there is.
    pub fn has_started_once(&self) -> bool {
        self.starts.load(Ordering::Relaxed) == 1
    }

    fn spawn(&self, file: &Path, environment: &[(&str, &str)]) -> Result<Running, String> {
        self.starts.fetch_add(1, Ordering::Relaxed);
        let mut command = self.command([Path::new("run"), file]);
        command.args(["--admin", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
        command.envs(environment.iter().copied());
        Running::spawn(command, self.journal()).listening(&self.data())
    }

    /// What all processes of this folder have said.
    fn journal(&self) -> PathBuf {
        self.path().join("stderr.log")
    }
}

impl Drop for Home {
    /// Who fails wants to know what was said, by whom of several as well.
    fn drop(&mut self) {
        let journal = end_of(&self.journal(), 300);
        if std::thread::panicking() && !journal.is_empty() {
            eprintln!("--- what was said in {}:\n{journal}", self.path().display());
        }
    }
}

/// The last lines of a file.
fn end_of(file: &Path, lines_max: usize) -> String {
    let text = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(lines_max)..].join("\n")
}

/// Where the process with this id listens, once it has said so in its data folder.
fn address_of(pid: u32, data: &Path) -> Option<String> {
    let bytes = fs::read(data.join("admin.json")).ok()?;
    let said: Value = serde_json::from_slice(&bytes).ok()?;
    let address = said["address"].as_str()?;
    (said["pid"] == pid).then(|| address.trim_start_matches("http://").to_owned())
}

/// A running potok; killed when dropped.
pub struct Running {
    child: Child,
    pub address: String,
    journal: PathBuf,
}

impl Running {
    /// Starts a command and lets it write into `journal`.
    pub fn spawn(mut command: Command, journal: PathBuf) -> Self {
        let open = || File::options().create(true).append(true).open(&journal).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(open())
            .stderr(open())
            .spawn()
            .expect("the binary starts");
        Running { child, address: String::new(), journal }
    }

    /// Waits until it says in its data folder where it listens; `Err` says how it ended before.
    pub fn listening(mut self, data: &Path) -> Result<Self, String> {
        self.address = wait::until("potok says where it listens", || {
            address_of(self.child.id(), data).map(Ok).or_else(|| self.early_end().map(Err))
        })?;
        Ok(self)
    }

    /// Waits until it is ready; `Err` says how it ended before.
    pub fn ready(mut self) -> Result<Self, String> {
        wait::until("potok is ready", || match self.get("/ready") {
            Some((200, _)) => Some(Ok(())),
            _ => self.early_end().map(Err),
        })?;
        Ok(self)
    }

    /// Runs a command against this very process. Never opens the folder itself.
    pub fn run<S: AsRef<std::ffi::OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
        input: &[u8],
    ) -> ProcessOutput {
        let mut command = potok(args);
        command.args(["--admin", &self.address]);
        run(command, input)
    }

    /// Sends one record per line; true when they were acknowledged.
    pub fn send_lines(&self, lines: &[u8], more: &[&str]) -> bool {
        let args = ["send", "orders"].iter().chain(more);
        self.run(args, lines).code == Some(0)
    }

    /// Status and body of a GET; `None` when nobody answers.
    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        self.get_as(path, &format!("Host: {}\r\n", self.address))
    }

    /// The same with other header lines. Written by hand: a client would put things right.
    pub fn get_as(&self, path: &str, headers: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    /// `potok status --json` of the one pipeline that runs.
    #[track_caller]
    pub fn status(&self) -> Value {
        let mut lines = self.run(["status", "--json"], b"").good().lines();
        assert_eq!(lines.len(), 1);
        lines.remove(0)
    }

    /// Waits until nothing is left to do, then says how it stands.
    pub fn drained(&self) -> Value {
        wait::until_seen("everything sent has ended", || {
            let status = self.status();
            let idle = status["lag"] == 0 && status["in_flight"] == 0;
            if idle && status["state"] == "running" { Ok(status) } else { Err(status) }
        })
    }

    /// How it ended, if it has.
    fn early_end(&mut self) -> Option<String> {
        let status = self.child.try_wait().unwrap()?;
        Some(format!("{status}\n{}", self.journal()))
    }

    /// True while the process has not ended.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal: `KILL`, `TERM`, `INT`, `STOP`, `CONT`.
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "{kill}");
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // Fails only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, and waits for the end it comes to by itself.
    pub fn stop(self) -> ExitStatus {
        self.signal("TERM");
        self.ended("potok stops when told to")
    }

    /// Ctrl-C, and waits for the end it comes to by itself.
    pub fn interrupt(self) -> ExitStatus {
        self.signal("INT");
        self.ended("potok stops at Ctrl-C")
    }

    /// Waits for an end that was arranged before.
    pub fn ended(mut self, what: &str) -> ExitStatus {
        wait::until(what, || self.child.try_wait().unwrap())
    }

    /// What it wrote, for messages.
    pub fn journal(&self) -> String {
        end_of(&self.journal, 40)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
