//! Feeds: records that do not come from the log.
//!
//! ```text
//!   Feed ──► intake ──► lanes ──► ledger ──► log: outputs ──► feed: what became of its records
//! ```
//!
//! Outputs go to the log, outcomes go back to where the record came from, in this order: outputs
//! durable, then the feed is told (`commit.rs`). Only then a record counts as ended and its room is
//! free. A record that failed may go back to its feed too, which hands it out again later; until
//! then nothing of its key is worked on (`failed.rs`). What the log refuses of it is such a failure too
//! (`offers.rs`). A group whose owners died is worked on record by record, so that the one they died of
//! is known (`trials.rs`).

mod backlog;
mod commit;
mod failed;
mod groups;
mod offers;
mod open;
pub(crate) mod trials;
mod whole;

pub(crate) use backlog::Backlogs;
pub(crate) use commit::{CommitTurn, CommitTurns, FeedPart, FeedWriter};
pub(crate) use failed::{Failure, ShutKeys};
pub(crate) use offers::OfferBook;
pub(crate) use open::FeedInput;
