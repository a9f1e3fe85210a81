//! Naive versions of shop events, each switched on in a process of its own: what it breaks is found,
//! and without it the same run keeps what is promised.

use std::fs;

use potok_traffic::shop::{ShopEvent, ShopGenerator};

use crate::process::{Home, Running, pipelines};
use crate::shop::{SHORT_SLICES, database, rows, rows_in, sealed_members, send, take, wanted};
use crate::shop_files::{all_done, ask, open, prepare, tracking};
use crate::wait;

/// Starts the shipped file, with a naive version where one is meant.
fn start(home: &Home, plant: Option<&str>, more: &[(&str, &str)]) -> Running {
    let mut settings = vec![SHORT_SLICES];
    settings.extend(plant.map(|bug| ("POTOK_PLANT", bug)));
    settings.extend(more);
    home.start_file_unready(&pipelines().join("shop-events.yaml"), &settings)
}

fn of_shard(generator: &mut ShopGenerator, shard: i64, count: usize) -> Vec<ShopEvent> {
    let mut events = Vec::new();
    while events.len() < count {
        let is_it = |event: &ShopEvent| event.shop.is_some_and(|shop| shop.rem_euclid(2) == shard);
        events.extend(take(generator, count).into_iter().filter(is_it));
    }
    events.truncate(count);
    events
}

/// The rows of a shard, each with the state of its last stage, oldest first.
fn states(home: &Home, shard: i64) -> Vec<(String, String)> {
    let sql = format!(
        "SELECT filename, mysql_sender_status FROM pipeline_tracking WHERE shard = {shard} ORDER BY \
         filename"
    );
    ask(&tracking(home), &sql).into_iter().map(|row| (row[0].clone(), row[1].clone())).collect()
}

/// Whether the row of a shard without events ends before so many later files of that shard have.
fn empty_rows_end(plant: Option<&str>) -> bool {
    let home = Home::new();
    prepare(&home);
    let running = start(&home, plant, &[]).ready().unwrap();
    let mut generator = ShopGenerator::good_only(210);
    assert!(send(&running, &of_shard(&mut generator, 0, 20)));
    let empty = wait::until("the other shard has a row", || {
        states(&home, 1).first().map(|(name, _)| name.clone())
    });
    for later in 1..=3 {
        assert!(send(&running, &of_shard(&mut generator, 1, 20)));
        wait::until("a later file of it is done", || {
            let done = "SELECT COUNT(*) FROM potok_tracking WHERE shard = 1 AND seal IS NOT NULL AND \
                        finished_at IS NOT NULL";
            (ask(&tracking(&home), done) == [[later.to_string()]]).then_some(())
        });
    }
    // Whoever has the shard has looked for such rows in each of these slices.
    if plant.is_none() {
        all_done(&home);
    }
    states(&home, 1).iter().any(|(name, state)| *name == empty && state == "done")
}

#[test]
fn a_shard_without_events_that_nobody_ends_is_found() {
    assert!(empty_rows_end(None));
    assert!(!empty_rows_end(Some("EmptyForgotten")));
}

/// Whether the table says `done` only of rows that are there.
fn done_means_there(plant: Option<&str>) -> bool {
    let home = Home::new();
    prepare(&home);
    let running = start(&home, plant, &[]).ready().unwrap();
    let mut generator = ShopGenerator::good_only(211);
    assert!(send(&running, &of_shard(&mut generator, 1, 20)));
    running.drained();
    let there = rows(&home, 1, 2).len();
    let locked = open(&database(&home, 1));
    locked.execute_batch("BEGIN IMMEDIATE").unwrap();
    let events = of_shard(&mut generator, 1, 20);
    assert!(send(&running, &events));
    wait::until("its shard has refused them", || {
        (running.status()["gate"]["state"] == "closed").then_some(())
    });
    assert_eq!(rows(&home, 1, 2).len(), there);
    let done = "SELECT COALESCE(SUM(p.records), 0) FROM potok_tracking p JOIN pipeline_tracking t USING \
                (filename, shard) WHERE t.shard = 1 AND t.mysql_sender_status = 'done'";
    let done: usize = ask(&tracking(&home), done)[0][0].parse().unwrap();
    locked.execute_batch("ROLLBACK").unwrap();
    if plant.is_none() {
        running.drained();
        all_done(&home);
    }
    done <= there
}

#[test]
fn a_file_that_is_done_before_its_rows_are_there_is_found() {
    assert!(done_means_there(None));
    assert!(!done_means_there(Some("DoneFirst")));
}

/// Whether records wait for the table's `done` before they end in the log.
fn steps_are_waited_for(plant: Option<&str>) -> bool {
    let home = Home::new();
    prepare(&home);
    let running = start(&home, plant, &[]).ready().unwrap();
    let mut generator = ShopGenerator::good_only(212);
    let shard = open(&database(&home, 1));
    shard.execute_batch("BEGIN IMMEDIATE").unwrap();
    let events = of_shard(&mut generator, 1, 20);
    assert!(send(&running, &events));
    wait::until("they are with the sender", || {
        states(&home, 1).last().is_some_and(|(_, state)| state == "started").then_some(())
    });
    let table = tracking(&home);
    table.execute_batch("BEGIN IMMEDIATE").unwrap();
    shard.execute_batch("ROLLBACK").unwrap();
    wait::until("it has asked the table", || {
        let status = running.status();
        let waits = status["waits"].to_string().contains("\"tracking\"");
        (waits || status["in_flight"] == 0).then_some(())
    });
    if plant.is_some() {
        wait::until("they end without it", || (running.status()["in_flight"] == 0).then_some(()));
    }
    let are_held = running.status()["in_flight"] == events.len();
    table.execute_batch("ROLLBACK").unwrap();
    if plant.is_none() {
        running.drained();
        all_done(&home);
        assert!(rows(&home, 1, 2) == wanted(&events, 1, 2), "not each once");
    }
    are_held
}

#[test]
fn a_step_that_counts_though_the_table_did_not_take_it_is_found() {
    assert!(steps_are_waited_for(None));
    assert!(!steps_are_waited_for(Some("TrackIgnored")));
}

/// Whether a shard goes on while the other is away.
fn shards_wait_apart(plant: Option<&str>) -> bool {
    let home = Home::new();
    prepare(&home);
    let running = start(&home, plant, &[]).ready().unwrap();
    let mut generator = ShopGenerator::good_only(213);
    let locked = open(&database(&home, 1));
    locked.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(send(&running, &of_shard(&mut generator, 1, 20)));
    wait::until("it is away, with a file that waits", || {
        let waits = states(&home, 1).last().is_some_and(|(_, state)| state == "started");
        (waits && running.status()["gate"]["state"] == "closed").then_some(())
    });
    let mut sent = Vec::new();
    for file in 1..=3 {
        let events = of_shard(&mut generator, 0, 20);
        assert!(send(&running, &events));
        sent.extend(events);
        wait::until("the other shard has one more file", || {
            let written = "SELECT COUNT(*) FROM pipeline_tracking t JOIN potok_tracking p USING \
                           (filename, shard) WHERE t.shard = 0 AND p.seal IS NOT NULL AND \
                           t.shard_splitter_status = 'done'";
            let written: i64 = ask(&tracking(&home), written)[0][0].parse().unwrap();
            (written >= file).then_some(())
        });
    }
    if plant.is_none() {
        wait::until("it goes on", || (rows(&home, 0, 2) == wanted(&sent, 0, 2)).then_some(()));
    }
    let goes_on = !rows(&home, 0, 2).is_empty();
    locked.execute_batch("ROLLBACK").unwrap();
    running.drained();
    assert!(rows(&home, 0, 2) == wanted(&sent, 0, 2), "not each once");
    goes_on
}

#[test]
fn shards_that_share_a_lane_are_found() {
    assert!(shards_wait_apart(None));
    assert!(!shards_wait_apart(Some("ShardsShareLane")));
}

/// Whether what is sealed stays with its shard when the number of shards changes.
fn sealed_stays(plant: Option<&str>) -> bool {
    let home = Home::new();
    let folder = home.path().join("away");
    fs::write(&folder, b"").unwrap();
    let address = format!("sqlite:{}/shop-1.sqlite", folder.display());
    let away = ("POTOK_DB_SHOP_1", address.as_str());
    let running = start(&home, plant, &[away]);
    let mut generator = ShopGenerator::good_only(214);
    let sent = of_shard(&mut generator, 1, 60);
    assert!(send(&running, &sent));
    wait::until("it is sealed and waits", || {
        (sealed_members(&running, "1/2") == sent.len() as u64).then_some(())
    });
    running.kill();
    let running = start(&home, plant, &[away, ("SHARDS", "4")]);
    fs::remove_file(&folder).unwrap();
    fs::create_dir(&folder).unwrap();
    running.drained();
    rows(&home, 3, 4).is_empty() && rows_in(&folder.join("shop-1.sqlite"), 1, 2).len() == sent.len()
}

#[test]
fn a_sealed_record_that_goes_where_its_value_leads_now_is_found() {
    assert!(sealed_stays(None));
    assert!(!sealed_stays(Some("ShardByNow")));
}
