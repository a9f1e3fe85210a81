//! A webhook as a destination of a real process: away, refusing, and without an address.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use crate::process::Home;
use crate::wait;

const PIPELINE: &str = r#"
name: hook
source: { topic: in }
deliver: [ { webhook: shop-hook, secret: "${HOOK_SECRET:-s}" } ]
retry: { attempts: 3, first: 5ms, max: 50ms }
gate: { probe_every: 50ms }
"#;

/// What a receiver has seen: the key and the body of each POST.
type Posts = Arc<Mutex<Vec<(String, String)>>>;

/// Says 503 to the first POST and 422 to what is bad; one request per connection.
fn serve(listener: TcpListener, posts: Posts) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let (mut length, mut key, mut line) = (0, String::new(), String::new());
        while reader.read_line(&mut line).unwrap_or(0) > 2 {
            let (name, value) = line.split_once(':').unwrap_or_default();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().unwrap(),
                "idempotency-key" => value.trim().clone_into(&mut key),
                _ => {}
            }
            line.clear();
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            continue;
        }
        let body = String::from_utf8(body).unwrap();
        let status = match (key.is_empty(), posts.lock().unwrap().is_empty()) {
            (true, _) => 405,
            (false, true) => 503,
            (false, false) if body.contains("bad") => 422,
            (false, false) => 204,
        };
        if !key.is_empty() {
            posts.lock().unwrap().push((key, body));
        }
        let answer =
            format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        // Whoever gave up does not listen.
        let _ = stream.write_all(answer.as_bytes());
    }
}

#[test]
fn messages_are_posted_and_what_is_refused_is_set_aside() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/canary", listener.local_addr().unwrap());
    let posts = Posts::default();
    let for_server = posts.clone();
    std::thread::spawn(move || serve(listener, for_server));
    let home = Home::new();
    let file = home.path().join("hook.yaml");
    fs::write(&file, PIPELINE).unwrap();
    let running = home.start_file(&file, &[("POTOK_WEBHOOK_SHOP_HOOK", &url)]).unwrap();
    running.run(["send", "in"], b"{\"n\": 1.50}\n{\"n\":\"bad\"}\n{\"n\":3}\n").good();
    wait::until("all ended", || {
        let status = running.status();
        (status["delivered"] == 2 && status["dead_lettered"] == 1).then_some(())
    });
    let posts = posts.lock().unwrap().clone();
    let with = |body: &str| posts.iter().filter(|(_, found)| found == body).collect::<Vec<_>>();
    assert_eq!(with("{\"n\": 1.50}").first().map(|(_, body)| body.as_str()), Some("{\"n\": 1.50}"));
    // The one that met the outage came again under the same key.
    let (first_key, first_body) = &posts[0];
    assert!(
        with(first_body).len() >= 2 && with(first_body).iter().all(|(key, _)| key == first_key)
    );
    let listed = running.run(["dead-letters", "list", "hook", "--json"], b"").good();
    assert!(listed.text().contains("\"refused\"") && listed.text().contains("422"));
    let journal = fs::read_to_string(home.path().join("stderr.log")).unwrap();
    assert!(!journal.contains("canary"), "{journal}");
}

#[test]
fn without_an_address_it_is_a_topic_and_everybody_is_told() {
    let home = Home::new();
    let file = home.path().join("hook.yaml");
    fs::write(&file, PIPELINE).unwrap();
    let checked = home.run(["check", "hook.yaml"]).good();
    let note = "`shop-hook` has no address: its messages go to the topic `shop-hook`";
    assert!(checked.stderr.contains(note), "{}", checked.stderr);
    let running = home.start_file(&file, &[]).unwrap();
    running.run(["send", "in"], b"{\"n\":1}\n").good();
    wait::until("it is delivered", || (running.status()["delivered"] == 1).then_some(()));
    assert!(running.run(["read", "shop-hook"], b"").good().text().contains("n"));
    drop(running);
    fs::write(&file, PIPELINE.replace("topic: in", "topic: shop-hook")).unwrap();
    let looped = home.run(["check", "hook.yaml"]).exits(2);
    assert!(
        looped.stderr.contains("P0147") && looped.stderr.contains("hook.yaml:4"),
        "{}",
        looped.stderr
    );
}
