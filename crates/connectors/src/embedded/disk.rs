//! Every touch of the file system, behind one small contract.
//!
//! The log asks nothing else of a disk, so a disk of the tests can stand in for it and cut the
//! power, run full, fail an fsync or flip a bit wherever a test likes.

use std::any::Any;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// A place for files.
pub trait Disk: Send + Sync + 'static {
    /// Makes the folder and those above it; fine when it is there.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Names of the files in the folder, in no order; none when the folder is not there.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Makes an empty file, in place of any that was there.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Puts a file under another name, in place of any that was there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Unlinks a file. Those who have it open read on.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes names created, renamed and removed in the folder durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Takes the lock of this file for this process and writes `note` into it, until the guard
    /// is dropped or the process dies.
    fn lock(&self, path: &Path, note: &str) -> io::Result<LockAttempt>;
}

/// Whether a lock was free.
pub enum LockAttempt {
    /// It is ours while the guard lives.
    Ours(Box<dyn Any + Send>),
    /// Someone else has it; what they wrote into it.
    Theirs(String),
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Its length.
    fn len(&self) -> io::Result<u64>;

    /// Reads up to `buffer.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize>;

    /// Writes some of the bytes; says how many.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize>;

    /// Makes what was written durable.
    fn sync(&self) -> io::Result<()>;

    /// Cuts or extends the file.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Takes room for `len` bytes now, so that removing the file gives it back. A disk that cannot
    /// says so with another error than a full one.
    fn allocate(&self, len: u64) -> io::Result<()>;
}

/// Writes all of the bytes.
pub fn write_all(file: &dyn DiskFile, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = bytes.get(written..).unwrap_or_default();
                at += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads `len` bytes, or as many as there are.
pub fn read_up_to(file: &dyn DiskFile, at: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; len];
    let read = file.read_at(&mut buffer, at)?;
    buffer.truncate(read);
    Ok(buffer)
}

/// True when the error says that there is no room.
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::WriteZero
    )
}

/// Folders and files hold whole records: nobody else may look into them, whatever the umask says.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// The machine's own file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        if let Some(above) = dir.parent() {
            fs::create_dir_all(above)?;
        }
        match fs::DirBuilder::new().mode(FOLDER_MODE).create(dir) {
            Err(_) if dir.is_dir() => Ok(()),
            made => made,
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        // A name that is not UTF-8 is none of ours.
        entries.map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default())).collect()
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(fs::File::options().read(true).write(true).open(path)?)))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = fs::File::options();
        options.read(true).write(true).create(true).truncate(true).mode(FILE_MODE);
        Ok(Arc::new(RealFile(options.open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path, note: &str) -> io::Result<LockAttempt> {
        let mut options = fs::File::options();
        options.mode(FILE_MODE);
        // Not truncated before the lock is ours: the owner's note must stay readable.
        let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Ok(LockAttempt::Theirs(fs::read_to_string(path).unwrap_or_default()));
            }
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
        // A full disk must not keep the log from opening: the note is a courtesy.
        let _ = file.set_len(0).and_then(|()| file.write_all_at(note.as_bytes(), 0));
        Ok(LockAttempt::Ours(Box::new(file)))
    }
}

struct RealFile(fs::File);

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let mut read = 0;
        while let Some(rest) = buffer.get_mut(read..).filter(|rest| !rest.is_empty()) {
            match self.0.read_at(rest, at + read as u64) {
                Ok(0) => break,
                Ok(some) => read += some,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize> {
        self.0.write_at(bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    #[cfg(target_os = "linux")]
    #[allow(unsafe_code, reason = "the standard library cannot take room for a file")]
    fn allocate(&self, len: u64) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let len = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a plain system call on a descriptor that `self` keeps open; no memory is passed.
        match unsafe { libc::posix_fallocate(self.0.as_raw_fd(), 0, len) } {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn allocate(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
