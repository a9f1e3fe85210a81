//! One message on its way to one person, and the single answer to it.
//!
//! A [`Delivery`] is shared by the connections that were given the message. Each of them either
//! acknowledges it or lets go of it; when nobody is left who could answer, that is the answer. What
//! is dropped unanswered, by a panic or the end of the hub, answers [`Answer::Unavailable`].

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::connection::Connection;
use crate::contract::{AckRule, Answer, Answers, Outgoing, Ticket};
use crate::counters::Counters;

pub(crate) struct Delivery {
    pub ticket: Ticket,
    pub ack: AckRule,
    pub ack_within: Duration,
    answers: Arc<dyn Answers>,
    counters: Arc<Counters>,
    /// Connections that may still answer, and one for whoever still hands it out.
    open: AtomicUsize,
    settled: AtomicBool,
    written: AtomicBool,
    /// Whether a connection's window made it wait.
    waited: AtomicBool,
    /// Whether it waited for a user who had just left.
    lingered: AtomicBool,
    /// Other nodes that have not replied yet.
    legs: AtomicUsize,
    /// Another node may have taken it, and its reply may be lost.
    unsure: AtomicBool,
    targets: Mutex<Vec<Weak<Connection>>>,
}

impl Delivery {
    pub fn new(
        outgoing: &Outgoing,
        answers: &Arc<dyn Answers>,
        counters: &Arc<Counters>,
    ) -> Arc<Self> {
        Arc::new(Delivery {
            ticket: outgoing.ticket,
            ack: outgoing.ack,
            ack_within: outgoing.ack_within,
            answers: answers.clone(),
            counters: counters.clone(),
            open: AtomicUsize::new(1),
            settled: AtomicBool::new(false),
            written: AtomicBool::new(false),
            waited: AtomicBool::new(false),
            lingered: AtomicBool::new(false),
            legs: AtomicUsize::new(0),
            unsure: AtomicBool::new(false),
            targets: Mutex::default(),
        })
    }

    /// Says which connections it is handed to; each counts as one that may answer.
    pub fn target(&self, connections: &[Arc<Connection>]) {
        self.open.fetch_add(connections.len(), Ordering::AcqRel);
        self.own_targets().extend(connections.iter().map(Arc::downgrade));
    }

    /// The connections that still exist.
    pub fn targets(&self) -> Vec<Arc<Connection>> {
        self.own_targets().iter().filter_map(Weak::upgrade).collect()
    }

    fn own_targets(&self) -> MutexGuard<'_, Vec<Weak<Connection>>> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another node may answer too.
    pub fn add_leg(&self) {
        self.open.fetch_add(1, Ordering::AcqRel);
        self.legs.fetch_add(1, Ordering::AcqRel);
    }

    /// Another node has replied; it still counts as one who may answer, until it is released.
    pub fn end_leg(&self) {
        self.legs.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether one alone may still answer, and nobody was shown it.
    pub fn is_last(&self) -> bool {
        self.open.load(Ordering::Acquire) == 1 && !self.written.load(Ordering::Acquire)
    }

    /// An answer of another node may be lost on the way.
    pub fn mark_unsure(&self) {
        self.unsure.store(true, Ordering::Release);
    }

    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    pub fn belongs_to(&self, answers: &Arc<dyn Answers>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.answers), Arc::as_ptr(answers))
    }

    /// It is on a connection's way out.
    pub fn mark_written(&self) {
        self.written.store(true, Ordering::Release);
    }

    pub fn mark_waited(&self) {
        self.waited.store(true, Ordering::Release);
    }

    pub fn has_waited(&self) -> bool {
        self.waited.load(Ordering::Acquire)
    }

    /// It waits for a user who has just left.
    pub fn mark_lingering(&self) {
        self.lingered.store(true, Ordering::Release);
    }

    fn count(&self, answer: Answer) {
        self.counters.answered(answer);
        if self.lingered.load(Ordering::Acquire) {
            self.counters.lingered(answer);
        }
    }

    /// Ends it without an answer.
    pub fn cancel(&self) {
        self.settled.store(true, Ordering::Release);
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if !self.settled.swap(true, Ordering::AcqRel) {
            self.count(Answer::Unavailable);
            self.answers.settle(&[(self.ticket, Answer::Unavailable)]);
        }
    }
}

/// Answers on their way to those who asked: collected while locks are held, told afterwards.
#[derive(Default)]
pub(crate) struct Settlements {
    all: Vec<(Arc<dyn Answers>, Ticket, Answer)>,
}

impl Settlements {
    /// Whether this was its answer: the first one counts.
    pub fn settle(&mut self, delivery: &Delivery, answer: Answer) -> bool {
        if delivery.settled.swap(true, Ordering::AcqRel) {
            return false;
        }
        delivery.count(answer);
        self.all.push((delivery.answers.clone(), delivery.ticket, answer));
        true
    }

    /// One who might have answered will not.
    pub fn release(&mut self, delivery: &Delivery) {
        if delivery.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.unanswered(delivery);
        }
    }

    pub fn unanswered(&mut self, delivery: &Delivery) {
        let answer = match delivery.unsure.load(Ordering::Acquire) {
            true => Answer::Unavailable,
            // Where a node has not replied, it may have been seen there.
            false => Answer::NoAnswer {
                written: delivery.written.load(Ordering::Acquire)
                    || delivery.legs.load(Ordering::Acquire) > 0,
            },
        };
        self.settle(delivery, answer);
    }

    /// Its user is nowhere.
    pub fn nobody(&mut self, delivery: &Delivery) {
        match delivery.unsure.load(Ordering::Acquire) {
            true => self.settle(delivery, Answer::Unavailable),
            false => self.settle(delivery, Answer::Nobody),
        };
    }
}

impl Drop for Settlements {
    /// Tells them, those of one asker together.
    fn drop(&mut self) {
        let mut all = std::mem::take(&mut self.all).into_iter().peekable();
        while let Some((answers, ticket, answer)) = all.next() {
            let mut together = vec![(ticket, answer)];
            let same = |(other, ..): &(Arc<dyn Answers>, Ticket, Answer)| {
                std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(&answers))
            };
            while let Some((_, ticket, answer)) = all.next_if(same) {
                together.push((ticket, answer));
            }
            answers.settle(&together);
        }
    }
}

/// When answers are due. A queue per length of time: in each of them deadlines only rise, so that
/// looking at their fronts is enough.
#[derive(Default)]
pub(crate) struct Deadlines {
    queues: Mutex<HashMap<(Duration, Chance), Queue>>,
}

/// Below so many entries nothing is looked through.
const SWEPT_MIN: usize = 1_024;

#[derive(Default)]
struct Queue {
    entries: VecDeque<(Instant, Arc<Delivery>)>,
    /// When there are so many, those that are answered go: one that is open would hold all behind it.
    swept_at: usize,
}

impl Queue {
    fn push(&mut self, deadline: Instant, delivery: Arc<Delivery>) {
        if self.entries.len() >= self.swept_at.max(SWEPT_MIN) {
            self.entries.retain(|(_, delivery)| !delivery.is_settled());
            self.swept_at = 2 * self.entries.len();
        }
        self.entries.push_back((deadline, delivery));
    }
}

/// A message that waited for a connection's window gets a second length of time.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Chance {
    First,
    Second,
}

impl Deadlines {
    pub fn add(&self, delivery: Arc<Delivery>) {
        let within = delivery.ack_within;
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.entry((within, Chance::First)).or_default();
        queue.push(Instant::now() + within, delivery);
    }

    /// Those whose time is over.
    pub fn due(&self, now: Instant) -> Vec<Arc<Delivery>> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut due, mut again) = (Vec::new(), Vec::new());
        for ((_, chance), queue) in queues.iter_mut() {
            let is_due = |(deadline, delivery): &mut (Instant, Arc<Delivery>)| {
                *deadline <= now || delivery.is_settled()
            };
            while let Some((deadline, delivery)) = queue.entries.pop_front_if(is_due) {
                match delivery.is_settled() {
                    true => {}
                    false if *chance == Chance::First && delivery.has_waited() => {
                        again.push((deadline + delivery.ack_within, delivery));
                    }
                    false => due.push(delivery),
                }
            }
        }
        queues.retain(|_, queue| !queue.entries.is_empty());
        for (deadline, delivery) in again {
            let key = (delivery.ack_within, Chance::Second);
            queues.entry(key).or_default().push(deadline, delivery);
        }
        due
    }

    /// Those without an answer that `wanted` picks.
    pub fn find(&self, wanted: impl Fn(&Delivery) -> bool) -> Vec<Arc<Delivery>> {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let all = queues.values().flat_map(|queue| &queue.entries).map(|(_, delivery)| delivery);
        all.filter(|delivery| !delivery.is_settled() && wanted(delivery)).cloned().collect()
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.queues.lock().unwrap().values().map(|queue| queue.entries.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Frame, UserId};

    /// Whoever holds a message when it panics does not take its answer away.
    #[test]
    fn what_is_dropped_unanswered_is_unavailable_and_counted() {
        #[derive(Default)]
        struct Recorder(Mutex<Vec<(Ticket, Answer)>>);
        impl Answers for Recorder {
            fn settle(&self, answers: &[(Ticket, Answer)]) {
                self.0.lock().unwrap().extend_from_slice(answers);
            }
        }
        let (recorder, counters) = (Arc::new(Recorder::default()), Arc::<Counters>::default());
        let answers: Arc<dyn Answers> = recorder.clone();
        let delivery = |ticket| {
            let outgoing = Outgoing {
                ticket: Ticket(ticket),
                user: UserId::new("alice"),
                frame: Frame::new("notify", "m", b"1", 1_000).unwrap(),
                ack_within: Duration::from_secs(10),
                ack: AckRule::Any,
            };
            Delivery::new(&outgoing, &answers, &counters)
        };
        let held = delivery(1);
        let panicking = std::thread::spawn(move || {
            let _held = held;
            panic!("on purpose");
        });
        assert!(panicking.join().is_err());
        // Answered or cancelled, it is not answered again.
        Settlements::default().settle(&delivery(2), Answer::Acknowledged);
        delivery(3).cancel();
        let answered = [(Ticket(1), Answer::Unavailable), (Ticket(2), Answer::Acknowledged)];
        assert_eq!(*recorder.0.lock().unwrap(), answered);
        let stats = counters.stats(0);
        assert_eq!((stats.unavailable, stats.acknowledged), (1, 1));
    }

    struct Deaf;

    impl Answers for Deaf {
        fn settle(&self, _: &[(Ticket, Answer)]) {}
    }

    /// One client that does not answer must not make the hub remember everybody's messages.
    #[tokio::test(start_paused = true)]
    async fn what_is_answered_is_not_kept_behind_what_is_open() {
        let (deadlines, counters) = (Deadlines::default(), Arc::default());
        let answers: Arc<dyn Answers> = Arc::new(Deaf);
        let frame = Frame::new("notify", "m", b"1", 1_000).unwrap();
        let delivery = |number| {
            let outgoing = Outgoing {
                ticket: Ticket(number),
                user: UserId::new("alice"),
                frame: frame.clone(),
                ack_within: Duration::from_secs(10),
                ack: AckRule::Any,
            };
            Delivery::new(&outgoing, &answers, &counters)
        };
        let open = delivery(0);
        deadlines.add(open.clone());
        for number in 1..100_000 {
            let answered = delivery(number);
            deadlines.add(answered.clone());
            Settlements::default().settle(&answered, Answer::Acknowledged);
        }
        assert!(deadlines.len() <= 2 * SWEPT_MIN);
        assert_eq!(deadlines.due(Instant::now()).len(), 0);
        tokio::time::advance(Duration::from_secs(10)).await;
        let due = deadlines.due(Instant::now());
        assert!(due.len() == 1 && Arc::ptr_eq(&due[0], &open));
        assert_eq!(deadlines.len(), 0);
    }
}
