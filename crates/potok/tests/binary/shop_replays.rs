//! Dead letters of shop events: they say where their group was, go back there, and wait apart.

use potok_traffic::shop::ShopEvent;
use serde_json::Value;

use crate::process::{Home, Running, pipelines};
use crate::shop::{SHORT_SLICES, database, rows, sealed_members, send, wanted};
use crate::shop_apart::changed;
use crate::shop_files::{all_done, ask, open, prepare, tracking};
use crate::wait;

/// Events of one shop, with so many bytes of payload each.
fn events(name: &str, shop: i64, count: usize, bytes: usize) -> Vec<ShopEvent> {
    let padding = "x".repeat(bytes);
    let event = |number: usize| {
        let id = format!("{name}-{number}");
        let json = format!(
            "{{\"event_id\":\"{id}\",\"event_type\":1,\"shop_id\":{shop},\"user_id\":1,\"timestamp\":\
             \"2025-01-01 00:00:00.000\",\"payload\":{{\"x\":\"{padding}\"}}}}"
        );
        ShopEvent { id, shop: Some(shop), bytes: json.into_bytes() }
    };
    (0..count).map(event).collect()
}

/// Starts the shipped file with a worker that fails for everything.
fn start_failing(home: &Home, more: &[(&str, &str)]) -> Running {
    let file =
        changed(home, "      .shard = ", "      assert!(false, \"not today\")\n      .shard = ");
    home.start_file(&file, more).unwrap()
}

fn letters(running: &Running) -> Vec<Value> {
    running.run(["dead-letters", "list", "shop-events", "--json"], b"").good().lines()
}

/// What it says of its tracking table, where it waits for that.
fn tracking_waits(running: &Running) -> Option<Value> {
    let status = running.status();
    let waits = status["waits"].as_array().cloned().unwrap_or_default();
    waits.into_iter().find(|wait| wait["for"] == "tracking")
}

/// The naive version delivers a replay in the lane that takes records in. Behind the closed gate of its
/// shard it keeps the room that all lanes share: nothing of the other shard is read any more.
#[test]
fn replays_for_a_shard_that_is_away_do_not_hold_up_the_other() {
    let home = Home::new();
    prepare(&home);
    let running = start_failing(&home, &[SHORT_SLICES]);
    // Much more than that room.
    let failed = events("again", 1, 40, 500_000);
    for some in failed.chunks(10) {
        assert!(send(&running, some));
    }
    running.drained();
    assert_eq!(letters(&running).len(), failed.len());
    running.kill();
    let locked = open(&database(&home, 1));
    locked.execute_batch("BEGIN IMMEDIATE").unwrap();
    let file = pipelines().join("shop-events.yaml");
    let mut running = home.start_file_unready(&file, &[SHORT_SLICES]);
    let replay = ["dead-letters", "replay", "shop-events", "--no-wait"];
    running.run(replay, b"").good();
    let mut sent = Vec::new();
    for round in 0..3 {
        let some = events(&format!("even-{round}"), 2, 40, 100_000);
        assert!(send(&running, &some));
        sent.extend(some);
        wait::until("shard 0 goes on", || (rows(&home, 0, 2) == wanted(&sent, 0, 2)).then_some(()));
        if round == 1 {
            running.kill();
            running = home.start_file_unready(&file, &[SHORT_SLICES]);
        }
    }
    assert_eq!(rows(&home, 1, 2).len(), 0);
    // New events of that shard wait with them.
    let more = events("more", 3, 10, 100);
    assert!(send(&running, &more));
    locked.execute_batch("ROLLBACK").unwrap();
    running.drained();
    all_done(&home);
    let all: Vec<ShopEvent> = failed.into_iter().chain(more).collect();
    assert!(rows(&home, 1, 2) == wanted(&all, 1, 2), "not each once");
    assert!(letters(&running).is_empty(), "each was replayed");
}

/// The naive version computes the shard of a replay anew: once there are more of them its event gets
/// into two databases, or into another one than its file says.
#[test]
fn a_dead_letter_says_where_it_was_and_goes_back_there() {
    let home = Home::new();
    let running = start_failing(&home, &[SHORT_SLICES]);
    // Shard 1 of two, and 3 of four.
    let failed = events("again", 7, 3, 10);
    assert!(send(&running, &failed));
    running.drained();
    all_done(&home);
    let named = "SELECT filename FROM potok_tracking WHERE shard = 1 AND dead = 3";
    let name = ask(&tracking(&home), named)[0][0].clone();
    let listed = letters(&running);
    for letter in &listed {
        assert_eq!(
            (&letter["shard"], &letter["file"]),
            (&1.into(), &name.as_str().into()),
            "{letter}"
        );
    }
    let id = listed[0]["id"].as_str().unwrap();
    let shown = running.run(["dead-letters", "show", id], b"").good();
    let shown = shown.text();
    assert!(
        shown.contains("shard     1") && shown.contains(&format!("file      {name}")),
        "{shown}"
    );
    running.kill();
    let file = pipelines().join("shop-events.yaml");
    let running = home.start_file(&file, &[SHORT_SLICES, ("SHARDS", "4")]).unwrap();
    running.run(["dead-letters", "replay", "shop-events"], b"").good();
    running.drained();
    assert!(rows(&home, 1, 2) == wanted(&failed, 1, 2), "where they were sealed for");
    assert!(rows(&home, 3, 4).is_empty(), "nowhere else");
    // One that belongs to no group was in no file.
    let lost = b"{\"event_id\":\"lost\",\"event_type\":1,\"user_id\":1,\"timestamp\":\"2025-01-01 \
                 00:00:00.000\",\"payload\":{}}\n";
    running.run(["send", "shop-events-in"], lost).good();
    running.drained();
    let listed = letters(&running);
    assert_eq!((listed.len(), &listed[0]["reason"]), (1, &"no_key".into()));
    assert!(listed[0].get("shard").is_none() && listed[0].get("file").is_none(), "{listed:?}");
}

/// The steps of all shards may be in one transaction: the naive version holds up all of them.
#[test]
fn a_table_that_refuses_a_row_holds_up_its_shard_and_says_why() {
    let home = Home::new();
    prepare(&home);
    let file = pipelines().join("shop-events.yaml");
    let running = home.start_file(&file, &[SHORT_SLICES]).unwrap();
    let table = tracking(&home);
    let refuse = "CREATE TRIGGER refused BEFORE UPDATE ON pipeline_tracking WHEN NEW.shard = 1 BEGIN \
                  SELECT RAISE(ABORT, 'not this one'); END";
    table.execute_batch(refuse).unwrap();
    let mut sent = Vec::new();
    for round in 0..3 {
        for shop in [1, 2] {
            let some = events(&format!("{shop}-{round}"), shop, 20, 10);
            assert!(send(&running, &some));
            sent.extend(some);
        }
        wait::until("shard 0 goes on", || (rows(&home, 0, 2) == wanted(&sent, 0, 2)).then_some(()));
    }
    let wait = wait::until("it says what it waits for", || tracking_waits(&running));
    assert!(wait["why"].as_str().unwrap().contains("not this one"), "{wait}");
    assert!(rows(&home, 1, 2).is_empty(), "its steps are held");
    table.execute_batch("DROP TRIGGER refused").unwrap();
    // Nobody resumes it.
    running.drained();
    all_done(&home);
    assert!(rows(&home, 1, 2) == wanted(&sent, 1, 2), "not each once");
    wait::until("nothing is waited for", || tracking_waits(&running).is_none().then_some(()));
    assert_eq!(running.status()["state"], "running");
}

/// The naive version stops the whole pipeline where a table does not fit, until somebody resumes it.
#[test]
fn a_tracking_table_that_does_not_fit_stops_no_intake() {
    let home = Home::new();
    prepare(&home);
    let table = tracking(&home);
    let rename = "ALTER TABLE potok_tracking RENAME COLUMN mysql_sender_done_at TO elsewhere";
    table.execute_batch(rename).unwrap();
    let file = pipelines().join("shop-events.yaml");
    let running = home.start_file_unready(&file, &[SHORT_SLICES]);
    let sent = events("odd", 1, 20, 10);
    assert!(send(&running, &sent));
    let wait = wait::until("it says what it waits for", || tracking_waits(&running));
    assert!(wait["why"].as_str().unwrap().contains("P1405"), "{wait}");
    wait::until("what came is sealed", || {
        (sealed_members(&running, "1/2") == sent.len() as u64).then_some(())
    });
    let back = "ALTER TABLE potok_tracking RENAME COLUMN elsewhere TO mysql_sender_done_at";
    table.execute_batch(back).unwrap();
    // Nobody resumes it.
    running.drained();
    all_done(&home);
    assert!(rows(&home, 1, 2) == wanted(&sent, 1, 2), "not each once");
    wait::until("nothing is waited for", || tracking_waits(&running).is_none().then_some(()));
}
