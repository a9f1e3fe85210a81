//! A rolling restart: nodes stop one after another, their clients go to those that are there, and
//! nobody is said to be away.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use potok_hub::trouble::Planted;
use potok_hub::{Answer, Hub, InProcess, Limits};
use serde_json::json;

use crate::pair::{Pair, settings, with};
use crate::support::{Client, TestHub, until};

const CLIENTS: usize = 1_000;

/// The nodes that are there; each client goes to the next one.
#[derive(Default)]
struct Balancer {
    nodes: Mutex<Vec<SocketAddr>>,
    next: AtomicUsize,
}

impl Balancer {
    fn set(&self, nodes: &[&TestHub]) {
        *self.nodes.lock().unwrap() = nodes.iter().map(|hub| hub.address).collect();
    }

    fn pick(&self) -> SocketAddr {
        let nodes = self.nodes.lock().unwrap();
        nodes[self.next.fetch_add(1, Ordering::Relaxed) % nodes.len()]
    }
}

/// A client that answers everything and comes back at once when it is sent elsewhere.
async fn live(balancer: Arc<Balancer>, token: String) {
    loop {
        let url = format!("ws://{}/hubs/notifications", balancer.pick());
        let Ok(mut client) = Client::open(&url, &token).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        client.shake_hands().await;
        while let Some(message) = client.heard().await {
            match message["type"].as_u64() {
                Some(1) => client.complete(&message["invocationId"]).await,
                Some(7) => assert_eq!(message["allowReconnect"], true),
                _ => {}
            }
        }
    }
}

/// Answers "nobody" while two nodes are started anew, one after the other.
async fn restarted(planted: Option<Planted>) -> u64 {
    let limits = Limits {
        linger: Duration::from_secs(20),
        notice: Duration::from_millis(200),
        ..with(planted)
    };
    let directory = Arc::new(InProcess::new());
    let Pair { a, b } = Pair::start(&limits, directory.clone(), directory.clone()).await;
    // It sends, and stays.
    let sender = TestHub::among(settings(limits.clone()), directory.clone(), Some(&a)).await;
    let balancer = Arc::new(Balancer::default());
    balancer.set(&[&a, &b]);
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(live(balancer.clone(), a.token(&format!("user-{number}"))));
    }
    let count = |hubs: &[&TestHub]| hubs.iter().map(|hub| hub.node.stats().users).sum::<usize>();
    until("all are in", || count(&[&a, &b]) == CLIENTS).await;
    let known = async {
        for number in 0..CLIENTS {
            let user = format!("user-{number}");
            while sender.send(&user, json!(0)).await.answer().await != Answer::Acknowledged {}
        }
    };
    crate::support::patiently("all are known", known).await;
    let before = sender.node.stats().nobody;
    let sender = Arc::new(sender);
    let sending = {
        let sender = sender.clone();
        tokio::spawn(async move {
            for number in (0..CLIENTS).cycle() {
                let ask = sender.send(&format!("user-{number}"), json!(number)).await;
                // Not one after another: many are on their way all the time.
                if number % 50 == 0 {
                    ask.answer().await;
                }
            }
        })
    };
    let spread = Duration::from_secs(1);
    let c = TestHub::among(settings(limits.clone()), directory.clone(), Some(&a)).await;
    balancer.set(&[&b, &c]);
    a.node.drain(spread).await;
    let d = TestHub::among(settings(limits.clone()), directory.clone(), Some(&a)).await;
    balancer.set(&[&c, &d]);
    b.node.drain(spread).await;
    until("all are back", || count(&[&c, &d]) == CLIENTS).await;
    sending.abort();
    let _ = sending.await;
    sender.node.stats().nobody - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_away_while_the_nodes_are_started_anew() {
    assert_eq!(restarted(None).await, 0);
    let naive = restarted(Some(Planted::NobodyAtOnce)).await;
    assert!(naive > 0, "the naive version is seen");
}
