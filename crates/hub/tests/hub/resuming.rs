//! What a client missed while it was away.

use std::sync::Arc;
use std::time::Duration;

use potok_hub::{AckRule, Answer, Frame, HubSettings, Limits};
use serde_json::{Value, json};

use crate::support::{AN_HOUR, Client, TestHub};

fn frame(id: &str) -> Arc<Frame> {
    Frame::new("notify", id, b"{}", 64 << 10).unwrap()
}

/// Without an overlap, which would reach behind the start of the hub.
async fn start() -> TestHub {
    let limits = Limits { resume_overlap: Duration::ZERO, ..Limits::default() };
    TestHub::with(HubSettings { limits, ..HubSettings::default() }).await
}

async fn resume(client: &mut Client, last: &str) -> Value {
    let call = json!({"type": 1, "target": "Resume", "arguments": [last], "invocationId": "r"});
    client.say(call).await;
    loop {
        let message = client.hear().await;
        if message["type"] == 3 {
            return message;
        }
    }
}

fn ids(answer: &Value) -> Vec<String> {
    let messages = answer["result"]["messages"].as_array().unwrap();
    let id = |message: &Value| message["arguments"][1]["id"].as_str().unwrap().to_owned();
    messages.iter().map(id).collect()
}

#[tokio::test]
async fn a_client_gets_the_gap_or_is_told_that_there_is_one() {
    let hub = start().await;
    for id in ["m1", "m2", "m3"] {
        let ask = hub.send_frame("alice", &frame(id), AN_HOUR, AckRule::Any).await;
        assert_eq!(ask.answer().await, Answer::Nobody);
    }
    hub.send_frame("bob", &frame("m4"), AN_HOUR, AckRule::Any).await;
    let mut alice = hub.connect("alice").await;
    let answer = resume(&mut alice, "m2").await;
    assert_eq!(answer["result"]["recovered"], true);
    assert_eq!(ids(&answer), ["m2", "m3"]);
    assert_eq!(answer["result"]["messages"][0]["method"], "notify");
    // Too soon again, and never somebody else's.
    assert!(resume(&mut alice, "m2").await["error"].as_str().unwrap().contains("once a second"));
    let mut again = hub.connect("alice").await;
    let answer = resume(&mut again, "m4").await;
    assert_eq!(answer["result"], json!({"recovered": false, "messages": []}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_sent_while_a_client_connects_is_seen_live_or_in_the_gap() {
    let hub = Arc::new(start().await);
    for number in 0..100 {
        let user = format!("user-{number}");
        hub.send_frame(&user, &frame("before"), AN_HOUR, AckRule::Any).await;
        let sending = {
            let (hub, user) = (hub.clone(), user.clone());
            tokio::spawn(async move {
                hub.send_frame(&user, &frame("racing"), AN_HOUR, AckRule::Any).await
            })
        };
        let mut client = hub.attach(&hub.token(&user)).await;
        client.say(json!({"protocol": "json", "version": 1})).await;
        let call =
            json!({"type": 1, "target": "Resume", "arguments": ["before"], "invocationId": "r"});
        client.say(call).await;
        let mut seen = Vec::new();
        let ask = sending.await.unwrap();
        // Live, in the gap, or both; a client drops what it knows.
        while !seen.contains(&"racing".to_owned()) {
            let message = client.hear().await;
            match message["type"].as_u64() {
                Some(1) => seen.push(message["arguments"][1]["id"].as_str().unwrap().to_owned()),
                Some(3) => seen.extend(ids(&message)),
                _ => {}
            }
        }
        drop(ask);
    }
}

/// More than one answer may hold is a gap that cannot be told, not a failure.
#[tokio::test]
async fn a_gap_that_is_too_large_is_not_recovered() {
    let limits =
        Limits { resume_overlap: Duration::ZERO, inbox_bytes: 200 << 10, ..Limits::default() };
    let hub = TestHub::limited(limits).await;
    for id in ["m1", "m2", "m3"] {
        let payload = json!("x".repeat(30_000)).to_string();
        let frame = Frame::new("notify", id, payload.as_bytes(), 64 << 10).unwrap();
        hub.send_frame("alice", &frame, AN_HOUR, AckRule::Any).await.answer().await;
    }
    let mut alice = hub.connect("alice").await;
    let answer = resume(&mut alice, "m1").await;
    assert_eq!(answer["result"], json!({"recovered": false, "messages": []}), "{answer}");
    let mut again = hub.connect("alice").await;
    assert_eq!(ids(&resume(&mut again, "m2").await), ["m2", "m3"]);
}
