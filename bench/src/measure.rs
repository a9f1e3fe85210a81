//! Time, CPU time and peak memory of this process or another, from `/proc`.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Ticks per second in `/proc`: 100 on every Linux.
const TICKS: f64 = 100.0;

/// What one run took.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Records it handled.
    pub records: u64,
    /// Wall time.
    pub wall: Duration,
    /// CPU seconds of all threads, kernel included.
    pub cpu: f64,
    /// Peak resident memory in bytes.
    pub peak: u64,
}

impl Run {
    /// Records per second.
    pub fn rate(&self) -> f64 {
        self.records as f64 / self.wall.as_secs_f64()
    }

    /// CPU seconds per record.
    pub fn cpu_each(&self) -> f64 {
        // A run too short for the kernel's clock counts as one tick of it.
        self.cpu.max(1.0 / TICKS) / self.records as f64
    }
}

/// A process under observation.
#[derive(Clone, Debug)]
pub struct Process {
    proc: String,
}

impl Process {
    /// This one.
    pub fn own() -> Self {
        Process { proc: "/proc/self".to_owned() }
    }

    /// Another one.
    pub fn of(pid: u32) -> Self {
        Process { proc: format!("/proc/{pid}") }
    }

    /// CPU seconds used so far.
    pub fn cpu(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("{}/stat", self.proc))?;
        // The name in parentheses may hold anything; user and system time are the 12th and 13th
        // field behind it.
        let (_, fields) = stat.rsplit_once(')').context("a name in /proc/…/stat")?;
        let ticks: u64 =
            fields.split_whitespace().skip(11).take(2).flat_map(str::parse::<u64>).sum();
        Ok(ticks as f64 / TICKS)
    }

    /// Peak resident memory in bytes.
    pub fn peak(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("{}/status", self.proc))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib: u64 =
            line.and_then(|l| l.split_whitespace().next()?.parse().ok()).context("VmHWM")?;
        Ok(kib * 1024)
    }

    /// Forgets the peak so far; only for one's own process.
    pub fn forget_peak(&self) -> Result<()> {
        Ok(fs::write(format!("{}/clear_refs", self.proc), "5")?)
    }
}

/// The time, for measuring only.
#[allow(clippy::disallowed_methods, reason = "measuring is what this program is for")]
pub fn now() -> Instant {
    Instant::now()
}

/// Measures `work` in this process.
pub fn measure(records: u64, work: impl FnOnce() -> Result<()>) -> Result<Run> {
    let own = Process::own();
    own.forget_peak()?;
    let (cpu, start) = (own.cpu()?, now());
    work()?;
    let wall = start.elapsed();
    Ok(Run { records, wall, cpu: own.cpu()? - cpu, peak: own.peak()? })
}
