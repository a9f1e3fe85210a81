//! Stages of a pipeline file in a real process: a webhook that stumbles, a program per batch.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::process::Home;
use crate::wait;

const PIPELINE: &str = r#"
name: enrich
source: { topic: in }
group: { by: .shop, close: { max_count: 3, max_age: 1h } }
process:
  - { stage: ask, webhook: "${ENRICH_URL}", timeout: 5s, on_error: pass }
  - stage: sum
    per: group
    vrl: |
      total = 0
      for_each(.) -> |_i, sale| { total = total + (to_int(sale.price) ?? 0) }
      .[0].total = total
      .[0].of = %key
deliver: [ { topic: out } ]
retry: { attempts: 3, first: 5ms, max: 50ms }
"#;

/// Names a price for each sale, except for those of `ghost`, which it does not know. Fails the
/// first call and hangs up in the second.
fn answer(number: usize, sales: &[Value], stream: &mut TcpStream) {
    if number == 1 {
        return;
    }
    let price = |sale: &Value| match sale["value"]["item"].as_str() {
        Some("ghost") => json!({ "error": "no such item" }),
        _ => {
            let mut value = sale["value"].clone();
            value["price"] = 5.into();
            json!({ "value": value })
        }
    };
    let body = Value::from(sales.iter().map(price).collect::<Vec<_>>()).to_string();
    let status = if number == 0 { 500 } else { 200 };
    let length = body.len();
    write!(stream, "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
}

/// One request per connection; returns the names of the calls.
fn serve(listener: TcpListener, names: Arc<Mutex<Vec<String>>>) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let (mut length, mut line) = (0, String::new());
        while reader.read_line(&mut line).unwrap_or(0) > 2 {
            let (name, value) = line.split_once(':').unwrap_or_default();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().unwrap(),
                "idempotency-key" => names.lock().unwrap().push(value.trim().to_owned()),
                _ => {}
            }
            line.clear();
        }
        let mut body = vec![0; length];
        if length == 0 || reader.read_exact(&mut body).is_err() {
            continue;
        }
        let number = names.lock().unwrap().len() - 1;
        let sales: Vec<Value> = serde_json::from_slice(&body).unwrap();
        answer(number, &sales, &mut stream);
    }
}

#[test]
fn a_webhook_and_a_program_per_batch_in_one_pipeline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/canary", listener.local_addr().unwrap());
    let names = Arc::new(Mutex::new(Vec::new()));
    let for_server = names.clone();
    std::thread::spawn(move || serve(listener, for_server));
    let home = Home::new();
    let file = home.path().join("enrich.yaml");
    fs::write(&file, PIPELINE).unwrap();
    let running = home.start_file(&file, &[("ENRICH_URL", &url)]).unwrap();
    let sales = r#"{"shop":"a","item":"pen"}
{"shop":"a","item":"ghost"}
{"shop":"a","item":"cap"}
"#;
    running.run(["send", "in"], sales.as_bytes()).good();
    wait::until("all delivered", || (running.status()["delivered"] == 3).then_some(()));
    let status = running.status();
    assert_eq!((&status["passed"], &status["dead_lettered"]), (&json!(1), &json!(0)));
    assert!(status["stage_retries"].as_u64() >= Some(2), "{status}");
    let (_, metrics) = running.get("/metrics").unwrap();
    let line = "potok_process_passed_total{pipeline=\"enrich\"} 1";
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
    let read = running.run(["read", "out"], b"").good();
    assert!(read.text().contains("\\\"total\\\":10") || read.text().contains("\"total\":10"));
    assert!(read.text().contains("ghost"), "it passed as it was");
    let names = names.lock().unwrap().clone();
    assert!(names.len() >= 3 && names[0] == names[1] && names[1] == names[2], "{names:?}");
    let journal = fs::read_to_string(home.path().join("stderr.log")).unwrap();
    assert!(!journal.contains("canary"), "{journal}");
}

#[test]
fn an_address_that_cannot_be_used_is_said_before_anything_runs() {
    let home = Home::new();
    let file = home.path().join("enrich.yaml");
    fs::write(&file, PIPELINE.replace("${ENRICH_URL}", "canary:80/x")).unwrap();
    let checked = home.run(["check", "enrich.yaml"]).exits(2);
    assert!(checked.stderr.contains("P1005"), "{}", checked.stderr);
    assert!(checked.stderr.contains("process `ask`"), "{}", checked.stderr);
    assert!(!checked.stderr.contains("canary"), "{}", checked.stderr);
}
