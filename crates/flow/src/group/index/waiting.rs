//! Records that wait until all records sent among them are read, so that groups take them in order of arrival.
//!
//! A log that has one order for all partitions is read in stretches, each partition by partition.
//! Groups that close by count, by size or by what a record says would have other members, were records
//! taken in as they are read.

use bytes::Bytes;
use foldhash::HashMap;
use potok_core::Timestamp;
use potok_core::trouble::{Bug, planted};

use super::{GroupKey, HeldRecord, Index, NewMember};
use crate::group::arrival::{Arrival, Stream};
use crate::group::seal::Seal;

/// One of them.
pub(super) enum WaitingRecord {
    Record(NewMember),
    Seal { key: Bytes, share: u32, seal: Seal, entry: HeldRecord },
}

impl Index {
    /// Takes a record in; one that has a place in the log when all is there that came among it.
    pub fn arrives(&mut self, arriving: NewMember) {
        match arriving.entry.arrival {
            Arrival { stream: Stream::Log, place, .. } => {
                self.waiting.push((place, WaitingRecord::Record(arriving)));
            }
            _ => self.add(arriving),
        }
    }

    /// The same of a seal. Says how many of those that count from now on another run has written.
    pub fn seal_arrives(&mut self, key: Bytes, share: u32, seal: Seal, entry: HeldRecord) -> u64 {
        match entry.arrival {
            Arrival { stream: Stream::Log, place, .. } => {
                self.waiting.push((place, WaitingRecord::Seal { key, share, seal, entry }));
                0
            }
            _ => u64::from(self.read_seal(key, share, seal, entry)),
        }
    }

    /// All is there that came among what waits: takes it in, in the order of the log. Says how many
    /// seals another run has written.
    pub fn take_waiting(&mut self) -> u64 {
        let mut foreign = 0;
        let mut waiting = std::mem::take(&mut self.waiting);
        if !planted(Bug::LastReadWins) {
            waiting.sort_by_key(|(place, _)| *place);
        }
        for (_, waiting) in waiting {
            match waiting {
                WaitingRecord::Record(arriving) => self.add(arriving),
                WaitingRecord::Seal { key, share, seal, entry } => {
                    foreign += u64::from(self.read_seal(key, share, seal, entry));
                }
            }
        }
        foreign
    }

    /// When the groups are opened that what waits will open, if it does.
    pub fn opened_by_waiting(&self) -> HashMap<&GroupKey, Timestamp> {
        let mut opened: HashMap<&GroupKey, Timestamp> = HashMap::default();
        for (_, waiting) in &self.waiting {
            let WaitingRecord::Record(NewMember { group, entry, .. }) = waiting else { continue };
            let opened = opened.entry(group).or_insert(entry.time);
            *opened = entry.time.min(*opened);
        }
        opened
    }
}
