//! Beyond this machine: nobody without a token, and each by their role.

use axum::body::Body;
use axum::http::Request;
use futures::FutureExt;
use futures::future::BoxFuture;
use potok_core::Timestamp;
use potok_server::{Gatekeeper, Refusal, Role, Visitor};
use serde_json::json;

use crate::desk::{Answer, Desk};

pub const HOST: &str = "potok.example.com";

/// Takes the name of a role for a token.
struct Words;

impl Gatekeeper for Words {
    fn admit<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Visitor, Refusal>> {
        let visitor = |role| Visitor {
            name: format!("{token}@example.com"),
            role,
            expires: Some(Timestamp(i64::MAX)),
        };
        let refused = |why: &str, is_known| Refusal {
            why: why.to_owned(),
            hint: "fetch another".to_owned(),
            is_known,
        };
        let answer = match token {
            "viewer" => Ok(visitor(Role::Viewer)),
            "operator" => Ok(visitor(Role::Operator)),
            "admin" => Ok(visitor(Role::Admin)),
            "past" => Ok(Visitor { expires: Some(Timestamp(1)), ..visitor(Role::Admin) }),
            "customer" => Err(refused("customer has no role here", true)),
            _ => Err(refused("its audience is \"shop\", without `potok`", false)),
        };
        async move { answer }.boxed()
    }
}

pub async fn desk() -> Desk {
    let desk = Desk::at(Some("0.0.0.0:7600".parse().unwrap())).await;
    desk.admin.demand_tokens(Box::new(Words), "key-of-the-folder".to_owned());
    desk
}

pub async fn ask(
    desk: &Desk,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header("host", HOST);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    desk.ask(request.body(Body::from(body.to_owned())).unwrap()).await
}

/// Signs in; the cookie of the session.
pub async fn sign_in(desk: &Desk, token: &str) -> String {
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let body = format!("token={token}&back=%2Fgroups");
    let answer = ask(desk, "POST", "/login", &form, &body).await;
    assert_eq!((answer.status, answer.header("location")), (303, "/groups"), "{}", answer.text);
    let cookie = answer.header("set-cookie");
    assert!(
        cookie.contains("HttpOnly")
            && cookie.contains("SameSite=Strict")
            && cookie.contains("Max-Age=")
    );
    assert!(!cookie.contains(token), "the token is kept nowhere");
    cookie.split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn nobody_without_a_token_sees_or_changes_anything() {
    let desk = desk().await;
    for path in ["/", "/groups", "/dead-letters?id=orders-dead/0/0", "/audit"] {
        let answer = ask(&desk, "GET", path, &[], "").await;
        assert_eq!(answer.status, 303, "{path}");
        assert!(answer.header("location").starts_with("/login"), "{path}");
    }
    for path in ["/api/v1/status", "/api/v1/info", "/metrics", "/events?view=%2F"] {
        let answer = ask(&desk, "GET", path, &[], "").await;
        assert_eq!((answer.status, answer.header("www-authenticate")), (401, "Bearer"), "{path}");
        assert!(!answer.text.contains("orders"), "{path}: {}", answer.text);
    }
    for path in ["/act/pause", "/api/v1/pipelines/orders/pause", "/api/v1/dead-letters/drop"] {
        assert_eq!(ask(&desk, "POST", path, &[], "{}").await.status, 401, "{path}");
    }
    for path in ["/live", "/login", "/assets/style.css"] {
        let answer = ask(&desk, "GET", path, &[], "").await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(!answer.text.contains("orders"), "{path}");
    }
    let ready = ask(&desk, "GET", "/ready", &[], "").await;
    assert_eq!((ready.status, ready.text.as_str()), (200, "{\"ready\":true}"));
    let login = ask(&desk, "GET", "/login?back=https%3A%2F%2Fevil.example", &[], "").await;
    assert!(!login.text.contains("evil.example"), "only our own pages are gone back to");
}

#[tokio::test]
async fn a_wrong_token_is_refused_and_said_why() {
    let desk = desk().await;
    let form = [("content-type", "application/x-www-form-urlencoded")];
    for (token, status, why) in [
        ("forged", 401, "without `potok`"),
        ("customer", 403, "customer has no role here"),
        ("past", 401, "needed"),
    ] {
        let answer = ask(&desk, "POST", "/login", &form, &format!("token={token}")).await;
        assert_eq!(answer.status, status, "{token}");
        assert!(answer.text.contains(why) && answer.header("set-cookie").is_empty(), "{token}");
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str())];
        let answer = ask(&desk, "GET", "/api/v1/status", &headers, "").await;
        assert_eq!(answer.status, status, "{token}");
        assert!(!answer.text.contains("orders-group"), "{}", answer.text);
    }
    let guessed = [("cookie", "potok-session=0123456789abcdef01234567")];
    assert_eq!(ask(&desk, "GET", "/", &guessed, "").await.status, 303);
    let local = [("authorization", "Bearer key-of-the-folder")];
    assert_eq!(ask(&desk, "GET", "/api/v1/info", &local, "").await.status, 200);
}

#[tokio::test]
async fn a_viewer_sees_no_payload_and_changes_nothing() {
    let desk = desk().await;
    desk.dead_letter(1, b"k1", b"{\"card\":\"4111\"}".to_vec(), "/card: \"4111\" is long").await;
    desk.send("chat", [json!({ "k": "telegram:1" }).to_string()]).await;
    desk.sees("chat", "it is held", |status| status.open_groups == 1).await;
    desk.sees("orders", "it is counted", |status| status.dead_letters_open == Some(1)).await;
    let cookie = sign_in(&desk, "viewer").await;
    let session = [("cookie", cookie.as_str())];
    for path in [
        "/",
        "/pipelines/orders",
        "/groups",
        "/groups/chat/telegram%3A1",
        "/dead-letters",
        "/dead-letters?id=orders-dead/0/0",
        "/trace?id=k1",
        "/audit",
    ] {
        let page = ask(&desk, "GET", path, &session, "").await;
        assert_eq!(page.status, 200, "{path}: {}", page.text);
        let forms = page.text.matches("action=\"/act/").count();
        assert_eq!((forms, page.tokens("sign-out").len()), (1, 1), "{path}");
        assert!(!page.text.contains("4111"), "{path} shows a payload");
        assert!(!page.text.contains("/drop\"") && !page.text.contains("/send"), "{path}");
    }
    for path in [
        "/send",
        "/dead-letters/replay",
        "/dead-letters/drop",
        "/groups/chat/telegram%3A1/drop",
        "/api/v1/dead-letters",
        "/api/v1/trace?id=k1",
        "/api/v1/topics/orders/records",
    ] {
        let page = ask(&desk, "GET", path, &session, "").await;
        assert_eq!(page.status, 403, "{path}");
        assert!(!page.text.contains("4111"), "{path}");
        let is_page = !path.starts_with("/api/");
        assert_eq!(page.text.contains("<!DOCTYPE html>"), is_page, "people get a page: {path}");
    }
    let token = ask(&desk, "GET", "/", &session, "").await.token("sign-out");
    let body = format!("token={token}&pipeline=orders");
    for act in ["pause", "replay", "drop", "close-group", "send", "drop-group"] {
        let answer = ask(&desk, "POST", &format!("/act/{act}"), &session, &body).await;
        assert_eq!(answer.status, 403, "{act}");
    }
    let bearer = [("authorization", "Bearer viewer")];
    let path = "/api/v1/pipelines/orders/pause";
    assert_eq!(ask(&desk, "POST", path, &bearer, "").await.status, 403);
    let status = desk.sees("orders", "it runs", |status| status.since.is_some()).await;
    assert_eq!(status.state, potok_flow::State::Running, "nothing was changed");
}

#[tokio::test]
async fn an_operator_acts_under_their_name_and_does_not_drop() {
    let desk = desk().await;
    desk.dead_letter(1, b"k1", b"{\"card\":\"4111\"}".to_vec(), "/card: \"4111\" is long").await;
    desk.sees("orders", "it is counted", |status| status.dead_letters_open == Some(1)).await;
    let cookie = sign_in(&desk, "operator").await;
    let session = [("cookie", cookie.as_str())];
    let one = ask(&desk, "GET", "/dead-letters?id=orders-dead/0/0", &session, "").await;
    assert!(one.text.contains("4111") && !one.text.contains("/dead-letters/drop"));
    let page = ask(&desk, "GET", "/pipelines/orders", &session, "").await;
    let body = format!("token={}&pipeline=orders", page.token("pause"));
    // Another site cannot use the session, nor can a program without a token.
    let foreign = [("cookie", cookie.as_str()), ("origin", "https://evil.example")];
    assert_eq!(ask(&desk, "POST", "/act/pause", &foreign, &body).await.status, 403);
    let cross = [("cookie", cookie.as_str()), ("sec-fetch-site", "cross-site")];
    assert_eq!(ask(&desk, "POST", "/act/pause", &cross, &body).await.status, 403);
    let path = "/api/v1/pipelines/orders/pause";
    assert_eq!(ask(&desk, "POST", path, &session, "").await.status, 401);
    let forged = "token=forged.00&pipeline=orders";
    assert_eq!(ask(&desk, "POST", "/act/pause", &session, forged).await.status, 403);
    desk.sees("orders", "it runs", |status| status.state == potok_flow::State::Running).await;
    let own = [("cookie", cookie.as_str()), ("origin", "https://potok.example.com")];
    assert_eq!(ask(&desk, "POST", "/act/pause", &own, &body).await.status, 303);
    desk.sees("orders", "it is paused", |status| status.state == potok_flow::State::Paused).await;
    let drop = json!({ "pipeline": "orders" }).to_string();
    let bearer = [("authorization", "Bearer operator")];
    assert_eq!(ask(&desk, "POST", "/api/v1/dead-letters/drop", &bearer, &drop).await.status, 403);
    let admin = [("authorization", "Bearer admin")];
    assert_eq!(ask(&desk, "POST", "/api/v1/dead-letters/drop", &admin, &drop).await.status, 200);
    let audit = ask(&desk, "GET", "/api/v1/audit", &bearer, "").await.text;
    assert!(
        audit.contains("operator@example.com") && audit.contains("admin@example.com"),
        "{audit}"
    );
    // Signed out, the session is nobody's.
    let page = ask(&desk, "GET", "/", &session, "").await;
    let body = format!("token={}", page.token("sign-out"));
    let out = ask(&desk, "POST", "/act/sign-out", &session, &body).await;
    assert_eq!((out.status, out.header("location")), (303, "/login"));
    assert_eq!(ask(&desk, "GET", "/", &session, "").await.status, 303);
}
