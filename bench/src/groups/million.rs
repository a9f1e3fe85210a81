//! A million groups of one to three records, open at once and due evenly over a minute.
//!
//! They are sent evenly over that minute. When all are held the process is killed; a new one reads
//! everything again and closes each group when it is due. What is measured: memory, how long the
//! second process needs until it holds everything again, and how late groups close.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use potok_services::Redis;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ThreadedProducer};

use super::{GROUP_HEADER, close_step, pipeline, store};
use crate::measure::{Process, now};
use crate::potok::{Running, Start};
use crate::report::{print_goal, thousands};
use crate::services::{ANSWER_MAX, DeliveryCheck, PotokProgram, Topic, send};

/// Asking walks over everything that is held.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often a lot of groups is sent.
const TICK: Duration = Duration::from_millis(50);
/// Nothing takes so long behind the time it is due unless it has got stuck.
const STUCK: Duration = Duration::from_secs(300);
const LATENESS: &str = "potok_group_close_lateness_seconds";
const LATENESS_MAX: f64 = 0.25;
const NAME: &str = "million";
const FROM: &str = "million";
const TO: &str = "million-out";

/// How many groups there are, and how long they are sent and held.
#[derive(Clone, Copy)]
struct Size {
    groups: u64,
    sent_over: Duration,
    held: Duration,
}

impl Size {
    fn of(quick: bool) -> Self {
        let (groups, sent_over, held) =
            if quick { (100_000, 10, 40) } else { (1_000_000, 60, 120) };
        let (sent_over, held) = (Duration::from_secs(sent_over), Duration::from_secs(held));
        Size { groups, sent_over, held }
    }

    /// How many records the first so many groups have.
    fn records(groups: u64) -> u64 {
        (0..groups).map(records_of).sum()
    }

    fn pipeline(&self) -> String {
        let step = close_step(&format!("after_first: {}s", self.held.as_secs()));
        pipeline(NAME, FROM, &step, TO)
    }
}

fn records_of(group: u64) -> u64 {
    1 + group % 3
}

/// About 200 bytes.
fn value(group: u64, number: u64) -> String {
    format!(
        r#"{{"group":{group},"number":{number},"text":"{:0>160}"}}"#,
        group.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    )
}

/// On the embedded log.
pub fn on_embedded(program: &Path, scratch: &Path, quick: bool) -> Result<()> {
    let size = Size::of(quick);
    let data = scratch.join("million");
    std::fs::create_dir_all(&data)?;
    let file = data.join("pipeline.yaml");
    std::fs::write(&file, size.pipeline())?;
    let start = Start { pipeline: NAME, file: &file, config: None, variables: &[] };
    let start = || Running::start_with(program, &data, start);
    contest("embedded log", size, None, start, |running, groups| {
        let mut body = String::new();
        for (group, number) in groups.flat_map(numbered) {
            let (header, value) = (format!("g-{group}"), value(group, number));
            let line = serde_json::json!({ "headers": [[GROUP_HEADER, header]], "value": value });
            writeln!(body, "{line}")?;
        }
        post(running.address(), &body)
    })
}

/// On Kafka, with bodies packed in Redis.
pub fn on_kafka(ours: &PotokProgram<'_>, redis: &Redis, quick: bool) -> Result<()> {
    let size = Size::of(quick);
    let source = Topic::empty(ours.kafka, FROM);
    Topic::empty(ours.kafka, TO);
    let producer: ThreadedProducer<DeliveryCheck> =
        source.producer().create_with_context(DeliveryCheck::default())?;
    ours.next();
    let start = || ours.start(NAME, &size.pipeline(), &store(redis, "packed"), &[]);
    let redis = Process::of(redis.pid());
    contest("Kafka and Redis packed", size, Some(&redis), start, |_, groups| {
        for (group, number) in groups.flat_map(numbered) {
            let (header, value) = (format!("g-{group}"), value(group, number));
            let headers =
                OwnedHeaders::new().insert(Header { key: GROUP_HEADER, value: Some(&header) });
            let record = BaseRecord::to(&source.name).key(header.as_bytes());
            send(&producer, record.payload(value.as_bytes()).headers(headers))?;
        }
        producer.flush(ANSWER_MAX)?;
        producer.context().all_written()
    })
}

fn numbered(group: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..records_of(group)).map(move |number| (group, number))
}

/// Records over HTTP; returns when they are durable.
fn post(address: &str, body: &str) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    write!(
        stream,
        "POST /api/v1/topics/{FROM}/records HTTP/1.0\r\nHost: {address}\r\n\
         Content-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n{body}",
        body.len(),
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).context("a status")?;
    ensure!(status == "200", "the records were not taken: {answer}");
    Ok(())
}

fn contest(
    place: &str,
    size: Size,
    store: Option<&Process>,
    start: impl Fn() -> Result<Running>,
    mut send: impl FnMut(&Running, std::ops::Range<u64>) -> Result<()>,
) -> Result<()> {
    let records = Size::records(size.groups);
    let (seconds, held) = (size.sent_over.as_secs(), size.held.as_secs());
    println!(
        "groups: {} open groups, {} records, due evenly over {seconds} s, held for {held} s; {place}",
        thousands(size.groups),
        thousands(records),
    );
    let running = start()?;
    let first_sent = now();
    evenly(size, |groups| send(&running, groups))?;
    let last_sent = now();
    until_held(&running, size, records)?;
    println!(
        "  sent in {:.1} s; all held {:.1} s later",
        (last_sent - first_sent).as_secs_f64(),
        last_sent.elapsed().as_secs_f64()
    );
    let cpu = running.process.cpu()?;
    let peak = running.process.peak()?;
    println!("  peak {} MB, {cpu:.1} CPU s until then", peak / 1_000_000);
    if let Some(store) = store {
        println!("  the store's peak {} MB", store.peak()? / 1_000_000);
    }

    drop(running);
    let killed = now();
    let running = start()?;
    until_held(&running, size, records)?;
    let (again, cpu) = (killed.elapsed().as_secs_f64(), running.process.cpu()?);
    println!("  killed and started again: all held after {again:.1} s, {cpu:.1} CPU s");

    let last_due = last_sent + size.held;
    until(last_due + STUCK, "delivered", || Ok(running.count("delivered")? >= records))?;
    let behind = now().saturating_duration_since(last_due).as_secs_f64();
    let peak = running.process.peak()?;
    let cpu = running.process.cpu()? - cpu;
    println!(
        "  all delivered {behind:.1} s after the last was due, {cpu:.1} CPU s; peak {} MB",
        peak / 1_000_000
    );
    let lateness = running.histogram(LATENESS)?;
    let (p99, counted) = percentile(&lateness, 0.99);
    let figure = format!(
        "{} groups closed when due, 99 % of them at most {:.0} ms late",
        thousands(counted),
        p99 * 1e3
    );
    print_goal(&figure, "≤ 250 ms", counted > 0 && p99 <= LATENESS_MAX);
    Ok(())
}

/// Sends all groups, as many at each tick as are due to be sent by then.
fn evenly(size: Size, mut send: impl FnMut(std::ops::Range<u64>) -> Result<()>) -> Result<()> {
    let (start, mut sent) = (now(), 0);
    while sent < size.groups {
        let share = start.elapsed().as_secs_f64() / size.sent_over.as_secs_f64();
        let until = size.groups.min((size.groups as f64 * share) as u64);
        if until > sent {
            send(sent..until)?;
            sent = until;
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// Waits until every group is open, or the first of them have been delivered already.
fn until_held(running: &Running, size: Size, records: u64) -> Result<()> {
    until(now() + STUCK, "held", || {
        let status = running.status()?;
        let count = |field: &str| status[field].as_u64().unwrap_or_default();
        let delivered = count("delivered");
        let all = count("received") >= records;
        Ok(all && (count("open_groups") >= size.groups || delivered > 0))
    })
}

fn until(deadline: Instant, what: &str, done: impl Fn() -> Result<bool>) -> Result<()> {
    while !done()? {
        ensure!(now() < deadline, "not everything is {what} in time");
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// The bound below which so large a part lies, and how many there are.
fn percentile(buckets: &[(f64, u64)], part: f64) -> (f64, u64) {
    let all = buckets.last().map_or(0, |(_, count)| *count);
    let enough = |(_, count): &&(f64, u64)| *count as f64 >= all as f64 * part;
    (buckets.iter().find(enough).map_or(f64::NAN, |(bound, _)| *bound), all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_bound_that_enough_lie_below() {
        let buckets = [(0.1, 90), (0.25, 99), (f64::INFINITY, 100)];
        assert_eq!(percentile(&buckets, 0.99), (0.25, 100));
        assert_eq!(percentile(&buckets, 0.5), (0.1, 100));
        assert_eq!(percentile(&buckets, 1.0), (f64::INFINITY, 100));
    }
}
