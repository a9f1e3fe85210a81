//! The pipeline file. The comments here are the reference: `potok reference` and the JSON Schema
//! for editors are made from them.
//!
//! The structs say what can be written, one by one; the keys of connectors come from the registry;
//! what makes sense together is said in `rules`, with the place in the file. A [`Pipeline`] that
//! was loaded has passed all of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::deliver::Deliver;
use crate::expression::Expression;
use crate::group::Group;
use crate::process::Stage;
use crate::shapes::OneOrMany;
use crate::source::{Input, Source};
use crate::track::Track;
use crate::values::{Period, PipelineName, Size, SqlName, TopicName};

/// One pipeline: where records come from, what happens to them, where they go.
///
/// Connections (which Kafka, which database) are not here but in `potok.yaml`, so one pipeline
/// file runs everywhere.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// The name, under which the pipeline appears everywhere: small letters, digits and `-`.
    ///
    /// Example: `name: orders`
    pub name: PipelineName,
    /// Where records come from: one source, or a list of them.
    ///
    /// Example: `source: { topic: orders }`
    pub source: OneOrMany<Source>,
    /// How many records are worked on at the same time. Records with the same key are always
    /// worked on one after the other, in order.
    ///
    /// Example: `workers: ${WORKERS:-4}`
    #[serde(default = "four")]
    #[schemars(range(min = 1, max = 1024))]
    pub workers: u32,
    /// How the bytes of a record are read.
    ///
    /// Example: `decode: { format: json, schema: schemas/order.json }`
    #[serde(default)]
    pub decode: Decode,
    /// Holds records back until what belongs together is there. Without it each record goes on
    /// at once.
    ///
    /// Example: `group: { by: .chat_id, close: { quiet: 10s, max_age: 5m } }`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// What is done to each record, stage by stage. Without it records go on as they are.
    ///
    /// Example: `process: [ { stage: clean, vrl: ".seen = true" } ]`
    #[serde(default)]
    pub process: Vec<Stage>,
    /// Where records go. With several entries, a record has ended when each has taken it.
    ///
    /// Example: `deliver: [ { topic: orders-clean } ]`
    #[schemars(length(min = 1))]
    pub deliver: Vec<Deliver>,
    /// Records with the same value stay in order. Without it: `group.by`, else `once_by`, else
    /// the `key` of `deliver`, else the key of the record.
    ///
    /// Example: `order_by: .customer_id`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_by: Option<Expression>,
    /// How often and how fast a failed delivery is tried again, before the gate closes.
    ///
    /// Example: `retry: { attempts: 5, first: 50ms, max: 5s }`
    #[serde(default)]
    pub retry: Retry,
    /// What happens while a destination is away: intake pauses and it is probed until it answers.
    ///
    /// Example: `gate: { probe_every: 2s }`
    #[serde(default)]
    pub gate: Gate,
    /// Where records go that cannot be delivered: never lost, listed by `potok dead-letters`.
    ///
    /// Example: `dead_letter: { topic: orders-dead }`
    #[serde(default)]
    pub dead_letter: DeadLetter,
    /// Shows in a table how far each closed group has come. Needs `group.shard` and
    /// `group.close.every`.
    ///
    /// Example: `track: { db: tracking, table: pipeline_tracking, create_tables: true }`
    pub track: Option<Track>,
    /// How much the pipeline may hold in memory.
    ///
    /// Example: `limits: { in_flight_bytes: 16MiB }`
    #[serde(default)]
    pub limits: Limits,
}

fn four() -> u32 {
    4
}

impl Pipeline {
    /// All topics of all sources, in order.
    pub fn topics(&self) -> Vec<&str> {
        self.source.iter().flat_map(Source::topics).collect()
    }

    /// The consumer groups of its sources that read topics; the pipeline's name where one names
    /// none.
    pub fn consumer_groups(&self) -> Vec<&str> {
        let topics = self.inputs().filter(|input| matches!(input, Input::Topics { .. }));
        topics.map(|input| input.consumer_group().unwrap_or(&self.name)).collect()
    }

    /// The paths of its HTTP sources.
    pub fn http_paths(&self) -> impl Iterator<Item = &str> {
        self.inputs().filter_map(|input| match input {
            Input::Topics { http: Some(http), .. } => Some(&*http.path),
            Input::Topics { http: None, .. } | Input::Feed(_) => None,
        })
    }

    /// Sources that are of no other pipeline of the process.
    pub(crate) fn sole_sources(&self) -> impl Iterator<Item = String> {
        self.inputs().filter_map(|input| match input {
            Input::Feed(feed) => feed.sole(),
            Input::Topics { .. } => None,
        })
    }

    /// What its sources are, in order.
    pub fn inputs(&self) -> impl Iterator<Item = &Input> {
        self.source.iter().filter_map(Source::input)
    }

    /// Where its dead letters go: as named, else `<name>-dead`.
    pub fn dead_letter_topic(&self) -> String {
        match &self.dead_letter.topic {
            Some(topic) => topic.to_string(),
            None => format!("{}-dead", self.name),
        }
    }
}

/// How the bytes of a record are read.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Decode {
    /// What the bytes are.
    ///
    /// Example: `format: raw`
    #[serde(default)]
    pub format: Format,
    /// A file with a JSON Schema, relative to the pipeline file. What does not pass becomes a
    /// dead letter `invalid`. The schema also gives the columns of `create_tables`.
    ///
    /// Example: `schema: schemas/order.json`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
}

/// What the bytes of a record are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// JSON, checked once; what is not JSON becomes a dead letter `undecodable`.
    #[default]
    Json,
    /// Bytes, handed on as they are; they have no fields to speak about.
    Raw,
}

/// How a failed delivery is tried again. Each wait is twice the one before, up to `max`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Retry {
    /// How often in all.
    ///
    /// Example: `attempts: 5`
    #[schemars(range(min = 1, max = 1000))]
    pub attempts: u32,
    /// The wait before the second attempt.
    ///
    /// Example: `first: 50ms`
    pub first: Period,
    /// The longest wait.
    ///
    /// Example: `max: 5s`
    pub max: Period,
}

impl Default for Retry {
    fn default() -> Self {
        Retry { attempts: 5, first: Period::ms(50), max: Period::secs(5) }
    }
}

/// What happens while a destination is away.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Gate {
    /// How often it is asked whether it is back.
    ///
    /// Example: `probe_every: 2s`
    pub probe_every: Period,
}

impl Default for Gate {
    fn default() -> Self {
        Gate { probe_every: Period::secs(2) }
    }
}

/// Where records go that cannot be delivered.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeadLetter {
    /// A topic of the log. Default: `<name of the pipeline>-dead`.
    ///
    /// Example: `topic: orders-dead`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<TopicName>,
    /// Instead of a topic, a table beside the outbox table that records come from: every column of it,
    /// and `reason`, `error` and `dead_at`. Default there: the name of the table and `_dead`.
    ///
    /// Example: `table: outbox_dead`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<SqlName>,
    /// How often one dead letter may be replayed.
    ///
    /// Example: `replays_max: 5`
    #[schemars(range(max = 1000))]
    pub replays_max: u32,
    /// How long a dead letter that was replayed stays to be looked at before it is removed. One that
    /// was dropped goes at once, one that is open never.
    ///
    /// Example: `keep_resolved: 7d`
    pub keep_resolved: Period,
}

impl Default for DeadLetter {
    fn default() -> Self {
        DeadLetter {
            topic: None,
            table: None,
            replays_max: 5,
            keep_resolved: Period::secs(7 * 24 * 3600),
        }
    }
}

/// How much the pipeline may hold in memory.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Bytes of records that were read and have not ended. At the limit, intake waits.
    ///
    /// Example: `in_flight_bytes: 16MiB`
    pub in_flight_bytes: Size,
    /// Bytes of held records (see `group`) that are in memory as well as in the log or in Redis,
    /// so that they need not be read back when their group is delivered. What is beyond is read back:
    /// nothing waits for room. Without it `256MiB`, and `64MiB` where Redis is the store; with
    /// `1B` nothing is kept.
    ///
    /// Example: `held_memory_bytes: 128MiB`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_memory_bytes: Option<Size>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { in_flight_bytes: Size::mib(64), held_memory_bytes: None }
    }
}
