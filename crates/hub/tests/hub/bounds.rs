//! What clients can make the hub hold, and what a bad client costs a good one: nothing.

use std::sync::Arc;
use std::time::Duration;

use futures::SinkExt;
use potok_hub::trouble::Planted;
use potok_hub::{
    AckRule, Answer, Frame, FrameError, Hub, HubSettings, Limits, Outgoing, Ticket, UserId,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message;

use crate::support::{AN_HOUR, Recorder, TestHub, frame, patiently, until};

fn with(limits: Limits) -> HubSettings {
    HubSettings { limits, ..HubSettings::default() }
}

fn outgoing(number: u64, user: &str, payload: &Value) -> Outgoing {
    Outgoing {
        ticket: Ticket(number),
        user: UserId::new(user),
        frame: frame(payload),
        ack_within: AN_HOUR,
        ack: AckRule::Any,
    }
}

#[tokio::test]
async fn a_burst_costs_no_healthy_client_its_connection() {
    let hub = TestHub::start().await;
    let mut client = hub.connect("alice").await;
    let recorder = Arc::new(Recorder::default());
    let batch = (0..5_000).map(|number| outgoing(number, "alice", &json!(number))).collect();
    hub.node.send(batch, recorder.clone()).await.unwrap();
    // The window and what may wait behind it; the rest is told at once.
    let Limits { unanswered, waiting, .. } = Limits::default();
    for _ in 0..unanswered + waiting {
        let id = client.invoked().await;
        client.complete(&id).await;
    }
    let answers = recorder.count(5_000).await;
    let acknowledged = answers.iter().filter(|(_, answer)| *answer == Answer::Acknowledged);
    assert_eq!(acknowledged.count(), unanswered + waiting);
    let refused =
        answers.iter().filter(|(_, answer)| *answer == Answer::NoAnswer { written: false });
    assert_eq!(refused.count(), 5_000 - unanswered - waiting);
    assert_eq!(hub.node.stats().connections, 1);
    assert_eq!(hub.node.stats().queued_bytes, 0);
}

/// References to large messages are few bytes here, and many where they are kept alive by them.
#[tokio::test]
async fn what_waits_for_a_connection_is_bounded_in_bytes() {
    let hub = TestHub::start().await;
    let _client = hub.connect("alice").await;
    let (large, recorder) = (json!("x".repeat(60_000)), Arc::new(Recorder::default()));
    let limits = Limits::default();
    let batch = (0..limits.waiting as u64).map(|number| outgoing(number, "alice", &large));
    hub.node.send(batch.collect(), recorder.clone()).await.unwrap();
    let queued = hub.node.stats().queued_bytes;
    assert!(queued <= limits.unanswered_bytes + limits.queued_bytes, "{queued} bytes");
    let answers = recorder.answers.lock().unwrap().clone();
    assert!(answers.len() > limits.waiting / 2, "{} were refused at once", answers.len());
    assert!(answers.iter().all(|(_, answer)| *answer == Answer::NoAnswer { written: false }));
}

/// The same for somebody who may be back in a moment.
#[tokio::test]
async fn what_waits_for_a_user_is_bounded_in_bytes() {
    let hub = TestHub::limited(Limits { linger: AN_HOUR, ..Limits::default() }).await;
    drop(hub.connect("alice").await);
    until("the break is noticed", || hub.node.stats().connections == 0).await;
    let (large, recorder) = (json!("x".repeat(60_000)), Arc::new(Recorder::default()));
    let limits = Limits::default();
    let batch = (0..limits.waiting as u64).map(|number| outgoing(number, "alice", &large));
    hub.node.send(batch.collect(), recorder.clone()).await.unwrap();
    let queued = hub.node.stats().queued_bytes;
    assert!(queued > limits.queued_bytes / 2, "what waits is counted: {queued} bytes");
    assert!(queued <= limits.queued_bytes, "{queued} bytes");
    let refused = recorder.answers.lock().unwrap().clone();
    assert!(refused.len() > limits.waiting / 2, "{} were refused at once", refused.len());
    assert!(refused.iter().all(|(_, answer)| *answer == Answer::NoAnswer { written: false }));
    // She is back, and gets the rest; nothing stays counted.
    let mut alice = hub.connect("alice").await;
    for _ in refused.len()..limits.waiting {
        let id = alice.invoked().await;
        alice.complete(&id).await;
    }
    assert_eq!(recorder.count(limits.waiting).await.len(), limits.waiting);
    until("all is taken", || hub.node.stats().queued_bytes == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_read_are_dropped_and_disturb_nobody() {
    let limits = Limits { stalled_for: Duration::from_secs(1), ..Limits::default() };
    let hub = TestHub::with(with(limits)).await;
    let mut deaf = Vec::new();
    for number in 0..50 {
        deaf.push(hub.connect(&format!("deaf-{number}")).await);
    }
    let mut alice = hub.connect("alice").await;
    let large = json!("x".repeat(60_000));
    let recorder = Arc::new(Recorder::default());
    let mut sent = 0;
    let mut most = 0;
    // Until the kernel's buffers are full too, whatever their size.
    while hub.node.stats().slow < 50 {
        let batch: Vec<_> = (0..50)
            .map(|number| Outgoing {
                ack_within: Duration::from_millis(1),
                ..outgoing(sent, &format!("deaf-{number}"), &large)
            })
            .collect();
        sent += batch.len() as u64;
        hub.node.send(batch, recorder.clone()).await.unwrap();
        most = most.max(hub.node.stats().queued_bytes);
        let ask = hub.send("alice", json!("hello")).await;
        let id = alice.invoked().await;
        alice.complete(&id).await;
        assert_eq!(ask.answer().await, Answer::Acknowledged);
    }
    let per_client = Limits::default().queued_bytes + Limits::default().unanswered_bytes;
    assert!(most <= 51 * per_client, "{most} bytes were queued");
    until("all deaf clients are gone", || hub.node.stats().connections == 1).await;
    assert_eq!(recorder.count(sent as usize).await.len(), sent as usize);
    let acknowledged = hub.node.stats().acknowledged;
    assert_eq!(hub.node.stats().queued_bytes, 0);
    assert!(acknowledged > 0);
}

#[tokio::test]
async fn a_burst_without_a_window_costs_the_connection() {
    let hub = TestHub::planted(Some(Planted::NoWindow)).await;
    let _client = hub.connect("alice").await;
    let batch = (0..5_000).map(|number| outgoing(number, "alice", &json!(number))).collect();
    hub.node.send(batch, Arc::new(Recorder::default())).await.unwrap();
    assert_eq!(hub.node.stats().slow, 1, "the naive version is seen");
}

/// What can never be sent is refused before anybody is troubled with it.
#[tokio::test]
async fn a_payload_that_is_too_large_costs_nobody_a_connection() {
    let hub = TestHub::start().await;
    let mut clients = Vec::new();
    for user in ["alice", "bob", "carol"] {
        clients.push((user, hub.connect(user).await));
    }
    let large = json!("x".repeat(200 << 10)).to_string();
    let refused = Frame::new("notify", "m-1", large.as_bytes(), Limits::default().message_bytes);
    assert!(matches!(refused, Err(FrameError::TooLarge { bytes }) if bytes >= 200 << 10));
    for (user, client) in &mut clients {
        let ask = hub.send(user, json!("small")).await;
        let id = client.invoked().await;
        client.complete(&id).await;
        assert_eq!(ask.answer().await, Answer::Acknowledged);
    }
    assert_eq!(hub.node.stats().connections, 3);
}

/// How many of 200 are acknowledged by a client whose receive window is full, until it is dropped.
async fn completed_while_stuck(planted: Option<Planted>) -> usize {
    let limits = Limits {
        planted,
        stalled_for: Duration::from_secs(5),
        unanswered_bytes: 64 << 20,
        queued_bytes: 64 << 20,
        unanswered: 1_000,
        ..Limits::default()
    };
    let hub = TestHub::with(with(limits)).await;
    // Two connections of one user get the same ids; the second never reads.
    let (mut reader, mut stuck) = (hub.connect("alice").await, hub.connect("alice").await);
    let large = json!("x".repeat(60_000));
    let recorder = Arc::new(Recorder::default());
    let batch = (0..200).map(|number| outgoing(number, "alice", &large)).collect();
    hub.node.send(batch, recorder.clone()).await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..200 {
        ids.push(reader.invoked().await);
    }
    // Twelve megabytes do not fit between us.
    until("writing is stuck", || hub.node.stats().queued_bytes > 0).await;
    for id in &ids {
        stuck.complete(id).await;
    }
    let acknowledged = || hub.node.stats().acknowledged as usize;
    until("all are read, or the client is given up", || {
        acknowledged() == 200 || hub.node.stats().slow == 1
    })
    .await;
    acknowledged()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completions_are_read_while_writing_is_stuck() {
    assert_eq!(completed_while_stuck(None).await, 200);
    let naive = completed_while_stuck(Some(Planted::AwaitsSendInLoop)).await;
    assert_eq!(naive, 0, "the naive version is seen");
}

#[tokio::test]
async fn malformed_and_oversized_messages_end_their_connection_only() {
    let hub = TestHub::start().await;
    let mut alice = hub.connect("alice").await;
    let oversized = format!("{{\"type\":1,\"target\":\"{}\"}}\u{1e}", "x".repeat(40_000));
    let endless = "x".repeat(20_000);
    for bad in [
        vec!["{\"type\":\"6\"}\u{1e}".to_owned()],
        vec!["not json\u{1e}".to_owned()],
        vec!["{\"type\":3}\u{1e}".to_owned()],
        vec![oversized],
        vec![endless.clone(), endless],
    ] {
        let mut client = hub.connect("mallory").await;
        for part in bad {
            // The hub may have gone by the second part.
            let _ = client.socket.send(Message::text(part)).await;
        }
        while let Some(message) = client.heard().await {
            assert_eq!(message["type"], 7, "{message}");
            assert_eq!(message.get("allowReconnect"), None);
        }
    }
    let ask = hub.send("alice", json!(1)).await;
    let id = alice.invoked().await;
    alice.complete(&id).await;
    assert_eq!(ask.answer().await, Answer::Acknowledged);
}

#[tokio::test]
async fn a_client_that_floods_is_closed_and_its_answers_are_free() {
    let hub = TestHub::start().await;
    let mut client = hub.connect("alice").await;
    let recorder = Arc::new(Recorder::default());
    for round in 0..3 {
        let batch = (0..100).map(|number| outgoing(number, "alice", &json!(round))).collect();
        hub.node.send(batch, recorder.clone()).await.unwrap();
        for _ in 0..100 {
            let id = client.invoked().await;
            client.complete(&id).await;
        }
    }
    recorder.count(300).await;
    assert_eq!(hub.node.stats().connections, 1);
    let flood = "{\"type\":6}\u{1e}".repeat(500);
    client.write(&flood).await;
    let closed = client.hear().await;
    assert_eq!(closed["type"], 7);
    assert!(closed["error"].is_string());
}

#[tokio::test]
async fn a_user_with_too_many_connections_loses_the_oldest() {
    let limits = Limits { connections_per_user: 2, ..Limits::default() };
    let hub = TestHub::with(with(limits)).await;
    let mut oldest = hub.connect("alice").await;
    let _second = hub.connect("alice").await;
    let mut newest = hub.connect("alice").await;
    assert_eq!(oldest.hear().await, json!({"type": 7}));
    assert_eq!(oldest.heard().await, None);
    let ask = hub.send("alice", json!(1)).await;
    let id = newest.invoked().await;
    newest.complete(&id).await;
    assert_eq!(ask.answer().await, Answer::Acknowledged);
}

#[tokio::test]
async fn a_head_that_takes_too_long_is_cut_off() {
    let limits = Limits { head_within: Duration::from_millis(200), ..Limits::default() };
    let hub = TestHub::with(with(limits)).await;
    let mut socket = tokio::net::TcpStream::connect(hub.address).await.unwrap();
    socket.write_all(b"GET /hubs/notifications HTTP/1.1\r\nHost: a\r\nX-Slow: ").await.unwrap();
    let mut answer = Vec::new();
    patiently("the hub hangs up", socket.read_to_end(&mut answer)).await.unwrap();
    assert!(!String::from_utf8_lossy(&answer).contains("200"));
}

/// A byte now and then makes no progress.
#[tokio::test]
async fn a_head_that_trickles_is_cut_off() {
    let limits = Limits { head_within: Duration::from_secs(1), ..Limits::default() };
    let hub = TestHub::with(with(limits)).await;
    let socket = tokio::net::TcpStream::connect(hub.address).await.unwrap();
    let (mut reading, mut writing) = socket.into_split();
    let trickle = async {
        writing.write_all(b"GET /hubs/notifications HTTP/1.1\r\nX-Slow: ").await.unwrap();
        while writing.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        std::future::pending::<()>().await;
    };
    let mut answer = Vec::new();
    tokio::select! {
        () = trickle => {}
        // Closed, in good order or not.
        _ = patiently("the hub hangs up", reading.read_to_end(&mut answer)) => {}
    }
    assert!(!String::from_utf8_lossy(&answer).contains("200"));
}

#[tokio::test]
async fn a_client_without_a_handshake_does_not_stay() {
    let limits = Limits { handshake_within: Duration::from_secs(1), ..Limits::default() };
    let hub = TestHub::with(with(limits)).await;
    let mut client = hub.attach(&hub.token("alice")).await;
    assert_eq!(client.hear().await, json!({"error": "Handshake was canceled."}));
    assert_eq!(client.heard().await, None);
    until("it is gone", || hub.node.stats().connections == 0).await;
}

#[tokio::test]
async fn a_handshake_that_is_none_is_told_so() {
    let hub = TestHub::start().await;
    let unreadable = "An unexpected error occurred during connection handshake.";
    let version = "The server does not support version 7 of the 'json' protocol.";
    let large = "x".repeat(10_000);
    for (said, told) in [
        ("nonsense\u{1e}", unreadable),
        ("{\"protocol\":\"json\"}\u{1e}", unreadable),
        (large.as_str(), unreadable),
        ("{\"protocol\":\"json\",\"version\":7}\u{1e}", version),
    ] {
        let mut client = hub.attach(&hub.token("alice")).await;
        client.write(said).await;
        assert_eq!(client.hear().await, json!({"error": told}));
        assert_eq!(client.heard().await, None);
    }
    until("they are gone", || hub.node.stats().connections == 0).await;
    let counted = "closes_total{hub=\"notifications\",reason=\"handshake\"} 4\n";
    assert!(hub.node.metrics().contains(counted), "{}", hub.node.metrics());
}

/// A socket on which nothing more is asked is not kept.
#[tokio::test]
async fn a_socket_that_is_idle_after_an_answer_is_closed() {
    let limits = Limits { head_within: Duration::from_millis(200), ..Limits::default() };
    let hub = TestHub::with(with(limits)).await;
    let mut socket = tokio::net::TcpStream::connect(hub.address).await.unwrap();
    let path = "/hubs/notifications/negotiate?negotiateVersion=1";
    let token = hub.token("alice");
    let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n");
    socket.write_all(format!("{head}Content-Length: 0\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    patiently("the hub hangs up", socket.read_to_end(&mut answer)).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn pings_come_whatever_else_is_sent_and_silence_ends_a_connection() {
    let limits = Limits {
        ping_every: Duration::from_secs(1),
        silent_for: Duration::from_secs(2),
        ..Limits::default()
    };
    let hub = TestHub::with(with(limits)).await;
    let mut client = hub.connect("alice").await;
    // Armed by its first message.
    client.say(json!({"type": 6})).await;
    use futures::StreamExt;
    let mut pings = 0;
    loop {
        match patiently("the end", client.socket.next()).await {
            Some(Ok(Message::Text(text))) if text.contains("\"type\":6") => pings += 1,
            // Pongs of the socket below are no life.
            Some(Ok(Message::Text(_))) => {}
            Some(Ok(other)) => drop(other),
            None | Some(Err(_)) => break,
        }
        let _ = client.socket.send(Message::Ping(Vec::new().into())).await;
    }
    assert!(pings >= 1);
    until("it is gone", || hub.node.stats().connections == 0).await;
}
