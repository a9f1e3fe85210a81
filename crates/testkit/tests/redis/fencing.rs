//! Who may write.

use potok_connectors::redis::KeyStyle;
use potok_core::{Move, Owner, Store};

use crate::place::{batch, contents, events, held, holds, is, keys, owner, places, server, store};

on_both!(
    a_fenced_owner_changes_nothing,
    a_call_that_arrives_late_changes_nothing,
    an_emptied_server_is_noticed_at_the_next_call,
    an_empty_restart_is_noticed_at_the_next_call,
    shares_that_are_no_more_leave_nothing,
);

async fn a_fenced_owner_changes_nothing(style: KeyStyle) {
    let redis = server(&[]);
    // Each has a connection of its own, as two processes would.
    let (old, new) = (store(&redis.url(), style), store(&redis.url(), style));
    let records = events(0..10);
    old.own(&owner(u64::MAX)).await.unwrap();
    old.put(&owner(u64::MAX), &records).await.unwrap();
    new.own(&owner(u64::MAX - 1)).await.unwrap();
    new.put(&owner(u64::MAX - 1), &records[..5]).await.unwrap();
    let before = contents(&redis);
    refused(&old, &owner(u64::MAX)).await;
    assert!(contents(&redis) == before, "a fenced owner has written");
    holds(&new, &owner(u64::MAX - 1), &records[..5]).await;
}

/// Every call is refused, and the engine is told to read again.
async fn refused(store: &impl Store, owner: &Owner) {
    let records = events(0..10);
    let all = places(&records);
    is(&store.put(owner, &records).await.unwrap_err(), Move::Retry, "P0907");
    is(&store.put(owner, &[]).await.unwrap_err(), Move::Retry, "P0907");
    is(&store.close(owner, &batch()).await.unwrap_err(), Move::Retry, "P0907");
    is(&store.clean(owner, &all).await.unwrap_err(), Move::Retry, "P0907");
    is(&store.load(owner, &all).await.unwrap_err(), Move::Retry, "P0907");
}

async fn an_emptied_server_is_noticed_at_the_next_call(style: KeyStyle) {
    let redis = server(&[]);
    let store = store(&redis.url(), style);
    let records = events(0..10);
    store.own(&owner(1)).await.unwrap();
    store.put(&owner(1), &records).await.unwrap();
    redis.command(&["FLUSHALL"]);
    refused(&store, &owner(1)).await;
    assert_eq!(contents(&redis), []);
    store.own(&owner(1)).await.unwrap();
    store.put(&owner(1), &records).await.unwrap();
    holds(&store, &owner(1), &records).await;
}

async fn an_empty_restart_is_noticed_at_the_next_call(style: KeyStyle) {
    let redis = server(&[("appendonly", "no")]);
    let store = store(&redis.url(), style);
    let records = events(0..10);
    store.own(&owner(1)).await.unwrap();
    store.put(&owner(1), &records).await.unwrap();
    redis.kill();
    redis.restart();
    refused(&store, &owner(1)).await;
    store.own(&owner(2)).await.unwrap();
    store.put(&owner(2), &records).await.unwrap();
    holds(&store, &owner(2), &records).await;
}

/// A network that was cut may deliver what it had taken long after the caller has given it up and
/// made the call again.
async fn a_call_that_arrives_late_changes_nothing(style: KeyStyle) {
    let redis = server(&[]);
    let (calls, late) = (store(&redis.url(), style), store(&redis.url(), style));
    let records = events(0..10);
    let me = owner(1);
    calls.own(&me).await.unwrap();
    calls.put(&me, &records).await.unwrap();
    calls.put(&me, &records).await.unwrap();
    calls.clean(&me, &places(&records)).await.unwrap();
    let before = contents(&redis);
    // It has made no calls yet: its first numbers lie behind.
    is(&late.put(&me, &records).await.unwrap_err(), Move::Retry, "P0907");
    is(&late.close(&me, &batch()).await.unwrap_err(), Move::Retry, "P0907");
    assert!(contents(&redis) == before, "the past has come back");
    calls.put(&me, &records).await.unwrap();
    holds(&calls, &me, &records).await;
}

/// A pipeline has fewer lanes than it had.
async fn shares_that_are_no_more_leave_nothing(style: KeyStyle) {
    let redis = server(&[]);
    let store = store(&redis.url(), style);
    let of = |share| Owner { share, ..owner(1) };
    let records = |share: u32| {
        let one = |n| held(&format!("group {share}"), None, None, n, "value");
        (0..3).map(one).collect::<Vec<_>>()
    };
    let mut of_two = Vec::new();
    for share in 0..4 {
        store.own(&of(share)).await.unwrap();
        store.put(&of(share), &records(share)).await.unwrap();
        if share == 1 {
            of_two = keys(&redis);
        }
    }
    store.own_no_more(&of(0), 2).await.unwrap();
    assert_eq!(keys(&redis), of_two);
    for share in 0..2 {
        holds(&store, &of(share), &records(share)).await;
    }
    is(&store.put(&of(2), &records(2)).await.unwrap_err(), Move::Retry, "P0907");
}
