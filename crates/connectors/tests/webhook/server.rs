//! A small HTTP server that behaves as badly as it is told.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What a client asked.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    pub method: String,
    pub path: String,
    /// Names in small letters.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The body, where it is an array.
    pub events: Vec<Value>,
}

impl ReceivedRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// How it answers.
pub enum Reply {
    Status(u16, String),
    /// Promises more than it sends, and hangs up.
    Broken,
    /// Hangs up without a word.
    Nothing,
    /// Never answers.
    Silence,
    Redirect(String),
}

impl Reply {
    pub fn json(elements: Vec<Value>) -> Reply {
        Reply::Status(200, Value::from(elements).to_string())
    }
}

type Answer = dyn Fn(usize, &ReceivedRequest) -> Reply + Send + Sync;

/// A server on a port of its own.
pub struct Server {
    pub url: String,
    asked: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Server {
    /// Answers each request by its number, from 0, and what it asks.
    pub async fn start(
        answer: impl Fn(usize, &ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/canary-path?token=canary", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (all, answer): (_, Arc<Answer>) = (asked.clone(), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, all.clone(), answer.clone()));
            }
        });
        Server { url, asked }
    }

    pub fn asked(&self) -> Vec<ReceivedRequest> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(mut stream: TcpStream, all: Arc<Mutex<Vec<ReceivedRequest>>>, answer: Arc<Answer>) {
    let mut read = Vec::new();
    while let Some(asked) = request(&mut stream, &mut read).await {
        let number = {
            let mut all = all.lock().unwrap();
            all.push(asked.clone());
            all.len() - 1
        };
        let (status, body, more) = match answer(number, &asked) {
            Reply::Status(status, body) => (status, body, String::new()),
            Reply::Redirect(to) => (307, String::new(), format!("location: {to}\r\n")),
            Reply::Nothing => return,
            Reply::Silence => std::future::pending().await,
            Reply::Broken => {
                let head = "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n[null,";
                let _ = stream.write_all(head.as_bytes()).await;
                return;
            }
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n{more}\r\n");
        if stream.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn request(stream: &mut TcpStream, read: &mut Vec<u8>) -> Option<ReceivedRequest> {
    let end = loop {
        if let Some(at) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        more(stream, read).await?;
    };
    let head = String::from_utf8(read.drain(..end).collect()).unwrap();
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ').map(str::to_owned);
    let (method, path) = (first.next()?, first.next()?);
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(0, |(_, length)| length.parse().unwrap());
    while read.len() < length {
        more(stream, read).await?;
    }
    let body: Vec<u8> = read.drain(..length).collect();
    let events = serde_json::from_slice(&body).unwrap_or_default();
    Some(ReceivedRequest { method, path, headers, body, events })
}

async fn more(stream: &mut TcpStream, read: &mut Vec<u8>) -> Option<()> {
    let mut bytes = [0; 16 * 1024];
    let got = stream.read(&mut bytes).await.ok().filter(|got| *got > 0)?;
    read.extend_from_slice(&bytes[..got]);
    Some(())
}
