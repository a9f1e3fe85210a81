//! `send` into nowhere is pointed out, and done.

use std::fs;

use serde_json::{Value, json};

use crate::process::{Home, potok, run};

#[test]
fn a_new_folder_is_pointed_out() {
    let home = Home::new();
    let place = home.path().join("elsewhere");
    fs::create_dir(&place).unwrap();
    let send = |more: &[&str]| {
        let mut command = potok(["send", "orders"]);
        command.args(more).current_dir(&place);
        run(command, b"{}\n").good()
    };
    let first = send(&[]);
    let folder = "./potok-data is a new data folder, and no process works in it";
    assert!(first.stderr.contains(folder), "{}", first.stderr);
    let topic = "topic `orders` is new, and nobody reads it; no topic is read here yet";
    assert!(first.stderr.contains(topic), "{}", first.stderr);
    assert_eq!(first.text(), "sent 1 record to orders\n", "nothing in the way of pipes");
    let second = send(&[]);
    assert!(!second.stderr.contains("new data folder"), "{}", second.stderr);
    assert!(second.stderr.contains("is read by nobody"), "{}", second.stderr);
    let quiet = send(&["--quiet"]);
    assert_eq!((quiet.text(), &*quiet.stderr), ("", ""));
}

#[test]
fn a_topic_that_nobody_reads_is_pointed_out() {
    let home = Home::new();
    let running = home.start();
    let send = |topic: &str, more: &[&str]| {
        running.run(["send", topic].iter().chain(more), b"{}\n").good()
    };
    assert_eq!(send("orders", &[]).stderr, "", "it is read");
    let slip = send("order", &[]);
    let note = "topic `order` is new, and nobody reads it; topics that are read here: orders";
    assert!(slip.stderr.contains(note), "{}", slip.stderr);
    assert_eq!(slip.text(), "sent 1 record to order\n");
    let json: Value = serde_json::from_str(send("order", &["--json"]).text()).unwrap();
    assert_eq!(json, json!({ "sent": 1, "unread": { "new_topic": false, "known": ["orders"] } }));
    let json: Value = serde_json::from_str(send("orders", &["--json"]).text()).unwrap();
    assert_eq!(json, json!({ "sent": 1 }));

    // A pipeline that does not run now has read it, and will.
    assert!(running.stop().success());
    let sent = run(home.command(["send", "orders"]), b"{}\n").good();
    assert_eq!(sent.stderr, "", "it waits for its pipeline");
    let slip = run(home.command(["send", "ordres"]), b"{}\n").good();
    assert!(slip.stderr.contains("topics that are read here: orders"), "{}", slip.stderr);
}
