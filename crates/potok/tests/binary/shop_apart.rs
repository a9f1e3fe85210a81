//! Shards fail, wait and recover apart, and keep what was sealed for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use potok_traffic::shop::{ShopEvent, ShopGenerator};
use rusqlite::Connection;

use crate::process::{Home, Running, pipelines};
use crate::shop::{
    SHORT_SLICES, database, rows, rows_in, sealed_members, send, start, take, wanted,
};
use crate::shop_files::{all_done, ask, assert_only_legal_moves, open, prepare, tracking};
use crate::{short_or_soak, wait};

/// The shipped file with something changed, beside what it needs.
pub fn changed(home: &Home, from: &str, to: &str) -> PathBuf {
    let shipped = fs::read_to_string(pipelines().join("shop-events.yaml")).unwrap();
    assert!(shipped.contains(from), "{from}");
    let schemas = home.path().join("schemas");
    fs::create_dir_all(&schemas).unwrap();
    let schema = pipelines().join("schemas/shop-event.json");
    fs::copy(schema, schemas.join("shop-event.json")).unwrap();
    let file = home.path().join("shop-events.yaml");
    fs::write(&file, shipped.replace(from, to)).unwrap();
    file
}

fn metric(running: &Running, name: &str) -> f64 {
    let (_, metrics) = running.get("/metrics").unwrap();
    let line = metrics.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}

/// A file where the folder of a database should be: it is away until that is taken away.
fn away(home: &Home, shard: u32) -> (PathBuf, String) {
    let folder = home.path().join(format!("away-{shard}"));
    fs::write(&folder, b"").unwrap();
    let address = format!("sqlite:{}/shop.sqlite", folder.display());
    (folder, address)
}

fn returns(folder: &Path) {
    fs::remove_file(folder).unwrap();
    fs::create_dir(folder).unwrap();
}

/// The naive version stops sealing after so many records, or keeps all of them in memory. There is
/// little memory here, so most groups wait as no more than the place of their seal. The members of a
/// group lie in several partitions: where they came back in another order than they were written in,
/// their file would have other content after a restart.
#[test]
fn what_waits_for_one_shard_is_sealed_and_written_however_much_it_is() {
    let home = Home::new();
    let file = changed(&home, "gate:\n", "limits:\n  held_memory_bytes: 2MiB\ngate:\n");
    let (folder, address) = away(&home, 1);
    let settings = [("SLICE", "2s"), ("POTOK_DB_SHOP_1", address.as_str())];
    let mut running = home.start_file_unready(&file, &settings);
    let mut sent = Vec::new();
    let count = short_or_soak(45_000, 400_000);
    for block in 0..count / 1_500 {
        let event = |at: u64| {
            let number = block * 1_500 + at;
            // One of a hundred is for the other shard.
            let shop =
                if number.is_multiple_of(100) { 2 } else { [1, 5, 9, 5][number as usize % 4] };
            let id = format!("e-{number}");
            let json = format!(
                "{{\"event_id\":\"{id}\",\"event_type\":1,\"shop_id\":{shop},\"user_id\":1,\
                 \"timestamp\":\"2025-01-01 00:00:00.000\",\"payload\":{{}}}}"
            );
            ShopEvent { id, shop: Some(shop), bytes: json.into_bytes() }
        };
        let events: Vec<ShopEvent> = (0..1_500).map(event).collect();
        assert!(send(&running, &events));
        sent.extend(events);
    }
    let (first, second) = (wanted(&sent, 0, 2), wanted(&sent, 1, 2));
    wait::until("shard 0 has everything", || (rows(&home, 0, 2) == first).then_some(()));
    wait::until("everything of shard 1 is sealed", || {
        (sealed_members(&running, "1/2") == second.len() as u64).then_some(())
    });
    wait::until("and in files, all ingested", || {
        let sql = "SELECT SUM(records) FROM potok_tracking p JOIN pipeline_tracking t USING \
                   (filename, shard) WHERE p.shard = 1 AND t.shard_splitter_status = 'done'";
        (ask(&tracking(&home), sql) == [[second.len().to_string()]]).then_some(())
    });
    let stuck = "SELECT 1 FROM pipeline_tracking WHERE event_ingest_status <> 'done'";
    wait::until("no ingest is stuck", || ask(&tracking(&home), stuck).is_empty().then_some(()));
    for round in 0..2 {
        if round == 0 {
            running.kill();
            running = home.start_file_unready(&file, &settings);
            wait::until("it has read what waits", || {
                (running.status()["in_flight"] == second.len()).then_some(())
            });
        } else {
            returns(&folder);
        }
    }
    running.drained();
    assert!(rows_in(&folder.join("shop.sqlite"), 1, 2) == second, "not each once");
    assert!(rows(&home, 0, 2) == first, "not each once");
    all_done(&home);
    let sums = "SELECT SUM(\"rows\"), SUM(duplicates), SUM(dead) FROM potok_tracking";
    assert_eq!(ask(&tracking(&home), sums), [[sent.len().to_string(), "0".into(), "0".into()]]);
}

/// The naive version blocks the whole pipeline, or sends them where the remainder leads by now.
#[test]
fn with_fewer_shards_what_was_sealed_waits_for_its_own() {
    let home = Home::new();
    let (folder, address) = away(&home, 3);
    let four = [SHORT_SLICES, ("SHARDS", "4"), ("POTOK_DB_SHOP_3", address.as_str())];
    let file = pipelines().join("shop-events.yaml");
    let running = home.start_file_unready(&file, &four);
    let mut generator = ShopGenerator::good_only(201);
    let sent = take(&mut generator, 400);
    assert!(send(&running, &sent));
    let kept = wanted(&sent, 3, 4);
    wait::until("shard 3 is sealed and waits, the others are done", || {
        let is_whole = sealed_members(&running, "3/4") == kept.len() as u64;
        let others = (0..3).all(|shard| rows(&home, shard, 4) == wanted(&sent, shard, 4));
        (is_whole && others).then_some(())
    });
    running.kill();
    // Nothing leads to shard 3 any more: only it waits, and says so.
    let running = home.start_file_unready(&file, &[SHORT_SLICES]);
    wait::until("it says what it waits for", || {
        let waits = running.status()["waits"].to_string();
        (waits.contains("\"destination\"") && waits.contains("3/4")).then_some(())
    });
    let more = take(&mut generator, 100);
    assert!(send(&running, &more));
    wait::until("shards 0 and 1 go on", || {
        let there = |shard: i64| {
            let all = Connection::open(database(&home, shard)).ok()?;
            let ids = ask(&all, "SELECT event_id FROM events");
            wanted(&more, shard, 2)
                .keys()
                .all(|id| ids.iter().any(|row| row[0] == *id))
                .then_some(())
        };
        there(0).and(there(1))
    });
    wait::until("the reason is shown", || {
        let listed = running.run(["files", "--in-progress"], b"").good();
        listed.text().contains("has no destination").then_some(())
    });
    assert!(running.journal().contains("the number of shards has changed"), "a warning");
    running.kill();
    let two = [SHORT_SLICES, ("POTOK_DB_SHOP_3", address.as_str())];
    let running = home.start_file_unready(&file, &two);
    returns(&folder);
    running.drained();
    assert!(rows_in(&folder.join("shop.sqlite"), 3, 4) == kept, "where they were sealed for");
    all_done(&home);
}

/// The naive version writes what is read again into the other database.
#[test]
fn databases_that_have_changed_places_are_noticed() {
    let home = Home::new();
    let path = |name: &str| format!("sqlite:{}", home.path().join(name).display());
    let (one, other) = (path("a.sqlite"), path("b.sqlite"));
    let right = [SHORT_SLICES, ("POTOK_DB_SHOP_0", &*one), ("POTOK_DB_SHOP_1", &*other)];
    let swapped = [SHORT_SLICES, ("POTOK_DB_SHOP_0", &*other), ("POTOK_DB_SHOP_1", &*one)];
    let running = start(&home, &right);
    let mut generator = ShopGenerator::good_only(202);
    let mut sent = take(&mut generator, 60);
    assert!(send(&running, &sent));
    running.drained();
    running.kill();
    let file = pipelines().join("shop-events.yaml");
    let running = home.start_file_unready(&file, &swapped);
    let events = take(&mut generator, 60);
    assert!(send(&running, &events));
    sent.extend(events);
    wait::until("it is said", || {
        let status = running.status();
        let why = status["gate"]["why"].as_str().unwrap_or_default();
        (why.contains("P1420") && why.contains("this database is shard")).then_some(())
    });
    running.kill();
    let running = start(&home, &right);
    running.drained();
    for (shard, name) in [(0, "a.sqlite"), (1, "b.sqlite")] {
        let there = rows_in(&home.path().join(name), shard, 2);
        assert!(there == wanted(&sent, shard, 2), "not each once on its own shard");
    }
}

/// `failed → new` by hand has it tried once more: it fails again while nothing is mended, and goes
/// on at once when something is.
#[test]
fn what_has_failed_is_tried_again_when_somebody_says_so() {
    let home = Home::new();
    prepare(&home);
    let file = changed(&home, "probe_every: 2s", "probe_every: 1h");
    let running = home.start_file(&file, &[SHORT_SLICES]).unwrap();
    let mut generator = ShopGenerator::good_only(203);
    let mut sent = take(&mut generator, 60);
    assert!(send(&running, &sent));
    running.drained();
    let broken = open(&database(&home, 1));
    broken.execute_batch("ALTER TABLE events RENAME TO hidden; CREATE TABLE events (x)").unwrap();
    let events = take(&mut generator, 60);
    assert!(send(&running, &events));
    sent.extend(events);
    let failed = "SELECT filename FROM pipeline_tracking WHERE mysql_sender_status = 'failed'";
    let name = wait::until("its file has failed", || {
        ask(&tracking(&home), failed).first().map(|row| row[0].clone())
    });
    broken.execute_batch("DROP TABLE events; ALTER TABLE hidden RENAME TO events").unwrap();
    let retried = running.run(["files", "retry", &name], b"").good();
    assert!(retried.text().starts_with("1 stages"), "{}", retried.text());
    running.drained();
    all_done(&home);
    assert!(rows(&home, 1, 2) == wanted(&sent, 1, 2), "not each once");
    running.run(["files", "retry", &name], b"").exits(1);
    running.kill();
    // The same by hand, with SQL.
    let running = start(&home, &[SHORT_SLICES]);
    broken.execute_batch("ALTER TABLE events RENAME TO hidden; CREATE TABLE events (x)").unwrap();
    let events = take(&mut generator, 60);
    assert!(send(&running, &events));
    sent.extend(events);
    wait::until("its file has failed", || {
        (!ask(&tracking(&home), failed).is_empty()).then_some(())
    });
    let new = "UPDATE pipeline_tracking SET mysql_sender_status = 'new' WHERE mysql_sender_status = \
               'failed'";
    tracking(&home).execute_batch(new).unwrap();
    wait::until("nothing is mended, so it fails again", || {
        (!ask(&tracking(&home), failed).is_empty()).then_some(())
    });
    broken.execute_batch("DROP TABLE events; ALTER TABLE hidden RENAME TO events").unwrap();
    tracking(&home).execute_batch(new).unwrap();
    running.drained();
    all_done(&home);
    assert!(rows(&home, 1, 2) == wanted(&sent, 1, 2), "not each once");
    assert_only_legal_moves(&home);
}

/// What others do to our rows is counted once and never obeyed; what is gone is made again.
#[test]
fn moves_of_others_are_counted_and_rows_that_are_gone_are_made_again() {
    let home = Home::new();
    let running = start(&home, &[SHORT_SLICES]);
    let mut generator = ShopGenerator::good_only(204);
    let mut sent = take(&mut generator, 60);
    assert!(send(&running, &sent));
    running.drained();
    let name = "potok_tracking_foreign_moves_total{pipeline=\"shop-events\"}";
    assert_eq!(metric(&running, name) as u64, 0);
    let locked = open(&database(&home, 1));
    locked.execute_batch("BEGIN IMMEDIATE").unwrap();
    let events = take(&mut generator, 60);
    assert!(send(&running, &events));
    sent.extend(events);
    let started = "SELECT filename FROM pipeline_tracking WHERE shard = 1 AND mysql_sender_status = 'started'";
    wait::until("its file is with the sender", || {
        (!ask(&tracking(&home), started).is_empty()).then_some(())
    });
    // The row of a file that is open, and that of one that is done.
    tracking(&home).execute_batch("DELETE FROM pipeline_tracking WHERE shard = 1").unwrap();
    locked.execute_batch("ROLLBACK").unwrap();
    running.drained();
    all_done(&home);
    assert!(rows(&home, 1, 2) == wanted(&sent, 1, 2), "not each once");
    let there = "SELECT COUNT(*) FROM pipeline_tracking WHERE shard = 1";
    assert_eq!(ask(&tracking(&home), there), [["1"]], "the one that was open is there again");
    assert_eq!(metric(&running, name) as u64, 1);
}

/// Rows of files that ended long ago go; others of that table stay.
#[test]
fn rows_are_kept_as_long_as_the_pipeline_says() {
    let home = Home::new();
    let file =
        changed(&home, "  table: pipeline_tracking\n", "  table: pipeline_tracking\n  keep: 30d\n");
    let running = home.start_file(&file, &[SHORT_SLICES]).unwrap();
    let mut generator = ShopGenerator::good_only(205);
    assert!(send(&running, &take(&mut generator, 60)));
    running.drained();
    all_done(&home);
    running.kill();
    let table = tracking(&home);
    table
        .execute_batch("UPDATE potok_tracking SET finished_at = '2020-01-01 00:00:00.000'")
        .unwrap();
    table
        .execute_batch("INSERT INTO pipeline_tracking (filename, shard) VALUES ('theirs', 0)")
        .unwrap();
    let running = home.start_file(&file, &[SHORT_SLICES]).unwrap();
    wait::until("old rows are gone", || {
        let left = ask(&table, "SELECT filename FROM pipeline_tracking");
        (left == [["theirs"]] && ask(&table, "SELECT 1 FROM potok_tracking").is_empty())
            .then_some(())
    });
    assert!(running.status()["state"] != "blocked");
}

/// The naive version removes old files as soon as it starts: those of groups that wait have no names yet,
/// and are written once more.
#[test]
fn old_files_are_removed_unless_they_wait() {
    let home = Home::new();
    let file = pipelines().join("shop-events.yaml");
    let running = start(&home, &[SHORT_SLICES]);
    let mut generator = ShopGenerator::good_only(206);
    let mut sent = take(&mut generator, 60);
    assert!(send(&running, &sent));
    running.drained();
    let locked = open(&database(&home, 1));
    locked.execute_batch("BEGIN IMMEDIATE").unwrap();
    let waiting = "SELECT filename, records FROM potok_tracking p JOIN pipeline_tracking t USING (filename, shard) \
                   WHERE p.shard = 1 AND p.records > 0 AND t.shard_splitter_status = 'done' AND \
                   t.mysql_sender_status <> 'done' ORDER BY filename";
    let late = sent.len();
    wait::until("three files of shard 1 wait", || {
        let some = take(&mut generator, 20);
        assert!(send(&running, &some));
        sent.extend(some);
        (ask(&tracking(&home), waiting).len() >= 3).then_some(())
    });
    let held = wanted(&sent[late..], 1, 2).len() as u64;
    let waiting = wait::until("nothing waits but files of shard 1", || {
        let waiting = ask(&tracking(&home), waiting);
        let records: u64 = waiting.iter().map(|row| row[1].parse::<u64>().unwrap()).sum();
        (records == held && running.status()["in_flight"] == held).then_some(waiting)
    });
    assert!(running.stop().success());
    let folder = |shard: i64| home.data().join(format!("files/shop-events/{shard}"));
    let long_ago = SystemTime::UNIX_EPOCH;
    let files = |shard: i64| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder(shard)).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    for path in files(0).iter().chain(&files(1)) {
        fs::File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
    }
    let is_old = |path: &Path| {
        fs::metadata(path).is_ok_and(|file| file.modified().is_ok_and(|at| at == long_ago))
    };
    let running = home.start_file_unready(&file, &[SHORT_SLICES]);
    wait::until("what was sent is gone", || {
        let left = files(1).iter().filter(|path| is_old(path)).count();
        (files(0).iter().all(|path| !is_old(path)) && left <= waiting.len()).then_some(())
    });
    for row in &waiting {
        let path = folder(1).join(format!("{}.ndjson", row[0]));
        assert!(is_old(&path), "{} was removed", path.display());
    }
    locked.execute_batch("ROLLBACK").unwrap();
    running.drained();
    assert!(rows(&home, 1, 2) == wanted(&sent, 1, 2), "not each once");
}

/// A former shard has its groups in the lane of another one. The naive version waits at the gate of the
/// first in line, or asks it again and again without a pause.
#[test]
fn a_former_shard_that_is_away_does_not_hold_up_whose_lane_it_shares() {
    let home = Home::new();
    let (folder, address) = away(&home, 3);
    let away = ("POTOK_DB_SHOP_3", address.as_str());
    let file = pipelines().join("shop-events.yaml");
    let running = home.start_file_unready(&file, &[SHORT_SLICES, ("SHARDS", "4"), away]);
    let mut generator = ShopGenerator::good_only(207);
    let sent = take(&mut generator, 200);
    assert!(send(&running, &sent));
    let kept = wanted(&sent, 3, 4);
    wait::until("shard 3 is sealed and waits", || {
        (sealed_members(&running, "3/4") == kept.len() as u64).then_some(())
    });
    wait::until("the others are done", || {
        (0..3).all(|shard| rows(&home, shard, 4) == wanted(&sent, shard, 4)).then_some(())
    });
    running.kill();
    let running = home.start_file_unready(&file, &[SHORT_SLICES, away]);
    let more: Vec<ShopEvent> = take(&mut generator, 100);
    assert!(send(&running, &more));
    let there = wanted(&more, 1, 2);
    wait::until("shard 1 goes on", || {
        let all = Connection::open(database(&home, 1)).ok()?;
        let ids = ask(&all, "SELECT event_id FROM events");
        there.keys().all(|id| ids.iter().any(|row| row[0] == *id)).then_some(())
    });
    let tries = "SELECT attempts FROM potok_tracking WHERE shard = 3 ORDER BY filename";
    let tries: u64 = ask(&tracking(&home), tries)[0][0].parse().unwrap();
    assert!(tries < 50, "{tries} attempts at a closed gate");
    returns(&folder);
    running.drained();
    assert!(rows_in(&folder.join("shop.sqlite"), 3, 4) == kept, "where they were sealed for");
    all_done(&home);
}

/// The files of a former shard without a connection are kept by the lane of another one. The naive version
/// holds the files of both, and writes and sends none of what lies behind.
#[test]
fn a_file_that_cannot_be_written_holds_its_own_shard() {
    let home = Home::new();
    // A file where the folder of shard 3 should be.
    let folder = home.data().join("files/shop-events/3");
    fs::create_dir_all(folder.parent().unwrap()).unwrap();
    fs::write(&folder, b"").unwrap();
    let address = format!("sqlite:{}", home.path().join("shop-3.sqlite").display());
    let third = ("POTOK_DB_SHOP_3", address.as_str());
    let file = changed(&home, "gate:\n", "workers: 2\ngate:\n");
    let running = home.start_file_unready(&file, &[SHORT_SLICES, third, ("SHARDS", "4")]);
    let mut generator = ShopGenerator::good_only(208);
    let sent = take(&mut generator, 200);
    assert!(send(&running, &sent));
    let kept = wanted(&sent, 3, 4);
    wait::until("shard 3 is sealed and waits, the others are done", || {
        let is_whole = sealed_members(&running, "3/4") == kept.len() as u64;
        let others = (0..3).all(|shard| rows(&home, shard, 4) == wanted(&sent, shard, 4));
        (is_whole && others).then_some(())
    });
    wait::until("only shard 3 is told to wait", || {
        let open = running.run(["files", "--in-progress", "--json"], b"").good().lines();
        let waits = |row: &serde_json::Value| {
            row["reason"].as_str().is_some_and(|why| why.contains("waits for tracking"))
        };
        assert!(open.iter().filter(|row| waits(row)).all(|row| row["shard"] == 3), "{open:?}");
        open.iter().any(waits).then_some(())
    });
    running.kill();
    let running = home.start_file_unready(&file, &[SHORT_SLICES]);
    wait::until("it says what it waits for", || {
        let waits = running.status()["waits"].to_string();
        (waits.contains("\"tracking\"") && waits.contains("\"destination\"")).then_some(())
    });
    let more = take(&mut generator, 100);
    assert!(send(&running, &more));
    // Whichever of them has the lane.
    for shard in 0..2 {
        let there = wanted(&more, shard, 2);
        wait::until("the others go on", || {
            let all = Connection::open(database(&home, shard)).ok()?;
            let ids = ask(&all, "SELECT event_id FROM events");
            there.keys().all(|id| ids.iter().any(|row| row[0] == *id)).then_some(())
        });
    }
    fs::remove_file(&folder).unwrap();
    wait::until("it is written, and waits for its destination alone", || {
        let waits = running.status()["waits"].to_string();
        (folder.is_dir() && !waits.contains("\"tracking\"")).then_some(())
    });
    running.kill();
    let running = home.start_file_unready(&file, &[SHORT_SLICES, third]);
    running.drained();
    assert!(
        rows_in(&home.path().join("shop-3.sqlite"), 3, 4) == kept,
        "where they were sealed for"
    );
    all_done(&home);
}

/// The most memory that a process ever had, in bytes.
fn most_memory(running: &Running) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kb: u64 = line.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap();
    kb << 10
}

/// The naive version keeps bodies or members of what waits.
#[test]
fn a_hundred_megabytes_that_wait_for_a_shard_take_little_memory() {
    const EACH: usize = 50_000;
    let home = Home::new();
    let file = changed(&home, "gate:\n", "limits:\n  held_memory_bytes: 8MiB\ngate:\n");
    let (folder, address) = away(&home, 1);
    // What the allocator keeps for later is none of it.
    let frugal = ("MIMALLOC_PURGE_DELAY", "0");
    let settings = [SHORT_SLICES, ("POTOK_DB_SHOP_1", address.as_str()), frugal];
    let running = home.start_file_unready(&file, &settings);
    let padding = "x".repeat(EACH);
    let mut sent = Vec::new();
    let mut send_megabytes = |megabytes: usize| {
        for _ in 0..megabytes / 5 {
            let event = |at: usize| {
                let number = sent.len() + at;
                let id = format!("big-{number}");
                // One of a hundred is for the other shard.
                let shop = if number.is_multiple_of(100) { 2 } else { 1 };
                let json = format!(
                    "{{\"event_id\":\"{id}\",\"event_type\":1,\"shop_id\":{shop},\"user_id\":1,\
                     \"timestamp\":\"2025-01-01 00:00:00.000\",\"payload\":{{\"x\":\"{padding}\"}}}}"
                );
                ShopEvent { id, shop: Some(shop), bytes: json.into_bytes() }
            };
            let events: Vec<ShopEvent> = (0..5_000_000 / EACH).map(event).collect();
            assert!(send(&running, &events));
            sent.extend(events.into_iter().map(|event| ShopEvent { bytes: Vec::new(), ..event }));
        }
        let (first, second) = (wanted(&sent, 0, 2), wanted(&sent, 1, 2));
        wait::until("shard 0 has everything", || (rows(&home, 0, 2) == first).then_some(()));
        wait::until("all of shard 1 is in files", || {
            let sql = "SELECT SUM(records) FROM potok_tracking WHERE shard = 1";
            (ask(&tracking(&home), sql) == [[second.len().to_string()]]).then_some(())
        });
        second
    };
    // As much as it ever needs at a time, whatever waits.
    send_megabytes(60);
    let before = most_memory(&running);
    let second = send_megabytes(160);
    let grown = most_memory(&running) - before;
    assert!(grown < 80 << 20, "{grown} bytes more for 160 MB that wait, from {before}");
    returns(&folder);
    running.drained();
    assert!(rows_in(&folder.join("shop.sqlite"), 1, 2) == second, "not each once");
    all_done(&home);
}
