//! What a client missed while it was away, wherever it was sent from: the same on a directory in
//! this process and on Redis, and at every point where a send and a `Resume` can meet.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use potok_hub::trouble::Planted;
use potok_hub::{AckRule, Answer, Frame, InProcess, Limits, RedisDirectory};
use potok_services::redis;
use serde_json::{Value, json};

use crate::lines::LinePath;
use crate::pair::{Pair, limits, with};
use crate::support::{AN_HOUR, Ask, Client, TestHub, patiently, until};
use crate::trouble::apart;

fn frame(id: &str) -> Arc<Frame> {
    Frame::new("notify", id, b"{}", 64 << 10).unwrap()
}

/// Without an overlap, which would reach behind the start.
fn without_overlap(limits: Limits) -> Limits {
    Limits { resume_overlap: Duration::ZERO, ..limits }
}

pub async fn send(hub: &TestHub, user: &str, id: &str) -> Ask {
    hub.send_frame(user, &frame(id), AN_HOUR, AckRule::Any).await
}

async fn ask_to_resume(client: &mut Client, last: &str) {
    let call = json!({"type": 1, "target": "Resume", "arguments": [last], "invocationId": "r"});
    client.say(call).await;
}

/// What a client is told: live messages and the answer to `Resume`, until it was told that.
async fn told(client: &mut Client) -> (Vec<String>, Option<Vec<String>>) {
    let mut live = Vec::new();
    let id = |message: &Value| message["arguments"][1]["id"].as_str().unwrap().to_owned();
    loop {
        let message = client.hear().await;
        if message["type"] == 1 {
            live.push(id(&message));
            continue;
        }
        assert_eq!(message["error"], Value::Null, "{message}");
        let messages = message["result"]["messages"].as_array().unwrap();
        let missed = messages.iter().map(id).collect();
        return (live, (message["result"]["recovered"] == true).then_some(missed));
    }
}

/// What a client missed that comes now.
pub async fn missed(hub: &TestHub, user: &str, last: &str) -> Option<Vec<String>> {
    let mut client = hub.connect(user).await;
    ask_to_resume(&mut client, last).await;
    // What came when she had just left may come live too, before the answer or behind it.
    let (_, missed) = told(&mut client).await;
    client.say(json!({"type": 7})).await;
    while let Some(message) = client.heard().await {
        assert_eq!(message["type"], 1, "{message}");
    }
    missed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gap_is_known_to_all_nodes() {
    let url = tokio::task::spawn_blocking(|| redis().url()).await.unwrap();
    let limits = Limits { inbox_messages: 5, inbox_bytes: 2_000, ..without_overlap(limits()) };
    let directories: [Arc<dyn potok_hub::Directory>; 2] =
        [Arc::new(InProcess::new()), Arc::new(RedisDirectory::new(&url, "resuming").unwrap())];
    for directory in directories {
        let Pair { a, b } = Pair::start(&limits, directory.clone(), directory).await;
        for (hub, id) in [(&a, "m1"), (&b, "m2"), (&a, "m3")] {
            assert_eq!(send(hub, "alice", id).await.answer().await, Answer::Nobody);
        }
        send(&a, "bob", "m4").await;
        // What came in the same millisecond as the last one may be told again.
        let ends = |missed: Option<Vec<String>>, ids: &[&str]| {
            let missed = missed.expect("everything is known");
            assert!(missed.iter().rev().zip(ids.iter().rev()).all(|(one, other)| one == other));
            assert!(missed.len() >= ids.len(), "{missed:?}");
        };
        ends(missed(&a, "alice", "m2").await, &["m2", "m3"]);
        ends(missed(&b, "alice", "m1").await, &["m1", "m2", "m3"]);
        // Never somebody else's, and never a part.
        assert_eq!(missed(&b, "alice", "m4").await, None);
        for id in ["m5", "m6", "m7", "m8"] {
            send(&b, "alice", id).await;
        }
        assert_eq!(missed(&a, "alice", "m1").await, None, "more than is kept");
        ends(missed(&a, "alice", "m8").await, &["m8"]);
        let large = Frame::new(
            "notify",
            "large",
            &[b"\"".as_slice(), &[b'x'; 3_000], b"\""].concat(),
            64 << 10,
        );
        a.send_frame("alice", &large.unwrap(), AN_HOUR, AckRule::Any).await;
        assert_eq!(missed(&b, "alice", "m8").await, None, "one that was not kept came behind it");
        let known = async {
            loop {
                send(&b, "alice", "m9").await;
                if let Some(missed) = missed(&a, "alice", "m9").await {
                    return missed;
                }
            }
        };
        ends(Some(patiently("a gap that is known", known).await), &["m9"]);
    }
}

/// Whether alice, who comes to B, sees a message that A sends while she does.
struct Race {
    pair: Pair,
    way_a: Arc<LinePath>,
    way_b: Arc<LinePath>,
}

impl Race {
    async fn start(planted: Option<Planted>) -> Self {
        let limits = without_overlap(Limits { linger: Duration::ZERO, ..with(planted) });
        let (pair, way_a, way_b) = apart(&limits).await;
        assert_eq!(send(&pair.a, "alice", "before").await.answer().await, Answer::Nobody);
        Race { pair, way_a, way_b }
    }
}

fn seen(live: &[String], missed: Option<&[String]>) -> bool {
    let missed = missed.expect("everything is known");
    live.iter().chain(missed).any(|id| id == "racing")
}

/// A keeps and looks up when B has announced and read.
async fn sent_last(planted: Option<Planted>) -> bool {
    let Race { pair: Pair { a, b }, way_a, .. } = Race::start(planted).await;
    way_a.keeping.shut();
    let sending = tokio::spawn(async move {
        let ask = send(&a, "alice", "racing").await;
        (a, ask)
    });
    until("the send waits", || way_a.keeping.waiting.load(Ordering::Acquire) > 0).await;
    let mut alice = b.connect("alice").await;
    ask_to_resume(&mut alice, "before").await;
    let (live, missed) = told(&mut alice).await;
    assert!(!seen(&live, missed.as_deref()));
    way_a.keeping.open();
    let (_a, ask) = sending.await.unwrap();
    tokio::select! {
        message = alice.hear() => message["arguments"][1]["id"] == "racing",
        answer = ask.answer() => {
            assert_eq!(answer, Answer::Nobody);
            false
        }
    }
}

/// A keeps and looks up when B has not announced, and alice has asked already.
async fn sent_first(planted: Option<Planted>) -> bool {
    let Race { pair: Pair { a, b }, way_b, .. } = Race::start(planted).await;
    way_b.announcing.shut();
    let mut alice = b.connect("alice").await;
    ask_to_resume(&mut alice, "before").await;
    let early = match planted {
        Some(_) => Some(told(&mut alice).await),
        None => None,
    };
    assert_eq!(send(&a, "alice", "racing").await.answer().await, Answer::Nobody);
    way_b.announcing.open();
    let (live, missed) = match early {
        Some(early) => early,
        None => told(&mut alice).await,
    };
    seen(&live, missed.as_deref())
}

/// Between the two.
async fn sent_between() -> bool {
    let Race { pair: Pair { a, b }, way_b, .. } = Race::start(None).await;
    way_b.reading.shut();
    let mut alice = b.connect("alice").await;
    ask_to_resume(&mut alice, "before").await;
    until("it is read", || way_b.reading.waiting.load(Ordering::Acquire) > 0).await;
    let ask = send(&a, "alice", "racing").await;
    let id = alice.invoked().await;
    alice.complete(&id).await;
    assert_eq!(ask.answer().await, Answer::Acknowledged);
    way_b.reading.open();
    // In the gap too; clients drop what they know.
    let (live, missed) = told(&mut alice).await;
    seen(&live, missed.as_deref())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_seen_live_or_in_the_gap_whoever_is_first() {
    assert!(sent_first(None).await && sent_between().await && sent_last(None).await);
    assert!(!sent_last(Some(Planted::InboxAfter)).await, "the naive version is seen");
    assert!(!sent_first(Some(Planted::ResumeFirst)).await, "the naive version is seen");
}

/// m3 of one node overtakes m2 of another: who saw m3 alone still gets m2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_overtaken_is_in_the_gap() {
    let ids = overtaken(Duration::from_millis(300)).await;
    assert!(ids.contains(&"m2".to_owned()), "{ids:?}");
    let naive = overtaken(Duration::ZERO).await;
    assert_eq!(naive, ["m3"], "the naive version is seen");
}

/// What a client gets that saw m3 alone.
async fn overtaken(resume_overlap: Duration) -> Vec<String> {
    let limits = Limits { resume_overlap, ..limits() };
    let directory = Arc::new(InProcess::new());
    let Pair { a, b } = Pair::start(&limits, directory.clone(), directory).await;
    // Older than the overlap reaches behind m2.
    let known = async {
        loop {
            send(&a, "alice", "m2").await;
            send(&b, "alice", "m3").await;
            if let Some(ids) = missed(&a, "alice", "m3").await {
                return ids;
            }
            // Once a second, for each connection; another one asks next.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    patiently("a gap that is known", known).await
}
