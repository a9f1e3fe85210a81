//! Notifications of PostgreSQL: a new row is handed out at once, though the table is not polled for an
//! hour; and a listener that is lost listens again.

use std::time::Duration;

use potok_core::OutboxControl as _;

use crate::place::{Place, Relay, System};

const AN_HOUR: &str = ", \"poll\": \"1h\"";
const LISTENERS: &str = "SELECT pid::text FROM pg_stat_activity \
     WHERE application_name = 'potok listener' AND datname = current_database()";

/// Waits until it listens on another session than this one, and rests.
async fn listening(place: &Place, relay: &mut Relay, not: &str) -> String {
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        assert!(tokio::time::Instant::now() < until, "it does not listen");
        let sessions = place.query(LISTENERS);
        let other = sessions.iter().find(|session| *session != not).cloned();
        if let Some(session) = other.filter(|_| relay.outbox.counts().is_listening) {
            // By now it has found nothing so often that the long pause has begun.
            for _ in 0..4 {
                assert!(relay.settle().await.is_empty());
            }
            return session;
        }
        assert!(relay.settle().await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_is_handed_out_at_once_though_polling_is_slow() {
    let place = Place::new(System::Postgres);
    let mut writer = place.writer().await;
    let mut relay = place.relay(AN_HOUR).await;
    for _ in 0..4 {
        assert!(relay.settle().await.is_empty());
    }
    writer.add("1", "k", "A").await;
    assert!(relay.settle().await.is_empty(), "nobody has told it");
    let (statements, fault) = relay.outbox.notify_ddl().await;
    assert!(fault.is_none() && statements.len() == 2, "{fault:?}");
    // They can be run again.
    for statement in statements.iter().chain(&statements) {
        assert!(!statement.contains(";\n"), "{statement}");
        writer.run(statement).await;
    }
    drop(relay);
    let mut relay = place.relay(AN_HOUR).await;
    assert_eq!(relay.rows(1).await, ["1"]);
    let first = listening(&place, &mut relay, "").await;
    writer.add("2", "k", "A").await;
    assert_eq!(relay.rows(1).await, ["2"]);
    // Nothing is told of a transaction before it commits, and nothing of one that is rolled back.
    writer.run("BEGIN").await;
    writer.add("3", "k", "A").await;
    assert!(relay.settle().await.is_empty());
    writer.run("COMMIT").await;
    assert_eq!(relay.rows(1).await, ["3"]);
    writer.run(&format!("SELECT pg_terminate_backend({first})")).await;
    listening(&place, &mut relay, &first).await;
    writer.add("4", "l", "A").await;
    assert_eq!(relay.rows(1).await, ["4"]);
    relay.end_all().await;
    assert_eq!(place.marked(), ["1", "2", "3", "4"]);
    let counts = relay.outbox.counts();
    assert!(counts.is_owner && counts.is_listening);
    assert_eq!((counts.published, counts.failed, counts.failing_keys), (4, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_databases_have_no_trigger() {
    for system in [System::Sqlite, System::Mariadb] {
        let place = Place::new(system);
        assert!(place.outbox("").notify_ddl().await.0.is_empty());
    }
}
