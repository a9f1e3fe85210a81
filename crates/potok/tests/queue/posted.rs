//! A pipeline on Redis, and the checker of what it posted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;

use potok_services::Redis;
use serde_json::{Value, json};

use crate::process::{Home, Running, pipelines};
use crate::receiver::Receiver;
use crate::wait;

pub const LIST: &str = "queue:incoming";

/// A folder whose queue is this server, with a short lease.
pub fn home(redis: &Redis) -> Home {
    let home = Home::new();
    home.settings(&format!("queue: {{ redis: '{}', lease: 2s }}\n", redis.url()));
    home
}

/// The shipped file with another `close`.
pub fn file(home: &Home, close: &str) -> PathBuf {
    let shipped = fs::read_to_string(pipelines().join("chat.yaml")).unwrap();
    let from = shipped.find("close:").unwrap();
    let to = shipped[from..].find("\n\n").unwrap();
    let usual = &shipped[from..from + to];
    assert!(usual.contains("max_age") && usual.ends_with("max_bytes: 8MiB"), "{usual}");
    let quick = "retry: { attempts: 3, first: 5ms, max: 50ms }\ngate: { probe_every: 50ms }\n";
    let file = home.path().join("chat.yaml");
    fs::write(&file, shipped.replace(usual, close) + quick).unwrap();
    file
}

pub fn start(home: &Home, receiver: &Receiver, close: &str) -> Running {
    let settings = [("POTOK_WEBHOOK_CHAT_BATCHES", receiver.url.as_str())];
    home.start_file(&file(home, close), &settings).unwrap()
}

pub fn message(chat: u64, number: u64) -> String {
    let message = json!({
        "channel": "telegram", "external_chat_id": format!("tg:{chat}"), "message_id": number,
        "text": format!("text {number}"), "timestamp": "2025-01-01T00:00:00Z",
    });
    message.to_string()
}

/// Pushes as a producer does that knows nothing of potok.
pub fn push(redis: &Redis, list: &str, entries: &[String]) {
    for part in entries.chunks(200) {
        let words: Vec<&str> =
            ["RPUSH", list].into_iter().chain(part.iter().map(String::as_str)).collect();
        redis.command(&words);
    }
}

/// Pushes what is too large for a word of a command.
pub struct Pusher(TcpStream);

impl Pusher {
    pub fn new(redis: &Redis) -> Self {
        Pusher(TcpStream::connect(("127.0.0.1", redis.port())).unwrap())
    }

    pub fn push(&mut self, list: &str, entry: &str) {
        let words = ["RPUSH", list, entry];
        let words: String =
            words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        self.0.write_all(format!("*3\r\n{words}").as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            answer.extend(byte);
        }
        assert!(answer.starts_with(b":"), "{}", String::from_utf8_lossy(&answer));
    }
}

/// Keys that say that messages are somewhere.
pub fn left(redis: &Redis) -> Vec<String> {
    let usual = |key: &&str| {
        let own = ["lock", "epoch"].map(|name| format!("potok:list:{LIST}:{name}"));
        own.iter().any(|own| own == key)
            || ["potok:list:pipeline", "queue:processor:lock", ""].contains(key)
    };
    let keys = redis.command(&["KEYS", "*"]);
    keys.lines().filter(|key| !usual(key)).map(str::to_owned).collect()
}

pub fn nothing_is_left(redis: &Redis) {
    let mut last = Vec::new();
    wait::until("nothing is left in Redis", || {
        last = left(redis);
        last.is_empty().then_some(())
    });
}

pub fn ids(batch: &Value) -> Vec<u64> {
    batch["message_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// What was posted, where the chats get their messages in turn.
pub fn assert_posted(receiver: &Receiver, chats: u64, count: u64) {
    assert_posted_to(receiver, count, |n| n % chats);
}

/// What was posted: each message in exactly one batch that was taken, repeats the same byte for byte,
/// order per chat kept, each message in its own chat.
pub fn assert_posted_to(receiver: &Receiver, count: u64, chat_of: impl Fn(u64) -> u64) {
    let posts = receiver.posts();
    let mut bodies: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (key, body, _) in &posts {
        bodies.entry(key).or_default().insert(body);
    }
    let differ: Vec<_> = bodies.values().filter(|bodies| bodies.len() > 1).collect();
    assert!(differ.is_empty(), "a repeat is the same byte for byte: {differ:?}");
    let (mut seen, mut by_chat) = (BTreeSet::new(), BTreeMap::<String, Vec<u64>>::new());
    for (key, body, status) in &posts {
        if *status == 204 && seen.insert(key) {
            let batch: Value = serde_json::from_str(body).unwrap();
            let chat = batch["batch_key"].as_str().unwrap().to_owned();
            by_chat.entry(chat).or_default().extend(ids(&batch));
        }
    }
    let mut expected: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for n in 0..count {
        expected.entry(format!("telegram:tg:{}", chat_of(n))).or_default().push(n);
    }
    assert_eq!(by_chat.len(), expected.len());
    for (chat, numbers) in by_chat {
        assert_eq!(Some(&numbers), expected.get(&chat), "{chat}");
    }
}
