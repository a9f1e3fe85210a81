//! The pipeline file. The comments here are the reference: `potok reference` and the JSON Schema
//! for editors are made from them.
//!
//! The structs say what can be written, one by one; what makes sense together is said in
//! `rules.rs`, with the place in the file. A [`Pipeline`] that was loaded has passed both.

use potok_expr::RowsPath;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::expression::{CountPath, Expression, Predicate, Rows, StageVrl, Vrl};
use crate::secret::Secret;
use crate::shapes::{OneOrMany, OrderedMap};
use crate::values::{DbName, HttpPath, Period, PipelineName, Size, SqlName, TopicName};

/// One pipeline: where records come from, what happens to them, where they go.
///
/// Connections (which Kafka, which database) are not here but in `potok.yaml`, so one pipeline
/// file runs everywhere.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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
    /// What happens to the records behind a dead letter that have the same key.
    ///
    /// Example: `on_set_aside: park`
    #[serde(default)]
    pub on_set_aside: OnSetAside,
    /// How much the pipeline may hold in memory.
    ///
    /// Example: `limits: { in_flight_bytes: 16MiB }`
    #[serde(default)]
    pub limits: Limits,
    /// Writes the state of each stage of each batch into a table.
    ///
    /// Example: `track: { db: tracking, table: pipeline_tracking }`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub track: Option<Track>,
}

fn four() -> u32 {
    4
}

impl Pipeline {
    /// All topics of all sources, in order.
    pub fn topics(&self) -> Vec<&str> {
        self.source.iter().flat_map(Source::topics).collect()
    }

    /// The consumer group of the first source; the pipeline's name where it names none.
    pub fn consumer_group(&self) -> &str {
        self.source.first().map_or(self.name.as_str(), |source| source.group_or(&self.name))
    }

    /// True when the first source begins behind what is already there.
    pub fn from_end(&self) -> bool {
        self.source.first().is_some_and(|source| source.from == StartFrom::Latest)
    }

    /// Where its dead letters go: as named, else `<name>-dead`.
    pub fn dead_letter_topic(&self) -> String {
        match &self.dead_letter.topic {
            Some(topic) => topic.to_string(),
            None => format!("{}-dead", self.name),
        }
    }

    /// The database connections it uses, each once.
    pub fn dbs(&self) -> Vec<&str> {
        let sources = self.source.iter().filter_map(|source| source.db.as_ref());
        let delivers = self.deliver.iter().filter_map(|deliver| deliver.db.as_ref());
        let track = self.track.as_ref().map(|track| &track.db);
        let mut dbs: Vec<&str> = sources.chain(delivers).chain(track).map(DbName::as_str).collect();
        dbs.sort_unstable();
        dbs.dedup();
        dbs
    }
}

/// Where records come from. Exactly one of `topic`, `topics`, `list`, `http` and `outbox`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// A topic of the log.
    ///
    /// Example: `topic: orders`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<TopicName>,
    /// Several topics of the log, read side by side.
    ///
    /// Example: `topics: [adapter-event, adapter-mention]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1))]
    pub topics: Vec<TopicName>,
    /// A Redis list; on the embedded default a topic of that name.
    ///
    /// Example: `list: "queue:incoming"`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list: Option<TopicName>,
    /// A path under the address `http` of `potok.yaml`; records are posted there.
    ///
    /// Example: `http: /events`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpPath>,
    /// An outbox table in the database `db`: the value is its `payload`; `header.id`,
    /// `header.event_type` and `header.added_at` come from its columns.
    ///
    /// Example: `outbox: outbox`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outbox: Option<SqlName>,
    /// The database of `outbox`, by its name in `potok.yaml`.
    ///
    /// Example: `db: messenger`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub db: Option<DbName>,
    /// Under which name progress is kept. Default: the name of the pipeline.
    ///
    /// Example: `consumer_group: order-consumer`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer_group: Option<TopicName>,
    /// Where the consumer group begins the first time.
    ///
    /// Example: `from: latest`
    #[serde(default)]
    pub from: StartFrom,
}

impl Source {
    /// The topics it reads, in order.
    pub fn topics(&self) -> impl Iterator<Item = &str> {
        self.topic.iter().chain(&self.topics).map(TopicName::as_str)
    }

    /// Its consumer group; the pipeline's name where it names none.
    pub fn group_or<'a>(&'a self, pipeline: &'a str) -> &'a str {
        self.consumer_group.as_deref().unwrap_or(pipeline)
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

/// Holds records back until what belongs together is there.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Records with the same value belong together. Without it all records do.
    ///
    /// Example: `by: header.batchId`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<Expression>,
    /// The id of a record within its group; `deliver` calls it `id`. Where records are of several
    /// kinds, each of `kinds` has its own instead.
    ///
    /// Example: `id: .message_id`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Expression>,
    /// Kinds of records in a group, by name, told apart by their topic.
    ///
    /// Example: `kinds: { event: { topic: adapter-event, id: .GlobalEventId } }`
    #[serde(default, skip_serializing_if = "OrderedMap::is_empty")]
    pub kinds: OrderedMap<Kind>,
    /// When a group is complete.
    ///
    /// Example: `close: { after_first: 60s }`
    pub close: Close,
    /// What a complete group is handed on as.
    ///
    /// Example: `as: file`
    #[serde(default, rename = "as")]
    pub handed_on_as: HandedOnAs,
    /// What happens to a record whose `id` is already in the group.
    ///
    /// Example: `on_repeat: keep`
    #[serde(default)]
    pub on_repeat: OnRepeat,
}

/// One kind of records in a group.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Close {
    /// So long after its first record.
    ///
    /// Example: `after_first: 60s`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_first: Option<Period>,
    /// When no record has come for so long. Needs `max_age`: some groups never go quiet.
    ///
    /// Example: `quiet: 10s`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet: Option<Period>,
    /// At the end of each slice of the clock.
    ///
    /// Example: `every: 10s`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Period>,
    /// When a record makes this VRL expression true; a comparison in it that fails is false. Needs
    /// `max_age`: it may never come.
    ///
    /// Example: `when: .last == true`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<Predicate>,
    /// So long after its first record, whatever else is set.
    ///
    /// Example: `max_age: 5m`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age: Option<Period>,
    /// When it has so many records.
    ///
    /// Example: `max_count: 100`
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_count: Option<u32>,
    /// When its records have so many bytes.
    ///
    /// Example: `max_bytes: 1MiB`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<Size>,
}

/// What a complete group is handed on as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HandedOnAs {
    /// A batch of its records.
    #[default]
    Batch,
    /// A file named by its time, e.g. `20250101000000`.
    File,
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

/// One step of processing: `vrl` or `webhook` changes the record, or `shard` says where it goes.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Its name, in messages and metrics.
    ///
    /// Example: `stage: clean`
    pub stage: SqlName,
    /// A VRL program. The event is `.`; key, headers, topic and time are `%key`, `%headers`,
    /// `%topic`, `%time`; `abort` filters the record. With `per: group` it is another: see there.
    ///
    /// Example: `vrl: ".tone = to_float(.AvgTone) ?? 0.0"`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vrl: Option<StageVrl>,
    /// What `vrl` sees at a time.
    ///
    /// Example: `per: group`
    #[serde(default)]
    pub per: Per,
    /// An address that gets events by HTTP POST, as a JSON array of `{ "id", "topic", "key",
    /// "headers", "value" }`, at most 500 of them or about 1 MiB, and answers with an array of
    /// the same length: `{ "value": … }` is what the event becomes, `{ "filtered": true }`
    /// filters it, `{ "error": "…" }` is a failure, on which `on_error` decides, and `null`
    /// leaves the event as it was. The same call made again has the same `Idempotency-Key`. The
    /// address may hold a secret and is not shown.
    ///
    /// Example: `webhook: "${ENRICH_URL}"`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Secret>,
    /// How long `webhook` may take to answer. Afterwards the call is made again.
    ///
    /// Example: `timeout: 10s`
    #[serde(default = "ten_seconds")]
    pub timeout: Period,
    /// A VRL expression that gives the number of the shard, for `{shard}` in `deliver`.
    ///
    /// Example: `shard: "mod(to_int!(.shop_id), 2)"`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<Vrl>,
    /// What happens to a record on which the stage fails.
    ///
    /// Example: `on_error: pass`
    #[serde(default)]
    pub on_error: OnError,
    /// What to count in the events that this stage lets go on, with `per: group` too: a counter's
    /// name (small letters, digits, `_`) and a path in the event as the stage left it. An array
    /// adds its length, a whole number from 0 on itself, `true` one, everything else nothing. Seen
    /// in `potok status` and as the metric `potok_process_counted_total`, since the process
    /// started. An event that is processed again, as after a restart, is counted again.
    ///
    /// Example: `count: { bad_values: .BadValues }`
    #[serde(default, skip_serializing_if = "OrderedMap::is_empty")]
    #[schemars(extend("propertyNames" = { "format": "potok-counter-name" }))]
    pub count: OrderedMap<CountPath>,
}

/// What a program sees at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// One event.
    #[default]
    Event,
    /// A complete group, only with `group`: `.` is the array of the values in order of arrival,
    /// `%key` the value of `group.by` (empty without it), `%events` an array with `key`,
    /// `headers`, `topic` and `time` of each event. The program must leave an array of the same
    /// length: each element is what its event becomes, null filters it, `abort` filters all. If
    /// the program fails, it has failed on every event of the group. A group of more than 10,000
    /// records or 16 MiB is sent in parts, and the program runs once for each; a repeat after a
    /// crash may lack events that have ended already; a dead letter that is replayed comes alone.
    Group,
}

/// What happens to a record on which a stage fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// It becomes a dead letter `stage`.
    #[default]
    DeadLetter,
    /// It goes on as it was before the stage.
    Pass,
    /// The pipeline stops and says so.
    Stop,
}

/// One destination. Exactly one of `topic`, `db`, `webhook` and `hub`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Deliver {
    /// A name for this step, in messages, metrics and `track`.
    ///
    /// Example: `stage: mysql_sender`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<SqlName>,
    /// Only records of this kind of `group.kinds`.
    ///
    /// Example: `kind: event`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// One delivery per element of this list in the record; `receiver` is the element.
    ///
    /// Example: `each: .payload.receiver_ids`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub each: Option<Expression>,
    /// A topic of the log, or one chosen by a field.
    ///
    /// Example: `topic: orders-clean`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<TopicTarget>,
    /// The key of the record in `topic`. Default: the key it came with.
    ///
    /// Example: `key: .customer_id`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Expression>,
    /// A database, by its name in `potok.yaml` under `db`. Without a setting there it is an SQLite
    /// file in the data folder.
    ///
    /// Example: `db: orders`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub db: Option<DbName>,
    /// The table in `db` that gets one row per record.
    ///
    /// Example: `table: events`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<SqlName>,
    /// Several tables in `db`, each with the part of the record that makes its rows, all in one
    /// transaction. One table takes the whole record (`.`).
    ///
    /// Example: `rows: { orders: ., items: ".items[]" }`
    #[serde(default, skip_serializing_if = "OrderedMap::is_empty")]
    #[schemars(extend("propertyNames" = { "format": "potok-sql-name" }))]
    pub rows: OrderedMap<Rows>,
    /// Creates missing tables at start, with columns from `decode.schema`. `potok ddl` prints the
    /// statements.
    ///
    /// Example: `create_tables: true`
    #[serde(default)]
    pub create_tables: bool,
    /// What makes a record the same as another. A repeat is delivered once; in a database,
    /// another record under the same id becomes a dead letter `conflict`. One, or a list that
    /// counts together.
    ///
    /// Example: `once_by: .order_uid`
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub once_by: OneOrMany<Expression>,
    /// Records with the same value stay in order at this destination. Default: the `order_by` of
    /// the pipeline.
    ///
    /// Example: `order_by: .payload.conversation_id`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_by: Option<Expression>,
    /// An address that gets each batch by HTTP POST. It may hold a secret and is not shown.
    ///
    /// Example: `webhook: "${CHAT_WEBHOOK}"`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Secret>,
    /// The receivers of `each` that are connected.
    ///
    /// Example: `hub: { name: notifications, method: "{.event_type}" }`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hub: Option<Hub>,
    /// Where it goes instead when `hub` reaches the receiver not at all or not in time.
    ///
    /// Example: `else: { push: "${PUSH_URL}" }`
    #[serde(rename = "else", skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<Else>,
}

impl Deliver {
    /// What to call it in messages: its stage, else its destination.
    pub fn label(&self) -> &str {
        let topic = match &self.topic {
            Some(TopicTarget::Name(topic)) => Some(topic.as_str()),
            Some(TopicTarget::ByField(_)) => Some("topic"),
            None => None,
        };
        self.stage
            .as_deref()
            .or(topic)
            .or(self.db.as_deref())
            .or(self.hub.as_ref().map(|hub| hub.name.as_str()))
            .unwrap_or("webhook")
    }

    /// The tables of `db` with the rows of each, in order; `table` is one with the whole record.
    pub fn tables(&self) -> Vec<(&str, RowsPath)> {
        let whole = self.table.iter().filter_map(|table| Some((table.as_str(), whole_record()?)));
        whole.chain(self.rows.iter().map(|(table, rows)| (table, rows.path().clone()))).collect()
    }
}

fn whole_record() -> Option<RowsPath> {
    RowsPath::parse(".").ok()
}

/// A topic, or one chosen by a field.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TopicTarget {
    /// This topic.
    Name(TopicName),
    /// The topic that a field is mapped to.
    ByField(TopicMap),
}

/// A topic chosen by a field. A value that is not in `map` makes the record a dead letter.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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

/// Receivers that are connected to the hub.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hub {
    /// The name of the hub: the last part of its address.
    ///
    /// Example: `name: notifications`
    pub name: SqlName,
    /// The method called on the client.
    ///
    /// Example: `method: "{.event_type}"`
    pub method: Expression,
    /// How long the client has to acknowledge, before `else` is tried.
    ///
    /// Example: `ack_within: 10s`
    #[serde(default = "ten_seconds")]
    pub ack_within: Period,
}

fn ten_seconds() -> Period {
    Period::secs(10)
}

/// Where a delivery goes that the hub did not make.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Else {
    /// An address that gets it by HTTP POST. It may hold a secret and is not shown.
    ///
    /// Example: `push: "${PUSH_URL}"`
    pub push: Secret,
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
    /// A table instead, beside the outbox of the source.
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

/// What happens to the records behind a dead letter that have the same key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnSetAside {
    /// They go on.
    #[default]
    Continue,
    /// They become dead letters `behind`, so that nothing overtakes it.
    Park,
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

/// Writes the state of each stage of each batch into a table.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Track {
    /// The database, by its name in `potok.yaml`.
    ///
    /// Example: `db: tracking`
    pub db: DbName,
    /// The table.
    ///
    /// Example: `table: pipeline_tracking`
    pub table: SqlName,
    /// For each stage, after how long in `started` it counts as stuck.
    ///
    /// Example: `stuck: { shard_worker: 10m }`
    #[serde(default, skip_serializing_if = "OrderedMap::is_empty")]
    #[schemars(extend("propertyNames" = { "format": "potok-sql-name" }))]
    pub stuck: OrderedMap<Period>,
}
