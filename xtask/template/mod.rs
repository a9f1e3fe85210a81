//! Sample as a destination.
//!
//! Promised: what is reported as delivered was taken by the server. Not here: dropping duplicates,
//! which the server does by the id of the message.

mod client;
mod fault;
mod settings;
mod sink;

pub(crate) use settings::register;
pub use sink::SampleSink;
