//! The connections of one sink to its server.
//!
//! A connection belongs to one call at a time and comes back only when its transaction ended as it
//! should: after a timeout, a lost answer or a cancelled call it is dropped, which closes it, and
//! the server rolls back. Nobody holds one while waiting for a retry, so outages exhaust nothing.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// Calls at the same time; further lanes wait their turn.
const CONNECTIONS_MAX: usize = 16;
/// A connection unused for longer may have been cut by something between, unseen.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// How long a server may take. What takes longer is given up, so that a frozen server cannot hold
/// a lane: its connections stay open and simply do not answer.
#[derive(Clone, Copy, Debug)]
pub struct SqlTimeouts {
    /// For a new connection, and for the first answer on one used before.
    pub connect: Duration,
    /// For a whole call. The server is told to give up a statement a little earlier.
    pub call: Duration,
    /// For a lock that another transaction holds.
    pub lock: Duration,
}

impl Default for SqlTimeouts {
    fn default() -> Self {
        SqlTimeouts {
            connect: Duration::from_secs(5),
            call: Duration::from_secs(30),
            lock: Duration::from_secs(10),
        }
    }
}

impl SqlTimeouts {
    /// What the server is told for one statement.
    pub(crate) fn statement(&self) -> Duration {
        self.call.mul_f64(0.8)
    }
}

/// Those that are open and unused.
pub(crate) struct Connections<C> {
    idle: Mutex<Vec<(C, Instant)>>,
    places: Semaphore,
}

impl<C> Connections<C> {
    pub fn new() -> Self {
        Connections { idle: Mutex::default(), places: Semaphore::new(CONNECTIONS_MAX) }
    }

    /// Waits for the right to have a connection. Holders are bounded by their timeouts.
    pub async fn place(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed, so there always is one.
        self.places.acquire().await.ok()
    }

    /// One that was used before.
    pub fn take(&self) -> Option<C> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let old = |since: &Instant| since.elapsed() > IDLE_MAX;
        // The last one in is the freshest: where it is too old, all are.
        if idle.last().is_some_and(|(_, since)| old(since)) {
            idle.clear();
        }
        idle.pop().map(|(connection, _)| connection)
    }

    /// Takes back one in whose session nothing is open.
    pub fn give_back(&self, connection: C) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push((connection, Instant::now()));
    }

    /// Closes all that are unused: what happened to one may have happened to all.
    pub fn forget(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
