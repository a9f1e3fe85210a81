//! Room kept for finishing what is in the log.
//!
//! A full disk must be able to be worked off: finishing records needs a little room before
//! retention can give much back. All that pipelines write may spend it: that records have ended, what
//! they have become, and before that the seals of groups, of which a lane has only so many on their
//! way. While the reserve is spent, plain appends are refused, or they would eat what it gave. A small last part is kept apart for the notes that let segments go.
//! On a small disk the reserve is small too: at most a quarter of what was free when it was made.

use std::io;
use std::path::{Path, PathBuf};

use super::disk::{DiskFile, is_full, write_all};
use super::draft::Urgency;
use super::shared::OpenLog;

/// A reserve is not made smaller than this for want of room.
const SMALL_BYTES: u64 = 256 << 10;
/// The last part: some blocks of a file system, each of which takes many notes.
const LAST_BYTES: u64 = 64 << 10;

/// The reserve files.
pub struct Reserve {
    bytes: u64,
    there: bool,
    last_there: bool,
}

impl Reserve {
    /// Finds the reserve of the log, or tries to make it.
    pub fn open(shared: &OpenLog) -> Reserve {
        let wanted = shared.options.reserve_bytes;
        let len =
            |path: PathBuf| shared.disk.open(&path).and_then(|file| file.len()).unwrap_or_default();
        let found = len(path(shared));
        let there = found > 0 && found >= wanted.min(SMALL_BYTES) || wanted == 0;
        let bytes = if there { found.min(wanted) } else { fitting(shared, wanted) };
        let last_there = len(last_path(shared)) >= last_bytes(shared);
        let mut reserve = Reserve { bytes, there, last_there };
        if let Err(error) = reserve.restore(shared) {
            tracing::warn!(%error, bytes, "no room for the reserve; appends wait for it");
        }
        reserve
    }

    /// True when it can be spent.
    pub fn is_there(&self) -> bool {
        self.there
    }

    /// Takes the room again, where it was spent. Fails only where there is no room: a file system
    /// that cannot reserve any must not keep the log from working.
    pub fn restore(&mut self, shared: &OpenLog) -> io::Result<()> {
        if !self.last_there {
            take(shared, &last_path(shared), last_bytes(shared))?;
            self.last_there = true;
        }
        if !self.there {
            take(shared, &path(shared), self.bytes)?;
            self.there = true;
        }
        Ok(())
    }

    /// Gives away as much room as the urgency is worth.
    pub fn release(&mut self, shared: &OpenLog, urgency: Urgency) {
        if self.bytes == 0 {
            return;
        }
        if std::mem::take(&mut self.there) {
            let _ = shared.disk.remove(&path(shared));
        }
        if urgency == Urgency::MakesRoom && std::mem::take(&mut self.last_there) {
            let _ = shared.disk.remove(&last_path(shared));
        }
        // Some file systems give the room back only when the removal is durable.
        let _ = shared.disk.sync_dir(&shared.paths.log);
    }

    /// True when `bytes` more would fit on the disk now.
    pub fn has_room(shared: &OpenLog, bytes: u64) -> bool {
        let path = shared.paths.log.join("room.new");
        let fits = take(shared, &path, bytes).is_ok();
        let _ = shared.disk.remove(&path);
        fits
    }
}

/// The largest reserve up to the wanted one that takes at most a quarter of the room there is.
fn fitting(shared: &OpenLog, wanted: u64) -> u64 {
    let mut bytes = wanted;
    while bytes > SMALL_BYTES && !Reserve::has_room(shared, bytes.saturating_mul(4)) {
        bytes = (bytes / 2).max(SMALL_BYTES);
    }
    bytes
}

fn path(shared: &OpenLog) -> PathBuf {
    shared.paths.log.join("reserve")
}

fn last_path(shared: &OpenLog) -> PathBuf {
    shared.paths.log.join("reserve.last")
}

fn last_bytes(shared: &OpenLog) -> u64 {
    LAST_BYTES.min(shared.options.reserve_bytes)
}

/// Makes a file of so many bytes. Fails only for want of room.
fn take(shared: &OpenLog, path: &Path, bytes: u64) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let taken = shared.disk.create(path).and_then(|file| {
        file.allocate(bytes).or_else(|error| match is_full(&error) {
            true => Err(error),
            // Not every file system can; zeros take room as well.
            false => write_zeros(file.as_ref(), bytes),
        })
    });
    let Err(error) = taken else { return Ok(()) };
    let _ = shared.disk.remove(path);
    if is_full(&error) {
        return Err(error);
    }
    tracing::warn!(%error, "this disk keeps no reserve");
    Ok(())
}

fn write_zeros(file: &dyn DiskFile, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut at = 0;
    while at < bytes {
        let some = usize::try_from(bytes - at).unwrap_or(zeros.len()).min(zeros.len());
        write_all(file, zeros.get(..some).unwrap_or_default(), at)?;
        at += some as u64;
    }
    Ok(())
}
