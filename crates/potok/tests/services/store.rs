//! em-processor with its held records in a real Redis: other programs see the documented keys, and
//! losing them costs a re-read, never a record.

use std::collections::HashSet;

use potok_services::Redis;
use potok_traffic::gdelt::{EVENTS, Generator, Sent};

use crate::batches::{Records, delivered};
use crate::process::{Home, Running, pipelines};
use crate::wait;

fn start(home: &Home, redis: &Redis, window: &str) -> Running {
    let environment = [("POTOK_STORE", &*redis.url()), ("BATCH_WINDOW", window)];
    home.start_file(&pipelines().join("em-processor.yaml"), &environment).expect("starts")
}

fn distinct(records: &[Sent]) -> (usize, usize) {
    let ids: HashSet<_> = records.iter().map(|sent| (sent.topic, &sent.id)).collect();
    let events = ids.iter().filter(|(topic, _)| *topic == EVENTS).count();
    (events, ids.len() - events)
}

fn held(running: &Running, records: usize) {
    wait::until("all records are held", || {
        (running.status()["in_flight"] == records).then_some(())
    });
}

#[test]
fn a_batch_lies_in_the_documented_keys_until_it_has_been_sent() {
    let (home, redis) = (Home::new(), Redis::start());
    let running = start(&home, &redis, "1h");
    let batch = Generator::good_only(31).next_batch(1_473, 4_446);
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

    running.run(["batches", "release", "em-processor", &id], b"").good();
    records.assert_kept(&running);
    assert_eq!(delivered(&running).len(), events + mentions);
    wait::until("Redis is empty of it", || {
        let keys = redis.command(&["KEYS", &format!("*{id}*")]);
        let sets = ["active:batches", "ready:batches"].map(|set| redis.command(&["EXISTS", set]));
        (keys.is_empty() && sets == ["0", "0"]).then_some(())
    });
    assert_eq!(running.status()["rereads"], 0);
}

#[test]
fn losing_redis_in_the_middle_of_a_window_costs_a_re_read() {
    let (home, redis) = (Home::new(), Redis::start());
    let mut generator = Generator::good_only(32);
    let mut records = Records::default();
    let running = start(&home, &redis, "1h");
    // Emptied while a batch is held, and nothing comes afterwards.
    let batch = generator.next_batch(100, 300);
    assert!(records.send(&running, batch.records.clone()));
    held(&running, 400);
    redis.command(&["FLUSHALL"]);
    running.run(["batches", "release", "em-processor", &batch.id], b"").good();
    wait::until("what was held is read again", || {
        running.status()["rereads"].as_u64().filter(|rereads| *rereads > 0)
    });
    // Released before it was lost: closed by its seal. If the seal was not written yet, once more.
    running.run(["batches", "release", "em-processor", &batch.id], b"");
    records.assert_kept(&running);

    // The process dies, and Redis comes back empty.
    let batch = generator.next_batch(100, 300);
    assert!(records.send(&running, batch.records.clone()));
    running.kill();
    redis.command(&["FLUSHALL"]);
    let running = start(&home, &redis, "1h");
    held(&running, 400);
    running.run(["batches", "release", "em-processor", &batch.id], b"").good();
    records.assert_kept(&running);
}
