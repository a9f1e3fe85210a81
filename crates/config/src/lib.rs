//! The files of potok: pipelines, and `potok.yaml` for connections.
//!
//! Promised: every problem of a file at once, each with file, line, column, the line itself and
//! what to do; secrets in none of them, nor in anything else that prints. A file that is too
//! large, too deep or multiplies itself is refused before it costs anything.
//!
//! A file is read into a tree that knows the place of everything, walked beside the JSON Schema
//! that the structs make, checked by the rules across fields, and only then deserialized. The same
//! structs make the schema for editors and the reference pages.
//!
//! Deliberately not here: whether what a file names is there. Nothing connects to anything.
#![deny(missing_docs)]

mod check;
mod connections;
mod document;
mod env;
mod explain;
mod expression;
mod load;
mod not_yet;
mod own_topics;
mod pipeline;
mod precedence;
mod problem;
mod reference;
mod rules;
mod scalar;
mod schema;
mod secret;
mod shapes;
mod text;
mod tree;
mod values;

pub use connections::{
    Connections, CreateTopics, DbConnection, Flags, KeyStyle, LogConnection, Retention,
    StoreConnection, db_variable,
};
pub use env::Env;
pub use explain::{explain, explain_codes};
pub use expression::{CountPath, Expression, Predicate, Rows, StageVrl, Vrl};
pub use load::{Loaded, check_together, holds_connections, load_pipeline};
pub use not_yet::not_yet;
pub use pipeline::{
    Close, DeadLetter, Decode, Deliver, Else, Format, Gate, Group, HandedOnAs, Hub, Kind, Limits,
    OnError, OnRepeat, OnSetAside, Per, Pipeline, Retry, Source, Stage, StartFrom, TopicMap,
    TopicTarget, Track,
};
pub use precedence::load_connections;
pub use problem::{Problem, Problems};
pub use reference::reference;
pub use schema::{connections_schema, json_schema, validator};
pub use secret::{ConnectionUrl, Secret};
pub use shapes::{OneOrMany, OrderedMap};
pub use values::{
    Address, CounterName, DbName, HttpPath, Period, PipelineName, Size, SqlName, TopicName,
};
