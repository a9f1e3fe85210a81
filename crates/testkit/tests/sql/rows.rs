//! What lies in the tables.

use bytes::Bytes;
use serde_json::json;

use crate::order::{bytes_message, config, message, order};
use crate::place::{System, TestDatabase};

on_all!(
    an_order_becomes_rows_of_four_tables,
    the_hash_is_that_of_the_source_bytes,
    any_word_is_a_name_and_any_text_a_key,
    numbers_are_kept_exactly_or_refused,
    a_nul_is_refused_with_a_word_about_it,
    children_may_be_missing;
    servers: a_key_longer_than_an_index_takes_is_refused_alone,
    columns_of_other_types_take_what_fits,
);

async fn an_order_becomes_rows_of_four_tables(system: System) {
    let place = TestDatabase::orders(system).await;
    assert_eq!(place.deliver(vec![message(5, &order("u1"))]).await, ["delivered"]);
    assert_eq!(
        place.query(
            "SELECT order_uid, track_number, locale, date_created, sm_id, length(content_hash), \
             potok_id FROM orders"
        ),
        ["u1, TRACK7, de, 2026-03-01T06:22:19Z, 99, 64, orders/0/5@0000000000000007/0/0"]
    );
    assert_eq!(place.query("SELECT * FROM deliveries"), ["u1, Olga O'Neil, +49301234567, Zürich"]);
    assert_eq!(place.query("SELECT * FROM payments"), ["u1, u1, EUR, 1817, 4102444800"]);
    assert_eq!(
        place.query("SELECT order_uid, element, chrt_id, price, name FROM items ORDER BY element"),
        ["u1, 0, 1, 0, Кружка", "u1, 1, 2, 453, "]
    );
}

async fn the_hash_is_that_of_the_source_bytes(system: System) {
    let place = TestDatabase::orders(system).await;
    let mut changed = message(1, &order("u1"));
    changed.source = Bytes::from_static(b"abc");
    place.deliver(vec![changed]).await;
    assert_eq!(
        place.query("SELECT content_hash FROM orders"),
        ["ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"]
    );
}

async fn any_word_is_a_name_and_any_text_a_key(system: System) {
    let schema = json!({ "properties": {
        "select": { "type": "string" },
        "a \"quoted\" `name`": { "type": "string" },
        "ключ": { "type": "string" },
        "group": { "properties": { "order": { "type": "string" } } }
    } });
    let rows = &[("table", "."), ("from; DROP TABLE \"table\" --`", ".group")];
    let place = TestDatabase::made_by(system, "", config(rows, &[".select"], Some(schema)));
    let long = "ж".repeat(500);
    let ids = [
        "'", "\"", "';--", "é", "e\u{301}", "É", " ", "  ", "a", "A", "a ", "a  ", "", "😀", "😁",
        "\\", "\\'", "\\n", "\n", "%", "_", "`", "$1", "?", "ß", "ss", "\u{feff}", &long,
    ];
    let messages = (0..).zip(ids).map(|(offset, id)| {
        let group = json!({ "order": format!("of {id}") });
        message(
            offset,
            &json!({ "select": id, "a \"quoted\" `name`": id, "ключ": id, "group": group }),
        )
    });
    let messages: Vec<_> = messages.collect();
    let words = place.deliver(messages.clone()).await;
    assert_eq!(words, vec!["delivered"; ids.len()], "keys compare byte by byte");
    let words = place.deliver(messages).await;
    assert_eq!(words, vec!["duplicates"; ids.len()]);
    let standard = "SELECT t.\"ключ\" || '|' || c.\"order\" FROM \"table\" t \
         JOIN \"from; DROP TABLE \"\"table\"\" --`\" c ON c.\"select\" = t.\"select\" \
         WHERE t.\"ключ\" = t.\"a \"\"quoted\"\" `name`\"";
    let sql = system.pick(
        standard,
        standard,
        "SELECT concat(t.`ключ`, '|', c.`order`) FROM `table` t \
         JOIN `from; DROP TABLE \"table\" --``` c ON c.`select` = t.`select` \
         WHERE t.`ключ` = t.`a \"quoted\" ``name```",
    );
    let mut want: Vec<String> = ids.iter().map(|id| format!("{id}|of {id}")).collect();
    let mut got = place.query(sql);
    want.sort();
    got.sort();
    assert_eq!(got, want);
}

async fn numbers_are_kept_exactly_or_refused(system: System) {
    let schema = json!({ "properties": {
        "id": { "type": "integer" }, "n": { "type": "integer" }, "x": { "type": "number" },
        "b": { "type": "boolean" }, "j": {}
    } });
    let place = TestDatabase::made_by(system, "", config(&[("t", ".")], &[".id"], Some(schema)));
    let texts = [
        r#"{"id":1,"n":1000000000000000000,"x":0.1,"b":true,"j":1.10}"#,
        r#"{"id":9223372036854775807,"n":-9223372036854775808,"x":-1e300,"b":false,"j":"s"}"#,
        r#"{"id":2,"n":9223372036854775808}"#,
        r#"{"id":3,"n":123456789012345678901234567890}"#,
        r#"{"id":4,"n":1e18,"x":9007199254740992,"j":{"a" : [ "\u0000" ]}}"#,
        r#"{"id":5,"x":9007199254740993}"#,
        r#"{"id":6,"x":null,"j":null}"#,
        r#"{"id":7,"x":1e400}"#,
    ];
    let messages = (0..)
        .zip(texts)
        .map(|(offset, text)| bytes_message(offset, Bytes::from_static(text.as_bytes())));
    let words = place.deliver(messages.collect()).await;
    let refused: Vec<usize> = (0..texts.len()).filter(|&at| words[at] != "delivered").collect();
    assert_eq!(refused, [2, 3, 5, 7], "{words:?}");
    let rows = place.query("SELECT id, n, x, b, j FROM t ORDER BY id");
    let (yes, no) = system.pick(("1", "0"), ("t", "f"), ("1", "0"));
    let large = system.pick("9007199254740992.0", "9.007199254740992e+15", "9.007199254740992e15");
    assert_eq!(
        rows,
        [
            format!("1, 1000000000000000000, 0.1, {yes}, 1.10"),
            format!("4, 1000000000000000000, {large}, NULL, {{\"a\" : [ \"\\u0000\" ]}}"),
            "6, NULL, NULL, NULL, NULL".to_owned(),
            format!(
                "9223372036854775807, -9223372036854775808, -1e{}300, {no}, \"s\"",
                system.pick("", "+", "")
            ),
        ]
    );
}

async fn a_nul_is_refused_with_a_word_about_it(system: System) {
    let place = TestDatabase::orders(system).await;
    let mut bad = order("u2");
    bad["delivery"]["city"] = json!("a\u{0}b");
    let mut bad_key = order("u4");
    bad_key["order_uid"] = json!("u\u{0}4");
    let messages = vec![
        message(1, &order("u1")),
        message(2, &bad),
        message(3, &order("u3")),
        message(4, &bad_key),
    ];
    let words = place.deliver(messages).await;
    assert_eq!((words[0].as_str(), words[2].as_str()), ("delivered", "delivered"));
    assert!(words[1].contains("table `deliveries`, field `city`: the text holds a NUL"));
    assert!(words[3].contains("SetAside refused"), "{words:?}");
    assert_eq!((place.count("orders"), place.count("deliveries")), (2, 2));
}

async fn children_may_be_missing(system: System) {
    let place = TestDatabase::orders(system).await;
    let mut bare = order("u1");
    bare.as_object_mut().unwrap().remove("delivery");
    bare["payment"] = json!(null);
    bare["items"] = json!([]);
    assert_eq!(place.deliver(vec![message(1, &bare)]).await, ["delivered"]);
    let counts = ["orders", "deliveries", "payments", "items"].map(|table| place.count(table));
    assert_eq!(counts, [1, 0, 0, 0]);
}

async fn a_key_longer_than_an_index_takes_is_refused_alone(system: System) {
    let place = TestDatabase::orders(system).await;
    // Two that differ in the last character only, and one of repeated letters, which compresses.
    let words: Vec<String> = (0..9_000_u32).map(|n| format!("{n:x}")).collect();
    let long = words.join("-");
    let ids = ["short".to_owned(), format!("{long}a"), format!("{long}b"), "x".repeat(100_000)];
    let messages = (0..).zip(&ids).map(|(offset, id)| message(offset, &order(id)));
    let words = place.deliver(messages.collect()).await;
    assert_eq!(words[0], "delivered");
    for word in &words[1..] {
        let part = system.pick_server("an index takes 2600", "characters, the column takes 512");
        assert!(word.starts_with("SetAside") && word.contains(part), "{word}");
    }
    assert_eq!(place.count("orders"), 1);
}

async fn columns_of_other_types_take_what_fits(system: System) {
    let sql = system.pick_server(
        "CREATE TABLE t (id uuid PRIMARY KEY, small smallint, price numeric(10, 2), day date, \
         at timestamptz, data jsonb, name varchar(5), raw bytea, flag boolean, \
         made timestamptz NOT NULL DEFAULT now(), n bigserial, content_hash text, \
         potok_id varchar(300) UNIQUE)",
        "CREATE TABLE t (id varbinary(100) PRIMARY KEY, small smallint, price decimal(10, 2), \
         day date, at datetime, data json, name varchar(5), raw blob, flag boolean, \
         made timestamp NOT NULL DEFAULT current_timestamp(), n bigint auto_increment UNIQUE, \
         content_hash text, potok_id varchar(300) COLLATE utf8mb4_nopad_bin UNIQUE)",
    );
    let place = TestDatabase::made_by(system, sql, config(&[("t", ".")], &[".id"], None));
    let id = |n: u64| format!("00000000-0000-0000-0000-00000000000{n}");
    let good = json!({
        "id": id(0), "small": 7, "price": 12.5, "day": "2026-02-28",
        "at": "2026-02-28 10:00:00", "data": { "a": [1] }, "name": "Ж🦀abc", "raw": "a\\x41",
        "flag": true
    });
    let with = |n: u64, field: &str, value: serde_json::Value| {
        let mut bad = good.clone();
        bad["id"] = json!(id(n));
        bad[field] = value;
        message(n, &bad)
    };
    let batch = vec![
        message(0, &good),
        with(1, "small", json!(40_000)),
        with(2, "price", json!("much")),
        with(3, "price", json!(1e300)),
        with(4, "day", json!("2026-02-30")),
        with(5, "name", json!("too long")),
        with(6, "name", json!("abcde ")),
        with(7, "flag", json!("perhaps")),
        with(8, "name", json!("fits")),
    ];
    let words = place.deliver(batch).await;
    let delivered: Vec<usize> = (0..words.len()).filter(|&at| words[at] == "delivered").collect();
    assert_eq!(delivered, [0, 8], "{words:#?}");
    assert!(words[1].contains("40000 is not between -32768 and 32767"), "{}", words[1]);
    assert!(words[5].contains("the text has 8 characters, the column takes 5"), "{}", words[5]);
    assert!(words[6].contains("the column takes 5"), "cut silently elsewhere: {}", words[6]);
    for word in [1, 2, 3, 4, 5, 6, 7].map(|at| &words[at]) {
        assert!(word.starts_with("SetAside refused"), "{word}");
    }
    let sql = system.pick_server(
        "SELECT price, day, name, convert_from(raw, 'UTF8'), data->'a', made IS NULL, n > 0 \
         FROM t WHERE name <> 'fits'",
        "SELECT price, day, name, raw, json_extract(data, '$.a'), made IS NULL, n > 0 FROM t \
         WHERE name <> 'fits'",
    );
    let (no, yes) = system.pick_server(("f", "t"), ("0", "1"));
    assert_eq!(place.query(sql), [format!("12.50, 2026-02-28, Ж🦀abc, a\\x41, [1], {no}, {yes}")]);
}
