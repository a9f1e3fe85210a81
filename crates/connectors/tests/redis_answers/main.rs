//! A Redis that answers scripts with anything: what is not the answer of a script is a fault, never a
//! success and never a panic.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use potok_connectors::redis::{KeyStyle, RedisStore, RedisTimeouts};
use potok_core::{
    Headers, Owner, Position, PutOutcome, Record, Store, StoreAddress, StoreEntry, Timestamp,
};
use potok_fuzz::Corpus;

/// What every script is answered with, byte by byte.
type Answer = Arc<Mutex<Vec<u8>>>;

/// Serves until the test ends.
fn serve(answer: Answer) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || serve_one(&stream, &answer));
        }
    });
    format!("redis://{address}")
}

/// Answers a script as told and hangs up: half an answer is not waited for.
fn serve_one(mut stream: &TcpStream, answer: &Answer) -> Option<()> {
    let mut lines = BufReader::new(stream);
    loop {
        let command = command(&mut lines)?;
        let word = command.first()?.to_ascii_uppercase();
        match word.as_slice() {
            b"EVALSHA" | b"EVAL" => {
                let answer = answer.lock().unwrap().clone();
                stream.write_all(&answer).ok()?;
                return stream.shutdown(std::net::Shutdown::Both).ok();
            }
            b"HELLO" => stream.write_all(b"-ERR unknown command 'HELLO'\r\n").ok()?,
            b"PING" => stream.write_all(b"+PONG\r\n").ok()?,
            b"INFO" => stream.write_all(b"$0\r\n\r\n").ok()?,
            _ => stream.write_all(b"+OK\r\n").ok()?,
        }
    }
}

/// The words of the next command.
fn command(lines: &mut BufReader<&TcpStream>) -> Option<Vec<Vec<u8>>> {
    let count = number(lines, '*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let length = number(lines, '$')?;
        let mut word = vec![0; length + 2];
        lines.read_exact(&mut word).ok()?;
        word.truncate(length);
        words.push(word);
    }
    Some(words)
}

fn number(lines: &mut BufReader<&TcpStream>, mark: char) -> Option<usize> {
    let mut line = String::new();
    lines.read_line(&mut line).ok()?;
    line.trim().strip_prefix(mark)?.parse().ok()
}

fn held(offset: u64) -> StoreEntry {
    let place = StoreAddress {
        group: Bytes::from_static(b"g"),
        kind: Some("event".into()),
        id: Some(Bytes::from(offset.to_string())),
        position: Position { log: 1, topic: "t".into(), partition: 0, offset },
        with: 0,
    };
    let record = Record {
        offset,
        time: Timestamp(1),
        key: None,
        headers: Headers::none(),
        value: Some(Bytes::from_static(b"{}")),
    };
    StoreEntry { place, opened: Timestamp(1), record }
}

/// However the number is written, as far as the client takes it for one.
fn says_one(input: &[u8]) -> bool {
    let line = input.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let number = std::str::from_utf8(line).ok().and_then(|line| line.strip_prefix(':'));
    number.and_then(|number| number.trim().parse::<i64>().ok()) == Some(1)
}

#[test]
fn only_the_answer_of_a_script_is_believed() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let corpus = Corpus::read(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/redis"));
    let answer: Answer = Arc::default();
    let url = serve(answer.clone());
    let second = Duration::from_secs(1);
    let timeouts = RedisTimeouts { connect: second, call: second };
    let owner = Owner { pipeline: "p".into(), share: 0, nonce: 7 };
    let all = [held(1), held(2)];
    let places = all.each_ref().map(|held| held.place.clone());
    for keys in [KeyStyle::Readable, KeyStyle::Packed] {
        let store = RedisStore::with_timeouts(&url, keys, timeouts).unwrap();
        corpus.fuzz(150, |input| {
            *answer.lock().unwrap() = input.to_vec();
            let said_done = says_one(input);
            let (put, close, clean, load) = runtime.block_on(async {
                (
                    store.put(&owner, &all).await,
                    store.close(&owner, &[Bytes::from_static(b"g")]).await,
                    store.clean(&owner, &places).await,
                    store.load(&owner, &places).await,
                )
            });
            let is_kept = matches!(put, Ok(PutOutcome::Kept));
            assert!(said_done || !is_kept, "taken for done");
            for done in [close, clean] {
                assert!(said_done || done.is_err(), "taken for done");
            }
            if let Ok(records) = load {
                // Nobody else can make a body that fits.
                assert!(records.len() == 2 && records.iter().all(Option::is_none), "{records:?}");
            }
        });
    }
}
