//! Partitions of which nothing can be read though records lie there, or might.
//!
//! The client says once that it is refused or that a topic is gone, and nothing when that is over;
//! so a partition it spoke of is put down and taken up again now and then, until a record or the end
//! comes. Records behind an open transaction are not spoken of at all: where a partition does not
//! move for some seconds though it goes on, the brokers are asked.

use std::time::Duration;

use potok_core::{Fault, Partition, SourceEvent};
use rdkafka::consumer::Consumer;
use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::time::Instant;

use super::super::fault::{self, Subject};
use super::super::native::{self, Edge};
use super::{ANSWER_MAX, Poller};

/// How long a partition may stand still before the brokers are asked, and how often they are.
/// Transactions mostly take much less.
const STILL_MAX: Duration = Duration::from_secs(5);
/// How often what the client has given up is tried again.
const TRY_EVERY: Duration = Duration::from_secs(5);

/// The subject of a stall: a partition, or the group as a whole.
type StallSubject = Option<Partition>;

#[derive(Default)]
pub(super) struct Stalls {
    known: Vec<(StallSubject, Fault)>,
    looked_at: Option<Instant>,
    tried_at: Option<Instant>,
}

impl Stalls {
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

impl Poller {
    /// Nothing can be read there.
    pub(super) fn stalled(&mut self, place: StallSubject, fault: Fault) {
        let known = &mut self.stalls.known;
        known.retain(|(at, _)| *at != place);
        known.push((place, fault));
        self.tell_stalls();
    }

    /// Something came from there, or it is not ours any more.
    pub(super) fn flows(&mut self, place: &StallSubject) {
        let before = self.stalls.known.len();
        self.stalls.known.retain(|(at, _)| at != place);
        if self.stalls.known.len() < before {
            self.tell_stalls();
        }
    }

    /// The client reads there again; what an open transaction holds back it does not see.
    pub(super) fn reads_again(&mut self, partition: &Partition) {
        let is_of = |(at, fault): &(StallSubject, Fault)| {
            fault.code != OPEN && at.as_ref() == Some(partition)
        };
        if self.stalls.known.iter().any(is_of) {
            self.flows(&Some(partition.clone()));
        }
    }

    fn tell_stalls(&self) {
        let mut known = self.stalls.known.iter().map(|(_, fault)| fault);
        let first = known.next().cloned();
        let more = known.count();
        self.handover.tell(SourceEvent::Stalled(first.map(|mut fault| {
            if more > 0 {
                fault.what = format!("{} (and {more} more)", fault.what);
            }
            fault
        })));
    }

    /// Takes the client's word on a partition, or on the group as a whole.
    pub(super) fn refused(&mut self, code: Code, why: &str, at: StallSubject) {
        self.health.overhear(code, why);
        let topics: Vec<_> = match &at {
            Some(at) => vec![at.topic.clone()],
            None => self.topics.clone(),
        };
        let about = Subject { group: &self.group, topics: &topics };
        let fault = fault::sorted_about(about, "read its topics", code, why);
        self.stalled(at, fault);
    }

    /// Looks for partitions that stand still, and tries again those the client has given up.
    pub(super) fn look_at_stalls(&mut self) {
        let is_due = |at: Option<Instant>, every| at.is_none_or(|at| at.elapsed() >= every);
        if !self.stalls.is_empty() && is_due(self.stalls.tried_at, TRY_EVERY) {
            self.stalls.tried_at = Some(Instant::now());
            self.try_again();
        }
        if is_due(self.stalls.looked_at, STILL_MAX) && self.health.trouble().is_none() {
            self.stalls.looked_at = Some(Instant::now());
            self.look_at_open_transactions();
        }
    }

    fn try_again(&mut self) {
        let given_up = self.stalls.known.iter().filter(|(_, fault)| fault.code != OPEN);
        let given_up: Vec<StallSubject> = given_up.map(|(place, _)| place.clone()).collect();
        for partition in given_up.iter().flatten() {
            let slot = self.slots.iter().find(|slot| slot.partition == *partition);
            match slot.map(|slot| slot.next) {
                Some(next) => {
                    self.hand_over_all();
                    self.place(partition, next);
                }
                None => self.flows(&Some(partition.clone())),
            }
        }
        if given_up.contains(&None) {
            let client = self.queue.consumer().client();
            let topics = native::describe_topics(client, &self.topics, ANSWER_MAX);
            if topics.is_ok_and(|topics| topics.len() == self.topics.len()) && self.joined {
                self.flows(&None);
            }
        }
    }

    /// Records above the last stable offset are there, and nobody may read them.
    fn look_at_open_transactions(&mut self) {
        let mut still = Vec::new();
        for slot in &mut self.slots {
            let end = self.queue.known_end(&slot.partition).unwrap_or_default();
            let stands = slot.stood_at == Some(slot.next) && end > slot.next;
            slot.stood_at = Some(slot.next);
            if stands && slot.takes() {
                still.push((slot.partition.clone(), slot.next, end));
            }
        }
        let partitions: Vec<Partition> = still.iter().map(|(at, ..)| at.clone()).collect();
        let client = self.queue.consumer().client();
        let stable = native::edges(client, &partitions, Edge::Stable, ANSWER_MAX);
        let Ok(stable) = stable else { return };
        for (partition, next, end) in still {
            let place = Some(partition.clone());
            let is_known = self.stalls.known.iter().any(|(at, _)| *at == place);
            match stable.get(&partition) {
                Some(stable) if *stable <= next => {
                    if !is_known {
                        self.stalled(place, open_transaction(&partition, *stable, end));
                    }
                }
                _ => self.flows(&place),
            }
        }
    }
}

/// The code of a stall that the brokers were asked about.
const OPEN: &str = "P0617";

fn open_transaction(partition: &Partition, stable: u64, end: u64) -> Fault {
    let Partition { topic, index } = partition;
    let waiting = end.saturating_sub(stable);
    Fault::wait(format!(
        "{waiting} records of `{topic}`, partition {index}, cannot be read: a transaction of another \
         producer has been open since offset {stable}"
    ))
    .code(OPEN)
    .hint(format!(
        "`kafka-transactions.sh find-hanging --topic {topic} --partition {index}` shows whose it is, \
         and `abort` ends it; until then nobody reads behind it"
    ))
}
