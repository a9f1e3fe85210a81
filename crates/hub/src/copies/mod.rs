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
//! | `views` | questions to all nodes: who is connected, disconnect |
//! | `in_process` | a directory for nodes of one process |
//! | `redis` | a directory on Redis |

pub(crate) mod in_process;
pub(crate) mod membership;
pub(crate) mod parcel;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod routing;
pub(crate) mod views;

use std::fmt;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;

use crate::contract::{Unavailable, UserId};
use crate::random;

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
    /// Whether it was still there. Where it was not, nobody knows any more who is with this node.
    pub kept: bool,
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

/// Where users are and how nodes talk, shared by all nodes of a hub.
///
/// Every call is one attempt that ends within seconds: after an error it may have happened or not,
/// and the caller asks again. Nothing here waits for a node.
#[async_trait]
pub trait Directory: Send + Sync {
    /// Renews a node's lease, or begins it. Called about once a second by each node.
    async fn renew(&self, node: NodeId, lease: Duration) -> Result<Lease, Unavailable>;

    /// Ends a node's lease: it stops in good order.
    async fn leave(&self, node: NodeId) -> Result<(), Unavailable>;

    /// Says what has become of users at a node. Saying it twice is saying it once.
    async fn announce(&self, node: NodeId, users: &[(UserId, Presence)])
    -> Result<(), Unavailable>;

    /// Where each of these users is, in their order.
    async fn find(&self, users: &[UserId]) -> Result<Vec<Whereabouts>, Unavailable>;

    /// Hands parcels to nodes. Those for one node arrive in the order of the calls, or not at all.
    /// For each, whether somebody listens there.
    async fn cast(&self, parcels: &[(NodeId, Bytes)]) -> Result<Vec<bool>, Unavailable>;

    /// Parcels for a node, from now on.
    async fn listen(&self, node: NodeId) -> Result<Box<dyn Parcels>, Unavailable>;

    /// The key that all nodes sign negotiations with: the first proposal wins.
    async fn negotiation_key(&self, proposal: [u8; 32]) -> Result<[u8; 32], Unavailable>;

    /// Remembers for a day that tokens of a user are refused that were issued up to then.
    async fn deny(&self, user: &UserId, before: SystemTime) -> Result<(), Unavailable>;

    async fn denials(&self) -> Result<Vec<(UserId, SystemTime)>, Unavailable>;
}

/// What a node is told.
#[async_trait]
pub trait Parcels: Send {
    /// The next; `None` when the line broke. What was cast meanwhile is lost.
    async fn next(&mut self) -> Option<Bytes>;
}
