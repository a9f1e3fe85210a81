//! The connectors of a program. What is registered here can be written in YAML: the schema, the
//! check of files, the reference and the wiring follow from it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::connector::{CommonKey, ConnectionKind, FeedSettings, SinkSettings, StageSettings};
use crate::schema;

/// Reads the keys of one entry.
type Read<S> = fn(Json) -> Result<Arc<S>, serde_json::Error>;

/// One connector in one section of a pipeline file.
pub(crate) struct ConnectorEntry<S: ?Sized> {
    /// The key by which an entry names it.
    pub key: &'static str,
    /// The common keys it makes use of.
    pub takes: &'static [CommonKey],
    /// The schema of its own keys.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
    pub read: Read<S>,
}

/// The connectors of a program, each under the key by which a file names it.
#[derive(Default)]
pub struct Registry {
    pub(crate) sinks: Vec<ConnectorEntry<dyn SinkSettings>>,
    pub(crate) stages: Vec<ConnectorEntry<dyn StageSettings>>,
    pub(crate) feeds: Vec<ConnectorEntry<dyn FeedSettings>>,
    pub(crate) connections: Vec<ConnectionKind>,
    pipeline_schema: OnceLock<Json>,
    connections_schema: OnceLock<Json>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("sinks", &keys(&self.sinks))
            .field("stages", &keys(&self.stages))
            .field("feeds", &keys(&self.feeds))
            .finish_non_exhaustive()
    }
}

impl Registry {
    /// A registry with what potok has without any connector: topics and VRL.
    pub fn new() -> Self {
        Registry::default()
    }

    /// Adds a destination: `deliver: [ { <key>: … } ]`. `S` has a required field of that name.
    pub fn sink<S>(&mut self, key: &'static str, takes: &'static [CommonKey]) -> &mut Self
    where
        S: SinkSettings + DeserializeOwned + JsonSchema + 'static,
    {
        let read = |json| Ok(Arc::new(serde_json::from_value::<S>(json)?) as Arc<dyn SinkSettings>);
        self.sinks.push(ConnectorEntry { key, takes, schema: S::json_schema, read });
        self.changed()
    }

    /// Adds a stage: `process: [ { <key>: … } ]`. `S` has a required field of that name.
    pub fn stage<S>(&mut self, key: &'static str, takes: &'static [CommonKey]) -> &mut Self
    where
        S: StageSettings + DeserializeOwned + JsonSchema + 'static,
    {
        let read =
            |json| Ok(Arc::new(serde_json::from_value::<S>(json)?) as Arc<dyn StageSettings>);
        self.stages.push(ConnectorEntry { key, takes, schema: S::json_schema, read });
        self.changed()
    }

    /// Adds a feed: `source: { <key>: … }`. `S` has a required field of that name.
    pub fn feed<S>(&mut self, key: &'static str) -> &mut Self
    where
        S: FeedSettings + DeserializeOwned + JsonSchema + 'static,
    {
        let read = |json| Ok(Arc::new(serde_json::from_value::<S>(json)?) as Arc<dyn FeedSettings>);
        self.feeds.push(ConnectorEntry { key, takes: &[], schema: S::json_schema, read });
        self.changed()
    }

    /// Adds a map of named connections to `potok.yaml`. A kind that is there already stays.
    pub fn connections(&mut self, kind: ConnectionKind) -> &mut Self {
        if !self.connections.iter().any(|known| known.key == kind.key) {
            self.connections.push(kind);
        }
        self.changed()
    }

    fn changed(&mut self) -> &mut Self {
        self.pipeline_schema = OnceLock::new();
        self.connections_schema = OnceLock::new();
        self
    }

    /// The schema of pipeline files, as the check walks it.
    pub(crate) fn pipeline_schema(&self) -> &Json {
        self.pipeline_schema.get_or_init(|| schema::pipeline(self))
    }

    /// The schema of `potok.yaml`, as the check walks it.
    pub(crate) fn connections_schema(&self) -> &Json {
        self.connections_schema.get_or_init(|| schema::connections(self))
    }
}

/// The keys of connectors, in order.
fn keys<S: ?Sized>(kinds: &[ConnectorEntry<S>]) -> Vec<&'static str> {
    kinds.iter().map(|kind| kind.key).collect()
}
