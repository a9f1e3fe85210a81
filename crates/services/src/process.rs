//! One process of a service: started, watched, killed, frozen.
//!
//! Signals go to the process while it is ours to wait for, so never to a stranger that got its
//! number, and to its children, found by their parent.

use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::ports;
use crate::spawn::spawn;
use crate::wait::{PATIENCE, until};

/// How long a stop in good order may take before it becomes a kill.
const STOP_MAX: Duration = Duration::from_secs(30);
/// How long a signal may take to show.
const SIGNAL_MAX: Duration = Duration::from_secs(10);
/// How much of a log a failure shows.
const TAIL_LINES_MAX: usize = 40;

#[derive(Debug)]
pub struct Process {
    name: String,
    folder: PathBuf,
    log: PathBuf,
    /// The signal that asks for a stop in good order.
    stop: i32,
    child: Mutex<Option<Child>>,
}

impl Process {
    pub fn new(name: &str, folder: &Path, log: &str, stop: i32) -> Self {
        let (name, log) = (name.to_owned(), folder.join(log));
        Process { name, folder: folder.to_owned(), log, stop, child: Mutex::new(None) }
    }

    /// Starts it and returns when `probe` succeeds.
    pub fn launch(&self, command: Command, probe: impl FnMut() -> Result<()>) -> Result<()> {
        self.start(command)?;
        self.ready(probe)
    }

    /// Starts it, its output at the end of its log.
    pub fn start(&self, mut command: Command) -> Result<()> {
        let mut child = self.child();
        ensure!(child.is_none(), "{} runs already", self.name);
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // A group of its own: Ctrl-C at a terminal is for us, who stop services in good order.
        command.current_dir(&self.folder).process_group(0);
        *child = Some(spawn(command)?);
        Ok(())
    }

    /// Waits until `probe` succeeds; what is wrong comes with the end of the log.
    pub fn ready(&self, mut probe: impl FnMut() -> Result<()>) -> Result<()> {
        let mut last = None;
        let answered = until(PATIENCE, || {
            if let Some(ended) = self.ended() {
                return Some(Err(anyhow::anyhow!("{} ended: {ended}", self.name)));
            }
            probe().map(Ok).map_err(|error| last = Some(error)).ok()
        });
        let failure = match answered {
            Some(Ok(())) => return Ok(()),
            Some(Err(ended)) => ended,
            None => {
                let why = last.map(|error| format!("{error:#}")).unwrap_or_default();
                anyhow::anyhow!("{} does not answer within {PATIENCE:?}: {why}", self.name)
            }
        };
        // Reaped here, so that another try can start it.
        let _ = self.kill();
        let (log, tail) = (self.log.display(), self.tail());
        // Some say it long before they end.
        let taken =
            if ports::mentions_taken(&self.logs()) { "address already in use; " } else { "" };
        bail!("{failure}; {taken}the end of {log}:\n{tail}")
    }

    /// How it ended, where it did without being told to.
    fn ended(&self) -> Option<String> {
        match self.child().as_mut() {
            None => Some("it was stopped".to_owned()),
            Some(child) => child.try_wait().ok()?.map(|status| status.to_string()),
        }
    }

    pub fn pid(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    /// SIGKILL, to its children too; waits until they are gone. Nothing to do where it is not
    /// running.
    pub fn kill(&self) -> Result<()> {
        let Some(mut child) = self.child().take() else { return Ok(()) };
        let pid = child.id();
        // A stopped parent makes no more children, and does not mourn those killed before it.
        signal(pid, libc::SIGSTOP);
        until(SIGNAL_MAX, || stopped(pid).then_some(()));
        let children = descendants(pid);
        child.kill().with_context(|| format!("cannot kill {}", self.name))?;
        child.wait().with_context(|| format!("cannot wait for {}", self.name))?;
        self.bury(&children)
    }

    /// Kills what the process left behind. They are not ours to wait for, so each is asked for its
    /// folder before it gets a signal.
    fn bury(&self, children: &[u32]) -> Result<()> {
        let ours = |pid: &u32| {
            let place = fs::read_link(format!("/proc/{pid}/cwd"));
            place.is_ok_and(|place| place.starts_with(&self.folder))
        };
        let gone = until(SIGNAL_MAX, || {
            let left: Vec<_> = children.iter().copied().filter(ours).collect();
            left.iter().for_each(|pid| signal(*pid, libc::SIGKILL));
            left.is_empty().then_some(())
        });
        gone.with_context(|| format!("children of {} survive SIGKILL", self.name))
    }

    /// Asks it to stop and waits; kills it where that takes too long.
    pub fn stop(&self) -> Result<()> {
        self.ask_to_stop();
        self.wait_stopped()
    }

    /// The first half of a stop, for services of several processes.
    pub fn ask_to_stop(&self) {
        if let Some(child) = self.child().as_ref() {
            let pid = child.id();
            // A frozen process hears nothing but SIGKILL.
            descendants(pid).into_iter().for_each(|child| signal(child, libc::SIGCONT));
            signal(pid, libc::SIGCONT);
            signal(pid, self.stop);
        }
    }

    /// The second half of a stop.
    pub fn wait_stopped(&self) -> Result<()> {
        let stopped = until(STOP_MAX, || {
            let mut child = self.child();
            let ended = match child.as_mut() {
                None => true,
                Some(child) => !matches!(child.try_wait(), Ok(None)),
            };
            ended.then(|| *child = None)
        });
        if stopped.is_some() { Ok(()) } else { self.kill() }
    }

    /// SIGSTOP, to its children too; returns when all stand still.
    pub fn freeze(&self) -> Result<()> {
        let pid = self.pid().with_context(|| format!("{} does not run", self.name))?;
        signal(pid, libc::SIGSTOP);
        let frozen = until(SIGNAL_MAX, || {
            // Its children are all there only when it stands still itself.
            let all: Vec<_> = stopped(pid).then(|| descendants(pid))?;
            let moving: Vec<_> = all.into_iter().filter(|child| !stopped(*child)).collect();
            moving.iter().for_each(|child| signal(*child, libc::SIGSTOP));
            moving.is_empty().then_some(())
        });
        frozen.with_context(|| format!("{} does not freeze", self.name))
    }

    /// SIGCONT, to its children too.
    pub fn thaw(&self) -> Result<()> {
        let pid = self.pid().with_context(|| format!("{} does not run", self.name))?;
        descendants(pid).into_iter().for_each(|child| signal(child, libc::SIGCONT));
        signal(pid, libc::SIGCONT);
        let moving = until(SIGNAL_MAX, || (!stopped(pid)).then_some(()));
        moving.with_context(|| format!("{} does not thaw", self.name))
    }

    pub fn logs(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn tail(&self) -> String {
        let logs = self.logs();
        let lines: Vec<_> = logs.lines().collect();
        let from = lines.len().saturating_sub(TAIL_LINES_MAX);
        lines.get(from..).unwrap_or_default().join("\n")
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    /// What it holds is thrown away, so there is nothing to stop in good order.
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

#[allow(unsafe_code, reason = "the standard library sends no signal but SIGKILL")]
fn signal(pid: u32, signal: i32) {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return };
    // SAFETY: it takes two numbers. Failing means that the process is gone, which callers see.
    unsafe { libc::kill(pid, signal) };
}

/// The parent and the state of a process: the fields behind its name, which may contain anything.
fn parent_and_state(pid: u32) -> Option<(u32, char)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((fields.next()?.parse().ok()?, state))
}

/// Whether it stands still: stopped, or dead already.
fn stopped(pid: u32) -> bool {
    parent_and_state(pid).is_none_or(|(_, state)| matches!(state, 'T' | 't' | 'Z' | 'X'))
}

/// Children, their children, and so on.
fn descendants(pid: u32) -> Vec<u32> {
    let listed = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes: Vec<(u32, u32)> = listed
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|process| Some((process, parent_and_state(process)?.0)))
        .collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        let children = processes.iter().filter(|(_, its)| *its == parent);
        found.extend(children.map(|(process, _)| *process));
        next += 1;
    }
    found.split_off(1)
}
