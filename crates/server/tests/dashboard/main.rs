//! The dashboard as a browser without a script sees it, on a log in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access;
mod away;
mod confirmed;
mod desk;
mod ended;
mod many;
mod tables;
mod trust;
mod wait;

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::Request;
use potok_core::Fault;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use desk::Desk;

/// What somebody hostile would like a page to run or hide.
const HOSTILE: &str = "\"'><script>alert(1)</script>\u{202e}gnp.exe\u{0}";

const PAGES: [&str; 9] = [
    "/",
    "/pipelines/orders",
    "/pipelines/chat",
    "/groups",
    "/dead-letters",
    "/dead-letters/replay",
    "/trace",
    "/send",
    "/audit",
];

fn is_harmless(path: &str, text: &str) {
    assert!(!text.contains("<script>alert"), "{path}: markup of somebody else's\n{text}");
    assert!(!text.contains("<b>own"), "{path}: a header's name is text");
    assert!(!text.contains(['\u{202e}', '\u{0}']), "{path}: what hides or turns is made visible");
    assert!(
        !text.contains(" style=") && !text.contains(" onclick="),
        "{path}: the policy forbids it"
    );
    assert!(text.len() < 400_000, "{path}: {} bytes", text.len());
}

#[tokio::test]
async fn every_page_names_its_command_and_keeps_the_policy() {
    let desk = Desk::start().await;
    desk.send("chat", [json!({ "k": "telegram:1" }).to_string()]).await;
    desk.send("orders", [json!({ "n": 1 }).to_string()]).await;
    desk.sees("chat", "it is held", |status| status.open_groups == 1).await;
    for path in
        PAGES.iter().copied().chain(["/groups/chat/telegram%3A1", "/groups/chat/telegram%3A1/drop"])
    {
        let page = desk.get(path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text);
        let policy = page.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(
            (page.header("cache-control"), page.header("x-content-type-options")),
            ("no-store", "nosniff")
        );
        assert!(
            page.text.contains("In a terminal <code>potok ") && page.text.contains("As JSON"),
            "{path}"
        );
        is_harmless(path, &page.text);
    }
    let held = desk.get("/groups").await.text;
    assert!(
        held.contains("telegram:1") && held.contains("data-due=") && held.contains("max_age 1h")
    );
    for (path, status) in
        [("/pipelines/nobody", 404), ("/dead-letters?id=orders-dead/0/1", 404), ("/jobs/x", 404)]
    {
        let page = desk.get(path).await;
        assert_eq!(page.status, status, "{path}");
        assert!(
            page.text.contains("<!DOCTYPE html>") && page.text.contains("potok explain P"),
            "{path}"
        );
    }
    let style = desk.get("/assets/style.css").await;
    assert_eq!((style.status, style.header("content-type")), (200, "text/css"));
    assert!(desk.get("/assets/potok.js").await.text.len() < 10 << 10, "the script is small");
}

#[tokio::test]
async fn hostile_text_stays_text() {
    let desk = Desk::start().await;
    let long = format!("{{\"a\":\"{HOSTILE}{}\"}}", "x".repeat(1 << 20));
    desk.dead_letter(0, HOSTILE.as_bytes(), HOSTILE.as_bytes().to_vec(), HOSTILE).await;
    desk.dead_letter(1, b"\xff\xfe", long.into_bytes(), "too long").await;
    desk.send("chat", [json!({ "k": HOSTILE }).to_string()]).await;
    desk.sees("chat", "it is held", |status| status.open_groups == 1).await;
    desk.sees("orders", "they are counted", |status| status.dead_letters_open == Some(2)).await;
    let key: String = HOSTILE.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let group = format!("/groups/chat/{key}");
    let drop = format!("{group}/drop");
    let trace = format!("/trace?id={key}");
    let filter = format!("/dead-letters?pipeline={key}&reason={key}&cause={key}&after={key}");
    let ones = [
        "/dead-letters?id=orders-dead/0/0",
        "/dead-letters?id=orders-dead/0/1",
        "/send?from=orders-dead/0/0",
    ];
    for path in PAGES.iter().copied().chain([&*group, &drop, &trace, &filter]).chain(ones) {
        let page = desk.get(path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text);
        is_harmless(path, &page.text);
    }
    let one = desk.get("/dead-letters?id=orders-dead/0/0").await.text;
    assert!(
        one.contains("&lt;script&gt;alert(1)")
            && one.contains("⟨U+202E⟩")
            && one.contains("⟨U+0000⟩")
    );
    let cut = desk.get("/dead-letters?id=orders-dead/0/1").await.text;
    assert!(cut.contains("Cut after 64 KiB") && cut.contains("ff fe"), "it is cut, and says so");
}

#[tokio::test]
async fn what_is_forged_or_comes_from_elsewhere_changes_nothing() {
    let address = "127.0.0.1:7600".parse().unwrap();
    let desk = Desk::at(Some(address)).await;
    let host = ("host", "127.0.0.1:7600");
    let page = desk
        .ask(Request::get("/pipelines/orders").header(host.0, host.1).body(Body::empty()).unwrap())
        .await;
    let cookie = page.header("set-cookie").split(';').next().unwrap().to_owned();
    assert!(
        page.header("set-cookie").contains("SameSite=Strict")
            && page.header("set-cookie").contains("HttpOnly")
    );
    let token = page.token("pause");
    let post = |headers: Vec<(&'static str, String)>, token: String| {
        let mut request =
            Request::post("/act/pause").header("content-type", "application/x-www-form-urlencoded");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        desk.ask(request.body(Body::from(format!("token={token}&pipeline=orders"))).unwrap())
    };
    let host = || ("host", host.1.to_owned());
    let own = || ("cookie", cookie.clone());
    let refused = [
        (vec![host()], token.clone(), "without its session"),
        (
            vec![host(), ("cookie", "potok-session=000000000000000000000000".to_owned())],
            token.clone(),
            "of another session",
        ),
        (vec![host(), own()], format!("x{token}"), "with a forged token"),
        (vec![host(), own()], String::new(), "without a token"),
        (
            vec![host(), own(), ("origin", "https://evil.example".to_owned())],
            token.clone(),
            "of another origin",
        ),
        (
            vec![host(), own(), ("sec-fetch-site", "cross-site".to_owned())],
            token.clone(),
            "of another site",
        ),
        (vec![host(), own(), ("sec-fetch-site", "none".to_owned())], token.clone(), "of no page"),
        (vec![("host", "evil.example".to_owned()), own()], token.clone(), "for another host"),
    ];
    for (headers, token, what) in refused {
        assert_eq!(post(headers, token).await.status, 403, "{what}");
    }
    desk.sees("orders", "it runs", |status| status.state == potok_flow::State::Running).await;
    let state = || async { desk.sees("orders", "it is there", |_| true).await.state };
    assert_eq!(state().await, potok_flow::State::Running);
    let good = vec![
        host(),
        own(),
        ("origin", "http://127.0.0.1:7600".to_owned()),
        ("sec-fetch-site", "same-origin".to_owned()),
    ];
    assert_eq!(post(good, token).await.status, 303);
    assert_eq!(state().await, potok_flow::State::Paused);
}

#[tokio::test]
async fn an_action_is_done_once_told_and_noted() {
    let desk = Desk::start().await;
    desk.send("chat", (0..3).map(|n| json!({ "k": "telegram:1", "n": n }).to_string())).await;
    desk.sees("chat", "it is held", |status| status.held_records == 3).await;
    let browser = desk.browser().await;
    let page = browser.get("/groups").await;
    let token = page.token("close-group");
    let fields = [
        ("token", token.as_str()),
        ("back", "/groups"),
        ("pipeline", "chat"),
        ("key", "telegram:1"),
    ];
    let answer = browser.post("close-group", &fields).await;
    assert_eq!(answer.status, 303);
    let to = answer.header("location").to_owned();
    assert!(to.starts_with("/groups?done="), "{to}");
    assert!(browser.get(&to).await.text.contains("Group telegram:1 of chat closes now."));
    desk.sees("chat", "it was sent", |status| status.delivered == 3).await;

    // The same form again (a second click, a second tab): nothing happens, the first answer stands.
    desk.send("chat", [json!({ "k": "telegram:1" }).to_string()]).await;
    desk.sees("chat", "another is held", |status| status.held_records == 1).await;
    let again = browser.post("close-group", &fields).await;
    assert_eq!(again.header("location"), to);
    let closes = |entries: &serde_json::Value| {
        entries.as_array().unwrap().iter().filter(|entry| entry["action"] == "close_group").count()
    };
    assert_eq!(closes(&desk.json("/api/v1/audit").await), 1);
    assert_eq!(desk.sees("chat", "it is there", |_| true).await.held_records, 1);

    // What is gone by now says so, with its code, and the page stays.
    let page = browser.get("/groups").await;
    let fields = [
        ("token", &*page.token("close-group")),
        ("back", "/groups"),
        ("pipeline", "chat"),
        ("key", "gone"),
    ];
    let to = browser.post("close-group", &fields).await.header("location").to_owned();
    let page = browser.get(&to).await;
    assert!(
        page.status == 200 && page.text.contains("P0527") && page.text.contains("<h1>Groups</h1>")
    );
    // Nobody is led elsewhere.
    let fields = [
        ("token", &*page.token("close-group")),
        ("back", "//evil.example"),
        ("pipeline", "chat"),
        ("key", "gone"),
    ];
    assert!(browser.post("close-group", &fields).await.header("location").starts_with("/?done="));
    let audit = desk.get("/audit").await.text;
    assert!(
        audit.contains("close group") && audit.contains("telegram:1") && audit.contains("P0527")
    );
}

#[tokio::test]
async fn dropping_a_group_takes_its_key() {
    let desk = Desk::start().await;
    desk.send("chat", (0..2).map(|n| json!({ "k": "a/b", "n": n }).to_string())).await;
    desk.sees("chat", "it is held", |status| status.held_records == 2).await;
    let browser = desk.browser().await;
    let drop = async |typed: &str| {
        let fields = browser.get("/groups/chat/a%2Fb/drop").await.fields("drop-group");
        confirmed::sent(&browser, "drop-group", fields, typed).await
    };
    let to = drop("a").await;
    assert!(browser.get(&to).await.text.contains("P1504"), "something else was typed");
    assert_eq!(desk.sees("chat", "it is there", |_| true).await.held_records, 2);
    let to = drop("a/b").await;
    assert!(to.starts_with("/dead-letters?pipeline=chat"), "{to}");
    desk.sees("chat", "they are dead letters", |status| status.dead_letters_open == Some(2)).await;
}

#[tokio::test]
async fn causes_are_counted_and_replayed_as_a_job() {
    let desk = Desk::start().await;
    for n in 0..5 {
        let error = format!("/currency: \"c{n}\" does not match ^[A-Z]{{3}}$");
        desk.dead_letter(
            n,
            b"k",
            json!({ "n": n, "currency": "rub" }).to_string().into_bytes(),
            &error,
        )
        .await;
    }
    desk.dead_letter(9, b"k", json!({ "n": 9 }).to_string().into_bytes(), "something else").await;
    desk.sees("orders", "they are counted", |status| status.dead_letters_open == Some(6)).await;
    let problems = desk.json("/api/v1/problems").await;
    assert_eq!(problems[0]["kind"], "dead_letters", "{problems}");
    assert_eq!(problems[0]["what"], "orders has 6 open dead letters");

    let browser = desk.browser().await;
    let page = browser.get("/dead-letters").await;
    assert!(
        page.text.contains("2 causes")
            && page.text.contains("/currency: &quot;…&quot; does not match")
    );
    let one = browser.get("/dead-letters?id=orders-dead/0/0").await.text;
    assert!(one.contains("<mark>  &quot;currency&quot;"), "the field is marked: {one}");

    let cause = "/currency: \"…\" does not match ^[A-Z]{#}$";
    let query: String = cause.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let confirm = browser.get(&format!("/dead-letters/replay?pipeline=orders&cause={query}")).await;
    assert!(confirm.text.contains("Replay 5 dead letters"), "{}", confirm.text);
    let token = confirm.token("replay");
    let fields = [
        ("token", &*token),
        ("pipeline", "orders"),
        ("cause", cause),
        ("name", "rub"),
        ("rate", ""),
    ];
    let to = browser.post("replay", &fields).await.header("location").to_owned();
    assert!(to.starts_with("/jobs/"), "{to}");
    let id = to.strip_prefix("/jobs/").unwrap().split('?').next().unwrap().to_owned();
    let job = wait::until("the job is done", || async {
        let job = desk.json(&format!("/api/v1/jobs/{id}")).await;
        (job["phase"] == "done").then_some(job)
    })
    .await;
    assert_eq!(
        (&job["name"], &job["done"], &job["outcome"]["delivered"]),
        (&json!("rub"), &json!(5), &json!(5)),
        "{job}"
    );
    assert_eq!(desk.sink.count(), 5);
    desk.sees("orders", "one is left", |status| status.dead_letters_open == Some(1)).await;
    assert!(browser.get(&to).await.text.contains("done"));

    // The last one is dropped, which takes its id.
    let confirm = browser.get("/dead-letters/drop?id=orders-dead/0/5").await;
    let token = confirm.token("drop");
    let fields = [
        ("token", &*token),
        ("id", "orders-dead/0/5"),
        ("expected", "orders-dead/0/5"),
        ("typed", "orders-dead/0/5"),
    ];
    browser.post("drop", &fields).await;
    desk.sees("orders", "none is left", |status| status.dead_letters_open == Some(0)).await;
    wait::until("the page says so", || async {
        browser.get("/dead-letters").await.text.contains("No open dead letters").then_some(())
    })
    .await;
    let audit = desk.json("/api/v1/audit").await;
    let noted: Vec<_> = audit
        .as_array()
        .unwrap()
        .iter()
        .map(|e| (e["action"].as_str().unwrap(), e["count"].as_u64()))
        .collect();
    assert!(
        noted.contains(&("replay", Some(5))) && noted.contains(&("drop_dead_letters", Some(1))),
        "{noted:?}"
    );
}

#[tokio::test]
async fn a_destination_that_is_away_is_a_problem_with_a_probe() {
    let desk = Desk::start().await;
    desk.sink.set_outage(Some(Fault::wait("connection refused")));
    desk.send("orders", [json!({ "n": 1 }).to_string()]).await;
    desk.sees("orders", "its gate closes", |status| status.gate.state == "closed").await;
    let gate = wait::until("the problem is told", || async {
        let problems = desk.json("/api/v1/problems").await;
        problems.as_array().unwrap().iter().find(|problem| problem["kind"] == "gate").cloned()
    })
    .await;
    assert!(gate["cause"].as_str().unwrap().contains("connection refused"), "{gate}");
    assert!(
        gate["since"].is_string() && gate["meanwhile"].as_str().unwrap().contains("dead letter")
    );
    let browser = desk.browser().await;
    let page = browser.get("/").await;
    assert!(page.text.contains("orders waits for db orders") && page.text.contains("gate closed"));
    desk.sink.set_outage(None);
    let fields = [("token", &*page.token("probe")), ("back", "/"), ("pipeline", "orders")];
    let to = browser.post("probe", &fields).await.header("location").to_owned();
    assert!(browser.get(&to).await.text.contains("1 destination of orders are asked now"));
    desk.sees("orders", "it goes on", |status| status.delivered == 1).await;
    let rates = wait::until("the destination has taken it", || async {
        let rates = desk.json("/api/v1/rates").await;
        let orders =
            rates["pipelines"].as_array()?.iter().find(|of| of["pipeline"] == "orders")?.clone();
        (!orders["received"].as_array()?.is_empty()).then_some(orders)
    })
    .await;
    assert_eq!(rates["destinations"][0]["destination"], "db orders");
}

#[tokio::test]
async fn a_record_is_sent_and_traced() {
    let desk = Desk::start().await;
    let browser = desk.browser().await;
    let page = browser.get("/send?pipeline=orders").await;
    let token = page.token("send");
    let fields = [("token", &*token), ("topic", "orders"), ("key", "k1"), ("value", "{\"n\":1}")];
    let to = browser.post("send", &fields).await.header("location").to_owned();
    assert!(to.starts_with("/trace?id=orders%2F"), "{to}");
    desk.sees("orders", "it is delivered", |status| status.delivered == 1).await;
    let page = browser.get(&to).await;
    assert!(
        page.text.contains("Arrived")
            && page.text.contains("key <code>k1</code>")
            && page.text.contains("complete")
    );
    // Topics of potok's own are not written by hand.
    let page = browser.get("/send").await;
    let fields = [
        ("token", &*page.token("send")),
        ("topic", "potok-audit"),
        ("value", "x"),
        ("back", "/send"),
    ];
    let to = browser.post("send", &fields).await.header("location").to_owned();
    assert!(browser.get(&to).await.text.contains("P0151"));
}

#[tokio::test]
async fn a_page_costs_the_same_with_many_groups() {
    const GROUPS: u64 = 100_000;
    let desk = Desk::start().await;
    for chunk in 0..GROUPS / 10_000 {
        let of = |n: u64| json!({ "k": format!("chat:{:07}", chunk * 10_000 + n) }).to_string();
        desk.send("chat", (0..10_000).map(of)).await;
    }
    desk.sees("chat", "all are held", |status| status.open_groups == GROUPS).await;
    let page = desk.get("/groups?pipeline=chat").await;
    assert_eq!(page.tokens("close-group").len(), 50);
    assert!(
        page.text.len() < 150_000 && page.text.contains("50 of 100,000 groups"),
        "{}",
        page.text.len()
    );
    let next = page
        .text
        .split("href=\"")
        .find(|link| link.starts_with("/groups?pipeline=chat&amp;after="))
        .unwrap();
    let next = next.split('"').next().unwrap().replace("&amp;", "&");
    let second = desk.get(&next).await;
    assert_eq!(second.tokens("close-group").len(), 50);
    let keys = |text: &str| -> BTreeSet<String> {
        text.split("chat:").skip(1).filter_map(|rest| rest.get(..7).map(str::to_owned)).collect()
    };
    let (first, second) = (keys(&page.text), keys(&second.text));
    assert_eq!((first.len(), second.len()), (50, 50));
    assert!(first.is_disjoint(&second), "the next fifty");
}

#[tokio::test]
async fn a_stream_tells_what_changed_and_ends_with_the_process() {
    let desk = Desk::start().await;
    let listener = potok_server::bind("127.0.0.1:0".parse().unwrap(), false).await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(potok_server::serve(listener, desk.admin.clone()));
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET /events?view=%2F HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut read = String::new();
    let mut read_until = async |wanted: &str| {
        let mut buffer = vec![0; 64 << 10];
        while !read.contains(wanted) {
            let n = stream.read(&mut buffer).await.unwrap();
            assert!(n > 0, "it ended: {read}");
            read.push_str(&String::from_utf8_lossy(&buffer[..n]));
        }
    };
    read_until("Nothing needs a person.").await;
    desk.engine.pause("orders").unwrap();
    read_until("orders is paused").await;
    assert!(read.starts_with("HTTP/1.1 200") && read.contains("text/event-stream"));
    assert!(!read.contains("name=\\\"token\\\" value=\\\"\\\""), "forms have their tokens");
    // Nobody reads any more, and the process ends all the same.
    desk.admin.close();
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_view_that_is_none_is_not_followed() {
    let desk = Desk::start().await;
    assert_eq!(desk.get("/events?view=%2Fnowhere").await.status, 400);
}
