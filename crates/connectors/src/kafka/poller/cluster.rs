//! What the polling thread asks about topics and the group's commits.

use std::collections::HashMap;
use std::ffi::CString;
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
pub(super) struct Brokers {
    /// Where the client began.
    pub servers: CString,
}

impl Brokers {
    /// Who cannot ask may have forgotten whom.
    fn remind<T>(
        &self,
        consumer: &BaseConsumer<Listener>,
        answer: Result<T, Code>,
    ) -> Result<T, Code> {
        answer.inspect_err(|_| native::add_brokers(consumer.client(), &self.servers))
    }
}

impl Cluster for Brokers {
    fn known(
        &self,
        consumer: &BaseConsumer<Listener>,
        topics: &[Arc<str>],
    ) -> Result<ClusterFacts, Code> {
        let client = consumer.client();
        let committed = |of: &_| native::committed_by_own(client, of);
        self.remind(consumer, ClusterFacts::ask(client, topics, ANSWER_MAX, committed))
    }

    fn topics(
        &self,
        consumer: &BaseConsumer<Listener>,
        topics: &[Arc<str>],
    ) -> Result<HashMap<Arc<str>, Facts>, Code> {
        self.remind(consumer, native::describe_topics(consumer.client(), topics, ANSWER_MAX))
    }
}
