//! `potok.yaml`: where things are. Nothing in it is needed for the embedded default.
//!
//! A flag wins over the environment, the environment over the file, the file over the default,
//! setting by setting. Paths in the file are relative to the file, paths in flags and variables to
//! the current folder.

use std::borrow::Cow;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize};

use crate::auth::{Auth, AuthSetting};
use crate::connector::ConnectionKind;
use crate::problem::code;
use crate::secret::{ConnectionUrl, Secret};
use crate::shapes::OrderedMap;
use crate::values::{Address, Period, Size, TextError, TextValue, written};

/// The connections file, usually `potok.yaml`: every setting has a default, so the file may be
/// missing.
///
/// For each setting, a flag wins over the environment variable, the variable over this file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConnectionsFile {
    /// The folder of the embedded log, its databases and what else potok keeps, relative to this
    /// file. Variable: `POTOK_DATA_DIR`. Default: `./potok-data`.
    ///
    /// Example: `data_dir: /var/lib/potok`
    pub data_dir: Option<String>,
    /// Where the dashboard, health, metrics and the API of the command line listen. Addresses that
    /// others can reach are taken with `auth` alone, and ask for an access token.
    /// Variable: `POTOK_ADMIN`. Default: `127.0.0.1:7600`.
    ///
    /// Example: `admin: 127.0.0.1:0`
    pub admin: Option<Address>,
    /// Where HTTP sources and read APIs listen. Variable: `POTOK_HTTP`. Default: `127.0.0.1:7601`.
    ///
    /// Example: `http: 0.0.0.0:7601`
    pub http: Option<Address>,
    /// The log that holds topics and progress: `embedded`, `kafka://host:port,…`, or a map with
    /// more about Kafka. Variable: `POTOK_LOG`. Default: `embedded`.
    ///
    /// Example: `log: embedded`
    pub log: Option<LogSetting>,
    /// Where groups that are being held may be kept for other programs to see: `embedded`,
    /// `redis://…`, or a map with more about Redis. Variable: `POTOK_STORE`. Default: `embedded`.
    ///
    /// Example: `store: embedded`
    pub store: Option<StoreSetting>,
    /// Where lists are: `embedded` (a list is a topic of that name), `redis://…`, or a map with more
    /// about Redis. Variable: `POTOK_QUEUE`. Default: `embedded`.
    ///
    /// Example: `queue: embedded`
    pub queue: Option<QueueSetting>,
    /// Whose tokens the hub accepts, and the dashboard beyond this machine. Default: those of a development issuer, on this machine alone.
    ///
    /// Example: `auth: { issuer: "https://id.example.com/realms/shop", audience: notifications }`
    #[serde(default)]
    pub auth: AuthSetting,
    /// How long the embedded log keeps what every consumer group has finished.
    ///
    /// Example: `retention: { age: 2d, size: 10GiB }`
    #[serde(default)]
    pub retention: Retention,
    /// How many partitions a new topic of the embedded log has.
    ///
    /// Example: `partitions: 8`
    #[serde(default = "four")]
    #[schemars(range(min = 1, max = 1024))]
    pub partitions: u32,
    /// How long a stop waits for what is in flight.
    ///
    /// Example: `drain_max: 10s`
    #[serde(default = "thirty_seconds")]
    pub drain_max: Period,
}

impl Default for ConnectionsFile {
    fn default() -> Self {
        ConnectionsFile {
            data_dir: None,
            admin: None,
            http: None,
            log: None,
            store: None,
            queue: None,
            auth: AuthSetting::default(),
            retention: Retention::default(),
            partitions: four(),
            drain_max: thirty_seconds(),
        }
    }
}

fn four() -> u32 {
    4
}

fn thirty_seconds() -> Period {
    Period::secs(30)
}

/// How long the embedded log keeps what every consumer group has finished. What a group has not
/// finished, and dead letters, stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    /// Older records go.
    ///
    /// Example: `age: 7d`
    pub age: Period,
    /// When the log is larger, its oldest records go. Default: no limit.
    ///
    /// Example: `size: 10GiB`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
}

impl Default for Retention {
    fn default() -> Self {
        Retention { age: Period::secs(7 * 86_400), size: None }
    }
}

/// The setting `log`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum LogSetting {
    Text(LogText),
    Map(KafkaSetting),
}

/// More about Kafka.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KafkaSetting {
    /// The servers to ask first.
    ///
    /// Example: `kafka: "h1:9092,h2:9092"`
    pub kafka: Secret,
    /// Settings handed to the Kafka client as they are. They may hold secrets and are not shown.
    ///
    /// Example: `properties: { security.protocol: SASL_SSL }`
    #[serde(default)]
    pub properties: OrderedMap<Secret>,
    /// Creates missing topics, in this shape; `false` waits until somebody else has created them.
    /// Default: `true`, which is 4 partitions and as many copies as the servers are set to.
    ///
    /// Example: `create_topics: { partitions: 4, replication: 3 }`
    #[serde(default)]
    pub create_topics: CreateTopicsSetting,
}

/// The setting `create_topics`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum CreateTopicsSetting {
    Switch(bool),
    Shape(CreateTopics),
}

impl Default for CreateTopicsSetting {
    fn default() -> Self {
        CreateTopicsSetting::Switch(true)
    }
}

impl CreateTopicsSetting {
    /// The shape; `None` creates nothing.
    pub fn shape(self) -> Option<CreateTopics> {
        match self {
            CreateTopicsSetting::Switch(false) => None,
            CreateTopicsSetting::Switch(true) => Some(CreateTopics::default()),
            CreateTopicsSetting::Shape(shape) => Some(shape),
        }
    }
}

/// The shape of topics that potok creates in Kafka.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateTopics {
    /// How many partitions.
    ///
    /// Example: `partitions: 4`
    #[schemars(range(min = 1, max = 10000))]
    pub partitions: u32,
    /// How many copies. Default: as many as the servers are set to.
    ///
    /// Example: `replication: 3`
    #[schemars(range(min = 1, max = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replication: Option<u32>,
}

impl Default for CreateTopics {
    fn default() -> Self {
        CreateTopics { partitions: four(), replication: None }
    }
}

/// The setting `store`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum StoreSetting {
    Text(StoreText),
    Map(RedisSetting),
}

/// More about Redis.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RedisSetting {
    /// Where Redis is. It may hold a password and is not shown.
    ///
    /// Example: `redis: "redis://localhost:6379"`
    pub redis: Secret,
    /// How held records lie in Redis.
    ///
    /// Example: `keys: packed`
    #[serde(default)]
    pub keys: KeyStyle,
}

/// The setting `queue`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum QueueSetting {
    Text(QueueText),
    Map(RedisQueueSetting),
}

/// More about the Redis that holds lists.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RedisQueueSetting {
    /// Where Redis is, version 7.0 or newer, no cluster. It may hold a password and is not shown.
    ///
    /// Example: `redis: "redis://localhost:6379"`
    pub redis: Secret,
    /// How long a group that is being delivered is kept from other copies after its process was
    /// heard last. Afterwards one of them delivers it.
    ///
    /// Example: `lease: 30s`
    #[serde(default = "thirty_seconds")]
    pub lease: Period,
    /// How many groups may wait in Redis. Beyond it messages stay in their list, in order.
    ///
    /// Example: `waiting_max: 1000000`
    #[serde(default = "a_million")]
    #[schemars(range(min = 1))]
    pub waiting_max: u32,
}

fn a_million() -> u32 {
    1_000_000
}

/// How held records lie in Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeyStyle {
    /// In readable keys, one per record, for other programs to read.
    #[default]
    Readable,
    /// Packed, for speed.
    Packed,
}

/// A connection setting in one line. The text may hold a password: it is never shown.
macro_rules! one_line {
    ($type:ident, $of:ty) => {
        #[derive(Clone, Debug)]
        pub(crate) struct $type(pub $of);
        written!($type);
    };
}
one_line!(LogText, LogConnection);
one_line!(StoreText, StoreConnection);
one_line!(QueueText, QueueConnection);

/// True for `scheme://something` with one of these schemes.
pub fn is_url(text: &str, schemes: &[&str]) -> bool {
    let found = text.split_once("://");
    found.is_some_and(|(scheme, rest)| schemes.contains(&scheme) && !rest.is_empty())
}

/// The text itself is not repeated: it may be a password in the wrong place.
fn not_a_setting<T>(text: &str, what: &str, hint: &str) -> Result<T, Vec<TextError>> {
    let what = format!("this is not a setting for {what}");
    Err(vec![TextError::new(code::ADDRESS, 0..text.len(), what, hint)])
}

impl TextValue for LogText {
    const FORMAT: &'static str = "potok-log";
    const SECRET: bool = true;

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        if text == "embedded" {
            return Ok(LogText(LogConnection::Embedded));
        }
        match is_url(text, &["kafka"]) {
            true => Ok(LogText(LogConnection::Kafka {
                servers: ConnectionUrl::new(text),
                properties: OrderedMap::default(),
                create_topics: Some(CreateTopics::default()),
            })),
            false => not_a_setting(text, "the log", "`embedded` or `kafka://host:port,…`"),
        }
    }
}

/// One server, or several behind sentinels or in a cluster, each with or without TLS.
const REDIS_SCHEMES: [&str; 6] =
    ["redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"];

impl TextValue for StoreText {
    const FORMAT: &'static str = "potok-store";
    const SECRET: bool = true;

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        if text == "embedded" {
            return Ok(StoreText(StoreConnection::Embedded));
        }
        match is_url(text, &REDIS_SCHEMES) {
            true => Ok(StoreText(StoreConnection::Redis {
                url: ConnectionUrl::new(text),
                keys: KeyStyle::default(),
            })),
            false => not_a_setting(text, "the store", "`embedded` or `redis://host:port`"),
        }
    }
}

impl TextValue for QueueText {
    const FORMAT: &'static str = "potok-queue";
    const SECRET: bool = true;

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        if text == "embedded" {
            return Ok(QueueText(QueueConnection::Embedded));
        }
        match is_url(text, &REDIS_SCHEMES) {
            true => Ok(QueueText(QueueConnection::Redis {
                url: ConnectionUrl::new(text),
                lease: thirty_seconds(),
                waiting_max: a_million(),
            })),
            false => not_a_setting(text, "the queue", "`embedded` or `redis://host:port`"),
        }
    }
}

/// Where the log is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LogConnection {
    /// In the data folder.
    Embedded,
    /// In Kafka.
    Kafka {
        /// The servers to ask first.
        servers: ConnectionUrl,
        /// Settings for the client.
        properties: OrderedMap<Secret>,
        /// The shape of topics that are missing; `None`: they must exist.
        create_topics: Option<CreateTopics>,
    },
}

/// Where groups that are being held may be kept besides the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreConnection {
    /// Nowhere else.
    Embedded,
    /// In Redis.
    Redis {
        /// Where it is.
        url: ConnectionUrl,
        /// How they lie there.
        keys: KeyStyle,
    },
}

/// Where lists are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueConnection {
    /// Each is a topic of the embedded log.
    Embedded,
    /// In Redis.
    Redis {
        /// Where it is.
        url: ConnectionUrl,
        /// How long a claim is kept from others after its owner was heard last.
        lease: Period,
        /// How many groups may wait there.
        waiting_max: u32,
    },
}

/// What the command line sets; wins over everything else.
#[derive(Clone, Default)]
pub struct Flags {
    /// `--data-dir`.
    pub data_dir: Option<PathBuf>,
    /// `--admin`.
    pub admin: Option<String>,
    /// `--http`.
    pub http: Option<String>,
}

/// Every connection setting, decided.
#[derive(Clone, Debug, Serialize)]
pub struct Connections {
    /// The data folder.
    pub data_dir: PathBuf,
    /// Where health, metrics and the API of the command line listen.
    pub admin: Address,
    /// Where HTTP sources and read APIs listen.
    pub http: Address,
    /// Where topics are: the embedded log, or Kafka.
    pub log: LogConnection,
    /// Where groups keep their records until they close.
    pub store: StoreConnection,
    /// Where lists are.
    pub queue: QueueConnection,
    /// Whose tokens the hub accepts.
    pub auth: Auth,
    /// What the embedded log keeps.
    pub retention: Retention,
    /// How many partitions a new topic of the embedded log has.
    pub partitions: u32,
    /// How long a stop waits for what is in flight.
    pub drain_max: Period,
    /// The named connections that are set, those that win first.
    #[serde(skip)]
    pub(crate) named: Vec<NamedSetting>,
}

/// A named connection that is set somewhere.
#[derive(Clone, Debug)]
pub(crate) struct NamedSetting {
    /// The kind, by its key in `potok.yaml`.
    pub kind: &'static str,
    pub name: SettingName,
    pub location: Location,
}

/// What a setting is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettingName {
    /// The connection of this name.
    Name(String),
    /// Every connection with this variable.
    Variable(String),
}

/// Where a named connection leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// As it is written; it may hold a password.
    pub text: Secret,
    /// The folder to which paths in it are relative.
    pub base_dir: PathBuf,
}

impl Connections {
    /// Where the connection of a name leads, as set by its variable or in the file. `None` where
    /// nobody has set it.
    pub fn named(&self, kind: &ConnectionKind, name: &str) -> Option<&Location> {
        let variable = variable(kind, name);
        let set =
            self.named.iter().filter(|set| set.kind == kind.key).find(|set| match &set.name {
                SettingName::Name(set) => set == name,
                SettingName::Variable(set) => *set == variable,
            });
        set.map(|set| &set.location)
    }
}

/// The environment variable of a named connection: the database `shop-0` is `POTOK_DB_SHOP_0`.
pub fn variable(kind: &ConnectionKind, name: &str) -> String {
    let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    kind.variable.chars().chain(name.chars().map(upper)).collect()
}
