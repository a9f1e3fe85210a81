//! The step `source` of a pipeline file.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::connector::FeedSettings;
use crate::values::TopicName;

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
pub enum Input {
    /// Topics of the log, read under a consumer group.
    Topics {
        /// In the order of the file.
        topics: Vec<TopicName>,
        /// Where the file names one.
        consumer_group: Option<TopicName>,
        /// Where the group begins the first time.
        from: StartFrom,
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
        Input::Topics { topics: vec![topic], consumer_group, from }
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
        Input::Topics { topics, consumer_group, from }
    }
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
