//! Partitions that are not read on where they were: records are gone, older partitions come first,
//! or the topic is another one.

use std::ops::Range;

use potok_core::{Damage, Partition};
use rdkafka::consumer::{Consumer, RebalanceProtocol};

use super::super::assignment::Start;
use super::super::{lock, native};
use super::{ANSWER_MAX, OwnedPartition, Poller, list_of, offset_of, placed_list, topics_of};

/// How a partition is read on.
#[derive(Debug, PartialEq, Eq)]
enum Seat {
    /// Where it was.
    Same,
    /// Behind records that are gone, before which nothing is left.
    Behind(Range<u64>),
    /// From its start under another name, the old one being lost: its end was cut off (an unclean
    /// election), and what comes now gets these offsets again.
    Cut(Range<u64>),
    /// From its start under another name: it is another topic.
    Anew,
}

fn seat(next: u64, log: u64, start: &Start) -> Seat {
    if log != start.log {
        return Seat::Anew;
    }
    if start.start >= next {
        return Seat::Behind(next..start.start);
    }
    match start.lost {
        // Told with the start.
        Some(_) => Seat::Anew,
        None if next > start.end => Seat::Cut(start.end..next),
        None => Seat::Same,
    }
}

impl Poller {
    /// Partitions whose records are not where we were: retention took them, the end was cut off, or
    /// the topic is another one.
    pub(super) fn seat_again(&mut self, partitions: &[Partition]) {
        for start in self.resolve(partitions) {
            // What has left meanwhile is read by another.
            let slot = self.slots.iter().find(|slot| slot.partition == start.partition);
            let Some(slot) = slot else { continue };
            let seat = seat(slot.next, slot.log, &start);
            let (to, known) = match &seat {
                Seat::Behind(lost) => {
                    self.tell_lost(&slot.partition, lost.clone());
                    (start.start, true)
                }
                Seat::Same => (slot.next, true),
                Seat::Cut(lost) => {
                    self.tell_lost(&slot.partition, lost.clone());
                    (start.start, false)
                }
                Seat::Anew => (start.start, false),
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

    pub(super) fn tell_lost(&self, partition: &Partition, lost: Range<u64>) {
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

    /// Partitions that the group gave us and no broker knew yet: they are read once one does.
    pub(super) fn seat_late(&mut self) {
        let waiting = std::mem::take(&mut self.unseated);
        if waiting.is_empty() {
            return;
        }
        let starts = self.resolve(&waiting);
        let is_seated = |at: &Partition| starts.iter().any(|start| start.partition == *at);
        self.unseated = waiting.into_iter().filter(|at| !is_seated(at)).collect();
        for start in starts {
            let (partition, to) = (start.partition.clone(), start.start);
            tracing::info!(group = self.group, %partition, "a broker knows it now; reading it");
            self.adopt(vec![start]);
            self.place(&partition, to);
        }
    }

    /// The client fetches a topic under another id from now on. What it brought so far was of the one
    /// before; what comes now is no record of partitions that were begun under another id. They
    /// wait until the cluster has told us of that id as well, which begins them anew.
    pub(super) fn fetches(&mut self, topic: String, id: u64) {
        self.hand_over_all();
        let mut back = Vec::new();
        for slot in self.slots.iter_mut().filter(|slot| *slot.partition.topic == *topic) {
            let foreign = slot.log != id;
            if slot.foreign && !foreign {
                back.push((slot.partition.clone(), slot.next));
            }
            slot.foreign = foreign;
        }
        self.fetched.insert(topic, id);
        // What was left out meanwhile is fetched again.
        back.iter().for_each(|(partition, next)| self.place(partition, *next));
    }

    /// A topic that was deleted and created anew is another one, though its name is the same.
    pub(super) fn look_at_ids(&mut self) {
        let ours: Vec<Partition> = self.slots.iter().map(|slot| slot.partition.clone()).collect();
        // Who has no partitions asks as well: only so it is noticed that nobody can be asked.
        let asked = if ours.is_empty() { self.topics.clone() } else { topics_of(&ours) };
        let Ok(topics) = self.cluster.topics(self.queue.consumer(), &asked) else { return };
        let changed = |slot: &&OwnedPartition| {
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

#[cfg(test)]
mod tests {
    use potok_core::RangeSet;

    use super::*;

    #[test]
    fn an_end_that_was_cut_off_is_read_again_and_not_skipped() {
        let start = |start: u64, end: u64, lost: Option<Range<u64>>| Start {
            partition: Partition { topic: "t".into(), index: 0 },
            log: 5,
            start,
            end,
            ended: RangeSet::new(),
            fresh: false,
            behind: Vec::new(),
            lost,
        };
        // Committed 40, read to 90, the end now at 70: the records at 70 and behind are new ones.
        assert_eq!(seat(90, 5, &start(40, 70, None)), Seat::Cut(70..90));
        assert_eq!(seat(90, 5, &start(40, 90, None)), Seat::Same);
        assert_eq!(seat(90, 5, &start(40, 100, None)), Seat::Same);
        // Retention took what was not read.
        assert_eq!(seat(90, 5, &start(95, 100, Some(40..95))), Seat::Behind(90..95));
        // The commit itself is behind the end.
        assert_eq!(seat(90, 5, &start(30, 30, Some(30..40))), Seat::Anew);
        assert_eq!(seat(90, 4, &start(0, 100, None)), Seat::Anew);
    }
}
