//! A folder written by version 1 of the format, kept so that later versions still read it.
//!
//! `POTOK_BLESS=1 cargo test -p potok-connectors --test embedded_log fixture` makes it anew.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use potok_connectors::embedded::{DEAD_TOPIC, EmbeddedLog, Options};
use potok_core::{EndedOffsets, HeadersBuilder, Log, Output, Transaction};

use super::support::*;

const TOPICS: [&str; 5] = ["odd", "orders", "out", "slow", DEAD_TOPIC];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/embedded-v1")
}

fn options() -> Options {
    Options {
        segment_bytes: 2_500,
        retention_age: Some(Duration::from_secs(60)),
        reserve_bytes: 0,
        ..small()
    }
}

/// Everything a reader can know of the log, as lines.
async fn describe(log: &EmbeddedLog) -> String {
    let mut lines = String::new();
    for topic in TOPICS {
        let all: BTreeMap<_, _> = read_all(log, topic).await.into_iter().collect();
        for (position, record) in all {
            writeln!(
                lines,
                "{position} {} {:?} {:?} {:?}",
                record.time, record.key, record.headers, record.value
            )
            .unwrap();
        }
    }
    for topic in log.topics().await.unwrap() {
        writeln!(lines, "{topic:?}").unwrap();
    }
    for group in log.consumer_groups().await.unwrap() {
        // A field that came later, which nothing of version 1 has.
        writeln!(lines, "{}", format!("{group:?}").replace(", internal: None", "")).unwrap();
    }
    for damage in log.damage() {
        writeln!(lines, "{damage:?}").unwrap();
    }
    lines
}

/// One of each: odd records, transactions, several openings, a roll, a torn tail that was kept
/// aside, a segment that was rewritten, one that was unlinked.
async fn bless(folder: &Path) {
    let _ = std::fs::remove_dir_all(folder);
    let clock = TestClock::new();
    let open = || EmbeddedLog::open(folder, options(), clock.clone()).unwrap();
    let log = open();
    let headers = HeadersBuilder::new().add("a", Some(b"1")).add("a", None).build();
    let odd = vec![
        Output { value: None, ..output("odd", None, "") },
        Output { headers, ..output("odd", Some(""), "with headers") },
    ];
    log.append(&odd).await.unwrap();
    drop(Member::open(&log, spec("paused", &["slow", "odd"])).await.unwrap());
    let mut member = Member::open(&log, spec("orders", &["orders"])).await.unwrap();
    for round in 0..12 {
        append(&log, "slow", &format!("slow {round}")).await.unwrap();
        for n in 0..3 {
            append(&log, "orders", &format!("order {round}.{n}")).await.unwrap();
        }
        let batch = member.batch().await.unwrap();
        let transaction = Transaction {
            outputs: batch.records.iter().map(|r| output("out", None, &text(r))).collect(),
            ended: vec![EndedOffsets {
                partition: batch.partition.clone(),
                assignment: batch.assignment,
                // All but the last, so that holes stay.
                ranges: std::iter::once(batch.first..batch.next - round % 2).collect(),
            }],
        };
        member.open.journal.transact(&transaction).await.unwrap();
    }
    drop((member, log));
    let newest = std::fs::read_dir(folder.join("log")).unwrap();
    let newest = newest
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "seg"))
        .max();
    let newest = newest.unwrap();
    let mut bytes = std::fs::read(&newest).unwrap();
    bytes.extend_from_slice(b"PTKF torn");
    std::fs::write(&newest, bytes).unwrap();
    let log = open();
    clock.advance(Duration::from_secs(3_600));
    append(&log, "orders", "after the cut").await.unwrap();
    log.retain_now().await;
    let described = describe(&log).await;
    drop(log);
    std::fs::write(folder.join("expected.txt"), described).unwrap();
    std::fs::remove_file(folder.join("LOCK")).unwrap();
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn a_folder_of_version_1_is_read() {
    run(async {
        if std::env::var_os("POTOK_BLESS").is_some() {
            bless(&folder()).await;
        }
        let scratch = tempfile::tempdir().unwrap();
        copy(&folder(), scratch.path());
        let expected = std::fs::read_to_string(folder().join("expected.txt")).unwrap();
        assert!(expected.lines().count() > 50);
        // Opened by itself, the folder is not changed: it reads the same the second time.
        for _ in 0..2 {
            // Retention is kept from looking: the fixture is old by now.
            let options = Options { retention_age: None, ..options() };
            let log = EmbeddedLog::open(scratch.path(), options, TestClock::new()).unwrap();
            assert_eq!(describe(&log).await, expected);
            assert_eq!(log.damage().len(), 1);
        }
        // And it is written on.
        let log = EmbeddedLog::open(scratch.path(), options(), TestClock::new()).unwrap();
        let position = append(&log, "orders", "new").await.unwrap();
        assert_eq!(values(&log, "orders").await[&position], "new");
        let _: Arc<EmbeddedLog> = log;
    });
}
