//! `prepare`: what it creates, what it accepts, what it refuses.

use potok_core::{Move, Sink as _};
use serde_json::json;

use crate::order::{RowPlace, config, message};

fn schema() -> serde_json::Value {
    json!({ "required": ["id"], "properties": {
        "id": { "type": "string" }, "n": { "type": "integer" }
    } })
}

#[tokio::test]
async fn preparing_twice_changes_nothing() {
    let place = RowPlace::orders().await;
    let before = place.query("SELECT sql FROM sqlite_schema ORDER BY name");
    place.sink.prepare().await.unwrap();
    place.sink.probe().await.unwrap();
    assert_eq!(place.query("SELECT sql FROM sqlite_schema ORDER BY name"), before);
    assert_eq!(place.query("PRAGMA journal_mode"), ["'wal'"]);
}

#[tokio::test]
async fn more_columns_are_welcome_where_the_database_fills_them() {
    let sql = "CREATE TABLE t (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, n INTEGER, \
         content_hash TEXT, potok_id TEXT UNIQUE, note TEXT, \
         at TEXT NOT NULL DEFAULT (upper('now')), twice INTEGER AS (n * 2))";
    let place = RowPlace::made_by(sql, config(&[("t", ".")], &[".id"], Some(schema())));
    assert_eq!(place.deliver(vec![message(1, &json!({ "id": "a", "n": 2 }))]).await, ["delivered"]);
    assert_eq!(place.query("SELECT row, id, note, at, twice FROM t"), ["1, 'a', null, 'NOW', 4"]);

    // Without a schema the table itself says what it takes.
    let place = RowPlace::made_by(sql, config(&[("t", ".")], &[".id"], None));
    let values = [json!({ "id": "a", "at": "then" }), json!({ "id": "b", "row": 7, "note": null })];
    let batch = (0..).zip(&values).map(|(offset, value)| message(offset, value)).collect();
    assert_eq!(place.deliver(batch).await, ["delivered", "delivered"]);
    assert_eq!(
        place.query("SELECT row, id, at FROM t ORDER BY id"),
        ["1, 'a', 'then'", "7, 'b', 'NOW'"]
    );
}

#[tokio::test]
async fn tables_that_cannot_keep_the_promise_are_refused() {
    let no_create = |schema| {
        let mut config = config(&[("t", ".")], &[".id"], schema);
        config.create_tables = false;
        config
    };
    let own = "content_hash TEXT, potok_id TEXT UNIQUE";
    for (sql, code, part) in [
        (String::new(), "P0301", "missing: table `t`"),
        (
            format!("CREATE TABLE t (id TEXT PRIMARY KEY, {own})"),
            "P0301",
            "column `n` of table `t`",
        ),
        (format!("CREATE TABLE t (id TEXT, n INTEGER, {own})"), "P0302", "unique key on `id`"),
        (
            format!("CREATE TABLE t (id TEXT COLLATE NOCASE PRIMARY KEY, n INTEGER, {own})"),
            "P0302",
            "unique key on `id` that compares bytes",
        ),
        (
            format!(
                "CREATE TABLE t (id TEXT, n INTEGER, {own}); \
                     CREATE UNIQUE INDEX i ON t (id) WHERE n > 0"
            ),
            "P0302",
            "unique key on `id`",
        ),
        (
            "CREATE TABLE t (id TEXT PRIMARY KEY, n INTEGER, content_hash TEXT, potok_id TEXT)"
                .into(),
            "P0302",
            "unique key on `potok_id`",
        ),
        (
            format!("CREATE TABLE t (id TEXT PRIMARY KEY, n INTEGER, must TEXT NOT NULL, {own})"),
            "P0302",
            "column `must` of table `t` takes no null",
        ),
        (
            format!("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, {own})"),
            "P0302",
            "column `id` of table `t` takes integers, but the schema says text",
        ),
        (
            format!(
                "CREATE TABLE u (id TEXT PRIMARY KEY, n INTEGER, {own}); \
                     CREATE VIEW t AS SELECT * FROM u"
            ),
            "P0302",
            "unique key",
        ),
    ] {
        let place = RowPlace::made_by(&sql, no_create(Some(schema())));
        let fault = place.sink.prepare().await.unwrap_err();
        assert_eq!((fault.next, fault.code), (Move::Fix, code), "{sql}: {fault}");
        assert!(fault.to_string().contains(part), "{part} not in {fault}");
    }
}

#[tokio::test]
async fn a_table_sqlite_will_not_create_is_the_operators_to_fix() {
    let place = RowPlace::made_by("", config(&[("sqlite_x", ".")], &[".id"], Some(schema())));
    let fault = place.sink.prepare().await.unwrap_err();
    assert_eq!((fault.next, fault.code), (Move::Fix, "P0302"), "{fault}");
    assert!(fault.to_string().contains("reserved"), "{fault}");
}
