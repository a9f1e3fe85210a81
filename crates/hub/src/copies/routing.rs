//! Messages to users of other nodes and from other nodes, and the answers to them.
//!
//! A message for another node is a *leg*: it counts as one that may still answer, like a connection
//! of this node. A leg ends with the reply of its node, with the death of that node, or with the
//! message's deadline. Only a reply can acknowledge: that a parcel was taken by the line says
//! nothing, because its node may have died or be frozen.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use super::parcel::{Letter, Outcome, Parcel, Reply};
use super::{Directory, Find, NodeId, Whereabouts};
use crate::Frame;
use crate::contract::{Answer, Answers, Outgoing, Ticket, Unavailable, UserId};
use crate::counters::{Counters, WaitingBytes, add};
use crate::delivery::{Delivery, Settlements};
use crate::node::Node;
use crate::settings::Limits;
use crate::trouble::{Planted, planted};
use crate::users::Users;

/// Messages in one parcel, and their bytes, except where one alone has more.
const LETTERS_MAX: usize = 64;
const LETTERS_BYTES_MAX: usize = 256 << 10;

/// What a node has to do with its copies.
pub(crate) struct Copies {
    pub directory: Arc<dyn Directory>,
    pub id: NodeId,
    state: Mutex<RoutingState>,
    /// There are presences to announce.
    pub announcing: Arc<Notify>,
    /// There are parcels to cast.
    pub casting: Arc<Notify>,
    /// Whether somebody takes what is cast to this node. Tasks end when it is dropped.
    pub listening: watch::Sender<bool>,
    /// The line may be dead without saying so.
    pub relisten: Arc<Notify>,
    /// The node has said goodbye.
    pub left: AtomicBool,
    /// Answers to other nodes' messages are theirs to count.
    theirs: Arc<Counters>,
    pub node: Weak<Node>,
}

#[derive(Default)]
pub(crate) struct RoutingState {
    live: HashSet<NodeId>,
    /// When those were read.
    read: Option<Instant>,
    /// The directory was away or has forgotten something; until then others may not have said again
    /// who is with them.
    settling: Option<Instant>,
    /// Legs up to that number are from before the directory was away, and are let go then.
    overtaken: Option<(u64, Instant)>,
    /// Nodes that lost their lease between the last two looks.
    parted: HashSet<NodeId>,
    /// Nodes that lost their lease a moment ago.
    vanished: HashMap<NodeId, Instant>,
    /// Users to announce, and whether the last connection of those who are not here broke.
    pub changed: HashMap<UserId, bool>,
    /// Users to announce again, of whom there is no news.
    pub repeats: HashSet<UserId>,
    legs: HashMap<u64, Leg>,
    numbers: u64,
    /// Users who left a moment ago, and what came for them since.
    searches: HashMap<UserId, Search>,
    pub outbound: VecDeque<Outbound>,
    /// Calls of the directory that carry parcels or presences, and have not returned.
    pub under_way: usize,
    /// When something last came through this node's line.
    pub heard: Option<Instant>,
    /// Questions to other nodes that are not answered yet.
    pub asks: HashMap<u64, mpsc::UnboundedSender<(NodeId, String)>>,
}

/// A message that this node was asked to send.
struct PendingMessage {
    /// In the order of the calls.
    number: u64,
    delivery: Arc<Delivery>,
    user: UserId,
    frame: Arc<Frame>,
    /// Until when its user is looked for, from the first time they were not found.
    until: Option<Instant>,
    timed: bool,
    _bytes: WaitingBytes,
}

struct Leg {
    node: NodeId,
    pending: PendingMessage,
}

struct Search {
    until: Instant,
    pending: VecDeque<PendingMessage>,
}

impl Search {
    /// As for a connection.
    fn has_room(&self, frame: &Frame, limits: &Limits) -> bool {
        let bytes: usize = self.pending.iter().map(|pending| pending.frame.bytes()).sum();
        self.pending.len() < limits.waiting && bytes + frame.bytes() <= limits.queued_bytes
    }

    /// What comes back from another node may be older than what waits already.
    fn add(&mut self, pending: PendingMessage) {
        let at = self.pending.partition_point(|waiting| waiting.number < pending.number);
        self.pending.insert(at, pending);
    }
}

/// Parcels that are kept for the next try where the directory did not take them.
const RETRIED_MAX: usize = 10_000;

/// A parcel on its way out.
pub(crate) struct Outbound {
    pub to: NodeId,
    pub parcel: Bytes,
    /// What it carries, where somebody waits for replies.
    pub legs: Vec<u64>,
    /// Until when it is tried again, from the first time that nobody listened.
    pub until: Option<Instant>,
}

impl Copies {
    pub fn new(directory: Arc<dyn Directory>, node: Weak<Node>) -> Self {
        Copies {
            directory,
            id: NodeId::random(),
            state: Mutex::default(),
            announcing: Arc::default(),
            casting: Arc::default(),
            listening: watch::Sender::new(false),
            relisten: Arc::default(),
            left: AtomicBool::new(false),
            theirs: Arc::default(),
            node,
        }
    }

    pub fn state(&self) -> MutexGuard<'_, RoutingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Other nodes that have a lease.
    pub fn others(&self) -> Vec<NodeId> {
        self.state().live.iter().copied().filter(|node| *node != self.id).collect()
    }

    pub fn post(&self, to: NodeId, parcel: &Parcel) {
        let parcel = parcel.encode(self.id);
        self.state().outbound.push_back(Outbound { to, parcel, legs: Vec::new(), until: None });
        self.casting.notify_one();
    }
}

impl RoutingState {
    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Keeps a message while its user is looked for. Where too many wait for them, it is not sent.
    fn wait_for_user(
        &mut self,
        pending: PendingMessage,
        until: Instant,
        limits: &Limits,
        settlements: &mut Settlements,
    ) {
        let search = self.searches.entry(pending.user.clone());
        let search = search.or_insert_with(|| Search { until, pending: VecDeque::default() });
        if search.has_room(&pending.frame, limits) {
            pending.delivery.mark_lingering();
            search.add(pending);
        } else {
            settlements.unanswered(&pending.delivery);
        }
    }

    /// Its user is nowhere, as far as that can be said now.
    fn nobody(&self, delivery: &Delivery, settlements: &mut Settlements) {
        if self.settling.is_some_and(|until| Instant::now() < until) {
            delivery.mark_unsure();
        }
        settlements.nobody(delivery);
    }

    /// Who is alive, unless that was read too long ago to be true.
    fn live(&self, lease: Duration) -> Result<&HashSet<NodeId>, Unavailable> {
        let fresh = self.read.is_some_and(|read| read.elapsed() < lease);
        if fresh { Ok(&self.live) } else { Err(Unavailable) }
    }
}

impl Node {
    /// The nodes that are alive now. What waits for others is let go: it may have been seen there.
    pub(crate) fn note_live(&self, copies: &Copies, live: &[NodeId]) {
        let mut settlements = Settlements::default();
        let mut state = copies.state();
        let (now, live) = (Instant::now(), live.iter().copied().collect::<HashSet<_>>());
        let gone: HashSet<_> = state.live.difference(&live).copied().collect();
        state.vanished.extend(gone.iter().map(|node| (*node, now)));
        let linger = self.limits().linger;
        state.vanished.retain(|node, then| !live.contains(node) && then.elapsed() < linger);
        (state.live, state.read) = (live, Some(now));
        // What a node said last may come after the news that it has left: it is waited for until
        // the next look, and no longer, also where it is back by then.
        let parted = std::mem::replace(&mut state.parted, gone);
        let overtaken = state.overtaken.take_if(|(_, until)| *until <= now);
        let is_over = |number: u64, leg: &Leg| {
            parted.contains(&leg.node)
                || overtaken.is_some_and(|(last, _)| number <= last)
                || leg.pending.delivery.is_settled()
        };
        for (_, leg) in state.legs.extract_if(|number, leg| is_over(*number, leg)) {
            leg.pending.delivery.mark_written();
            settlements.release(&leg.pending.delivery);
        }
    }

    /// The directory is back, or begins anew: for as long as a node may take to be heard of, users
    /// who are not in it may be with somebody.
    pub(crate) fn note_return(&self, copies: &Copies, was_away: bool) {
        if was_away {
            // What the line took before may be lost, and its replies.
            let mut state = copies.state();
            let last = state.number();
            state.overtaken = Some((last, Instant::now() + self.limits().lease));
        }
        let naive = [Planted::AnnouncedOnce, Planted::AwayIsNobody];
        if !naive.into_iter().any(|bug| planted(self.limits(), bug)) {
            copies.state().settling = Some(Instant::now() + self.limits().lease);
        }
    }

    /// Replies may have been lost: what is open now cannot be said to be unanswered any more.
    pub(crate) fn note_deafness(&self, copies: &Copies) {
        let mut state = copies.state();
        // What is answered is of no interest to anybody, and counts as queued.
        state.legs.retain(|_, leg| !leg.pending.delivery.is_settled());
        state.legs.values().for_each(|leg| leg.pending.delivery.mark_unsure());
    }

    /// Sends to wherever the users are; nothing where that cannot be asked.
    pub(crate) async fn send_across(
        &self,
        copies: &Copies,
        batch: Vec<Outgoing>,
        answers: &Arc<dyn Answers>,
    ) -> Result<(), Unavailable> {
        let away_is_nobody = planted(self.limits(), Planted::AwayIsNobody);
        // Replies would be lost, and others may not be heard of either.
        let listens = || *copies.listening.borrow() || away_is_nobody;
        if !listens() {
            return Err(Unavailable);
        }
        let found = match self.find_all(copies, &batch).await {
            Err(Unavailable) if away_is_nobody => Vec::new(),
            found => found?,
        };
        let found: HashMap<_, _> = found.into_iter().collect();
        let lease = self.limits().lease;
        let mut settlements = Settlements::default();
        let users = self.users_unless_draining()?;
        let mut state = copies.state();
        if !away_is_nobody {
            state.live(lease)?;
        }
        if !listens() {
            return Err(Unavailable);
        }
        let mut letters = Letters::default();
        for outgoing in batch {
            let pending = PendingMessage {
                number: state.number(),
                delivery: Delivery::new(&outgoing, answers, self.counters()),
                _bytes: WaitingBytes::of(&outgoing.frame, self.counters()),
                user: outgoing.user,
                frame: outgoing.frame,
                until: None,
                timed: false,
            };
            // Not past those that came before it.
            if let Some(until) = state.searches.get(&pending.user).map(|search| search.until) {
                state.wait_for_user(pending, until, self.limits(), &mut settlements);
                continue;
            }
            let whereabouts = found.get(&pending.user).cloned().unwrap_or_default();
            self.route(
                copies,
                &users,
                &mut state,
                pending,
                &whereabouts,
                &mut letters,
                &mut settlements,
            );
        }
        letters.post(copies, &mut state);
        Ok(())
    }

    /// Hands a message to the user's connections, here and elsewhere.
    #[allow(clippy::too_many_arguments, reason = "the locks that its callers hold")]
    fn route(
        &self,
        copies: &Copies,
        users: &Users,
        state: &mut RoutingState,
        mut pending: PendingMessage,
        whereabouts: &Whereabouts,
        letters: &mut Letters,
        settlements: &mut Settlements,
    ) {
        let (limits, now) = (self.limits(), Instant::now());
        let delivery = pending.delivery.clone();
        let connections = users.connections(&pending.user);
        let is_live = |node: &&NodeId| **node != copies.id && state.live.contains(node);
        let others: Vec<_> = whereabouts.nodes.iter().filter(is_live).copied().collect();
        if connections.is_empty() && others.is_empty() {
            // Who was here a moment ago, or where a node just died, may be back in a moment.
            let expected = whereabouts.lost.is_some_and(|ago| ago < limits.linger)
                || whereabouts.nodes.contains(&copies.id)
                || whereabouts.nodes.iter().any(|node| state.vanished.contains_key(node))
                || pending.until.is_some();
            let until = *pending.until.get_or_insert(now + limits.linger);
            if expected && now < until && !delivery.is_settled() {
                state.wait_for_user(pending, until, limits, settlements);
            } else {
                state.nobody(&delivery, settlements);
            }
            return;
        }
        delivery.target(connections);
        for connection in connections {
            connection.offer(&pending.frame, &delivery, limits, self.now(), settlements);
        }
        for node in others {
            if planted(limits, Planted::SentIsDelivered) {
                settlements.settle(&delivery, Answer::Acknowledged);
            }
            let leg = state.number();
            delivery.add_leg();
            // Its node keeps the time, and may need twice as much; ours is for the case that it dies.
            delivery.mark_waited();
            let pending = PendingMessage {
                number: pending.number,
                delivery: delivery.clone(),
                user: pending.user.clone(),
                frame: pending.frame.clone(),
                until: pending.until,
                timed: true,
                _bytes: WaitingBytes::of(&pending.frame, self.counters()),
            };
            letters.add(node, leg, &pending);
            state.legs.insert(leg, Leg { node, pending });
        }
        settlements.release(&delivery);
        if !pending.timed && !delivery.is_settled() {
            self.deadlines().add(delivery);
        }
    }

    /// What came for a user who is here again.
    pub(crate) fn take_searched(
        &self,
        copies: &Copies,
        users: &Users,
        user: &UserId,
        settlements: &mut Settlements,
    ) {
        let mut state = copies.state();
        let Some(search) = state.searches.remove(user) else { return };
        let (here, mut letters) = (Whereabouts::default(), Letters::default());
        for pending in search.pending {
            self.route(copies, users, &mut state, pending, &here, &mut letters, settlements);
        }
    }

    /// Looks again for users who left a moment ago.
    pub(crate) async fn search(&self, copies: &Copies) {
        let wanted: Vec<_> = copies.state().searches.keys().cloned().collect();
        if wanted.is_empty() {
            return;
        }
        let find = |user: &UserId| Find { user: user.clone(), frames: Vec::new() };
        let finds: Vec<_> = wanted.iter().map(find).collect();
        let found = copies.directory.find(&finds, self.limits()).await;
        let mut settlements = Settlements::default();
        let users = self.users();
        let mut state = copies.state();
        let listens = *copies.listening.borrow();
        let can_say = listens && found.is_ok() && state.live(self.limits().lease).is_ok();
        let mut letters = Letters::default();
        for (place, user) in wanted.into_iter().enumerate() {
            let over =
                state.searches.get(&user).is_some_and(|search| search.until <= Instant::now());
            if !can_say && !over {
                continue;
            }
            let Some(search) = state.searches.remove(&user) else { continue };
            for pending in search.pending {
                match &found {
                    Ok(found) if can_say => {
                        let whereabouts = found.get(place).cloned().unwrap_or_default();
                        let pending = PendingMessage { until: Some(search.until), ..pending };
                        let settlements = &mut settlements;
                        self.route(
                            copies,
                            &users,
                            &mut state,
                            pending,
                            &whereabouts,
                            &mut letters,
                            settlements,
                        );
                    }
                    _ => {
                        settlements.settle(&pending.delivery, Answer::Unavailable);
                    }
                }
            }
        }
        letters.post(copies, &mut state);
    }

    /// Drops what is looked for, where `wanted` says so.
    pub(crate) fn cancel_searched(&self, copies: &Copies, wanted: impl Fn(&Delivery) -> bool) {
        let mut state = copies.state();
        for search in state.searches.values_mut() {
            search.pending.retain(|pending| {
                let cancelled = wanted(&pending.delivery);
                if cancelled {
                    pending.delivery.cancel();
                }
                !cancelled
            });
        }
    }

    /// What became of parcels: nobody listens at that node, or nobody knows. Whether some are tried
    /// again.
    pub(crate) fn note_cast(
        &self,
        copies: &Copies,
        sent: Vec<Outbound>,
        taken: Option<&[bool]>,
    ) -> bool {
        let mut settlements = Settlements::default();
        let mut state = copies.state();
        state.under_way -= 1;
        let (mut again, now) = (Vec::new(), Instant::now());
        for (place, outbound) in sent.into_iter().enumerate() {
            let bytes = outbound.parcel.len();
            self.counters()
                .queued_bytes
                .fetch_sub(if outbound.legs.is_empty() { 0 } else { bytes }, Ordering::Relaxed);
            let taken = taken.map(|taken| taken.get(place).copied().unwrap_or_default());
            for leg in &outbound.legs {
                match taken {
                    Some(true) => {}
                    Some(false) => self.end_leg(
                        &mut state,
                        outbound.to,
                        Reply { leg: *leg, outcome: Outcome::Gone },
                        &mut settlements,
                    ),
                    None => {
                        if let Some(leg) = state.legs.remove(leg) {
                            leg.pending.delivery.mark_unsure();
                            settlements.release(&leg.pending.delivery);
                        }
                    }
                }
            }
            // Replies, which mean the same when they come twice. Who does not listen may begin anew.
            let until = match taken {
                None => outbound.until,
                Some(true) => continue,
                Some(false) => Some(outbound.until.unwrap_or(now + self.limits().lease)),
            };
            let is_there = taken.is_none() || state.live.contains(&outbound.to);
            if outbound.legs.is_empty() && is_there && until.is_none_or(|until| now < until) {
                again.push(Outbound { until, ..outbound });
            }
        }
        let (some, room) = (!again.is_empty(), RETRIED_MAX.saturating_sub(state.outbound.len()));
        again.into_iter().take(room).rev().for_each(|out| state.outbound.push_front(out));
        some
    }

    /// What came for users who are looked for will not be sent any more.
    pub(crate) fn give_up_searches(&self, copies: &Copies, settlements: &mut Settlements) {
        let mut state = copies.state();
        for (_, search) in state.searches.drain() {
            for pending in search.pending {
                settlements.settle(&pending.delivery, Answer::Unavailable);
            }
        }
    }

    fn end_leg(
        &self,
        state: &mut RoutingState,
        from: NodeId,
        reply: Reply,
        settlements: &mut Settlements,
    ) {
        // Only the node that was asked may answer.
        if state.legs.get(&reply.leg).is_none_or(|leg| leg.node != from) {
            return add(&self.counters().late);
        }
        let Some(Leg { pending, .. }) = state.legs.remove(&reply.leg) else { return };
        let delivery = pending.delivery.clone();
        delivery.end_leg();
        match reply.outcome {
            Outcome::Acknowledged => {
                if !settlements.settle(&delivery, Answer::Acknowledged) {
                    add(&self.counters().late);
                }
            }
            Outcome::Written => {
                delivery.mark_written();
                settlements.release(&delivery);
            }
            Outcome::NotWritten => settlements.release(&delivery),
            // What the directory said was not true any more: it is asked again, for a while.
            Outcome::Gone if delivery.is_last() && !delivery.is_settled() => {
                let until = pending.until.unwrap_or(Instant::now() + self.limits().linger);
                if until <= Instant::now() {
                    return state.nobody(&delivery, settlements);
                }
                let pending = PendingMessage { until: Some(until), ..pending };
                state.wait_for_user(pending, until, self.limits(), settlements);
            }
            Outcome::Gone => settlements.release(&delivery),
        }
    }

    /// What another node says.
    pub(crate) fn take_parcel(self: &Arc<Self>, copies: &Copies, bytes: &[u8]) {
        copies.state().heard = Some(Instant::now());
        let Some((from, parcel)) = Parcel::decode(bytes) else {
            tracing::debug!("a parcel of another version was passed over");
            return;
        };
        match parcel {
            Parcel::Echo => {}
            Parcel::Deliver(letters) => self.take_letters(copies, from, letters),
            Parcel::Replies(replies) => {
                let mut settlements = Settlements::default();
                let mut state = copies.state();
                for reply in replies {
                    self.end_leg(&mut state, from, reply, &mut settlements);
                }
            }
            Parcel::Ask { number, question } => {
                self.answer_question(copies, from, number, &question)
            }
            Parcel::Tell { number, answer } => {
                if let Some(asker) = copies.state().asks.get(&number) {
                    // Who asked may have stopped waiting.
                    let _ = asker.send((from, answer));
                }
            }
        }
    }

    fn take_letters(&self, copies: &Copies, from: NodeId, letters: Vec<Letter>) {
        let answers: Arc<dyn Answers> = Arc::new(Replies { node: copies.node.clone(), to: from });
        let (limits, now) = (self.limits(), self.now());
        let full = self.counters().queued_bytes.load(Ordering::Relaxed) > limits.queued_bytes_total;
        let mut refused = Vec::new();
        let mut settlements = Settlements::default();
        let users = self.users();
        for letter in letters {
            let Letter { leg, within, ack, user, method, id, payload } = letter;
            let limit = limits.message_bytes.max(payload.len());
            let frame = Frame::new(&method, &id, payload.as_bytes(), 2 * limit);
            // Found by the user, and theirs, whatever the sender believed.
            let connections: Vec<_> = self
                .targets_of(&users, &user)
                .into_iter()
                .filter(|connection| {
                    connection.origin.user == user || planted(limits, Planted::RouteByConnection)
                })
                .collect();
            let outcome = match (&frame, connections.is_empty()) {
                (Err(_), _) => Outcome::NotWritten,
                _ if full => Outcome::NotWritten,
                (Ok(_), true) => Outcome::Gone,
                (Ok(frame), false) => {
                    let frame = frame.clone();
                    let outgoing =
                        Outgoing { ticket: Ticket(leg), user, frame, ack_within: within, ack };
                    let delivery = Delivery::new(&outgoing, &answers, &copies.theirs);
                    delivery.target(&connections);
                    for connection in &connections {
                        let frame = &outgoing.frame;
                        connection.offer(frame, &delivery, limits, now, &mut settlements);
                    }
                    settlements.release(&delivery);
                    if !delivery.is_settled() {
                        self.deadlines().add(delivery);
                    }
                    continue;
                }
            };
            refused.push(Reply { leg, outcome });
        }
        drop(users);
        if !refused.is_empty() {
            copies.post(from, &Parcel::Replies(refused));
        }
    }
}

/// Answers to another node's messages.
struct Replies {
    node: Weak<Node>,
    to: NodeId,
}

impl Answers for Replies {
    fn settle(&self, answers: &[(Ticket, Answer)]) {
        let Some(node) = self.node.upgrade() else { return };
        let Some(copies) = node.copies() else { return };
        let reply = |(ticket, answer): &(Ticket, Answer)| {
            let outcome = match answer {
                Answer::Acknowledged => Outcome::Acknowledged,
                Answer::NoAnswer { written: true } => Outcome::Written,
                Answer::NoAnswer { written: false } | Answer::Nobody | Answer::Unavailable => {
                    Outcome::NotWritten
                }
            };
            Reply { leg: ticket.0, outcome }
        };
        copies.post(self.to, &Parcel::Replies(answers.iter().map(reply).collect()));
    }
}

/// Messages for other nodes, gathered to parcels.
#[derive(Default)]
struct Letters {
    nodes: HashMap<NodeId, Vec<Letter>>,
}

impl Letters {
    fn add(&mut self, node: NodeId, leg: u64, pending: &PendingMessage) {
        let frame = &pending.frame;
        self.nodes.entry(node).or_default().push(Letter {
            leg,
            within: pending.delivery.ack_within,
            ack: pending.delivery.ack,
            user: pending.user.clone(),
            method: frame.method().to_owned(),
            id: frame.id(),
            payload: frame.payload().to_owned(),
        });
    }

    fn post(self, copies: &Copies, state: &mut RoutingState) {
        let Some(node) = copies.node.upgrade() else { return };
        for (to, mut letters) in self.nodes {
            while !letters.is_empty() {
                let mut bytes = 0;
                let fits = |letter: &&Letter| {
                    let is_first = bytes == 0;
                    bytes += letter.payload.len();
                    is_first || bytes <= LETTERS_BYTES_MAX
                };
                let count = letters.iter().take(LETTERS_MAX).take_while(fits).count();
                let rest = letters.split_off(count.max(1));
                let legs = letters.iter().map(|letter| letter.leg).collect();
                let parcel = Parcel::Deliver(letters).encode(copies.id);
                node.counters().queued_bytes.fetch_add(parcel.len(), Ordering::Relaxed);
                state.outbound.push_back(Outbound { to, parcel, legs, until: None });
                letters = rest;
            }
        }
        copies.casting.notify_one();
    }
}
