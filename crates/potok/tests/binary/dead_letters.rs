//! Dead letters from the command line: list, show, replay, drop.

use potok_traffic::orders::{OrderGenerator, OrderSpoiling};
use rusqlite::Connection;
use serde_json::Value;

use crate::check::{Letter, Tables, assert_adds_up, assert_kept};
use crate::ledger::Ledger;
use crate::load::lines;
use crate::posting::post_to;
use crate::process::{Home, Running};
use crate::wait;

fn list(running: &Running, more: &[&str]) -> Vec<Value> {
    let args = ["dead-letters", "list", "orders", "--json"].iter().chain(more);
    running.run(args, b"").good().lines()
}

/// Sends an order, another one under its id and a bad one; waits until all have ended.
fn with_a_conflict_and_a_bad_one(running: &Running) -> (Ledger, String) {
    let mut generator = OrderGenerator::good_only(50);
    let first = generator.good();
    let version = generator.version_of(&first.uid);
    let bad = generator.spoiled(OrderSpoiling::Sale);
    let uid = first.uid.clone();
    let orders = vec![first, version, bad];
    assert!(running.send_lines(&lines(&orders), &["--key", ".order_uid", "--header", "from=test"]));
    let mut ledger = Ledger::default();
    ledger.note(orders, true);
    running.drained();
    (ledger, uid)
}

#[test]
fn they_are_listed_and_shown_with_everything_that_is_known() {
    let home = Home::new();
    let running = home.start();
    let (ledger, uid) = with_a_conflict_and_a_bad_one(&running);
    assert_kept(&home, &running, &ledger);

    let letters = list(&running, &[]);
    assert_eq!(letters.len(), 2);
    for letter in &letters {
        for field in [
            "id", "pipeline", "reason", "error", "attempts", "origin", "time", "key", "headers",
            "value",
        ] {
            assert!(letter.get(field).is_some(), "{field}: {letter}");
        }
        assert_eq!(letter["pipeline"], "orders");
        assert_eq!(letter["attempts"], 1);
        assert_eq!(letter["headers"], serde_json::json!([["from", "test"]]));
    }
    let conflict = list(&running, &["--reason", "conflict"]);
    assert_eq!(conflict.len(), 1);
    assert_eq!(conflict[0]["key"], uid.as_str());
    assert!(conflict[0]["error"].as_str().unwrap().contains(&uid), "names the id: {conflict:?}");
    assert_eq!(list(&running, &["--where", ".order_uid == \"nobody\""]).len(), 0);
    let by_id = format!(".order_uid == \"{uid}\"");
    assert_eq!(list(&running, &["--where", &by_id]).len(), 1);
    assert_eq!(list(&running, &["--since", "1h"]).len(), 2);

    let id = conflict[0]["id"].as_str().unwrap();
    let shown = running.run(["dead-letters", "show", id], b"").good();
    assert!(shown.text().contains(&uid) && shown.text().contains("conflict"), "{}", shown.text());
    assert!(shown.text().contains("differs   /"), "names the fields: {}", shown.text());

    // The story of a dead letter is that of the record it was.
    let story = running.run(["trace", id], b"").good();
    for what in ["record", "ended", "dead letter"] {
        assert!(story.text().lines().any(|line| line.contains(what)), "{what}: {}", story.text());
    }
    let origin = conflict[0]["origin"]["position"].as_str().unwrap();
    let place = origin.split('@').next().unwrap();
    assert!(story.text().contains(place), "{origin}: {}", story.text());

    running.run(["dead-letters", "list", "orders", "--reason", "nonsense"], b"").exits(2);
    running.run(["dead-letters", "list", "orders", "--where", "nonsense("], b"").exits(2);
    running.run(["dead-letters", "list", "nobody"], b"").exits(1);
}

#[test]
fn a_replay_delivers_once_the_cause_is_gone() {
    let home = Home::new();
    let running = home.start();
    let (_, uid) = with_a_conflict_and_a_bad_one(&running);

    // The operator decides for the second order.
    let database = Connection::open(home.database()).unwrap();
    database.busy_timeout(wait::PATIENCE).unwrap();
    for table in ["items", "payments", "deliveries", "orders"] {
        database.execute(&format!("DELETE FROM {table} WHERE order_uid = ?"), [&uid]).unwrap();
    }
    let dry =
        running.run(["dead-letters", "replay", "orders", "--reason", "conflict", "--dry-run"], b"");
    dry.good();
    assert_eq!(list(&running, &[]).len(), 2, "a dry run changes nothing");
    assert_eq!(Tables::read(&home.database()).count(), 0);

    let wanted = list(&running, &["--reason", "conflict"]).remove(0);
    running.run(["dead-letters", "replay", "orders", "--reason", "conflict"], b"").good();
    wait::until("the replayed order is delivered", || {
        (list(&running, &["--reason", "conflict"]).is_empty()).then_some(())
    });
    let status = running.drained();
    assert_adds_up(&status);
    let row = Tables::read(&home.database()).order(&uid).expect("a row");
    assert_eq!(row, serde_json::from_str::<Value>(wanted["value"].as_str().unwrap()).unwrap());
    assert_eq!(list(&running, &[]).len(), 1, "the other one is untouched");

    // Nothing of it comes back after a kill.
    running.kill();
    let running = home.start();
    running.drained();
    assert_eq!(list(&running, &[]).len(), 1);
    assert_eq!(Tables::read(&home.database()).count(), 1);
}

#[test]
fn a_replay_that_fails_again_is_still_listed_and_not_replayed_for_ever() {
    let home = Home::new();
    let running = home.start();
    let (ledger, _) = with_a_conflict_and_a_bad_one(&running);
    let before = list(&running, &["--reason", "invalid"]).remove(0);
    for attempt in 2..=6 {
        running.run(["dead-letters", "replay", "orders", "--reason", "invalid"], b"").good();
        wait::until("the failed replay is listed again", || {
            let letters = list(&running, &["--reason", "invalid"]);
            (letters.len() == 1 && letters[0]["attempts"] == attempt).then_some(())
        });
    }
    let after = list(&running, &["--reason", "invalid"]).remove(0);
    assert_eq!((&after["origin"], &after["value"]), (&before["origin"], &before["value"]));
    // Five replays are enough (`replays_max`).
    running.run(["dead-letters", "replay", "orders", "--reason", "invalid"], b"");
    running.drained();
    assert_eq!(list(&running, &["--reason", "invalid"])[0]["attempts"], 6);
    assert_kept(&home, &running, &ledger);
}

#[test]
fn dropped_ones_stay_dropped() {
    let home = Home::new();
    let running = home.start();
    with_a_conflict_and_a_bad_one(&running);
    running.run(["dead-letters", "drop", "orders", "--reason", "invalid", "--dry-run"], b"").good();
    assert_eq!(list(&running, &[]).len(), 2);
    running.run(["dead-letters", "drop", "orders", "--reason", "invalid"], b"").good();
    assert_eq!(list(&running, &[]).len(), 1);
    running.kill();

    // Without a process the folder is read directly.
    let listed = home.run(["dead-letters", "list", "orders", "--json"]).good();
    assert_eq!(Letter::all(&listed).len(), 1);
    assert_eq!(Letter::all(&listed)[0].reason, "conflict");
}

#[test]
fn jobs_are_seen_and_stopped_and_a_process_that_stops_notes_how_far_they_were() {
    let home = Home::new();
    let running = home.start();
    let mut generator = OrderGenerator::good_only(51);
    let bad: Vec<_> = (0..30).map(|_| generator.spoiled(OrderSpoiling::Sale)).collect();
    assert!(running.send_lines(&lines(&bad), &["--key", ".order_uid"]));
    running.drained();
    assert_eq!(running.run(["jobs", "list"], b"").good().text().trim(), "no jobs");
    let begun = |name: &str| {
        let wish = serde_json::json!({ "job": name, "rate": 2 }).to_string();
        let path = "/api/v1/dead-letters/replay";
        let (status, answer) = post_to(&running.address, path, "Accept: */*", &wish);
        assert_eq!(status, 202, "{answer}");
        answer["job"].as_str().unwrap().to_owned()
    };
    let seen = |id: &str, what: &str, is_it: fn(&Value) -> bool| {
        wait::until(what, || {
            let shown = running.run(["jobs", "show", id], b"").good();
            let job: Value = serde_json::from_str(shown.text()).unwrap();
            is_it(&job).then_some(job)
        })
    };
    let first = begun("by hand");
    seen(&first, "some are sent", |job| job["done"].as_u64().is_some_and(|done| done > 0));
    let listed = running.run(["jobs", "list"], b"").good();
    assert!(listed.text().contains("by hand") && listed.text().contains(&first));
    running.run(["jobs", "stop", &first], b"").good();
    seen(&first, "it has stopped", |job| job["phase"] == "stopped");
    assert!(running.run(["jobs", "stop", "nobody"], b"").exits(1).text().is_empty());

    let second = begun("by a signal");
    seen(&second, "some are sent", |job| job["done"].as_u64().is_some_and(|done| done > 0));
    assert!(running.stop().success());
    let audit = home.run(["read", "potok-audit"]).good();
    assert_eq!(audit.text().matches("stopped").count(), 2, "{}", audit.text());
}

#[test]
fn a_dry_run_says_until_where_and_a_drop_keeps_to_it() {
    let home = Home::new();
    let running = home.start();
    with_a_conflict_and_a_bad_one(&running);
    let dry = running.run(["dead-letters", "drop", "orders", "--dry-run"], b"").good();
    let until = dry.text().split_once("--until ").expect("a mark").1.trim().to_owned();
    let bad = OrderGenerator::good_only(52).spoiled(OrderSpoiling::Sale);
    assert!(running.send_lines(&lines(&[bad]), &["--key", ".order_uid"]));
    running.drained();
    assert_eq!(list(&running, &[]).len(), 3);
    assert_eq!(list(&running, &["--until", &until]).len(), 2);
    let dropped = running.run(["dead-letters", "drop", "orders", "--until", &until], b"").good();
    assert!(dropped.text().contains("2 dead letters dropped"), "{}", dropped.text());
    let left = list(&running, &[]).remove(0);
    // By its cause, as the dashboard's command names it.
    let cause = ["dead-letters", "drop", "orders", "--cause", "something else"];
    assert!(running.run(cause, b"").good().text().contains("0 dead letters dropped"));
    assert_eq!(list(&running, &[])[0]["id"], left["id"]);
}
