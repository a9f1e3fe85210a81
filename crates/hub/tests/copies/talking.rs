//! What must hold whatever the directory: the same on one in this process and on Redis.

use std::sync::Arc;

use futures::StreamExt;
use potok_hub::tokens::development;
use potok_hub::trouble::Planted;
use potok_hub::{Answer, ConnectionAsk, Directory, Hub, InProcess, RedisDirectory, UserId};
use potok_services::redis;
use serde_json::json;

use crate::pair::{Pair, limits, with};
use crate::support::{Client, TestHub};

async fn directories(name: &str) -> [Arc<dyn Directory>; 2] {
    let url = tokio::task::spawn_blocking(|| redis().url()).await.unwrap();
    let on_redis = RedisDirectory::new(&url, name).unwrap();
    [Arc::new(InProcess::new()), Arc::new(on_redis)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_are_reached_wherever_they_are() {
    for directory in directories("reached").await {
        let Pair { a, b } = Pair::start(&limits(), directory.clone(), directory).await;
        let (mut phone, mut tab) = (a.connect("alice").await, b.connect("alice").await);
        let mut bob = b.connect("bob").await;
        a.acknowledged("bob", &mut bob).await;
        // From a third place: no connection of hers is there, both devices get it.
        until_seen(&a, "alice", 2).await;
        until_seen(&b, "alice", 2).await;
        for hub in [&a, &b] {
            let ask = hub.send("alice", json!({"text": "naïve \"☕\""})).await;
            let (one, other) = (phone.hear().await, tab.hear().await);
            assert_eq!(one["arguments"], json!([{"text": "naïve \"☕\""}, {"id": "m-1"}]));
            assert_eq!(one["arguments"], other["arguments"]);
            // The one that is with the other node.
            let (far, id) = if std::ptr::eq(hub, &a) {
                (&mut tab, &other["invocationId"])
            } else {
                (&mut phone, &one["invocationId"])
            };
            far.complete(id).await;
            assert_eq!(ask.answer().await, Answer::Acknowledged);
        }
        let ask = a.send("carol", json!(1)).await;
        assert_eq!(ask.answer().await, Answer::Nobody);
        // A handler that throws, and a client that goes, over there.
        let ask = a.send("bob", json!(2)).await;
        let id = bob.invoked().await;
        bob.say(json!({"type": 3, "invocationId": id, "error": "thrown"})).await;
        assert_eq!(ask.answer().await, Answer::NoAnswer { written: true });
        let ask = a.send("bob", json!(3)).await;
        bob.invoked().await;
        drop(bob);
        assert_eq!(ask.answer().await, Answer::NoAnswer { written: true });
        assert_eq!(a.node.stats().connections, 1);
    }
}

async fn until_seen(hub: &TestHub, user: &str, count: usize) {
    let seeing = async {
        while hub.seen(user).await != count {
            tokio::task::yield_now().await;
        }
    };
    crate::support::patiently("connections everywhere", seeing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_where_is_known_to_all_and_a_kick_holds_everywhere() {
    for directory in directories("kicked").await {
        let Pair { a, b } = Pair::start(&limits(), directory.clone(), directory).await;
        let (_one, _other) = (a.connect("alice").await, b.connect("alice").await);
        until_seen(&a, "alice", 2).await;
        let list = b.node.connections(&ConnectionAsk::default()).await;
        assert_eq!((list.total, list.silent.len()), (2, 0));
        let [one, other] = &list.connections[..] else { panic!("{list:?}") };
        assert!(one.node != other.node && one.node.len() == 16, "{list:?}");
        assert!(one.address.is_loopback());
        let token = a.token("alice");
        let alice = UserId::new("alice");
        let closed = a.node.disconnect(&alice, Some(development::now())).await.unwrap();
        assert_eq!(closed, 2);
        for hub in [&a, &b] {
            let url = format!("ws://{}/hubs/notifications", hub.address);
            assert!(Client::open(&url, &token).await.is_err(), "the token is from before");
        }
        until_seen(&a, "alice", 0).await;
    }
}

/// Of a thousand clients, how many do not get in behind a balancer that sends every request to the
/// next node.
async fn failed_without_affinity(directory: Arc<dyn Directory>, planted: Option<Planted>) -> usize {
    const STARTS: usize = 1_000;
    let Pair { a, b } = Pair::start(&with(planted), directory.clone(), directory).await;
    let nodes = [&a, &b];
    let token = |number: usize| a.token(&format!("user-{}", number / 10));
    let start = |number: usize| async move {
        let (first, second) = (nodes[number % 2], nodes[(number + 1) % 2]);
        let token = token(number);
        let negotiated = first.negotiate(&token).await;
        let transports = negotiated["availableTransports"].as_array().unwrap();
        assert_eq!(transports.len(), 1, "the others need their node: {negotiated}");
        let id = negotiated["connectionToken"].as_str().unwrap();
        let url = format!("ws://{}/hubs/notifications?id={id}", second.address);
        let mut client = Client::open(&url, &token).await.ok()?;
        client.shake_hands().await;
        Some(client)
    };
    let starts = futures::stream::iter((0..STARTS).map(start)).buffer_unordered(16);
    let started: Vec<_> = starts.collect().await;
    started.iter().filter(|client| client.is_none()).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn negotiation_with_one_node_is_attachment_to_another() {
    for directory in directories("balanced").await {
        assert_eq!(failed_without_affinity(directory, None).await, 0);
    }
    let directory = Arc::new(InProcess::new());
    let naive = failed_without_affinity(directory, Some(Planted::NegotiateKeepsState)).await;
    assert_eq!(naive, 1_000, "the naive version is seen");
}
