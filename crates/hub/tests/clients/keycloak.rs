//! Tokens of a real Keycloak, from its discovery document to the stock client, under Node and in a
//! page, by every way. One start of Keycloak for everything.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use potok_hub::tokens::issuer::Issuer;
use potok_hub::tokens::{Authority, Refusal};
use potok_hub::{
    AckRule, Answer, AuthSettings, ConnectionAsk, Frame, Hub, HubSettings, Limits, Node, Outgoing,
    Ticket, UserId,
};
use potok_services::{Chromium, Keycloak, Mode, Proxy};
use ring::hmac;
use serde_json::{Value, json};

use crate::page::{PageClient, site};
use crate::stock::WAYS;
use crate::stock_client::StockClient;
use crate::support::{AN_HOUR, Recorder, ask_at, patiently, until};

const ALICE: &str = "11111111-1111-4111-8111-111111111111";
const BOB: &str = "22222222-2222-4222-8222-222222222222";

/// A message to both, and their answers.
struct Sent(Arc<Recorder>);

impl Sent {
    async fn all_acknowledged(&self) {
        let answers = self.0.count(2).await;
        assert!(answers.iter().all(|(_, answer)| *answer == Answer::Acknowledged), "{answers:?}");
    }
}

async fn send_to_both(node: &Node, text: &str) -> Sent {
    let recorder = Arc::new(Recorder::default());
    let payload = json!({ "text": text }).to_string();
    let frame = Frame::new("notify", text, payload.as_bytes(), 1_000).unwrap();
    let outgoing = |(ticket, user)| Outgoing {
        ticket: Ticket(ticket),
        user: UserId::new(user),
        frame: frame.clone(),
        ack_within: AN_HOUR,
        ack: AckRule::Any,
    };
    let batch = [(1, ALICE), (2, BOB)].map(outgoing).into();
    node.send(batch, recorder.clone()).await.unwrap();
    Sent(recorder)
}

/// Tokens that are made of this realm's, or that it made itself for something else: what each is, the
/// rule that refuses it, and the token.
fn bad_tokens(keycloak: &Keycloak) -> Vec<(&'static str, &'static str, String)> {
    let good = keycloak.token("alice", "access_token");
    let [header, claims, signature] = good.split('.').collect::<Vec<_>>()[..] else { panic!() };
    let base64 = |text: &[u8]| URL_SAFE_NO_PAD.encode(text);
    let header: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).unwrap()).unwrap();
    let headed = |algorithm: &str| {
        let mut header = header.clone();
        header["alg"] = algorithm.into();
        format!("{}.{claims}", base64(header.to_string().as_bytes()))
    };
    let keys = keycloak.keys();
    let all: Value = serde_json::from_str(&keys).unwrap();
    let own = |key: &&Value| key["kid"] == header["kid"];
    let key = all["keys"].as_array().unwrap().iter().find(own).unwrap();
    let with_secret = |secret: &str| {
        let message = headed("HS256");
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        format!("{message}.{}", base64(hmac::sign(&key, message.as_bytes()).as_ref()))
    };
    let mut changed: Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
    changed["sub"] = BOB.into();
    let changed = base64(changed.to_string().as_bytes());
    keycloak.set_token_life(Duration::from_secs(1));
    let expired = keycloak.token("alice", "access_token");
    keycloak.set_token_life(Duration::from_secs(300));
    vec![
        ("none", "Algorithm", format!("{}.", headed("none"))),
        ("none, with the signature", "Algorithm", format!("{}.{signature}", headed("none"))),
        ("HS256 with the key", "Algorithm", with_secret(&key.to_string())),
        ("HS256 with its certificate", "Algorithm", with_secret(key["x5c"][0].as_str().unwrap())),
        (
            "another person in it",
            "Signature",
            format!("{}.{changed}.{signature}", good.split('.').next().unwrap()),
        ),
        ("no audience", "Audience", keycloak.token_without_audience("alice")),
        ("another realm", "UnknownKey", keycloak.token_of_another_realm()),
        ("ID", "Kind", keycloak.token("alice", "id_token")),
        ("refresh", "UnknownKey", keycloak.token("alice", "refresh_token")),
        ("expired", "Expired", expired),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_of_a_realm_are_let_in_and_nobody_else() {
    let keycloak = tokio::task::spawn_blocking(Keycloak::start).await.unwrap();
    let keycloak = Arc::new(keycloak);
    let token = |user: &'static str, kind: &'static str| {
        let keycloak = keycloak.clone();
        async move { tokio::task::spawn_blocking(move || keycloak.token(user, kind)).await.unwrap() }
    };
    let settings = AuthSettings::new(&keycloak.issuer(), keycloak.audience());
    let issuer = Issuer::start(settings.clone()).unwrap();
    let access = token("alice", "access_token").await;
    let person = issuer.verify(&access).await.unwrap();
    assert_eq!(person.user, UserId::new(ALICE));
    assert!(issuer.verify(&access).await.is_ok());
    assert_eq!(issuer.fetches(), 1);

    for (kind, refused) in [("id_token", "ID"), ("refresh_token", "Refresh")] {
        let refusal = issuer.verify(&token("alice", kind).await).await.unwrap_err();
        // Refresh tokens are signed with a key of Keycloak's own, which nobody publishes.
        let unknown = kind == "refresh_token" && refusal == Refusal::UnknownKey;
        assert!(unknown || refusal == Refusal::Kind(refused.to_owned()), "{kind}: {refusal:?}");
    }
    let roles = AuthSettings { roles: vec!["notify-admin".to_owned()], ..settings.clone() };
    let admins = Issuer::new(roles).unwrap();
    assert!(admins.verify(&access).await.is_ok());
    let bob = token("bob", "access_token").await;
    assert_eq!(admins.verify(&bob).await, Err(Refusal::Role("notify-admin".to_owned())));
    let strict = AuthSettings { leeway: Duration::ZERO, ..settings.clone() };
    let strict = Issuer::new(strict).unwrap();
    let elsewhere = Issuer::new(AuthSettings { audience: "other".to_owned(), ..settings }).unwrap();
    assert!(matches!(elsewhere.verify(&access).await, Err(Refusal::Audience { .. })));

    let origin = site().await;
    // As long as a reconnect takes on a busy machine.
    let (linger, between_polls) = (Duration::from_secs(30), Duration::from_secs(5));
    let limits = Limits { linger, between_polls, ..Limits::default() };
    let origins = vec![origin.clone()];
    let settings = HubSettings { origins, limits, ..HubSettings::default() };
    let node = Node::start(settings, issuer.clone(), HashMap::new());
    let listener = potok_hub::listen(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(potok_hub::serve(listener, node.clone(), std::future::pending()));
    let chromium = tokio::task::spawn_blocking(Chromium::start).await.unwrap();
    for (transport, protocol) in WAYS {
        let proxy = Proxy::start(address);
        let url = format!("http://{}/hubs/notifications", proxy.address());
        let mut under_node = StockClient::new(&url, transport, protocol);
        under_node.start(&access);
        let mut in_page = PageClient::new(&chromium, &origin, &url, (transport, protocol));
        assert_eq!(in_page.start(&bob), "started", "{transport} {protocol}");
        for user in [ALICE, BOB] {
            let ask = ConnectionAsk { user: Some(UserId::new(user)), limit: 10 };
            let seen = node.connections(&ask).await.connections;
            let ways: Vec<_> = seen.iter().map(|view| view.transport.name()).collect();
            assert_eq!((ways, seen[0].protocol.as_str()), (vec![transport], protocol));
        }
        let sent = send_to_both(&node, "hello").await;
        let message = under_node.await_event("message", &[]);
        assert_eq!(message["args"][0]["text"], "hello", "{transport} {protocol}");
        assert_eq!(in_page.event()["args"][0]["text"], "hello", "{transport} {protocol}");
        sent.all_acknowledged().await;
        // The network goes and comes back; both are there again by themselves, with their tokens.
        proxy.set(Mode::Cut);
        under_node.await_event("reconnecting", &[]);
        assert_eq!(in_page.event()["event"], "reconnecting");
        until("the cut is noticed", || node.stats().connections == 0).await;
        let sent = send_to_both(&node, "meanwhile").await;
        proxy.set(Mode::Pass);
        sent.all_acknowledged().await;
        let mut events = [under_node.event(), under_node.event(), in_page.event(), in_page.event()];
        events.sort_by_key(|event| event["event"].to_string());
        let [one, other, ..] = &events;
        assert_eq!(
            (&one["args"][0]["text"], &other["args"][0]["text"]),
            (&json!("meanwhile"), &json!("meanwhile"))
        );
        assert!(events[2..].iter().all(|event| event["event"] == "reconnected"), "{events:?}");
        drop(under_node);
        assert_eq!(in_page.ask("connection.stop().then(() => 'stopped')"), "stopped");
        // A process that ends says nothing; a poll of it is noticed when the next one does not come.
        node.disconnect(&UserId::new(ALICE), None).await.unwrap();
        until("both are gone", || node.stats().connections == 0).await;
    }
    // Every kind of token that is none of ours, at the door.
    let bad = {
        let keycloak = keycloak.clone();
        tokio::task::spawn_blocking(move || bad_tokens(&keycloak)).await.unwrap()
    };
    for (kind, rule, token) in bad {
        // One of them expires in a moment.
        let refused = async {
            loop {
                match strict.verify(&token).await {
                    Err(refusal) => return refusal,
                    Ok(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        };
        let refusal = patiently(kind, refused).await;
        assert!(format!("{refusal:?}").starts_with(rule), "{kind}: {refusal:?}");
        if rule == "Expired" {
            // The hub lets clocks differ by thirty seconds.
            continue;
        }
        let bearer = format!("Bearer {token}");
        let negotiate = "/hubs/notifications/negotiate?negotiateVersion=1";
        let asked = ask_at(address, "POST", negotiate, &[("authorization", &bearer)]).await;
        assert_eq!(asked.status, 401, "{kind}");
        assert!(!asked.body.contains(&token));
    }
    // Somebody who is no user of this realm's application: refused, and the page sees why.
    let url = format!("http://{address}/hubs/notifications");
    let mut in_page = PageClient::new(&chromium, &origin, &url, WAYS[0]);
    let failed = in_page.start(&token("alice", "id_token").await);
    assert!(failed.as_str().unwrap().contains("401"), "{failed}");

    let fetches = issuer.fetches();
    // A new key is learned when the first token signed with it comes, the old one still counts.
    let rotating = keycloak.clone();
    tokio::task::spawn_blocking(move || rotating.rotate_keys()).await.unwrap();
    let newer = token("bob", "access_token").await;
    let key = |token: &str| token.split('.').next().unwrap().to_owned();
    assert_ne!(key(&newer), key(&bob), "another key signs");
    // Not sooner than ten seconds after the keys were asked for the last time.
    let learned = async {
        while issuer.verify(&newer).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    patiently("the new key is learned", learned).await;
    assert!(issuer.verify(&bob).await.is_ok());
    assert_eq!(issuer.fetches(), fetches + 1, "one fetch for one rotation");
}
