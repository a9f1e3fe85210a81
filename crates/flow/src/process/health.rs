//! How the stages of a pipeline fare, across its lanes.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Calls that succeeded, and who waits.
#[derive(Debug, Default)]
pub(crate) struct Stages(Mutex<StageHealth>);

#[derive(Debug, Default)]
struct StageHealth {
    stages: Vec<StageCalls>,
    /// Why a lane waits for a stage, by its slot.
    waiting: BTreeMap<usize, String>,
}

/// The calls of one stage are numbered in the order in which they start.
#[derive(Clone, Copy, Debug, Default)]
struct StageCalls {
    /// The next call's number, from 1.
    next: u64,
    /// The latest call that succeeded.
    worked: u64,
}

impl StageHealth {
    fn stage(&mut self, stage: usize) -> Option<&mut StageCalls> {
        if self.stages.len() <= stage {
            self.stages.resize(stage + 1, StageCalls { next: 1, worked: 0 });
        }
        self.stages.get_mut(stage)
    }
}

impl Stages {
    fn state(&self) -> MutexGuard<'_, StageHealth> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call of a stage starts; its number.
    pub fn call_starts(&self, stage: usize) -> u64 {
        let mut state = self.state();
        let Some(numbers) = state.stage(stage) else { return 0 };
        numbers.next += 1;
        numbers.next - 1
    }

    /// The number of the next call.
    pub fn next_call(&self, stage: usize) -> u64 {
        self.state().stage(stage).map_or(0, |numbers| numbers.next)
    }

    /// A call succeeded, so its lane waits no longer.
    pub fn worked(&self, stage: usize, number: u64, lane: usize) {
        let mut state = self.state();
        if let Some(numbers) = state.stage(stage) {
            numbers.worked = numbers.worked.max(number);
        }
        state.waiting.remove(&lane);
    }

    /// Whether a call has succeeded that had this number or a later one.
    pub fn worked_since(&self, stage: usize, number: u64) -> bool {
        self.state().stage(stage).is_some_and(|numbers| numbers.worked >= number)
    }

    /// A lane gave up waiting.
    pub fn goes_on(&self, lane: usize) {
        self.state().waiting.remove(&lane);
    }

    /// A lane waits.
    pub fn waits(&self, lane: usize, why: String) {
        self.state().waiting.insert(lane, why);
    }

    /// No lane runs any more.
    pub fn nobody_waits(&self) {
        self.state().waiting.clear();
    }

    /// Why some lane waits, if one does.
    pub fn why(&self) -> Option<String> {
        self.state().waiting.values().next().cloned()
    }
}
