//! What `docs/guides/em-processor.md` says of its commands is so, as far as they need no service.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::batches::{came_out, sampled};
use crate::wait;
use crate::walk::{DONE, Guide, KILL, Walk};

const INSTEAD: [(&str, &str); 3] = [
    // The binary under test has been built,
    ("cargo build --release", DONE),
    // and shells find it by this name.
    ("alias potok=target/release/potok", DONE),
    // Tests beside this one run potok too.
    ("kill -9 $(pgrep -f 'potok run')", KILL),
];

#[test]
fn every_command_of_the_guide_to_em_processor_runs() {
    let guide = Guide::read("em-processor.md");
    assert_eq!(guide.sections().len(), 9, "of which 8 and 9 are walked with real services");
    let mut walk = Walk::through(&guide, 1..=7, &INSTEAD);
    send_and_release(&mut walk);
    read(&mut walk);
    look_at_dead_letters(&mut walk);
    assert!(walk.take().interrupt().success(), "Ctrl-C is a stop in good order");
    change_the_program(&mut walk);
    kill(&mut walk);
    walk.finish();
}

fn send_and_release(walk: &mut Walk) {
    walk.to("potok status em-processor");
    // Seven of the mentions are spoiled.
    let held = "100 event, 293 mention";
    walk.until("potok groups list em-processor", held);
    let listed = walk.to("potok groups list em-processor");
    assert!(listed.contains("20250323151500  open") && listed.contains(held), "{listed}");
    let shown = json(&walk.to("potok groups show em-processor 20250323151500"));
    assert_eq!(
        (&shown["kinds"]["mention"]["records"], &shown["duplicates"]),
        (&293.into(), &7.into())
    );
    walk.to("potok groups close em-processor 20250323151500");
    assert_eq!(walk.running().drained()["delivered"], 386);
}

fn read(walk: &mut Walk) {
    let event = json(&walk.to("potok read processor-event --count 1"));
    let value = json(event["value"].as_str().unwrap());
    assert_eq!(event["key"].as_str().unwrap(), value["GlobalEventId"].to_string());
    assert!(value["EventDate"].is_string() && value["Day"].is_null(), "{value}");
    let mention = json(&walk.to("potok read processor-mention --count 1"));
    let value = json(mention["value"].as_str().unwrap());
    let key =
        format!("{}_{}", value["GlobalEventId"], value["MentionIdentifier"].as_str().unwrap());
    assert_eq!(mention["key"], key);
    let negative = walk.to("potok read processor-event | grep -c negative");
    assert!((1..100).contains(&negative.trim().parse().unwrap()), "{negative}");

    walk.to("potok read processor-event --from end --follow");
    let mut follower = walk.follower();
    wait::until("what comes out is followed", || {
        walk.run(
            "potok sample events --count 1 --good | potok send adapter-event --header batchId=1",
        );
        walk.until("potok groups list em-processor", "1 event");
        walk.run("potok groups close em-processor 1");
        walk.running().drained();
        assert!(follower.is_alive(), "{}", follower.journal());
        follower.journal().contains(r#"["batchId","1"]"#).then_some(())
    });
    follower.kill();

    for line in walk.to("potok read processor-event | grep BadValues").lines() {
        let value = json(json(line)["value"].as_str().unwrap());
        assert!(value["EventDate"].is_null() || value["DateAdded"].is_null(), "{value}");
    }
    let status = walk.to("potok status em-processor");
    let (_, counted) = walk.last.split_once("# below the table: ").expect("what it says");
    assert!(status.contains(counted), "{counted} in {status}");
    let record = walk.to("potok trace adapter-event/0/0");
    assert!(record.contains("delivered  processor-event/"), "{record}");
    let batch = walk.to("potok trace 20250323151500 | head");
    assert!(batch.contains("record       adapter-event/0/0"), "{batch}");
}

fn look_at_dead_letters(walk: &mut Walk) {
    let letters = walk.to("potok dead-letters list em-processor");
    assert!(letters.contains("undecodable") && letters.contains("no_key"), "{letters}");
    let undecodable = walk.to("potok dead-letters list em-processor --reason undecodable --json");
    assert_eq!(undecodable.lines().count(), 3);
    assert!(undecodable.lines().all(|line| json(line)["reason"] == "undecodable"));
    assert!(walk.to("potok dead-letters show em-processor-dead/0/0").contains("reason"));
    walk.to("potok sample events --count 1 --good --seed 9 | potok send adapter-event");
    let (listing, own) = ("potok dead-letters list em-processor --reason no_key", "header.batchId");
    walk.until(listing, own);
    assert!(walk.to(listing).contains(own));
    let replay = walk.to("potok dead-letters replay em-processor --reason no_key --dry-run");
    assert!(replay.contains("5 dead letters would be replayed"), "{replay}");
    let dropped = walk.to("potok dead-letters drop em-processor --reason undecodable");
    assert_eq!(dropped, "3 dead letters dropped\n");
}

fn change_the_program(walk: &mut Walk) {
    walk.to("BATCH_WINDOW=20s potok run mine.yaml");
    walk.to("potok sample events --batch 20250323153000");
    wait::until("neutral events are filtered", || {
        walk.running().status()["filtered"].as_u64().filter(|filtered| *filtered > 0)
    });
    let filtered = walk.running().drained()["filtered"].to_string();
    let status = walk.to("potok status em-processor");
    let column = |line: usize| status.lines().nth(line).unwrap().split_whitespace().nth(7).unwrap();
    assert_eq!((column(0), column(1)), ("FILTERED", &*filtered), "{status}");
}

fn kill(walk: &mut Walk) {
    walk.to("potok sample events --batch 20250323154500 --count 1000");
    // 13 of the events are spoiled.
    walk.until("potok groups list em-processor", "987 event");
    walk.to("kill -9");
    assert_eq!(walk.take().ended("potok is killed").code(), None);
    walk.to("BATCH_WINDOW=20s potok run mine.yaml");
    walk.running().drained();
    let records = ["events --count 1000", "mentions --count 3000"]
        .map(|what| walk.run(&format!("potok sample {what} --batch 20250323154500")));
    let wanted = records.iter().flat_map(|lines| sampled(lines)).filter(|one| !one.is_neutral);
    let wanted: BTreeSet<String> = wanted.filter_map(|one| one.id).collect();
    assert_eq!(wanted.len(), 2_890);
    assert!(came_out(walk.running(), "20250323154500") == wanted, "not whole, or not filtered");
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}
