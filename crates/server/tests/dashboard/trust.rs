//! What somebody might try who may do little, or who goes away in the middle of it.

use axum::body::{Body, Bytes};
use axum::http::Request;
use potok_core::Fault;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;

use crate::access::{HOST, ask, desk, sign_in};
use crate::desk::Desk;
use crate::wait;

#[tokio::test]
async fn an_operator_does_not_drop_by_another_spelling() {
    let desk = desk().await;
    desk.dead_letter(1, b"k1", b"{}".to_vec(), "it is bad").await;
    desk.sees("orders", "it is counted", |status| status.dead_letters_open == Some(1)).await;
    let cookie = sign_in(&desk, "operator").await;
    let session = [("cookie", cookie.as_str())];
    let token = ask(&desk, "GET", "/pipelines/orders", &session, "").await.token("pause");
    let body = format!("token={token}&x-pipeline=orders&x-expected=1&typed=1&x-key=telegram%3A1");
    for path in ["/act/drop", "/act/dro%70", "/act/%64rop", "/act/dro%70-group"] {
        assert_eq!(ask(&desk, "POST", path, &session, &body).await.status, 403, "{path}");
    }
    let left = desk.sees("orders", "it is there", |_| true).await.dead_letters_open;
    assert_eq!(left, Some(1), "nothing was dropped");
}

#[tokio::test]
async fn a_viewer_cannot_ask_payloads_yes_or_no() {
    let desk = desk().await;
    let value = json!({ "card": "4111" }).to_string();
    desk.dead_letter(1, b"k1", value.clone().into_bytes(), "row '4111' of k1 is bad").await;
    desk.send("orders", [value]).await;
    desk.sees("orders", "it is counted", |status| status.dead_letters_open == Some(1)).await;
    let viewer = [("authorization", "Bearer viewer")];
    let operator = [("authorization", "Bearer operator")];
    let summary = "/api/v1/dead-letters?summary=true";
    assert_eq!(ask(&desk, "GET", summary, &viewer, "").await.status, 200);
    for more in ["where=.card==%224111%22", "%77here=true", "group=4111", "cause=x", "ids=x"] {
        let path = format!("{summary}&{more}");
        assert_eq!(ask(&desk, "GET", &path, &viewer, "").await.status, 403, "{more}");
    }
    // A trace finds what has the word in its body only for those who may see it.
    let found = ask(&desk, "GET", "/trace?id=4111", &operator, "").await.text;
    assert!(found.contains("orders/0/0"), "{found}");
    let found = ask(&desk, "GET", "/trace?id=4111", &viewer, "").await.text;
    assert!(found.contains("Found nowhere") && !found.contains("orders/0/0"), "{found}");
    let found = ask(&desk, "GET", "/trace?id=k1", &viewer, "").await.text;
    assert!(found.contains("orders-dead/0/0"), "keys are no payload: {found}");
}

#[tokio::test]
async fn what_a_viewer_reads_of_errors_has_no_values() {
    let desk = desk().await;
    // What has changed is what was otherwise before.
    ask(&desk, "GET", "/api/v1/problems", &[("authorization", "Bearer viewer")], "").await;
    desk.sink.set_outage(Some(Fault::wait(
        "row 'secret-word' of \"secret-word\" (id)=(secret-word): refused",
    )));
    desk.send("orders", [json!({ "n": 1 }).to_string()]).await;
    desk.sees("orders", "its gate closes", |status| status.gate.state == "closed").await;
    let viewer = [("authorization", "Bearer viewer")];
    let operator = [("authorization", "Bearer operator")];
    let paths = ["/", "/pipelines/orders", "/api/v1/status", "/api/v1/problems", "/api/v1/changes"];
    for path in paths {
        wait::until("the gate is told", || async {
            ask(&desk, "GET", path, &operator, "").await.text.contains("secret-word").then_some(())
        })
        .await;
        let seen = ask(&desk, "GET", path, &viewer, "").await.text;
        assert!(seen.contains("refused") && !seen.contains("secret-word"), "{path}: {seen}");
    }
    desk.sink.set_outage(None);
    desk.engine.probe("orders").unwrap();
    // What a replay came to, too.
    desk.dead_letter(1, b"k", b"{\"card\":4111".to_vec(), "it is bad").await;
    desk.sees("orders", "it is counted", |status| status.dead_letters_open == Some(1)).await;
    let wish = json!({ "job": "again", "wait": 10_000 }).to_string();
    let begun = ask(&desk, "POST", "/api/v1/dead-letters/replay", &operator, &wish).await.text;
    let begun: serde_json::Value = serde_json::from_str(&begun).unwrap();
    let path = format!("/api/v1/jobs/{}", begun["job"].as_str().unwrap());
    wait::until("it failed again", || async {
        let job = ask(&desk, "GET", &path, &viewer, "").await.text;
        let job: serde_json::Value = serde_json::from_str(&job).unwrap();
        (job["outcome"]["dead_again"].as_array().map(Vec::len) == Some(1)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_a_viewer_reads_of_the_audit_has_no_values() {
    // Predicates and errors were shown to everybody.
    let desk = desk().await;
    desk.dead_letter(1, b"k1", b"{\"card\":\"4111\"}".to_vec(), "it is bad").await;
    desk.sees("orders", "it is counted", |status| status.dead_letters_open == Some(1)).await;
    let (viewer, operator) = ("Bearer viewer", "Bearer operator");
    let replay = json!({
        "pipeline": "orders", "reason": "invalid", "where": ".card == \"secret-word\"",
        "job": "replay of where=.card == \"secret-word\"",
    });
    let asked = [("authorization", operator)];
    let path = "/api/v1/dead-letters/replay";
    let begun = ask(&desk, "POST", path, &asked, &replay.to_string()).await;
    assert_eq!(begun.status, 202, "{}", begun.text);
    // A result that quotes what was asked for.
    let close = "/api/v1/pipelines/chat/groups/x/close";
    assert_eq!(ask(&desk, "POST", close, &asked, "").await.status, 404);
    let id: serde_json::Value = serde_json::from_str(&begun.text).unwrap();
    let job = format!("/api/v1/jobs/{}", id["job"].as_str().unwrap());
    for path in ["/audit", "/api/v1/audit", "/api/v1/jobs", &job, "/dead-letters"] {
        let seen = ask(&desk, "GET", path, &[("authorization", operator)], "").await.text;
        assert!(seen.contains("secret-word"), "{path}: {seen}");
        let seen = ask(&desk, "GET", path, &[("authorization", viewer)], "").await.text;
        assert!(seen.contains("where=…") && !seen.contains("secret-word"), "{path}: {seen}");
    }
    let page = format!("/jobs/{}", id["job"].as_str().unwrap());
    let seen = ask(&desk, "GET", &page, &[("authorization", viewer)], "").await.text;
    assert!(!seen.contains("secret-word"), "{seen}");
}

#[tokio::test]
async fn signing_out_ends_what_is_followed() {
    let listener = potok_server::bind("127.0.0.1:0".parse().unwrap(), true).await.unwrap();
    let address = listener.local_addr().unwrap();
    let desk = desk().await;
    tokio::spawn(potok_server::serve(listener, desk.admin.clone()));
    let cookie = sign_in(&desk, "operator").await;
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request =
        format!("GET /events?view=%2F HTTP/1.0\r\nHost: {HOST}\r\nCookie: {cookie}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut read, mut buffer) = (String::new(), vec![0; 64 << 10]);
    while !read.contains("data: ") {
        let n = stream.read(&mut buffer).await.unwrap();
        assert!(n > 0, "it ended: {read}");
        read.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
    assert!(read.contains("text/event-stream"), "{read}");
    let session = [("cookie", cookie.as_str())];
    let page = ask(&desk, "GET", "/", &session, "").await;
    let body = format!("token={}", page.token("sign-out"));
    assert_eq!(ask(&desk, "POST", "/act/sign-out", &session, &body).await.status, 303);
    // To its end.
    while stream.read(&mut buffer).await.unwrap() > 0 {}
}

#[tokio::test]
async fn a_change_whose_asker_is_gone_is_finished_and_noted() {
    let desk = Desk::start().await;
    let (send, body) = futures::channel::mpsc::unbounded::<Result<Bytes, std::io::Error>>();
    let wish = json!({ "pipeline": "orders" }).to_string();
    desk.dead_letter(1, b"k1", b"{}".to_vec(), "it is bad").await;
    desk.sees("orders", "it is counted", |status| status.dead_letters_open == Some(1)).await;
    let request = Request::post("/api/v1/dead-letters/drop");
    let request = request.body(Body::from_stream(body)).unwrap();
    let mut asked = Box::pin(desk.router.clone().oneshot(request));
    assert!(futures::poll!(&mut asked).is_pending());
    drop(asked);
    send.unbounded_send(Ok(wish.into())).unwrap();
    drop(send);
    // Nobody reads what it says, so it goes no further than it was; and that is noted.
    wait::until("it is noted", || async {
        let audit = desk.get("/api/v1/audit").await.text;
        audit.contains("\"cut off\"").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_look_at_what_a_replay_would_do_is_in_nobodys_way() {
    let desk = Desk::start().await;
    desk.dead_letters(0..20).await;
    desk.sees("orders", "they are counted", |status| status.dead_letters_open == Some(20)).await;
    let job = json!({ "job": "slow", "rate": 1 });
    let begun = desk.post_json("/api/v1/dead-letters/replay", &job).await;
    let begun: serde_json::Value = serde_json::from_str(&begun).unwrap();
    let path = format!("/api/v1/jobs/{}", begun["job"].as_str().unwrap());
    let page = desk.get("/dead-letters/replay?pipeline=orders").await;
    assert_eq!(page.status, 200, "{}", page.text);
    assert!(page.text.contains("Dry run, as it runs now"));
    let dry = desk.post_json("/api/v1/dead-letters/replay", &json!({ "dry_run": true })).await;
    assert!(dry.contains("forecast"), "{dry}");
    // Two that change something are one too many.
    let other = desk.post_json("/api/v1/dead-letters/drop", &json!({})).await;
    assert!(other.contains("P0520"), "{other}");
    let stop = Request::delete(&path).body(Body::empty()).unwrap();
    assert_eq!(desk.ask(stop).await.status, 200);
    wait::until("it has stopped", || async {
        (desk.json(&path).await["phase"] == "stopped").then_some(())
    })
    .await;
    let audit = desk.get("/api/v1/audit").await.text;
    assert!(audit.contains("stop_job") && audit.contains("\"stopped\""), "{audit}");
}

#[tokio::test]
async fn every_answer_runs_nothing_and_is_kept_by_nobody() {
    let desk = desk().await;
    let operator = [("authorization", "Bearer operator")];
    for (path, headers) in [
        ("/api/v1/status", &operator[..]),
        ("/api/v1/nothing", &operator),
        ("/metrics", &operator),
        ("/api/v1/status", &[]),
        ("/", &[]),
        ("/live", &[]),
        ("/login", &[]),
    ] {
        let answer = ask(&desk, "GET", path, headers, "").await;
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header("cache-control"), "no-store", "{path}");
        let policy = answer.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{path}");
    }
}

#[tokio::test]
async fn a_trace_without_bounds_is_bounded() {
    let desk = Desk::start().await;
    desk.send("orders", (0..30).map(|_| json!({ "n": "same" }).to_string())).await;
    let found = desk.json("/api/v1/trace?id=same&seconds=18446744073709551615").await;
    assert_eq!(found["complete"], true, "{found}");
    let found = desk.json("/api/v1/trace?id=same&limit=5").await;
    assert_eq!(found["complete"], false, "{found}");
    let long = "x".repeat(5_000);
    assert_eq!(desk.get(&format!("/api/v1/trace?id={long}")).await.status, 400);
}
