//! A disk in memory that fails on purpose.
//!
//! It knows what was written and what was synced, for bytes and for names alike, so cutting its
//! power leaves exactly what a real disk may leave: everything synced, and of the rest nothing,
//! all, or any part. It can run full at any byte, fail any sync (and then forget the bytes, as
//! kernels do), write less than asked, and flip bits.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use potok_connectors::embedded::{Disk, DiskFile, LockAttempt};

/// A sector is written whole or not at all.
const SECTOR: usize = 512;

/// What a power cut leaves of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerCut {
    Nothing,
    /// All of it.
    Everything,
    /// Some names and some sectors, chosen by this seed.
    Some(u64),
}

/// The disk. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct FaultyDisk(Arc<Device>);

#[derive(Debug, Default)]
struct Device {
    world: Mutex<DiskWorld>,
    /// Wakes syncs that were held.
    released: Condvar,
}

impl From<DiskWorld> for FaultyDisk {
    fn from(world: DiskWorld) -> Self {
        FaultyDisk(Arc::new(Device { world: Mutex::new(world), released: Condvar::new() }))
    }
}

#[derive(Debug, Default)]
struct DiskWorld {
    /// Folders made, as processes see them. The root is always there.
    dirs: BTreeSet<PathBuf>,
    durable_dirs: BTreeSet<PathBuf>,
    /// Names as processes see them.
    names: BTreeMap<PathBuf, usize>,
    /// Names as a power cut leaves them.
    durable: BTreeMap<PathBuf, usize>,
    /// What happened to names since their folder was synced, in order.
    unsynced: Vec<NameChange>,
    files: Vec<FileContents>,
    locked: HashSet<PathBuf>,
    /// Operations that change something, so far.
    operations: u64,
    cut_at: Option<u64>,
    dead: bool,
    capacity: Option<u64>,
    syncs: u64,
    failing_sync: Option<u64>,
    short_writes: bool,
    bytes_read: u64,
    reads: u64,
    failing_read: Option<u64>,
    holding_syncs: bool,
    held_syncs: u64,
}

#[derive(Clone, Debug)]
enum NameChange {
    MakeDir(PathBuf),
    Link(PathBuf, usize),
    Unlink(PathBuf),
    Rename(PathBuf, PathBuf),
}

impl NameChange {
    fn dir(&self) -> Option<&Path> {
        match self {
            NameChange::MakeDir(path) | NameChange::Link(path, _) | NameChange::Unlink(path) => {
                path.parent()
            }
            NameChange::Rename(_, to) => to.parent(),
        }
    }

    fn apply(&self, dirs: &mut BTreeSet<PathBuf>, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            NameChange::MakeDir(path) => {
                dirs.insert(path.clone());
            }
            NameChange::Link(path, file) => {
                names.insert(path.clone(), *file);
            }
            NameChange::Unlink(path) => {
                names.remove(path);
            }
            NameChange::Rename(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
        }
    }
}

#[derive(Debug, Default)]
struct FileContents {
    /// As processes see it.
    bytes: Vec<u8>,
    /// As a power cut leaves it.
    durable: Vec<u8>,
    unsynced: Vec<UnsyncedChange>,
}

#[derive(Debug)]
enum UnsyncedChange {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl UnsyncedChange {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            UnsyncedChange::Write(at, part) => {
                if bytes.len() < at + part.len() {
                    bytes.resize(at + part.len(), 0);
                }
                bytes.splice(*at..at + part.len(), part.iter().copied());
            }
            UnsyncedChange::Length(len) => bytes.resize(*len, 0),
        }
    }
}

impl FaultyDisk {
    /// An empty disk without faults.
    pub fn new() -> Self {
        Self::default()
    }

    fn world(&self) -> MutexGuard<'_, DiskWorld> {
        self.0.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many operations changed something so far: writes, syncs, names.
    pub fn operations(&self) -> u64 {
        self.world().operations
    }

    /// How many syncs of files and folders were asked for so far.
    pub fn syncs(&self) -> u64 {
        self.world().syncs
    }

    /// How many bytes were read from files so far.
    pub fn bytes_read(&self) -> u64 {
        self.world().bytes_read
    }

    /// Cuts the power in place of the operation that comes after `operations` have been done.
    pub fn cut_at(&self, operations: u64) {
        self.world().cut_at = Some(operations);
    }

    /// True when the power is cut: nothing works any more.
    pub fn is_dead(&self) -> bool {
        self.world().dead
    }

    /// Lets the disk hold so many bytes, reserves included; `None` is without end.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.world().capacity = bytes;
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.world().used()
    }

    /// Lets the sync fail that comes after `syncs` have been asked for.
    pub fn fail_sync(&self, syncs: u64) {
        self.world().failing_sync = Some(syncs);
    }

    /// How many reads were asked for so far.
    pub fn reads(&self) -> u64 {
        self.world().reads
    }

    /// Lets the read fail that comes after `reads` have been asked for.
    pub fn fail_read(&self, reads: u64) {
        self.world().failing_read = Some(reads);
    }

    /// Makes syncs of files wait, until told otherwise or until the power is cut.
    pub fn hold_syncs(&self, hold: bool) {
        self.world().holding_syncs = hold;
        self.0.released.notify_all();
    }

    /// How many syncs wait now.
    pub fn held_syncs(&self) -> u64 {
        self.world().held_syncs
    }

    /// Lets every write take only half of what it is given.
    pub fn set_short_writes(&self, short: bool) {
        self.world().short_writes = short;
    }

    /// Cuts the power now. This disk is dead; the answer is what a machine finds when it starts
    /// again.
    pub fn power_cut(&self, torn: PowerCut) -> FaultyDisk {
        let mut world = self.world();
        world.dead = true;
        self.0.released.notify_all();
        let mut dice = match torn {
            PowerCut::Some(seed) => Some(Dice(seed)),
            _ => None,
        };
        let (mut dirs, mut names) = (world.durable_dirs.clone(), world.durable.clone());
        let kept = match (&torn, &mut dice) {
            (PowerCut::Nothing, _) => 0,
            (_, Some(dice)) => dice.below(world.unsynced.len() as u64 + 1) as usize,
            _ => world.unsynced.len(),
        };
        for change in world.unsynced.iter().take(kept) {
            change.apply(&mut dirs, &mut names);
        }
        // What lies in a folder that is gone is gone.
        names.retain(|path, _| {
            path.ancestors().skip(1).all(|dir| dir.parent().is_none() || dirs.contains(dir))
        });
        let survive = |file: &FileContents| match (torn, &mut dice) {
            (PowerCut::Nothing, _) => file.durable.clone(),
            (_, Some(dice)) => file.torn(dice),
            _ => file.unsynced.iter().fold(file.durable.clone(), |mut bytes, change| {
                change.apply(&mut bytes);
                bytes
            }),
        };
        let bytes: Vec<Vec<u8>> = world.files.iter().map(survive).collect();
        let files = bytes
            .into_iter()
            .map(|bytes| FileContents { durable: bytes.clone(), bytes, unsynced: Vec::new() })
            .collect();
        let after = DiskWorld {
            durable_dirs: dirs.clone(),
            dirs,
            durable: names.clone(),
            names,
            files,
            capacity: world.capacity,
            ..DiskWorld::default()
        };
        after.into()
    }

    /// A disk with the same files, all durable, and no faults: to try many things on one state.
    pub fn copy(&self) -> FaultyDisk {
        let world = self.world();
        let same = |file: &FileContents| FileContents {
            bytes: file.bytes.clone(),
            durable: file.bytes.clone(),
            unsynced: Vec::new(),
        };
        let copy = DiskWorld {
            dirs: world.dirs.clone(),
            durable_dirs: world.dirs.clone(),
            names: world.names.clone(),
            durable: world.names.clone(),
            files: world.files.iter().map(same).collect(),
            ..DiskWorld::default()
        };
        copy.into()
    }

    /// Every file there is.
    pub fn files(&self) -> Vec<PathBuf> {
        self.world().names.keys().cloned().collect()
    }

    /// What is in a file; empty when it is not there.
    pub fn contents(&self, path: &Path) -> Vec<u8> {
        let world = self.world();
        let file = world.names.get(path).and_then(|file| world.files.get(*file));
        file.map(|file| file.bytes.clone()).unwrap_or_default()
    }

    /// Puts other bytes into a file, durably, as if it had always been so: damage.
    pub fn overwrite(&self, path: &Path, bytes: Vec<u8>) {
        let mut world = self.world();
        let file = world.names.get(path).copied();
        if let Some(file) = file.and_then(|file| world.files.get_mut(file)) {
            *file = FileContents { durable: bytes.clone(), bytes, unsynced: Vec::new() };
        }
    }
}

impl FileContents {
    /// The durable bytes with some sectors of some of the changes since.
    fn torn(&self, dice: &mut Dice) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        let in_order = dice.below(2) == 0;
        for change in &self.unsynced {
            if dice.below(3) == 0 {
                if in_order {
                    break;
                }
                continue;
            }
            match change {
                UnsyncedChange::Write(at, part) if dice.below(2) == 0 => {
                    for (number, sector) in part.chunks(SECTOR).enumerate() {
                        if dice.below(2) == 0 {
                            let at = at + number * SECTOR;
                            UnsyncedChange::Write(at, sector.to_vec()).apply(&mut bytes);
                        }
                    }
                }
                UnsyncedChange::Write(at, part) => {
                    let some = dice.below(part.len() as u64 + 1) as usize;
                    let part = part.get(..some).unwrap_or_default().to_vec();
                    UnsyncedChange::Write(*at, part).apply(&mut bytes);
                }
                other => other.apply(&mut bytes),
            }
        }
        bytes
    }
}

/// Numbers that look random and come again with the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit.max(1)
    }
}

impl DiskWorld {
    fn used(&self) -> u64 {
        let linked = self.names.values().filter_map(|file| self.files.get(*file));
        linked.map(|file| file.bytes.len() as u64).sum()
    }

    fn alive(&self) -> io::Result<()> {
        if self.dead { Err(io::Error::other("the power is cut")) } else { Ok(()) }
    }

    /// Before every operation that changes something.
    fn operate(&mut self) -> io::Result<()> {
        self.alive()?;
        if self.cut_at == Some(self.operations) {
            self.dead = true;
            return self.alive();
        }
        self.operations += 1;
        Ok(())
    }

    /// Before every sync; false when it has to fail.
    fn count_sync(&mut self) -> bool {
        self.syncs += 1;
        self.failing_sync != Some(self.syncs - 1)
    }

    fn change_name(&mut self, change: NameChange) {
        change.apply(&mut self.dirs, &mut self.names);
        self.unsynced.push(change);
    }

    fn file(&mut self, file: usize) -> io::Result<&mut FileContents> {
        self.files.get_mut(file).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// How many of `len` bytes written at `at` still fit.
    fn room(&self, file: usize, at: usize, len: usize) -> usize {
        let Some(capacity) = self.capacity else { return len };
        let size = self.files.get(file).map_or(0, |file| file.bytes.len());
        let inside = size.saturating_sub(at).min(len);
        let free = capacity.saturating_sub(self.used());
        inside + (len - inside).min(usize::try_from(free).unwrap_or(usize::MAX))
    }
}

impl Disk for FaultyDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut world = self.world();
        let missing: Vec<PathBuf> = dir
            .ancestors()
            .filter(|dir| dir.parent().is_some() && !world.dirs.contains(*dir))
            .map(Path::to_owned)
            .collect();
        for dir in missing.into_iter().rev() {
            world.operate()?;
            world.change_name(NameChange::MakeDir(dir));
        }
        world.alive()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let world = self.world();
        world.alive()?;
        let inside = world.names.keys().filter(|path| path.parent() == Some(dir));
        let names = inside.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
        Ok(names.collect())
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let world = self.world();
        world.alive()?;
        let file = world.names.get(path).copied().ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(FaultyFile { disk: self.clone(), file }))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut world = self.world();
        world.operate()?;
        let file = world.files.len();
        world.files.push(FileContents::default());
        world.change_name(NameChange::Link(path.to_owned(), file));
        Ok(Arc::new(FaultyFile { disk: self.clone(), file }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.operate()?;
        if !world.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        world.change_name(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.operate()?;
        if !world.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        world.change_name(NameChange::Unlink(path.to_owned()));
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.operate()?;
        if !world.count_sync() {
            return Err(io::Error::other("the disk failed this sync"));
        }
        let DiskWorld { unsynced, durable, durable_dirs, .. } = &mut *world;
        unsynced.retain(|change| {
            let here = change.dir() == Some(dir);
            if here {
                change.apply(durable_dirs, durable);
            }
            !here
        });
        Ok(())
    }

    fn lock(&self, path: &Path, _note: &str) -> io::Result<LockAttempt> {
        let mut world = self.world();
        world.alive()?;
        if !world.locked.insert(path.to_owned()) {
            return Ok(LockAttempt::Theirs("itself".to_owned()));
        }
        let guard = Guard { disk: self.clone(), path: path.to_owned() };
        Ok(LockAttempt::Ours(Box::new(guard) as Box<dyn Any + Send>))
    }
}

struct Guard {
    disk: FaultyDisk,
    path: PathBuf,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.disk.world().locked.remove(&self.path);
    }
}

struct FaultyFile {
    disk: FaultyDisk,
    file: usize,
}

impl DiskFile for FaultyFile {
    fn len(&self) -> io::Result<u64> {
        let mut world = self.disk.world();
        world.alive()?;
        Ok(world.file(self.file)?.bytes.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let mut world = self.disk.world();
        world.alive()?;
        world.reads += 1;
        if world.failing_read == Some(world.reads - 1) {
            return Err(io::Error::other("the disk failed this read"));
        }
        let bytes = &world.file(self.file)?.bytes;
        let rest = bytes.get(usize::try_from(at).unwrap_or(usize::MAX)..).unwrap_or_default();
        let some = rest.len().min(buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..some), rest.get(..some)) {
            to.copy_from_slice(from);
        }
        world.bytes_read += some as u64;
        Ok(some)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize> {
        let mut world = self.disk.world();
        world.operate()?;
        let at = usize::try_from(at).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let wanted = if world.short_writes { bytes.len().div_ceil(2) } else { bytes.len() };
        let some = world.room(self.file, at, wanted);
        if some == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let change = UnsyncedChange::Write(at, bytes.get(..some).unwrap_or_default().to_vec());
        let file = world.file(self.file)?;
        change.apply(&mut file.bytes);
        file.unsynced.push(change);
        Ok(some)
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.disk.world();
        world.held_syncs += 1;
        let held = |world: &mut DiskWorld| world.holding_syncs && !world.dead;
        let mut world =
            self.disk.0.released.wait_while(world, held).unwrap_or_else(PoisonError::into_inner);
        world.held_syncs -= 1;
        world.operate()?;
        let works = world.count_sync();
        let file = world.file(self.file)?;
        if !works {
            // Kernels mark the pages clean: they are still read, and never written.
            file.unsynced.clear();
            return Err(io::Error::other("the disk failed this sync"));
        }
        for change in std::mem::take(&mut file.unsynced) {
            change.apply(&mut file.durable);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut world = self.disk.world();
        world.operate()?;
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let file = world.file(self.file)?;
        file.bytes.resize(len, 0);
        file.unsynced.push(UnsyncedChange::Length(len));
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut world = self.disk.world();
        world.operate()?;
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        if world.room(self.file, 0, len) < len {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let file = world.file(self.file)?;
        file.bytes.resize(file.bytes.len().max(len), 0);
        file.unsynced.push(UnsyncedChange::Length(len));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn write_all(file: &dyn DiskFile, bytes: &[u8], at: u64) -> io::Result<()> {
        assert_eq!(file.write_at(bytes, at)?, bytes.len());
        Ok(())
    }

    #[test]
    fn a_power_cut_leaves_what_was_synced_and_nothing_else() {
        let with_dir = || {
            let disk = FaultyDisk::new();
            disk.create_dir(Path::new("/d")).unwrap();
            disk.sync_dir(Path::new("/")).unwrap();
            disk
        };
        let (dir, path) = (Path::new("/d"), Path::new("/d/a"));
        let disk = with_dir();
        let file = disk.create(path).unwrap();
        write_all(file.as_ref(), b"kept", 0).unwrap();
        file.sync().unwrap();
        assert_eq!(disk.copy().contents(path), b"kept");
        // The bytes are durable, their name is not.
        assert_eq!(disk.power_cut(PowerCut::Nothing).files(), Vec::<PathBuf>::new());

        // The name is durable, its folder is not.
        let disk = FaultyDisk::new();
        disk.create_dir(dir).unwrap();
        disk.create(path).unwrap();
        disk.sync_dir(dir).unwrap();
        assert_eq!(disk.power_cut(PowerCut::Nothing).files(), Vec::<PathBuf>::new());

        let disk = with_dir();
        let file = disk.create(path).unwrap();
        write_all(file.as_ref(), b"kept", 0).unwrap();
        file.sync().unwrap();
        disk.sync_dir(dir).unwrap();
        write_all(file.as_ref(), b" not", 4).unwrap();
        disk.remove(path).unwrap();
        assert!(file.len().is_ok());
        let after = disk.power_cut(PowerCut::Nothing);
        assert_eq!(after.contents(path), b"kept");
        assert!(file.len().is_err());
    }

    #[test]
    fn a_failed_sync_forgets_the_bytes_though_they_are_still_read() {
        let disk = FaultyDisk::new();
        let path = Path::new("/a");
        let file = disk.create(path).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        write_all(file.as_ref(), b"lost", 0).unwrap();
        disk.fail_sync(disk.syncs());
        assert!(file.sync().is_err());
        assert!(file.sync().is_ok());
        assert_eq!(disk.contents(path), b"lost");
        assert_eq!(disk.power_cut(PowerCut::Everything).contents(path), b"");
    }

    #[test]
    fn a_full_disk_takes_what_fits() {
        let disk = FaultyDisk::new();
        let file = disk.create(Path::new("/d/a")).unwrap();
        disk.set_capacity(Some(3));
        assert_eq!(file.write_at(b"abcd", 0).unwrap(), 3);
        assert_eq!(file.write_at(b"d", 3).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.write_at(b"xyz", 0).unwrap(), 3);
    }
}
