//! One look at the engine a second, whoever watches: the newest status of every pipeline, a ring of
//! the last fifteen minutes, one of every tenth second for six hours, and what has changed meanwhile.
//!
//! Viewers read from here and cost the engine nothing. Without a viewer it costs one status a second.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use potok_core::Timestamp;
use potok_flow::{Outline, State, Status};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::ErrorBody;
use crate::letters::cause_of;
use crate::{Admin, ApiError, pipelines};

/// How often it looks.
pub(crate) const EVERY: Duration = Duration::from_secs(1);
/// Looks are a little early or late.
const EARLY: u64 = 500;

/// How closely something is kept, and how far back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    /// Every second of fifteen minutes.
    Minutes,
    /// Every tenth second of six hours.
    Hours,
}

impl Window {
    pub fn seconds(self) -> u64 {
        match self {
            Window::Minutes => EVERY.as_secs(),
            Window::Hours => 10,
        }
    }

    pub fn points_max(self) -> usize {
        match self {
            Window::Minutes => 900,
            Window::Hours => 2_160,
        }
    }
}
/// A look that is not older than this is as good as a new one.
const FRESH: Duration = Duration::from_millis(800);
/// How long a page waits for a look, and how old the one before may be that it shows then.
const LOOK_MAX: Duration = Duration::from_millis(500);
const LAST_MAX: Duration = Duration::from_secs(5);
/// Changes that are remembered.
const CHANGES_MAX: usize = 200;

/// How everything stood at one moment.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub at: Timestamp,
    pub all: Vec<Status>,
    pub outlines: BTreeMap<String, Arc<Outline>>,
    /// Why it is incomplete.
    pub error: Option<ErrorBody>,
    /// Why the log takes nothing now.
    pub log_trouble: Option<String>,
    taken: Instant,
}

impl Snapshot {
    pub fn of(&self, pipeline: &str) -> Option<&Status> {
        self.all.iter().find(|status| status.pipeline == pipeline)
    }

    /// For those who may not see values of records, which errors quote.
    pub fn without_values(&self) -> Self {
        let mut snapshot = self.clone();
        snapshot.all.iter_mut().for_each(pipelines::without_values);
        let errors = snapshot
            .error
            .iter_mut()
            .flat_map(|error| [Some(&mut error.what), error.cause.as_mut()].into_iter().flatten());
        errors.chain(&mut snapshot.log_trouble).for_each(|text| *text = cause_of(text));
        snapshot
    }
}

#[cfg(test)]
impl Snapshot {
    pub fn for_tests(all: Vec<Status>) -> Self {
        Snapshot {
            at: Timestamp(0),
            all,
            outlines: BTreeMap::new(),
            error: None,
            log_trouble: None,
            taken: Instant::now(),
        }
    }
}

/// What is counted of a pipeline; rates are the differences of two.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    pub received: u64,
    pub delivered: u64,
    pub dead_lettered: u64,
    pub filtered: u64,
    pub retries: u64,
    pub restarts: u64,
    pub lag: Option<u64>,
    pub held: u64,
    /// Some gate was not open.
    pub away: bool,
    pub destinations: Vec<(Arc<str>, u64)>,
}

impl Totals {
    /// Names are kept once, not once a second.
    fn of(status: &Status, before: Option<&Totals>) -> Self {
        let known = |at: usize, name: &str| {
            let (known, _) = before?.destinations.get(at)?;
            (**known == *name).then(|| known.clone())
        };
        let destinations = status.destinations.iter().enumerate().map(|(at, to)| {
            let name = known(at, &to.destination);
            (name.unwrap_or_else(|| to.destination.as_str().into()), to.delivered)
        });
        Totals {
            received: status.received,
            delivered: status.delivered,
            dead_lettered: status.dead_lettered,
            filtered: status.filtered,
            retries: status.retries,
            restarts: status.restarts,
            lag: status.lag,
            held: status.held_records,
            away: status.gate.state != "open",
            destinations: destinations.collect(),
        }
    }
}

#[derive(Clone)]
struct Point {
    at: Timestamp,
    of: BTreeMap<Arc<str>, Totals>,
}

/// Something that changed, for people.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Change {
    pub time: String,
    pub pipeline: String,
    /// `good`, `waits` or `bad`.
    pub kind: &'static str,
    pub what: String,
}

/// The ring, and the newest look.
pub(crate) struct Sampler {
    minutes: Mutex<VecDeque<Point>>,
    hours: Mutex<VecDeque<Point>>,
    changes: Mutex<VecDeque<Change>>,
    /// One looks at a time; the others take what it saw.
    newest: tokio::sync::Mutex<Option<Arc<Snapshot>>>,
    /// The same, for those who do not wait for whoever looks.
    last: Mutex<Option<Arc<Snapshot>>>,
    ticks: watch::Sender<u64>,
}

impl Default for Sampler {
    fn default() -> Self {
        Sampler {
            minutes: Mutex::default(),
            hours: Mutex::default(),
            changes: Mutex::default(),
            newest: tokio::sync::Mutex::default(),
            last: Mutex::default(),
            ticks: watch::Sender::new(0),
        }
    }
}

impl Admin {
    /// How everything stands, as somebody saw it a moment ago at most.
    pub(crate) async fn snapshot(&self) -> Arc<Snapshot> {
        let sampler = &self.inner.sampler;
        let mut newest = sampler.newest.lock().await;
        if let Some(known) = newest.as_ref().filter(|known| known.taken.elapsed() < FRESH) {
            return known.clone();
        }
        let (all, error) = match pipelines::all(self).await {
            Ok(all) => (all, None),
            Err(fault) => (Vec::new(), Some(ApiError::from(fault).body)),
        };
        let snapshot = Arc::new(Snapshot {
            at: self.engine().clock().now(),
            all,
            outlines: self.engine().outlines(),
            error,
            log_trouble: self.engine().log().trouble(),
            taken: Instant::now(),
        });
        sampler.note(newest.as_deref(), &snapshot);
        *newest = Some(snapshot.clone());
        *sampler.last() = Some(snapshot.clone());
        snapshot
    }

    /// The same for a page: where a log does not answer, what was seen before it was asked.
    pub(crate) async fn snapshot_soon(&self) -> Arc<Snapshot> {
        let admin = self.clone();
        let looking = tokio::spawn(async move { admin.snapshot().await });
        if let Ok(Ok(snapshot)) = tokio::time::timeout(LOOK_MAX, looking).await {
            return snapshot;
        }
        let last = self.inner.sampler.last().clone();
        match last.filter(|last| last.taken.elapsed() < LAST_MAX) {
            Some(last) => last,
            None => self.snapshot().await,
        }
    }

    /// Looks once a second until the server ends.
    pub(crate) async fn sample(self) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.snapshot().await;
            self.inner.sampler.ticks.send_modify(|tick| *tick += 1);
        }
    }

    pub(crate) fn sampler(&self) -> &Sampler {
        &self.inner.sampler
    }
}

impl Sampler {
    fn last(&self) -> MutexGuard<'_, Option<Arc<Snapshot>>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self, window: Window) -> MutexGuard<'_, VecDeque<Point>> {
        let ring = match window {
            Window::Minutes => &self.minutes,
            Window::Hours => &self.hours,
        };
        ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, window: Window, point: Point) {
        let mut ring = self.ring(window);
        let wanted = window.seconds() * 1_000;
        let is_early = |last: &Point| point.at.millis_since(last.at) + EARLY < wanted;
        if window != Window::Minutes && ring.back().is_some_and(is_early) {
            return;
        }
        if ring.len() >= window.points_max() {
            ring.pop_front();
        }
        ring.push_back(point);
    }

    /// Tells when there is something new.
    pub fn ticks(&self) -> watch::Receiver<u64> {
        self.ticks.subscribe()
    }

    fn note(&self, before: Option<&Snapshot>, now: &Snapshot) {
        let last = self.ring(Window::Minutes).back().cloned();
        let of = now.all.iter().filter(|status| status.since.is_some());
        let of = of.map(|status| {
            let known = last.as_ref().and_then(|last| last.of.get_key_value(&*status.pipeline));
            let totals = Totals::of(status, known.map(|(_, totals)| totals));
            let name =
                known.map_or_else(|| status.pipeline.as_str().into(), |(name, _)| name.clone());
            (name, totals)
        });
        let point = Point { at: now.at, of: of.collect() };
        self.keep(Window::Hours, point.clone());
        self.keep(Window::Minutes, point);
        let Some(before) = before else { return };
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        for status in &now.all {
            let Some(old) = before.of(&status.pipeline) else { continue };
            changes.extend(differences(old, status, now.at));
        }
        let over = changes.len().saturating_sub(CHANGES_MAX);
        changes.drain(..over);
    }

    /// The newest changes, newest first.
    pub fn changes(&self, most: usize) -> Vec<Change> {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.iter().rev().take(most).cloned().collect()
    }

    /// Of each second up to now, oldest first: how much a count of a pipeline (or of all) rose a
    /// second. A second of which nothing is known is left out.
    pub fn rates(&self, pipeline: Option<&str>, of: impl Fn(&Totals) -> u64) -> Vec<f64> {
        self.rates_in(Window::Minutes, pipeline, of)
    }

    /// The same of each point of a window.
    pub fn rates_in(
        &self,
        window: Window,
        pipeline: Option<&str>,
        of: impl Fn(&Totals) -> u64,
    ) -> Vec<f64> {
        let ring = self.ring(window);
        let mut rates = Vec::with_capacity(ring.len());
        for (old, new) in ring.iter().zip(ring.iter().skip(1)) {
            let seconds = (new.at.millis_since(old.at) as f64 / 1_000.0).max(0.001);
            let rise = |name: &Arc<str>, totals: &Totals| {
                Some(of(totals).saturating_sub(of(old.of.get(name)?)) as f64)
            };
            let named = |name: &str| pipeline.is_none_or(|only| only == name);
            let mut rises = new.of.iter().filter(|(name, _)| named(name)).map(|(n, t)| rise(n, t));
            let first = rises.next().flatten();
            if first.is_some() || pipeline.is_none() {
                let others: f64 = rises.flatten().sum();
                rates.push((first.unwrap_or(0.0) + others) / seconds);
            }
        }
        rates
    }

    /// Of each look up to now, oldest first: something about a pipeline.
    pub fn levels<T>(&self, pipeline: &str, of: impl Fn(&Totals) -> T) -> Vec<T> {
        self.levels_in(Window::Minutes, pipeline, of)
    }

    /// The same of each point of a window.
    pub fn levels_in<T>(
        &self,
        window: Window,
        pipeline: &str,
        of: impl Fn(&Totals) -> T,
    ) -> Vec<T> {
        self.ring(window).iter().filter_map(|point| point.of.get(pipeline)).map(of).collect()
    }

    /// How much a count of a pipeline rose within the ring.
    pub fn rise(&self, pipeline: &str, of: impl Fn(&Totals) -> u64) -> u64 {
        let levels = self.levels(pipeline, of);
        let (first, last) = (levels.first().copied(), levels.last().copied());
        last.unwrap_or(0).saturating_sub(first.unwrap_or(0))
    }

    /// Pipelines of which something is known.
    pub fn pipelines(&self) -> Vec<String> {
        let ring = self.ring(Window::Minutes);
        let names = ring.back().map(|point| point.of.keys().map(ToString::to_string).collect());
        names.unwrap_or_default()
    }
}

/// The mean of the last few, for people: single seconds jump.
pub(crate) fn lately(rates: &[f64]) -> Option<f64> {
    let some = rates.len().min(5);
    let last = rates.get(rates.len() - some..).unwrap_or_default();
    (some > 0).then(|| last.iter().sum::<f64>() / some as f64)
}

fn differences(old: &Status, new: &Status, now: Timestamp) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut say = |kind, what: String| {
        let (time, pipeline) = (now.to_string(), new.pipeline.clone());
        changes.push(Change { time, pipeline, kind, what });
    };
    for to in &new.destinations {
        let was = old.destinations.iter().find(|was| was.destination == to.destination);
        match (was.map(|was| was.up), to.up) {
            (Some(true), false) => {
                let why = to.gate.why.as_deref().unwrap_or("it does not answer");
                say("waits", format!("gate of {} closed: {why}", to.destination));
            }
            (Some(false), true) => say("good", format!("gate of {} opened", to.destination)),
            _ => {}
        }
    }
    if old.state != new.state && old.gate.state == new.gate.state {
        let why = new.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        match new.state {
            State::Running => say("good", "runs".to_owned()),
            State::Blocked => say("bad", format!("is blocked{why}")),
            State::Waiting => say("waits", format!("waits{why}")),
            State::Paused => say("waits", "is paused".to_owned()),
            State::Draining => say("waits", "finishes what is in flight".to_owned()),
            State::Stopped => say("waits", "has stopped".to_owned()),
        }
    }
    if new.restarts > old.restarts {
        say("bad", "a part died and was started again".to_owned());
    }
    if let (Some(0), Some(open @ 1..)) = (old.dead_letters_open, new.dead_letters_open) {
        say("bad", format!("first open dead letters: {open}"));
    }
    if let (Some(1..), Some(0)) = (old.dead_letters_open, new.dead_letters_open) {
        say("good", "no dead letter is open any more".to_owned());
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(totals: &[(i64, u64)]) -> Sampler {
        let sampler = Sampler::default();
        for (at, received) in totals {
            let mut of = BTreeMap::new();
            of.insert("p".into(), Totals { received: *received, ..Totals::default() });
            let point = Point { at: Timestamp(*at), of };
            sampler.keep(Window::Hours, point.clone());
            sampler.keep(Window::Minutes, point);
        }
        sampler
    }

    #[test]
    fn rates_are_differences_over_the_time_between() {
        let sampler = sampler(&[(0, 0), (1_000, 10), (3_000, 30), (4_000, 30)]);
        assert_eq!(sampler.rates(Some("p"), |t| t.received), [10.0, 10.0, 0.0]);
        assert_eq!(sampler.rates(None, |t| t.received), [10.0, 10.0, 0.0]);
        assert!(sampler.rates(Some("other"), |t| t.received).is_empty());
        assert_eq!(sampler.rise("p", |t| t.received), 30);
    }

    #[test]
    fn hours_are_kept_every_tenth_second_and_both_are_bounded() {
        let all: Vec<(i64, u64)> = (0..30_000).map(|at| (at * 1_000 + at % 3, at as u64)).collect();
        let sampler = sampler(&all);
        let of = |window| sampler.rates_in(window, Some("p"), |t| t.received);
        let (minutes, hours) = (of(Window::Minutes), of(Window::Hours));
        assert_eq!((minutes.len(), hours.len()), (899, 2_159));
        assert!(hours.iter().all(|rate| (rate - 1.0).abs() < 0.01), "{hours:?}");
        assert_eq!(sampler.levels_in(Window::Hours, "p", |t| t.received).first(), Some(&8_400));
    }

    #[test]
    fn records_that_were_handed_back_make_no_negative_rate() {
        let sampler = sampler(&[(0, 10), (1_000, 4)]);
        assert_eq!(sampler.rates(Some("p"), |t| t.received), [0.0]);
        assert_eq!(lately(&[]), None);
        assert_eq!(lately(&[2.0, 4.0]), Some(3.0));
    }
}
