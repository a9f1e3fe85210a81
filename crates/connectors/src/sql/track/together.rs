//! Steps that lanes make at the same time, in one transaction.
//!
//! A database in one file takes one transaction at a time and syncs after each: many lanes would wait
//! for each other. Whoever has the turn makes all steps that wait by then. Where one of them is refused
//! each is made alone, so that it holds up nobody else.

use std::mem;
use std::sync::{Mutex, PoisonError};

use potok_core::{Fault, Move, TrackStep};
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::{SqlTracker, TrackDatabase};

type StepAnswer = oneshot::Sender<Result<(), Fault>>;

/// Steps that wait for the next transaction.
#[derive(Default)]
pub(super) struct StepQueue {
    waiting: Mutex<Vec<(TrackStep, StepAnswer)>>,
    turn: tokio::sync::Mutex<()>,
}

impl StepQueue {
    fn push(&self, step: &TrackStep) -> oneshot::Receiver<Result<(), Fault>> {
        let (answer, made) = oneshot::channel();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push((step.clone(), answer));
        made
    }

    fn take(&self) -> (Vec<TrackStep>, Vec<StepAnswer>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        mem::take(&mut *waiting).into_iter().unzip()
    }
}

impl<D: TrackDatabase> SqlTracker<D> {
    /// Makes a step together with those that wait. Whoever is cut off leaves its step to the others: it
    /// says no more than is so.
    pub(super) async fn step_together(&self, step: &TrackStep) -> Result<(), Fault> {
        let mut made = self.queue.push(step);
        let _turn = self.queue.turn.lock().await;
        match made.try_recv() {
            Ok(made) => return made,
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Closed) => return Err(given_up()),
        }
        let (steps, answers) = self.queue.take();
        let done = self.steps(&steps).await;
        let is_refused = |fault: &Fault| fault.next != Move::Wait && steps.len() > 1;
        let each_alone = done.as_ref().is_err_and(is_refused);
        for (step, answer) in steps.iter().zip(answers) {
            let done = match each_alone {
                true => self.steps(std::slice::from_ref(step)).await,
                false => done.clone(),
            };
            // Nobody may be waiting any more.
            let _ = answer.send(done);
        }
        made.try_recv().unwrap_or_else(|_| Err(given_up()))
    }
}

fn given_up() -> Fault {
    Fault::wait("a step of the tracking table was given up").code("P1404")
}
