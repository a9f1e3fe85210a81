//! The gate in front of a destination: closed while it is away.
//!
//! ```text
//!            lanes give up                     probe answers
//!   open  ───────────────►  closed  ───────────────────────────►  half open
//!    ▲                        ▲                                       │
//!    │                        └──────── the trial failed ─────────────┤
//!    └───────────────────────────────── the trial went through ───────┘
//! ```
//!
//! While it is half open one lane at a time may try a single message; lanes take turns, so that
//! one record that nobody will ever take cannot keep the gate closed for the others. After it
//! opens, calls start small and grow. Nothing is ever dead-lettered because a gate is closed.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use potok_core::{Fault, Move, Timestamp};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep_until};
use tracing::Span;

use super::suspect::CallRecord;
use crate::signal::Signal;
use crate::status::GateStatus;

/// How many messages a call may hold right after the gate opened.
const RAMP_START: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GateState {
    Open,
    Closed,
    HalfOpen,
}

/// The permission that [`Gate::pass`] gives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Deliver as usual.
    Open,
    /// Try one message, then tell the gate what came of it.
    Trial,
    /// None: the destination has been away for longer than what waits may be kept from others.
    Away,
}

/// Why it is closed.
#[derive(Clone)]
struct Notice {
    since: Timestamp,
    why: String,
    /// Somebody has to mend something.
    fix: bool,
}

pub(crate) struct Gate {
    state: Signal<GateState>,
    trial: Semaphore,
    notice: Mutex<Option<Notice>>,
    /// Since when nothing may be sent.
    away_since: Mutex<Option<Instant>>,
    ramp: AtomicUsize,
    /// It has been open since the run began.
    ready: AtomicBool,
    /// How often it has closed.
    closings: AtomicU64,
    /// Counts calls as they start; see [`Gate::witness_since`].
    calls: AtomicU64,
    last_good_call: Signal<u64>,
    /// Messages taken by the destination.
    delivered: AtomicU64,
    /// Calls that failed, and microseconds that calls took.
    failed_calls: AtomicU64,
    busy: AtomicU64,
    /// How calls have fared lately.
    fares: Mutex<CallRecord>,
    /// Somebody does not want to wait for the next probe.
    hurry: Notify,
    /// Something is there to be sent; see [`super::Destination::on_demand`].
    wanted: Signal<bool>,
    /// Names the pipeline and the destination in the log.
    span: Span,
}

impl Gate {
    pub fn new(span: Span) -> Self {
        Gate {
            span,
            state: Signal::new(GateState::Open),
            trial: Semaphore::new(0),
            notice: Mutex::new(None),
            away_since: Mutex::new(None),
            ramp: AtomicUsize::new(usize::MAX),
            ready: AtomicBool::new(false),
            closings: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            last_good_call: Signal::new(0),
            delivered: AtomicU64::new(0),
            failed_calls: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            fares: Mutex::default(),
            hurry: Notify::new(),
            wanted: Signal::new(false),
        }
    }

    /// A run begins: closed until the destination has been prepared.
    pub fn begin(&self) {
        self.ready.store(false, Ordering::Relaxed);
        self.away_since().get_or_insert_with(Instant::now);
        self.state.set(GateState::Closed);
    }

    /// False from the beginning of a run until it opened for the first time.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Waits until the destination may be called.
    pub async fn pass(&self) -> Pass {
        self.want();
        loop {
            let turn = tokio::select! {
                biased;
                () = self.state.wait_for(|state| state == GateState::Open) => return Pass::Open,
                turn = self.trial.acquire() => turn,
            };
            if let Ok(turn) = turn {
                turn.forget();
                if self.state.get() == GateState::HalfOpen {
                    return Pass::Trial;
                }
            }
        }
    }

    /// Closes it, or leaves it closed with what was said first.
    pub fn close(&self, fault: &Fault, now: Timestamp) {
        let mut notice = self.notice.lock().unwrap_or_else(PoisonError::into_inner);
        let notice_is_new = notice.is_none();
        let since = notice.as_ref().map_or(now, |notice| notice.since);
        let (why, fix) = (fault.to_string(), fault.next == Move::Fix);
        *notice = Some(Notice { since, why, fix });
        drop(notice);
        self.closings.fetch_add(1, Ordering::SeqCst);
        self.away_since().get_or_insert_with(Instant::now);
        self.state.set(GateState::Closed);
        if notice_is_new {
            self.span.in_scope(|| tracing::warn!(why = %fault, "gate closed"));
        }
    }

    /// The probe answered: one lane may try.
    pub fn half_open(&self) {
        if self.state.get() != GateState::Closed {
            return;
        }
        self.state.set(GateState::HalfOpen);
        if self.trial.available_permits() == 0 {
            self.trial.add_permits(1);
        }
    }

    /// The destination works.
    pub fn open(&self) {
        let notice = self.notice.lock().unwrap_or_else(PoisonError::into_inner).take();
        if notice.is_some() {
            self.ramp.store(RAMP_START, Ordering::Relaxed);
            self.span.in_scope(|| tracing::info!("gate open"));
        }
        self.ready.store(true, Ordering::Relaxed);
        *self.away_since() = None;
        self.state.set(GateState::Open);
    }

    fn away_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.away_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nothing may be tried and it has not been open for so long.
    pub async fn away_for(&self, time: Duration) {
        loop {
            let since = *self.away_since();
            sleep_until(since.unwrap_or_else(Instant::now) + time).await;
            let is_over = self.away_since().is_some_and(|since| since.elapsed() >= time);
            if is_over && self.is_closed() {
                return;
            }
            self.closed().await;
        }
    }

    /// True while nothing may be tried.
    pub fn is_closed(&self) -> bool {
        self.state.get() == GateState::Closed
    }

    /// True where the destination has refused us, and not only begins.
    pub fn has_refused(&self) -> bool {
        self.notice.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The repair it waits for, if it is closed because of one.
    pub fn to_be_fixed(&self) -> Option<String> {
        let notice = self.notice.lock().unwrap_or_else(PoisonError::into_inner);
        notice.as_ref().filter(|notice| notice.fix).map(|notice| notice.why.clone())
    }

    /// Waits until something may be tried.
    pub async fn ajar(&self) {
        self.state.wait_for(|state| state != GateState::Closed).await;
    }

    /// Waits until it is closed.
    pub async fn closed(&self) {
        self.state.wait_for(|state| state == GateState::Closed).await;
    }

    /// Waits until it is not half open any more.
    pub async fn tried(&self) {
        self.state.wait_for(|state| state != GateState::HalfOpen).await;
    }

    /// How often it has closed: what happened before a closing proves nothing after it.
    pub fn closings(&self) -> u64 {
        self.closings.load(Ordering::SeqCst)
    }

    /// How many messages a call may hold now.
    pub fn call_records_max(&self) -> usize {
        self.ramp.load(Ordering::Relaxed)
    }

    /// A call starts; its number tells later which calls started after what.
    pub fn call_starts(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// How many calls have started by now.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// The call with that number succeeded; `late` if something in it had failed before.
    pub fn call_succeeded(&self, call: u64, late: bool) {
        self.fares.lock().unwrap_or_else(PoisonError::into_inner).add(late);
        self.last_good_call.set(self.last_good_call.get().max(call));
        let ramp = self.ramp.load(Ordering::Relaxed);
        self.ramp.store(ramp.saturating_mul(2), Ordering::Relaxed);
    }

    /// The destination took so many messages.
    pub fn took(&self, messages: u64) {
        self.delivered.fetch_add(messages, Ordering::Relaxed);
    }

    /// How many messages it took so far.
    pub fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// A call has ended, well or not.
    pub fn call_ended(&self, took: Duration, failed: bool) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.busy.fetch_add(micros, Ordering::Relaxed);
        self.failed_calls.fetch_add(u64::from(failed), Ordering::Relaxed);
    }

    /// How many calls have failed so far.
    pub fn failed_calls(&self) -> u64 {
        self.failed_calls.load(Ordering::Relaxed)
    }

    /// Milliseconds that calls took so far, of all lanes together.
    pub fn busy(&self) -> u64 {
        self.busy.load(Ordering::Relaxed) / 1_000
    }

    /// How calls have fared lately.
    pub fn fares(&self) -> CallRecord {
        *self.fares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True when a call succeeded that *started* when so many had: if that was the count at a
    /// failure, the destination worked afterwards. A success that merely arrived later proves
    /// nothing: it may have left before the destination went away.
    pub fn witness_since(&self, calls: u64) -> bool {
        self.last_good_call.get() > calls
    }

    /// Waits for that while the gate is open, up to `max`.
    pub async fn witness_soon(&self, calls: u64, max: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.last_good_call.wait_for(|good| good > calls) => true,
            () = self.closed() => false,
            () = tokio::time::sleep(max) => false,
        }
    }

    /// Something is there to be sent.
    pub fn want(&self) {
        if !self.wanted.get() {
            self.wanted.set(true);
        }
    }

    /// True once something is there to be sent.
    pub fn is_wanted(&self) -> bool {
        self.wanted.get()
    }

    /// Waits until something is there to be sent.
    pub async fn wanted(&self) {
        self.wanted.wait_for(|wanted| wanted).await;
    }

    /// The next probe comes at once.
    pub fn hurry(&self) {
        self.hurry.notify_one();
    }

    /// Waits between two probes.
    pub async fn pause(&self, probe_every: Duration) {
        tokio::select! {
            biased;
            () = self.hurry.notified() => {}
            () = tokio::time::sleep(probe_every) => {}
        }
    }

    pub fn status(&self) -> GateStatus {
        let state = match self.state.get() {
            GateState::Open => return GateStatus { state: "open", ..GateStatus::default() },
            GateState::Closed => "closed",
            GateState::HalfOpen => "half_open",
        };
        let notice = self.notice.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if notice.is_none() {
            // Nothing has refused us: it is about to open.
            return GateStatus { state: "open", ..GateStatus::default() };
        }
        let (since, why) = notice.map(|notice| (notice.since.to_string(), notice.why)).unzip();
        GateStatus { state, since, why }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn lanes_take_turns_at_a_half_open_gate() {
        let gate = Arc::new(Gate::new(Span::none()));
        gate.close(&Fault::wait("away"), Timestamp(0));
        let ask = |gate: &Arc<Gate>| {
            let gate = gate.clone();
            tokio::spawn(async move { gate.pass().await })
        };
        let (first, second) = (ask(&gate), ask(&gate));
        tokio::task::yield_now().await;
        gate.half_open();
        assert_eq!(first.await.unwrap(), Pass::Trial);
        assert!(!second.is_finished(), "one at a time");
        gate.close(&Fault::wait("still away"), Timestamp(1));
        gate.half_open();
        assert_eq!(second.await.unwrap(), Pass::Trial);
        gate.open();
        assert_eq!(gate.pass().await, Pass::Open);
        assert_eq!(gate.call_records_max(), RAMP_START);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_hears_when_it_was_away_for_long() {
        let gate = Arc::new(Gate::new(Span::none()));
        let away = {
            let gate = gate.clone();
            tokio::spawn(async move { gate.away_for(Duration::from_secs(10)).await })
        };
        let pass = async |seconds| tokio::time::sleep(Duration::from_secs(seconds)).await;
        pass(60).await;
        assert!(!away.is_finished(), "it is open");
        gate.close(&Fault::wait("away"), Timestamp(0));
        pass(6).await;
        gate.half_open();
        gate.close(&Fault::wait("still away"), Timestamp(1));
        pass(3).await;
        assert!(!away.is_finished());
        pass(2).await;
        assert!(away.is_finished(), "a trial that failed is no opening");
        gate.open();
        gate.close(&Fault::wait("away again"), Timestamp(2));
        let soon =
            tokio::time::timeout(Duration::from_secs(9), gate.away_for(Duration::from_secs(10)));
        assert!(soon.await.is_err());
    }

    #[test]
    fn a_success_that_started_earlier_is_no_witness() {
        let gate = Gate::new(Span::none());
        let (early, failed) = (gate.call_starts(), gate.call_starts());
        gate.call_succeeded(early, false);
        assert!(!gate.witness_since(failed));
        let later = gate.call_starts();
        gate.call_succeeded(later, false);
        assert!(gate.witness_since(failed));
    }
}
