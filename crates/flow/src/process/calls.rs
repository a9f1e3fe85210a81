//! The calls of one stage for the events of one run: cut to what it takes, repeated, split.
//!
//! An event is answered for when its call succeeds. What fails with `SetAside` is halved until it
//! is known which event it is; what keeps failing with `Retry` likewise. Alone, it has failed only
//! when one of its failures lies between two successes of others, the first of which started
//! after the failure before (decision 0007): otherwise the fault is what the stage asks, and that
//! is waited for. `Wait` says nothing against an event. The order of calls does not matter, so
//! what keeps failing is put behind the rest, and an event that went through is shown to the stage
//! again as a witness; answers stay in order.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;

use potok_core::{Event, Fault, GroupInfo, Move, Reason, StageResult};

use crate::crash_notes;
use crate::lane::Lane;
use crate::plan::{Per, StagePlan};
use crate::work::Stop;

/// The calls to make for one stage.
pub(super) struct Calls<'a> {
    /// Its place in the plan.
    index: usize,
    stage: &'a StagePlan,
    events: Vec<Event>,
    /// The group, for a stage that works per group.
    group: Option<&'a GroupInfo>,
    queue: VecDeque<Call>,
    answers: Vec<Option<StageResult>>,
    /// An event that went through.
    witness: Option<usize>,
}

/// Some of the events, and how they have fared.
struct Call {
    events: Range<usize>,
    /// Failed attempts in a row.
    failures: u32,
    /// The number of the stage's call that would have come next when it failed last.
    failed_at: Option<u64>,
    /// Failures in a row between which others succeeded.
    strikes: u32,
    /// How often it was waited before the next attempt.
    waits: u32,
}

/// A failure between two successes.
const STRIKES_MAX: u32 = 2;

impl Call {
    fn new(events: Range<usize>) -> Self {
        Call { events, failures: 0, failed_at: None, strikes: 0, waits: 0 }
    }
}

impl<'a> Calls<'a> {
    pub fn new(
        index: usize,
        stage: &'a StagePlan,
        events: Vec<Event>,
        group: Option<&'a GroupInfo>,
    ) -> Calls<'a> {
        let answers = events.iter().map(|_| None).collect();
        let queue = VecDeque::new();
        let mut calls = Calls { index, stage, events, group, queue, answers, witness: None };
        calls.cut();
        calls
    }

    /// Cuts the events into calls that the stage takes.
    fn cut(&mut self) {
        let limits = self.stage.stage.limits();
        let (mut first, mut bytes) = (0, 0_usize);
        for (at, event) in self.events.iter().enumerate() {
            bytes = bytes.saturating_add(event.value.len());
            let full = at - first >= limits.events_max || bytes > limits.bytes_max;
            if self.stage.per == Per::Event && full && at > first {
                self.queue.push_back(Call::new(first..at));
                (first, bytes) = (at, event.value.len());
            }
        }
        self.queue.push_back(Call::new(first..self.events.len()));
    }

    fn events_of(&self, call: &Call) -> Vec<Event> {
        self.events.get(call.events.clone()).unwrap_or_default().to_vec()
    }

    fn answer(&mut self, call: &Call, staged: impl IntoIterator<Item = StageResult>) {
        let places = self.answers.get_mut(call.events.clone()).unwrap_or_default();
        for (place, staged) in places.iter_mut().zip(staged) {
            *place = Some(staged);
        }
    }

    fn fail(&mut self, call: &Call, fault: &Fault) {
        let failed = call.events.clone().map(|_| StageResult::Failed(fault.clone()));
        self.answer(call, failed);
    }

    fn can_split(&self, call: &Call) -> bool {
        call.events.len() > 1 && self.stage.per == Per::Event
    }

    /// Both halves are next. They have had their attempts together, single events have theirs.
    fn split(&mut self, call: &Call, attempts: u32) {
        let Range { start, end } = call.events;
        let middle = start + (end - start) / 2;
        for half in [middle..end, start..middle] {
            let failures = if half.len() > 1 { attempts.saturating_sub(1) } else { 0 };
            self.queue.push_front(Call { failures, ..Call::new(half) });
        }
    }

    fn wrong_count(&self, got: usize, given: usize) -> Stop {
        let what = format!("stage `{}` answered {got} of {given} events", self.stage.name);
        Stop::Fix(Fault::fix(what).code("P0402"))
    }
}

impl Lane {
    /// Makes the calls; answers for each event, in order.
    pub(super) async fn apply(
        &mut self,
        mut calls: Calls<'_>,
        note: crash_notes::Range,
    ) -> Result<Vec<StageResult>, Stop> {
        let attempts = self.plan.retry.attempts;
        while let Some(mut call) = calls.queue.pop_front() {
            let given = call.events.len();
            let fault = match self.call(&calls, calls.events_of(&call), note).await {
                Ok(staged) if staged.len() == given => {
                    if calls.stage.per == Per::Event {
                        calls.witness.get_or_insert(call.events.start);
                    }
                    calls.answer(&call, staged);
                    continue;
                }
                Ok(staged) => return Err(calls.wrong_count(staged.len(), given)),
                Err(fault) => fault,
            };
            match fault.next {
                Move::Fix => return Err(Stop::Fix(fault)),
                Move::SetAside if calls.can_split(&call) => calls.split(&call, 1),
                Move::SetAside => calls.fail(&call, &fault),
                Move::Wait => (call.failures, call.strikes, call.failed_at) = (0, 0, None),
                Move::Retry => self.strike(&mut call, calls.index),
            }
            if fault.next == Move::Retry && call.failures >= attempts {
                if calls.can_split(&call) {
                    calls.split(&call, attempts);
                    continue;
                }
                if call.strikes >= STRIKES_MAX {
                    calls.fail(&call, &Fault { reason: Reason::RetriesExhausted, ..fault });
                    self.counters.stages.goes_on(self.slot);
                    continue;
                }
                if let Some(event) = calls.witness.and_then(|at| calls.events.get(at).cloned()) {
                    // Its answer is known; it counts only that it answers.
                    let _ = self.call(&calls, vec![event], note).await;
                }
            }
            if matches!(fault.next, Move::Wait | Move::Retry) {
                self.counters.stage_retries.fetch_add(1, Ordering::Relaxed);
                let why = format!("stage `{}` waits: {fault}", calls.stage.name);
                self.counters.stages.waits(self.slot, why);
                call.waits += 1;
                let wait = self.plan.retry.wait(call.waits, self.slot as u64 * 97);
                calls.queue.push_back(call);
                self.wait(wait).await?;
            }
        }
        Ok(calls.answers.into_iter().flatten().collect())
    }

    async fn call(
        &self,
        calls: &Calls<'_>,
        events: Vec<Event>,
        note: crash_notes::Range,
    ) -> Result<Vec<StageResult>, Fault> {
        let number = self.counters.stages.call_starts(calls.index);
        let stage = &calls.stage.stage;
        let applied = match (calls.stage.per, calls.group) {
            (Per::Group, Some(group)) => stage.apply_group(group, events),
            (Per::Event | Per::Group, _) => stage.apply(events),
        };
        let began = tokio::time::Instant::now();
        let answered = self.noted(applied, note).await;
        let stages = &self.counters.stages;
        match &answered {
            Ok(_) => stages.worked(calls.index, number, self.slot, began.elapsed()),
            Err(_) => stages.call_failed(calls.index, began.elapsed()),
        }
        answered
    }

    /// Notes a failure that may be the event's own.
    fn strike(&self, call: &mut Call, stage: usize) {
        call.failures = call.failures.saturating_add(1);
        let stages = &self.counters.stages;
        let worked_since = call.failed_at.is_some_and(|at| stages.worked_since(stage, at));
        call.strikes = if worked_since { call.strikes + 1 } else { 0 };
        call.failed_at = Some(stages.next_call(stage));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::sync::Arc;

    use bytes::Bytes;
    use potok_core::{Headers, Position, Stage, StageLimits, Timestamp};

    use super::*;
    use crate::plan::OnError;

    struct Limited(StageLimits);

    #[async_trait::async_trait]
    impl Stage for Limited {
        fn limits(&self) -> StageLimits {
            self.0
        }

        async fn apply(&self, events: Vec<Event>) -> Result<Vec<StageResult>, Fault> {
            Ok(events.into_iter().map(StageResult::On).collect())
        }
    }

    fn cut(sizes: &[usize], limits: StageLimits, per: Per) -> Vec<Range<usize>> {
        let event = |size: &usize| Event {
            position: Position { log: 1, topic: "t".into(), partition: 0, offset: 0 },
            time: Timestamp(0),
            key: None,
            headers: Headers::none(),
            value: Bytes::from(vec![b'1'; *size]),
            source: Bytes::new(),
            tombstone: false,
        };
        let stage = Arc::new(Limited(limits));
        let (name, counts) = ("s".into(), Vec::new());
        let plan = StagePlan { name, stage, per, on_error: OnError::Stop, counts };
        let calls = Calls::new(0, &plan, sizes.iter().map(event).collect(), None);
        calls.queue.iter().map(|call| call.events.clone()).collect()
    }

    #[test]
    fn events_are_cut_into_calls_that_the_stage_takes() {
        let limits = StageLimits { events_max: 2, bytes_max: 10 };
        assert_eq!(cut(&[1, 1, 1, 1, 1], limits, Per::Event), [0..2, 2..4, 4..5]);
        assert_eq!(cut(&[99, 4, 7, 3], limits, Per::Event), [0..1, 1..2, 2..4]);
        assert_eq!(cut(&[99, 4, 7, 3], limits, Per::Group), [0..4]);
        assert_eq!(cut(&[9, 9, 9], StageLimits::default(), Per::Event), [0..3]);
    }
}
