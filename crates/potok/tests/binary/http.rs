//! HTTP sources: what was answered is there, whatever happens to the process.

use std::fs;
use std::net::TcpListener;

use serde_json::Value;

use crate::posting::{listener, post_to};
use crate::process::{Home, Running, run};
use crate::wait;
use crate::walk::{DONE, Guide, Walk};

const CARTS: &str = "name: carts\nsource: { http: /carts, topic: carts, key: .cart }\n\
    group: { by: .cart, close: { after_first: 1h } }\ndeliver: [ { webhook: cart-closed } ]\n";

fn start(home: &Home) -> (Running, String) {
    let file = home.path().join("carts.yaml");
    fs::write(&file, CARTS).unwrap();
    let running = home.start_file(&file, &[("POTOK_HTTP", "127.0.0.1:0")]).unwrap();
    let http = listener(&running);
    (running, http)
}

fn post(http: &str, key: &str, body: &str) -> (u16, Value) {
    post_to(http, "/carts", &format!("Idempotency-Key: {key}"), body)
}

#[test]
fn what_was_answered_survives_a_kill_and_a_repeat_is_known_afterwards() {
    let home = Home::new();
    let (running, http) = start(&home);
    let body = "{\"cart\":\"a\",\"n\":1}\n{\"cart\":\"a\",\"n\":2}\n";
    let (status, answer) = post(&http, "k1", body);
    assert_eq!((status, &answer["accepted"]), (200, &2.into()), "{answer}");
    running.kill();

    let (running, http) = start(&home);
    let (status, answer) = post(&http, "k1", body);
    assert_eq!((status, &answer["repeated"]), (200, &true.into()), "{answer}");
    let (status, answer) = post(&http, "k2", "{\"cart\":");
    assert_eq!((status, &answer["error"]["code"]), (400, &"P0540".into()), "{answer}");
    wait::until("both are held", || (running.status()["held_records"] == 2).then_some(()));
    running.run(["groups", "close", "carts", "a"], b"").good();
    assert_eq!(running.drained()["delivered"], 2);
    // The webhook has no address: what it would get is in the topic of its name.
    let out = running.run(["read", "cart-closed"], b"").good().lines();
    assert_eq!(out.len(), 2, "{out:?}");
    let (_, metrics) = running.get("/metrics").unwrap();
    let line = "potok_http_requests_total{pipeline=\"carts\",path=\"/carts\",status=\"400\"} 1";
    assert!(metrics.contains(line), "{metrics}");
    assert!(running.stop().success());
}

/// Nothing has to be there for that: it is told before anything runs.
#[test]
fn check_warns_of_repeats_that_kafka_would_take_twice() {
    let home = Home::new();
    home.settings("log: kafka://127.0.0.1:9\n");
    fs::write(home.path().join("carts.yaml"), CARTS).unwrap();
    let checked = run(home.command(["check", "carts.yaml"]), b"").good();
    assert!(checked.stderr.contains("warning[P0546]"), "{}", checked.stderr);
    assert!(checked.text().contains("1 file: no error, 1 warning"), "{}", checked.text());
}

const INSTEAD: [(&str, &str); 2] =
    [("cargo build --release", DONE), ("alias potok=target/release/potok", DONE)];

#[test]
fn every_command_of_the_guide_to_http_and_webhooks_runs() {
    // Free a moment ago, and addresses of the guide have to be known beforehand.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let guide = Guide::read("http-and-webhooks.md").with("127.0.0.1:7601", &free);
    let mut walk = Walk::through(&guide, 1..=4, &INSTEAD);
    walk.know(&format!("export POTOK_HTTP={free}"));
    walk.to("potok check carts.yaml inbox.yaml");
    let accepted = walk.to("curl -s -d '{\"cart\":\"a\",\"item\":\"book\"}'");
    assert!(accepted.contains("\"accepted\":1"), "{accepted}");
    let repeated = walk.to("curl -s -H 'Idempotency-Key: 7'");
    assert!(repeated.contains("\"accepted\":2"), "{repeated}");
    let repeated = walk.to("curl -s -H 'Idempotency-Key: 7'");
    assert!(repeated.contains("\"repeated\":true"), "{repeated}");
    let refused = walk.to("curl -s -d '{\"cart\":'");
    assert!(refused.contains("P0540"), "{refused}");
    walk.until("potok groups list carts", "3 record");
    walk.to("potok groups close carts a");
    walk.until("potok read carts-out", "book");
    let out = walk.to("potok read carts-out");
    assert_eq!(out.lines().count(), 3, "{out}");
    walk.finish();
}
