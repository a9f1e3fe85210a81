//! All connections of a node, also those that have not shaken hands, and how many there may be.
//!
//! What was negotiated is remembered nowhere, so that its bounds hold where it is attached.

use std::collections::HashMap;
use std::sync::Arc;

use crate::connection::Connection;
use crate::contract::UserId;
use crate::settings::Limits;

/// One more of so many may attach than may negotiate: those who had negotiated before it was full.
const MARGIN: usize = 32;

#[derive(Default)]
pub(crate) struct LiveConnections {
    all: HashMap<[u8; 16], Arc<Connection>>,
    /// How many of a user's have not shaken hands.
    unopened: HashMap<UserId, usize>,
}

/// Why a connection does not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unattached {
    /// One of that id lives.
    Taken,
    /// There are too many, of this user or in all.
    Full,
}

impl LiveConnections {
    pub fn add(&mut self, connection: &Arc<Connection>, limits: &Limits) -> Result<(), Unattached> {
        let (id, user) = (connection.origin.id, &connection.origin.user);
        if self.all.contains_key(&id) {
            return Err(Unattached::Taken);
        }
        let unopened = self.unopened.get(user).copied().unwrap_or_default();
        let most = limits.connections + limits.connections / MARGIN;
        if unopened >= limits.connections_per_user || self.all.len() >= most {
            return Err(Unattached::Full);
        }
        self.unopened.insert(user.clone(), unopened + 1);
        self.all.insert(id, connection.clone());
        Ok(())
    }

    /// It has shaken hands.
    pub fn open(&mut self, connection: &Connection) {
        if connection.note_opened() {
            self.forget_unopened(&connection.origin.user);
        }
    }

    /// Whether it was there.
    pub fn remove(&mut self, connection: &Connection) -> bool {
        let was_there = self.all.remove(&connection.origin.id).is_some();
        if was_there && connection.note_opened() {
            self.forget_unopened(&connection.origin.user);
        }
        was_there
    }

    fn forget_unopened(&mut self, user: &UserId) {
        let Some(count) = self.unopened.get_mut(user) else { return };
        *count -= 1;
        if *count == 0 {
            self.unopened.remove(user);
        }
    }

    pub fn get(&self, id: &[u8; 16]) -> Option<&Arc<Connection>> {
        self.all.get(id)
    }

    pub fn values(&self) -> impl Iterator<Item = &Arc<Connection>> {
        self.all.values()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
