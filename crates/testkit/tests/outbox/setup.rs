//! Tables that are not as they should be: said at once, or worked with.

use potok_core::{Fault, Feed as _, Move};
use potok_testkit::services;

use crate::place::{OutboxDatabase, Relay, System, info, uuid};

on_all! {
    missing_tables_are_said_with_the_command,
    a_table_with_rows_gets_no_index,
    only_an_index_of_rows_that_wait_counts,
    columns_may_have_other_names,
}

async fn refused(place: &OutboxDatabase, more: &str) -> Fault {
    let log = potok_testkit::memory::MemoryLog::new(std::sync::Arc::new(potok_core::SystemClock));
    let opened = place.outbox(more).open(&info(), std::sync::Arc::new(log)).await;
    opened.err().expect("it is opened")
}

/// The documented table, without anything beside it.
pub fn documented(system: System) -> &'static str {
    match system {
        System::Sqlite => {
            "CREATE TABLE outbox (id TEXT PRIMARY KEY, event_type TEXT, payload TEXT, added_at TEXT \
             DEFAULT CURRENT_TIMESTAMP, processed INTEGER NOT NULL DEFAULT 0, processed_at TEXT, \
             retry_count INTEGER NOT NULL DEFAULT 0)"
        }
        System::Postgres => {
            "CREATE TABLE outbox (id uuid PRIMARY KEY, event_type text, payload json, added_at \
             timestamptz DEFAULT now(), processed boolean NOT NULL DEFAULT false, processed_at \
             timestamptz, retry_count int NOT NULL DEFAULT 0)"
        }
        System::Mariadb => {
            "CREATE TABLE outbox (id CHAR(36) PRIMARY KEY, event_type TEXT, payload JSON, added_at \
             DATETIME(6) DEFAULT NOW(6), processed BOOLEAN NOT NULL DEFAULT FALSE, processed_at \
             DATETIME(6), retry_count INT NOT NULL DEFAULT 0)"
        }
    }
}

async fn missing_tables_are_said_with_the_command(system: System) {
    let place = OutboxDatabase::new(system);
    let none = ", \"create_tables\": false";
    let mut writer = place.writer().await;
    // So that the file is there.
    writer.run("CREATE TABLE other (a INT)").await;
    for table in ["", documented(system)] {
        if !table.is_empty() {
            writer.run(table).await;
        }
        let fault = refused(&place, none).await;
        assert_eq!((fault.next, fault.code), (Move::Fix, "P1301"), "{fault}");
        assert!(format!("{fault:?}").contains("potok outbox ddl"), "{fault:?}");
    }
    drop(place.relay("").await);
    writer.run("ALTER TABLE outbox ADD COLUMN tenant VARCHAR(9)").await;
    let fault = refused(&place, none).await;
    assert_eq!((fault.next, fault.code), (Move::Fix, "P1303"), "{fault}");
    assert!(fault.to_string().contains("tenant"), "{fault}");
}

/// Building one would stop all writers. Rows flow all the same.
async fn a_table_with_rows_gets_no_index(system: System) {
    let place = OutboxDatabase::new(system);
    let mut writer = place.writer().await;
    writer.run(documented(system)).await;
    writer.add("1", "k", "A").await;
    let mut relay = place.relay("").await;
    let indexes = match system {
        System::Sqlite => "SELECT count(*) FROM sqlite_schema WHERE name = 'outbox_unprocessed'",
        System::Postgres => {
            "SELECT count(*) FROM pg_indexes WHERE indexname = 'outbox_unprocessed'"
        }
        System::Mariadb => {
            "SELECT count(*) FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() \
             AND INDEX_NAME = 'outbox_unprocessed'"
        }
    };
    assert_eq!(place.query(indexes), ["0"]);
    assert_eq!(relay.rows(1).await, ["1"]);
    relay.set_aside("1").await;
    assert_eq!(place.query("SELECT count(*) FROM outbox_dead"), ["1"]);
}

/// What somebody should know of the table, as `potok check --connect` says it.
async fn doubts(place: &OutboxDatabase, more: &str) -> Vec<String> {
    place.outbox(more).check().await.unwrap()
}

/// The index of old rows is named after a column whose name begins with the flag's. Taken for the index
/// of rows that wait, nobody was warned and nothing was paced.
pub async fn only_an_index_of_rows_that_wait_counts(system: System) {
    let place = OutboxDatabase::new(system);
    let mut writer = place.writer().await;
    let keep = ", \"keep_processed\": \"1d\"";
    drop(place.relay("").await);
    let says_so = |doubts: Vec<String>| match &doubts[..] {
        [] => false,
        [only] => {
            assert!(only.contains("no index leads to the rows that wait"), "{only}");
            assert!(only.contains("CREATE INDEX"), "{only}");
            true
        }
        more => panic!("{more:?}"),
    };
    assert!(!says_so(doubts(&place, keep).await));
    let drop_index = |name: &str| match system {
        System::Mariadb => format!("DROP INDEX {name} ON outbox"),
        _ => format!("DROP INDEX {name}"),
    };
    writer.run(&drop_index("outbox_unprocessed")).await;
    assert!(says_so(doubts(&place, keep).await));
    let (statements, _) = place.outbox(keep).ddl().await;
    let of = |name: &str| statements.iter().find(|s| s.contains(name)).unwrap().clone();
    let retention = of("outbox_processed");
    assert!(retention.contains("processed_at"), "{retention}");
    writer.run(&retention).await;
    assert!(says_so(doubts(&place, keep).await), "the index of old rows leads to no other");
    // Others that name the flag, or a part of its name, and lead nowhere.
    let others: &[&str] = match system {
        System::Postgres => &[
            "CREATE INDEX other ON outbox (seq) WHERE processed",
            "CREATE INDEX other ON outbox (seq, processed)",
            "CREATE INDEX other ON outbox (seq) WHERE NOT processed AND retry_count > 0",
        ],
        System::Sqlite => &[
            "CREATE INDEX other ON outbox (seq) WHERE processed IS TRUE",
            "CREATE INDEX other ON outbox (processed)",
            "CREATE INDEX other ON outbox (seq) WHERE processed IS NOT TRUE AND retry_count > 0",
        ],
        System::Mariadb => &["CREATE INDEX other ON outbox (added_at, processed)"],
    };
    for other in others {
        writer.run(other).await;
        assert!(says_so(doubts(&place, keep).await), "{other}");
        writer.run(&drop_index("other")).await;
    }
    writer.run(&of("outbox_unprocessed")).await;
    assert!(!says_so(doubts(&place, keep).await), "as potok recommends it");
    writer.run(&drop_index("outbox_unprocessed")).await;
    // Made by hand, in other words.
    let own = match system {
        System::Postgres => "CREATE INDEX own ON outbox (added_at) WHERE processed = false",
        System::Sqlite => "CREATE INDEX own ON outbox(\"seq\")\nwhere (\"processed\"  is not true)",
        System::Mariadb => "CREATE INDEX own ON outbox (processed)",
    };
    writer.run(own).await;
    assert!(!says_so(doubts(&place, keep).await), "{own}");
}

/// Names in capitals, a trace, further headers, and an id that is a number.
async fn columns_may_have_other_names(system: System) {
    let place = OutboxDatabase::new(system);
    let mut writer = place.writer().await;
    let q = |name: &str| match system {
        System::Mariadb => format!("`{name}`"),
        _ => format!("\"{name}\""),
    };
    let flag = if system == System::Sqlite { "INTEGER" } else { "BOOLEAN" };
    let time = if system == System::Mariadb { "DATETIME(6)" } else { "timestamp" };
    let table = format!(
        "CREATE TABLE {} ({} BIGINT PRIMARY KEY, {} VARCHAR(99), {} TEXT, {} {time} DEFAULT \
         CURRENT_TIMESTAMP, {} {flag} NOT NULL DEFAULT {}, {} {time}, {} INT NOT NULL DEFAULT 0, \
         {} TEXT, {} TEXT)",
        q("Outbox"),
        q("Id"),
        q("Type"),
        q("Data"),
        q("AddedAt"),
        q("Done"),
        if system == System::Sqlite { "0" } else { "FALSE" },
        q("DoneAt"),
        q("Tries"),
        q("Trace"),
        q("tenant"),
    );
    writer.run(&table).await;
    let insert = |id: u32, trace: &str| {
        let (table, id_name, kind, data) = (q("Outbox"), q("Id"), q("Type"), q("Data"));
        format!(
            "INSERT INTO {table} ({id_name}, {kind}, {data}, {}, tenant) VALUES \
             ({id}, 'A', '{{\"key\": \"k\",  \"a\":1}}', {trace}, 'it''s me')",
            q("Trace")
        )
    };
    writer.run(&insert(7, "'00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'")).await;
    writer.run(&insert(8, "NULL")).await;
    let columns = ", \"outbox\": \"Outbox\", \"headers\": [\"tenant\"], \"columns\": {\"id\": \"Id\", \
         \"event_type\": \"Type\", \"payload\": \"Data\", \"added_at\": \"AddedAt\", \
         \"processed\": \"Done\", \"processed_at\": \"DoneAt\", \"retry_count\": \"Tries\", \
         \"traceparent\": \"Trace\", \"order\": \"Id\"}";
    let mut relay = place.relay(columns).await;
    assert_eq!(relay.rows(2).await, ["7", "8"]);
    let header = |record: &potok_core::Record, name: &str| {
        record.headers.get(name).map(|value| String::from_utf8_lossy(value).into_owned())
    };
    let [first, second] = &relay.records[..] else { panic!("two rows") };
    assert_eq!(first.value.as_deref().unwrap(), b"{\"key\": \"k\",  \"a\":1}");
    assert_eq!(header(first, "potok-id").as_deref(), Some("7"));
    assert_eq!(header(first, "event_type").as_deref(), Some("A"));
    assert_eq!(header(first, "tenant").as_deref(), Some("it's me"));
    let trace = header(first, "traceparent").unwrap();
    assert!(trace.starts_with("00-0af7651916cd43dd8448eb211c80319c-"), "{trace}");
    assert_eq!(header(second, "traceparent"), None);
    relay.end(&["7"]).await;
    relay.set_aside("8").await;
    let (done, id, outbox) = (q("Done"), q("Id"), q("Outbox"));
    let yes = if system == System::Postgres { done.clone() } else { format!("{done} = 1") };
    assert_eq!(place.query(&format!("SELECT {id} FROM {outbox} WHERE {yes}")), ["7"]);
    assert_eq!(place.query(&format!("SELECT {id} FROM {}", q("Outbox_dead"))), ["8"]);
}

mod postgres_only {
    use super::*;

    /// The rights that `--grants` prints are enough for everything that a relay does, and they are no
    /// more than it needs.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_relay_works_with_the_rights_that_are_printed() {
        let place = OutboxDatabase::new(System::Postgres);
        drop(place.relay("").await);
        let mut writer = place.writer().await;
        let user = format!("relay{}", std::process::id());
        let role = format!("CREATE ROLE {user} LOGIN PASSWORD '{user}'");
        services::postgres().query(&services::postgres().admin_url(), &role);
        for grant in place.outbox("").grants() {
            assert!(grant.ends_with(" TO potok"), "{grant}");
            writer.run(&grant.replace(" TO potok", &format!(" TO {user}"))).await;
        }
        let place = place.for_user(&user);
        let more = ", \"create_tables\": false, \"keep_processed\": \"1d\"";
        assert_eq!(place.outbox(more).check().await.unwrap(), [""; 0]);
        let mut relay = place.relay(more).await;
        for (id, key) in [("1", "a"), ("2", "b"), ("3", "b"), ("4", "c"), ("5", "d")] {
            writer.add(id, key, "A").await;
        }
        relay.rows(5).await;
        relay.end(&["1"]).await;
        relay.put_off("2", std::time::Duration::from_secs(50)).await;
        relay.give_back(&["3"]).await;
        relay.set_aside("4").await;
        relay.put_off("5", std::time::Duration::from_secs(50)).await;
        assert_eq!(place.marked(), ["1"]);
        assert!(relay.settle().await.is_empty(), "3 waits for 2");
        assert_eq!(relay.outbox.retry(Some(&[uuid("2")])).await.unwrap(), [uuid("2")]);
        assert_eq!(relay.rows(1).await, ["2"]);
        relay.end(&["2"]).await;
        assert_eq!(relay.rows(1).await, ["3"]);
        relay.end(&["3"]).await;
        assert_eq!(relay.outbox.skip(&[uuid("5")]).await.unwrap(), [uuid("5")]);
        assert_eq!(relay.outbox.replay(&[uuid("4")]).await.unwrap(), [uuid("4")]);
        assert_eq!(relay.rows(1).await, ["4"]);
        relay.set_aside("4").await;
        assert_eq!(relay.outbox.drop_dead(&[uuid("4")]).await.unwrap(), [uuid("4")]);
        assert_eq!(relay.outbox.status().await.unwrap().waiting, 0);
        let old = "UPDATE outbox SET processed_at = '2020-01-01 00:00:00'";
        writer.run(old).await;
        let until = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
        while place.query("SELECT count(*) FROM outbox") != ["0"] {
            assert!(tokio::time::Instant::now() < until, "old rows stay");
            assert!(relay.settle().await.is_empty());
        }
        let may = "SELECT has_column_privilege('NAME', 'outbox', 'payload', 'UPDATE')::int + \
                   has_schema_privilege('NAME', 'public', 'CREATE')::int";
        assert_eq!(place.query(&may.replace("NAME", &user)), ["0"]);
    }

    /// A time that is no time stops nobody.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_row_of_an_infinite_time_is_published() {
        let place = OutboxDatabase::new(System::Postgres);
        let mut relay: Relay = place.relay("").await;
        let mut writer = place.writer().await;
        writer.run("BEGIN").await;
        for id in ["1", "2", "3"] {
            writer.add(id, id, "A").await;
        }
        for (id, time) in [("1", "-infinity"), ("2", "infinity")] {
            let set = format!("UPDATE outbox SET added_at = '{time}' WHERE id = '{}'", uuid(id));
            writer.run(&set).await;
        }
        writer.run("COMMIT").await;
        assert_eq!(relay.rows(3).await, ["1", "2", "3"]);
        assert_eq!(relay.outbox.status().await.unwrap().waiting, 3);
        relay.end_all().await;
        assert_eq!(place.marked().len(), 3);
    }
}

mod mariadb_only {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_table_without_transactions_is_refused() {
        let place = OutboxDatabase::new(System::Mariadb);
        let mut writer = place.writer().await;
        writer.run(&format!("{} ENGINE=MyISAM", documented(System::Mariadb))).await;
        let fault = refused(&place, "").await;
        assert_eq!((fault.next, fault.code), (Move::Fix, "P1302"), "{fault}");
        assert!(format!("{fault:?}").contains("InnoDB"), "{fault:?}");
    }

    /// Two dead letters may have the same values where the table has an index that forbids it of rows.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_dead_letter_takes_the_place_of_another() {
        let place = OutboxDatabase::new(System::Mariadb);
        let mut writer = place.writer().await;
        writer.run(documented(System::Mariadb)).await;
        writer.run("ALTER TABLE outbox ADD COLUMN number INT UNIQUE").await;
        let mut relay = place.relay("").await;
        for id in ["1", "2"] {
            writer.add(id, "k", "A").await;
            writer.run("UPDATE outbox SET number = 5").await;
            relay.rows(1).await;
            relay.set_aside(id).await;
        }
        assert_eq!(place.query("SELECT count(*) FROM outbox_dead"), ["2"]);
    }
}
