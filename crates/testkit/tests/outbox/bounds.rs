//! What a read costs and brings, and values that are easily bent on their way.

use crate::place::{OutboxDatabase, Relay, System, uuid};

on_all! {
    a_read_brings_a_bounded_number_of_bytes,
    rows_come_while_thousands_are_out,
}

/// The first read that brings anything; how many bytes.
async fn first_read(relay: &mut Relay) -> usize {
    relay.rows(1).await;
    relay.records.iter().map(potok_core::Record::bytes).sum()
}

async fn a_read_brings_a_bounded_number_of_bytes(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    writer.run("BEGIN").await;
    let large = "x".repeat(1 << 20);
    for id in 1..=20 {
        let insert = format!(
            "INSERT INTO outbox (id, event_type, payload) VALUES ('{}', 'A', \
             '{{\"key\":\"k\",\"x\":\"{large}\"}}')",
            uuid(&id.to_string())
        );
        writer.run(&insert).await;
    }
    writer.run("COMMIT").await;
    let bytes = first_read(&mut relay).await;
    assert!(bytes > 1 << 20 && bytes < 6 << 20, "{bytes}");
    let left = 20 - relay.seen.len();
    relay.rows(left).await;
    assert_eq!(relay.seen, (1..=20).map(|id| id.to_string()).collect::<Vec<_>>());
}

/// Each read names all that are out. What that costs, the plans below tell.
async fn rows_come_while_thousands_are_out(system: System) {
    let place = OutboxDatabase::new(system);
    let mut relay = place.relay("").await;
    let mut writer = place.writer().await;
    for from in (1..7_900).step_by(100) {
        let rows: Vec<String> = (from..from + 100)
            .map(|id| format!("('{}', 'A', '{{\"key\":\"{id}\"}}')", uuid(&id.to_string())))
            .collect();
        let all = rows.join(",");
        writer.run(&format!("INSERT INTO outbox (id, event_type, payload) VALUES {all}")).await;
    }
    relay.rows(7_900).await;
    for id in 8_001..=8_050 {
        writer.add(&id.to_string(), "k", "A").await;
        assert_eq!(relay.rows(1).await, [id.to_string()]);
    }
}

/// How the server would read and mark with a table of which so many rows are out.
async fn plans(system: System, rows: u32) -> [String; 2] {
    let place = OutboxDatabase::new(system);
    let relay = place.relay("").await;
    let mut writer = place.writer().await;
    writer.add_many("k", 0, rows).await;
    // So that the server knows how many there are.
    writer.run(if system == System::Mariadb { "ANALYZE TABLE outbox" } else { "ANALYZE" }).await;
    let ids: Vec<String> = (1..=2_000).map(|id: u32| uuid(&id.to_string())).collect();
    relay.outbox.plans(&ids).await.unwrap().map(|lines| lines.join("\n"))
}

mod plans {
    use super::a_long_list_of_ids_stays_a_list;

    on_servers! {
        a_long_list_of_ids_stays_a_list,
    }
}

/// Elsewhere a note locks nothing but the rows it changes, however it finds them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_notes_rows_by_their_ids() {
    rows_are_noted_by_their_ids(System::Mariadb).await;
}

/// `GenericPlan`: the server knows the ids as constants. Else it compares each row with each of them, or
/// puts them into a table of its own, and reads cost many times as much.
pub async fn a_long_list_of_ids_stays_a_list(system: System) {
    let [read, _] = plans(system, 3_000).await;
    match system {
        System::Mariadb => {
            let becomes_table = read.contains("MATERIALIZED") || read.contains("tvc_");
            assert!(!becomes_table, "the list is a table of its own: {read}");
        }
        _ => assert!(read.contains("<> ALL ('{00000000-"), "the ids are no constants: {read}"),
    }
}

/// Rule 12: whatever else the server may find quicker looks at rows that others have locked.
pub async fn rows_are_noted_by_their_ids(system: System) {
    let [_, mark] = plans(system, 3_000).await;
    let is_of_rows = |line: &&str| line.split_whitespace().any(|word| word == "o");
    let mut of_rows = mark.lines().filter(is_of_rows).peekable();
    assert!(of_rows.peek().is_some(), "{mark}");
    let by_id = of_rows.all(|line| line.contains(" range PRIMARY PRIMARY "));
    assert!(by_id, "it looks at the whole table: {mark}");
}

mod postgres_only {
    use super::*;

    /// What `payload::text` says, whatever the column is; bytes as they are.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn payloads_are_what_the_server_prints() {
        for (kind, given, expected) in [
            ("json", "'{\"b\":1.50e1, \"a\":2,\"a\":\"\\u0451\"}'", None),
            ("jsonb", "'{\"b\":1.50e1, \"a\":2,\"a\":\"\\u0451\"}'", None),
            ("text", "'{\"key\" : 1 }'", None),
            ("bytea", "'\\x00ff7b7d'", Some(&[0_u8, 255, 0x7b, 0x7d][..])),
        ] {
            let place = OutboxDatabase::new(System::Postgres);
            let mut writer = place.writer().await;
            let table = format!(
                "CREATE TABLE outbox (id uuid PRIMARY KEY, event_type text, payload {kind}, added_at \
                 timestamptz DEFAULT clock_timestamp(), processed boolean NOT NULL DEFAULT false, \
                 processed_at timestamptz, retry_count int NOT NULL DEFAULT 0)"
            );
            writer.run(&table).await;
            let insert = format!(
                "INSERT INTO outbox (id, event_type, payload) VALUES ('{}', 'A', {given})",
                uuid("1")
            );
            writer.run(&insert).await;
            let mut relay = place.relay("").await;
            relay.rows(1).await;
            let value = relay.records[0].value.clone().unwrap();
            match expected {
                Some(bytes) => assert_eq!(&value[..], bytes, "{kind}"),
                None => {
                    let printed = place.query("SELECT payload::text FROM outbox").join("");
                    assert_eq!(value, printed.as_bytes(), "{kind}");
                }
            }
            if kind == "jsonb" {
                assert_eq!(&value[..], "{\"a\": \"ё\", \"b\": 15.0}".as_bytes());
            }
        }
    }

    /// Columns without a zone are in UTC, wherever the server thinks that it is.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn times_without_a_zone_are_in_utc() {
        let place = OutboxDatabase::new(System::Postgres);
        let mut writer = place.writer().await;
        let zone = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = ''Asia/Tokyo''', \
                    current_database()); END $$";
        writer.run(zone).await;
        writer
            .run(
                "CREATE TABLE outbox (id uuid PRIMARY KEY, event_type text, payload text, added_at \
                 timestamp DEFAULT (clock_timestamp() AT TIME ZONE 'UTC'), processed boolean NOT NULL \
                 DEFAULT false, processed_at timestamp, retry_count int NOT NULL DEFAULT 0, seq bigint \
                 GENERATED BY DEFAULT AS IDENTITY)",
            )
            .await;
        let mut relay = place.relay(", \"keep_processed\": \"2h\"").await;
        assert_eq!(place.query("SHOW timezone"), ["Asia/Tokyo"]);
        for id in ["1", "2"] {
            writer.add(id, "k", "A").await;
        }
        relay.rows(2).await;
        let now = potok_core::Clock::now(&potok_core::SystemClock).0;
        let away = (relay.records[0].time.0 - now).abs();
        assert!(away < 10 * 60_000, "the row is {away} ms away from now");
        let added = relay.records[0].headers.get("added_at").unwrap();
        assert!(!added.ends_with(b"Z"), "as it is stored");
        relay.end(&["1", "2"]).await;
        let odd = "SELECT count(*) FROM outbox WHERE abs(extract(epoch FROM (processed_at - \
                   (clock_timestamp() AT TIME ZONE 'UTC')))) > 600";
        assert_eq!(place.query(odd), ["0"]);
        // Three hours old in UTC goes, one hour old stays.
        for (id, hours) in [("1", 3), ("2", 1)] {
            let old = format!(
                "UPDATE outbox SET processed_at = (clock_timestamp() AT TIME ZONE 'UTC') - interval \
                 '{hours} hours' WHERE id = '{}'",
                uuid(id)
            );
            writer.run(&old).await;
        }
        let end = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
        while place.marked() != ["2"] {
            assert!(tokio::time::Instant::now() < end, "{:?}", place.marked());
            assert!(relay.settle().await.is_empty());
        }
    }
}
