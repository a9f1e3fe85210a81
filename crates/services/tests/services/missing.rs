//! A service that cannot start fails the test that wants it, and says why.

use std::net::TcpListener;
use std::process::Command;

use potok_services::{
    Kafka, KafkaOptions, Mariadb, MariadbOptions, Postgres, PostgresOptions, Redis, RedisOptions,
};

const ALONE: &str = "POTOK_TEST_ALONE";

#[test]
fn a_missing_service_says_how_to_get_it() {
    const TEST: &str = "missing::a_missing_service_says_how_to_get_it";
    if std::env::var_os(ALONE).is_some() {
        // Fails, as the test of somebody without Kafka would.
        drop(Kafka::start());
        return;
    }
    let without = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture"])
        .env(ALONE, "1")
        .env("XDG_CACHE_HOME", "/nowhere")
        .output()
        .unwrap();
    assert!(!without.status.success());
    let said = String::from_utf8_lossy(&without.stderr);
    assert!(said.contains("Apache Kafka"), "{said}");
    assert!(said.contains("cargo xtask services install"), "{said}");
    // The place is the test's, not ours.
    assert!(said.contains("missing.rs"), "{said}");
}

/// Where the port was a free one, these words are what makes us take another.
#[test]
fn a_port_that_is_taken_is_named_as_the_cause() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = Some(taken.local_addr().unwrap().port());
    let failures = [
        Kafka::open(&KafkaOptions { port, ..KafkaOptions::default() }).unwrap_err(),
        Postgres::open(&PostgresOptions { port, ..PostgresOptions::default() }).unwrap_err(),
        Mariadb::open(&MariadbOptions { port, ..MariadbOptions::default() }).unwrap_err(),
        Redis::open(&RedisOptions { port, ..RedisOptions::default() }).unwrap_err(),
    ];
    for failure in failures {
        let said = failure.to_string();
        assert!(said.contains("ended: exit status"), "{said}");
        assert!(said.contains("; address already in use; the end of"), "{said}");
    }
}
