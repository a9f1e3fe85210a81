//! The data folder, opened: its log, and what is built on it.
//!
//! With the embedded log the folder belongs to one process. With Kafka it holds nothing that must
//! not be shared: several copies may work in one folder, each with notes of its own.

use std::fs::{File, TryLockError};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use potok_config::{Connections, LogConnection};
use potok_connectors::embedded::{EmbeddedLog, Options};
use potok_connectors::kafka::{CreateTopics, KafkaConfig, KafkaLog};
use potok_core::{Clock, Fault, Log, SystemClock};
use potok_flow::{Engine, Plan};
use potok_server::Identity;
use tokio::runtime::Runtime;

use crate::failure::Failure;
use crate::private;

/// The code of the fault that another process has the folder.
const IN_USE: &str = "P0201";
/// For tests: a segment of the log is closed when it is larger.
const SEGMENT_BYTES: &str = "POTOK_SEGMENT_BYTES";
/// Room that is kept besides a segment for finishing work on a full disk.
const RESERVE_BYTES: u64 = 8 << 20;
/// What still runs when a command is done gets this long to notice.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

/// Another process has the folder.
pub struct FolderBusy;

/// How long a log outside the data folder may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How many copies may work in one folder.
const COPIES_MAX: u32 = 1_000;

/// An open data folder. With an embedded log in it, nobody else can open it meanwhile.
pub struct Folder {
    data_dir: PathBuf,
    log: Arc<dyn Log>,
    clock: Arc<dyn Clock>,
    embedded: bool,
}

/// Where a process keeps its notes, for as long as this lives.
pub struct Notes {
    pub dir: PathBuf,
    /// Held where several processes share the folder.
    _lock: Option<File>,
}

impl Folder {
    /// Opens the folder, made where it does not exist.
    pub async fn open(connections: &Connections) -> Result<Result<Folder, FolderBusy>, Failure> {
        let data_dir = connections.data_dir.clone();
        private::make_folder(&data_dir).map_err(|error| {
            Failure::new("P0522", format!("the data folder {} cannot be made", data_dir.display()))
                .because(error)
        })?;
        private::tighten(&data_dir);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        if let Some(config) = kafka(connections) {
            let log = KafkaLog::new(config, clock.clone())?;
            return Ok(Ok(Folder { data_dir, log, clock, embedded: false }));
        }
        let options = options(connections)?;
        let (dir, own_clock) = (data_dir.clone(), clock.clone());
        // Opening reads from disk, which may take a while.
        let opened =
            tokio::task::spawn_blocking(move || EmbeddedLog::open(&dir, options, own_clock));
        match opened.await {
            Ok(Ok(log)) => Ok(Ok(Folder { data_dir, log, clock, embedded: true })),
            Ok(Err(fault)) if fault.code == IN_USE => Ok(Err(FolderBusy)),
            Ok(Err(fault)) => Err(fault.into()),
            Err(died) => Err(Failure::new("P0524", "opening the log died").because(died)),
        }
    }

    /// An engine on this folder's log.
    pub fn engine(&self, notes_dir: Option<PathBuf>) -> Engine {
        Engine::new(self.log.clone(), self.clock.clone(), notes_dir)
    }

    /// Where this process keeps its notes. Copies that share the folder take the first place
    /// that nobody holds, so that one that died finds its notes again.
    pub fn notes(&self) -> Result<Notes, Failure> {
        if self.embedded {
            return Ok(Notes { dir: self.data_dir.join("notes"), _lock: None });
        }
        let cannot = |error: std::io::Error| {
            let what = format!("no notes can be kept in {}", self.data_dir.display());
            Failure::new("P0522", what).because(error)
        };
        for copy in 0..COPIES_MAX {
            let dir = self.data_dir.join("copies").join(copy.to_string());
            private::make_folder(&dir.join("notes")).map_err(cannot)?;
            let lock = private::make_file(&dir.join("lock")).map_err(cannot)?;
            match lock.try_lock() {
                Ok(()) => return Ok(Notes { dir: dir.join("notes"), _lock: Some(lock) }),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(cannot(error)),
            }
        }
        Err(cannot(std::io::Error::other(format!("{COPIES_MAX} processes work there already"))))
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

/// The settings of a Kafka log, if that is what is wanted.
pub fn kafka(connections: &Connections) -> Option<KafkaConfig> {
    let LogConnection::Kafka { servers, properties, create_topics } = &connections.log else {
        return None;
    };
    let text = servers.expose();
    let properties =
        properties.iter().map(|(name, value)| (name.to_owned(), value.expose().into()));
    Some(KafkaConfig {
        servers: text.strip_prefix("kafka://").unwrap_or(text).trim_end_matches('/').to_owned(),
        properties: properties.collect(),
        create_topics: create_topics.as_ref().map(|shape| CreateTopics {
            partitions: shape.partitions,
            replication: shape.replication,
        }),
        client_id: "potok".to_owned(),
    })
}

/// Asks a log outside the data folder whether it is there, and how the topics that pipelines have for
/// themselves are set up. Writes nothing.
pub async fn ask_log(connections: &Connections, plans: &[Plan]) -> Result<(), Failure> {
    let Some(config) = kafka(connections) else { return Ok(()) };
    let log = KafkaLog::new(config, Arc::new(SystemClock))?;
    let ask = async {
        log.topics().await?;
        for plan in plans {
            for warning in log.own_topics(&plan.info(), &plan.topics()).await? {
                eprintln!("warning: pipeline `{}`: {warning}", plan.name);
            }
        }
        Ok::<(), Fault>(())
    };
    match tokio::time::timeout(ANSWER_MAX, ask).await {
        Ok(answer) => answer.map_err(Failure::from),
        Err(_) => Err(Failure::new("P0601", format!("Kafka gave no answer within {ANSWER_MAX:?}"))
            .hint("look at POTOK_LOG, or `log` in potok.yaml: are these the brokers, and do they run?")),
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
