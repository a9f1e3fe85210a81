//! Connections that the hub ends: drained, expired, told to go.

use std::time::Duration;

use potok_hub::tokens::development;
use potok_hub::{Answer, ConnectionAsk, Hub, HubSettings, Limits, Transport, UserId};
use serde_json::json;

use crate::support::{AN_HOUR, Client, TestHub, patiently, until};

#[tokio::test]
async fn a_drained_hub_sends_its_clients_elsewhere() {
    let hub = TestHub::start().await;
    let mut clients = Vec::new();
    for number in 0..5 {
        clients.push(hub.connect(&format!("user-{number}")).await);
    }
    let ask = hub.send("user-0", json!(1)).await;
    let id = clients[0].invoked().await;
    let node = hub.node.clone();
    let drained = tokio::spawn(async move { node.drain(Duration::from_millis(100)).await });
    // What it owes is still counted.
    clients[0].complete(&id).await;
    assert_eq!(ask.answer().await, Answer::Acknowledged);
    for client in &mut clients {
        assert_eq!(client.hear().await, json!({"type": 7, "allowReconnect": true}));
        assert_eq!(client.heard().await, None);
    }
    patiently("the drain", drained).await.unwrap();
    let frame = crate::support::frame(&json!(1));
    let outgoing = potok_hub::Outgoing {
        ticket: potok_hub::Ticket(1),
        user: UserId::new("user-0"),
        frame,
        ack_within: Duration::from_secs(1),
        ack: potok_hub::AckRule::Any,
    };
    let recorder = std::sync::Arc::new(crate::support::Recorder::default());
    assert!(hub.node.send(vec![outgoing], recorder).await.is_err());
    let url = format!("ws://{}/hubs/notifications", hub.address);
    assert!(Client::open(&url, &hub.token("late")).await.is_err());
}

/// Who negotiated before the end, and attaches after it, is sent elsewhere too.
#[tokio::test]
async fn a_late_client_does_not_keep_a_hub_from_stopping() {
    let limits = Limits { farewell: Duration::from_secs(3), ..Limits::default() };
    let hub = TestHub::limited(limits).await;
    let token = hub.token("late");
    let negotiated = hub.negotiate(&token).await;
    let id = negotiated["connectionToken"].as_str().unwrap();
    // Owes an answer, and has its time for it.
    let mut owing = hub.connect("alice").await;
    let ask = hub.send("alice", json!(1)).await;
    owing.invoked().await;
    let node = hub.node.clone();
    let drained = tokio::spawn(async move { node.drain(Duration::ZERO).await });
    until("it has begun", || hub.node.not_ready().is_some()).await;
    let url = format!("ws://{}/hubs/notifications?id={id}", hub.address);
    let mut late = Client::open(&url, &token).await.unwrap();
    late.shake_hands().await;
    assert_eq!(late.hear().await, json!({"type": 7, "allowReconnect": true}));
    patiently("the drain", drained).await.unwrap();
    assert_eq!(ask.answer().await, Answer::NoAnswer { written: true });
}

/// Who was on their way back is not said to be away by a hub that stops.
#[tokio::test]
async fn what_waits_for_a_user_is_answered_when_the_hub_stops() {
    let hub = TestHub::limited(Limits { linger: AN_HOUR, ..Limits::default() }).await;
    drop(hub.connect("alice").await);
    until("the break is noticed", || hub.node.stats().connections == 0).await;
    let ask = hub.send("alice", json!(1)).await;
    assert!(ask.is_open());
    patiently("the drain", hub.node.drain(Duration::ZERO)).await;
    assert!(!ask.is_open(), "all is answered when it returns");
    assert_eq!(ask.answer().await, Answer::Unavailable);
}

#[tokio::test]
async fn a_connection_ends_with_its_token_unless_it_is_refreshed() {
    let limits = Limits { expiry_grace: (Duration::ZERO, Duration::ZERO), ..Limits::default() };
    let hub = TestHub::with(HubSettings { limits, ..HubSettings::default() }).await;
    let short = |user| hub.issuer.mint(user, Duration::from_secs(3), development::now()).unwrap();
    let mut ends = hub.attach(&short("alice")).await;
    ends.shake_hands().await;
    let mut stays = hub.attach(&short("bob")).await;
    stays.shake_hands().await;
    let refresh = |token: String| json!({"type": 1, "target": "Refresh", "arguments": [token], "invocationId": "r"});
    stays.say(refresh(hub.token("mallory"))).await;
    assert_eq!(stays.hear().await["error"], "The token is another user's.");
    stays.say(refresh("a.b.c".to_owned())).await;
    assert!(stays.hear().await["error"].as_str().unwrap().starts_with("The token is refused"));
    stays.say(refresh(hub.token("bob"))).await;
    assert!(stays.hear().await["result"].as_u64().unwrap() > 500);
    // An older one takes nothing away.
    stays.say(refresh(short("bob"))).await;
    assert!(stays.hear().await["result"].as_u64().unwrap() <= 3);
    assert_eq!(ends.hear().await, json!({"type": 7, "allowReconnect": true}));
    assert_eq!(ends.heard().await, None);
    let ask = hub.send("bob", json!(1)).await;
    let id = stays.invoked().await;
    stays.complete(&id).await;
    assert_eq!(ask.answer().await, Answer::Acknowledged);
}

#[tokio::test]
async fn a_user_who_was_told_to_go_does_not_come_back_with_the_same_token() {
    let hub = TestHub::start().await;
    let token = hub.token("alice");
    let mut client = hub.attach(&token).await;
    client.shake_hands().await;
    let alice = UserId::new("alice");
    let closed = hub.node.disconnect(&alice, Some(development::now())).await.unwrap();
    assert_eq!(closed, 1);
    // Without a word about reconnecting, so that the stock client does not.
    assert_eq!(client.hear().await, json!({"type": 7}));
    let url = format!("ws://{}/hubs/notifications", hub.address);
    assert!(Client::open(&url, &token).await.is_err());
    // Closed alone, they would be back at once.
    let bobs = hub.token("bob");
    let _bob = hub.attach(&bobs).await;
    assert_eq!(hub.node.disconnect(&UserId::new("bob"), None).await, Ok(0), "before its handshake");
    assert!(Client::open(&url, &bobs).await.is_ok());
    assert!(Client::open(&url, &hub.token("bob")).await.is_ok());
    let later = development::now() + Duration::from_secs(2);
    let fresh = hub.issuer.mint("alice", Duration::from_secs(60), later).unwrap();
    assert!(Client::open(&url, &fresh).await.is_ok());
}

/// The token was good when the client attached, and is not any more when it shakes hands.
#[tokio::test]
async fn who_was_told_to_go_before_the_handshake_is_not_let_in() {
    let hub = TestHub::start().await;
    let mut client = hub.attach(&hub.token("alice")).await;
    let alice = UserId::new("alice");
    hub.node.disconnect(&alice, Some(development::now())).await.unwrap();
    client.shake_hands().await;
    assert_eq!(patiently("a farewell", client.hear()).await, json!({"type": 7}));
    assert_eq!(client.heard().await, None);
    until("it is gone", || hub.node.stats().connections == 0).await;
    assert_eq!(hub.send("alice", json!(1)).await.answer().await, Answer::Nobody);
}

#[tokio::test]
async fn who_is_connected_can_be_seen() {
    let hub = TestHub::start().await;
    let (_alice, _again) = (hub.connect("alice").await, hub.connect("alice").await);
    let _bob = hub.connect("bob").await;
    let all = hub.node.connections(&ConnectionAsk { user: None, limit: 2 }).await;
    assert_eq!((all.total, all.connections.len()), (3, 2));
    let alice = Some(UserId::new("alice"));
    let hers = hub.node.connections(&ConnectionAsk { user: alice, limit: 10 }).await;
    assert_eq!(hers.total, 2);
    let view = &hers.connections[0];
    assert_eq!((view.transport, view.protocol.as_str()), (Transport::WebSockets, "json"));
    assert!(view.address.is_loopback());
    until("counted", || hub.node.stats().connections == 3).await;
}
