//! Requests: tokens, origins, negotiation, and what strangers get to see.

use std::collections::HashMap;
use std::sync::Arc;

use futures::SinkExt;
use potok_hub::tokens::{Authority, Person, Refusal};
use potok_hub::trouble::Planted;
use potok_hub::{HubSettings, Limits, Node};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use crate::support::{Client, TestHub, ask, ask_at, patiently};

const NEGOTIATE: &str = "/hubs/notifications/negotiate?negotiateVersion=1";

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

#[tokio::test]
async fn negotiation_offers_all_transports_to_whoever_has_a_token() {
    let hub = TestHub::start().await;
    let bearer = bearer(&hub.token("alice"));
    let answer = ask(&hub, "POST", NEGOTIATE, &[("authorization", &bearer)]).await;
    assert_eq!(answer.status, 200);
    let json = answer.json();
    assert_eq!(json["negotiateVersion"], 1);
    assert_ne!(json["connectionId"], json["connectionToken"]);
    let names: Vec<_> = json["availableTransports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["transport"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["WebSockets", "ServerSentEvents", "LongPolling"]);
    assert_eq!(json.get("useStatefulReconnect"), None);
    assert_eq!(ask(&hub, "GET", NEGOTIATE, &[("authorization", &bearer)]).await.status, 405);
    assert_eq!(
        ask(&hub, "POST", "/hubs/other/negotiate", &[("authorization", &bearer)]).await.status,
        404
    );
    let old = "Microsoft SignalR/6.0 (6.0.25; Linux; NodeJS; 20)";
    let headers = [("authorization", bearer.as_str()), ("user-agent", old)];
    let refused = ask(&hub, "POST", NEGOTIATE, &headers).await;
    assert!(refused.json()["error"].as_str().unwrap().contains("7 or newer"));
    let zero =
        ask(&hub, "POST", "/hubs/notifications/negotiate", &[("authorization", &bearer)]).await;
    assert!(zero.json()["error"].is_string());
}

#[tokio::test]
async fn without_affinity_only_websockets_are_offered() {
    let settings = HubSettings { sticky: Some(false), ..HubSettings::default() };
    let hub = TestHub::with(settings).await;
    let bearer = bearer(&hub.token("alice"));
    let json = ask(&hub, "POST", NEGOTIATE, &[("authorization", &bearer)]).await.json();
    assert_eq!(json["availableTransports"].as_array().unwrap().len(), 1);
    let path = format!("/hubs/notifications?id={}", json["connectionToken"].as_str().unwrap());
    let poll = ask(&hub, "GET", &path, &[("authorization", &bearer)]).await;
    assert_eq!(poll.status, 404);
}

#[tokio::test]
async fn tokens_are_asked_for_everywhere_and_taken_from_the_query_only_where_they_must() {
    let hub = TestHub::start().await;
    let token = hub.token("alice");
    for method in ["GET", "POST", "DELETE"] {
        let path = "/hubs/notifications?id=x";
        assert_eq!(ask(&hub, method, path, &[]).await.status, 401, "{method}");
    }
    let refused = ask(&hub, "POST", NEGOTIATE, &[("authorization", "Bearer a.b.c")]).await;
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
    let in_query = format!("{NEGOTIATE}&access_token={token}");
    assert_eq!(ask(&hub, "POST", &in_query, &[]).await.status, 400);
    let both = [("authorization", bearer(&hub.token("bob")))];
    let both = both.each_ref().map(|(name, value)| (*name, value.as_str()));
    let path = format!("/hubs/notifications?access_token={token}");
    let socket = [("upgrade", "websocket"), ("connection", "upgrade"), both[0]];
    assert_eq!(ask(&hub, "GET", &path, &socket).await.status, 400);
    // A browser has no other way.
    let url = format!("ws://{}{path}", hub.address);
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
    socket.send(Message::text("{\"protocol\":\"json\",\"version\":1}\u{1e}")).await.unwrap();
}

#[tokio::test]
async fn pages_see_answers_only_from_listed_origins_but_then_errors_too() {
    let settings =
        HubSettings { origins: vec!["https://app.example".to_owned()], ..HubSettings::default() };
    let hub = TestHub::with(settings).await;
    let page = ("origin", "https://app.example");
    let preflight = ask(&hub, "OPTIONS", NEGOTIATE, &[page]).await;
    assert_eq!(preflight.status, 204);
    assert!(
        preflight.header("access-control-allow-headers").unwrap().contains("x-signalr-user-agent")
    );
    let refused = ask(&hub, "POST", NEGOTIATE, &[page]).await;
    assert_eq!(refused.status, 401);
    for answer in [preflight, refused] {
        assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"));
        assert_eq!(answer.header("access-control-allow-credentials"), Some("true"));
        assert_eq!(answer.header("vary"), Some("Origin"));
    }
    let bearer = bearer(&hub.token("alice"));
    for foreign in ["https://evil.example", "null"] {
        let headers = [("origin", foreign), ("authorization", bearer.as_str())];
        let refused = ask(&hub, "POST", NEGOTIATE, &headers).await;
        assert_eq!(refused.status, 403);
        assert_eq!(refused.header("access-control-allow-origin"), None);
        let mut socket = vec![("upgrade", "websocket"), ("connection", "upgrade")];
        socket.extend(headers);
        assert_eq!(ask(&hub, "GET", "/hubs/notifications", &socket).await.status, 403);
    }
}

#[tokio::test]
async fn development_tokens_do_not_work_through_a_proxy() {
    let hub = TestHub::start().await;
    let bearer = bearer(&hub.token("alice"));
    for header in ["x-forwarded-for", "forwarded", "x-forwarded-proto"] {
        let headers = [("authorization", bearer.as_str()), (header, "198.51.100.1")];
        assert_eq!(ask(&hub, "POST", NEGOTIATE, &headers).await.status, 403, "{header}");
    }
}

#[tokio::test]
async fn naive_doors_are_seen() {
    let hub = TestHub::planted(Some(Planted::PeerIsLoopback)).await;
    let bearer = bearer(&hub.token("alice"));
    let headers = [("authorization", bearer.as_str()), ("x-forwarded-for", "198.51.100.1")];
    assert_eq!(ask(&hub, "POST", NEGOTIATE, &headers).await.status, 200);
    let limits = Limits { planted: Some(Planted::CorsOnlyOn200), ..Limits::default() };
    let origins = vec!["https://app.example".to_owned()];
    let hub = TestHub::with(HubSettings { origins, limits, ..HubSettings::default() }).await;
    let refused = ask(&hub, "POST", NEGOTIATE, &[("origin", "https://app.example")]).await;
    assert_eq!(
        (refused.status, refused.header("access-control-allow-origin")),
        (401, None),
        "a page would see a network error"
    );
}

/// Refuses everybody.
struct Strict;

#[async_trait::async_trait]
impl Authority for Strict {
    async fn verify(&self, _: &str) -> Result<Person, Refusal> {
        Err(Refusal::Signature)
    }
}

/// Whether somebody who forges another address with every guess is stopped.
async fn guessed_from_forged_addresses(planted: Option<Planted>) -> bool {
    let limits = Limits { refused_tokens_per_second: 3, planted, ..Limits::default() };
    let settings = HubSettings { limits, ..HubSettings::default() };
    let node = Node::start(settings, Arc::new(Strict), HashMap::new());
    let listener = potok_hub::listen(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(potok_hub::serve(listener, node, std::future::pending()));
    for number in 0..2_000 {
        let forged = format!("198.51.{}.{}", number / 250, number % 250);
        let headers = [("authorization", "Bearer a.b.c"), ("x-forwarded-for", forged.as_str())];
        if ask_at(address, "POST", NEGOTIATE, &headers).await.status == 429 {
            return true;
        }
    }
    false
}

#[tokio::test]
async fn a_forged_address_hides_nobody() {
    assert!(guessed_from_forged_addresses(None).await);
    let naive = guessed_from_forged_addresses(Some(Planted::TrustsForwarded)).await;
    assert!(!naive, "the naive version is seen");
}

#[tokio::test]
async fn guessing_tokens_is_slowed_down() {
    let limits = Limits { refused_tokens_per_second: 3, ..Limits::default() };
    let hub = TestHub::with(HubSettings { limits, ..HubSettings::default() }).await;
    let mut seen = Vec::new();
    let guessing = async {
        while !seen.contains(&429) {
            let answer = ask(&hub, "POST", NEGOTIATE, &[("authorization", "Bearer a.b.c")]).await;
            seen.push(answer.status);
        }
    };
    patiently("guesses are refused unseen", guessing).await;
    assert!(seen.iter().all(|status| [401, 429].contains(status)), "{seen:?}");
}

#[tokio::test]
async fn a_hub_that_is_full_says_so_at_negotiation() {
    let limits = Limits { connections: 1, ..Limits::default() };
    let hub = TestHub::with(HubSettings { limits, ..HubSettings::default() }).await;
    let bearer = bearer(&hub.token("alice"));
    let _held = hub.connect("alice").await;
    assert_eq!(ask(&hub, "POST", NEGOTIATE, &[("authorization", &bearer)]).await.status, 503);
    assert!(
        Client::open(&format!("ws://{}/hubs/notifications", hub.address), &hub.token("bob"))
            .await
            .is_err()
    );
}

#[tokio::test]
async fn copies_with_one_key_take_each_others_clients() {
    let settings = HubSettings {
        negotiation_key: Some([9; 32]),
        sticky: Some(false),
        ..HubSettings::default()
    };
    let one = TestHub::with(settings.clone()).await;
    let other = one.beside(settings).await;
    let token = one.token("alice");
    let json = ask(&one, "POST", NEGOTIATE, &[("authorization", &bearer(&token))]).await.json();
    let id = json["connectionToken"].as_str().unwrap();
    let url = |address| format!("ws://{address}/hubs/notifications?id={id}");
    let mut client = Client::open(&url(other.address), &token).await.unwrap();
    client.shake_hands().await;
    // Not for somebody else, and not twice at a time.
    let bobs = one.token("bob");
    assert!(Client::open(&url(other.address), &bobs).await.is_err());
    assert!(Client::open(&url(other.address), &token).await.is_err());
    client.say(json!({"type": 6})).await;
}

#[tokio::test]
async fn a_stranger_cannot_speak_for_a_connection() {
    let hub = TestHub::start().await;
    let bearer_alice = bearer(&hub.token("alice"));
    let json = ask(&hub, "POST", NEGOTIATE, &[("authorization", &bearer_alice)]).await.json();
    let path = format!("/hubs/notifications?id={}", json["connectionToken"].as_str().unwrap());
    let first = ask(&hub, "GET", &path, &[("authorization", &bearer_alice)]).await;
    assert_eq!((first.status, first.body.as_str()), (200, ""));
    let bearer_bob = bearer(&hub.token("bob"));
    for method in ["GET", "POST", "DELETE"] {
        let answer = ask(&hub, method, &path, &[("authorization", &bearer_bob)]).await;
        assert_eq!(answer.status, 403, "{method}");
        // Of a connection that there is not, nobody is told anything.
        let issued = hub.negotiate(&hub.token("carol")).await;
        let carols =
            format!("/hubs/notifications?id={}", issued["connectionToken"].as_str().unwrap());
        let answer = ask(&hub, method, &carols, &[("authorization", &bearer_bob)]).await;
        assert_eq!(answer.status, 404, "{method}");
    }
    // The public id is no secret.
    let public = format!("/hubs/notifications?id={}", json["connectionId"].as_str().unwrap());
    assert_eq!(ask(&hub, "POST", &public, &[("authorization", &bearer_alice)]).await.status, 404);
    let deleted = ask(&hub, "DELETE", &path, &[("authorization", &bearer_alice)]).await;
    assert_eq!(deleted.status, 202);
}
