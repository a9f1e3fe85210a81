//! How the stages of a pipeline fare, across its lanes.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use potok_core::StageResult;
use serde::Serialize;

use crate::plan::Per;

/// Calls that succeeded, and who waits.
#[derive(Debug, Default)]
pub(crate) struct Stages(Mutex<StageHealth>);

#[derive(Debug, Default)]
struct StageHealth {
    stages: Vec<StageCalls>,
    /// Why a lane waits for a stage, by its slot.
    waiting: BTreeMap<usize, String>,
}

/// What a stage has done since the process started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StageStatus {
    /// Its name in the file.
    pub stage: String,
    /// It works on groups, not on single events.
    pub per_group: bool,
    /// Calls, those that failed among them.
    pub calls: u64,
    /// Calls that failed and were repeated or cut in halves.
    pub failed_calls: u64,
    /// Events it was given; one that is processed again counts again.
    pub events: u64,
    /// Of these: filtered, failed, and gone into the message of another.
    pub filtered: u64,
    pub failed: u64,
    pub merged: u64,
    /// Milliseconds that calls took, of all lanes together.
    pub busy: u64,
}

/// The calls of one stage are numbered in the order in which they start.
#[derive(Clone, Copy, Debug, Default)]
struct StageCalls {
    /// The next call's number, from 1.
    next: u64,
    /// The latest call that succeeded.
    worked: u64,
    failed_calls: u64,
    events: u64,
    filtered: u64,
    failed: u64,
    merged: u64,
    busy: Duration,
}

impl StageHealth {
    fn stage(&mut self, stage: usize) -> Option<&mut StageCalls> {
        if self.stages.len() <= stage {
            self.stages.resize(stage + 1, StageCalls { next: 1, ..StageCalls::default() });
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
    pub fn worked(&self, stage: usize, number: u64, lane: usize, took: Duration) {
        let mut state = self.state();
        if let Some(numbers) = state.stage(stage) {
            numbers.worked = numbers.worked.max(number);
            numbers.busy += took;
        }
        state.waiting.remove(&lane);
    }

    /// Counts a call that failed, and the time it took.
    pub fn call_failed(&self, stage: usize, took: Duration) {
        let mut state = self.state();
        let Some(numbers) = state.stage(stage) else { return };
        numbers.failed_calls += 1;
        numbers.busy += took;
    }

    /// The stage has answered for these events.
    pub fn answered(&self, stage: usize, staged: &[StageResult]) {
        let mut state = self.state();
        let Some(numbers) = state.stage(stage) else { return };
        numbers.events += staged.len() as u64;
        for staged in staged {
            match staged {
                StageResult::Filtered => numbers.filtered += 1,
                StageResult::Failed(_) => numbers.failed += 1,
                StageResult::Into => numbers.merged += 1,
                StageResult::On(_) | StageResult::Merged(_) => {}
            }
        }
    }

    /// What each has done so far.
    pub fn list(&self, plans: &[(String, Per)]) -> Vec<StageStatus> {
        let mut state = self.state();
        let mut status = |(at, (stage, per)): (usize, &(String, Per))| {
            let numbers = state.stage(at).map(|numbers| *numbers).unwrap_or_default();
            StageStatus {
                stage: stage.clone(),
                per_group: *per == Per::Group,
                calls: numbers.next.saturating_sub(1),
                failed_calls: numbers.failed_calls,
                events: numbers.events,
                filtered: numbers.filtered,
                failed: numbers.failed,
                merged: numbers.merged,
                busy: u64::try_from(numbers.busy.as_millis()).unwrap_or(u64::MAX),
            }
        };
        plans.iter().enumerate().map(&mut status).collect()
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
