//! A service that is not installed fails the test that wants it, and says how to get it.

use std::process::Command;

use potok_services::Kafka;

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
