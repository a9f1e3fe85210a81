//! Brokers that are away, and clients that are not let in.

use std::sync::Arc;
use std::time::Duration;

use potok_connectors::kafka::{CreateTopics, KafkaConfig, KafkaLog};
use potok_core::{Log, SystemClock};
use potok_testkit::services::{Kafka, KafkaOptions, Mode};

use crate::setup::{Member, PATIENCE, blocking, eventually, records, spec};

fn config(servers: String, properties: &[(&str, &str)]) -> KafkaConfig {
    KafkaConfig {
        servers,
        properties: properties.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect(),
        create_topics: Some(CreateTopics { partitions: 2, replication: Some(1) }),
        client_id: "potok-test".to_owned(),
    }
}

/// A broker that dies is waited for, by those who write and those who read, and shown meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_away_is_waited_for() {
    let kafka = Arc::new(blocking(Kafka::start).await);
    let log = KafkaLog::new(config(kafka.servers(), &[]), Arc::new(SystemClock)).unwrap();
    let mut member = Member::open(&log, spec("waits", "waits", false)).await;
    log.append(&records("waits", 0, 0..3)).await.unwrap();
    member.until("three records", |member| member.seen.len() == 3).await;
    let down = kafka.clone();
    blocking(move || down.kill()).await;
    let writing = tokio::spawn({
        let log = log.clone();
        async move { log.append(&records("waits", 0, 3..6)).await }
    });
    eventually("the trouble is shown", || async { log.trouble().is_some() }).await;
    assert!(!writing.is_finished(), "a write came back while the broker was away");
    let up = kafka.clone();
    blocking(move || up.restart()).await;
    tokio::time::timeout(PATIENCE, writing).await.expect("it is written").unwrap().unwrap();
    member.until("all records", |member| member.seen.len() == 6).await;
    assert_eq!(member.values(), ["0", "1", "2", "3", "4", "5"]);
    eventually("the trouble is over", || async { log.trouble().is_none() }).await;
}

/// What was asked about groups while there was no coordinator, and given up, does no harm when there
/// is one: the client once died of it.
#[tokio::test(flavor = "multi_thread")]
async fn questions_that_were_given_up_are_forgotten() {
    let options = KafkaOptions { proxied: true, ..KafkaOptions::default() };
    let kafka = blocking(move || Kafka::start_with(&options)).await;
    let log = KafkaLog::new(config(kafka.servers(), &[]), Arc::new(SystemClock)).unwrap();
    log.append(&records("asked", 0, 0..3)).await.unwrap();
    // Who asks for the first time finds nobody; nobody else notices.
    kafka.proxy(0).set(Mode::BlackHole);
    assert_eq!(log.trouble(), None);
    let fault = log.ended("asked", "asked", 0).await.expect_err("nobody answers");
    assert_eq!(fault.next, potok_core::Move::Wait, "{fault}");
    // From then on it is known, and not asked.
    assert!(log.trouble().is_some());
    log.ended("asked", "asked", 0).await.expect_err("nobody is asked");
    kafka.proxy(0).set(Mode::Pass);
    eventually("it is answered", || async { log.ended("asked", "asked", 0).await.is_ok() }).await;
    eventually("groups are listed", || async { log.consumer_groups().await.is_ok() }).await;
}

/// A cold start without a broker fails nothing: it waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_cold_start_without_a_broker_waits() {
    let kafka = blocking(Kafka::start).await;
    let servers = kafka.servers();
    let kafka = Arc::new(kafka);
    let down = kafka.clone();
    blocking(move || down.kill()).await;
    let log = KafkaLog::new(config(servers, &[]), Arc::new(SystemClock)).unwrap();
    let fault = log.open_group(spec("cold", "cold", false)).await.err().expect("nobody is there");
    assert_eq!(fault.next, potok_core::Move::Wait, "{fault}");
    let up = kafka.clone();
    blocking(move || up.restart()).await;
    eventually("the group opens", || async {
        log.open_group(spec("cold", "cold", false)).await.is_ok()
    })
    .await;
}

/// TLS and SASL are properties like any other.
#[tokio::test(flavor = "multi_thread")]
async fn clients_log_in_over_tls() {
    let options = KafkaOptions { secure: true, ..KafkaOptions::default() };
    let (user, password) = options.users[0].clone();
    let kafka = blocking(move || Kafka::start_with(&options)).await;
    let authority = kafka.certificate().unwrap().authority.display().to_string();
    let properties = |password: &str| {
        config(
            kafka.secure_servers(),
            &[
                ("security.protocol", "SASL_SSL"),
                ("ssl.ca.location", &authority),
                ("sasl.mechanisms", "SCRAM-SHA-256"),
                ("sasl.username", &user),
                ("sasl.password", password),
            ],
        )
    };
    let log = KafkaLog::new(properties(&password), Arc::new(SystemClock)).unwrap();
    let mut member = Member::open(&log, spec("secure", "secure", false)).await;
    log.append(&records("secure", 0, 0..3)).await.unwrap();
    member.until("three records", |member| member.seen.len() == 3).await;

    let stranger = KafkaLog::new(properties("wrong"), Arc::new(SystemClock)).unwrap();
    let opened = tokio::time::timeout(
        Duration::from_secs(40),
        stranger.open_group(spec("stranger", "secure", false)),
    );
    let fault = opened.await.expect("it says so").err().expect("it is not let in");
    assert_eq!(fault.next, potok_core::Move::Wait, "{fault}");
    let why = stranger.trouble().unwrap_or_default();
    assert!(why.to_lowercase().contains("authentication"), "{why}");

    let wrong = config(
        kafka.secure_servers(),
        &[("ssl.ca.location", "/nowhere/ca.pem"), ("security.protocol", "ssl")],
    );
    let fault = KafkaLog::new(wrong, Arc::new(SystemClock)).err().expect("there is no such file");
    assert_eq!((fault.next, fault.code), (potok_core::Move::Fix, "P0602"));
}
