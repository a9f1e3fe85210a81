//! The engine on memory connectors: what a pipeline does when somebody pauses it, breaks it,
//! kills a part of it or asks it to stop. The simulator covers the combinations.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::{
    DecodeResult, Decoder, Event, Fault, Headers, HeadersBuilder, Log, Output, Reason, Record,
    Sink, Stage, StageResult, SystemClock,
};
use potok_expr::{Program, Template};
use potok_flow::dead_letter::{self, DeadLetterState};
use potok_flow::decode::{JsonDecoder, RawDecoder};
use potok_flow::process::VrlStage;
use potok_flow::{
    DeliverPlan, Engine, Input, OnError, Per, Plan, Retry, StagePlan, State, Status, Target,
    TopicTarget, WaitsFor,
};
use potok_testkit::memory::{MemoryLog, MemorySink};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

struct Bench {
    log: MemoryLog,
    engine: Engine,
}

impl Bench {
    fn new() -> Self {
        let log = MemoryLog::new(Arc::new(SystemClock));
        let engine = Engine::new(Arc::new(log.clone()), Arc::new(SystemClock), None);
        Bench { log, engine }
    }

    async fn send(&self, topic: &str, values: &[&str]) {
        let output = |value: &&str| Output {
            topic: topic.into(),
            partition: None,
            key: Some(Bytes::from_static(b"k")),
            headers: Headers::none(),
            value: Some(Bytes::copy_from_slice(value.as_bytes())),
        };
        let outputs: Vec<Output> = values.iter().map(output).collect();
        self.log.append(&outputs).await.unwrap();
    }

    async fn status(&self) -> Status {
        let status = self.engine.status().await.pop().unwrap();
        let ended = status.delivered + status.filtered + status.duplicates + status.dead_lettered;
        assert_eq!(status.received, ended + status.in_flight, "counts add up");
        status
    }

    /// Waits until the status satisfies `wanted`, however long a loaded machine takes.
    async fn until(&self, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
        for _ in 0..6_000 {
            let status = self.status().await;
            if wanted(&status) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never saw: {what}; last {:?}", self.status().await);
    }

    async fn letters(&self, plan: &Plan) -> Vec<dead_letter::DeadLetter> {
        let info = dead_letter::info(&plan.name, &plan.dead_letter_topic, plan.replays_max);
        dead_letter::list(&self.log, &info).await.unwrap()
    }
}

fn plan(sink: Arc<dyn Sink>) -> Plan {
    Plan {
        name: "p".into(),
        workers: 2,
        inputs: vec![Input::topics("g", vec!["in".into()])],
        decoder: Arc::new(JsonDecoder::new(None)),
        hold: None,
        stages: Vec::new(),
        delivers: vec![DeliverPlan {
            label: "sink".into(),
            number: 0,
            shard: None,
            kind: None,
            target: Target::Sink(sink),
            key: None,
            once_by: Vec::new(),
            headers_id: false,
        }],
        order_by: None,
        retry: Retry {
            attempts: 2,
            first: Duration::from_millis(1),
            max: Duration::from_millis(5),
        },
        probe_every: Duration::from_millis(5),
        dead_letter_topic: "p-dead".into(),
        replays_max: 5,
        keep_resolved: None,
        in_flight_bytes: 1 << 20,
    }
}

fn vrl(source: &str) -> StagePlan {
    stage_plan(VrlStage::new(Program::compile(source).unwrap()))
}

fn stage_plan(stage: impl Stage + 'static) -> StagePlan {
    StagePlan {
        name: "s".into(),
        stage: Arc::new(stage),
        per: Per::Event,
        on_error: OnError::DeadLetter,
        counts: Vec::new(),
    }
}

#[tokio::test]
async fn records_end_delivered_filtered_or_set_aside() {
    let (bench, sink) = (Bench::new(), MemorySink::new());
    let mut plan = plan(Arc::new(sink.clone()));
    plan.stages = vec![vrl("if .n == 2 { abort }\n.m = to_int!(.n) + 1")];
    plan.delivers[0].once_by = vec![Template::parse(".n").unwrap()];
    bench.engine.start(plan.clone()).unwrap();
    let values = [r#"{"n":1}"#, r#"{"n":2}"#, "nonsense", r#"{"n":"x"}"#, r#"{"n":3}"#];
    bench.send("in", &values).await;
    let status = bench.until("all ended", |s| s.received == 5 && s.in_flight == 0).await;
    assert_eq!((status.delivered, status.filtered, status.dead_lettered), (2, 1, 2));
    let bodies: Vec<_> = sink.delivered().into_iter().map(|m| m.value).collect();
    assert!(bodies.contains(&Bytes::from_static(br#"{"m":2,"n":1}"#)), "{bodies:?}");
    let mut reasons: Vec<_> =
        bench.letters(&plan).await.iter().map(|l| l.envelope.reason.word()).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["stage", "undecodable"]);
    bench.until("progress noted", |s| s.lag == Some(0)).await;
}

#[tokio::test]
async fn a_restart_takes_nothing_twice_and_continues() {
    let (bench, sink) = (Bench::new(), MemorySink::new());
    bench.engine.start(plan(Arc::new(sink.clone()))).unwrap();
    bench.send("in", &["1", "2"]).await;
    bench.until("two", |s| s.delivered == 2).await;
    bench.engine.drain(Duration::from_secs(60)).await;
    bench.send("in", &["3"]).await;
    let engine = Engine::new(Arc::new(bench.log.clone()), Arc::new(SystemClock), None);
    let bench = Bench { log: bench.log, engine };
    bench.engine.start(plan(Arc::new(sink.clone()))).unwrap();
    let status = bench.until("the third", |s| s.delivered == 1 && s.lag == Some(0)).await;
    assert_eq!((status.received, sink.count()), (1, 3));
}

#[tokio::test]
async fn a_paused_pipeline_takes_nothing_until_resumed() {
    let (bench, sink) = (Bench::new(), MemorySink::new());
    bench.engine.start(plan(Arc::new(sink.clone()))).unwrap();
    bench.until("running", |s| s.state == State::Running).await;
    bench.engine.pause("p").unwrap();
    bench.until("paused", |s| s.state == State::Paused).await;
    bench.send("in", &["1"]).await;
    bench.until("lag", |s| s.lag == Some(1)).await;
    assert!(bench.engine.pause("q").is_err());
    bench.engine.resume("p").unwrap();
    bench.until("delivered", |s| s.delivered == 1).await;
}

/// Takes nothing before it is let go.
struct SlowSink {
    inner: MemorySink,
    /// Somebody called.
    called: Notify,
    let_go: Semaphore,
}

#[async_trait]
impl Sink for SlowSink {
    async fn probe(&self) -> Result<(), Fault> {
        Ok(())
    }
    async fn deliver(&self, batch: &potok_core::Batch) -> Result<potok_core::Receipt, Fault> {
        self.called.notify_one();
        let _let_go = self.let_go.acquire().await.unwrap();
        self.inner.deliver(batch).await
    }
}

/// While a call is in flight a pipeline that was asked to stop is draining, and says so.
#[tokio::test]
async fn a_pipeline_that_finishes_what_is_in_flight_is_draining() {
    let bench = Bench::new();
    let (inner, called, let_go) = (MemorySink::new(), Notify::new(), Semaphore::new(0));
    let sink = Arc::new(SlowSink { inner, called, let_go });
    bench.engine.start(plan(sink.clone())).unwrap();
    bench.send("in", &["1"]).await;
    sink.called.notified().await;
    let engine = bench.engine.clone();
    let drained = tokio::spawn(async move { engine.drain(Duration::from_secs(60)).await });
    bench.until("draining", |s| s.state == State::Draining && s.in_flight == 1).await;
    sink.let_go.add_permits(1);
    drained.await.unwrap();
    let status = bench.status().await;
    assert_eq!((status.state, status.delivered, sink.inner.count()), (State::Stopped, 1, 1));
}

#[tokio::test]
async fn an_outage_closes_the_gate_and_sets_nothing_aside() {
    let (bench, sink) = (Bench::new(), MemorySink::new());
    sink.set_outage(Some(Fault::wait("away")));
    bench.engine.start(plan(Arc::new(sink.clone()))).unwrap();
    bench.send("in", &["1", "2", "3"]).await;
    let status = bench.until("gate closed at start", |s| s.gate.state == "closed").await;
    assert!(status.gate.why.unwrap().contains("away"));
    sink.set_outage(None);
    bench.until("delivered", |s| s.delivered == 3 && s.gate.state == "open").await;
    sink.set_outage(Some(Fault::wait("away again")));
    bench.send("in", &["4"]).await;
    bench.until("gate closed in the middle", |s| s.gate.state == "closed").await;
    sink.set_outage(None);
    let status = bench.until("recovered", |s| s.delivered == 4).await;
    assert_eq!(status.dead_lettered, 0);
}

/// Takes everything except values that contain `poison`, at which the whole call fails.
#[derive(Default)]
struct PoisonSink(MemorySink);

#[async_trait]
impl Sink for PoisonSink {
    async fn probe(&self) -> Result<(), Fault> {
        Ok(())
    }
    async fn deliver(&self, batch: &potok_core::Batch) -> Result<potok_core::Receipt, Fault> {
        let poisoned = |m: &potok_core::Message| m.value.windows(6).any(|w| w == b"poison");
        if batch.messages.iter().any(poisoned) {
            return Err(Fault::retry("it hurts"));
        }
        self.0.deliver(batch).await
    }
}

#[tokio::test]
async fn one_poison_record_is_found_and_the_others_go_through_in_order() {
    let bench = Bench::new();
    let sink = Arc::new(PoisonSink::default());
    let mut plan = plan(sink.clone());
    plan.workers = 1;
    plan.delivers[0].once_by = vec![Template::parse(".n").unwrap()];
    let values: Vec<String> = (0..50)
        .map(|n| {
            let text = if n == 0 || n == 31 { "poison" } else { "good" };
            format!(r#"{{"n":{},"v":{n},"t":"{text}"}}"#, n % 7)
        })
        .collect();
    bench.send("in", &values.iter().map(String::as_str).collect::<Vec<_>>()).await;
    bench.engine.start(plan.clone()).unwrap();
    let status = bench.until("all ended", |s| s.received == 50 && s.in_flight == 0).await;
    assert_eq!((status.delivered, status.dead_lettered), (48, 2));
    let letters = bench.letters(&plan).await;
    assert!(letters.iter().all(|l| l.envelope.reason == Reason::RetriesExhausted));
    // Within a key, versions arrive in the order in which they were sent.
    let field = |m: &potok_core::Message, name: &str| {
        serde_json::from_slice::<serde_json::Value>(&m.value).unwrap()[name].as_u64().unwrap()
    };
    for key in 0..7 {
        let delivered = sink.0.delivered();
        let versions: Vec<u64> =
            delivered.iter().filter(|m| field(m, "n") == key).map(|m| field(m, "v")).collect();
        assert!(versions.is_sorted(), "key {key}: {versions:?}");
    }
}

/// A lone poison record with nothing else to prove that the destination works waits behind the
/// gate, and says so; the next records that get through prove it.
#[tokio::test]
async fn a_lone_poison_record_waits_for_others() {
    let bench = Bench::new();
    let mut plan = plan(Arc::new(PoisonSink::default()));
    plan.workers = 1;
    plan.delivers[0].once_by = vec![Template::parse(".n").unwrap()];
    bench.engine.start(plan).unwrap();
    bench.send("in", &[r#"{"n":1,"t":"poison"}"#]).await;
    let status = bench.until("gate", |s| s.gate.state != "open").await;
    assert_eq!(status.dead_lettered, 0);
    let waits = |status: &Status| status.waits.iter().any(|wait| wait.what == WaitsFor::Decision);
    bench.until("it waits for a decision", waits).await;
    bench.send("in", &[r#"{"n":2}"#, r#"{"n":3}"#, r#"{"n":4}"#]).await;
    let status = bench.until("all ended", |s| s.delivered == 3 && s.dead_lettered == 1).await;
    assert!(!waits(&status), "{status:?}");
}

/// Somebody may give it up without waiting for others.
#[tokio::test]
async fn a_lone_poison_record_is_given_up_by_hand() {
    let bench = Bench::new();
    let plan = plan(Arc::new(PoisonSink::default()));
    bench.engine.start(plan.clone()).unwrap();
    bench.send("in", &[r#"{"n":1,"t":"poison"}"#]).await;
    bench.until("it waits", |s| s.waits.iter().any(|w| w.what == WaitsFor::Decision)).await;
    let [waiting] = bench.engine.undecided("p").unwrap().try_into().unwrap();
    assert!(waiting.refused > 0 && waiting.error.contains("it hurts"), "{waiting:?}");
    assert_eq!(bench.engine.set_aside("p", |_| false).unwrap(), []);
    assert_eq!(bench.engine.set_aside("p", |_| true).unwrap().len(), 1);
    bench.until("it has ended", |s| s.dead_lettered == 1 && s.gate.state == "open").await;
    assert_eq!(bench.engine.undecided("p").unwrap(), []);
    let letters = bench.letters(&plan).await;
    assert!(letters[0].envelope.error.contains("set aside by hand"), "{:?}", letters[0].envelope);
}

#[tokio::test]
async fn a_wrong_set_up_stops_the_pipeline_until_it_is_resumed() {
    let (bench, sink) = (Bench::new(), MemorySink::new());
    bench.engine.start(plan(Arc::new(sink.clone()))).unwrap();
    bench.until("running", |s| s.state == State::Running).await;
    sink.set_outage(Some(Fault::fix("no such table").hint("create it")));
    bench.send("in", &["1"]).await;
    let status = bench.until("is blocked", |s| s.state == State::Blocked).await;
    assert!(status.why.unwrap().contains("create it"));
    sink.set_outage(None);
    bench.engine.resume("p").unwrap();
    bench.until("delivered", |s| s.delivered == 1 && s.state == State::Running).await;
}

/// Panics at a value, as often as it is asked.
struct PanickingDecoder(AtomicU32);

impl Decoder for PanickingDecoder {
    fn decode(&self, records: &[&Record]) -> Vec<DecodeResult> {
        let deadly = |record: &&&Record| record.value.as_deref() == Some(b"deadly");
        if records.iter().any(|record| deadly(&record)) {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("this record is deadly");
        }
        records.iter().map(|_| DecodeResult::AsIs).collect()
    }
}

#[tokio::test]
async fn a_record_that_kills_its_lane_three_times_is_set_aside() {
    let (bench, sink) = (Bench::new(), MemorySink::new());
    let mut plan = plan(Arc::new(sink.clone()));
    let decoder = Arc::new(PanickingDecoder(AtomicU32::new(0)));
    plan.decoder = decoder.clone();
    bench.send("in", &["a", "b", "deadly", "c", "d"]).await;
    bench.engine.start(plan.clone()).unwrap();
    let status = bench.until("all ended", |s| s.delivered == 4 && s.dead_lettered == 1).await;
    assert_eq!((status.restarts, decoder.0.load(Ordering::SeqCst)), (3, 3));
    let letters = bench.letters(&plan).await;
    assert_eq!(letters[0].envelope.reason, Reason::Crashes);
    assert_eq!(letters[0].record.value.as_deref(), Some(&b"deadly"[..]));
}

/// Fails as long as it is told to.
struct SwitchStage(Arc<AtomicU32>);

#[async_trait]
impl Stage for SwitchStage {
    async fn apply(&self, events: Vec<Event>) -> Result<Vec<StageResult>, Fault> {
        let broken = self.0.load(Ordering::SeqCst) == 1;
        let fail = |_| StageResult::Failed(Fault::set_aside(Reason::Stage, "broken"));
        Ok(if broken {
            events.into_iter().map(fail).collect()
        } else {
            events.into_iter().map(StageResult::On).collect()
        })
    }
}

#[tokio::test]
async fn what_a_stage_fails_on_may_pass_as_it_was_and_is_counted() {
    let (bench, sink) = (Bench::new(), MemorySink::new());
    let mut plan = plan(Arc::new(sink.clone()));
    plan.stages = vec![vrl(".m = to_int!(.n) + 1")];
    plan.stages[0].on_error = OnError::Pass;
    bench.engine.start(plan).unwrap();
    bench.send("in", &[r#"{"n":1}"#, r#"{"n":"x"}"#, r#"{"n":"y"}"#]).await;
    let status = bench.until("all ended", |s| s.delivered == 3).await;
    assert_eq!((status.passed, status.dead_lettered), (2, 0));
    let bodies: Vec<_> = sink.delivered().into_iter().map(|m| m.value).collect();
    assert!(bodies.contains(&Bytes::from_static(br#"{"n":"x"}"#)), "{bodies:?}");
}

#[tokio::test]
async fn a_replay_goes_through_under_the_original_names_and_closes_the_entry() {
    let (bench, sink) = (Bench::new(), MemorySink::new());
    let broken = Arc::new(AtomicU32::new(1));
    let mut plan = plan(Arc::new(sink.clone()));
    plan.decoder = Arc::new(RawDecoder);
    plan.stages = vec![stage_plan(SwitchStage(broken.clone()))];
    let info = dead_letter::info("p", "p-dead", 5);
    bench.engine.start(plan.clone()).unwrap();
    bench.send("in", &["v"]).await;
    bench.until("set aside", |s| s.dead_lettered == 1).await;

    // The first replay fails again: the old entry closes, a new one is listed.
    let letters = bench.letters(&plan).await;
    assert_eq!(dead_letter::replay(&bench.log, &info, &letters, &SystemClock).await.unwrap(), 1);
    bench.until("set aside again", |s| s.dead_lettered == 2).await;
    let letters = bench.letters(&plan).await;
    let states: Vec<_> = letters.iter().map(|l| (l.state, l.envelope.attempts)).collect();
    assert!(states.contains(&(DeadLetterState::Replayed, 1)), "{states:?}");
    assert!(states.contains(&(DeadLetterState::Open, 2)), "{states:?}");

    broken.store(0, Ordering::SeqCst);
    assert_eq!(dead_letter::replay(&bench.log, &info, &letters, &SystemClock).await.unwrap(), 1);
    bench.until("delivered", |s| s.delivered == 1).await;
    let delivered = sink.delivered();
    assert_eq!(delivered[0].id.position, letters[0].envelope.origin);
    let letters = bench.letters(&plan).await;
    assert!(letters.iter().all(|l| l.state == DeadLetterState::Replayed));
}

/// Of two destinations one refuses: its dead letter names it, and a replay runs only that one.
#[tokio::test]
async fn a_replay_runs_only_the_deliver_entry_that_failed() {
    let (bench, good) = (Bench::new(), MemorySink::new());
    let picky = Arc::new(PickySink { inner: MemorySink::new(), refuse: AtomicU32::new(1) });
    let mut plan = plan(Arc::new(good.clone()));
    let mut second = plan.delivers[0].clone();
    second.number = 1;
    second.target = Target::Sink(picky.clone());
    let mut third = plan.delivers[0].clone();
    third.number = 2;
    third.target = Target::Topic(TopicTarget::Fixed("out".into()));
    third.headers_id = true;
    plan.delivers.extend([second, third]);
    bench.engine.start(plan.clone()).unwrap();
    bench.send("in", &["1"]).await;
    bench.until("set aside", |s| s.dead_lettered == 1).await;
    let letters = bench.letters(&plan).await;
    assert_eq!(letters[0].envelope.deliver, Some(1));
    picky.refuse.store(0, Ordering::SeqCst);
    let info = dead_letter::info("p", "p-dead", 5);
    dead_letter::replay(&bench.log, &info, &letters, &SystemClock).await.unwrap();
    bench.until("delivered", |s| s.delivered == 1).await;
    assert_eq!((good.count(), picky.inner.count()), (1, 1));
    let topics = bench.log.topics().await.unwrap();
    let out = topics.iter().find(|topic| topic.topic == "out").unwrap();
    assert_eq!(out.ends.iter().sum::<u64>(), 1, "the topic got it once");
}

struct PickySink {
    inner: MemorySink,
    refuse: AtomicU32,
}

#[async_trait]
impl Sink for PickySink {
    async fn probe(&self) -> Result<(), Fault> {
        Ok(())
    }
    async fn deliver(&self, batch: &potok_core::Batch) -> Result<potok_core::Receipt, Fault> {
        if self.refuse.load(Ordering::SeqCst) == 1 {
            return Err(Fault::set_aside(Reason::Refused, "not this one"));
        }
        self.inner.deliver(batch).await
    }
}

#[tokio::test]
async fn what_a_topic_never_takes_is_a_dead_letter_in_pieces() {
    let bench = Bench::new();
    bench.log.narrow("out", 1_500);
    bench.log.narrow("p-dead", 1_500);
    let mut plan = plan(Arc::new(MemorySink::new()));
    plan.delivers[0].target = Target::Topic(TopicTarget::Fixed("out".into()));
    plan.decoder = Arc::new(RawDecoder);
    bench.engine.start(plan.clone()).unwrap();
    let large: String = (0..5_000).map(|n| char::from(b'a' + (n % 26) as u8)).collect();
    bench.send("in", &["small", &large, "after"]).await;
    let status = bench.until("all ended", |s| s.received == 3 && s.in_flight == 0).await;
    assert_eq!((status.delivered, status.dead_lettered, status.lag), (2, 1, Some(0)));
    let letters = bench.letters(&plan).await;
    let [letter] = letters.as_slice() else { panic!("one dead letter: {letters:?}") };
    assert_eq!(letter.envelope.reason, Reason::TooLarge);
    assert_eq!(letter.record.value.as_deref(), Some(large.as_bytes()), "whole again");
    assert_eq!(letter.record.key.as_deref(), Some(&b"k"[..]));
    let mut reader = bench.log.read("out", potok_core::ReadFrom::Start).await.unwrap();
    let mut values = Vec::new();
    while let Some(batch) = reader.next(false).await.unwrap() {
        values.extend(batch.records.into_iter().filter_map(|record| record.value));
    }
    assert_eq!(values, ["small", "after"], "each once");
}

/// The others go on, and the dead letter is whole again however it was cut.
#[tokio::test]
async fn a_dead_letter_with_a_large_key_goes_in_pieces() {
    let bench = Bench::new();
    bench.log.narrow("out", 1_500);
    bench.log.narrow("p-dead", 1_500);
    let mut plan = plan(Arc::new(MemorySink::new()));
    plan.delivers[0].target = Target::Topic(TopicTarget::Fixed("out".into()));
    plan.decoder = Arc::new(RawDecoder);
    bench.engine.start(plan.clone()).unwrap();
    let key = Bytes::from(vec![b'k'; 4_000]);
    let headers = HeadersBuilder::new().add("h", Some(&[b'h'; 3_000])).build();
    let large = Output {
        topic: "in".into(),
        partition: None,
        key: Some(key.clone()),
        headers: headers.clone(),
        value: Some(Bytes::from_static(b"value")),
    };
    bench.send("in", &["before"]).await;
    bench.log.append(&[large]).await.unwrap();
    bench.send("in", &["after"]).await;
    let status = bench.until("all ended", |s| s.received == 3 && s.in_flight == 0).await;
    assert_eq!((status.state, status.delivered, status.dead_lettered), (State::Running, 2, 1));
    let [letter] = bench.letters(&plan).await.try_into().unwrap();
    assert_eq!(letter.envelope.reason, Reason::TooLarge);
    let record = &letter.record;
    assert_eq!((&record.key, &record.headers), (&Some(key), &headers));
    assert_eq!(record.value.as_deref(), Some(&b"value"[..]));
}

/// What was counted is not read again, and is not shown while nobody knows whether it is still so.
#[tokio::test(start_paused = true)]
async fn open_dead_letters_are_not_read_again_after_trouble_with_the_log() {
    const LETTERS: u64 = 300;
    let bench = Bench::new();
    let plan = Plan {
        keep_resolved: Some(Duration::from_secs(3_600)),
        ..plan(Arc::new(MemorySink::new()))
    };
    bench.engine.start(plan).unwrap();
    bench.send("in", &vec!["nonsense"; LETTERS as usize]).await;
    bench.until("all are counted", |s| s.dead_letters_open == Some(LETTERS)).await;
    let read = bench.log.handed_out();
    assert!(read >= LETTERS);
    for _ in 0..3 {
        bench.log.set_unreadable(Some(Fault::retry("simulated")));
        bench.until("it is not known", |s| s.dead_letters_open.is_none()).await;
        bench.log.set_unreadable(None);
        bench.until("it is known again", |s| s.dead_letters_open == Some(LETTERS)).await;
    }
    assert_eq!(bench.log.handed_out(), read, "they were read again");
    bench.send("in", &["nonsense"]).await;
    bench.until("one more", |s| s.dead_letters_open == Some(LETTERS + 1)).await;
}

/// Panics as long as it is told to, and knows when it was called.
struct PanickingSink {
    inner: MemorySink,
    panics: AtomicBool,
    called: Mutex<Vec<Instant>>,
}

#[async_trait]
impl Sink for PanickingSink {
    async fn probe(&self) -> Result<(), Fault> {
        Ok(())
    }
    async fn deliver(&self, batch: &potok_core::Batch) -> Result<potok_core::Receipt, Fault> {
        self.called.lock().unwrap().push(Instant::now());
        assert!(!self.panics.load(Ordering::SeqCst), "told to panic");
        self.inner.deliver(batch).await
    }
}

impl PanickingSink {
    /// The times between its calls since the first so many.
    fn waits(&self, skip: usize) -> Vec<Duration> {
        let called = self.called.lock().unwrap();
        called[skip..].windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

/// Time is simulated here: it passes only while everything waits.
#[tokio::test(start_paused = true)]
async fn after_a_run_that_lasted_the_wait_before_the_next_is_short_again() {
    let bench = Bench::new();
    let (inner, panics) = (MemorySink::new(), AtomicBool::new(true));
    let sink = Arc::new(PanickingSink { inner, panics, called: Mutex::default() });
    bench.engine.start(plan(sink.clone())).unwrap();
    bench.send("in", &["1"]).await;
    let restarts = bench.until("it has died often", |s| s.restarts >= 9).await.restarts;
    let waits = sink.waits(0);
    assert!(waits.is_sorted(), "{waits:?}");
    let longest = *waits.last().unwrap();
    sink.panics.store(false, Ordering::SeqCst);
    bench.until("it goes on", |s| s.delivered == 1).await;
    // A run that does not last changes nothing.
    for lasts in [Duration::from_secs(30), Duration::from_secs(90)] {
        tokio::time::sleep(lasts).await;
        sink.panics.store(true, Ordering::SeqCst);
        let before = sink.called.lock().unwrap().len();
        bench.send("in", &["2"]).await;
        let calls = || sink.called.lock().unwrap().len();
        while calls() == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        sink.panics.store(false, Ordering::SeqCst);
        let wanted = sink.inner.count() + 1;
        bench.until("it goes on", |_| sink.inner.count() == wanted).await;
        let wait = sink.waits(before)[0];
        assert_eq!(wait < longest / 10, lasts > Duration::from_secs(60), "{lasts:?}: {wait:?}");
    }
    assert_eq!(bench.status().await.restarts, restarts + 2);
}

/// A partition of Kafka that takes nothing is waited for in the call, and nobody hears of a fault.
#[tokio::test(start_paused = true)]
async fn a_log_that_does_not_answer_is_said_to_be_waited_for() {
    let bench = Bench::new();
    bench.engine.start(plan(Arc::new(MemorySink::new()))).unwrap();
    bench.log.set_frozen(true);
    bench.send("in", &["1"]).await;
    let waits_for_log = |s: &Status| s.waits.iter().any(|wait| wait.what == WaitsFor::Log);
    let status = bench.until("it says so", waits_for_log).await;
    assert_eq!((status.state, status.lag), (State::Waiting, Some(1)), "{status:?}");
    bench.log.set_frozen(false);
    let status = bench.until("it goes on", |s| s.lag == Some(0)).await;
    assert!(!waits_for_log(&status), "{status:?}");
}

#[tokio::test]
async fn a_tombstone_stays_one() {
    let bench = Bench::new();
    let mut plan = plan(Arc::new(MemorySink::new()));
    plan.delivers[0].target = Target::Topic(TopicTarget::Fixed("out".into()));
    plan.decoder = Arc::new(RawDecoder);
    bench.engine.start(plan.clone()).unwrap();
    let key = Some(Bytes::from_static(b"k"));
    let of = |value: Option<Bytes>| Output {
        topic: "in".into(),
        partition: None,
        key: key.clone(),
        headers: Headers::none(),
        value,
    };
    bench.log.append(&[of(None), of(Some(Bytes::new()))]).await.unwrap();
    bench.until("all ended", |s| s.delivered == 2).await;
    let mut reader = bench.log.read("out", potok_core::ReadFrom::Start).await.unwrap();
    let batch = reader.next(false).await.unwrap().unwrap();
    let values: Vec<_> = batch.records.into_iter().map(|record| record.value).collect();
    assert_eq!(values, [None, Some(Bytes::new())]);
}
