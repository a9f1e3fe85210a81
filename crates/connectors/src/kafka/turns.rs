//! Calls of one journal that overlap, and whose records still meet Kafka in the order of the calls.
//!
//! ```text
//!   enter ──► ready ──► records handed over ──► receipts ──► done
//!             older calls have    │
//!             handed theirs over  └── some not written ──► alone ──► handed over again ──► done
//!             and are well                                older calls are done
//! ```
//!
//! Records that one producer got in order are written in order or not at all. So a call whose
//! records were not all written only has to keep later ones from starting, and to go again before
//! those that had started already.

use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::sync::Notify;

use super::lock;

#[derive(Default)]
pub struct Turns {
    state: Mutex<TurnQueue>,
    changed: Notify,
}

#[derive(Default)]
struct TurnQueue {
    next: u64,
    /// Oldest first.
    open: VecDeque<(u64, Standing)>,
    /// The producer that got the latest records.
    producer: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Waiting,
    HandedOver,
    InTrouble,
}

impl TurnQueue {
    fn older(&self, number: u64) -> impl Iterator<Item = Standing> {
        self.open.iter().take_while(move |(at, _)| *at != number).map(|(_, standing)| *standing)
    }

    fn set(&mut self, number: u64, to: Standing) {
        let open = self.open.iter_mut().find(|(at, _)| *at == number);
        open.into_iter().for_each(|(_, standing)| *standing = to);
    }
}

impl Turns {
    /// A call begins, behind all that began before.
    pub fn enter(&self) -> Turn<'_> {
        let mut state = lock(&self.state);
        state.next += 1;
        let number = state.next;
        state.open.push_back((number, Standing::Waiting));
        Turn { turns: self, number }
    }

    async fn until(&self, holds: impl Fn(&TurnQueue) -> bool) {
        loop {
            // A change between the look and the wait is not missed.
            let changed = self.changed.notified();
            if holds(&lock(&self.state)) {
                return;
            }
            changed.await;
        }
    }
}

/// A call's place in the order; dropped when it is done.
pub struct Turn<'a> {
    turns: &'a Turns,
    number: u64,
}

impl Turn<'_> {
    /// Waits until the older calls have handed over their records and are well.
    pub async fn ready(&self) {
        let well =
            |state: &TurnQueue| state.older(self.number).all(|at| at == Standing::HandedOver);
        self.turns.until(well).await;
    }

    /// True when records may be handed to this producer now: the older calls are still well and
    /// have given theirs to the same, or are done.
    pub fn may_use(&self, producer: u64) -> bool {
        let mut state = lock(&self.turns.state);
        let mut older = state.older(self.number).peekable();
        let may = older.peek().is_none()
            || (state.producer == producer && older.all(|at| at == Standing::HandedOver));
        drop(older);
        if may {
            state.producer = producer;
        }
        may
    }

    /// All records are handed over: the next call may do the same.
    pub fn handed_over(&self) {
        lock(&self.turns.state).set(self.number, Standing::HandedOver);
        self.turns.changed.notify_waiters();
    }

    /// Records have to go again: waits until all older calls are done. Later ones, unless they have
    /// handed over theirs already, wait until this one is done.
    pub async fn alone(&self) {
        lock(&self.turns.state).set(self.number, Standing::InTrouble);
        self.turns.until(|state| state.older(self.number).next().is_none()).await;
    }

    /// The call failed and nobody goes again before somebody has changed the set-up: what came
    /// behind it stays behind it.
    pub fn stay(self) {
        lock(&self.turns.state).set(self.number, Standing::InTrouble);
        std::mem::forget(self);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.turns.state).open.retain(|(at, _)| *at != self.number);
        self.turns.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    /// True when the wait is over.
    fn is_over(wait: impl Future<Output = ()>) -> bool {
        pin!(wait).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn records_are_handed_over_in_the_order_of_the_calls() {
        let turns = Turns::default();
        let (one, two) = (turns.enter(), turns.enter());
        assert!(is_over(one.ready()) && !is_over(two.ready()));
        assert!(one.may_use(7));
        one.handed_over();
        assert!(is_over(two.ready()) && two.may_use(7));
        drop(one);
        assert!(is_over(two.alone()));
    }

    #[test]
    fn a_call_in_trouble_goes_before_those_behind_it() {
        let turns = Turns::default();
        let (one, two, three) = (turns.enter(), turns.enter(), turns.enter());
        one.handed_over();
        two.handed_over();
        assert!(is_over(three.ready()));
        assert!(is_over(one.alone()));
        assert!(!two.may_use(0) && !is_over(two.alone()), "it had handed over: goes again later");
        assert!(!three.may_use(0) && !is_over(three.ready()), "it had not begun");
        drop(one);
        assert!(is_over(two.alone()) && !is_over(three.ready()));
        drop(two);
        assert!(is_over(three.ready()));
    }

    #[test]
    fn nothing_overtakes_a_call_that_failed() {
        let turns = Turns::default();
        let (one, two, three) = (turns.enter(), turns.enter(), turns.enter());
        one.handed_over();
        two.handed_over();
        one.stay();
        assert!(!is_over(two.alone()) && !is_over(three.ready()));
    }

    #[test]
    fn another_producer_is_used_only_when_the_older_calls_are_done() {
        let turns = Turns::default();
        let (one, two) = (turns.enter(), turns.enter());
        assert!(one.may_use(1));
        one.handed_over();
        assert!(!two.may_use(2), "what the first had stopped with would come later");
        drop(one);
        assert!(two.may_use(2));
    }
}
