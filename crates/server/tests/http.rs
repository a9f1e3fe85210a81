//! HTTP sources as their senders see them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Write;
use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::Request;
use flate2::GzBuilder;
use potok_core::{
    Clock, ConsumerGroup, ConsumerGroupSpec, Damage, Fault, Log, OpenGroups, Output, Position,
    RangeSet, ReadFrom, Reader, Reason, Store, SystemClock, TopicInfo,
};
use potok_expr::Template;
use potok_server::{HttpAuth, HttpLimits, HttpSource, HttpSources, serve_http};
use potok_testkit::memory::{MemoryLog, MemoryStore};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;

struct Door {
    log: Arc<MemoryLog>,
    sources: HttpSources,
}

impl Door {
    async fn new() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        Self::on(Arc::new(MemoryLog::new(clock))).await
    }

    async fn on(log: Arc<MemoryLog>) -> Self {
        let sources = sources(log.clone()).await;
        Door { log, sources }
    }

    async fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> (u16, Value) {
        post(&self.sources, path, headers, body.into()).await
    }

    /// Key and value of everything in the topic.
    async fn taken(&self) -> Vec<(Option<String>, String)> {
        let mut all = Vec::new();
        let Ok(mut reader) = self.log.read("events", ReadFrom::Start).await else { return all };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        while let Some(batch) = reader.next(false).await.unwrap() {
            for record in batch.records {
                all.push((record.key.as_deref().map(text), text(&record.value.unwrap())));
            }
        }
        all.sort();
        all
    }
}

async fn sources(log: Arc<dyn Log>) -> HttpSources {
    let source = |path: &str, auth| HttpSource {
        pipeline: "shop".to_owned(),
        path: path.to_owned(),
        topic: "events".into(),
        key: Some(Template::parse(".shop").unwrap()),
        each: vec![],
        auth,
        verify: None,
    };
    let secret = HttpAuth::Secret { header: "X-Token".to_owned(), secret: "s".to_owned() };
    let signature = HttpAuth::Signature { header: "X-Sign".to_owned(), secret: "s".to_owned() };
    // The third would be a pattern, or refused, if paths were more than text.
    let sources = vec![
        source("/events", None),
        source("/private", Some(secret)),
        source("/:a/{b}/*", None),
        source("/signed", Some(signature)),
        HttpSource { each: vec![("a".to_owned(), true)], ..source("/parted", None) },
    ];
    HttpSources::open(log, Arc::new(SystemClock), sources).await.unwrap()
}

async fn post(
    sources: &HttpSources,
    path: &str,
    headers: &[(&str, &str)],
    body: Body,
) -> (u16, Value) {
    let mut request = Request::post(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = sources.router().oneshot(request.body(body).unwrap()).await.unwrap();
    let status = answer.status().as_u16();
    if status == 429 || status == 503 {
        assert!(answer.headers().contains_key("retry-after"));
    }
    let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

fn packed(body: &str, seconds: u32) -> Vec<u8> {
    let mut packed = GzBuilder::new().mtime(seconds).write(Vec::new(), Default::default());
    packed.write_all(body.as_bytes()).unwrap();
    packed.finish().unwrap()
}

/// A body that begins and does not end.
fn endless() -> Body {
    Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>())
}

/// A log that several processes share and that refuses everything, or answers nobody.
struct AwayLog {
    refuses: Option<Fault>,
}

#[async_trait]
impl Log for AwayLog {
    async fn append(&self, _outputs: &[Output]) -> Result<Vec<Position>, Fault> {
        match self.refuses.clone() {
            Some(fault) => Err(fault),
            None => std::future::pending().await,
        }
    }

    async fn open(&self, _specs: Vec<ConsumerGroupSpec>) -> Result<OpenGroups, Fault> {
        Err(Fault::wait("away"))
    }

    async fn read(&self, _topic: &str, _from: ReadFrom) -> Result<Box<dyn Reader>, Fault> {
        Err(Fault::wait("away"))
    }

    async fn topics(&self) -> Result<Vec<TopicInfo>, Fault> {
        Err(Fault::wait("away"))
    }

    async fn consumer_groups(&self) -> Result<Vec<ConsumerGroup>, Fault> {
        Err(Fault::wait("away"))
    }

    async fn delete_consumer_group(&self, _group: &str) -> Result<(), Fault> {
        Err(Fault::wait("away"))
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn bodies(&self) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new())
    }

    fn damage(&self) -> Vec<Damage> {
        Vec::new()
    }

    fn trouble(&self) -> Option<String> {
        Some("away".to_owned())
    }

    async fn ended(&self, _group: &str, _topic: &str, _partition: u32) -> Result<RangeSet, Fault> {
        Err(Fault::wait("away"))
    }
}

#[tokio::test]
async fn an_object_an_array_and_lines_are_the_same_records() {
    let door = Door::new().await;
    for body in
        ["{\"shop\":1,\"n\": 1.0}", "[{\"shop\":1,\"n\": 1.0}]", "\n{\"shop\":1,\"n\": 1.0}\n"]
    {
        let (status, answer) = door.post("/events", &[], body).await;
        assert_eq!((status, &answer["accepted"]), (200, &Value::from(1)), "{answer}");
    }
    let taken = door.taken().await;
    assert_eq!(taken, vec![(Some("1".to_owned()), "{\"shop\":1,\"n\": 1.0}".to_owned()); 3]);
    let counts = door.sources.counts();
    assert_eq!((counts[0].records, counts[0].requests.get(&200)), (3, Some(&3)));
}

#[tokio::test]
async fn one_bad_line_and_nothing_is_taken() {
    let door = Door::new().await;
    let mut lines = vec!["{\"shop\":1}"; 300];
    lines[199] = "{\"shop\":";
    let (status, answer) = door.post("/events", &[], lines.join("\n")).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &Value::from("P0540")));
    assert!(answer["error"]["cause"].as_str().unwrap().starts_with("line 200"), "{answer}");
    let (status, _) = door.post("/events", &[("content-encoding", "br")], "{}").await;
    assert_eq!(status, 400);
    let (status, _) = door.post("/events", &[], " ".repeat((16 << 20) + 1)).await;
    assert_eq!(status, 413);
    for path in ["/nowhere", "/events/", "/1/2/3"] {
        assert_eq!(door.post(path, &[], "{}").await.0, 404, "{path}");
    }
    let get = Request::get("/events").body(Body::empty()).unwrap();
    assert_eq!(door.sources.router().oneshot(get).await.unwrap().status(), 405);
    assert_eq!(door.taken().await, []);
}

/// Senders that begin a body and do not end it take the room there is, and no more: the next is asked to
/// come back, and they are let go when their time is over.
#[tokio::test(start_paused = true)]
async fn bodies_that_do_not_end_leave_no_room_for_long() {
    let door = Door::new().await;
    let endless = || {
        let request = Request::post("/events").body(endless()).unwrap();
        let router = door.sources.router();
        tokio::spawn(async move { router.oneshot(request).await.unwrap().status().as_u16() })
    };
    let begun: Vec<_> = (0..7).map(|_| endless()).collect();
    tokio::task::yield_now().await;
    let length = [("content-length", "10")];
    assert_eq!(
        door.post("/events", &length, "{\"shop\":1}").await.0,
        200,
        "what is small has room"
    );
    assert_eq!(endless().await.unwrap(), 429);
    for begun in begun {
        assert_eq!(begun.await.unwrap(), 408);
    }
    assert_eq!(door.post("/events", &[], " ".repeat(1 << 20)).await.0, 400, "there is room again");
}

/// A small body may be large unpacked: it takes room for that, and gives back what it does not need.
#[tokio::test(start_paused = true)]
async fn packed_bodies_take_room_for_what_they_may_become() {
    let door = Door::new().await;
    let endless = || {
        let request = Request::post("/events")
            .header("content-encoding", "gzip")
            .header("content-length", "1000")
            .body(endless())
            .unwrap();
        let router = door.sources.router();
        tokio::spawn(async move { router.oneshot(request).await.unwrap().status().as_u16() })
    };
    let begun: Vec<_> = (0..7).map(|_| endless()).collect();
    tokio::task::yield_now().await;
    assert_eq!(endless().await.unwrap(), 429);
    for begun in begun {
        assert_eq!(begun.await.unwrap(), 408);
    }
}

/// What a record costs is not its bytes: however small they are, a body brings so many and no more.
#[tokio::test]
async fn records_of_a_body_are_bounded_in_number() {
    let door = Door::new().await;
    let small = "{}\n".repeat(200_001);
    let gzip = [("content-encoding", "gzip")];
    for (status, answer) in [
        door.post("/events", &[], small.clone()).await,
        door.post("/events", &gzip, packed(&small, 0)).await,
        door.post("/events", &[], format!("[{}{{}}]", "{},".repeat(200_000))).await,
        door.post("/parted", &[], format!("{{\"a\":[{}1]}}", "1,".repeat(200_000))).await,
    ] {
        let what = answer["error"]["what"].as_str().unwrap();
        assert_eq!((status, &answer["error"]["code"]), (413, &"P0505".into()), "{answer}");
        assert!(what.contains("200000 records"), "{what}");
    }
    assert_eq!(door.taken().await, []);
}

/// A body of many small records takes room for what they are made into, until the log has them.
#[tokio::test(start_paused = true)]
async fn many_small_records_take_room_for_what_they_cost() {
    let sources = sources(Arc::new(AwayLog { refuses: None })).await;
    let many = || {
        let sources = sources.clone();
        let body = Body::from("{}\n".repeat(100_000));
        tokio::spawn(async move { post(&sources, "/events", &[], body).await.0 })
    };
    let begun: Vec<_> = (0..5).map(|_| many()).collect();
    tokio::task::yield_now().await;
    assert_eq!(many().await.unwrap(), 429, "a few hundred kilobytes each, and the room is taken");
    for begun in begun {
        assert_eq!(begun.await.unwrap(), 503);
    }
}

#[tokio::test]
async fn a_log_of_several_processes_may_have_taken_a_part_and_the_answer_says_so() {
    let too_large = Fault::set_aside(Reason::TooLarge, "one record is too large");
    for (fault, expected) in [(too_large, 413), (Fault::wait("away"), 503)] {
        let sources = sources(Arc::new(AwayLog { refuses: Some(fault) })).await;
        let (status, answer) = post(&sources, "/events", &[], "{}\n{}".into()).await;
        let what = answer["error"]["what"].as_str().unwrap();
        assert_eq!((status, &answer["error"]["code"]), (expected, &"P0544".into()), "{answer}");
        assert!(what.contains("may have taken some"), "{what}");
    }
}

/// What lies around an element goes with each, so a small object can ask for very much.
#[tokio::test]
async fn what_each_would_make_of_a_body_is_bounded() {
    let door = Door::new().await;
    let elements = vec!["1"; 500_000].join(",");
    let alone = format!("{{\"a\":[{elements}],\"x\":\"{}\"}}", "x".repeat(8 << 20));
    let (status, answer) = door.post("/parted", &[], alone).await;
    assert_eq!((status, &answer["accepted"]), (200, &1.into()), "{answer}");
    // Each of these grows to almost 4 MiB, which is fine for one.
    let elements = vec!["1"; 400].join(",");
    let line = format!("{{\"a\":[{elements}],\"x\":\"{}\"}}\n", "x".repeat(10_000));
    let (status, answer) = door.post("/parted", &[], line.clone()).await;
    assert_eq!((status, &answer["accepted"]), (200, &400.into()), "{answer}");
    let (status, answer) = door.post("/parted", &[], line.repeat(1_000)).await;
    assert_eq!((status, &answer["error"]["code"]), (413, &"P0505".into()), "{answer}");
    assert_eq!(door.taken().await.len(), 401);
}

#[tokio::test]
async fn values_may_share_a_line_and_nothing_at_all_is_refused() {
    let door = Door::new().await;
    let (status, answer) = door.post("/events", &[], "\u{feff}{\"shop\":1} {\"shop\":2}").await;
    assert_eq!((status, &answer["accepted"]), (200, &Value::from(2)), "{answer}");
    for nothing in ["[]", "", "\n\n", "\u{feff}"] {
        let (status, answer) = door.post("/events", &[], nothing).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &Value::from("P0540")), "{nothing:?}");
    }
    assert_eq!(door.taken().await.len(), 2);
}

#[tokio::test]
async fn a_repeat_under_the_same_key_is_not_taken_again() {
    let door = Door::new().await;
    let key = [("idempotency-key", "k-1")];
    let (_, first) = door.post("/events", &key, "[{\"shop\":1},{\"shop\":2}]").await;
    assert_eq!((&first["accepted"], &first["repeated"]), (&2.into(), &false.into()));
    let (status, again) = door.post("/events", &key, "[{\"shop\":1},{\"shop\":2}]").await;
    assert_eq!((status, &again["accepted"], &again["repeated"]), (200, &2.into(), &true.into()));
    let (status, other) = door.post("/events", &key, "{\"shop\":3}").await;
    assert_eq!((status, &other["error"]["code"]), (422, &"P0543".into()));
    // Another process on the same log knows it too.
    let later = Door::on(door.log.clone()).await;
    let (_, again) = later.post("/events", &key, "[{\"shop\":1},{\"shop\":2}]").await;
    assert_eq!(again["repeated"], true);
    assert_eq!(later.taken().await.len(), 2);
    // A refused request leaves its key free.
    let fresh = [("idempotency-key", "k-2")];
    assert_eq!(later.post("/events", &fresh, "{").await.0, 400);
    assert_eq!(later.post("/events", &fresh, "{\"shop\":9}").await.1["repeated"], false);
    // The same body is the same, however its sender packs it.
    let third = [("idempotency-key", "k-3"), ("content-encoding", "gzip")];
    let (status, first) = later.post("/events", &third, packed("{\"shop\":4}", 1)).await;
    assert_eq!((status, &first["repeated"]), (200, &false.into()));
    let (status, again) = later.post("/events", &third, packed("{\"shop\":4}", 2)).await;
    assert_eq!((status, &again["repeated"]), (200, &true.into()), "{again}");
    let (_, plain) = later.post("/events", &third[..1], "{\"shop\":4}").await;
    assert_eq!(plain["repeated"], true);
    let long = "x".repeat(256);
    assert_eq!(later.post("/events", &[("idempotency-key", &long)], "{}").await.0, 400);
}

#[tokio::test]
async fn repeats_at_the_same_time_are_taken_once() {
    let door = Door::new().await;
    let key = [("idempotency-key", "k")];
    let posts = (0..20).map(|_| door.post("/events", &key, "{\"shop\":1}"));
    let answers = futures::future::join_all(posts).await;
    assert!(answers.iter().all(|(status, _)| *status == 200));
    let first = answers.iter().filter(|(_, answer)| answer["repeated"] == false).count();
    assert_eq!((first, door.taken().await.len()), (1, 1));
}

#[tokio::test]
async fn who_does_not_know_the_secret_is_refused() {
    let door = Door::new().await;
    assert_eq!(door.post("/private", &[], "{}").await.0, 401);
    assert_eq!(door.post("/private", &[("x-token", "t")], "{}").await.0, 401);
    assert_eq!(door.taken().await, []);
    assert_eq!(door.post("/private", &[("x-token", "s")], "{}").await.0, 200);
    // Nobody's room is taken and nobody waits where the headers say enough.
    for path in ["/private", "/signed"] {
        assert_eq!(door.post(path, &[], endless()).await.0, 401, "{path}");
    }
    assert_eq!(door.post("/signed", &[("x-sign", "00")], "{}").await.0, 401);
    let page = [("sec-fetch-site", "cross-site")];
    assert_eq!(door.post("/events", &page, "{}").await.0, 403);
}

#[tokio::test]
async fn a_connection_that_sends_no_headers_is_closed_and_makes_room() {
    let door = Door::new().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let header_time = std::time::Duration::from_millis(200);
    let limits = HttpLimits { connections: 1, header_time, ..HttpLimits::default() };
    let (close, closing) = tokio::sync::watch::channel(false);
    let serving = tokio::spawn(serve_http(listener, door.sources.router(), limits, closing));
    let mut silent = tokio::net::TcpStream::connect(address).await.unwrap();
    silent.write_all(b"POST /events HTTP/1.1\r\nHost: ").await.unwrap();
    let mut second = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = "POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\
                   Connection: close\r\n\r\n{}";
    second.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    second.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    close.send(true).unwrap();
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_client_that_reads_no_answers_is_cut_off_and_makes_room() {
    let door = Door::new().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let write_time = std::time::Duration::from_millis(200);
    let limits = HttpLimits { connections: 1, write_time, ..HttpLimits::default() };
    let (close, closing) = tokio::sync::watch::channel(false);
    let serving = tokio::spawn(serve_http(listener, door.sources.router(), limits, closing));
    let mut deaf = tokio::net::TcpStream::connect(address).await.unwrap();
    // The answer names the path, so that a few hundred fill what the system keeps for a connection.
    let request = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(30_000));
    let sending =
        tokio::spawn(async move { while deaf.write_all(request.as_bytes()).await.is_ok() {} });
    let mut second = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = "POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\
                   Connection: close\r\n\r\n{}";
    second.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    second.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    sending.await.unwrap();
    close.send(true).unwrap();
    serving.await.unwrap().unwrap();
}
