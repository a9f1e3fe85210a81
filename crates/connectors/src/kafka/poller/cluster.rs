//! What the polling thread asks about topics and the group's commits.

use std::collections::HashMap;
use std::sync::Arc;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::super::assignment::ClusterFacts;
use super::super::native::{self, Facts};
use super::super::settings::Listener;
use super::ANSWER_MAX;

/// Answers are those of one broker, which may lag behind the others.
pub(super) trait Cluster: Send {
    /// Where partitions of these topics begin and end, and what the group has committed there.
    fn known(
        &self,
        consumer: &BaseConsumer<Listener>,
        topics: &[Arc<str>],
    ) -> Result<ClusterFacts, Code>;

    /// Those of these topics that exist.
    fn topics(
        &self,
        consumer: &BaseConsumer<Listener>,
        topics: &[Arc<str>],
    ) -> Result<HashMap<Arc<str>, Facts>, Code>;
}

/// Asks the brokers.
pub(super) struct Brokers;

impl Cluster for Brokers {
    fn known(
        &self,
        consumer: &BaseConsumer<Listener>,
        topics: &[Arc<str>],
    ) -> Result<ClusterFacts, Code> {
        let client = consumer.client();
        ClusterFacts::ask(client, topics, ANSWER_MAX, |of| native::committed_by_own(client, of))
    }

    fn topics(
        &self,
        consumer: &BaseConsumer<Listener>,
        topics: &[Arc<str>],
    ) -> Result<HashMap<Arc<str>, Facts>, Code> {
        native::describe_topics(consumer.client(), topics, ANSWER_MAX)
    }
}
