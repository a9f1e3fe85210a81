//! SQLite: death of the whole process around a commit.
//!
//! Each test starts itself again as a process of its own, which delivers and dies on the way.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use potok_connectors::sqlite::SqliteSink;
use potok_core::{Batch, Sink};

use crate::order::{message, order, orders_config};
use crate::place::{outcomes, query_file};

/// Set in the process that is to die: the file it writes.
const DATABASE: &str = "POTOK_TEST_DATABASE";

fn batch() -> Batch {
    let orders = (0..20).map(|n| message(n, &order(&format!("u{n}"))));
    Batch { messages: orders.collect() }
}

async fn deliver_and_die() {
    if let Some(path) = std::env::var_os(DATABASE) {
        let sink = SqliteSink::new(PathBuf::from(path), orders_config()).unwrap();
        sink.prepare().await.unwrap();
        sink.deliver(&batch()).await.unwrap();
        panic!("the crash point was not reached");
    }
}

fn run_to_death(test: &str, point: &str, path: &Path) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(DATABASE, path)
        .env("POTOK_CRASH_AT", point)
        .output()
        .unwrap();
    assert!(child.status.code().is_none(), "killed by a signal: {child:?}");
}

#[tokio::test]
async fn death_before_the_commit_leaves_nothing() {
    deliver_and_die().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("orders.sqlite");
    run_to_death(
        "sqlite_crash::death_before_the_commit_leaves_nothing",
        "sink.commit.before",
        &path,
    );
    assert_eq!(query_file(&path, "SELECT count(*) FROM orders"), ["0"]);
    let sink: Arc<dyn Sink> = Arc::new(SqliteSink::new(path.clone(), orders_config()).unwrap());
    assert_eq!(outcomes(&sink, batch().messages).await, ["delivered"; 20]);
    assert_eq!(query_file(&path, "SELECT count(*) FROM items"), ["40"]);
}

#[tokio::test]
async fn death_after_the_commit_makes_the_next_attempt_a_repeat() {
    deliver_and_die().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("orders.sqlite");
    let name = "sqlite_crash::death_after_the_commit_makes_the_next_attempt_a_repeat";
    run_to_death(name, "sink.commit.after", &path);
    assert_eq!(query_file(&path, "SELECT count(*) FROM orders"), ["20"]);
    let sink: Arc<dyn Sink> = Arc::new(SqliteSink::new(path.clone(), orders_config()).unwrap());
    assert_eq!(outcomes(&sink, batch().messages).await, ["duplicates"; 20]);
    assert_eq!(query_file(&path, "SELECT count(*) FROM items"), ["40"]);
}
