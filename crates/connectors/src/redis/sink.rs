//! A list in Redis as a destination: each message is pushed at its end.
//!
//! One script per call: the entry first, then a marker with the delivery id. What breaks off in between
//! is pushed again and never lost; what was pushed with its marker is known as a duplicate for a week.

use async_trait::async_trait;
use potok_config::{
    CommonKey, Destination, LogConnection, QueueConnection, Refusal, Registry, SinkSettings, Site,
    TopicName,
};
use potok_core::trouble::Plant;
use potok_core::{Batch, Fault, Outcome, Receipt, Sink, SinkLimits};
use redis::Value;
use schemars::JsonSchema;
use serde::Deserialize;

use super::address::RedisAddress;
use super::client::{RedisClient, RedisTimeouts, ScriptCall};
use super::scripts::Script;

/// How long a repeat is known, in seconds.
const MARKER_S: u64 = 7 * 86_400;

/// Adds the destination.
pub(crate) fn register(registry: &mut Registry) {
    registry.sink::<ListSinkSettings>("list", &[CommonKey::Key]);
}

/// A list that gets each message at its end: its value byte for byte, once for each delivery id. Where
/// `queue` in `potok.yaml` is Redis it lies there; on the embedded log it is a topic of that name.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListSinkSettings {
    /// The list.
    ///
    /// Example: `list: "queue:outgoing"`
    pub list: TopicName,
}

impl SinkSettings for ListSinkSettings {
    fn label(&self) -> &str {
        &self.list
    }

    fn build(&self, site: &Site<'_>) -> Result<Destination, Vec<Refusal>> {
        match &site.connections.queue {
            QueueConnection::Redis { url, .. } => {
                let sink = RedisListSink::new(url.expose(), &self.list);
                sink.map(Destination::from).map_err(|fault| vec![Refusal::from(fault)])
            }
            QueueConnection::Embedded => match &site.connections.log {
                LogConnection::Embedded => Ok(Destination::Topic(self.list.as_str().into())),
                LogConnection::Kafka { .. } => {
                    let what = "a list is a topic of the embedded log, and the log is Kafka";
                    let fault = Fault::fix(what).code("P1201");
                    let hint = "deliver to a topic, or set `queue: redis://…` in potok.yaml";
                    Err(vec![Refusal::at(["list"], fault.hint(hint))])
                }
            },
        }
    }
}

/// Pushes messages into one list.
pub struct RedisListSink {
    client: RedisClient,
    script: Script,
    list: String,
}

impl RedisListSink {
    /// The list at this address. Connects to nothing yet.
    pub fn new(url: &str, list: &str) -> Result<Self, Fault> {
        let client = RedisClient::new(RedisAddress::parse(url)?, RedisTimeouts::default())?;
        if client.is_cluster() {
            return super::queue::cluster(client.label());
        }
        let text = include_str!("queue/scripts/push.lua").to_owned();
        let script = Script::whole(super::queue::naive_script(text, Plant::here()));
        Ok(RedisListSink { client, script, list: list.to_owned() })
    }
}

#[async_trait]
impl Sink for RedisListSink {
    fn limits(&self) -> SinkLimits {
        SinkLimits { batch_records_max: 500, ..SinkLimits::default() }
    }

    async fn probe(&self) -> Result<(), Fault> {
        self.client.ping().await
    }

    async fn deliver(&self, batch: &Batch) -> Result<Receipt, Fault> {
        let mut call = ScriptCall::new(&self.script, &self.list);
        call.show(MARKER_S);
        for message in &batch.messages {
            call.show(format_args!("potok:id:{}", message.id));
            call.push(&message.value);
        }
        let Value::Array(answers) = self.client.run(&call).await? else {
            return Err(Fault::retry("Redis gave an answer that its script does not give"));
        };
        let mut receipt = Receipt::delivered();
        for (index, answer) in answers.into_iter().enumerate() {
            if answer == Value::Int(0) {
                receipt.set(index, Outcome::Duplicate);
            }
        }
        Ok(receipt)
    }
}
