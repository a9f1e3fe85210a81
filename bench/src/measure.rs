//! Time, CPU time and peak memory of this process or another, from `/proc`.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

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
    /// CPU seconds of the servers it used meanwhile.
    pub servers: Option<f64>,
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
        // User and system time.
        ticks(&self.proc, 2)
    }

    /// The same with its children, those that are gone too: some servers are a family.
    pub fn family_cpu(&self) -> Result<f64> {
        // Behind its own times are those of its children that have ended.
        let mut cpu = ticks(&self.proc, 4)?;
        let tasks = fs::read_dir(format!("{}/task", self.proc))?;
        for task in tasks {
            let children = task?.path().join("children");
            for child in fs::read_to_string(children).unwrap_or_default().split_whitespace() {
                // One that has just ended is among the others now, or will be.
                cpu += ticks(&format!("/proc/{child}"), 2).unwrap_or_default();
            }
        }
        Ok(cpu)
    }

    /// Peak resident memory in bytes.
    pub fn peak(&self) -> Result<u64> {
        self.status("VmHWM:")
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> Result<u64> {
        self.status("VmRSS:")
    }

    fn status(&self, name: &'static str) -> Result<u64> {
        let status = fs::read_to_string(format!("{}/status", self.proc))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib: u64 =
            line.and_then(|l| l.split_whitespace().next()?.parse().ok()).context(name)?;
        Ok(kib * 1024)
    }

    /// Forgets the peak so far; only for one's own process.
    pub fn forget_peak(&self) -> Result<()> {
        Ok(fs::write(format!("{}/clear_refs", self.proc), "5")?)
    }
}

/// CPU seconds of a process: the first so many of the times in its `stat`.
fn ticks(proc: &str, times: usize) -> Result<f64> {
    let stat = fs::read_to_string(format!("{proc}/stat"))?;
    // The name in parentheses may hold anything; the times begin with the 12th field behind it.
    let (_, fields) = stat.rsplit_once(')').context("a name in /proc/…/stat")?;
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(times).flat_map(str::parse::<u64>).sum();
    Ok(ticks as f64 / TICKS)
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
    Ok(Run { records, wall, cpu: own.cpu()? - cpu, peak: own.peak()?, servers: None })
}

/// Nothing here takes so long unless it has got stuck.
const STUCK: Duration = Duration::from_secs(120);

/// Watches `process` handle `total` records, from the first that are seen to be done to the last:
/// neither its start nor the first answers of the servers count. `servers` are asked for their
/// CPU seconds.
pub fn watch(
    process: &Process,
    total: u64,
    look_every: Duration,
    servers: impl Fn() -> Result<f64>,
    done: impl Fn() -> Result<u64>,
) -> Result<Run> {
    let first = moved(0, total, look_every, &done)?;
    let (start, cpu, before) = (now(), process.cpu()?, servers()?);
    let (mut last, mut wall) = (first, Duration::ZERO);
    while last < total {
        last = moved(last, total, look_every, &done)?;
        wall = start.elapsed();
    }
    ensure!(first < total, "{total} records are too few to measure: all were done at once");
    let servers = Some(servers()? - before);
    let (cpu, peak) = (process.cpu()? - cpu, process.peak()?);
    Ok(Run { records: total - first, wall, cpu, peak, servers })
}

/// Watches `process` from the moment its work is seen to have begun until all of `total` records
/// are done: for work that shows no results before its end.
pub fn watch_from(
    process: &Process,
    total: u64,
    look_every: Duration,
    servers: impl Fn() -> Result<f64>,
    begun: impl Fn() -> Result<u64>,
    done: impl Fn() -> Result<u64>,
) -> Result<Run> {
    moved(0, total, look_every, &begun)?;
    let (start, cpu, before) = (now(), process.cpu()?, servers()?);
    let mut last = 0;
    while last < total {
        last = moved(last, total, look_every, &done)?;
    }
    let wall = start.elapsed();
    let servers = Some(servers()? - before);
    let (cpu, peak) = (process.cpu()? - cpu, process.peak()?);
    Ok(Run { records: total, wall, cpu, peak, servers })
}

/// Waits until a count is higher than it was.
fn moved(
    from: u64,
    total: u64,
    look_every: Duration,
    count: impl Fn() -> Result<u64>,
) -> Result<u64> {
    let since = now();
    loop {
        let count = count()?;
        if count > from {
            return Ok(count);
        }
        ensure!(since.elapsed() < STUCK, "stuck at {count} of {total}");
        std::thread::sleep(look_every);
    }
}
