//! The services themselves: each starts, answers, is killed, starts again with its data, freezes
//! and thaws; the proxy makes the trouble it is asked for; nothing is left behind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod chromium;
mod databases;
mod kafka;
mod leftovers;
mod missing;
mod processes;
mod proxy;
mod redis;
mod wait;
