//! A list in Redis as a destination: each message is pushed at its end.
//!
//! One script per call: the entry first, then a marker with the delivery id. What breaks off in between
//! is pushed again and never lost; what was pushed with its marker is known as a duplicate for a while.

use std::time::Duration;

use async_trait::async_trait;
use potok_config::{
    CommonKey, Destination, LogConnection, Period, QueueConnection, Refusal, Registry,
    SinkSettings, Site, TopicName,
};
use potok_core::trouble::Plant;
use potok_core::{Batch, Fault, Outcome, Receipt, Sink, SinkLimits};
use redis::Value;
use schemars::JsonSchema;
use serde::Deserialize;

use super::address::RedisAddress;
use super::client::{RedisClient, RedisTimeouts, ScriptCall};
use super::scripts::Script;

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
    /// How long a message is known, so that it is not pushed twice. In Redis each leaves a key of about 150 bytes
    /// for that long; on the embedded log it is not used.
    ///
    /// Example: `remember: 1d`
    #[serde(default = "a_week")]
    pub remember: Period,
}

fn a_week() -> Period {
    Period::secs(7 * 86_400)
}

impl SinkSettings for ListSinkSettings {
    fn label(&self) -> &str {
        &self.list
    }

    fn build(&self, site: &Site<'_>) -> Result<Destination, Vec<Refusal>> {
        match &site.connections.queue {
            QueueConnection::Redis { url, .. } => {
                let sink = RedisListSink::new(url.expose(), &self.list, *self.remember);
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
    remember: Duration,
}

impl RedisListSink {
    /// The list at this address, which knows what was pushed for so long. Connects to nothing yet.
    pub fn new(url: &str, list: &str, remember: Duration) -> Result<Self, Fault> {
        let client = RedisClient::new(RedisAddress::parse(url)?, RedisTimeouts::default())?;
        if client.is_cluster() {
            return super::queue::cluster(client.label());
        }
        let text = include_str!("queue/scripts/push.lua").to_owned();
        let script = Script::whole(super::queue::naive_script(text, Plant::here()));
        Ok(RedisListSink { client, script, list: list.to_owned(), remember })
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
        call.show(self.remember.as_secs().max(1));
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
