//! What an operator has to mend, and what mends itself at once.

use potok_connectors::redis::KeyStyle;
use potok_core::{Move, Store};

use crate::place::{batch, events, holds, is, owner, places, server, store};

on_both!(
    forgotten_scripts_are_sent_again_at_once,
    without_the_right_login_nothing_works,
    missing_commands_and_databases_are_named,
);

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_may_throw_keys_away_is_known() {
    let redis = server(&[]);
    let store = store(&redis.url(), KeyStyle::Packed);
    let set = |name: &str, value: &str| redis.command(&["CONFIG", "SET", name, value]);
    assert_eq!(store.evicts().await, None);
    // With as much memory as it likes it throws nothing away.
    set("maxmemory-policy", "allkeys-lru");
    assert_eq!(store.evicts().await, None);
    set("maxmemory", "100mb");
    assert_eq!(store.evicts().await.as_deref(), Some("allkeys-lru"));
    set("maxmemory-policy", "noeviction");
    assert_eq!(store.evicts().await, None);
    // One that does not say is taken as it is.
    redis.command(&["ACL", "SETUSER", "default", "-info"]);
    set("maxmemory-policy", "volatile-ttl");
    assert_eq!(store.evicts().await, None);
    store.own(&owner(1)).await.unwrap();
}

async fn forgotten_scripts_are_sent_again_at_once(style: KeyStyle) {
    let redis = server(&[]);
    let store = store(&redis.url(), style);
    let me = owner(1);
    let forget = || redis.command(&["SCRIPT", "FLUSH"]);
    for _ in 0..2 {
        forget();
        store.own(&me).await.unwrap();
        forget();
        store.put(&me, &events(0..3)).await.unwrap();
        forget();
        store.close(&me, &batch()).await.unwrap();
        forget();
        holds(&store, &me, &events(0..3)).await;
        forget();
        store.clean(&me, &places(&events(0..3))).await.unwrap();
    }
}

async fn without_the_right_login_nothing_works(style: KeyStyle) {
    let redis = server(&[]);
    let url = |login: &str| format!("redis://{login}127.0.0.1:{}", redis.port());
    redis
        .command(&["ACL", "SETUSER", "limited", "on", ">p@ss", "~*", "+@all", "-eval", "-evalsha"]);
    redis.command(&["ACL", "SETUSER", "keyless", "on", ">p@ss", "~other:*", "+@all"]);
    redis.command(&[
        "ACL",
        "SETUSER",
        "potok",
        "on",
        ">p@ss",
        "~*",
        "+@all",
        "-@admin",
        "-@dangerous",
    ]);
    redis.command(&["CONFIG", "SET", "requirepass", "secret"]);
    for login in ["", ":wrong@", "potok:wrong@", "nobody:p%40ss@"] {
        let store = store(&url(login), style);
        let fault = store.ping().await.unwrap_err();
        is(&fault, Move::Fix, "P0902");
        assert!(!fault.to_string().contains("wrong"), "{fault}");
        is(&store.own(&owner(1)).await.unwrap_err(), Move::Fix, "P0902");
        is(&store.put(&owner(1), &[]).await.unwrap_err(), Move::Fix, "P0902");
    }
    let limited = store(&url("limited:p%40ss@"), style);
    is(&limited.own(&owner(1)).await.unwrap_err(), Move::Fix, "P0902");
    is(&limited.put(&owner(1), &events(0..3)).await.unwrap_err(), Move::Fix, "P0902");
    let keyless = store(&url("keyless:p%40ss@"), style);
    is(&keyless.own(&owner(1)).await.unwrap_err(), Move::Fix, "P0902");
    for login in [":secret@", "default:secret@", "potok:p%40ss@"] {
        let store = store(&url(login), style);
        store.ping().await.unwrap();
        store.own(&owner(1)).await.unwrap();
        store.put(&owner(1), &events(0..3)).await.unwrap();
        holds(&store, &owner(1), &events(0..3)).await;
        store.clean(&owner(1), &places(&events(0..3))).await.unwrap();
    }
}

async fn missing_commands_and_databases_are_named(style: KeyStyle) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("renamed.conf");
    std::fs::write(&file, "rename-command EVALSHA \"\"\n").unwrap();
    let redis = server(&[("include", file.to_str().unwrap())]);
    let lacking = store(&redis.url(), style);
    lacking.ping().await.unwrap();
    is(&lacking.own(&owner(1)).await.unwrap_err(), Move::Fix, "P0910");
    let nowhere = store(&format!("{}/99", redis.url()), style);
    is(&nowhere.ping().await.unwrap_err(), Move::Fix, "P0910");
}
