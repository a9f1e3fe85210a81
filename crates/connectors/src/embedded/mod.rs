//! The embedded log: topics, consumer groups and their progress in one commit log of a folder,
//! with nothing to install.
//!
//! It promises: what was acknowledged is on disk and survives a power cut; readers see nothing
//! else; outputs and progress of a pipeline are written together or not at all; no position ever
//! means two records; damage is kept, reported and read past, and nothing but the damaged bytes
//! is lost; a full disk refuses, and works again when there is room.
//! It does not replicate, and one process owns the folder.
//!
//! `format` draws the files. Appends go through `draft` (the caller lays the frame out) and
//! `writer` (one thread: place, sync, publish, answer). Reads go through `walk` (what is a frame,
//! what is damage) and `scan` (records of some partitions). `recovery` opens a folder,
//! `retention` lets go of what nobody needs (`pin`) and lets `compaction` copy what is needed out of
//! segments that are otherwise dead. All of them touch the disk through `disk`.

mod block;
mod catalog;
mod compaction;
mod damage;
mod disk;
mod draft;
mod fault;
mod format;
mod groups;
mod index;
mod log;
mod numbers;
mod order;
mod pin;
mod reader;
mod recovery;
mod reserve;
mod retention;
mod scan;
mod segment;
mod settings;
mod shared;
mod source;
mod store;
mod walk;
mod writer;

pub use damage::DEAD_TOPIC;
pub use disk::{Disk, DiskFile, LockAttempt, RealDisk};
pub use draft::partition_of;
pub use log::EmbeddedLog;
pub use settings::Options;
pub use store::EmbeddedStore;
