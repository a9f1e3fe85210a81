//! em-processor on the embedded log: batches held, killed in the middle and sent whole.

use std::collections::HashSet;
use std::time::Duration;

use potok_core::trouble::GROUP_CRASH_POINTS;
use potok_traffic::Random;
use potok_traffic::gdelt::{GdeltGenerator, GdeltKind, GdeltSpoiling, SentRecord};
use serde_json::Value;

use crate::batches::{Records, delivered};
use crate::check::Letter;
use crate::disk::{Disk, SmallDisk};
use crate::process::{Home, Running, SMALL_SEGMENTS, pipelines};
use crate::{short_or_soak, wait};

fn start(home: &Home, more: &[(&str, &str)]) -> Result<Running, String> {
    home.start_file(&pipelines().join("em-processor.yaml"), more)
}

#[test]
fn a_batch_is_held_for_its_window_and_then_comes_out_whole() {
    let home = Home::new();
    // Released by hand in this test: no window is waited for.
    let running = start(&home, &[("BATCH_WINDOW", "1h")]).unwrap();
    let mut generator = GdeltGenerator::good_only(11);
    let mut records = Records::default();
    let batch = generator.next_batch(1_473, 4_446);
    let id = batch.id.clone();
    let distinct: HashSet<_> = batch.records.iter().map(|sent| (sent.topic, &sent.id)).collect();
    let distinct = distinct.len();
    assert!(records.send(&running, batch.records));
    let held = wait::until("all records are held", || {
        let held = running.run(["groups", "list", "em-processor", "--json"], b"").good().lines();
        let held = held.first().cloned()?;
        let count = |kind: &str| held["kinds"][kind]["records"].as_u64();
        ((count("event"), count("mention")) == (Some(1_473), Some(4_446))).then_some(held)
    });
    assert_eq!((&held["id"], &held["state"]), (&Value::from(id.clone()), &Value::from("open")));
    assert_eq!(held["duplicates"].as_u64(), Some((1_473 + 4_446 - distinct) as u64));
    assert_eq!(running.status()["in_flight"], 1_473 + 4_446);
    // Ctrl-C in the middle of the window: what is open stays open.
    assert!(running.stop().success());
    let running = start(&home, &[("BATCH_WINDOW", "1h")]).unwrap();
    wait::until("all records are held again", || {
        (running.status()["in_flight"] == 1_473 + 4_446).then_some(())
    });
    running.run(["groups", "close", "em-processor", "no-such"], b"").exits(1);
    running.run(["groups", "close", "em-processor", &id], b"").good();
    records.assert_kept(&running);
    let status = running.status();
    assert_eq!(status["delivered"], distinct as u64);
    assert_eq!(status["duplicates"], (1_473 + 4_446 - distinct) as u64);
    assert_eq!(delivered(&running).len(), distinct);
    assert_eq!(running.run(["groups", "list", "--json"], b"").good().lines().len(), 0);
}

#[test]
fn dates_that_are_none_are_counted() {
    let home = Home::new();
    let running = start(&home, &[("BATCH_WINDOW", "300ms")]).unwrap();
    let batch = GdeltGenerator::new(14).next_batch(300, 900);
    let bad = batch
        .records
        .iter()
        .filter(|sent| sent.what == GdeltKind::Spoiled(GdeltSpoiling::BadDate))
        .count();
    assert!(bad > 1);
    let mut records = Records::default();
    assert!(records.send(&running, batch.records));
    records.assert_kept(&running);
    assert_eq!(running.status()["counted"]["clean"]["bad_values"], bad as u64);
    let (_, metrics) = running.get("/metrics").unwrap();
    let labels = r#"{pipeline="em-processor",stage="clean",name="bad_values"}"#;
    let line = format!("potok_process_counted_total{labels} {bad}");
    assert!(metrics.lines().any(|found| found == line), "{line} in\n{metrics}");
    let shown = running.run(["status", "em-processor"], b"").good();
    let line = format!("em-processor: stage clean counted bad_values {bad}");
    assert!(shown.text().contains(&line), "{}", shown.text());
}

#[test]
fn a_batch_that_closes_while_the_disk_is_full_comes_out_when_there_is_room() {
    let home = Home::new();
    let disk = Disk::under(&home);
    let file = pipelines().join("em-processor.yaml");
    let running = disk.start_file(&home, &file, &[("BATCH_WINDOW", "1h")]).unwrap();
    let batch = GdeltGenerator::good_only(12).next_batch(300, 900);
    let id = batch.id.clone();
    let mut records = Records::default();
    assert!(records.send(&running, batch.records));
    wait::until("all records are held", || (running.status()["in_flight"] == 1_200).then_some(()));
    disk.set_full(true);
    running.run(["groups", "close", "em-processor", &id], b"").good();
    wait::until("/ready says no", || (running.get("/ready")?.0 == 503).then_some(()));
    assert_eq!(running.get("/live").unwrap().0, 200);
    disk.set_full(false);
    assert_eq!(records.assert_kept(&running), 0, "nothing went out twice");
    wait::until("/ready says yes", || (running.get("/ready")?.0 == 200).then_some(()));
}

/// Many groups into a database elsewhere.
const MANY_GROUPS: &str = "
name: many
source: { topic: many }
decode: { format: json, schema: many.json }
group: { by: .k, close: { after_first: 2s } }
deliver: [{ db: many, once_by: .n, rows: { many: . }, create_tables: true }]
";
const MANY_SCHEMA: &str = r#"{
  "type": "object",
  "properties": {
    "k": { "type": "integer" }, "n": { "type": "integer" }, "z": { "type": "string" }
  },
  "required": ["k", "n", "z"]
}"#;

#[test]
fn a_disk_that_is_full_of_groups_is_worked_off() {
    let home = Home::new();
    let file = home.path().join("many.yaml");
    std::fs::write(&file, MANY_GROUPS).unwrap();
    std::fs::write(home.path().join("many.json"), MANY_SCHEMA).unwrap();
    let database = home.path().join("many.sqlite");
    home.settings(&format!("db: {{ many: 'sqlite:{}' }}\n", database.display()));
    let running =
        SmallDisk::under(&home, "40m").start(&file, &[("POTOK_SEGMENT_BYTES", "1000000")]);
    running.run(["pause", "many"], b"").good();
    // Until nothing fits, not even little. Of what is refused a part may have been taken.
    let (mut tried, mut acknowledged) = (0, 0);
    for (lines, padding) in [(5_000, 300), (1, 0)] {
        loop {
            let line =
                |n: usize| format!("{{\"k\":{},\"n\":{n},\"z\":\"{:padding$}\"}}\n", n % 5_000, "");
            let bytes: String = (tried..tried + lines).map(line).collect();
            tried += lines;
            let ran = running.run(["send", "many"], bytes.as_bytes());
            if ran.code != Some(0) {
                assert!(ran.stderr.contains("P0203"), "{}", ran.stderr);
                break;
            }
            acknowledged += lines;
        }
    }
    assert!(acknowledged > 5_000);
    running.run(["resume", "many"], b"").good();
    let status = running.drained();
    let delivered = status["delivered"].as_u64().unwrap() as usize;
    assert!((acknowledged..=tried).contains(&delivered), "{status}");
    assert_eq!(status["dead_lettered"], 0, "{status}");
    wait::until("/ready says yes", || (running.get("/ready")?.0 == 200).then_some(()));
}

#[test]
fn a_batch_that_is_given_up_becomes_dead_letters_and_can_be_replayed() {
    let home = Home::new();
    let running = start(&home, &[("BATCH_WINDOW", "1h")]).unwrap();
    let batch = GdeltGenerator::good_only(12).next_batch(5, 0);
    let mut records = Records::default();
    let id = batch.id.clone();
    assert!(records.send(&running, batch.records));
    wait::until("it is held", || {
        running.run(["groups", "drop", "em-processor", &id], b"").code.filter(|code| *code == 0)
    });
    wait::until("it is set aside", || (running.status()["dead_lettered"] == 5).then_some(()));
    let letters = running.run(["dead-letters", "list", "em-processor", "--json"], b"").good();
    assert!(Letter::all(&letters).iter().all(|letter| letter.reason == "dropped"));
    running.run(["dead-letters", "replay", "em-processor"], b"").good();
    records.assert_kept(&running);
    assert_eq!(delivered(&running).len(), 5);
}

#[test]
fn dies_at_every_crash_point_of_groups_and_loses_nothing() {
    for (index, point) in GROUP_CRASH_POINTS.iter().enumerate() {
        for passing in [1, 3].into_iter().chain(2..short_or_soak(2, 8)) {
            let home = Home::new();
            let mut generator = GdeltGenerator::new(index as u64 * 10 + passing);
            let mut records = Records::default();
            let place = format!("{point}:{passing}");
            let crash = [SMALL_SEGMENTS, ("BATCH_WINDOW", "300ms"), ("POTOK_CRASH_AT", &place)];
            let mut running = start(&home, &crash).expect("starts");
            for _ in 0..200 {
                let batch = generator.next_batch(10, 30);
                if !records.send(&running, batch.records) || !running.is_alive() {
                    break;
                }
            }
            running.ended(&format!("potok dies at {place}"));
            let running = start(&home, &[SMALL_SEGMENTS, ("BATCH_WINDOW", "300ms")]).unwrap();
            records.send(&running, generator.next_batch(10, 30).records);
            records.assert_kept(&running);
        }
    }
}

#[test]
fn survives_kills_at_random_moments_while_batches_are_open() {
    let mut random = Random::new(77);
    let home = Home::new();
    let mut generator = GdeltGenerator::new(78);
    let mut records = Records::default();
    let settings = [SMALL_SEGMENTS, ("BATCH_WINDOW", "200ms")];
    for _ in 0..short_or_soak(15, 200) {
        let running = start(&home, &settings).expect("starts");
        // Two batches at once, in bits, so that windows end while records still come.
        let batches = [generator.next_batch(20, 60), generator.next_batch(20, 60)];
        std::thread::scope(|scope| {
            let (records, running) = (&mut records, &running);
            scope.spawn(move || {
                let mut bits = batches.map(|batch| batch.records.into_iter());
                loop {
                    let mut any = false;
                    for bit in &mut bits {
                        let bit: Vec<SentRecord> = bit.by_ref().take(7).collect();
                        any |= !bit.is_empty();
                        if !bit.is_empty() && !records.send(running, bit) {
                            return;
                        }
                    }
                    if !any {
                        return;
                    }
                }
            });
            wait::random_moment(&mut random, Duration::from_millis(1_500));
            running.signal("KILL");
        });
        running.ended("potok is killed");
    }
    let running = start(&home, &settings).expect("starts");
    records.assert_kept(&running);
    assert!(
        records
            .sent
            .iter()
            .any(|(sent, _)| sent.what == GdeltKind::Spoiled(GdeltSpoiling::NotJson))
    );
}

#[test]
fn what_became_of_a_batch_can_be_traced_and_tried_again() {
    let home = Home::new();
    let running = start(&home, &[("BATCH_WINDOW", "1h")]).unwrap();
    let batch = GdeltGenerator::good_only(13).next_batch(3, 0);
    let mut records = Records::default();
    let id = batch.id.clone();
    let key = batch.records[0].id.clone().unwrap();
    assert!(records.send(&running, batch.records));
    let traced = |what: &str, of: &str| {
        let seen = running.run(["trace", of, "--json"], b"").good().lines();
        seen.iter().filter(|one| one["what"] == what).count()
    };
    wait::until("it is held", || (traced("held", &id) == 1).then_some(()));
    assert_eq!(traced("record", &id), 3);
    running.run(["groups", "drop", "em-processor", &id], b"").good();
    wait::until("it is set aside", || (running.status()["dead_lettered"] == 3).then_some(()));
    assert_eq!(traced("dead letter", &id), 3);
    let replay = |group: &str| {
        let args = ["dead-letters", "replay", "em-processor", "--group", group, "--json"];
        running.run(args, b"").good()
    };
    replay("20000101000000");
    assert_eq!(traced("delivered", &key), 0, "another group is not touched");
    replay(&id);
    records.assert_kept(&running);
    assert_eq!((traced("delivered", &key), traced("dead letter", &key)), (1, 1));
    running.run(["trace", "never-seen"], b"").exits(1);
}
