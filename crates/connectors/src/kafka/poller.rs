//! The thread that polls for a group, from its opening to its closing, whatever the engine does.
//!
//! It collects records into batches and hands them over; when too much lies there it waits a
//! moment and then pauses all partitions, those that come later too, and goes on polling: the group
//! never takes a slow engine for a dead one. It answers rebalances, commits progress, and watches
//! that topics are still those they were.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use potok_core::{Assignment, Clock, Damage, Intake, Partition};
use rdkafka::consumer::{CommitMode, Consumer, RebalanceProtocol};
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};
use tokio::time::Instant;

use super::assignment::{Known, Start};
use super::batch::Builder;
use super::events::{Event, Queue, RawRecord};
use super::handover::Handover;
use super::progress::{Commit, Progress};
use super::settings::Health;
use super::{fault, lock, native, nonce};

/// How often the thread looks at what is due.
const TICK: Duration = Duration::from_millis(100);
/// How often progress is committed.
const COMMIT_EVERY: Duration = Duration::from_millis(200);
/// How long the answer to a commit is waited for before the next.
const COMMIT_MAX: Duration = Duration::from_secs(30);
/// How long the engine may be slow before partitions are paused.
const FULL_MAX: Duration = Duration::from_millis(500);
/// How long partitions that leave wait for the engine to let them go.
const LEAVE_MAX: Duration = Duration::from_secs(30);
/// How often partitions that wait for older ones are looked at.
const BEHIND_EVERY: Duration = Duration::from_millis(500);
/// How often the ids of topics are looked at.
const IDS_EVERY: Duration = Duration::from_secs(5);
/// The longest wait for an answer on this thread, and between two questions.
const ANSWER_MAX: Duration = Duration::from_secs(5);
const ASK_AGAIN: Duration = Duration::from_millis(300);

/// A partition that is ours.
struct Slot {
    partition: Partition,
    nonce: u64,
    log: u64,
    /// The next offset to hand over.
    next: u64,
    collected: Option<Builder>,
    /// Older partitions that must first pass these offsets; none when it may be read.
    behind: Vec<(Partition, u64)>,
}

pub struct Poller {
    pub queue: Queue,
    pub group: String,
    /// The group in commits' metadata.
    pub group_hash: u64,
    pub handover: Arc<Handover>,
    pub progress: Arc<Mutex<Progress>>,
    pub health: Health,
    pub clock: Arc<dyn Clock>,
    pub damage: Arc<Mutex<Vec<Damage>>>,
    slots: Vec<Slot>,
    /// Where records of a topic handle and partition belong.
    places: HashMap<(usize, u32), usize>,
    collecting: bool,
    paused: bool,
    committing: bool,
    committed_at: Instant,
    looked_behind_at: Instant,
    looked_at_ids_at: Instant,
}

/// What a poller is made of.
pub struct Parts {
    pub queue: Queue,
    pub group: String,
    pub group_hash: u64,
    pub handover: Arc<Handover>,
    pub progress: Arc<Mutex<Progress>>,
    pub health: Health,
    pub clock: Arc<dyn Clock>,
    pub damage: Arc<Mutex<Vec<Damage>>>,
}

impl Poller {
    pub fn new(parts: Parts) -> Poller {
        let Parts { queue, group, group_hash, handover, progress, health, clock, damage } = parts;
        let now = Instant::now();
        Poller {
            queue,
            group,
            group_hash,
            handover,
            progress,
            health,
            clock,
            damage,
            slots: Vec::new(),
            places: HashMap::new(),
            collecting: false,
            paused: false,
            committing: false,
            committed_at: now,
            looked_behind_at: now,
            looked_at_ids_at: now,
        }
    }

    /// Polls until the group is closed, then commits the rest and leaves the group.
    pub fn run(mut self) {
        let mut ticked = Instant::now();
        let mut events = 0_u32;
        while !self.handover.is_closing() {
            self.breathe();
            let wait = if self.collecting { Duration::ZERO } else { TICK };
            let idle = match self.queue.poll(wait) {
                Some(event) => {
                    self.hear(event);
                    false
                }
                None => {
                    self.hand_over_all();
                    true
                }
            };
            events = events.wrapping_add(1);
            // Looking at the clock for each record would cost more than the record.
            if (idle || events % 256 == 0) && ticked.elapsed() >= TICK {
                self.tick();
                ticked = Instant::now();
            }
        }
        self.commit_now(None);
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
                self.hand_over_all();
                if assigned { self.assigned(&partitions) } else { self.revoked(&partitions) }
            }
            Event::Committed { code, failed, all } => self.committed(code, &failed, &all),
            Event::Trouble { code, why, fatal, at } => self.trouble(code, &why, fatal, at),
            Event::Other => {}
        }
    }

    fn collect(&mut self, record: &RawRecord) {
        let place = record.place();
        let index = match self.places.get(&place) {
            Some(index) => *index,
            None => {
                let topic = record.topic();
                let found = self.slots.iter().position(|slot| {
                    slot.partition.index == place.1 && *slot.partition.topic == *topic
                });
                let Some(index) = found else { return };
                self.places.insert(place, index);
                index
            }
        };
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.behind.is_empty()) else {
            return;
        };
        let builder = slot.collected.get_or_insert_with(|| Builder::new(slot.next));
        builder.add(record);
        slot.next = builder.next();
        self.collecting = true;
        if builder.is_full() {
            hand_over(slot, &self.handover);
        }
    }

    /// The position moves over what lies at the end and is no record: marks and aborted records
    /// of transactions, what compaction took.
    fn reached_end(&mut self, partition: &Partition, offset: u64) {
        self.handover.ends_at(partition, offset);
        let slot = self.slots.iter_mut().find(|slot| slot.partition == *partition);
        if let Some(slot) = slot.filter(|slot| slot.behind.is_empty()) {
            let builder = slot.collected.get_or_insert_with(|| Builder::new(slot.next));
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
        if self.looked_behind_at.elapsed() >= BEHIND_EVERY {
            self.looked_behind_at = Instant::now();
            for slot in &self.slots {
                if let Some(end) = self.queue.known_end(&slot.partition) {
                    self.handover.ends_at(&slot.partition, end);
                }
            }
            self.look_behind();
        }
        if self.looked_at_ids_at.elapsed() >= IDS_EVERY && self.health.trouble().is_none() {
            self.look_at_ids();
            self.looked_at_ids_at = Instant::now();
        }
    }

    // ---- rebalances

    fn assigned(&mut self, partitions: &[Partition]) {
        let starts = self.resolve(partitions);
        let mut list = list_of(partitions);
        for Start { partition, start, .. } in &starts {
            let place = (&*partition.topic, partition.index as i32);
            let offset = Offset::Offset(i64::try_from(*start).unwrap_or(i64::MAX));
            self.log_if("place a partition", list.set_partition_offset(place.0, place.1, offset));
        }
        let consumer = self.queue.consumer();
        let accepted = match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => consumer.incremental_assign(&list),
            _ => consumer.assign(&list),
        };
        self.log_if("accept partitions", accepted);
        self.adopt(starts);
        if self.paused {
            self.log_if("pause reading", self.queue.consumer().pause(&list));
        }
    }

    /// Finds where partitions start, for as long as it takes. Those whose topic is gone, and all of
    /// them once the group has given up on us, are left out: they will be taken away again.
    fn resolve(&mut self, partitions: &[Partition]) -> Vec<Start> {
        let topics = topics_of(partitions);
        loop {
            let client = self.queue.consumer().client();
            match Known::ask(client, &self.group, &topics, ANSWER_MAX) {
                Ok(known) => {
                    let start = |partition: &Partition| known.start(partition, self.group_hash);
                    let starts: Vec<Start> = partitions.iter().filter_map(start).collect();
                    let there = |p: &&Partition| {
                        known.topics.get(&p.topic).is_some_and(|facts| p.index < facts.partitions)
                    };
                    if starts.len() == partitions.iter().filter(there).count() {
                        self.health.good();
                        return starts;
                    }
                }
                Err(code) => {
                    self.health.hear(code, &format!("where to start cannot be asked: {code}"));
                }
            }
            if self.handover.rest(ASK_AGAIN) || self.queue.consumer().assignment_lost() {
                return Vec::new();
            }
        }
    }

    /// Takes partitions in and tells the engine.
    fn adopt(&mut self, starts: Vec<Start>) {
        self.places.clear();
        let mut assigned = Vec::new();
        let mut held_back = Vec::new();
        for start in starts {
            if let Some(lost) = &start.lost {
                self.tell_lost(&start.partition, lost.clone());
            }
            let Start { partition, log, start, ended, fresh, behind, .. } = start;
            let assignment = Assignment { partition, nonce: nonce(), start, ended };
            // What waits for older partitions is not committed: whoever takes it over must wait too.
            let resolved = fresh && behind.is_empty();
            lock(&self.progress).assign(&assignment, log, resolved);
            self.handover.ends_at(&assignment.partition, start);
            if !behind.is_empty() {
                tracing::info!(partition = %assignment.partition, "found later; waiting for the older partitions");
                held_back.push(assignment.partition.clone());
            }
            self.slots.push(Slot {
                partition: assignment.partition.clone(),
                nonce: assignment.nonce,
                log,
                next: start,
                collected: None,
                behind,
            });
            assigned.push(assignment);
        }
        if !held_back.is_empty() {
            let list = list_of(&held_back);
            self.log_if("hold partitions back", self.queue.consumer().pause(&list));
        }
        // A start that is not in the group yet goes there before the first record is read.
        self.commit_now(None);
        if !assigned.is_empty() {
            self.handover.tell(Intake::Assigned(assigned));
        }
    }

    fn revoked(&mut self, partitions: &[Partition]) {
        let lost = self.queue.consumer().assignment_lost();
        let nonces = self.drop_slots(|slot| partitions.contains(&slot.partition));
        if lost {
            tracing::warn!(group = self.group, "the group gave our partitions to others");
            self.lose(nonces);
        } else {
            self.handover.leave(nonces.clone(), LEAVE_MAX);
            self.commit_now(Some(&nonces));
            lock(&self.progress).leave(&nonces);
        }
        let consumer = self.queue.consumer();
        let given = match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => consumer.incremental_unassign(&list_of(partitions)),
            _ => consumer.unassign(),
        };
        self.log_if("give partitions back", given);
    }

    fn drop_slots(&mut self, which: impl Fn(&Slot) -> bool) -> Vec<u64> {
        self.places.clear();
        let mut nonces = Vec::new();
        self.slots.retain(|slot| {
            let gone = which(slot);
            if gone {
                nonces.push(slot.nonce);
                self.handover.forget_end(&slot.partition);
            }
            !gone
        });
        // What the engine has not taken yet is not its business any more.
        self.handover.forget(&nonces);
        nonces
    }

    fn lose(&mut self, nonces: Vec<u64>) {
        lock(&self.progress).leave(&nonces);
        if !nonces.is_empty() {
            self.handover.tell(Intake::Lost(nonces));
        }
    }

    // ---- commits

    fn commit_soon(&mut self) {
        let commits = lock(&self.progress).take_changed(self.group_hash, None);
        self.committed_at = Instant::now();
        if commits.is_empty() {
            return;
        }
        match self.queue.consumer().commit(&commit_list(&commits), CommitMode::Async) {
            Ok(()) => self.committing = true,
            Err(error) => {
                tracing::debug!(%error, "progress could not be committed; trying again");
                self.again(&commits);
            }
        }
    }

    /// Commits and waits for the answer. Where it fails, the last moments will be read again.
    fn commit_now(&mut self, only: Option<&[u64]>) {
        let commits = lock(&self.progress).take_changed(self.group_hash, only);
        if commits.is_empty() {
            return;
        }
        let committed = self.queue.consumer().commit(&commit_list(&commits), CommitMode::Sync);
        if let Err(error) = committed {
            if error.rdkafka_error_code() == Some(Code::OffsetMetadataTooLarge) {
                lock(&self.progress).shrink();
                return self.commit_now(only);
            }
            tracing::debug!(%error, "progress could not be committed");
            self.again(&commits);
        }
    }

    fn again(&self, commits: &[Commit]) {
        let mut progress = lock(&self.progress);
        commits.iter().for_each(|commit| progress.again(&commit.partition));
    }

    fn committed(&mut self, code: Code, failed: &[(Partition, Code)], all: &[Partition]) {
        self.committing = false;
        let too_large = |code: Code| code == Code::OffsetMetadataTooLarge;
        if too_large(code) || failed.iter().any(|(_, code)| too_large(*code)) {
            lock(&self.progress).shrink();
            return;
        }
        if code == Code::NoError && failed.is_empty() {
            return;
        }
        // A rebalance is on its way, or the coordinator moved: whoever still has the partition
        // then commits again.
        tracing::debug!(%code, "progress could not be committed; trying again");
        let mut progress = lock(&self.progress);
        if failed.is_empty() {
            all.iter().for_each(|partition| progress.again(partition));
        }
        failed.iter().for_each(|(partition, _)| progress.again(partition));
    }

    // ---- trouble

    fn trouble(&mut self, code: Code, why: &str, is_fatal: bool, at: Option<Partition>) {
        match (code, at) {
            _ if is_fatal => self.handover.fail(fault::fatal(code, why)),
            (Code::AutoOffsetReset | Code::OffsetOutOfRange, Some(at)) => {
                self.hand_over_all();
                self.seat_again(&[at]);
            }
            (Code::UnknownTopicOrPartition | Code::UnknownTopic, Some(at)) => {
                self.handover.fail(fault::topic_missing(&[&at.topic]));
            }
            (code, _) if fault::is_refusal(code) => {
                self.health.overhear(code, why);
                self.handover.fail(fault::sorted("read its topics", code, why));
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

    /// Partitions whose records are not where we were: retention took them, the end was cut off, or
    /// the topic is another one.
    fn seat_again(&mut self, partitions: &[Partition]) {
        for start in self.resolve(partitions) {
            let slot = self.slots.iter().find(|slot| slot.partition == start.partition);
            let same = slot.is_some_and(|slot| slot.log == start.log && start.start >= slot.next);
            let (to, known) = match slot {
                // The same topic, and records are missing before its first: on from there.
                Some(slot) if same => {
                    self.tell_lost(&slot.partition, slot.next..start.start);
                    (start.start, true)
                }
                Some(slot) if slot.log == start.log && start.lost.is_none() => (slot.next, true),
                _ => (start.start, false),
            };
            if !known {
                let nonces = self.drop_slots(|slot| slot.partition == start.partition);
                self.lose(nonces);
                self.adopt(vec![start.clone()]);
            }
            self.seek(&start.partition, to);
        }
    }

    fn seek(&self, partition: &Partition, to: u64) {
        let (topic, index) = (&*partition.topic, partition.index as i32);
        let offset = Offset::Offset(i64::try_from(to).unwrap_or(i64::MAX));
        self.log_if("seek", self.queue.consumer().seek(topic, index, offset, ANSWER_MAX));
    }

    fn tell_lost(&self, partition: &Partition, lost: std::ops::Range<u64>) {
        if lost.is_empty() {
            return;
        }
        tracing::error!(
            group = self.group, %partition, from = lost.start, to = lost.end,
            "[P0611] records were gone from Kafka before the group had finished them"
        );
        lock(&self.damage).push(Damage {
            file: partition.to_string(),
            from: lost.start,
            to: lost.end,
            noticed: self.clock.now(),
            tail: false,
            kept_in: "nowhere: retention or the cluster removed these offsets".to_owned(),
        });
    }

    // ---- what is looked at now and then

    /// Lets partitions go that waited for older ones.
    fn look_behind(&mut self) {
        if self.slots.iter().all(|slot| slot.behind.is_empty()) {
            return;
        }
        let ours = |partition: &Partition| lock(&self.progress).of(partition).map(|h| h.position);
        let foreign = self.slots.iter().flat_map(|s| &s.behind).any(|(p, _)| ours(p).is_none());
        let client = self.queue.consumer().client();
        let committed = match foreign {
            true => native::committed(client, &self.group, ANSWER_MAX).unwrap_or_default(),
            false => HashMap::new(),
        };
        let passed = |partition: &Partition, end: u64| {
            let position = ours(partition).or(committed.get(partition).map(|c| c.offset));
            position.is_some_and(|position| position >= end)
        };
        let mut freed = Vec::new();
        for slot in self.slots.iter_mut().filter(|slot| !slot.behind.is_empty()) {
            slot.behind.retain(|(partition, end)| !passed(partition, *end));
            if slot.behind.is_empty() {
                freed.push((slot.partition.clone(), slot.next));
            }
        }
        for (partition, start) in freed {
            tracing::info!(%partition, "the older partitions have passed; reading it now");
            lock(&self.progress).again(&partition);
            self.commit_now(None);
            // Whatever was fetched before it was held back is fetched anew.
            self.seek(&partition, start);
            if !self.paused {
                let list = list_of([&partition]);
                self.log_if("resume reading", self.queue.consumer().resume(&list));
            }
        }
    }

    /// A topic that was deleted and created anew is another one, though its name is the same.
    fn look_at_ids(&mut self) {
        let ours: Vec<Partition> = self.slots.iter().map(|slot| slot.partition.clone()).collect();
        let client = self.queue.consumer().client();
        let topics = native::describe_topics(client, &topics_of(&ours), ANSWER_MAX);
        let Ok(topics) = topics else { return };
        let changed = |slot: &&Slot| {
            topics.get(&slot.partition.topic).is_some_and(|facts| facts.id != slot.log)
        };
        let changed: Vec<Partition> =
            self.slots.iter().filter(changed).map(|slot| slot.partition.clone()).collect();
        if !changed.is_empty() {
            tracing::warn!(group = self.group, topic = %changed[0].topic, "the topic was created anew");
            self.hand_over_all();
            self.seat_again(&changed);
        }
    }

    fn log_if<T>(&self, what: &str, result: Result<T, rdkafka::error::KafkaError>) {
        if let Err(error) = result {
            tracing::warn!(group = self.group, %error, "could not {what}");
        }
    }
}

fn hand_over(slot: &mut Slot, handover: &Handover) {
    if let Some(builder) = slot.collected.take().filter(|builder| !builder.is_empty()) {
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

fn commit_list(commits: &[Commit]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(commits.len());
    for Commit { partition, position, metadata } in commits {
        let mut place = list.add_partition(&partition.topic, partition.index as i32);
        // An offset that fits an `i64` is taken.
        let _ = place.set_offset(Offset::Offset(i64::try_from(*position).unwrap_or(i64::MAX)));
        if !metadata.is_empty() {
            place.set_metadata(metadata);
        }
    }
    list
}

fn topics_of(partitions: &[Partition]) -> Vec<Arc<str>> {
    let mut topics: Vec<Arc<str>> = partitions.iter().map(|p| p.topic.clone()).collect();
    topics.sort();
    topics.dedup();
    topics
}
