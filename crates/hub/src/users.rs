//! Who is connected here, who just was, and who may not be.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::Frame;
use crate::connection::Connection;
use crate::contract::UserId;
use crate::counters::{Counters, WaitingBytes};
use crate::delivery::Delivery;
use crate::settings::Limits;

/// A denial is kept this long: no token lives longer.
const DENIAL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Default)]
pub(crate) struct Users {
    all: HashMap<UserId, User>,
    /// Users whose last connection broke, and until when they are looked for; the first ends first.
    lingering: VecDeque<(Instant, UserId)>,
    /// Tokens issued up to then are refused.
    denied: HashMap<UserId, SystemTime>,
    pub seats: Seats,
}

#[derive(Default)]
struct User {
    /// The oldest first.
    connections: Vec<Arc<Connection>>,
    lingers_until: Option<Instant>,
    /// What came while they lingered, in order.
    parked: VecDeque<ParkedMessage>,
}

pub(crate) struct ParkedMessage {
    pub frame: Arc<Frame>,
    pub delivery: Arc<Delivery>,
    _bytes: WaitingBytes,
}

pub(crate) enum Parking {
    Parked,
    /// They are not here, and nobody expects them back.
    Away,
    Full,
}

impl Users {
    pub fn connections(&self, user: &UserId) -> &[Arc<Connection>] {
        self.all.get(user).map_or(&[], |user| &user.connections)
    }

    /// Adds a connection; returns the oldest where there are too many.
    pub fn add(&mut self, connection: &Arc<Connection>, most: usize) -> Option<Arc<Connection>> {
        let user = self.all.entry(connection.origin.user.clone()).or_default();
        user.lingers_until = None;
        self.seats.take(connection);
        user.connections.push(connection.clone());
        (user.connections.len() > most).then(|| user.connections.remove(0))
    }

    /// What came for a user while they were away for a moment.
    pub fn take_parked(&mut self, user: &UserId) -> VecDeque<ParkedMessage> {
        self.all.get_mut(user).map(|user| std::mem::take(&mut user.parked)).unwrap_or_default()
    }

    /// Removes a connection. Where it was the last, which is returned, its user may be back until
    /// `linger`.
    pub fn remove(&mut self, connection: &Arc<Connection>, linger: Option<Instant>) -> bool {
        self.seats.leave(connection);
        let id = &connection.origin.user;
        let Some(user) = self.all.get_mut(id) else { return false };
        let before = user.connections.len();
        user.connections.retain(|other| !Arc::ptr_eq(other, connection));
        if user.connections.len() == before || !user.connections.is_empty() {
            user.connections.shrink_to_fit();
            return false;
        }
        match linger {
            Some(until) => {
                user.lingers_until = Some(until);
                self.lingering.push_back((until, id.clone()));
            }
            None => drop(self.all.remove(id)),
        }
        true
    }

    /// Keeps a message for a user who may be back in a moment, bounded like what waits for a
    /// connection.
    pub fn park(
        &mut self,
        user: &UserId,
        frame: &Arc<Frame>,
        delivery: &Arc<Delivery>,
        limits: &Limits,
        counters: &Arc<Counters>,
    ) -> Parking {
        let Some(user) = self.all.get_mut(user).filter(|user| user.lingers_until.is_some()) else {
            return Parking::Away;
        };
        let bytes: usize = user.parked.iter().map(|parked| parked.frame.bytes()).sum();
        if user.parked.len() >= limits.waiting || bytes + frame.bytes() > limits.queued_bytes {
            return Parking::Full;
        }
        delivery.mark_lingering();
        user.parked.push_back(ParkedMessage {
            frame: frame.clone(),
            delivery: delivery.clone(),
            _bytes: WaitingBytes::of(frame, counters),
        });
        Parking::Parked
    }

    /// What was kept for users who did not come back in time.
    pub fn give_up(&mut self, now: Instant) -> Vec<ParkedMessage> {
        let mut given_up = Vec::new();
        while let Some((_, id)) = self.lingering.pop_front_if(|(until, _)| *until <= now) {
            // Since then they may have been here and lingered anew.
            let Some(user) = self.all.get(&id) else { continue };
            if user.lingers_until.is_some_and(|until| until <= now)
                && let Some(user) = self.all.remove(&id)
            {
                given_up.extend(user.parked);
            }
        }
        given_up
    }

    /// All that was kept for users.
    pub fn give_up_all(&mut self) -> Vec<ParkedMessage> {
        self.all.values_mut().flat_map(|user| std::mem::take(&mut user.parked)).collect()
    }

    pub fn cancel_parked(&mut self, wanted: impl Fn(&Delivery) -> bool) {
        for user in self.all.values_mut().filter(|user| !user.parked.is_empty()) {
            user.parked.retain(|parked| {
                let cancelled = wanted(&parked.delivery);
                if cancelled {
                    parked.delivery.cancel();
                }
                !cancelled
            });
        }
    }

    /// All connections, or those of one user.
    pub fn list(&self, user: Option<&UserId>) -> Vec<Arc<Connection>> {
        match user {
            Some(user) => self.connections(user).to_vec(),
            None => self.all.values().flat_map(|user| user.connections.iter().cloned()).collect(),
        }
    }

    /// Those who have connections.
    pub fn names(&self) -> impl Iterator<Item = &UserId> {
        self.all.iter().filter(|(_, user)| !user.connections.is_empty()).map(|(id, _)| id)
    }

    pub fn deny(&mut self, user: &UserId, before: SystemTime) {
        let known = self.denied.entry(user.clone()).or_insert(before);
        *known = before.max(*known);
    }

    /// Whether a token is from before its user was told to go. One that does not say when it was
    /// issued counts as old.
    pub fn is_denied(&self, user: &UserId, issued: Option<SystemTime>) -> bool {
        let before = self.denied.get(user);
        before.is_some_and(|before| issued.is_none_or(|issued| issued <= *before))
    }

    /// Who was told to go, and when.
    pub fn denials(&self) -> Vec<(UserId, SystemTime)> {
        self.denied.iter().map(|(user, before)| (user.clone(), *before)).collect()
    }

    pub fn forget_denials(&mut self, now: SystemTime) {
        let is_old = |before: &SystemTime| {
            now.duration_since(*before).is_ok_and(|passed| passed > DENIAL_MAX)
        };
        self.denied.retain(|_, before| !is_old(before));
    }
}

/// Places of connections that are given to the next one when they are free: what a hub would send to
/// that remembers connections instead of users. Only for the planted bug of that name.
#[derive(Default)]
pub(crate) struct Seats {
    pub on: bool,
    #[cfg(debug_assertions)]
    seats: Vec<Option<Arc<Connection>>>,
    #[cfg(debug_assertions)]
    last: HashMap<UserId, usize>,
}

#[cfg(debug_assertions)]
impl Seats {
    fn take(&mut self, connection: &Arc<Connection>) {
        if !self.on {
            return;
        }
        let free = self.seats.iter().position(Option::is_none).unwrap_or(self.seats.len());
        self.seats.resize(self.seats.len().max(free + 1), None);
        if let Some(seat) = self.seats.get_mut(free) {
            *seat = Some(connection.clone());
        }
        self.last.insert(connection.origin.user.clone(), free);
    }
    fn leave(&mut self, connection: &Arc<Connection>) {
        let is_it = |seat: &&mut Option<Arc<Connection>>| {
            seat.as_ref().is_some_and(|other| Arc::ptr_eq(other, connection))
        };
        if let Some(seat) = self.seats.iter_mut().find(is_it) {
            *seat = None;
        }
    }
    pub fn of(&self, user: &UserId) -> Option<Arc<Connection>> {
        self.seats.get(*self.last.get(user)?)?.clone()
    }
}

#[cfg(not(debug_assertions))]
impl Seats {
    fn take(&mut self, _: &Arc<Connection>) {}
    fn leave(&mut self, _: &Arc<Connection>) {}
    pub fn of(&self, _: &UserId) -> Option<Arc<Connection>> {
        None
    }
}
