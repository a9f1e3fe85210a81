//! More than one server: a cluster, and a primary with a replica and a sentinel. And TLS.

use std::time::Duration;

use potok_connectors::redis::{KeyStyle, RedisStore};
use potok_core::{Move, Owner, Store};
use potok_testkit::services::{Redis, RedisOptions, Sentinel};

use crate::place::{batch, events, holds, is, keys, owner, places, server, store, within};

on_both!(a_sentinel_leads_to_the_new_primary, tls_works_and_is_demanded);

fn share(share: u32) -> Owner {
    Owner { pipeline: "em".into(), share, nonce: 1 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_holds_shares_on_all_its_nodes() {
    let nodes = Redis::cluster(3);
    // One host is enough: it knows the others.
    let url = format!("redis+cluster://127.0.0.1:{}", nodes[1].port());
    let store = store(&url, KeyStyle::Packed);
    store.ping().await.unwrap();
    let records = events(0..20);
    for n in 0..12 {
        store.own(&share(n)).await.unwrap();
        store.put(&share(n), &records).await.unwrap();
        store.close(&share(n), &batch()).await.unwrap();
        holds(&store, &share(n), &records).await;
    }
    assert!(nodes.iter().all(|node| keys(node).len() >= 3), "a node has nothing to do");
    for node in &nodes {
        node.command(&["SCRIPT", "FLUSH"]);
    }
    for n in 0..12 {
        store.clean(&share(n), &places(&records)).await.unwrap();
    }
    let left: Vec<String> = nodes.iter().flat_map(keys).collect();
    assert_eq!(left.len(), 12);
    assert!(left.iter().all(|key| key.ends_with(":owner")), "{left:?}");
    // Without one node, some shares wait; the others may.
    nodes[2].kill();
    let mut waits = 0;
    for n in 0..12 {
        if let Err(fault) = within(store.put(&share(n), &records)).await {
            assert_eq!(fault.next, Move::Wait, "{fault}");
            waits += 1;
        }
    }
    assert!(waits > 0, "nobody noticed");
    nodes[2].restart();
    for n in 0..12 {
        within(async {
            while let Err(fault) = store.put(&share(n), &records).await {
                assert_eq!(fault.next, Move::Wait, "{fault}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        holds(&store, &share(n), &records).await;
    }
}

#[tokio::test]
async fn the_documented_keys_are_not_for_a_cluster() {
    let refused = RedisStore::new("redis+cluster://127.0.0.1:1", KeyStyle::Readable);
    is(&refused.err().unwrap(), Move::Fix, "P0910");
}

async fn a_sentinel_leads_to_the_new_primary(style: KeyStyle) {
    let primary = server(&[]);
    let replica = server(&[("replicaof", &format!("127.0.0.1 {}", primary.port()))]);
    let sentinel = Sentinel::start(primary.port());
    let store = store(&sentinel.url(), style);
    let me = owner(1);
    store.own(&me).await.unwrap();
    store.put(&me, &events(0..3)).await.unwrap();
    let pause = || tokio::time::sleep(Duration::from_millis(20));
    within(async {
        while !sentinel.knows_replica() || keys(&replica) != keys(&primary) {
            pause().await;
        }
    })
    .await;
    primary.kill();
    // Whatever the new primary has of it, the engine waits or writes again from the log.
    within(async {
        while let Err(fault) = store.put(&me, &events(0..6)).await {
            assert!(matches!(fault.next, Move::Wait | Move::Retry), "{fault}");
            if fault.next == Move::Retry {
                store.own(&me).await.unwrap();
            }
            pause().await;
        }
    })
    .await;
    assert_eq!(sentinel.primary(), replica.port());
    holds(&store, &me, &events(0..6)).await;
    assert!(keys(&replica).len() > 1);
}

async fn tls_works_and_is_demanded(style: KeyStyle) {
    let redis = Redis::start_with(&RedisOptions { tls: true, ..RedisOptions::default() });
    let (url, certificate) = redis.tls_url().unwrap();
    let trusting = store(&format!("{url}?ca={}", certificate.authority.display()), style);
    trusting.own(&owner(1)).await.unwrap();
    trusting.put(&owner(1), &events(0..3)).await.unwrap();
    holds(&trusting, &owner(1), &events(0..3)).await;
    // Nobody on this machine vouches for the certificate.
    let fault = store(&url, style).ping().await.unwrap_err();
    is(&fault, Move::Wait, "P0901");
    // A server without TLS gives nothing away.
    let plain = format!("rediss://127.0.0.1:{}", redis.port());
    assert_eq!(store(&plain, style).ping().await.unwrap_err().next, Move::Wait);
}
