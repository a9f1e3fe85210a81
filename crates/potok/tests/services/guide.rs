//! What `docs/guides/em-processor.md` says of its commands is so, where they need Redis or Kafka.

use std::collections::BTreeSet;

use potok_services::{Kafka, Redis};
use serde_json::Value;

use crate::batches::{came_out, sampled};
use crate::process::Running;
use crate::wait;
use crate::walk::{DONE, Guide, Walk};

/// The services of the test run already, on ports of their own.
const INSTEAD: [(&str, &str); 1] = [("cargo xtask services up", DONE)];

#[test]
fn every_command_of_the_guide_to_em_processor_runs() {
    let (kafka, redis) = (Kafka::start(), Redis::start());
    let guide = Guide::read("em-processor.md")
        .with("redis://127.0.0.1:6379", &redis.url())
        .with("kafka://127.0.0.1:9092", &format!("kafka://{}", kafka.servers()));
    let mut walk = Walk::through(&guide, 8..=9, &INSTEAD);
    let port = redis.port();
    walk.know(&format!("redis-cli() {{ command redis-cli -e -p {port} \"$@\"; }}"));
    hold_in_redis(&mut walk);
    assert!(walk.take().interrupt().success(), "Ctrl-C is a stop in good order");
    run_in_several_copies(&mut walk);
    walk.finish();
}

fn hold_in_redis(walk: &mut Walk) {
    walk.to("potok sample mentions --count 300");
    walk.until("redis-cli scard batch:events:20250323151500", "100");
    walk.until("redis-cli scard batch:mentions:20250323151500", "286");
    assert_eq!(walk.to("redis-cli smembers active:batches"), "20250323151500\n");
    assert_eq!(walk.to("redis-cli scard batch:events:20250323151500"), "100\n");
    let mentions = walk.to("redis-cli keys 'data:mention:20250323151500:*'");
    assert_eq!(mentions.lines().count(), 286);
}

fn run_in_several_copies(walk: &mut Walk) {
    walk.to("BATCH_WINDOW=20s potok run");
    let line = walk.last.clone();
    let start = |walk: &Walk, name: &str| {
        walk.start(&line.replace("--data-dir one", &format!("--data-dir {name}")))
    };
    let [two, three] = ["two", "three"].map(|name| start(walk, name));
    // "Stop one, kill one, start it again."
    assert!(two.interrupt().success());
    let two = start(walk, "two");
    three.kill();
    let three = start(walk, "three");

    walk.to("potok sample mentions --count 4446");
    let status = walk.to("potok status --data-dir one");
    assert!(status.contains("em-processor"), "{status}");
    let groups = walk.to("potok consumer-groups list --data-dir one");
    assert!(groups.contains("potok-em-processor"), "{groups}");
    let records = ["events --count 1473", "mentions --count 4446"];
    let records = records.map(|what| walk.run(&format!("potok sample {what}")));
    let records: Vec<_> = records.iter().flat_map(|lines| sampled(lines)).collect();
    assert_eq!(records.len(), 1_473 + 4_446);
    let spoiled = records.iter().filter(|one| one.id.is_none()).count();
    let wanted: BTreeSet<String> = records.into_iter().filter_map(|one| one.id).collect();
    let copies = [walk.running(), &two, &three];
    wait::until("everything has come out", || {
        let idle = |copy: &&Running| {
            let status = copy.status();
            status["lag"] == 0 && status["in_flight"] == 0
        };
        (copies.iter().all(idle) && came_out(copies[0], "20250323160000") == wanted).then_some(())
    });
    let letters = walk.run("potok dead-letters list em-processor --json --data-dir one");
    let origin = |line: &str| serde_json::from_str::<Value>(line).unwrap()["origin"].to_string();
    assert_eq!(letters.lines().map(origin).collect::<BTreeSet<_>>().len(), spoiled);
}
