//! The dashboard: what its pages cost with a million groups and a million dead letters, and what ten
//! people who follow them cost the lanes.
//! A drop of all is among the pages; a dry run of a replay, which tries some out, and a trace, which reads
//! the log, have bounds of their own.
//!
//! One process runs three pipelines: one holds the groups, one sets everything aside, one copies
//! records from a topic to another. Pages are asked for over HTTP, one connection each. For the lanes
//! the third pipeline is paused, given its records, and resumed, turn by turn with and without viewers.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::measure::{Run, now};
use crate::potok::{self, Running};
use crate::report::{Contest, Side, median, print_goal, thousands};

const VIEWERS: usize = 10;
const ROUNDS: usize = 5;
/// How often each page is asked for.
const LOOKS: usize = 20;
const PAGE_MAX: f64 = 100.0;
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Nothing takes so long unless it has got stuck.
const STUCK: Duration = Duration::from_secs(600);
/// Records of one request.
const AT_ONCE: u64 = 50_000;

/// A dry run tries some of them out, for so long at most.
const DRY_RUN_MAX: f64 = 2_500.0;
/// A trace reads the log for so long at most.
const TRACE_MAX: f64 = 6_000.0;

const PAGES: [&str; 14] = [
    "/",
    "/pipelines/held",
    "/pipelines/refused",
    "/pipelines/flow?window=6h",
    "/groups?pipeline=held",
    "/groups?pipeline=held&key=g-99",
    "/groups?pipeline=held&state=sealed",
    "/groups/held/g-777",
    "/dead-letters",
    "/dead-letters?pipeline=refused&reason=undecodable&since=24h",
    "/dead-letters?pipeline=refused&cause={cause}",
    "/dead-letters?pipeline=refused&after={letter}",
    "/dead-letters?id={letter}",
    "/audit",
];

/// Pages of which a person knows that they count or try out something.
const DROP: &str = "/dead-letters/drop?pipeline=refused";
const REPLAY: &str = "/dead-letters/replay?pipeline=refused";
const TRACE: &str = "/trace?id=k-777";

/// Runs and prints.
pub fn run(quick: bool) -> Result<()> {
    let many: u64 = if quick { 100_000 } else { 1_000_000 };
    let program = potok::build()?;
    let scratch = tempfile::tempdir()?;
    let files = pipelines(scratch.path())?;
    let data = scratch.path().join("data");
    let process = Running::start_all(&program, &data, "flow", &files)?;
    println!("dashboard: {0} groups and {0} dead letters in one process", thousands(many));
    fill(&process, "held-in", many, |n| {
        let value = format!("{{\"n\":{n}}}");
        serde_json::json!({ "headers": [["group", format!("g-{n}")]], "value": value })
    })?;
    fill(
        &process,
        "refused-in",
        many,
        |n| serde_json::json!({ "key": format!("k-{n}"), "value": format!("{{\"n\":{n}") }),
    )?;
    until("held", || Ok(process.status_of("held")?["open_groups"].as_u64() == Some(many)))?;
    until("set aside", || {
        Ok(process.status_of("refused")?["dead_letters_open"].as_u64() == Some(many))
    })?;
    first_look(&process, many)?;
    let paths = paths(&process)?;
    pages(&process, &paths)?;
    lanes(&process, &paths, if quick { 100_000 } else { 1_000_000 })
}

fn pipelines(folder: &Path) -> Result<Vec<PathBuf>> {
    let texts = [
        (
            "held",
            "name: held\nsource: { topic: held-in }\ndecode: { format: raw }\n\
             group: { by: header.group, close: { after_first: 6h } }\ndeliver: [{ topic: held-out }]\n",
        ),
        (
            "refused",
            "name: refused\nsource: { topic: refused-in }\ndecode: { format: json }\n\
             deliver: [{ topic: refused-out }]\n",
        ),
        (
            "flow",
            "name: flow\nsource: { topic: flow-in }\ndecode: { format: json }\n\
             deliver: [{ topic: flow-out }]\n",
        ),
    ];
    let write = |(name, text): (&str, &str)| {
        let file = folder.join(format!("{name}.yaml"));
        std::fs::write(&file, text)?;
        Ok(file)
    };
    texts.into_iter().map(write).collect()
}

fn fill(
    process: &Running,
    topic: &str,
    count: u64,
    record: impl Fn(u64) -> serde_json::Value,
) -> Result<()> {
    for from in (0..count).step_by(AT_ONCE as usize) {
        let mut body = String::new();
        for n in from..count.min(from + AT_ONCE) {
            writeln!(body, "{}", record(n))?;
        }
        process.post(&format!("/api/v1/topics/{topic}/records"), &body)?;
    }
    Ok(())
}

fn until(what: &str, done: impl Fn() -> Result<bool>) -> Result<()> {
    let deadline = now() + STUCK;
    while !done()? {
        ensure!(now() < deadline, "not everything is {what} in time");
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// The first look reads all dead letters; pages follow meanwhile.
fn first_look(process: &Running, many: u64) -> Result<()> {
    let began = now();
    let mut times = Vec::new();
    loop {
        let asked = now();
        let page = process.get("/dead-letters?pipeline=refused")?;
        times.push(asked.elapsed().as_secs_f64() * 1e3);
        if !page.contains("are being counted") && page.contains(&thousands(many)) {
            break;
        }
        ensure!(began.elapsed() < STUCK, "not everything is counted in time");
        std::thread::sleep(LOOK_EVERY);
    }
    let slowest = times.iter().copied().fold(0.0, f64::max);
    println!(
        "  dead letters are all counted after {:.1} s; {} pages meanwhile, slowest {slowest:.1} ms",
        began.elapsed().as_secs_f64(),
        times.len(),
    );
    Ok(())
}

/// The pages, about a dead letter and a cause that there are.
fn paths(process: &Running) -> Result<Vec<String>> {
    let list = process.get("/dead-letters?pipeline=refused")?;
    let named = |name: &str| {
        let (_, rest) = list.split_once(&format!("{name}="))?;
        rest.split(['"', '&']).next()
    };
    let letter = named("/dead-letters?id").context("a dead letter is listed")?;
    let cause = named("cause").context("a cause is listed")?;
    let filled = |path: &str| path.replace("{letter}", letter).replace("{cause}", cause);
    Ok(PAGES.iter().map(|path| filled(path)).chain([DROP.to_owned()]).collect())
}

fn pages(process: &Running, paths: &[String]) -> Result<()> {
    let mut slowest = 0.0_f64;
    for path in paths {
        slowest = slowest.max(looked_at(process, path, LOOKS)?);
    }
    print_goal(&format!("slowest page {slowest:.1} ms"), "≤ 100 ms", slowest <= PAGE_MAX);
    for (what, path, max) in [("dry run", REPLAY, DRY_RUN_MAX), ("trace", TRACE, TRACE_MAX)] {
        let slowest = looked_at(process, path, LOOKS / 10)?;
        print_goal(&format!("{what} {slowest:.1} ms"), &format!("≤ {max} ms"), slowest <= max);
    }
    Ok(())
}

/// Asks for a page some times; the milliseconds that the slowest took.
fn looked_at(process: &Running, path: &str, looks: usize) -> Result<f64> {
    let (mut times, mut bytes) = (Vec::new(), 0);
    for _ in 0..looks {
        let asked = now();
        bytes = process.get(path)?.len();
        times.push(asked.elapsed().as_secs_f64() * 1e3);
    }
    let most = times.iter().copied().fold(0.0, f64::max);
    println!(
        "  {path:<62} median {:>6.1} ms   slowest {most:>6.1} ms   {:>4} KiB",
        median(times),
        bytes / 1_024
    );
    Ok(most)
}

fn lanes(process: &Running, paths: &[String], records: u64) -> Result<()> {
    let before = process.status_of("flow")?["delivered"].as_u64().unwrap_or_default();
    let delivered = AtomicU64::new(before);
    let round = |viewers: usize| -> Result<Run> {
        process.post("/api/v1/pipelines/flow/pause", "")?;
        fill(
            process,
            "flow-in",
            records,
            |n| serde_json::json!({ "key": format!("k-{}", n % 1_000), "value": format!("{{\"n\":{n}}}") }),
        )?;
        let watched = Viewers::start(process.address(), paths, viewers)?;
        let goal = delivered.fetch_add(records, Ordering::Relaxed) + records;
        let (began, cpu) = (now(), process.process.cpu()?);
        process.post("/api/v1/pipelines/flow/resume", "")?;
        until("delivered", || {
            Ok(process.status_of("flow")?["delivered"].as_u64().is_some_and(|count| count >= goal))
        })?;
        let (wall, cpu) = (began.elapsed(), process.process.cpu()? - cpu);
        watched.stop(viewers)?;
        Ok(Run { records, wall, cpu, peak: process.process.peak()?, servers: None })
    };
    let (alone, watched): (&'static str, &'static str) = ("no viewer", "ten viewers");
    let sides: Vec<Side<'_>> =
        vec![(alone, Box::new(|| round(0))), (watched, Box::new(|| round(VIEWERS)))];
    Contest::of("dashboard: topic → JSON → topic, with and without viewers", ROUNDS, sides)?.ratio(
        watched,
        alone,
        Some(0.95),
    )
}

/// People who follow a page each.
struct Viewers {
    stop: Arc<AtomicBool>,
    read: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Viewers {
    fn start(address: &str, paths: &[String], count: usize) -> Result<Self> {
        let (stop, read) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut threads = Vec::new();
        for path in paths.iter().cycle().take(count) {
            let mut stream = TcpStream::connect(address)?;
            stream.set_read_timeout(Some(Duration::from_millis(200)))?;
            let view = path
                .replace('%', "%25")
                .replace('?', "%3F")
                .replace('&', "%26")
                .replace('=', "%3D");
            write!(stream, "GET /events?view={view} HTTP/1.1\r\nHost: {address}\r\n\r\n")?;
            let (stop, read) = (stop.clone(), read.clone());
            threads.push(std::thread::spawn(move || {
                let mut buffer = vec![0; 64 << 10];
                while !stop.load(Ordering::Relaxed) {
                    // A time-out is only a look at whether to stop.
                    if let Ok(count) = stream.read(&mut buffer) {
                        read.fetch_add(count as u64, Ordering::Relaxed);
                        if count == 0 {
                            return;
                        }
                    }
                }
            }));
        }
        Ok(Viewers { stop, read, threads })
    }

    fn stop(self, viewers: usize) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().ok().context("a viewer")?;
        }
        let read = self.read.load(Ordering::Relaxed);
        ensure!(viewers == 0 || read > 0, "the viewers saw nothing");
        Ok(())
    }
}
