//! Runs a scenario: life after life, first with trouble, then without, and checks the promises.

mod hinder;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Once};
use std::time::Duration;

use potok_core::{Clock, Log, Output, Position, Record, Timestamp};
use potok_flow::dead_letter::{self, DeadLetter, DeadLetterState};
use potok_flow::{Engine, State as EngineState, Status, UndecidedRecord};

use super::chance::Chance;
use super::clock::SimClock;
use super::frozen::{HEARS_AFTER, SESSION};
use super::hindrances::{PILED_UP, RESTART};
use super::log::{LogHandle, SimLog};
use super::pipeline::{DEAD, HELD_GROUP, INTERNAL, PIPELINE, plan_in};
use super::promises::{self, Expectation, Promise, Violation};
use super::scenario::{Act, Scenario};
use super::sink::Spell;
use super::trouble::{Recovery, Tally, Trouble};
use super::workload::{RecordKind, Workload};
use super::world::World;

/// Simulated time in which everything must have ended once trouble is over.
const FINISH_MAX: Duration = Duration::from_secs(180);

/// How often `status` is looked at.
const SAMPLE_EVERY: Duration = Duration::from_millis(400);

/// How often something healthy is sent while the end is awaited, where a scenario is helped so.
/// Others get nothing more: a wake-up that was lost stays lost.
const TRICKLE_EVERY: Duration = Duration::from_secs(4);

/// More lives than any scenario has deaths.
const LIVES_MAX: usize = 60;

/// The clocks of processes that share a log differ by so much.
const OFF_MILLIS: i64 = -300_000;

/// Broken promises that a verdict spells out.
const SHOWN_MAX: usize = 6;

/// How a run went.
pub struct Outcome {
    /// The seed it came from.
    pub seed: u64,
    /// Broken promises.
    pub violations: Vec<Violation>,
    /// What it met.
    pub tally: Tally,
    /// Everything that happened, line by line.
    pub trace: Vec<String>,
    /// A number that stands for the trace.
    pub trace_hash: u64,
    /// What the world holds now.
    pub world: Arc<World>,
    /// The dead letters as listed at the end.
    pub letters: Vec<DeadLetter>,
    /// The last status.
    pub status: Option<Status>,
}

impl Outcome {
    /// The broken promises in words, with the command that shows the run again; `Ok` if none.
    pub fn verdict(&self) -> Result<(), String> {
        if self.violations.is_empty() {
            return Ok(());
        }
        let mut text = format!("seed {}: {} violations\n", self.seed, self.violations.len());
        for Violation { promise, what } in self.violations.iter().take(SHOWN_MAX) {
            text.push_str(&format!("  {promise}: {what}\n"));
        }
        text.push_str(&format!("replay it with: cargo xtask sim {}", self.seed));
        Err(text)
    }

    /// True when this promise was broken.
    pub fn broke(&self, promise: Promise) -> bool {
        self.violations.iter().any(|violation| violation.promise == promise)
    }
}

/// Runs the scenario of a seed.
pub fn run_seed(seed: u64) -> Result<Outcome, String> {
    run(Scenario::of_seed(seed))
}

/// Runs a scenario. An error means that it could not be run at all.
pub fn run(scenario: Scenario) -> Result<Outcome, String> {
    silence_simulated_panics();
    let world = World::calm(scenario.seed, scenario.partitions);
    world.with(|w| {
        w.note(scenario.summary());
        w.calm = false;
        w.enabled = scenario.enabled.clone();
        w.overlap = scenario.overlap;
        w.shared = scenario.sharing > 0;
        w.read_apart = scenario.read_apart;
        w.output_max = scenario.output_max();
        w.seal_max = scenario.seal_max;
        w.limited = scenario.limited();
        w.expect = Some(Arc::new(Expectation {
            scenario: scenario.clone(),
            dead: DEAD.into(),
            replay: format!("{PIPELINE}-replay").into(),
        }));
    });
    let mut runner = Runner {
        acts: scenario.acts.iter().cloned().collect(),
        trickle: Workload::new(Chance::new(scenario.seed ^ 0x7e57), &scenario, "t"),
        scenario,
        world,
        log: None,
        life: 0,
        seen: Samples::default(),
        letters: Vec::new(),
        statuses: Vec::new(),
    };
    while !matches!(runner.live()?, End::Finished) {
        runner.between_lives();
        if runner.life > LIVES_MAX {
            return Err(format!("seed {} never comes to its end", runner.scenario.seed));
        }
    }
    let Runner { world, letters, mut statuses, .. } = runner;
    let status = statuses.pop();
    world.with(promises::check_end);
    let (violations, tally, trace, trace_hash, seed) = world.with(|w| {
        let seed = w.expect.as_ref().map_or(0, |expect| expect.scenario.seed);
        (w.violations.clone(), w.tally.clone(), w.trace().to_vec(), w.trace_hash(), seed)
    });
    Ok(Outcome { seed, violations, tally, trace, trace_hash, world, letters, status })
}

/// Panics that are part of a simulation say so; everything else is shown as usual.
pub(super) fn silence_simulated_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload().downcast_ref::<String>();
            if text.is_none_or(|text| text != super::PANIC) {
                usual(info);
            }
        }));
    });
}

/// How a life ended.
enum End {
    Crashed,
    Drained,
    Finished,
}

/// What the last samples showed.
#[derive(Default)]
struct Samples {
    gate_was_closed: bool,
    needed_fix: bool,
    restarts: u64,
    /// Since when records wait for a decision.
    undecided: BTreeMap<String, u64>,
}

/// A record that has not ended.
#[derive(Debug)]
struct Open {
    at: String,
    kind: RecordKind,
    time: Timestamp,
}

struct Runner {
    scenario: Scenario,
    world: Arc<World>,
    acts: VecDeque<(u64, Act)>,
    trickle: Workload,
    /// Of the life that is lived now.
    log: Option<Arc<SimLog>>,
    life: usize,
    seen: Samples,
    letters: Vec<DeadLetter>,
    /// Of each process, as sampled last.
    statuses: Vec<Status>,
}

impl Runner {
    /// One life of the process, in a runtime of its own; whatever runs when it ends is dropped
    /// where it stands.
    fn live(&mut self) -> Result<End, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .map_err(|error| error.to_string())?;
        runtime.block_on(async {
            self.world.begin_life();
            let end = self.live_inside().await;
            self.world.end_life();
            end
        })
    }

    async fn live_inside(&mut self) -> Result<End, String> {
        let world = self.world.clone();
        let last = self.scenario.workers.last().copied().unwrap_or(1);
        let workers = self.scenario.workers.get(self.life).copied().unwrap_or(last);
        world.with(|w| {
            let asks = 2 * self.scenario.probe_every.as_millis() as u64 + PILED_UP;
            for Spell { from, to, .. } in self.scenario.spells.values().flatten() {
                w.hindrances.add(*from, to + asks);
            }
            for (table, spells) in &self.scenario.spells {
                while w.tables.len() <= *table {
                    w.tables.push(Default::default());
                }
                if let Some(table) = w.tables.get_mut(*table) {
                    table.spells.clone_from(spells);
                }
            }
            w.note(format_args!("life {} with {workers} workers", self.life));
        });
        let shared = SimLog::open(world.clone());
        self.log = Some(shared.clone());
        let mut engines = Vec::new();
        for process in 0..self.scenario.sharing.max(1) {
            let log: Arc<dyn Log> = Arc::new(LogHandle::of_process(shared.clone(), process));
            let clock = SimClock::off_by(world.clone(), process as i64 * OFF_MILLIS);
            let engine = Engine::new(log, Arc::new(clock), None);
            let plan = plan_in(&world, &self.scenario, workers, (self.life, process))?;
            engine.start(plan).map_err(|fault| fault.to_string())?;
            engines.push(engine);
        }
        tokio::select! {
            biased;
            () = world.crashed() => Ok(End::Crashed),
            end = self.drive(&engines) => Ok(end),
        }
    }

    fn between_lives(&mut self) {
        self.life += 1;
        self.seen.restarts = 0;
        self.world.pass(Duration::from_millis(self.scenario.down));
        let workers = &self.scenario.workers;
        if workers.get(self.life).is_some_and(|now| Some(now) != workers.get(self.life - 1)) {
            self.world.with(|w| w.tally.hit(Trouble::WorkersChanged));
        }
        self.world.with(|w| {
            if w.strikes(Trouble::NewIncarnation, 2) {
                let (incarnation, gap) = (w.chance.next(), w.chance.below(5));
                w.disk.start_incarnation(incarnation, gap);
                w.note("the log starts a new incarnation");
            }
        });
    }

    async fn drive(&mut self, engines: &[Engine]) -> End {
        while let Some((at, act)) = self.acts.front().cloned() {
            self.wait_until(engines, at).await;
            // What a sender has no acknowledgement for when the process dies, it sends again;
            // everything else happens once.
            let is_sent = matches!(act, Act::Send(_));
            if !is_sent {
                self.acts.pop_front();
            }
            let end = self.act(engines, act).await;
            if is_sent {
                self.acts.pop_front();
            }
            if let Some(end) = end {
                return end;
            }
        }
        self.finish(engines).await;
        End::Finished
    }

    /// Waits for an instant of the world's time, looking at the status now and then.
    async fn wait_until(&mut self, engines: &[Engine], at: u64) {
        loop {
            let left = at.saturating_sub(self.world.with(|w| w.millis()));
            if left == 0 {
                return;
            }
            tokio::time::sleep(SAMPLE_EVERY.min(Duration::from_millis(left))).await;
            self.sample(engines).await;
        }
    }

    async fn act(&mut self, engines: &[Engine], act: Act) -> Option<End> {
        let engine = engines.first()?;
        let name = format!("{act:?}");
        let name = name.split(['(', ' ']).next().unwrap_or_default().to_owned();
        self.world.with(|w| w.note(format_args!("act {name}")));
        match act {
            Act::Send(outputs) => self.send(engines, &outputs).await,
            Act::FillDisk => self.world.with(|w| w.is_full = true),
            Act::Pause => {
                self.hinder(|hindrances, now| hindrances.pause(now, true));
                self.world.with(|w| w.tally.hit(Trouble::Paused));
                engines.iter().for_each(|engine| drop(engine.pause(PIPELINE)));
            }
            Act::Resume => self.resume(engines),
            Act::Replay(count) => self.replay(engine, count).await,
            Act::Drop(count) => self.drop_letters(engine, count).await,
            Act::Jump(millis) => self.world.with(|w| {
                w.tally.hit(Trouble::ClockJumps);
                w.clock_jump += millis;
            }),
            Act::JumpOfLog(millis) => self.world.with(|w| w.log_clock_jump += millis),
            Act::Crash => {
                self.world.with(|w| {
                    w.tally.hit(Trouble::CrashAtInstant);
                    w.note("the process dies");
                });
                return Some(End::Crashed);
            }
            Act::CrashInCalls(n) => self.world.crash_in(n),
            Act::Drain => {
                self.world.with(|w| w.tally.hit(Trouble::Drained));
                let since = self.world.with(|w| w.millis());
                let drains = engines.iter().map(|engine| engine.drain(Duration::from_secs(30)));
                futures::future::join_all(drains).await;
                // What stops closes nothing more.
                self.hinder(|hindrances, now| hindrances.add(since, now));
                self.world.with(|w| w.note("drained"));
                self.sample(engines).await;
                return Some(End::Drained);
            }
            Act::Flush => {
                self.loses_store();
                self.world.store().flush();
            }
            Act::Evict => {
                self.loses_store();
                self.world.store().evict();
            }
            Act::Room(room) => self.world.store().set_room(room),
            Act::Replicate => self.world.store().replicate(),
            Act::Promote => {
                self.loses_store();
                self.world.store().promote();
            }
            Act::Freeze(process, millis) => {
                self.freeze(process, Some(Duration::from_millis(millis)));
            }
            Act::Kill(process) => self.freeze(process, None),
            Act::Release(key) => {
                engines.iter().for_each(|engine| drop(engine.close_group(PIPELINE, key, None)));
            }
            Act::AllEnded => self.check_all_ended(),
            Act::MakeAnew(topic, outputs) => {
                self.make_anew(&topic, &outputs);
                return Some(End::Crashed);
            }
            Act::Mend => self.world.with(|w| w.tables.iter_mut().for_each(|t| t.mended = true)),
        }
        None
    }

    /// A process stands still. The others notice when its session is over, and it some time after
    /// it woke.
    fn freeze(&self, process: usize, length: Option<Duration>) {
        let heard = length.unwrap_or_default().max(SESSION) + HEARS_AFTER;
        self.hinder(|hindrances, now| {
            hindrances.add(now, now + heard.as_millis() as u64 + PILED_UP);
        });
        self.world.with(|w| w.frozen.freeze(process, length));
        let Some(log) = self.log.clone() else { return };
        tokio::spawn(async move {
            tokio::time::sleep(SESSION).await;
            log.changed.notify_waiters();
            if let Some(length) = length {
                tokio::time::sleep(length.saturating_sub(SESSION) + HEARS_AFTER).await;
                log.changed.notify_waiters();
            }
        });
    }

    fn is_still(&self, process: usize) -> bool {
        self.world.with(|w| w.frozen.until(process).is_some())
    }

    fn check_all_ended(&self) {
        let open = self.open_records();
        if !open.is_empty() {
            let what = format!("{} open, and nobody will send more: {open:?}", open.len());
            self.world.with(|w| w.violated(Promise::WorkFinishes, what));
        }
    }

    /// What happens while nobody reads.
    fn make_anew(&self, topic: &Arc<str>, outputs: &[Output]) {
        let time = SimClock::of_shared_log(self.world.clone()).now();
        self.world.with(|w| {
            w.note(format_args!("the process dies, and {topic} is made anew"));
            let incarnation = w.chance.next();
            w.disk.make_anew(topic, incarnation);
            if let Err(fault) = w.disk.append(outputs, time) {
                w.violated(Promise::NothingInvented, format!("cannot be sent: {fault}"));
            }
        });
    }

    /// Sends until acknowledged, as a sender would who must not lose anything. On a full disk that
    /// takes until everything else is worked off, and nobody pauses that. A destination that kills
    /// the pipeline now and then may never let a large group through: it stops doing so when the
    /// time is up, and then everything must end in the same time.
    async fn send(&mut self, engines: &[Engine], outputs: &[Output]) {
        let Some(engine) = engines.first() else { return };
        let log = engine.log().clone();
        let mut start = self.world.with(|w| w.millis());
        let was_calm = self.world.with(|w| w.calm);
        while let Err(fault) = log.append(outputs).await {
            self.world.with(|w| w.note(format_args!("sending failed: {fault}")));
            tokio::time::sleep(Duration::from_millis(100)).await;
            if self.world.with(|w| w.is_full) {
                self.resume(engines);
                self.sample(engines).await;
                let mut long =
                    self.world.with(|w| w.millis()) - start > FINISH_MAX.as_millis() as u64;
                if long && self.panics_for_ever() {
                    long = false;
                    start = self.world.with(|w| {
                        w.calm = true;
                        w.note("all trouble but the full disk is over for now");
                        w.millis()
                    });
                }
                if long {
                    let open = self.open_records().len();
                    let what = format!("{open} records are open, and the disk stays full");
                    self.world.with(|w| w.violated(Promise::WorkFinishes, what));
                }
                if long || self.open_records().is_empty() {
                    self.world.with(|w| w.is_full = false);
                }
            }
        }
        self.world.with(|w| w.calm = was_calm);
    }

    fn panics_for_ever(&self) -> bool {
        self.world.with(|w| !w.calm && w.enabled.contains(&Trouble::SinkPanics))
    }

    async fn open_letters(&self, engine: &Engine) -> Vec<DeadLetter> {
        let info = dead_letter::info(PIPELINE, DEAD, 20);
        let letters = dead_letter::list(engine.log().as_ref(), &info).await.unwrap_or_default();
        letters.into_iter().filter(|letter| letter.state == DeadLetterState::Open).collect()
    }

    async fn replay(&mut self, engine: &Engine, count: usize) {
        let mut letters = self.open_letters(engine).await;
        letters.truncate(count);
        if letters.is_empty() {
            return;
        }
        self.world.with(|w| w.tally.hit(Trouble::Replayed));
        let info = dead_letter::info(PIPELINE, DEAD, 20);
        let log = engine.log().as_ref();
        let done = dead_letter::replay(log, &info, &letters, engine.clock().as_ref()).await;
        self.world.with(|w| w.note(format_args!("replaying {}: {done:?}", letters.len())));
    }

    async fn drop_letters(&mut self, engine: &Engine, count: usize) {
        let mut letters = self.open_letters(engine).await;
        letters.truncate(count);
        if letters.is_empty() {
            return;
        }
        self.world.with(|w| w.tally.hit(Trouble::Dropped));
        let info = dead_letter::info(PIPELINE, DEAD, 20);
        let log = engine.log().as_ref();
        let done = dead_letter::drop_letters(log, &info, &letters, engine.clock().as_ref()).await;
        self.world.with(|w| w.note(format_args!("dropping {}: {done:?}", letters.len())));
    }

    /// Looks at the status: counts must add up in every sample. Plays the operator who resumes
    /// a pipeline that asks for it.
    async fn sample(&mut self, engines: &[Engine]) {
        self.statuses.clear();
        for (process, engine) in engines.iter().enumerate() {
            if !self.is_still(process) {
                self.sample_one(process, engine).await;
            }
        }
        self.look_for_hindrances();
        self.check_age();
        self.decide(engines);
    }

    /// Plays the operator who looks at records that wait for a decision, and gives up those that
    /// are really poisonous.
    fn decide(&mut self, engines: &[Engine]) {
        let Some(after) = self.scenario.decides_after else { return };
        let now = self.world.with(|w| w.millis());
        let mut waiting = BTreeMap::new();
        for engine in engines {
            for UndecidedRecord { position, .. } in engine.undecided(PIPELINE).unwrap_or_default() {
                let since = self.seen.undecided.get(&position).copied().unwrap_or(now);
                if now - since >= after && self.is_poison(&position) {
                    self.world.with(|w| w.note(format_args!("{position} is given up by hand")));
                    self.world.recovered(Recovery::Decided);
                    let _ = engine.set_aside(PIPELINE, |record| record.position == position);
                }
                waiting.insert(position, since);
            }
        }
        self.seen.undecided = waiting;
    }

    fn is_poison(&self, position: &str) -> bool {
        let Ok(position) = position.parse::<Position>() else { return false };
        let of = |record: &Record| RecordKind::of(record.value.as_deref());
        self.world.with(|w| w.disk.record(&position).map(of)) == Some(RecordKind::Poison)
    }

    /// Positions follow the work while it goes on.
    fn check_age(&self) {
        let Some(open_max) = self.scenario.open_max else { return };
        let now = SimClock::of_shared_log(self.world.clone()).now();
        for Open { at, time, .. } in self.open_records() {
            let age = now.millis_since(time);
            if age > open_max {
                let what = format!("{at} has been open for {age} ms");
                self.world.with(|w| w.violated(Promise::CommitAdvances, what));
            }
        }
    }

    async fn sample_one(&mut self, process: usize, engine: &Engine) {
        let Some(status) = engine.status().await.pop() else { return };
        self.world.with(|w| {
            promises::check_counts(w, process, &status);
            match status.gate.state {
                "closed" if !self.seen.gate_was_closed => {
                    self.seen.gate_was_closed = true;
                    w.tally.recovered(Recovery::GateClosed);
                }
                "half_open" => w.tally.recovered(Recovery::GateTrial),
                "open" if self.seen.gate_was_closed => {
                    self.seen.gate_was_closed = false;
                    w.tally.recovered(Recovery::GateReopened);
                }
                _ => {}
            }
            if status.restarts > self.seen.restarts {
                self.seen.restarts = status.restarts;
                let (since, now) = (SAMPLE_EVERY.as_millis() as u64, w.millis());
                w.hindrances.add(now.saturating_sub(since), now + RESTART);
                w.tally.recovered(Recovery::Restarted);
            }
        });
        match status.state {
            EngineState::Blocked => {
                self.seen.needed_fix = true;
                let _ = engine.resume(PIPELINE);
            }
            EngineState::Running if self.seen.needed_fix => {
                self.seen.needed_fix = false;
                self.world.recovered(Recovery::Fixed);
            }
            _ => {}
        }
        self.statuses.push(status);
    }

    /// Trouble is over: everything ends; then what was set aside is replayed, and that ends too.
    async fn finish(&mut self, engines: &[Engine]) {
        self.world.with(|w| {
            w.calm = true;
            w.is_full = false;
            w.tables.iter_mut().for_each(|table| table.mended = true);
            w.note("trouble is over");
        });
        let Some(engine) = engines.first() else { return };
        self.resume(engines);
        if !self.until_quiet(engines).await {
            return;
        }
        self.replay(engine, usize::MAX).await;
        if !self.until_quiet(engines).await {
            return;
        }
        let info = dead_letter::info(PIPELINE, DEAD, 20);
        self.letters = dead_letter::list(engine.log().as_ref(), &info).await.unwrap_or_default();
        self.world.with(|w| promises::check_list(w, &self.letters));
    }

    async fn until_quiet(&mut self, engines: &[Engine]) -> bool {
        let start = self.world.with(|w| w.millis());
        let mut trickle_at = start;
        loop {
            self.sample(engines).await;
            if self.is_quiet() {
                return true;
            }
            let now = self.world.with(|w| w.millis());
            if now - start > FINISH_MAX.as_millis() as u64 {
                self.did_not_finish();
                return false;
            }
            if self.scenario.helped && now >= trickle_at {
                trickle_at = now + TRICKLE_EVERY.as_millis() as u64;
                let good = self.trickle.good();
                self.send(engines, &[good]).await;
            }
            tokio::time::sleep(SAMPLE_EVERY).await;
        }
    }

    /// True when every record of the pipeline's topics has ended and it says so itself.
    fn is_quiet(&self) -> bool {
        // A gate that is half open waits for a record to try its destination with. One of several
        // processes may have no partition, and so none.
        let helped = self.scenario.helped && self.scenario.sharing < 2;
        let is_quiet = |status: &Status| {
            status.in_flight == 0
                && status.state == EngineState::Running
                && (status.gate.state == "open" || (!helped && status.gate.state == "half_open"))
        };
        let processes = 0..self.scenario.sharing.max(1);
        let alive = self.world.with(|w| processes.filter(|at| !w.frozen.is_dead(*at)).count());
        self.statuses.len() == alive
            && self.statuses.iter().all(is_quiet)
            && self.open_records().is_empty()
    }

    /// Records that the log does not know to have ended.
    fn open_records(&self) -> Vec<Open> {
        let mut topics = self.scenario.topics.clone();
        topics.push(format!("{PIPELINE}-replay").into());
        let shared = self.scenario.sharing > 0;
        if shared {
            topics.push(INTERNAL.into());
        }
        self.world.with(|w| {
            let mut open = Vec::new();
            for partition in w.disk.partitions_of(&topics) {
                let gathered = shared && !self.scenario.topics.contains(&partition.topic);
                let source = self.scenario.group_of(&partition.topic);
                let group = if gathered { HELD_GROUP } else { source };
                let progress = w.disk.progress(group, &partition).unwrap_or_default();
                let records = w.disk.shelf(&partition).map_or(&[][..], |shelf| &shelf.records);
                for Record { offset, time, value, .. } in records.iter().map(|(_, record)| record) {
                    if *offset >= progress.position && !progress.ended.contains(*offset) {
                        let kind = RecordKind::of(value.as_deref());
                        open.push(Open { at: format!("{partition}/{offset}"), kind, time: *time });
                    }
                }
            }
            open
        })
    }

    fn did_not_finish(&self) {
        let open = self.open_records();
        let trouble = |status: &&Status| {
            let is_running = status.state == EngineState::Running;
            status.gate.state != "open" || status.in_flight > 0 || !is_running
        };
        let status = self.statuses.iter().find(trouble).or(self.statuses.first());
        let state = status.map(|s| {
            format!("{:?}, {:?}, {:?}, {} in flight", s.state, s.why, s.gate, s.in_flight)
        });
        let gate_is_shut = status.is_some_and(|status| status.gate.state != "open");
        let first: Vec<_> = open.iter().take(5).map(|open| &open.at).collect();
        let count = open.len();
        let what = format!("after {FINISH_MAX:?} {count} open: {first:?} …; {state:?}");
        self.world.with(|w| {
            if gate_is_shut {
                w.violated(Promise::GatesReopen, what.clone());
            }
            w.violated(Promise::WorkFinishes, what);
        });
    }
}
