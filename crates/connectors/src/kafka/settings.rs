//! How clients are set up: measured defaults, the user's properties over them, and a few that the
//! promise needs and nobody may change.

use std::ffi::CString;
use std::sync::{Arc, Mutex};

use potok_core::{Fault, RECORD_BYTES_MAX};
use rdkafka::ClientContext;
use rdkafka::client::Client;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;

use super::{fault, lock};

/// Where the cluster is and how to talk to it.
#[derive(Clone, Debug)]
pub struct KafkaConfig {
    /// `host:port`, several separated by commas.
    pub servers: String,
    /// Any librdkafka properties. They win over the defaults, except over those the promise needs.
    pub properties: Vec<(String, String)>,
    /// How missing topics are created; `None` waits until somebody else does.
    pub create_topics: Option<CreateTopics>,
    /// How this process calls itself at the brokers.
    pub client_id: String,
}

/// How missing topics are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateTopics {
    /// Partitions of a new topic.
    pub partitions: u32,
    /// Copies of each, no more than there are brokers; `None` leaves it to the brokers.
    pub replication: Option<u32>,
}

/// Properties that carry the promise, with what would break.
const OURS: &[(&str, &str)] = &[
    ("acks", "a record counts as written when all replicas in sync have it"),
    ("auto.offset.reset", "nothing may be skipped in silence; potok resolves the start itself"),
    ("bootstrap.servers", "it comes from the address of the log"),
    ("delivery.timeout.ms", "a record is never given up because time has passed"),
    ("enable.auto.commit", "a position is committed when every record before it has ended"),
    ("enable.auto.offset.store", "a position is committed when every record before it has ended"),
    ("enable.gapless.guarantee", "a record that fails must not be overtaken"),
    ("enable.idempotence", "a retry inside the client must not write twice or out of order"),
    ("enable.partition.eof", "positions move over the ends of transactions by it"),
    ("group.id", "it comes from the pipeline's `consumer_group`"),
    ("group.protocol", "with the new one a partition was seen to stall; the classic one holds"),
    ("isolation.level", "records of aborted transactions were never written"),
    ("message.timeout.ms", "a record is never given up because time has passed"),
    ("partitioner", "keys must meet the partitions other clients choose"),
    ("request.required.acks", "a record counts as written when all replicas in sync have it"),
    ("retries", "a record is never given up because it was tried often"),
    ("transactional.id", "each member of a group has a name of its own for its transactions"),
];

/// For every client. The client's own default waits a second whenever its queue is full, which
/// costs a factor of three.
const COMMON: &[(&str, &str)] = &[
    ("log.connection.close", "false"),
    ("reconnect.backoff.max.ms", "1000"),
    ("socket.keepalive.enable", "true"),
    ("topic.metadata.refresh.interval.ms", "10000"),
    ("allow.auto.create.topics", "false"),
];

const CONSUMER: &[(&str, &str)] = &[
    ("auto.offset.reset", "error"),
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("enable.partition.eof", "true"),
    ("fetch.message.max.bytes", "1048576"),
    ("fetch.queue.backoff.ms", "5"),
    ("fetch.wait.max.ms", "100"),
    ("heartbeat.interval.ms", "3000"),
    ("isolation.level", "read_committed"),
    ("partition.assignment.strategy", "cooperative-sticky"),
    // Enough to go on while the engine is busy; more would only lie in memory.
    ("queued.max.messages.kbytes", "16384"),
    ("queued.min.messages", "200000"),
    // A thread of the client's own beats the heart, so a copy that is silent for so long is gone.
    ("session.timeout.ms", "10000"),
];

const PRODUCER: &[(&str, &str)] = &[
    ("acks", "all"),
    ("compression.type", "lz4"),
    ("enable.gapless.guarantee", "true"),
    ("enable.idempotence", "true"),
    ("linger.ms", "5"),
    ("max.in.flight.requests.per.connection", "5"),
    ("message.timeout.ms", "0"),
    ("partitioner", "murmur2_random"),
    // Room for one record of the largest size and much more.
    ("queue.buffering.max.kbytes", "262144"),
    ("queue.buffering.max.messages", "500000"),
];

/// The purpose of a client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Admin,
    Consumer,
    Producer,
    /// Of records that may be refused, each for itself.
    SingleProducer,
}

impl Role {
    fn produces(self) -> bool {
        matches!(self, Role::Producer | Role::SingleProducer)
    }
}

impl KafkaConfig {
    /// Says what is wrong with the set-up, without talking to anybody.
    pub(super) fn check(&self) -> Result<(), Fault> {
        if self.servers.trim().is_empty() {
            return Err(fault::no_servers());
        }
        for (name, _) in &self.properties {
            if let Some((_, why)) = OURS.iter().find(|(ours, _)| ours == name) {
                return Err(fault::property_is_ours(name, why));
            }
        }
        if let Some((_, value)) = self
            .properties
            .iter()
            .find(|(name, value)| is_in_flight(name) && !(1..=5).contains(&number(value)))
        {
            return Err(fault::property_is_ours(
                "max.in.flight.requests.per.connection",
                &format!("an idempotent producer keeps order with 1 to 5 of them, not {value}"),
            ));
        }
        if let Some(CreateTopics { partitions, replication }) = self.create_topics
            && (partitions == 0 || replication == Some(0))
        {
            return Err(fault::no_partitions());
        }
        Ok(())
    }

    /// The properties of a client with that role.
    pub(super) fn client(&self, role: Role) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.servers);
        config.set("client.id", &self.client_id);
        let of_role = match role {
            Role::Admin => &[],
            Role::Consumer => CONSUMER,
            Role::Producer | Role::SingleProducer => PRODUCER,
        };
        for (name, value) in COMMON.iter().chain(of_role) {
            config.set(*name, *value);
        }
        if role == Role::SingleProducer {
            // A refusal stops nobody, and nobody is waited for.
            config.set("enable.gapless.guarantee", "false");
            config.set("linger.ms", "0");
        }
        if role.produces() {
            // The broker and the topic decide what is too large, not the client.
            config.set("message.max.bytes", (RECORD_BYTES_MAX + (1 << 20)).to_string());
        }
        for (name, value) in &self.properties {
            config.set(name, value);
        }
        config.set_log_level(RDKafkaLogLevel::Warning);
        config
    }

    /// Where its clients begin.
    pub(super) fn servers(&self) -> CString {
        let servers = self.client(Role::Admin).get("bootstrap.servers").map(str::to_owned);
        CString::new(servers.unwrap_or_default()).unwrap_or_default()
    }

    /// A consumer of `group`, not yet subscribed to anything.
    pub(super) fn consumer(
        &self,
        group: &str,
        health: &Health,
    ) -> Result<BaseConsumer<Listener>, Fault> {
        let mut config = self.client(Role::Consumer);
        config.set("group.id", group);
        // Under which id the client fetches a topic it says in no other way (`Event::Fetches`).
        let debug = match config.get("debug") {
            Some(more) => format!("{more},metadata"),
            None => "metadata".to_owned(),
        };
        config.set("debug", debug);
        config.set_log_level(RDKafkaLogLevel::Debug);
        config.create_with_context(Listener(health.clone())).map_err(|e| fault::set_up(&e))
    }

    /// A client of no group, for reading by assignment.
    pub(super) fn reader(&self, health: &Health) -> Result<BaseConsumer<Listener>, Fault> {
        let mut config = self.client(Role::Consumer);
        // Assigning needs a group's name, but nothing is ever joined or committed under it.
        config.set("group.id", "potok-reader");
        config.remove("group.instance.id");
        config.create_with_context(Listener(health.clone())).map_err(|e| fault::set_up(&e))
    }
}

fn is_in_flight(name: &str) -> bool {
    name == "max.in.flight.requests.per.connection" || name == "max.in.flight"
}

fn number(value: &str) -> u64 {
    value.trim().parse().unwrap_or_default()
}

/// Whether the cluster can be reached, as far as clients have noticed.
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<Option<ClusterTrouble>>>);

#[derive(Clone)]
struct ClusterTrouble {
    why: String,
    /// The cluster answers and does not let us in, which explains more than its silence.
    refused: bool,
}

impl Health {
    /// Why it cannot be reached; `None` while it can.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.0).as_ref().map(|trouble| trouble.why.clone())
    }

    /// Why it does not let us in.
    pub fn refusal(&self) -> Option<String> {
        lock(&self.0).as_ref().filter(|trouble| trouble.refused).map(|t| t.why.clone())
    }

    fn bad(&self, why: String, refused: bool) {
        let mut trouble = lock(&self.0);
        match &*trouble {
            None => tracing::warn!(why, "Kafka is in trouble; waiting for it"),
            Some(known) if known.refused && !refused => return,
            Some(_) => {}
        }
        *trouble = Some(ClusterTrouble { why, refused });
    }

    pub fn good(&self) {
        if lock(&self.0).take().is_some() {
            tracing::info!("Kafka answers again");
        }
    }

    /// Takes in the answer to a question, or that there was none.
    pub fn hear(&self, code: RDKafkaErrorCode, why: &str) {
        if fault::is_outage(code) {
            self.bad(format!("Kafka does not answer: {why}"), false);
        } else {
            self.overhear(code, why);
        }
    }

    /// Takes in what a client said by itself. One broker of several may well be away.
    pub fn overhear(&self, code: RDKafkaErrorCode, why: &str) {
        if code == RDKafkaErrorCode::AllBrokersDown {
            self.bad(format!("Kafka does not answer: {why}"), false);
        } else if fault::is_refusal(code) {
            self.bad(format!("Kafka refuses this client: {why}"), true);
        } else {
            tracing::debug!(%code, why, "Kafka client");
        }
    }
}

/// Puts what librdkafka has to say where the rest of potok says it.
pub struct Listener(pub Health);

impl ClientContext for Listener {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        tell(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if let Some(code) = error.rdkafka_error_code() {
            self.0.overhear(code, reason);
        }
    }
}

impl ConsumerContext for Listener {}

/// A line of librdkafka's own log. Outages are told once by [`Health`], so they are quiet here.
pub fn tell(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
            tracing::error!(facility, "librdkafka: {message}");
        }
        RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning if !is_noise(facility) => {
            tracing::warn!(facility, "librdkafka: {message}");
        }
        _ => tracing::debug!(facility, "librdkafka: {message}"),
    }
}

fn is_noise(facility: &str) -> bool {
    ["FAIL", "ERROR", "CONFWARN", "MAXPOLL", "GETPID", "REQTMOUT"].contains(&facility)
}

/// True when the cluster answers within the time.
pub fn answers<C: ClientContext>(client: &Client<C>, within: std::time::Duration) -> bool {
    // Topics are left out: asking for one that does not exist answers with the brokers alone.
    client.fetch_metadata(Some("potok-groups"), within).is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use potok_core::Move;

    use super::*;

    fn config(properties: &[(&str, &str)]) -> KafkaConfig {
        KafkaConfig {
            servers: "127.0.0.1:1".into(),
            properties: properties.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect(),
            create_topics: None,
            client_id: "potok".into(),
        }
    }

    #[test]
    fn what_the_promise_needs_cannot_be_changed() {
        for (name, _) in OURS {
            let fault = config(&[(name, "1")]).check().unwrap_err();
            assert_eq!(fault.next, Move::Fix);
            assert!(fault.to_string().contains(name), "{fault}");
        }
        assert!(config(&[("max.in.flight", "6")]).check().is_err());
        assert!(config(&[("max.in.flight", "5"), ("linger.ms", "50")]).check().is_ok());
    }

    #[test]
    fn properties_win_over_defaults() {
        let config = config(&[("linger.ms", "50"), ("compression.type", "zstd")]);
        let client = config.client(Role::Producer);
        assert_eq!(client.get("linger.ms"), Some("50"));
        assert_eq!(client.get("compression.type"), Some("zstd"));
        assert_eq!(client.get("acks"), Some("all"));
    }

    #[test]
    fn every_role_makes_a_client_and_a_wrong_property_does_not() {
        for role in [Role::Admin, Role::Consumer, Role::Producer, Role::SingleProducer] {
            config(&[]).client(role).create_native_config().unwrap();
        }
        let fault = config(&[("no.such.thing", "1")]).reader(&Health::default()).err().unwrap();
        assert_eq!(fault.next, Move::Fix);
        assert!(fault.to_string().contains("no.such.thing"), "{fault}");
    }
}
