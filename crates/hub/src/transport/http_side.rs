//! What a connection needs whose client speaks in requests of its own: server-sent events and long
//! polling.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, Notify};

use crate::session::Session;

pub(crate) struct HttpSide {
    /// Requests of one client are read one after another.
    pub session: Mutex<Session>,
    /// Held by the poll that waits.
    pub poll: Mutex<()>,
    /// The newest poll; an older one that still waits gives way.
    pub newest: AtomicU64,
    /// Told when the connection ends.
    pub over: Notify,
    /// Told when a client knows about it.
    pub told: Notify,
    pub said_goodbye: AtomicBool,
    polling: AtomicBool,
    polled: AtomicU32,
}

impl HttpSide {
    pub fn new(now: u32) -> Self {
        HttpSide {
            session: Mutex::default(),
            poll: Mutex::default(),
            newest: AtomicU64::new(0),
            over: Notify::new(),
            told: Notify::new(),
            said_goodbye: AtomicBool::new(false),
            polling: AtomicBool::new(false),
            polled: AtomicU32::new(now),
        }
    }

    pub fn polling(&self, is: bool, now: u32) {
        self.polled.store(now, Ordering::Relaxed);
        self.polling.store(is, Ordering::Release);
    }

    /// Whether no poll has come for too long.
    pub fn is_left(&self, after: Duration, now: u32) -> bool {
        let since = now.saturating_sub(self.polled.load(Ordering::Relaxed));
        !self.polling.load(Ordering::Acquire) && u64::from(since) >= after.as_secs()
    }
}
