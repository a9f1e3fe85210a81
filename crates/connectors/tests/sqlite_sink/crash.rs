//! Death of the whole process around a commit.

use std::path::{Path, PathBuf};
use std::process::Command;

use potok_connectors::sqlite::SqliteSink;
use potok_core::{Batch, Sink as _};

use crate::order::{message, order, orders_config, outcomes, query};

fn batch() -> Batch {
    let orders = (0..20).map(|n| message(n, &order(&format!("u{n}"))));
    Batch { messages: orders.collect() }
}

const DATABASE: &str = "POTOK_TEST_DATABASE";

#[tokio::test]
#[ignore = "dies on purpose; the tests below run it as a process of its own"]
async fn child() {
    let path = PathBuf::from(std::env::var_os(DATABASE).unwrap());
    let sink = SqliteSink::new(path, orders_config()).unwrap();
    sink.prepare().await.unwrap();
    sink.deliver(&batch()).await.unwrap();
}

fn die_at(point: &str, path: &Path) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child", "--ignored"])
        .env(DATABASE, path)
        .env("POTOK_CRASH_AT", point)
        .output()
        .unwrap()
        .status;
    assert!(!status.success() && status.code().is_none(), "the child died: {status}");
}

#[tokio::test]
async fn death_before_the_commit_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("orders.sqlite");
    die_at("sink.commit.before", &path);
    assert_eq!(query(&path, "SELECT count(*) FROM orders"), ["0"]);
    let sink = SqliteSink::new(path.clone(), orders_config()).unwrap();
    assert_eq!(outcomes(&sink, batch().messages).await, ["delivered"; 20]);
    assert_eq!(query(&path, "SELECT count(*) FROM items"), ["40"]);
}

#[tokio::test]
async fn death_after_the_commit_is_a_repeat() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("orders.sqlite");
    die_at("sink.commit.after", &path);
    assert_eq!(query(&path, "SELECT count(*) FROM orders"), ["20"]);
    let sink = SqliteSink::new(path.clone(), orders_config()).unwrap();
    assert_eq!(outcomes(&sink, batch().messages).await, ["suppressed"; 20]);
    assert_eq!(query(&path, "SELECT count(*) FROM items"), ["40"]);
}
