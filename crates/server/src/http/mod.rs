//! The HTTP listener for other programs: HTTP sources, and whatever else is mounted beside them.
//!
//! Apart from the admin API, because it may be reached from outside. It promises: an answer 2xx
//! means that every record of the request is durable, any other answer that none was taken unless
//! it says so; a body is taken whole or not at all; and what strangers send costs bounded memory,
//! connections and time.

mod auth;
mod body;
mod connections;
mod each;
mod raw;
mod records;
mod requests;
mod source;

pub use auth::HttpAuth;
pub(crate) use connections::serve_each;
pub use connections::{HttpLimits, serve_http};
pub use source::{HttpSource, HttpSourceCounts, HttpSources};
