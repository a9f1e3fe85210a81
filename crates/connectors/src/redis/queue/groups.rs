//! The chats that wait in Redis, for people to see, close and drop.

use std::sync::Arc;

use async_trait::async_trait;
use potok_core::{CloseReason, Fault, FeedGroup, FeedGroups, Timestamp};

use super::calls::{ChatAnswer, QueueCalls};
use super::claims::readable;

/// What is asked for in one script.
const PAGE: usize = 500;

/// The chats of a queue.
pub(super) struct Chats(pub Arc<QueueCalls>);

#[async_trait]
impl FeedGroups for Chats {
    async fn list(&self, skip: u64, most: usize) -> Result<(u64, Vec<FeedGroup>), Fault> {
        let (mut total, mut groups, mut passed) = (0, Vec::new(), skip);
        loop {
            let wanted = most.saturating_sub(groups.len()).min(PAGE);
            let (all, chats) = self.0.chats(passed, wanted, b"").await?;
            total = all.max(total);
            let came = chats.len();
            passed += came as u64;
            // A chat of which the next group collects while one is delivered is shown as that one.
            groups.extend(chats.into_iter().filter_map(|chat| shown(chat).into_iter().next()));
            if came < PAGE || groups.len() >= most {
                return Ok((total, groups));
            }
        }
    }

    async fn of_key(&self, key: &[u8]) -> Result<Vec<FeedGroup>, Fault> {
        if key.is_empty() {
            return Ok(Vec::new());
        }
        let (_, chats) = self.0.chats(0, 1, key).await?;
        Ok(chats.into_iter().flat_map(shown).collect())
    }

    async fn close(&self, key: &[u8], reason: CloseReason) -> Result<bool, Fault> {
        if key.is_empty() {
            return Ok(false);
        }
        let (_, chats) = self.0.chats(0, 1, key).await?;
        let Some(chat) = chats.into_iter().next() else { return Ok(false) };
        let name = readable(&chat.key);
        // Only the opening that was seen just now is meant: a late call closes no later one.
        let answer = self.0.wish(key, &chat.nonce, reason.as_str()).await?;
        match &answer[..] {
            b"done" => Ok(true),
            b"claimed" => Err(Fault::fix(format!("chat `{name}` is being delivered"))
                .hint("what came since closes as usual when that is done")
                .code("P1210")),
            b"foreign" => {
                Err(Fault::fix(format!("another program holds the lock of chat `{name}`"))
                    .hint("it is adopted when that program lets go of `lock:batch:`")
                    .code("P1211"))
            }
            _ => Ok(false),
        }
    }
}

/// What is delivered of a chat, and what collects.
fn shown(chat: ChatAnswer) -> Vec<FeedGroup> {
    let millis = |micros: u64| Timestamp(i64::try_from(micros / 1_000).unwrap_or(i64::MAX));
    let mut groups = Vec::new();
    if let Some(claim) = chat.claim {
        groups.push(FeedGroup {
            key: chat.key.clone(),
            generation: format!("{:x}.{}", claim.opened, claim.nonce),
            is_delivering: true,
            records: chat.sending,
            opened: Some(millis(claim.opened)),
            due: Some(millis(claim.closed)),
            reason: Some(CloseReason::of(&claim.reason)),
            owner: if claim.token == "-" { String::new() } else { claim.token },
            attempts: claim.takeovers,
        });
    }
    if chat.entries > 0 || groups.is_empty() {
        groups.push(FeedGroup {
            key: chat.key,
            generation: format!("{:x}.{}", chat.opened.unwrap_or(0), chat.nonce),
            is_delivering: false,
            records: chat.entries,
            opened: chat.opened.map(millis),
            due: chat.due.map(millis),
            reason: None,
            owner: if chat.is_foreign { "another program".to_owned() } else { "Redis".to_owned() },
            attempts: 0,
        });
    }
    groups
}
