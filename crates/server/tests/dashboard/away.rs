//! A log that is away, refuses, or is somebody else's: pages answer, and say so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::Request;
use potok_core::{
    Clock, ConsumerGroup, ConsumerGroupSpec, Damage, Fault, Headers, Log, OpenGroups, Output,
    Position, RangeSet, ReadFrom, Reader, SourceBatch, Store, Timestamp, TopicInfo,
};
use potok_flow::Engine;
use potok_server::{Admin, Identity, router};
use potok_testkit::memory::MemoryLog;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;

use crate::desk::{Answer, Desk};
use crate::wait;

/// Only a page that never answers takes so long.
const NEVER: Duration = Duration::from_secs(60);

/// What is wrong with it.
#[derive(Default)]
struct Trouble {
    /// It takes questions and says nothing.
    hangs: AtomicBool,
    /// It takes no note of what people do.
    notes_nothing: AtomicBool,
}

impl Trouble {
    async fn answers(&self) {
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending().await
        }
    }
}

/// A log in memory, with trouble.
struct AwayLog {
    log: Arc<MemoryLog>,
    trouble: Arc<Trouble>,
    shared: bool,
}

struct AwayReader {
    reader: Box<dyn Reader>,
    trouble: Arc<Trouble>,
}

#[async_trait]
impl Reader for AwayReader {
    async fn next(&mut self, follow: bool) -> Result<Option<SourceBatch>, Fault> {
        self.trouble.answers().await;
        self.reader.next(follow).await
    }
}

#[async_trait]
impl Log for AwayLog {
    async fn append(&self, outputs: &[Output]) -> Result<Vec<Position>, Fault> {
        self.trouble.answers().await;
        let is_note = |output: &Output| &*output.topic == "potok-audit";
        if self.trouble.notes_nothing.load(Ordering::Relaxed) && outputs.iter().any(is_note) {
            return Err(Fault::wait("the disk is full"));
        }
        self.log.append(outputs).await
    }

    async fn open(&self, specs: Vec<ConsumerGroupSpec>) -> Result<OpenGroups, Fault> {
        self.log.open(specs).await
    }

    async fn read(&self, topic: &str, from: ReadFrom) -> Result<Box<dyn Reader>, Fault> {
        self.trouble.answers().await;
        let reader = self.log.read(topic, from).await?;
        Ok(Box::new(AwayReader { reader, trouble: self.trouble.clone() }))
    }

    async fn topics(&self) -> Result<Vec<TopicInfo>, Fault> {
        self.trouble.answers().await;
        self.log.topics().await
    }

    async fn consumer_groups(&self) -> Result<Vec<ConsumerGroup>, Fault> {
        self.trouble.answers().await;
        self.log.consumer_groups().await
    }

    async fn delete_consumer_group(&self, group: &str) -> Result<(), Fault> {
        self.log.delete_consumer_group(group).await
    }

    fn is_shared(&self) -> bool {
        self.shared
    }

    fn bodies(&self) -> Arc<dyn Store> {
        self.log.bodies()
    }

    fn damage(&self) -> Vec<Damage> {
        Vec::new()
    }

    fn trouble(&self) -> Option<String> {
        None
    }

    async fn ended(&self, group: &str, topic: &str, partition: u32) -> Result<RangeSet, Fault> {
        self.trouble.answers().await;
        self.log.ended(group, topic, partition).await
    }
}

async fn desk() -> (Desk, Arc<Trouble>) {
    let trouble = Arc::new(Trouble::default());
    let of = trouble.clone();
    let desk = Desk::on(None, |log| Arc::new(AwayLog { log, trouble: of, shared: false })).await;
    (desk, trouble)
}

#[tokio::test]
async fn pages_answer_soon_though_the_log_does_not() {
    let (desk, trouble) = desk().await;
    desk.dead_letters(0..3).await;
    desk.send("chat", [json!({ "k": "telegram:1" }).to_string()]).await;
    desk.sees("orders", "they are counted", |s| s.dead_letters_open == Some(3)).await;
    desk.sees("chat", "it is held", |status| status.open_groups == 1).await;
    let looking = tokio::spawn({
        // As in a process: somebody looks all the time.
        let listener = potok_server::bind("127.0.0.1:0".parse().unwrap(), false).await.unwrap();
        potok_server::serve(listener, desk.admin.clone())
    });
    wait::until("somebody has looked", || async {
        (desk.json("/api/v1/rates").await["pipelines"].as_array()?.len() == 2).then_some(())
    })
    .await;
    trouble.hangs.store(true, Ordering::Relaxed);
    // Pages without the log are whole, the others say why not.
    let pages = [
        ("/", 200),
        ("/pipelines/orders", 200),
        ("/groups", 200),
        ("/groups/chat/telegram%3A1", 200),
        ("/groups/chat/telegram%3A1/drop", 200),
        ("/dead-letters", 200),
        ("/dead-letters?id=orders-dead/0/0", 503),
        ("/dead-letters/drop?pipeline=orders", 503),
        ("/dead-letters/replay?pipeline=orders", 503),
        ("/trace?id=k1", 503),
        ("/send?from=orders-dead/0/0", 503),
        ("/send", 200),
        ("/audit", 503),
    ];
    for (path, status) in pages {
        let page = tokio::time::timeout(NEVER, desk.get(path)).await;
        let page = page.unwrap_or_else(|_| panic!("{path} does not answer"));
        assert_eq!(page.status, status, "{path}: {}", page.text);
        let is_said = page.text.contains("the log does not answer");
        assert!(status == 200 || is_said, "{path}: {}", page.text);
    }
    trouble.hangs.store(false, Ordering::Relaxed);
    for (path, _) in pages {
        let page = desk.get(path).await;
        assert_eq!(page.status, 200, "it is back, {path}: {}", page.text);
    }
    looking.abort();
}

/// Sends a change by the API.
async fn changed(desk: &Desk, path: &str, body: &Value) -> Answer {
    let request = Request::post(path).header("content-type", "application/json");
    desk.ask(request.body(Body::from(body.to_string())).unwrap()).await
}

#[tokio::test]
async fn a_change_that_cannot_be_noted_says_so() {
    // Whether a note was taken was thrown away.
    let (desk, trouble) = desk().await;
    desk.dead_letters(0..4).await;
    desk.sees("orders", "they are counted", |s| s.dead_letters_open == Some(4)).await;
    let pause = "/api/v1/pipelines/orders/pause";
    let noted = changed(&desk, pause, &json!({})).await;
    assert_eq!((noted.status, noted.header("potok-warning")), (200, ""));
    let browser = desk.browser().await;
    let resume = browser.get("/pipelines/orders").await.fields("resume");
    let resume: Vec<(&str, &str)> =
        resume.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();

    trouble.notes_nothing.store(true, Ordering::Relaxed);
    let to = browser.post("resume", &resume).await.header("location").to_owned();
    let said = browser.get(&to).await.text;
    assert!(said.contains("orders goes on. But this is not noted in the audit"), "{said}");
    let lost = changed(&desk, pause, &json!({})).await;
    assert_eq!(lost.status, 200);
    assert!(lost.header("potok-warning").contains("not noted in the audit"));
    changed(&desk, "/api/v1/pipelines/orders/resume", &json!({})).await;
    // What answers as it goes says it of its beginning and of its end.
    let ids = json!({ "ids": ["orders-dead/0/0"] });
    let dropped = changed(&desk, "/api/v1/dead-letters/drop", &ids).await;
    assert!(dropped.header("potok-warning").contains("not noted"));
    assert!(dropped.text.contains("\"warning\":\"this is not noted"), "{}", dropped.text);
    let wish = json!({ "ids": ["orders-dead/0/1"], "job": "one" });
    let begun = changed(&desk, "/api/v1/dead-letters/drop", &wish).await;
    assert!(begun.header("potok-warning").contains("not noted"));
    let id: Value = serde_json::from_str(&begun.text).unwrap();
    let path = format!("/api/v1/jobs/{}", id["job"].as_str().unwrap());
    let job = wait::until("the job is done", || async {
        let job = desk.json(&path).await;
        (job["phase"] == "done").then_some(job)
    })
    .await;
    assert!(job["notes"].to_string().contains("not noted"), "{job}");
    desk.sees("orders", "both are dropped", |s| s.dead_letters_open == Some(2)).await;
}

/// A clock that is set.
#[derive(Default)]
struct SetClock(AtomicI64);

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}

#[tokio::test]
async fn a_trace_is_not_led_astray_by_times_of_others() {
    // The first record of a window ended the search, though a sender's clock may be anything.
    const HOUR: i64 = 3_600_000;
    const DAY: i64 = 24 * HOUR;
    let clock = Arc::new(SetClock::default());
    let log = Arc::new(MemoryLog::new(clock.clone()));
    let append = async |key: String, at: i64, count: usize| {
        clock.0.store(at, Ordering::Relaxed);
        let output = Output {
            topic: "orders".into(),
            partition: Some(0),
            key: Some(key.into()),
            headers: Headers::none(),
            value: None,
        };
        log.append(&vec![output; count]).await.unwrap();
    };
    append("wanted".to_owned(), DAY, 1).await;
    append("late".to_owned(), HOUR, 1).await;
    append("others".to_owned(), DAY, 19_999).await;
    let away = AwayLog { log: log.clone(), trouble: Arc::default(), shared: true };
    let engine = Engine::new(Arc::new(away), clock.clone(), None);
    let identity = Identity {
        version: "0",
        data_dir: "/data".to_owned(),
        pid: 1,
        nonce: "n".to_owned(),
        address: None,
    };
    let router = router(Admin::new(engine, identity));
    let found = async |since: &str| -> Value {
        let path = format!("/api/v1/trace?id=wanted&seconds=60&since={since}");
        let request = Request::get(path).body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        let bytes = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        serde_json::from_slice(&bytes).unwrap()
    };
    let seen = found("2h").await;
    assert_eq!(seen["seen"][0]["at"], "orders/0/0", "{seen}");
    // Where all of a window is older, it ends there.
    clock.0.store(3 * DAY, Ordering::Relaxed);
    let seen = found("2h").await;
    assert_eq!((&seen["records"], &seen["complete"]), (&json!(20_000), &json!(true)), "{seen}");
}

#[tokio::test]
async fn a_page_that_nobody_reads_is_cut() {
    // Fifty groups with keys as long as keys get: their list has a megabyte, a second later another.
    let desk = Desk::start().await;
    let of = |n: usize| json!({ "k": format!("{n:02}{}", "ä".repeat(2_000)) }).to_string();
    desk.send("chat", (0..50).map(of)).await;
    desk.sees("chat", "all are held", |status| status.open_groups == 50).await;
    let listener = potok_server::bind("127.0.0.1:0".parse().unwrap(), false).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(potok_server::serve(listener, desk.admin.clone()));
    let follow = async || {
        let request = Request::get("/events?view=%2F").body(Body::empty()).unwrap();
        desk.router.clone().oneshot(request).await.unwrap()
    };
    // All other places are taken: there is one when it is cut, and not before.
    let mut all = Vec::new();
    for _ in 0..63 {
        let answer = follow().await;
        assert_eq!(answer.status(), 200);
        all.push(answer);
    }
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    let request =
        format!("GET /events?view=%2Fgroups%3Fpipeline%3Dchat HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    assert_eq!(follow().await.status(), 503, "every place is taken");
    wait::until("it is cut", || async { (follow().await.status() == 200).then_some(()) }).await;
    drop(stream);
}
