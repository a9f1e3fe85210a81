//! A SignalR hub: a server that the stock `@microsoft/signalr` client cannot tell from the original.
//!
//! It sends messages to people, on all of their connections, and says of each message whether
//! somebody acknowledged it. It knows nothing of pipelines; [`Hub`] is the contract it is used by.
//!
//! | file | duty |
//! |---|---|
//! | `copies` | several nodes: where users are, messages from one to another |
//! | `contract` | what an engine may ask, and the promises |
//! | `frame` | a message, checked and encoded once |
//! | `node`, `live`, `users`, `delivery`, `connection`, `outbox` | who is here, what is on its way, the one answer per message |
//! | `resend` | connections that outlive their socket |
//! | `protocol` | bytes and messages, JSON and MessagePack |
//! | `inbox` | what users may have missed |
//! | `session`, `calls` | what clients say and call |
//! | `transport` | WebSockets, server-sent events, long polling |
//! | `http`, `negotiate` | requests, origins, limits of strangers |
//! | `tokens` | who somebody is |
//! | `admin` | metrics and questions of the person who runs it |
//! | `client` | a client, for terminals |
//!
//! **Invariants.** Only a connection that was sent a message can acknowledge it, once. Whatever a
//! client does not read is bounded in bytes, then the client is dropped. No message has a task or a
//! timer of its own. No token is logged. Deliberately absent: streams.

mod admin;
mod calls;
pub mod client;
mod connection;
mod contract;
mod copies;
mod counters;
mod delivery;
mod frame;
mod http;
mod inbox;
mod live;
mod negotiate;
mod node;
mod outbox;
mod protocol;
mod random;
mod resend;
mod session;
mod settings;
pub mod tokens;
mod transport;
pub mod trouble;
mod users;

pub use admin::admin;
pub use calls::{CallError, Caller, Method};
pub use contract::{
    AckRule, Answer, Answers, ConnectionAsk, ConnectionList, ConnectionView, Hub, HubStats,
    Outgoing, Ticket, Transport, Unavailable, UserId,
};
pub use copies::in_process::InProcess;
#[cfg(feature = "redis")]
pub use copies::redis::RedisDirectory;
pub use copies::{Directory, Find, Lease, NodeId, Parcels, Presence, Whereabouts};
pub use frame::{Frame, FrameError};
pub use http::{Network, listen, serve};
pub use node::Node;
pub use settings::{HubSettings, Limits};
pub use tokens::rules::AuthSettings;

/// Log lines of this target repeat whatever is sent, tokens too. Whoever logs leaves them out, at every
/// level.
pub const UNLOGGED_TARGET: &str = "tungstenite";
