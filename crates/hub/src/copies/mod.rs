//! Several copies of one hub: where users are, and how the copies talk.
//!
//! A copy is a *node*: one run of one process, with a random id, so that a restart is another node.
//! Nodes tell a [`Directory`] which users have connections with them, and find there at which nodes
//! a user is. A message goes to nodes by the name of its user, never by that of a connection: the
//! receiving node looks for the user among its own connections, so that an entry that is no longer
//! true costs a round trip and shows nothing to anybody else.
//!
//! What the directory says is a hint. Acknowledged is only what a connection of the user completed,
//! as told by its node; a directory that cannot be asked makes a message
//! [`Unavailable`](crate::Answer::Unavailable), never "nobody here".
//!
//! | file | duty |
//! |---|---|
//! | `parcel` | what nodes say to each other, as bytes |
//! | `routing` | messages to other nodes and from them, answers, users who just left |
//! | `membership` | the tasks: lease, announcements, listening, sending |
//! | `missing` | what a user may have missed, wherever it was sent from |
//! | `views` | questions to all nodes: who is connected, disconnect |
//! | `in_process` | a directory for nodes of one process |
//! | `redis` | a directory on Redis |

pub(crate) mod in_process;
pub(crate) mod membership;
mod missing;
pub(crate) mod parcel;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod routing;
pub(crate) mod views;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::Value;

use crate::Frame;
use crate::contract::{Unavailable, UserId};
use crate::random;
use crate::settings::Limits;

/// A node: one run of one process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(crate) u64);

impl NodeId {
    pub(crate) fn random() -> Self {
        NodeId(random::u64())
    }

    /// What [`Display`](fmt::Display) writes.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        digits.then(|| u64::from_str_radix(text, 16).ok().map(NodeId))?
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a node says of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// They have connections with it.
    Here,
    /// The last of them broke; the user may be back, here or elsewhere, in a moment.
    Lost,
    /// They went for good.
    Left,
}

/// A lease that was renewed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// Whether it was still there, in a directory that has forgotten nothing since. Where it was
    /// not, nobody may know any more who is with this node, or with others.
    pub kept: bool,
    /// Whether it is known here that everything was forgotten less than a lease ago: a node that
    /// begins now does not know that others have not said again who is with them.
    pub forgotten: bool,
    /// All nodes that have one, this one too.
    pub live: Vec<NodeId>,
}

/// Where a user was announced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whereabouts {
    /// Nodes that have them, also ones that have no lease any more.
    pub nodes: Vec<NodeId>,
    /// How long ago the last of them was [`Presence::Lost`].
    pub lost: Option<Duration>,
}

/// A user to be looked for.
#[derive(Clone, Debug)]
pub struct Find {
    pub user: UserId,
    /// Messages for them, in order, which are kept before they are looked for: who connects
    /// meanwhile is seen by one of the two.
    pub frames: Vec<Arc<Frame>>,
}

/// Where users are, what they may have missed, and how nodes talk; shared by all nodes of a hub.
///
/// Every call is one attempt that ends within seconds: after an error, and where its future is
/// dropped, it may have happened or not, and the caller asks again. Nothing here waits for a node.
/// Calls come from several tasks at a time; those that are said to be in order come from one.
/// Everything may be forgotten at any moment (`renew` tells), and is then said again.
#[async_trait]
pub trait Directory: Send + Sync {
    /// Renews a node's lease, or begins it. Called about once a second by each node, whatever
    /// happens; a node whose lease is over is dead to the others.
    async fn renew(&self, node: NodeId, lease: Duration) -> Result<Lease, Unavailable>;

    /// Ends a node's lease: it stops in good order. Called once, last; where it fails, the lease ends
    /// by itself.
    async fn leave(&self, node: NodeId) -> Result<(), Unavailable>;

    /// Says what has become of users at a node, up to 500 of them. Called when it changes, again
    /// until it succeeds, again for all where something may have been forgotten, and before what
    /// somebody missed is read. Saying it twice is saying it once.
    async fn announce(&self, node: NodeId, users: &[(UserId, Presence)])
    -> Result<(), Unavailable>;

    /// Keeps messages for what users may have missed, bounded by `limits`, then says where each of
    /// these users is, in their order: in this order for each user, and nothing comes between.
    /// Called once per `send`, and without messages while a user is looked for. After an error the
    /// messages may have been kept: they will be sent again under the same ids.
    async fn find(&self, users: &[Find], limits: &Limits) -> Result<Vec<Whereabouts>, Unavailable>;

    /// What was kept for a user since a message of that id, and from a while before it, as clients
    /// are told it; `None` where that is not known whole. Called at most once a second per
    /// connection.
    async fn since(
        &self,
        user: &UserId,
        last: &str,
        limits: &Limits,
    ) -> Result<Option<Vec<Value>>, Unavailable>;

    /// Hands parcels to nodes. Called by one task of each node. Those for one node arrive in the
    /// order of the calls, or not at all. For each, whether somebody listens there; taken is not
    /// read.
    async fn cast(&self, parcels: &[(NodeId, Bytes)]) -> Result<Vec<bool>, Unavailable>;

    /// Parcels for a node, from now on. Called at the start, and again when the line broke or nothing
    /// comes through it any more; an older line of the node may be dropped.
    async fn listen(&self, node: NodeId) -> Result<Box<dyn Parcels>, Unavailable>;

    /// The key that all nodes sign negotiations with: the first proposal wins. Called when a node
    /// begins to listen, and where its lease was forgotten.
    async fn negotiation_key(&self, proposal: [u8; 32]) -> Result<[u8; 32], Unavailable>;

    /// Remembers for a day that tokens of users are refused that were issued up to then; the latest
    /// moment of a user counts. Called when somebody is told to go, and with all of them when a node
    /// begins to listen, and where its lease was forgotten.
    async fn deny(&self, denials: &[(UserId, SystemTime)]) -> Result<(), Unavailable>;

    /// All that are remembered. Called when a node begins to listen, and where its lease was
    /// forgotten.
    async fn denials(&self) -> Result<Vec<(UserId, SystemTime)>, Unavailable>;
}

/// What a node is told.
#[async_trait]
pub trait Parcels: Send {
    /// The next; `None` when the line broke. What was cast meanwhile is lost.
    async fn next(&mut self) -> Option<Bytes>;
}
