//! The admin API as a client sees it, on a log in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::Request;
use futures::StreamExt;
use potok_core::{
    Clock, ConsumerGroupSpec, Envelope, Headers, HeadersBuilder, Log, Output, RECORD_BYTES_MAX,
    ReadFrom, Reason, SystemClock, Timestamp,
};
use potok_flow::{Engine, dead_letter};
use potok_server::{Admin, FRAME_TYPE, Identity, LINES_TYPE, push_record, router};
use potok_testkit::memory::MemoryLog;
use serde_json::{Value, json};
use tower::ServiceExt;

struct Api {
    log: Arc<MemoryLog>,
    admin: Admin,
    router: Router,
}

impl Api {
    fn new() -> Self {
        Self::at(None)
    }

    fn at(address: Option<std::net::SocketAddr>) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let log = Arc::new(MemoryLog::new(clock.clone()));
        let engine = Engine::new(log.clone(), clock, None);
        let identity = Identity {
            version: "0",
            data_dir: "/data".to_owned(),
            pid: 1,
            nonce: "n".to_owned(),
            address,
        };
        let admin = Admin::new(engine, identity);
        Api { log, router: router(admin.clone()), admin }
    }

    async fn send(&self, request: Request<Body>) -> (u16, Bytes) {
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        (status, axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap())
    }

    async fn get(&self, path: &str) -> (u16, Vec<Value>) {
        let (status, body) = self.send(Request::get(path).body(Body::empty()).unwrap()).await;
        (status, lines(&body))
    }

    async fn post(&self, path: &str, kind: &str, body: impl Into<Body>) -> (u16, Vec<Value>) {
        let request = Request::post(path).header("content-type", kind).body(body.into()).unwrap();
        let (status, body) = self.send(request).await;
        (status, lines(&body))
    }

    async fn act(&self, verb: &str, wish: Value) -> (u16, Vec<Value>) {
        let path = format!("/api/v1/dead-letters/{verb}");
        self.post(&path, "application/json", wish.to_string()).await
    }

    /// A pipeline that ran here once and left these dead letters: (reason, value).
    async fn with_dead_letters(letters: &[(Reason, &str)]) -> Self {
        let api = Api::new();
        let info = dead_letter::info("orders", "orders-dead", 5);
        let group = ConsumerGroupSpec {
            group: "g".to_owned(),
            topics: vec!["orders".into()],
            from_end: false,
            exact: false,
            info,
        };
        drop(api.log.open_group(group).await.unwrap());
        for (offset, (reason, value)) in letters.iter().enumerate() {
            let envelope = Envelope {
                pipeline: "orders".to_owned(),
                origin: format!("orders/0/{offset}@00000000000000ff").parse().unwrap(),
                deliver: Some(0),
                reason: *reason,
                error: "because".to_owned(),
                attempts: 1,
                time: Timestamp(1_000 * offset as i64),
                replay_of: None,
                shard: None,
                piece: None,
            };
            let own = HeadersBuilder::new().add("own", Some(b"1")).build();
            let output = Output {
                topic: "orders-dead".into(),
                partition: Some(0),
                key: Some(Bytes::from_static(b"k")),
                headers: envelope.headers(&own),
                value: Some(Bytes::copy_from_slice(value.as_bytes())),
            };
            api.log.append(&[output]).await.unwrap();
        }
        api
    }

    async fn open_letters(&self) -> usize {
        self.get("/api/v1/dead-letters").await.1.len()
    }
}

fn lines(body: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(body).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or(json!(line))).collect()
}

#[tokio::test]
async fn records_sent_either_way_are_read_back_byte_for_byte() {
    let api = Api::new();
    let headers = HeadersBuilder::new().add("a", Some(b"\xff")).add("b", None).build();
    let mut body = Vec::new();
    push_record(&mut body, Some(b"k"), &headers, Some(b"\xfe"));
    push_record(&mut body, Some(b"k"), &Headers::none(), None);
    let (status, answer) = api.post("/api/v1/topics/t/records", FRAME_TYPE, body).await;
    assert_eq!((status, &answer[0]["appended"]), (200, &json!(2)));

    let (status, first) = api.get("/api/v1/topics/t/records").await;
    assert_eq!(status, 200);
    assert_eq!(first.len(), 2);
    assert_eq!(first[0]["value_base64"], "/g==");
    assert_eq!(first[0]["headers"], json!([["a", { "base64": "/w==" }], ["b", null]]));
    assert_eq!(first[1]["value"], Value::Null);

    // What was read can be sent as it is.
    let again: String = first.iter().map(|line| format!("{line}\n")).collect();
    let (status, _) = api.post("/api/v1/topics/other/records", LINES_TYPE, again).await;
    assert_eq!(status, 200);
    let (_, second) = api.get("/api/v1/topics/other/records").await;
    for (one, other) in first.iter().zip(&second) {
        for field in ["key", "headers", "value", "value_base64"] {
            assert_eq!(one.get(field), other.get(field), "{field}");
        }
    }
    let (_, counted) = api.get("/api/v1/topics/t/records?count=1").await;
    assert_eq!(counted.len(), 1);
    let (_, none) = api.get("/api/v1/topics/t/records?from=end").await;
    assert_eq!(none.len(), 0);
}

#[tokio::test]
async fn a_bad_request_is_refused_whole_and_says_why() {
    let api = Api::new();
    let path = "/api/v1/topics/t/records";
    let mut cut = Vec::new();
    push_record(&mut cut, None, &Headers::none(), Some(b"good"));
    push_record(&mut cut, None, &Headers::none(), Some(b"cut off"));
    cut.pop();
    let bad = [
        (FRAME_TYPE, Bytes::from(cut)),
        (LINES_TYPE, Bytes::from_static(b"{\"value\":\"good\"}\nnonsense\n")),
        ("text/plain", Bytes::from_static(b"hello")),
    ];
    for (kind, body) in bad {
        let (status, answer) = api.post(path, kind, body).await;
        assert_eq!(status, 400, "{kind}");
        assert_eq!(answer[0]["error"]["code"], "P0501");
        assert!(answer[0]["error"]["cause"].is_string(), "{answer:?}");
    }
    assert!(api.log.topics().await.unwrap().iter().all(|topic| topic.topic != "t"));

    let too_large = Request::post(path)
        .header("content-type", FRAME_TYPE)
        .header("content-length", 1_u64 << 40)
        .body(Body::empty())
        .unwrap();
    assert_eq!(api.send(too_large).await.0, 413);
    let (status, answer) = api.act("replay", json!({ "reason": "x".repeat(2 << 20) })).await;
    assert_eq!((status, &answer[0]["error"]["code"]), (413, &json!("P0505")));
    for (path, status) in [
        ("/api/v1/topics/nobody/records", 404),
        ("/api/v1/topics/t/records?from=x", 400),
        ("/api/v1/topics/t/records?form=1", 400),
        ("/api/v1/status?pipeline=nobody", 404),
        ("/api/v1/dead-letters?pipeline=nobody", 404),
        ("/api/v1/dead-letters?reason=nonsense", 400),
        ("/api/v1/dead-letters?since=yesterday", 400),
        ("/api/v1/dead-letters?where=nonsense(", 400),
        ("/api/v1/nonsense", 404),
        ("/nonsense", 404),
        ("/api/v1/dead-letters/replay", 405),
    ] {
        let (got, answer) = api.get(path).await;
        assert_eq!(got, status, "{path}");
        assert!(answer[0]["error"]["what"].is_string(), "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn following_sees_new_records_and_ends_when_the_server_closes() {
    let api = Api::new();
    let append = |value: &'static [u8]| {
        let mut body = Vec::new();
        push_record(&mut body, Some(b"k"), &Headers::none(), Some(value));
        api.post("/api/v1/topics/t/records", FRAME_TYPE, body)
    };
    append(b"one").await;
    let request = Request::get("/api/v1/topics/t/records?follow=true").body(Body::empty()).unwrap();
    let answer = api.router.clone().oneshot(request).await.unwrap();
    let mut chunks = answer.into_body().into_data_stream();
    assert_eq!(lines(&chunks.next().await.unwrap().unwrap())[0]["value"], "one");
    append(b"two").await;
    assert_eq!(lines(&chunks.next().await.unwrap().unwrap())[0]["value"], "two");
    api.admin.close();
    assert!(chunks.next().await.is_none());
}

#[tokio::test]
async fn dead_letters_are_found_by_what_they_are() {
    let api = Api::with_dead_letters(&[
        (Reason::Invalid, "{\"n\":1}"),
        (Reason::Conflict, "{\"n\":2}"),
        (Reason::Undecodable, "not json"),
    ])
    .await;
    let (_, all) = api.get("/api/v1/dead-letters").await;
    assert_eq!(all.len(), 3);
    assert_eq!(all[0]["id"], "orders-dead/0/0");
    assert_eq!(all[0]["headers"], json!([["own", "1"]]));
    assert_eq!(all[0]["origin"]["position"], "orders/0/0@00000000000000ff");
    assert_eq!(all[0]["origin"]["log"], "00000000000000ff");
    assert_eq!((&all[0]["attempts"], &all[0]["reason"]), (&json!(1), &json!("invalid")));
    for (query, expected) in [
        ("pipeline=orders", 3),
        ("reason=conflict", 1),
        ("reason=conflict,invalid", 2),
        ("since=1970-01-01T00:00:01Z", 2),
        ("since=1h", 0),
        ("where=.n%20%3D%3D%202", 1),
        ("ids=orders-dead/0/0%0Aorders-dead/0/2", 2),
    ] {
        let (status, found) = api.get(&format!("/api/v1/dead-letters?{query}")).await;
        assert_eq!((status, found.len()), (200, expected), "{query}: {found:?}");
    }
}

#[tokio::test]
async fn a_dead_letter_of_the_largest_size_is_replayed() {
    // Key and own header count; the envelope and the header of the replay do not.
    let own = HeadersBuilder::new().add("own", Some(b"1")).build();
    let value = "x".repeat(RECORD_BYTES_MAX - 1 - own.encoded().len());
    let api = Api::with_dead_letters(&[(Reason::Invalid, &value)]).await;
    let (status, done) = api.act("replay", json!({ "pipeline": "orders" })).await;
    assert_eq!((status, &done[0]["action"]), (200, &json!("replayed")));
    let mut reader = api.log.read("orders-replay", ReadFrom::Start).await.unwrap();
    let batch = reader.next(false).await.unwrap().unwrap();
    assert_eq!(batch.records[0].value.as_deref(), Some(value.as_bytes()));
}

#[tokio::test]
async fn replay_and_drop_happen_once_and_a_dry_run_changes_nothing() {
    let api = Api::with_dead_letters(&[
        (Reason::Invalid, "1"),
        (Reason::Conflict, "2"),
        (Reason::Conflict, "3"),
    ])
    .await;
    let (_, would) = api.act("replay", json!({ "pipeline": "orders", "dry_run": true })).await;
    assert_eq!(would.len(), 5, "and what it would come to: {would:?}");
    assert_eq!(
        (&would[0]["action"], &would[0]["outcome"]),
        (&json!("would_replay"), &json!("unknown"))
    );
    assert_eq!(would[3]["forecast"]["unknown"], 3, "the pipeline does not run here");
    assert_eq!(would[4]["until"], "orders-dead:3.0.0.0", "and until where");
    assert_eq!(api.open_letters().await, 3);

    let (_, done) = api.act("replay", json!({ "reason": "conflict", "rate": 1_000 })).await;
    assert_eq!(done.len(), 2);
    assert_eq!(done[0]["action"], "replayed");
    let mut reader = api.log.read("orders-replay", ReadFrom::Start).await.unwrap();
    let mut replayed = Vec::new();
    while let Some(batch) = reader.next(false).await.unwrap() {
        replayed.extend(batch.records.into_iter().filter_map(|record| record.value));
    }
    replayed.sort();
    assert_eq!(replayed, ["2", "3"]);

    // On its way, it is neither replayed nor dropped again.
    let (status, answer) = api.act("replay", json!({ "ids": ["orders-dead/0/1"] })).await;
    assert_eq!((status, &answer[0]["error"]["code"]), (404, &json!("P0514")));
    let (_, none) = api.act("drop", json!({ "reason": "conflict" })).await;
    assert_eq!(none.len(), 0);

    let (_, dropped) = api.act("drop", json!({ "ids": ["orders-dead/0/0"] })).await;
    assert_eq!(dropped[0]["action"], "dropped");
    assert_eq!(api.open_letters().await, 0);
    let (_, all) = api.get("/api/v1/dead-letters?all=true").await;
    let states: Vec<_> = all.iter().map(|letter| letter["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["dropped", "replaying", "replaying"]);
}

#[tokio::test]
async fn a_pipeline_that_ran_before_is_shown_stopped_with_its_lag() {
    let api = Api::with_dead_letters(&[]).await;
    let mut body = Vec::new();
    for _ in 0..5 {
        push_record(&mut body, None, &Headers::none(), Some(b"{}"));
    }
    api.post("/api/v1/topics/orders/records", FRAME_TYPE, body).await;
    let (_, status) = api.get("/api/v1/status?pipeline=orders").await;
    assert_eq!((&status[0][0]["state"], &status[0][0]["lag"]), (&json!("stopped"), &json!(5)));
    let (status, answer) = api.post("/api/v1/pipelines/orders/pause", "application/json", "").await;
    assert_eq!((status, &answer[0]["error"]["code"]), (409, &json!("P0517")));

    let (status, _) = api.post("/api/v1/consumer-groups/g/delete", "application/json", "").await;
    assert_eq!(status, 200);
    assert_eq!(api.post("/api/v1/consumer-groups/g/delete", "application/json", "").await.0, 404);
    assert_eq!(api.get("/api/v1/status?pipeline=orders").await.0, 404);
}

#[tokio::test]
async fn only_this_machine_is_answered_and_health_depends_on_nothing_else() {
    let api = Api::at(Some("127.0.0.1:7600".parse().unwrap()));
    for (host, status) in [("127.0.0.1:7600", 200), ("evil.example", 403)] {
        for path in ["/live", "/ready", "/metrics", "/api/v1/info"] {
            let request = Request::get(path).header("host", host).body(Body::empty()).unwrap();
            assert_eq!(api.send(request).await.0, status, "{host} {path}");
        }
    }
}
