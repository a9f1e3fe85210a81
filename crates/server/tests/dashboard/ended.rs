//! Who is not signed in, any more or yet: what they may cost, and what they do not lose.

use axum::body::{Body, Bytes};
use axum::http::Request;
use potok_core::Fault;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;

use crate::access::{HOST, ask, desk, sign_in};
use crate::desk::Desk;
use crate::wait;

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

#[tokio::test]
async fn what_somebody_typed_outlives_their_session() {
    // A form sent after the session had ended was answered with JSON, and what was typed was gone.
    let desk = desk().await;
    let cookie = sign_in(&desk, "operator").await;
    let session = [("cookie", cookie.as_str())];
    let page = ask(&desk, "GET", "/send?pipeline=orders", &session, "").await;
    let out = format!("token={}", page.token("sign-out"));
    assert_eq!(ask(&desk, "POST", "/act/sign-out", &session, &out).await.status, 303);
    let body = format!(
        "token={}&back=%2Fsend%3Fpipeline%3Dorders&topic=orders&key=k%3C9&value=%7B%22n%22%3A+1%7D",
        page.token("send")
    );
    let own = [FORM, ("cookie", cookie.as_str()), ("sec-fetch-site", "same-origin")];
    let ended = ask(&desk, "POST", "/act/send", &own, &body).await;
    assert_eq!(ended.status, 401);
    assert!(ended.text.contains("Your session has ended, so nothing was done"), "{}", ended.text);
    let carried = |page: &str| {
        let inputs = page.split("<input").skip(1).filter_map(|tag| {
            let name = tag.split_once(" name=\"")?.1.split('"').next()?;
            let value = tag.split_once(" value=\"")?.1.split('"').next()?;
            Some(format!("{name}={}", value.replace('%', "%25").replace('&', "%26")))
        });
        inputs.collect::<Vec<_>>().join("&")
    };
    // A token that is refused loses nothing either.
    let wrong = format!("token=forged&{}", carried(&ended.text));
    let wrong = ask(&desk, "POST", "/login", &[FORM], &wrong).await;
    assert_eq!(wrong.status, 401);
    let right = format!("token=operator&{}", carried(&wrong.text));
    let answer = ask(&desk, "POST", "/login", &[FORM], &right).await;
    assert_eq!((answer.status, answer.header("location")), (303, "/send?pipeline=orders"));
    let cookie = answer.header("set-cookie").split(';').next().unwrap().to_owned();
    let session = [("cookie", cookie.as_str())];
    let page = ask(&desk, "GET", "/send?pipeline=orders", &session, "").await;
    assert!(page.text.contains("What you had typed is here again"), "{}", page.text);
    assert!(page.text.contains("value=\"k&lt;9\""), "{}", page.text);
    assert!(page.text.contains("{&quot;n&quot;: 1}"), "{}", page.text);
    let again = ask(&desk, "GET", "/send?pipeline=orders", &session, "").await;
    assert!(!again.text.contains("k&lt;9"), "once");
    let status = desk.sees("orders", "it runs", |status| status.since.is_some()).await;
    assert_eq!(status.received, 0, "nothing was sent");
    // Without a word of where it comes from, it is nobody's form.
    let unknown = ask(&desk, "POST", "/act/send", &[FORM], &body).await;
    assert!(unknown.status == 401 && unknown.text.contains("P1620"), "{}", unknown.text);
}

#[tokio::test]
async fn a_link_in_a_chat_leads_to_a_page() {
    let desk = desk().await;
    let cookie = sign_in(&desk, "operator").await;
    let link = [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-dest", "document"),
    ];
    // The browser leaves the session out; the page that it gets leads on from here, with it.
    let first = ask(&desk, "GET", "/dead-letters?pipeline=orders", &link, "").await;
    assert_eq!(first.status, 200);
    let to = "/dead-letters?pipeline=orders&amp;opened=1";
    assert!(first.text.contains(&format!("content=\"0; url={to}\"")), "{}", first.text);
    assert!(first.header("set-cookie").is_empty(), "sessions stay as they are");
    assert!(!first.text.contains("orders-dead"));
    let path = "/dead-letters?pipeline=orders&opened=1";
    let own = [("cookie", cookie.as_str()), ("sec-fetch-site", "same-origin")];
    let second = ask(&desk, "GET", path, &own, "").await;
    assert!(second.status == 200 && second.text.contains("<h1>Dead letters</h1>"));
    // A browser that says again that it comes from elsewhere is not led in circles.
    assert_eq!(ask(&desk, "GET", path, &link, "").await.status, 303);
    let frame = [link[0], link[1], ("sec-fetch-dest", "iframe")];
    assert_eq!(ask(&desk, "GET", path, &frame, "").await.status, 403);
    let evil = ask(&desk, "GET", "//evil.example/x", &link, "").await;
    assert!(!evil.text.contains("evil.example"), "{}", evil.text);
}

#[tokio::test]
async fn a_proxy_without_a_login_opens_nothing() {
    let desk = Desk::at(Some("127.0.0.1:7600".parse().unwrap())).await;
    let get = |name: &'static str, value: &'static str| {
        let request = Request::get("/").header("host", "127.0.0.1:7600").header(name, value);
        desk.ask(request.body(Body::empty()).unwrap())
    };
    for name in ["x-forwarded-for", "x-forwarded-proto", "forwarded", "x-real-ip", "via"] {
        let answer = get(name, "203.0.113.9").await;
        assert_eq!(answer.status, 403, "{name}");
        assert!(
            answer.text.contains(name) && answer.text.contains("set `auth`"),
            "{}",
            answer.text
        );
    }
    assert_eq!(get("accept", "text/html").await.status, 200);
}

#[tokio::test]
async fn who_is_not_signed_in_costs_little() {
    let desk = desk().await;
    let long = format!("token={}", "x".repeat(300 << 10));
    let answer = ask(&desk, "POST", "/login", &[FORM], &long).await;
    assert_eq!(answer.status, 413, "{}", answer.text);
    let token = "operator".repeat(3_000);
    let answer = ask(&desk, "POST", "/login", &[FORM], &format!("token={token}")).await;
    assert!(answer.status == 401 && answer.text.contains("longer than"), "{}", answer.text);
    // Forms that never end: a few wait, the next one is turned away.
    let mut waiting = Vec::new();
    for _ in 0..16 {
        let body = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        let request = Request::post("/login").header("host", HOST).header(FORM.0, FORM.1);
        let mut asked = Box::pin(desk.router.clone().oneshot(request.body(body).unwrap()));
        // What changes something runs in a task of its own; a look at the form does not.
        for _ in 0..10 {
            assert!(futures::poll!(&mut asked).is_pending());
            tokio::task::yield_now().await;
        }
        waiting.push(asked);
    }
    let answer = ask(&desk, "POST", "/login", &[FORM], "token=operator").await;
    assert!(answer.status == 503 && answer.text.contains("too many"), "{}", answer.text);
    drop(waiting);
    let answer = wait::until("there is room again", || async {
        let answer = ask(&desk, "POST", "/login", &[FORM], "token=operator").await;
        (answer.status != 503).then_some(answer)
    })
    .await;
    assert_eq!(answer.status, 303);
}

#[tokio::test]
async fn a_request_that_never_ends_is_cut() {
    let listener = potok_server::bind("127.0.0.1:0".parse().unwrap(), false).await.unwrap();
    let address = listener.local_addr().unwrap();
    let desk = Desk::start().await;
    tokio::spawn(potok_server::serve(listener, desk.admin.clone()));
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: ").await.unwrap();
    let mut buffer = vec![0; 4 << 10];
    while stream.read(&mut buffer).await.unwrap_or(0) > 0 {}
}

#[tokio::test]
async fn ready_tells_a_viewer_no_values() {
    // It repeated the reasons of waits as they are: rows, keys and whatever else errors quote.
    let desk = desk().await;
    desk.sink.set_outage(Some(Fault::fix("row 'secret-word' is refused")));
    desk.send("orders", [json!({ "n": 1 }).to_string()]).await;
    let of = async |role: &str| {
        let bearer = format!("Bearer {role}");
        ask(&desk, "GET", "/ready", &[("authorization", &bearer)], "").await.text
    };
    wait::until("it waits", || async {
        of("operator").await.contains("secret-word").then_some(())
    })
    .await;
    let seen = of("viewer").await;
    assert!(seen.contains("refused") && !seen.contains("secret-word"), "{seen}");
}

#[tokio::test]
async fn what_a_viewer_reads_of_tables_has_no_values() {
    let desk = desk().await;
    desk.with_tables("row 'secret-word' is refused");
    let viewer = [("authorization", "Bearer viewer")];
    let operator = [("authorization", "Bearer operator")];
    for path in ["/outbox", "/files?pipeline=shop", "/api/v1/files", "/dead-letters"] {
        wait::until(path, || async {
            let page = ask(&desk, "GET", path, &operator, "").await.text;
            page.contains("secret-word").then_some(())
        })
        .await;
        let seen = ask(&desk, "GET", path, &viewer, "").await;
        assert_eq!(seen.status, 200, "{path}");
        // The key of a row is no payload, and here it is the same text.
        let errors = seen.text.replace("mono\">row 'secret-word' is refused", "");
        assert!(!errors.contains("secret-word"), "{path}: {errors}");
    }
}
