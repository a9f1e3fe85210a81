//! chat on Redis: messages through the queue against a bare drain of the same list, and very many chats
//! that wait.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use potok_services::{Redis, RedisOptions};
use redis::{Connection, Pipeline};
use serde_json::Value;

use crate::measure::{Process, Run, measure, now, watch};
use crate::potok::{self, Running, Start};
use crate::report::{Contest, print_goal, thousands};

const LIST: &str = "queue:incoming";
const DONE: &str = "queue:done";
const DUE: &str = "potok:list:queue:incoming:due";
/// Chats that are written in at a time, and messages with which one closes.
const WRITING: u64 = 1_000;
const PER_CHAT: u64 = 10;
/// What the bare drain takes with one call.
const LOT: usize = 100;
/// Messages a producer pushes with one call.
const PUSHED: u64 = 500;
const LOOK_EVERY: Duration = Duration::from_millis(20);
const STUCK: Duration = Duration::from_secs(600);
const LATENESS_MAX: i64 = 250;

/// Both of them.
pub fn run(quick: bool) -> Result<()> {
    let program = potok::build()?;
    throughput(&program, quick)?;
    waiting(&program, quick)
}

fn message(chat: u64, sent: u128) -> String {
    format!(
        r#"{{"channel":"telegram","external_chat_id":"tg_{chat}","message_id":"{sent}","text":"{:0>100}","sent":{sent}}}"#,
        chat.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    )
}

/// Milliseconds since 1970, as Redis counts them: it runs on this machine.
#[allow(clippy::disallowed_methods, reason = "measuring is what this program is for")]
fn wall() -> Result<u128> {
    Ok(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_millis())
}

fn server() -> Result<(Redis, Connection)> {
    let redis = Redis::open(&RedisOptions::default())?;
    let connection = redis::Client::open(redis.url())?.get_connection()?;
    Ok((redis, connection))
}

/// Pushes a message into each of these chats.
fn push(redis: &mut Connection, chats: impl Iterator<Item = u64>) -> Result<()> {
    let sent = wall()?;
    let mut entries = redis::cmd("RPUSH");
    entries.arg(LIST);
    chats.for_each(|chat| _ = entries.arg(message(chat, sent)));
    entries.exec(redis)?;
    Ok(())
}

fn start(program: &Path, folder: &Path, redis: &Redis, text: &str) -> Result<Running> {
    fs::create_dir_all(folder)?;
    let file = folder.join("chat.yaml");
    fs::write(&file, text)?;
    let url = redis.url();
    let variables = [("POTOK_QUEUE", url.as_str())];
    let start = Start { pipeline: "chat", file: &file, config: None, variables: &variables };
    Running::start_with(program, folder, start)
}

fn pipeline(close: &str, steps: &str, deliver: &str) -> String {
    format!(
        "name: chat\nsource: {{ list: \"{LIST}\" }}\ngroup:\n  by: \"{{.channel}}:{{.external_chat_id}}\"\n  \
         close: {{ {close} }}\n{steps}deliver: [ {deliver} ]\n"
    )
}

fn throughput(program: &Path, quick: bool) -> Result<()> {
    let (messages, rounds) = if quick { (100_000, 3) } else { (400_000, 5) };
    let (redis, mut connection) = server()?;
    let (redis, connection) = (&redis, std::cell::RefCell::new(&mut connection));
    let fill = || -> Result<()> {
        let mut connection = connection.borrow_mut();
        redis::cmd("FLUSHALL").exec(*connection)?;
        for first in (0..messages).step_by(PUSHED as usize) {
            let lot = WRITING * PER_CHAT;
            let chat = |n: u64| n / lot * WRITING + n % WRITING;
            push(&mut connection, (first..first + PUSHED).map(chat))?;
        }
        Ok(())
    };
    let servers = || Process::of(redis.pid()).cpu();
    let bare = || -> Result<Run> {
        fill()?;
        let before = servers()?;
        let run = measure(messages, || drain(&mut connection.borrow_mut()))?;
        Ok(Run { servers: Some(servers()? - before), ..run })
    };
    let ours = || -> Result<Run> {
        fill()?;
        let folder = tempfile::tempdir()?;
        let close = format!("quiet: 5s, max_age: 60s, max_count: {PER_CHAT}");
        let text = pipeline(&close, "decode: { format: raw }\n", "{ topic: batches }");
        let running = start(program, folder.path(), redis, &text)?;
        watch(&running.process, messages, LOOK_EVERY, servers, || running.count("delivered"))
    };
    let title = format!("chat: {} messages of chats of {PER_CHAT}, Redis", thousands(messages));
    let sides = vec![
        ("bare drain", Box::new(bare) as Box<dyn FnMut() -> Result<Run> + '_>),
        ("potok", Box::new(ours)),
    ];
    Contest::of(&title, rounds, sides)?.ratio("potok", "bare drain", Some(0.5))
}

/// Takes everything as a careful program would: into a list of its own first, removed from there when
/// it is done.
fn drain(redis: &mut Connection) -> Result<()> {
    let mut lot = Pipeline::new();
    for _ in 0..LOT {
        lot.cmd("LMOVE").arg(LIST).arg("taken").arg("LEFT").arg("RIGHT");
    }
    loop {
        let taken: Vec<Option<Vec<u8>>> = lot.query(redis)?;
        let count = taken.iter().flatten().count();
        if count == 0 {
            return Ok(());
        }
        redis::cmd("LTRIM").arg("taken").arg(count).arg(-1).exec(redis)?;
    }
}

fn used_memory(redis: &mut Connection) -> Result<u64> {
    let info: String = redis::cmd("INFO").arg("memory").query(redis)?;
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    line.and_then(|text| text.trim().parse().ok()).context("used_memory")
}

/// Very many chats with a message each, due evenly.
fn waiting(program: &Path, quick: bool) -> Result<()> {
    let (chats, over, quiet) = if quick { (100_000, 15, 45) } else { (1_000_000, 60, 150) };
    println!("chat: {} chats that wait, due evenly over {over} s", thousands(chats));
    let (redis, mut connection) = server()?;
    let folder = tempfile::tempdir()?;
    let steps = "process:\n  - stage: late\n    per: group\n    vrl: |\n      closed = parse_timestamp!(%group.closed, \"%+\")\n      \
                 . = { \"closed\": to_unix_timestamp(closed, unit: \"milliseconds\"), \"sent\": .[0].sent }\n";
    let close = format!("quiet: {quiet}s, max_age: 1h");
    let text = pipeline(&close, steps, &format!("{{ list: \"{DONE}\" }}"));
    let running = start(program, folder.path(), &redis, &text)?;
    let before = used_memory(&mut connection)?;
    let (begun, mut sent) = (now(), 0);
    while sent < chats {
        let due = (begun.elapsed().as_secs_f64() / f64::from(over) * chats as f64) as u64;
        let until = due.min(chats).min(sent + PUSHED);
        if until > sent {
            push(&mut connection, sent..until)?;
            sent = until;
        } else {
            std::thread::sleep(LOOK_EVERY);
        }
    }
    let sorted = |connection: &mut Connection| -> Result<()> {
        let since = now();
        while redis::cmd("ZCARD").arg(DUE).query::<u64>(connection)? < chats {
            ensure!(since.elapsed() < STUCK, "they are not sorted");
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    };
    sorted(&mut connection)?;
    let memory = used_memory(&mut connection)? - before;
    println!(
        "  sent in {:.1} s; potok's peak {} MB; Redis {} MB more, {} bytes a chat with its message",
        begun.elapsed().as_secs_f64(),
        running.process.peak()? / 1_000_000,
        memory / 1_000_000,
        memory / chats,
    );
    drop(running);
    let killed = now();
    let running = start(program, folder.path(), &redis, &text)?;
    while running.status()?["state"] != "running" {
        std::thread::sleep(LOOK_EVERY);
    }
    println!("  killed and started again: running after {:.2} s", killed.elapsed().as_secs_f64());
    let since = now();
    while running.count("delivered")? < chats {
        ensure!(since.elapsed() < STUCK, "they are not delivered");
        std::thread::sleep(LOOK_EVERY);
    }
    println!("  all delivered; potok's peak {} MB", running.process.peak()? / 1_000_000);
    let done: Vec<String> = redis::cmd("LRANGE").arg(DONE).arg(0).arg(-1).query(&mut connection)?;
    ensure!(done.len() as u64 == chats, "{} of {chats} left", done.len());
    let late = |entry: &String| -> Result<i64> {
        let entry: Value = serde_json::from_str(entry)?;
        let number = |name: &str| entry[name].as_i64().with_context(|| name.to_owned());
        Ok(number("closed")? - number("sent")? - i64::from(quiet) * 1_000)
    };
    let mut late = done.iter().map(late).collect::<Result<Vec<_>>>()?;
    late.sort_unstable();
    let p99 = late.get(late.len() * 99 / 100).copied().context("chats")?;
    let most = late.last().copied().unwrap_or_default();
    let figure = format!("99 % closed at most {p99} ms after they were due, all at most {most} ms");
    print_goal(&figure, "≤ 250 ms", p99 <= LATENESS_MAX);
    Ok(())
}
