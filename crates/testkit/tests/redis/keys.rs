//! What lies in Redis while groups are open, and that nothing stays behind.

use potok_connectors::redis::KeyStyle;
use potok_core::{Move, Store, StoreEntry};

use crate::place::{
    BATCH, batch, events, held, holds, is, keys, owner, owner_key, places, server, store, within,
};

on_both!(
    a_large_group_comes_and_goes,
    large_bodies_come_in_several_answers,
    nothing_has_a_time_to_live_and_nothing_stays_behind,
    taking_a_share_empties_it,
);

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_keys_are_exact() {
    let redis = server(&[]);
    let store = store(&redis.url(), KeyStyle::Readable);
    let me = owner(1);
    store.own(&me).await.unwrap();
    let records = [
        held(BATCH, Some("event"), Some("1001"), 5, r#"{"GlobalEventId":1001}"#),
        held(BATCH, Some("mention"), Some("1001_http://a/b"), 6, r#"{"MentionDocTone":1.5}"#),
        held(BATCH, Some("event"), Some("1002"), 7, "{\"GlobalEventId\": 1002}\n"),
        held("20250323153000", Some("event"), Some("1001"), 8, r#"{"GlobalEventId":1001}"#),
        held("plain", None, None, 9, "no kind, no id"),
    ];
    store.put(&me, &records).await.unwrap();
    let documented = |redis| -> Vec<String> {
        keys(redis).into_iter().filter(|key| !key.starts_with("potok:em:")).collect()
    };
    assert_eq!(
        documented(&redis),
        [
            "active:batches",
            "batch:events:20250323151500",
            "batch:events:20250323153000",
            "batch:mentions:20250323151500",
            "batch:records:plain",
            "batch:start:20250323151500",
            "batch:start:20250323153000",
            "batch:start:plain",
            "data:event:20250323151500:1001",
            "data:event:20250323151500:1002",
            "data:event:20250323153000:1001",
            "data:mention:20250323151500:1001_http://a/b",
            "data:record:plain:in/3/9@0000000000000007",
        ]
    );
    let sorted = |words: &[&str]| -> Vec<String> {
        let mut lines: Vec<_> = redis.command(words).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&["SMEMBERS", "active:batches"]), [BATCH, "20250323153000", "plain"]);
    assert_eq!(redis.command(&["GET", "batch:start:20250323151500"]), "1742742900123");
    assert_eq!(sorted(&["SMEMBERS", "batch:events:20250323151500"]), ["1001", "1002"]);
    assert_eq!(sorted(&["SMEMBERS", "batch:mentions:20250323151500"]), ["1001_http://a/b"]);
    let data = redis.command(&["GET", "data:event:20250323151500:1001"]);
    assert_eq!(data, r#"{"GlobalEventId":1001}"#);
    assert_eq!(redis.command(&["STRLEN", "data:event:20250323151500:1002"]), "24");

    store.close(&me, &batch()).await.unwrap();
    assert_eq!(sorted(&["SMEMBERS", "active:batches"]), ["20250323153000", "plain"]);
    assert_eq!(sorted(&["SMEMBERS", "ready:batches"]), [BATCH]);

    // A batch goes as a whole; the others stay.
    let (gone, left) = records.split_at(3);
    store.clean(&me, &places(gone)).await.unwrap();
    assert!(documented(&redis).iter().all(|key| !key.contains(BATCH) && key != "ready:batches"));
    holds(&store, &me, left).await;
    store.clean(&me, &places(left)).await.unwrap();
    assert_eq!(keys(&redis), [owner_key(KeyStyle::Readable)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_id_replaces_and_the_earlier_can_be_loaded() {
    let redis = server(&[]);
    let store = store(&redis.url(), KeyStyle::Readable);
    let me = owner(1);
    store.own(&me).await.unwrap();
    let version = |offset, value| held(BATCH, Some("event"), Some("1"), offset, value);
    let all = [version(1, "v1"), version(2, "v2"), version(3, "v3")];
    let shown = || redis.command(&["GET", "data:event:20250323151500:1"]);
    for record in &all {
        store.put(&me, std::slice::from_ref(record)).await.unwrap();
    }
    assert_eq!(shown(), "v3");
    holds(&store, &me, &all).await;
    // Read again from the log, an earlier one does not come back over a later.
    store.clean(&me, &places(&all[..1])).await.unwrap();
    store.put(&me, &all).await.unwrap();
    assert_eq!(shown(), "v3");
    holds(&store, &me, &all).await;
    assert_eq!(redis.command(&["SCARD", "batch:events:20250323151500"]), "1");
    store.clean(&me, &places(&all)).await.unwrap();
    assert_eq!(keys(&redis), [owner_key(KeyStyle::Readable)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_write_under_documented_names_is_never_taken_for_a_body() {
    let redis = server(&[]);
    let store = store(&redis.url(), KeyStyle::Readable);
    let me = owner(1);
    store.own(&me).await.unwrap();
    let records = events(1..4);
    let name = "data:event:20250323151500:1";
    redis.command(&["SET", name, "left behind by somebody"]);
    store.put(&me, &records).await.unwrap();
    assert_eq!(redis.command(&["GET", name]), "{\"n\":1}");
    // The name was taken before, so its body lies elsewhere too.
    redis.command(&["SET", name, "x"]);
    holds(&store, &me, &records).await;
    // This one's does not; putting it again mends it, for good.
    for changed in
        [&["SET", "data:event:20250323151500:2", "x"][..], &["DEL", "data:event:20250323151500:2"]]
    {
        redis.command(changed);
        let loaded = store.load(&me, &places(&records[1..2])).await.unwrap();
        if loaded == [None] {
            store.put(&me, &records).await.unwrap();
            assert_eq!(redis.command(&["GET", "data:event:20250323151500:2"]), "{\"n\":2}");
            redis.command(changed);
        }
        holds(&store, &me, &records).await;
    }
    redis.command(&["SET", name, "somebody's again"]);
    store.clean(&me, &places(&records)).await.unwrap();
    // What is not ours stays.
    assert_eq!(keys(&redis), [name, &owner_key(KeyStyle::Readable)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_type_stops_the_pipeline_and_says_which() {
    let redis = server(&[]);
    let store = store(&redis.url(), KeyStyle::Readable);
    let me = owner(1);
    store.own(&me).await.unwrap();
    let records = events(1..4);
    for name in ["active:batches", "batch:events:20250323151500", "potok:em:held:3:20250323151500"]
    {
        redis.command(&["LPUSH", name, "x"]);
        let fault = store.put(&me, &records).await.unwrap_err();
        is(&fault, Move::Fix, "P0908");
        assert!(fault.to_string().contains(name), "{fault}");
        redis.command(&["DEL", name]);
    }
    // What stopped half-way is made good by the same call.
    store.put(&me, &records).await.unwrap();
    holds(&store, &me, &records).await;
    assert_eq!(redis.command(&["SMEMBERS", "active:batches"]), BATCH);
    assert_eq!(redis.command(&["SCARD", "batch:events:20250323151500"]), "3");
    store.clean(&me, &places(&records)).await.unwrap();
    assert_eq!(keys(&redis), [owner_key(KeyStyle::Readable)]);
}

async fn a_large_group_comes_and_goes(style: KeyStyle) {
    let redis = server(&[]);
    let store = store(&redis.url(), style);
    let me = owner(1);
    store.own(&me).await.unwrap();
    let body = "x".repeat(1_000);
    let records: Vec<StoreEntry> = (0..5_000)
        .map(|n| {
            let id = format!("{}", n % 4_000);
            held(BATCH, Some("event"), Some(&id), n, &format!("{{\"n\":{n},\"x\":\"{body}\"}}"))
        })
        .collect();
    within(store.put(&me, &records)).await.unwrap();
    within(store.put(&me, &records)).await.unwrap();
    holds(&store, &me, &records).await;
    if style == KeyStyle::Readable {
        assert_eq!(redis.command(&["SCARD", "batch:events:20250323151500"]), "4000");
    }
    store.close(&me, &batch()).await.unwrap();
    let (first, rest) = records.split_at(2_500);
    within(store.clean(&me, &places(first))).await.unwrap();
    holds(&store, &me, rest).await;
    within(store.clean(&me, &places(rest))).await.unwrap();
    assert_eq!(keys(&redis), [owner_key(style)]);
}

async fn large_bodies_come_in_several_answers(style: KeyStyle) {
    let redis = server(&[]);
    let store = store(&redis.url(), style);
    let me = owner(1);
    store.own(&me).await.unwrap();
    // Altogether more than one answer takes.
    let body = "x".repeat(150_000);
    let records: Vec<StoreEntry> = (0..120_u64)
        .map(|n| {
            let group = if n < 5 {
                "few"
            } else if n < 25 {
                "some"
            } else {
                "many"
            };
            held(group, Some("event"), Some(&n.to_string()), n + 1, &format!("{n}{body}"))
        })
        .collect();
    within(store.put(&me, &records)).await.unwrap();
    holds(&store, &me, &records).await;
    // One of them larger than an answer.
    let huge = [held("few", Some("event"), Some("huge"), 1_000, &"y".repeat(5 << 20))];
    within(store.put(&me, &huge)).await.unwrap();
    holds(&store, &me, &[&records[..3], &huge, &records[3..]].concat()).await;
    within(store.clean(&me, &places(&[&records[..], &huge].concat()))).await.unwrap();
    assert_eq!(keys(&redis), [owner_key(style)]);
}

async fn nothing_has_a_time_to_live_and_nothing_stays_behind(style: KeyStyle) {
    let redis = server(&[]);
    let store = store(&redis.url(), style);
    let me = owner(1);
    store.own(&me).await.unwrap();
    // Names that run together, and ones of no kind and no id.
    let mut records = events(0..20);
    for (n, (group, id)) in
        [("a", "b:c"), ("a:b", "c"), ("a:b:c", ""), ("", "a")].into_iter().enumerate()
    {
        records.push(held(group, None, Some(id), 100 + n as u64, &format!("value {n}")));
        records.push(held(group, Some("event"), None, 200 + n as u64, &format!("value {n}")));
    }
    store.put(&me, &records).await.unwrap();
    for key in keys(&redis) {
        assert_eq!(redis.command(&["PTTL", &key]), "-1", "{key}");
    }
    holds(&store, &me, &records).await;
    // In another order than they came.
    records.rotate_left(7);
    for record in &records {
        store.clean(&me, &places(std::slice::from_ref(record))).await.unwrap();
    }
    assert_eq!(keys(&redis), [owner_key(style)]);
}

async fn taking_a_share_empties_it(style: KeyStyle) {
    let redis = server(&[]);
    let store = store(&redis.url(), style);
    let mut other = owner(9);
    other.share = 4;
    store.own(&other).await.unwrap();
    let elsewhere = [held("elsewhere", Some("event"), Some("1"), 1, "stays")];
    store.put(&other, &elsewhere).await.unwrap();
    let before = keys(&redis);

    store.own(&owner(1)).await.unwrap();
    let mut records = events(0..2_500);
    for n in 0..1_500 {
        records.push(held(&format!("group {n}"), Some("event"), Some("1"), 10_000 + n, "small"));
    }
    within(store.put(&owner(1), &records)).await.unwrap();
    store.close(&owner(1), &batch()).await.unwrap();
    within(store.own(&owner(2))).await.unwrap();
    let mut expected = before;
    expected.push(owner_key(style));
    expected.sort();
    let left = keys(&redis);
    assert!(left == expected, "{} keys instead of {}", left.len(), expected.len());
    holds(&store, &other, &elsewhere).await;
    within(store.put(&owner(2), &records)).await.unwrap();
    holds(&store, &owner(2), &records).await;
}
