//! What a user may have missed, wherever it was sent from.
//!
//! A message is kept before its user is looked for, in one step; a connection is announced before
//! what was missed is read. So whoever sends either sees the connection, or has kept the message
//! before it is read.

use std::sync::Arc;

use serde_json::Value;

use super::routing::Copies;
use super::{Find, Presence, Whereabouts};
use crate::contract::{Outgoing, Unavailable, UserId};
use crate::node::Node;
use crate::trouble::{Planted, planted};

impl Node {
    /// Keeps the messages of a batch and finds their users, each once.
    pub(super) async fn find_all(
        &self,
        copies: &Copies,
        batch: &[Outgoing],
    ) -> Result<Vec<(UserId, Whereabouts)>, Unavailable> {
        let mut messages: Vec<_> = batch.iter().collect();
        // Stable: those for one user stay in order.
        messages.sort_by(|one, other| one.user.cmp(&other.user));
        let of_one_user = messages.chunk_by(|one, other| one.user == other.user);
        let finds: Vec<_> = of_one_user
            .filter_map(|messages| {
                let user = messages.first()?.user.clone();
                let frames = messages.iter().map(|message| Arc::clone(&message.frame)).collect();
                Some(Find { user, frames })
            })
            .collect();
        let found = match planted(self.limits(), Planted::InboxAfter) {
            false => copies.directory.find(&finds, self.limits()).await?,
            true => {
                let without = |find: &Find| Find { frames: Vec::new(), ..find.clone() };
                let finds_only: Vec<_> = finds.iter().map(without).collect();
                let found = copies.directory.find(&finds_only, self.limits()).await?;
                copies.directory.find(&finds, self.limits()).await?;
                found
            }
        };
        Ok(finds.into_iter().map(|find| find.user).zip(found).collect())
    }

    pub(crate) async fn missed_across(
        &self,
        copies: &Copies,
        user: &UserId,
        last: &str,
    ) -> Result<Option<Vec<Value>>, Unavailable> {
        // What is sent now would not arrive here.
        if !*copies.listening.borrow() {
            return Err(Unavailable);
        }
        if !planted(self.limits(), Planted::ResumeFirst) {
            copies.directory.announce(copies.id, &[(user.clone(), Presence::Here)]).await?;
        }
        if self.users().connections(user).is_empty() {
            // They have gone meanwhile, and that may have been said before.
            self.note_presence(user, true);
        }
        copies.directory.since(user, last, self.limits()).await
    }
}
