//! Runs a pipeline on a simulated feed: life after life with trouble, then without, and checks what
//! became of the records.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::{Event, Fault, GroupInfo, Log, Reason, Stage, StageResult, Timestamp};
use potok_expr::Template;
use potok_flow::decode::JsonDecoder;
use potok_flow::{
    DeliverPlan, Engine, Input, OnError, Per, Plan, Retry, StagePlan, State as EngineState, Status,
    Target, TopicTarget,
};

use super::check::{self, FeedRecordKind};
use super::trouble::{FEED_TROUBLE_SEEDS, FeedTrouble};
use super::{FeedManner, SimFeed};
use crate::sim::chance::Chance;
use crate::sim::clock::SimClock;
use crate::sim::log::{LogHandle, SimLog};
use crate::sim::runner::silence_simulated_panics;
use crate::sim::sink::{Manner, SimSink, Style};
use crate::sim::trouble::{Tally, Trouble};
use crate::sim::world::World;

/// Simulated time in which everything must have ended once trouble is over.
const FINISH_MAX: u64 = 120_000;

/// A call that hangs may take so long that nobody else would wait for it.
const DRAIN_MAX: Duration = Duration::from_secs(150);

/// How often `status` is looked at.
const SAMPLE_EVERY: Duration = Duration::from_millis(200);

/// Name of the pipeline, its topics, and its consumer group.
pub(super) const PIPELINE: &str = "fed";
pub(super) const OUT: &str = "out";
pub(super) const DEAD: &str = "fed-dead";
const IN: &str = "in";

/// How a run went.
pub struct FeedOutcome {
    /// Where it came from.
    pub seed: u64,
    /// What was wrong.
    pub violations: Vec<String>,
    /// What it met of the log and of the destination.
    pub tally: Tally,
    /// Everything that happened, line by line.
    pub trace: Vec<String>,
    /// A number that stands for the trace.
    pub trace_hash: u64,
    /// How often records were put off.
    pub put_off: u64,
}

/// What one run is made of.
#[derive(Clone, Debug)]
pub(super) struct FeedScenario {
    pub manner: FeedManner,
    /// Topics of the log are read too.
    pub beside: bool,
    /// Records bring their names along.
    pub named: bool,
    /// A stage makes one message of a group.
    pub merges: bool,
    /// To a destination outside the log, of which the answers are per message, instead of a topic.
    pub sink: Option<Style>,
    pub workers: usize,
    pub overlap: usize,
    pub in_flight_bytes: usize,
    /// Keys, values and when they come.
    pub sends: Vec<(u64, Vec<(Bytes, Bytes)>)>,
    /// When a life ends and how; the last one ends by itself.
    pub ends: Vec<(u64, LifeEnd)>,
    /// Of the log and of the destination.
    pub trouble: FeedTrouble,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum LifeEnd {
    Crash,
    CrashInCalls(u64),
    Drain,
}

impl FeedScenario {
    /// Topics of the log are read beside the feed. What comes from there has no groups.
    pub fn reads_topics(&self) -> bool {
        self.beside && !self.merges
    }

    fn of_seed(seed: u64) -> Self {
        let mut chance = Chance::new(seed ^ 0xfeed);
        let manner = if chance.one_in(2) { FeedManner::Rows } else { FeedManner::Chats };
        let keys = chance.between(1, 5);
        let span = chance.between(2_000, 20_000);
        let mut sends = Vec::new();
        for _ in 0..chance.between(1, 12) {
            let at = chance.below(span);
            let most = chance.pick(&[1, 6, 25]).copied().unwrap_or(6);
            let records = (0..chance.between(1, most)).map(|_| {
                let key = Bytes::from(format!("k{}", chance.below(keys)));
                (key, FeedRecordKind::any(&mut chance, span))
            });
            sends.push((at, records.collect::<Vec<_>>()));
        }
        sends.sort_by_key(|(at, _)| *at);
        let mut ids = 1..;
        let merges = manner == FeedManner::Chats && chance.one_in(2);
        let mut numbered = |(key, kind): (Bytes, FeedRecordKind)| {
            // A stage that changes its mind makes something else of the same group.
            let changes =
                manner == FeedManner::Chats && matches!(kind, FeedRecordKind::FailsUntil(_));
            let kind = if changes { FeedRecordKind::Good } else { kind };
            let value = kind.value(ids.next().unwrap_or_default(), &key);
            (key, value)
        };
        let numbered = |(at, records): (u64, Vec<(Bytes, FeedRecordKind)>)| {
            (at, records.into_iter().map(&mut numbered).collect::<Vec<_>>())
        };
        let sends = sends.into_iter().map(numbered).collect();
        let mut ends: Vec<(u64, LifeEnd)> = (0..chance.below(5))
            .map(|_| {
                let end = match chance.below(3) {
                    0 => LifeEnd::Crash,
                    1 => LifeEnd::CrashInCalls(chance.between(1, 60)),
                    _ => LifeEnd::Drain,
                };
                (chance.below(span), end)
            })
            .collect();
        ends.sort_by_key(|(at, _)| *at);
        let styles = [Style::Whole, Style::Prefix, Style::PerMessage];
        let mut scenario = FeedScenario {
            manner,
            beside: chance.one_in(3),
            named: chance.one_in(2),
            merges,
            sink: chance.one_in(3).then(|| chance.pick(&styles).copied()).flatten(),
            workers: chance.between(1, 4) as usize,
            overlap: if chance.one_in(3) { 4 } else { 1 },
            in_flight_bytes: chance.pick(&[400, 4_000, 1 << 20]).copied().unwrap_or(1 << 20),
            sends,
            ends,
            trouble: FeedTrouble::default(),
        };
        if seed >= FEED_TROUBLE_SEEDS {
            scenario.add_trouble(&mut Chance::new(seed ^ 0x7209_b1e5), span);
        }
        scenario
    }

    fn add_trouble(&mut self, chance: &mut Chance, span: u64) {
        let trouble = FeedTrouble::of(chance, self, span);
        let mut sends = std::mem::take(&mut self.sends);
        sends.iter_mut().for_each(|(_, records)| trouble.spoil(chance, self, records));
        (self.sends, self.trouble) = (sends, trouble);
    }

    /// True where the log will never take the output of a large record, and refuses it alone.
    fn refuses_large(&self) -> bool {
        let one_by_one = self.manner == FeedManner::Rows || self.overlap > 1;
        self.sink.is_none() && !self.merges && one_by_one
    }

    /// What must become of a record, in terms of what needs no log and no destination for that.
    pub fn expected(&self, kind: FeedRecordKind) -> FeedRecordKind {
        match kind {
            // Merged messages need no key of their own.
            FeedRecordKind::NoKey if self.merges => FeedRecordKind::Good,
            FeedRecordKind::Refused => FeedRecordKind::Fails,
            FeedRecordKind::Large if self.refuses_large() => FeedRecordKind::Fails,
            FeedRecordKind::Large => FeedRecordKind::Good,
            kind => kind,
        }
    }
}

/// Runs the scenario of a seed.
pub fn run_feed_seed(seed: u64) -> Result<FeedOutcome, String> {
    silence_simulated_panics();
    let scenario = FeedScenario::of_seed(seed);
    let world = World::calm(seed, 3);
    scenario.trouble.begin(&world);
    world.with(|w| {
        w.calm = false;
        w.overlap = scenario.overlap;
        w.note(format!("{seed}: {:?}", FeedScenario { sends: Vec::new(), ..scenario.clone() }));
    });
    let mut feed = SimFeed::new(world.clone(), scenario.manner, seed, scenario.named);
    let (sink, merges) = (scenario.sink.is_some(), scenario.merges);
    feed.durable = Some(Arc::new(move |world, row| check::is_durable(world, row, sink, merges)));
    if scenario.reads_topics() {
        let outputs = check::log_ids().map(|id| check::log_record(id, IN)).collect::<Vec<_>>();
        let sent = world.with(|w| w.disk.append(&outputs, Timestamp(0)));
        sent.map_err(|fault| fault.to_string())?;
    }
    let mut run = Run {
        scenario,
        world,
        feed,
        sent: 0,
        put_off: 0,
        openings: 0,
        died: false,
        wrong: Vec::new(),
    };
    let mut ends = run.scenario.ends.clone();
    ends.reverse();
    loop {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .map_err(|error| error.to_string())?;
        let end = ends.pop();
        let is_last = end.is_none();
        let lived = runtime.block_on(async {
            run.world.begin_life();
            let lived = run.live(end).await;
            run.world.end_life();
            lived
        });
        lived?;
        if is_last {
            break;
        }
    }
    let mut violations = std::mem::take(&mut run.wrong);
    violations.append(&mut run.feed.lock().wrong);
    violations.extend(check::check_end(&run.world, &run.feed, &run.scenario));
    let (tally, trace, trace_hash) =
        run.world.with(|w| (w.tally.clone(), w.trace().to_vec(), w.trace_hash()));
    Ok(FeedOutcome { seed, violations, tally, trace, trace_hash, put_off: run.put_off })
}

struct Run {
    scenario: FeedScenario,
    world: Arc<World>,
    feed: SimFeed,
    /// How many of the sends have happened.
    sent: usize,
    put_off: u64,
    /// Openings of the feed before this life.
    openings: u64,
    /// A run of this life ended before the life did: nobody gave back what it had.
    died: bool,
    wrong: Vec<String>,
}

impl Run {
    async fn live(&mut self, end: Option<(u64, LifeEnd)>) -> Result<(), String> {
        let world = self.world.clone();
        world.with(|w| w.note("a life begins"));
        self.openings = self.feed.openings();
        // That one has to be mended may be heard of only when nobody looks any more.
        self.died = self.scenario.trouble.enabled.contains(&Trouble::SinkNeedsFix);
        let log: Arc<dyn Log> = Arc::new(LogHandle::new(SimLog::open(world.clone())));
        let engine = Engine::new(log, Arc::new(SimClock::new(world.clone())), None);
        engine.start(self.plan()?).map_err(|fault| fault.to_string())?;
        let lived = tokio::select! {
            biased;
            () = world.crashed() => None,
            last = self.drive(&engine, end) => last,
        };
        self.put_off += lived.map_or(0, |status| status.put_off);
        Ok(())
    }

    async fn drive(&mut self, engine: &Engine, end: Option<(u64, LifeEnd)>) -> Option<Status> {
        let (until, how) = match end {
            Some((until, how)) => (until, Some(how)),
            None => (u64::MAX, None),
        };
        let mut calm_at = None;
        loop {
            let status = engine.status().await.pop()?;
            self.look(&status);
            if status.state == EngineState::Blocked {
                let _ = engine.resume(PIPELINE);
            }
            let at = self.world.with(|w| w.millis());
            while let Some((when, records)) = self.scenario.sends.get(self.sent)
                && *when <= at
            {
                self.feed.fill(records.iter().cloned());
                self.sent += 1;
            }
            if at >= until {
                return self.end(engine, how, status).await;
            }
            if how.is_none() && self.sent == self.scenario.sends.len() {
                let since = *calm_at.get_or_insert_with(|| {
                    self.world.with(|w| {
                        w.calm = true;
                        w.note("trouble is over");
                    });
                    at
                });
                let open = self.feed.lock().rows.values().filter(|row| !row.ended).count();
                let is_read = check::missing_of_log(&self.world, &self.scenario).is_empty();
                let is_idle = status.in_flight == 0 && self.feed.handed_out() == 0;
                if open == 0 && is_idle && is_read {
                    return Some(status);
                }
                if at - since > FINISH_MAX {
                    let (state, why) = (status.state, status.why);
                    self.wrong.push(format!("{open} rows do not end: {state:?}, {why:?}"));
                    return None;
                }
            }
            tokio::time::sleep(SAMPLE_EVERY).await;
        }
    }

    async fn end(
        &mut self,
        engine: &Engine,
        how: Option<LifeEnd>,
        status: Status,
    ) -> Option<Status> {
        match how? {
            LifeEnd::Crash => self.world.with(|w| w.note("the process dies")),
            LifeEnd::CrashInCalls(calls) => {
                self.world.crash_in(calls);
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            LifeEnd::Drain => {
                engine.drain(DRAIN_MAX).await;
                self.world.with(|w| w.note("drained"));
                engine.status().await.iter().for_each(|status| self.look(status));
                let left = self.feed.handed_out();
                if left > 0 && !self.died && self.feed.openings() > self.openings {
                    self.world.with(|w| w.note(self.feed.shown()));
                    self.wrong.push(format!("{left} rows were not given back by a drain"));
                }
            }
        }
        Some(status)
    }

    /// Counts must add up whenever one looks.
    fn look(&mut self, status: &Status) {
        self.died |= status.restarts + status.store_rebuilds > 0;
        let Status { received, delivered, filtered, duplicates, dead_lettered, in_flight, .. } =
            status;
        let ended = delivered + filtered + duplicates + dead_lettered;
        if *received != ended + in_flight {
            self.wrong.push(format!("{received} received, {ended} ended, {in_flight} in flight"));
        }
    }

    fn plan(&self) -> Result<Plan, String> {
        let scenario = &self.scenario;
        let path = |text: &str| Template::parse(text).map_err(|error| error.message);
        let target = match scenario.sink {
            Some(style) => {
                let manner = Manner { style, batch_records_max: 3, ..Manner::default() };
                Target::Sink(SimSink::open(self.world.clone(), 0, manner))
            }
            None => Target::Topic(TopicTarget::Fixed(OUT.into())),
        };
        let mut inputs =
            vec![Input::Feed { name: "rows".into(), feed: Arc::new(self.feed.clone()) }];
        if scenario.reads_topics() {
            inputs.push(Input::topics("fed-group", vec![IN.into()]));
        }
        let stage = |name: &str, merges| StagePlan {
            name: name.to_owned(),
            stage: Arc::new(FeedStage { world: self.world.clone(), merges }),
            per: if merges { Per::Group } else { Per::Event },
            on_error: OnError::DeadLetter,
            counts: Vec::new(),
        };
        let mut stages = vec![stage("stage", false)];
        stages.extend(scenario.merges.then(|| stage("merge", true)));
        Ok(Plan {
            name: PIPELINE.to_owned(),
            workers: scenario.workers,
            inputs,
            decoder: Arc::new(JsonDecoder::new(None)),
            hold: None,
            stages,
            delivers: vec![DeliverPlan {
                label: "out".to_owned(),
                number: 0,
                shard: None,
                kind: None,
                target,
                key: (!scenario.merges).then(|| path(".k")).transpose()?,
                once_by: Vec::new(),
                headers_id: scenario.sink.is_none(),
            }],
            order_by: None,
            retry: Retry {
                attempts: 3,
                first: Duration::from_millis(10),
                max: Duration::from_millis(500),
            },
            probe_every: Duration::from_millis(300),
            dead_letter_topic: DEAD.into(),
            replays_max: 5,
            keep_resolved: None,
            in_flight_bytes: scenario.in_flight_bytes,
        })
    }
}

/// Fails on some records, for a while or for ever; or makes one message of a group.
struct FeedStage {
    world: Arc<World>,
    merges: bool,
}

#[async_trait]
impl Stage for FeedStage {
    async fn apply(&self, events: Vec<Event>) -> Result<Vec<StageResult>, Fault> {
        let now = self.world.with(|w| w.millis());
        let apply = |event: Event| match FeedRecordKind::of(&event.value) {
            FeedRecordKind::Filtered => StageResult::Filtered,
            FeedRecordKind::Fails => {
                StageResult::Failed(Fault::set_aside(Reason::Stage, "simulated: refused"))
            }
            FeedRecordKind::FailsUntil(until) if now < until => {
                StageResult::Failed(Fault::set_aside(Reason::Stage, "simulated: refused for now"))
            }
            _ => StageResult::On(event),
        };
        Ok(events.into_iter().map(apply).collect())
    }

    async fn apply_group(
        &self,
        group: &GroupInfo,
        events: Vec<Event>,
    ) -> Result<Vec<StageResult>, Fault> {
        if !self.merges {
            return self.apply(events).await;
        }
        let ids: Vec<u64> = events.iter().filter_map(|event| check::id_of(&event.value)).collect();
        let value = serde_json::json!({"ids": ids, "of": group.name});
        let mut staged = Vec::new();
        for (at, mut event) in events.into_iter().enumerate() {
            staged.push(match at {
                0 => {
                    event.value = Bytes::from(value.to_string());
                    StageResult::Merged(event)
                }
                _ => StageResult::Into,
            });
        }
        Ok(staged)
    }
}
