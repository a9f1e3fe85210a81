//! A directory for nodes of one process: the embedded default, and what tests compare with.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Directory, Find, Lease, NodeId, Parcels, Presence, Whereabouts};
use crate::contract::{Unavailable, UserId};
use crate::inbox::Inboxes;
use crate::settings::Limits;

/// Nodes of one process find each other here.
#[derive(Default)]
pub struct InProcess {
    state: Mutex<SharedDirectory>,
}

#[derive(Default)]
struct SharedDirectory {
    leases: HashMap<NodeId, Instant>,
    users: HashMap<UserId, HashMap<NodeId, Entry>>,
    lines: HashMap<NodeId, mpsc::UnboundedSender<Bytes>>,
    key: Option<[u8; 32]>,
    denials: HashMap<UserId, SystemTime>,
    inboxes: Inboxes,
    forgotten: Option<Instant>,
}

enum Entry {
    Here,
    Lost(Instant),
}

impl InProcess {
    pub fn new() -> Self {
        InProcess::default()
    }

    /// As FLUSHALL does it: everything is forgotten, lines stay.
    #[doc(hidden)]
    pub fn forget(&self) {
        let mut state = self.state();
        let lines = std::mem::take(&mut state.lines);
        let forgotten = Some(Instant::now());
        *state = SharedDirectory { lines, forgotten, ..SharedDirectory::default() };
    }

    fn state(&self) -> MutexGuard<'_, SharedDirectory> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Directory for InProcess {
    async fn renew(&self, node: NodeId, lease: Duration) -> Result<Lease, Unavailable> {
        let (mut state, now) = (self.state(), Instant::now());
        state.leases.retain(|_, until| *until > now);
        let kept = state.leases.insert(node, now + lease).is_some();
        let forgotten = state.forgotten.is_some_and(|then| then.elapsed() < lease);
        Ok(Lease { kept, forgotten, live: state.leases.keys().copied().collect() })
    }

    async fn leave(&self, node: NodeId) -> Result<(), Unavailable> {
        let mut state = self.state();
        state.leases.remove(&node);
        state.lines.remove(&node);
        Ok(())
    }

    async fn announce(
        &self,
        node: NodeId,
        users: &[(UserId, Presence)],
    ) -> Result<(), Unavailable> {
        let mut state = self.state();
        for (user, presence) in users {
            let nodes = state.users.entry(user.clone()).or_default();
            match presence {
                Presence::Here => drop(nodes.insert(node, Entry::Here)),
                Presence::Lost => drop(nodes.insert(node, Entry::Lost(Instant::now()))),
                Presence::Left => drop(nodes.remove(&node)),
            }
            if nodes.is_empty() {
                state.users.remove(user);
            }
        }
        Ok(())
    }

    async fn find(&self, users: &[Find], limits: &Limits) -> Result<Vec<Whereabouts>, Unavailable> {
        let mut state = self.state();
        state.inboxes.forget(limits);
        for Find { user, frames } in users {
            frames.iter().for_each(|frame| state.inboxes.keep(user, frame, limits));
        }
        let find = |user: &UserId| {
            let mut found = Whereabouts::default();
            for (node, entry) in state.users.get(user).into_iter().flatten() {
                match entry {
                    Entry::Here => found.nodes.push(*node),
                    Entry::Lost(then) => {
                        let ago = then.elapsed();
                        found.lost = Some(found.lost.map_or(ago, |other| other.min(ago)));
                    }
                }
            }
            found
        };
        Ok(users.iter().map(|find_one| find(&find_one.user)).collect())
    }

    async fn since(
        &self,
        user: &UserId,
        last: &str,
        limits: &Limits,
    ) -> Result<Option<Vec<Value>>, Unavailable> {
        Ok(self.state().inboxes.since(user, last, limits))
    }

    async fn cast(&self, parcels: &[(NodeId, Bytes)]) -> Result<Vec<bool>, Unavailable> {
        let state = self.state();
        let hand = |(node, parcel): &(NodeId, Bytes)| {
            state.lines.get(node).is_some_and(|line| line.send(parcel.clone()).is_ok())
        };
        Ok(parcels.iter().map(hand).collect())
    }

    async fn listen(&self, node: NodeId) -> Result<Box<dyn Parcels>, Unavailable> {
        let (line, parcels) = mpsc::unbounded_channel();
        self.state().lines.insert(node, line);
        Ok(Box::new(parcels))
    }

    async fn negotiation_key(&self, proposal: [u8; 32]) -> Result<[u8; 32], Unavailable> {
        Ok(*self.state().key.get_or_insert(proposal))
    }

    async fn deny(&self, denials: &[(UserId, SystemTime)]) -> Result<(), Unavailable> {
        let mut state = self.state();
        for (user, before) in denials {
            let known = state.denials.entry(user.clone()).or_insert(*before);
            *known = (*known).max(*before);
        }
        Ok(())
    }

    async fn denials(&self) -> Result<Vec<(UserId, SystemTime)>, Unavailable> {
        let state = self.state();
        Ok(state.denials.iter().map(|(user, before)| (user.clone(), *before)).collect())
    }
}

#[async_trait]
impl Parcels for mpsc::UnboundedReceiver<Bytes> {
    async fn next(&mut self) -> Option<Bytes> {
        self.recv().await
    }
}
