//! The stock client in a browser: a page of another origin, all transports, both protocols.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use potok_hub::tokens::development;
use potok_hub::{AckRule, Answer, ConnectionAsk, Frame, Hub, HubSettings, Limits, UserId};
use potok_services::{Chromium, Mode, Proxy};
use serde_json::{Value, json};

use crate::page::{PageClient, site};
use crate::support::{AN_HOUR, Relay, TestHub, until};

mod page;

#[path = "../hub/support.rs"]
#[allow(dead_code, reason = "shared with the tests of the hub's own clients")]
mod support;

const WAYS: [(&str, &str); 5] = [
    ("WebSockets", "json"),
    ("WebSockets", "messagepack"),
    ("ServerSentEvents", "json"),
    ("LongPolling", "json"),
    ("LongPolling", "messagepack"),
];

fn frame(method: &str, payload: &Value) -> Arc<Frame> {
    Frame::new(method, "m-1", payload.to_string().as_bytes(), 64 << 10).unwrap()
}

/// One browser for everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_another_origin_is_served_by_every_way() {
    let chromium = tokio::task::spawn_blocking(Chromium::start).await.unwrap();
    let origin = site().await;
    let (linger, between_polls) = (Duration::from_secs(30), Duration::from_secs(5));
    let limits = Limits { linger, between_polls, ..Limits::default() };
    let settings = HubSettings { origins: vec![origin.clone()], limits, ..HubSettings::default() };
    let hub = TestHub::with(settings).await;
    for (transport, protocol) in WAYS {
        let user = format!("alice-{transport}-{protocol}");
        let proxy = Proxy::start(hub.address);
        let url = format!("http://{}/hubs/notifications", proxy.address());
        let mut client = PageClient::new(&chromium, &origin, &url, (transport, protocol));
        assert_eq!(client.start(&hub.token(&user)), "started", "{transport} {protocol}");
        let ask = ConnectionAsk { user: Some(UserId::new(&user)), limit: 1 };
        let seen = hub.node.connections(&ask).await.connections.remove(0);
        assert_eq!((seen.transport.name(), seen.protocol.as_str()), (transport, protocol));

        let payload = json!({"text": "naïve ☕", "n": [1, -2, 3.5, 1u64 << 40, null, true]});
        for (method, rule, answer) in [
            ("notify", AckRule::Any, Answer::Acknowledged),
            ("ask", AckRule::Result, Answer::Acknowledged),
            ("boom", AckRule::Any, Answer::NoAnswer { written: true }),
        ] {
            let ask = hub.send_frame(&user, &frame(method, &payload), AN_HOUR, rule).await;
            assert_eq!(ask.answer().await, answer, "{method} {transport} {protocol}");
            assert_eq!(client.event()["args"], json!([payload, {"id": "m-1"}]));
        }
        let echoed = client.ask("connection.invoke('Echo', { a: [1, 'b'] })");
        assert_eq!(echoed, json!({"user": user, "value": {"a": [1, "b"]}}));

        // The network goes and comes back: the client reconnects, and what came meanwhile is there.
        proxy.set(Mode::Cut);
        assert_eq!(client.event()["event"], "reconnecting");
        until("the cut is noticed", || hub.node.stats().connections == 0).await;
        let ask = hub
            .send_frame(&user, &frame("notify", &json!("meanwhile")), AN_HOUR, AckRule::Any)
            .await;
        proxy.set(Mode::Pass);
        let mut events = [client.event(), client.event()];
        events.sort_by_key(|event| event["event"].as_str().unwrap().to_owned());
        assert_eq!(events[0]["args"][0], "meanwhile");
        assert_eq!(events[1]["event"], "reconnected");
        assert_eq!(ask.answer().await, Answer::Acknowledged);
        assert_eq!(client.ask("connection.stop().then(() => 'stopped')"), "stopped");
        until("the client is gone", || hub.node.stats().connections == 0).await;
    }

    // One that asks for it keeps its connection when the socket breaks, and hears nothing of that.
    let relay = Relay::to(hub.address).await;
    let url = format!("http://{}/hubs/notifications", relay.address);
    for protocol in ["json", "messagepack"] {
        let user = format!("stateful-{protocol}");
        let mut client = PageClient::stateful(&chromium, &origin, &url, protocol);
        assert_eq!(client.start(&hub.token(&user)), "started", "{protocol}");
        until("it is known", || hub.node.stats().users == 1).await;
        let connected = hub.node.stats().connected;
        let mut asks = Vec::new();
        for number in 0..20 {
            if number % 10 == 5 {
                relay.snap();
            }
            asks.push(hub.send(&user, json!(number)).await);
        }
        for number in 0..20 {
            let event = client.event();
            assert_eq!((&event["event"], &event["args"][0]), (&json!("message"), &json!(number)));
        }
        for ask in asks {
            assert_eq!(ask.answer().await, Answer::Acknowledged, "{protocol}");
        }
        assert_eq!(hub.node.stats().connected, connected);
        assert_eq!(client.ask("connection.stop().then(() => 'stopped')"), "stopped");
        until("the client is gone", || hub.node.stats().connections == 0).await;
    }

    // A page sees why it is refused, not "network error".
    let url = format!("http://{}/hubs/notifications", hub.address);
    let mut client = PageClient::new(&chromium, &origin, &url, WAYS[0]);
    let past = development::now() - Duration::from_secs(7200);
    let expired = hub.issuer.mint("alice", Duration::from_secs(60), past).unwrap();
    let failed = client.start(&expired);
    assert!(failed.as_str().unwrap().contains("401"), "{failed}");
    // A page that is not listed is not served, whatever its token.
    let stranger = site().await;
    let mut client = PageClient::new(&chromium, &stranger, &url, WAYS[0]);
    let failed = client.start(&hub.token("alice"));
    assert_ne!(failed, "started");
    assert_eq!(hub.node.stats().connections, 0);
}
