//! `prepare`: what it creates, what it accepts, what it refuses.

use potok_connectors::sql::SqlTimeouts;
use potok_core::{Batch, Move};
use serde_json::json;

use crate::order::{config, message, order, orders_config};
use crate::place::{System, TestDatabase, is};

on_all!(
    preparing_twice_changes_nothing,
    ten_at_once_create_the_tables,
    missing_tables_are_named_with_what_creates_them,
    tables_that_cannot_keep_the_promise_are_refused,
    tables_that_change_while_running_stop_the_pipeline_and_lose_nothing,
    a_table_that_cannot_be_created_is_the_operators_to_fix;
    servers:
    names_that_would_be_cut_are_refused_before_anything_runs,
    addresses_are_checked_and_never_shown,
);

fn schema() -> serde_json::Value {
    json!({ "required": ["id"], "properties": {
        "id": { "type": "string" }, "n": { "type": "integer" }
    } })
}

async fn preparing_twice_changes_nothing(system: System) {
    let place = TestDatabase::orders(system).await;
    let sql = system.pick(
        "SELECT t.name, c.name, c.type, t.sql FROM sqlite_schema t JOIN pragma_table_info(t.name) c \
         WHERE t.type = 'table' ORDER BY 1, c.cid",
        "SELECT table_name, column_name, data_type FROM information_schema.columns \
         WHERE table_schema = 'public' ORDER BY 1, ordinal_position",
        "SELECT table_name, column_name, column_type, collation_name \
         FROM information_schema.columns WHERE table_schema = database() \
         ORDER BY 1, ordinal_position",
    );
    let before = place.query(sql);
    assert!(before.len() > 20, "{before:?}");
    place.sink.prepare().await.unwrap();
    place.sink.probe().await.unwrap();
    assert_eq!(place.query(sql), before);
}

async fn ten_at_once_create_the_tables(system: System) {
    for _ in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let url = system.database(&folder);
        let sinks: Vec<_> = (0..10).map(|_| system.sink(&url, orders_config())).collect();
        let preparing = sinks.iter().map(|sink| {
            let sink = sink.clone();
            tokio::spawn(async move { sink.prepare().await })
        });
        for prepared in preparing.collect::<Vec<_>>() {
            prepared.await.unwrap().unwrap();
        }
    }
}

async fn missing_tables_are_named_with_what_creates_them(system: System) {
    let mut config = orders_config();
    config.create_tables = false;
    let place = TestDatabase::made_by(system, "", config);
    let fault = place.sink.prepare().await.unwrap_err();
    is(&fault, Move::Fix, "P0301");
    let quote = system.pick('"', '"', '`');
    for part in [
        "missing: table `orders`, table `deliveries`, table `payments`, table `items`".to_owned(),
        format!("CREATE TABLE IF NOT EXISTS {quote}items{quote}"),
    ] {
        assert!(fault.to_string().contains(&part), "{part} not in {fault}");
    }
    let batch = Batch { messages: vec![message(1, &order("u1"))] };
    is(&place.sink.deliver(&batch).await.unwrap_err(), Move::Fix, "P0301");
    // The probe asks whether the server takes writes, and it does.
    place.sink.probe().await.unwrap();
}

async fn tables_that_cannot_keep_the_promise_are_refused(system: System) {
    let own = system.pick(
        "content_hash text, potok_id text UNIQUE",
        "content_hash text, potok_id text UNIQUE",
        "content_hash text, potok_id varchar(200) COLLATE utf8mb4_nopad_bin UNIQUE",
    );
    let key = system.pick("id text", "id text", "id varchar(100) COLLATE utf8mb4_nopad_bin");
    let mut cases = vec![
        (format!("CREATE TABLE t ({key} PRIMARY KEY, {own})"), "P0301", "column `n` of table `t`"),
        (format!("CREATE TABLE t ({key}, n int, {own})"), "P0302", "unique key on `id`"),
        (
            format!("CREATE TABLE t ({key} PRIMARY KEY, n int, must int NOT NULL, {own})"),
            "P0302",
            "column `must` of table `t` takes no null",
        ),
        (
            format!("CREATE TABLE t (id int PRIMARY KEY, n int, {own})"),
            "P0302",
            "column `id` of table `t` takes integers, but the schema says text",
        ),
        (
            format!(
                "CREATE TABLE u ({key} PRIMARY KEY, n int, {own}); CREATE VIEW t AS SELECT * FROM u"
            ),
            system.pick("P0302", "P0302", "P0810"),
            "unique key",
        ),
    ];
    match system {
        System::Sqlite => cases.extend([
            (
                format!("CREATE TABLE t (id text COLLATE NOCASE PRIMARY KEY, n int, {own})"),
                "P0302",
                "unique key on `id` that compares bytes",
            ),
            (
                format!("CREATE TABLE t (id text, n int, {own}); CREATE UNIQUE INDEX i ON t (id) WHERE n > 0"),
                "P0302",
                "unique key on `id`",
            ),
            (
                "CREATE TABLE t (id text PRIMARY KEY, n int, content_hash text, potok_id text)".into(),
                "P0302",
                "unique key on `potok_id`",
            ),
        ]),
        System::Postgres => cases.extend([
            (
                format!("CREATE TABLE t (id text, n int, {own}); CREATE UNIQUE INDEX i ON t (id) WHERE n > 0"),
                "P0302",
                "unique key on `id`",
            ),
            (
                format!("CREATE TABLE t (id text, n int, {own}); CREATE UNIQUE INDEX i ON t (lower(id))"),
                "P0302",
                "unique key on `id`",
            ),
            (
                format!("CREATE TABLE t (id text UNIQUE DEFERRABLE, n int, {own})"),
                "P0302",
                "unique key on `id`",
            ),
            (
                format!("CREATE TABLE t (id char(10) PRIMARY KEY, n int, {own})"),
                "P0302",
                "unique key on `id` that compares bytes",
            ),
            (
                format!("CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false); CREATE TABLE t (id text COLLATE loose PRIMARY KEY, n int, {own})"),
                "P0302",
                "unique key on `id` that compares bytes",
            ),
            (
                format!("CREATE TABLE t (\"ID\" text PRIMARY KEY, n int, {own})"),
                "P0301",
                "column `id` of table `t`",
            ),
        ]),
        System::Mariadb => cases.extend([
            (
                format!("CREATE TABLE t (id varchar(100) COLLATE utf8mb4_general_ci PRIMARY KEY, n int, {own})"),
                "P0302",
                "unique key on `id` that compares bytes",
            ),
            (
                format!("CREATE TABLE t (id varchar(100) COLLATE utf8mb4_bin PRIMARY KEY, n int, {own})"),
                "P0302",
                "utf8mb4_nopad_bin",
            ),
            (
                format!("CREATE TABLE t ({key}, n int, {own}, UNIQUE (id(10)))"),
                "P0302",
                "unique key on `id`",
            ),
        ]),
    }
    for (sql, code, part) in cases {
        let mut config = config(&[("t", ".")], &[".id"], Some(schema()));
        config.create_tables = false;
        let place = TestDatabase::made_by(system, &sql, config);
        let fault = place.sink.prepare().await.unwrap_err();
        assert_eq!((fault.next, fault.code), (Move::Fix, code), "{sql}: {fault}");
        assert!(fault.to_string().contains(part), "{part} not in {fault}");
    }
}

async fn tables_that_change_while_running_stop_the_pipeline_and_lose_nothing(system: System) {
    let place = TestDatabase::orders(system).await;
    assert_eq!(place.deliver(vec![message(1, &order("u1"))]).await, ["delivered"]);

    place.query("ALTER TABLE items RENAME COLUMN price TO cost");
    let batch = Batch { messages: vec![message(2, &order("u2"))] };
    let fault = place.sink.deliver(&batch).await.unwrap_err();
    is(&fault, Move::Fix, "P0301");
    assert!(fault.to_string().contains("column `price` of table `items`"), "{fault}");
    assert_eq!(place.count("orders"), 1);
    place.query("ALTER TABLE items RENAME COLUMN cost TO price");
    assert_eq!(place.deliver(batch.messages).await, ["delivered"]);

    place.query("DROP TABLE items");
    let batch = Batch { messages: vec![message(3, &order("u3"))] };
    is(&place.sink.deliver(&batch).await.unwrap_err(), Move::Fix, "P0301");
    // `potok resume` prepares again, which creates it.
    place.sink.prepare().await.unwrap();
    assert_eq!(place.deliver(batch.messages).await, ["delivered"]);

    // A column more is nobody's trouble, in the middle of everything.
    place.query("ALTER TABLE orders ADD COLUMN note text");
    assert_eq!(place.deliver(vec![message(4, &order("u4"))]).await, ["delivered"]);
}

async fn names_that_would_be_cut_are_refused_before_anything_runs(system: System) {
    let long = "x".repeat(65);
    let schema = json!({ "properties": { "id": { "type": "string" }, long.as_str(): {} } });
    let config = config(&[(&long, ".")], &[".id"], Some(schema));
    let url = system.pick_server("postgres://u:p@h/d", "mysql://u:p@h/d");
    let faults = system.try_sink(url, config, SqlTimeouts::default()).err().unwrap();
    assert_eq!(faults.len(), 2, "{faults:?}");
    for fault in &faults {
        is(fault, Move::Fix, "P0304");
        assert!(fault.to_string().contains("at most 6"), "{fault}");
    }
}

async fn addresses_are_checked_and_never_shown(system: System) {
    let code = system.pick_server("P0709", "P0809");
    let scheme = system.pick_server("postgres", "mysql");
    for rest in [
        "://user:secret@host:x/db",
        "://user:secret@host/db?sslmod=secret",
        "://user:secret@host/db?sslmode=secret-word",
        " secret",
    ] {
        let url = format!("{scheme}{rest}");
        let faults = system.try_sink(&url, orders_config(), SqlTimeouts::default()).err().unwrap();
        is(&faults[0], Move::Fix, code);
        let shown = format!("{} {:?}", faults[0], faults[0]);
        assert!(rest.contains("secret-word") || !shown.contains("secret"), "{shown}");
    }
    // Wrong credentials are waited for: they are cured elsewhere.
    let url =
        system.database(&tempfile::tempdir().unwrap()).replace("potok:potok@", "potok:secret@");
    let sink = system.sink(&url, orders_config());
    for fault in [sink.prepare().await.unwrap_err(), sink.probe().await.unwrap_err()] {
        is(&fault, Move::Wait, system.pick_server("P0702", "P0802"));
        assert!(!format!("{fault} {fault:?}").contains("secret"), "{fault}");
    }
    let url = format!("{}_gone", system.database(&tempfile::tempdir().unwrap()));
    let fault = system.sink(&url, orders_config()).prepare().await.unwrap_err();
    is(&fault, Move::Wait, system.pick_server("P0702", "P0802"));
}

async fn a_table_that_cannot_be_created_is_the_operators_to_fix(system: System) {
    // The name is taken by something else, or has no room for the columns.
    let properties: serde_json::Map<String, serde_json::Value> =
        (0..2_000).map(|n| (format!("c{n}"), json!({ "type": "string" }))).collect();
    let config = config(&[("t", ".")], &[], Some(json!({ "properties": properties })));
    let place = TestDatabase::made_by(system, "", config);
    let fault = place.sink.prepare().await.unwrap_err();
    is(&fault, Move::Fix, "P0302");
    assert!(fault.to_string().contains("cannot create the tables"), "{fault}");
}

/// A call that fails half-way would leave a parent whose children never come.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tables_without_transactions_are_refused() {
    let tables = |parent: &str, child: &str| {
        format!(
            "CREATE TABLE t (id varchar(100) COLLATE utf8mb4_nopad_bin PRIMARY KEY, n int, \
             content_hash text, potok_id varchar(200) COLLATE utf8mb4_nopad_bin UNIQUE) {parent}; \
             CREATE TABLE parts (id varchar(100) COLLATE utf8mb4_nopad_bin NOT NULL, \
             element int NOT NULL, size int) {child}"
        )
    };
    let config = || {
        let mut config = config(&[("t", "."), ("parts", ".parts[]")], &[".id"], None);
        config.create_tables = false;
        config
    };
    let innodb = "ENGINE=InnoDB";
    let partitioned = "ENGINE=MyISAM PARTITION BY HASH (element) PARTITIONS 4";
    for (parent, child, refused) in [
        ("ENGINE=MyISAM", innodb, &["t"][..]),
        (innodb, "ENGINE=MyISAM", &["parts"]),
        (innodb, "ENGINE=Aria", &["parts"]),
        (innodb, "ENGINE=Aria TRANSACTIONAL=1", &["parts"]),
        (innodb, "ENGINE=MEMORY", &["parts"]),
        (innodb, partitioned, &["parts"]),
        ("ENGINE=MyISAM", "ENGINE=MEMORY", &["t", "parts"]),
    ] {
        let place = TestDatabase::made_by(System::Mariadb, &tables(parent, child), config());
        let prepared = place.sink.prepare().await.unwrap_err();
        for fault in [prepared, place.sink.check().await.unwrap_err()] {
            is(&fault, Move::Fix, "P0810");
            for table in ["t", "parts"] {
                let cure = format!("ALTER TABLE `{table}` ENGINE=InnoDB;");
                let named = fault.to_string().contains(&cure);
                assert_eq!(named, refused.contains(&table), "{parent}, {child}: {fault}");
            }
        }
        // What the message says is what helps.
        for table in refused {
            place.query(&format!("ALTER TABLE `{table}` ENGINE=InnoDB"));
        }
        place.sink.check().await.unwrap();
        place.sink.prepare().await.unwrap();
    }

    let place = TestDatabase::made_by(System::Mariadb, &tables(innodb, "ENGINE=InnoDB"), config());
    let partitioned = "ALTER TABLE parts PARTITION BY HASH (element) PARTITIONS 4";
    place.query(partitioned);
    place.sink.prepare().await.unwrap();
    place.query("RENAME TABLE parts TO behind; CREATE VIEW parts AS SELECT * FROM behind");
    is(&place.sink.prepare().await.unwrap_err(), Move::Fix, "P0810");
}

/// While it runs, whatever makes potok look at the tables again finds the engine too.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_engine_that_changes_while_running_is_noticed_when_tables_are_read_again() {
    let place = TestDatabase::orders(System::Mariadb).await;
    assert_eq!(place.deliver(vec![message(1, &order("u1"))]).await, ["delivered"]);
    place.query(
        "ALTER TABLE items DROP FOREIGN KEY items_ibfk_1; ALTER TABLE items ENGINE=Aria; \
         ALTER TABLE orders RENAME COLUMN track_number TO track",
    );
    let batch = Batch { messages: vec![message(2, &order("u2"))] };
    let fault = place.sink.deliver(&batch).await.unwrap_err();
    is(&fault, Move::Fix, "P0301");
    assert!(fault.to_string().contains("ALTER TABLE `items` ENGINE=InnoDB"), "{fault}");
    place.query("ALTER TABLE orders RENAME COLUMN track TO track_number");
    // `potok resume`, or a start.
    is(&place.sink.prepare().await.unwrap_err(), Move::Fix, "P0810");
    place.query("ALTER TABLE items ENGINE=InnoDB");
    place.sink.prepare().await.unwrap();
    assert_eq!(place.deliver(batch.messages).await, ["delivered"]);
}
