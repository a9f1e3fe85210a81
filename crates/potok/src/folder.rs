//! The data folder, opened: its log, and what is built on it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use potok_config::Connections;
use potok_connectors::embedded::{EmbeddedLog, Options};
use potok_core::{Clock, Log, SystemClock};
use potok_flow::Engine;
use potok_server::Identity;
use tokio::runtime::Runtime;

use crate::failure::Failure;

/// The code of the fault that another process has the folder.
const IN_USE: &str = "P0201";
/// For tests: a segment of the log is closed when it is larger.
const SEGMENT_BYTES: &str = "POTOK_SEGMENT_BYTES";
/// Room that is kept besides a segment for finishing work on a full disk.
const RESERVE_BYTES: u64 = 8 << 20;
/// What still runs when a command is done gets this long to notice.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

/// Another process has the folder.
pub struct Busy;

/// An open data folder. Nobody else can open it meanwhile.
pub struct Folder {
    data_dir: PathBuf,
    log: Arc<dyn Log>,
    clock: Arc<dyn Clock>,
}

impl Folder {
    /// Opens the folder, made where it does not exist.
    pub async fn open(connections: &Connections) -> Result<Result<Folder, Busy>, Failure> {
        let data_dir = connections.data_dir.clone();
        std::fs::create_dir_all(&data_dir).map_err(|error| {
            Failure::new("P0522", format!("the data folder {} cannot be made", data_dir.display()))
                .because(error)
        })?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let options = options(connections)?;
        let (dir, own_clock) = (data_dir.clone(), clock.clone());
        // Opening reads from disk, which may take a while.
        let opened =
            tokio::task::spawn_blocking(move || EmbeddedLog::open(&dir, options, own_clock));
        match opened.await {
            Ok(Ok(log)) => Ok(Ok(Folder { data_dir, log, clock })),
            Ok(Err(fault)) if fault.code == IN_USE => Ok(Err(Busy)),
            Ok(Err(fault)) => Err(fault.into()),
            Err(died) => Err(Failure::new("P0524", "opening the log died").because(died)),
        }
    }

    /// An engine on this folder's log.
    pub fn engine(&self, notes_dir: Option<PathBuf>) -> Engine {
        Engine::new(self.log.clone(), self.clock.clone(), notes_dir)
    }

    /// Who answers for this folder.
    pub fn identity(&self, nonce: String, address: Option<SocketAddr>) -> Identity {
        Identity {
            version: env!("CARGO_PKG_VERSION"),
            data_dir: absolute(&self.data_dir).display().to_string(),
            pid: std::process::id(),
            nonce,
            address,
        }
    }
}

/// The same folder has the same absolute path, whoever asks.
pub fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

fn options(connections: &Connections) -> Result<Options, Failure> {
    let mut options = Options {
        partitions: connections.partitions,
        retention_age: Some(*connections.retention.age),
        retention_bytes: connections.retention.size.map(|size| size.bytes()),
        ..Options::default()
    };
    if let Ok(bytes) = std::env::var(SEGMENT_BYTES) {
        options.segment_bytes = bytes.parse().map_err(|_| {
            Failure::usage(format!("{SEGMENT_BYTES}={bytes} is not a number of bytes"))
        })?;
        options.reserve_bytes = options.segment_bytes.saturating_add(RESERVE_BYTES);
    }
    Ok(options)
}

/// What everything asynchronous runs on.
pub fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new("P0524", "no threads can be started").because(error))
}

/// Runs `work` to its end; what it left running does not keep the process.
pub fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = runtime()?;
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(GOODBYE_MAX);
    done
}
