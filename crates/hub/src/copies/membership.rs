//! What a node does all the time to be one of several: it renews its lease, announces its users,
//! listens, casts, and looks again for users who just left.
//!
//! Everything is announced again when the lease was lost (FLUSHALL, or this process stood still),
//! when listening begins anew (a promoted replica may miss what was announced, and still have the
//! lease), and every twenty minutes, because entries live for an hour. What all nodes have to know
//! (the key of negotiations, who was told to go) is learned at the same moments.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::parcel::Parcel;
use super::routing::{Copies, Outbound};
use super::{Directory, Lease, NodeId, Presence};
use crate::contract::{Unavailable, UserId};
use crate::counters::{Announcing, add};
use crate::node::Node;
use crate::trouble::{Planted, planted};

/// Users that are announced in one call, and how long to pause before the next: 5,000 a second.
const ANNOUNCED_AT_ONCE: usize = 500;
const ANNOUNCE_PAUSE: Duration = Duration::from_millis(100);
/// Everything is said again this often.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(20 * 60);
/// Nothing has come through the line for at least this long.
const SILENT_MIN: Duration = Duration::from_secs(3);
/// How often users who just left are looked for.
const SEARCH_EVERY: Duration = Duration::from_millis(250);
/// After a failure.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a node that stops tries to say where its users are not, and how often it looks.
const FAREWELL_MAX: Duration = Duration::from_secs(2);
const FAREWELL_TICK: Duration = Duration::from_millis(10);
/// Parcels that are cast in one call, and their bytes, except where one alone has more: what other
/// calls wait behind.
const CAST_AT_ONCE: usize = 256;
const CAST_BYTES: usize = 1 << 20;

/// Begins to be one of several. The tasks end with the node.
pub(crate) fn join(node: &Arc<Node>) {
    let Some(copies) = node.copies() else { return };
    let ended = copies.listening.subscribe();
    let tasks = Tasks {
        node: Arc::downgrade(node),
        announcing: copies.announcing.clone(),
        casting: copies.casting.clone(),
        relisten: copies.relisten.clone(),
        directory: copies.directory.clone(),
        id: copies.id,
    };
    tokio::spawn(tasks.clone().until(ended.clone(), Tasks::keep_lease));
    tokio::spawn(tasks.clone().until(ended.clone(), Tasks::announce));
    tokio::spawn(tasks.clone().until(ended.clone(), Tasks::listen));
    tokio::spawn(tasks.clone().until(ended.clone(), Tasks::cast));
    tokio::spawn(tasks.until(ended, Tasks::search));
}

#[derive(Clone)]
struct Tasks {
    // Not the node itself: it must be able to end.
    node: Weak<Node>,
    announcing: Arc<Notify>,
    casting: Arc<Notify>,
    relisten: Arc<Notify>,
    directory: Arc<dyn Directory>,
    id: NodeId,
}

impl Tasks {
    async fn until<F: Future<Output = ()>>(
        self,
        mut ended: watch::Receiver<bool>,
        task: impl FnOnce(Tasks) -> F,
    ) {
        // It errs when the node is dropped; its values are of no interest.
        let ended = async { while ended.changed().await.is_ok() {} };
        tokio::select! {
            () = task(self) => {}
            () = ended => {}
        }
    }

    /// Does something with the node while it is there.
    fn with<T>(&self, act: impl FnOnce(&Arc<Node>, &Copies) -> T) -> Option<T> {
        let node = self.node.upgrade()?;
        let copies = node.copies()?;
        Some(act(&node, copies))
    }

    async fn keep_lease(self) {
        let Some(lease) = self.with(|node, _| node.limits().lease) else { return };
        let every = (lease / 5).min(Duration::from_secs(1));
        let mut announced = Instant::now();
        let (mut away, mut begun) = (false, false);
        loop {
            if self.with(|_, copies| copies.left.load(Ordering::Acquire)) != Some(false) {
                return;
            }
            match self.directory.renew(self.id, lease).await {
                Ok(Lease { kept, forgotten, live }) => {
                    let lacks_others = if begun { !kept } else { forgotten };
                    // Before anybody is looked for among those who are there already.
                    if away || lacks_others {
                        self.with(|node, copies| node.note_return(copies, away));
                    }
                    begun = true;
                    if std::mem::take(&mut away) {
                        self.relisten.notify_one();
                        tracing::info!("the directory of the hub's nodes is back");
                    }
                    self.with(|node, copies| node.note_live(copies, &live));
                    if !kept || announced.elapsed() >= ANNOUNCE_EVERY {
                        announced = Instant::now();
                        self.introduce(kept).await;
                    }
                    self.try_line(every).await;
                }
                Err(Unavailable) => {
                    if !std::mem::replace(&mut away, true) {
                        tracing::warn!(
                            "the directory of the hub's nodes cannot be reached; messages wait"
                        );
                    }
                    self.with(|node, copies| node.note_deafness(copies));
                }
            }
            tokio::time::sleep(every).await;
        }
    }

    /// Says and learns everything again.
    async fn introduce(&self, again: bool) {
        let forgetful =
            |node: &Arc<Node>, _: &Copies| planted(node.limits(), Planted::AnnouncedOnce);
        if again || !self.with(forgetful).unwrap_or_default() {
            let why = if again { Announcing::Time } else { Announcing::Lease };
            self.with(|node, copies| node.announce_all(copies, why));
        }
        self.learn().await;
    }

    /// Learns what all nodes have to know, and says what may have been forgotten of it.
    async fn learn(&self) {
        let Some(proposal) = self.with(|node, _| node.negotiation.proposal()) else { return };
        if let Ok(key) = self.directory.negotiation_key(proposal).await {
            self.with(|node, _| node.negotiation.set_key(key));
        }
        let denied = self.with(|node, _| node.users().denials()).unwrap_or_default();
        if !denied.is_empty() && self.directory.deny(&denied).await.is_err() {
            return;
        }
        if let Ok(denials) = self.directory.denials().await {
            self.with(|node, _| node.take_denials(&denials));
        }
    }

    /// A line can be dead without saying so, where a network swallows what comes. A word to oneself
    /// shows it.
    async fn try_line(&self, every: Duration) {
        if self.with(|_, copies| *copies.listening.borrow()) != Some(true) {
            return;
        }
        let echo = [(self.id, Parcel::Echo.encode(self.id))];
        let Ok(taken) = self.directory.cast(&echo).await else { return };
        let silent_for = (every * 5).max(SILENT_MIN);
        let silent = |_: &Arc<Node>, copies: &Copies| {
            copies.state().heard.is_some_and(|heard| heard.elapsed() > silent_for)
        };
        if taken.first() == Some(&false) || self.with(silent) == Some(true) {
            tracing::warn!("nothing reaches this node of the hub any more; it listens anew");
            self.relisten.notify_one();
        }
    }

    async fn announce(self) {
        loop {
            let Some(changed) = self.with(|node, copies| node.take_changed(copies)) else { return };
            // Before somebody listens here, nobody should be sent here.
            let listening = self.with(|_, copies| *copies.listening.borrow()).unwrap_or_default();
            if changed.is_empty() {
                self.announcing.notified().await;
                continue;
            }
            let said = match listening {
                true => self.directory.announce(self.id, &changed).await,
                false => Err(Unavailable),
            };
            let count = changed.len();
            self.with(|_, copies| {
                let mut state = copies.state();
                state.under_way -= 1;
                for (user, presence) in changed.into_iter().filter(|_| said.is_err()) {
                    let lost = presence == Presence::Lost;
                    state.changed.entry(user).or_insert(lost);
                }
            });
            if said.is_err() {
                tokio::time::sleep(PAUSE).await;
            } else if count == ANNOUNCED_AT_ONCE {
                tokio::time::sleep(ANNOUNCE_PAUSE).await;
            }
        }
    }

    async fn listen(self) {
        loop {
            if let Ok(mut parcels) = self.directory.listen(self.id).await {
                // What was said while nobody listened.
                self.learn().await;
                self.with(|node, copies| {
                    copies.state().heard = Some(Instant::now());
                    copies.listening.send_replace(true);
                    if !planted(node.limits(), Planted::AnnouncedOnce) {
                        node.announce_all(copies, Announcing::Line);
                    }
                });
                loop {
                    let parcel = tokio::select! {
                        parcel = parcels.next() => parcel,
                        () = self.relisten.notified() => None,
                    };
                    let Some(parcel) = parcel else { break };
                    self.with(|node, copies| node.take_parcel(copies, &parcel));
                }
                self.with(|node, copies| {
                    copies.listening.send_replace(false);
                    add(&node.counters().lines_lost);
                    node.note_deafness(copies);
                });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn cast(self) {
        loop {
            let take = |_: &Arc<Node>, copies: &Copies| {
                let mut state = copies.state();
                let mut bytes = 0;
                let fits = |outbound: &&Outbound| {
                    let is_first = bytes == 0;
                    bytes += outbound.parcel.len();
                    is_first || bytes <= CAST_BYTES
                };
                let count = state.outbound.iter().take(CAST_AT_ONCE).take_while(fits).count();
                state.under_way += usize::from(count > 0);
                state.outbound.drain(..count).collect::<Vec<Outbound>>()
            };
            let Some(outbound) = self.with(take) else { return };
            if outbound.is_empty() {
                self.casting.notified().await;
                continue;
            }
            let parcels: Vec<(NodeId, Bytes)> =
                outbound.iter().map(|out| (out.to, out.parcel.clone())).collect();
            let taken = self.directory.cast(&parcels).await.ok();
            let again =
                self.with(|node, copies| node.note_cast(copies, outbound, taken.as_deref()));
            if taken.is_none() || again == Some(true) {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn search(self) {
        loop {
            tokio::time::sleep(SEARCH_EVERY).await;
            let Some(node) = self.node.upgrade() else { return };
            if let Some(copies) = node.copies() {
                node.search(copies).await;
            }
        }
    }
}

impl Node {
    fn announce_all(&self, copies: &Copies, why: Announcing) {
        self.counters().announced.get(why as usize).into_iter().for_each(add);
        let users = self.users();
        let mut state = copies.state();
        for user in users.names() {
            state.repeats.insert(user.clone());
        }
        copies.announcing.notify_one();
    }

    /// Says goodbye to the other nodes, when no connection is left.
    pub(crate) async fn depart(&self, copies: &Copies) {
        // The replies to other nodes' messages are what their answers depend on.
        let has_more = || {
            let state = copies.state();
            !state.changed.is_empty() || !state.outbound.is_empty() || state.under_way > 0
        };
        let until = Instant::now() + FAREWELL_MAX;
        while has_more() && Instant::now() < until {
            tokio::time::sleep(FAREWELL_TICK).await;
        }
        copies.left.store(true, Ordering::Release);
        // Where it fails, the lease ends by itself.
        let _ = copies.directory.leave(copies.id).await;
    }

    /// Something changed about a user's connections here.
    pub(crate) fn note_presence(&self, user: &UserId, lost: bool) {
        let Some(copies) = self.copies() else { return };
        copies.state().changed.insert(user.clone(), lost);
        copies.announcing.notify_one();
    }

    /// Users to announce, as they are now: what they were in between is of no interest.
    fn take_changed(&self, copies: &Copies) -> Vec<(UserId, Presence)> {
        let users = self.users();
        let mut state = copies.state();
        // News first: repeats of all that are here take seconds.
        let news = state.changed.keys().chain(&state.repeats);
        let chosen: Vec<UserId> = news.take(ANNOUNCED_AT_ONCE).cloned().collect();
        state.under_way += usize::from(!chosen.is_empty());
        let presence = |user: UserId| {
            let lost = state.changed.remove(&user).unwrap_or_default();
            state.repeats.remove(&user);
            let presence = match (users.connections(&user).is_empty(), lost) {
                (false, _) => Presence::Here,
                (true, true) => Presence::Lost,
                (true, false) => Presence::Left,
            };
            (user, presence)
        };
        chosen.into_iter().map(presence).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copies::in_process::InProcess;
    use crate::node::tests::{Gatekeeper, attached};
    use crate::settings::HubSettings;

    /// Who connects while everybody is said again must not be away until that is over.
    #[tokio::test]
    async fn news_are_told_before_repeats() {
        const USERS: usize = 4 * ANNOUNCED_AT_ONCE;
        let directory = Arc::new(InProcess::new());
        let node = Node::start_among(
            HubSettings::default(),
            Arc::new(Gatekeeper),
            Default::default(),
            directory,
        );
        let copies = node.copies().unwrap();
        let mut attachments: Vec<_> =
            (0..USERS).map(|number| attached(&node, &format!("user-{number}"))).collect();
        while !node.take_changed(copies).is_empty() {}
        node.announce_all(copies, Announcing::Time);
        let newcomers: Vec<_> = (0..10).map(|number| format!("newcomer-{number}")).collect();
        attachments.extend(newcomers.iter().map(|user| attached(&node, user)));
        let first = node.take_changed(copies);
        assert_eq!(first.len(), ANNOUNCED_AT_ONCE);
        for user in &newcomers {
            assert!(first.contains(&(UserId::new(user), Presence::Here)), "{user}");
        }
        let mut said = first.len();
        loop {
            match node.take_changed(copies).len() {
                0 => break,
                more => said += more,
            }
        }
        assert_eq!(said, USERS + newcomers.len(), "everybody once");
    }
}
