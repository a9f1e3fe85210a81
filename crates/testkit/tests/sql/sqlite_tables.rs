//! SQLite: tables and values that only it has.

use std::sync::Arc;

use potok_connectors::sqlite::SqliteSink;
use potok_core::{Batch, Move, Sink};
use serde_json::json;

use crate::order::{config, message, order, orders_config};
use crate::place::{System, TestDatabase, outcomes, query_file};
use crate::refusal::{ids, tables};

fn schema() -> serde_json::Value {
    json!({ "required": ["id"], "properties": {
        "id": { "type": "string" }, "n": { "type": "integer" }
    } })
}

#[tokio::test]
async fn more_columns_are_welcome_where_the_database_fills_them() {
    let sql = "CREATE TABLE t (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, n INTEGER, \
         content_hash TEXT, potok_id TEXT UNIQUE, note TEXT, \
         at TEXT NOT NULL DEFAULT (upper('now')), twice INTEGER AS (n * 2))";
    let place =
        TestDatabase::made_by(System::Sqlite, sql, config(&[("t", ".")], &[".id"], Some(schema())));
    assert_eq!(place.deliver(vec![message(1, &json!({ "id": "a", "n": 2 }))]).await, ["delivered"]);
    assert_eq!(place.query("SELECT row, id, note, at, twice FROM t"), ["1, a, NULL, NOW, 4"]);

    // Without a schema the table itself says what it takes.
    let place = TestDatabase::made_by(System::Sqlite, sql, config(&[("t", ".")], &[".id"], None));
    let values = [json!({ "id": "a", "at": "then" }), json!({ "id": "b", "row": 7, "note": null })];
    let batch = (0..).zip(&values).map(|(offset, value)| message(offset, value)).collect();
    assert_eq!(place.deliver(batch).await, ["delivered", "delivered"]);
    assert_eq!(place.query("SELECT row, id, at FROM t ORDER BY id"), ["1, a, then", "7, b, NOW"]);
}

#[tokio::test]
async fn a_table_sqlite_will_not_create_is_the_operators_to_fix() {
    let place = TestDatabase::made_by(
        System::Sqlite,
        "",
        config(&[("sqlite_x", ".")], &[".id"], Some(schema())),
    );
    let fault = place.sink.prepare().await.unwrap_err();
    assert_eq!((fault.next, fault.code), (Move::Fix, "P0302"), "{fault}");
    assert!(fault.to_string().contains("reserved"), "{fault}");
}

#[tokio::test]
async fn a_trigger_that_ends_the_transaction_costs_one_record_too() {
    let triggers = "CREATE TRIGGER no BEFORE INSERT ON t WHEN new.n = 13 \
         BEGIN SELECT RAISE(ROLLBACK, 'not thirteen'); END;\
         CREATE TRIGGER quiet BEFORE INSERT ON t WHEN new.n = 14 \
         BEGIN SELECT RAISE(IGNORE); END;";
    let place = TestDatabase::made_by(
        System::Sqlite,
        &format!("{}{triggers}", tables(System::Sqlite)),
        ids(),
    );
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
    assert_eq!(place.query("SELECT id FROM t ORDER BY id"), ["0", "2", "3", "5", "6"]);
}

/// A call whose tables are wrong takes no other call of the same file with it.
#[tokio::test]
async fn wrong_tables_of_one_pipeline_do_not_touch_another() {
    let place = TestDatabase::made_by(System::Sqlite, tables(System::Sqlite), ids());
    let orders = System::Sqlite.sink(&place.url, orders_config());
    orders.prepare().await.unwrap();
    place.sink.prepare().await.unwrap();
    place.query("DROP TABLE parts");
    for n in 0..20 {
        let good = Batch { messages: vec![message(n, &order(&n.to_string()))] };
        let bad = Batch { messages: vec![message(n, &json!({ "id": "x", "parts": [{}] }))] };
        let (bad, good) = tokio::join!(place.sink.deliver(&bad), orders.deliver(&good));
        assert_eq!(bad.unwrap_err().next, Move::Fix);
        good.unwrap();
    }
    assert_eq!((place.count("t"), place.count("orders")), (0, 20));
}

/// A path that a URI would read otherwise, and a key of a megabyte.
#[tokio::test]
async fn any_path_is_a_file_and_any_text_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file: ünï?mode=ro#x.sqlite");
    let config = config(&[("t", ".")], &[".id"], Some(schema()));
    let sink: Arc<dyn Sink> = Arc::new(SqliteSink::new(path.clone(), config).unwrap());
    let long = "ж".repeat(500_000);
    let ids = ["short", &long];
    let messages = (0..).zip(ids).map(|(offset, id)| message(offset, &json!({ "id": id })));
    assert_eq!(outcomes(&sink, messages.collect()).await, ["delivered"; 2]);
    assert_eq!(query_file(&path, "SELECT id FROM t ORDER BY rowid"), ids);
}

#[tokio::test]
async fn a_file_has_a_write_ahead_log() {
    let place = TestDatabase::orders(System::Sqlite).await;
    assert_eq!(place.query("PRAGMA journal_mode"), ["wal"]);
}
