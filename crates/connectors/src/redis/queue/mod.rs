//! A list in Redis as a queue of messages that are collected by chat: Redis is the log.
//!
//! ```text
//! queue:incoming ──peek, sort──► queue:batch:<chat>  last_seen:<chat>  lock:batch:<chat>
//!                                potok:list:<list>:due (when to look at which chat), :chats
//! due ──visit──► potok:list:<list>:sending:<chat>, :claims      the claim: what makes up a group
//! engine … ──ack──► removed; what came meanwhile is the next group
//! ```
//!
//! Each arrow is one script (`scripts/`), so that whoever dies leaves everything before it or behind
//! it. What is sorted is compared with the list byte for byte: any number of processes sort, and a
//! call that was answered or not may be made again. The time of a look is also the lease of a claim: a
//! claim whose owner died is handed out again, the same members under the same name; from the third time
//! on its messages are tried one by one, for one of them may be what owners die of (`trials.rs`). Whoever was frozen past a lease, or waits for a destination that is
//! away for longer than one, leaves the claim to others (`hold.rs`). Locks of the
//! documented names are honoured; one is ours where it ends exactly when the one ends that was written
//! last.
//!
//! Deliberately absent: a Redis cluster (the documented keys lie in many slots), any time to live on
//! messages, a count of what waits that could be wrong.

mod answer;
mod calls;
mod claims;
mod feed;
mod groups;
mod hold;
mod keys;
mod naive;
mod scripts;
mod server;
mod sorter;
mod split;
mod trials;
mod visitor;

pub use feed::{QueueOptions, RedisQueue};
pub(super) use naive::script as naive_script;
pub(super) use server::cluster;
