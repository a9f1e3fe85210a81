//! Once per delivery id, once per business id.

use std::sync::Arc;

use bytes::Bytes;
use potok_connectors::sqlite::SqliteSink;
use potok_core::{Batch, Sink as _};
use serde_json::json;

use crate::order::{RowPlace, config, message, order, orders_config, outcomes};

#[tokio::test]
async fn the_same_delivery_id_is_a_duplicate_whatever_it_says_now() {
    let place = RowPlace::orders().await;
    assert_eq!(place.deliver(vec![message(1, &order("u1"))]).await, ["delivered"]);
    // As after a lost answer; then as after a change of an expression or of `once_by`.
    assert_eq!(place.deliver(vec![message(1, &order("u1"))]).await, ["duplicates"]);
    let mut other = order("u1");
    other["sm_id"] = json!(1);
    assert_eq!(place.deliver(vec![message(1, &other)]).await, ["duplicates"]);
    assert_eq!(place.deliver(vec![message(1, &order("u2"))]).await, ["duplicates"]);
    assert_eq!((place.count("orders"), place.count("items")), (1, 2));
}

#[tokio::test]
async fn the_same_bytes_under_one_id_are_a_duplicate_other_bytes_are_a_conflict() {
    let place = RowPlace::orders().await;
    let mut other = order("u1");
    other["sm_id"] = json!(1);
    let batch = vec![message(1, &order("u1")), message(2, &order("u1")), message(3, &other)];
    let outcomes = place.deliver(batch).await;
    assert_eq!(outcomes[..2], ["delivered", "duplicates"]);
    assert_eq!(
        outcomes[2],
        "SetAside conflict: [P0309] order_uid `u1` of orders/0/3@0000000000000007/0/0 is already \
         there with other content, from orders/0/1@0000000000000007/0/0"
    );
    assert_eq!(place.query("SELECT sm_id FROM orders"), ["99"]);
    assert_eq!((place.count("orders"), place.count("items")), (1, 2));
    // A second attempt of the loser is as much a conflict as the first.
    assert!(place.deliver(vec![message(3, &other)]).await[0].starts_with("SetAside conflict"));
}

#[tokio::test]
async fn what_counts_is_the_source_not_the_value() {
    let place = RowPlace::orders().await;
    let first = message(1, &order("u1"));
    let mut rewritten = message(2, &order("u1"));
    rewritten.value = Bytes::from(serde_json::to_vec_pretty(&order("u1")).unwrap());
    let mut spaced = message(3, &order("u1"));
    spaced.source = Bytes::from(serde_json::to_vec_pretty(&order("u1")).unwrap());
    let outcomes = place.deliver(vec![first, rewritten, spaced]).await;
    assert_eq!(outcomes[..2], ["delivered", "duplicates"]);
    assert!(outcomes[2].starts_with("SetAside conflict"), "{outcomes:?}");
}

#[tokio::test]
async fn without_once_by_only_positions_count() {
    let schema = json!({ "properties": { "a": { "type": "string" } } });
    let place = RowPlace::made_by("", config(&[("t", ".")], &[], Some(schema)));
    let value = json!({ "a": "x" });
    let batch = vec![message(1, &value), message(2, &value), message(1, &value)];
    assert_eq!(place.deliver(batch).await, ["delivered", "delivered", "duplicates"]);
    assert_eq!(place.count("t"), 2);
}

#[tokio::test]
async fn ids_of_several_fields_and_of_no_field() {
    let schema = json!({ "properties": { "a": { "type": "string" }, "b": { "type": "integer" } } });
    let both = RowPlace::made_by("", config(&[("t", ".")], &[".a", ".b"], Some(schema.clone())));
    let batch = vec![
        message(1, &json!({ "a": "x", "b": 1 })),
        message(2, &json!({ "a": "x", "b": 2 })),
        message(3, &json!({ "b": 1, "a": "x" })),
        message(4, &json!({ "a": "x" })),
    ];
    let outcomes = both.deliver(batch).await;
    assert_eq!(outcomes[..2], ["delivered", "delivered"]);
    assert!(outcomes[2].contains("a, b `x`, `1` of orders/0/3"), "{outcomes:?}");
    assert!(outcomes[3].starts_with("SetAside no_key"), "{outcomes:?}");

    let header = RowPlace::made_by("", config(&[("t", ".")], &["header.id"], Some(schema)));
    let with_id = |offset, once: &'static [u8]| {
        let mut message = message(offset, &json!({ "a": "x", "b": 1 }));
        message.once = Some(Bytes::from_static(once));
        message
    };
    let batch = vec![with_id(1, b"i"), with_id(2, b"j"), with_id(3, b"i"), with_id(4, b"\xff")];
    let outcomes = header.deliver(batch).await;
    assert_eq!(outcomes[..3], ["delivered", "delivered", "duplicates"]);
    assert!(outcomes[3].contains("not UTF-8"), "{outcomes:?}");
    assert_eq!(header.query("SELECT once_id FROM t ORDER BY 1"), ["'i'", "'j'"]);
}

/// Four lanes at once, each order in two of them and each lane's batches twice: whoever comes
/// first delivers, the others see a repeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_lanes_share_one_writer() {
    const ORDERS: u64 = 400;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("orders.sqlite");
    let sink = Arc::new(SqliteSink::new(path.clone(), orders_config()).unwrap());
    sink.prepare().await.unwrap();
    // Another pipeline of this process on the same file.
    let other = Arc::new(SqliteSink::new(path.clone(), orders_config()).unwrap());
    let lane = |lane: u64| {
        let sink = if lane < 3 { sink.clone() } else { other.clone() };
        async move {
            let mut counts = (0, 0);
            for _ in 0..2 {
                for first in (0..ORDERS).step_by(50) {
                    let uid = |n: u64| format!("u{}", (lane / 2) * ORDERS + n);
                    let batch = (first..first + 50)
                        .map(|n| message(lane * ORDERS + n, &order(&uid(n))))
                        .collect();
                    for outcome in outcomes(&sink, batch).await {
                        match outcome.as_str() {
                            "delivered" => counts.0 += 1,
                            "duplicates" => counts.1 += 1,
                            other => panic!("{other}"),
                        }
                    }
                }
            }
            counts
        }
    };
    let lanes: Vec<_> = (0..4).map(|n| tokio::spawn(lane(n))).collect();
    let mut sum = (0, 0);
    for lane in lanes {
        let (delivered, duplicates) = lane.await.unwrap();
        sum = (sum.0 + delivered, sum.1 + duplicates);
    }
    assert_eq!(sum, (2 * ORDERS, 6 * ORDERS));
    let rows = |sql: &str| crate::order::query(&path, sql);
    assert_eq!(rows("SELECT count(*), count(DISTINCT order_uid) FROM orders"), ["800, 800"]);
    assert_eq!(rows("SELECT count(*) FROM items"), ["1600"]);
}

#[tokio::test]
async fn a_call_cancelled_at_any_moment_may_be_made_again() {
    let place = RowPlace::orders().await;
    for offset in 0..50 {
        let batch = Batch { messages: vec![message(offset, &order(&format!("u{offset}")))] };
        tokio::select! {
            biased;
            _ = place.sink.deliver(&batch) => {}
            () = async { for _ in 0..offset % 5 { tokio::task::yield_now().await } } => {}
        }
        let outcome = place.deliver(batch.messages).await.remove(0);
        assert!(outcome == "delivered" || outcome == "duplicates", "{outcome}");
    }
    assert_eq!((place.count("orders"), place.count("items")), (50, 100));
}

#[tokio::test]
async fn rows_of_others_are_a_conflict_and_say_so() {
    let place = RowPlace::orders().await;
    rusqlite::Connection::open(&place.path)
        .unwrap()
        .execute_batch(
            "INSERT INTO orders (order_uid, track_number, locale, date_created, sm_id, \
             content_hash, potok_id) VALUES ('u1', '', '', '', 0, '', 'by hand')",
        )
        .unwrap();
    let outcome = place.deliver(vec![message(1, &order("u1"))]).await.remove(0);
    assert!(outcome.contains("conflict") && outcome.contains("from by hand"), "{outcome}");
}
