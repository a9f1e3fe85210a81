//! PostgreSQL and MariaDB.

use potok_services::{Mariadb, MariadbOptions, Postgres, PostgresOptions};

use crate::processes::{alive, inside, stopped};

#[test]
fn postgres_keeps_its_data_through_kill_and_stop() {
    let postgres = Postgres::start();
    let url = postgres.fresh_database();
    assert_ne!(url, postgres.url());
    assert_ne!(url, postgres.fresh_database());
    postgres.query(&url, "CREATE TABLE t (id int PRIMARY KEY, text text)");
    postgres.query(&url, "INSERT INTO t VALUES (1, 'a\tb\nc'), (2, NULL), (3, '')");

    let (port, pid) = (postgres.port(), postgres.pid());
    postgres.kill();
    assert_eq!(postgres.pid(), 0);
    assert!(!alive(pid));
    assert_eq!(inside(postgres.folder()), Vec::<u32>::new());
    postgres.restart();
    assert_eq!(postgres.port(), port);
    let rows = postgres.query(&url, "SELECT id, text FROM t ORDER BY id");
    assert_eq!(rows, [["1", "a\tb\nc"], ["2", "NULL"], ["3", ""]]);

    postgres.stop();
    assert_eq!(postgres.pid(), 0);
    postgres.restart();
    assert_eq!(postgres.query(&url, "SELECT count(*) FROM t"), [["3"]]);
    assert!(postgres.logs().contains("database system is ready"), "{}", postgres.logs());
}

#[test]
fn mariadb_keeps_its_data_through_kill_and_stop() {
    let mariadb = Mariadb::start();
    let url = mariadb.fresh_database();
    assert_ne!(url, mariadb.url());
    assert_ne!(url, mariadb.fresh_database());
    mariadb.query(&url, "CREATE TABLE t (id int PRIMARY KEY, text text)");
    mariadb.query(&url, "INSERT INTO t VALUES (1, 'a\tb\nc\\\\'), (2, NULL), (3, '')");

    let (port, pid) = (mariadb.port(), mariadb.pid());
    mariadb.kill();
    assert_eq!(mariadb.pid(), 0);
    assert!(!alive(pid));
    mariadb.restart();
    assert_eq!(mariadb.port(), port);
    let rows = mariadb.query(&url, "SELECT id, text FROM t ORDER BY id");
    assert_eq!(rows, [["1", "a\tb\nc\\"], ["2", "NULL"], ["3", ""]]);

    mariadb.stop();
    mariadb.restart();
    assert_eq!(mariadb.query(&url, "SELECT count(*) FROM t"), [["3"]]);
    assert!(mariadb.logs().contains("ready for connections"), "{}", mariadb.logs());
}

/// A frozen postmaster alone would let open connections go on.
#[test]
fn a_frozen_postgres_stands_still_with_all_its_backends() {
    let postgres = Postgres::start();
    let url = postgres.url();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| postgres.query(&url, "SELECT pg_sleep(2), 'done'"));
        let working = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' \
                       AND state = 'active'";
        crate::wait::until("the question is being worked on", || {
            (!postgres.query(&postgres.admin_url(), working).is_empty()).then_some(())
        });
        postgres.freeze();
        let all = inside(postgres.folder());
        assert!(all.len() > 2, "{all:?}");
        assert!(all.iter().all(|pid| stopped(*pid)), "{all:?}");
        assert!(!asked.is_finished());
        postgres.thaw();
        assert_eq!(asked.join().unwrap(), [["", "done"]]);
    });
    let all = inside(postgres.folder());
    assert!(!all.iter().any(|pid| stopped(*pid)), "{all:?}");
    assert_eq!(postgres.query(&url, "SELECT 1"), [["1"]]);
}

#[test]
fn a_frozen_database_can_be_stopped_and_killed() {
    let mariadb = Mariadb::start();
    mariadb.freeze();
    assert!(stopped(mariadb.pid()));
    mariadb.thaw();
    assert_eq!(mariadb.query(&mariadb.url(), "SELECT 1"), [["1"]]);
    mariadb.freeze();
    mariadb.restart();
    assert_eq!(mariadb.query(&mariadb.url(), "SELECT 2"), [["2"]]);

    let postgres = Postgres::start();
    postgres.freeze();
    postgres.kill();
    assert_eq!(inside(postgres.folder()), Vec::<u32>::new());
    postgres.restart();
    assert_eq!(postgres.query(&postgres.url(), "SELECT 2"), [["2"]]);
}

#[test]
fn postgres_speaks_tls_and_takes_settings() {
    let settings = vec![("max_connections".to_owned(), "17".to_owned())];
    let options = PostgresOptions { tls: true, settings, ..PostgresOptions::default() };
    let postgres = Postgres::start_with(&options);
    let authority = postgres.certificate().unwrap().authority.display().to_string();
    let url = format!("{}?sslmode=verify-full&sslrootcert={authority}", postgres.url());
    let mine = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    assert_eq!(postgres.query(&url, mine), [["t"]]);
    assert_eq!(postgres.query(&url, "SHOW max_connections"), [["17"]]);
}

#[test]
fn mariadb_speaks_tls_and_takes_settings() {
    let settings = vec![("max-connections".to_owned(), "17".to_owned())];
    let options = MariadbOptions { tls: true, settings, ..MariadbOptions::default() };
    let mariadb = Mariadb::start_with(&options);
    assert!(mariadb.certificate().unwrap().authority.is_file());
    let shown = mariadb.query(&mariadb.url(), "SELECT @@have_ssl, @@max_connections");
    assert_eq!(shown, [["YES", "17"]]);
}

#[test]
fn data_that_is_kept_is_found_again() {
    let folder = std::env::temp_dir().join(format!("potok-kept-{}", std::process::id()));
    let data = Some(folder.clone());
    let options = PostgresOptions { data, ..PostgresOptions::default() };
    let first = Postgres::start_with(&options);
    first.query(&first.url(), "CREATE TABLE kept (id int)");
    drop(first);
    let second = Postgres::start_with(&options);
    assert_eq!(second.query(&second.url(), "SELECT count(*) FROM kept"), [["0"]]);
    drop(second);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Tests of one program share a server and run side by side.
#[test]
fn fresh_databases_are_made_side_by_side() {
    let (postgres, mariadb) = (potok_services::postgres(), potok_services::mariadb());
    let mut urls: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| [postgres.fresh_database(), mariadb.fresh_database()]))
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    urls.sort();
    urls.dedup();
    assert_eq!(urls.len(), 16);
}
