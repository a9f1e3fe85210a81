//! Clients that break the rules of the socket, hold on to what they do not need, or stand still in the
//! middle of a request.

use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use potok_hub::{AckRule, Answer, Hub, Limits, Outgoing, Ticket, UserId};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::{self, Message};

use crate::support::{Client, Recorder, TestHub, ask, frame, patiently, until};

/// Too large, not text, with bits of an extension that was not agreed, and the middle of nothing.
pub fn bad_frames() -> [Message; 4] {
    let raw = |bytes: &[u8], kind| Frame::message(bytes.to_vec(), OpCode::Data(kind), true);
    let mut reserved = raw(b"{}\x1e", Data::Text);
    reserved.header_mut().rsv1 = true;
    [
        Message::text("x".repeat(40_000)),
        Message::Frame(raw(b"\xff\xfe\x1e", Data::Text)),
        Message::Frame(reserved),
        Message::Frame(raw(b"{}\x1e", Data::Continue)),
    ]
}

#[tokio::test]
async fn frames_that_break_the_rules_end_their_connection_with_a_word() {
    let hub = TestHub::start().await;
    for bad in bad_frames() {
        let mut client = hub.connect("mallory").await;
        client.socket.send(bad).await.unwrap();
        let closed = client.hear().await;
        assert_eq!((&closed["type"], closed["error"].is_string()), (&json!(7), true), "{closed}");
        assert_eq!(closed.get("allowReconnect"), None);
        assert_eq!(client.heard().await, None);
        until("it is gone", || hub.node.stats().connections == 0).await;
    }
}

async fn status(url: &str, token: &str) -> u16 {
    match Client::open(url, token).await {
        Ok(_) => 101,
        Err(tungstenite::Error::Http(answer)) => answer.status().as_u16(),
        Err(error) => panic!("{error}"),
    }
}

/// What was negotiated costs nothing; what is attached does, also before it has shaken hands, and
/// without a socket where it polls.
#[tokio::test]
async fn connections_before_their_handshake_are_bounded() {
    let limits = Limits { connections: 4, connections_per_user: 2, ..Limits::default() };
    let hub = TestHub::limited(limits).await;
    let (alice, carol) = (hub.token("alice"), hub.token("carol"));
    let path = |negotiated: serde_json::Value| {
        format!("/hubs/notifications?id={}", negotiated["connectionToken"].as_str().unwrap())
    };
    let (hers, carols) = (path(hub.negotiate(&alice).await), path(hub.negotiate(&carol).await));
    let mut first = hub.attach(&alice).await;
    let _second = hub.attach(&alice).await;
    let url = format!("ws://{}/hubs/notifications", hub.address);
    assert_eq!(status(&url, &alice).await, 503);
    let bearer = |token: &str| format!("Bearer {token}");
    let poll = ask(&hub, "GET", &hers, &[("authorization", &bearer(&alice))]).await;
    assert_eq!((poll.status, hub.node.stats().connections), (503, 2));
    // Nobody else is kept out, and she is not once one of hers is open.
    first.shake_hands().await;
    let (_third, _bob) = (hub.attach(&alice).await, hub.attach(&hub.token("bob")).await);
    // Who negotiated while there was room does not get in when there is none.
    let poll = ask(&hub, "GET", &carols, &[("authorization", &bearer(&carol))]).await;
    assert_eq!((poll.status, hub.node.stats().connections), (503, 4));
    drop((first, _second));
    until("there is room", || hub.node.stats().connections == 2).await;
    let poll = ask(&hub, "GET", &carols, &[("authorization", &bearer(&carol))]).await;
    assert_eq!((poll.status, hub.node.stats().connections), (200, 3));
    hub.attach(&alice).await;
}

/// The head of a request, whose body or answer is left to the test.
async fn request(hub: &TestHub, head: &str, token: &str) -> TcpStream {
    let mut socket = TcpStream::connect(hub.address).await.unwrap();
    let head = format!("{head}\r\nHost: a\r\nAuthorization: Bearer {token}\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    socket
}

/// An event stream, open for messages.
async fn event_stream(hub: &TestHub, token: &str) -> (TcpStream, String) {
    let negotiated = hub.negotiate(token).await;
    let path =
        format!("/hubs/notifications?id={}", negotiated["connectionToken"].as_str().unwrap());
    let mut stream = request(hub, &format!("GET {path} HTTP/1.1"), token).await;
    stream.write_all(b"Accept: text/event-stream\r\n\r\n").await.unwrap();
    let mut begun = [0; 12];
    patiently("an answer", stream.read_exact(&mut begun)).await.unwrap();
    assert_eq!(&begun, b"HTTP/1.1 200");
    let mut post = request(hub, &format!("POST {path} HTTP/1.1"), token).await;
    let body = "{\"protocol\":\"json\",\"version\":1}\u{1e}";
    let body = format!("Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    post.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    patiently("an answer", post.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    (stream, path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_stream_that_is_never_read_is_dropped() {
    let limits = Limits { stalled_for: Duration::from_secs(1), ..Limits::default() };
    let per_client = 2 * limits.queued_bytes + limits.unanswered_bytes;
    let hub = TestHub::limited(limits).await;
    let _deaf = event_stream(&hub, &hub.token("alice")).await;
    let (recorder, large) = (Arc::new(Recorder::default()), json!("x".repeat(60_000)));
    let (mut sent, mut most) = (0, 0);
    while hub.node.stats().slow == 0 {
        let outgoing = Outgoing {
            ticket: Ticket(sent),
            user: UserId::new("alice"),
            frame: frame(&large),
            ack_within: Duration::from_millis(1),
            ack: AckRule::Any,
        };
        sent += 1;
        hub.node.send(vec![outgoing], recorder.clone()).await.unwrap();
        most = most.max(hub.node.stats().queued_bytes);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(most <= per_client, "{most} bytes");
    until("it is gone", || hub.node.stats().connections == 0).await;
    until("nothing is kept", || hub.node.stats().queued_bytes == 0).await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let limits = Limits { head_within: Duration::from_millis(500), ..Limits::default() };
    let hub = TestHub::limited(limits).await;
    let token = hub.token("alice");
    let (_stream, path) = event_stream(&hub, &token).await;
    let mut slow = request(&hub, &format!("POST {path} HTTP/1.1"), &token).await;
    slow.write_all(b"Content-Length: 100\r\n\r\n{").await.unwrap();
    let mut answer = [0; 12];
    patiently("an answer", slow.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
    assert_eq!(hub.node.stats().users, 1, "the connection stays");
}

/// The stream goes while the handshake is on its way: nobody is there, and nobody is let in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_that_comes_after_the_end_opens_nothing() {
    let hub = TestHub::limited(Limits { linger: Duration::ZERO, ..Limits::default() }).await;
    let token = hub.token("alice");
    let negotiated = hub.negotiate(&token).await;
    let path =
        format!("/hubs/notifications?id={}", negotiated["connectionToken"].as_str().unwrap());
    let mut stream = request(&hub, &format!("GET {path} HTTP/1.1"), &token).await;
    stream.write_all(b"Accept: text/event-stream\r\n\r\n").await.unwrap();
    let mut begun = [0; 12];
    patiently("an answer", stream.read_exact(&mut begun)).await.unwrap();
    let mut post = request(&hub, &format!("POST {path} HTTP/1.1"), &token).await;
    let body = "{\"protocol\":\"json\",\"version\":1}\u{1e}";
    let length = body.len();
    let more =
        format!("Expect: 100-continue\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    post.write_all(more.as_bytes()).await.unwrap();
    // Said when the hub waits for the body, and has found the connection.
    let goes_on = b"HTTP/1.1 100 Continue\r\n\r\n";
    let mut said = vec![0; goes_on.len()];
    patiently("a word", post.read_exact(&mut said)).await.unwrap();
    assert_eq!(said, goes_on);
    drop(stream);
    until("the stream is gone", || hub.node.stats().connections == 0).await;
    post.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    patiently("an answer", post.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    assert_eq!(hub.node.stats().users, 0);
    assert_eq!(hub.send("alice", json!(1)).await.answer().await, Answer::Nobody);
}

/// A client that speaks MessagePack, after its handshake.
async fn in_messagepack(hub: &TestHub) -> Client {
    let mut client = hub.attach(&hub.token("mallory")).await;
    client.write("{\"protocol\":\"messagepack\",\"version\":1}\u{1e}").await;
    assert_eq!(binary(&mut client).await.as_deref(), Some(b"{}\x1e".as_slice()));
    client
}

/// The next message that is no ping; `None` at the end.
async fn binary(client: &mut Client) -> Option<Vec<u8>> {
    loop {
        match patiently("a message", client.socket.next()).await {
            Some(Ok(Message::Binary(bytes))) if bytes[..] == [2, 0x91, 6] => {}
            Some(Ok(Message::Binary(bytes))) => return Some(bytes.to_vec()),
            Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
            Some(Ok(_)) => {}
        }
    }
}

/// What is no MessagePack, or more than there may be, costs its sender the connection, and nobody
/// else anything.
#[tokio::test]
async fn malformed_messagepack_ends_its_connection() {
    let hub = TestHub::start().await;
    let mut alice = hub.connect("alice").await;
    let counted = |body: &[u8]| [&[body.len() as u8], body].concat();
    let billions = [0xdd, 0xff, 0xff, 0xff, 0xff];
    let deep = [&[0x95, 1, 0x80, 0xc0, 0xa1, b'x'], [0x91; 100].as_slice()].concat();
    for (what, bytes) in [
        ("a length without end", vec![0xff; 5]),
        ("a length beyond the limit", vec![0x81, 0x80, 2]),
        ("an empty message", vec![0]),
        ("a byte without a meaning", counted(&[0xc1])),
        ("no array", counted(&[6])),
        ("a message that is cut off", counted(&[0x95, 1, 0x80, 0xc0])),
        ("an id that is not UTF-8", counted(&[0x95, 1, 0x80, 0xa1, 0xff, 0xa1, b'x', 0x90])),
        ("a target that is no text", counted(&[0x95, 1, 0x80, 0xc0, 7, 0x90])),
        (
            "billions of arguments",
            counted(&[&[0x95, 1, 0x80, 0xc0, 0xa1, b'x'], billions.as_slice()].concat()),
        ),
        ("arguments without a bottom", counted(&deep)),
        ("a completion of no kind", counted(&[0x94, 3, 0x80, 0xa1, b'x', 9])),
    ] {
        let mut mallory = in_messagepack(&hub).await;
        mallory.socket.send(Message::binary(bytes)).await.unwrap();
        let farewell = binary(&mut mallory).await.unwrap_or_default();
        let farewell = String::from_utf8_lossy(&farewell).into_owned();
        assert!(farewell.contains("broke the protocol"), "{what}: {farewell}");
        assert_eq!(binary(&mut mallory).await, None, "{what}");
    }
    // What MessagePack can say and JSON cannot is no reason to part.
    let mut mallory = in_messagepack(&hub).await;
    let extension = [&[0x95, 1, 0x80, 0xa1, b'7', 0xa4], b"echo".as_slice(), &[0x91, 0xd4, 5, 0]];
    mallory.socket.send(Message::binary(counted(&extension.concat()))).await.unwrap();
    let answer = binary(&mut mallory).await.unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("Failed to invoke 'echo'"), "{answer}");
    drop(mallory);
    until("they are gone", || hub.node.stats().connections == 1).await;
    let ask = hub.send("alice", json!(1)).await;
    let id = alice.invoked().await;
    alice.complete(&id).await;
    assert_eq!(ask.answer().await, Answer::Acknowledged);
}
