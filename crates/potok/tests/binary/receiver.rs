//! A receiver of webhooks that says what it is told to say.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Condvar, Mutex};

use serde_json::Value;

/// One POST: its key, its body and what was answered.
pub type Post = (String, String, u16);

/// A receiver of webhooks that says what it is told to say.
#[derive(Clone)]
pub struct Receiver {
    posts: Arc<Mutex<Vec<Post>>>,
    status: Arc<Mutex<u16>>,
    /// How many may be answered; all where there is none.
    answers: Arc<(Mutex<Option<usize>>, Condvar)>,
    /// Posts that have come whole are taken one at a time.
    turn: Arc<Mutex<()>>,
    pub url: String,
}

impl Receiver {
    pub fn saying(status: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let status = Arc::new(Mutex::new(status));
        let (answers, turn) = (Arc::default(), Arc::default());
        let receiver = Receiver { posts: Arc::default(), status, answers, turn, url };
        let server = receiver.clone();
        // Whoever was frozen between connecting and sending keeps nobody else waiting.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let server = server.clone();
                std::thread::spawn(move || server.answer(stream.unwrap()));
            }
        });
        receiver
    }

    fn answer(&self, mut stream: std::net::TcpStream) {
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
        // Whoever was killed has not sent all of it.
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let _turn = self.turn.lock().unwrap();
        // What has no key only asks whether somebody is there.
        let status = if key.is_empty() { 405 } else { *self.status.lock().unwrap() };
        if !key.is_empty() {
            self.posts.lock().unwrap().push((key, String::from_utf8(body).unwrap(), status));
            let (left, more) = &*self.answers;
            let mut left = more.wait_while(left.lock().unwrap(), |left| *left == Some(0)).unwrap();
            *left = left.map(|left| left - 1);
        }
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        let _ = stream.write_all(head.as_bytes());
    }

    #[allow(dead_code, reason = "for the tests on real services")]
    /// Answers so many more posts; keeps the others waiting. None: answers all.
    pub fn answer_only(&self, posts: Option<usize>) {
        *self.answers.0.lock().unwrap() = posts;
        self.answers.1.notify_all();
    }

    pub fn say(&self, status: u16) {
        *self.status.lock().unwrap() = status;
    }

    pub fn posts(&self) -> Vec<Post> {
        self.posts.lock().unwrap().clone()
    }

    /// Posts that were taken, by key.
    pub fn taken(&self) -> BTreeMap<String, Value> {
        let taken = self.posts().into_iter().filter(|(.., status)| *status == 204);
        taken.map(|(key, body, _)| (key, serde_json::from_str(&body).unwrap())).collect()
    }
}
