//! `admin.json`: how commands find the process that works in a data folder.
//!
//! Layout: `{"address": "127.0.0.1:7600", "pid": 4711, "nonce": "…"}`. Written atomically once the
//! address is bound, removed at a clean exit. A crash leaves it behind, so nobody believes it
//! until the address answers with the same nonce.

use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::private;

const FILE: &str = "admin.json";

/// Who claims to work in a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Where its admin API listens.
    pub address: SocketAddr,
    /// Its process id.
    pub pid: u32,
    /// Chosen at its start.
    pub nonce: String,
    /// Stands for a token where the process asks for one: who can read this file owns the folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

impl Owner {
    /// The claim in a folder; `None` where there is none that can be read.
    pub fn read(data_dir: &Path) -> Option<Owner> {
        serde_json::from_slice(&fs::read(data_dir.join(FILE)).ok()?).ok()
    }

    /// Writes the claim; it lasts until the returned value is dropped.
    pub fn claim(self, data_dir: &Path) -> Result<Claim, Failure> {
        let path = data_dir.join(FILE);
        let beside = data_dir.join(format!("{FILE}.{}", self.pid));
        let written = serde_json::to_vec(&self)
            .map_err(std::io::Error::from)
            .and_then(|json| private::make_file(&beside)?.write_all(&json))
            .and_then(|()| fs::rename(&beside, &path));
        written.map_err(|error| {
            Failure::new("P0522", format!("{} cannot be written", path.display())).because(error)
        })?;
        Ok(Claim { owner: self, data_dir: data_dir.to_owned() })
    }
}

/// A claim that is withdrawn when dropped.
pub struct Claim {
    owner: Owner,
    data_dir: PathBuf,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Not ours any more if another process has written its own since.
        if Owner::read(&self.data_dir).as_ref() == Some(&self.owner) {
            // A file left behind is believed by nobody.
            let _ = fs::remove_file(self.data_dir.join(FILE));
        }
    }
}

/// What nobody can guess.
pub fn secret() -> std::io::Result<String> {
    let mut bytes = [0_u8; 32];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A number nobody else has.
pub fn nonce() -> String {
    let random = || std::collections::hash_map::RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_claim_is_withdrawn_unless_another_took_over() {
        let folder = tempfile::tempdir().unwrap();
        let owner =
            |pid| Owner { address: "127.0.0.1:1".parse().unwrap(), pid, nonce: nonce(), key: None };
        let first = owner(1).claim(folder.path()).unwrap();
        assert_eq!(Owner::read(folder.path()).unwrap().pid, 1);
        let second = owner(2).claim(folder.path()).unwrap();
        drop(first);
        assert_eq!(Owner::read(folder.path()).unwrap().pid, 2);
        drop(second);
        assert_eq!(Owner::read(folder.path()), None);
        fs::write(folder.path().join(FILE), b"{\"address").unwrap();
        assert_eq!(Owner::read(folder.path()), None);
    }
}
