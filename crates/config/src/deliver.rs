//! The step `deliver` of a pipeline file.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::connector::SinkSettings;
use crate::expression::Expression;
use crate::shapes::{OneOrMany, OrderedMap};
use crate::values::{SqlName, TopicName};

/// One destination. Which one is told by one key of its own.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Deliver {
    /// A name for this step, in messages and metrics.
    ///
    /// Example: `stage: mysql_sender`
    pub stage: Option<SqlName>,
    /// Only records of this kind of `group.kinds`.
    ///
    /// Example: `kind: event`
    pub kind: Option<String>,
    /// The key of the message. Default: the key the record came with.
    ///
    /// Example: `key: .customer_id`
    pub key: Option<Expression>,
    /// What makes a record the same as another. A repeat is delivered once; in a database,
    /// another record under the same id becomes a dead letter `conflict`. One, or a list that
    /// counts together.
    ///
    /// Example: `once_by: .order_uid`
    #[serde(default)]
    pub once_by: OneOrMany<Expression>,
    #[serde(skip)]
    pub(crate) target: Option<Target>,
}

impl Deliver {
    /// Where it leads; there for every delivery of a pipeline that was loaded.
    pub fn target(&self) -> Option<&Target> {
        self.target.as_ref()
    }

    /// What to call it in messages: its stage, else its destination.
    pub fn label(&self) -> &str {
        let target = || match self.target.as_ref()? {
            Target::Topic(TopicTarget::Name(topic)) => Some(topic.as_str()),
            Target::Topic(TopicTarget::ByField(_)) => Some("topic"),
            Target::Connector(settings) => Some(settings.label()),
        };
        self.stage.as_deref().or_else(target).unwrap_or_default()
    }

    /// What to call it for one shard: `shop-0`, `mysql_sender-0`.
    pub fn label_of(&self, shard: u32) -> String {
        let label = self.label();
        match label.contains("{shard}") {
            true => label.replace("{shard}", &shard.to_string()),
            false => format!("{label}-{shard}"),
        }
    }

    /// True where each shard has a destination of its own.
    pub fn is_sharded(&self) -> bool {
        matches!(&self.target, Some(Target::Connector(settings)) if settings.is_sharded())
    }

    /// The topics of the log it may write to.
    pub(crate) fn topics(&self) -> Vec<&str> {
        match &self.target {
            Some(Target::Topic(TopicTarget::Name(topic))) => vec![topic.as_str()],
            Some(Target::Topic(TopicTarget::ByField(target))) => {
                target.map.iter().map(|(_, topic)| topic.as_str()).collect()
            }
            Some(Target::Connector(_)) | None => Vec::new(),
        }
    }
}

/// Where a delivery leads.
#[derive(Clone, Debug)]
pub enum Target {
    /// To a topic of the log.
    Topic(TopicTarget),
    /// To a connector of the registry.
    Connector(Arc<dyn SinkSettings>),
}

/// A topic of the log.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopicSettings {
    /// The topic, or one chosen by a field.
    ///
    /// Example: `topic: orders-clean`
    pub topic: TopicTarget,
}

/// A topic, or one chosen by a field.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TopicTarget {
    /// This topic.
    Name(TopicName),
    /// The topic that a field is mapped to.
    ByField(TopicMap),
}

/// A topic chosen by a field. A value that is not in `map` makes the record a dead letter.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TopicMap {
    /// The field.
    ///
    /// Example: `by: header.event_type`
    pub by: Expression,
    /// The topic for each value of it.
    ///
    /// Example: `map: { MessageSent: send-message-notification-topic-v1 }`
    #[schemars(extend("minProperties" = 1))]
    pub map: OrderedMap<TopicName>,
}
