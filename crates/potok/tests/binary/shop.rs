//! Shop events: each once in the database of its shard, whatever is killed or away.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use potok_traffic::Random;
use potok_traffic::shop::{ShopEvent, ShopGenerator};
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

use crate::check::Letter;
use crate::process::{Home, Running, SMALL_SEGMENTS, pipelines, potok, run};
use crate::walk::{DONE, Guide, Walk};
use crate::{short_or_soak, wait};

pub const SHORT_SLICES: (&str, &str) = ("SLICE", "1s");

pub fn start(home: &Home, more: &[(&str, &str)]) -> Running {
    home.start_file(&pipelines().join("shop-events.yaml"), more).unwrap()
}

pub fn database(home: &Home, shard: i64) -> PathBuf {
    home.data().join(format!("db/shop-{shard}.sqlite"))
}

/// The ids and shops in the database of a shard; every row must be there once and belong there.
pub fn rows(home: &Home, shard: i64, of: i64) -> BTreeMap<String, i64> {
    rows_in(&database(home, shard), shard, of)
}

pub fn rows_in(database: &Path, shard: i64, of: i64) -> BTreeMap<String, i64> {
    let read = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let Ok(database) = Connection::open_with_flags(database, read) else {
        return BTreeMap::new();
    };
    database.busy_timeout(wait::PATIENCE).unwrap();
    let Ok(mut select) = database.prepare("SELECT event_id, shop_id, shard FROM events") else {
        return BTreeMap::new();
    };
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let all: Vec<(String, i64, i64)> =
        select.query_map([], row).unwrap().map(Result::unwrap).collect();
    let mut found = BTreeMap::new();
    for (id, shop, told) in all {
        assert_eq!((shop.rem_euclid(of), told), (shard, shard), "{id} of shop {shop}");
        assert!(found.insert(id, shop).is_none(), "one row of an event");
    }
    found
}

/// What must be in the database of a shard.
pub fn wanted(events: &[ShopEvent], shard: i64, of: i64) -> BTreeMap<String, i64> {
    let there = events.iter().filter_map(|event| Some((event.id.clone(), event.shop?)));
    there.filter(|(_, shop)| shop.rem_euclid(of) == shard).collect()
}

fn lines(events: &[ShopEvent]) -> Vec<u8> {
    events.iter().flat_map(|event| event.bytes.iter().copied().chain([b'\n'])).collect()
}

pub fn send(running: &Running, events: &[ShopEvent]) -> bool {
    running.run(["send", "shop-events-in"], &lines(events)).code == Some(0)
}

pub fn take(generator: &mut ShopGenerator, count: usize) -> Vec<ShopEvent> {
    (0..count).map(|_| generator.next_event()).collect()
}

/// Ids of what was set aside.
fn letters(running: &Running) -> BTreeSet<String> {
    let listed = running.run(["dead-letters", "list", "shop-events", "--json"], b"").good();
    let letters = Letter::all(&listed);
    assert!(letters.iter().all(|letter| letter.reason == "no_key"), "{letters:?}");
    assert!(letters.iter().all(|letter| letter.error.contains(".shop_id")), "{letters:?}");
    let id = |letter: &Letter| {
        let value: Value = serde_json::from_slice(&letter.value).unwrap();
        value["event_id"].as_str().unwrap().to_owned()
    };
    letters.iter().map(id).collect()
}

#[test]
fn each_event_is_once_on_its_shard_however_often_it_is_killed() {
    let mut random = Random::new(190);
    let home = Home::new();
    let mut generator = ShopGenerator::new(191);
    let settings = [SMALL_SEGMENTS, SHORT_SLICES];
    // What was acknowledged, and what may have been taken all the same.
    let (mut sent, mut tried) = (Vec::new(), Vec::new());
    for _ in 0..short_or_soak(8, 100) {
        let running = start(&home, &settings);
        std::thread::scope(|scope| {
            let (sent, tried, generator, running) =
                (&mut sent, &mut tried, &mut generator, &running);
            scope.spawn(move || {
                loop {
                    let events = take(generator, 40);
                    let is_taken = send(running, &events);
                    tried.extend(events.iter().cloned());
                    if !is_taken {
                        return;
                    }
                    sent.extend(events);
                }
            });
            wait::random_moment(&mut random, Duration::from_millis(2_500));
            running.signal("KILL");
        });
        running.ended("potok is killed");
    }
    let running = start(&home, &settings);
    // Everything that was acknowledged once more: it changes nothing.
    let again: Vec<ShopEvent> = sent.clone();
    assert!(send(&running, &again));
    running.drained();
    for shard in 0..2 {
        let found = rows(&home, shard, 2);
        let (sent, tried) = (wanted(&sent, shard, 2), wanted(&tried, shard, 2));
        assert!(sent.keys().all(|id| found.contains_key(id)), "an acknowledged event is missing");
        assert!(found.keys().all(|id| tried.contains_key(id)), "an event that nobody sent");
    }
    let lost: BTreeSet<String> =
        sent.iter().filter(|event| event.shop.is_none()).map(|event| event.id.clone()).collect();
    assert!(!sent.is_empty() && letters(&running).is_superset(&lost));
}

/// The naive version waits at the closed gate with its part of the room that all lanes share: nothing
/// of the other shard is read after a few megabytes.
#[test]
fn a_shard_that_is_away_does_not_hold_up_the_other() {
    let home = Home::new();
    // A file where its folder should be.
    let folder = home.path().join("away");
    fs::write(&folder, b"").unwrap();
    let address = format!("sqlite:{}/shop-1.sqlite", folder.display());
    let settings = [SHORT_SLICES, ("POTOK_DB_SHOP_1", address.as_str())];
    let running = home.start_file_unready(&pipelines().join("shop-events.yaml"), &settings);
    let mut sent = Vec::new();
    let padding = "x".repeat(30_000);
    for number in 0..20_i64 {
        let event = |at: i64| {
            let shop = number * 50 + at;
            let id = format!("big-{shop}");
            let json = format!(
                "{{\"event_id\":\"{id}\",\"event_type\":1,\"shop_id\":{shop},\"user_id\":1,\
                 \"timestamp\":\"2025-01-01 00:00:00.000\",\"payload\":{{\"x\":\"{padding}\"}}}}"
            );
            ShopEvent { id, shop: Some(shop), bytes: json.into_bytes() }
        };
        let events: Vec<ShopEvent> = (0..50).map(event).collect();
        assert!(send(&running, &events));
        sent.extend(events);
    }
    let there = wanted(&sent, 0, 2);
    assert_eq!(there.len(), 500);
    wait::until("everything of shard 0 is in its database", || {
        (rows(&home, 0, 2) == there).then_some(())
    });
    let status = running.status();
    assert_eq!((&status["gate"]["state"], &status["dead_lettered"]), (&"closed".into(), &0.into()));
    wait::until("those of shard 1 wait", || (running.status()["in_flight"] == 500).then_some(()));
    // It is killed meanwhile, and then its database comes back.
    running.kill();
    let running = home.start_file_unready(&pipelines().join("shop-events.yaml"), &settings);
    fs::remove_file(&folder).unwrap();
    fs::create_dir(&folder).unwrap();
    running.drained();
    let returned = rows_in(&folder.join("shop-1.sqlite"), 1, 2);
    assert!(returned == wanted(&sent, 1, 2), "not each once");
    assert!(rows(&home, 0, 2) == there, "not each once");
}

/// The same of a database that breaks while events flow, in a way that somebody has to mend.
#[test]
fn a_table_that_is_gone_blocks_its_own_shard() {
    let home = Home::new();
    let running = start(&home, &[SHORT_SLICES]);
    let mut generator = ShopGenerator::good_only(192);
    let first = take(&mut generator, 100);
    assert!(send(&running, &first));
    running.drained();
    let broken = Connection::open(database(&home, 1)).unwrap();
    broken.busy_timeout(wait::PATIENCE).unwrap();
    broken.execute_batch("ALTER TABLE events RENAME TO hidden; CREATE TABLE events (x)").unwrap();
    let second = take(&mut generator, 100);
    assert!(send(&running, &second));
    let all: Vec<ShopEvent> = first.iter().chain(&second).cloned().collect();
    wait::until("shard 0 has everything", || {
        (rows(&home, 0, 2) == wanted(&all, 0, 2)).then_some(())
    });
    wait::until("the gate of shard 1 is closed", || {
        (running.status()["gate"]["state"] == "closed").then_some(())
    });
    let third = take(&mut generator, 100);
    assert!(send(&running, &third));
    let all: Vec<ShopEvent> = all.iter().chain(&third).cloned().collect();
    wait::until("shard 0 goes on", || (rows(&home, 0, 2) == wanted(&all, 0, 2)).then_some(()));
    broken.execute_batch("DROP TABLE events; ALTER TABLE hidden RENAME TO events").unwrap();
    let status = running.drained();
    assert_eq!((&status["delivered"], &status["dead_lettered"]), (&300.into(), &0.into()));
    assert!(rows(&home, 1, 2) == wanted(&all, 1, 2), "not each once");
}

/// How many records the seals in the log name for a group.
pub fn sealed_members(running: &Running, group: &str) -> u64 {
    let seals = running.run(["read", "potok-shop-events"], b"").good().lines();
    let of_group = seals.iter().filter(|seal| seal["key"] == group);
    let members = of_group.flat_map(|seal| {
        let seal: Value = serde_json::from_str(seal["value"].as_str().unwrap()).unwrap();
        let members = seal["members"].as_array().unwrap().clone();
        members.into_iter().flat_map(|part| part["offsets"].as_array().unwrap().clone())
    });
    members.map(|range| range[1].as_u64().unwrap() - range[0].as_u64().unwrap()).sum()
}

/// The naive version computes the shard anew when a sealed group is read again: its events get into
/// two databases.
#[test]
fn sealed_groups_keep_their_shard_when_the_number_changes() {
    let home = Home::new();
    let folder = home.path().join("away");
    fs::write(&folder, b"").unwrap();
    let address = format!("sqlite:{}/shop-1.sqlite", folder.display());
    let away = [SHORT_SLICES, ("POTOK_DB_SHOP_1", address.as_str())];
    let running = home.start_file_unready(&pipelines().join("shop-events.yaml"), &away);
    let mut generator = ShopGenerator::good_only(193);
    let sent = take(&mut generator, 200);
    assert!(send(&running, &sent));
    let kept = wanted(&sent, 1, 2);
    wait::until("shard 1 is sealed and waits", || {
        let is_whole = sealed_members(&running, "1/2") == kept.len() as u64;
        (is_whole && rows(&home, 0, 2) == wanted(&sent, 0, 2)).then_some(())
    });
    running.kill();
    let four = [SHORT_SLICES, ("POTOK_DB_SHOP_1", address.as_str()), ("SHARDS", "4")];
    let running = home.start_file_unready(&pipelines().join("shop-events.yaml"), &four);
    fs::remove_file(&folder).unwrap();
    fs::create_dir(&folder).unwrap();
    running.drained();
    let returned = rows_in(&folder.join("shop-1.sqlite"), 1, 2);
    assert!(returned == kept, "they are where they were sealed for");
    for shard in 2..4 {
        assert!(rows(&home, shard, 4).is_empty(), "nothing of them is elsewhere");
    }
    let more = take(&mut generator, 100);
    assert!(send(&running, &more));
    running.drained();
    assert_eq!(rows(&home, 3, 4), wanted(&more, 3, 4));
}

#[test]
fn shards_that_cannot_be_are_refused() {
    let home = Home::new();
    let file = home.path().join("a.yaml");
    let check = |group: &str, log: &str| {
        let deliver = "deliver: [ { db: \"a-{shard}\", table: t, once_by: .id } ]";
        let text = format!("name: a\nsource: {{ topic: a }}\n{group}\n{deliver}\n");
        fs::write(&file, text).unwrap();
        let mut command = potok(["check".as_ref(), file.as_os_str()]);
        command.current_dir(home.path()).env("POTOK_LOG", log);
        run(command, b"")
    };
    let good = "group: { shard: { by: .s, of: 3 }, close: { every: 1s } }";
    check(good, "embedded").good();
    for (group, log, code) in [
        ("", "embedded", "P0144"),
        ("group: { by: .s, close: { every: 1s } }", "embedded", "P0144"),
        ("group: { by: .k, shard: { by: .s, of: 3 }, close: { every: 1s } }", "embedded", "P0142"),
        ("group: { shard: { by: .s, of: 0 }, close: { every: 1s } }", "embedded", "P0123"),
        ("group: { shard: { by: s, of: 3 }, close: { every: 1s } }", "embedded", "P0127"),
    ] {
        let ran = check(group, log);
        assert!(ran.code != Some(0) && ran.stderr.contains(code), "{code}: {}", ran.stderr);
    }
}

const INSTEAD: [(&str, &str); 2] =
    [("cargo build --release", DONE), ("alias potok=target/release/potok", DONE)];

#[test]
fn every_command_of_the_guide_to_shop_events_runs() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let guide = Guide::read("shop-events.md").with("127.0.0.1:7601", &free);
    let mut walk = Walk::through(&guide, 1..=7, &INSTEAD);
    walk.know(&format!("export POTOK_HTTP={free}"));
    // Nothing closes by itself while the commands are looked at.
    walk.know("export SLICE=1000d");
    let ddl = walk.to("potok ddl");
    assert_eq!(ddl.matches("CREATE TABLE").count(), 4, "{ddl}");
    for _ in 0..3 {
        let accepted = walk.to("curl -s -d");
        assert!(accepted.contains("\"accepted\":1"), "{accepted}");
    }
    walk.until("potok groups list shop-events", "0/2");
    walk.until("potok groups list shop-events", "1/2");
    walk.to("potok groups close shop-events 1/2");
    let status = walk.running().drained();
    assert_eq!((&status["delivered"], &status["dead_lettered"]), (&2.into(), &1.into()));
    let letters = walk.to("potok dead-letters list shop-events");
    assert!(letters.contains("no_key") && letters.contains(".shop_id"), "{letters}");
    let files = walk.to("potok files");
    assert!(files.contains("mysql_sender") && files.contains("done"), "{files}");
    let stuck = walk.to("potok stuck");
    assert!(stuck.contains("nothing is stuck"), "{stuck}");
    walk.to("curl -s -d");
    walk.until("potok groups list shop-events", "1/2");
    walk.to("potok groups close shop-events 1/2");
    assert_eq!(walk.running().drained()["duplicates"], 1);
    walk.to("potok status shop-events");
    walk.finish();
}
