//! Servers that are away, killed, frozen, read-only, full: waited for, and nothing is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use potok_core::{Fault, Move, Sink};

use crate::order::{orders, orders_config};
use crate::place::{System, attempt, is, outcomes};
use crate::server::Server;

on_servers!(
    a_server_that_is_not_there_yet_is_waited_for,
    a_server_killed_in_the_middle_of_batches_loses_and_doubles_nothing,
    a_frozen_server_does_not_hold_a_call,
    a_read_only_server_is_noticed_by_the_probe,
    too_many_connections_are_waited_for,
    a_lock_held_by_others_is_an_attempt_that_failed,
    tls_works_and_is_demanded,
    a_server_beyond_this_machine_must_prove_who_it_is,
);

/// More than any bound of the sinks here: whatever takes longer hangs.
const HANGS: Duration = Duration::from_secs(60);

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANGS, work).await.expect("it hangs")
}

async fn until_ok(sink: &Arc<dyn Sink>) {
    within(async {
        while let Err(fault) = sink.probe().await {
            assert_eq!(fault.next, Move::Wait, "{fault}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

async fn a_server_that_is_not_there_yet_is_waited_for(system: System) {
    let server = Server::start(system, &[], false);
    let sink = system.hasty_sink(&server.url(), orders_config());
    server.kill();
    let away = system.pick_server("P0701", "P0801");
    is(&sink.prepare().await.unwrap_err(), Move::Wait, away);
    is(&sink.probe().await.unwrap_err(), Move::Wait, away);
    is(&attempt(&sink, orders(0..3)).await.unwrap_err(), Move::Wait, away);
    server.restart();
    until_ok(&sink).await;
    // Nobody prepared: the first call does.
    assert_eq!(attempt(&sink, orders(0..3)).await.unwrap(), ["delivered"; 3]);

    // Connections opened before a restart are dead, which no call has to suffer from.
    server.restart();
    assert_eq!(
        attempt(&sink, orders(0..5)).await.unwrap()[2..],
        ["duplicates", "delivered", "delivered"]
    );
}

async fn a_server_killed_in_the_middle_of_batches_loses_and_doubles_nothing(system: System) {
    const BATCHES: u64 = 40;
    const KILLS: u64 = 4;
    let server = Arc::new(Server::start(system, &[], false));
    let sink = system.hasty_sink(&server.url(), orders_config());
    sink.prepare().await.unwrap();
    let done = Arc::new(AtomicU64::new(0));
    let lane = |lane: u64| {
        let (sink, done) = (sink.clone(), done.clone());
        async move {
            let mut waits = 0;
            for batch in 0..BATCHES {
                let from = (lane * BATCHES + batch) * 50;
                loop {
                    match attempt(&sink, orders(from..from + 50)).await {
                        Ok(words) => {
                            assert!(words.iter().all(|w| w == "delivered" || w == "duplicates"));
                            done.fetch_add(1, Ordering::Relaxed);
                            break;
                        }
                        Err(fault) => {
                            let may = matches!(fault.next, Move::Wait | Move::Retry);
                            assert!(may, "an outage is nobody's fault here: {fault}");
                            waits += 1;
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                    }
                }
            }
            waits
        }
    };
    let lanes = [tokio::spawn(lane(0)), tokio::spawn(lane(1))];
    for kill in 1..=KILLS {
        within(async {
            while done.load(Ordering::Relaxed) < kill * BATCHES / 4 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        server.kill();
        server.restart();
    }
    let mut waits = 0;
    for lane in lanes {
        waits += within(lane).await.unwrap();
    }
    assert!(waits > 0, "{KILLS} kills, nobody noticed");
    assert_eq!((server.count("orders"), server.count("items")), (4_000, 8_000));
    assert_eq!((server.count("deliveries"), server.count("payments")), (4_000, 4_000));
}

async fn a_frozen_server_does_not_hold_a_call(system: System) {
    let server = Server::start(system, &[], false);
    let sink = system.hasty_sink(&server.url(), orders_config());
    assert_eq!(outcomes(&sink, orders(0..3)).await, ["delivered"; 3]);
    server.freeze();
    // On a connection that is open, on a new one, and for the probe.
    let silent = system.pick_server("P0705", "P0805");
    for _ in 0..2 {
        let fault = within(attempt(&sink, orders(3..6))).await.unwrap_err();
        is(&fault, Move::Wait, silent);
    }
    is(&within(sink.probe()).await.unwrap_err(), Move::Wait, silent);
    server.thaw();
    until_ok(&sink).await;
    let words = within(outcomes(&sink, orders(0..9))).await;
    assert_eq!(words[..3], ["duplicates"; 3]);
    assert_eq!((server.count("orders"), server.count("items")), (9, 18));
}

async fn a_read_only_server_is_noticed_by_the_probe(system: System) {
    let server = Server::start(system, &[], false);
    let url = match system {
        System::Sqlite => panic!("SQLite is no server"),
        System::Postgres => server.url(),
        System::Mariadb => {
            // Who may do everything may also write to a read-only server.
            server.admin("CREATE USER app IDENTIFIED BY 'app'");
            server
                .admin("GRANT SELECT, INSERT, UPDATE, CREATE, REFERENCES, INDEX ON potok.* TO app");
            server.url().replace("potok:potok@", "app:app@")
        }
    };
    let switch = |on: bool| {
        match system {
            System::Sqlite => panic!("SQLite is no server"),
            System::Postgres => {
                let value = if on { "on" } else { "off" };
                server.admin(&format!("ALTER SYSTEM SET default_transaction_read_only = {value}"));
                server.admin("SELECT pg_reload_conf()");
            }
            System::Mariadb => {
                server.admin(&format!("SET GLOBAL read_only = {}", i32::from(on)));
            }
        };
    };
    let sink = system.hasty_sink(&url, orders_config());
    assert_eq!(outcomes(&sink, orders(0..2)).await, ["delivered"; 2]);
    sink.probe().await.unwrap();
    let read_only = system.pick_server("P0703", "P0803");
    switch(true);
    // Sessions learn of it when they get round to it.
    let fault = within(async {
        loop {
            if let Err(fault) = sink.probe().await {
                return fault;
            }
        }
    })
    .await;
    is(&fault, Move::Wait, read_only);
    is(&attempt(&sink, orders(2..4)).await.unwrap_err(), Move::Wait, read_only);
    is(&sink.prepare().await.unwrap_err(), Move::Wait, read_only);
    switch(false);
    until_ok(&sink).await;
    assert_eq!(outcomes(&sink, orders(1..4)).await, ["duplicates", "delivered", "delivered"]);
    assert_eq!(server.count("orders"), 4);
}

async fn too_many_connections_are_waited_for(system: System) {
    let url = system.database(&tempfile::tempdir().unwrap());
    let database = url.rsplit('/').next().unwrap().to_owned();
    let few = format!("few_{database}");
    match system {
        System::Sqlite => panic!("SQLite is no server"),
        System::Postgres => {
            let server = potok_testkit::services::postgres();
            let admin = server.admin_url();
            server.query(
                &admin,
                &format!("CREATE ROLE {few} LOGIN PASSWORD 'few' CONNECTION LIMIT 1"),
            );
            server.query(&admin, &format!("ALTER DATABASE {database} OWNER TO {few}"));
        }
        System::Mariadb => {
            system.query(
                &url.replace("potok:potok@", "root:@"),
                &format!(
                    "CREATE USER {few} IDENTIFIED BY 'few' WITH MAX_USER_CONNECTIONS 1; \
                 GRANT ALL ON {database}.* TO {few}"
                ),
            );
        }
    }
    let url = url.replace("potok:potok@", &format!("{few}:few@"));
    let one = system.hasty_sink(&url, orders_config());
    let other = system.hasty_sink(&url, orders_config());
    // Its connection stays open, for the next call.
    let fault: Fault = within(async {
        loop {
            outcomes_when_free(&one).await;
            if let Err(fault) = other.prepare().await {
                return fault;
            }
        }
    })
    .await;
    is(&fault, Move::Wait, system.pick_server("P0704", "P0804"));
    is(&other.probe().await.unwrap_err(), Move::Wait, system.pick_server("P0704", "P0804"));
    drop(one);
    until_ok(&other).await;
    outcomes_when_free(&other).await;
}

/// The server may take a moment to notice that a connection was closed.
async fn outcomes_when_free(sink: &Arc<dyn Sink>) {
    within(async {
        while let Err(fault) = attempt(sink, orders(0..2)).await {
            assert_eq!(fault.next, Move::Wait, "{fault}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

async fn a_lock_held_by_others_is_an_attempt_that_failed(system: System) {
    let url = system.database(&tempfile::tempdir().unwrap());
    let sink = system.hasty_sink(&url, orders_config());
    assert_eq!(outcomes(&sink, orders(0..1)).await, ["delivered"]);
    // Another program inserts the same order and takes its time.
    let holder = {
        let sql = system.pick_server(
            "BEGIN; INSERT INTO orders VALUES ('u1', '', '', '', 0, '', 'theirs'); \
             SELECT pg_sleep(6); ROLLBACK",
            "BEGIN; INSERT INTO orders VALUES ('u1', '', '', '', 0, '', 'theirs'); \
             SELECT sleep(6); ROLLBACK",
        );
        let url = url.clone();
        tokio::task::spawn_blocking(move || system.query(&url, sql))
    };
    let sleeps = system.pick_server(
        "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = \
         current_database()",
        "SELECT 1 FROM information_schema.processlist WHERE info = 'SELECT sleep(6)' AND db = \
         database()",
    );
    while system.query(&url, sleeps).is_empty() {
        assert!(!holder.is_finished(), "it did not hold the lock");
    }
    let fault = within(attempt(&sink, orders(1..2))).await.unwrap_err();
    assert_eq!(fault.next, Move::Retry, "{fault}");
    holder.await.unwrap();
    let words = outcomes(&sink, orders(0..2)).await;
    assert_eq!(words[0], "duplicates");
}

async fn tls_works_and_is_demanded(system: System) {
    let server = Server::start(system, &[], true);
    let mode = |mode: &str| format!("{}?ssl-mode={mode}", server.url());
    let urls = [
        mode(system.pick_server("require", "REQUIRED")),
        format!(
            "{}&ssl-ca={}",
            mode(system.pick_server("verify-full", "VERIFY_IDENTITY")),
            server.authority()
        ),
    ];
    for (url, n) in urls.iter().zip(0..) {
        let sink = system.hasty_sink(url, orders_config());
        assert_eq!(outcomes(&sink, orders(n..n + 1)).await, ["delivered"]);
    }
    // An authority nobody knows is not trusted.
    let url = mode(system.pick_server("verify-full", "VERIFY_IDENTITY"));
    let sink = system.hasty_sink(&url, orders_config());
    is(&sink.prepare().await.unwrap_err(), Move::Wait, system.pick_server("P0710", "P0811"));

    // Where it is demanded, there is nothing without it.
    let plain = system.database(&tempfile::tempdir().unwrap());
    let url = format!("{plain}?ssl-mode={}", system.pick_server("require", "REQUIRED"));
    let sink = system.hasty_sink(&url, orders_config());
    is(&sink.prepare().await.unwrap_err(), Move::Wait, system.pick_server("P0710", "P0811"));
}

/// By `0.0.0.0` one reaches this machine, under an address that is not a loopback one.
fn beyond(url: &str) -> String {
    url.replace("127.0.0.1", "0.0.0.0")
}

async fn a_server_beyond_this_machine_must_prove_who_it_is(system: System) {
    let code = system.pick_server("P0710", "P0811");
    let refused = |url: String, part: &'static str| async move {
        let sink = system.hasty_sink(&url, orders_config());
        for fault in [sink.prepare().await.unwrap_err(), sink.probe().await.unwrap_err()] {
            is(&fault, Move::Wait, code);
            assert!(fault.to_string().contains(part), "{part} not in {fault}");
        }
    };
    // No TLS at all: on loopback nothing is demanded, beyond it everything.
    let plain = system.database(&tempfile::tempdir().unwrap());
    system.hasty_sink(&plain, orders_config()).prepare().await.unwrap();
    refused(beyond(&plain), "speaks no TLS").await;
    let without = system.pick_server("sslmode=disable", "ssl-mode=DISABLED");
    let url = format!("{}?{without}", beyond(&plain));
    system.hasty_sink(&url, orders_config()).prepare().await.unwrap();

    let everywhere = system.pick_server(("listen_addresses", "*"), ("bind-address", "0.0.0.0"));
    let server = Server::start(system, &[everywhere], true);
    refused(beyond(&server.url()), system.pick_server("`sslrootcert=FILE`", "`ssl-ca=FILE`")).await;
    let authority = system.pick_server("sslrootcert", "ssl-ca");
    let known = format!("{authority}={}", server.authority());
    let url = format!("{}?{known}", beyond(&server.url()));
    let sink = system.hasty_sink(&url, orders_config());
    assert_eq!(outcomes(&sink, orders(0..1)).await, ["delivered"]);
    // The certificate is good, but for other names.
    let other = server.url().replace("127.0.0.1", "127.0.0.2");
    let demanded = system.pick_server("sslmode=verify-full", "ssl-mode=VERIFY_IDENTITY");
    refused(format!("{other}?{demanded}&{known}"), "not trusted").await;
}
