//! SQLite: files that are away, locked, read-only, damaged, replaced.

use std::fs;
use std::os::unix::fs::FileExt as _;

use potok_connectors::sqlite::SqliteSink;
use potok_core::{Batch, Move, Sink as _};
use rusqlite::Connection;

use crate::order::{message, order, orders_config};
use crate::place::{System, TestDatabase, is, query_file};

fn batch(offset: u64) -> Batch {
    Batch { messages: vec![message(offset, &order(&format!("u{offset}")))] }
}

#[tokio::test]
async fn the_constructor_touches_nothing_and_prepare_makes_folders() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/b/orders.sqlite");
    let sink = SqliteSink::new(path.clone(), orders_config()).unwrap();
    assert!(!folder.path().join("a").exists());
    // Creating it is allowed, so there is nothing to wait for.
    sink.probe().await.unwrap();
    assert!(!folder.path().join("a").exists());
    sink.prepare().await.unwrap();
    assert!(path.exists());
}

#[tokio::test]
async fn a_missing_file_is_waited_for_where_it_may_not_be_created() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("not/mounted/orders.sqlite");
    let mut config = orders_config();
    config.create_tables = false;
    let sink = SqliteSink::new(path.clone(), config).unwrap();
    is(&sink.prepare().await.unwrap_err(), Move::Wait, "P0305");
    is(&sink.probe().await.unwrap_err(), Move::Wait, "P0305");
    is(&sink.deliver(&batch(1)).await.unwrap_err(), Move::Wait, "P0305");
    // It comes: by itself, everything goes on.
    let other = SqliteSink::new(folder.path().join("other.sqlite"), orders_config()).unwrap();
    other.prepare().await.unwrap();
    drop(other);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let made = Connection::open(folder.path().join("other.sqlite")).unwrap();
    made.execute("VACUUM INTO ?1", [path.to_str().unwrap()]).unwrap();
    sink.probe().await.unwrap();
    sink.deliver(&batch(1)).await.unwrap();
}

#[tokio::test]
async fn a_folder_that_cannot_be_made_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "in the way").unwrap();
    let path = folder.path().join("file/orders.sqlite");
    let sink = SqliteSink::new(path, orders_config()).unwrap();
    is(&sink.prepare().await.unwrap_err(), Move::Wait, "P0305");
    fs::remove_file(folder.path().join("file")).unwrap();
    sink.prepare().await.unwrap();
}

#[tokio::test]
async fn a_read_only_database_is_waited_for_and_noticed_by_the_probe() {
    let place = TestDatabase::orders(System::Sqlite).await;
    place.deliver(batch(1).messages).await;
    let (path, _folder, sink) = (place.path().to_owned(), place.folder, place.sink);
    drop(sink);
    // The header's write version makes a database read-only for everybody, root included.
    wait_until_closed(&path).await;
    let header = fs::OpenOptions::new().write(true).open(&path).unwrap();
    header.write_all_at(&[9], 18).unwrap();
    let sink = SqliteSink::new(path.clone(), orders_config()).unwrap();
    is(&sink.probe().await.unwrap_err(), Move::Wait, "P0306");
    is(&sink.deliver(&batch(2)).await.unwrap_err(), Move::Wait, "P0306");
    header.write_all_at(&[2], 18).unwrap();
    sink.probe().await.unwrap();
    sink.deliver(&batch(2)).await.unwrap();
    assert_eq!(query_file(&path, "SELECT count(*) FROM orders"), ["2"]);
}

/// The writer closes the file when the last sink is gone; SQLite then removes the WAL.
async fn wait_until_closed(path: &std::path::Path) {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    while std::path::Path::new(&wal).exists() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_lock_of_another_program_is_waited_for() {
    let place = TestDatabase::orders(System::Sqlite).await;
    let other = Connection::open(place.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    is(&place.sink.probe().await.unwrap_err(), Move::Wait, "P0305");
    is(&place.sink.deliver(&batch(1)).await.unwrap_err(), Move::Wait, "P0305");
    other.execute_batch("ROLLBACK").unwrap();
    place.sink.probe().await.unwrap();
    assert_eq!(place.deliver(batch(1).messages).await, ["delivered"]);
}

#[tokio::test]
async fn readers_do_not_disturb_the_writer() {
    let place = TestDatabase::orders(System::Sqlite).await;
    place.deliver(batch(1).messages).await;
    let reader = Connection::open(place.path()).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    let count = || reader.query_row("SELECT count(*) FROM orders", [], |row| row.get::<_, i64>(0));
    assert_eq!(count().unwrap(), 1);
    assert_eq!(place.deliver(batch(2).messages).await, ["delivered"]);
    assert_eq!(count().unwrap(), 1);
}

#[tokio::test]
async fn a_file_that_is_no_database_is_the_operators_to_fix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("orders.sqlite");
    fs::write(
        &path,
        "this is a text, and longer than a header of a database would be: ".repeat(99),
    )
    .unwrap();
    let before = fs::read(&path).unwrap();
    let sink = SqliteSink::new(path.clone(), orders_config()).unwrap();
    is(&sink.prepare().await.unwrap_err(), Move::Fix, "P0303");
    is(&sink.probe().await.unwrap_err(), Move::Fix, "P0303");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn a_deleted_file_is_noticed_before_anything_counts_as_delivered() {
    let place = TestDatabase::orders(System::Sqlite).await;
    assert_eq!(place.deliver(batch(1).messages).await, ["delivered"]);
    for name in ["test.sqlite", "test.sqlite-wal", "test.sqlite-shm"] {
        fs::remove_file(place.path().with_file_name(name)).unwrap();
    }
    is(&place.sink.deliver(&batch(2)).await.unwrap_err(), Move::Wait, "P0310");
    is(&place.sink.deliver(&batch(2)).await.unwrap_err(), Move::Wait, "P0305");
    place.sink.probe().await.unwrap();
    place.sink.prepare().await.unwrap();
    assert_eq!(place.deliver(batch(2).messages).await, ["delivered"]);
    assert_eq!(place.query("SELECT order_uid FROM orders"), ["u2"]);
}

#[tokio::test]
async fn a_replaced_file_and_a_deleted_wal_are_noticed_too() {
    let place = TestDatabase::orders(System::Sqlite).await;
    let copy = place.folder.path().join("copy.sqlite");
    Connection::open(place.path())
        .unwrap()
        .execute("VACUUM INTO ?1", [copy.to_str().unwrap()])
        .unwrap();
    assert_eq!(place.deliver(batch(1).messages).await, ["delivered"]);
    fs::rename(&copy, place.path()).unwrap();
    is(&place.sink.deliver(&batch(2)).await.unwrap_err(), Move::Wait, "P0310");
    // Nothing of the old file's WAL may reach the new file.
    place.sink.prepare().await.unwrap();
    assert_eq!(place.count("orders"), 0);
    assert_eq!(place.deliver(batch(2).messages).await, ["delivered"]);

    // Without its WAL the file is still ours, and what was committed gets into it.
    fs::remove_file(place.path().with_file_name("test.sqlite-wal")).unwrap();
    is(&place.sink.deliver(&batch(3)).await.unwrap_err(), Move::Wait, "P0310");
    place.sink.prepare().await.unwrap();
    assert_eq!(place.deliver(batch(3).messages).await, ["duplicates"]);
    assert_eq!(place.query("SELECT order_uid FROM orders"), ["u2", "u3"]);
}
