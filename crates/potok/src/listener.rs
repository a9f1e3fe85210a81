//! The HTTP listener at work: HTTP sources of all pipelines on one address, on threads of its own.

use std::net::SocketAddr;
use std::time::Duration;

use potok_config::Address;
use potok_flow::Engine;
use potok_server::{HttpLimits, HttpSource, HttpSources, serve_http};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};

use crate::failure::Failure;

/// How long requests under way may take to finish when the process stops.
const GOODBYE_MAX: Duration = Duration::from_secs(5);

/// A listener at work.
pub struct Listener {
    /// Where it listens.
    pub address: SocketAddr,
    /// What it serves.
    pub sources: HttpSources,
    closing: watch::Sender<bool>,
    /// Answers when the listener has ended.
    serving: oneshot::Receiver<()>,
}

impl Listener {
    /// Listens, if there is anything to listen for.
    pub async fn start(
        address: &Address,
        engine: &Engine,
        sources: Vec<HttpSource>,
    ) -> Result<Option<Self>, Failure> {
        if sources.is_empty() {
            return Ok(None);
        }
        let is_open = sources.iter().any(|source| source.auth.is_none());
        if is_open && !address.is_loopback() {
            tracing::warn!(
                %address,
                "other machines may send to HTTP sources that have no `auth`: whoever reaches \
                 the address can"
            );
        }
        let cannot = |error: std::io::Error| {
            Failure::new("P0545", format!("the address {address} cannot be listened on"))
                .because(error)
                .hint("choose another with --http, or `--http 127.0.0.1:0` to have one picked")
        };
        let listener = TcpListener::bind(address.to_string()).await.map_err(cannot)?;
        let bound = listener.local_addr().map_err(cannot)?;
        let (log, clock) = (engine.log().clone(), engine.clock().clone());
        let sources = HttpSources::open(log, clock, sources).await?;
        let (closing, closed) = watch::channel(false);
        let serving = serve(listener, sources.clone(), closed).map_err(cannot)?;
        Ok(Some(Listener { address: bound, sources, closing, serving }))
    }

    /// Waits until it can serve no longer.
    pub async fn failed(&mut self) -> Failure {
        // An error means that its thread died.
        let _ = (&mut self.serving).await;
        Failure::new("P0524", "the HTTP listener ended; the process ends with it")
            .hint("start it again; nothing is lost")
    }

    /// Takes no further requests and lets those under way finish.
    pub async fn stop(self) {
        self.closing.send_replace(true);
        // A sender that does not finish must not keep the process.
        let _ = tokio::time::timeout(GOODBYE_MAX, self.serving).await;
    }
}

/// Serves on a thread of its own, so that senders get their answers however busy the lanes are.
fn serve(
    listener: TcpListener,
    sources: HttpSources,
    closed: watch::Receiver<bool>,
) -> std::io::Result<oneshot::Receiver<()>> {
    let listener = listener.into_std()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (ended, serving) = oneshot::channel();
    let serve = move || {
        let served = runtime.block_on(async move {
            let listener = TcpListener::from_std(listener)?;
            serve_http(listener, sources.router(), HttpLimits::default(), closed).await
        });
        if let Err(error) = served {
            tracing::error!(%error, "the HTTP listener ended");
        }
        // Whoever waited may be gone.
        let _ = ended.send(());
    };
    std::thread::Builder::new().name("http".to_owned()).spawn(serve)?;
    Ok(serving)
}
