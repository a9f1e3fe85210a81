//! The words of potok and the contracts between its parts.
//!
//! Everything here is plain data or a trait: no network, no disk, and the clock only as a
//! contract. `flow` drives these contracts, `connectors` implement them, `testkit` checks each
//! implementation with one suite per contract.
//!
//! Three ideas carry every rule: the log is the only truth, every group has one owner, and names
//! come from positions ([`Position`], [`DeliveryId`]), never from counters that can be lost.
#![deny(missing_docs)]

mod batch;
mod clock;
mod dead_letter;
mod decoder;
mod event;
mod fault;
mod feed;
mod files;
mod group;
mod lease;
mod log;
mod outbox;
mod own_topics;
mod position;
mod ranges;
mod record;
mod sink;
mod source;
mod stage;
mod store;
mod trials;
pub mod trouble;

pub use batch::{Batch, Message, Outcome, Receipt};
pub use clock::{Clock, SystemClock, Timestamp};
pub use dead_letter::{
    DEAD_LETTER_HEADER, Envelope, FeedLetter, FeedLetters, LetterCount, PackedRecord, Piece,
    ShardPlace,
};
pub use decoder::{DecodeResult, Decoder};
pub use event::Event;
pub use fault::{Fault, Move, Reason};
pub use feed::{
    Attempts, Backlog, Feed, FeedAbilities, FeedCommit, FeedGroup, FeedGroups, OpenFeed,
    PostponedRecord, Progress, SetAside,
};
pub use files::{
    FileCounts, FileFacts, FilesAsk, GroupFiles, NewFile, ShardTotals, StageLoad, StageState,
    StageTotals, TrackStep, TrackedFile, TrackedStage, Tracker,
};
pub use group::{CloseReason, GroupInfo};
pub use lease::{Lease, LeaseCheck};
pub use log::{
    ConsumerGroup, ConsumerGroupPartition, ConsumerGroupSpec, Damage, Log, OpenGroup, OpenGroups,
    Output, PipelineInfo, ReadFrom, Reader, TopicInfo,
};
pub use outbox::{FailingRow, LeaseOwner, OutboxControl, OutboxCounts, OutboxStatus};
pub use own_topics::{is_own_pipeline, not_by_hand, own_topic};
pub use position::{DeliveryId, ParsePositionError, Partition, Position};
pub use ranges::RangeSet;
pub use record::{
    FeedFacts, HeaderValue, Headers, HeadersBuilder, LogOrder, Record, SourceBatch, WholeGroup,
};
pub use sink::{Sink, SinkLimits};
pub use source::{
    Assignment, EndedOffsets, Journal, NotWritten, OfferMode, OfferOutcome, PartitionEnd, Source,
    SourceEvent, Transaction, Turn,
};
pub use stage::{Stage, StageLimits, StageResult};
pub use store::{Owner, PutOutcome, Store, StoreAddress, StoreEntry};
pub use trials::{TrialNotes, Trials};

/// The largest key, headers and value together that any part accepts for one record.
pub const RECORD_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The room for potok's own headers beyond that: a record of the largest size can still be set aside,
/// and replayed.
pub const OWN_HEADERS_BYTES_MAX: usize = 64 * 1024;

/// The names of potok's own headers begin so.
pub const OWN_HEADERS_PREFIX: &str = "potok-";
