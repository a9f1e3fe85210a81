//! Records the tables do not take: set aside alone, leaving nothing behind.

use serde_json::json;

use crate::order::{config, message, order, orders_config};
use crate::place::{System, TestDatabase, attempt};
use crate::server::Server;

on_all!(
    a_violated_constraint_costs_one_record,
    one_bad_record_among_a_thousand,
    a_trigger_that_refuses_costs_one_record,
    fields_without_a_column_are_refused_not_dropped,
);

pub fn ids() -> potok_connectors::sql::SqlSinkConfig {
    config(&[("t", "."), ("parts", ".parts[]")], &[".id"], None)
}

pub fn tables(system: System) -> &'static str {
    system.pick(
        "CREATE TABLE shops (id INTEGER PRIMARY KEY); INSERT INTO shops VALUES (1); \
         CREATE TABLE t (id TEXT PRIMARY KEY, n INTEGER CHECK (n < 100), email TEXT UNIQUE, \
         content_hash TEXT, potok_id TEXT UNIQUE); \
         CREATE TABLE parts (id TEXT, element INTEGER, size INTEGER CHECK (size > 0), \
         shop INTEGER REFERENCES shops (id));",
        "CREATE TABLE shops (id int PRIMARY KEY); INSERT INTO shops VALUES (1); \
         CREATE TABLE t (id text PRIMARY KEY, n int CHECK (n < 100), email text UNIQUE, \
         content_hash text, potok_id text UNIQUE); \
         CREATE TABLE parts (id text, element int, size int CHECK (size > 0), \
         shop int REFERENCES shops (id));",
        "CREATE TABLE shops (id int PRIMARY KEY); INSERT INTO shops VALUES (1); \
         CREATE TABLE t (id varchar(99) COLLATE utf8mb4_nopad_bin PRIMARY KEY, \
         n int CHECK (n < 100), email varchar(99) UNIQUE, content_hash text, \
         potok_id varchar(200) COLLATE utf8mb4_nopad_bin UNIQUE); \
         CREATE TABLE parts (id varchar(99), element int, size int CHECK (size > 0), shop int, \
         FOREIGN KEY (shop) REFERENCES shops (id));",
    )
}

async fn a_violated_constraint_costs_one_record(system: System) {
    let place = TestDatabase::made_by(system, tables(system), ids());
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
    let words = place.deliver(batch).await;
    assert_eq!((words[0].as_str(), words[5].as_str()), ("delivered", "delivered"), "{words:#?}");
    for at in [1, 2, 3] {
        let part = "SetAside refused: [P0307] the database refused the record";
        assert!(words[at].starts_with(part), "{}", words[at]);
    }
    assert!(words[4].contains("neither its id nor its delivery id is there"), "{}", words[4]);
    assert!(words[6].contains("SetAside conflict: [P0309] id `a` of orders/0/6"), "{}", words[6]);
    assert_eq!(place.query("SELECT id FROM t ORDER BY id"), ["a", "f"]);
    assert_eq!(place.query("SELECT id FROM parts ORDER BY id"), ["a", "f"]);
}

async fn one_bad_record_among_a_thousand(system: System) {
    let place = TestDatabase::made_by(system, tables(system), ids());
    let value = |n: u64, limit: u64| json!({ "id": n.to_string(), "n": limit, "parts": [{}, {}] });
    let batch = |from: u64, bad: u64| -> Vec<_> {
        (from..from + 1_000)
            .map(|n| message(n, &value(n, if n == bad { 100 } else { 1 })))
            .collect()
    };
    if system != System::Sqlite {
        // One call says that some record of it is bad, and has written nothing.
        let fault = attempt(&place.sink, batch(0, 613)).await.unwrap_err();
        assert_eq!((fault.next, fault.code), (potok_core::Move::SetAside, "P0307"), "{fault}");
        assert_eq!(place.count("t"), 0);
    }
    let words = place.deliver(batch(0, 613)).await;
    let bad: Vec<usize> = (0..1_000).filter(|&at| words[at] != "delivered").collect();
    assert_eq!(bad, [613], "{}", words[613]);
    assert_eq!((place.count("t"), place.count("parts")), (999, 1_998));
}

async fn a_trigger_that_refuses_costs_one_record(system: System) {
    let trigger = system.pick(
        "CREATE TRIGGER no BEFORE INSERT ON t WHEN new.n = 13 \
         BEGIN SELECT RAISE(ABORT, 'not thirteen'); END",
        "CREATE FUNCTION no() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'not thirteen'; END $$ \
         LANGUAGE plpgsql; CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW WHEN (new.n = 13) \
         EXECUTE FUNCTION no();",
        "CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW IF new.n = 13 THEN \
         SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not thirteen'; END IF",
    );
    let place = TestDatabase::made_by(system, tables(system), ids());
    match system {
        System::Sqlite | System::Postgres => place.query(trigger),
        // One statement to the server, whatever the client takes for the end of one.
        System::Mariadb => place.query(&format!("delimiter //\n{trigger}//")),
    };
    let batch = (0..8_u64)
        .map(|n| message(n, &json!({ "id": n.to_string(), "n": if n % 3 == 1 { 13 } else { 1 } })))
        .collect();
    for (at, word) in place.deliver(batch).await.iter().enumerate() {
        match at {
            1 | 4 | 7 => assert!(word.contains("not thirteen"), "{word}"),
            _ => assert_eq!(word, "delivered"),
        }
    }
    assert_eq!(place.query("SELECT id FROM t ORDER BY id"), ["0", "2", "3", "5", "6"]);
}

async fn fields_without_a_column_are_refused_not_dropped(system: System) {
    let place = TestDatabase::orders(system).await;
    let mut more = order("u2");
    more["gift"] = json!(true);
    let words = place.deliver(vec![message(1, &order("u1")), message(2, &more)]).await;
    assert_eq!(words[0], "delivered");
    assert!(words[1].contains("table `orders`: the field `gift` has no column"), "{words:?}");
}

/// MariaDB takes statements up to a size: larger batches are cut, a larger row is refused alone.
#[tokio::test(flavor = "multi_thread")]
async fn rows_larger_than_a_packet_are_refused_alone_and_large_batches_are_cut() {
    let server = Server::start(System::Mariadb, &[("max-allowed-packet", "1M")], false);
    let sink = System::Mariadb.sink(&server.url(), orders_config());
    let sized = |n: u64, bytes: usize| {
        let mut large = order(&format!("u{n}"));
        large["delivery"]["city"] = json!("ü".repeat(bytes / 2));
        message(n, &large)
    };
    // Four megabytes in one call, and rows just below and above the limit.
    let mut batch: Vec<_> = (0..40).map(|n| sized(n, 100_000)).collect();
    batch.extend([sized(40, (1 << 20) - 20_000), sized(41, 1 << 20), sized(42, 3 << 20)]);
    let words = attempt(&sink, batch).await.unwrap();
    assert_eq!(words[..41], vec!["delivered"; 41]);
    for word in &words[41..] {
        assert!(word.starts_with("SetAside too_large: [P0312] table `deliveries`"), "{word}");
    }
    assert_eq!((server.count("orders"), server.count("deliveries")), (41, 41));
    assert_eq!(server.admin("SELECT max(char_length(city)) FROM deliveries"), ["514288"]);
}
