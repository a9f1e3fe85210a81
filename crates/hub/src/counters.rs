//! What the hub counts. Numbers only rise, except those that say how much there is now.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Frame;
use crate::connection::Ending;
use crate::contract::{Answer, HubStats};
use crate::tokens::Refusal;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub connections: AtomicUsize,
    pub queued_bytes: AtomicUsize,
    acknowledged: AtomicU64,
    nobody: AtomicU64,
    no_answer: AtomicU64,
    unavailable: AtomicU64,
    pub sent: AtomicU64,
    pub connected: AtomicU64,
    /// Clients that were told that there is no room, and that the hub stops.
    pub full: AtomicU64,
    pub stopping: AtomicU64,
    pub closed: [AtomicU64; Ending::ALL.len()],
    pub result: AtomicU64,
    pub void: AtomicU64,
    pub no_result: AtomicU64,
    pub multiple: AtomicU64,
    pub threw: AtomicU64,
    pub late: AtomicU64,
    pub unknown: AtomicU64,
    pub slow: AtomicU64,
    pub tokens_refused: AtomicU64,
    /// The same by reason, of those there have been.
    pub refusals: Mutex<BTreeMap<&'static str, u64>>,
    /// How often all users were announced, by the order of [`Announcing::ALL`].
    pub announced: [AtomicU64; Announcing::ALL.len()],
    /// How often this node's line to the others broke.
    pub lines_lost: AtomicU64,
    /// Messages that waited for a user who had just left, by what became of them.
    pub lingered_found: AtomicU64,
    pub lingered_nobody: AtomicU64,
    pub lingered_unavailable: AtomicU64,
    /// Connections whose clients went when they were first asked for an answer.
    pub closed_on_id: AtomicU64,
    /// Whether the log says that already.
    told_of_old_clients: AtomicBool,
}

/// Why all users are announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announcing {
    /// The lease began, or begins anew.
    Lease,
    /// The node begins to listen.
    Line,
    /// It is time.
    Time,
}

impl Announcing {
    pub const ALL: [Announcing; 3] = [Announcing::Lease, Announcing::Line, Announcing::Time];

    /// As metrics call it.
    pub fn name(self) -> &'static str {
        match self {
            Announcing::Lease => "lease",
            Announcing::Line => "line",
            Announcing::Time => "time",
        }
    }
}

/// Bytes of a message that waits: they count as queued for as long as this lives.
pub(crate) struct WaitingBytes {
    bytes: usize,
    counters: Arc<Counters>,
}

impl WaitingBytes {
    pub fn of(frame: &Frame, counters: &Arc<Counters>) -> Self {
        let bytes = frame.bytes();
        counters.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        WaitingBytes { bytes, counters: counters.clone() }
    }
}

impl Drop for WaitingBytes {
    fn drop(&mut self) {
        self.counters.queued_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

pub(crate) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counters {
    pub fn refused(&self, refusal: &Refusal) {
        add(&self.tokens_refused);
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        *refusals.entry(refusal.name()).or_default() += 1;
    }

    pub fn answered(&self, answer: Answer) {
        match answer {
            Answer::Acknowledged => add(&self.acknowledged),
            Answer::Nobody => add(&self.nobody),
            Answer::NoAnswer { .. } => add(&self.no_answer),
            Answer::Unavailable => add(&self.unavailable),
        }
    }

    /// The answer to a message that waited for its user.
    pub fn lingered(&self, answer: Answer) {
        match answer {
            Answer::Acknowledged | Answer::NoAnswer { .. } => add(&self.lingered_found),
            Answer::Nobody => add(&self.lingered_nobody),
            Answer::Unavailable => add(&self.lingered_unavailable),
        }
    }

    /// A client went when it was first asked for an answer.
    pub fn closed_on_id(&self, agent: &str) {
        add(&self.closed_on_id);
        if !self.told_of_old_clients.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                agent,
                "a client closed its connection when it was sent its first message; clients before \
                 @microsoft/signalr 7 do, and those that copied them: they do not know messages that \
                 want an answer"
            );
        }
    }

    /// By the order of [`Ending::ALL`].
    pub fn closes(&self) -> impl Iterator<Item = u64> {
        self.closed.iter().map(|count| count.load(Ordering::Relaxed))
    }

    pub fn stats(&self, key_fetches: u64) -> HubStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        HubStats {
            connections: self.connections.load(Ordering::Relaxed),
            users: 0,
            queued_bytes: self.queued_bytes.load(Ordering::Relaxed),
            acknowledged: of(&self.acknowledged),
            nobody: of(&self.nobody),
            no_answer: of(&self.no_answer),
            unavailable: of(&self.unavailable),
            sent: of(&self.sent),
            connected: of(&self.connected),
            no_result: of(&self.no_result),
            threw: of(&self.threw),
            late: of(&self.late),
            unknown: of(&self.unknown),
            slow: of(&self.slow),
            tokens_refused: of(&self.tokens_refused),
            key_fetches,
        }
    }
}
