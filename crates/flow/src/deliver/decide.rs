//! Records of which nobody can tell whether they or their destination are to blame.
//!
//! They wait, are tried again and again, and go on by themselves as soon as it can be told. Who
//! does not want to wait for that may have them set aside.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::signal::Signal;
use crate::waits::{Waits, WaitsFor};

/// A record that may be set aside by hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UndecidedRecord {
    /// Where it came from.
    pub position: String,
    /// Its key, if it has one.
    pub key: Option<String>,
    /// The deliver entry that does not take it.
    pub deliver: String,
    /// How often it was refused alone.
    pub refused: u32,
    /// Since when, as RFC 3339.
    pub since: String,
    /// With what, the last time.
    pub error: String,
}

/// The records of one pipeline that wait for a decision, at most one for each lane.
pub(crate) struct Decisions {
    pipeline: String,
    waits: Arc<Waits>,
    /// By lane; true once somebody has decided.
    undecided: Mutex<BTreeMap<usize, (UndecidedRecord, bool)>>,
    /// Counts decisions.
    made: Signal<u64>,
}

impl Decisions {
    pub fn new(pipeline: &str, waits: Arc<Waits>) -> Self {
        let made = Signal::new(0);
        Decisions { pipeline: pipeline.to_owned(), waits, undecided: Mutex::default(), made }
    }

    /// A run begins: nothing waits.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// This record of a lane waits; said again and again while it lasts.
    pub fn begin(&self, lane: usize, record: UndecidedRecord) {
        let UndecidedRecord { position, key, deliver, refused, since, error } = &record;
        let key = key.as_ref().map(|key| format!(" (key {key:?})")).unwrap_or_default();
        let pipeline = &self.pipeline;
        let why = format!(
            "{deliver} has refused {position}{key} {refused} times since {since}: {error}; nothing \
             else has got through, so it may be the record or the destination; it is tried again \
             and again: `potok resume {pipeline}` does so now, `potok dead-letters set-aside \
             {pipeline} {position}` gives it up"
        );
        self.waits.begin(WaitsFor::Decision, lane, why);
        let mut undecided = self.lock();
        let decided = undecided.get(&lane).is_some_and(|(known, decided)| {
            *decided && known.position == record.position && known.deliver == record.deliver
        });
        undecided.insert(lane, (record, decided));
    }

    /// Nothing of this lane waits any more.
    pub fn end(&self, lane: usize) {
        if self.lock().remove(&lane).is_some() {
            self.waits.end(WaitsFor::Decision, lane);
        }
    }

    /// Waits until somebody has decided about the record of this lane.
    pub async fn made(&self, lane: usize) {
        let is_made = |_| self.lock().get(&lane).is_some_and(|(_, decided)| *decided);
        self.made.wait_for(is_made).await;
    }

    pub fn list(&self) -> Vec<UndecidedRecord> {
        self.lock().values().map(|(record, _)| record.clone()).collect()
    }

    /// Has those set aside whose positions are wanted; returns them.
    pub fn set_aside(&self, wanted: impl Fn(&UndecidedRecord) -> bool) -> Vec<UndecidedRecord> {
        let mut taken = Vec::new();
        for (record, decided) in self.lock().values_mut().filter(|(record, _)| wanted(record)) {
            *decided = true;
            taken.push(record.clone());
        }
        for UndecidedRecord { position, deliver, refused, .. } in &taken {
            let pipeline = &self.pipeline;
            tracing::warn!(pipeline, position, deliver, refused, "set aside by hand");
        }
        self.made.set(self.made.get() + 1);
        taken
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, (UndecidedRecord, bool)>> {
        self.undecided.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
