//! Destinations that are away, and a disk that is full: nothing healthy becomes a dead letter, and
//! work goes on by itself.

use std::fs;
use std::process::Command;

use potok_traffic::orders::{OrderGenerator, OrderKind};
use rusqlite::Connection;
use serde_json::Value;

use crate::check::{Tables, assert_kept};
use crate::disk::Disk;
use crate::ledger::Ledger;
use crate::load::{Sender, lines};
use crate::process::{Home, Running};
use crate::wait;

fn gate_is(running: &Running, state: &str) -> Value {
    wait::until(&format!("the gate is {state}"), || {
        let status = running.status();
        (status["gate"]["state"] == state).then_some(status)
    })
}

/// Every line that is not about the log or the process itself names its pipeline, and one about a gate
/// its destination.
fn lines_name_what_they_are_about(running: &Running) {
    let journal = running.journal();
    let own = ["the log takes appends again", "stopping:"];
    let is_said = |line: &&str| [" WARN ", " INFO ", " ERROR "].iter().any(|l| line.contains(l));
    for line in journal.lines().filter(is_said) {
        let is_own = own.iter().any(|own| line.contains(own));
        assert!(is_own || line.contains("pipeline=orders"), "{line}");
        let of_gate = line.contains("gate closed") || line.contains("gate open");
        assert!(!of_gate || line.contains("destination=orders"), "{line}");
    }
    assert!(journal.contains("gate closed") && journal.contains("gate open"), "{journal}");
}

/// Another program holds the database; potok is even killed ten times meanwhile.
#[test]
fn a_locked_database_closes_the_gate_and_loses_nothing() {
    let home = Home::new();
    let mut ledger = Ledger::default();
    let mut generator = OrderGenerator::good_only(60);
    let mut send = |running: &Running| {
        let orders: Vec<_> = (0..20).map(|_| generator.good()).collect();
        assert!(running.send_lines(&lines(&orders), &[]));
        assert!(orders.iter().all(|order| order.kind == OrderKind::Good));
        ledger.note(orders, true);
    };
    let running = home.start();
    send(&running);
    running.drained();

    let other = Connection::open(home.database()).unwrap();
    other.busy_timeout(wait::PATIENCE).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    send(&running);
    let status = gate_is(&running, "closed");
    assert!(status["gate"]["why"].is_string() && status["gate"]["since"].is_string(), "{status}");
    assert_eq!(status["dead_lettered"], 0);
    assert_eq!(running.get("/live").unwrap().0, 200);
    assert_eq!(running.get("/ready").unwrap().0, 200, "records wait in the log");
    running.kill();
    for _ in 0..10 {
        let running = home.start();
        send(&running);
        running.kill();
    }
    let running = home.start();
    gate_is(&running, "closed");
    other.execute_batch("ROLLBACK").unwrap();
    gate_is(&running, "open");
    assert_kept(&home, &running, &ledger);
    assert_eq!(running.status()["dead_lettered"], 0);
    lines_name_what_they_are_about(&running);
}

/// The place of the database does not exist when potok starts, and comes later.
#[test]
fn a_database_that_is_away_at_start_is_waited_for() {
    let home = Home::new();
    home.settings("db: { orders: \"sqlite:elsewhere/orders.sqlite\" }\n");
    let elsewhere = home.path().join("elsewhere");
    fs::write(&elsewhere, "a file where a folder should be").unwrap();
    let running = home.start();
    let orders: Vec<_> = {
        let mut generator = OrderGenerator::good_only(61);
        (0..20).map(|_| generator.good()).collect()
    };
    assert!(running.send_lines(&lines(&orders), &[]));
    let status = gate_is(&running, "closed");
    assert_eq!((&status["lag"], &status["dead_lettered"]), (&20.into(), &0.into()));
    assert_eq!(running.get("/live").unwrap().0, 200);

    fs::remove_file(&elsewhere).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    let status = running.drained();
    assert_eq!((&status["delivered"], &status["dead_lettered"]), (&20.into(), &0.into()));
    assert_eq!(Tables::read(&elsewhere.join("orders.sqlite")).count(), 20);
}

#[test]
fn a_full_disk_is_said_and_survived_without_a_restart() {
    let home = Home::new();
    let disk = Disk::under(&home);
    let mut sender = Sender::new(62);
    let running = disk.start(&home, &[]).expect("starts");
    assert!(sender.send(&running, 100));
    for _ in 0..5 {
        disk.set_full(true);
        let refused =
            running.run(["send", "orders"], &lines(&[OrderGenerator::good_only(63).good()]));
        assert_eq!(refused.code, Some(1), "nothing is acknowledged: {}", refused.stderr);
        assert!(!refused.stderr.is_empty());
        wait::until("/ready says no", || (running.get("/ready")?.0 == 503).then_some(()));
        assert_eq!(running.get("/live").unwrap().0, 200);
        disk.set_full(false);
        wait::until("records are taken again", || sender.send(&running, 20).then_some(()));
        wait::until("/ready says yes", || (running.get("/ready")?.0 == 200).then_some(()));
    }
    let mut unknown = Ledger::default();
    unknown.note(vec![OrderGenerator::good_only(63).good()], false);
    sender.ledger.join(unknown);
    assert_kept(&home, &running, &sender.ledger);
    running.kill();
    assert_kept(&home, &home.start(), &sender.ledger);
}

/// How large files may become, in bytes.
fn limit_file_size(running: &Running, bytes: &str) {
    let pid = running.pid().to_string();
    let mut limit = Command::new("prlimit");
    limit.args(["--pid", &pid]).arg(format!("--fsize={bytes}:"));
    assert!(limit.status().expect("prlimit starts").success());
}

/// `ulimit -f`: beyond it the system would end the process by a signal.
#[test]
fn a_limit_on_the_size_of_files_is_a_full_disk() {
    let home = Home::new();
    let mut sender = Sender::new(64);
    let running = home.start();
    assert!(sender.send(&running, 100));
    running.drained();
    // Smaller than files are already: the log's, the database's, and what potok says.
    limit_file_size(&running, "4096");
    let refused = running.run(["send", "orders"], &lines(&[OrderGenerator::good_only(65).good()]));
    assert_eq!(refused.code, Some(1), "nothing is acknowledged: {}", refused.stderr);
    assert!(refused.stderr.contains("P0203"), "{}", refused.stderr);
    wait::until("/ready says no", || (running.get("/ready")?.0 == 503).then_some(()));
    assert_eq!(running.get("/live").unwrap().0, 200);
    limit_file_size(&running, "unlimited");
    wait::until("records are taken again", || sender.send(&running, 20).then_some(()));
    wait::until("/ready says yes", || (running.get("/ready")?.0 == 200).then_some(()));
    let mut unknown = Ledger::default();
    unknown.note(vec![OrderGenerator::good_only(65).good()], false);
    sender.ledger.join(unknown);
    assert_kept(&home, &running, &sender.ledger);
}
