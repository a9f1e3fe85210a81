//! Records that are offered, where a part of the cluster says nothing about them.

use std::sync::Arc;

use potok_connectors::kafka::{CreateTopics, KafkaConfig, KafkaLog};
use potok_core::{Log as _, OfferMode, OfferOutcome, SystemClock};
use potok_testkit::services::Kafka;

use crate::setup::{Member, PATIENCE, blocking, records, spec};

/// Three nodes, of which one has gone; the topic `mute` wants all three to have its records.
async fn without_one_node() -> Arc<Kafka> {
    let stopped = || {
        let kafka = Kafka::cluster(3);
        kafka.create_topic("mute", 3, &[("min.insync.replicas", "3")]);
        kafka.create_topic("good", 1, &[]);
        kafka.stop_node(2);
        Arc::new(kafka)
    };
    blocking(stopped).await
}

/// A partition without a leader, or with too few copies, gives no receipt for as long as that lasts. Others
/// must not wait for it, and it must be said which one it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_says_nothing_holds_up_no_other() {
    let kafka = without_one_node().await;
    let config = KafkaConfig {
        servers: kafka.servers(),
        properties: Vec::new(),
        create_topics: Some(CreateTopics { partitions: 1, replication: Some(2) }),
        client_id: "potok-test".to_owned(),
    };
    let log = KafkaLog::new(config, Arc::new(SystemClock)).unwrap();
    let (mute, good) = ("mute", "good");
    // By now the others know that it has gone.
    log.append(&records(good, 0, ["0"])).await.unwrap();
    let member = Member::open(&log, spec("offers", good, false)).await;
    let mut outputs = records(mute, 2, ["1", "2"]);
    outputs.extend(records(good, 0, ["3"]));
    for mode in [OfferMode::Single, OfferMode::Run, OfferMode::Single] {
        let offer = member.journal.offer(&outputs, mode);
        let outcomes = tokio::time::timeout(PATIENCE, offer).await.expect("it holds up everybody");
        let [OfferOutcome::Silent(fault), OfferOutcome::Silent(_), OfferOutcome::Written] =
            &outcomes[..]
        else {
            panic!("{mode:?}: {outcomes:?}")
        };
        assert_eq!(fault.code, "P0601");
        let named = format!("partition 2 of `{mute}`");
        assert!(fault.to_string().contains(&named), "{fault}");
    }
    let again = kafka.clone();
    blocking(move || again.restart_node(2)).await;
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        let outcomes = member.journal.offer(&outputs, OfferMode::Single).await;
        if outcomes.iter().all(|outcome| matches!(outcome, OfferOutcome::Written)) {
            break;
        }
        assert!(tokio::time::Instant::now() < until, "{outcomes:?}");
    }
    let mut reader = Member::open(&log, spec("reader", mute, false)).await;
    let both = |member: &Member| ["1", "2"].iter().all(|v| member.values().iter().any(|s| s == v));
    reader.until("both are there", both).await;
}
