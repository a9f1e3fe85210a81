//! The polling thread's bookkeeping, step by step, with a client that reaches nobody.
#![allow(clippy::unwrap_used)]

use potok_core::{SourceEvent, SystemClock};
use rdkafka::consumer::BaseConsumer;

use super::super::assignment::ClusterFacts;
use super::super::metadata::{Room, encode};
use super::super::native::{CommittedOffset, Facts};
use super::super::settings::{KafkaConfig, Listener};
use super::*;

const GROUP_HASH: u64 = 77;
const OLD: u64 = 5;
const NEW: u64 = 6;

/// What a broker knows of the topic `t`, of which the group has committed 10 everywhere.
#[derive(Clone)]
struct LaggingBroker(Arc<Mutex<Facts>>);

impl Cluster for LaggingBroker {
    fn known(&self, _: &BaseConsumer<Listener>, _: &[Arc<str>]) -> Result<ClusterFacts, Code> {
        let facts = *self.0.lock().unwrap();
        let all = || (0..facts.partitions).map(at);
        let text = encode(OLD, GROUP_HASH, 10, &potok_core::RangeSet::new(), Room::Full);
        let commit = CommittedOffset { offset: 10, metadata: text.into_bytes() };
        Ok(ClusterFacts {
            topics: [("t".into(), facts)].into(),
            committed: all().map(|partition| (partition, commit.clone())).collect(),
            earliest: all().map(|partition| (partition, 0)).collect(),
            latest: all().map(|partition| (partition, 100)).collect(),
        })
    }

    fn topics(
        &self,
        _: &BaseConsumer<Listener>,
        _: &[Arc<str>],
    ) -> Result<HashMap<Arc<str>, Facts>, Code> {
        Ok([("t".into(), *self.0.lock().unwrap())].into())
    }
}

fn at(index: u32) -> Partition {
    Partition { topic: "t".into(), index }
}

fn poller(broker: &LaggingBroker) -> Poller {
    let config = KafkaConfig {
        servers: "127.0.0.1:1".into(),
        properties: Vec::new(),
        create_topics: None,
        client_id: "potok".into(),
    };
    let health = Health::default();
    let mut poller = Poller::new(PollerParts {
        queue: Queue::new(config.consumer("g", &health).unwrap()).unwrap(),
        servers: config.servers(),
        group: "g".into(),
        topics: vec!["t".into()],
        group_hash: GROUP_HASH,
        handover: Arc::default(),
        // Positions are committed elsewhere: nobody is asked here.
        progress: Arc::new(Mutex::new(GroupProgress::exact())),
        health,
        clock: Arc::new(SystemClock),
        damage: Arc::default(),
        passing: Vec::new(),
    });
    poller.cluster = Box::new(broker.clone());
    poller
}

/// Everything that is due every few seconds is due.
fn tick(poller: &mut Poller) {
    poller.looked_at_ids_at = Instant::now().checked_sub(IDS_EVERY).unwrap();
    poller.tick();
}

fn seats(poller: &Poller) -> Vec<(u32, u64)> {
    poller.slots.iter().map(|slot| (slot.partition.index, slot.next)).collect()
}

#[tokio::test]
async fn a_partition_that_no_broker_knew_is_read_once_one_does() {
    let broker = LaggingBroker(Arc::new(Mutex::new(Facts { id: OLD, partitions: 1 })));
    let mut poller = poller(&broker);
    // The group knows of a second partition, the broker that is asked does not yet.
    poller.hear(Event::Rebalance { assigned: true, partitions: vec![at(0), at(1)] });
    assert_eq!(seats(&poller), [(0, 10)]);
    tick(&mut poller);
    assert_eq!(seats(&poller), [(0, 10)], "nobody knows where it begins");

    broker.0.lock().unwrap().partitions = 2;
    tick(&mut poller);
    assert_eq!(seats(&poller), [(0, 10), (1, 10)]);
    let mut heard = Vec::new();
    for _ in 0..2 {
        let SourceEvent::Assigned(assigned) = poller.handover.next(false).await.unwrap() else {
            panic!("something else came");
        };
        heard.extend(assigned.into_iter().map(|a| (a.partition.index, a.start)));
    }
    assert_eq!(heard, [(0, 10), (1, 10)], "the engine is told of both");
    // And once: what is seated is not asked for again.
    tick(&mut poller);
    assert_eq!(seats(&poller).len(), 2);
}

#[tokio::test]
async fn a_partition_that_was_taken_away_is_not_seated_later() {
    let broker = LaggingBroker(Arc::new(Mutex::new(Facts { id: OLD, partitions: 1 })));
    let mut poller = poller(&broker);
    poller.hear(Event::Rebalance { assigned: true, partitions: vec![at(1)] });
    poller.hear(Event::Rebalance { assigned: false, partitions: vec![at(1)] });
    broker.0.lock().unwrap().partitions = 2;
    tick(&mut poller);
    assert!(seats(&poller).is_empty());
}

#[tokio::test]
async fn what_is_fetched_under_another_id_is_not_taken_for_the_old_topic() {
    let broker = LaggingBroker(Arc::new(Mutex::new(Facts { id: OLD, partitions: 1 })));
    let mut poller = poller(&broker);
    poller.hear(Event::Fetches { topic: "t".into(), id: OLD });
    poller.hear(Event::Rebalance { assigned: true, partitions: vec![at(0)] });
    poller.hear(Event::End(at(0), 20));
    assert_eq!(seats(&poller), [(0, 20)]);
    let before = poller.slots[0].nonce;

    // The client knows of the new topic, the broker that is asked does not yet.
    poller.hear(Event::Fetches { topic: "t".into(), id: NEW });
    poller.hear(Event::End(at(0), 90));
    assert_eq!(seats(&poller), [(0, 20)], "the end of another topic");
    tick(&mut poller);
    assert_eq!((seats(&poller), poller.slots[0].nonce), (vec![(0, 20)], before));

    broker.0.lock().unwrap().id = NEW;
    tick(&mut poller);
    assert_eq!(seats(&poller), [(0, 0)], "another topic is read from its start");
    assert_ne!(poller.slots[0].nonce, before, "what ends now is not of the old one");
    poller.hear(Event::End(at(0), 90));
    assert_eq!(seats(&poller), [(0, 90)]);
}

#[tokio::test]
async fn a_topic_that_the_client_does_not_know_yet_waits_for_it() {
    let broker = LaggingBroker(Arc::new(Mutex::new(Facts { id: NEW, partitions: 1 })));
    let mut poller = poller(&broker);
    poller.hear(Event::Fetches { topic: "t".into(), id: OLD });
    poller.hear(Event::Rebalance { assigned: true, partitions: vec![at(0)] });
    poller.hear(Event::End(at(0), 20));
    assert_eq!(seats(&poller), [(0, 0)], "the end of the topic that was there before");
    poller.hear(Event::Fetches { topic: "t".into(), id: NEW });
    poller.hear(Event::End(at(0), 90));
    assert_eq!(seats(&poller), [(0, 90)]);
}
