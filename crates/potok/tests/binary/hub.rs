//! `potok hub` and `potok token`: a message from a line of input to a stock client, and its answer.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};

use potok_services::NodeScript;
use serde_json::{Value, json};

use crate::process::{Home, potok, run};

/// A hub that ends with its test.
struct Hub(Child);

impl Drop for Hub {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_line_reaches_a_stock_client_and_its_answer_is_printed() {
    let home = Home::new();
    let data = home.path().to_str().unwrap();
    let mut command = potok(["hub", "--json", "--listen", "127.0.0.1:0", "--data-dir", data]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut hub = Hub(command.spawn().unwrap());
    let mut input = hub.0.stdin.take().unwrap();
    let mut output = BufReader::new(hub.0.stdout.take().unwrap()).lines();
    let mut printed =
        || -> Value { serde_json::from_str(&output.next().unwrap().unwrap()).unwrap() };
    let url = printed()["hub"].as_str().unwrap().to_owned();

    let minted = run(potok(["token", "mint", "--sub", "alice", "--data-dir", data]), b"").good();
    let token = minted.text().trim().to_owned();
    let checked = run(potok(["token", "check", "-", "--data-dir", data]), token.as_bytes()).good();
    assert!(checked.text().contains("good: user alice"), "{}", checked.text());
    // A character that stands for six whole bits of the signature.
    let (kept, changed) = token.split_at(token.len() - 10);
    let other = if changed.starts_with('A') { "B" } else { "A" };
    let forged = format!("{kept}{other}{}", &changed[1..]);
    let refused =
        run(potok(["token", "check", "-", "--data-dir", data]), forged.as_bytes()).exits(1);
    assert!(refused.stderr.contains("P1105"), "{}", refused.stderr);
    assert!(refused.stderr.contains("signature"), "{}", refused.stderr);
    assert!(!refused.stderr.contains(&forged));

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hub/tests/clients/client.js");
    let mut client = NodeScript::start(&script, &[&url, "WebSockets", "json"]);
    let told = |client: &mut NodeScript| -> Value {
        serde_json::from_str(&client.line().unwrap()).unwrap()
    };
    client.say(&json!({"token": token, "start": true}).to_string());
    assert_eq!(told(&mut client)["event"], "started");
    for user in ["alice", "bob"] {
        writeln!(input, "{}", json!({"user": user, "payload": {"text": "hi"}, "id": "m-1"}))
            .unwrap();
    }
    let message = told(&mut client);
    assert_eq!(message["args"], json!([{"text": "hi"}, {"id": "m-1"}]));
    let mut answers = [printed(), printed()];
    answers.sort_by_key(|answer| answer["user"].to_string());
    assert_eq!(answers[0], json!({"user": "alice", "id": "m-1", "answer": "acknowledged"}));
    assert_eq!(answers[1], json!({"user": "bob", "id": "m-1", "answer": "nobody"}));
}

#[test]
fn a_hub_for_everybody_needs_an_issuer() {
    for (arguments, code) in [
        (vec!["hub", "--listen", "0.0.0.0:0"], "P1102"),
        (vec!["hub", "--issuer", "http://127.0.0.1:1/realms/a"], "P1103"),
        (vec!["hub", "--audience", "a"], "P1103"),
        (vec!["hub", "--listen", "nonsense"], "P1101"),
    ] {
        let refused = run(potok(arguments), b"").exits(2);
        assert!(refused.stderr.contains(code), "{}", refused.stderr);
    }
}
