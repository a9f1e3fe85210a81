//! Questions to all nodes: who is connected, and who is to be disconnected. A node that does not
//! answer within a second is named, not waited for.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::NodeId;
use super::parcel::Parcel;
use super::routing::Copies;
use crate::contract::{ConnectionAsk, ConnectionList, ConnectionView, Transport, UserId};
use crate::node::Node;

/// How long nodes may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Question {
    Connections { user: Option<String>, limit: usize },
    Disconnect { user: String, deny_before: Option<u64> },
}

/// What one node says.
#[derive(Debug, Default, Serialize, Deserialize)]
struct NodeConnections {
    #[serde(default)]
    total: usize,
    #[serde(default)]
    connections: Vec<SeenConnection>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SeenConnection {
    id: String,
    user: String,
    since: u64,
    address: IpAddr,
    agent: String,
    transport: String,
    protocol: String,
    queued_bytes: usize,
    mute: bool,
}

impl From<ConnectionView> for SeenConnection {
    fn from(view: ConnectionView) -> Self {
        SeenConnection {
            id: view.id,
            user: view.user.as_str().to_owned(),
            since: seconds(view.since),
            address: view.address,
            agent: view.agent,
            transport: view.transport.name().to_owned(),
            protocol: view.protocol,
            queued_bytes: view.queued_bytes,
            mute: view.mute,
        }
    }
}

impl SeenConnection {
    fn view(self, node: NodeId) -> Option<ConnectionView> {
        Some(ConnectionView {
            transport: Transport::parse(&self.transport)?,
            id: self.id,
            user: UserId::new(&self.user),
            node: node.to_string(),
            since: UNIX_EPOCH + Duration::from_secs(self.since),
            address: self.address,
            agent: self.agent,
            protocol: self.protocol,
            queued_bytes: self.queued_bytes,
            mute: self.mute,
        })
    }
}

pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Node {
    pub(crate) fn answer_question(
        self: &Arc<Self>,
        copies: &Copies,
        from: NodeId,
        number: u64,
        question: &str,
    ) {
        let told = match serde_json::from_str(question) {
            Ok(Question::Connections { user, limit }) => {
                let ask = ConnectionAsk { user: user.as_deref().map(UserId::new), limit };
                let list = self.own_connections(&ask);
                let connections = list.connections.into_iter().map(SeenConnection::from).collect();
                NodeConnections { total: list.total, connections }
            }
            Ok(Question::Disconnect { user, deny_before }) => {
                let before = deny_before.map(|before| UNIX_EPOCH + Duration::from_secs(before));
                let total = self.disconnect_here(&UserId::new(&user), before);
                NodeConnections { total: total as usize, ..NodeConnections::default() }
            }
            Err(_) => return,
        };
        let answer = serde_json::to_string(&told).unwrap_or_default();
        copies.post(from, &Parcel::Tell { number, answer });
    }

    /// Asks all other nodes; what they say, and who did not.
    async fn ask_all(
        &self,
        copies: &Copies,
        question: &Question,
    ) -> (Vec<(NodeId, NodeConnections)>, Vec<NodeId>) {
        let mut silent = copies.others();
        let (asker, mut answers) = mpsc::unbounded_channel();
        let number = {
            let mut state = copies.state();
            let number = state.number();
            // Those of who has gone meanwhile.
            state.asks.retain(|_, asker| !asker.is_closed());
            state.asks.insert(number, asker);
            number
        };
        let question = serde_json::to_string(question).unwrap_or_default();
        for node in &silent {
            copies.post(*node, &Parcel::Ask { number, question: question.clone() });
        }
        let until = Instant::now() + ANSWER_WITHIN;
        let mut told = Vec::new();
        while !silent.is_empty() {
            let Ok(Some((node, answer))) = tokio::time::timeout_at(until, answers.recv()).await
            else {
                break;
            };
            if let Ok(answer) = serde_json::from_str(&answer) {
                silent.retain(|other| *other != node);
                told.push((node, answer));
            }
        }
        copies.state().asks.remove(&number);
        (told, silent)
    }

    pub(crate) async fn connections_across(
        &self,
        copies: &Copies,
        ask: &ConnectionAsk,
        mut list: ConnectionList,
    ) -> ConnectionList {
        let user = ask.user.as_ref().map(|user| user.as_str().to_owned());
        let question = Question::Connections { user, limit: ask.limit };
        let (told, silent) = self.ask_all(copies, &question).await;
        for (node, told) in told {
            list.total += told.total;
            list.connections
                .extend(told.connections.into_iter().filter_map(|seen| seen.view(node)));
        }
        list.connections.sort_by(|one, other| one.user.cmp(&other.user));
        list.connections.truncate(ask.limit);
        list.silent = silent.iter().map(ToString::to_string).collect();
        list
    }

    /// How many connections other nodes closed.
    pub(crate) async fn disconnect_across(
        &self,
        copies: &Copies,
        user: &UserId,
        deny_before: Option<SystemTime>,
    ) -> u32 {
        let deny_before = deny_before.map(seconds);
        let question = Question::Disconnect { user: user.as_str().to_owned(), deny_before };
        let (told, _) = self.ask_all(copies, &question).await;
        told.iter().map(|(_, told)| told.total as u32).sum()
    }
}
