//! The step `source` of a pipeline file.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::connector::FeedSettings;
use crate::expression::Expression;
use crate::secret::Secret;
use crate::values::{EachPath, HttpPath, TopicName};

/// Where records come from. What it is is told by one key of its own.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source {
    #[serde(skip)]
    pub(crate) input: Option<Input>,
}

impl Source {
    /// What it is; there for every source of a pipeline that was loaded.
    pub fn input(&self) -> Option<&Input> {
        self.input.as_ref()
    }

    /// The topics it reads, in order.
    pub fn topics(&self) -> impl Iterator<Item = &str> {
        let topics = match &self.input {
            Some(Input::Topics { topics, .. }) => topics.as_slice(),
            Some(Input::Feed(_)) | None => &[],
        };
        topics.iter().map(TopicName::as_str)
    }
}

/// What a source is.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "a pipeline has a few of them")]
pub enum Input {
    /// Topics of the log, read under a consumer group.
    Topics {
        /// In the order of the file.
        topics: Vec<TopicName>,
        /// Where the file names one.
        consumer_group: Option<TopicName>,
        /// Where the group begins the first time.
        from: StartFrom,
        /// Where other programs send records for the topic, if they may.
        http: Option<HttpEntry>,
        /// The file calls it a list.
        is_list: bool,
    },
    /// A feed of the registry.
    Feed(Arc<dyn FeedSettings>),
}

impl Input {
    /// The consumer group that the file names.
    pub fn consumer_group(&self) -> Option<&str> {
        match self {
            Input::Topics { consumer_group, .. } => consumer_group.as_deref(),
            Input::Feed(_) => None,
        }
    }
}

/// A topic of the log.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopicSource {
    /// The topic.
    ///
    /// Example: `topic: orders`
    pub topic: TopicName,
    /// The name under which progress is kept. Default: the name of the pipeline.
    ///
    /// Example: `consumer_group: order-consumer`
    pub consumer_group: Option<TopicName>,
    /// Where the consumer group begins the first time.
    ///
    /// Example: `from: latest`
    #[serde(default)]
    pub from: StartFrom,
}

impl From<TopicSource> for Input {
    fn from(source: TopicSource) -> Self {
        let TopicSource { topic, consumer_group, from } = source;
        Input::Topics { topics: vec![topic], consumer_group, from, http: None, is_list: false }
    }
}

/// Several topics of the log, read side by side.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopicsSource {
    /// The topics.
    ///
    /// Example: `topics: [adapter-event, adapter-mention]`
    #[schemars(length(min = 1))]
    pub topics: Vec<TopicName>,
    /// The name under which progress is kept. Default: the name of the pipeline.
    ///
    /// Example: `consumer_group: order-consumer`
    pub consumer_group: Option<TopicName>,
    /// Where the consumer group begins the first time.
    ///
    /// Example: `from: latest`
    #[serde(default)]
    pub from: StartFrom,
}

impl From<TopicsSource> for Input {
    fn from(source: TopicsSource) -> Self {
        let TopicsSource { topics, consumer_group, from } = source;
        Input::Topics { topics, consumer_group, from, http: None, is_list: false }
    }
}

/// A list of messages. On the embedded log it is a topic of that name, which `potok send` and HTTP
/// sources of other pipelines feed. Kafka has no such names: there, read a topic.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListSource {
    /// The list.
    ///
    /// Example: `list: "queue:incoming"`
    pub list: TopicName,
    /// The name under which progress is kept. Default: the name of the pipeline.
    ///
    /// Example: `consumer_group: chat`
    pub consumer_group: Option<TopicName>,
    /// Where the consumer group begins the first time.
    ///
    /// Example: `from: latest`
    #[serde(default)]
    pub from: StartFrom,
}

impl From<ListSource> for Input {
    fn from(source: ListSource) -> Self {
        let ListSource { list, consumer_group, from } = source;
        Input::Topics { topics: vec![list], consumer_group, from, http: None, is_list: true }
    }
}

/// Records that other programs send by HTTP POST: an array of JSON objects, or objects one after
/// another, such as one to a line; up to 16 MiB and 200,000 records. They are appended to a topic, all of a request
/// or none, and the answer comes when they are durable. `potok send` feeds the same topic.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HttpSource {
    /// The path of the address, on the listener that `http` in `potok.yaml` sets.
    ///
    /// Example: `http: /events`
    pub http: HttpPath,
    /// The topic that records are appended to, and read from.
    ///
    /// Example: `topic: shop-events-in`
    pub topic: TopicName,
    /// The key that each record gets. Default: what `group.shard.by` names, where groups are sharded;
    /// otherwise none.
    ///
    /// Example: `key: .shop_id`
    pub key: Option<Expression>,
    /// A record for each element of these arrays instead of one for an object: the object with only that
    /// element in them. An object without them is one record, and so is one whose records together were
    /// much larger than it (4 MiB, or twice as large). All that is made of a body may hold 32 MiB.
    ///
    /// Example: `each: ".entry[].changes[].value.messages[]"`
    pub each: Option<EachPath>,
    /// How senders prove who they are. Without it everybody who reaches the address may send.
    ///
    /// Example: `auth: { header: X-Token, secret: "${TOKEN}" }`
    pub auth: Option<HttpAuth>,
    /// The name under which progress is kept. Default: the name of the pipeline.
    ///
    /// Example: `consumer_group: shop`
    pub consumer_group: Option<TopicName>,
    /// Where the consumer group begins the first time.
    ///
    /// Example: `from: latest`
    #[serde(default)]
    pub from: StartFrom,
}

impl From<HttpSource> for Input {
    fn from(source: HttpSource) -> Self {
        let HttpSource { http, topic, key, each, auth, consumer_group, from } = source;
        let http = Some(HttpEntry { path: http, key, each, auth });
        Input::Topics { topics: vec![topic], consumer_group, from, http, is_list: false }
    }
}

/// Where other programs send records.
#[derive(Clone, Debug)]
pub struct HttpEntry {
    /// The path of the address.
    pub path: HttpPath,
    /// The key of each record.
    pub key: Option<Expression>,
    /// The arrays whose elements are records.
    pub each: Option<EachPath>,
    /// How senders prove who they are.
    pub auth: Option<HttpAuth>,
}

/// How senders prove who they are: by a secret in a header, or by a signature of the body.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpAuth {
    /// The header.
    ///
    /// Example: `header: X-Telegram-Bot-Api-Secret-Token`
    #[serde(default = "authorization")]
    #[schemars(regex(pattern = "^[A-Za-z0-9-]+$"))]
    pub header: String,
    /// The value of the header; in `Authorization` it stands behind `Bearer`.
    ///
    /// Example: `secret: "${TELEGRAM_SECRET}"`
    pub secret: Option<Secret>,
    /// The header has the HMAC-SHA-256 of the body under this key, in hexadecimal, with or without
    /// `sha256=` in front.
    ///
    /// Example: `hmac: "${WHATSAPP_APP_SECRET}"`
    pub hmac: Option<Secret>,
    /// What a sender has to know that asks by GET whether this is the right address, as Meta does before it
    /// sends anything: `hub.verify_token`. Its `hub.challenge` is the answer. Empty: nobody is answered.
    ///
    /// Example: `verify: "${WHATSAPP_VERIFY_TOKEN}"`
    pub verify: Option<Secret>,
}

fn authorization() -> String {
    "Authorization".to_owned()
}

/// Where a consumer group begins the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartFrom {
    /// With the oldest record that is kept.
    #[default]
    Earliest,
    /// Behind what is already there.
    Latest,
}
