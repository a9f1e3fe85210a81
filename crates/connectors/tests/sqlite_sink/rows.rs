//! What lies in the tables.

use bytes::Bytes;
use serde_json::json;

use crate::order::{RowPlace, bytes_message, config, message, order};

#[tokio::test]
async fn an_order_becomes_rows_of_four_tables() {
    let place = RowPlace::orders().await;
    assert_eq!(place.deliver(vec![message(5, &order("u1"))]).await, ["delivered"]);
    assert_eq!(
        place.query(
            "SELECT order_uid, track_number, locale, date_created, sm_id, length(content_hash), \
             potok_id FROM orders"
        ),
        ["'u1', 'TRACK7', 'de', '2026-03-01T06:22:19Z', 99, 64, \
          'orders/0/5@0000000000000007/0/0'"]
    );
    assert_eq!(
        place.query("SELECT * FROM deliveries"),
        ["'u1', 'Olga O'Neil', '+49301234567', 'Zürich'"]
    );
    assert_eq!(place.query("SELECT * FROM payments"), ["'u1', 'u1', 'EUR', 1817, 4102444800"]);
    assert_eq!(
        place.query("SELECT order_uid, element, chrt_id, price, name FROM items ORDER BY element"),
        ["'u1', 0, 1, 0, 'Кружка'", "'u1', 1, 2, 453, ''"]
    );
}

#[tokio::test]
async fn the_hash_is_that_of_the_source_bytes() {
    let place = RowPlace::orders().await;
    let mut changed = message(1, &order("u1"));
    changed.source = Bytes::from_static(b"abc");
    place.deliver(vec![changed]).await;
    assert_eq!(
        place.query("SELECT content_hash FROM orders"),
        ["'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad'"]
    );
}

#[tokio::test]
async fn any_word_is_a_name_and_any_text_a_value() {
    let schema = json!({ "properties": {
        "select": { "type": "string" },
        "a \"quoted\" name": { "type": "string" },
        "ключ": { "type": "string" },
        "group": { "properties": { "order": { "type": "string" } } }
    } });
    let rows = &[("table", "."), ("from; DROP TABLE \"table\" --", ".group")];
    let folder = tempfile::tempdir().unwrap();
    // A path that a URI would read otherwise.
    let path = folder.path().join("file: ünï?mode=ro#x.sqlite");
    let config = config(rows, &[".select"], Some(schema));
    let sink = potok_connectors::sqlite::SqliteSink::new(path.clone(), config).unwrap();
    let long = "ж".repeat(500_000);
    let ids = ["'", "\"", "';--", "é", "e\u{301}", "É", " ", "a", "A", "a ", "", "😀", "\\", &long];
    let messages = (0..).zip(ids).map(|(offset, id)| {
        let group = json!({ "order": format!("of {id}") });
        message(
            offset,
            &json!({ "select": id, "a \"quoted\" name": id, "ключ": id, "group": group }),
        )
    });
    let outcomes = crate::order::outcomes(&sink, messages.collect()).await;
    assert_eq!(outcomes, vec!["delivered"; ids.len()], "keys compare byte by byte");
    let sql = "SELECT t.\"ключ\", c.\"order\" FROM \"table\" t \
               JOIN \"from; DROP TABLE \"\"table\"\" --\" c USING (\"select\") ORDER BY t.rowid";
    let want: Vec<String> = ids.iter().map(|id| format!("'{id}', 'of {id}'")).collect();
    assert_eq!(crate::order::query(&path, sql), want);
}

#[tokio::test]
async fn numbers_are_kept_exactly_or_refused() {
    let schema = json!({ "properties": {
        "id": { "type": "integer" }, "n": { "type": "integer" }, "x": { "type": "number" },
        "b": { "type": "boolean" }, "j": {}
    } });
    let place = RowPlace::made_by("", config(&[("t", ".")], &[".id"], Some(schema)));
    let texts = [
        r#"{"id":1,"n":1000000000000000000,"x":0.1,"b":true,"j":1.10}"#,
        r#"{"id":9223372036854775807,"n":-9223372036854775808,"x":-1e300,"b":false,"j":"s"}"#,
        r#"{"id":2,"n":9223372036854775808}"#,
        r#"{"id":3,"n":123456789012345678901234567890}"#,
        r#"{"id":4,"n":1e18,"x":9007199254740992,"j":{"a" : [ ]}}"#,
        r#"{"id":5,"x":9007199254740993}"#,
        r#"{"id":6,"x":null,"j":null}"#,
    ];
    let messages = (0..)
        .zip(texts)
        .map(|(offset, text)| bytes_message(offset, Bytes::from_static(text.as_bytes())));
    let outcomes = place.deliver(messages.collect()).await;
    let refused: Vec<usize> = (0..texts.len()).filter(|&at| outcomes[at] != "delivered").collect();
    assert_eq!(refused, [2, 3, 5], "{outcomes:?}");
    assert!(
        outcomes[2].starts_with("SetAside refused: [P0308] table `t`, field `n`"),
        "{outcomes:?}"
    );
    assert_eq!(
        place.query("SELECT id, n, x, b, j FROM t ORDER BY id"),
        [
            "1, 1000000000000000000, 0.1, 1, '1.10'",
            "4, 1000000000000000000, 9007199254740992.0, null, '{\"a\" : [ ]}'",
            "6, null, null, null, null",
            "9223372036854775807, -9223372036854775808, -1e300, 0, '\"s\"'",
        ]
    );
}

#[tokio::test]
async fn a_nul_is_refused_with_a_word_about_it() {
    let place = RowPlace::orders().await;
    let mut bad = order("u2");
    bad["delivery"]["city"] = json!("a\u{0}b");
    let messages = vec![message(1, &order("u1")), message(2, &bad), message(3, &order("u3"))];
    let outcomes = place.deliver(messages).await;
    assert_eq!((outcomes[0].as_str(), outcomes[2].as_str()), ("delivered", "delivered"));
    assert!(outcomes[1].contains("table `deliveries`, field `city`: the text holds a NUL"));
    assert_eq!((place.count("orders"), place.count("deliveries")), (2, 2));
}

#[tokio::test]
async fn children_may_be_missing() {
    let place = RowPlace::orders().await;
    let mut bare = order("u1");
    bare.as_object_mut().unwrap().remove("delivery");
    bare["payment"] = json!(null);
    bare["items"] = json!([]);
    assert_eq!(place.deliver(vec![message(1, &bare)]).await, ["delivered"]);
    let counts = ["orders", "deliveries", "payments", "items"].map(|table| place.count(table));
    assert_eq!(counts, [1, 0, 0, 0]);
}
