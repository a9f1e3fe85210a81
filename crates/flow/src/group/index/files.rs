//! The questions of files to an index.

use std::sync::Arc;

use super::{Index, SealedGroup};
use crate::group::files::FilesWaiting;
use crate::group::shard_in;

impl SealedGroup {
    fn is_unwritten(&self) -> bool {
        self.file.get().is_none() && !self.entries.is_empty()
    }
}

impl Index {
    /// True where a sealed group has no file yet.
    pub fn has_unwritten(&self) -> bool {
        self.sealed.iter().any(SealedGroup::is_unwritten)
    }

    /// Takes the first such group out, as if it were sent; its place is for [`Index::put_back`].
    pub fn take_unwritten(&mut self) -> Option<u64> {
        let (ticket, sealed) = self.sealed.take_first(SealedGroup::is_unwritten)?;
        self.sending = Arc::new(vec![sealed]);
        Some(ticket)
    }

    /// The groups taken out.
    pub fn sending(&self) -> Arc<Vec<SealedGroup>> {
        self.sending.clone()
    }

    /// Puts it back where it was.
    pub fn put_back(&mut self, ticket: u64) {
        // Nobody else keeps it: it is looked at under the lock.
        let back = Arc::try_unwrap(std::mem::take(&mut self.sending)).unwrap_or_default();
        for sealed in back {
            let key = sealed.key.clone();
            self.sealed.put_back(ticket, &key, sealed);
        }
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
