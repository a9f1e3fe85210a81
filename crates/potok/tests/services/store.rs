//! em-processor with its held records in a real Redis: other programs see the documented keys, and
//! losing them costs a re-read, never a record.

use std::collections::HashSet;

use potok_services::{Kafka, Redis};
use potok_traffic::gdelt::{EVENTS, GdeltGenerator, SentRecord};

use crate::batches::{Records, delivered};
use crate::gathering::{by_hand, home as home_on, start_forgetful};
use crate::process::{Home, Running, pipelines};
use crate::wait;

fn start(home: &Home, redis: &Redis, window: &str) -> Running {
    let environment = [("POTOK_STORE", &*redis.url()), ("BATCH_WINDOW", window)];
    home.start_file(&pipelines().join("em-processor.yaml"), &environment).expect("starts")
}

fn distinct(records: &[SentRecord]) -> (usize, usize) {
    let ids: HashSet<_> = records.iter().map(|sent| (sent.topic, &sent.id)).collect();
    let events = ids.iter().filter(|(topic, _)| *topic == EVENTS).count();
    (events, ids.len() - events)
}

fn held(running: &Running, records: usize) {
    wait::until("all records are held", || {
        (running.status()["held_records"] == records).then_some(())
    });
}

#[test]
fn a_batch_lies_in_the_documented_keys_until_it_has_been_sent() {
    let (home, redis) = (Home::new(), Redis::start());
    let running = start(&home, &redis, "1h");
    let batch = GdeltGenerator::good_only(31).next_batch(1_473, 4_446);
    let (id, (events, mentions)) = (batch.id.clone(), distinct(&batch.records));
    let (all, some) = (batch.records.len(), batch.records[0].clone());
    let mut records = Records::default();
    assert!(records.send(&running, batch.records));
    held(&running, all);
    let size = |key: &str| redis.command(&["SCARD", &format!("batch:{key}:{id}")]);
    wait::until("everything is in Redis", || {
        (size("events") == events.to_string() && size("mentions") == mentions.to_string())
            .then_some(())
    });
    assert_eq!(redis.command(&["SISMEMBER", "active:batches", &id]), "1");
    assert_eq!(redis.command(&["SISMEMBER", "ready:batches", &id]), "0");
    assert!(redis.command(&["GET", &format!("batch:start:{id}")]).parse::<u64>().is_ok());
    let kind = if some.topic == EVENTS { "event" } else { "mention" };
    let key = format!("data:{kind}:{id}:{}", some.id.as_ref().unwrap());
    assert_eq!(redis.command(&["TTL", &key]), "-1", "what is not delivered does not expire");
    let body: serde_json::Value = serde_json::from_str(&redis.command(&["GET", &key])).unwrap();
    assert!(body["GlobalEventId"].is_number() || body["GlobalEventId"].is_string());

    running.run(["groups", "close", "em-processor", &id], b"").good();
    records.assert_kept(&running);
    assert_eq!(delivered(&running).len(), events + mentions);
    wait::until("Redis is empty of it", || {
        let keys = redis.command(&["KEYS", &format!("*{id}*")]);
        let sets = ["active:batches", "ready:batches"].map(|set| redis.command(&["EXISTS", set]));
        (keys.is_empty() && sets == ["0", "0"]).then_some(())
    });
    assert_eq!(running.status()["store_rebuilds"], 0);
}

#[test]
fn losing_redis_in_the_middle_of_a_window_costs_a_re_read() {
    let (home, redis) = (Home::new(), Redis::start());
    let mut generator = GdeltGenerator::good_only(32);
    let mut records = Records::default();
    let running = start(&home, &redis, "1h");
    // Emptied while a batch is held, and nothing comes afterwards.
    let batch = generator.next_batch(100, 300);
    assert!(records.send(&running, batch.records.clone()));
    held(&running, 400);
    redis.command(&["FLUSHALL"]);
    running.run(["groups", "close", "em-processor", &batch.id], b"").good();
    wait::until("what was held is read again", || {
        running.status()["store_rebuilds"].as_u64().filter(|rereads| *rereads > 0)
    });
    // Released before it was lost: closed by its seal. If the seal was not written yet, once more,
    // as soon as the batch is there again.
    wait::until("the batch has gone out", || {
        running.run(["groups", "close", "em-processor", &batch.id], b"");
        (running.status()["lag"] == 0).then_some(())
    });
    records.assert_kept(&running);

    // The process dies, and Redis comes back empty.
    let batch = generator.next_batch(100, 300);
    assert!(records.send(&running, batch.records.clone()));
    running.kill();
    redis.command(&["FLUSHALL"]);
    let running = start(&home, &redis, "1h");
    held(&running, 400);
    running.run(["groups", "close", "em-processor", &batch.id], b"").good();
    records.assert_kept(&running);
}

/// Bytes for what is held: less than one batch needs.
const ROOM: usize = 2 << 20;

/// A Redis that takes a little and then refuses whatever needs memory.
fn small_redis() -> Redis {
    let redis = Redis::start();
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let info = redis.command(&["INFO", "memory"]);
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    let used: usize = used.trim().parse().unwrap();
    redis.command(&["CONFIG", "SET", "maxmemory", &(used + ROOM).to_string()]);
    redis
}

/// Waits until the store is what it waits for, and everybody who asks is told so.
fn says_full(running: &Running) {
    let status = wait::until("status says that the store is full", || {
        let status = running.status();
        let waits = status["waits"].as_array()?.iter().any(|wait| wait["for"] == "store");
        waits.then_some(status)
    });
    assert_eq!(status["state"], "waiting", "{status}");
    assert!(status["why"].as_str().unwrap().contains("P0904"), "{status}");
    let (code, ready) = running.get("/ready").unwrap();
    assert_eq!(code, 200, "records are taken: {ready}");
    assert!(running.journal().contains("P0904"), "the log says so too");
}

/// Redis is full of what em-processor itself holds. Nobody but em-processor touches it.
fn is_worked_off(home: &Home, redis: &Redis, mut records: Records) {
    let window = [("BATCH_WINDOW", "5s")];
    let mut generator = GdeltGenerator::good_only(33);
    let mut running = start_forgetful(home, &window);
    for round in 0..3 {
        for _ in 0..2 {
            let batch = generator.next_batch(1_473, 4_446);
            assert!(records.send_by(by_hand(home), batch.records));
        }
        says_full(&running);
        if round == 1 {
            // The next one finds it full, and closes nothing before it has read everything again.
            running.kill();
            running = start_forgetful(home, &window);
        }
    }
    records.assert_kept(&running);
    assert_eq!(running.status()["store_rebuilds"], 0);
    wait::until("nothing waits any more, and nothing is left in Redis", || {
        let (status, keys) = (running.status(), redis.command(&["KEYS", "*batch*"]));
        (status["state"] == "running" && keys.is_empty()).then_some(())
    });
}

#[test]
fn a_full_redis_is_worked_off() {
    let (home, redis) = (Home::new(), small_redis());
    home.settings(&format!("store: {{ redis: '{}' }}\n", redis.url()));
    is_worked_off(&home, &redis, Records::default());
}

#[test]
fn a_full_redis_is_worked_off_on_kafka() {
    let (kafka, redis) = (Kafka::start(), small_redis());
    let records = Records { repeatable: true, ..Records::default() };
    is_worked_off(&home_on(&kafka, Some(&redis)), &redis, records);
}
