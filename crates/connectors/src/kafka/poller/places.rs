//! Partitions that are not read on where they were: records are gone, older partitions come first,
//! or the topic is another one.

use potok_core::{Damage, Partition};
use rdkafka::consumer::{Consumer, RebalanceProtocol};

use super::super::{lock, native};
use super::{ANSWER_MAX, Poller, Slot, list_of, offset_of, placed_list, topics_of};

impl Poller {
    /// Partitions whose records are not where we were: retention took them, the end was cut off, or
    /// the topic is another one.
    pub(super) fn seat_again(&mut self, partitions: &[Partition]) {
        for start in self.resolve(partitions) {
            // What has left meanwhile is read by another.
            let slot = self.slots.iter().find(|slot| slot.partition == start.partition);
            let Some(slot) = slot else { continue };
            let (to, known) = match slot.log == start.log {
                // The same topic, and records are missing before its first: on from there.
                true if start.start >= slot.next => {
                    self.tell_lost(&slot.partition, slot.next..start.start);
                    (start.start, true)
                }
                true if start.lost.is_none() => (slot.next, true),
                _ => (start.start, false),
            };
            let partition = start.partition.clone();
            if !known {
                let nonces = self.drop_slots(|slot| slot.partition == partition);
                self.lose(nonces);
                self.adopt(vec![start]);
            }
            self.place(&partition, to);
        }
    }

    /// Reads a partition of ours from another offset on. The client does not seek in a partition
    /// whose offset it has given up, so the partition is put down and taken up again.
    pub(super) fn place(&self, partition: &Partition, to: u64) {
        let consumer = self.queue.consumer();
        let mut places = vec![(partition, to)];
        let placed = match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => {
                let list = list_of([partition]);
                self.log_if("put a partition down", consumer.incremental_unassign(&list));
                consumer.incremental_assign(&placed_list(&places))
            }
            _ => {
                let others = self.slots.iter().filter(|slot| slot.partition != *partition);
                places.extend(others.map(|slot| (&slot.partition, slot.next)));
                consumer.assign(&placed_list(&places))
            }
        };
        self.log_if("take a partition up again", placed);
        let held_back = self.slots.iter().filter(|slot| self.paused || !slot.behind.is_empty());
        let list = list_of(held_back.map(|slot| &slot.partition));
        if list.count() > 0 {
            self.log_if("pause reading", consumer.pause(&list));
        }
    }

    pub(super) fn seek(&self, partition: &Partition, to: u64) {
        let (topic, index) = (&*partition.topic, partition.index as i32);
        let sought = self.queue.consumer().seek(topic, index, offset_of(to), ANSWER_MAX);
        self.log_if("seek", sought);
    }

    pub(super) fn tell_lost(&self, partition: &Partition, lost: std::ops::Range<u64>) {
        if lost.is_empty() {
            return;
        }
        tracing::error!(
            group = self.group, %partition, from = lost.start, to = lost.end,
            code = "P0611",
            "records were gone from Kafka before the group had finished them"
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

    /// Lets partitions go that waited for older ones.
    pub(super) fn look_behind(&mut self) {
        if self.slots.iter().all(|slot| slot.behind.is_empty()) {
            return;
        }
        let ours = |partition: &Partition| lock(&self.progress).of(partition).map(|h| h.position);
        let behind = self.slots.iter().flat_map(|slot| &slot.behind).map(|(at, _)| at);
        let foreign: Vec<Partition> = behind.filter(|at| ours(at).is_none()).cloned().collect();
        let client = self.queue.consumer().client();
        let committed = native::committed_by_own(client, &foreign).unwrap_or_default();
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
    pub(super) fn look_at_ids(&mut self) {
        let ours: Vec<Partition> = self.slots.iter().map(|slot| slot.partition.clone()).collect();
        let client = self.queue.consumer().client();
        let topics = native::describe_topics(client, &topics_of(&ours), ANSWER_MAX);
        let Ok(topics) = topics else { return };
        let changed = |slot: &&Slot| {
            topics.get(&slot.partition.topic).is_some_and(|facts| facts.id != slot.log)
        };
        let changed: Vec<Partition> =
            self.slots.iter().filter(changed).map(|slot| slot.partition.clone()).collect();
        if let Some(first) = changed.first() {
            tracing::warn!(group = self.group, topic = %first.topic, "the topic was created anew");
            self.hand_over_all();
            self.seat_again(&changed);
        }
    }
}
