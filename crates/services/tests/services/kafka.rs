//! Kafka, one node and three.

use potok_services::{Kafka, KafkaOptions, Mode};

use crate::processes::stopped;

fn produce(kafka: &Kafka, topic: &str, count: u32) {
    let count = count.to_string();
    let to = kafka.servers();
    let words = ["--topic", topic, "--num-records", &count, "--record-size", "20"];
    let more = ["--throughput", "-1", "--bootstrap-server", &to, "--command-property", "acks=all"];
    kafka.tool("ProducerPerformance", &[&words[..], &more].concat());
}

#[test]
fn one_node_keeps_its_records_through_kill_freeze_and_stop() {
    let kafka = Kafka::start();
    kafka.create_topic("orders", 1, &[("retention.ms", "3600000")]);
    assert!(kafka.topics().contains(&"orders".to_owned()));
    produce(&kafka, "orders", 10);
    assert_eq!(kafka.end_offsets("orders"), [10]);

    let servers = kafka.servers();
    kafka.kill();
    assert_eq!(kafka.pid(), 0);
    kafka.restart();
    assert_eq!(kafka.servers(), servers);
    assert_eq!(kafka.end_offsets("orders"), [10]);

    kafka.freeze();
    assert!(stopped(kafka.pid()));
    kafka.thaw();
    produce(&kafka, "orders", 5);
    kafka.stop();
    kafka.restart();
    assert_eq!(kafka.end_offsets("orders"), [15]);

    kafka.add_partitions("orders", 3);
    assert_eq!(kafka.end_offsets("orders"), [15, 0, 0]);
    let described = kafka.tool("TopicCommand", &["--describe", "--topic", "orders"]);
    assert!(described.contains("retention.ms=3600000"), "{described}");
    kafka.delete_topic("orders");
    assert!(!kafka.topics().contains(&"orders".to_owned()));
}

#[test]
fn three_nodes_go_on_without_one() {
    let kafka = Kafka::cluster(3);
    assert_eq!(kafka.servers().split(',').count(), 3);
    kafka.create_topic("orders", 3, &[]);
    let described = kafka.tool("TopicCommand", &["--describe", "--topic", "orders"]);
    assert!(described.contains("ReplicationFactor: 3"), "{described}");
    kafka.kill_node(0);
    produce(&kafka, "orders", 10);
    kafka.freeze_node(1);
    assert!(stopped(kafka.pids()[1]));
    kafka.thaw_node(1);
    kafka.restart_node(0);
    assert_eq!(kafka.end_offsets("orders").iter().sum::<i64>(), 10);
}

#[test]
fn clients_come_back_through_the_proxy() {
    let kafka = Kafka::start_with(&KafkaOptions { proxied: true, ..KafkaOptions::default() });
    kafka.create_topic("orders", 1, &[]);
    assert_eq!(kafka.servers(), format!("127.0.0.1:{}", kafka.proxy(0).port()));
    produce(&kafka, "orders", 10);
    kafka.proxy(0).set(Mode::Cut);
    // What looks on from the side is not disturbed.
    assert_eq!(kafka.end_offsets("orders"), [10]);
    kafka.proxy(0).set(Mode::Pass);
    produce(&kafka, "orders", 10);
    assert_eq!(kafka.end_offsets("orders"), [20]);
}

#[test]
fn clients_log_in_over_tls() {
    let options = KafkaOptions { secure: true, ..KafkaOptions::default() };
    let kafka = Kafka::start_with(&options);
    kafka.create_topic("orders", 2, &[]);
    let (user, password) = &options.users[0];
    let trust = kafka.certificate().unwrap().authority.display().to_string();
    let logins = [
        ("PLAIN", "plain.PlainLoginModule", password.as_str(), true),
        ("SCRAM-SHA-256", "scram.ScramLoginModule", password, true),
        ("SCRAM-SHA-512", "scram.ScramLoginModule", password, true),
        ("PLAIN", "plain.PlainLoginModule", "wrong", false),
    ];
    for (mechanism, module, password, welcome) in logins {
        let settings = format!(
            "security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={trust}\n\
             sasl.mechanism={mechanism}\nsasl.jaas.config=org.apache.kafka.common.security.{module} \
             required username=\"{user}\" password=\"{password}\";\n"
        );
        let file = kafka.folder().join("client.properties");
        std::fs::write(&file, settings).unwrap();
        let list = || {
            let words = ["--list", "--command-config", file.to_str().unwrap()];
            let to = kafka.secure_servers();
            kafka.tool("TopicCommand", &[&words[..], &["--bootstrap-server", &to]].concat())
        };
        let listed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(list));
        assert_eq!(listed.is_ok_and(|topics| topics.contains("orders")), welcome, "{mechanism}");
    }
}
