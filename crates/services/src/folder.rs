//! The folder in which one service lives.
//!
//! Every user may look into it (mode 0755), because PostgreSQL runs as a user of its own. A scratch
//! folder is removed when it is dropped, or by the guard when we end without dropping it.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::spawn::guard;

#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    scratch: bool,
}

impl Folder {
    /// `kept`, made where it is missing, or a new scratch folder for `service`.
    pub fn open(service: &str, kept: Option<&Path>) -> Result<Self> {
        let scratch = kept.is_none();
        let path = match kept {
            Some(path) => std::path::absolute(path)?,
            None => {
                // The process alone would not do: a folder may be left by one of the same number.
                let nonce = RandomState::new().hash_one(service) as u32;
                let name = format!("potok-{service}-{}-{nonce:08x}", std::process::id());
                std::path::absolute(std::env::temp_dir())?.join(name)
            }
        };
        ensure!(!path.to_string_lossy().contains('\n'), "a folder has a newline in its name");
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        let path = path.canonicalize()?;
        let folder = Folder { path, scratch };
        guard(&folder.path, scratch)?;
        Ok(folder)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A folder inside, made where it is missing.
    pub fn inner(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// Writes a file inside, which other users may read.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.scratch {
            // The guard tries once more at our end.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
