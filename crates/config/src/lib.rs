//! The files of potok: pipelines, and `potok.yaml` for connections.
//!
//! Promised: every problem of a file at once, each with file, line, column, the line itself and
//! what to do; secrets in none of them, nor in anything else that prints. A file that is too
//! large, too deep or multiplies itself is refused before it costs anything.
//!
//! A file is read into a tree that knows the place of everything, walked beside the JSON Schema
//! that the structs make, checked by the rules across fields, and only then deserialized. The same
//! structs make the schema for editors and the reference pages. Structs of connectors are joined to
//! those of this crate by a [`Registry`].
//!
//! Deliberately not here: whether what a file names is there. Nothing connects to anything.
#![deny(missing_docs)]

mod auth;
mod check;
mod connections;
mod connector;
mod deliver;
mod document;
mod env;
mod explain;
mod expression;
mod group;
mod load;
mod own_topics;
mod pipeline;
mod precedence;
mod problem;
mod process;
mod reference;
mod registry;
mod rules;
mod scalar;
mod schema;
mod secret;
mod settings;
mod shapes;
mod source;
mod text;
mod track;
mod tree;
mod values;
mod variants;

pub use auth::{Auth, DashboardRoles};
pub use connections::{
    Connections, CreateTopics, Flags, KeyStyle, Location, LogConnection, QueueConnection,
    Retention, StoreConnection, is_url, variable,
};
pub use connector::{
    CommonKey, ConnectionKind, Destination, EntryCheck, FeedSettings, Misfit, Refusal,
    SinkSettings, Site, StageSettings,
};
pub use deliver::{Deliver, Target, TopicMap, TopicTarget};
pub use env::Env;
pub use explain::{explain, explain_codes};
pub use expression::{CountPath, Expression, FieldPath, Predicate, Rows, StageVrl};
pub use group::{Close, Group, Kind, OnRepeat, QuietBy, Shard};
pub use load::{LoadedFile, check_together, holds_connections, load_pipeline};
pub use pipeline::{DeadLetter, Decode, Format, Gate, Limits, Pipeline, Retry};
pub use precedence::load_connections;
pub use problem::{Problem, Problems};
pub use process::{OnError, Per, Stage, StageWork};
pub use reference::reference;
pub use registry::Registry;
pub use schema::{connections_schema, json_schema, validator};
pub use secret::{ConnectionUrl, Secret};
pub use shapes::{OneOrMany, OrderedMap};
pub use source::{HttpAuth, HttpEntry, Input, Source, StartFrom};
pub use track::{Files, FilesSettings, Track};
pub use values::{
    Address, ConnectionName, CounterName, EachPath, HttpPath, Period, PipelineName, ShardedName,
    Size, SqlName, TopicName,
};
