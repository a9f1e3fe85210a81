//! The step `group` of a pipeline file.

use potok_expr::PeriodBy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::expression::{Expression, FieldPath, Predicate};
use crate::shapes::OrderedMap;
use crate::track::Files;
use crate::values::{Period, Size, SqlName, TopicName};

/// Holds records back until what belongs together is there.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// A name for this step, in the table of `track`: groups become files.
    ///
    /// Example: `stage: event_ingest`
    pub stage: Option<SqlName>,
    /// Records with the same value belong together. Without it all records do.
    ///
    /// Example: `by: header.batchId`
    pub by: Option<Expression>,
    /// Instead of `by`: spreads records over shards, and makes a group of each. The shard is in the
    /// header `potok-shard`, and `db` of a delivery may name a database for each: `shop-{shard}`.
    ///
    /// Example: `shard: { by: .shop_id, of: 2 }`
    pub shard: Option<Shard>,
    /// The id of a record within its group; `deliver` calls it `id`. Where records are of several
    /// kinds, each of `kinds` has its own instead.
    ///
    /// Example: `id: .message_id`
    pub id: Option<Expression>,
    /// Kinds of records in a group, by name, told apart by their topic.
    ///
    /// Example: `kinds: { event: { topic: adapter-event, id: .GlobalEventId } }`
    #[serde(default)]
    pub kinds: OrderedMap<Kind>,
    /// When a group is complete.
    ///
    /// Example: `close: { after_first: 60s }`
    pub close: Close,
    /// Writes each closed group as a file before it goes on, with a line for each record as it
    /// came: `<data_dir>/files/<name>/<shard>/<YYYYMMDDHHMMSS>.ndjson`, named by the start of its
    /// slice in UTC. Further parts of a slice and late records get the next name, `….1`. Needs
    /// `shard` and `close.every`. The log stays the truth: nothing reads the files.
    ///
    /// Example: `files: shop-events`
    pub files: Option<Files>,
    /// What happens to a record whose `id` is already in the group.
    ///
    /// Example: `on_repeat: keep`
    #[serde(default)]
    pub on_repeat: OnRepeat,
}

/// How records are spread over shards.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// The value that tells the shard: of a whole number its remainder, never negative; of other
    /// text that of the first eight bytes of its SHA-256. A record without one becomes a dead letter
    /// `no_key`.
    ///
    /// Example: `by: .shop_id`
    pub by: FieldPath,
    /// How many shards. Groups that were sealed before it changes keep theirs.
    ///
    /// Example: `of: ${SHARDS:-2}`
    #[schemars(range(min = 1, max = 1024))]
    pub of: u32,
    /// A name for this step, in the table of `track`.
    ///
    /// Example: `stage: shard_splitter`
    pub stage: Option<SqlName>,
}

/// One kind of records in a group.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Kind {
    /// The topic these records come from.
    ///
    /// Example: `topic: adapter-event`
    pub topic: TopicName,
    /// The id of such a record within its group.
    ///
    /// Example: `id: .GlobalEventId`
    pub id: Expression,
}

/// When a group is complete: as soon as one of these holds. At least one must be bound to come
/// true: `after_first`, `every` or `max_age`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Close {
    /// So long after its first record.
    ///
    /// Example: `after_first: 60s`
    pub after_first: Option<Period>,
    /// When no record has come for so long. Needs `max_age`: some groups never go quiet.
    ///
    /// Example: `quiet: 10s`
    pub quiet: Option<Period>,
    /// Another quiet time for some records: the last record of a group decides. Others have `quiet`.
    ///
    /// Example: `quiet_by: { by: .channel, map: { avito: 20s }, millis: .debounce_ms }`
    pub quiet_by: Option<QuietBy>,
    /// At the end of each slice of the clock.
    ///
    /// Example: `every: 10s`
    pub every: Option<Period>,
    /// When a record makes this VRL expression true; a comparison in it that fails is false. Needs
    /// `max_age`: it may never come.
    ///
    /// Example: `when: .last == true`
    pub when: Option<Predicate>,
    /// So long after its first record, whatever else is set.
    ///
    /// Example: `max_age: 5m`
    pub max_age: Option<Period>,
    /// When it has so many records.
    ///
    /// Example: `max_count: 100`
    #[schemars(range(min = 1))]
    pub max_count: Option<u32>,
    /// When its records have so many bytes, or would have more with the next one, which then opens the next
    /// group. A larger record is a group of its own.
    ///
    /// Example: `max_bytes: 1MiB`
    pub max_bytes: Option<Size>,
}

/// Another quiet time for some records. What a record says itself wins.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuietBy {
    /// The value that is looked up in `map`.
    ///
    /// Example: `by: .channel`
    pub by: Option<Expression>,
    /// The quiet time for each value; others have `quiet`.
    ///
    /// Example: `map: { avito: 20s }`
    #[serde(default)]
    pub map: OrderedMap<Period>,
    /// Where a record says it itself, as a number of milliseconds, at most a day. What is no such number
    /// is passed over.
    ///
    /// Example: `millis: .debounce_ms`
    pub millis: Option<Expression>,
}

impl QuietBy {
    /// What finds the quiet time of a record.
    pub fn period_by(&self) -> PeriodBy {
        let template = |expression: &Expression| expression.template().clone();
        PeriodBy {
            by: self.by.as_ref().map(template),
            map: self.map.iter().map(|(name, quiet)| (name.into(), **quiet)).collect(),
            millis: self.millis.as_ref().map(template),
        }
    }
}

/// What happens to a record whose `id` is already in the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnRepeat {
    /// The later one takes the place of the earlier, which ends with it.
    #[default]
    Replace,
    /// Both are delivered.
    Keep,
    /// The first is delivered, with how often it came in the header `potok-count`.
    Count,
}
