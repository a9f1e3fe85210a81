//! What a row is as a record, and what becomes of it in the table.

use crate::place::{OutboxDatabase, System, uuid};

on_all! {
    a_row_is_a_record_and_is_marked_when_it_ended,
    rows_whose_flag_is_null_are_published,
    old_rows_are_deleted_and_waiting_ones_never,
    the_statements_can_be_run_again,
}

async fn a_row_is_a_record_and_is_marked_when_it_ended(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    writer.add("1", "k", "it's").await;
    writer.add("2", "k", "B").await;
    assert_eq!(relay.rows(2).await, ["1", "2"]);
    let record = &relay.records[0];
    assert_eq!(record.value.as_deref().unwrap(), b"{\"key\": \"k\",  \"id\":\"1\"}");
    assert_eq!(record.headers.get("id").unwrap(), uuid("1").as_bytes());
    assert_eq!(record.headers.get("event_type").unwrap(), b"it's");
    assert!(record.headers.get("added_at").unwrap().starts_with(b"20"));
    assert!(record.headers.get("traceparent").is_none());
    let names: Vec<&str> = record.headers.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["id", "event_type", "added_at", "potok-id"]);
    assert!(place.marked().is_empty());
    relay.end(&["1"]).await;
    assert_eq!(place.marked(), ["1"]);
    assert!(relay.settle().await.is_empty(), "what is out does not come again");
    relay.end(&["2"]).await;
    assert_eq!(place.marked(), ["1", "2"]);
    let at = place.query("SELECT count(*) FROM outbox WHERE processed_at IS NOT NULL");
    assert_eq!(at, ["2"]);
}

pub async fn rows_whose_flag_is_null_are_published(system: System) {
    let place = OutboxDatabase::new(system);
    let mut writer = place.writer().await;
    let table = match system {
        System::Sqlite => {
            "CREATE TABLE outbox (id TEXT PRIMARY KEY, event_type TEXT, payload TEXT, added_at TEXT \
             DEFAULT CURRENT_TIMESTAMP, processed, processed_at TEXT, retry_count INTEGER)"
        }
        System::Postgres => {
            "CREATE TABLE outbox (id bigint PRIMARY KEY, event_type text, payload jsonb, added_at \
             timestamp DEFAULT now(), processed boolean, processed_at timestamp, retry_count int)"
        }
        System::Mariadb => {
            "CREATE TABLE outbox (id BIGINT PRIMARY KEY, event_type TEXT, payload JSON, added_at \
             TIMESTAMP DEFAULT NOW(), processed BOOLEAN, processed_at TIMESTAMP NULL, retry_count INT)"
        }
    };
    writer.run(table).await;
    let insert = "INSERT INTO outbox (id, event_type, payload) VALUES (7, 'A', '{\"key\":1}')";
    writer.run(insert).await;
    let mut relay = place.relay("").await;
    assert_eq!(relay.rows(1).await, ["7"]);
    // A count that is null is none.
    assert_eq!(relay.attempts["7"], 0);
    relay.put_off("7", std::time::Duration::ZERO).await;
    assert_eq!(relay.rows(1).await, ["7"]);
    assert_eq!(relay.attempts["7"], 1);
    relay.end(&["7"]).await;
    assert_eq!(place.query("SELECT count(*) FROM outbox WHERE processed IS NOT NULL"), ["1"]);
    assert!(relay.settle().await.is_empty());
}

pub async fn old_rows_are_deleted_and_waiting_ones_never(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay(", \"keep_processed\": \"1d\"").await;
    let mut writer = place.writer().await;
    for id in ["1", "2", "3"] {
        writer.add(id, "k", "A").await;
    }
    relay.rows(3).await;
    relay.end(&["1", "2"]).await;
    let old = format!(
        "UPDATE outbox SET added_at = '2020-01-01 00:00:00', processed_at = '2020-01-01 00:00:00' \
         WHERE id <> '{}'",
        uuid("2")
    );
    writer.run(&old).await;
    let left = || place.query("SELECT count(*) FROM outbox");
    let end = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    while left() != ["2"] {
        let waiting = place.query("SELECT count(*) FROM outbox WHERE processed IS NOT TRUE");
        assert_eq!(waiting, ["1"], "a row that waits was deleted");
        assert!(tokio::time::Instant::now() < end, "{:?}", left());
        assert!(relay.settle().await.is_empty());
    }
    assert_eq!(place.marked(), ["2"]);
}

async fn the_statements_can_be_run_again(system: System) {
    let place = OutboxDatabase::new(system);
    let outbox = place.outbox(", \"keep_processed\": \"1d\"");
    let (statements, _) = outbox.ddl().await;
    let mut writer = place.writer().await;
    let all: String = statements.iter().map(|statement| format!("{statement};\n")).collect();
    for _ in 0..2 {
        writer.run(&format!("BEGIN; {all} COMMIT;")).await;
    }
    let (again, fault) = place.outbox(", \"keep_processed\": \"1d\"").ddl().await;
    assert!(fault.is_none(), "{fault:?}");
    for statement in again {
        writer.run(&statement).await;
    }
    // The documented table, without a column that counts.
    let place = OutboxDatabase::new(system);
    let mut writer = place.writer().await;
    let (id, flag) = match system {
        System::Sqlite => ("TEXT", "BOOLEAN"),
        System::Postgres => ("uuid", "boolean"),
        System::Mariadb => ("CHAR(36)", "BOOLEAN"),
    };
    let time = if system == System::Mariadb { "DATETIME(6)" } else { "timestamp" };
    writer
        .run(&format!(
            "CREATE TABLE outbox (id {id} PRIMARY KEY, event_type varchar(99), payload TEXT, \
             added_at {time} NOT NULL DEFAULT CURRENT_TIMESTAMP, processed {flag} NOT NULL DEFAULT \
             FALSE, processed_at {time}, retry_count int NOT NULL DEFAULT 0)"
        ))
        .await;
    let (statements, fault) = place.outbox("").ddl().await;
    assert!(fault.is_none(), "{fault:?}");
    for statement in statements.iter().chain(&statements) {
        writer.run(statement).await;
    }
    let mut relay = place.relay("").await;
    writer.add("5", "k", "A").await;
    assert_eq!(relay.rows(1).await, ["5"]);
    relay.set_aside("5").await;
    let [dead] = relay.outbox.dead_rows(None).await.unwrap().try_into().unwrap();
    assert_eq!((dead.id, dead.attempts), (uuid("5"), 1));
    assert_eq!(dead.error, "it's \\ over");
    relay.outbox.replay(&[uuid("5")]).await.unwrap();
    assert_eq!(relay.rows(1).await, ["5"]);
    relay.end(&["5"]).await;
    assert_eq!(place.query("SELECT count(*) FROM outbox_dead"), ["0"]);
}
