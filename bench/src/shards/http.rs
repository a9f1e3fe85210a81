//! Events over HTTP: potok's intake against a bare handler that appends bodies to a file.
//!
//! Both are processes of their own and get the same bodies from the same clients. Both answer after an
//! fsync, and make one for all requests that wait for it. The bare handler looks at nothing; potok checks
//! each event, finds its key and frames it. Its pipeline is paused meanwhile: what is measured is taking.

use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use potok_traffic::shop::ShopGenerator;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::ROUNDS;
use crate::measure::{Process, Run, now};
use crate::potok::{self, Running, Start};
use crate::report::{Contest, Side};

const CLIENTS: usize = 32;
/// Events in a body: one, as a shop would send it, and many, as a collector would.
const BODIES: [usize; 2] = [1, 100];
const LOOK_EVERY: Duration = Duration::from_millis(10);
const NAME: &str = "intake";
const PIPELINE: &str = "name: intake\nsource: { http: /events, topic: in, key: .shop_id }\ndeliver: [{ topic: out }]\n";

/// Runs and prints.
pub fn run(program: &Path, scratch: &Path, events: usize) -> Result<()> {
    let runtime = Runtime::new()?;
    for each in BODIES {
        // Single events take a request each, which takes longer.
        let events = if each == 1 { events / 10 } else { events };
        let bodies = bodies(events, each);
        let (bare, ours) = ("bare handler, file", "potok");
        let folder = scratch.join(format!("intake-{each}"));
        let sides: Vec<Side<'_>> = vec![
            (bare, Box::new(|| with_bare(&runtime, &folder, &bodies, events))),
            (ours, Box::new(|| with_potok(&runtime, program, &folder, &bodies, events))),
        ];
        let title =
            format!("shards: events over HTTP, {each} to a body, {CLIENTS} clients at once");
        Contest::of(&title, ROUNDS, sides)?.ratio(ours, bare, Some(0.7))?;
    }
    Ok(())
}

/// Whole requests, as clients send them.
fn bodies(events: usize, each: usize) -> Vec<Vec<u8>> {
    let mut generator = ShopGenerator::good_only(9);
    let body = |_| {
        let lines = (0..each).map(|_| generator.next_event().bytes);
        let body = lines.collect::<Vec<_>>().join(&b"\n"[..]);
        let head = format!(
            "POST /events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        [head.into_bytes(), body].concat()
    };
    (0..events / each).map(body).collect()
}

fn with_potok(
    runtime: &Runtime,
    program: &Path,
    folder: &Path,
    bodies: &[Vec<u8>],
    events: usize,
) -> Result<Run> {
    empty(folder)?;
    let file = folder.join("intake.yaml");
    fs::write(&file, PIPELINE)?;
    let data = folder.join("data");
    let start = Start { pipeline: NAME, file: &file, config: None, variables: &[] };
    let running = Running::start_with(program, &data, start)?;
    let pause = ["pause", NAME, "--admin", running.address()];
    potok::ask(program, pause)?;
    let address = running.http()?.parse()?;
    posted(runtime, &running.process, address, bodies, events)
}

fn with_bare(runtime: &Runtime, folder: &Path, bodies: &[Vec<u8>], events: usize) -> Result<Run> {
    empty(folder)?;
    let child = Command::new(std::env::current_exe()?)
        .arg("--bare-http")
        .arg(folder)
        .stdin(Stdio::null())
        .spawn()?;
    let mut child = Handler(child);
    let address = loop {
        if let Some(status) = child.0.try_wait()? {
            bail!("the bare handler ended: {status}");
        }
        let said = fs::read_to_string(folder.join("address")).unwrap_or_default();
        match said.parse::<SocketAddr>() {
            Ok(address) => break address,
            Err(_) => std::thread::sleep(LOOK_EVERY),
        }
    };
    let process = Process::of(child.0.id());
    let run = posted(runtime, &process, address, bodies, events)?;
    let body_bytes = |request: &Vec<u8>| {
        let head = request.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or_default();
        (request.len() - head - 4) as u64
    };
    let wanted: u64 = bodies.iter().map(body_bytes).sum();
    let there = fs::metadata(folder.join("bodies"))?.len();
    ensure!(there == wanted, "{there} of {wanted} bytes are in the file");
    Ok(run)
}

fn empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    Ok(fs::create_dir_all(folder)?)
}

/// The other process; killed when dropped.
struct Handler(Child);

impl Drop for Handler {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Posts all bodies and waits for all answers.
fn posted(
    runtime: &Runtime,
    process: &Process,
    address: SocketAddr,
    bodies: &[Vec<u8>],
    events: usize,
) -> Result<Run> {
    // Cloned before: what clients do is measured with whoever answers.
    let shares: Vec<Vec<Vec<u8>>> = (0..CLIENTS)
        .map(|client| bodies.iter().skip(client).step_by(CLIENTS).cloned().collect())
        .collect();
    let (start, cpu) = (now(), process.cpu()?);
    runtime.block_on(async {
        let mut clients = JoinSet::new();
        for share in shares {
            clients.spawn(client(address, share));
        }
        while let Some(ended) = clients.join_next().await {
            ended??;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    let wall = start.elapsed();
    let (cpu, peak) = (process.cpu()? - cpu, process.peak()?);
    Ok(Run { records: events as u64, wall, cpu, peak, servers: None })
}

async fn client(address: SocketAddr, requests: Vec<Vec<u8>>) -> Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut answer = Vec::new();
    for request in &requests {
        stream.write_all(request).await?;
        answer.clear();
        while !is_whole(&answer)? {
            ensure!(stream.read_buf(&mut answer).await? > 0, "the connection was closed");
        }
        ensure!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
    Ok(())
}

/// True for an answer that has come with its body.
fn is_whole(answer: &[u8]) -> Result<bool> {
    let Some(head) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(false);
    };
    let text = std::str::from_utf8(answer.get(..head).unwrap_or_default())?.to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length.context("a length")?.trim().parse()?;
    Ok(answer.len() >= head + 4 + length)
}

/// A body, and who waits for it to be durable.
type UnsyncedBody = (Bytes, oneshot::Sender<()>);

/// What somebody would write: a handler, and a thread that writes what waits and syncs once for all
/// of it.
pub fn bare(folder: &Path) -> Result<()> {
    let file = File::create(folder.join("bodies"))?;
    Runtime::new()?.block_on(async {
        let (sender, bodies) = mpsc::channel(1_024);
        std::thread::spawn(move || append(file, bodies));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let unfinished = folder.join("address.new");
        fs::write(&unfinished, listener.local_addr()?.to_string())?;
        fs::rename(unfinished, folder.join("address"))?;
        let router = Router::new().route("/events", post(take)).with_state(sender);
        Ok(axum::serve(listener, router).await?)
    })
}

async fn take(State(bodies): State<mpsc::Sender<UnsyncedBody>>, body: Bytes) -> StatusCode {
    let (done, durable) = oneshot::channel();
    if bodies.send((body, done)).await.is_err() || durable.await.is_err() {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    StatusCode::OK
}

fn append(mut file: File, mut bodies: mpsc::Receiver<UnsyncedBody>) -> Result<()> {
    let mut buffer = Vec::new();
    while let Some(first) = bodies.blocking_recv() {
        let mut waiting = vec![first];
        while let Ok(next) = bodies.try_recv() {
            waiting.push(next);
        }
        buffer.clear();
        waiting.iter().for_each(|(body, _)| buffer.extend_from_slice(body));
        file.write_all(&buffer)?;
        file.sync_data()?;
        for (_, done) in waiting {
            // Who has hung up wants no answer.
            let _ = done.send(());
        }
    }
    Ok(())
}
