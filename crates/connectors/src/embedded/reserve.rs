//! Room kept for noting what has ended.
//!
//! A full disk must be able to be worked off: finishing records needs a little room before
//! retention can give much back. While the reserve is spent, plain appends are refused, or they
//! would eat what it gave.

use std::io;
use std::path::PathBuf;

use super::shared::Shared;

/// The reserve file.
pub struct Reserve {
    there: bool,
}

impl Reserve {
    /// Finds the reserve of the log, or tries to make it.
    pub fn open(shared: &Shared) -> Reserve {
        let bytes = shared.options.reserve_bytes;
        let found = shared.disk.open(&path(shared)).and_then(|file| file.len());
        let mut reserve = Reserve { there: found.is_ok_and(|len| len >= bytes) };
        if let Err(error) = reserve.restore(shared) {
            tracing::warn!(%error, bytes, "no room for the reserve; appends wait for it");
        }
        reserve
    }

    /// True when it can be spent.
    pub fn is_there(&self) -> bool {
        self.there
    }

    /// Takes the room again, where it was spent.
    pub fn restore(&mut self, shared: &Shared) -> io::Result<()> {
        if !self.there {
            take(shared, path(shared), shared.options.reserve_bytes)?;
            self.there = true;
        }
        Ok(())
    }

    /// Gives the room away; false when there was none to give.
    pub fn release(&mut self, shared: &Shared) -> bool {
        if !self.there || shared.options.reserve_bytes == 0 {
            return false;
        }
        self.there = false;
        let removed = shared.disk.remove(&path(shared));
        // Some file systems give the room back only when the removal is durable.
        let _ = shared.disk.sync_dir(&shared.paths.log);
        removed.is_ok()
    }

    /// True when `bytes` more would fit on the disk now.
    pub fn has_room(shared: &Shared, bytes: u64) -> bool {
        let path = shared.paths.log.join("room.new");
        let fits = take(shared, path.clone(), bytes).is_ok();
        let _ = shared.disk.remove(&path);
        fits
    }
}

fn path(shared: &Shared) -> PathBuf {
    shared.paths.log.join("reserve")
}

fn take(shared: &Shared, path: PathBuf, bytes: u64) -> io::Result<()> {
    let file = shared.disk.create(&path)?;
    let taken = match bytes {
        0 => Ok(()),
        _ => file.allocate(bytes),
    };
    taken.inspect_err(|_| {
        let _ = shared.disk.remove(&path);
    })
}
