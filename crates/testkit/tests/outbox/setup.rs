//! Tables that are not as they should be: said at once, or worked with.

use potok_core::{Fault, Feed as _, Move};

use crate::place::{OutboxDatabase, Relay, System, info, uuid};

on_all! {
    missing_tables_are_said_with_the_command,
    a_table_with_rows_gets_no_index,
    columns_may_have_other_names,
}

async fn refused(place: &OutboxDatabase, more: &str) -> Fault {
    let log = potok_testkit::memory::MemoryLog::new(std::sync::Arc::new(potok_core::SystemClock));
    let opened = place.outbox(more).open(&info(), std::sync::Arc::new(log)).await;
    opened.err().expect("it is opened")
}

/// The documented table, without anything beside it.
fn documented(system: System) -> &'static str {
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
