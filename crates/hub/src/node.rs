//! The hub of this process: who is connected, and what is on its way to them.
//!
//! Time passes in two tasks for the whole hub: one looks at deadlines of answers twenty times a
//! second, one at every connection once a second. That is cheaper than a timer per connection, which
//! would have to be moved with every message.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::calls::Methods;
use crate::connection::{Connection, Ending, Origin};
use crate::contract::{
    Answer, Answers, ConnectionAsk, ConnectionList, ConnectionView, Hub, HubStats, Outgoing,
    Ticket, Unavailable, UserId,
};
use crate::copies::routing::Copies;
use crate::copies::{Directory, membership};
use crate::counters::{Counters, add};
use crate::delivery::{Deadlines, Delivery, Settlements};
use crate::inbox::Inboxes;
use crate::live::{LiveConnections, Unattached};
use crate::random;
use crate::settings::{HubSettings, Limits};
use crate::tokens::{Authority, Person, Refusal};
use crate::trouble::{Planted, planted};
use crate::users::Users;

/// How often deadlines are looked at.
const DEADLINE_TICK: Duration = Duration::from_millis(50);
/// How often every connection is looked at.
const TICK: Duration = Duration::from_secs(1);
/// A connection lives no longer, whatever its token says.
const LIFE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// A few connections are closed sooner than over the whole time that many are given.
const DRAIN_PAUSE_MAX: Duration = Duration::from_millis(20);
/// While the queues are full, `send` looks again this often.
const FULL_TICK: Duration = Duration::from_millis(10);

/// The hub of this process.
pub struct Node {
    settings: HubSettings,
    authority: Arc<dyn Authority>,
    methods: Methods,
    pub(crate) negotiation: crate::negotiate::Negotiation,
    users: Mutex<Users>,
    live: Mutex<LiveConnections>,
    /// Connections to which a client might want to come back, and which are over; and until when
    /// their secrets look good.
    spent: Mutex<HashMap<[u8; 16], u32>>,
    inboxes: Mutex<Inboxes>,
    deadlines: Deadlines,
    copies: Option<Copies>,
    counters: Arc<Counters>,
    started: Instant,
    draining: AtomicBool,
    emptied: Notify,
}

/// A connection of the node, for as long as its transport holds this.
pub(crate) struct Attachment {
    node: Arc<Node>,
    pub connection: Arc<Connection>,
}

impl Attachment {
    /// Notes why it ends; the first reason counts.
    pub fn end(&self, ending: Ending) {
        self.connection.end(ending);
        self.node.detach(&self.connection);
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.connection.end(Ending::Broken);
        self.node.detach(&self.connection);
        self.node.remove(&self.connection);
    }
}

impl Node {
    /// A hub that asks `authority` who people are. Its clock stops with the last reference to it.
    pub fn start(
        settings: HubSettings,
        authority: Arc<dyn Authority>,
        methods: Methods,
    ) -> Arc<Self> {
        Node::begin(settings, authority, methods, None)
    }

    /// One of several nodes of a hub, which find each other in `directory`.
    pub fn start_among(
        settings: HubSettings,
        authority: Arc<dyn Authority>,
        methods: Methods,
        directory: Arc<dyn Directory>,
    ) -> Arc<Self> {
        let node = Node::begin(settings, authority, methods, Some(directory));
        membership::join(&node);
        node
    }

    fn begin(
        settings: HubSettings,
        authority: Arc<dyn Authority>,
        methods: Methods,
        directory: Option<Arc<dyn Directory>>,
    ) -> Arc<Self> {
        let alone = directory.is_none();
        let negotiation = crate::negotiate::Negotiation::new(settings.negotiation_key, alone);
        let mut users = Users::default();
        users.seats.on = planted(&settings.limits, Planted::RouteByConnection);
        let node = Arc::new_cyclic(|weak| Node {
            settings,
            authority,
            methods,
            negotiation,
            users: Mutex::new(users),
            live: Mutex::default(),
            spent: Mutex::default(),
            inboxes: Mutex::new(Inboxes::new()),
            deadlines: Deadlines::default(),
            copies: directory.map(|directory| Copies::new(directory, weak.clone())),
            counters: Arc::default(),
            started: Instant::now(),
            draining: AtomicBool::new(false),
            emptied: Notify::new(),
        });
        let weak = Arc::downgrade(&node);
        tokio::spawn(async move {
            let mut passed = Duration::ZERO;
            loop {
                tokio::time::sleep(DEADLINE_TICK).await;
                let Some(node) = weak.upgrade() else { return };
                node.pass_deadlines();
                let ticks = node.started.elapsed().as_secs() / TICK.as_secs();
                if ticks > passed.as_secs() / TICK.as_secs() {
                    passed = node.started.elapsed();
                    node.tick();
                }
            }
        });
        node
    }

    pub fn settings(&self) -> &HubSettings {
        &self.settings
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.settings.limits
    }

    pub(crate) fn copies(&self) -> Option<&Copies> {
        self.copies.as_ref()
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub(crate) fn deadlines(&self) -> &Deadlines {
        &self.deadlines
    }

    /// This node's connections that a message for a user goes to.
    pub(crate) fn targets_of(&self, users: &Users, user: &UserId) -> Vec<Arc<Connection>> {
        if planted(self.limits(), Planted::RouteByConnection) {
            return users.seats.of(user).into_iter().collect();
        }
        users.connections(user).to_vec()
    }

    pub(crate) fn methods(&self) -> &Methods {
        &self.methods
    }

    pub(crate) fn authority(&self) -> &dyn Authority {
        &*self.authority
    }

    /// Seconds since the start, from 1.
    pub(crate) fn now(&self) -> u32 {
        self.started.elapsed().as_secs() as u32 + 1
    }

    /// Whether every request of a client reaches this node.
    pub(crate) fn is_sticky(&self) -> bool {
        self.settings.sticky.unwrap_or(self.copies.is_none())
    }

    /// Whether clients are offered to come back to a connection whose socket broke.
    pub(crate) fn lets_return(&self) -> bool {
        self.is_sticky() && !self.limits().return_within.is_zero()
    }

    /// Whether a secret that looks good had its connection.
    pub(crate) fn is_spent(&self, id: &[u8; 16]) -> bool {
        self.spent().contains_key(id)
    }

    fn spent(&self) -> MutexGuard<'_, HashMap<[u8; 16], u32>> {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.counters.connections.load(Ordering::Relaxed) >= self.limits().connections
    }

    /// Who a token speaks for, unless they were told to go after it was issued.
    pub(crate) async fn verify(&self, token: &str) -> Result<Person, Refusal> {
        let verified = self.authority.verify(token).await.and_then(|person| {
            let denied = self.is_denied(&self.users(), &person.user, person.issued);
            if denied { Err(Refusal::Denied) } else { Ok(person) }
        });
        if let Err(refusal) = &verified {
            self.counters.refused(refusal);
        }
        verified
    }

    /// Whether a token that was issued then is from before its user was told to go.
    fn is_denied(&self, users: &Users, user: &UserId, issued: Option<SystemTime>) -> bool {
        !planted(self.limits(), Planted::KickOnly) && users.is_denied(user, issued)
    }

    /// A new connection.
    pub(crate) fn attach(
        self: &Arc<Self>,
        origin: Origin,
        person: &Person,
    ) -> Result<Attachment, Unattached> {
        let ping_every = self.limits().ping_every.as_secs();
        let first_ping = 1 + random::below(ping_every) as u32;
        let connection =
            Arc::new(Connection::new(origin, self.now(), first_ping, self.counters.clone()));
        self.extend(&connection, person);
        self.live().add(&connection, self.limits())?;
        self.counters.connections.fetch_add(1, Ordering::Relaxed);
        add(&self.counters.connected);
        Ok(Attachment { node: self.clone(), connection })
    }

    /// Lets a connection live as long as a token allows, and a random time longer: tokens that were
    /// fetched in one second must not expire in one second for ever. Never shortens its life.
    /// Returns the token's lifetime.
    pub(crate) fn extend(&self, connection: &Connection, person: &Person) -> Duration {
        let left = person.expires.duration_since(wall_now()).unwrap_or_default().min(LIFE_MAX);
        let (least, most) = self.limits().expiry_grace;
        let spread = most.saturating_sub(least).as_millis() as u64;
        let grace = least + Duration::from_millis(random::below(spread.max(1)));
        let until = self.now().saturating_add((left + grace).as_secs() as u32);
        connection.prolong(until, person.issued);
        left
    }

    /// Somebody who was sent a message of that number; only for the planted bug.
    pub(crate) fn anybody_owing(&self, number: u64) -> Option<Arc<Connection>> {
        self.live().values().find(|connection| connection.owes(number)).cloned()
    }

    pub(crate) fn find(&self, id: &[u8; 16]) -> Option<Arc<Connection>> {
        self.live().get(id).cloned()
    }

    /// The handshake is done: messages may come.
    pub(crate) fn open(&self, connection: &Arc<Connection>) {
        self.live().open(connection);
        let mut settlements = Settlements::default();
        let mut users = self.users();
        if connection.ending().is_some() {
            // Over before its handshake was read: whoever ended it has taken it away, or waits for
            // this lock to do it.
            return;
        }
        if self.is_denied(&users, &connection.origin.user, connection.issued()) {
            // Told to go between its attachment and now.
            drop(users);
            return connection.end(Ending::Kicked);
        }
        let oldest = users.add(connection, self.limits().connections_per_user);
        for parked in users.take_parked(&connection.origin.user) {
            parked.delivery.target(std::slice::from_ref(connection));
            self.deadlines.add(parked.delivery.clone());
            let now = self.now();
            connection.offer(&parked.frame, &parked.delivery, self.limits(), now, &mut settlements);
            settlements.release(&parked.delivery);
        }
        if let Some(copies) = &self.copies {
            self.take_searched(copies, &users, &connection.origin.user, &mut settlements);
        }
        drop(users);
        self.note_presence(&connection.origin.user, false);
        if let Some(oldest) = oldest {
            oldest.end(Ending::Kicked);
        }
    }

    /// No messages go there any more; what it owed an answer for is let go.
    fn detach(&self, connection: &Arc<Connection>) {
        let mut settlements = Settlements::default();
        if connection.went_when_asked(self.now()) {
            self.counters.closed_on_id(&connection.origin.agent);
        }
        let by_client = matches!(connection.ending(), Some(Ending::ByClient | Ending::Kicked));
        self.take_away(connection, !by_client);
        connection.clear(&mut settlements);
    }

    /// Gives a connection no more messages. Where its user may come back in a moment, they are
    /// looked for: here, or at all nodes.
    fn take_away(&self, connection: &Arc<Connection>, expected: bool) {
        let expected = expected && !planted(self.limits(), Planted::NobodyAtOnce);
        let linger =
            (expected && self.copies.is_none()).then(|| Instant::now() + self.limits().linger);
        if self.users().remove(connection, linger) {
            self.note_presence(&connection.origin.user, expected);
        }
    }

    fn remove(&self, connection: &Arc<Connection>) {
        if connection.origin.returns {
            let good_for = self.limits().attach_within.as_secs() as u32 + 1;
            self.spent().insert(connection.origin.id, self.now() + good_for);
        }
        if self.live().remove(connection) {
            self.counters.connections.fetch_sub(1, Ordering::Relaxed);
            self.emptied.notify_waiters();
        }
    }

    /// Answers what nobody answered in time.
    fn pass_deadlines(&self) {
        let mut settlements = Settlements::default();
        for delivery in self.deadlines.due(Instant::now()) {
            settlements.unanswered(&delivery);
            for connection in delivery.targets() {
                connection.missed(&delivery, self.limits(), self.now(), &mut settlements);
            }
        }
        for parked in self.users().give_up(Instant::now()) {
            settlements.settle(&parked.delivery, Answer::Nobody);
        }
    }

    /// The hub stops: what waits for users who are not here will not be sent by it.
    fn answer_unsent(&self) {
        let mut settlements = Settlements::default();
        for parked in self.users().give_up_all() {
            settlements.settle(&parked.delivery, Answer::Unavailable);
        }
        if let Some(copies) = &self.copies {
            self.give_up_searches(copies, &mut settlements);
        }
    }

    /// What time brings to connections.
    fn tick(&self) {
        let now = self.now();
        let live = self.live();
        let expired = live.values().filter(|connection| connection.tick(self.limits(), now));
        let leaving: Vec<_> = expired.cloned().collect();
        let ended = live.values().filter(|connection| connection.ending().is_some());
        let ended: Vec<_> = ended.cloned().collect();
        drop(live);
        for connection in leaving {
            self.see_off(&connection);
        }
        // A transport that cannot write does not notice by itself; what it held goes now.
        for connection in ended {
            self.detach(&connection);
        }
        self.spent().retain(|_, until| *until >= now);
        self.users().forget_denials(wall_now());
        self.inboxes().forget(self.limits());
    }

    /// Closes a connection whose client is to come back, a step at a time: first it is given nothing
    /// more, then it has a moment for what it owes.
    fn see_off(&self, connection: &Arc<Connection>) {
        if !connection.is_leaving() {
            self.take_away(connection, true);
        }
        if connection.leave(self.limits().farewell, self.now()) {
            connection.end(Ending::Elsewhere);
        }
    }

    fn live(&self) -> MutexGuard<'_, LiveConnections> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a user may have missed since a message; `None` where nobody can say.
    pub(crate) async fn missed_since(&self, user: &UserId, last: &str) -> Option<Vec<Value>> {
        match &self.copies {
            None => self.inboxes().since(user, last, self.limits()),
            // Other nodes sent messages that this one has not seen.
            Some(copies) => self.missed_across(copies, user, last).await.unwrap_or_default(),
        }
    }

    fn inboxes(&self) -> MutexGuard<'_, Inboxes> {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To send by. A hub that stops sends nothing after it has looked at what it sent.
    pub(crate) fn users_unless_draining(&self) -> Result<MutexGuard<'_, Users>, Unavailable> {
        let users = self.users();
        if self.is_draining() { Err(Unavailable) } else { Ok(users) }
    }

    /// Those of this node.
    pub(crate) fn own_connections(&self, ask: &ConnectionAsk) -> ConnectionList {
        let users = self.users();
        let mut found = users.list(ask.user.as_ref());
        drop(users);
        let total = found.len();
        found.sort_by(|one, other| one.origin.user.cmp(&other.origin.user));
        let view = |connection: &Arc<Connection>| ConnectionView {
            id: crate::negotiate::public_id(&connection.origin.id),
            user: connection.origin.user.clone(),
            node: self.copies.as_ref().map(|copies| copies.id.to_string()).unwrap_or_default(),
            since: connection.origin.opened,
            address: connection.origin.address,
            agent: connection.origin.agent.to_string(),
            transport: connection.origin.transport,
            protocol: connection.protocol().map_or("", |protocol| protocol.name()).to_owned(),
            queued_bytes: connection.queued_bytes(),
            mute: connection.is_mute(),
        };
        let connections = found.iter().take(ask.limit).map(view).collect();
        ConnectionList { connections, total, silent: Vec::new() }
    }

    /// Who was told to go while nobody could tell us.
    pub(crate) fn take_denials(&self, denials: &[(UserId, SystemTime)]) {
        let mut users = self.users();
        let mut gone = Vec::new();
        for (user, before) in denials {
            users.deny(user, *before);
            // By their tokens, not by when they came: nobody told us then.
            let connections = users.list(Some(user)).into_iter();
            gone.extend(connections.filter(|one| users.is_denied(user, one.issued())));
        }
        drop(users);
        gone.iter().for_each(|connection| connection.end(Ending::Kicked));
    }

    /// Closes a user's connections with this node; how many.
    pub(crate) fn disconnect_here(&self, user: &UserId, deny_before: Option<SystemTime>) -> u32 {
        let mut users = self.users();
        if let Some(before) = deny_before {
            users.deny(user, before);
        }
        let connections = users.list(Some(user));
        drop(users);
        connections.iter().for_each(|connection| connection.end(Ending::Kicked));
        connections.len() as u32
    }

    fn hand_out(
        &self,
        batch: Vec<Outgoing>,
        answers: &Arc<dyn Answers>,
    ) -> Result<(), Unavailable> {
        let (limits, now) = (self.limits(), self.now());
        let mut settlements = Settlements::default();
        let mut users = self.users_unless_draining()?;
        for outgoing in batch {
            // Before the user is looked up: who connects meanwhile finds it there.
            self.inboxes().keep(&outgoing.user, &outgoing.frame, limits);
            let delivery = Delivery::new(&outgoing, answers, &self.counters);
            let connections = users.connections(&outgoing.user);
            if connections.is_empty() {
                let (user, frame) = (&outgoing.user, &outgoing.frame);
                match users.park(user, frame, &delivery, limits, &self.counters) {
                    crate::users::Parking::Parked => {}
                    crate::users::Parking::Away => {
                        settlements.settle(&delivery, Answer::Nobody);
                    }
                    crate::users::Parking::Full => settlements.unanswered(&delivery),
                }
                continue;
            }
            delivery.target(connections);
            for connection in connections {
                connection.offer(&outgoing.frame, &delivery, limits, now, &mut settlements);
            }
            // Whoever is left may answer.
            settlements.release(&delivery);
            if !delivery.is_settled() {
                self.deadlines.add(delivery);
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Hub for Node {
    async fn send(
        &self,
        batch: Vec<Outgoing>,
        answers: Arc<dyn Answers>,
    ) -> Result<(), Unavailable> {
        loop {
            if self.is_draining() {
                return Err(Unavailable);
            }
            let queued = self.counters.queued_bytes.load(Ordering::Relaxed);
            if queued <= self.limits().queued_bytes_total {
                break;
            }
            tokio::time::sleep(FULL_TICK).await;
        }
        let count = batch.len() as u64;
        match &self.copies {
            None => self.hand_out(batch, &answers)?,
            Some(copies) => self.send_across(copies, batch, &answers).await?,
        }
        self.counters.sent.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    fn cancel(&self, answers: &Arc<dyn Answers>, tickets: &[Ticket]) {
        let tickets: HashSet<_> = tickets.iter().collect();
        let wanted = |delivery: &Delivery| {
            tickets.contains(&delivery.ticket) && delivery.belongs_to(answers)
        };
        for delivery in self.deadlines.find(wanted) {
            delivery.cancel();
            delivery.targets().iter().for_each(|connection| connection.forget(&delivery));
        }
        self.users().cancel_parked(wanted);
        if let Some(copies) = &self.copies {
            self.cancel_searched(copies, wanted);
        }
    }

    async fn connections(&self, ask: &ConnectionAsk) -> ConnectionList {
        let list = self.own_connections(ask);
        match &self.copies {
            None => list,
            Some(copies) => self.connections_across(copies, ask, list).await,
        }
    }

    async fn disconnect(
        &self,
        user: &UserId,
        deny_before: Option<SystemTime>,
    ) -> Result<u32, Unavailable> {
        if let (Some(copies), Some(before)) = (&self.copies, deny_before) {
            // First where nodes that do not listen now will find it.
            copies.directory.deny(&[(user.clone(), before)]).await?;
        }
        let closed = self.disconnect_here(user, deny_before);
        match &self.copies {
            None => Ok(closed),
            Some(copies) => Ok(closed + self.disconnect_across(copies, user, deny_before).await),
        }
    }

    async fn drain(&self, spread: Duration) {
        {
            // Whoever sends has looked for it before, or will see it.
            let _users = self.users();
            self.draining.store(true, Ordering::Release);
        }
        if self.copies.is_none() {
            // Who is on their way back is not let in.
            self.answer_unsent();
        }
        if self.copies.as_ref().is_some_and(|copies| !copies.others().is_empty()) {
            // Clients come back at once: by then the balancer must have noticed.
            tokio::time::sleep(self.limits().notice).await;
        }
        let mut left: Vec<_> = self.live().values().cloned().collect();
        let pause = spread.checked_div(left.len() as u32).unwrap_or_default().min(DRAIN_PAUSE_MAX);
        let started = Instant::now();
        let mut closed = 0u32;
        while !left.is_empty() {
            let chosen = random::below(left.len() as u64) as usize;
            let connection = left.swap_remove(chosen);
            // Before its handshake there is nothing to wait for.
            self.see_off(&connection);
            closed += 1;
            tokio::time::sleep_until(started + pause * closed).await;
        }
        // What waits for other nodes has as long as a connection.
        let until = Instant::now() + self.limits().farewell;
        loop {
            let emptied = self.emptied.notified();
            self.answer_unsent();
            let open = self.deadlines.find(|_| true);
            if self.live().is_empty() && (open.is_empty() || Instant::now() >= until) {
                let mut settlements = Settlements::default();
                for open in &open {
                    settlements.settle(open, Answer::Unavailable);
                }
                break;
            }
            // Who had negotiated before may still have come.
            let late: Vec<_> = self.live().values().cloned().collect();
            late.iter().for_each(|connection| self.see_off(connection));
            // A connection whose farewell takes long is looked at again.
            let pause = if late.is_empty() { DEADLINE_TICK } else { TICK };
            let _ = tokio::time::timeout(pause, emptied).await;
        }
        if let Some(copies) = &self.copies {
            self.depart(copies).await;
        }
    }

    fn stats(&self) -> HubStats {
        let users = self.users().names().count();
        HubStats { users, ..self.counters.stats(self.authority.fetches()) }
    }
}

/// The time of day. Only tokens and views need it.
#[allow(
    clippy::disallowed_methods,
    reason = "tokens carry times of day, and nothing here is simulated"
)]
pub(crate) fn wall_now() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
pub(crate) mod tests;
