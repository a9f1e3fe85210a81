//! Partitions that come and go.

use std::time::Duration;

use potok_core::{Assignment, Partition, SourceEvent};
use rdkafka::consumer::{Consumer, RebalanceProtocol};

use super::super::assignment::Start;
use super::super::{lock, nonce};
use super::{OwnedPartition, Poller, list_of, placed_list, topics_of};

/// How long partitions that leave wait for the engine to let them go.
const LEAVE_MAX: Duration = Duration::from_secs(30);
/// The wait between two questions that must be answered.
const ASK_AGAIN: Duration = Duration::from_millis(300);

impl Poller {
    pub(super) fn assigned(&mut self, partitions: &[Partition]) {
        let starts = self.resolve(partitions);
        let places: Vec<_> = starts.iter().map(|start| (&start.partition, start.start)).collect();
        tracing::debug!(group = self.group, ?places, "partitions come");
        let mut list = placed_list(&places);
        for Partition { topic, index } in partitions {
            if list.find_partition(topic, *index as i32).is_none() {
                list.add_partition(topic, *index as i32);
            }
        }
        let consumer = self.queue.consumer();
        let accepted = match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => consumer.incremental_assign(&list),
            _ => consumer.assign(&list),
        };
        self.log_if("accept partitions", accepted);
        // A partition keeps its pause while it is away: one that left when we were full would come
        // back and never be read.
        let (what, flowing) = match self.paused {
            true => ("pause reading", consumer.pause(&list)),
            false => ("read", consumer.resume(&list)),
        };
        self.log_if(what, flowing);
        let is_seated = |at: &&Partition| starts.iter().any(|start| start.partition == **at);
        self.unseated.extend(partitions.iter().filter(|at| !is_seated(at)).cloned());
        self.adopt(starts);
    }

    /// Finds where partitions start, for as long as it takes. Left out are all of them once the group
    /// has given up on us, and those that no broker knows: they will be taken away again, or a
    /// broker that lags behind will know them later.
    pub(super) fn resolve(&mut self, partitions: &[Partition]) -> Vec<Start> {
        let topics = topics_of(partitions);
        loop {
            match self.cluster.known(self.queue.consumer(), &topics) {
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
    pub(super) fn adopt(&mut self, starts: Vec<Start>) {
        self.places.clear();
        self.last_place = None;
        let mut assigned = Vec::new();
        let mut held_back = Vec::new();
        for start in starts {
            if let Some(lost) = &start.lost {
                self.tell_lost(&start.partition, lost.clone());
            }
            let Start { partition, log, start, end, ended, fresh, behind, .. } = start;
            let assignment = Assignment { partition, nonce: nonce(), start, ended };
            // What waits for older partitions is not committed: whoever takes it over must wait too.
            let resolved = fresh && behind.is_empty();
            lock(&self.progress).assign(&assignment, log, resolved);
            self.handover.ends_at(&assignment.partition, end.max(start));
            if !behind.is_empty() {
                tracing::info!(partition = %assignment.partition, "found later; waiting for the older partitions");
                held_back.push(assignment.partition.clone());
            }
            let fetched = self.fetched.get(&*assignment.partition.topic);
            let foreign = fetched.is_some_and(|fetched| *fetched != log);
            self.slots.push(OwnedPartition {
                partition: assignment.partition.clone(),
                nonce: assignment.nonce,
                log,
                next: start,
                collected: None,
                usual: (0, 0),
                behind,
                stood_at: None,
                foreign,
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
            self.handover.tell(SourceEvent::Assigned(assigned));
        }
    }

    pub(super) fn revoked(&mut self, partitions: &[Partition]) {
        let lost = self.queue.consumer().assignment_lost();
        tracing::debug!(group = self.group, lost, ?partitions, "partitions leave");
        self.unseated.retain(|at| !partitions.contains(at));
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

    pub(super) fn drop_slots(&mut self, which: impl Fn(&OwnedPartition) -> bool) -> Vec<u64> {
        self.places.clear();
        self.last_place = None;
        let mut nonces = Vec::new();
        let mut left = Vec::new();
        self.slots.retain(|slot| {
            let gone = which(slot);
            if gone {
                nonces.push(slot.nonce);
                self.handover.forget_end(&slot.partition);
                left.push(Some(slot.partition.clone()));
            }
            !gone
        });
        left.iter().for_each(|place| self.flows(place));
        // What the engine has not taken yet is not its business any more.
        self.handover.forget(&nonces);
        nonces
    }

    pub(super) fn lose(&mut self, nonces: Vec<u64>) {
        lock(&self.progress).leave(&nonces);
        if !nonces.is_empty() {
            self.handover.tell(SourceEvent::Lost(nonces));
        }
    }
}
