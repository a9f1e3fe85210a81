//! Servers that are away, frozen, starting, full or only a replica: waited for, and nothing is lost.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use potok_connectors::redis::{KeyStyle, RedisStore};
use potok_core::{Move, Owner, PutOutcome, Store, StoreEntry};
use potok_testkit::services::{Mode, Proxy, Redis};

use crate::place::{
    batch, events, hasty, held, holds, is, keys, owner, owner_key, places, server, store, within,
};

on_both!(
    a_server_that_is_not_there_is_waited_for,
    a_restart_between_calls_is_not_noticed,
    a_server_killed_in_the_middle_loses_nothing,
    a_silent_server_does_not_hold_a_call,
    a_lost_answer_makes_the_call_repeatable,
    a_replica_is_waited_for,
    a_full_server_refuses_bodies_and_nothing_else,
    a_busy_server_is_waited_for,
);

fn proxy(redis: &Redis) -> (Proxy, String) {
    let proxy = Proxy::start((Ipv4Addr::LOCALHOST, redis.port()).into());
    let url = format!("redis://{}", proxy.address());
    (proxy, url)
}

async fn a_server_that_is_not_there_is_waited_for(style: KeyStyle) {
    let redis = server(&[("appendfsync", "always")]);
    let store = store(&redis.url(), style);
    store.own(&owner(1)).await.unwrap();
    redis.kill();
    is(&store.ping().await.unwrap_err(), Move::Wait, "P0901");
    is(&store.put(&owner(1), &events(0..3)).await.unwrap_err(), Move::Wait, "P0901");
    is(&store.load(&owner(1), &places(&events(0..3))).await.unwrap_err(), Move::Wait, "P0901");
    redis.restart();
    store.ping().await.unwrap();
    store.put(&owner(1), &events(0..3)).await.unwrap();
    holds(&store, &owner(1), &events(0..3)).await;
}

async fn a_restart_between_calls_is_not_noticed(style: KeyStyle) {
    let redis = server(&[("appendfsync", "always")]);
    let store = store(&redis.url(), style);
    store.own(&owner(1)).await.unwrap();
    for round in 0..3 {
        store.put(&owner(1), &events(round..round + 1)).await.unwrap();
        redis.kill();
        redis.restart();
    }
    holds(&store, &owner(1), &events(0..3)).await;
}

async fn a_server_killed_in_the_middle_loses_nothing(style: KeyStyle) {
    const CALLS: u64 = 60;
    let redis = server(&[("appendfsync", "always")]);
    let store = Arc::new(store(&redis.url(), style));
    let me = owner(1);
    store.own(&me).await.unwrap();
    let done = Arc::new(AtomicU64::new(0));
    let work = tokio::spawn({
        let (store, done, me) = (store.clone(), done.clone(), me.clone());
        async move {
            let mut waits = 0;
            for call in 0..CALLS {
                // What is put is cleaned three calls later, so that both are interrupted.
                let fresh = events(call * 40..(call + 1) * 40);
                let old = places(&events(call.saturating_sub(3) * 40..call.saturating_sub(2) * 40));
                let old = if call < 3 { Vec::new() } else { old };
                loop {
                    let attempt = async {
                        store.put(&me, &fresh).await?;
                        store.clean(&me, &old).await
                    };
                    match attempt.await {
                        Ok(()) => break,
                        Err(fault) => {
                            assert_eq!(fault.next, Move::Wait, "{fault}");
                            waits += 1;
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                    }
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
            waits
        }
    });
    for kill in 1..=4 {
        within(async {
            while done.load(Ordering::Relaxed) < kill * CALLS / 5 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        redis.kill();
        redis.restart();
    }
    assert!(within(work).await.unwrap() > 0, "four kills, nobody noticed");
    let left = events((CALLS - 3) * 40..CALLS * 40);
    holds(&store, &me, &left).await;
    store.clean(&me, &places(&left)).await.unwrap();
    assert_eq!(keys(&redis), [owner_key(style)]);
}

async fn a_silent_server_does_not_hold_a_call(style: KeyStyle) {
    let redis = server(&[]);
    let (proxy, url) = proxy(&redis);
    let store = hasty(&url, style);
    store.own(&owner(1)).await.unwrap();
    proxy.set(Mode::BlackHole);
    // On the connection that is open, and on a new one.
    for _ in 0..2 {
        let fault = within(store.put(&owner(1), &events(0..3))).await.unwrap_err();
        is(&fault, Move::Wait, "P0905");
    }
    is(&within(store.ping()).await.unwrap_err(), Move::Wait, "P0905");
    proxy.set(Mode::Pass);
    store.put(&owner(1), &events(0..3)).await.unwrap();

    redis.freeze();
    let fault = within(store.put(&owner(1), &events(0..3))).await.unwrap_err();
    is(&fault, Move::Wait, "P0905");
    redis.thaw();
    store.put(&owner(1), &events(0..3)).await.unwrap();
    proxy.set(Mode::Cut);
    is(&store.put(&owner(1), &events(0..3)).await.unwrap_err(), Move::Wait, "P0901");
    proxy.set(Mode::Pass);
    holds(&store, &owner(1), &events(0..3)).await;
}

async fn a_lost_answer_makes_the_call_repeatable(style: KeyStyle) {
    let redis = server(&[]);
    let (proxy, url) = proxy(&redis);
    let store = hasty(&url, style);
    let me = owner(1);
    let records = events(0..50);
    store.own(&me).await.unwrap();
    // Scripts are known from here on, so that a call is one request.
    store.put(&me, &[]).await.unwrap();
    store.close(&me, &[]).await.unwrap();
    store.clean(&me, &[]).await.unwrap();
    let size = || redis.command(&["DBSIZE"]);

    proxy.set(Mode::DropReplies);
    let before = size();
    is(&store.put(&me, &records).await.unwrap_err(), Move::Wait, "P0905");
    proxy.set(Mode::Pass);
    let after = size();
    assert_ne!(before, after, "the request did not arrive");
    store.put(&me, &records).await.unwrap();
    assert_eq!(size(), after);
    holds(&store, &me, &records).await;

    proxy.set(Mode::DropReplies);
    is(&store.close(&me, &batch()).await.unwrap_err(), Move::Wait, "P0905");
    proxy.set(Mode::Pass);
    store.close(&me, &batch()).await.unwrap();

    proxy.set(Mode::DropReplies);
    is(&store.clean(&me, &places(&records)).await.unwrap_err(), Move::Wait, "P0905");
    proxy.set(Mode::Pass);
    assert_eq!(keys(&redis), [owner_key(style)]);
    store.clean(&me, &places(&records)).await.unwrap();
    assert_eq!(keys(&redis), [owner_key(style)]);

    proxy.set(Mode::DropReplies);
    is(&store.own(&owner(2)).await.unwrap_err(), Move::Wait, "P0905");
    proxy.set(Mode::Pass);
    store.own(&owner(2)).await.unwrap();
    store.put(&owner(2), &records).await.unwrap();
}

async fn a_replica_is_waited_for(style: KeyStyle) {
    let redis = server(&[]);
    let store = store(&redis.url(), style);
    let me = owner(1);
    store.own(&me).await.unwrap();
    store.put(&me, &events(0..3)).await.unwrap();
    redis.command(&["REPLICAOF", "127.0.0.1", "1"]);
    is(&store.put(&me, &events(3..6)).await.unwrap_err(), Move::Wait, "P0903");
    is(&store.clean(&me, &places(&events(0..3))).await.unwrap_err(), Move::Wait, "P0903");
    is(&store.own(&owner(2)).await.unwrap_err(), Move::Wait, "P0903");
    redis.command(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    is(&store.put(&me, &events(3..6)).await.unwrap_err(), Move::Wait, "P0906");
    redis.command(&["REPLICAOF", "NO", "ONE"]);
    store.put(&me, &events(3..6)).await.unwrap();
    holds(&store, &me, &events(0..6)).await;
}

/// Nothing of these is taken for lack of memory.
async fn is_full(store: &RedisStore, owner: &Owner, held: &[StoreEntry]) {
    match store.put(owner, held).await.unwrap() {
        PutOutcome::Full(fault) => is(&fault, Move::Wait, "P0904"),
        PutOutcome::Kept => panic!("there was room"),
    }
}

async fn a_full_server_refuses_bodies_and_nothing_else(style: KeyStyle) {
    let redis = server(&[("maxmemory-policy", "noeviction")]);
    let store = store(&redis.url(), style);
    let me = owner(1);
    store.own(&me).await.unwrap();
    let mut together = events(0..6);
    together.iter_mut().for_each(|held| held.place.with = 0);
    store.put(&me, &together).await.unwrap();
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    is_full(&store, &me, &events(6..9)).await;
    is_full(&store, &me, &[]).await;
    // What makes room works: closing, sending and cleaning, bit by bit.
    store.close(&me, &batch()).await.unwrap();
    holds(&store, &me, &together).await;
    store.clean(&me, &places(&together[..2])).await.unwrap();
    holds(&store, &me, &together[2..]).await;
    store.clean(&me, &places(&together[2..])).await.unwrap();
    // What was not taken can be cleaned as well.
    store.clean(&me, &places(&events(6..9))).await.unwrap();
    assert_eq!(keys(&redis), [owner_key(style)]);
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    store.put(&me, &events(3..6)).await.unwrap();
    holds(&store, &me, &events(3..6)).await;
    // So does taking over what another owner has left there.
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let other = owner(2);
    store.own(&other).await.unwrap();
    assert_eq!(keys(&redis), [owner_key(style)]);
    is_full(&store, &other, &events(0..3)).await;
    assert_eq!(store.close(&me, &batch()).await.unwrap_err().code, "P0907");
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    store.put(&other, &events(0..3)).await.unwrap();
    holds(&store, &other, &events(0..3)).await;
}

async fn a_busy_server_is_waited_for(style: KeyStyle) {
    let redis = server(&[("busy-reply-threshold", "1")]);
    let store = store(&redis.url(), style);
    let me = owner(1);
    store.own(&me).await.unwrap();
    let url = redis.url();
    let endless = tokio::task::spawn_blocking(move || {
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        redis::cmd("EVAL").arg("while true do end").arg(0).exec(&mut connection).unwrap_err()
    });
    let fault = within(async {
        loop {
            match store.put(&me, &events(0..3)).await {
                Ok(_) => tokio::task::yield_now().await,
                Err(fault) => break fault,
            }
        }
    })
    .await;
    is(&fault, Move::Wait, "P0906");
    redis.command(&["SCRIPT", "KILL"]);
    within(endless).await.unwrap();
    store.put(&me, &events(0..3)).await.unwrap();
    holds(&store, &me, &events(0..3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loads_its_data_is_waited_for() {
    // Slow to start: a little time for each command of its file, and some for each group.
    let redis = server(&[("appendfsync", "always"), ("key-load-delay", "200")]);
    let store = store(&redis.url(), KeyStyle::Readable);
    let me = owner(1);
    let of_its_own = |n| held(&format!("group {n}"), Some("event"), Some("1"), n, "small");
    let records: Vec<StoreEntry> = (0..3_000).map(of_its_own).collect();
    store.own(&me).await.unwrap();
    store.put(&me, &records).await.unwrap();
    redis.kill();
    let starting = tokio::task::spawn_blocking(move || {
        redis.restart();
        redis
    });
    let mut codes = std::collections::BTreeSet::new();
    within(async {
        while let Err(fault) = store.put(&me, &records[..1]).await {
            assert_eq!(fault.next, Move::Wait, "{fault}");
            codes.insert(fault.code);
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(codes.contains("P0906"), "{codes:?}");
    let redis = within(starting).await.unwrap();
    holds(&store, &me, &records).await;
    drop(redis);
}
