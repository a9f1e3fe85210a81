//! A list in Redis as a queue, on real servers: what it hands out, what other programs see, and what
//! happens when somebody dies, freezes, or does what the old processor does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bounds;
mod chats;
mod clock;
mod locks;
mod outgoing;
mod periods;
mod planted;
mod reports;
mod rig;
mod takeover;
mod trouble;
mod wait;
