//! Everything outside the process: what is durable, what time it is, what goes wrong.
//!
//! The world survives the crashes of the process that lives in it. A *life* is one runtime with
//! one engine; when it ends, by a crash or in good order, its tasks are dropped where they stand
//! and the next life starts on what the world holds.
//!
//! All of it is used from one thread. The lock only satisfies the contracts, and is never held
//! across an await.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use potok_core::Position;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::chance::Chance;
use super::disk::Disk;
use super::frozen::FrozenProcesses;
use super::hindrances::{Hindrances, START};
use super::promises::{Expectation, Observations, ProcessCounts, Promise, Violation};
use super::scenario::SealMax;
use super::sink::{Spell, Table};
use super::store::SimStore;
use super::trouble::{Recovery, Tally, Trouble};

/// What tasks of a life see of the world.
pub struct World {
    /// Where bodies of held records are.
    store: Arc<SimStore>,
    state: Mutex<State>,
    crash: Notify,
}

/// The world itself.
pub struct State {
    /// Where trouble comes from.
    pub chance: Chance,
    /// The kinds of trouble this run makes.
    pub enabled: BTreeSet<Trouble>,
    /// No more trouble from now on: the time to finish.
    pub calm: bool,
    /// How often what was met.
    pub tally: Tally,
    /// The log.
    pub disk: Disk,
    /// How many transactions a group may have on their way. With more than one, outputs and
    /// progress are written apart, as on Kafka.
    pub overlap: usize,
    /// The largest output that some topics take.
    pub output_max: Option<usize>,
    /// The largest seal that the internal topic takes.
    pub seal_max: Option<SealMax>,
    /// The topics that take no larger one.
    pub limited: Vec<Arc<str>>,
    /// The disk is full: only what finishes work is written.
    pub is_full: bool,
    /// When the log is not itself.
    pub log_spells: Vec<Spell>,
    /// Several processes share the log.
    pub shared: bool,
    /// Groups are read apart from each other though the log is one process's own.
    pub read_apart: bool,
    /// Processes that stand still.
    pub(super) frozen: FrozenProcesses,
    /// The destinations, one per deliver entry.
    pub tables: Vec<Table>,
    /// What a changed filter has filtered.
    pub filtered: BTreeSet<Position>,
    /// What the checks expect; `None` where nobody checks.
    pub expect: Option<Arc<Expectation>>,
    /// What the checks saw written.
    pub(super) observed: Observations,
    /// What they saw of each process of this life.
    pub(super) deeds: BTreeMap<usize, ProcessCounts>,
    /// When something stood in the way of closing groups.
    pub(super) hindrances: Hindrances,
    /// What the checks found.
    pub violations: Vec<Violation>,
    /// Milliseconds by which the wall clock is wrong.
    pub clock_jump: i64,
    /// The same of the clock of a shared log.
    pub log_clock_jump: i64,
    before: Duration,
    /// When the last life ended.
    ended_at: u64,
    life_start: Option<Instant>,
    steps_left: Option<u64>,
    over: bool,
    trace: Vec<String>,
    trace_hash: std::hash::DefaultHasher,
}

impl State {
    /// Simulated milliseconds since the world began.
    pub fn millis(&self) -> u64 {
        let life = self.life_start.map_or(Duration::ZERO, |start| start.elapsed());
        (self.before + life).as_millis() as u64
    }

    /// True where records of all groups come in the order in which they were written.
    pub fn has_one_order(&self) -> bool {
        !self.shared && !self.read_apart
    }

    /// Decides whether a trouble strikes now, once in `n` times where it is enabled.
    pub fn strikes(&mut self, trouble: Trouble, n: u64) -> bool {
        let strikes = !self.calm && self.enabled.contains(&trouble) && self.chance.one_in(n);
        if strikes {
            self.tally.hit(trouble);
            let now = self.millis();
            self.hindrances.strikes(trouble, now);
        }
        strikes
    }

    /// True where the log is under that trouble now.
    pub fn log_is_under(&mut self, trouble: Trouble) -> bool {
        let now = self.millis();
        let is_now = |spell: &Spell| spell.trouble == trouble && spell.is_at(now);
        let is_under = !self.calm && self.log_spells.iter().any(is_now);
        if is_under {
            self.tally.hit(trouble);
        }
        is_under
    }

    /// True where the disk has room for nothing but what finishes work.
    pub fn has_full_disk(&mut self) -> bool {
        if self.is_full {
            self.tally.hit(Trouble::DiskFull);
        }
        self.is_full || self.log_is_under(Trouble::DiskFull)
    }

    /// Notes what happened; the notes of two runs of one seed are the same.
    pub fn note(&mut self, what: impl std::fmt::Display) {
        let line = format!("{:>9.3} {what}", self.millis() as f64 / 1_000.0);
        self.trace_hash.write(line.as_bytes());
        self.trace.push(line);
    }

    /// Notes a broken promise.
    pub fn violated(&mut self, promise: Promise, what: String) {
        self.note(format_args!("VIOLATED {promise}: {what}"));
        self.violations.push(Violation { promise, what });
    }

    /// All notes.
    pub fn trace(&self) -> &[String] {
        &self.trace
    }

    /// A number that stands for all notes.
    pub fn trace_hash(&self) -> u64 {
        self.trace_hash.finish()
    }
}

impl World {
    /// A world without trouble.
    pub fn calm(seed: u64, partitions: u32) -> Arc<World> {
        let mut chance = Chance::new(seed);
        let disk = Disk::new(chance.next(), partitions);
        Arc::new(World {
            store: Arc::default(),
            state: Mutex::new(State {
                chance,
                enabled: BTreeSet::new(),
                calm: true,
                tally: Tally::default(),
                disk,
                overlap: 1,
                output_max: None,
                seal_max: None,
                limited: Vec::new(),
                is_full: false,
                log_spells: Vec::new(),
                shared: false,
                read_apart: false,
                frozen: FrozenProcesses::default(),
                tables: Vec::new(),
                filtered: BTreeSet::new(),
                expect: None,
                observed: Observations::default(),
                deeds: BTreeMap::new(),
                hindrances: Hindrances::default(),
                violations: Vec::new(),
                clock_jump: 0,
                log_clock_jump: 0,
                before: Duration::ZERO,
                ended_at: 0,
                life_start: None,
                steps_left: None,
                over: false,
                trace: Vec::new(),
                trace_hash: std::hash::DefaultHasher::new(),
            }),
            crash: Notify::new(),
        })
    }

    /// Where bodies of held records are.
    pub fn store(&self) -> Arc<SimStore> {
        self.store.clone()
    }

    /// Looks at or changes the world.
    pub fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A life begins. Called inside its runtime.
    pub fn begin_life(&self) {
        self.with(|w| {
            let (since, now) = (w.ended_at, w.millis());
            w.hindrances.add(since, now + START);
            w.life_start = Some(Instant::now());
            w.steps_left = None;
            w.over = false;
            w.frozen.clear();
            w.deeds.clear();
        });
    }

    /// Time goes by while there is no life.
    pub fn pass(&self, time: Duration) {
        self.with(|w| w.before += time);
    }

    /// The life is over. Called inside its runtime, before that is dropped.
    pub fn end_life(&self) {
        self.with(|w| {
            let life = w.life_start.take().map_or(Duration::ZERO, |start| start.elapsed());
            w.before += life;
            w.ended_at = w.millis();
            w.over = true;
        });
    }

    /// The process dies at the `n`th call from now, before it takes effect or after.
    pub fn crash_in(&self, n: u64) {
        self.with(|w| w.steps_left = Some(n.max(1)));
    }

    /// Waits until the process has died in a call.
    pub async fn crashed(&self) {
        self.crash.notified().await;
    }

    /// One point at which the process can die: nothing it calls afterwards takes effect.
    pub async fn step(&self, at: &str) {
        let over = self.with(|w| {
            if let Some(left) = w.steps_left.as_mut().filter(|_| !w.over) {
                *left -= 1;
                if *left == 0 {
                    w.over = true;
                    w.steps_left = None;
                    w.tally.hit(Trouble::CrashAtCall);
                    w.note(format_args!("the process dies at {at}"));
                    self.crash.notify_one();
                }
            }
            w.over
        });
        if over {
            std::future::pending().await
        }
    }

    /// Takes the time a call takes: mostly next to none, long where `slow` strikes.
    pub async fn latency(&self, slow: Trouble) {
        let millis = self.with(|w| {
            if w.strikes(slow, 12) {
                let (millis, now) = (w.chance.between(50, 4_000), w.millis());
                w.hindrances.add(now, now + millis);
                w.hindrances.strikes(slow, now + millis);
                millis
            } else if w.calm {
                w.chance.below(2)
            } else {
                w.chance.below(5)
            }
        });
        if millis > 0 {
            tokio::time::sleep(Duration::from_millis(millis)).await;
        }
    }

    /// Counts a recovery.
    pub fn recovered(&self, recovery: Recovery) {
        self.with(|w| w.tally.recovered(recovery));
    }
}
