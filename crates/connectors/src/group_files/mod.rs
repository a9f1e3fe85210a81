//! Closed groups as files: `<data_dir>/files/<name>/<shard>/<filename>.ndjson`.
//!
//! Promised: a name has its whole content or is not there; what is there is never overwritten; what
//! `write` has answered survives a power cut. A file is written under a name of its own, synced, and
//! linked to its final one, which fails where that is taken. Not here: reading, and which name a
//! group gets.

mod fault;

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::trouble::crash_point;
use potok_core::{Fault, GroupFiles};

/// The end of every file's name.
const SUFFIX: &str = ".ndjson";
/// Names of files that are being written begin and end so.
const UNFINISHED: (&str, &str) = (".", ".tmp");
/// An unfinished file of that age belongs to nobody any more.
const UNFINISHED_MAX: Duration = Duration::from_secs(3_600);

/// Files in one folder.
pub struct FolderFiles {
    folder: PathBuf,
    keep: Duration,
    /// Tells this writer's unfinished files from those of others.
    nonce: u64,
    written: Arc<AtomicU64>,
}

impl FolderFiles {
    /// Files in `folder`, which is made when it is needed; each is kept for so long.
    pub fn new(folder: PathBuf, keep: Duration) -> Self {
        use std::hash::{BuildHasher, Hasher};
        let nonce = std::hash::RandomState::new().build_hasher().finish();
        FolderFiles { folder, keep, nonce, written: Arc::default() }
    }

    fn path(&self, shard: u32, name: &str) -> PathBuf {
        self.folder.join(shard.to_string()).join(format!("{name}{SUFFIX}"))
    }
}

#[async_trait]
impl GroupFiles for FolderFiles {
    async fn write(&self, shard: u32, name: &str, content: Bytes) -> Result<bool, Fault> {
        let path = self.path(shard, name);
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let unfinished =
            format!("{}{name}.{:016x}.{number}{}", UNFINISHED.0, self.nonce, UNFINISHED.1);
        blocking(path.clone(), move || write(&path, &unfinished, &content)).await
    }

    async fn expire(
        &self,
        mine: &(dyn Fn(u32) -> bool + Sync),
        waiting: &HashSet<(u32, Arc<str>)>,
    ) -> Result<(), Fault> {
        let (folder, keep) = (self.folder.clone(), self.keep);
        let shards = blocking(folder.clone(), move || shards(&folder)).await?;
        for (shard, folder) in shards.into_iter().filter(|(shard, _)| mine(*shard)) {
            let of_shard = waiting.iter().filter(|(of, _)| *of == shard);
            let stays: HashSet<String> = of_shard.map(|(_, name)| name.to_string()).collect();
            blocking(folder.clone(), move || expire(&folder, keep, &stays)).await?;
        }
        Ok(())
    }

    fn place(&self, shard: u32, name: &str) -> String {
        self.path(shard, name).display().to_string()
    }
}

/// Disks may be slow: nobody else waits for them.
async fn blocking<T: Send + 'static>(
    path: PathBuf,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Fault> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(fault::sort(&path, &error)),
        Err(error) => Err(fault::sort(&path, &io::Error::other(error))),
    }
}

fn write(path: &Path, unfinished: &str, content: &[u8]) -> io::Result<bool> {
    let folder = path.parent().unwrap_or(Path::new("."));
    create_folders(folder)?;
    if let Some(same) = compare(path, content)? {
        // A crash may have come before the folder was synced.
        File::open(folder)?.sync_all()?;
        return Ok(same);
    }
    let temporary = folder.join(unfinished);
    let linked =
        write_new(&temporary, content).and_then(|()| match fs::hard_link(&temporary, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                compare(path, content).map(|same| same.unwrap_or(false))
            }
            linked => linked.map(|()| true),
        });
    crash_point("file.renamed");
    // Where this fails, or is never reached, it goes when it is old.
    let _ = fs::remove_file(&temporary);
    let there = linked?;
    File::open(folder)?.sync_all()?;
    Ok(there)
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Whether the file has this content; `None` where there is none.
fn compare(path: &Path, content: &[u8]) -> io::Result<Option<bool>> {
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW);
    let mut file = match options.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if file.metadata()?.len() != content.len() as u64 {
        return Ok(Some(false));
    }
    let mut there = Vec::with_capacity(content.len());
    file.read_to_end(&mut there)?;
    Ok(Some(there == content))
}

/// Makes missing folders, each synced into the one above it.
fn create_folders(folder: &Path) -> io::Result<()> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    let above = folder.parent().filter(|above| !above.as_os_str().is_empty());
    if let Some(above) = above {
        create_folders(above)?;
    }
    #[allow(unused_mut, reason = "not every system has modes")]
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    File::open(above.unwrap_or(Path::new(".")))?.sync_all()
}

/// The folders of shards that are there.
fn shards(folder: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if let Some(shard) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            found.push((shard, entry.path()));
        }
    }
    Ok(found)
}

#[allow(
    clippy::disallowed_methods,
    reason = "the age of a file is told by the file system's clock"
)]
fn expire(folder: &Path, keep: Duration, stays: &HashSet<String>) -> io::Result<()> {
    let now = SystemTime::now();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let max = match name.strip_suffix(SUFFIX) {
            Some(file) if !stays.contains(file) => keep,
            None if name.starts_with(UNFINISHED.0) && name.ends_with(UNFINISHED.1) => {
                UNFINISHED_MAX
            }
            _ => continue,
        };
        let age = entry.metadata().and_then(|file| file.modified());
        if age.is_ok_and(|at| now.duration_since(at).is_ok_and(|age| age >= max)) {
            match fs::remove_file(entry.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn a_name_keeps_its_first_content() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("files/shop");
        let files = FolderFiles::new(root.clone(), Duration::from_secs(60));
        let content = Bytes::from_static(b"{\"a\":1}\n");
        assert!(files.write(1, "20250101000000", content.clone()).await.unwrap());
        assert!(files.write(1, "20250101000000", content.clone()).await.unwrap(), "again");
        let other = Bytes::from_static(b"{\"a\":2}\n");
        assert!(!files.write(1, "20250101000000", other).await.unwrap(), "not overwritten");
        let path = root.join("1/20250101000000.ndjson");
        assert_eq!(fs::read(&path).unwrap(), &content[..]);
        assert_eq!(files.place(1, "20250101000000"), path.display().to_string());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&root), mode(&root.join("1"))), (0o600, 0o700, 0o700));
        assert_eq!(names(&root.join("1")), ["20250101000000.ndjson"]);
    }

    #[tokio::test]
    async fn old_files_go_unless_they_wait() {
        let folder = tempfile::tempdir().unwrap();
        let files = FolderFiles::new(folder.path().to_owned(), Duration::ZERO);
        for (shard, name) in [(0, "a"), (0, "b"), (1, "a")] {
            assert!(files.write(shard, name, Bytes::from_static(b"x")).await.unwrap());
        }
        let left = folder.path().join("0/.a.1.tmp");
        fs::write(&left, b"").unwrap();
        let waiting = HashSet::from([(0, Arc::from("b"))]);
        files.expire(&|shard| shard == 0, &waiting).await.unwrap();
        // What somebody may still be writing stays.
        assert_eq!(names(&folder.path().join("0")), [".a.1.tmp", "b.ndjson"]);
        assert_eq!(names(&folder.path().join("1")), ["a.ndjson"]);
        let long_ago = SystemTime::UNIX_EPOCH;
        File::options().write(true).open(&left).unwrap().set_modified(long_ago).unwrap();
        files.expire(&|shard| shard == 0, &waiting).await.unwrap();
        assert_eq!(names(&folder.path().join("0")), ["b.ndjson"]);
        // A folder that is not there has no old files.
        let none = FolderFiles::new(folder.path().join("none"), Duration::ZERO);
        none.expire(&|_| true, &HashSet::new()).await.unwrap();
    }
}
