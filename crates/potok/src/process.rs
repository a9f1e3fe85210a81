//! A process at work: pipelines on a folder, the admin API beside them, until a signal.
//!
//! On SIGTERM or SIGINT intake stops, what is in flight ends and is noted, then the process goes.
//! A second signal ends it at once; nothing is lost by that either, only done again.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use potok_config::{Connections, LoadedFile, Pipeline};
use potok_flow::{Engine, Plan};
use potok_server::Admin;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::client::{self, Client};
use crate::failure::Failure;
use crate::folder::{Folder, FolderBusy, Notes};
use crate::gatekeeper::RoleKeeper;
use crate::listener::Listener;
use crate::owner::{self, Claim, Owner, nonce};
use crate::wire;

/// How long the admin API may take to finish the requests under way.
const GOODBYE_MAX: Duration = Duration::from_secs(2);
/// Another command may be at work in the folder for a moment.
const BUSY_LOOKS_MAX: u32 = 100;
const BUSY_LOOK_EVERY: Duration = Duration::from_millis(50);

/// A process at work.
pub struct Process {
    /// Where the admin API listens.
    pub address: SocketAddr,
    listener: Option<Listener>,
    engine: Engine,
    admin: Admin,
    /// Answers when the admin API has ended.
    serving: oneshot::Receiver<()>,
    drain_max: Duration,
    _claim: Claim,
    _notes: Notes,
    _folder: Folder,
}

impl Process {
    /// Opens the folder, starts the admin API, then the pipelines.
    pub async fn start(
        connections: &Connections,
        pipelines: &[LoadedFile<Pipeline>],
        plans: Vec<Plan>,
    ) -> Result<Self, Failure> {
        let listener = bind(&connections.admin, connections.auth.issuer.is_some()).await?;
        let address = listener.local_addr().map_err(|error| {
            Failure::new("P0507", "the admin address cannot be listened on").because(error)
        })?;
        let folder = open(connections).await?;
        let data_dir = &connections.data_dir;
        let notes = folder.notes()?;
        let engine = folder.engine(Some(notes.dir.clone()));
        let nonce = nonce();
        let files = pipelines.iter().map(|pipeline| (pipeline.name.to_string(), pipeline.files()));
        let identity = folder.identity(nonce.clone(), Some(address));
        let admin = Admin::of_files(engine.clone(), identity, files);
        // This machine's own programs need no login; whoever can read the folder has its key.
        let keeper = match address.ip().is_loopback() {
            true => None,
            false => RoleKeeper::start(&connections.auth)?,
        };
        let key = (!address.ip().is_loopback()).then(owner::secret).transpose()?;
        if let (Some(key), Some(keeper)) = (key.clone(), keeper) {
            tracing::warn!(%address, "the admin address can be reached by others: put TLS before it");
            admin.demand_tokens(Box::new(keeper), key);
        }
        let serving = serve(listener, admin.clone())?;
        let pid = std::process::id();
        let claim = Owner { address, pid, nonce, key }.claim(data_dir)?;
        let drain_max = *connections.drain_max;
        let mut process = Process {
            address,
            listener: None,
            engine,
            admin,
            serving,
            drain_max,
            _claim: claim,
            _notes: notes,
            _folder: folder,
        };
        let sources = wire::http_sources(pipelines);
        let listener = Listener::start(&connections.http, &process.engine, sources).await?;
        if let Some(listener) = &listener {
            process.admin.serves(listener.address, listener.sources.clone());
        }
        process.listener = listener;
        for plan in plans {
            process.engine.start(plan)?;
        }
        Ok(process)
    }

    /// Where HTTP sources listen, if there are any.
    pub fn http(&self) -> Option<SocketAddr> {
        self.listener.as_ref().map(|listener| listener.address)
    }

    /// The engine at work.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Waits until the process can go on no longer, because a part that it cannot be without has
    /// died; says which. There is nothing to finish then: the next process does what is left.
    pub async fn failed(&mut self) -> Failure {
        let listener = async {
            match &mut self.listener {
                Some(listener) => listener.failed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            failure = listener => failure,
            fault = self.engine.log().died() => fault.into(),
            _ = &mut self.serving => {
                Failure::new("P0524", "the admin API ended; the process ends with it")
                    .hint("start it again; nothing is lost")
            }
        }
    }

    /// Stops in good order, unless `signals` asks for haste. Says which pipelines held how many
    /// records: they go on at the next start.
    pub async fn stop(mut self, signals: &mut Signals) -> Result<Vec<(String, u64)>, Failure> {
        let listener = self.listener.take();
        let drained = async {
            // What replays and drops have in hand ends and is noted while the log takes notes.
            self.admin.stop_jobs().await;
            if let Some(listener) = listener {
                listener.stop().await;
            }
            self.engine.drain(self.drain_max).await;
        };
        tokio::select! {
            () = drained => {}
            () = signals.next() => {
                return Err(Failure::new("P0525", "stopped at once by a second signal")
                    .hint("nothing is lost: what was in flight is done again at the next start"));
            }
        }
        let held = self.engine.held();
        self.admin.close();
        // A client that does not finish reading must not keep the process.
        let _ = tokio::time::timeout(GOODBYE_MAX, self.serving).await;
        Ok(held)
    }
}

/// Serves the admin API on a thread of its own: whoever asks for health or status gets an answer,
/// however busy the lanes are.
fn serve(listener: TcpListener, admin: Admin) -> Result<oneshot::Receiver<()>, Failure> {
    let cannot =
        |error: std::io::Error| Failure::new("P0524", "no threads can be started").because(error);
    let listener = listener.into_std().map_err(cannot)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(cannot)?;
    let (ended, serving) = oneshot::channel();
    let serve = move || {
        let served = runtime.block_on(async move {
            potok_server::serve(TcpListener::from_std(listener)?, admin).await
        });
        if let Err(error) = served {
            tracing::error!(%error, "the admin API ended");
        }
        // Whoever waited may be gone.
        let _ = ended.send(());
    };
    std::thread::Builder::new().name("admin".to_owned()).spawn(serve).map_err(cannot)?;
    Ok(serving)
}

async fn bind(address: &str, demands_tokens: bool) -> Result<TcpListener, Failure> {
    let mut resolved = tokio::net::lookup_host(address).await.map_err(|error| {
        Failure::new("P0507", format!("the admin address {address} is not known")).because(error)
    })?;
    let first = resolved.next().ok_or_else(|| {
        Failure::new("P0507", format!("the admin address {address} leads nowhere"))
    })?;
    potok_server::bind(first, demands_tokens).await.map_err(|fault| match fault.code {
        // Not an address that fails but one that must not be used.
        "P0506" => Failure::faults(vec![fault]),
        _ => fault.into(),
    })
}

/// Opens the folder; a command that is at work there for a moment is waited for, a process not.
async fn open(connections: &Connections) -> Result<Folder, Failure> {
    let data_dir = &connections.data_dir;
    for look in 0..BUSY_LOOKS_MAX {
        match Folder::open(connections).await? {
            Ok(folder) => return Ok(folder),
            Err(FolderBusy) if look % 10 == 0 && process_works_in(data_dir).await => break,
            Err(FolderBusy) => tokio::time::sleep(BUSY_LOOK_EVERY).await,
        }
    }
    if let Some(owner) = Owner::read(data_dir)
        && process_works_in(data_dir).await
    {
        let what = format!("pid {} already works in {}", owner.pid, data_dir.display());
        return Err(Failure::new("P0508", what).hint(format!(
            "one process per data folder; it answers at http://{}, or choose another --data-dir",
            owner.address
        )));
    }
    Err(client::busy(data_dir))
}

async fn process_works_in(data_dir: &Path) -> bool {
    let data_dir = data_dir.to_owned();
    let asked = tokio::task::spawn_blocking(move || Client::of_owner(&data_dir).is_some());
    asked.await.unwrap_or(false)
}

/// The signals that ask a process to stop.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on they no longer end the process by themselves.
    pub fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Failure::new("P0524", "signals cannot be listened for").because(error)
            })
        };
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one. Cancelling loses nothing.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
