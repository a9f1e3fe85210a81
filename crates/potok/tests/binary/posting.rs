//! Requests to the listener for other programs, written by hand: a client would put things right.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::process::Running;
use crate::wait;

/// The address that takes records over HTTP.
pub fn listener(running: &Running) -> String {
    wait::until("the listener is told", || {
        let info: Value = serde_json::from_str(&running.get("/api/v1/info")?.1).ok()?;
        Some(info["http"].as_str()?.to_owned())
    })
}

/// Posts a body with one more header; the status and what was answered.
pub fn post_to(http: &str, path: &str, header: &str, body: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(http).unwrap();
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n{header}\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    (status, serde_json::from_str(body).unwrap_or_default())
}

/// Status and body of a GET.
pub fn get_from(http: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(http).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    (status, body.to_owned())
}
