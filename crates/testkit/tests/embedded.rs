//! Interleavings 11 to 13: the real engine on the embedded log, on a disk that fails on purpose.
//!
//! The engine runs in real time here, since the log has threads of its own; everything waits on
//! conditions. Each case also checks that work finishes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use potok_connectors::embedded::{EmbeddedLog, Options};
#[cfg(debug_assertions)]
use potok_core::trouble::{Bug, with_bug};
use potok_core::{
    Fault, Headers, Log, Output, Position, RECORD_BYTES_MAX, ReadFrom, Sink, SystemClock,
};
use potok_expr::{Template, ValuePath};
use potok_flow::dead_letter::{self, DeadLetterState};
use potok_flow::decode::{JsonDecoder, RawDecoder};
use potok_flow::{
    ClosePlan, DeliverPlan, Engine, GroupPlan, Input, OnRepeat, Plan, Retry, ShardPlan, Target,
    TopicTarget,
};
use potok_testkit::memory::MemorySink;
use potok_testkit::{FaultyDisk, PowerCut};

/// Only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Small segments, and everything is kept.
fn keeping() -> Options {
    let (segment_bytes, reserve_bytes) = (4_000, 24_000);
    Options { segment_bytes, reserve_bytes, retention_age: None, ..Options::default() }
}

fn open(disk: &FaultyDisk) -> Result<Arc<EmbeddedLog>, Fault> {
    open_with(disk, keeping())
}

fn open_with(disk: &FaultyDisk, options: Options) -> Result<Arc<EmbeddedLog>, Fault> {
    let (disk, clock) = (Arc::new(disk.clone()), Arc::new(SystemClock));
    EmbeddedLog::open_on(disk, Path::new("/log"), options, clock)
}

fn plan(target: Target) -> Plan {
    Plan {
        name: "copy".to_owned(),
        workers: 2,
        inputs: vec![Input::topics("copy", vec!["in".into()])],
        decoder: Arc::new(RawDecoder),
        hold: None,
        stages: Vec::new(),
        delivers: vec![DeliverPlan {
            label: "out".to_owned(),
            number: 0,
            shard: None,
            kind: None,
            target,
            key: None,
            once_by: Vec::new(),
            headers_id: true,
        }],
        order_by: None,
        retry: Retry {
            attempts: 2,
            first: Duration::from_millis(1),
            max: Duration::from_millis(20),
        },
        probe_every: Duration::from_millis(10),
        dead_letter_topic: "copy-dead".into(),
        replays_max: 5,
        keep_resolved: None,
        in_flight_bytes: 1 << 20,
    }
}

fn start(log: &Arc<EmbeddedLog>, target: Target) -> Engine {
    let engine = Engine::new(log.clone(), Arc::new(SystemClock), None);
    engine.start(plan(target)).unwrap();
    engine
}

fn input(text: &str) -> Output {
    Output {
        topic: "in".into(),
        partition: None,
        key: Some(Bytes::from(format!("k{}", text.len() % 5))),
        headers: Headers::none(),
        value: Some(Bytes::copy_from_slice(text.as_bytes())),
    }
}

/// Waits until it holds, or says what it waited for.
async fn until<F: Future<Output = bool>>(what: &str, holds: impl FnMut() -> F) {
    assert!(comes_true(PATIENCE, holds).await, "waited in vain for {what}");
}

async fn comes_true<F: Future<Output = bool>>(
    patience: Duration,
    mut holds: impl FnMut() -> F,
) -> bool {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(patience, waiting).await.is_ok()
}

/// Everything in a topic that can be read, up to where the disk dies.
async fn contents(log: &Arc<EmbeddedLog>, topic: &str) -> BTreeMap<Position, (Bytes, Headers)> {
    let mut all = BTreeMap::new();
    let Ok(mut reader) = log.read(topic, ReadFrom::Start).await else { return all };
    while let Ok(Some(batch)) = reader.next(false).await {
        for record in &batch.records {
            let value = record.value.clone().unwrap();
            all.insert(batch.position(record), (value, record.headers.clone()));
        }
    }
    all
}

/// True when the group has ended everything in its topics.
async fn is_done(log: &Arc<EmbeddedLog>) -> bool {
    let groups = log.consumer_groups().await.unwrap();
    let group = groups.iter().find(|group| group.group == "copy");
    group.is_some_and(|group| group.partitions.iter().all(|p| p.committed >= p.end))
}

/// What is known of the records of one history of power cuts.
#[derive(Default)]
struct History {
    acknowledged: BTreeMap<Position, Bytes>,
    /// What the log held each time it was opened.
    held: BTreeMap<Position, BTreeSet<Bytes>>,
}

impl History {
    /// Sends until the disk dies.
    async fn send(&mut self, log: &Arc<EmbeddedLog>, round: u64) {
        for n in 0..40 {
            let text = format!("{round}/{n}/{}", "x".repeat(n % 7 * 30));
            match log.append(&[input(&text)]).await {
                Ok(positions) => {
                    self.acknowledged.insert(positions[0].clone(), text.into());
                }
                Err(_) => return,
            }
        }
    }

    async fn look(&mut self, log: &Arc<EmbeddedLog>) {
        for (position, (value, _)) in contents(log, "in").await {
            self.held.entry(position).or_default().insert(value);
        }
    }

    /// No position means two things, and everything acknowledged arrived under its name.
    fn check(&self, sink: &MemorySink) -> Result<(), String> {
        for (position, values) in &self.held {
            if values.len() > 1 {
                return Err(format!("{position} meant {} things", values.len()));
            }
        }
        let delivered: BTreeMap<Position, Bytes> =
            sink.delivered().into_iter().map(|m| (m.id.position, m.source)).collect();
        for (position, value) in &delivered {
            let held = self.held.get(position).and_then(BTreeSet::first);
            if held.is_some_and(|held| held != value) {
                return Err(format!("{position} was delivered as something else"));
            }
            if held.is_none() {
                return Err(format!("{position} was delivered, and the log never held it"));
            }
        }
        for (position, value) in &self.acknowledged {
            if delivered.get(position) != Some(value) {
                return Err(format!("{position} was acknowledged and is not there"));
            }
        }
        Ok(())
    }
}

/// Sends under load while the power is cut at some operation, over and over on one history; the
/// destination outlives it all.
async fn power_cuts(seed: u64) -> Result<(), String> {
    let sink = MemorySink::new();
    let mut history = History::default();
    let mut disk = FaultyDisk::new();
    for round in 0..4 {
        disk.cut_at(disk.operations() + 5 + (seed * 31 + round * 17) % 60);
        if let Ok(log) = open(&disk) {
            history.look(&log).await;
            let engine = start(&log, Target::Sink(Arc::new(sink.clone())));
            history.send(&log, round).await;
            // The disk dies in one of the sends or in what the pipeline notes; if neither came
            // to it, it dies now.
            drop(engine);
            log.close();
        }
        let torn =
            if seed.is_multiple_of(3) { PowerCut::Nothing } else { PowerCut::Some(seed + round) };
        disk = disk.power_cut(torn);
    }
    let log = open(&disk).map_err(|fault| fault.to_string())?;
    history.look(&log).await;
    let engine = start(&log, Target::Sink(Arc::new(sink.clone())));
    history.send(&log, 99).await;
    history.look(&log).await;
    until("everything to end", || is_done(&log)).await;
    engine.drain(PATIENCE).await;
    log.close();
    history.check(&sink)
}

/// 11: reader ahead of fsync, power cut, new records: no offset means two things.
#[tokio::test]
async fn no_offset_means_two_things_after_power_cuts() {
    for seed in 0..30 {
        power_cuts(seed).await.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

/// A folder in which 30 records went from `in` to `out`.
async fn copied() -> (FaultyDisk, BTreeMap<Position, Bytes>) {
    let disk = FaultyDisk::new();
    let log = open(&disk).unwrap();
    let target = || Target::Topic(TopicTarget::Fixed("out".into()));
    let engine = start(&log, target());
    let mut sent = BTreeMap::new();
    for n in 0..30 {
        let text = format!("record {n} {}", "y".repeat(n % 4 * 20));
        let position = log.append(&[input(&text)]).await.unwrap().remove(0);
        sent.insert(position, text.into());
    }
    until("everything to end", || is_done(&log)).await;
    engine.drain(PATIENCE).await;
    log.close();
    (disk, sent)
}

/// 12: a damaged frame that held outputs and a position: the outputs come again from their
/// inputs. A flip anywhere is reported, and the bytes are kept.
#[tokio::test]
async fn damaged_outputs_come_again_from_their_inputs() {
    let (disk, sent) = copied().await;
    let mut damaged = 0;
    for path in disk.files().into_iter().filter(|path| path.extension() == Some("seg".as_ref())) {
        let bytes = disk.contents(&path);
        for at in (0..bytes.len()).step_by(97) {
            let flipped_disk = disk.copy();
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            flipped_disk.overwrite(&path, flipped);
            damaged += check_flip(&flipped_disk, &sent)
                .await
                .unwrap_or_else(|why| panic!("byte {at} of {}: {why}", path.display()));
        }
    }
    assert!(damaged > 10, "only {damaged} flips did any damage");
}

/// Runs the pipeline on a damaged folder; returns 1 where the flip did damage.
async fn check_flip(disk: &FaultyDisk, sent: &BTreeMap<Position, Bytes>) -> Result<u32, String> {
    // Opening reads only the newest segments: somebody comes upon the damage by reading, and what
    // it had ended is opened again by the next opening.
    let log = open(disk).map_err(|fault| format!("does not open: {fault}"))?;
    contents(&log, "in").await;
    contents(&log, "out").await;
    log.close();
    let log = open(disk).map_err(|fault| format!("does not open again: {fault}"))?;
    let engine = start(&log, Target::Topic(TopicTarget::Fixed("out".into())));
    until("everything to end", || is_done(&log)).await;
    let inputs = contents(&log, "in").await;
    let outputs = contents(&log, "out").await;
    let damage = log.damage();
    engine.drain(PATIENCE).await;
    log.close();
    for (position, (value, _)) in &inputs {
        if sent.get(position) != Some(value) {
            return Err(format!("{position} is not what was sent"));
        }
        let name = format!("{position}/0/0");
        let named = |headers: &Headers| headers.get("potok-id") == Some(name.as_bytes());
        if !outputs.values().any(|(out, headers)| named(headers) && out == value) {
            return Err(format!("{position} is in the log and its output is not; {damage:?}"));
        }
    }
    for (position, value) in sent {
        if !inputs.contains_key(position) && damage.is_empty() {
            return Err(format!("{position} is gone and no damage is reported"));
        }
        let out = outputs.values().any(|(out, _)| out == value);
        if !out && damage.is_empty() {
            return Err(format!("the output of {position} is gone and no damage is reported"));
        }
    }
    for entry in &damage {
        let kept = disk.contents(Path::new(&entry.kept_in));
        let kept = if kept.is_empty() {
            disk.contents(&Path::new("/log").join(&entry.kept_in))
        } else {
            kept
        };
        if kept.is_empty() {
            return Err(format!("the damaged bytes were not kept: {entry:?}"));
        }
    }
    Ok(u32::from(!damage.is_empty()))
}

/// 13: one pipeline is paused until the disk is full, then resumed: it recovers by working.
#[tokio::test]
async fn a_full_disk_is_worked_off() {
    for to_topic in [false, true] {
        assert!(is_worked_off(to_topic, None, PATIENCE).await);
    }
}

/// The same where records are held: groups must be sealed before anything of them can end.
#[tokio::test]
async fn a_full_disk_is_worked_off_with_groups() {
    assert!(is_worked_off(false, Some(by_k()), PATIENCE).await);
}

/// The naive log keeps its reserve for what ends records, and a seal ends none.
#[test]
#[cfg(debug_assertions)]
fn a_log_that_refuses_seals_is_never_worked_off() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let naive = || runtime.block_on(is_worked_off(false, Some(by_k()), PATIENCE / 10));
    assert!(!with_bug(Bug::SealsRefused, naive));
}

fn by_k() -> GroupPlan {
    GroupPlan {
        by: Some(Template::parse(".k").unwrap()),
        shard: None,
        kinds: Vec::new(),
        id: None,
        close: ClosePlan { after_first: Some(Duration::from_millis(100)), ..ClosePlan::default() },
        on_repeat: OnRepeat::Keep,
        store: None,
        memory_max: 1 << 20,
        internal: "potok-copy".into(),
        files: None,
        track: None,
    }
}

/// A shard whose destination fails while its only group is sent goes on when that is back, though
/// nothing comes any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_goes_on_in_silence_when_its_destination_is_back() {
    let log = open(&FaultyDisk::new()).unwrap();
    let hold = GroupPlan {
        by: None,
        shard: Some(ShardPlan { by: ValuePath::parse(".shop").unwrap(), of: 2 }),
        kinds: Vec::new(),
        id: None,
        close: ClosePlan { after_first: Some(Duration::from_millis(20)), ..ClosePlan::default() },
        on_repeat: OnRepeat::Keep,
        store: None,
        memory_max: 1 << 20,
        internal: "potok-copy".into(),
        files: None,
        track: None,
    };
    let sinks = [MemorySink::new(), MemorySink::new()];
    let delivers = sinks.iter().zip(0..).map(|(sink, shard)| {
        let one = plan(Target::Sink(Arc::new(sink.clone()))).delivers.remove(0);
        DeliverPlan { label: format!("shop-{shard}"), shard: Some(shard), ..one }
    });
    let delivers = delivers.collect();
    let sink = sinks[0].clone();
    let target = Target::Sink(Arc::new(sink.clone()) as Arc<dyn Sink>);
    let engine = Engine::new(log.clone(), Arc::new(SystemClock), None);
    engine.start(Plan { hold: Some(hold), delivers, ..plan(target) }).unwrap();
    let gate = || async {
        let status = engine.status().await.pop().unwrap();
        let of = status.destinations.into_iter().find(|of| of.destination == "shop-0").unwrap();
        of.gate.state
    };
    for round in 1..=5 {
        until("an open gate", || async { gate().await == "open" }).await;
        sink.set_outage(Some(Fault::wait("away")));
        log.append(&[input(r#"{"shop":0}"#)]).await.unwrap();
        until("the gate to close", || async { gate().await != "open" }).await;
        sink.set_outage(None);
        until("the group to be sent", || async { sink.count() == round }).await;
    }
    engine.drain(PATIENCE).await;
    log.close();
}

/// False where not all that fills the disk ends in that time.
async fn is_worked_off(to_topic: bool, hold: Option<GroupPlan>, patience: Duration) -> bool {
    let disk = FaultyDisk::new();
    disk.set_capacity(Some(80_000));
    let options = Options {
        segment_bytes: 4_000,
        reserve_bytes: 24_000,
        retention_age: Some(Duration::ZERO),
        retain_every: Duration::from_millis(20),
        ..Options::default()
    };
    let log = open_with(&disk, options).unwrap();
    let sink = MemorySink::new();
    let target = match to_topic {
        true => Target::Topic(TopicTarget::Fixed("out".into())),
        false => Target::Sink(Arc::new(sink.clone()) as Arc<dyn Sink>),
    };
    let engine = Engine::new(log.clone(), Arc::new(SystemClock), None);
    // What one transaction may hold must fit into the reserve.
    engine.start(Plan { in_flight_bytes: 6_000, hold, ..plan(target) }).unwrap();
    engine.pause("copy").unwrap();
    let mut sent = Vec::new();
    // Large ones first, then what still fits between them.
    let mut refused = None;
    for padding in [200, 0] {
        refused = Some(loop {
            let number = sent.len();
            let padding = "z".repeat(padding);
            let text = format!(r#"{{"k":"group {}","n":{number},"z":"{padding}"}}"#, number % 30);
            match log.append(&[input(&text)]).await {
                Ok(positions) => sent.push((positions[0].clone(), Bytes::from(text))),
                Err(fault) => break fault,
            }
            assert!(sent.len() < 10_000, "the disk never fills");
        });
    }
    let refused = refused.unwrap();
    assert_eq!(refused.next, potok_core::Move::Wait, "{refused}");
    assert!(log.trouble().is_some(), "a full disk is told");
    engine.resume("copy").unwrap();
    if !comes_true(patience, || is_done(&log)).await {
        return false;
    }
    if !to_topic {
        let delivered: BTreeMap<Position, Bytes> =
            sink.delivered().into_iter().map(|m| (m.id.position, m.source)).collect();
        assert_eq!(delivered, sent.into_iter().collect::<BTreeMap<_, _>>());
    }
    let new = r#"{"k":"new"}"#;
    until("room for new records", || async { log.append(&[input(new)]).await.is_ok() }).await;
    until("everything to end", || is_done(&log)).await;
    assert_eq!(log.trouble(), None);
    engine.drain(PATIENCE).await;
    log.close();
    true
}

/// A record of the largest size can be set aside, replayed and set aside again: what potok adds to
/// it does not make it too large.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_record_is_dead_lettered_and_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(SystemClock);
    let log = EmbeddedLog::open(folder.path(), Options::default(), clock.clone()).unwrap();
    let engine = Engine::new(log.clone(), clock.clone(), None);
    let sink = Target::Sink(Arc::new(MemorySink::new()) as Arc<dyn Sink>);
    // Nothing of these bytes is JSON, however often it is tried.
    let decoder = Arc::new(JsonDecoder::new(None));
    engine.start(Plan { decoder, ..plan(sink) }).unwrap();
    let largest = Output {
        value: Some(Bytes::from(vec![b'x'; RECORD_BYTES_MAX - 2])),
        ..input("of the largest size")
    };
    assert_eq!(largest.bytes(), RECORD_BYTES_MAX);
    log.append(std::slice::from_ref(&largest)).await.unwrap();
    let info = dead_letter::info("copy", "copy-dead", 5);
    let states = || async {
        let letters = dead_letter::list(log.as_ref(), &info).await.unwrap();
        letters.iter().map(|letter| (letter.envelope.attempts, letter.state)).collect::<Vec<_>>()
    };
    let open = |attempts| (attempts, DeadLetterState::Open);
    until("a dead letter", || async { states().await == [open(1)] }).await;
    let letters = dead_letter::list(log.as_ref(), &info).await.unwrap();
    assert_eq!(letters[0].record.value, largest.value);
    let sent = dead_letter::replay(log.as_ref(), &info, &letters, clock.as_ref()).await.unwrap();
    assert_eq!(sent, 1);
    let replayed = (1, DeadLetterState::Replayed);
    until("another one", || async { states().await == [replayed, open(2)] }).await;
    let letters = dead_letter::list(log.as_ref(), &info).await.unwrap();
    assert_eq!(letters[1].record.value, largest.value);
    until("everything to be done", || is_done(&log)).await;
}

/// A pipeline on a log in a folder, that delivers to so many topics.
fn start_to_topics(folder: &Path, topics: usize) -> (Arc<EmbeddedLog>, Engine) {
    let options = Options { segment_bytes: 1 << 20, retention_age: None, ..Options::default() };
    let log = EmbeddedLog::open(folder, options, Arc::new(SystemClock)).unwrap();
    let engine = Engine::new(log.clone(), Arc::new(SystemClock), None);
    let deliver = |number: usize| DeliverPlan {
        label: format!("out-{number}"),
        number: number as u32,
        shard: None,
        kind: None,
        target: Target::Topic(TopicTarget::Fixed(format!("out-{number}").into())),
        key: None,
        once_by: Vec::new(),
        headers_id: true,
    };
    let delivers = (0..topics).map(deliver).collect();
    let target = Target::Topic(TopicTarget::Fixed("out".into()));
    let in_flight_bytes = 2 << 30;
    let plan = Plan { workers: 1, delivers, in_flight_bytes, ..plan(target) };
    engine.start(plan).unwrap();
    (log, engine)
}

/// However much is made of what was there, and however much may be in flight, it is written in
/// transactions of some megabytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_are_bounded_by_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (log, engine) = start_to_topics(folder.path(), 10);
    engine.pause("copy").unwrap();
    let value = "z".repeat(100 << 10);
    for _ in 0..20 {
        log.append(&[(); 5].map(|()| input(&value))).await.unwrap();
    }
    engine.resume("copy").unwrap();
    until("everything to end", || is_done(&log)).await;
    for number in 0..10 {
        assert_eq!(contents(&log, &format!("out-{number}")).await.len(), 100);
    }
    engine.drain(PATIENCE).await;
    log.close();
    // A frame is never cut, and a segment has few of them. All outputs together are 100 MB.
    let segments = std::fs::read_dir(folder.path().join("log")).unwrap();
    let segments = segments
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(".seg"));
    let largest = segments.map(|entry| entry.metadata().unwrap().len()).max().unwrap();
    assert!((4 << 20..64 << 20).contains(&largest), "a frame of about {largest} bytes");
}

/// What one record alone comes to is bounded too: it is set aside, and the others go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_comes_to_more_than_the_log_takes_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let (log, engine) = start_to_topics(folder.path(), 10);
    let large = "z".repeat(60 << 20);
    for value in ["before", &large, "behind"] {
        log.append(&[input(value)]).await.unwrap();
    }
    until("everything to end", || is_done(&log)).await;
    // Counted a moment after it is in the log.
    until("everything to be counted", || async { engine.status().await[0].in_flight == 0 }).await;
    let status = engine.status().await.remove(0);
    assert_eq!((status.delivered, status.dead_lettered), (2, 1));
    assert_eq!(status.dead_letters_by_reason.get("too_large"), Some(&1));
    assert_eq!(contents(&log, "out-9").await.len(), 2);
    let letters = contents(&log, "copy-dead").await;
    assert!(letters.values().any(|(value, _)| *value == large), "its bytes are kept");
    engine.drain(PATIENCE).await;
    log.close();
}
