//! Once per delivery id, once per business id, whoever else writes.

use bytes::Bytes;
use potok_core::Batch;
use serde_json::json;

use crate::order::{config, message, order, orders_config};
use crate::place::{System, TestDatabase, outcomes};

on_all!(
    the_same_delivery_id_is_a_duplicate_whatever_it_says_now,
    the_same_bytes_under_one_id_are_a_duplicate_other_bytes_are_a_conflict,
    what_counts_is_the_source_not_the_value,
    without_once_by_only_positions_count,
    the_same_name_twice_in_one_call_is_one_row,
    ids_of_several_fields_and_of_no_field,
    two_processes_write_the_same_ids_at_once,
    two_processes_write_different_orders_under_one_id,
    a_call_cancelled_at_any_moment_may_be_made_again,
    rows_of_others_are_a_conflict_and_say_so,
    a_large_batch_of_duplicates_is_dropped,
);

async fn the_same_delivery_id_is_a_duplicate_whatever_it_says_now(system: System) {
    let place = TestDatabase::orders(system).await;
    assert_eq!(place.deliver(vec![message(1, &order("u1"))]).await, ["delivered"]);
    // As after a lost answer; then as after a change of an expression or of `once_by`.
    assert_eq!(place.deliver(vec![message(1, &order("u1"))]).await, ["duplicates"]);
    let mut other = order("u1");
    other["sm_id"] = json!(1);
    assert_eq!(place.deliver(vec![message(1, &other)]).await, ["duplicates"]);
    assert_eq!(place.deliver(vec![message(1, &order("u2"))]).await, ["duplicates"]);
    assert_eq!((place.count("orders"), place.count("items")), (1, 2));
}

async fn the_same_bytes_under_one_id_are_a_duplicate_other_bytes_are_a_conflict(system: System) {
    let place = TestDatabase::orders(system).await;
    let mut other = order("u1");
    other["sm_id"] = json!(1);
    let batch = vec![
        message(9, &order("u0")),
        message(1, &order("u1")),
        message(2, &order("u1")),
        message(3, &other),
    ];
    let words = place.deliver(batch).await;
    assert_eq!(words[..3], ["delivered", "delivered", "duplicates"]);
    assert_eq!(
        words[3],
        "SetAside conflict: [P0309] order_uid `u1` of orders/0/3@0000000000000007/0/0 is already \
         there with other content, from orders/0/1@0000000000000007/0/0"
    );
    assert_eq!(place.query("SELECT sm_id FROM orders WHERE order_uid = 'u1'"), ["99"]);
    assert_eq!((place.count("orders"), place.count("items")), (2, 4));
    // A second attempt of the loser is as much a conflict as the first.
    assert!(place.deliver(vec![message(3, &other)]).await[0].starts_with("SetAside conflict"));
}

async fn what_counts_is_the_source_not_the_value(system: System) {
    let place = TestDatabase::orders(system).await;
    let first = message(1, &order("u1"));
    let mut rewritten = message(2, &order("u1"));
    rewritten.value = Bytes::from(serde_json::to_vec_pretty(&order("u1")).unwrap());
    let mut spaced = message(3, &order("u1"));
    spaced.source = Bytes::from(serde_json::to_vec_pretty(&order("u1")).unwrap());
    let words = place.deliver(vec![first, rewritten, spaced]).await;
    assert_eq!(words[..2], ["delivered", "duplicates"]);
    assert!(words[2].starts_with("SetAside conflict"), "{words:?}");
}

async fn without_once_by_only_positions_count(system: System) {
    let schema = json!({ "properties": {
        "a": { "type": "string" }, "parts": { "items": { "properties": { "n": { "type": "integer" } } } }
    } });
    let rows = &[("t", "."), ("parts", ".parts[]")];
    let place = TestDatabase::made_by(system, "", config(rows, &[], Some(schema)));
    let value = json!({ "a": "x", "parts": [{ "n": 1 }, { "n": 2 }] });
    let batch = vec![message(1, &value), message(2, &value)];
    assert_eq!(place.deliver(batch).await, ["delivered", "delivered"]);
    assert_eq!(place.deliver(vec![message(2, &value)]).await, ["duplicates"]);
    assert_eq!((place.count("t"), place.count("parts")), (2, 4));
}

async fn the_same_name_twice_in_one_call_is_one_row(system: System) {
    let place = TestDatabase::orders(system).await;
    let batch = vec![message(1, &order("b")), message(2, &order("c")), message(1, &order("a"))];
    assert_eq!(place.deliver(batch).await, ["delivered", "delivered", "duplicates"]);
    assert_eq!(place.query("SELECT order_uid FROM orders ORDER BY 1"), ["b", "c"]);
}

async fn ids_of_several_fields_and_of_no_field(system: System) {
    let schema = json!({ "properties": {
        "a": { "type": "string" }, "b": { "type": "integer" }, "c": { "type": "number" },
        "d": { "type": "boolean" }
    } });
    let ids = &[".a", ".b", ".c", ".d"];
    let place = TestDatabase::made_by(system, "", config(&[("t", ".")], ids, Some(schema.clone())));
    let value = |b: i64| json!({ "a": "x", "b": b, "c": 0.1, "d": true });
    let batch = vec![
        message(1, &value(1)),
        message(2, &value(2)),
        message(3, &json!({ "b": 1, "a": "x", "d": true, "c": 0.1 })),
        message(4, &json!({ "a": "x" })),
    ];
    let words = place.deliver(batch).await;
    assert_eq!(words[..2], ["delivered", "delivered"]);
    assert!(words[2].contains("a, b, c, d `x`, `1`, `0.1`, `1` of orders/0/3"), "{words:?}");
    assert!(words[3].starts_with("SetAside no_key"), "{words:?}");

    let place =
        TestDatabase::made_by(system, "", config(&[("t", ".")], &["header.id"], Some(schema)));
    let with_id = |offset, once: &'static [u8]| {
        let mut message = message(offset, &value(1));
        message.once = Some(Bytes::from_static(once));
        message
    };
    let batch = vec![with_id(1, b"i"), with_id(2, b"j"), with_id(3, b"i"), with_id(4, b"\xff")];
    let words = place.deliver(batch).await;
    assert_eq!(words[..3], ["delivered", "delivered", "duplicates"]);
    assert!(words[3].contains("not UTF-8"), "{words:?}");
    assert_eq!(place.query("SELECT once_id FROM t ORDER BY 1"), ["i", "j"]);
}

/// Four lanes in two sinks, as two replicas would be: each order in two of them, in opposite
/// orders. Whoever comes first delivers, the other waits for it and sees a repeat.
async fn two_processes_write_the_same_ids_at_once(system: System) {
    const ORDERS: u64 = 300;
    let place = TestDatabase::orders(system).await;
    let other = system.sink(&place.url, orders_config());
    let lane = |lane: u64| {
        let sink = if lane < 2 { place.sink.clone() } else { other.clone() };
        async move {
            let mut counts = (0, 0);
            for first in (0..ORDERS).step_by(50) {
                let mut batch: Vec<_> = (first..first + 50)
                    .map(|n| {
                        let uid = format!("u{}", (lane % 2) * ORDERS + n);
                        message(lane * ORDERS + n, &order(&uid))
                    })
                    .collect();
                if lane >= 2 {
                    batch.reverse();
                }
                for word in outcomes(&sink, batch).await {
                    match word.as_str() {
                        "delivered" => counts.0 += 1,
                        "duplicates" => counts.1 += 1,
                        other => panic!("{other}"),
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
    assert_eq!(sum, (2 * ORDERS, 2 * ORDERS));
    assert_eq!(place.count("orders"), 600);
    assert_eq!((place.count("deliveries"), place.count("items")), (600, 1200));
}

async fn two_processes_write_different_orders_under_one_id(system: System) {
    let place = TestDatabase::orders(system).await;
    let other = system.sink(&place.url, orders_config());
    for round in 0..20 {
        let uid = format!("u{round}");
        let mut second = order(&uid);
        second["sm_id"] = json!(1);
        let one = outcomes(&place.sink, vec![message(round * 2, &order(&uid))]);
        let two = outcomes(&other, vec![message(round * 2 + 1, &second)]);
        let (one, two) = tokio::join!(one, two);
        let mut words = [one[0].clone(), two[0].clone()];
        words.sort_by_key(|word| word != "delivered");
        assert_eq!(words[0], "delivered");
        assert!(words[1].starts_with("SetAside conflict"), "{words:?}");
    }
    assert_eq!((place.count("orders"), place.count("items")), (20, 40));
}

async fn a_call_cancelled_at_any_moment_may_be_made_again(system: System) {
    let place = TestDatabase::orders(system).await;
    for offset in 0..40 {
        let batch = Batch { messages: vec![message(offset, &order(&format!("u{offset}")))] };
        tokio::select! {
            biased;
            _ = place.sink.deliver(&batch) => {}
            () = async { for _ in 0..offset * 3 { tokio::task::yield_now().await } } => {}
        }
        let word = place.deliver(batch.messages).await.remove(0);
        assert!(word == "delivered" || word == "duplicates", "{word}");
    }
    assert_eq!((place.count("orders"), place.count("items")), (40, 80));
}

async fn rows_of_others_are_a_conflict_and_say_so(system: System) {
    let place = TestDatabase::orders(system).await;
    place.query(
        "INSERT INTO orders (order_uid, track_number, locale, date_created, sm_id, content_hash, \
         potok_id) VALUES ('u1', '', '', '', 0, '', 'by hand')",
    );
    let word = place.deliver(vec![message(1, &order("u1"))]).await.remove(0);
    assert!(word.contains("conflict") && word.contains("from by hand"), "{word}");
}

async fn a_large_batch_of_duplicates_is_dropped(system: System) {
    let place = TestDatabase::orders(system).await;
    let all = |from: u64| -> Vec<_> {
        (0..1_000).map(|n| message(from + n, &order(&format!("u{n}")))).collect()
    };
    assert!(place.deliver(all(0)).await.iter().all(|word| word == "delivered"));
    assert!(place.deliver(all(0)).await.iter().all(|word| word == "duplicates"));
    assert!(place.deliver(all(500)).await.iter().all(|word| word == "duplicates"));
    // Some new ones between the old ones.
    let batch: Vec<_> =
        (0..1_000).map(|n| message(9_000 + n, &order(&format!("u{}", n * 2)))).collect();
    let words = place.deliver(batch).await;
    let delivered = words.iter().filter(|word| *word == "delivered").count();
    let duplicates = words.iter().filter(|word| *word == "duplicates").count();
    assert_eq!((delivered, duplicates), (500, 500));
    assert_eq!((place.count("orders"), place.count("items")), (1_500, 3_000));
}
