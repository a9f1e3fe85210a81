//! Appending, reading, reopening.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use potok_connectors::embedded::{EmbeddedLog, Options, partition_of};
use potok_core::{
    HeadersBuilder, Log, Move, Output, Position, RECORD_BYTES_MAX, ReadFrom, Reason, Store,
    SystemClock,
};
use potok_testkit::FaultyDisk;

use super::support::*;

fn odd_records() -> Vec<Output> {
    let headers = HeadersBuilder::new().add("a", Some(b"1")).add("a", None).add("", Some(b""));
    vec![
        Output { key: None, value: None, ..output("odd", None, "") },
        Output { key: Some(Bytes::new()), value: Some(Bytes::new()), ..output("odd", None, "") },
        Output {
            partition: Some(1),
            headers: headers.build(),
            value: Some(Bytes::from_static(b"\x00\xff\xfe")),
            ..output("odd", Some("\u{0}key"), "")
        },
        Output { value: Some(Bytes::from(vec![7; 100_000])), ..output("odd", Some("large"), "") },
    ]
}

#[test]
fn every_byte_comes_back_also_after_reopening() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { partitions: 2, ..small() };
        let mut positions = Vec::new();
        for round in 0..3 {
            let log =
                EmbeddedLog::open(dir.path(), options.clone(), Arc::new(SystemClock)).unwrap();
            positions.extend(log.append(&odd_records()).await.unwrap());
            let read: BTreeMap<_, _> = read_all(&log, "odd").await.into_iter().collect();
            assert_eq!(read.len(), 4 * (round + 1));
            for (position, output) in positions.iter().zip(odd_records().iter().cycle()) {
                let record = &read[position];
                assert_eq!(record.key, output.key, "{position}");
                assert_eq!(record.headers, output.headers);
                assert_eq!(record.value, output.value);
                assert!(record.time.0 > 1_600_000_000_000);
            }
            assert!(log.damage().is_empty());
            assert_eq!(log.trouble(), None);
        }
        let opened: std::collections::BTreeSet<u64> = positions.iter().map(|p| p.log).collect();
        assert_eq!(opened.len(), 3, "every opening is an incarnation of its own");
    });
}

#[test]
fn keys_find_their_partition_for_ever() {
    // Written down, not computed: a change of the hash would tear keys apart in old folders.
    let expected = [("", 0), ("a", 3), ("b", 1), ("order-17", 0), ("поток", 0)];
    let found = expected.map(|(key, _)| (key, partition_of(key.as_bytes(), 4)));
    assert_eq!(found, expected);
    run(async {
        let log = open(&FaultyDisk::new());
        let keyless: Vec<Output> = (0..10).map(|_| output("t", None, "v")).collect();
        let mut counts: HashMap<u32, usize> = HashMap::new();
        for single in &keyless {
            let at = log.append(std::slice::from_ref(single)).await.unwrap();
            // Another topic in between must not make it skip partitions.
            log.append(&[output("u", None, "v")]).await.unwrap();
            *counts.entry(at[0].partition).or_default() += 1;
        }
        assert_eq!(counts, HashMap::from([(0, 5), (1, 5)]));
    });
}

#[test]
fn positions_come_in_the_order_of_the_outputs() {
    run(async {
        let log = open(&FaultyDisk::new());
        let outputs: Vec<Output> = (0..200)
            .map(|n| output(["t", "u"][n % 2], Some(&format!("k{}", n % 7)), &n.to_string()))
            .collect();
        let positions = log.append(&outputs).await.unwrap();
        let mut all = values(&log, "t").await;
        all.extend(values(&log, "u").await);
        assert_eq!(all.len(), 200);
        for (n, position) in positions.iter().enumerate() {
            assert_eq!(all[position], n.to_string());
            assert_eq!(&*position.topic, ["t", "u"][n % 2]);
        }
    });
}

#[test]
fn readers_start_where_they_are_told() {
    run(async {
        let log = open_with(&FaultyDisk::new(), Options { partitions: 1, ..small() }).unwrap();
        for n in 0..50 {
            append(&log, "t", &n.to_string()).await.unwrap();
        }
        let log = &log;
        let from = |from| async move {
            let all = read_from(log, "t", from).await;
            all.iter().map(|(position, _)| position.offset).collect::<Vec<_>>()
        };
        assert_eq!(from(ReadFrom::Start).await, (0..50).collect::<Vec<u64>>());
        assert_eq!(from(ReadFrom::Offset(47)).await, [47, 48, 49]);
        assert_eq!(from(ReadFrom::Offset(50)).await, [0_u64; 0]);
        assert_eq!(from(ReadFrom::End).await, [0_u64; 0]);
        let Err(fault) = log.read("nowhere", ReadFrom::Start).await else {
            panic!("no such topic")
        };
        assert_eq!((fault.next, fault.code), (Move::Fix, "P0207"));
        let mut reader = log.read("t", ReadFrom::End).await.unwrap();
        assert!(reader.next(false).await.unwrap().is_none());
        // Waiting is cancelled and taken up again; nothing is lost by that.
        let waiting = tokio::time::timeout(Duration::from_millis(20), reader.next(true)).await;
        assert!(waiting.is_err());
        append(log, "t", "later").await.unwrap();
        assert_eq!(text(&reader.next(true).await.unwrap().unwrap().records[0]), "later");
    });
}

#[test]
fn large_frames_come_in_batches() {
    run(async {
        let log = open_with(&FaultyDisk::new(), Options { partitions: 1, ..small() }).unwrap();
        let outputs: Vec<Output> =
            (0..12_000).map(|n| output("t", None, &format!("{n:0>100}"))).collect();
        log.append(&outputs).await.unwrap();
        append(&log, "t", "last").await.unwrap();
        let mut reader = log.read("t", ReadFrom::Start).await.unwrap();
        let mut next = 0;
        while let Some(batch) = reader.next(false).await.unwrap() {
            assert!(batch.records.len() <= 5_000);
            assert_eq!(batch.first, next, "no gap between batches");
            assert_eq!(batch.next - batch.first, batch.records.len() as u64);
            next = batch.next;
        }
        assert_eq!(next, 12_001);
    });
}

#[test]
fn bad_input_is_refused_and_nothing_else_stops() {
    run(async {
        let log = open(&FaultyDisk::new());
        let huge = Output {
            value: Some(Bytes::from(vec![0; RECORD_BYTES_MAX + 1])),
            ..output("t", None, "")
        };
        let fault = log.append(&[output("t", None, "a"), huge]).await.unwrap_err();
        assert_eq!(
            (fault.next, fault.reason, fault.code),
            (Move::SetAside, Reason::TooLarge, "P0205")
        );
        for name in ["", "a b", "a/b", "a\n", &"x".repeat(250)] {
            let fault = log.append(&[output(name, None, "a")]).await.unwrap_err();
            assert_eq!((fault.next, fault.code), (Move::Fix, "P0206"), "{name:?}");
        }
        let far = Output { partition: Some(2), ..output("t", None, "a") };
        assert_eq!(log.append(&[far]).await.unwrap_err().next, Move::Fix);
        assert_eq!(log.append(&[]).await.unwrap(), []);
        append(&log, "t", "good").await.unwrap();
        assert_eq!(values(&log, "t").await.len(), 1);
    });
}

#[test]
fn a_record_of_the_largest_size_passes() {
    run(async {
        let log = open(&FaultyDisk::new());
        let value = Bytes::from(vec![b'x'; RECORD_BYTES_MAX]);
        let large = Output { value: Some(value.clone()), ..output("t", None, "") };
        log.append(&[large]).await.unwrap();
        append(&log, "t", "behind").await.unwrap();
        let read = read_all(&log, "t").await;
        assert_eq!(read.len(), 2);
        assert!(read.iter().any(|(_, record)| record.value.as_ref() == Some(&value)));
    });
}

#[test]
fn one_process_per_folder() {
    let dir = tempfile::tempdir().unwrap();
    let open = || EmbeddedLog::open(dir.path(), small(), Arc::new(SystemClock));
    // A file left by a process that died is no lock.
    std::fs::write(dir.path().join("LOCK"), "12345").unwrap();
    let first = open().unwrap();
    let Err(fault) = open() else { panic!("the folder is in use") };
    assert_eq!((fault.next, fault.code), (Move::Fix, "P0201"));
    assert!(fault.what.contains(&std::process::id().to_string()), "{fault}");
    drop(first);
    open().unwrap();
}

#[test]
fn a_folder_that_cannot_be_used_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let Err(fault) = EmbeddedLog::open(&file, small(), Arc::new(SystemClock)) else {
        panic!("a file is no folder");
    };
    assert_eq!((fault.next, fault.code), (Move::Fix, "P0202"));
}

#[test]
fn a_closed_log_answers_everything_with_a_fault() {
    run(async {
        let log = open(&FaultyDisk::new());
        append(&log, "t", "a").await.unwrap();
        let mut member = Member::open(&log, spec("g", &["t"])).await.unwrap();
        member.take(1).await;
        log.close();
        assert_eq!(member.batch().await.unwrap_err().code, "P0210");
        assert_eq!(append(&log, "t", "b").await.unwrap_err().code, "P0210");
        assert!(log.open_group(spec("h", &["t"])).await.is_err());
        assert!(log.delete_consumer_group("g").await.is_err());
    });
}

#[test]
fn many_appenders_and_readers_at_once() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(4).enable_all();
    let disk = FaultyDisk::new();
    let options = Options { segment_bytes: 20_000, partitions: 3, ..small() };
    let log = open_with(&disk, options).unwrap();
    const WRITERS: usize = 8;
    const EACH: usize = 150;
    runtime.build().unwrap().block_on(async {
        let mut group = Member::open(&log, spec("g", &["t"])).await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let log = log.clone();
            tasks.spawn(async move {
                for n in 0..EACH {
                    let value = format!("{writer}:{n}");
                    let outputs = [
                        output("t", Some(&format!("w{writer}")), &value),
                        output("noise", None, &value),
                    ];
                    log.append(&outputs).await.unwrap();
                }
            });
        }
        let mut reader = log.read("t", ReadFrom::Start).await.unwrap();
        let reading = tokio::spawn(async move {
            let mut seen = Vec::new();
            while seen.len() < WRITERS * EACH {
                let batch = reader.next(true).await.unwrap().unwrap();
                seen.extend(batch.records.iter().map(text));
            }
            seen
        });
        let mut grouped = Vec::new();
        while grouped.len() < WRITERS * EACH {
            let batch = group.batch().await.unwrap();
            grouped.extend(batch.records.iter().map(text));
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        for seen in [grouped, reading.await.unwrap()] {
            let mut next: HashMap<String, usize> = HashMap::new();
            for value in &seen {
                let (writer, n) = value.split_once(':').unwrap();
                let expected = next.entry(writer.to_owned()).or_default();
                assert_eq!(n.parse::<usize>().unwrap(), *expected, "order of one key");
                *expected += 1;
            }
            assert_eq!(seen.len(), WRITERS * EACH, "each once");
        }
    });
    assert!(segments(&disk).len() > 3, "the log has rolled on the way");
}

#[test]
fn a_quiet_topic_among_busy_ones_costs_no_reading() {
    run(async {
        let disk = FaultyDisk::new();
        let options = Options { segment_bytes: 50_000, ..small() };
        let log = open_with(&disk, options.clone()).unwrap();
        append(&log, "quiet", "first").await.unwrap();
        let mut member = Member::open(&log, spec("g", &["quiet"])).await.unwrap();
        member.take(1).await;
        let before = disk.bytes_read();
        for n in 0..2_000 {
            append(&log, "busy", &format!("some longer value, number {n}")).await.unwrap();
            // Lets the waiting source see each of them.
            let nothing = tokio::time::timeout(Duration::ZERO, member.batch()).await;
            assert!(nothing.is_err());
        }
        append(&log, "quiet", "second").await.unwrap();
        assert_eq!(text(&member.take(1).await[0].1), "second");
        let read = disk.bytes_read() - before;
        assert!(read < 20_000, "{read} bytes read to find one record");
        drop(member);

        // Nor is the log read from its start when the group is opened again.
        let done = log.ended("g", "quiet", 0).await.unwrap();
        assert!(done.is_empty() || done.first_gap(0) == 0);
        let before = disk.bytes_read();
        let mut reader = log.read("quiet", ReadFrom::Offset(1)).await.unwrap();
        while reader.next(false).await.unwrap().is_some() {}
        let read = disk.bytes_read() - before;
        assert!(read < 60_000, "{read} bytes read to find one record by offset");
    });
}

#[test]
fn a_read_that_fails_is_made_good() {
    run(async {
        let disk = FaultyDisk::new();
        let log = open(&disk);
        let mut acked = BTreeMap::new();
        for n in 0..60 {
            let value = format!("<{n}>");
            acked.insert(append(&log, "t", &value).await.unwrap(), value);
        }
        for failing in 0..20 {
            disk.fail_read(disk.reads() + failing);
            let mut reader = log.read("t", ReadFrom::Start).await.unwrap();
            let mut member =
                Member::open(&log, spec(&format!("g{failing}"), &["t"])).await.unwrap();
            let (mut read, mut faults) = (BTreeMap::new(), 0);
            loop {
                match reader.next(false).await {
                    Ok(Some(batch)) => {
                        read.extend(batch.records.iter().map(|r| (batch.position(r), text(r))));
                    }
                    Ok(None) => break,
                    Err(fault) => {
                        assert_eq!(fault.next, Move::Wait);
                        faults += 1;
                    }
                }
            }
            assert_eq!(read, acked, "read {failing} failed");
            let mut grouped = BTreeMap::new();
            let mut next = [0; 2];
            while grouped.len() < acked.len() {
                match member.batch().await {
                    Ok(batch) => {
                        // Without a hole: a record passed over would count as ended.
                        assert_eq!(batch.first, next[batch.partition.index as usize]);
                        next[batch.partition.index as usize] = batch.next;
                        let of = |r| (batch.position(r), text(r));
                        grouped.extend(batch.records.iter().map(of));
                    }
                    Err(fault) => {
                        assert_eq!(fault.next, Move::Wait);
                        faults += 1;
                    }
                }
            }
            assert_eq!(grouped, acked, "read {failing} failed");
            assert!(faults <= 1);
        }
    });
}

#[test]
fn bodies_are_loaded_by_position_byte_exact_or_not_at_all() {
    run(async {
        let disk = FaultyDisk::new();
        let log = open(&disk);
        let mut positions = Vec::new();
        for round in 0..20 {
            let outputs: Vec<Output> = (0..5)
                .map(|n| output("t", Some(&format!("{n}")), &format!("{round}/{n}")))
                .collect();
            positions.extend(log.append(&outputs).await.unwrap());
        }
        let store = log.store();
        let loaded = store.load(&owner(1), &places(&positions)).await.unwrap();
        for (n, record) in loaded.iter().enumerate() {
            assert_eq!(text(record.as_ref().unwrap()), format!("{}/{}", n / 5, n % 5));
        }
        let other = Position { log: positions[0].log + 1, ..positions[0].clone() };
        let later = Position { offset: 10_000, ..positions[0].clone() };
        assert_eq!(store.load(&owner(1), &places(&[other, later])).await.unwrap(), [None, None]);

        let all = places(&positions);
        assert_eq!(store.put(&owner(1), &[]).await.unwrap_err().next, Move::Retry);
        store.own(&owner(1)).await.unwrap();
        store.put(&owner(1), &[]).await.unwrap();
        store.own(&owner(2)).await.unwrap();
        assert_eq!(store.put(&owner(1), &[]).await.unwrap_err().next, Move::Retry);
        assert_eq!(store.close(&owner(1), &[]).await.unwrap_err().next, Move::Retry);
        assert_eq!(store.clean(&owner(1), &all).await.unwrap_err().next, Move::Retry);
        store.clean(&owner(2), &all).await.unwrap();

        // A damaged body is no body; its neighbours are.
        let path = segments(&disk)[0].clone();
        let bytes = disk.contents(&path);
        let needle = b"0/3";
        let at = bytes.windows(3).position(|window| window == needle).unwrap();
        disk.overwrite(&path, flip(&bytes, at));
        let loaded = store.load(&owner(1), &places(&positions[..5])).await.unwrap();
        assert_eq!(loaded.iter().filter(|record| record.is_none()).count(), 1);
        assert!(loaded[3].is_none());
    });
}
