//! Flags over environment over file over default, setting by setting.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use potok_config::{
    Connections, Env, Flags, LogConnection, Problems, StoreConnection, load_connections,
};
use potok_connectors::registry;
use potok_connectors::sql::CONNECTIONS;

/// The setting of a database, and the folder its paths are relative to.
fn db(connections: &Connections, name: &str) -> (String, PathBuf) {
    let location = connections.named(&CONNECTIONS, name);
    let found = location.map(|found| (found.text.expose().to_owned(), found.base_dir.clone()));
    found.unwrap_or_default()
}

fn load(text: Option<&str>, flags: &Flags, env: &Env) -> (PathBuf, Result<Connections, Problems>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.yaml");
    let path = text.map(|text| {
        fs::write(&path, text).unwrap();
        path
    });
    (folder.path().to_path_buf(), load_connections(path.as_deref(), flags, env, &registry()))
}

#[test]
fn nothing_is_needed() {
    let (_, connections) = load(None, &Flags::default(), &Env::default());
    let connections = connections.unwrap();
    assert_eq!(connections.data_dir, Path::new("./potok-data"));
    assert_eq!(connections.admin.as_str(), "127.0.0.1:7600");
    assert_eq!(connections.http.as_str(), "127.0.0.1:7601");
    assert_eq!(connections.log, LogConnection::Embedded);
    assert_eq!(connections.store, StoreConnection::Embedded);
    assert_eq!(connections.partitions, 4);
    assert_eq!(connections.drain_max.as_secs(), 30);
    assert_eq!(connections.retention.age.as_secs(), 7 * 86_400);
    assert_eq!(connections.retention.size, None);
    assert!(connections.named(&CONNECTIONS, "orders").is_none());
}

#[test]
fn an_empty_file_is_all_defaults() {
    let (_, connections) = load(Some("# nothing yet\n"), &Flags::default(), &Env::default());
    assert_eq!(connections.unwrap().admin.as_str(), "127.0.0.1:7600");
}

#[test]
fn a_named_file_must_be_there() {
    let missing = Path::new("no/such/file.yaml");
    let problems = load_connections(Some(missing), &Flags::default(), &Env::default(), &registry())
        .unwrap_err();
    assert_eq!(problems.0[0].code, "P0101");
}

#[test]
fn each_setting_is_decided_by_flag_then_variable_then_file() {
    let file = "data_dir: data\nadmin: 127.0.0.1:1\nhttp: 127.0.0.1:1\nlog: kafka://file:1\n\
        store: redis://file:1\nqueue: redis://file:1\ndb: { a: sqlite:file.db, shop-0: sqlite:file0.db, c: sqlite }\npartitions: 9\n";
    let all = [
        ("POTOK_DATA_DIR", "env-data"),
        ("POTOK_ADMIN", "127.0.0.1:2"),
        ("POTOK_HTTP", "127.0.0.1:2"),
        ("POTOK_LOG", "kafka://env:2"),
        ("POTOK_STORE", "redis://env:2"),
        ("POTOK_QUEUE", "redis://env:2"),
        ("POTOK_DB_SHOP_0", "sqlite:env0.db"),
        ("POTOK_DB_UNNAMED", "sqlite"),
    ];
    let flags = Flags {
        data_dir: Some("flag-data".into()),
        admin: Some("127.0.0.1:3".into()),
        http: Some("127.0.0.1:3".into()),
    };

    let (folder, from_file) = load(Some(file), &Flags::default(), &Env::default());
    let from_file = from_file.unwrap();
    assert_eq!(from_file.data_dir, folder.join("data"));
    assert_eq!(from_file.admin.port(), 1);
    assert_eq!(from_file.partitions, 9);
    let places = |all: &Connections| format!("{:?} {:?} {:?}", all.log, all.store, all.queue);
    assert_eq!(places(&from_file).matches("file:1").count(), 3);
    assert_eq!(db(&from_file, "shop-0"), ("sqlite:file0.db".to_owned(), folder.clone()));
    assert_eq!(db(&from_file, "c"), ("sqlite".to_owned(), folder));

    let (folder, from_env) = load(Some(file), &Flags::default(), &Env::of(all));
    let from_env = from_env.unwrap();
    assert_eq!(from_env.data_dir, Path::new("env-data"));
    assert_eq!((from_env.admin.port(), from_env.http.port()), (2, 2));
    assert_eq!(places(&from_env).matches("env:2").count(), 3);
    assert_eq!(db(&from_env, "shop-0"), ("sqlite:env0.db".to_owned(), PathBuf::new()));
    assert_eq!(db(&from_env, "a"), ("sqlite:file.db".to_owned(), folder));
    assert_eq!(db(&from_env, "unnamed"), ("sqlite".to_owned(), PathBuf::new()));

    let (_, from_flags) = load(Some(file), &flags, &Env::of(all));
    let from_flags = from_flags.unwrap();
    assert_eq!(from_flags.data_dir, Path::new("flag-data"));
    assert_eq!((from_flags.admin.port(), from_flags.http.port()), (3, 3));
}

#[test]
fn an_empty_variable_sets_nothing() {
    let env = Env::of([("POTOK_ADMIN", ""), ("POTOK_DB_ORDERS", "")]);
    let (_, connections) = load(None, &Flags::default(), &env);
    assert_eq!(connections.unwrap().admin.port(), 7600);
}

#[test]
fn problems_of_file_environment_and_flags_come_together() {
    let env = Env::of([("POTOK_HTTP", "nowhere"), ("POTOK_LOG", "x")]);
    let flags = Flags { admin: Some("0.0.0.0:1".into()), ..Flags::default() };
    let (_, problems) = load(Some("nonsense: 1\npartitions: 0\n"), &flags, &env);
    let problems = problems.unwrap_err();
    let codes: Vec<_> = problems.iter().map(|problem| problem.code).collect();
    assert_eq!(codes, ["P0120", "P0123", "P0170", "P0129", "P0129"], "{problems}");
    assert!(problems.iter().any(|p| p.file == "environment variable POTOK_HTTP" && p.line == 0));
    assert!(problems.iter().any(|p| p.file == "flag --admin"));
}
