//! Records the tables do not take: set aside alone, leaving nothing behind.

use potok_core::{Batch, Move, Sink as _};
use rusqlite::Connection;
use serde_json::json;

use crate::order::{RowPlace, config, message, order, orders_config};

fn ids() -> potok_connectors::sql::SqlSinkConfig {
    config(&[("t", "."), ("parts", ".parts[]")], &[".id"], None)
}

const TABLES: &str = "CREATE TABLE t (id TEXT PRIMARY KEY, n INTEGER CHECK (n < 100), \
     email TEXT UNIQUE, content_hash TEXT, potok_id TEXT UNIQUE);\
     CREATE TABLE parts (id TEXT, element INTEGER, size INTEGER CHECK (size > 0), \
     shop INTEGER REFERENCES shops (id));\
     CREATE TABLE shops (id INTEGER PRIMARY KEY); INSERT INTO shops VALUES (1);";

#[tokio::test]
async fn a_violated_constraint_costs_one_record() {
    let place = RowPlace::made_by(TABLES, ids());
    let part = |size: i64, shop: i64| json!({ "size": size, "shop": shop });
    let values = [
        json!({ "id": "a", "n": 1, "email": "a@x", "parts": [part(1, 1)] }),
        json!({ "id": "b", "n": 100, "parts": [part(1, 1)] }),
        json!({ "id": "c", "n": 1, "parts": [part(1, 1), part(0, 1)] }),
        json!({ "id": "d", "n": 1, "parts": [part(1, 1), part(1, 2)] }),
        json!({ "id": "e", "n": 1, "email": "a@x", "parts": [part(1, 1)] }),
        json!({ "id": "f", "n": 1, "email": "f@x", "parts": [part(1, 1)] }),
        json!({ "id": "a", "n": 2, "parts": [part(1, 1)] }),
    ];
    let batch = (0..).zip(&values).map(|(offset, value)| message(offset, value)).collect();
    let outcomes = place.deliver(batch).await;
    assert_eq!((outcomes[0].as_str(), outcomes[5].as_str()), ("delivered", "delivered"));
    for (at, part) in [
        (1, "SetAside refused: [P0307] the database refused the record: CHECK constraint failed"),
        (2, "CHECK constraint failed: size > 0"),
        (3, "FOREIGN KEY constraint failed"),
        (4, "neither its id nor its delivery id is there"),
        (6, "SetAside conflict: [P0309] id `a` of orders/0/6"),
    ] {
        assert!(outcomes[at].contains(part), "{}", outcomes[at]);
    }
    assert_eq!(place.query("SELECT id FROM t ORDER BY id"), ["'a'", "'f'"]);
    assert_eq!(place.query("SELECT id FROM parts ORDER BY id"), ["'a'", "'f'"]);
}

#[tokio::test]
async fn a_trigger_that_ends_the_transaction_costs_one_record_too() {
    let triggers = "CREATE TRIGGER no BEFORE INSERT ON t WHEN new.n = 13 \
         BEGIN SELECT RAISE(ROLLBACK, 'not thirteen'); END;\
         CREATE TRIGGER quiet BEFORE INSERT ON t WHEN new.n = 14 \
         BEGIN SELECT RAISE(IGNORE); END;";
    let place = RowPlace::made_by(&format!("{TABLES}{triggers}"), ids());
    let batch = (0..8_u64)
        .map(|n| message(n, &json!({ "id": n.to_string(), "n": if n % 3 == 1 { 13 } else { 1 } })))
        .chain([message(8, &json!({ "id": "8", "n": 14 }))])
        .collect();
    let outcomes = place.deliver(batch).await;
    for (at, outcome) in outcomes.iter().enumerate() {
        match at {
            1 | 4 | 7 => assert!(outcome.contains("not thirteen"), "{outcome}"),
            8 => assert!(outcome.contains("neither its id nor its delivery id"), "{outcome}"),
            _ => assert_eq!(outcome, "delivered"),
        }
    }
    assert_eq!(place.query("SELECT id FROM t ORDER BY id"), ["'0'", "'2'", "'3'", "'5'", "'6'"]);
}

#[tokio::test]
async fn fields_without_a_column_are_refused_not_dropped() {
    let place = RowPlace::orders().await;
    let mut more = order("u2");
    more["gift"] = json!(true);
    let outcomes = place.deliver(vec![message(1, &order("u1")), message(2, &more)]).await;
    assert_eq!(outcomes[0], "delivered");
    assert!(outcomes[1].contains("table `orders`: the field `gift` has no column"), "{outcomes:?}");
}

#[tokio::test]
async fn tables_that_change_while_running_stop_the_pipeline_and_lose_nothing() {
    let place = RowPlace::orders().await;
    assert_eq!(place.deliver(vec![message(1, &order("u1"))]).await, ["delivered"]);
    let change = |sql: &str| Connection::open(&place.path).unwrap().execute_batch(sql).unwrap();

    change("ALTER TABLE items RENAME COLUMN price TO cost");
    let batch = Batch { messages: vec![message(2, &order("u2"))] };
    let fault = place.sink.deliver(&batch).await.unwrap_err();
    assert_eq!((fault.next, fault.code), (Move::Fix, "P0301"), "{fault}");
    assert!(fault.to_string().contains("ALTER TABLE \"items\" ADD COLUMN \"price\" INTEGER"));
    assert_eq!(place.count("orders"), 1);
    change("ALTER TABLE items RENAME COLUMN cost TO price");
    assert_eq!(place.deliver(batch.messages.clone()).await, ["delivered"]);

    change("DROP TABLE items");
    let batch = Batch { messages: vec![message(3, &order("u3"))] };
    let fault = place.sink.deliver(&batch).await.unwrap_err();
    assert_eq!((fault.next, fault.code), (Move::Fix, "P0301"), "{fault}");
    assert!(fault.to_string().contains("CREATE TABLE IF NOT EXISTS \"items\""), "{fault}");
    // `potok resume` prepares again, which creates it.
    place.sink.prepare().await.unwrap();
    assert_eq!(place.deliver(batch.messages).await, ["delivered"]);
}

/// A call whose tables are wrong takes no other call of the same file with it.
#[tokio::test]
async fn wrong_tables_of_one_pipeline_do_not_touch_another() {
    let place = RowPlace::made_by(TABLES, ids());
    let orders =
        potok_connectors::sqlite::SqliteSink::new(place.path.clone(), orders_config()).unwrap();
    orders.prepare().await.unwrap();
    place.sink.prepare().await.unwrap();
    Connection::open(&place.path).unwrap().execute_batch("DROP TABLE parts").unwrap();
    for n in 0..20 {
        let good = Batch { messages: vec![message(n, &order(&n.to_string()))] };
        let bad = Batch { messages: vec![message(n, &json!({ "id": "x", "parts": [{}] }))] };
        let (bad, good) = tokio::join!(place.sink.deliver(&bad), orders.deliver(&good));
        assert_eq!(bad.unwrap_err().next, Move::Fix);
        good.unwrap();
    }
    assert_eq!((place.count("t"), place.count("orders")), (0, 20));
}
