//! Redis as working storage: where groups and their bodies are while they are open.
//!
//! Optional beside Kafka. It gives other programs the keys they know (the readable keys) or
//! simply keeps bodies out of memory (the packed one). Redis is never the only home of a record:
//! emptied, failed over or evicted, it costs a re-read.
//!
//! One call is one attempt here. Deliberately absent: waiting, retrying, a time to live on
//! anything that has not been delivered.
//!
//! Apart from that, a list in Redis may be the queue that a pipeline reads (`queue/`): there Redis is
//! the log.

mod address;
mod chunks;
mod client;
mod fault;
mod pack;
mod packed;
mod queue;
mod readable;
mod scripts;
mod settings;
mod sink;
mod store;

pub use client::RedisTimeouts;
pub use queue::{QueueOptions, RedisQueue};
pub use settings::{queue, store};
pub use sink::RedisListSink;
pub(crate) use sink::register;
pub use store::{EVICTS, KeyStyle, RedisStore};
