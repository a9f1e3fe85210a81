//! What the simulated log makes of outputs that it may refuse one by one.
//!
//! On a log of one process all of them are one frame: where that is not written, or its answer is
//! lost, none has another outcome. On one like Kafka each fares by itself, but within a key nothing of
//! a run is written behind what was not.

use std::sync::{Arc, Mutex};

use potok_core::{Fault, OfferMode, OfferOutcome, Output, Transaction};
use tokio::sync::oneshot;

use super::log::{SimLog, too_large};
use super::promises;
use super::source::SimAssignments;
use super::trouble::Trouble;
use super::world::State;

/// One call.
pub(super) struct Offer {
    pub outputs: Vec<Output>,
    pub mode: OfferMode,
    /// All of them are written at once.
    pub is_frame: bool,
}

impl Offer {
    /// It runs to its end even when its caller goes away; only the death of the process stops it.
    pub async fn put(
        self,
        log: Arc<SimLog>,
        lives: Vec<Arc<Mutex<SimAssignments>>>,
    ) -> Vec<OfferOutcome> {
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            log.world.latency(Trouble::TransactSlow).await;
            log.world.step("the log, before it takes what is offered").await;
            log.whose_is_awake(&lives).await;
            let outcomes = self.outcomes(&log, &lives);
            log.changed.notify_waiters();
            log.world.step("the log, after it took what was offered").await;
            log.world.latency(Trouble::TransactSlow).await;
            let _ = answer.send(outcomes);
        });
        match answered.await {
            Ok(outcomes) => outcomes,
            // The task went down with the process.
            Err(_) => std::future::pending().await,
        }
    }

    fn outcomes(&self, log: &SimLog, lives: &[Arc<Mutex<SimAssignments>>]) -> Vec<OfferOutcome> {
        let all = |fault: Fault| {
            self.outputs.iter().map(|_| OfferOutcome::Unsent(fault.clone())).collect()
        };
        // What is new to the log ends nothing that is there: it may not have the last room.
        if log.world.with(State::has_full_disk) {
            return all(Fault::wait("simulated: the disk is full"));
        }
        let away = |w: &mut State| {
            w.log_is_under(Trouble::LogAway)
                || (self.is_frame && w.strikes(Trouble::TransactRefused, 15))
        };
        if log.world.with(away) {
            log.world.with(|w| w.note("the log takes nothing that is offered"));
            return all(Fault::wait("simulated: the log is away"));
        }
        let mut outcomes: Vec<OfferOutcome> = Vec::with_capacity(self.outputs.len());
        for output in &self.outputs {
            let before = self.outputs.iter().zip(&outcomes);
            let before: Vec<_> = before.filter(|(other, _)| other.topic == output.topic).collect();
            let is_behind = self.mode == OfferMode::Run
                && before.iter().any(|(other, outcome)| {
                    other.key == output.key && !matches!(outcome, OfferOutcome::Written)
                });
            // Of a run it may have only stood beside one that was refused.
            let is_beside = self.mode == OfferMode::Run
                && before.iter().any(|(_, outcome)| matches!(outcome, OfferOutcome::Refused(_)))
                && log.world.with(|w| w.chance.one_in(2));
            outcomes.push(match is_behind || is_beside {
                true if log.world.with(|w| w.chance.one_in(2)) => {
                    OfferOutcome::Refused(Fault::fix("simulated: it stood beside one"))
                }
                true => OfferOutcome::Unsent(Fault::retry("one before it was not written")),
                false => self.one(log, lives, output),
            });
        }
        let written = outcomes.iter().any(|outcome| matches!(outcome, OfferOutcome::Written));
        if self.is_frame && written && log.world.with(|w| w.strikes(Trouble::TransactReplyLost, 15))
        {
            let outputs = self.outputs.iter().zip(&outcomes);
            let written = outputs.filter(|(_, outcome)| matches!(outcome, OfferOutcome::Written));
            let written: Vec<Output> = written.map(|(output, _)| output.clone()).collect();
            return all(lost(log, &written));
        }
        outcomes
    }

    fn one(
        &self,
        log: &SimLog,
        lives: &[Arc<Mutex<SimAssignments>>],
        output: &Output,
    ) -> OfferOutcome {
        let outputs = vec![output.clone()];
        let refusal = log.world.with(|w| {
            if w.log_is_under(Trouble::TopicForbidden) {
                w.note(format_args!("{} is forbidden", output.topic));
                return Some(Fault::fix("simulated: the topic is forbidden"));
            }
            too_large(w, &outputs).pop().map(|(_, fault)| fault)
        });
        if let Some(fault) = refusal {
            return OfferOutcome::Refused(fault);
        }
        if !self.is_frame && log.world.with(|w| w.strikes(Trouble::TransactRefused, 30)) {
            return OfferOutcome::Unsent(Fault::wait("simulated: the log is away"));
        }
        let transaction = Transaction { outputs, ended: Vec::new() };
        if let Err(not_written) = log.apply(&transaction, lives) {
            return OfferOutcome::not_written(not_written.into());
        }
        if !self.is_frame && log.world.with(|w| w.strikes(Trouble::TransactReplyLost, 30)) {
            return OfferOutcome::Unsent(lost(log, &transaction.outputs));
        }
        OfferOutcome::Written
    }
}

/// These are written, and nobody is told.
fn lost(log: &SimLog, written: &[Output]) -> Fault {
    log.world.with(|w| {
        w.note("the answer to an offer is lost");
        promises::excuse_repeats(w, written);
    });
    Fault::retry("simulated: the answer of the log was lost")
}
