//! What an engine may ask of a hub. Nothing here knows pipelines, and nothing in an engine has to
//! know SignalR.
//!
//! A message is handed over with a [`Ticket`]; the answer to that ticket comes back through
//! [`Answers`], exactly once, with many others in one call. No message has a task or a timer of its
//! own.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use crate::Frame;

/// A person as the tokens name them: bytewise equal to the claim that [`AuthSettings::user`] chooses.
///
/// [`AuthSettings::user`]: crate::AuthSettings::user
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserId(Arc<str>);

impl UserId {
    pub fn new(user: &str) -> Self {
        UserId(user.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl std::borrow::Borrow<str> for UserId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// The caller's number for a message; returned untouched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A message for one person, on all of their connections.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub ticket: Ticket,
    pub user: UserId,
    /// Shared by all receivers of the message.
    pub frame: Arc<Frame>,
    /// How long a connection may take to acknowledge. A message that had to wait for the
    /// connection's window gets twice as long, counted from `send`.
    pub ack_within: Duration,
    pub ack: AckRule,
}

/// Which completions of a client count as an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AckRule {
    /// A result, no result, or the stock client's words for "no handler returned a value": the
    /// client's code has run. A missing handler cannot be told from one that returns nothing.
    #[default]
    Any,
    /// Only a result.
    Result,
}

/// How a message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A connection of this user completed this very message.
    Acknowledged,
    /// The user has no connection, and did not come back within the linger time: certainly not seen.
    Nobody,
    /// Nobody answered in time, or nobody is left who could. Where it was `written`, it may have
    /// been seen.
    NoAnswer { written: bool },
    /// The hub cannot say: it is stopping, a part of it died, or it cannot ask its other nodes. Never a reason to tell the user by
    /// other means; try again later.
    Unavailable,
}

/// Where answers go.
pub trait Answers: Send + Sync {
    /// What became of messages, many of them at once. Called from the hub's threads, from several at
    /// a time, and possibly before the `send` of these messages has returned; once for each ticket,
    /// except those that were cancelled. It cannot fail. It must not block and must not call the
    /// hub: others wait behind it. The hub keeps a reference until the last ticket is answered.
    fn settle(&self, answers: &[(Ticket, Answer)]);
}

/// The hub takes nothing at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the hub takes nothing at the moment: it is stopping, or cannot ask where users are")]
pub struct Unavailable;

/// Which connections to list.
#[derive(Clone, Debug)]
pub struct ConnectionAsk {
    /// Only those of this user.
    pub user: Option<UserId>,
    pub limit: usize,
}

impl Default for ConnectionAsk {
    fn default() -> Self {
        ConnectionAsk { user: None, limit: 200 }
    }
}

/// Some connections, ordered by user, and how many there are in all.
#[derive(Clone, Debug, Default)]
pub struct ConnectionList {
    pub connections: Vec<ConnectionView>,
    pub total: usize,
    /// Nodes that did not answer in time; what they have is not in it.
    pub silent: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct ConnectionView {
    /// The public id, as the client knows it; not the secret it attached with.
    pub id: String,
    pub user: UserId,
    /// The node it is with, where there are several.
    pub node: String,
    pub since: SystemTime,
    pub address: IpAddr,
    /// As the client calls itself, shortened.
    pub agent: String,
    pub transport: Transport,
    pub protocol: String,
    pub queued_bytes: usize,
    /// Sent to, but no longer waited for: a message to it ran into its deadline.
    pub mute: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    WebSockets,
    ServerSentEvents,
    LongPolling,
}

impl Transport {
    pub(crate) const ALL: [Transport; 3] =
        [Transport::WebSockets, Transport::ServerSentEvents, Transport::LongPolling];

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Transport::ALL.into_iter().find(|transport| transport.name() == name)
    }

    /// Its name in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Transport::WebSockets => "WebSockets",
            Transport::ServerSentEvents => "ServerSentEvents",
            Transport::LongPolling => "LongPolling",
        }
    }
}

/// Counters since the start, except where a name says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HubStats {
    /// At this moment.
    pub connections: usize,
    /// At this moment: people with a connection to this node.
    pub users: usize,
    /// Connections there have been.
    pub connected: u64,
    /// At this moment.
    pub queued_bytes: usize,
    pub acknowledged: u64,
    pub nobody: u64,
    pub no_answer: u64,
    pub unavailable: u64,
    /// Messages that the hub was asked to send.
    pub sent: u64,
    /// Completions in the stock client's words for "no result". Where all are, the method's name
    /// may be wrong.
    pub no_result: u64,
    /// Completions with another error: the client's handler threw.
    pub threw: u64,
    /// Completions of messages that had ended before.
    pub late: u64,
    /// Completions of ids that this connection was never sent, or has completed already.
    pub unknown: u64,
    /// Connections dropped because they did not take what was queued for them.
    pub slow: u64,
    pub tokens_refused: u64,
    pub key_fetches: u64,
}

/// A hub, as an engine sees it.
///
/// All methods may be called from several tasks at a time. Nothing here is durable: what a hub was
/// asked and has not answered is asked again, after a crash, under the same message ids.
#[async_trait]
pub trait Hub: Send + Sync {
    /// Hands over messages; called for every batch that is ready, as often as there are some.
    ///
    /// *Promise.* All of them are taken or none. Messages for one user reach each of their
    /// connections in the order of the calls, unless the user moves from one node to another
    /// meanwhile; calls that overlap have no order. Every ticket is answered exactly once, at the
    /// latest 2 × `ack_within` plus the linger time after this returns, also when the hub stops or a
    /// part of it panics. Waits only while the hub's queues are full, and for the directory of its
    /// nodes, where there is one.
    ///
    /// *Failure.* After an `Err` nothing was sent to anybody and nothing will be answered; the caller
    /// waits and calls again. Clients that ask what they missed may already be told these messages,
    /// under the ids that they will have then.
    ///
    /// *Cancellation.* Dropping the future before it returns sends nothing.
    async fn send(
        &self,
        batch: Vec<Outgoing>,
        answers: Arc<dyn Answers>,
    ) -> Result<(), Unavailable>;

    /// The answers to these tickets of `answers` are no longer wanted: none will come but those that
    /// another thread is telling at this moment. What this node has not written yet is dropped; what
    /// is written stays, and so does what another node was given. Called when the engine loses the
    /// right to what it sent. Unknown and answered tickets are ignored, so that calling it twice is
    /// calling it once. Looks at everything that is open: not for every message.
    fn cancel(&self, answers: &Arc<dyn Answers>, tickets: &[Ticket]);

    /// Who is connected, since when, from where: for a person who looks. Asks all nodes, waits a
    /// second at most, and names those that did not answer; it never fails. Dropping the future is
    /// harmless.
    async fn connections(&self, ask: &ConnectionAsk) -> ConnectionList;

    /// Closes all connections of a user for good: their clients do not reconnect by themselves.
    /// With `deny_before`, tokens issued up to then stay refused for a day, on every node, also on
    /// those that cannot be told now: they close what they have when they hear of it. The number of
    /// connections closed, of those nodes that answered within a second.
    ///
    /// After an `Err` nothing was done. Where the future is dropped, some nodes may have done it;
    /// calling it again is harmless.
    async fn disconnect(
        &self,
        user: &UserId,
        deny_before: Option<SystemTime>,
    ) -> Result<u32, Unavailable>;

    /// Takes no new clients and no new messages, and closes the connections in random order over
    /// `spread` (50 a second or more); their clients reconnect elsewhere. Where there are other
    /// nodes, it first waits for balancers to notice. Each connection has a moment for the answers
    /// it owes. Called once, at the end; returns when all are closed, and everything that was sent is
    /// answered. A `send` that has not returned by then returns `Err`. Dropping the future leaves the hub as it is then, for good without new clients.
    async fn drain(&self, spread: Duration);

    /// What was counted, of this node. Cheap; called whenever somebody looks.
    fn stats(&self) -> HubStats;
}
