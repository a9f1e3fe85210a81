//! The engine: what happens to a record, in order.
//!
//! **source → decode → group → process → deliver**, a folder per step; start reading at
//! `lane.rs`. The engine drives the contracts of `potok_core` and names no connector. Waiting,
//! backoff, splitting, dead letters, gates and progress live here, once, so that no connector can
//! get them wrong.

mod counts;
mod crash_notes;
pub mod dead_letter;
pub mod decode;
mod deliver;
mod engine;
mod feed;
mod fixed_hash;
mod group;
mod lag;
mod lane;
mod latency;
mod ledger;
mod live;
mod notices;
mod origin;
mod outgoing;
mod outline;
mod pending;
mod pipeline;
mod plan;
pub mod process;
mod rehearsal;
mod signal;
mod source;
mod status;
mod waits;
mod work;

pub use deliver::UndecidedRecord;
pub use engine::{Engine, TrackedPipeline};
pub use group::{GroupCursor, GroupPage, GroupView, KindView, OpenSlice, ShardPlan, gathered_from};
pub use latency::LatencyCounts;
pub use outline::{Outline, OutlineStage};
pub use plan::{
    ClosePlan, CountPlan, DeliverPlan, GroupPlan, HELD_MEMORY_BESIDE_A_STORE, HELD_MEMORY_DEFAULT,
    Input, KindPlan, OnError, OnRepeat, Per, Plan, Retry, StagePlan, Target, TopicTarget,
    TrackPlan,
};
pub use process::StageStatus;
pub use rehearsal::Forecast;
pub use status::{DestinationStatus, FeedStatus, GateStatus, PartitionLag, State, Status};
pub use waits::{Wait, WaitsFor};
