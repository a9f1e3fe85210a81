//! The thread that polls for a group, from its opening to its closing, whatever the engine does.
//!
//! It collects records into batches and hands them over; when too much lies there it waits a
//! moment and then pauses all partitions, those that come later too, and goes on polling: the group
//! never takes a slow engine for a dead one. It answers rebalances, commits progress, and watches
//! that topics are still those they were.

mod cluster;
mod commits;
mod places;
mod rebalances;
mod stalls;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use potok_core::trouble::crash_point;
use potok_core::{Clock, Damage, Partition};
use rdkafka::consumer::Consumer;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};
use tokio::time::Instant;

use super::batch::Builder;
use super::events::{Event, Queue, RawRecord};
use super::fault;
use super::handover::Handover;
use super::native;
use super::progress::GroupProgress;
use super::settings::Health;
use cluster::{Brokers, Cluster};
use stalls::Stalls;

/// How often the thread looks at what is due.
const TICK: Duration = Duration::from_millis(100);
/// Events between two looks at everything else, unless a batch is handed over before.
const EVENTS_PER_LOOK: u32 = 256;
/// How often progress is committed.
const COMMIT_EVERY: Duration = Duration::from_millis(200);
/// How long the answer to a commit is waited for before the next.
const COMMIT_MAX: Duration = Duration::from_secs(30);
/// How long the engine may be slow before partitions are paused.
const FULL_MAX: Duration = Duration::from_millis(500);
/// How often partitions that wait for older ones are looked at.
const BEHIND_EVERY: Duration = Duration::from_millis(500);
/// How often the ids of topics are looked at.
const IDS_EVERY: Duration = Duration::from_secs(5);
/// The same while the client fetches a topic that is not the one we began with.
const FOREIGN_EVERY: Duration = Duration::from_millis(300);
/// How often what has passed through a topic is deleted there.
const DELETE_EVERY: Duration = Duration::from_secs(60);
/// How long a group that is closed at once is joined first.
const JOIN_MAX: Duration = Duration::from_secs(5);
/// The longest wait for an answer on this thread.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// A partition that is ours.
struct OwnedPartition {
    partition: Partition,
    nonce: u64,
    log: u64,
    /// The next offset to hand over.
    next: u64,
    collected: Option<Builder>,
    /// Records and bytes of the last batch: the next one is mostly as large.
    usual: (usize, usize),
    /// Older partitions that must first pass these offsets; none when it may be read.
    behind: Vec<(Partition, u64)>,
    /// Where it stood when somebody last looked.
    stood_at: Option<u64>,
    /// The client fetches another topic of this name: what comes is not this partition's.
    foreign: bool,
}

impl OwnedPartition {
    /// True while what comes from the client may be handed over.
    fn takes(&self) -> bool {
        self.behind.is_empty() && !self.foreign
    }
}

pub struct Poller {
    pub queue: Queue,
    /// Who is asked where partitions are.
    cluster: Box<dyn Cluster>,
    pub group: String,
    /// The topics it reads.
    pub topics: Vec<Arc<str>>,
    /// The group in commits' metadata.
    pub group_hash: u64,
    pub handover: Arc<Handover>,
    pub progress: Arc<Mutex<GroupProgress>>,
    pub health: Health,
    pub clock: Arc<dyn Clock>,
    pub damage: Arc<Mutex<Vec<Damage>>>,
    slots: Vec<OwnedPartition>,
    /// Partitions that no broker knew when the group gave them to us.
    unseated: Vec<Partition>,
    /// Under which ids the client fetches topics, where the brokers have ids.
    fetched: HashMap<String, u64>,
    /// Partitions that cannot be read, and why.
    stalls: Stalls,
    /// Where records of a topic handle and partition belong.
    places: HashMap<(usize, u32), usize>,
    /// The place of the last record: most often the next one is of the same.
    last_place: Option<((usize, u32), usize)>,
    collecting: bool,
    /// A batch was handed over since somebody looked whether there is room.
    handed_over: bool,
    joined: bool,
    paused: bool,
    committing: bool,
    committed_at: Instant,
    looked_behind_at: Instant,
    looked_at_ids_at: Instant,
    /// The topic through which records only pass: what has ended is deleted there.
    passing: Vec<String>,
    deleted_at: Instant,
}

/// The parts of a poller.
pub struct PollerParts {
    pub queue: Queue,
    /// Where the client began.
    pub servers: CString,
    pub group: String,
    pub topics: Vec<Arc<str>>,
    pub group_hash: u64,
    pub handover: Arc<Handover>,
    pub progress: Arc<Mutex<GroupProgress>>,
    pub health: Health,
    pub clock: Arc<dyn Clock>,
    pub damage: Arc<Mutex<Vec<Damage>>>,
    pub passing: Vec<String>,
}

impl Poller {
    pub fn new(parts: PollerParts) -> Poller {
        let PollerParts { queue, group, topics, group_hash, handover, .. } = parts;
        let PollerParts { progress, health, clock, damage, servers, .. } = parts;
        let now = Instant::now();
        Poller {
            queue,
            cluster: Box::new(Brokers { servers }),
            group,
            topics,
            group_hash,
            handover,
            progress,
            health,
            clock,
            damage,
            slots: Vec::new(),
            unseated: Vec::new(),
            fetched: HashMap::new(),
            stalls: Stalls::default(),
            places: HashMap::new(),
            last_place: None,
            collecting: false,
            handed_over: false,
            joined: false,
            paused: false,
            committing: false,
            committed_at: now,
            looked_behind_at: now,
            looked_at_ids_at: now,
            passing: parts.passing,
            deleted_at: now,
        }
    }

    /// Polls until the group is closed, then commits the rest and leaves the group.
    pub fn run(mut self) {
        let mut ticked = Instant::now();
        let mut events = 0_u32;
        loop {
            // Looking around for each record would cost more than the record.
            if self.handed_over || events.is_multiple_of(EVENTS_PER_LOOK) {
                self.handed_over = false;
                if self.handover.is_closing() {
                    break;
                }
                self.breathe();
                if ticked.elapsed() >= TICK {
                    self.tick();
                    ticked = Instant::now();
                }
            }
            let wait = if self.collecting { Duration::ZERO } else { TICK };
            match self.queue.poll(wait) {
                Some(event) => {
                    crash_point("poller");
                    self.hear(event);
                    events = events.wrapping_add(1);
                }
                None => {
                    self.hand_over_all();
                    events = 0;
                }
            }
        }
        self.finish_joining();
        self.commit_now(None);
    }

    /// A member that leaves while it joins may be waited for by the group until its session is
    /// over. So it first joins, within reason, and then leaves in good order.
    fn finish_joining(&mut self) {
        let since = Instant::now();
        while !self.joined && since.elapsed() < JOIN_MAX && self.health.trouble().is_none() {
            if let Some(event) = self.queue.poll(TICK) {
                self.hear(event);
            }
        }
    }

    /// Stops fetching when the engine cannot keep up, and goes on when it can.
    fn breathe(&mut self) {
        if self.paused {
            if self.handover.has_room() {
                self.paused = false;
                let ours = self.slots.iter().filter(|slot| slot.behind.is_empty());
                let list = list_of(ours.map(|slot| &slot.partition));
                self.log_if("resume reading", self.queue.consumer().resume(&list));
            }
        } else if self.handover.is_full(FULL_MAX) {
            self.paused = true;
            let list = list_of(self.slots.iter().map(|slot| &slot.partition));
            self.log_if("pause reading", self.queue.consumer().pause(&list));
        }
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Record(record) => self.collect(&record),
            Event::End(partition, offset) => self.reached_end(&partition, offset),
            Event::Rebalance { assigned, partitions } => {
                self.joined = true;
                self.flows(&None);
                self.hand_over_all();
                if assigned { self.assigned(&partitions) } else { self.revoked(&partitions) }
            }
            Event::Committed { code, failed, all } => self.committed(code, &failed, &all),
            Event::Trouble { code, why, fatal, at } => self.trouble(code, &why, fatal, at),
            Event::Fetches { topic, id } => self.fetches(topic, id),
            Event::Other => {}
        }
    }

    fn collect(&mut self, record: &RawRecord) {
        let place = record.place();
        let index = match self.last_place {
            Some((last, index)) if last == place => index,
            _ => {
                let Some(index) = self.find(place, record) else { return };
                self.last_place = Some((place, index));
                index
            }
        };
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.takes()) else {
            return;
        };
        let builder = slot.collected.get_or_insert_with(|| Builder::new(slot.next, slot.usual));
        builder.add(record);
        slot.next = builder.next();
        self.collecting = true;
        if builder.is_full() {
            hand_over(slot, &self.handover);
            self.handed_over = true;
        }
        if !self.stalls.is_empty() {
            let partition = slot.partition.clone();
            self.flows(&Some(partition));
        }
    }

    /// Which of the slots a record belongs to.
    fn find(&mut self, place: (usize, u32), record: &RawRecord) -> Option<usize> {
        if let Some(index) = self.places.get(&place) {
            return Some(*index);
        }
        let topic = record.topic();
        let is_of = |slot: &OwnedPartition| {
            slot.partition.index == place.1 && *slot.partition.topic == *topic
        };
        let index = self.slots.iter().position(is_of)?;
        self.places.insert(place, index);
        Some(index)
    }

    /// The position moves over what lies at the end and is no record: marks and aborted records
    /// of transactions, what compaction took.
    fn reached_end(&mut self, partition: &Partition, offset: u64) {
        self.reads_again(partition);
        let slot = self.slots.iter_mut().find(|slot| slot.partition == *partition);
        // The end of a topic that was deleted is none of the one that has its name now.
        if slot.as_ref().is_none_or(|slot| !slot.foreign) {
            self.handover.ends_at(partition, offset);
        }
        if let Some(slot) = slot.filter(|slot| slot.takes()) {
            let builder = slot.collected.get_or_insert_with(|| Builder::new(slot.next, slot.usual));
            builder.skip_to(offset);
            slot.next = builder.next();
            hand_over(slot, &self.handover);
        }
    }

    fn hand_over_all(&mut self) {
        if self.collecting {
            self.collecting = false;
            self.slots.iter_mut().for_each(|slot| hand_over(slot, &self.handover));
        }
    }

    fn tick(&mut self) {
        let since = self.committed_at.elapsed();
        if since >= COMMIT_EVERY && (!self.committing || since >= COMMIT_MAX) {
            self.commit_soon();
        }
        for slot in self.slots.iter().filter(|slot| !slot.foreign) {
            if let Some(end) = self.queue.known_end(&slot.partition) {
                self.handover.ends_at(&slot.partition, end);
            }
        }
        self.look_at_stalls();
        if self.looked_behind_at.elapsed() >= BEHIND_EVERY {
            self.looked_behind_at = Instant::now();
            self.look_behind();
        }
        let is_foreign = self.slots.iter().any(|slot| slot.foreign);
        let every = if is_foreign { FOREIGN_EVERY } else { IDS_EVERY };
        if self.looked_at_ids_at.elapsed() >= every && self.health.trouble().is_none() {
            self.seat_late();
            self.look_at_ids();
            self.looked_at_ids_at = Instant::now();
        }
        if self.deleted_at.elapsed() >= DELETE_EVERY && self.health.trouble().is_none() {
            self.delete_passed();
            self.deleted_at = Instant::now();
        }
    }

    /// Deletes what has ended, durably, in the topics through which records only pass.
    fn delete_passed(&self) {
        let passes = |slot: &&OwnedPartition| {
            self.passing.iter().any(|topic| **topic == *slot.partition.topic)
        };
        let ours: Vec<Partition> =
            self.slots.iter().filter(passes).map(|slot| slot.partition.clone()).collect();
        if ours.is_empty() {
            return;
        }
        let client = self.queue.consumer().client();
        let committed = native::committed_by_own(client, &ours);
        let deleted = committed.and_then(|committed| {
            let ended = committed.iter().map(|(at, commit)| (at, commit.offset));
            let ended: Vec<_> = ended.filter(|(_, offset)| *offset > 0).collect();
            native::delete_before(client, &placed_list(&ended), ANSWER_MAX)
        });
        if let Err(code) = deleted {
            let topics = self.passing.join(", ");
            tracing::warn!(group = self.group, topics, %code, "what has ended there cannot be deleted");
        }
    }

    fn trouble(&mut self, code: Code, why: &str, is_fatal: bool, at: Option<Partition>) {
        match (code, at) {
            _ if is_fatal => self.handover.fail(fault::fatal(code, why)),
            (Code::AutoOffsetReset | Code::OffsetOutOfRange, Some(at)) => {
                self.hand_over_all();
                self.seat_again(&[at]);
            }
            (Code::UnknownTopicOrPartition | Code::UnknownTopic, Some(at)) => {
                let fault = fault::topic_gone(&at.topic);
                self.stalled(Some(at), fault);
            }
            (code, at) if fault::is_refusal(code) || fault::is_elsewhere(code) => {
                self.refused(code, why, at);
            }
            (code, _) if fault::is_outage(code) => self.health.overhear(code, why),
            (Code::PollExceeded, _) => {
                tracing::warn!(group = self.group, why, "polling was stopped for too long");
            }
            (code, at) => {
                let at = at.map(|at| at.to_string());
                tracing::warn!(group = self.group, %code, why, at, "reading from Kafka");
            }
        }
    }

    fn log_if<T>(&self, what: &str, result: Result<T, rdkafka::error::KafkaError>) {
        if let Err(error) = result {
            tracing::warn!(group = self.group, %error, "could not {what}");
        }
    }
}

fn hand_over(slot: &mut OwnedPartition, handover: &Handover) {
    if let Some(builder) = slot.collected.take().filter(|builder| !builder.is_empty()) {
        slot.usual = builder.size();
        handover.push(builder.build(slot.partition.clone(), slot.log, slot.nonce));
    }
}

fn list_of<'a>(partitions: impl IntoIterator<Item = &'a Partition>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for Partition { topic, index } in partitions {
        list.add_partition(topic, *index as i32);
    }
    list
}

fn placed_list(places: &[(&Partition, u64)]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(places.len());
    for (Partition { topic, index }, offset) in places {
        let mut place = list.add_partition(topic, *index as i32);
        // An offset that fits an `i64` is taken.
        let _ = place.set_offset(offset_of(*offset));
    }
    list
}

fn offset_of(offset: u64) -> Offset {
    Offset::Offset(i64::try_from(offset).unwrap_or(i64::MAX))
}

fn topics_of(partitions: &[Partition]) -> Vec<Arc<str>> {
    let mut topics: Vec<Arc<str>> = partitions.iter().map(|p| p.topic.clone()).collect();
    topics.sort();
    topics.dedup();
    topics
}
