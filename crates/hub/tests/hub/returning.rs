//! Clients that come back to their connection: what was not confirmed comes again, and nothing twice.

use std::time::Duration;

use futures::SinkExt;
use potok_hub::{Answer, Hub, HubSettings, Limits, UserId};
use serde_json::{Value, json};

use crate::support::{Ask, Client, TestHub, ask, until};

const NEGOTIATE: &str =
    "/hubs/notifications/negotiate?negotiateVersion=1&useStatefulReconnect=true";

/// A client by hand that numbers its messages.
struct Returning {
    url: String,
    token: String,
    client: Client,
}

async fn negotiated(hub: &TestHub, token: &str) -> Value {
    let bearer = format!("Bearer {token}");
    ask(hub, "POST", NEGOTIATE, &[("authorization", &bearer)]).await.json()
}

impl Returning {
    async fn start(hub: &TestHub) -> Self {
        let token = hub.token("alice");
        let negotiated = negotiated(hub, &token).await;
        assert_eq!(negotiated["useStatefulReconnect"], true);
        let id = negotiated["connectionToken"].as_str().unwrap();
        let url = format!("ws://{}/hubs/notifications?id={id}", hub.address);
        let mut client = Client::open(&url, &token).await.unwrap();
        client.say(json!({"protocol": "json", "version": 2})).await;
        assert_eq!(client.hear().await, json!({}));
        client.say(json!({"type": 6})).await;
        until("it is known", || hub.node.stats().users == 1).await;
        Returning { url, token, client }
    }

    /// Her socket breaks; bob's, who has not shaken hands, takes its place.
    async fn vanish(&mut self, hub: &TestHub) {
        self.client = hub.attach(&hub.token("bob")).await;
    }

    /// With the same secret, and what the hub says first.
    async fn come_back(&mut self) -> Value {
        self.client = Client::open(&self.url, &self.token).await.unwrap();
        let first = self.client.hear().await;
        assert_eq!(first["type"], 9, "{first}");
        first["sequenceId"].clone()
    }

    async fn refused(&self, token: &str) -> bool {
        Client::open(&self.url, token).await.is_err()
    }

    /// The next message for the user: its payload and its id.
    async fn message(&mut self) -> (Value, Value) {
        loop {
            let message = self.client.hear().await;
            if message["type"] == 1 {
                return (message["arguments"][0].clone(), message["invocationId"].clone());
            }
            assert_eq!(message["type"], 8, "{message}");
        }
    }
}

fn limits() -> Limits {
    Limits { linger: Duration::ZERO, ..Limits::default() }
}

/// It is offered to who asks for it, where every request of a client comes here.
#[tokio::test]
async fn it_is_offered_to_who_asks_for_it_alone() {
    let hub = TestHub::start().await;
    assert_eq!(hub.negotiate(&hub.token("alice")).await.get("useStatefulReconnect"), None);
    let never = Limits { return_within: Duration::ZERO, ..limits() };
    let never = HubSettings { limits: never, ..HubSettings::default() };
    let anywhere = HubSettings { sticky: Some(false), ..HubSettings::default() };
    for settings in [never, anywhere] {
        let hub = TestHub::with(settings).await;
        let negotiated = negotiated(&hub, &hub.token("alice")).await;
        assert_eq!(negotiated.get("useStatefulReconnect"), None);
    }
}

#[tokio::test]
async fn what_was_not_confirmed_comes_again_and_nothing_counts_twice() {
    let hub = TestHub::limited(limits()).await;
    let mut alice = Returning::start(&hub).await;
    let confirmed = hub.send("alice", json!("one")).await;
    let (_, one) = alice.message().await;
    alice.client.complete(&one).await;
    assert_eq!(confirmed.answer().await, Answer::Acknowledged);
    let mut open: Vec<Ask> = Vec::new();
    for text in ["two", "three"] {
        open.push(hub.send("alice", json!(text)).await);
    }
    alice.message().await;
    // A call whose answer is lost.
    let call = json!({"type": 1, "target": "echo", "arguments": [5], "invocationId": "c"});
    alice.client.say(call.clone()).await;
    assert_eq!(alice.message().await.0, "three");
    loop {
        let answer = alice.client.hear().await;
        if answer["type"] == 3 {
            assert_eq!(answer["invocationId"], "c");
            break;
        }
        assert_eq!(answer["type"], 8, "{answer}");
    }
    alice.vanish(&hub).await;
    for text in ["four", "five"] {
        open.push(hub.send("alice", json!(text)).await);
    }
    assert_eq!(alice.come_back().await, 2, "the first was completed");
    // What she says before she says where she begins is not read.
    alice.client.complete(&json!("p0-1")).await;
    alice.client.say(json!({"type": 9, "sequenceId": 1})).await;
    alice.client.complete(&one).await;
    alice.client.say(call).await;
    let mut heard = Vec::new();
    while heard.len() < 5 {
        let message = alice.client.hear().await;
        match message["type"].as_u64() {
            Some(1) => {
                heard.push(message["arguments"][0].clone());
                alice.client.complete(&message["invocationId"]).await;
            }
            Some(3) => heard.push(message["invocationId"].clone()),
            other => assert_eq!(other, Some(8), "{message}"),
        }
    }
    assert_eq!(heard, ["two", "three", "c", "four", "five"].map(Value::from));
    for ask in open {
        assert_eq!(ask.answer().await, Answer::Acknowledged);
    }
    let stats = hub.node.stats();
    assert_eq!((stats.unknown, stats.late, stats.connected), (0, 0, 2));
    // What of hers was read: a completion, a call, and four completions.
    loop {
        let message = alice.client.hear().await;
        assert_eq!(message["type"], 8, "{message}");
        if message["sequenceId"] == 6 {
            break;
        }
    }
    until("all is confirmed", || hub.node.stats().queued_bytes == 0).await;
}

/// Where the network changed under her, the old socket looks alive for long.
#[tokio::test]
async fn a_client_that_is_back_is_not_sent_to_where_it_was() {
    let hub = TestHub::limited(limits()).await;
    let mut alice = Returning::start(&hub).await;
    let mut old = std::mem::replace(&mut alice.client, hub.attach(&hub.token("bob")).await);
    assert_eq!(alice.come_back().await, 1);
    assert_eq!(old.heard().await, None);
    let ask = hub.send("alice", json!(1)).await;
    let (_, id) = alice.message().await;
    alice.client.say(json!({"type": 9, "sequenceId": 1})).await;
    alice.client.complete(&id).await;
    assert_eq!(ask.answer().await, Answer::Acknowledged);
}

#[tokio::test]
async fn a_connection_is_given_up_when_nobody_comes_back() {
    let hub = TestHub::limited(Limits { return_within: Duration::from_secs(1), ..limits() }).await;
    let mut alice = Returning::start(&hub).await;
    alice.vanish(&hub).await;
    let ask = hub.send("alice", json!(1)).await;
    assert_eq!(ask.answer().await, Answer::NoAnswer { written: true });
    until("it is given up", || hub.node.stats().users == 0).await;
    // Her secret would be good for a first attachment still; she means another.
    assert!(alice.refused(&alice.token).await);
    assert_eq!(hub.send("alice", json!(1)).await.answer().await, Answer::Nobody);
    until("nothing is kept", || hub.node.stats().queued_bytes == 0).await;
}

#[tokio::test]
async fn nobody_comes_back_to_what_was_closed_or_is_another_persons() {
    let hub = TestHub::limited(limits()).await;
    let mut alice = Returning::start(&hub).await;
    assert!(alice.refused(&hub.token("bob")).await);
    hub.node.disconnect(&UserId::new("alice"), None).await.unwrap();
    assert_eq!(alice.client.hear().await, json!({"type": 7}));
    assert!(alice.refused(&alice.token).await);
    // Without a word that it numbers its messages, a client does not come back either.
    let token = hub.token("carol");
    let negotiated = negotiated(&hub, &token).await;
    let id = negotiated["connectionToken"].as_str().unwrap();
    let url = format!("ws://{}/hubs/notifications?id={id}", hub.address);
    let mut carol = Client::open(&url, &token).await.unwrap();
    carol.shake_hands().await;
    until("she is known", || hub.node.stats().users == 1).await;
    drop(carol);
    until("she is gone", || hub.node.stats().connections == 0).await;
    assert!(Client::open(&url, &token).await.is_err());
}

#[tokio::test]
async fn a_number_that_cannot_be_ends_the_connection() {
    let hub = TestHub::limited(limits()).await;
    for number in [0, 2] {
        let mut alice = Returning::start(&hub).await;
        alice.come_back().await;
        alice.client.say(json!({"type": 9, "sequenceId": number})).await;
        assert_eq!(alice.client.hear().await["type"], 7);
        assert_eq!(alice.client.heard().await, None);
        until("it is gone", || hub.node.stats().connections == 0).await;
    }
}

/// The stock client would come back and say it again, for ever.
#[tokio::test]
async fn what_breaks_the_protocol_is_not_asked_for_again() {
    let hub = TestHub::limited(limits()).await;
    for bad in crate::bad_clients::bad_frames() {
        let mut alice = Returning::start(&hub).await;
        alice.client.socket.send(bad).await.unwrap();
        let closed = alice.client.hear().await;
        assert_eq!((&closed["type"], closed["error"].is_string()), (&json!(7), true), "{closed}");
        assert!(alice.refused(&alice.token).await);
        until("it is gone", || hub.node.stats().connections == 0).await;
    }
}

/// What is kept for a client that reads and never confirms is bounded; then it is dropped.
#[tokio::test]
async fn what_is_kept_for_a_client_that_confirms_nothing_is_bounded() {
    let hub = TestHub::limited(limits()).await;
    let mut alice = Returning::start(&hub).await;
    let large = json!("x".repeat(40_000));
    let soon = Duration::from_millis(50);
    let mut most = 0;
    while hub.node.stats().slow == 0 {
        let answer = hub.send_within("alice", large.clone(), soon).await.answer().await;
        assert!(matches!(answer, Answer::NoAnswer { .. } | Answer::Nobody), "{answer:?}");
        most = most.max(hub.node.stats().queued_bytes);
        while hub.node.stats().slow == 0
            && tokio::time::timeout(Duration::from_millis(1), alice.client.heard()).await.is_ok()
        {
        }
    }
    // Once to be written, once to be kept.
    assert!(most <= 2 * Limits::default().queued_bytes, "{most} bytes");
    until("nothing is kept", || hub.node.stats().queued_bytes == 0).await;
}
