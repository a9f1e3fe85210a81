//! Every transport and protocol of the stock client.

use std::sync::Arc;
use std::time::Duration;

use potok_hub::tokens::development;
use potok_hub::trouble::Planted;
use potok_hub::{
    AckRule, Answer, ConnectionAsk, Frame, FrameError, Hub, HubSettings, Limits, UserId,
};
use potok_services::{Mode, Proxy};
use serde_json::json;

use crate::stock_client::StockClient;
use crate::support::{AN_HOUR, Relay, TestHub, until};

pub const WAYS: [(&str, &str); 5] = [
    ("WebSockets", "json"),
    ("WebSockets", "messagepack"),
    ("ServerSentEvents", "json"),
    ("LongPolling", "json"),
    ("LongPolling", "messagepack"),
];

fn url(hub: &TestHub) -> String {
    format!("http://{}/hubs/notifications", hub.address)
}

fn frame(method: &str, payload: &serde_json::Value) -> Arc<Frame> {
    Frame::new(method, "m-1", payload.to_string().as_bytes(), 64 << 10).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_calls_and_farewells_by_every_way() {
    let hub = TestHub::start().await;
    for (transport, protocol) in WAYS {
        let user = format!("alice-{transport}-{protocol}");
        let mut client = StockClient::new(&url(&hub), transport, protocol);
        let started = client.start(&hub.token(&user));
        let ask = ConnectionAsk { user: Some(UserId::new(&user)), limit: 1 };
        let seen = hub.node.connections(&ask).await.connections.remove(0);
        assert_eq!((seen.transport.name(), seen.protocol.as_str()), (transport, protocol));
        assert_eq!(started["id"], seen.id, "{transport} {protocol}");
        assert!(seen.agent.contains("Microsoft SignalR/10."), "{}", seen.agent);

        let payload = json!({"text": "naïve ☕", "n": [1, -2, 3.5, 1u64 << 40, null, true]});
        for (method, rule, answer) in [
            ("notify", AckRule::Any, Answer::Acknowledged),
            // No handler of this name: the client's words are the same.
            ("missing", AckRule::Any, Answer::Acknowledged),
            ("ask", AckRule::Result, Answer::Acknowledged),
            ("NOTIFY", AckRule::Result, Answer::NoAnswer { written: true }),
            ("boom", AckRule::Any, Answer::NoAnswer { written: true }),
        ] {
            let ask = hub.send_frame(&user, &frame(method, &payload), AN_HOUR, rule).await;
            assert_eq!(ask.answer().await, answer, "{method} {transport} {protocol}");
            if method != "missing" {
                let event = client.await_event("message", &[]);
                assert_eq!(
                    event["args"],
                    json!([payload, {"id": "m-1"}]),
                    "{transport} {protocol}"
                );
            }
        }
        // Larger than what clients may send.
        let large = json!("x".repeat(60_000));
        let ask = hub.send_frame(&user, &frame("notify", &large), AN_HOUR, AckRule::Any).await;
        assert_eq!(ask.answer().await, Answer::Acknowledged);
        assert_eq!(client.await_event("message", &[])["args"][0], large);

        client.order(json!({"invoke": ["Echo", {"a": [1, "b"]}]}));
        let result = client.await_event("result", &[]);
        assert_eq!(result["result"], json!({"user": user, "value": {"a": [1, "b"]}}));
        client.order(json!({"invoke": ["Nope"]}));
        let failed = client.await_event("failed", &[]);
        assert!(
            failed["error"].as_str().unwrap().contains("Unknown hub method 'Nope'"),
            "{failed}"
        );

        client.order(json!({"stop": true}));
        client.await_event("stopped", &["closed"]);
        until("the client is gone", || hub.node.stats().connections == 0).await;
        // It said goodbye: nobody expects it back.
        let ask = hub.send(&user, json!(1)).await;
        assert_eq!(ask.answer().await, Answer::Nobody, "{transport} {protocol}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_is_made_anew_and_nothing_is_missed_meanwhile() {
    let (linger, between_polls) = (Duration::from_secs(30), Duration::from_secs(5));
    let limits = Limits { linger, between_polls, ..Limits::default() };
    let hub = TestHub::with(HubSettings { limits, ..HubSettings::default() }).await;
    for (transport, protocol) in WAYS {
        let user = format!("alice-{transport}-{protocol}");
        let proxy = Proxy::start(hub.address);
        let url = format!("http://{}/hubs/notifications", proxy.address());
        let mut client = StockClient::new(&url, transport, protocol);
        let first = client.start(&hub.token(&user))["id"].clone();
        proxy.set(Mode::Cut);
        client.await_event("reconnecting", &[]);
        until("the cut is noticed", || hub.node.stats().connections == 0).await;
        let ask = hub
            .send_frame(&user, &frame("notify", &json!("meanwhile")), AN_HOUR, AckRule::Any)
            .await;
        assert!(ask.is_open());
        proxy.set(Mode::Pass);
        // The message may be first.
        let mut events = [client.event(), client.event()];
        events.sort_by_key(|event| event["event"].as_str().unwrap().to_owned());
        assert_eq!(events[0]["args"][0], "meanwhile");
        assert_eq!(events[1]["event"], "reconnected");
        assert_ne!(events[1]["id"], first);
        assert_eq!(ask.answer().await, Answer::Acknowledged);
        drop(client);
        until("the client is gone", || hub.node.stats().connections == 0).await;
    }
}

/// The stock client's own option: its connection outlives the socket, it hears nothing of that, and
/// nothing is lost or comes twice in either direction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stateful_client_keeps_its_connection_when_the_socket_breaks() {
    const ROUNDS: u32 = 5;
    const MESSAGES: u32 = 20;
    let hub = TestHub::start().await;
    let relay = Relay::to(hub.address).await;
    let url = format!("http://{}/hubs/notifications", relay.address);
    for protocol in ["json", "messagepack"] {
        let user = format!("alice-{protocol}");
        let before = hub.node.stats();
        let mut client = StockClient::stateful(&url, protocol);
        client.start(&hub.token(&user));
        // There since before it was known to count messages.
        until("it is known", || hub.node.stats().users == 1).await;
        let mut asks = Vec::new();
        for round in 0..ROUNDS {
            for number in 0..MESSAGES {
                if number == MESSAGES / 2 {
                    relay.snap();
                    client.order(json!({"invoke": ["Echo", round]}));
                }
                let payload = json!(round * MESSAGES + number);
                asks.push(hub.send(&user, payload).await);
            }
            let (mut heard, mut echoed) = (Vec::new(), Vec::new());
            while heard.len() < MESSAGES as usize || echoed.is_empty() {
                let event = client.event();
                match event["event"].as_str() {
                    Some("message") => heard.push(event["args"][0].as_u64().unwrap() as u32),
                    Some("result") => echoed.push(event["result"]["value"].clone()),
                    // Neither "reconnecting" nor "closed".
                    _ => panic!("{protocol}: {event}"),
                }
            }
            let expected: Vec<_> = (round * MESSAGES..(round + 1) * MESSAGES).collect();
            assert_eq!((heard, echoed), (expected, vec![json!(round)]), "{protocol}");
        }
        for ask in asks {
            assert_eq!(ask.answer().await, Answer::Acknowledged, "{protocol}");
        }
        let stats = hub.node.stats();
        assert_eq!(stats.connected - before.connected, 1, "one connection all the time");
        assert_eq!((stats.unknown, stats.late), (0, 0));
        until("all is confirmed", || hub.node.stats().queued_bytes == 0).await;
        // Told to go, it does not come back, although it tries once.
        hub.node.disconnect(&UserId::new(&user), None).await.unwrap();
        client.await_event("closed", &[]);
        until("it is gone", || hub.node.stats().connections == 0).await;
    }
}

/// It does not come back to say again what is too large to be said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stateful_client_that_says_too_much_is_told_and_stops() {
    let hub = TestHub::start().await;
    for protocol in ["json", "messagepack"] {
        let mut client = StockClient::stateful(&url(&hub), protocol);
        client.start(&hub.token("alice"));
        client.order(json!({"invoke": ["Echo", "x".repeat(40_000)]}));
        let closed = client.await_event("closed", &["failed"]);
        assert!(closed["error"].as_str().unwrap().contains("a limit of the hub"), "{closed}");
        until("it is gone", || hub.node.stats().connections == 0).await;
    }
}

/// The stock client's own option: no negotiation, and everything else as ever, on any node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_skips_negotiation_is_a_client() {
    let settings = HubSettings { sticky: Some(false), ..HubSettings::default() };
    let hub = TestHub::with(settings).await;
    for protocol in ["json", "messagepack"] {
        let proxy = Proxy::start(hub.address);
        let url = format!("http://{}/hubs/notifications", proxy.address());
        let user = format!("alice-{protocol}");
        let mut client = StockClient::unnegotiated(&url, protocol);
        client.start(&hub.token(&user));
        let payload = json!({"n": 1});
        let ask = hub.send_frame(&user, &frame("ask", &payload), AN_HOUR, AckRule::Result).await;
        assert_eq!(ask.answer().await, Answer::Acknowledged, "{protocol}");
        assert_eq!(client.await_event("message", &[])["args"][0], payload);
        client.order(json!({"invoke": ["Echo", 7]}));
        assert_eq!(client.await_event("result", &[])["result"]["value"], 7);
        // It comes back the same way.
        proxy.set(Mode::Cut);
        client.await_event("reconnecting", &[]);
        proxy.set(Mode::Pass);
        client.await_event("reconnected", &[]);
        client.order(json!({"stop": true}));
        client.await_event("stopped", &["closed"]);
        until("it is gone", || hub.node.stats().connections == 0).await;
        let mut refused = StockClient::unnegotiated(&url, protocol);
        refused.order(json!({"token": "a.b.c", "start": true}));
        refused.await_event("failed", &["closed"]);
    }
}

/// As the guide has it: it comes back, asks for what came since the last message it saw, and is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_comes_back_is_told_what_it_missed() {
    let limits = Limits {
        linger: Duration::ZERO,
        resume_overlap: Duration::ZERO,
        between_polls: Duration::from_secs(5),
        ..Limits::default()
    };
    let hub = TestHub::with(HubSettings { limits, ..HubSettings::default() }).await;
    let named = |id: &str| Frame::new("notify", id, b"1", 1_000).unwrap();
    for (transport, protocol) in WAYS {
        let user = format!("alice-{transport}-{protocol}");
        let proxy = Proxy::start(hub.address);
        let url = format!("http://{}/hubs/notifications", proxy.address());
        let mut client = StockClient::new(&url, transport, protocol);
        client.start(&hub.token(&user));
        let ask = hub.send_frame(&user, &named("seen"), AN_HOUR, AckRule::Any).await;
        assert_eq!(ask.answer().await, Answer::Acknowledged);
        let seen = client.await_event("message", &[])["args"][1]["id"].clone();
        proxy.set(Mode::Cut);
        client.await_event("reconnecting", &[]);
        until("the cut is noticed", || hub.node.stats().connections == 0).await;
        for id in ["missed-1", "missed-2"] {
            let ask = hub.send_frame(&user, &named(id), AN_HOUR, AckRule::Any).await;
            assert_eq!(ask.answer().await, Answer::Nobody, "{transport} {protocol}");
        }
        proxy.set(Mode::Pass);
        client.await_event("reconnected", &[]);
        client.order(json!({"invoke": ["Resume", seen]}));
        let told = client.await_event("result", &[])["result"].clone();
        let message = |id| json!({"method": "notify", "arguments": [1, {"id": id}]});
        let messages = ["seen", "missed-1", "missed-2"].map(message);
        assert_eq!(told, json!({"recovered": true, "messages": messages}), "{transport}");
        drop(client);
        until("the client is gone", || hub.node.stats().connections == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expiry_makes_clients_come_back_and_a_kick_does_not() {
    let limits = Limits {
        expiry_grace: (Duration::ZERO, Duration::ZERO),
        farewell: Duration::ZERO,
        ..Limits::default()
    };
    let hub = TestHub::with(HubSettings { limits, ..HubSettings::default() }).await;
    for (transport, protocol) in WAYS {
        let user = format!("alice-{transport}-{protocol}");
        let mut client = StockClient::new(&url(&hub), transport, protocol);
        let short = hub.issuer.mint(&user, Duration::from_secs(1), development::now()).unwrap();
        client.start(&short);
        client.order(json!({"token": hub.token(&user)}));
        client.await_event("reconnecting", &[]);
        client.await_event("reconnected", &[]);
        let kicked = hub.node.disconnect(&UserId::new(&user), None).await.unwrap();
        assert_eq!(kicked, 1, "{transport} {protocol}");
        let closed = client.await_event("closed", &[]);
        assert_eq!(closed["error"], json!(null), "{transport} {protocol}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_cannot_be_served_learns_why() {
    let hub = TestHub::start().await;
    let mut old = StockClient::of(&url(&hub), "WebSockets", "json", "signalr-old");
    old.order(json!({"token": hub.token("alice"), "start": true}));
    let failed = old.await_event("failed", &["closed"]);
    assert!(failed["error"].as_str().unwrap().contains("7 or newer"), "{failed}");
    let mut bad = StockClient::new(&url(&hub), "WebSockets", "json");
    bad.order(json!({"token": "a.b.c", "start": true}));
    let failed = bad.await_event("failed", &["closed"]);
    assert!(failed["error"].as_str().unwrap().contains("401"), "{failed}");
}

/// A stock client finds such names on every object, and says nothing of what it then calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_clients_cannot_handle_are_not_sent() {
    let hub = TestHub::start().await;
    let mut client = StockClient::new(&url(&hub), "WebSockets", "json");
    client.start(&hub.token("alice"));
    for name in ["constructor", "__proto__"] {
        assert!(matches!(Frame::new(name, "m", b"1", 1_000), Err(FrameError::BadMethod)));
    }
    let naive = Frame::unchecked("constructor", "m", "1");
    let ask = hub.send_frame("alice", &naive, Duration::from_secs(1), AckRule::Any).await;
    assert_ne!(ask.answer().await, Answer::Acknowledged, "the naive version is seen");
}

/// What would become of an old client that is let in: it has shown the message, and is gone for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_client_that_is_let_in_dies_of_its_first_message() {
    let hub = TestHub::planted(Some(Planted::IdForEverybody)).await;
    let mut old = StockClient::of(&url(&hub), "WebSockets", "json", "signalr-old");
    old.start(&hub.token("alice"));
    let ask = hub.send("alice", json!(1)).await;
    let closed = old.await_event("closed", &["message"]);
    assert!(closed["error"].as_str().unwrap().contains("not supported"), "{closed}");
    assert_ne!(ask.answer().await, Answer::Acknowledged, "the naive version is seen");
    let counted = "potok_hub_closed_on_id_total{hub=\"notifications\"} 1\n";
    assert!(hub.node.metrics().contains(counted), "{}", hub.node.metrics());
}
