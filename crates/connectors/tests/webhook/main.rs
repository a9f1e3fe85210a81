//! The webhook stage against a real server that is slow, wrong, broken or gone. What the engine makes
//! of its faults is in `crates/testkit/tests/stages.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod server;
mod sink;

use std::time::Duration;

use bytes::Bytes;
use potok_connectors::webhook::WebhookStage;
use potok_core::{
    Event, Fault, Headers, HeadersBuilder, Move, Position, Reason, Stage, StageResult, Timestamp,
};
use serde_json::{Value, json};
use server::{ReceivedRequest, Reply, Server};

fn event(offset: u64, value: &str) -> Event {
    Event {
        position: Position { log: 7, topic: "orders".into(), partition: 3, offset },
        time: Timestamp(0),
        key: Some(Bytes::from_static(b"k")),
        headers: Headers::none(),
        value: Bytes::copy_from_slice(value.as_bytes()),
        source: Bytes::new(),
        tombstone: false,
    }
}

fn events(count: u64) -> Vec<Event> {
    (0..count).map(|n| event(n, &format!(r#"{{"n":{n}}}"#))).collect()
}

fn stage(server: &Server) -> WebhookStage {
    WebhookStage::new(&server.url, Duration::from_secs(20)).unwrap()
}

/// What a stage made of events, in words.
fn words(staged: &[StageResult]) -> Vec<String> {
    let word = |staged: &StageResult| match staged {
        StageResult::Merged(_) | StageResult::Into => panic!("webhooks merge nothing"),
        StageResult::On(event) => String::from_utf8_lossy(&event.value).into_owned(),
        StageResult::Filtered => "filtered".to_owned(),
        StageResult::Failed(fault) => format!("{} {fault}", fault.reason),
    };
    staged.iter().map(word).collect()
}

async fn fault_of(
    reply: impl Fn(usize, &ReceivedRequest) -> Reply + Send + Sync + 'static,
) -> Fault {
    let server = Server::start(reply).await;
    let fault = stage(&server).apply(events(2)).await.unwrap_err();
    assert!(!format!("{fault:?} {fault}").contains("canary"), "{fault:?}");
    assert!(!fault.to_string().contains("127.0.0.1"), "{fault}");
    fault
}

#[tokio::test]
async fn each_event_becomes_what_its_element_says() {
    let server = Server::start(|_, _| {
        let elements = json!([{"value": {"n": 10.50}}, {"filtered": true}, {"error": "no"}, null]);
        Reply::Status(200, elements.to_string())
    })
    .await;
    let staged = stage(&server).apply(events(4)).await.unwrap();
    let words = words(&staged);
    assert_eq!(words[..2], [r#"{"n":10.5}"#, "filtered"]);
    assert_eq!(words[2], "stage [P1003] the webhook says: no");
    assert_eq!(words[3], r#"{"n":3}"#);
}

#[tokio::test]
async fn what_is_posted_names_the_event_and_leaves_its_value_as_it_is() {
    let server = Server::start(|_, asked| Reply::json(vec![Value::Null; asked.events.len()])).await;
    let mut odd = event(8, r#"{"big": 12345678901234567890, "z":1, "a":2}"#);
    odd.key = Some(Bytes::from_static(b"\xff"));
    odd.headers = HeadersBuilder::new()
        .add("a", Some(b"1"))
        .add("a", Some(b"2"))
        .add("none", None)
        .add("raw", Some(b"\xfe"))
        .build();
    let stage = stage(&server);
    let staged = stage.apply(vec![event(7, "{}"), odd.clone()]).await.unwrap();
    assert_eq!(words(&staged)[1], r#"{"big": 12345678901234567890, "z":1, "a":2}"#);
    let [asked] = server.asked().try_into().unwrap();
    assert_eq!(asked.path, "/canary-path?token=canary");
    assert_eq!(asked.header("content-type"), Some("application/json"));
    assert_eq!(
        asked.events[0],
        json!({"id": "orders/3/7@0000000000000007", "topic": "orders", "key": "k", "headers": {}, "value": {}})
    );
    assert_eq!(asked.events[1]["key"], json!({"base64": "/w=="}));
    assert_eq!(
        asked.events[1]["headers"],
        json!({"a": "2", "none": null, "raw": {"base64": "/g=="}})
    );
    // The same events have the same name, others another.
    stage.apply(vec![event(7, "{}"), odd]).await.unwrap();
    stage.apply(vec![event(7, "{}")]).await.unwrap();
    let asked = server.asked();
    let name = |at: usize| asked[at].header("idempotency-key").unwrap();
    assert_eq!(name(0), name(1));
    assert_ne!(name(0), name(2));
}

#[tokio::test]
async fn credentials_go_into_a_header() {
    let server = Server::start(|_, asked| Reply::json(vec![Value::Null; asked.events.len()])).await;
    let url = server.url.replace("http://", "http://me:secret@");
    let stage = WebhookStage::new(&url, Duration::from_secs(20)).unwrap();
    stage.apply(events(1)).await.unwrap();
    let [asked] = server.asked().try_into().unwrap();
    assert_eq!(asked.header("authorization"), Some("Basic bWU6c2VjcmV0"));
    assert!(!asked.header("host").unwrap().contains("secret"));
}

#[tokio::test]
async fn what_is_no_json_fails_alone_and_is_not_posted() {
    let server = Server::start(|_, asked| Reply::json(vec![Value::Null; asked.events.len()])).await;
    let stage = stage(&server);
    let staged = stage.apply(vec![event(0, "{}"), event(1, ""), event(2, "[]")]).await.unwrap();
    let words = words(&staged);
    assert_eq!((words[0].as_str(), words[2].as_str()), ("{}", "[]"));
    assert!(words[1].contains("not JSON"), "{words:?}");
    let staged = stage.apply(vec![event(1, "")]).await.unwrap();
    assert!(matches!(staged[..], [StageResult::Failed(_)]));
    assert_eq!(server.asked().len(), 1, "nothing to post is not posted");
}

#[tokio::test]
async fn an_answer_that_does_not_fit_fails_for_every_event_and_says_why() {
    for (body, why) in [
        ("[null]", "1 elements for 2 events"),
        ("[null,null,null]", "3 elements for 2 events"),
        ("{}", "not a JSON array"),
        ("<html>", "not a JSON array"),
        ("", "not a JSON array"),
    ] {
        let server = Server::start(move |_, _| Reply::Status(200, body.to_owned())).await;
        let words = words(&stage(&server).apply(events(2)).await.unwrap());
        assert_eq!(words.len(), 2);
        assert!(words.iter().all(|w| w.contains("P1004") && w.contains(why)), "{words:?}");
    }
    let fault = fault_of(|_, _| Reply::Status(204, String::new())).await;
    assert_eq!((fault.next, fault.code), (Move::SetAside, "P1004"));
}

#[tokio::test]
async fn a_status_says_whose_move_it_is() {
    for (status, next, code) in [
        (401, Move::Wait, "P1001"),
        (403, Move::Wait, "P1001"),
        (429, Move::Wait, "P1001"),
        (503, Move::Wait, "P1001"),
        (500, Move::Retry, "P1002"),
        (408, Move::Retry, "P1002"),
        (400, Move::SetAside, "P1003"),
        (404, Move::SetAside, "P1003"),
        (413, Move::SetAside, "P1003"),
        (422, Move::SetAside, "P1003"),
    ] {
        let body = "it is at /canary-path?token=canary";
        let fault = fault_of(move |_, _| Reply::Status(status, body.to_owned())).await;
        assert_eq!((fault.next, fault.code), (next, code), "{status}");
        assert!(fault.to_string().contains(&status.to_string()), "{fault}");
        assert!(next != Move::SetAside || fault.reason == Reason::Stage, "{fault}");
    }
    let fault = fault_of(|_, _| Reply::Redirect("http://elsewhere/canary".to_owned())).await;
    assert_eq!((fault.next, fault.code), (Move::Fix, "P1005"));
}

#[tokio::test]
async fn a_server_that_hangs_up_is_asked_again_later() {
    let fault = fault_of(|_, _| Reply::Broken).await;
    assert_eq!((fault.next, fault.code), (Move::Retry, "P1002"), "{fault}");
    let fault = fault_of(|_, _| Reply::Nothing).await;
    assert_eq!((fault.next, fault.code), (Move::Retry, "P1002"), "{fault}");
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up_after_the_timeout() {
    let server = Server::start(|_, _| Reply::Silence).await;
    let stage = WebhookStage::new(&server.url, Duration::from_millis(200)).unwrap();
    let fault = stage.apply(events(1)).await.unwrap_err();
    assert_eq!((fault.next, fault.code), (Move::Retry, "P1002"), "{fault}");
    assert!(fault.to_string().contains("200ms"), "{fault}");
}

#[tokio::test]
async fn a_server_that_is_gone_is_waited_for() {
    // A port that was free a moment ago.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/canary", listener.local_addr().unwrap());
    drop(listener);
    for url in [url.as_str(), "http://canary.invalid/", &url.replace("http", "https")] {
        let stage = WebhookStage::new(url, Duration::from_secs(20)).unwrap();
        let fault = stage.apply(events(1)).await.unwrap_err();
        assert_eq!((fault.next, fault.code), (Move::Wait, "P1001"), "{fault}");
        assert!(!fault.to_string().contains("canary"), "{fault}");
    }
}
