//! The questions of files to an index.

use std::sync::Arc;

use bytes::Bytes;

use super::{Index, SealedGroup};
use crate::group::files::FilesWaiting;
use crate::group::shard_in;

impl SealedGroup {
    fn is_unwritten(&self) -> bool {
        self.file.get().is_none() && self.records() > 0
    }
}

/// What there is to write.
pub(crate) enum ToWrite {
    Nothing,
    /// The members of the next group are to be read first: without them its file would be empty.
    Parked,
    Group(Box<SealedGroup>),
}

impl Index {
    /// The group to write now, of those that are wanted. Another may be next than a moment ago.
    pub fn to_write(&self, wanted: impl Fn(&SealedGroup) -> bool) -> ToWrite {
        match self.next_unwritten(wanted) {
            None => ToWrite::Nothing,
            Some(sealed) if sealed.parked().is_some() => ToWrite::Parked,
            Some(sealed) => ToWrite::Group(Box::new(sealed.clone())),
        }
    }

    /// The first sealed group of those that are wanted that has no file yet.
    pub fn next_unwritten(&self, wanted: impl Fn(&SealedGroup) -> bool) -> Option<&SealedGroup> {
        self.sealed.first(|sealed| sealed.is_unwritten() && wanted(sealed))
    }

    /// The file of a group is there. One that has left meanwhile is somebody else's.
    pub fn is_written(&mut self, written: &SealedGroup, name: &Arc<str>) {
        let is_it = |sealed: &&mut SealedGroup| {
            (sealed.seal.feed, sealed.seal.offset) == (written.seal.feed, written.seal.offset)
        };
        if let Some(sealed) = self.sealed.of_mut(&written.key).find(is_it) {
            let _ = sealed.file.set(name.clone());
        }
    }

    /// The groups that are next, one of each key, in the order of the seals.
    pub fn next_to_send(&self) -> impl Iterator<Item = &SealedGroup> {
        self.sealed.firsts()
    }

    /// True where a sealed group or a replay waits that is of another shard than this one.
    pub fn waits_beside(&self, shard: usize) -> bool {
        let is_other = |of: Option<u32>| of.is_none_or(|of| of as usize != shard);
        self.replays.shards().any(|(of, _)| is_other(Some(of)))
            || self.sealed.firsts().any(|sealed| is_other(shard_in(&sealed.key)))
    }

    /// Takes out the group of that seal, to be sent.
    pub fn take_one(&mut self, key: &Bytes, seal: u64) -> Arc<Vec<SealedGroup>> {
        let taken = self.sealed.remove(key, |sealed| sealed.seal.offset == seal);
        self.sending = Arc::new(taken.into_iter().collect());
        self.sending.clone()
    }

    /// The log's time in a share, where something was read of it.
    pub fn share_now(&self, share: u32, run_now: i64) -> Option<i64> {
        self.shares.get(&share)?.now(run_now)
    }

    /// True where a group of that slice and shard is held, in whatever state.
    pub fn has_slice(&self, shard: u32, slice: i64) -> bool {
        let is_it = |key: &[u8], of: i64| of == slice && shard_in(key) == Some(shard);
        let closed = self.frozen.iter().chain(self.sealing.iter());
        let sealed = self.sealed.iter().chain(self.sending.iter());
        self.open.keys().any(|name| is_it(&name.key, name.slice))
            || closed.map(|frozen| &frozen.name).any(|name| is_it(&name.key, name.slice))
            || sealed.into_iter().any(|sealed| is_it(&sealed.key, sealed.slice))
    }

    /// Slices that are open: the start, the shard, and how many records there are so far.
    pub fn open_slices(&self) -> Vec<(i64, u32, u64)> {
        let open = self.open.iter().filter_map(|(name, group)| {
            Some((name.slice, shard_in(&name.key)?, group.entries.len() as u64))
        });
        open.collect()
    }

    /// Files whose groups have not been sent.
    pub fn files_waiting(&self) -> FilesWaiting {
        let sealed = self.sealed.iter().chain(self.sending.iter());
        let file =
            |sealed: &SealedGroup| Some((shard_in(&sealed.key)?, sealed.file.get()?.clone()));
        sealed.filter_map(file).collect()
    }
}
