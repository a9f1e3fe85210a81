//! Redis flushed, killed and frozen under two nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use potok_hub::tokens::development;
use potok_hub::trouble::Planted;
use potok_hub::{Answer, Directory, Find, Hub, Limits, NodeId, Presence, RedisDirectory, UserId};
use potok_services::Redis;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::pair::{Pair, limits, with};
use crate::support::{frame, patiently, until};

async fn on<T: Send + 'static>(
    redis: &Arc<Redis>,
    act: impl FnOnce(&Redis) -> T + Send + 'static,
) -> T {
    let redis = redis.clone();
    tokio::task::spawn_blocking(move || act(&redis)).await.unwrap()
}

async fn start(limits: &Limits) -> (Arc<Redis>, Pair) {
    let redis = Arc::new(tokio::task::spawn_blocking(Redis::start).await.unwrap());
    let directory = || Arc::new(RedisDirectory::new(&redis.url(), "notifications").unwrap());
    let pair = Pair::start(limits, directory(), directory()).await;
    (redis, pair)
}

/// FLUSHALL: the nodes say again who is with them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redis_forgets_is_said_again() {
    let (redis, Pair { a, b }) = start(&limits()).await;
    let mut alice = b.connect("alice").await;
    a.acknowledged("alice", &mut alice).await;
    let flush =
        "redis.call('FLUSHALL') local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000";
    let flushed = on(&redis, |redis| redis.command(&["EVAL", flush, "0"])).await;
    // Never acknowledged without her; and right again by itself.
    a.acknowledged("alice", &mut alice).await;
    // By the server's own clock: what is said of her was said within the lease.
    const ALICE: &str = "potok:hub:notifications:user:{5:alice}";
    let said = on(&redis, |redis| redis.command(&["HVALS", ALICE])).await;
    let moment = |text: &str| text.trim_matches('"').parse::<u64>().unwrap();
    let passed = moment(&said) - moment(&flushed);
    assert!(passed <= limits().lease.as_millis() as u64, "said again after {passed} ms");
    // The key of negotiations is a new one, and the same for both.
    let key = on(&redis, |redis| redis.command(&["EXISTS", "potok:hub:notifications:key"])).await;
    assert_eq!(key, "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_announces_once_is_forgotten() {
    let limits = Limits { lease: Duration::from_secs(1), ..with(Some(Planted::AnnouncedOnce)) };
    let (redis, Pair { a, b }) = start(&limits).await;
    let mut alice = b.connect("alice").await;
    a.acknowledged("alice", &mut alice).await;
    on(&redis, |redis| redis.command(&["FLUSHALL"])).await;
    // When both have their leases again, everything has been said that will be.
    let again = async {
        let nodes = |redis: &Redis| redis.command(&["ZCARD", "potok:hub:notifications:nodes"]);
        while on(&redis, nodes).await != "2" {}
    };
    patiently("the leases", again).await;
    let mut answers = Vec::new();
    while answers.len() < 3 {
        // Not in the first moments of the new epoch.
        match a.try_send("alice").await {
            Ok(ask) => answers.push(ask.answer().await),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    assert!(answers.contains(&Answer::Nobody), "the naive version is seen: {answers:?}");
}

/// Killed under two nodes: nothing is answered "nobody", nobody is disconnected, and it goes on by
/// itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_messages_are_refused_and_connections_stay() {
    let (redis, Pair { a, b }) = start(&limits()).await;
    let (mut alice, mut bob) = (b.connect("alice").await, a.connect("bob").await);
    a.acknowledged("alice", &mut alice).await;
    b.acknowledged("bob", &mut bob).await;
    let nobody = (a.node.stats().nobody, b.node.stats().nobody);
    // Under way when it dies.
    let open = a.send_within("alice", json!("open"), Duration::from_secs(1)).await;
    let id = alice.invoked().await;
    on(&redis, Redis::kill).await;
    for _ in 0..20 {
        assert!(a.try_send("alice").await.is_err(), "where she is cannot be asked");
        assert!(a.try_send("bob").await.is_err(), "nor who else has him");
    }
    alice.complete(&id).await;
    assert_eq!(open.answer().await, Answer::Unavailable);
    assert_eq!((a.node.stats().connections, b.node.stats().connections), (1, 1));
    assert_eq!((a.node.stats().nobody, b.node.stats().nobody), nobody);
    on(&redis, Redis::restart).await;
    a.acknowledged("alice", &mut alice).await;
    b.acknowledged("bob", &mut bob).await;
}

/// Frozen beyond the lease: both nodes have lost theirs when it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_that_ran_out_are_begun_anew() {
    let limits = Limits { lease: Duration::from_millis(600), ..limits() };
    let (redis, Pair { a, b }) = start(&limits).await;
    let mut alice = b.connect("alice").await;
    a.acknowledged("alice", &mut alice).await;
    on(&redis, Redis::freeze).await;
    while a.try_send("alice").await.is_ok() {}
    on(&redis, Redis::thaw).await;
    a.acknowledged("alice", &mut alice).await;
    assert_eq!(b.node.stats().connections, 1);
}

/// Who was told to go is not let in by a node that comes after Redis was flushed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denials_are_said_again() {
    let (redis, Pair { a, b }) = start(&limits()).await;
    let alice = UserId::new("alice");
    let told = development::now();
    a.node.disconnect(&alice, Some(told)).await.unwrap();
    // An older one takes nothing back.
    let older = told - Duration::from_secs(100);
    b.node.disconnect(&alice, Some(older)).await.unwrap();
    on(&redis, |redis| redis.command(&["FLUSHALL"])).await;
    let denied = |redis: &Redis| {
        let said = redis.command(&["HGET", "potok:hub:notifications:denied", "alice"]);
        said.trim_matches('"').parse::<u64>().unwrap_or_default()
    };
    let since = told.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let again = async { while on(&redis, denied).await != since {} };
    patiently("the denial", again).await;
}

/// A server that does not say which run of it this is could be another one without anybody noticing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_may_not_be_asked_who_it_is_is_not_used() {
    let redis = Arc::new(tokio::task::spawn_blocking(Redis::start).await.unwrap());
    on(&redis, |redis| redis.command(&["ACL", "SETUSER", "default", "-info"])).await;
    let directory = RedisDirectory::new(&redis.url(), "notifications").unwrap();
    let node = NodeId::parse("0123456789abcdef").unwrap();
    let lease = Duration::from_secs(60);
    assert!(directory.renew(node, lease).await.is_err());
    on(&redis, |redis| redis.command(&["ACL", "SETUSER", "default", "+info"])).await;
    assert!(!directory.renew(node, lease).await.unwrap().kept);
    assert!(directory.renew(node, lease).await.unwrap().kept);
    // Who begins after somebody saw that everything was forgotten is told.
    on(&redis, |redis| redis.command(&["FLUSHALL"])).await;
    assert!(!directory.renew(node, lease).await.unwrap().kept);
    let later = RedisDirectory::new(&redis.url(), "notifications").unwrap();
    let newcomer = NodeId::parse("fedcba9876543210").unwrap();
    assert!(later.renew(newcomer, lease).await.unwrap().forgotten);
}

/// Without its channel a node hears nothing, and announces nobody. That is not to say that nobody is
/// there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_redis_refuses_the_channels_nobody_is_said_to_be_away() {
    let (redis, Pair { a, b }) = start(&limits()).await;
    on(&redis, |redis| redis.command(&["ACL", "SETUSER", "default", "resetchannels"])).await;
    for hub in [&a, &b] {
        until("the line is cut", || hub.node.not_ready().is_some()).await;
    }
    let mut alice = b.connect("alice").await;
    for _ in 0..20 {
        assert!(a.try_send("alice").await.is_err());
    }
    // What the guide says that the user of the hub's Redis needs.
    let rights = ["ACL", "SETUSER", "default", "resetkeys", "~potok:hub:*", "&potok:hub:*"];
    let rights: Vec<_> = rights.into_iter().chain(["+@all", "-@dangerous", "+info"]).collect();
    on(&redis, move |redis| redis.command(&rights)).await;
    a.acknowledged("alice", &mut alice).await;
}

async fn keys(redis: &mut BufReader<TcpStream>) -> usize {
    redis.get_mut().write_all(b"DBSIZE\r\n").await.unwrap();
    let mut answer = String::new();
    redis.read_line(&mut answer).await.unwrap();
    answer.trim().trim_start_matches(':').parse().unwrap()
}

/// Messages to very many people at once are taken, and the lease is renewed meanwhile as ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_to_very_many_people_are_found_a_few_at_a_time() {
    const USERS: usize = 20_000;
    let redis = Arc::new(tokio::task::spawn_blocking(Redis::start).await.unwrap());
    let directory = Arc::new(RedisDirectory::new(&redis.url(), "notifications").unwrap());
    let node = NodeId::parse("0123456789abcdef").unwrap();
    let lease = Duration::from_secs(15);
    assert!(!directory.renew(node, lease).await.unwrap().kept);
    let user = |number: usize| UserId::new(&format!("user-{number}"));
    let here: Vec<_> = (USERS - 500..USERS).map(|number| (user(number), Presence::Here)).collect();
    directory.announce(node, &here).await.unwrap();
    // A message to each, and one to all.
    let all = frame(&json!("to all"));
    let find = |number| Find {
        user: user(number),
        frames: vec![frame(&json!(format!("{number:01000}"))), all.clone()],
    };
    let finds: Vec<_> = (0..USERS).map(find).collect();
    let first = finds.get(..1).unwrap();
    // Not in the first moments of an epoch.
    let settled = async { while directory.find(first, &Limits::default()).await.is_err() {} };
    patiently("it settles", settled).await;
    // Each user is two keys: how many of them there are more after each renewal.
    let address = redis.url().trim_start_matches("redis://").to_owned();
    let mut line = BufReader::new(TcpStream::connect(address).await.unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let renewing = {
        let (directory, stop) = (directory.clone(), stop.clone());
        tokio::spawn(async move {
            let (mut last, mut most) = (keys(&mut line).await, 0);
            while !stop.load(Ordering::Acquire) {
                assert!(directory.renew(node, lease).await.unwrap().kept);
                let now = keys(&mut line).await;
                most = most.max(now.saturating_sub(last));
                last = now;
            }
            most
        })
    };
    let found = directory.find(&finds, &Limits::default()).await.unwrap();
    stop.store(true, Ordering::Release);
    let most = renewing.await.unwrap();
    // A renewal waits behind some of them, not behind all.
    assert!(most < USERS, "{most} keys from one renewal to the next");
    assert_eq!(found.len(), USERS);
    for (number, whereabouts) in found.iter().enumerate() {
        let nodes: &[NodeId] = if number < USERS - 500 { &[] } else { &[node] };
        assert_eq!(whereabouts.nodes, nodes, "user-{number}");
    }
    let kept =
        |redis: &Redis| redis.command(&["LLEN", "potok:hub:notifications:inbox:{9:user-1234}"]);
    assert_eq!(on(&redis, kept).await, "2", "each kept once");
}

/// What an inbox has no room for is not sent to Redis, and still known to be missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_messages_than_an_inbox_holds_leave_its_last_ones() {
    let redis = Arc::new(tokio::task::spawn_blocking(Redis::start).await.unwrap());
    let directory = RedisDirectory::new(&redis.url(), "notifications").unwrap();
    let node = NodeId::parse("0123456789abcdef").unwrap();
    directory.renew(node, Duration::from_secs(15)).await.unwrap();
    let limits = Limits { resume_overlap: Duration::ZERO, ..Limits::default() };
    let alice = UserId::new("alice");
    let numbered = |number: usize| {
        potok_hub::Frame::new("notify", &format!("m{number}"), b"1", 1_000).unwrap()
    };
    let find = |frames| [Find { user: alice.clone(), frames }];
    let settled = async { while directory.find(&find(Vec::new()), &limits).await.is_err() {} };
    patiently("it settles", settled).await;
    directory.find(&find(vec![numbered(0)]), &limits).await.unwrap();
    let many = (1..=1_000).map(numbered).collect();
    directory.find(&find(many), &limits).await.unwrap();
    // Times are in milliseconds.
    let now = |redis: &Redis| redis.command(&["EVAL", "return redis.call('TIME')[2] / 1000", "0"]);
    let then = on(&redis, now).await;
    while on(&redis, now).await == then {}
    directory.find(&find(vec![numbered(1_001)]), &limits).await.unwrap();
    let told = |last: &'static str| directory.since(&alice, last, &limits);
    assert_eq!(told("m0").await.unwrap(), None);
    assert_eq!(told("m901").await.unwrap(), None, "it gave way to the last");
    // Of the same moment as those that were not kept: nobody can say that nothing is missing.
    assert_eq!(told("m1000").await.unwrap(), None);
    assert_eq!(told("m1001").await.unwrap().map(|missed| missed.len()), Some(1));
    let count = |redis: &Redis| redis.command(&["LLEN", "potok:hub:notifications:inbox:{5:alice}"]);
    assert_eq!(on(&redis, count).await, limits.inbox_messages.to_string());
}

/// Each message is kept for its time, also where newer ones keep coming.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_messages_give_way_though_new_ones_come() {
    let redis = Arc::new(tokio::task::spawn_blocking(Redis::start).await.unwrap());
    let directory = RedisDirectory::new(&redis.url(), "notifications").unwrap();
    let node = NodeId::parse("0123456789abcdef").unwrap();
    directory.renew(node, Duration::from_secs(15)).await.unwrap();
    let limits = Limits {
        inbox_age: Duration::from_secs(1),
        inbox_messages: usize::MAX >> 1,
        inbox_bytes: 1 << 30,
        ..Limits::default()
    };
    let keep = |id: &str| {
        let frame = potok_hub::Frame::new("notify", id, b"1", 1_000).unwrap();
        [Find { user: UserId::new("alice"), frames: vec![frame] }]
    };
    let settled = async { while directory.find(&keep("first"), &limits).await.is_err() {} };
    patiently("it settles", settled).await;
    let list = "potok:hub:notifications:inbox:{5:alice}";
    let has_first = |redis: &Redis| redis.command(&["LRANGE", list, "0", "-1"]).contains("first");
    assert!(on(&redis, has_first).await);
    let gone = async {
        while on(&redis, has_first).await {
            directory.find(&keep("later"), &limits).await.unwrap();
        }
    };
    patiently("the first is gone", gone).await;
    let left = on(&redis, |redis| redis.command(&["LLEN", list])).await;
    assert_ne!(left, "0", "the later ones are there");
}

/// Of a node that died long ago nothing stays; what somebody said anew does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_dead_nodes_are_removed_when_they_are_met() {
    let (redis, Pair { a, .. }) = start(&limits()).await;
    const KEY: &str = "potok:hub:notifications:user:{5:alice}";
    on(&redis, |redis| redis.command(&["HSET", KEY, "0123456789abcdef", "1000"])).await;
    let gone = async {
        while on(&redis, |redis| redis.command(&["EXISTS", KEY])).await != "0" {
            assert_eq!(a.send("alice", json!(1)).await.answer().await, Answer::Nobody);
        }
    };
    patiently("it is removed", gone).await;
}
