//! The state and counts of a pipeline, for people and metrics.
//!
//! `received = delivered + filtered + duplicates + dead_lettered + in_flight` holds in every
//! snapshot. Each of them is counted where it happens (`counts.rs`), none is computed from others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use potok_core::{Backlog, Clock, Damage, Reason, Timestamp};
use serde::Serialize;

use crate::counts::Counts;
use crate::latency::{Latency, LatencyCounts};
use crate::plan::{Per, Plan};
use crate::process::{StageCounts, StageStatus, Stages};
use crate::waits::{Wait, WaitsFor};

/// The state of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Takes records and delivers them.
    Running,
    /// Stopped taking records, by hand.
    Paused,
    /// Waits for what `waits` or `why` names: a destination, the log, a store, its next start.
    Waiting,
    /// Somebody must change something; `why` says what, and whether `potok resume` is needed then.
    Blocked,
    /// Finishes what is in flight.
    Draining,
    /// Not running.
    Stopped,
}

/// The gate as `status` shows it; of several gates the one that is not open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GateStatus {
    /// `open`, `closed` or `half_open`.
    pub state: &'static str,
    /// Since when it is not open.
    pub since: Option<String>,
    /// Why it is not open.
    pub why: Option<String>,
}

/// One pipeline's line.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Its name.
    pub pipeline: String,
    pub state: State,
    /// Why, where that is not plain.
    pub why: Option<String>,
    /// Its waits, besides destinations behind their gates.
    pub waits: Vec<Wait>,
    pub gate: GateStatus,
    /// Records in its topics that have not ended; `None` while the log does not answer.
    pub lag: Option<u64>,
    /// Age in milliseconds of the oldest record in flight.
    pub oldest: Option<u64>,
    /// Since when what follows is counted; `None` where it is not counted here, and zeros mean
    /// nothing.
    pub since: Option<String>,
    /// Records taken since the process started.
    pub received: u64,
    /// Of these: delivered.
    pub delivered: u64,
    /// Of these: filtered by a rule.
    pub filtered: u64,
    /// Of these: duplicates of something delivered.
    pub duplicates: u64,
    /// Of these: set aside.
    pub dead_lettered: u64,
    /// Of these: not ended yet.
    pub in_flight: u64,
    /// Records that were taken and given back unfinished, not among those received: another
    /// process, or the next run, takes them again.
    pub returned: u64,
    /// Of these: failures after which the feed of a record keeps it back for a while.
    pub put_off: u64,
    /// Records that wait in feeds, those in flight among them; `None` without a feed, and while one
    /// does not say. They are part of `lag`.
    pub waiting: Option<u64>,
    /// Age in milliseconds of the oldest of them.
    pub waiting_oldest: Option<u64>,
    /// The backlog of each feed.
    pub feeds: Vec<FeedStatus>,
    /// Dead letters that wait for somebody, whenever they were written; `None` until counted.
    pub dead_letters_open: Option<u64>,
    /// Parts of the log that could not be read.
    pub damaged: Vec<Damage>,
    /// Dead letters written since the process started, by reason.
    pub dead_letters_by_reason: BTreeMap<String, u64>,
    /// How often a part of it died and was started again.
    pub restarts: u64,
    /// Failed calls of destinations that were repeated.
    pub retries: u64,
    /// Failed calls of stages that were repeated.
    pub stage_retries: u64,
    /// Events that went on as they were though a stage failed on them (`on_error: pass`).
    pub passed: u64,
    /// Its stages, in the order of the file, with what each has done.
    pub stages: Vec<StageStatus>,
    /// What stages were asked to count (`count`), by stage and name.
    pub counted: BTreeMap<String, BTreeMap<String, u64>>,
    /// Groups that are open, and bytes of all records held.
    pub open_groups: u64,
    pub held_bytes: u64,
    /// Records that groups hold, those that are closed and not sent yet among them.
    pub held_records: u64,
    /// When the next open group closes, as far as is known now.
    pub next_close: Option<String>,
    /// The same in milliseconds from now; 0 where it is due.
    pub next_close_in: Option<u64>,
    /// How often everything held was read again, because its store had lost it.
    pub store_rebuilds: u64,
    /// Closed groups that another run had sealed: what that one had sent already goes out again,
    /// under the same ids.
    pub resumed_seals: u64,
    /// Records that another record of their batch stood for, because it has the same id.
    pub duplicate_ids: u64,
    /// How much later than due groups closed.
    #[serde(skip)]
    pub lateness: LatencyCounts,
    /// The lag of each partition.
    pub partitions: Vec<PartitionLag>,
    /// Its destinations, in the order of the file.
    pub destinations: Vec<DestinationStatus>,
    /// Arrival to ending, of all that ended.
    #[serde(skip)]
    pub latency: LatencyCounts,
}

impl Status {
    /// Of a pipeline of which nothing is known yet.
    pub fn unknown(pipeline: &str, state: State) -> Self {
        Status {
            pipeline: pipeline.to_owned(),
            state,
            why: None,
            waits: Vec::new(),
            gate: GateStatus { state: "open", ..GateStatus::default() },
            lag: None,
            oldest: None,
            since: None,
            received: 0,
            delivered: 0,
            filtered: 0,
            duplicates: 0,
            dead_lettered: 0,
            in_flight: 0,
            returned: 0,
            put_off: 0,
            waiting: None,
            waiting_oldest: None,
            feeds: Vec::new(),
            dead_letters_open: None,
            damaged: Vec::new(),
            dead_letters_by_reason: BTreeMap::new(),
            restarts: 0,
            retries: 0,
            stage_retries: 0,
            passed: 0,
            stages: Vec::new(),
            counted: BTreeMap::new(),
            open_groups: 0,
            held_bytes: 0,
            held_records: 0,
            next_close: None,
            next_close_in: None,
            store_rebuilds: 0,
            resumed_seals: 0,
            duplicate_ids: 0,
            lateness: LatencyCounts::default(),
            partitions: Vec::new(),
            destinations: Vec::new(),
            latency: LatencyCounts::default(),
        }
    }
}

/// Reading again what is held is worth a word when it has taken so long.
const CATCH_UP_MILLIS: u64 = 1_000;

impl Status {
    /// Says so where a run that began then still reads again what is held.
    pub(crate) fn catch_up(&mut self, began: Option<Timestamp>, now: Timestamp) {
        let lasts = |began: &Timestamp| now.millis_since(*began) >= CATCH_UP_MILLIS;
        let Some(began) = began.filter(lasts) else { return };
        if self.state != State::Running || self.in_flight == 0 {
            return;
        }
        let of = self.lag.map(|lag| format!(" of {lag}")).unwrap_or_default();
        let why = format!(
            "reading again what is held: {}{of} records; groups close when that is done",
            self.in_flight
        );
        self.state = State::Waiting;
        self.why.get_or_insert_with(|| why.clone());
        let (what, since) = (WaitsFor::CatchUp, began.to_string());
        self.waits.push(Wait { what, since, why, needs_somebody: false });
    }
}

/// Records of one partition that have not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartitionLag {
    pub topic: String,
    pub partition: u32,
    /// How many.
    pub lag: u64,
}

/// A destination outside the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DestinationStatus {
    /// Its name in the file: of the database, the topic …
    pub destination: String,
    /// Its gate is open.
    pub up: bool,
    pub gate: GateStatus,
    /// Messages it took, since the process started.
    pub delivered: u64,
    /// Calls, those that failed among them.
    pub calls: u64,
    /// Calls that failed, for whatever reason.
    pub failed_calls: u64,
    /// Milliseconds that calls took, of all lanes together.
    pub busy: u64,
}

/// A feed, and what waits in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FeedStatus {
    /// Its name in the file: of the table, the list …
    pub feed: String,
    /// Records that have not ended; `None` while it does not say.
    pub waiting: Option<u64>,
    /// Age in milliseconds of the oldest of them.
    pub oldest: Option<u64>,
    /// Groups they are in, where the feed groups them.
    pub groups: Option<u64>,
    /// Its own counts, by name.
    pub counts: BTreeMap<String, u64>,
}

impl Status {
    /// Adds what feeds have counted, in the order of [`Status::feeds`].
    pub(crate) fn count_in(&mut self, counts: Vec<Vec<(&'static str, u64)>>) {
        for (feed, counts) in self.feeds.iter_mut().zip(counts) {
            feed.counts =
                counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        }
    }

    /// Adds what waits in feeds.
    pub(crate) fn wait_in(&mut self, feeds: &[(Arc<str>, Option<Backlog>)], now: Timestamp) {
        let status = |(name, said): &(Arc<str>, Option<Backlog>)| FeedStatus {
            feed: name.to_string(),
            waiting: said.map(|said| said.records),
            oldest: said.and_then(|said| said.oldest).map(|oldest| now.millis_since(oldest)),
            groups: said.and_then(|said| said.groups),
            counts: BTreeMap::new(),
        };
        self.feeds = feeds.iter().map(status).collect();
        if self.feeds.is_empty() {
            return;
        }
        self.waiting = self.feeds.iter().map(|feed| feed.waiting).sum();
        self.waiting_oldest = self.feeds.iter().filter_map(|feed| feed.oldest).max();
        self.lag = self.lag.zip(self.waiting).map(|(lag, waiting)| lag + waiting);
    }
}

/// The counters of one pipeline since the process started.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub counts: Arc<Counts>,
    pub restarts: AtomicU64,
    pub retries: AtomicU64,
    pub stage_retries: AtomicU64,
    /// Records that failed and were put off by their feed.
    pub put_off: AtomicU64,
    /// Events that went on though a stage failed on them.
    pub passed: AtomicU64,
    pub counted: StageCounts,
    /// How often everything held was read again, because its store had lost it.
    pub store_rebuilds: AtomicU64,
    /// Closed groups that another run had sealed.
    pub resumed_seals: AtomicU64,
    /// Records whose id another record of their batch had too.
    pub duplicate_ids: AtomicU64,
    /// How much later than due groups closed.
    pub lateness: Latency,
    pub latency: Latency,
    pub stages: Stages,
    /// Names and ways of the stages.
    stage_plans: Vec<(String, Per)>,
    reasons: [AtomicU64; Reason::ALL.len()],
    /// Arrival of the first record of each source batch that is still open.
    open: Mutex<BTreeMap<u64, Timestamp>>,
}

impl Counters {
    pub fn of(plan: &Plan) -> Self {
        let stage_plans = plan.stages.iter().map(|stage| (stage.name.clone(), stage.per));
        Counters {
            counted: StageCounts::new(&plan.stages),
            stage_plans: stage_plans.collect(),
            ..Counters::default()
        }
    }

    /// No task works any more.
    pub fn run_is_over(&self) {
        self.stages.nobody_waits();
        self.open.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub fn dead_letter(&self, reason: Reason) {
        let at = Reason::ALL.iter().position(|known| *known == reason);
        if let Some(counter) = at.and_then(|at| self.reasons.get(at)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn batch_opened(&self, sequence: u64, first: Timestamp) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(sequence, first);
    }

    pub fn batch_closed(&self, sequence: u64) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&sequence);
    }

    /// Fills the counted part of a status.
    pub fn fill(&self, status: &mut Status, clock: &dyn Clock) {
        let load = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        self.counts.fill(status);
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        status.oldest = open.values().min().map(|first| clock.now().millis_since(*first));
        drop(open);
        status.restarts = load(&self.restarts);
        status.why = status.why.take().or_else(|| self.stages.why());
        status.retries = load(&self.retries);
        status.stage_retries = load(&self.stage_retries);
        status.put_off = load(&self.put_off);
        status.passed = load(&self.passed);
        status.stages = self.stages.list(&self.stage_plans);
        status.counted = self.counted.totals();
        status.store_rebuilds = load(&self.store_rebuilds);
        status.resumed_seals = load(&self.resumed_seals);
        status.duplicate_ids = load(&self.duplicate_ids);
        status.lateness = self.lateness.counts();
        status.latency = self.latency.counts();
        for (reason, counter) in Reason::ALL.iter().zip(&self.reasons) {
            let count = load(counter);
            if count > 0 {
                status.dead_letters_by_reason.insert(reason.word().to_owned(), count);
            }
        }
    }
}
