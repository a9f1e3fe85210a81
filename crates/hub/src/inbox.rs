//! What users may have missed: their last messages, for a client that comes back and asks.
//!
//! A message is kept before its user is looked up, and a connection is known before it can ask. So a
//! message is seen by one of the two, whatever the order. What is kept is bounded in number, bytes
//! and age, per user and in all; a gap that is not kept whole is said to be one, never filled in
//! part.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::Frame;
use crate::contract::UserId;
use crate::settings::Limits;

pub(crate) struct Inboxes {
    /// Where nothing is known of a user, nothing is missing behind this moment.
    whole_after: Instant,
    users: HashMap<UserId, Inbox>,
    /// Every user once, and when they were last looked at, the longest ago first.
    looked: VecDeque<(Instant, UserId)>,
    bytes: usize,
}

/// What a user counts for besides their messages: names, places in lists.
const USER_BYTES: usize = 256;

/// Users are looked at so many times while a message grows old.
const LOOKS: u32 = 8;

struct Inbox {
    messages: VecDeque<(Instant, Arc<Frame>)>,
    bytes: usize,
    /// Behind this moment nothing is missing.
    whole_after: Instant,
}

impl Default for Inboxes {
    fn default() -> Self {
        Inboxes::new()
    }
}

impl Inboxes {
    pub fn new() -> Self {
        Inboxes {
            whole_after: Instant::now(),
            users: HashMap::new(),
            looked: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Keeps a message, and lets go of what does not fit beside it.
    pub fn keep(&mut self, user: &UserId, frame: &Arc<Frame>, limits: &Limits) {
        if limits.inbox_messages == 0 {
            // Nobody can name a message that was kept.
            return;
        }
        let (now, bytes) = (Instant::now(), frame.bytes());
        if !self.users.contains_key(user) {
            if self.bytes + USER_BYTES > limits.inbox_bytes_total {
                // Nothing says that this user lacks it, so nobody new is said to lack nothing.
                self.whole_after = now;
                return;
            }
            let whole_after = self.whole_after;
            let inbox = Inbox { messages: VecDeque::new(), bytes: 0, whole_after };
            self.users.insert(user.clone(), inbox);
            self.looked.push_back((now, user.clone()));
            self.bytes += USER_BYTES;
        }
        let Some(inbox) = self.users.get_mut(user) else { return };
        let fits = bytes <= limits.inbox_bytes && self.bytes + bytes <= limits.inbox_bytes_total;
        let (room, count) = match fits {
            true => (limits.inbox_bytes - bytes, limits.inbox_messages - 1),
            false => (0, 0),
        };
        while inbox.bytes > room || inbox.messages.len() > count {
            self.bytes -= inbox.drop_oldest();
        }
        if fits {
            inbox.messages.push_back((now, frame.clone()));
            inbox.bytes += bytes;
            self.bytes += bytes;
        } else {
            inbox.whole_after = now;
        }
    }

    /// Lets go of what is too old.
    pub fn forget(&mut self, limits: &Limits) {
        let now = Instant::now();
        let is_old = |then: &Instant| now.duration_since(*then) >= limits.inbox_age;
        let is_due = |(then, _): &mut (Instant, UserId)| {
            let passed = now.duration_since(*then);
            !passed.is_zero() && passed >= limits.inbox_age / LOOKS
        };
        while let Some((_, user)) = self.looked.pop_front_if(is_due) {
            let Some(inbox) = self.users.get_mut(&user) else { continue };
            while inbox.messages.front().is_some_and(|(then, _)| is_old(then)) {
                self.bytes -= inbox.drop_oldest();
            }
            // Where nothing is left, nobody can name a message that was here.
            if inbox.messages.is_empty() && is_old(&inbox.whole_after) {
                self.users.remove(&user);
                self.bytes -= USER_BYTES;
            } else {
                self.looked.push_back((now, user));
            }
        }
    }

    /// Everything since a message, and from a while before it: messages may have overtaken each
    /// other. The client drops those that it knows, by their ids. `None` where it is not all there.
    pub fn since(&self, user: &UserId, last: &str, limits: &Limits) -> Option<Vec<Value>> {
        let inbox = self.users.get(user)?;
        let kept = inbox.messages.iter().map(|(then, frame)| (*then, entry(frame))).collect();
        missed(kept, last, |then: &Instant| {
            then.checked_sub(limits.resume_overlap).filter(|cut| *cut > inbox.whole_after)
        })
    }

    #[cfg(test)]
    pub fn size(&self) -> (usize, usize, usize) {
        (self.users.len(), self.looked.len(), self.bytes)
    }
}

/// A message as a client is told about it.
pub(crate) fn entry(frame: &Frame) -> Value {
    let arguments: Value = serde_json::from_str(frame.arguments()).unwrap_or_default();
    json!({"method": frame.method(), "arguments": arguments})
}

/// Of messages with their times, in order, those that a client missed which saw `last`: everything
/// from the time that `cut` makes of that one's. `None` where the message is not there, or `cut`
/// says that what is there is not all.
pub(crate) fn missed<T: PartialOrd>(
    kept: Vec<(T, Value)>,
    last: &str,
    cut: impl Fn(&T) -> Option<T>,
) -> Option<Vec<Value>> {
    let is_last = |(_, entry): &&(T, Value)| {
        entry.pointer("/arguments/1/id").and_then(Value::as_str) == Some(last)
    };
    // What was sent again later is what the client saw the first time.
    let (then, _) = kept.iter().find(is_last)?;
    let cut = cut(then)?;
    Some(kept.into_iter().filter(|(then, _)| *then >= cut).map(|(_, entry)| entry).collect())
}

impl Inbox {
    fn drop_oldest(&mut self) -> usize {
        let Some((then, frame)) = self.messages.pop_front() else { return 0 };
        self.bytes -= frame.bytes();
        self.whole_after = self.whole_after.max(then);
        frame.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn frame(id: u32, bytes: usize) -> Arc<Frame> {
        let payload = format!("\"{}\"", "x".repeat(bytes));
        Frame::new("notify", &format!("m{id}"), payload.as_bytes(), 1 << 20).unwrap()
    }

    fn ids(missed: &[Value]) -> Vec<&str> {
        missed.iter().map(|message| message["arguments"][1]["id"].as_str().unwrap()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_after_a_message_is_found_with_an_overlap() {
        let limits = Limits::default();
        let (mut inboxes, alice) = (Inboxes::new(), UserId::new("alice"));
        tokio::time::advance(Duration::from_secs(100)).await;
        for id in 0..5 {
            inboxes.keep(&alice, &frame(id, 1), &limits);
            tokio::time::advance(Duration::from_secs(20)).await;
        }
        let missed = inboxes.since(&alice, "m3", &limits).unwrap();
        assert_eq!(ids(&missed), ["m2", "m3", "m4"]);
        // One that overtook another is no reason to miss that.
        let naive = Limits { resume_overlap: Duration::ZERO, ..limits.clone() };
        assert_eq!(ids(&inboxes.since(&alice, "m3", &naive).unwrap()), ["m3", "m4"]);
        for (user, id) in [("alice", "m9"), ("bob", "m3"), ("alice", "")] {
            assert_eq!(inboxes.since(&UserId::new(user), id, &limits), None);
        }
    }

    /// A message that was sent again hides nothing of what came between.
    #[tokio::test(start_paused = true)]
    async fn what_came_between_a_message_and_its_repeat_was_missed() {
        let limits = Limits::default();
        let (mut inboxes, alice) = (Inboxes::new(), UserId::new("alice"));
        tokio::time::advance(Duration::from_secs(100)).await;
        for id in [1, 2, 1, 3] {
            inboxes.keep(&alice, &frame(id, 1), &limits);
            tokio::time::advance(Duration::from_secs(40)).await;
        }
        let missed = inboxes.since(&alice, "m1", &limits).unwrap();
        assert_eq!(ids(&missed), ["m1", "m2", "m1", "m3"]);
    }

    /// What was before the start is not known, and must not be said to be empty.
    #[tokio::test(start_paused = true)]
    async fn a_gap_that_is_not_whole_is_no_gap() {
        let limits = Limits::default();
        let (mut inboxes, alice) = (Inboxes::new(), UserId::new("alice"));
        inboxes.keep(&alice, &frame(0, 1), &limits);
        assert!(inboxes.since(&alice, "m0", &limits).is_none());
        tokio::time::advance(Duration::from_secs(40)).await;
        inboxes.keep(&alice, &frame(1, 1), &limits);
        assert!(inboxes.since(&alice, "m1", &limits).is_some());
        // More than is kept: the oldest are gone, and with them what could be asked about them.
        for id in 2..=limits.inbox_messages as u32 + 1 {
            inboxes.keep(&alice, &frame(id, 1), &limits);
        }
        assert!(inboxes.since(&alice, "m1", &limits).is_none());
        assert!(inboxes.since(&alice, "m2", &limits).is_none());
        // One that is larger than an inbox empties it.
        tokio::time::advance(Duration::from_secs(40)).await;
        inboxes.keep(&alice, &frame(500, limits.inbox_bytes), &limits);
        inboxes.keep(&alice, &frame(501, 1), &limits);
        assert!(inboxes.since(&alice, "m501", &limits).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn memory_follows_the_traffic_and_not_the_users() {
        let limits = Limits::default();
        let mut inboxes = Inboxes::new();
        for number in 0..1_000 {
            for id in 0..3 {
                inboxes.keep(&UserId::new(&format!("user-{number}")), &frame(id, 30_000), &limits);
            }
        }
        let (_, _, bytes) = inboxes.size();
        assert!(bytes <= limits.inbox_bytes_total && bytes <= 1_000 * limits.inbox_bytes);
        tokio::time::advance(limits.inbox_age).await;
        inboxes.forget(&limits);
        assert_eq!(inboxes.size(), (0, 0, 0));
    }

    /// Whoever may be addressed is not remembered when nothing is kept, nor beyond what all may have.
    #[tokio::test(start_paused = true)]
    async fn users_for_whom_nothing_is_kept_are_not_remembered() {
        let none = Limits { inbox_messages: 0, ..Limits::default() };
        let few = Limits { inbox_bytes_total: 100 * USER_BYTES, ..Limits::default() };
        for (limits, most) in [(none, 0), (few, 100)] {
            let mut inboxes = Inboxes::new();
            tokio::time::advance(Duration::from_secs(100)).await;
            for number in 0..10_000 {
                inboxes.keep(&UserId::new(&format!("user-{number}")), &frame(number, 1), &limits);
            }
            let (users, looked, bytes) = inboxes.size();
            assert!(users <= most && looked == users, "{users} users, {looked} to be looked at");
            assert!(bytes <= limits.inbox_bytes_total, "{bytes} bytes");
            // When there is room again, those who were passed over are not said to lack nothing.
            tokio::time::advance(limits.inbox_age).await;
            inboxes.forget(&limits);
            assert_eq!(inboxes.size(), (0, 0, 0));
        }
        let limits = Limits { inbox_bytes_total: USER_BYTES, ..Limits::default() };
        let (mut inboxes, alice) = (Inboxes::new(), UserId::new("alice"));
        tokio::time::advance(Duration::from_secs(100)).await;
        inboxes.keep(&UserId::new("bob"), &frame(0, 1), &limits);
        inboxes.keep(&alice, &frame(1, 1), &limits);
        let roomy = Limits::default();
        inboxes.keep(&alice, &frame(2, 1), &roomy);
        assert!(inboxes.since(&alice, "m2", &roomy).is_none(), "m1 was not kept");
        tokio::time::advance(Duration::from_secs(40)).await;
        inboxes.keep(&alice, &frame(3, 1), &roomy);
        assert!(inboxes.since(&alice, "m3", &roomy).is_some());
    }

    /// Nothing grows with the number of messages but what is kept of them.
    #[tokio::test(start_paused = true)]
    async fn messages_that_are_not_kept_leave_nothing() {
        let limits = Limits { inbox_messages: 2, ..Limits::default() };
        let (mut inboxes, alice) = (Inboxes::new(), UserId::new("alice"));
        for id in 0..10_000 {
            inboxes.keep(&alice, &frame(id, 1), &limits);
        }
        let (users, looked, bytes) = inboxes.size();
        assert!((users, looked) == (1, 1) && bytes < 1_000, "{users} {looked} {bytes}");
        // Looked at now and then, and what has grown old goes, also where newer messages come.
        for id in 0..20 {
            tokio::time::advance(limits.inbox_age / 10).await;
            inboxes.keep(&UserId::new(&format!("user-{id}")), &frame(id, 1), &limits);
            inboxes.forget(&limits);
        }
        assert!(inboxes.since(&alice, "m9999", &limits).is_none());
        let (users, looked, _) = inboxes.size();
        assert!(users == looked && users <= 12, "{users} {looked}");
    }
}
