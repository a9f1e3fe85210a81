//! Clients in a process of their own: they connect, answer every message as the stock client does,
//! and note how long it took to reach them.

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Connects at a time.
const AT_A_TIME: usize = 64;
const HANDSHAKE: &[u8] = b"{\"protocol\":\"json\",\"version\":1}\x1e";

/// The name of a client's user.
pub fn user(number: usize) -> String {
    format!("user-{number}")
}

/// How late messages were.
pub struct Lateness {
    pub p99: Duration,
}

/// The other process, from here.
pub struct Clients {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    pub connected_in: Duration,
}

impl Clients {
    /// Starts it and waits until all are connected.
    pub fn connect(address: SocketAddr, count: usize) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["--hub-clients", &format!("{address}/{count}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = process.stdin.take().context("its input")?;
        let output = BufReader::new(process.stdout.take().context("its output")?).lines();
        let mut clients = Clients { process, input, output, connected_in: Duration::ZERO };
        clients.connected_in = clients.duration()?;
        Ok(clients)
    }

    /// How late the messages were since the last report.
    pub fn report(&mut self) -> Result<Lateness> {
        writeln!(self.input, "report")?;
        Ok(Lateness { p99: self.duration()? })
    }

    fn duration(&mut self) -> Result<Duration> {
        let line = self.output.next().context("the clients gave up")??;
        Ok(Duration::from_micros(line.parse()?))
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

type Late = Arc<Mutex<Vec<u64>>>;

/// The other process itself: `127.0.0.1:4711/1000`.
pub fn run(place: &str) -> Result<()> {
    let (address, count) = place.split_once('/').context("an address and a count")?;
    let (address, count): (SocketAddr, usize) = (address.parse()?, count.parse()?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let late = Late::default();
    let (connected, took) = super::timed(|| runtime.block_on(connect_all(address, count)))?;
    for stream in connected {
        runtime.spawn(answer(stream, late.clone()));
    }
    println!("{}", took.as_micros());
    for line in std::io::stdin().lines() {
        line?;
        let mut seen = std::mem::take(&mut *late.lock().unwrap_or_else(PoisonError::into_inner));
        seen.sort_unstable();
        let p99 = seen.get(seen.len().saturating_sub(1) * 99 / 100).copied();
        println!("{}", p99.unwrap_or_default());
    }
    Ok(())
}

async fn connect_all(address: SocketAddr, count: usize) -> Result<Vec<TcpStream>> {
    let connecting = (0..count).map(|number| connect(address, user(number)));
    let connecting = futures::stream::iter(connecting).buffer_unordered(AT_A_TIME);
    let all: Vec<Result<TcpStream>> = connecting.collect().await;
    all.into_iter().collect()
}

async fn connect(address: SocketAddr, token: String) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let head = format!(
        "GET /hubs/notifications?access_token={token} HTTP/1.1\r\nHost: {address}\r\n\
         Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await?);
    }
    if !answer.starts_with(b"HTTP/1.1 101") {
        bail!("refused: {}", String::from_utf8_lossy(&answer));
    }
    stream.write_all(&masked(HANDSHAKE)).await?;
    // Two bytes of a frame, and `{}` with its end.
    let mut shaken = [0; 5];
    stream.read_exact(&mut shaken).await?;
    Ok(stream)
}

/// A text frame, masked with zeros.
fn masked(text: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x81];
    match text.len() {
        short @ 0..126 => frame.push(0x80 | short as u8),
        long => {
            frame.push(0x80 | 126);
            frame.extend((long as u16).to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend(text);
    frame
}

async fn answer(mut stream: TcpStream, late: Late) {
    let mut held = Vec::new();
    let mut part = vec![0; 2_048];
    loop {
        while let Some((start, end)) = frame(&held) {
            let text = held.get(start..end).unwrap_or_default();
            if let Some(at) = between(text, b"\"at\":", b",") {
                let at = std::str::from_utf8(at).ok().and_then(|at| at.parse().ok());
                let took = super::since(at.unwrap_or_default()).as_micros() as u64;
                late.lock().unwrap_or_else(PoisonError::into_inner).push(took);
            }
            if let Some(id) = between(text, b"\"invocationId\":\"", b"\"") {
                let id = String::from_utf8_lossy(id);
                let said = format!(
                    "{{\"error\":\"Client didn't provide a result.\",\"invocationId\":\"{id}\",\"type\":3}}\u{1e}"
                );
                if stream.write_all(&masked(said.as_bytes())).await.is_err() {
                    return;
                }
            }
            held.drain(..end);
        }
        match stream.read(&mut part).await {
            Ok(0) | Err(_) => return,
            Ok(count) => held.extend_from_slice(part.get(..count).unwrap_or_default()),
        }
    }
}

/// Where the payload of the first whole frame begins and ends.
fn frame(bytes: &[u8]) -> Option<(usize, usize)> {
    let (start, length) = match *bytes.get(1)? {
        126 => (4, u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]) as usize),
        short => (2, short as usize),
    };
    (bytes.len() >= start + length).then_some((start, start + length))
}

fn between<'a>(text: &'a [u8], before: &[u8], behind: &[u8]) -> Option<&'a [u8]> {
    let start = memchr::memmem::find(text, before)? + before.len();
    let rest = text.get(start..)?;
    rest.get(..memchr::memmem::find(rest, behind)?)
}
