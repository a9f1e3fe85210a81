//! The hub and the stock client, unchanged, under Node and in Chromium; tokens of a real Keycloak.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod keycloak;
#[path = "../browser/page.rs"]
mod page;
mod stock;
mod stock_client;
#[path = "../hub/support.rs"]
#[allow(dead_code, reason = "shared with the tests of the hub's own clients")]
mod support;
