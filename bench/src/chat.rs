//! Chats in a Redis queue: messages a second against a bare drain that loses nothing in a crash, and a
//! million chats that wait.
//!
//! The bare drain moves a hundred entries with pipelined LMOVEs into a list of its own, looks at them, and
//! trims that list: whoever dies finds them there. It sorts nothing, knows no chats, and names nothing.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use potok_services::{Redis, RedisOptions};
use redis::{Connection, Pipeline};
use serde_json::Value;

use crate::measure::{Process, Run, measure, now, watch_from};
use crate::potok::{self, Running, Start, root};
use crate::report::{Contest, Side, print_goal, thousands};
use crate::services::pairs;

const ROUNDS: usize = 3;
const LIST: &str = "queue:incoming";
/// Entries of one turn of the bare drain, which pipelines as many moves.
const PER_TURN: usize = 100;
/// Messages of a chat, which closes with the last; and chats that are written in at a time.
const PER_CHAT: u64 = 100;
const WRITING: u64 = 1_000;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Chats that wait: how long they are written in, and how long they are quiet before they close.
struct WaitingChats {
    chats: u64,
    sent_over: Duration,
    quiet: Duration,
}

/// How late 99 % of them may leave.
const LATE_MAX: f64 = 0.25;
/// Nothing takes so long behind the time it is due unless it has got stuck.
const STUCK: Duration = Duration::from_secs(300);
const TICK: Duration = Duration::from_millis(50);

/// Runs and prints.
pub fn run(quick: bool) -> Result<()> {
    let program = potok::build()?;
    for fsync in ["always", "everysec"] {
        let bench = ChatBench::new(&program, fsync)?;
        let messages = if quick { 100_000 } else { 1_000_000 };
        bench.drain(messages, fsync)?;
    }
    let (chats, sent_over, quiet) = if quick { (100_000, 10, 40) } else { (1_000_000, 60, 120) };
    let (sent_over, quiet) = (Duration::from_secs(sent_over), Duration::from_secs(quiet));
    ChatBench::new(&program, "everysec")?.wait(&WaitingChats { chats, sent_over, quiet })
}

struct ChatBench<'a> {
    program: &'a Path,
    redis: Redis,
    scratch: tempfile::TempDir,
}

/// A message of a chat, about 250 bytes.
fn message(chat: u64, number: u64) -> String {
    let text = format!("{:0>120}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    format!(
        r#"{{"channel":"telegram","external_chat_id":"tg_{chat}","external_user_id":"tg_{chat}","message_id":{number},"text":"{text}","media":[]}}"#
    )
}

/// The chat of a message: many are written in at a time, one message of each in turn.
fn chat_of(number: u64) -> u64 {
    number / (WRITING * PER_CHAT) * WRITING + number % WRITING
}

impl<'a> ChatBench<'a> {
    fn new(program: &'a Path, fsync: &str) -> Result<Self> {
        let settings = pairs(&[("appendfsync", fsync), ("maxmemory-policy", "noeviction")]);
        let redis = Redis::open(&RedisOptions { settings, ..RedisOptions::default() })?;
        Ok(ChatBench { program, redis, scratch: tempfile::tempdir()? })
    }

    fn connect(&self) -> Result<Connection> {
        Ok(redis::Client::open(self.redis.url())?.get_connection()?)
    }

    fn server_cpu(&self) -> Result<f64> {
        Process::of(self.redis.pid()).family_cpu()
    }

    /// Nothing but so many messages in the list.
    fn fill(&self, messages: u64) -> Result<Connection> {
        let mut connection = self.connect()?;
        redis::cmd("FLUSHALL").exec(&mut connection)?;
        push(&mut connection, (0..messages).map(|number| message(chat_of(number), number)))?;
        Ok(connection)
    }

    fn start(&self, folder: &str, text: &str) -> Result<Running> {
        let folder = self.scratch.path().join(folder);
        fs::create_dir_all(&folder)?;
        let (file, config) = (folder.join("chat.yaml"), folder.join("potok.yaml"));
        fs::write(&file, text)?;
        fs::write(&config, format!("queue: {}\n", self.redis.url()))?;
        let start = Start { pipeline: "chat", file: &file, config: Some(&config), variables: &[] };
        Running::start_with(self.program, &folder.join("data"), start)
    }

    fn drain(&self, messages: u64, fsync: &str) -> Result<()> {
        let bare = "bare drain";
        let alone = "name: chat\nsource: { list: \"queue:incoming\" }\n\
             group: { by: \"{.channel}:{.external_chat_id}\", close: { quiet: 1h, max_age: 2h, max_count: 100 } }\n\
             deliver: [ { topic: chats } ]\n";
        let shipped = fs::read_to_string(root().join("pipelines/chat.yaml"))?;
        let runs = Cell::new(0);
        // Where another stopped, nothing may be found.
        let folder = || {
            runs.set(runs.get() + 1);
            format!("run-{}", runs.get())
        };
        let sides: Vec<Side<'_>> = vec![
            (bare, Box::new(|| self.bare(messages))),
            ("potok, as they come", Box::new(|| self.potok(&folder(), alone, messages))),
            (
                "potok, shipped file (merged)",
                Box::new(|| self.potok(&folder(), &shipped, messages)),
            ),
        ];
        let title = format!(
            "chat: {} messages of a Redis list, {WRITING} chats at a time, {PER_CHAT} in a group; appendfsync {fsync}",
            thousands(messages)
        );
        let contest = Contest::of(&title, ROUNDS, sides)?;
        contest.ratio("potok, as they come", bare, None)?;
        contest.ratio("potok, shipped file (merged)", bare, Some(0.5))
    }

    fn bare(&self, messages: u64) -> Result<Run> {
        let mut connection = self.fill(messages)?;
        let before = self.server_cpu()?;
        let run = measure(messages, || {
            let mut bytes = 0;
            let mut left = messages;
            while left > 0 {
                let mut moves = Pipeline::with_capacity(PER_TURN);
                for _ in 0..PER_TURN {
                    moves.cmd("LMOVE").arg(LIST).arg("taken").arg("LEFT").arg("RIGHT");
                }
                let entries: Vec<Option<Vec<u8>>> = moves.query(&mut connection)?;
                let taken: Vec<Vec<u8>> = entries.into_iter().flatten().collect();
                ensure!(!taken.is_empty(), "{left} messages are missing");
                bytes += taken.iter().map(Vec::len).sum::<usize>();
                redis::cmd("LTRIM").arg("taken").arg(taken.len()).arg(-1).exec(&mut connection)?;
                left -= taken.len() as u64;
            }
            ensure!(bytes > 0, "nothing was there");
            Ok(())
        })?;
        Ok(Run { servers: Some(self.server_cpu()? - before), ..run })
    }

    /// From the first entries seen to be sorted until all messages are delivered, and nothing waits.
    fn potok(&self, folder: &str, text: &str, messages: u64) -> Result<Run> {
        let connection = RefCell::new(self.fill(messages)?);
        let running = self.start(folder, text)?;
        let begun = || {
            let left: u64 = redis::cmd("LLEN").arg(LIST).query(&mut *connection.borrow_mut())?;
            Ok(messages.saturating_sub(left))
        };
        let done = || running.count("delivered");
        watch_from(&running.process, messages, LOOK_EVERY, || self.server_cpu(), begun, done)
    }

    /// Chats of one message each: written in evenly, then quiet.
    fn wait(&self, size: &WaitingChats) -> Result<()> {
        let quiet = size.quiet.as_secs();
        println!(
            "chat: {} chats of one message wait in Redis, written in over {} s, quiet for {quiet} s",
            thousands(size.chats),
            size.sent_over.as_secs()
        );
        let text = format!(
            "name: chat\nsource: {{ list: \"queue:incoming\" }}\ngroup:\n  by: \"{{.channel}}:{{.external_chat_id}}\"\n  \
             close: {{ quiet: {quiet}s, max_age: 1h, max_count: 100 }}\nprocess:\n  - stage: times\n    per: group\n    \
             vrl: |\n      . = {{ \"opened\": %group.opened, \"closed\": %group.closed }}\n\
             deliver: [ {{ topic: chats }} ]\n"
        );
        let mut connection = self.connect()?;
        let server = Process::of(self.redis.pid());
        let empty = server.resident()?;
        let running = self.start("wait", &text)?;
        let idle = running.process.resident()?;
        let first = now();
        evenly(size, |chats| push(&mut connection, chats.map(|chat| message(chat, chat))))?;
        let last = now();
        until(last + STUCK, "sorted", || {
            Ok(redis::cmd("LLEN").arg(LIST).query::<u64>(&mut connection)? == 0)
        })?;
        let waiting: u64 =
            redis::cmd("ZCARD").arg(format!("potok:list:{LIST}:due")).query(&mut connection)?;
        let (resident, held) = (running.process.resident()?, server.resident()?);
        println!(
            "  written in {:.1} s; {} wait; potok {} MB (idle {} MB), Redis {} MB, {} bytes for a chat and its message",
            (last - first).as_secs_f64(),
            thousands(waiting),
            resident / 1_000_000,
            idle / 1_000_000,
            held / 1_000_000,
            held.saturating_sub(empty) / waiting.max(1),
        );
        drop(running);
        let killed = now();
        let running = self.start("wait", &text)?;
        until(now() + STUCK, "known", || {
            let status = running.status()?;
            Ok(status["waiting"].as_u64() >= Some(waiting)
                || status["delivered"].as_u64() > Some(0))
        })?;
        println!(
            "  killed and started again: at work after {:.1} s",
            killed.elapsed().as_secs_f64()
        );
        until(last + size.quiet + STUCK, "delivered", || {
            Ok(running.count("lag")? == 0 && running.count("in_flight")? == 0)
        })?;
        let behind = now().saturating_duration_since(last + size.quiet).as_secs_f64();
        println!(
            "  all left {behind:.1} s after the last was due; potok's peak {} MB, {:.1} CPU s",
            running.process.peak()? / 1_000_000,
            running.process.cpu()?
        );
        drop(running);
        self.lateness(size)
    }

    /// How long after it was due each chat was in the topic it is delivered to.
    fn lateness(&self, size: &WaitingChats) -> Result<()> {
        let mut child = Command::new(self.program)
            .args(["read", "chats", "--data-dir"])
            .arg(self.scratch.path().join("wait/data"))
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().context("its output")?;
        let (mut late, mut closed) = (Vec::new(), Vec::new());
        for line in BufReader::new(output).lines() {
            let record: Value = serde_json::from_str(&line?)?;
            let value: Value = serde_json::from_str(record["value"].as_str().unwrap_or_default())?;
            let due = millis(&value["opened"])? + size.quiet.as_secs_f64() * 1e3;
            late.push((millis(&record["time"])? - due).max(0.0));
            closed.push((millis(&value["closed"])? - due).max(0.0));
        }
        ensure!(child.wait()?.success(), "the topic could not be read");
        let counted = late.len() as u64;
        ensure!(counted >= size.chats, "{counted} of {} chats have left", size.chats);
        let (closed, late) = (percentile(closed, 0.99), percentile(late, 0.99));
        println!("  99 % closed at most {closed:.0} ms late");
        let figure =
            format!("{} chats, 99 % delivered at most {late:.0} ms late", thousands(counted));
        print_goal(&figure, "≤ 250 ms", late <= LATE_MAX * 1e3);
        Ok(())
    }
}

fn push(connection: &mut Connection, messages: impl Iterator<Item = String>) -> Result<()> {
    let mut messages = messages.peekable();
    while messages.peek().is_some() {
        let part: Vec<String> = messages.by_ref().take(1_000).collect();
        redis::cmd("RPUSH").arg(LIST).arg(part).exec(connection)?;
    }
    Ok(())
}

/// Milliseconds since midnight of the first day of its month: all times here lie in few minutes.
fn millis(time: &Value) -> Result<f64> {
    let text = time.as_str().context("a time")?;
    let (date, clock) = text.split_once('T').context("a time")?;
    let day: f64 = date.rsplit('-').next().context("a day")?.parse()?;
    let mut seconds = day * 86_400.0;
    for (part, unit) in clock.trim_end_matches('Z').split(':').zip([3_600.0, 60.0, 1.0]) {
        seconds += part.parse::<f64>()? * unit;
    }
    Ok(seconds * 1e3)
}

fn percentile(mut figures: Vec<f64>, share: f64) -> f64 {
    figures.sort_by(f64::total_cmp);
    let at = (figures.len() as f64 * share) as usize;
    figures.get(at.min(figures.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// Sends all chats, as many at each tick as are due to be sent by then.
fn evenly(
    size: &WaitingChats,
    mut send: impl FnMut(std::ops::Range<u64>) -> Result<()>,
) -> Result<()> {
    let (start, mut sent) = (now(), 0);
    while sent < size.chats {
        let share = start.elapsed().as_secs_f64() / size.sent_over.as_secs_f64();
        let until = size.chats.min((size.chats as f64 * share) as u64);
        if until > sent {
            send(sent..until)?;
            sent = until;
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

fn until(deadline: Instant, what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    while !done()? {
        ensure!(now() < deadline, "not everything is {what} in time");
        std::thread::sleep(TICK);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn times_are_read_and_every_chat_gets_its_messages() {
        let time = |text: &str| millis(&Value::from(text)).unwrap();
        let later = time("2026-01-02T00:00:00.250Z");
        assert_eq!(later - time("2026-01-01T23:59:59.000Z"), 1_250.0);
        assert_eq!(percentile(vec![3.0, 1.0, 2.0], 0.99), 3.0);
        let mut counts = std::collections::BTreeMap::new();
        (0..2 * WRITING * PER_CHAT).for_each(|n| *counts.entry(chat_of(n)).or_insert(0) += 1);
        assert_eq!(counts.len() as u64, 2 * WRITING);
        assert!(counts.values().all(|count| *count == PER_CHAT));
    }
}
