//! Redis stopped for long, and a stale replica in its place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use potok_hub::trouble::Planted;
use potok_hub::{Answer, Hub, Limits, RedisDirectory};
use potok_services::Redis;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::pair::{Pair, limits, with};
use crate::resuming::{missed, send};
use crate::support::{TestHub, patiently};

/// One address in front of several servers, as an operator moves it from one to another.
struct Relay {
    port: u16,
    target: watch::Sender<u16>,
}

impl Relay {
    async fn to(port: u16) -> Self {
        let (target, _) = watch::channel(port);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let targets = target.subscribe();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut targets = targets.clone();
                tokio::spawn(async move {
                    let target = *targets.borrow_and_update();
                    let Ok(mut server) = TcpStream::connect(("127.0.0.1", target)).await else {
                        return;
                    };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = targets.changed() => {}
                    }
                });
            }
        });
        Relay { port, target }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

async fn blocking<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(act).await.unwrap()
}

/// What is answered when a replica takes over that was cut off before alice came: first for alice,
/// until somebody has her again or the nodes have said all they will; then what she missed.
async fn promoted(planted: Option<Planted>) -> (bool, Option<Vec<String>>) {
    // Long: the replica has the nodes' leases, and they are still good.
    let limits =
        Limits { lease: Duration::from_secs(60), resume_overlap: Duration::ZERO, ..with(planted) };
    let primary = Arc::new(blocking(Redis::start).await);
    let replica = Arc::new(blocking(Redis::start).await);
    let relay = Relay::to(primary.port()).await;
    let directory = || Arc::new(RedisDirectory::new(&relay.url(), "notifications").unwrap());
    let Pair { a, b } = Pair::start(&limits, directory(), directory()).await;
    assert_eq!(send(&a, "carol", "m1").await.answer().await, Answer::Nobody);
    let (port, stale) = (primary.port().to_string(), replica.clone());
    blocking(move || {
        stale.command(&["REPLICAOF", "127.0.0.1", &port]);
        while !stale.command(&["INFO", "replication"]).contains("master_link_status:up") {}
        while stale.command(&["ZCARD", "potok:hub:notifications:nodes"]) != "2" {}
        stale.command(&["REPLICAOF", "NO", "ONE"]);
    })
    .await;
    let mut alice = b.connect("alice").await;
    a.acknowledged("alice", &mut alice).await;
    assert_eq!(send(&b, "carol", "m2").await.answer().await, Answer::Nobody);
    relay.target.send_replace(replica.port());
    let is_right = match planted {
        None => {
            a.acknowledged("alice", &mut alice).await;
            true
        }
        Some(_) => {
            let answered = async {
                loop {
                    // Where she is can be asked again, and is not known.
                    match a.try_send("alice").await {
                        Ok(ask) => return ask.answer().await != Answer::Nobody,
                        Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                    }
                }
            };
            patiently("an answer", answered).await
        }
    };
    (is_right, missed(&a, "carol", "m1").await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_replica_is_told_who_is_where_and_is_not_asked_what_was_missed() {
    // The replica knows m1 and lacks m2: a part.
    assert_eq!(promoted(None).await, (true, None));
    assert!(!promoted(Some(Planted::AnnouncedOnce)).await.0, "the naive version is seen");
}

/// As long as the lease and longer.
const STOPPED_FOR: Duration = Duration::from_secs(30);

/// Sends all the time, and counts the answers.
#[derive(Default)]
struct Load {
    over: AtomicBool,
    acknowledged: AtomicUsize,
    refused: AtomicUsize,
}

impl Load {
    async fn run(&self, hub: &TestHub, user: &str) {
        while !self.over.load(Ordering::Acquire) {
            match hub.try_send(user).await {
                Err(_) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Ok(ask) => match ask.answer().await {
                    Answer::Acknowledged => {
                        self.acknowledged.fetch_add(1, Ordering::Relaxed);
                    }
                    answer => assert_ne!(answer, Answer::Nobody, "{user}"),
                },
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_stopped_under_load_makes_nobody_away_and_disconnects_nobody() {
    const USERS: usize = 10;
    let redis = Arc::new(blocking(Redis::start).await);
    let directory = || Arc::new(RedisDirectory::new(&redis.url(), "notifications").unwrap());
    let Pair { a, b } = Pair::start(&limits(), directory(), directory()).await;
    let (a, b) = (Arc::new(a), Arc::new(b));
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..USERS {
        let hub = if number % 2 == 0 { &a } else { &b };
        let mut client = hub.connect(&format!("user-{number}")).await;
        a.acknowledged(&format!("user-{number}"), &mut client).await;
        b.acknowledged(&format!("user-{number}"), &mut client).await;
        clients.spawn(async move {
            let mut pings = tokio::time::interval(Duration::from_secs(5));
            loop {
                tokio::select! {
                    _ = pings.tick() => client.say(json!({"type": 6})).await,
                    message = client.heard() => match message {
                        Some(message) if message["type"] == 1 => {
                            client.complete(&message["invocationId"]).await;
                        }
                        Some(_) => {}
                        None => return,
                    },
                }
            }
        });
    }
    let before = (a.node.stats().nobody, b.node.stats().nobody);
    let load = Arc::new(Load::default());
    let mut senders = tokio::task::JoinSet::new();
    for number in 0..USERS {
        let (load, hub) = (load.clone(), if number % 3 == 0 { a.clone() } else { b.clone() });
        senders.spawn(async move { load.run(&hub, &format!("user-{number}")).await });
    }
    let acknowledged = || load.acknowledged.load(Ordering::Relaxed);
    crate::support::until("load", || acknowledged() > 100).await;
    let stopping = redis.clone();
    blocking(move || stopping.stop()).await;
    let stopped = Instant::now();
    tokio::time::sleep_until(stopped + STOPPED_FOR).await;
    assert!(load.refused.load(Ordering::Relaxed) > 100);
    let starting = redis.clone();
    blocking(move || starting.restart()).await;
    let then = acknowledged();
    crate::support::until("it goes on", || acknowledged() > then + 100).await;
    load.over.store(true, Ordering::Release);
    while let Some(sender) = senders.join_next().await {
        sender.unwrap();
    }
    assert_eq!((a.node.stats().nobody, b.node.stats().nobody), before);
    assert_eq!(a.node.stats().connections + b.node.stats().connections, USERS);
    let connected = (a.node.stats().connected, b.node.stats().connected);
    assert_eq!(connected.0 + connected.1, USERS as u64 + 2, "nobody had to come back");
}
