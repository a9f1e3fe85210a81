//! Records of a group on a real Kafka: they leave as their sources have them.

use std::fs;

use potok_services::Kafka;
use serde_json::Value;

use crate::process::{Home, Running};
use crate::wait;

fn home(kafka: &Kafka) -> Home {
    let home = Home::new();
    home.settings(&format!("log: {{ kafka: '{}' }}\n", kafka.servers()));
    home
}

fn start(home: &Home, name: &str) -> Running {
    let file = home.path().join("chats.yaml");
    let pipeline = format!(
        "name: {name}\nsource: {{ topics: [ {name}-a, {name}-b ] }}\ngroup: {{ by: .chat, close: \
         {{ max_age: 1h }} }}\ndeliver: [ {{ topic: {name}-out, key: .chat }} ]\n"
    );
    fs::write(&file, pipeline).unwrap();
    home.start_file(&file, &[]).unwrap_or_else(|end| panic!("it ended at start: {end}"))
}

/// Sends one record after another, to two topics and by their keys to several partitions.
fn send(running: &Running, name: &str, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let topic = format!("{name}-{}", if number % 3 == 0 { "a" } else { "b" });
        let line = format!("{{\"chat\":\"c\",\"n\":{number}}}\n");
        running.run(["send", &topic, "--key", ".n"], line.as_bytes()).good();
    }
}

fn read(running: &Running, topic: &str) -> Vec<(u64, u64)> {
    let lines = running.run(["read", topic], b"").good().lines();
    let value =
        |line: &Value| -> Value { serde_json::from_str(line["value"].as_str().unwrap()).unwrap() };
    let number =
        |line: &Value| (line["partition"].as_u64().unwrap(), value(line)["n"].as_u64().unwrap());
    lines.iter().map(number).collect()
}

fn held(running: &Running, records: u64) {
    wait::until("all of it is held", || {
        let batches = running.run(["groups", "list", "--json"], b"").good().lines();
        let held =
            batches.iter().map(|batch| batch["kinds"]["record"]["records"].as_u64().unwrap());
        (held.sum::<u64>() == records).then_some(())
    });
}

/// From several partitions of two topics; gathered while they come, and all at once after potok was
/// away, and read again by a process that starts in mid-window.
#[test]
fn records_of_a_group_leave_in_the_order_of_their_sources() {
    // One of its own: `status` names the pipelines of everybody on a cluster.
    let kafka = Kafka::start();
    let home = home(&kafka);
    let name = "ordered";
    let running = start(&home, name);
    send(&running, name, 0..10);
    held(&running, 10);
    running.run(["pause", name], b"").good();
    send(&running, name, 10..20);
    running.kill();
    let running = start(&home, name);
    held(&running, 20);
    assert!(running.stop().success());
    let running = start(&home, name);
    held(&running, 20);
    let partitions: std::collections::HashSet<u64> =
        read(&running, "ordered-b").into_iter().map(|(partition, _)| partition).collect();
    assert!(partitions.len() > 1, "all in one partition");
    running.run(["groups", "close", name, "c"], b"").good();
    running.drained();
    let numbers: Vec<u64> =
        read(&running, "ordered-out").into_iter().map(|(_, number)| number).collect();
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
}
