//! The data folder is nobody else's: it holds whole records. Only its owner may look into it, whatever
//! the umask says.
//!
//! What potok makes has these modes from the start; what an earlier version or a person has made is
//! tightened here. Nothing is ever opened up.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

const FOLDER: u32 = 0o700;
const FILE: u32 = 0o600;
/// What others may do.
const OTHERS: u32 = 0o077;
/// Folders in folders; ours are not deeper.
const DEPTH_MAX: u32 = 8;

/// Makes a folder, and those above it as anybody would.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    if let Some(above) = folder.parent() {
        fs::create_dir_all(above)?;
    }
    match DirBuilder::new().mode(FOLDER).create(folder) {
        Err(_) if folder.is_dir() => Ok(()),
        made => made,
    }
}

/// Makes an empty file, in place of what was in it.
pub fn make_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(FILE).open(path)
}

/// Takes from others what they may do with the folder and all that is in it. Where that is not
/// allowed, says so: the folder is of use all the same.
pub fn tighten(folder: &Path) {
    if let Err(error) = tighten_all(folder, DEPTH_MAX) {
        let folder = folder.display();
        tracing::warn!(%error, "others may read the data folder: `chmod -R go= {folder}`");
    }
}

fn tighten_all(folder: &Path, depth: u32) -> io::Result<()> {
    tighten_one(folder, fs::metadata(folder)?.permissions())?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // Of a link this tells nothing about where it leads: that is not ours.
        let Ok(found) = entry.metadata() else { continue };
        if found.is_dir() && depth > 0 {
            tighten_all(&entry.path(), depth - 1)?;
        } else if found.is_file() {
            tighten_one(&entry.path(), found.permissions())?;
        }
    }
    Ok(())
}

fn tighten_one(path: &Path, now: Permissions) -> io::Result<()> {
    if now.mode() & OTHERS == 0 {
        return Ok(());
    }
    match fs::set_permissions(path, Permissions::from_mode(now.mode() & 0o7777 & !OTHERS)) {
        // Retention and its like remove files at any time.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}
