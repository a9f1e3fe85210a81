//! Crowds: a thousand connects a second, many who never read, half-open sockets. Memory is bounded,
//! and good clients notice nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use potok_hub::{AckRule, Answer, Hub, HubSettings, Limits, Outgoing, Ticket, UserId};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::support::{Client, Recorder, TestHub, frame, patiently, until};

/// A good client, asked again and again while something else goes on; how often it answered.
async fn undisturbed(hub: &TestHub, alice: &mut Client, mut done: impl FnMut() -> bool) -> u32 {
    let mut answered = 0;
    while !done() {
        let ask = hub.send("alice", json!(answered)).await;
        let id = alice.invoked().await;
        alice.complete(&id).await;
        assert_eq!(ask.answer().await, Answer::Acknowledged);
        answered += 1;
    }
    answered
}

/// A storm: all of them get in, none is refused, and somebody who was there notices nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_connects_is_let_in() {
    const STORM: usize = 1_000;
    // All of one address, as behind one of a carrier's: more than it may have without a token.
    assert!(STORM > Limits::default().strangers_per_address);
    let hub = Arc::new(TestHub::start().await);
    let mut alice = hub.connect("alice").await;
    let mut crowd = tokio::task::JoinSet::new();
    for number in 0..STORM {
        // A user may have 32 connections.
        let (hub, token) = (hub.clone(), hub.token(&format!("crowd-{}", number / 20)));
        crowd.spawn(async move {
            let mut client = hub.attach(&token).await;
            client.shake_hands().await;
            client
        });
    }
    let all = |hub: &TestHub| hub.node.stats().connections == STORM + 1;
    let answered = patiently("all are in", undisturbed(&hub, &mut alice, || all(&hub))).await;
    let mut inside = Vec::new();
    while let Some(client) = crowd.join_next().await {
        inside.push(client.unwrap());
    }
    assert_eq!((inside.len(), answered > 0), (STORM, true));
    assert_eq!(hub.node.stats().tokens_refused, 0);
    drop(inside);
    until("all are gone", || hub.node.stats().connections == 1).await;
    assert_eq!(hub.node.stats().queued_bytes, 0);
}

/// Memory of this process and of the kernel's sockets, in bytes.
fn memory() -> (usize, usize) {
    let number = |text: &str, before: &str| -> usize {
        let rest = text.split_once(before).unwrap().1;
        rest.split_whitespace().next().unwrap().parse().unwrap()
    };
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let sockets = std::fs::read_to_string("/proc/net/sockstat").unwrap();
    let tcp = sockets.lines().find(|line| line.starts_with("TCP:")).unwrap();
    (number(&status, "VmRSS:") << 10, number(tcp, " mem ") * 4096)
}

const DEAF: usize = 1_000;

/// A client that takes as little as it can.
async fn deaf(address: SocketAddr, token: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    let head = format!(
        "GET /hubs/notifications HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
         Authorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let handshake = b"{\"protocol\":\"json\",\"version\":1}\x1e";
    // Masked with zeros.
    stream.write_all(&[0x81, 0x80 | handshake.len() as u8, 0, 0, 0, 0]).await.unwrap();
    stream.write_all(handshake).await.unwrap();
    stream
}

/// What each of a thousand clients that take nothing costs at most: of this process, and of the
/// kernel.
async fn cost_of_the_deaf(listener: TcpListener) -> (usize, usize) {
    let limits = Limits { stalled_for: Duration::from_secs(3), ..Limits::default() };
    let hub = TestHub::on(HubSettings { limits, ..HubSettings::default() }, listener).await;
    let mut alice = hub.connect("alice").await;
    let mut deaf = Vec::new();
    for number in 0..DEAF {
        deaf.push(self::deaf(hub.address, &hub.token(&format!("deaf-{number}"))).await);
    }
    until("all are in", || hub.node.stats().users == DEAF + 1).await;
    let before = memory();
    let large = frame(&json!("x".repeat(60_000)));
    let recorder = Arc::new(Recorder::default());
    let (mut sent, mut most) = (0, (0, 0));
    while hub.node.stats().slow < DEAF as u64 {
        let batch: Vec<_> = (0..DEAF)
            .map(|number| Outgoing {
                ticket: Ticket(sent + number as u64),
                user: UserId::new(&format!("deaf-{number}")),
                frame: large.clone(),
                ack_within: Duration::from_millis(1),
                ack: AckRule::Any,
            })
            .collect();
        sent += DEAF as u64;
        hub.node.send(batch, recorder.clone()).await.unwrap();
        let mut once = 0;
        undisturbed(&hub, &mut alice, || std::mem::replace(&mut once, 1) == 1).await;
        let (resident, sockets) = memory();
        most = (most.0.max(resident), most.1.max(sockets));
    }
    // Frames are shared, queues hold references: far from 300 times what was sent.
    let per_client = |most: usize, before: usize| most.saturating_sub(before) / DEAF;
    let (resident, sockets) = (per_client(most.0, before.0), per_client(most.1, before.1));
    until("they are gone", || hub.node.stats().connections == 1).await;
    assert_eq!(recorder.count(sent as usize).await.len(), sent as usize);
    (resident, sockets)
}

/// What is kept for those who take nothing is bounded, here and in the kernel.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_who_never_read_fill_no_memory() {
    // What the kernel counts for a send buffer of 64 KiB, and a receive buffer on the other end.
    let bound = 512 << 10;
    let (resident, sockets) =
        cost_of_the_deaf(potok_hub::listen(([127, 0, 0, 1], 0).into()).unwrap()).await;
    let ours = Limits::default().queued_bytes + Limits::default().unanswered_bytes;
    assert!(resident <= ours, "{resident} bytes of memory for each of them");
    assert!(sockets <= bound, "{sockets} bytes of the kernel for each of them");
    // A listener whose sockets may hold what they like.
    let (_, naive) = cost_of_the_deaf(TcpListener::bind("127.0.0.1:0").await.unwrap()).await;
    assert!(naive > bound, "the naive version is seen: {naive} bytes of the kernel");
}

/// Sockets that say nothing, half a head, half a handshake, or go silent: each is dropped in its
/// time, and gives back its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connections_are_given_up() {
    let limits = Limits {
        head_within: Duration::from_secs(1),
        handshake_within: Duration::from_secs(1),
        silent_for: Duration::from_secs(2),
        strangers_per_address: 4,
        ..Limits::default()
    };
    let hub = TestHub::with(HubSettings { limits, ..HubSettings::default() }).await;
    let mut alice = hub.connect("alice").await;
    let mut sockets = Vec::new();
    for part in ["", "G", "GET /hubs/notifications HTTP/1.1\r\nHost: x\r\nX: "] {
        let mut socket = tokio::net::TcpStream::connect(hub.address).await.unwrap();
        socket.write_all(part.as_bytes()).await.unwrap();
        sockets.push(socket);
    }
    let mut unshaken = hub.attach(&hub.token("bob")).await;
    unshaken.write("{\"protocol\"").await;
    let mut silent = hub.connect("carol").await;
    // Clients ping from the beginning; who stops is silent.
    silent.say(json!({"type": 6})).await;
    let gone = || hub.node.stats().connections == 1;
    let mut pings = 0;
    // It speaks, so it stays.
    let staying = async {
        while !gone() {
            alice.say(json!({"type": 6})).await;
            pings += 1;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    patiently("they are given up", staying).await;
    drop((unshaken, silent));
    // Strangers have given back their places too: four may come again.
    for _ in 0..4 {
        let knocking = async {
            loop {
                let mut socket = tokio::net::TcpStream::connect(hub.address).await.unwrap();
                socket.write_all(b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
                let mut answer = [0; 12];
                if tokio::io::AsyncReadExt::read_exact(&mut socket, &mut answer).await.is_ok() {
                    assert_eq!(&answer, b"HTTP/1.1 404");
                    return;
                }
            }
        };
        patiently("a place for a stranger", knocking).await;
    }
    undisturbed(&hub, &mut alice, {
        let mut once = 0;
        move || std::mem::replace(&mut once, 1) == 1
    })
    .await;
}
