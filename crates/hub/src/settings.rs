//! What an operator can set, and the bounds of everything a client can make the hub hold.

use std::time::Duration;

use crate::http::Network;

/// Bounds. The defaults hold for ten thousand clients on two cores.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections in all; more are refused at negotiation, and a thirty-second more where they
    /// begin.
    pub connections: usize,
    /// Connections of one user; the oldest is closed for a newer one. As many more may be before
    /// their handshake.
    pub connections_per_user: usize,
    /// Open sockets of one address that have not shown a valid token yet.
    pub strangers_per_address: usize,
    /// More of them that wait, not read from, until one of those has shown its token.
    pub waiting_per_address: usize,
    /// Refused tokens of one address per second; more are not looked at.
    pub refused_tokens_per_second: u32,
    /// A message of a client.
    pub received_bytes: usize,
    /// A message for a client; the limit of [`Frame::new`](crate::Frame::new).
    pub message_bytes: usize,
    /// Messages a connection may owe an answer for; more wait.
    pub unanswered: usize,
    /// The same in bytes.
    pub unanswered_bytes: usize,
    /// Messages that wait for a connection; more are not delivered to it.
    pub waiting: usize,
    /// Bytes on their way out to one connection, and of what waits for it. One that does not take
    /// them is dropped.
    pub queued_bytes: usize,
    /// The same for all connections together; beyond it `send` waits.
    pub queued_bytes_total: usize,
    /// Bytes of messages that a client which may come back has not confirmed; more wait.
    pub unconfirmed_bytes: usize,
    /// Messages a client may send per second, and at once.
    pub received_per_second: u32,
    pub received_burst: u32,
    /// For the whole head of a request.
    pub head_bytes: usize,
    pub head_within: Duration,
    pub handshake_within: Duration,
    /// How long the first message in a queue may wait to be taken.
    pub stalled_for: Duration,
    /// Pings go out this often, whatever else is sent.
    pub ping_every: Duration,
    /// A client that says nothing for this long is gone.
    pub silent_for: Duration,
    /// A long poll is answered after this, with nothing.
    pub poll_for: Duration,
    /// A long-polling client may be without a poll for this long.
    pub between_polls: Duration,
    /// A client whose socket broke may come back to its connection within this, where it asked for
    /// that (`withStatefulReconnect`) and every request of it reaches this node. Zero offers it to
    /// nobody.
    pub return_within: Duration,
    /// A user whose last connection broke is looked for this long before they count as away.
    pub linger: Duration,
    /// A connection lives this long after its token expired, a random time between both.
    pub expiry_grace: (Duration, Duration),
    /// Before a connection is closed by us, this long for the answers it owes.
    pub farewell: Duration,
    /// A token from negotiation can be used this long.
    pub attach_within: Duration,
    /// Messages that are kept for a user who may have missed them; 0 keeps none.
    pub inbox_messages: usize,
    /// The same in bytes. All of them are one answer: where that is more than `message_bytes`, the
    /// client is told that nothing is recovered.
    pub inbox_bytes: usize,
    pub inbox_age: Duration,
    /// The same for all users together; beyond it nothing is kept.
    pub inbox_bytes_total: usize,
    /// A client that asks what it missed gets what came from this long before its last message.
    pub resume_overlap: Duration,
    /// A node that its copies have not heard of for this long is dead.
    pub lease: Duration,
    /// Where there are other nodes, a node that stops refuses new clients for this long before it
    /// closes its connections.
    pub notice: Duration,
    /// Naive versions for tests.
    #[doc(hidden)]
    pub planted: Option<crate::trouble::Planted>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 20_000,
            connections_per_user: 32,
            strangers_per_address: 256,
            waiting_per_address: 2_048,
            refused_tokens_per_second: 20,
            received_bytes: 32 << 10,
            message_bytes: 64 << 10,
            unanswered: 64,
            unanswered_bytes: 128 << 10,
            waiting: 256,
            queued_bytes: 256 << 10,
            queued_bytes_total: 256 << 20,
            unconfirmed_bytes: 100_000,
            received_per_second: 50,
            received_burst: 200,
            head_bytes: 32 << 10,
            head_within: Duration::from_secs(10),
            handshake_within: Duration::from_secs(15),
            stalled_for: Duration::from_secs(10),
            ping_every: Duration::from_secs(15),
            silent_for: Duration::from_secs(30),
            poll_for: Duration::from_secs(50),
            between_polls: Duration::from_secs(15),
            return_within: Duration::from_secs(15),
            linger: Duration::from_secs(3),
            expiry_grace: (Duration::from_secs(10), Duration::from_secs(60)),
            farewell: Duration::from_secs(2),
            attach_within: Duration::from_secs(60),
            inbox_messages: 100,
            inbox_bytes: 60 << 10,
            inbox_age: Duration::from_secs(600),
            inbox_bytes_total: 64 << 20,
            resume_overlap: Duration::from_secs(30),
            lease: Duration::from_secs(15),
            notice: Duration::from_secs(5),
            planted: None,
        }
    }
}

/// Where clients come from.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// The hub is at `/hubs/<name>`.
    pub name: String,
    /// Origins whose pages may connect, as browsers write them: `https://app.example.com`. A page of
    /// the hub's own origin always may, and so may clients that are no browsers.
    pub origins: Vec<String>,
    /// Proxies whose `X-Forwarded-For`, `-Proto` and `-Host` are believed.
    pub trusted_proxies: Vec<Network>,
    /// Whether server-sent events, long polling and stateful reconnects are offered. They need every request of a client
    /// to reach the same process. Default: yes on a single node, no among several.
    pub sticky: Option<bool>,
    /// Signs the secrets of negotiation. Copies that share it accept each other's clients; without
    /// one, each process makes its own.
    pub negotiation_key: Option<[u8; 32]>,
    pub limits: Limits,
}

impl Default for HubSettings {
    fn default() -> Self {
        HubSettings {
            name: "notifications".to_owned(),
            origins: Vec::new(),
            trusted_proxies: Vec::new(),
            sticky: None,
            negotiation_key: None,
            limits: Limits::default(),
        }
    }
}
