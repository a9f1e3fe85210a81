//! What an idle connection costs: ten thousand WebSockets, opened by another process as a browser
//! does it, with a long token in the query.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::{SinkExt, StreamExt};
use potok_hub::tokens::{Authority, Person, Refusal};
use potok_hub::{Hub, HubSettings, Limits, Node, UserId};
use tokio_tungstenite::tungstenite::Message;

/// As in the product.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CLIENTS: usize = 10_000;
const SPARE_FILES: usize = 200;
const BYTES_MAX: usize = 6 << 10;
const TOKEN_BYTES: usize = 2_500;
const ADDRESS: &str = "POTOK_TEST_IDLE_ADDRESS";
const PATIENCE: Duration = Duration::from_secs(120);

/// Believes everybody: the token begins with the user's name.
struct Believer;

#[async_trait]
impl Authority for Believer {
    async fn verify(&self, token: &str) -> Result<Person, Refusal> {
        let user = token.split('.').next().ok_or(Refusal::Missing)?;
        let expires = potok_hub::tokens::development::now() + Duration::from_secs(3600);
        Ok(Person { user: UserId::new(user), expires, issued: None })
    }
}

fn open_files_max() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    files.split_whitespace().nth(3).unwrap().parse().unwrap_or(usize::MAX)
}

/// Lets this process and its children open a file for every client. With fewer clients it would be
/// another measurement.
fn allow_open_files() {
    let wanted = CLIENTS + SPARE_FILES;
    if open_files_max() < wanted {
        let (process, files) =
            (format!("--pid={}", std::process::id()), format!("--nofile={wanted}:"));
        // Within the hard limit anybody may. Whether it worked is looked at below.
        let _ = Command::new("prlimit").args([process, files]).status();
    }
    let may = open_files_max();
    assert!(may >= wanted, "{wanted} open files are needed, {may} are allowed: ulimit -n {wanted}");
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kilobytes: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kilobytes << 10
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_costs_less_than_six_kilobytes() {
    allow_open_files();
    // However long it takes to connect them all, the first of them are not too silent.
    let long = Duration::from_secs(3_600);
    let limits = Limits { silent_for: long, handshake_within: long, ..Limits::default() };
    let settings = HubSettings { limits, ..HubSettings::default() };
    let node = Node::start(settings, Arc::new(Believer), HashMap::new());
    let listener = potok_hub::listen(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(potok_hub::serve(listener, node.clone(), std::future::pending()));
    let before = resident_bytes();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "connects_where_it_is_told_to", "--nocapture"])
        .env(ADDRESS, address.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let connected = tokio::task::block_in_place(|| {
        lines.by_ref().map(Result::unwrap).find(|line| line.contains("all are connected"))
    });
    assert!(connected.is_some(), "the clients gave up");
    let count = CLIENTS;
    assert_eq!(node.stats().connections, count);
    let settled = async {
        loop {
            let each = resident_bytes().saturating_sub(before) / count;
            if each < BYTES_MAX {
                return each;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let each = tokio::time::timeout(PATIENCE, settled).await.unwrap_or_else(|_| {
        let each = resident_bytes().saturating_sub(before) / count;
        panic!("{each} bytes for each of {count} connections");
    });
    println!("{each} bytes for each of {count} connections");
    drop(child.stdin.take());
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The other process: connects, says so, and waits until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connects_where_it_is_told_to() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let connect = |number: usize| {
        let token = format!("user-{number}.{}", "x".repeat(TOKEN_BYTES));
        let url = format!("ws://{address}/hubs/notifications?access_token={token}");
        async move {
            let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
            let handshake = "{\"protocol\":\"json\",\"version\":1}\u{1e}{\"type\":6}\u{1e}";
            socket.send(Message::text(handshake)).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("{}\u{1e}"));
            socket
        }
    };
    let connecting = futures::stream::iter((0..CLIENTS).map(connect)).buffer_unordered(32);
    let held: Vec<_> = connecting.collect().await;
    println!("all are connected");
    let mut line = String::new();
    tokio::task::block_in_place(|| std::io::stdin().read_line(&mut line)).unwrap();
    drop(held);
}
