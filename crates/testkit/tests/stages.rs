//! What the engine makes of stages: calls cut, repeated and split; stages per batch.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::{
    Event, Fault, GroupInfo, Headers, Log, Output, Reason, Sink, Stage, StageLimits, StageResult,
    SystemClock,
};
use potok_expr::{Program, Template, ValuePath};
use potok_flow::decode::JsonDecoder;
use potok_flow::process::{VrlGroupStage, VrlStage};
use potok_flow::{
    ClosePlan, CountPlan, DeliverPlan, Engine, GroupPlan, Input, OnError, OnRepeat, Per, Plan,
    Retry, StagePlan, Status, Target, dead_letter,
};
use potok_testkit::memory::{MemoryLog, MemorySink};

struct Bench {
    log: MemoryLog,
    engine: Engine,
    sink: MemorySink,
}

impl Bench {
    fn new() -> Self {
        let log = MemoryLog::new(Arc::new(SystemClock));
        let engine = Engine::new(Arc::new(log.clone()), Arc::new(SystemClock), None);
        Bench { log, engine, sink: MemorySink::new() }
    }

    async fn send(&self, topic: &str, values: impl IntoIterator<Item = String>) {
        let output = |value: String| Output {
            topic: topic.into(),
            partition: None,
            key: Some(Bytes::from_static(b"k")),
            headers: Headers::none(),
            value: Some(Bytes::from(value)),
        };
        let outputs: Vec<Output> = values.into_iter().map(output).collect();
        self.log.append(&outputs).await.unwrap();
    }

    fn plan(&self, stages: Vec<StagePlan>) -> Plan {
        let sink: Arc<dyn Sink> = Arc::new(self.sink.clone());
        Plan {
            name: "p".into(),
            workers: 1,
            inputs: vec![Input::topics("g", vec!["in".into(), "other".into()])],
            decoder: Arc::new(JsonDecoder::new(None)),
            hold: None,
            stages,
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
                attempts: 3,
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

    /// A plan that holds records by their `.k` until there are so many.
    fn grouped(&self, count: usize, stages: Vec<StagePlan>) -> Plan {
        let hold = GroupPlan {
            by: Some(Template::parse(".k").unwrap()),
            shard: None,
            kinds: Vec::new(),
            id: None,
            close: ClosePlan {
                max_age: Some(Duration::from_secs(3_600)),
                max_count: Some(count),
                ..ClosePlan::default()
            },
            on_repeat: OnRepeat::Keep,
            store: None,
            memory_max: potok_flow::HELD_MEMORY_DEFAULT,
            internal: "potok-p".into(),
            files: None,
            track: None,
        };
        Plan { hold: Some(hold), ..self.plan(stages) }
    }

    async fn until(&self, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
        for _ in 0..6_000 {
            let status = self.engine.status().await.pop().unwrap();
            if wanted(&status) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never saw: {what}; last {:?}", self.engine.status().await);
    }

    fn delivered(&self) -> Vec<String> {
        let text = |value: Bytes| String::from_utf8_lossy(&value).into_owned();
        self.sink.delivered().into_iter().map(|message| text(message.value)).collect()
    }

    async fn letters(&self) -> Vec<dead_letter::DeadLetter> {
        let info = dead_letter::info("p", "p-dead", 5);
        dead_letter::list(&self.log, &info).await.unwrap()
    }
}

fn numbers(range: std::ops::Range<u32>) -> impl Iterator<Item = String> {
    range.map(|n| format!(r#"{{"n":{n}}}"#))
}

fn per_event(stage: impl Stage + 'static, on_error: OnError) -> StagePlan {
    let (name, stage, counts) = ("s".into(), Arc::new(stage), Vec::new());
    StagePlan { name, stage, per: Per::Event, on_error, counts }
}

fn per_group(stage: impl Stage + 'static, on_error: OnError) -> StagePlan {
    StagePlan { name: "b".into(), per: Per::Group, ..per_event(stage, on_error) }
}

fn batch_program(source: &str, on_error: OnError) -> StagePlan {
    per_group(VrlGroupStage::new(Program::compile_batch(source).unwrap()), on_error)
}

type Answer = dyn Fn(usize, &[Event]) -> Result<(), Fault> + Send + Sync;

/// Lets events pass, or fails as the closure says, and notes the sizes of its calls.
struct Scripted {
    answer: Box<Answer>,
    sizes: Arc<Mutex<Vec<usize>>>,
    limits: StageLimits,
}

impl Scripted {
    fn new(answer: impl Fn(usize, &[Event]) -> Result<(), Fault> + Send + Sync + 'static) -> Self {
        Scripted { answer: Box::new(answer), sizes: Arc::default(), limits: StageLimits::default() }
    }
}

#[async_trait]
impl Stage for Scripted {
    fn limits(&self) -> StageLimits {
        self.limits
    }

    async fn apply(&self, events: Vec<Event>) -> Result<Vec<StageResult>, Fault> {
        let number = {
            let mut sizes = self.sizes.lock().unwrap();
            sizes.push(events.len());
            sizes.len()
        };
        (self.answer)(number, &events)?;
        Ok(events.into_iter().map(StageResult::On).collect())
    }
}

fn is_bad(event: &Event) -> bool {
    event.value.windows(3).any(|window| window == b":7}")
}

#[tokio::test]
async fn calls_hold_no_more_than_the_stage_takes() {
    let bench = Bench::new();
    let mut stage = Scripted::new(|_, _| Ok(()));
    stage.limits = StageLimits { events_max: 4, bytes_max: usize::MAX };
    let sizes = stage.sizes.clone();
    bench.send("in", numbers(0..10)).await;
    bench.engine.start(bench.plan(vec![per_event(stage, OnError::Stop)])).unwrap();
    bench.until("all delivered", |s| s.delivered == 10).await;
    assert_eq!(*sizes.lock().unwrap(), [4, 4, 2]);
    assert_eq!(bench.delivered(), numbers(0..10).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_bad_event_of_a_refused_call_is_found() {
    let bench = Bench::new();
    let stage = Scripted::new(|_, events| match events.iter().any(is_bad) {
        true => Err(Fault::set_aside(Reason::Stage, "refused")),
        false => Ok(()),
    });
    bench.send("in", numbers(0..100)).await;
    bench.engine.start(bench.plan(vec![per_event(stage, OnError::DeadLetter)])).unwrap();
    let status = bench.until("all ended", |s| s.delivered + s.dead_lettered == 100).await;
    assert_eq!(status.dead_lettered, 1);
    let letters = bench.letters().await;
    assert_eq!(letters[0].record.value.as_deref(), Some(&br#"{"n":7}"#[..]));
    let rest = (0..100).filter(|n| *n != 7).map(|n| format!(r#"{{"n":{n}}}"#));
    assert_eq!(bench.delivered(), rest.collect::<Vec<_>>(), "in order");
}

#[tokio::test]
async fn an_event_that_keeps_failing_while_others_go_through_has_failed() {
    let bench = Bench::new();
    let stage = Scripted::new(|_, events| match events.iter().any(is_bad) {
        true => Err(Fault::retry("it hurts")),
        false => Ok(()),
    });
    bench.send("in", numbers(0..20)).await;
    bench.engine.start(bench.plan(vec![per_event(stage, OnError::Pass)])).unwrap();
    let status = bench.until("all delivered", |s| s.delivered == 20).await;
    assert_eq!((status.passed, status.dead_lettered), (1, 0));
    assert!(status.stage_retries > 0 && status.why.is_none(), "{status:?}");
    assert_eq!(bench.delivered(), numbers(0..20).collect::<Vec<_>>(), "in order");
}

/// While nothing goes through, an event is not blamed, however often it fails.
#[tokio::test]
async fn a_stage_that_fails_for_everybody_is_waited_for() {
    let bench = Bench::new();
    let fails = Arc::new(Mutex::new(true));
    let (for_stage, calls) = (fails.clone(), Arc::new(Mutex::new(0)));
    let counted = calls.clone();
    let stage = Scripted::new(move |number, _| {
        *counted.lock().unwrap() = number;
        match (*for_stage.lock().unwrap(), number % 7) {
            (false, _) => Ok(()),
            (true, 0) => Err(Fault::wait("away")),
            (true, _) => Err(Fault::retry("half away")),
        }
    });
    bench.send("in", numbers(0..4)).await;
    bench.engine.start(bench.plan(vec![per_event(stage, OnError::DeadLetter)])).unwrap();
    let status = bench.until("many calls", |_| *calls.lock().unwrap() > 60).await;
    assert_eq!((status.dead_lettered, status.delivered, status.in_flight), (0, 0, 4));
    assert!(status.why.unwrap().contains("stage `s` waits"));
    *fails.lock().unwrap() = false;
    let status = bench.until("delivered", |s| s.delivered == 4).await;
    assert_eq!((status.dead_lettered, status.why), (0, None));
}

#[tokio::test]
async fn a_program_per_batch_sees_each_sealed_batch_whole_and_in_order() {
    let bench = Bench::new();
    let seen = Program::compile(".seen = to_int!(.n) * 2").unwrap();
    let first = per_event(VrlStage::new(seen), OnError::Stop);
    let source = r#"
        total = 0
        for_each(.) -> |_i, event| { total = total + to_int!(event.seen) }
        . = map_values(.) -> |event| { if event.n == 3 { null } else { event } }
        .[0].total = total
        .[0].key = %key
        .[0].topics = map_values(%events) -> |event| { event.topic }
    "#;
    let last = Program::compile(".last = true").unwrap();
    let last = per_event(VrlStage::new(last), OnError::Stop);
    let mut stages = vec![first, batch_program(source, OnError::Stop), last];
    stages[2].name = "last".into();
    let plan = bench.grouped(4, stages);
    let value = |k: &str, n: u32| format!(r#"{{"k":"{k}","n":{n}}}"#);
    bench.engine.start(plan).unwrap();
    bench.send("in", [value("a", 1), value("b", 1), value("a", 2), value("b", 2)]).await;
    bench.until("held", |s| s.in_flight == 4 && s.open_groups == 2).await;
    bench.send("other", [value("a", 3), value("b", 4), value("a", 4), value("b", 5)]).await;
    let status = bench.until("all ended", |s| s.delivered + s.filtered == 8).await;
    assert_eq!(status.filtered, 1);
    let delivered = bench.delivered();
    let of = |key: &str| {
        let key = format!(r#""k":"{key}""#);
        delivered.iter().filter(|value| value.contains(&key)).cloned().collect::<Vec<_>>()
    };
    let a = r#"{"k":"a","key":"a","last":true,"n":1,"seen":2,"topics":["in","in","other","other"],"total":20}"#;
    assert_eq!(
        of("a"),
        [a, r#"{"k":"a","last":true,"n":2,"seen":4}"#, r#"{"k":"a","last":true,"n":4,"seen":8}"#]
    );
    assert_eq!(of("b").len(), 4);
    assert!(of("b")[0].contains(r#""total":24"#), "{:?}", of("b"));
}

#[tokio::test]
async fn a_program_that_fails_on_a_batch_fails_on_all_of_it() {
    for on_error in [OnError::Pass, OnError::DeadLetter] {
        let bench = Bench::new();
        let stage = batch_program(r#"if %key == "bad" { . = push(., 1) }"#, on_error);
        bench.engine.start(bench.grouped(3, vec![stage])).unwrap();
        let of =
            |key: &str| (0..3).map(|n| format!(r#"{{"k":"{key}","n":{n}}}"#)).collect::<Vec<_>>();
        bench.send("in", of("bad").into_iter().chain(of("good"))).await;
        let status = bench.until("all ended", |s| s.delivered + s.dead_lettered == 6).await;
        match on_error {
            OnError::Pass => assert_eq!((status.passed, status.delivered), (3, 6)),
            _ => assert_eq!((status.passed, status.dead_lettered), (0, 3)),
        }
        let letters = bench.letters().await;
        assert!(letters.iter().all(|l| l.envelope.error.contains("4 elements for 3 events")));
    }
}

#[tokio::test]
async fn abort_filters_a_whole_batch() {
    let bench = Bench::new();
    let stage = batch_program("abort", OnError::Stop);
    bench.engine.start(bench.grouped(3, vec![stage])).unwrap();
    bench.send("in", (0..3).map(|n| format!(r#"{{"k":"a","n":{n}}}"#))).await;
    bench.until("filtered", |s| s.filtered == 3 && s.lag == Some(0)).await;
}

/// Dies of batches of one group, as often as it is asked.
struct Deadly;

#[async_trait]
impl Stage for Deadly {
    async fn apply(&self, _: Vec<Event>) -> Result<Vec<StageResult>, Fault> {
        panic!("this stage works per group");
    }

    async fn apply_group(
        &self,
        group: &GroupInfo,
        events: Vec<Event>,
    ) -> Result<Vec<StageResult>, Fault> {
        assert_ne!(*group.key, *b"deadly", "this batch is deadly");
        Ok(events.into_iter().map(StageResult::On).collect())
    }
}

#[tokio::test]
async fn a_batch_that_kills_its_lane_three_times_is_set_aside_as_a_whole() {
    let bench = Bench::new();
    let stage = per_group(Deadly, OnError::DeadLetter);
    bench.engine.start(bench.grouped(3, vec![stage])).unwrap();
    let of = |key: &str| (0..3).map(|n| format!(r#"{{"k":"{key}","n":{n}}}"#)).collect::<Vec<_>>();
    bench.send("in", of("a").into_iter().chain(of("deadly")).chain(of("b"))).await;
    let status = bench.until("all ended", |s| s.delivered == 6 && s.dead_lettered == 3).await;
    assert_eq!(status.restarts, 3);
    let letters = bench.letters().await;
    assert!(letters.iter().all(|l| l.envelope.reason == Reason::Crashes));
}

fn counting(stage: StagePlan, name: &str, path: &str) -> StagePlan {
    let count = CountPlan { name: name.to_owned(), path: ValuePath::parse(path).unwrap() };
    StagePlan { counts: vec![count], ..stage }
}

#[tokio::test]
async fn what_a_stage_made_is_counted_and_what_it_failed_on_or_filtered_is_not() {
    let bench = Bench::new();
    let program = r#"
        if .n == 1 { abort }
        .twice = to_int!(.n) * 2
        .bad = push(array!(.bad), "more")
    "#;
    let stage = per_event(VrlStage::new(Program::compile(program).unwrap()), OnError::Pass);
    let changes = counting(stage, "bad_values", ".bad");
    // A program that changes nothing counts in what it let pass.
    let looks = Program::compile("assert!(is_object(.))").unwrap();
    let looks = per_event(VrlStage::new(looks), OnError::Pass);
    let mut looks = counting(looks, "twice", ".twice");
    looks.name = "looks".into();
    bench.engine.start(bench.plan(vec![changes, looks])).unwrap();
    let numbers = [r#"0,"bad":[]"#, r#"1,"bad":[7]"#, r#""x","bad":[7]"#, r#"3,"bad":[7,8]"#];
    bench.send("in", numbers.map(|n| format!(r#"{{"n":{n}}}"#))).await;
    let status = bench.until("all ended", |s| s.delivered == 3 && s.filtered == 1).await;
    assert_eq!(status.passed, 1);
    assert_eq!((status.counted["s"]["bad_values"], status.counted["looks"]["twice"]), (1 + 3, 6));
}

#[tokio::test]
async fn a_call_that_is_repeated_counts_once() {
    let bench = Bench::new();
    let stage = Scripted::new(|number, _| match number {
        1 => Err(Fault::wait("not yet")),
        _ => Ok(()),
    });
    let stage = counting(per_event(stage, OnError::Stop), "n", ".n");
    bench.engine.start(bench.plan(vec![stage])).unwrap();
    bench.send("in", numbers(0..4)).await;
    let status = bench.until("all ended", |s| s.delivered == 4).await;
    assert!(status.stage_retries > 0);
    assert_eq!(status.counted["s"]["n"], 1 + 2 + 3);
}

#[tokio::test]
async fn a_program_per_batch_counts_in_each_event() {
    let bench = Bench::new();
    let program = r#"
        .[0].first = true
        .[1] = null
    "#;
    let stage = counting(batch_program(program, OnError::Stop), "firsts", ".first");
    bench.engine.start(bench.grouped(3, vec![stage])).unwrap();
    let of = |key: &str| (0..3).map(|n| format!(r#"{{"k":"{key}","n":{n}}}"#)).collect::<Vec<_>>();
    bench.send("in", of("a").into_iter().chain(of("b"))).await;
    let status = bench.until("all ended", |s| s.delivered == 4 && s.filtered == 2).await;
    assert_eq!(status.counted["b"]["firsts"], 2);
}

#[tokio::test]
async fn a_stage_per_batch_needs_groups() {
    let bench = Bench::new();
    let plan = bench.plan(vec![batch_program("abort", OnError::Stop)]);
    let fault = bench.engine.start(plan).unwrap_err();
    assert_eq!(fault.code, "P0407");
}
