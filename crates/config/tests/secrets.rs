//! A canary in every secret place, and then everything that prints.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

use potok_config::{Env, Flags, Problems, load_connections, load_pipeline};
use potok_connectors::registry;
use potok_connectors::sql::CONNECTIONS;

const CANARY: &str = "canary";

fn file(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path
}

fn assert_silent(what: &str, printed: &str) {
    assert!(!printed.contains(CANARY), "{what} prints the canary: {printed}");
}

fn assert_problems_silent(what: &str, problems: &Problems) {
    assert!(!problems.is_empty());
    assert_silent(what, &problems.to_string());
    assert_silent(what, &format!("{problems:?}"));
    assert_silent(what, &serde_json::to_string(problems).unwrap());
}

#[test]
fn a_loaded_pipeline_prints_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let text = "name: a\nsource: { topic: l }\nprocess:\n  \
        - { stage: one, webhook: \"https://u:canary@host\" }\n  \
        - { stage: two, webhook: \"${PUSH}\" }\ndeliver: [ { topic: b } ]\n";
    let path = file(folder.path(), "a.yaml", text);
    let env = Env::of([("PUSH", "https://push/canary")]);
    let loaded = load_pipeline(&path, &env, &registry()).unwrap_or_else(|all| panic!("{all}"));
    assert_silent("Debug", &format!("{loaded:?}"));
    assert_silent("Env", &format!("{env:?}"));
}

#[test]
fn loaded_connections_print_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let text = "log: { kafka: \"u:canary@h:9092\", properties: { sasl.password: canary, \
        sasl.username: canary } }\nstore: redis://:canary@h\ndb: { orders: \"postgres://u:canary@h/d?password=canary\" }\n";
    let path = file(folder.path(), "potok.yaml", text);
    let env = Env::of([("POTOK_DB_OTHER", "mysql://u:canary@h/d")]);
    let connections = load_connections(Some(&path), &Flags::default(), &env, &registry()).unwrap();
    assert_silent("Debug", &format!("{connections:?}"));
    assert_silent("JSON", &serde_json::to_string(&connections).unwrap());
    for (name, scheme) in [("orders", "postgres://"), ("other", "mysql://")] {
        let location = connections.named(&CONNECTIONS, name).unwrap();
        assert!(location.text.expose().starts_with(scheme));
        assert_silent("db", &format!("{location:?}"));
    }
}

/// A mistake beside, before or inside a secret shows its line, without the secret.
#[test]
fn problems_print_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    for (index, text) in [
        // A wrong value in the place of the secret.
        "log: canary://x\n",
        "log: [canary]\n",
        "log: { kafka: [canary, { a: canary }] }\n",
        "log: { kafka: h, properties: { sasl.password: [canary] } }\n",
        "log: { kafka: h, properties: { sasl.password: { canary: canary } } }\n",
        "store: { redis: { url: canary } }\n",
        "db: { orders: canary }\n",
        "db: { orders: { url: canary } }\n",
        "db: { orders: |\n  canary\n  canary\n }\n",
        // A mistake on the line of a secret.
        "log: { kafka: canary, propertie: 1 }\n",
        "log: { kafka: \"canary\", properties: { a: canary }, create_topics: 5 }\n",
        "store: { redis: canary, keys: canny }\n",
        // A misspelt key, behind which a secret stands.
        "stor: redis://:canary@h\n",
        "log: { kafka: h, property: { sasl.password: canary } }\n",
        // Twice.
        "db: { orders: \"postgres://u:canary@h\", orders: canary }\n",
        "log: { kafka: h, properties: { sasl.password: canary, sasl.password: canary } }\n",
        // Not YAML at all.
        "db: { orders: \"postgres://u:canary@h\n",
        "log: { properties: { sasl.password: \"canary\n",
        "store: redis://:canary@h: x\n",
        "admin: a:0\nhttp_token: canary: b: c\n",
        "redis://:canary@h\n",
        // An unset variable beside a secret.
        "log: { kafka: \"canary${UNSET}canary\" }\n",
        "db: { orders: \"postgres://u:canary@h/${UNSET}\" }\n",
    ]
    .iter()
    .enumerate()
    {
        let path = file(folder.path(), &format!("{index}.yaml"), text);
        let problems =
            load_connections(Some(&path), &Flags::default(), &Env::default(), &registry());
        let problems = problems.err().unwrap_or_else(|| panic!("no problem: {text}"));
        assert_problems_silent(text, &problems);
    }
    for (index, text) in [
        "name: a\nsource: { topic: a }\ndeliver: [ { webhook: n, headers: { a: [canary] }, secret: [canary] } ]\n",
        "name: a\nsource: { topic: a }\ndeliver: [ { webhook: n, tpoic: b, auth: canary, my_token: canary } ]\n",
        "name: a\nsource: { topic: a }\ndeliver: [ { topic: b } ]\nprocess: [ { stage: s, timeout: 1s, webhook: { push: canary, pull: canary } } ]\n",
        "name: a\nsource: { topic: a }\ndeliver: [ { topic: a, webhook: \"https://u:canary@h\" } ]\n",
        "name: a\nsource: { topic: a }\ndeliver: [ { webhok: \"https://h/canary\" } ]\n",
        "name: a\nsource: { topic: a }\ndeliver: [ { topic: b } ]\nprocess: [ { stage: s, vrl: x, webhook: canary } ]\n",
        "name: a\nsource: { topic: a }\ndeliver: [ { topic: b } ]\nprocess: [ { stage: s, webhook: [canary] } ]\n",
        "name: a\nsource: { topic: a }\ndeliver: [ { topic: b } ]\nprocess: [ { stage: s, webhok: canary } ]\n",
        "name: a\nsource: { topic: a }\ndeliver: [ { topic: b } ]\nprocess: [ { stage: s, webhook: canary, timeout: x } ]\n",
    ]
    .iter()
    .enumerate()
    {
        let path = file(folder.path(), &format!("p{index}.yaml"), text);
        let problems = load_pipeline(&path, &Env::default(), &registry());
        assert_problems_silent(text, &problems.err().unwrap_or_else(|| panic!("{text}")));
    }
}

#[test]
fn wrong_flags_and_variables_print_no_secret() {
    let flags = Flags { http: Some("canary".into()), ..Flags::default() };
    let env = Env::of([
        ("POTOK_LOG", "canary"),
        ("POTOK_STORE", "canary"),
        ("POTOK_QUEUE", "canary"),
        ("POTOK_DB_SHOP", "postgres:canary"),
    ]);
    let problems = load_connections(None, &flags, &env, &registry()).unwrap_err();
    let (addresses, others): (Vec<_>, Vec<_>) =
        problems.into_iter().partition(|problem| problem.file == "flag --http");
    // An address to listen on is no secret.
    assert_eq!((addresses.len(), others.len()), (1, 4));
    assert_problems_silent("flags", &Problems(others));
}
