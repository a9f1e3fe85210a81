//! The hub: what idle connections cost, how fast one message reaches everybody, and how many
//! acknowledged messages a second it carries.
//!
//! Clients are a process of their own, which answers every message as the stock client does. The
//! other side of the fan-out is a bare hub: the same clients, the same bytes, and nothing between
//! a message and the sockets.

mod bare;
pub mod clients;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use potok_hub::tokens::{Authority, Person, Refusal};
use potok_hub::{
    AckRule, Answer, Answers, Frame, Hub, HubSettings, Limits, Node, Outgoing, Ticket, UserId,
};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use self::bare::BareHub;
use self::clients::Clients;
use crate::measure::{Process, Run, now};
use crate::report::{median, print_goal, print_side, thousands};

/// Longer than anything here takes, so that nobody is dropped for being idle.
const LONG: Duration = Duration::from_secs(3_600);
/// Batches on their way at a time, where answers are counted.
const IN_FLIGHT: u64 = 8;

struct Sizes {
    idle: usize,
    messages: u64,
    rounds: usize,
    people: usize,
    acknowledged: u64,
}

/// Runs and prints.
pub fn run(quick: bool) -> Result<()> {
    let sizes = match quick {
        true => Sizes { idle: 2_000, messages: 5, rounds: 3, people: 200, acknowledged: 40_000 },
        false => {
            Sizes { idle: 10_000, messages: 10, rounds: 3, people: 1_000, acknowledged: 300_000 }
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    idle_and_fan_out(&runtime, &sizes)?;
    acknowledged(&runtime, &sizes)
}

fn idle_and_fan_out(runtime: &Runtime, sizes: &Sizes) -> Result<()> {
    let count = sizes.idle;
    println!("hub: {} connections", thousands(count as u64));
    let own = Process::own();
    let (node, address) = start(runtime)?;
    let before = own.resident()?;
    let mut clients = Clients::connect(address, count)?;
    let rate = count as f64 / clients.connected_in.as_secs_f64();
    print_goal(&format!("{rate:.0} connects/s"), "≥ 1,000 /s", rate >= 1_000.0);
    let each = own.resident()?.saturating_sub(before) as usize / count;
    print_goal(&format!("{each} bytes for each idle connection"), "< 6,000", each < 6_000);

    println!(
        "hub: {} messages to all of them, until all have answered, against a bare hub without queues",
        sizes.messages
    );
    let (mut limit, mut ours) = (Vec::new(), Vec::new());
    let (mut limit_late, mut ours_late) = (Vec::new(), Vec::new());
    // One after the other: all of them at a time would be more files than a process may open.
    for _ in 0..sizes.rounds {
        ours.push(measured(runtime, count as u64 * sizes.messages, async {
            for number in 0..sizes.messages {
                let counter = Arc::new(Counter::default());
                node.send(batch(count, number, 0)?, counter.clone()).await?;
                counter.reach(count as u64).await;
                counter.all_acknowledged()?;
            }
            Ok(())
        })?);
        ours_late.push(clients.report()?);
        drop(clients);
        let bare = runtime.block_on(BareHub::start())?;
        let mut others = Clients::connect(bare.address, count)?;
        runtime.block_on(bare.wait_for(count));
        limit.push(measured(runtime, count as u64 * sizes.messages, async {
            for number in 0..sizes.messages {
                bare.send(&frame(number)).await;
            }
            Ok(())
        })?);
        limit_late.push(others.report()?);
        drop(others);
        runtime.block_on(bare.wait_until_empty());
        clients = Clients::connect(address, count)?;
    }
    print_side("bare hub", &limit)?;
    print_side("potok hub", &ours)?;
    let worst = |lateness: &[clients::Lateness]| {
        median(lateness.iter().map(|late| late.p99.as_secs_f64() * 1e3).collect())
    };
    println!(
        "  seen by 99 % of the clients after: bare {:.0} ms, potok {:.0} ms",
        worst(&limit_late),
        worst(&ours_late)
    );
    let ratios = limit.iter().zip(&ours).map(|(limit, ours)| ours.rate() / limit.rate());
    let ratio = median(ratios.collect());
    print_goal(&format!("ratio {ratio:.2}"), "≥ 0.80", ratio >= 0.8);
    let cpu = limit.iter().zip(&ours).map(|(limit, ours)| limit.cpu_each() / ours.cpu_each());
    println!("  of CPU times {:.2}", median(cpu.collect()));
    Ok(())
}

fn acknowledged(runtime: &Runtime, sizes: &Sizes) -> Result<()> {
    let people = sizes.people;
    println!(
        "hub: {} messages to {people} people, each acknowledged",
        thousands(sizes.acknowledged)
    );
    let (node, address) = start(runtime)?;
    let mut clients = Clients::connect(address, people)?;
    let mut runs = Vec::new();
    for _ in 0..sizes.rounds {
        runs.push(measured(runtime, sizes.acknowledged, async {
            let counter = Arc::new(Counter::default());
            let batches = sizes.acknowledged / people as u64;
            for number in 0..batches {
                let sent = number * people as u64;
                counter.reach(sent.saturating_sub(IN_FLIGHT * people as u64)).await;
                node.send(batch(people, number, sent)?, counter.clone()).await?;
            }
            counter.reach(batches * people as u64).await;
            counter.all_acknowledged()
        })?);
    }
    print_side("potok hub", &runs)?;
    let each = median(runs.iter().map(|run| run.cpu_each() * 1e6).collect());
    let late = clients.report()?;
    println!(
        "  {each:.1} µs of CPU for each delivery; seen by 99 % after {:.0} ms",
        late.p99.as_secs_f64() * 1e3
    );
    Ok(())
}

fn measured(
    runtime: &Runtime,
    records: u64,
    work: impl Future<Output = Result<()>>,
) -> Result<Run> {
    crate::measure::measure(records, || runtime.block_on(work))
}

/// Believes everybody: the token is the user's name.
struct Believer;

#[async_trait]
impl Authority for Believer {
    async fn verify(&self, token: &str) -> Result<Person, Refusal> {
        let expires = potok_hub::tokens::development::now() + LONG;
        Ok(Person { user: UserId::new(token), expires, issued: None })
    }
}

fn start(runtime: &Runtime) -> Result<(Arc<Node>, SocketAddr)> {
    let _inside = runtime.enter();
    let limits = Limits { silent_for: LONG, handshake_within: LONG, ..Limits::default() };
    let settings = HubSettings { limits, ..HubSettings::default() };
    let node = Node::start(settings, Arc::new(Believer), HashMap::new());
    let listener = potok_hub::listen(([127, 0, 0, 1], 0).into())?;
    let address = listener.local_addr()?;
    runtime.spawn(potok_hub::serve(listener, node.clone(), std::future::pending()));
    Ok((node, address))
}

/// Microseconds since 1970, which the clients' process reads too.
#[allow(clippy::disallowed_methods, reason = "measuring is what this program is for")]
fn micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

fn payload(number: u64) -> String {
    let text = "a short message, as people write them to each other all day";
    format!(r#"{{"at":{},"number":{number},"text":"{text}"}}"#, micros())
}

/// The bytes of one message, as the hub itself writes them.
fn frame(number: u64) -> String {
    let (id, payload) = (format!("p0123456789abcdef-{number:x}"), payload(number));
    format!(
        "{{\"type\":1,\"invocationId\":\"{id}\",\"target\":\"notify\",\"arguments\":[{payload},{{\"id\":\"m-{number}\"}}]}}\u{1e}"
    )
}

/// One message for everybody.
fn batch(people: usize, number: u64, first: u64) -> Result<Vec<Outgoing>> {
    let id = format!("m-{number}");
    let frame = Frame::new("notify", &id, payload(number).as_bytes(), 64 << 10)
        .context("a message that can be sent")?;
    let outgoing = |person: usize| Outgoing {
        ticket: Ticket(first + person as u64),
        user: UserId::new(&clients::user(person)),
        frame: frame.clone(),
        ack_within: Duration::from_secs(60),
        ack: AckRule::Any,
    };
    Ok((0..people).map(outgoing).collect())
}

/// Counts answers.
#[derive(Default)]
struct Counter {
    answered: AtomicU64,
    acknowledged: AtomicU64,
    more: Notify,
}

impl Answers for Counter {
    fn settle(&self, answers: &[(Ticket, Answer)]) {
        let good = answers.iter().filter(|(_, answer)| *answer == Answer::Acknowledged).count();
        self.acknowledged.fetch_add(good as u64, Ordering::Relaxed);
        self.answered.fetch_add(answers.len() as u64, Ordering::Release);
        self.more.notify_waiters();
    }
}

impl Counter {
    async fn reach(&self, count: u64) {
        loop {
            let more = self.more.notified();
            if self.answered.load(Ordering::Acquire) >= count {
                return;
            }
            more.await;
        }
    }

    fn all_acknowledged(&self) -> Result<()> {
        let (good, all) = (&self.acknowledged, &self.answered);
        let (good, all) = (good.load(Ordering::Acquire), all.load(Ordering::Acquire));
        ensure!(good == all, "{} of {all} messages were not acknowledged", all - good);
        Ok(())
    }
}

/// Time since `then`, for clients.
fn since(then: u64) -> Duration {
    Duration::from_micros(micros().saturating_sub(then))
}

/// The time it took.
fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let started = now();
    let made = work()?;
    Ok((made, started.elapsed()))
}
