//! Destinations that are away in all the ways a server can be: the gate closes and opens by
//! itself, and no record becomes a dead letter for it.

use potok_services::{Kafka, Mode};
use serde_json::Value;

use crate::database::Database;
use crate::process::{Home, Running};
use crate::replica::{Replica, Sender, Settings, assert_kept};
use crate::wait;

fn gate_is(running: &Running, state: &str) -> Value {
    wait::until(&format!("the gate is {state}"), || {
        let status = running.status();
        (status["gate"]["state"] == state).then_some(status)
    })
}

#[test]
fn outages_of_postgresql_set_nothing_aside() {
    let database = Database::postgres();
    let read_only: Outage<'_> =
        ("read-only", &|| database.set_read_only(true), &|| database.set_read_only(false));
    outages(&database, &[read_only]);
}

#[test]
fn outages_of_mariadb_set_nothing_aside() {
    // Who may do everything on MariaDB may write to a read-only one too; `--test sql` covers it.
    outages(&Database::mariadb(), &[]);
}

/// How it leaves and comes back.
type Outage<'a> = (&'a str, &'a dyn Fn(), &'a dyn Fn());

fn outages(database: &Database, more: &[Outage<'_>]) {
    let kafka = Kafka::start();
    let settings = Settings::new(&kafka, database);
    let mut sender = Sender::good_only(&settings, 81);
    assert!(sender.send(50));
    let mut replica = Replica::start(&settings);
    replica.running().drained();
    let ways: [Outage<'_>; 3] = [
        ("cut", &|| database.pass(Mode::Cut), &|| database.pass(Mode::Pass)),
        ("silent", &|| database.pass(Mode::BlackHole), &|| database.pass(Mode::Pass)),
        ("killed", &|| database.kill(), &|| database.restart()),
    ];
    for (how, leave, come_back) in ways.iter().chain(more) {
        leave();
        assert!(sender.send(50));
        let status = gate_is(replica.running(), "closed");
        assert!(status["gate"]["why"].is_string(), "{how}: {status}");
        assert!(status["gate"]["since"].is_string(), "{how}: {status}");
        assert_eq!(status["dead_lettered"], 0, "{how}: {status}");
        assert_eq!(replica.running().get("/live").unwrap().0, 200, "{how}");
        assert_eq!(replica.running().get("/ready").unwrap().0, 200, "{how}: orders wait in Kafka");
        if *how == "cut" {
            // A start in the middle of an outage waits the same way.
            replica.restart();
            gate_is(replica.running(), "closed");
        }
        come_back();
        gate_is(replica.running(), "open");
        assert_kept(database, &[&replica], &sender.ledger);
    }
    let status = replica.running().status();
    assert_eq!((&status["dead_lettered"], &status["restarts"]), (&0.into(), &0.into()), "{status}");
}

/// Nothing of what it needs is there when potok starts.
#[test]
fn a_cold_start_with_everything_down_waits() {
    let (kafka, database) = (Kafka::start(), Database::postgres());
    let settings = Settings::new(&kafka, &database);
    database.kill();
    kafka.kill();
    let home = Home::new();
    let mut environment = settings.environment().to_vec();
    environment.push(("RUST_LOG", "info,potok_connectors::kafka::poller=debug"));
    let mut running = home.start_unready(&environment);
    wait::until("it says what it waits for", || {
        let status = running.run(["status", "orders", "--json"], b"");
        (status.code == Some(0) && status.text().contains("waiting")).then_some(())
    });
    assert_eq!(running.get("/live").unwrap().0, 200);
    kafka.restart();
    let mut sender = Sender::good_only(&settings, 82);
    wait::until("Kafka takes orders", || sender.send(20).then_some(()));
    assert!(running.is_alive());
    database.restart();
    wait::until("all are in the tables", || (database.tables().count() >= 20).then_some(()));
    assert!(running.is_alive());
    assert_eq!(running.drained()["dead_lettered"], 0);
    // Said by the thread that polls Kafka.
    let journal = running.journal();
    let mut lines = journal.lines().filter(|line| line.contains("partitions come")).peekable();
    assert!(lines.peek().is_some(), "{journal}");
    assert!(lines.all(|line| line.matches("pipeline=orders").count() == 1), "{journal}");
}
