//! Which log a row belongs to: two installations may share a table.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use potok_core::Fault;

/// Names a log.
#[derive(Clone, Debug)]
pub enum LogIdentity {
    /// By what everybody knows of it.
    Known(String),
    /// By what this file says, which is made when it is first asked for.
    File(PathBuf),
}

impl LogIdentity {
    pub(super) fn read(&self) -> Result<String, Fault> {
        match self {
            LogIdentity::Known(name) => Ok(name.clone()),
            LogIdentity::File(path) => read_or_make(path).map_err(|error| {
                let what = format!("{} can be neither read nor written", path.display());
                Fault::wait(what).because(error).hint("check its rights").code("P1403")
            }),
        }
    }
}

fn read_or_make(path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Ok(name) if !name.trim().is_empty() => return Ok(name.trim().to_owned()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    use std::hash::{BuildHasher, Hasher};
    let name = format!("embedded-{:016x}", std::hash::RandomState::new().build_hasher().finish());
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    // Under another name first: half a name would be another one after a crash.
    let unfinished = path.with_extension("tmp");
    let _ = fs::remove_file(&unfinished);
    let mut file = options.open(&unfinished)?;
    file.write_all(name.as_bytes())?;
    file.sync_all()?;
    // Several lanes may be at it: the first one counts.
    match fs::hard_link(&unfinished, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let _ = fs::remove_file(&unfinished);
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    fs::read_to_string(path).map(|name| name.trim().to_owned())
}
